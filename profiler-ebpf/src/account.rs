//! Adds a finished wait to its cell and histogram, or sends it off as a letter. No duration is computed here.

use aya_ebpf::EbpfContext;
use profiler_common::{
    Cell, CellKey, CellRef,
    cell::{OUTCOMES, Outcome},
    first_sight::INTERRUPTED,
    hist,
    key::NO_HIST,
    limits::BELOW_CELLS,
    loss::Counter,
};

use crate::{
    filter::Current,
    first_sight, identity, kernel, log,
    maps::{CELL_OF, CELLS, HISTS, add_u32, add_u64, count, cpu},
    probes::{fsync, handle},
    stack::{self, Family, Stack},
};

/// A finished wait, all times in nanoseconds.
pub struct Wait {
    pub key: CellKey,
    /// The lock's address.
    pub address: u64,
    pub wait_ns: u64,
    pub spin_ns: u64,
    pub queue_ns: u64,
    /// With the waits inside that are accounted apart.
    pub whole_ns: u64,
    /// Bits 1 << [`Outcome`], or [`INTERRUPTED`].
    pub outcomes: u32,
    pub tid: u32,
}

/// Accounts one wait under the current settings.
#[inline(always)]
pub fn account<C: EbpfContext>(ctx: &C, current: &Current, mut wait: Wait, family: Family) {
    handle::note(current.control, &wait);
    fsync::note(&wait);
    if wait.wait_ns < current.control.min_wait_ns {
        add(BELOW_CELLS + reserved(&wait.key), &wait);
        return;
    }
    let stack = stack::walk(ctx, family, current.control.stack_depth);
    wait.key.stack = stack.hash;
    identity::identify(&mut wait.key, current.control.page_constant, family);
    record(ctx, current, &wait, &stack);
}

/// Accounts what is no wait and has no lock: every length of it counts.
#[inline(always)]
pub fn sample<C: EbpfContext>(ctx: &C, current: &Current, mut wait: Wait, family: Family) {
    let stack = stack::walk(ctx, family, current.control.stack_depth);
    wait.key.stack = stack.hash;
    record(ctx, current, &wait, &stack);
}

#[inline(always)]
fn record<C: EbpfContext>(ctx: &C, current: &Current, wait: &Wait, stack: &Stack) {
    // SAFETY: user space replaces values of this map, never tears one: 8 bytes are copied at once.
    match unsafe { CELL_OF.get(&wait.key) } {
        Some(&CellRef { cell, hist }) => {
            add(cell, wait);
            add_to_histogram(hist, wait);
        }
        None => unknown(ctx, current, wait, stack),
    }
}

#[inline(always)]
fn unknown<C: EbpfContext>(ctx: &C, current: &Current, wait: &Wait, stack: &Stack) {
    if current.control.table_full != 0 {
        count(Counter::TableFull);
        add(reserved(&wait.key), wait);
    } else if !first_sight::post(wait, stack) {
        count(Counter::MailboxFull);
        add(reserved(&wait.key), wait);
    }
    // Last: nothing is live any more then, and the verifier walks its many bytes few times.
    log::first_sight(ctx, &wait.key, current.control.table_full);
}

/// The reserved cell of this kind and mode.
#[inline(always)]
fn reserved(key: &CellKey) -> u32 {
    (key.kind as u32 & 31) * 4 + (key.mode as u32 & 3)
}

#[inline(always)]
fn add(cell: u32, wait: &Wait) {
    let Some(cell) = CELLS.get_ptr_mut(cpu() * kernel::CELLS_PER_CPU.load() + cell) else { return };
    // SAFETY: a map value of this CPU; interrupts on it add atomically as well.
    unsafe {
        if wait.outcomes & INTERRUPTED == 0 {
            add_u64(&raw mut (*cell).n, 1);
            add_u64(&raw mut (*cell).wait_ns, wait.wait_ns);
            add_u64(&raw mut (*cell).spin_ns, wait.spin_ns);
            add_u64(&raw mut (*cell).queue_ns, wait.queue_ns);
            if wait.wait_ns > (*cell).max_ns {
                (*cell).max_ns = wait.wait_ns;
            }
        } else {
            add_u64(&raw mut (*cell).interrupted_n, 1);
            add_u64(&raw mut (*cell).interrupted_ns, wait.wait_ns);
        }
    }
    add_outcomes(cell, wait.outcomes);
}

#[inline(always)]
fn add_outcomes(cell: *mut Cell, outcomes: u32) {
    if outcomes & !INTERRUPTED == 0 {
        return;
    }
    for bit in 0..OUTCOMES {
        if outcomes & (1 << bit) != 0 {
            // SAFETY: `bit` is below OUTCOMES.
            add_u32(unsafe { (*cell).outcomes.as_mut_ptr().add(bit) }, 1);
        }
    }
}

#[inline(always)]
fn add_to_histogram(hist: u32, wait: &Wait) {
    if hist == NO_HIST || wait.outcomes & INTERRUPTED != 0 {
        return;
    }
    let shard = cpu() & kernel::SHARD_MASK.load();
    if let Some(counts) = HISTS.get_ptr_mut(shard * kernel::HISTS_PER_SHARD.load() + hist) {
        // The compiler knows that a bucket is below 250 and drops the mask; the verifier does not and needs it.
        let bucket = core::hint::black_box(hist::bucket(wait.wait_ns)) & (hist::STRIDE - 1);
        // SAFETY: `bucket` is masked to the array.
        add_u32(unsafe { (*counts).as_mut_ptr().add(bucket) }, 1);
    }
}

/// The bit of an outcome.
#[inline(always)]
pub const fn bit(outcome: Outcome) -> u32 {
    1 << outcome as u32
}
