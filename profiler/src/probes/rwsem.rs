//! Probe `rwsem`: the two slow paths of reader-writer semaphores. Says which of its metrics stand on this host.

use profiler_common::inflight::{FUNC_RWSEM_READ, FUNC_RWSEM_SPIN_ON_OWNER, FUNC_RWSEM_WRITE};

use super::spec::{Attached, Attachment, Hook, ProbeSpec, Target};
use crate::kernel::features::Features;
use crate::snapshot::{Coverage, CoverageState};

const READ: &str = "rwsem_down_read_slowpath";
const WRITE: &str = "rwsem_down_write_slowpath";
const HANDOFF: &str = "rwsem_spin_on_owner";

/// The probe.
pub const SPEC: ProbeSpec = ProbeSpec {
    id: "rwsem",
    sentence: "reader-writer semaphores: the whole wait with its optimistic spin, and how it came out (stolen, spun, queued)",
    cost: "an entry and an exit program on two slow paths, and an entry on the owner spin; nothing on the fast paths",
    lost: "a writer's optimistic spin and a reader's steal, which no tracepoint shows: 42-88 % of i_rwsem's write wait",
    hooks: &[
        Hook {
            name: "fentry/fexit",
            attachments: &[
                Attachment::needed("function_exit", Target::Exit(READ, FUNC_RWSEM_READ)),
                Attachment::needed("function_exit", Target::Exit(WRITE, FUNC_RWSEM_WRITE)),
                Attachment::needed("function_entry", Target::Entry(READ, FUNC_RWSEM_READ)),
                Attachment::needed("function_entry", Target::Entry(WRITE, FUNC_RWSEM_WRITE)),
                Attachment::optional("function_entry", Target::Entry(HANDOFF, FUNC_RWSEM_SPIN_ON_OWNER)),
            ],
        },
        Hook {
            name: "kprobe/kretprobe",
            attachments: &[
                Attachment::needed("rwsem_read_exit", Target::Kretprobe(READ)),
                Attachment::needed("rwsem_write_exit", Target::Kretprobe(WRITE)),
                Attachment::needed("rwsem_read_entry", Target::Kprobe(READ)),
                Attachment::needed("rwsem_write_entry", Target::Kprobe(WRITE)),
                Attachment::optional("rwsem_handoff_entry", Target::Kprobe(HANDOFF)),
            ],
        },
    ],
    coverage,
};

const MISSED: &str = "kretprobes lose returns when many tasks sleep inside: see missed returns";
const SKIPPED: &str = "on a preemptible kernel some entries and exits are skipped: see recursion misses";
const READERS: &str = "writers only: a reader's handoff leaves no trace";

fn coverage(attached: &Attached, features: &Features) -> Vec<Coverage> {
    let Some(hook) = attached.hook else { return absent(attached, features) };
    let preemptible = features.preempt_rt || matches!(features.preempt.as_deref(), Some("full" | "lazy"));
    let (state, reason) = match (hook, preemptible) {
        ("fentry/fexit", false) => (CoverageState::Full, None),
        ("fentry/fexit", true) => (CoverageState::Partial, Some(SKIPPED.to_owned())),
        _ => (CoverageState::Partial, Some(MISSED.to_owned())),
    };
    let hook = Some(hook.to_owned());
    vec![
        SPEC.line(WAIT, hook.clone(), state, reason.clone()),
        SPEC.line(OUTCOMES, hook.clone(), state, reason),
        handed_off(attached, hook.clone()),
        handoff_class(hook, features),
    ]
}

/// Name of the metric that says whether the whole wait is seen.
pub const WAIT: &str = "rwsem waits, spinning included";
/// Name of the metric that says whether outcomes are seen.
pub const OUTCOMES: &str = "rwsem outcomes and steals past waiters";
const CLASS: &str = "rwsem waits of the handoff class";

fn handed_off(attached: &Attached, hook: Option<String>) -> Coverage {
    let metric = "rwsem handoffs";
    match attached.missing.iter().find(|(target, _)| target == HANDOFF) {
        Some((_, reason)) => SPEC.line(metric, None, CoverageState::Absent, Some(reason.clone())),
        None => SPEC.line(metric, hook, CoverageState::Partial, Some(READERS.to_owned())),
    }
}

fn handoff_class(hook: Option<String>, features: &Features) -> Coverage {
    if features.handoff_timeout_ns().is_some() {
        return SPEC.line(CLASS, hook, CoverageState::Full, None);
    }
    let reason = "the kernel's timer frequency could not be read".to_owned();
    SPEC.line(CLASS, None, CoverageState::Absent, Some(reason))
}

fn absent(attached: &Attached, features: &Features) -> Vec<Coverage> {
    let state = if attached.wanted { CoverageState::Absent } else { CoverageState::Off };
    let reason = if features.preempt_rt {
        "PREEMPT_RT has no rwsem slow paths: waits come from the rt tracepoints".to_owned()
    } else {
        attached.reason()
    };
    let hidden = format!("{reason}; the tracepoint still shows the queued part");
    vec![SPEC.line(WAIT, None, state, Some(hidden)), SPEC.line(OUTCOMES, None, state, Some(reason))]
}
