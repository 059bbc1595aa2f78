//! Where begin meets end: the only place that computes a duration.
//!
//! Waits of tasks live in a slot by thread number, waits that cannot be preempted in a slot by CPU, up to four nested
//! ones in each, searched by lock; timed functions are searched by function. Nothing here knows cells or histograms.

use profiler_common::{
    CellKey, Interval, Kind, Mode,
    inflight::{FLAG_FAILED, FLAG_FOLDED, FLAG_QUEUED, FUNC_JBD2_WAIT_LOCKED, PHASE_QUEUE, PHASE_SPIN},
    key::NO_CLASS,
    limits::DEPTH,
    loss::Counter,
};

use crate::{
    account::Wait,
    filter::Current,
    kernel::{self, Owner},
    maps::{SLOT_TIDS, SLOTS, SPINS, count, count_by, cpu, swap_if},
};

type Slot = *mut [Interval; DEPTH];

/// More bytes than any lock has: most locks are told apart by this alone, without asking for their kind's size.
const LARGEST_LOCK: u64 = 512;

/// What a begin knows of a wait.
pub struct Begin {
    pub lock: u64,
    pub kind: Kind,
    pub mode: Mode,
    pub phase: u8,
    pub flags: u8,
    /// Number of the timed function, 0 for a tracepoint.
    pub func: u8,
    pub owner: Owner,
}

/// Where the waits of this context live.
#[derive(Clone, Copy)]
pub struct Home {
    slot: Slot,
    /// The word that says whose slot it is; null for a CPU's.
    claim: *mut u64,
    /// Just claimed: nothing is open in it, and nothing need be looked for.
    fresh: bool,
}

/// The slot of this CPU's spinning contexts.
#[inline(always)]
pub fn cpu_home() -> Option<Home> {
    let slot = SPINS.get_ptr_mut(cpu())?;
    Some(Home { slot, claim: core::ptr::null_mut(), fresh: false })
}

/// The slot of this thread if it has one now. Thread 0 is every CPU's idle task and lives with the CPU.
#[inline(always)]
pub fn task_home(tid: u32) -> Option<Home> {
    if tid == 0 {
        return cpu_home();
    }
    let index = tid & kernel::SLOT_MASK.load();
    let claim = SLOT_TIDS.get_ptr_mut(index)?;
    // SAFETY: a map value.
    if unsafe { core::ptr::read_volatile(claim) } != tid as u64 {
        return None;
    }
    Some(Home { slot: SLOTS.get_ptr_mut(index)?, claim, fresh: false })
}

/// The slot of this thread, claimed if it is free. A slot held by another thread is a counted loss.
#[inline(always)]
pub fn claim_task_home(tid: u32) -> Option<Home> {
    if tid == 0 {
        return cpu_home();
    }
    let index = tid & kernel::SLOT_MASK.load();
    let claim = SLOT_TIDS.get_ptr_mut(index)?;
    // SAFETY: a map value; only the thread it names ever clears it.
    let holder = unsafe { core::ptr::read_volatile(claim) };
    let fresh = holder != tid as u64;
    if fresh && (holder != 0 || !swap_if(claim, 0, tid as u64).1) {
        count(Counter::SlotCollision);
        return None;
    }
    Some(Home { slot: SLOTS.get_ptr_mut(index)?, claim, fresh })
}

impl Home {
    #[inline(always)]
    fn interval(&self, index: usize) -> *mut Interval {
        // SAFETY: callers pass an index below DEPTH.
        unsafe { (self.slot as *mut Interval).add(index) }
    }

    /// This thread's open wait for this lock. In a CPU's slot another thread's is a left-over: see `forget_strangers`.
    #[inline(always)]
    pub fn find_lock(&self, lock: u64, tid: u32) -> Option<*mut Interval> {
        if self.fresh {
            return None;
        }
        for index in 0..DEPTH {
            let interval = self.interval(index);
            // SAFETY: inside a map value.
            if unsafe { (*interval).begin_ns != 0 && (*interval).lock == lock && (*interval).tid == tid } {
                return Some(interval);
            }
        }
        None
    }

    /// The open call of this timed function.
    #[inline(always)]
    pub fn find_func(&self, func: u8) -> Option<*mut Interval> {
        if self.fresh {
            return None;
        }
        for index in 0..DEPTH {
            let interval = self.interval(index);
            // SAFETY: inside a map value.
            if unsafe { (*interval).begin_ns != 0 && (*interval).func == func } {
                return Some(interval);
            }
        }
        None
    }

    #[inline(always)]
    fn find_free(&self) -> Option<*mut Interval> {
        if self.fresh {
            return Some(self.interval(0));
        }
        for index in 0..DEPTH {
            let interval = self.interval(index);
            // SAFETY: inside a map value.
            if unsafe { (*interval).begin_ns } == 0 {
                return Some(interval);
            }
        }
        None
    }

    /// Whether `lock` lies inside a lock that this context already waits for (`&sem->wait_lock` inside `sem`).
    #[inline(always)]
    pub fn contains(&self, lock: u64) -> bool {
        if self.fresh {
            return false;
        }
        for index in 0..DEPTH {
            let interval = self.interval(index);
            // SAFETY: inside a map value.
            let (open, outer) = unsafe { ((*interval).begin_ns != 0, (*interval).lock) };
            let inside = lock.wrapping_sub(outer);
            // SAFETY: as above.
            if open && inside < LARGEST_LOCK && inside < kernel::size_of_kind(unsafe { (*interval).kind }) {
                return true;
            }
        }
        false
    }

    /// Drops what other threads left open in this CPU's slot: who spins cannot be preempted, and an interrupt runs as the
    /// thread it interrupts, so their ends were lost (the kernel skips a program that is already running on the CPU).
    #[inline(always)]
    pub fn forget_strangers(&self, tid: u32) {
        for index in 0..DEPTH {
            let interval = self.interval(index);
            // SAFETY: inside a map value.
            if unsafe { (*interval).begin_ns != 0 && (*interval).tid != tid } {
                self.forget(interval);
            }
        }
    }

    /// Drops what began in this CPU's slot after a wait that now ends: spinning waits nest, so their ends were lost.
    #[inline(always)]
    fn forget_inner(&self, begin_ns: u64) {
        for index in 0..DEPTH {
            let interval = self.interval(index);
            // SAFETY: inside a map value.
            if unsafe { (*interval).begin_ns } > begin_ns {
                self.forget(interval);
            }
        }
    }

    /// Drops a wait whose end was lost: it must neither pair with a later end nor look like an outer wait.
    #[inline(always)]
    pub fn forget(&self, stale: *mut Interval) {
        count(Counter::LostEnd);
        // SAFETY: inside a map value.
        unsafe { core::ptr::write_volatile(&raw mut (*stale).begin_ns, 0) };
    }

    /// Opens a wait in a free place.
    #[inline(always)]
    pub fn open(&self, current: &Current, begin: &Begin) {
        let Some(interval) = self.find_free() else {
            count(Counter::TooDeep);
            return;
        };
        // SAFETY: inside a map value. User space may copy it while it is written: `begin_ns`, 0 in a free place, is set last.
        unsafe {
            fill(&mut *interval, current, begin);
            core::ptr::write_volatile(&raw mut (*interval).begin_ns, current.now);
        }
    }

    /// Frees a wait's place, and the slot when it was the last one.
    #[inline(always)]
    fn close(&self, interval: *mut Interval) {
        // SAFETY: inside map values.
        unsafe {
            core::ptr::write_volatile(&raw mut (*interval).begin_ns, 0);
            if self.claim.is_null() {
                return;
            }
            for index in 0..DEPTH {
                if (*self.interval(index)).begin_ns != 0 {
                    return;
                }
            }
            core::ptr::write_volatile(self.claim, 0);
        }
    }
}

#[inline(always)]
fn fill(interval: &mut Interval, current: &Current, begin: &Begin) {
    interval.lock = begin.lock;
    interval.phase_ns = current.now;
    interval.spin_ns = 0;
    interval.queue_ns = 0;
    interval.tid = current.tid;
    interval.tgid = current.tgid;
    interval.owner_tgid = begin.owner.tgid;
    interval.kind = begin.kind as u8;
    interval.mode = begin.mode as u8;
    interval.owner_kind = begin.owner.kind;
    interval.workload = 0;
    interval.phase = begin.phase;
    interval.flags = begin.flags;
    interval.func = begin.func;
}

/// Ends the phase an open wait is in and starts another.
#[inline(always)]
pub fn turn(interval: *mut Interval, phase: u8, now: u64) {
    // SAFETY: inside a map value, open, and of the current context.
    let interval = unsafe { &mut *interval };
    let passed = now.saturating_sub(interval.phase_ns);
    if interval.phase == PHASE_QUEUE {
        interval.queue_ns += passed;
    } else {
        interval.spin_ns += passed;
    }
    interval.phase_ns = now;
    interval.phase = phase;
}

/// Marks the queued part of a timed function's wait as begun.
#[inline(always)]
pub fn enqueue(interval: *mut Interval, now: u64) {
    turn(interval, PHASE_QUEUE, now);
    // SAFETY: as in `turn`.
    unsafe { (*interval).flags |= FLAG_QUEUED };
}

/// Marks the queued part of a timed function's wait as over.
#[inline(always)]
pub fn dequeue(interval: *mut Interval, failed: bool, now: u64) {
    turn(interval, PHASE_SPIN, now);
    if failed {
        // SAFETY: as in `turn`.
        unsafe { (*interval).flags |= FLAG_FAILED };
    }
}

/// An exit whose entry was not seen: a loss only when nobody is left out by selectors.
#[inline(always)]
pub fn miss_entry(current: &Current) {
    if current.control.select == 0 {
        count(Counter::ExitWithoutEntry);
    }
}

/// Closes a wait and says what is to be accounted: nothing for one that is part of an outer wait.
#[inline(always)]
pub fn finish(home: &Home, interval: *mut Interval, now: u64) -> Option<(Wait, u8)> {
    turn(interval, 0, now);
    // SAFETY: inside a map value, open, and of the current context.
    let open = unsafe { &*interval };
    let (begin_ns, end_ns, flags) = (open.begin_ns, open.phase_ns, open.flags);
    let wait = Wait {
        key: key_of(open),
        address: open.lock,
        wait_ns: end_ns.saturating_sub(begin_ns),
        spin_ns: open.spin_ns,
        queue_ns: open.queue_ns,
        whole_ns: end_ns.saturating_sub(begin_ns),
        outcomes: 0,
        tid: open.tid,
    };
    home.close(interval);
    if home.claim.is_null() {
        home.forget_inner(begin_ns);
    }
    if end_ns < begin_ns {
        count(Counter::NegativeWait);
        return None;
    }
    if flags & FLAG_FOLDED != 0 {
        count(Counter::Folded);
        count_by(Counter::FoldedNs, wait.wait_ns);
        return None;
    }
    take_from_outer(&wait, begin_ns);
    Some((wait, flags))
}

/// A wait inside a jbd2 function is taken out of that function's time: it belongs to the innermost place. Of nested
/// functions only the innermost is told; what it passes on is its own time without this.
#[inline(always)]
fn take_from_outer(wait: &Wait, begin_ns: u64) {
    let Some(home) = task_home(wait.tid) else { return };
    let mut latest = 0;
    let mut outer = None;
    for index in 0..DEPTH {
        let interval = home.interval(index);
        // SAFETY: inside a map value.
        let (began, func) = unsafe { ((*interval).begin_ns, (*interval).func) };
        if func >= FUNC_JBD2_WAIT_LOCKED && began > latest && began < begin_ns {
            latest = began;
            outer = Some(interval);
        }
    }
    if let Some(outer) = outer {
        // SAFETY: as above, and of the current task.
        unsafe { (*outer).spin_ns += wait.wait_ns };
    }
}

#[inline(always)]
fn key_of(open: &Interval) -> CellKey {
    CellKey {
        lock: open.lock,
        instance: 0,
        stack: 0,
        tgid: open.tgid,
        owner_tgid: open.owner_tgid,
        kind: open.kind,
        mode: open.mode,
        owner_kind: open.owner_kind,
        workload: open.workload,
        offset: NO_CLASS,
        device: 0,
        generation: 0,
    }
}
