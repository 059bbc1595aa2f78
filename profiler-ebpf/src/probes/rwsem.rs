//! Probe `rwsem`: the two slow paths of reader-writer semaphores (kernel/locking/rwsem.c), entry to exit.
//!
//! Sees what the tracepoints cannot: a writer's optimistic spin, a reader's steal. One generic entry and one generic
//! exit program serve every function; the attach cookie says which. Where functions can be had by kprobe only, the
//! programs of that kind call the same code.

use aya_ebpf::{
    EbpfContext,
    helpers::bpf_get_func_arg,
    macros::{fentry, fexit, kprobe, kretprobe, raw_tracepoint},
    programs::{FEntryContext, FExitContext, ProbeContext, RawTracePointContext, RetProbeContext},
};
use profiler_common::{
    Interval, Kind, Mode,
    cell::Outcome,
    first_sight::INTERRUPTED,
    inflight::{
        FLAG_HANDOFF, FLAG_MAY_STEAL, FLAG_QUEUED, FLAG_WAITERS, FUNC_JBD2_SHADOW, FUNC_RWSEM_READ,
        FUNC_RWSEM_SPIN_ON_OWNER, FUNC_RWSEM_WRITE, PHASE_SPIN,
    },
    limits::FAMILIES,
    loss::Counter,
};

use crate::{
    account::{self, Wait, bit},
    filter::{self, Current},
    inflight::{self, Begin, Home},
    kernel::{self, Owner, cookie},
    maps::{SCRATCH, count, cpu},
    probes::sleep,
    stack::Family,
};

/// Bits of rw_semaphore.count (kernel/locking/rwsem.c).
const WRITER_LOCKED: u64 = 1;
const FLAG_COUNT_WAITERS: u64 = 2;
const FLAG_COUNT_HANDOFF: u64 = 4;
const READER_SHIFT: u32 = 8;
/// In rw_semaphore.owner.
const READER_OWNED: u64 = 1;
/// The smallest error pointer (include/linux/err.h, MAX_ERRNO).
const FIRST_ERROR: u64 = -4095i64 as u64;

/// A timed or marked function is entered.
#[fentry(function = "any")]
pub fn function_entry(ctx: FEntryContext) -> i32 {
    let func = cookie(&ctx);
    let mut count = 0u64;
    if func == FUNC_RWSEM_READ || func == FUNC_JBD2_SHADOW {
        // SAFETY: a helper of this program type that checks the number of the argument itself.
        unsafe { bpf_get_func_arg(ctx.as_ptr(), 1, &mut count) };
    }
    enter(func, kernel::argument(&ctx, 0), count);
    0
}

/// A timed function is left.
#[fexit(function = "any")]
pub fn function_exit(ctx: FExitContext) -> i32 {
    leave(&ctx, cookie(&ctx), ctx.ret::<u64>().unwrap_or(0));
    0
}

/// `rwsem_down_read_slowpath` by kprobe.
#[kprobe]
pub fn rwsem_read_entry(ctx: ProbeContext) -> u32 {
    enter(FUNC_RWSEM_READ, ctx.arg(0).unwrap_or(0), ctx.arg(1).unwrap_or(0));
    0
}

/// Its return.
#[kretprobe]
pub fn rwsem_read_exit(ctx: RetProbeContext) -> u32 {
    leave(&ctx, FUNC_RWSEM_READ, ctx.ret::<u64>());
    0
}

/// `rwsem_down_write_slowpath` by kprobe.
#[kprobe]
pub fn rwsem_write_entry(ctx: ProbeContext) -> u32 {
    enter(FUNC_RWSEM_WRITE, ctx.arg(0).unwrap_or(0), 0);
    0
}

/// Its return.
#[kretprobe]
pub fn rwsem_write_exit(ctx: RetProbeContext) -> u32 {
    leave(&ctx, FUNC_RWSEM_WRITE, ctx.ret::<u64>());
    0
}

/// `rwsem_spin_on_owner` by kprobe.
#[kprobe]
pub fn rwsem_handoff_entry(ctx: ProbeContext) -> u32 {
    enter(FUNC_RWSEM_SPIN_ON_OWNER, ctx.arg(0).unwrap_or(0), 0);
    0
}

/// Synthetic entry (function, lock, count) for tests by BPF_PROG_TEST_RUN, where functions cannot be probed.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn drive_entry(ctx: RawTracePointContext) -> i32 {
    enter(kernel::argument(&ctx, 0) as u8, kernel::argument(&ctx, 1), kernel::argument(&ctx, 2));
    0
}

/// Synthetic exit (function, return value) for tests.
#[raw_tracepoint(tracepoint = "sys_exit")]
pub fn drive_exit(ctx: RawTracePointContext) -> i32 {
    leave(&ctx, kernel::argument(&ctx, 0) as u8, kernel::argument(&ctx, 1));
    0
}

#[inline(always)]
fn enter(func: u8, lock: u64, lock_count: u64) {
    let Some(current) = filter::current() else { return };
    if func == FUNC_RWSEM_SPIN_ON_OWNER {
        mark_handoff(current.tid, lock);
        return;
    }
    if !current.is_selected() {
        return;
    }
    if sleep::is_ours(func) {
        sleep::enter(&current, func, lock, lock_count);
        return;
    }
    count(Counter::Entries);
    let reader = func == FUNC_RWSEM_READ;
    count(if reader { Counter::RwsemReadEntries } else { Counter::RwsemWriteEntries });
    let Some(home) = inflight::claim_task_home(current.tid) else { return };
    if let Some(stale) = home.find_func(func) {
        home.forget(stale);
    }
    let owner = kernel::owner(lock, Kind::Rwsem);
    let mode = if reader { Mode::Read } else { Mode::Write };
    let flags = if reader { read_flags(lock_count, &owner) } else { 0 };
    home.open(&current, &Begin { lock, kind: Kind::Rwsem, mode, phase: PHASE_SPIN, flags, func, owner });
}

/// The kernel's own predicate of `rwsem_down_read_slowpath`, on the count it was called with and the owner of now.
#[inline(always)]
fn read_flags(lock_count: u64, owner: &Owner) -> u8 {
    let readers = lock_count >> READER_SHIFT;
    let writer = lock_count & WRITER_LOCKED != 0;
    let reader_owned = owner.word & READER_OWNED != 0 && readers > 1 && !writer;
    let may_steal = !reader_owned && !writer && lock_count & FLAG_COUNT_HANDOFF == 0;
    let waiters = lock_count & FLAG_COUNT_WAITERS != 0;
    (if may_steal { FLAG_MAY_STEAL } else { 0 }) | (if waiters { FLAG_WAITERS } else { 0 })
}

/// A queued writer that spins on the owner does so because the handoff bit is set for it.
#[inline(always)]
fn mark_handoff(tid: u32, lock: u64) {
    let Some(home) = inflight::task_home(tid) else { return };
    let Some(open) = home.find_lock(lock, tid) else { return };
    // SAFETY: inside a map value, open, and of the current task.
    unsafe {
        if (*open).func == FUNC_RWSEM_WRITE && (*open).flags & FLAG_QUEUED != 0 {
            (*open).flags |= FLAG_HANDOFF;
        }
    }
}

#[inline(always)]
fn leave<C: EbpfContext>(ctx: &C, func: u8, ret: u64) {
    let Some(current) = filter::current() else { return };
    let done = if sleep::is_ours(func) { sleep::leave(&current, func) } else { close(&current, func, ret) };
    if let Some(mut wait) = done {
        wait.outcomes = forget_origin(wait.outcomes, func);
        account::account(ctx, &current, wait, Family::of_function(func));
    }
}

/// The same value, of which the verifier knows nothing any more: sent through scratch room. It would otherwise walk the
/// whole accounting once for each way a wait can come out, and near its limit.
#[inline(always)]
fn forget_origin(value: u32, func: u8) -> u32 {
    let Some(room) = SCRATCH.get_ptr_mut(cpu() * FAMILIES + Family::of_function(func).index()) else {
        return 0;
    };
    // SAFETY: the first word of a map value that is this program's until it returns.
    unsafe {
        core::ptr::write_volatile(room as *mut u32, value);
        core::ptr::read_volatile(room as *const u32)
    }
}

/// Ends the wait of a slow path and says how it came out.
#[inline(always)]
fn close(current: &Current, func: u8, ret: u64) -> Option<Wait> {
    let home = inflight::task_home(current.tid);
    let found = home.and_then(|home| Some((home, home.find_func(func)?)));
    let Some((home, open)) = found.filter(|(home, open)| is_of(home, *open, ret)) else {
        inflight::miss_entry(current);
        return None;
    };
    count(Counter::Exits);
    let (mut wait, flags) = inflight::finish(&home, open, current.now)?;
    let reader = func == FUNC_RWSEM_READ;
    wait.outcomes = outcomes(reader, flags, ret >= FIRST_ERROR, wait.wait_ns);
    Some(wait)
}

/// Whether this exit belongs to that entry: both slow paths return the semaphore, or an error. Where the kernel has
/// skipped an exit and the next entry, another lock's exit meets the old entry, which is dropped.
#[inline(always)]
fn is_of(home: &Home, open: *mut Interval, ret: u64) -> bool {
    // SAFETY: inside a map value, open, and of the current task.
    let same = ret >= FIRST_ERROR || ret == unsafe { (*open).lock };
    if !same {
        home.forget(open);
    }
    same
}

#[inline(always)]
fn outcomes(reader: bool, flags: u8, failed: bool, wait_ns: u64) -> u32 {
    if failed {
        let which = if reader { Outcome::InterruptedReader } else { Outcome::InterruptedWriter };
        return INTERRUPTED | bit(which);
    }
    if reader { read_outcomes(flags) } else { write_outcomes(flags, wait_ns) }
}

#[inline(always)]
fn read_outcomes(flags: u8) -> u32 {
    let may_steal = flags & FLAG_MAY_STEAL != 0;
    if flags & FLAG_QUEUED != 0 {
        return bit(Outcome::QueuedReader) | if may_steal { bit(Outcome::PredicateDisagreed) } else { 0 };
    }
    if !may_steal {
        return bit(Outcome::Fast);
    }
    bit(Outcome::Stolen) | if flags & FLAG_WAITERS != 0 { bit(Outcome::StolenPastWaiters) } else { 0 }
}

#[inline(always)]
fn write_outcomes(flags: u8, wait_ns: u64) -> u32 {
    let timeout = kernel::HANDOFF_NS.load();
    let long = if timeout != 0 && wait_ns >= timeout { bit(Outcome::HandoffClass) } else { 0 };
    if flags & FLAG_QUEUED == 0 {
        return bit(Outcome::Spun) | long;
    }
    bit(Outcome::QueuedWriter) | long | if flags & FLAG_HANDOFF != 0 { bit(Outcome::HandedOff) } else { 0 }
}
