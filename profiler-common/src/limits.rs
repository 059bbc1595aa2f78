//! Every bound of the kernel side in one place. User space may lower the sizes of maps at load, never raise these.

/// Frames kept of one kernel stack, at most.
pub const MAX_FRAMES: usize = 32;
/// Programs that walk stacks and may come in between one another on a CPU.
pub const FAMILIES: u32 = 16;
/// Waits one task, or one CPU's spinning contexts, can have open at once. Two lost 12 % of the pairs on PREEMPT_RT.
pub const DEPTH: usize = 4;
/// Cells below this number are not made by user space: one *other* cell and one *below the minimum* cell for each
/// kind and mode.
pub const RESERVED_CELLS: u32 = 256;
/// The first *below the minimum wait* cell; the *other* cells lie before it.
pub const BELOW_CELLS: u32 = 128;
/// Letters that a nested interrupt may still write into a mailbox that the interrupted context found nearly full.
/// Task, soft interrupt, hard interrupt and NMI can nest, each at most once per program.
pub const MAILBOX_MARGIN: u64 = 8;
/// Cgroups that can be selected at once.
pub const MAX_CGROUPS: usize = 8;
/// Process names that can be selected at once.
pub const MAX_COMMS: usize = 4;
/// Bytes of a task's name, as `TASK_COMM_LEN` (include/linux/sched.h).
pub const COMM_LEN: usize = 16;
/// Cells of one CPU are a multiple of this many, so that the next CPU's begin on a cache line of their own.
pub const CELL_ROUND: u32 = 8;
/// Slab caches that can be told to the kernel side.
pub const MAX_CACHES: u32 = 1024;
/// Bytes that one peek reads at most.
pub const PEEK_BYTES: usize = 512;
/// A wait, a handle or an fsync open for longer than this, in nanoseconds, may have lost its end: another thread may take its place,
/// user space drops it when its thread is gone.
pub const STALE_NS: u64 = 60_000_000_000;
/// Processes that can be selected or followed at once.
pub const MAX_TGIDS: u32 = 16_384;
