//! Probe `jbd2`, the commits: when each phase of a commit began, by our own clock (the kernel's own statistics count in
//! jiffies), and who left last. One thread commits a journal; nothing here times a handle.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use profiler_common::journal::{COMMITS, Commit, Journal};

use crate::{
    filter::{self, Current},
    kernel::{self, argument},
    probes::handle::{journal_number, state_of},
};

/// `jbd2_start_commit(journal, transaction)` (fs/jbd2/commit.c, jbd2_journal_commit_transaction, as all of these).
#[raw_tracepoint(tracepoint = "jbd2_start_commit")]
pub fn commit_start(ctx: RawTracePointContext) -> i32 {
    let Some((current, journal)) = journal_at(argument(&ctx, 0)) else { return 0 };
    let transaction = transaction_at(argument(&ctx, 1));
    let running_ns = if journal.running == transaction { journal.running_ns } else { 0 };
    journal.locked = 0;
    journal.commit = Commit { running_ns, start_ns: current.now, transaction, ..Commit::default() };
    0
}

/// `jbd2_commit_locking`: from now on no handle joins, and those in it are waited for.
#[raw_tracepoint(tracepoint = "jbd2_commit_locking")]
pub fn commit_locking(ctx: RawTracePointContext) -> i32 {
    if let Some((current, journal)) = journal_at(argument(&ctx, 0)) {
        journal.commit.locking_ns = current.now;
        journal.locked = 1;
    }
    0
}

/// `jbd2_commit_flushing`: the last handle has left.
#[raw_tracepoint(tracepoint = "jbd2_commit_flushing")]
pub fn commit_flushing(ctx: RawTracePointContext) -> i32 {
    if let Some((current, journal)) = journal_at(argument(&ctx, 0)) {
        journal.commit.flushing_ns = current.now;
        journal.locked = 0;
    }
    0
}

/// `jbd2_commit_logging`.
#[raw_tracepoint(tracepoint = "jbd2_commit_logging")]
pub fn commit_logging(ctx: RawTracePointContext) -> i32 {
    if let Some((current, journal)) = journal_at(argument(&ctx, 0)) {
        journal.commit.logging_ns = current.now;
    }
    0
}

/// `jbd2_end_commit`: the commit is over and goes to user space.
#[raw_tracepoint(tracepoint = "jbd2_end_commit")]
pub fn commit_end(ctx: RawTracePointContext) -> i32 {
    if let Some((current, journal)) = journal_at(argument(&ctx, 0)) {
        end(journal, current.now);
    }
    0
}

#[inline(always)]
fn end(journal: &mut Journal, now: u64) {
    // Its begin was not seen: nothing can be said of it.
    if journal.commit.start_ns == 0 {
        return;
    }
    journal.commit.end_ns = now;
    let place = core::hint::black_box(journal.ended) as usize & (COMMITS - 1);
    journal.commits[place] = journal.commit;
    journal.commit.start_ns = 0;
    // SAFETY: a word of a map value, written last: user space then knows that the commit is whole.
    unsafe { core::ptr::write_volatile(&raw mut journal.ended, journal.ended + 1) };
}

/// The journal's place, by its file system's device. Selectors do not apply: one thread commits for everybody.
#[inline(always)]
fn journal_at(journal: u64) -> Option<(Current, &'static mut Journal)> {
    let current = filter::current()?;
    let device: u64 = kernel::read(journal + kernel::OFF_JOURNAL_DEVICE.load() as u64)?;
    let number: u32 = kernel::read(device + kernel::OFF_BDEV_DEV.load() as u64)?;
    let place = state_of(journal_number(number))?;
    // SAFETY: a map value that the committing thread alone writes, but for what handles note in `commit`.
    Some((current, unsafe { &mut *place }))
}

#[inline(always)]
fn transaction_at(transaction: u64) -> u32 {
    kernel::read(transaction + kernel::OFF_TRANSACTION_TID.load() as u64).unwrap_or(0)
}
