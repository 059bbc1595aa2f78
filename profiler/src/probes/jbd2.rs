//! Probe `jbd2`: handles, the waits inside the journal, commits and fsync. Says which of it stands on this host.

use profiler_common::inflight::{
    FUNC_FSYNC, FUNC_FSYNC_FLUSH, FUNC_FSYNC_WRITE, FUNC_JBD2_SHADOW, FUNC_JBD2_WAIT_COMMIT,
    FUNC_JBD2_WAIT_LOCKED, FUNC_JBD2_WAIT_SPACE,
};

use super::spec::{Attached, Attachment, Hook, IN_BURSTS, ProbeSpec, Target};
use crate::kernel::features::Features;
use crate::snapshot::{Coverage, CoverageState};

const LOCKED: &str = "wait_transaction_locked";
const SPACE: &str = "__jbd2_log_wait_for_space";
const COMMIT: &str = "jbd2_log_wait_commit";
const SHADOW: &str = "out_of_line_wait_on_bit";
const START: &str = "start_this_handle";
const STOP: &str = "jbd2_journal_stop";
const LEAVE: &str = "stop_this_handle";
const FSYNC: &str = "ext4_sync_file";
const WRITE: &str = "file_write_and_wait_range";
const FLUSH: &str = "blkdev_issue_flush";
const STARTED: &str = "jbd2_handle_start";

/// The probe.
pub const SPEC: ProbeSpec = ProbeSpec {
    id: "jbd2",
    sentence: "jbd2: handles started, held and stopped, what a start waited for, commits phase by phase, and fsync",
    cost: "two small programs on each outermost handle, and three more in bursts; all the rest runs only where somebody waits or commits",
    lost: "every wait of ext4 in its journal: wait queues have no lock tracepoint",
    hooks: &[
        Hook {
            name: "fentry/fexit",
            attachments: &[
                Attachment::needed("function_exit", Target::Exit(LOCKED, FUNC_JBD2_WAIT_LOCKED)),
                Attachment::needed("function_exit", Target::Exit(SPACE, FUNC_JBD2_WAIT_SPACE)),
                Attachment::needed("function_exit", Target::Exit(COMMIT, FUNC_JBD2_WAIT_COMMIT)),
                Attachment::needed("function_entry", Target::Entry(LOCKED, FUNC_JBD2_WAIT_LOCKED)),
                Attachment::needed("function_entry", Target::Entry(SPACE, FUNC_JBD2_WAIT_SPACE)),
                Attachment::needed("function_entry", Target::Entry(COMMIT, FUNC_JBD2_WAIT_COMMIT)),
                Attachment::needed("handle_started", Target::RawTracepoint(STARTED)),
                Attachment::needed("handle_restarted", Target::RawTracepoint("jbd2_handle_restart")),
                Attachment::needed("handle_stats", Target::RawTracepoint("jbd2_handle_stats")).in_bursts(),
                Attachment::needed("commit_start", Target::RawTracepoint("jbd2_start_commit")),
                Attachment::needed("commit_locking", Target::RawTracepoint("jbd2_commit_locking")),
                Attachment::needed("commit_flushing", Target::RawTracepoint("jbd2_commit_flushing")),
                Attachment::needed("commit_logging", Target::RawTracepoint("jbd2_commit_logging")),
                Attachment::needed("commit_end", Target::RawTracepoint("jbd2_end_commit")),
                Attachment::optional("handle_stop_exit", Target::Exit(STOP, 0)).in_bursts(),
                Attachment::optional("handle_left", Target::Entry(LEAVE, 0)).in_bursts(),
                Attachment::optional("handle_start_entry", Target::Entry(START, 0)).in_bursts(),
                Attachment::optional("function_exit", Target::Exit(SHADOW, FUNC_JBD2_SHADOW)),
                Attachment::optional("function_entry", Target::Entry(SHADOW, FUNC_JBD2_SHADOW)),
                Attachment::optional("fsync_exit", Target::Exit(WRITE, FUNC_FSYNC_WRITE)),
                Attachment::optional("fsync_exit", Target::Exit(FLUSH, FUNC_FSYNC_FLUSH)),
                Attachment::optional("fsync_exit", Target::Exit(FSYNC, FUNC_FSYNC)),
                Attachment::optional("fsync_entry", Target::Entry(WRITE, FUNC_FSYNC_WRITE)),
                Attachment::optional("fsync_entry", Target::Entry(FLUSH, FUNC_FSYNC_FLUSH)),
                Attachment::optional("fsync_entry", Target::Entry(FSYNC, FUNC_FSYNC)),
            ],
        },
        Hook {
            name: TRACEPOINTS,
            attachments: &[
                Attachment::needed("handle_started", Target::RawTracepoint(STARTED)),
                Attachment::needed("handle_restarted", Target::RawTracepoint("jbd2_handle_restart")),
                Attachment::needed("handle_stats", Target::RawTracepoint("jbd2_handle_stats")),
                Attachment::needed("commit_start", Target::RawTracepoint("jbd2_start_commit")),
                Attachment::needed("commit_locking", Target::RawTracepoint("jbd2_commit_locking")),
                Attachment::needed("commit_flushing", Target::RawTracepoint("jbd2_commit_flushing")),
                Attachment::needed("commit_logging", Target::RawTracepoint("jbd2_commit_logging")),
                Attachment::needed("commit_end", Target::RawTracepoint("jbd2_end_commit")),
            ],
        },
    ],
    coverage,
};

/// Name of the hook that counts and times no handle.
const TRACEPOINTS: &str = "raw_tp";

/// Names of the metrics, for whoever must say why a figure is missing.
pub const COUNTS: &str = "jbd2 handles started, and the commit timeline";
/// As above.
pub const WAITS: &str = "jbd2 waits: transaction locked or full, checkpoint, commit";
/// As above.
pub const STARTS: &str = "jbd2 start latency by cause";
/// As above.
pub const HOLDS: &str = "jbd2 handle hold, stop, batching, nested starts, and who kept a commit open";
/// As above.
pub const CREDITS: &str = "jbd2 credits and synchronous stops";
/// As above.
pub const SHADOWS: &str = "jbd2 waits for a buffer that a commit is writing";
/// As above.
pub const FSYNCS: &str = "ext4 fsync by part";

/// What starts wait for that is inlined, and so told by how the handle and the journal looked at the begin.
const INLINED: &str = "reserved credits, barrier and switching have no function of their own: told apart by the journal's state at the start";

fn coverage(attached: &Attached, _features: &Features) -> Vec<Coverage> {
    let absent = if attached.wanted { CoverageState::Absent } else { CoverageState::Off };
    let Some(hook) = attached.hook else {
        return [COUNTS, WAITS, STARTS, HOLDS, CREDITS, SHADOWS, FSYNCS]
            .map(|metric| SPEC.line(metric, None, absent, Some(attached.reason())))
            .to_vec();
    };
    let counts = SPEC.line(COUNTS, Some(hook.to_owned()), CoverageState::Full, None);
    if hook == TRACEPOINTS {
        let credits = SPEC.line(CREDITS, Some(hook.to_owned()), CoverageState::Full, None);
        let rest = [WAITS, STARTS, HOLDS, SHADOWS, FSYNCS];
        let rest = rest.map(|metric| SPEC.line(metric, None, absent, Some(attached.failures.join("; "))));
        return [vec![counts, credits], rest.to_vec()].concat();
    }
    let bursts = |reason: Option<&str>| match (attached.in_bursts, reason) {
        (true, Some(reason)) => Some(format!("{IN_BURSTS}; {reason}")),
        (true, None) => Some(IN_BURSTS.to_owned()),
        (false, reason) => reason.map(str::to_owned),
    };
    let part = |metric: &str, needs: &[&str], reason: Option<String>| match attached.lacks(needs) {
        Some(why) => SPEC.line(metric, None, CoverageState::Absent, Some(why)),
        None => {
            let state = if reason.is_some() { CoverageState::Partial } else { CoverageState::Full };
            SPEC.line(metric, Some(hook.to_owned()), state, reason)
        }
    };
    vec![
        counts,
        part(WAITS, &[], None),
        part(STARTS, &[START], bursts(Some(INLINED))),
        part(HOLDS, &[START, STOP, LEAVE], bursts(None)),
        part(CREDITS, &[], bursts(None)),
        part(SHADOWS, &[SHADOW], None),
        part(FSYNCS, &[FSYNC, WRITE, FLUSH], None),
    ]
}
