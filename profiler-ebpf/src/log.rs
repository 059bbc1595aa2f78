//! Log lines for rare events, on request only (`--bpf-log`): otherwise the level is a frozen 0 and the verifier drops the
//! calls. The one place that reserves ring-buffer space from a probe, and why it is never on by default.

use core::ffi::c_void;

use aya_ebpf::EbpfContext;
use aya_log_ebpf::info;
use profiler_common::CellKey;

struct Context(*mut c_void);

impl EbpfContext for Context {
    fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

/// A key that has no cell was seen: a letter is written, or the table is full.
#[inline(always)]
pub fn first_sight<C: EbpfContext>(ctx: &C, key: &CellKey, table_full: u32) {
    write(ctx.as_ptr(), key.kind as u32, key.mode as u32, key.tgid, table_full);
}

#[inline(never)]
fn write(ctx: *mut c_void, kind: u32, mode: u32, tgid: u32, table_full: u32) {
    let ctx = Context(ctx);
    if table_full != 0 {
        info!(&ctx, "table full: kind {} mode {} of process {} goes to other", kind, mode, tgid);
    } else {
        info!(&ctx, "first sight: kind {} mode {} of process {}", kind, mode, tgid);
    }
}
