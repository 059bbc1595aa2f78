//! Follows a command's processes where there is no cgroup v2 to put it in: the set of its *process* numbers, kept at
//! fork and exit. (A set of thread numbers loses a program that execs from another thread.) These two run outside every
//! lock, so this set alone is written from the kernel side.

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext};
use profiler_common::loss::Counter;

use crate::{
    kernel,
    maps::{CONTROL, TGIDS, count},
};

/// `sched_process_fork(parent, child)`.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn follow_fork(ctx: RawTracePointContext) -> i32 {
    fork(kernel::argument(&ctx, 1));
    0
}

/// `sched_process_exit(task)`.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn follow_exit(ctx: RawTracePointContext) -> i32 {
    exit(kernel::argument(&ctx, 0));
    0
}

#[inline(always)]
fn fork(child: u64) {
    let both = bpf_get_current_pid_tgid();
    let (tid, tgid) = (both as u32, (both >> 32) as u32);
    let adopted = CONTROL.get(0).is_some_and(|control| control.adopt_tid != 0 && control.adopt_tid == tid);
    // SAFETY: only its presence is used.
    if !adopted && unsafe { TGIDS.get(&tgid) }.is_none() {
        return;
    }
    if let Some(child_tgid) = kernel::read::<u32>(child + kernel::OFF_TASK_TGID.load() as u64)
        && child_tgid != tgid
    {
        if TGIDS.insert(&child_tgid, &tgid, 0).is_err() {
            count(Counter::FollowFull);
        }
    }
}

#[inline(always)]
fn exit(task: u64) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let signal = kernel::read::<u64>(task + kernel::OFF_TASK_SIGNAL.load() as u64).unwrap_or(0);
    if signal == 0 {
        return;
    }
    // The last thread: signal->live counts those that have not come this far (kernel/exit.c, do_exit).
    if kernel::read::<u32>(signal + kernel::OFF_SIGNAL_LIVE.load() as u64) == Some(0) {
        let _ = TGIDS.remove(&tgid);
    }
}
