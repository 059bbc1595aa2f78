//! Probe `jbd2`, the handles: how long starting, holding and stopping one takes, and why.
//!
//! The tracepoints count every handle; the function programs beside them time handles in bursts, or all the time when asked for.
//! A start is timed from `start_this_handle` to the tracepoint that fires once for each outermost start, so that it needs no
//! return: a start that fails fires nothing, and is seen at the thread's next one. Waits inside are told by whoever
//! timed them (`note`). On hosts with tracepoints only the same programs count, and time nothing.

use aya_ebpf::{
    helpers::generated::bpf_get_current_task_btf,
    macros::{fentry, fexit, raw_tracepoint},
    programs::{FEntryContext, FExitContext, RawTracePointContext},
};
use profiler_common::{
    Control, Kind, Mode, hist,
    journal::{
        CAUSES, Cause, HANDLE_HELD, HANDLE_IS_AGAIN, HANDLE_IS_BARRED, HANDLE_IS_CROWDED, HANDLE_IS_RESERVED,
        HANDLE_IS_SYNC, HANDLE_LEFT, HANDLE_RESTARTS, HANDLE_STARTS, HANDLE_STOPS, Handle, JOURNALS, Journal,
        JournalCell, JournalCounter, Span, SpanSums,
    },
    limits::STALE_NS,
    loss::Counter,
};

use crate::{
    account::Wait,
    devices,
    filter::{self, Current},
    kernel::{self, ABSENT, argument, bit_of, member},
    maps::{HANDLES, JOURNAL_CELLS, JOURNAL_DEVICES, JOURNAL_STATES, add_u32, add_u64, count, cpu, swap_if},
};

/// Where a stopping handle keeps its batching sleep and its commit wait.
const BATCHING: usize = 0;
const COMMIT_WAIT: usize = 1;

/// `start_this_handle(journal, handle)` is entered.
#[fentry(function = "start_this_handle")]
pub fn handle_start_entry(ctx: FEntryContext) -> i32 {
    let (journal, handle) = (argument(&ctx, 0), argument(&ctx, 1));
    // SAFETY: both are typed arguments of a traced function.
    let flags = unsafe {
        let reserved = bit_of(handle, kernel::BIT_HANDLE_RESERVED.load());
        let barred = member::<u32>(journal, kernel::OFF_JOURNAL_BARRIER.load()) != 0;
        let crowded = member::<u32>(journal, kernel::OFF_JOURNAL_RESERVED.load()) != 0;
        (reserved as u32 * HANDLE_IS_RESERVED)
            | (barred as u32 * HANDLE_IS_BARRED)
            | (crowded as u32 * HANDLE_IS_CROWDED)
    };
    start(journal, flags);
    0
}

/// `jbd2_handle_start(dev, tid, type, line_no, requested_blocks)`: an outermost start has succeeded.
#[raw_tracepoint(tracepoint = "jbd2_handle_start")]
pub fn handle_started(ctx: RawTracePointContext) -> i32 {
    started(JournalCounter::Starts, &Begun::of(&ctx));
    0
}

/// `jbd2_handle_restart`, with the same arguments: the transaction is 0 when it failed.
#[raw_tracepoint(tracepoint = "jbd2_handle_restart")]
pub fn handle_restarted(ctx: RawTracePointContext) -> i32 {
    started(JournalCounter::Restarts, &Begun::of(&ctx));
    0
}

/// `jbd2_handle_stats(dev, tid, type, line_no, interval, sync, requested_blocks, dirtied_blocks)`: an outermost handle is
/// about to stop. Its interval is in jiffies and not used.
#[raw_tracepoint(tracepoint = "jbd2_handle_stats")]
pub fn handle_stats(ctx: RawTracePointContext) -> i32 {
    let word = |n| argument(&ctx, n) as u32;
    let Some(current) = filter::current_untimed() else { return 0 };
    if !current.is_selected() {
        return 0;
    }
    let Some(cell) = cell_of(journal_number(word(0))) else { return 0 };
    tally(cell, JournalCounter::Stops, 1);
    tally(cell, JournalCounter::SyncStops, (word(5) & 1) as u64);
    tally(cell, JournalCounter::Requested, word(6) as u64);
    tally(cell, JournalCounter::Used, word(7) as u64);
    if current.in_burst() {
        stop(&current.look_at_the_clock(), word(5) & 1 != 0);
    }
    0
}

/// `stop_this_handle(handle)` is entered: the handle leaves its transaction, to stop or to be restarted.
#[fentry(function = "stop_this_handle")]
pub fn handle_left(_ctx: FEntryContext) -> i32 {
    leave();
    0
}

/// `jbd2_journal_stop` is left.
#[fexit(function = "jbd2_journal_stop")]
pub fn handle_stop_exit(_ctx: FExitContext) -> i32 {
    stopped();
    0
}

/// Synthetic steps for tests by BPF_PROG_TEST_RUN: (1, journal, flags) starts, (3) leaves, (4) has stopped. The tracepoints in
/// between are driven as they are.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn drive_handle(ctx: RawTracePointContext) -> i32 {
    let (first, second) = (argument(&ctx, 1), argument(&ctx, 2) as u32);
    match argument(&ctx, 0) {
        1 => start(first, second),
        3 => leave(),
        _ => stopped(),
    }
    0
}

/// What the tracepoints of a start say.
struct Begun {
    device: u32,
    transaction: u32,
    operation: u32,
    line: u32,
}

impl Begun {
    #[inline(always)]
    fn of(ctx: &RawTracePointContext) -> Begun {
        let word = |n| argument(ctx, n) as u32;
        Begun { device: word(0), transaction: word(1), operation: word(2), line: word(3) }
    }
}

#[inline(always)]
fn place_of(tid: u32) -> Option<*mut Handle> {
    HANDLES.get_ptr_mut(tid & kernel::HANDLE_MASK.load())
}

/// The handle of this thread, if it has one that is timed.
#[inline(always)]
fn handle_of(control: &Control, tid: u32) -> Option<*mut Handle> {
    if control.burst == 0 || tid == 0 {
        return None;
    }
    let handle = place_of(tid)?;
    // SAFETY: a map value; only its thread writes it while it is held.
    let (holder, burst) = unsafe { (core::ptr::read_volatile(&raw const (*handle).tid), (*handle).burst) };
    (holder == tid as u64 && burst == control.burst).then_some(handle)
}

/// This thread's place, taken if it is free, or was left behind.
#[inline(always)]
fn claim(current: &Current) -> Option<*mut Handle> {
    let handle = place_of(current.tid)?;
    let tid = current.tid as u64;
    // SAFETY: a map value; two threads of one place on two CPUs may try at once.
    unsafe {
        let holder = core::ptr::read_volatile(&raw const (*handle).tid);
        let old = (*handle).burst != current.control.burst
            || current.now.saturating_sub((*handle).since_ns) >= STALE_NS;
        if holder == tid && !old {
            return Some(handle);
        }
        if holder != 0 && holder != tid && !old {
            return None;
        }
        let (_, taken) = swap_if(&raw mut (*handle).tid, holder, tid);
        if taken {
            (*handle).phase = 0;
            (*handle).burst = current.control.burst;
        }
        taken.then_some(handle)
    }
}

#[inline(always)]
fn release(handle: *mut Handle) {
    // SAFETY: a map value that is this thread's.
    unsafe { core::ptr::write_volatile(&raw mut (*handle).tid, 0) };
}

#[inline(always)]
fn start(journal: u64, flags: u32) {
    let Some(current) = filter::current() else { return };
    if current.tid == 0 || !current.in_burst() || !current.is_selected() {
        return;
    }
    count(Counter::HandleEntries);
    let Some(handle) = claim(&current) else {
        count(Counter::HandleCollision);
        return;
    };
    // SAFETY: a map value that is this thread's.
    let handle = unsafe { &mut *handle };
    match handle.phase {
        HANDLE_STARTS => count(Counter::FailedStarts),
        HANDLE_HELD | HANDLE_STOPS | HANDLE_LEFT => count(Counter::LostEnd),
        _ => {}
    }
    let again = if handle.phase == HANDLE_RESTARTS { HANDLE_IS_AGAIN } else { 0 };
    handle.flags = flags | again;
    handle.journal = journal;
    handle.switches = switches();
    handle.causes = [0; CAUSES];
    handle.told_ns = 0;
    handle.phase = HANDLE_STARTS;
    handle.since_ns = current.now;
}

#[inline(always)]
fn started(counter: JournalCounter, begun: &Begun) {
    let Some(current) = filter::current_untimed() else { return };
    let number = journal_number(begun.device);
    if begun.transaction != 0 {
        // A transaction begins with anybody's first handle.
        note_running(number, begun.transaction);
    }
    if !current.is_selected() {
        return;
    }
    let Some(cell) = cell_of(number) else { return };
    if begun.transaction == 0 {
        tally(cell, JournalCounter::FailedRestarts, 1);
    } else {
        tally(cell, counter, 1);
    }
    if current.in_burst() {
        end_start(&current.look_at_the_clock(), cell, number, begun);
    }
}

/// Ends a start that was timed.
#[inline(always)]
fn end_start(current: &Current, cell: *mut JournalCell, number: u32, begun: &Begun) {
    let Some(handle) = handle_of(current.control, current.tid) else {
        tally(cell, JournalCounter::Untimed, 1);
        return;
    };
    // SAFETY: a map value that is this thread's.
    let open = unsafe { &mut *handle };
    if open.phase != HANDLE_STARTS {
        tally(cell, JournalCounter::Untimed, 1);
        return;
    }
    if begun.transaction == 0 {
        release(handle);
        return;
    }
    account_start(cell, open, current.now);
    open.journal_slot = number;
    open.transaction = begun.transaction;
    open.operation = begun.operation;
    open.line = begun.line;
    open.phase = HANDLE_HELD;
    open.since_ns = current.now;
}

/// The running transaction's begin: its first handle's.
#[inline(always)]
fn note_running(number: u32, transaction: u32) {
    let Some(journal) = state_of(number) else { return };
    // SAFETY: a map value. Two first handles at once write nearly the same time.
    unsafe {
        if (*journal).running != transaction {
            (*journal).running = transaction;
            (*journal).running_ns = filter::now();
        }
    }
}

#[inline(always)]
fn account_start(cell: *mut JournalCell, open: &mut Handle, now: u64) {
    let total = now.saturating_sub(open.since_ns);
    let span = if open.flags & HANDLE_IS_AGAIN != 0 {
        Span::Restart
    } else if open.flags & HANDLE_IS_RESERVED != 0 {
        Span::Reserved
    } else {
        Span::Start
    };
    add_span(cell, span as u32, total);
    let rest = total.saturating_sub(open.told_ns);
    let cause = through_memory(open, rest_cause(open) as u32);
    if cause < CAUSES {
        open.causes[cause] += rest;
    }
    for cause in 0..CAUSES {
        let ns = open.causes[cause];
        if ns != 0 {
            // SAFETY: `cause` is below CAUSES.
            unsafe {
                add_u64((&raw mut (*cell).cause_n as *mut u64).add(cause), 1);
                add_u64((&raw mut (*cell).cause_ns as *mut u64).add(cause), ns);
            }
        }
    }
}

/// The same number, of which the verifier knows nothing any more: it would otherwise walk all that follows once for each
/// cause.
#[inline(always)]
fn through_memory(open: &mut Handle, cause: u32) -> usize {
    // SAFETY: a word of a map value that is this thread's.
    unsafe {
        core::ptr::write_volatile(&raw mut open.cause, cause);
        core::ptr::read_volatile(&raw const open.cause) as usize
    }
}

/// What nobody told. A start that slept and was seen in none of the timed waits sat in one of the three that are inlined
/// (fs/jbd2/transaction.c, start_this_handle, add_transaction_credits, wait_transaction_switching): the handle and the
/// journal, as they were at the begin, say which.
#[inline(always)]
fn rest_cause(open: &Handle) -> Cause {
    if open.told_ns != 0 || open.switches == switches() {
        return Cause::Rest;
    }
    if open.flags & HANDLE_IS_RESERVED != 0 {
        Cause::Switching
    } else if open.flags & HANDLE_IS_BARRED != 0 {
        Cause::Barrier
    } else if open.flags & HANDLE_IS_CROWDED != 0 {
        Cause::Reserved
    } else {
        Cause::Rest
    }
}

/// Voluntary switches of the current thread (`task_struct.nvcsw`).
#[inline(always)]
fn switches() -> u64 {
    // SAFETY: the helper returns the current task, typed.
    unsafe { member::<u64>(bpf_get_current_task_btf() as u64, kernel::OFF_TASK_SWITCHES.load()) }
}

/// A wait has ended: if its thread is starting a handle, it is a part of that, and has a cause.
#[inline(always)]
pub fn note(control: &Control, wait: &Wait) {
    let Some(handle) = handle_of(control, wait.tid) else { return };
    // SAFETY: a map value that is the current thread's.
    let open = unsafe { &mut *handle };
    if open.phase == HANDLE_STARTS {
        let cause = cause_of(open, wait) as u32;
        let cause = through_memory(open, cause);
        if cause < CAUSES {
            open.causes[cause] += wait.wait_ns;
        }
        open.told_ns += wait.wait_ns;
    } else if kind_of(wait) == Kind::Commit as u8 && (open.phase == HANDLE_STOPS || open.phase == HANDLE_LEFT)
    {
        open.causes[COMMIT_WAIT] += wait.whole_ns;
    }
}

/// The kind, masked: what the verifier learns from comparing it then sticks to this copy alone, and does not split what
/// follows.
#[inline(always)]
pub fn kind_of(wait: &Wait) -> u8 {
    core::hint::black_box(wait.key.kind) & 31
}

#[inline(always)]
fn cause_of(open: &Handle, wait: &Wait) -> Cause {
    let lies_at = |offset: u32| offset != ABSENT && wait.address == open.journal + offset as u64;
    let kind = kind_of(wait);
    if kind == Kind::Jbd2Locked as u8 {
        Cause::Locked
    } else if kind == Kind::Jbd2Full as u8 {
        Cause::Full
    } else if kind == Kind::Jbd2Checkpoint as u8 {
        Cause::CheckpointWork
    } else if kind == Kind::Commit as u8 {
        Cause::CheckpointCommit
    } else if lies_at(kernel::OFF_JOURNAL_CHECKPOINT_MUTEX.load()) {
        Cause::CheckpointMutex
    } else if !lies_at(kernel::OFF_JOURNAL_STATE_LOCK.load()) {
        Cause::OtherLocks
    } else if wait.key.mode & 3 == Mode::Read as u8 {
        Cause::StateLockRead
    } else {
        Cause::StateLockWrite
    }
}

#[inline(always)]
fn stop(current: &Current, sync: bool) {
    let Some(handle) = handle_of(current.control, current.tid) else { return };
    // SAFETY: a map value that is this thread's.
    let open = unsafe { &mut *handle };
    if open.phase != HANDLE_HELD {
        return;
    }
    open.flags = sync as u32 * HANDLE_IS_SYNC;
    open.stop_ns = current.now;
    open.switches = switches();
    open.causes[BATCHING] = 0;
    open.causes[COMMIT_WAIT] = 0;
    open.phase = HANDLE_STOPS;
}

#[inline(always)]
fn leave() {
    let Some(current) = filter::current() else { return };
    let Some(handle) = handle_of(current.control, current.tid) else { return };
    // SAFETY: a map value that is this thread's.
    let open = unsafe { &mut *handle };
    let Some(cell) = cell_of(open.journal_slot) else { return };
    let held = current.now.saturating_sub(open.since_ns);
    if open.phase == HANDLE_HELD {
        open.phase = HANDLE_RESTARTS;
    } else if open.phase == HANDLE_STOPS {
        open.phase = HANDLE_LEFT;
        if open.flags & HANDLE_IS_SYNC != 0 && open.switches != switches() {
            let slept = current.now.saturating_sub(open.stop_ns);
            open.causes[BATCHING] = slept;
            add_span(cell, Span::Batching as u32, slept);
        }
    } else {
        return;
    }
    add_span(cell, Span::Hold as u32, held);
    note_left(open, &current, held);
}

/// A handle that leaves a locked transaction has kept its commit waiting; the last one is to blame (metric B-10).
#[inline(always)]
fn note_left(open: &Handle, current: &Current, held: u64) {
    let Some(journal) = state_of(open.journal_slot) else { return };
    // SAFETY: a map value; the last of two that leave at once wins, which is what is asked.
    unsafe {
        if (*journal).locked == 0 || (*journal).commit.transaction != open.transaction {
            return;
        }
        let commit = &mut (*journal).commit;
        commit.left_ns = current.now;
        commit.held_ns = held;
        commit.tgid = current.tgid;
        commit.operation = open.operation;
        commit.line = open.line;
    }
}

#[inline(always)]
fn stopped() {
    let Some(current) = filter::current() else { return };
    let Some(handle) = handle_of(current.control, current.tid) else { return };
    // SAFETY: a map value that is this thread's.
    let open = unsafe { &mut *handle };
    if open.phase == HANDLE_HELD {
        // Only an outermost handle's stop fires jbd2_handle_stats: this one was nested.
        if let Some(cell) = cell_of(open.journal_slot) {
            tally(cell, JournalCounter::Nested, 1);
        }
        return;
    }
    if open.phase != HANDLE_LEFT && open.phase != HANDLE_STOPS {
        return;
    }
    let apart = open.causes[BATCHING] + open.causes[COMMIT_WAIT];
    let took = current.now.saturating_sub(open.stop_ns).saturating_sub(apart);
    if let Some(cell) = cell_of(open.journal_slot) {
        add_span(cell, Span::Stop as u32, took);
    }
    release(handle);
}

/// The number of the journal of a file system's device.
#[inline(always)]
pub fn journal_number(device: u32) -> u32 {
    devices::number(&JOURNAL_DEVICES, JOURNALS as u32, device)
}

/// A journal's commits; those without a place of their own share one, and have no timeline.
#[inline(always)]
pub fn state_of(number: u32) -> Option<*mut Journal> {
    if number >= JOURNALS as u32 - 1 {
        return None;
    }
    JOURNAL_STATES.get_ptr_mut(number)
}

/// This CPU's sums of a journal.
#[inline(always)]
pub fn cell_of(number: u32) -> Option<*mut JournalCell> {
    JOURNAL_CELLS.get_ptr_mut(cpu() * JOURNALS as u32 + (number & (JOURNALS as u32 - 1)))
}

#[inline(always)]
fn tally(cell: *mut JournalCell, counter: JournalCounter, value: u64) {
    // SAFETY: every counter's number is below the array's length.
    add_u64(unsafe { (&raw mut (*cell).counters as *mut u64).add(counter as usize) }, value);
}

/// Adds to a span's sums. On a preemptible kernel another task may do so on this CPU, hence atomically; two longest ones at
/// once may lose one.
#[inline(always)]
fn add_span(cell: *mut JournalCell, span: u32, ns: u64) {
    // SAFETY: `span` is a Span's number; the bucket is masked to the array.
    unsafe {
        let sums = (&raw mut (*cell).spans as *mut SpanSums).add(span as usize);
        add_u64(&raw mut (*sums).n, 1);
        add_u64(&raw mut (*sums).total_ns, ns);
        if ns > (*sums).max_ns {
            (*sums).max_ns = ns;
        }
        let bucket = core::hint::black_box(hist::bucket(ns)) & (hist::STRIDE - 1);
        add_u32((&raw mut (*sums).hist as *mut u32).add(bucket), 1);
    }
}
