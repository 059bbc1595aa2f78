//! Every map of the kernel side. Sizes here are for one small machine; user space sets them at load from the possible
//! CPUs and the memory bound. Nothing in this file counts or decides.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

use aya_ebpf::{
    btf_maps::CgroupArray,
    helpers::bpf_get_smp_processor_id,
    macros::{btf_map, map},
    maps::{Array, HashMap},
};
use profiler_common::{
    Cell, CellKey, CellRef, Control, Interval, Letter,
    bh_lru::{DEVICES, LruCell, LruSample},
    first_sight::MailboxEnds,
    hist::STRIDE,
    journal::{Fsync, Handle, JOURNALS, Journal, JournalCell},
    key::CacheInfo,
    limits::{DEPTH, MAX_CACHES, MAX_CGROUPS, MAX_FRAMES, MAX_TGIDS, PEEK_BYTES},
    loss::{COUNTERS as COUNTER_ROOM, Counter},
};

/// `BPF_F_MMAPABLE` (include/uapi/linux/bpf.h).
const MMAPABLE: u32 = 1 << 10;

/// What user space steers; one entry.
#[map]
pub static CONTROL: Array<Control> = Array::with_max_entries(1, MMAPABLE);

/// Known keys. Filled by user space only; preallocated.
#[map]
pub static CELL_OF: HashMap<CellKey, CellRef> = HashMap::with_max_entries(1024, 0);

/// [cpu × cells + cell]. Each CPU writes its own.
#[map]
pub static CELLS: Array<Cell> = Array::with_max_entries(1, MMAPABLE);

/// [shard × histograms + histogram].
#[map]
pub static HISTS: Array<[u32; STRIDE]> = Array::with_max_entries(1, MMAPABLE);

/// Which thread holds each in-flight slot; 0 = free. Apart from the slots, so that a scan of all reads little.
#[map]
pub static SLOT_TIDS: Array<u64> = Array::with_max_entries(1, MMAPABLE);

/// Open waits of tasks, by thread number modulo the size.
#[map]
pub static SLOTS: Array<[Interval; DEPTH]> = Array::with_max_entries(1, MMAPABLE);

/// Open waits of code that cannot be preempted, by CPU.
#[map]
pub static SPINS: Array<[Interval; DEPTH]> = Array::with_max_entries(1, MMAPABLE);

/// [cpu × letters + position].
#[map]
pub static MAILBOX: Array<Letter> = Array::with_max_entries(1, MMAPABLE);

/// Head and tail of each CPU's mailbox.
#[map]
pub static MAILBOX_ENDS: Array<MailboxEnds> = Array::with_max_entries(1, MMAPABLE);

/// Tallies and losses of each CPU.
#[map]
pub static COUNTERS: Array<[u64; COUNTER_ROOM]> = Array::with_max_entries(1, MMAPABLE);

/// Frames being walked: [cpu × FAMILIES + family]. A program does not nest with itself on a CPU, so one entry for each
/// program that can come in between another is enough.
#[map]
pub static SCRATCH: Array<[u64; MAX_FRAMES]> = Array::with_max_entries(1, 0);

/// A page's structure being looked at, as SCRATCH: the BPF stack has no room for it.
#[map]
pub static PAGES: Array<[u64; 8]> = Array::with_max_entries(1, 0);

/// Slab caches by address, for identity. Filled by user space only.
#[map]
pub static CACHES: HashMap<u64, CacheInfo> = HashMap::with_max_entries(MAX_CACHES, 0);

/// Each thread's open handle, by thread number modulo the size.
#[map]
pub static HANDLES: Array<Handle> = Array::with_max_entries(1, 0);

/// Each thread's fsync, in the same way.
#[map]
pub static FSYNCS: Array<Fsync> = Array::with_max_entries(1, 0);

/// Devices of the journals (`devices`): 0 = free, else the device + 1.
#[map]
pub static JOURNAL_DEVICES: Array<u64> = Array::with_max_entries(JOURNALS as u32, MMAPABLE);

/// [cpu × JOURNALS + journal].
#[map]
pub static JOURNAL_CELLS: Array<JournalCell> = Array::with_max_entries(1, MMAPABLE);

/// Each journal's commits.
#[map]
pub static JOURNAL_STATES: Array<Journal> = Array::with_max_entries(JOURNALS as u32, MMAPABLE);

/// Devices whose buffers are looked up, in the same way.
#[map]
pub static LRU_DEVICES: Array<u64> = Array::with_max_entries(DEVICES as u32, MMAPABLE);

/// [cpu × DEVICES + device].
#[map]
pub static LRU_CELLS: Array<LruCell> = Array::with_max_entries(1, MMAPABLE);

/// The lookup being timed on each CPU.
#[map]
pub static LRU_SAMPLES: Array<LruSample> = Array::with_max_entries(1, 0);

/// Where each thread last found a buffer outside the LRU: thread << 32 | CPU, by thread number modulo the size.
#[map]
pub static LRU_LAST_CPU: Array<u64> = Array::with_max_entries(1, 0);

/// What the last peek read: a status word and the bytes.
#[map]
pub static PEEK: Array<[u64; 1 + PEEK_BYTES / 8]> = Array::with_max_entries(1, MMAPABLE);

/// Selected processes.
#[map]
pub static TGIDS: HashMap<u32, u32> = HashMap::with_max_entries(MAX_TGIDS, 0);

/// Selected cgroups.
#[btf_map]
pub static CGROUPS: CgroupArray<MAX_CGROUPS> = CgroupArray::new();

/// This CPU's number.
#[inline(always)]
pub fn cpu() -> u32 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_smp_processor_id() }
}

/// Adds to a word of this CPU that an interrupt on the same CPU may add to as well.
#[inline(always)]
pub fn add_u64(word: *mut u64, value: u64) {
    // SAFETY: callers pass words inside map values. Relaxed is the non-fetching form, and the result is not used.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}

/// Adds to a 32-bit word inside a map value.
#[inline(always)]
pub fn add_u32(word: *mut u32, value: u32) {
    // SAFETY: as in `add_u64`.
    unsafe { atomic_xadd::<u32, u32, { AtomicOrdering::Relaxed }>(word, value) };
}

/// Adds one and says what was there. Must not be relaxed: the compiler then drops the fetch and returns the addend.
#[inline(always)]
pub fn fetch_increment(word: *mut u64) -> u64 {
    // SAFETY: callers pass words inside map values.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::AcqRel }>(word, 1) }
}

/// Puts `to` where `from` is; says what was there, and whether it was done.
#[inline(always)]
pub fn swap_if(word: *mut u64, from: u64, to: u64) -> (u64, bool) {
    // SAFETY: callers pass words inside map values; several CPUs may try for one at once.
    unsafe { atomic_cxchg::<u64, { AtomicOrdering::AcqRel }, { AtomicOrdering::Acquire }>(word, from, to) }
}

/// Counts one on this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    count_by(counter, 1);
}

/// Counts `value` on this CPU.
#[inline(always)]
pub fn count_by(counter: Counter, value: u64) {
    if let Some(counters) = COUNTERS.get_ptr_mut(cpu()) {
        // SAFETY: every counter's number is below COUNTER_ROOM.
        let word = unsafe { (*counters).as_mut_ptr().add(counter as usize) };
        add_u64(word, value);
    }
}
