//! What is counted of the waits of one key on one CPU.

/// One CPU's sums for one key. All times in nanoseconds of the monotonic clock, finished waits only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cell {
    /// Waits that ended with the lock taken.
    pub n: u64,
    /// Their total, spinning included.
    pub wait_ns: u64,
    /// The part spent spinning, where the probe can tell.
    pub spin_ns: u64,
    /// The part spent queued or asleep, where the probe can tell.
    pub queue_ns: u64,
    /// The longest one.
    pub max_ns: u64,
    /// Waits that ended without the lock (a signal): metric M-08, in none of the sums above.
    pub interrupted_n: u64,
    /// Their total.
    pub interrupted_ns: u64,
    /// Counts by [`Outcome`].
    pub outcomes: [u32; OUTCOMES],
}

/// Room for counts by [`Outcome`]; the last one is spare.
pub const OUTCOMES: usize = 12;

/// How a wait at a rwsem's slow path came out. The first seven exclude one another, the rest are sub-counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// A reader took the lock at once by the optimistic steal (`rwsem_down_read_slowpath`).
    Stolen = 0,
    /// A reader found the queue empty and no writer.
    Fast = 1,
    /// A reader queued.
    QueuedReader = 2,
    /// A writer took the lock while spinning, without queueing.
    Spun = 3,
    /// A writer queued.
    QueuedWriter = 4,
    /// A reader gave up on a signal.
    InterruptedReader = 5,
    /// A writer gave up on a signal.
    InterruptedWriter = 6,
    /// Of the queued writers: the handoff bit was set for it (metric E-4).
    HandedOff = 7,
    /// Of the stolen ones: writers were waiting (metric E-3).
    StolenPastWaiters = 8,
    /// The kernel's own predicate said *steal*, yet the reader queued: owner and count changed in between.
    PredicateDisagreed = 9,
    /// Of the writers that got the lock: they waited at least RWSEM_WAIT_TIMEOUT (metric E-7).
    HandoffClass = 10,
}

const _: () = assert!(core::mem::size_of::<Cell>() == 104);
