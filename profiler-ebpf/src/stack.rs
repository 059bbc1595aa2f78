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

/// Which programs may interrupt one another and so need scratch room of their own.
#[derive(Clone, Copy)]
pub enum Family {
    /// Programs on tracepoints: preemption is off.
    Tracepoint = 0,
    /// The program at the exit of the read slow path. On a preemptible kernel another task may come in between, with any
    /// program but the same one: the kernel skips that.
    ReadExit = 1,
    /// The program at the exit of the write slow path.
    WriteExit = 2,
    /// The programs at the exits of the three jbd2 functions.
    LockedExit = 3,
    SpaceExit = 4,
    CommitExit = 5,
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
    let Some(frames) = SCRATCH.get_ptr_mut(cpu() * FAMILIES + family as u32) else { return Stack::NONE };
    let bytes = depth.min(MAX_FRAMES as u32) * 8;
    let skip = match family {
        Family::Tracepoint => kernel::SKIP_TRACEPOINT.load(),
        _ => kernel::SKIP_FUNCTION.load(),
    };
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
