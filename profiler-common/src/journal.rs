//! What is counted of jbd2's handles and commits: sums for each CPU and journal, the handle that a thread has open, and the
//! commits of each journal. Times in nanoseconds of the monotonic clock.

use crate::hist::STRIDE;

/// Journals that are told apart, by their file system's device; the last place is everybody else's.
pub const JOURNALS: usize = 16;
/// Finished commits kept for user space, for each journal; a power of two.
pub const COMMITS: usize = 64;

/// A count of one CPU and journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum JournalCounter {
    /// Outermost handles started (tracepoint jbd2_handle_start, fs/jbd2/transaction.c): metric B-1.
    Starts = 0,
    /// Handles restarted (tracepoint jbd2_handle_restart).
    Restarts = 1,
    /// Restarts that failed: the handle is left without a transaction.
    FailedRestarts = 2,
    /// Outermost handles stopped (tracepoint jbd2_handle_stats).
    Stops = 3,
    /// Of them, synchronous ones (`handle_t.h_sync`).
    SyncStops = 4,
    /// Blocks that they had asked for: metric B-15.
    Requested = 5,
    /// Blocks that they used.
    Used = 6,
    /// Stops of nested handles, which are as many as nested starts: metric B-2.
    Nested = 7,
    /// Starts within bursts whose begin was not seen: they are in `Starts`, not among the timed ones.
    Untimed = 8,
}

/// Room for counts.
pub const JOURNAL_COUNTERS: usize = 9;

/// A stretch of a handle's life that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Span {
    /// An ordinary outermost start: metric B-3.
    Start = 0,
    /// The start of a handle with reserved credits, which may join a locked transaction.
    Reserved = 1,
    /// The start part of a restart.
    Restart = 2,
    /// From a start's end to `stop_this_handle`, the batching sleep included: metric B-5.
    Hold = 3,
    /// `jbd2_journal_stop` without its batching sleep and commit wait: metric B-6.
    Stop = 4,
    /// The deliberate sleep of a synchronous handle, for others to join: metric B-7.
    Batching = 5,
}

/// All spans, in the order of their numbers, with their names.
pub const SPANS: [(Span, &str); 6] = [
    (Span::Start, "start"),
    (Span::Reserved, "reserved_start"),
    (Span::Restart, "restart"),
    (Span::Hold, "hold"),
    (Span::Stop, "stop"),
    (Span::Batching, "batching"),
];

/// Why a start took as long as it did: metric B-4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// `journal_s.j_state_lock` as a reader.
    StateLockRead = 0,
    /// The same as a writer.
    StateLockWrite = 1,
    /// The running transaction was locked or being flushed (`wait_transaction_locked`).
    Locked = 2,
    /// It had no room for the credits (the same function, entered while it runs).
    Full = 3,
    /// Too many credits were reserved (`j_wait_reserved`).
    Reserved = 4,
    /// The journal was barred (`j_barrier_count`).
    Barrier = 5,
    /// A handle with reserved credits waited for the transaction to be switched.
    Switching = 6,
    /// Room in the log: the wait for `j_checkpoint_mutex`.
    CheckpointMutex = 7,
    /// Room in the log: checkpointing itself.
    CheckpointWork = 8,
    /// Room in the log: the wait for a commit.
    CheckpointCommit = 9,
    /// Any other lock, buffer or folio.
    OtherLocks = 10,
    /// What is left: computing, allocating, being off the CPU for another reason.
    Rest = 11,
}

/// Room for causes.
pub const CAUSES: usize = 12;

/// The names of the causes, in the order of their numbers.
pub const CAUSE_NAMES: [&str; CAUSES] = [
    "state_lock_read",
    "state_lock_write",
    "running_locked",
    "transaction_full",
    "reserved_credits",
    "barrier",
    "switching",
    "checkpoint_mutex",
    "checkpoint_work",
    "checkpoint_commit",
    "other_locks",
    "rest",
];

/// Sums of one timed stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SpanSums {
    /// How many.
    pub n: u64,
    /// Their total in nanoseconds.
    pub total_ns: u64,
    /// The longest in nanoseconds.
    pub max_ns: u64,
    /// Their distribution (`hist`).
    pub hist: [u32; STRIDE],
}

/// One CPU's sums of one journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct JournalCell {
    /// By [`JournalCounter`].
    pub counters: [u64; JOURNAL_COUNTERS],
    /// Starts that had some of this cause, by [`Cause`].
    pub cause_n: [u64; CAUSES],
    /// Their nanoseconds.
    pub cause_ns: [u64; CAUSES],
    /// Sums of fsync, by [`FsyncPart`].
    pub fsync: [u64; FSYNC_PARTS],
    /// By [`Span`].
    pub spans: [SpanSums; SPANS.len()],
}

/// A part of `ext4_sync_file` (fs/ext4/fsync.c), or their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FsyncPart {
    /// How many.
    Calls = 0,
    /// All of it, in nanoseconds.
    Total = 1,
    /// `file_write_and_wait_range`: data written and waited for.
    WriteAndWait = 2,
    /// `jbd2_log_wait_commit`: metric B-8.
    CommitWait = 3,
    /// `blkdev_issue_flush`.
    Flush = 4,
}

/// Room for parts of fsync.
pub const FSYNC_PARTS: usize = 5;

/// The handle that a thread has open. Free when `tid` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Handle {
    /// Whose it is.
    pub tid: u64,
    /// Its journal's address.
    pub journal: u64,
    /// When the phase that it is in began.
    pub since_ns: u64,
    /// When `jbd2_journal_stop` was entered.
    pub stop_ns: u64,
    /// Voluntary switches of the thread when the phase began (`task_struct.nvcsw`).
    pub switches: u64,
    /// One of `HANDLE_*`.
    pub phase: u32,
    /// Of `HANDLE_IS_*`.
    pub flags: u32,
    /// Number of its journal.
    pub journal_slot: u32,
    /// Number of its transaction.
    pub transaction: u32,
    /// The file system's type of operation (`EXT4_HT_*`, fs/ext4/ext4_jbd2.h).
    pub operation: u32,
    /// The line that started it.
    pub line: u32,
    /// The cause last added to: passed through memory, so that the verifier follows one path.
    pub cause: u32,
    /// The burst that it was begun in ([`crate::Control`]).
    pub burst: u32,
    /// The sum of `causes`, while it starts.
    pub told_ns: u64,
    /// Nanoseconds by [`Cause`] while it starts; while it stops, the first two are batching and commit wait.
    pub causes: [u64; CAUSES],
}

/// `start_this_handle` was entered.
pub const HANDLE_STARTS: u32 = 1;
/// It is open.
pub const HANDLE_HELD: u32 = 2;
/// `jbd2_journal_stop` was entered.
pub const HANDLE_STOPS: u32 = 3;
/// It has left its transaction, in `jbd2_journal_stop`.
pub const HANDLE_LEFT: u32 = 4;
/// It has left its transaction to be restarted.
pub const HANDLE_RESTARTS: u32 = 5;

/// It has reserved credits (`handle_t.h_reserved`).
pub const HANDLE_IS_RESERVED: u32 = 1;
/// The journal was barred when it began to start.
pub const HANDLE_IS_BARRED: u32 = 2;
/// Credits were reserved in the journal when it began to start.
pub const HANDLE_IS_CROWDED: u32 = 4;
/// It is being restarted.
pub const HANDLE_IS_AGAIN: u32 = 8;
/// It is synchronous (`handle_t.h_sync`).
pub const HANDLE_IS_SYNC: u32 = 16;

/// One commit: metric B-9, and who kept it open: B-10. 0 = not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Commit {
    /// When its first handle started.
    pub running_ns: u64,
    /// Tracepoint jbd2_start_commit (fs/jbd2/commit.c, as all of these).
    pub start_ns: u64,
    /// jbd2_commit_locking: no new handle gets in.
    pub locking_ns: u64,
    /// jbd2_commit_flushing: the last handle has left.
    pub flushing_ns: u64,
    /// jbd2_commit_logging.
    pub logging_ns: u64,
    /// jbd2_end_commit.
    pub end_ns: u64,
    /// When the last handle left it while it was locked; 0 = none did.
    pub left_ns: u64,
    /// How long that handle had been open.
    pub held_ns: u64,
    /// Its process.
    pub tgid: u32,
    /// Its type of operation.
    pub operation: u32,
    /// The line that started it.
    pub line: u32,
    /// The transaction's number.
    pub transaction: u32,
}

/// One journal: which one, its commit under way, and the last that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Journal {
    /// Commits that ended; the newest lies at (`ended` − 1) modulo [`COMMITS`].
    pub ended: u64,
    /// When the first handle of the running transaction started.
    pub running_ns: u64,
    /// The running transaction's number.
    pub running: u32,
    /// 1 = a commit is locked: whoever leaves it keeps it open.
    pub locked: u32,
    /// The commit under way.
    pub commit: Commit,
    /// Those that ended.
    pub commits: [Commit; COMMITS],
}

/// The fsync that a thread is in. Free when `tid` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fsync {
    /// Whose it is.
    pub tid: u64,
    /// When it was entered.
    pub begin_ns: u64,
    /// When its part under way was entered; 0 = none is.
    pub part_ns: u64,
    /// Nanoseconds by [`FsyncPart`].
    pub parts: [u64; FSYNC_PARTS],
}

const _: () = assert!(core::mem::size_of::<Handle>() == 176);
const _: () = assert!(core::mem::size_of::<Commit>() == 80);
const _: () = assert!(core::mem::size_of::<Fsync>() == 64);
