//! A wait that has begun and not ended. User space reads these while they run, so that a stall shows during the stall.

/// One open wait, or one open timed function. Free when `begin_ns` is 0, which is written last and cleared first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Interval {
    /// The lock's address.
    pub lock: u64,
    /// Start in nanoseconds of the monotonic clock; 0 = free.
    pub begin_ns: u64,
    /// Start of the phase it is in.
    pub phase_ns: u64,
    /// Finished spinning, in nanoseconds; for the jbd2 functions, waits for locks inside, which are rows of their own.
    pub spin_ns: u64,
    /// Finished queueing or sleeping, in nanoseconds.
    pub queue_ns: u64,
    /// The waiter's thread.
    pub tid: u32,
    /// The waiter's process.
    pub tgid: u32,
    /// The owner's process at entry, if `owner_kind` says a task.
    pub owner_tgid: u32,
    /// A [`crate::Kind`].
    pub kind: u8,
    /// A [`crate::Mode`].
    pub mode: u8,
    /// A [`crate::OwnerKind`].
    pub owner_kind: u8,
    /// Number of the selector that chose the waiter.
    pub workload: u8,
    /// One of `PHASE_*`.
    pub phase: u8,
    /// Of `FLAG_*`.
    pub flags: u8,
    /// The timed function's number, 0 for a tracepoint's interval.
    pub func: u8,
    /// Always 0.
    pub pad: [u8; 5],
}

/// Spinning.
pub const PHASE_SPIN: u8 = 1;
/// Queued or asleep.
pub const PHASE_QUEUE: u8 = 2;

/// A `contention_begin` was seen inside the timed function.
pub const FLAG_QUEUED: u8 = 1;
/// `rwsem_spin_on_owner` ran while queued: the handoff bit was set (kernel/locking/rwsem.c, rwsem_down_write_slowpath).
pub const FLAG_HANDOFF: u8 = 2;
/// At entry the kernel's own predicate said that this reader may steal.
pub const FLAG_MAY_STEAL: u8 = 4;
/// At entry writers or readers were waiting (RWSEM_FLAG_WAITERS).
pub const FLAG_WAITERS: u8 = 8;
/// A lock inside a lock that this task already waits for: part of the outer wait, never added to it.
pub const FLAG_FOLDED: u8 = 16;
/// The queued part ended with an error.
pub const FLAG_FAILED: u8 = 32;

/// Timed function: `rwsem_down_read_slowpath`.
pub const FUNC_RWSEM_READ: u8 = 1;
/// Timed function: `rwsem_down_write_slowpath`.
pub const FUNC_RWSEM_WRITE: u8 = 2;
/// Marked function: `rwsem_spin_on_owner`; its entry sets a flag, its exit is not wanted.
pub const FUNC_RWSEM_SPIN_ON_OWNER: u8 = 3;

/// Timed function: `wait_transaction_locked(journal)`.
pub const FUNC_JBD2_WAIT_LOCKED: u8 = 4;
/// Timed function: `__jbd2_log_wait_for_space(journal)`.
pub const FUNC_JBD2_WAIT_SPACE: u8 = 5;
/// Timed function: `jbd2_log_wait_commit(journal, tid)`.
pub const FUNC_JBD2_WAIT_COMMIT: u8 = 6;
/// Timed function: `out_of_line_wait_on_bit(word, bit)`, for `BH_Shadow` only.
pub const FUNC_JBD2_SHADOW: u8 = 7;
/// Timed function: `__lock_buffer(bh)`, entered only when the buffer is locked.
pub const FUNC_LOCK_BUFFER: u8 = 8;
/// Timed function: `__folio_lock(folio)`, entered only when the folio is locked.
pub const FUNC_LOCK_FOLIO: u8 = 9;
/// Timed function: `__folio_lock_killable(folio)`.
pub const FUNC_LOCK_FOLIO_KILLABLE: u8 = 10;

/// Parts of fsync, for the programs that time it: `ext4_sync_file`, `file_write_and_wait_range`, `blkdev_issue_flush`.
pub const FUNC_FSYNC: u8 = 1;
/// As above.
pub const FUNC_FSYNC_WRITE: u8 = 2;
/// As above.
pub const FUNC_FSYNC_FLUSH: u8 = 3;

const _: () = assert!(core::mem::size_of::<Interval>() == 64);
