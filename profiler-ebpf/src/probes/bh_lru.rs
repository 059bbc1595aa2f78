//! Probe `bh-lru`: lookups in the per-CPU LRU of buffer heads (fs/buffer.c), which a busy CPU makes a million times a second.
//!
//! It runs in bursts, or all the time when asked for. The counting path is an increment in an array; only every so manieth lookup is timed, and only then a stack is walked. A hit
//! is the tracepoint block_touch_buffer, which has no other caller (touch_buffer, fs/buffer.c).

use aya_ebpf::{
    EbpfContext,
    macros::{btf_tracepoint, fentry, fexit, raw_tracepoint},
    programs::{BtfTracePointContext, FEntryContext, FExitContext, RawTracePointContext},
};
use profiler_common::{
    CellKey, Kind,
    bh_lru::{DEVICES, Lookup, LruCell},
    key::NO_CLASS,
    loss::Counter,
};

use crate::{
    account::{self, Wait},
    devices,
    filter::{self, Current},
    kernel::{self, argument, member, read},
    maps::{LRU_CELLS, LRU_DEVICES, LRU_LAST_CPU, LRU_SAMPLES, add_u64, count, cpu},
    stack::Family,
};

/// The family of scratch room: what is timed here never nests with a timed function of the same number.
const FAMILY: u8 = 14;

/// `find_get_block_common(bdev, block, size, atomic)` is entered, or `__find_get_block` where that is the only one.
#[fentry(function = "any")]
pub fn lru_lookup_entry(ctx: FEntryContext) -> i32 {
    let Some(current) = in_burst() else { return 0 };
    // SAFETY: a typed argument of a traced function.
    let device = unsafe { member::<u32>(argument(&ctx, 0), kernel::OFF_BDEV_DEV.load()) };
    lookup(&current, device);
    0
}

/// The same is left.
#[fexit(function = "any")]
pub fn lru_lookup_exit(ctx: FExitContext) -> i32 {
    let Some(current) = in_burst() else { return 0 };
    // SAFETY: as above.
    let device = unsafe { member::<u32>(argument(&ctx, 0), kernel::OFF_BDEV_DEV.load()) };
    looked_up(&ctx, &current, device, ctx.ret::<u64>().unwrap_or(0) != 0);
    0
}

/// `block_touch_buffer(bh)`: a hit.
#[btf_tracepoint(function = "block_touch_buffer")]
pub fn lru_touch(ctx: BtfTracePointContext) -> i32 {
    let Some(current) = in_burst() else { return 0 };
    // SAFETY: a typed argument of a BTF tracepoint, and a typed member of it.
    let device = unsafe {
        let bdev: u64 = member(argument(&ctx, 0), kernel::OFF_BH_BDEV.load());
        member::<u32>(bdev, kernel::OFF_BDEV_DEV.load())
    };
    touch(&current, device);
    0
}

/// The same by raw tracepoint.
#[raw_tracepoint(tracepoint = "block_touch_buffer")]
pub fn lru_touch_raw(ctx: RawTracePointContext) -> i32 {
    let Some(current) = in_burst() else { return 0 };
    let bdev: u64 = read(argument(&ctx, 0) + kernel::OFF_BH_BDEV.load() as u64).unwrap_or(0);
    let device: u32 = read(bdev + kernel::OFF_BDEV_DEV.load() as u64).unwrap_or(0);
    touch(&current, device);
    0
}

/// `invalidate_bh_lru` or `invalidate_bh_lrus_cpu`: this CPU's LRU is emptied.
#[fentry(function = "any")]
pub fn lru_invalidated(_ctx: FEntryContext) -> i32 {
    if filter::current_untimed().is_some() {
        count(Counter::LruInvalidations);
    }
    0
}

/// `invalidate_bh_lrus` or `lru_add_drain_all`: every CPU's is to be emptied, and this is who asks.
#[fentry(function = "any")]
pub fn lru_invalidate_asked(ctx: FEntryContext) -> i32 {
    if let Some(current) = filter::current_untimed()
        && current.is_selected()
    {
        sample(&ctx, &current, Kind::LruInvalidate, Lookup::Hit as u8, 0, 0);
    }
    0
}

/// Synthetic steps for tests: (1, device) enters, (2, device) hits, (3, device, found) leaves.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn drive_lru(ctx: RawTracePointContext) -> i32 {
    let Some(current) = in_burst() else { return 0 };
    let device = argument(&ctx, 1) as u32;
    match argument(&ctx, 0) {
        1 => lookup(&current, device),
        2 => touch(&current, device),
        _ => looked_up(&ctx, &current, device, argument(&ctx, 2) != 0),
    }
    0
}

/// The current task, if it is selected and a burst is under way.
#[inline(always)]
fn in_burst() -> Option<Current> {
    filter::current_untimed().filter(|current| current.in_burst() && current.is_selected())
}

#[inline(always)]
fn cell_of(device: u32) -> Option<*mut LruCell> {
    let number = devices::number(&LRU_DEVICES, DEVICES as u32, device);
    LRU_CELLS.get_ptr_mut(cpu() * DEVICES as u32 + number)
}

#[inline(always)]
fn lookup(current: &Current, device: u32) {
    if let Some(cell) = cell_of(device) {
        // SAFETY: a map value.
        add_u64(unsafe { &raw mut (*cell).lookups }, 1);
    }
    let Some(sample) = LRU_SAMPLES.get_ptr_mut(cpu()) else { return };
    // SAFETY: a map value of this CPU. A task that comes in between loses a turn or a sample, never a count.
    let sample = unsafe { &mut *sample };
    sample.turn = sample.turn.wrapping_add(1);
    let mask = current.control.lru_mask;
    if sample.turn & mask == 0 && mask != u32::MAX {
        sample.touched_by = 0;
        sample.tid = current.tid;
        sample.begin_ns = filter::now();
    }
}

#[inline(always)]
fn touch(current: &Current, device: u32) {
    if let Some(cell) = cell_of(device) {
        // SAFETY: a map value.
        add_u64(unsafe { &raw mut (*cell).hits }, 1);
    }
    if let Some(sample) = LRU_SAMPLES.get_ptr_mut(cpu()) {
        // SAFETY: a map value of this CPU.
        unsafe { (*sample).touched_by = current.tid };
    }
}

#[inline(always)]
fn looked_up<C: EbpfContext>(ctx: &C, current: &Current, device: u32, present: bool) {
    let Some(cell) = cell_of(device) else { return };
    let Some(place) = LRU_SAMPLES.get_ptr_mut(cpu()) else { return };
    // SAFETY: map values; the sample is this CPU's.
    unsafe {
        add_u64(if present { &raw mut (*cell).present } else { &raw mut (*cell).absent }, 1);
        let hit = (*place).touched_by == current.tid && current.tid != 0;
        (*place).touched_by = 0;
        if present && !hit {
            note_cpu(cell, current.tid);
        }
        if (*place).tid == 0 {
            return;
        }
        if (*place).tid != current.tid {
            // The sampled task was moved, or is preempted here and will find its sample gone.
            (*place).tid = 0;
            add_u64(&raw mut (*cell).samples_lost, 1);
            return;
        }
        (*place).tid = 0;
        let outcome = if hit {
            Lookup::Hit
        } else if present {
            Lookup::Found
        } else {
            Lookup::Absent
        };
        // Through memory: the verifier would otherwise walk all that follows once for each outcome.
        core::ptr::write_volatile(&raw mut (*place).outcome, outcome as u32);
        let outcome = core::ptr::read_volatile(&raw const (*place).outcome) as u8;
        let took = filter::now().saturating_sub((*place).begin_ns);
        sample(ctx, current, Kind::LruLookup, outcome, device, took);
    }
}

/// Whether the thread's last lookup that found its buffer elsewhere was on another CPU: this LRU is cold for it.
#[inline(always)]
fn note_cpu(cell: *mut LruCell, tid: u32) {
    let Some(last) = LRU_LAST_CPU.get_ptr_mut(tid & kernel::HANDLE_MASK.load()) else { return };
    let now = (tid as u64) << 32 | cpu() as u64;
    // SAFETY: map values; another thread of the same place is told apart by its number.
    unsafe {
        if *last >> 32 == tid as u64 && *last != now {
            add_u64(&raw mut (*cell).migrated, 1);
        }
        *last = now;
    }
}

/// Counts a sample under who made it, with its stack.
#[inline(always)]
fn sample<C: EbpfContext>(ctx: &C, current: &Current, kind: Kind, outcome: u8, device: u32, took: u64) {
    let key = CellKey {
        lock: 0,
        instance: 0,
        stack: 0,
        tgid: current.tgid,
        owner_tgid: 0,
        kind: kind as u8,
        mode: outcome,
        owner_kind: 0,
        workload: 0,
        offset: NO_CLASS,
        device,
        generation: 0,
    };
    let wait = Wait {
        key,
        address: 0,
        wait_ns: took,
        spin_ns: 0,
        queue_ns: 0,
        whole_ns: took,
        outcomes: 0,
        tid: current.tid,
    };
    account::sample(ctx, current, wait, Family::of_function(FAMILY));
}
