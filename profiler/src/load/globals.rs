//! What the programs must know of this kernel: offsets and sizes from its BTF. A member that does not exist switches
//! its branch off; no kernel version is asked.

use super::Options;
use crate::kernel::{btf::Btf, features::Features};

/// An offset that this kernel does not have (profiler-ebpf/src/kernel.rs).
const ABSENT: u32 = u32::MAX;

/// Frames at the top of a stack walked at a tracepoint that are the tracing machinery's own. Those that are left are
/// dropped by name in user space.
const SKIP_TRACEPOINT: u32 = 2;
/// The same at a function's exit.
const SKIP_FUNCTION: u32 = 1;

/// Values of the object's globals.
#[derive(Clone, Debug)]
pub struct Values {
    /// Those of 32 bits.
    pub words: Vec<(&'static str, u32)>,
    /// RWSEM_WAIT_TIMEOUT in nanoseconds; 0 = not known.
    pub handoff_ns: u64,
}

/// All values for this host.
pub fn values(options: &Options, btf: Option<&Btf>, features: &Features) -> Values {
    let offset = |path: &str| btf.and_then(|btf| btf.offset(path).ok()).unwrap_or(ABSENT);
    let size = |name: &str| btf.and_then(|btf| btf.size_of(name).ok()).unwrap_or(0);
    let enumerator = |name: &str| btf.and_then(|btf| btf.enumerator(name));
    let bit = |path: &str| btf.and_then(|btf| btf.bit_offset(path).ok()).unwrap_or(ABSENT);
    let sizes = &options.sizes;
    let words = vec![
        ("CELLS_PER_CPU", sizes.cells),
        ("SLOT_MASK", sizes.slots - 1),
        ("HANDLE_MASK", sizes.handles() - 1),
        ("OFF_JOURNAL_BARRIER", offset("journal_s.j_barrier_count")),
        ("OFF_JOURNAL_RESERVED", offset("journal_s.j_reserved_credits")),
        ("OFF_JOURNAL_STATE_LOCK", offset("journal_s.j_state_lock")),
        ("OFF_JOURNAL_CHECKPOINT_MUTEX", offset("journal_s.j_checkpoint_mutex")),
        ("OFF_JOURNAL_DEVICE", offset("journal_s.j_fs_dev")),
        ("OFF_BDEV_DEV", offset("block_device.bd_dev")),
        ("OFF_TRANSACTION_TID", offset("transaction_s.t_tid")),
        ("BIT_HANDLE_RESERVED", bit("jbd2_journal_handle.h_reserved")),
        ("OFF_TASK_SWITCHES", offset("task_struct.nvcsw")),
        ("OFF_FILE_INODE", offset("file.f_inode")),
        ("OFF_BH_BDEV", offset("buffer_head.b_bdev")),
        ("OFF_BH_BLOCK", offset("buffer_head.b_blocknr")),
        ("BIT_SHADOW", enumerator("BH_Shadow").unwrap_or(ABSENT)),
        ("OFF_FOLIO_MAPPING", offset("folio.mapping")),
        ("OFF_MAPPING_HOST", offset("address_space.host")),
        ("MAILBOX_MASK", sizes.letters - 1),
        ("HISTS_PER_SHARD", sizes.hists),
        ("SHARD_MASK", sizes.shards - 1),
        ("SKIP_TRACEPOINT", SKIP_TRACEPOINT),
        ("SKIP_FUNCTION", SKIP_FUNCTION),
        ("KINDS", options.kinds),
        ("OFF_RWSEM_OWNER", offset("rw_semaphore.owner")),
        ("OFF_MUTEX_OWNER", offset("mutex.owner")),
        ("OFF_TASK_TGID", offset("task_struct.tgid")),
        ("OFF_TASK_ON_CPU", offset("task_struct.on_cpu")),
        ("OFF_PAGE_HEAD", offset("page.compound_head")),
        ("OFF_PAGE_FLAGS", offset("page.flags")),
        ("OFF_PAGE_TYPE", offset("page.page_type")),
        ("OFF_SLAB_CACHE", offset("slab.slab_cache")),
        ("PAGE_TYPE_SLAB", enumerator("PGTY_slab").unwrap_or(ABSENT)),
        ("PAGE_FLAG_SLAB", enumerator("PG_slab").unwrap_or(0)),
        ("OFF_INODE_NUMBER", offset("inode.i_ino")),
        ("OFF_INODE_GENERATION", offset("inode.i_generation")),
        ("OFF_INODE_SB", offset("inode.i_sb")),
        ("OFF_SB_DEV", offset("super_block.s_dev")),
        ("OFF_MM_OWNER", offset("mm_struct.owner")),
        ("OFF_JOURNAL_RUNNING", offset("journal_s.j_running_transaction")),
        ("OFF_TRANSACTION_STATE", offset("transaction_s.t_state")),
        ("OFF_TASK_SIGNAL", offset("task_struct.signal")),
        ("OFF_SIGNAL_LIVE", offset("signal_struct.live")),
        ("SIZE_RWSEM", size("rw_semaphore")),
        ("SIZE_MUTEX", size("mutex")),
        ("SIZE_RWLOCK", size("qrwlock")),
        ("SIZE_SEMAPHORE", size("semaphore")),
        ("SIZE_PERCPU_RWSEM", size("percpu_rw_semaphore")),
        ("SIZE_RT", if features.preempt_rt { size("rwbase_rt").max(size("rt_mutex_base")) } else { 0 }),
    ];
    Values { words, handoff_ns: features.handoff_timeout_ns().unwrap_or(0) }
}
