//! What a wait is counted under. User space groups these keys into rows; the kernel side only looks them up.

/// The kind of lock waited for, from the flags of `lock:contention_begin` (include/trace/events/lock.h, LCB_F_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A counting semaphore (kernel/locking/semaphore.c).
    Semaphore = 0,
    /// A queued spinlock; only its queued waiters are traced (kernel/locking/qspinlock.c).
    Spin = 1,
    /// A queued reader-writer spinlock (kernel/locking/qrwlock.c).
    Rwlock = 2,
    /// A mutex, optimistic spinning included (kernel/locking/mutex.c).
    Mutex = 3,
    /// A reader-writer semaphore (kernel/locking/rwsem.c).
    Rwsem = 4,
    /// A per-CPU reader-writer semaphore (kernel/locking/percpu-rwsem.c).
    PercpuRwsem = 5,
    /// An rtmutex or an rwbase of PREEMPT_RT (kernel/locking/rtmutex.c, rwbase_rt.c).
    Rt = 6,
    /// Not a lock: a handle waits for a transaction that is locked or being flushed (fs/jbd2/transaction.c,
    /// wait_transaction_locked).
    Jbd2Locked = 7,
    /// Not a lock: the same function, entered because the running transaction has no room for the handle's credits.
    Jbd2Full = 8,
    /// Not a lock: a handle waits for room in the log, or checkpoints to make it (fs/jbd2/checkpoint.c,
    /// __jbd2_log_wait_for_space); the j_checkpoint_mutex inside is a row of its own and not in here.
    Jbd2Checkpoint = 9,
    /// Not a lock: somebody waits for a commit to end (fs/jbd2/journal.c, jbd2_log_wait_commit).
    Commit = 10,
    /// Not a lock: a handle wants to change a buffer that a commit is writing (fs/jbd2/transaction.c,
    /// do_get_write_access, BH_Shadow): metric B-14.
    Jbd2Shadow = 11,
    /// A buffer's bit lock (fs/buffer.c, __lock_buffer).
    Buffer = 12,
    /// A folio's bit lock (mm/filemap.c, __folio_lock).
    Folio = 13,
    /// No wait: a timed sample of lookups in the buffer LRU (fs/buffer.c, find_get_block_common). Its mode is a
    /// [`crate::bh_lru::Lookup`].
    LruLookup = 14,
    /// No wait: somebody had every CPU's buffer LRU emptied (fs/buffer.c, invalidate_bh_lrus; mm/swap.c,
    /// lru_add_drain_all).
    LruInvalidate = 15,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 16] = [
        Kind::Semaphore,
        Kind::Spin,
        Kind::Rwlock,
        Kind::Mutex,
        Kind::Rwsem,
        Kind::PercpuRwsem,
        Kind::Rt,
        Kind::Jbd2Locked,
        Kind::Jbd2Full,
        Kind::Jbd2Checkpoint,
        Kind::Commit,
        Kind::Jbd2Shadow,
        Kind::Buffer,
        Kind::Folio,
        Kind::LruLookup,
        Kind::LruInvalidate,
    ];

    /// The field's word for this kind.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Semaphore => "semaphore",
            Kind::Spin => "spin",
            Kind::Rwlock => "rwlock",
            Kind::Mutex => "mutex",
            Kind::Rwsem => "rwsem",
            Kind::PercpuRwsem => "percpu-rwsem",
            Kind::Rt => "rt",
            Kind::Jbd2Locked => "jbd2:locked",
            Kind::Jbd2Full => "jbd2:full",
            Kind::Jbd2Checkpoint => "jbd2:checkpoint",
            Kind::Commit => "commit",
            Kind::Jbd2Shadow => "jbd2:shadow",
            Kind::Buffer => "buffer",
            Kind::Folio => "folio",
            Kind::LruLookup => "lru-lookup",
            Kind::LruInvalidate => "lru-invalidate",
        }
    }

    /// Whether it is a wait. What is not is counted with the same means, and stands in no table of waits.
    pub const fn is_wait(self) -> bool {
        !matches!(self, Kind::LruLookup | Kind::LruInvalidate)
    }

    /// The kind with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// How the lock is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mode {
    /// The only mode of an exclusive lock.
    Exclusive = 0,
    /// Shared, by a reader.
    Read = 1,
    /// Exclusive, by a writer.
    Write = 2,
}

impl Mode {
    /// One letter for tables: `X`, `R` or `W`.
    pub const fn letter(self) -> &'static str {
        match self {
            Mode::Exclusive => "X",
            Mode::Read => "R",
            Mode::Write => "W",
        }
    }

    /// The mode with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Mode> {
        [Mode::Exclusive, Mode::Read, Mode::Write].into_iter().find(|mode| *mode as u8 == number)
    }
}

/// Who held the lock when the wait began, as far as the lock's own word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OwnerKind {
    /// This kind of lock keeps no owner.
    NotKept = 0,
    /// A task, which was not on a CPU.
    OffCpu = 1,
    /// A task, which was running on a CPU.
    OnCpu = 2,
    /// Readers. A reader-owned rwsem names one arbitrary recent reader only, so no task is ever blamed.
    Readers = 3,
    /// The lock keeps an owner, but the word was empty or could not be read.
    Unknown = 4,
}

impl OwnerKind {
    /// The owner kind with this number; anything else reads as unknown.
    pub fn from_number(number: u8) -> OwnerKind {
        match number {
            0 => OwnerKind::NotKept,
            1 => OwnerKind::OffCpu,
            2 => OwnerKind::OnCpu,
            3 => OwnerKind::Readers,
            _ => OwnerKind::Unknown,
        }
    }
}

/// The full key of one cell. Rows, owners, processes and stacks are groupings of cells, made in user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CellKey {
    /// Hash of the frames' addresses; 0 when the stack was not walked.
    pub stack: u64,
    /// The lock's class: the slab cache of the object that it lies in; or its address, see `offset`.
    pub lock: u64,
    /// Which object of the class: an inode's number or an address space's process; 0 where the class has no instances.
    /// Not beside `stack`: two zeros in a row would be set by a byte loop.
    pub instance: u64,
    /// The waiter's process.
    pub tgid: u32,
    /// The owner's process, 0 unless `owner_kind` says a task.
    pub owner_tgid: u32,
    /// A [`Kind`].
    pub kind: u8,
    /// A [`Mode`].
    pub mode: u8,
    /// An [`OwnerKind`].
    pub owner_kind: u8,
    /// Number of the selector that chose the waiter.
    pub workload: u8,
    /// Where in the object the lock lies, or [`NO_CLASS`] when `lock` is an address.
    pub offset: u32,
    /// An inode's file system: `dev_t` as `super_block.s_dev` has it.
    pub device: u32,
    /// An inode's generation: its number is reused, the pair is not.
    pub generation: u32,
}

/// The lock is known by its address: no slab object, or one that says nothing (kmalloc).
pub const NO_CLASS: u32 = u32::MAX;

/// What user space knows of a slab cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CacheInfo {
    /// Bytes from one object to the next (`kmem_cache.size`).
    pub size: u32,
    /// Of `CACHE_*`.
    pub kind: u32,
    /// Where the inode lies in an object.
    pub inode_offset: u32,
    /// Always 0.
    pub pad: u32,
}

/// Objects that all are of one type; their locks are told apart by offset only.
pub const CACHE_CLASS: u32 = 1;
/// Objects that hold an inode.
pub const CACHE_INODE: u32 = 2;
/// Address spaces of processes.
pub const CACHE_MM: u32 = 3;
/// kmalloc: nothing is known of the objects, a lock is its address.
pub const CACHE_KMALLOC: u32 = 4;

/// Stands for a cache where the lock is a folio's: the instance is its file.
pub const FOLIO_CLASS: u64 = 1;
/// Stands for a cache where the lock is a buffer's bit: the instance is its block, and the device is there as well.
pub const BUFFER_CLASS: u64 = 2;

/// Where user space put a key: its cell, and the histogram of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CellRef {
    /// Number of the cell, the same on every CPU.
    pub cell: u32,
    /// Number of the histogram, or [`NO_HIST`].
    pub hist: u32,
}

/// This row owns no histogram.
pub const NO_HIST: u32 = u32::MAX;

const _: () = assert!(core::mem::size_of::<CellKey>() == 48);
const _: () = assert!(core::mem::size_of::<CellRef>() == 8);
