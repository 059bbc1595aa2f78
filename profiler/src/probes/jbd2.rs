//! Probe `jbd2`: where handles and fsync sleep inside the journal. Says which of it stands on this host.

use profiler_common::inflight::{FUNC_JBD2_WAIT_COMMIT, FUNC_JBD2_WAIT_LOCKED, FUNC_JBD2_WAIT_SPACE};

use super::spec::{Attached, Attachment, Hook, ProbeSpec, Target};
use crate::kernel::features::Features;
use crate::snapshot::{Coverage, CoverageState};

const LOCKED: &str = "wait_transaction_locked";
const SPACE: &str = "__jbd2_log_wait_for_space";
const COMMIT: &str = "jbd2_log_wait_commit";

/// The probe.
pub const SPEC: ProbeSpec = ProbeSpec {
    id: "jbd2",
    sentence: "jbd2's own waits by cause: a locked or full transaction, room in the log (checkpoint), the end of a commit",
    cost: "an entry and an exit program on three functions that are entered only to wait",
    lost: "every wait of ext4 in its journal: wait queues have no lock tracepoint",
    hooks: &[Hook {
        name: "fentry/fexit",
        attachments: &[
            Attachment::needed("function_exit", Target::Exit(LOCKED, FUNC_JBD2_WAIT_LOCKED)),
            Attachment::needed("function_exit", Target::Exit(SPACE, FUNC_JBD2_WAIT_SPACE)),
            Attachment::needed("function_exit", Target::Exit(COMMIT, FUNC_JBD2_WAIT_COMMIT)),
            Attachment::needed("function_entry", Target::Entry(LOCKED, FUNC_JBD2_WAIT_LOCKED)),
            Attachment::needed("function_entry", Target::Entry(SPACE, FUNC_JBD2_WAIT_SPACE)),
            Attachment::needed("function_entry", Target::Entry(COMMIT, FUNC_JBD2_WAIT_COMMIT)),
        ],
    }],
    coverage,
};

const WAITS: &str = "jbd2 waits: transaction locked or full, checkpoint, commit";
const REST: &str =
    "jbd2: reserved credits, barrier, switching transaction, handle hold, stop, commit timeline";

fn coverage(attached: &Attached, _features: &Features) -> Vec<Coverage> {
    let absent = if attached.wanted { CoverageState::Absent } else { CoverageState::Off };
    let waits = match attached.hook {
        Some(hook) => line(WAITS, Some(hook.to_owned()), CoverageState::Full, None),
        None => line(WAITS, None, absent, Some(attached.reason())),
    };
    vec![waits, line(REST, None, absent, Some("not measured yet".to_owned()))]
}

fn line(metric: &str, hook: Option<String>, state: CoverageState, reason: Option<String>) -> Coverage {
    Coverage { probe: SPEC.id.to_owned(), metric: metric.to_owned(), hook, state, reason }
}
