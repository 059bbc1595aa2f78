//! Kernel stacks by content: walked into scratch room, identified by a hash of their addresses. A kernel stack-id map
//! would drop the hottest stacks on collision.

use aya_ebpf::{EbpfContext, helpers::generated::bpf_get_stack};
use profiler_common::{
    limits::{FAMILIES, MAX_FRAMES},
    loss::Counter,
};

use crate::{
    kernel,
    maps::{SCRATCH, count, cpu},
};

/// Which programs may come in between one another: each has scratch room of its own. A plain number and no constant, so that
/// the verifier does not walk all that follows once for each.
#[derive(Clone, Copy)]
pub struct Family(u32);

impl Family {
    /// Programs on tracepoints: preemption is off.
    pub const TRACEPOINT: Family = Family(0);

    /// The program at a timed function's exit. On a preemptible kernel another task may come in between, with any program
    /// but the same one: the kernel skips that.
    #[inline(always)]
    pub fn of_function(func: u8) -> Family {
        Family(func as u32 & (FAMILIES - 1))
    }

    /// The number of its room among a CPU's.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.0
    }
}

/// A walked stack. `frames` lies in scratch room and is this program's until it returns.
#[derive(Clone, Copy)]
pub struct Stack {
    /// 0 when nothing was walked.
    pub hash: u64,
    /// Frames in use.
    pub count: u32,
    /// Null when nothing was walked.
    pub frames: *const [u64; MAX_FRAMES],
}

impl Stack {
    /// No stack.
    pub const NONE: Stack = Stack { hash: 0, count: 0, frames: core::ptr::null() };
}

/// Walks the current kernel stack, at most `depth` frames.
#[inline(always)]
pub fn walk<C: EbpfContext>(ctx: &C, family: Family, depth: u32) -> Stack {
    if depth == 0 {
        return Stack::NONE;
    }
    let Some(frames) = SCRATCH.get_ptr_mut(cpu() * FAMILIES + family.index()) else { return Stack::NONE };
    let bytes = depth.min(MAX_FRAMES as u32) * 8;
    let skip =
        if family.index() == 0 { kernel::SKIP_TRACEPOINT.load() } else { kernel::SKIP_FUNCTION.load() };
    // SAFETY: `frames` is a map value of MAX_FRAMES words and `bytes` is no more than that.
    let got = unsafe { bpf_get_stack(ctx.as_ptr(), frames.cast(), bytes, (skip & 0xff) as u64) };
    if got <= 0 {
        count(Counter::StackFailed);
        return Stack::NONE;
    }
    let frames_got = (got as u32 / 8).min(MAX_FRAMES as u32);
    Stack { hash: hash(frames, frames_got), count: frames_got, frames }
}

/// Never 0. A 64-bit multiply-rotate hash: among a million stacks two coincide with a chance of 3 in 10^8.
#[inline(always)]
fn hash(frames: *const [u64; MAX_FRAMES], count: u32) -> u64 {
    let mut hash = count as u64;
    for index in 0..MAX_FRAMES {
        if index as u32 >= count {
            break;
        }
        // SAFETY: `index` is below MAX_FRAMES.
        let frame = unsafe { *(frames as *const u64).add(index) };
        hash = (hash ^ frame).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash | 1
}
