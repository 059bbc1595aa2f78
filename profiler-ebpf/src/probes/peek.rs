//! Reads kernel memory for user space: driven by BPF_PROG_TEST_RUN in our own context, attached to nothing. All walking
//! of kernel structures is user-space code over BTF offsets.

use aya_ebpf::{
    helpers::{bpf_get_current_task, generated::bpf_probe_read_kernel},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use profiler_common::limits::PEEK_BYTES;

use crate::{kernel, maps::PEEK};

/// `peek(address, bytes)`: address 0 reads the address of the calling task. The status word is 1 when it could be read.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn peek(ctx: RawTracePointContext) -> i32 {
    let Some(result) = PEEK.get_ptr_mut(0) else { return 0 };
    let (address, bytes) = (kernel::argument(&ctx, 0), kernel::argument(&ctx, 1));
    // SAFETY: a map value of 1 + PEEK_BYTES / 8 words; `bytes` is masked below PEEK_BYTES.
    unsafe {
        let words = result as *mut u64;
        if address == 0 {
            *words.add(1) = bpf_get_current_task();
            *words = 1;
            return 0;
        }
        let bytes = core::hint::black_box(bytes) as u32 & (PEEK_BYTES as u32 - 1);
        let failed = bpf_probe_read_kernel(words.add(1).cast(), bytes, address as *const _);
        *words = (failed == 0) as u64;
    }
    0
}
