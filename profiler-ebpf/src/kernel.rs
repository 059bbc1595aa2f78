//! What of the running kernel the programs must know: offsets and sizes, set by user space from BTF and frozen, so that
//! the verifier prunes what this kernel does not have. No kernel version is known here.

use aya_ebpf::{
    EbpfContext, Global,
    helpers::{bpf_get_attach_cookie, bpf_probe_read_kernel},
};
use profiler_common::{Kind, OwnerKind};

/// An offset that this kernel does not have.
pub const ABSENT: u32 = u32::MAX;

macro_rules! globals {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)] pub static $name: Global<$type> = Global::new($value);)*
    };
}

globals! {
    /// The layout that this object was built with; user space sets the one that it knows, by this very name.
    LOCKSCOPE_ABI_4: u32 = 4;
    /// Cells of one CPU.
    CELLS_PER_CPU: u32 = 0;
    /// In-flight slots − 1; a power of two − 1.
    SLOT_MASK: u32 = 0;
    /// Letters of one CPU − 1; a power of two − 1.
    MAILBOX_MASK: u32 = 0;
    /// Histograms of one shard.
    HISTS_PER_SHARD: u32 = 0;
    /// Shards − 1; a power of two − 1.
    SHARD_MASK: u32 = 0;
    /// Frames of the tracing machinery itself to leave out of a stack walked at a tracepoint.
    SKIP_TRACEPOINT: u32 = 0;
    /// The same for a stack walked at a function's exit.
    SKIP_FUNCTION: u32 = 0;
    /// RWSEM_WAIT_TIMEOUT in nanoseconds (kernel/locking/rwsem.c); 0 = not known.
    HANDOFF_NS: u64 = 0;
    /// page.compound_head, page.flags, page.page_type, slab.slab_cache
    OFF_PAGE_HEAD: u32 = ABSENT;
    OFF_PAGE_FLAGS: u32 = 0;
    OFF_PAGE_TYPE: u32 = ABSENT;
    OFF_SLAB_CACHE: u32 = ABSENT;
    /// PGTY_slab, the page type of slabs; ABSENT where a flag says so.
    PAGE_TYPE_SLAB: u32 = ABSENT;
    /// PG_slab, the bit in page.flags, where there is no page type.
    PAGE_FLAG_SLAB: u32 = 0;
    /// inode.i_ino, inode.i_generation, inode.i_sb, super_block.s_dev
    OFF_INODE_NUMBER: u32 = ABSENT;
    OFF_INODE_GENERATION: u32 = ABSENT;
    OFF_INODE_SB: u32 = ABSENT;
    OFF_SB_DEV: u32 = ABSENT;
    /// mm_struct.owner; ABSENT without CONFIG_MEMCG.
    OFF_MM_OWNER: u32 = ABSENT;
    /// journal_s.j_running_transaction, transaction_s.t_state
    OFF_JOURNAL_RUNNING: u32 = ABSENT;
    OFF_TRANSACTION_STATE: u32 = ABSENT;
    /// Places for open handles − 1; a power of two − 1.
    HANDLE_MASK: u32 = 0;
    /// journal_s.j_barrier_count, j_reserved_credits, j_state_lock, j_checkpoint_mutex, j_fs_dev
    OFF_JOURNAL_BARRIER: u32 = ABSENT;
    OFF_JOURNAL_RESERVED: u32 = ABSENT;
    OFF_JOURNAL_STATE_LOCK: u32 = ABSENT;
    OFF_JOURNAL_CHECKPOINT_MUTEX: u32 = ABSENT;
    OFF_JOURNAL_DEVICE: u32 = 0;
    /// block_device.bd_dev
    OFF_BDEV_DEV: u32 = ABSENT;
    /// transaction_s.t_tid
    OFF_TRANSACTION_TID: u32 = 0;
    /// jbd2_journal_handle.h_reserved, in bits.
    BIT_HANDLE_RESERVED: u32 = ABSENT;
    /// task_struct.nvcsw
    OFF_TASK_SWITCHES: u32 = ABSENT;
    /// file.f_inode
    OFF_FILE_INODE: u32 = 0;
    /// buffer_head.b_bdev, b_blocknr
    OFF_BH_BDEV: u32 = ABSENT;
    OFF_BH_BLOCK: u32 = ABSENT;
    /// BH_Shadow (include/linux/jbd2.h), the bit of a buffer that a commit is writing.
    BIT_SHADOW: u32 = ABSENT;
    /// folio.mapping, address_space.host
    OFF_FOLIO_MAPPING: u32 = ABSENT;
    OFF_MAPPING_HOST: u32 = ABSENT;
    /// Kinds to record, bits 1 << Kind.
    KINDS: u32 = u32::MAX;
    /// rw_semaphore.owner
    OFF_RWSEM_OWNER: u32 = ABSENT;
    /// mutex.owner
    OFF_MUTEX_OWNER: u32 = ABSENT;
    /// task_struct.tgid
    OFF_TASK_TGID: u32 = ABSENT;
    /// task_struct.on_cpu
    OFF_TASK_ON_CPU: u32 = ABSENT;
    /// task_struct.signal
    OFF_TASK_SIGNAL: u32 = ABSENT;
    /// signal_struct.live
    OFF_SIGNAL_LIVE: u32 = ABSENT;
    /// Size of struct rw_semaphore; 0 = not known, then nothing is folded into one.
    SIZE_RWSEM: u32 = 0;
    /// Size of struct mutex.
    SIZE_MUTEX: u32 = 0;
    /// Size of struct qrwlock.
    SIZE_RWLOCK: u32 = 0;
    /// Size of struct semaphore.
    SIZE_SEMAPHORE: u32 = 0;
    /// Size of struct percpu_rw_semaphore.
    SIZE_PERCPU_RWSEM: u32 = 0;
    /// Size of struct rwbase_rt or rt_mutex_base, whichever is larger.
    SIZE_RT: u32 = 0;
}

/// Bytes that a lock of this kind occupies.
#[inline(always)]
pub fn size_of_kind(kind: u8) -> u64 {
    let size = if kind == Kind::Rwsem as u8 {
        SIZE_RWSEM.load()
    } else if kind == Kind::Mutex as u8 {
        SIZE_MUTEX.load()
    } else if kind == Kind::Rwlock as u8 {
        SIZE_RWLOCK.load()
    } else if kind == Kind::PercpuRwsem as u8 {
        SIZE_PERCPU_RWSEM.load()
    } else if kind == Kind::Semaphore as u8 {
        SIZE_SEMAPHORE.load()
    } else if kind == Kind::Rt as u8 {
        SIZE_RT.load()
    } else {
        0
    };
    size as u64
}

/// Reads a value of the kernel's at an address; `None` when the page is not there.
#[inline(always)]
pub fn read<T>(address: u64) -> Option<T> {
    // SAFETY: the helper faults safely on any address.
    unsafe { bpf_probe_read_kernel(address as *const T) }.ok()
}

/// Loads a member of an object whose type the verifier knows; 0 where this kernel has no such member. Unlike `read` it calls
/// no helper, and the kernel makes a load from a bad address read 0.
///
/// # Safety
/// `object` comes from a typed argument, from a typed member, or from a helper that returns a typed pointer: the verifier
/// refuses anything else.
#[inline(always)]
pub unsafe fn member<T: Copy + Default>(object: u64, offset: u32) -> T {
    if offset == ABSENT {
        return T::default();
    }
    // SAFETY: as the caller promises.
    unsafe { core::ptr::read_volatile((object + offset as u64) as *const T) }
}

/// Loads a bit field of one bit.
///
/// # Safety
/// As [`member`].
#[inline(always)]
pub unsafe fn bit_of(object: u64, bit: u32) -> bool {
    if bit == ABSENT {
        return false;
    }
    // SAFETY: as the caller promises.
    let word: u32 = unsafe { member(object, bit / 32 * 4) };
    word >> (bit % 32) & 1 != 0
}

/// Who held a lock: what its owner word says.
#[derive(Clone, Copy)]
pub struct Owner {
    /// An [`OwnerKind`].
    pub kind: u8,
    /// The process, when the kind says a task.
    pub tgid: u32,
    /// The owner word itself, 0 when it was not read.
    pub word: u64,
}

/// RWSEM_READER_OWNED (kernel/locking/rwsem.c): the word names one arbitrary recent reader.
const READER_OWNED: u64 = 1;
/// Both rwsem and mutex keep flags in the low three bits at most.
const OWNER_FLAGS: u64 = 7;

/// The owner of a lock at this moment, from the lock's own word.
#[inline(always)]
pub fn owner(lock: u64, kind: Kind) -> Owner {
    let (offset, readers) = match kind {
        Kind::Rwsem => (OFF_RWSEM_OWNER.load(), READER_OWNED),
        Kind::Mutex => (OFF_MUTEX_OWNER.load(), 0),
        // An rt lock keeps an owner, which is not read yet.
        Kind::Rt => (ABSENT, 0),
        _ => return Owner { kind: OwnerKind::NotKept as u8, tgid: 0, word: 0 },
    };
    if offset == ABSENT {
        return Owner { kind: OwnerKind::Unknown as u8, tgid: 0, word: 0 };
    }
    let word: u64 = read(lock + offset as u64).unwrap_or(0);
    if word & readers != 0 {
        return Owner { kind: OwnerKind::Readers as u8, tgid: 0, word };
    }
    owner_task(word)
}

#[inline(always)]
fn owner_task(word: u64) -> Owner {
    let task = word & !OWNER_FLAGS;
    let unknown = Owner { kind: OwnerKind::Unknown as u8, tgid: 0, word };
    if task == 0 || OFF_TASK_TGID.load() == ABSENT || OFF_TASK_ON_CPU.load() == ABSENT {
        return unknown;
    }
    let tgid = read::<u32>(task + OFF_TASK_TGID.load() as u64);
    let on_cpu = read::<u32>(task + OFF_TASK_ON_CPU.load() as u64);
    let (Some(tgid), Some(on_cpu)) = (tgid, on_cpu) else { return unknown };
    let kind = if on_cpu != 0 { OwnerKind::OnCpu } else { OwnerKind::OffCpu };
    Owner { kind: kind as u8, tgid, word }
}

/// The n-th argument of a raw or BTF tracepoint, or of a traced function, as the kernel hands it over: an array of
/// 64-bit words.
#[inline(always)]
pub fn argument<C: EbpfContext>(ctx: &C, n: usize) -> u64 {
    // SAFETY: for these program types the context is that array, and the verifier refuses an n that does not exist.
    unsafe { *(ctx.as_ptr() as *const u64).add(n) }
}

/// What a generic program is told at this place: the number of the function.
#[inline(always)]
pub fn cookie<C: EbpfContext>(ctx: &C) -> u8 {
    // SAFETY: a helper that takes the context.
    unsafe { bpf_get_attach_cookie(ctx.as_ptr()) as u8 }
}
