//! Probe `bit-lock`: waits for the bit locks of buffers and folios, which no lock tracepoint shows. The functions are entered
//! only when the lock is taken. Says whether they stand on this host.

use profiler_common::inflight::{FUNC_LOCK_BUFFER, FUNC_LOCK_FOLIO, FUNC_LOCK_FOLIO_KILLABLE};

use super::spec::{Attached, Attachment, Hook, ProbeSpec, Target};
use crate::kernel::features::Features;
use crate::snapshot::{Coverage, CoverageState};

const BUFFER: &str = "__lock_buffer";
const FOLIO: &str = "__folio_lock";
const KILLABLE: &str = "__folio_lock_killable";

/// The probe.
pub const SPEC: ProbeSpec = ProbeSpec {
    id: "bit-lock",
    sentence: "the bit locks of buffers (__lock_buffer) and folios (__folio_lock), by block and by file",
    cost: "an entry and an exit program on three functions that are entered only to wait",
    lost: "waits for a buffer's or a folio's lock, behind I/O or another task",
    hooks: &[Hook {
        name: "fentry/fexit",
        attachments: &[
            Attachment::needed("function_exit", Target::Exit(BUFFER, FUNC_LOCK_BUFFER)),
            Attachment::needed("function_exit", Target::Exit(FOLIO, FUNC_LOCK_FOLIO)),
            Attachment::needed("function_entry", Target::Entry(BUFFER, FUNC_LOCK_BUFFER)),
            Attachment::needed("function_entry", Target::Entry(FOLIO, FUNC_LOCK_FOLIO)),
            Attachment::optional("function_exit", Target::Exit(KILLABLE, FUNC_LOCK_FOLIO_KILLABLE)),
            Attachment::optional("function_entry", Target::Entry(KILLABLE, FUNC_LOCK_FOLIO_KILLABLE)),
        ],
    }],
    coverage,
};

const ASYNC: &str = "io_uring's asynchronous waits for a folio are not seen (__folio_lock_async)";

fn coverage(attached: &Attached, _features: &Features) -> Vec<Coverage> {
    let (state, reason) = match attached.hook {
        Some(_) => (CoverageState::Partial, ASYNC.to_owned()),
        None if attached.wanted => (CoverageState::Absent, attached.reason()),
        None => (CoverageState::Off, attached.reason()),
    };
    let hook = attached.hook.map(str::to_owned);
    vec![SPEC.line("buffer and folio lock waits", hook, state, Some(reason))]
}
