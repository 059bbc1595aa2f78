//! The one map by which user space steers the kernel side: who is recorded, from what wait on, how deep.

use crate::limits::{COMM_LEN, MAX_COMMS};

/// The settings in force. User space writes them through its mapping; the programs read them at each event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Control {
    /// Waits shorter than this many nanoseconds are counted by kind and mode only.
    pub min_wait_ns: u64,
    /// 0 = nothing is recorded.
    pub enabled: u32,
    /// Frames to walk, 0..=[`crate::limits::MAX_FRAMES`].
    pub stack_depth: u32,
    /// lockscope's own process, never recorded.
    pub own_tgid: u32,
    /// Selectors in force, of `SELECT_*`; 0 = everybody. A wait is recorded when any of them matches.
    pub select: u32,
    /// Cgroups in the cgroup map.
    pub cgroups: u32,
    /// Names in `comms`.
    pub comm_count: u32,
    /// Names to select, padded with zeros as the kernel pads `task_struct.comm`.
    pub comms: [[u8; COMM_LEN]; MAX_COMMS],
    /// Fallback where there is no cgroup v2: the thread whose next children are adopted; 0 = nobody.
    pub adopt_tid: u32,
    /// 1 = no cell is left: unknown keys go to *other* at once, without a letter.
    pub table_full: u32,
    /// page = constant + (address >> 12) × 64, modulo 2^64; 0 = no lock is identified.
    pub page_constant: u64,
    /// One lookup in the buffer LRU in `lru_mask` + 1 is timed (a power of two); `u32::MAX` = none.
    pub lru_mask: u32,
    /// Number of the burst under way: what runs in bursts only does nothing while this is 0, and what an earlier burst left
    /// open is forgotten.
    pub burst: u32,
}

/// Select processes in the map of tgids.
pub const SELECT_TGID: u32 = 1;
/// Select tasks by name.
pub const SELECT_COMM: u32 = 2;
/// Select tasks below the cgroups in the cgroup map.
pub const SELECT_CGROUP: u32 = 4;

const _: () = assert!(core::mem::size_of::<Control>() == 120);
