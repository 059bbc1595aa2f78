//! Probe `contention`: the two tracepoints of every contended lock (include/trace/events/lock.h).
//!
//! `contention_end` carries no flags, so an end is matched by lock: first among this CPU's spinning contexts, then among
//! the task's own waits. A rwsem whose slow path is timed as well is one wait: the tracepoints bound its queued part.

use aya_ebpf::{
    EbpfContext,
    macros::{btf_tracepoint, raw_tracepoint},
    programs::{BtfTracePointContext, RawTracePointContext},
};
use profiler_common::{
    Interval, Kind, Mode,
    first_sight::INTERRUPTED,
    inflight::{FLAG_FOLDED, FLAG_QUEUED, PHASE_QUEUE, PHASE_SPIN},
    loss::Counter,
};

use crate::{
    account,
    filter::{self, Current},
    inflight,
    inflight::{Begin, Home},
    kernel,
    maps::count,
    stack::Family,
};

/// LCB_F_* of include/trace/events/lock.h.
const SPIN: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 4;
const RT: u32 = 8;
const PERCPU: u32 = 16;
const MUTEX: u32 = 32;

/// A wait begins, by tp_btf.
#[btf_tracepoint(function = "contention_begin")]
pub fn contention_begin(ctx: BtfTracePointContext) -> i32 {
    begin(kernel::argument(&ctx, 0), kernel::argument(&ctx, 1) as u32);
    0
}

/// A wait ends, by tp_btf.
#[btf_tracepoint(function = "contention_end")]
pub fn contention_end(ctx: BtfTracePointContext) -> i32 {
    end(&ctx, kernel::argument(&ctx, 0), kernel::argument(&ctx, 1) as i32);
    0
}

/// A wait begins, by raw tracepoint: where tp_btf is not to be had, and in tests.
#[raw_tracepoint(tracepoint = "contention_begin")]
pub fn contention_begin_raw(ctx: RawTracePointContext) -> i32 {
    begin(kernel::argument(&ctx, 0), kernel::argument(&ctx, 1) as u32);
    0
}

/// A wait ends, by raw tracepoint.
#[raw_tracepoint(tracepoint = "contention_end")]
pub fn contention_end_raw(ctx: RawTracePointContext) -> i32 {
    end(&ctx, kernel::argument(&ctx, 0), kernel::argument(&ctx, 1) as i32);
    0
}

#[inline(always)]
fn kind_of(flags: u32) -> Kind {
    if flags & MUTEX != 0 {
        Kind::Mutex
    } else if flags & PERCPU != 0 {
        Kind::PercpuRwsem
    } else if flags & RT != 0 {
        Kind::Rt
    } else if flags & SPIN != 0 {
        if flags & (READ | WRITE) != 0 { Kind::Rwlock } else { Kind::Spin }
    } else if flags & (READ | WRITE) != 0 {
        Kind::Rwsem
    } else {
        Kind::Semaphore
    }
}

#[inline(always)]
fn mode_of(flags: u32) -> Mode {
    if flags & WRITE != 0 {
        Mode::Write
    } else if flags & READ != 0 {
        Mode::Read
    } else {
        Mode::Exclusive
    }
}

#[inline(always)]
fn begin(lock: u64, flags: u32) {
    let Some(current) = filter::current() else { return };
    let kind = kind_of(flags);
    if kernel::KINDS.load() & (1 << kind as u32) == 0 || !current.is_selected() {
        return;
    }
    count(Counter::Begins);
    let phase = if flags & SPIN != 0 { PHASE_SPIN } else { PHASE_QUEUE };
    let bare = matches!(kind, Kind::Spin | Kind::Rwlock);
    let home = if bare { inflight::cpu_home() } else { inflight::claim_task_home(current.tid) };
    let Some(home) = home else { return };
    if bare {
        home.forget_strangers(current.tid);
    }
    if let Some(open) = home.find_lock(lock, current.tid) {
        if continues(open, kind, phase, current.now) {
            return;
        }
        home.forget(open);
    }
    let folded = if is_inner(&home, &current, lock, bare) { FLAG_FOLDED } else { 0 };
    let owner = kernel::owner(lock, kind);
    let begin = Begin { lock, kind, mode: mode_of(flags), phase, flags: folded, func: 0, owner };
    home.open(&current, &begin);
}

/// Whether this begin belongs to a wait already open: a mutex going to sleep or spinning again, or the queued part of a
/// timed rwsem wait. A mutex that starts to spin while it spins has lost its end instead.
#[inline(always)]
fn continues(open: *mut Interval, kind: Kind, phase: u8, now: u64) -> bool {
    // SAFETY: inside a map value, open, and of the current context.
    let (open_kind, open_phase, func) = unsafe { ((*open).kind, (*open).phase, (*open).func) };
    if func != 0 && kind as u8 == Kind::Rwsem as u8 {
        // A slow path queues once: a second begin means that the exit in between was lost.
        // SAFETY: as above.
        let first = unsafe { (*open).flags } & FLAG_QUEUED == 0;
        if first {
            inflight::enqueue(open, now);
        }
        return first;
    }
    if open_kind == Kind::Mutex as u8 && kind as u8 == open_kind && open_phase + phase != 2 * PHASE_SPIN {
        count(Counter::MutexRebegins);
        inflight::turn(open, phase, now);
        return true;
    }
    false
}

/// Whether the lock is part of one that this context waits for already (metrics.md §7.1).
#[inline(always)]
fn is_inner(home: &Home, current: &Current, lock: u64, bare: bool) -> bool {
    if home.contains(lock) {
        return true;
    }
    bare && inflight::task_home(current.tid).is_some_and(|task| task.contains(lock))
}

#[inline(always)]
fn end<C: EbpfContext>(ctx: &C, lock: u64, ret: i32) {
    let Some(current) = filter::current() else { return };
    let Some((home, open)) = find(&current, lock) else {
        if current.control.select == 0 && kernel::KINDS.load() == u32::MAX {
            count(Counter::EndWithoutBegin);
        }
        return;
    };
    // SAFETY: inside a map value, open, and of the current context.
    if unsafe { (*open).func } != 0 {
        inflight::dequeue(open, ret < 0, current.now);
        return;
    }
    count(Counter::Ends);
    if let Some((mut wait, _)) = inflight::finish(&home, open, current.now) {
        wait.outcomes = if ret < 0 { INTERRUPTED } else { 0 };
        account::account(ctx, &current, wait, Family::TRACEPOINT);
    }
}

/// The wait that ends: a spinning one first, since the spinlock inside a semaphore lies at the semaphore's own address.
#[inline(always)]
fn find(current: &Current, lock: u64) -> Option<(Home, *mut Interval)> {
    if let Some(home) = inflight::cpu_home()
        && let Some(open) = home.find_lock(lock, current.tid)
    {
        return Some((home, open));
    }
    let home = inflight::task_home(current.tid)?;
    Some((home, home.find_lock(lock, current.tid)?))
}
