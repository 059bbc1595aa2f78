//! Probe `contention`: every kernel lock's own tracepoints. Says what they hide on this host.

use super::spec::{Attached, Attachment, Hook, ProbeSpec, Target};
use crate::kernel::features::{Features, SpinVisibility};
use crate::snapshot::{Coverage, CoverageState};

/// The probe.
pub const SPEC: ProbeSpec = ProbeSpec {
    id: "contention",
    sentence: "waits for every kind of kernel lock, by the tracepoints lock:contention_begin and contention_end",
    cost: "runs only when a lock is contended; the stack walk is most of it, and --min-wait saves it",
    lost: "every wait for a spinlock, rwlock, mutex, semaphore, percpu-rwsem or rt lock, and the queued part of rwsems",
    hooks: &[
        Hook {
            name: "tp_btf",
            attachments: &[
                Attachment::needed("contention_end", Target::BtfTracepoint("contention_end")),
                Attachment::needed("contention_begin", Target::BtfTracepoint("contention_begin")),
            ],
        },
        Hook {
            name: "raw_tp",
            attachments: &[
                Attachment::needed("contention_end_raw", Target::RawTracepoint("contention_end")),
                Attachment::needed("contention_begin_raw", Target::RawTracepoint("contention_begin")),
            ],
        },
    ],
    coverage,
};

fn coverage(attached: &Attached, features: &Features) -> Vec<Coverage> {
    let Some(hook) = attached.hook else {
        let state = if attached.wanted { CoverageState::Absent } else { CoverageState::Off };
        return vec![SPEC.line("every lock's waits", None, state, Some(attached.reason()))];
    };
    let hook = Some(hook.to_owned());
    if attached.kinds != u32::MAX {
        return only_rwsems(hook);
    }
    let full = |metric: &str| SPEC.line(metric, hook.clone(), CoverageState::Full, None);
    vec![
        spin(hook.clone(), features),
        full("mutex, semaphore, percpu-rwsem waits"),
        SPEC.line("rwlock waits", hook.clone(), CoverageState::Partial, Some(RWLOCK.to_owned())),
        rt(hook.clone(), features),
        SPEC.line(
            "bit locks, lock_buffer, folio lock, wait queues",
            None,
            CoverageState::Absent,
            Some(NO_HOOK.to_owned()),
        ),
    ]
}

/// With `--probe rwsem` alone the tracepoints serve the rwsem probe.
fn only_rwsems(hook: Option<String>) -> Vec<Coverage> {
    let reason = "only rwsems were asked for: no other lock is recorded";
    vec![
        SPEC.line("queued part of rwsem waits", hook, CoverageState::Full, None),
        SPEC.line("every other lock's waits", None, CoverageState::Off, Some(reason.to_owned())),
    ]
}

const RWLOCK: &str =
    "readers in interrupts spin before the tracepoint (qrwlock.c, queued_read_lock_slowpath)";
const NO_HOOK: &str = "the kernel has no lock tracepoint there: mbcache's buckets are hidden; jbd2, buffer and folio locks have probes of their own";
const QUEUED: &str =
    "queued waiters only: the second contender spins on the pending bit, untraced (qspinlock.c)";

fn spin(hook: Option<String>, features: &Features) -> Coverage {
    let metric = "spinlock waits";
    match &features.spin_visibility {
        SpinVisibility::Queued => SPEC.line(metric, hook, CoverageState::Partial, Some(QUEUED.to_owned())),
        SpinVisibility::Paravirt => SPEC.line(metric, hook, CoverageState::Full, None),
        SpinVisibility::Invisible(reason) => {
            let reason = format!("spinlock waits are invisible here: {reason}");
            SPEC.line(metric, None, CoverageState::Absent, Some(reason))
        }
        SpinVisibility::Unknown(reason) => {
            let reason = format!("which spinlock waits are traced here is not known: {reason}");
            SPEC.line(metric, hook, CoverageState::Partial, Some(reason))
        }
    }
}

fn rt(hook: Option<String>, features: &Features) -> Coverage {
    if features.preempt_rt {
        return SPEC.line("rt locks (rtmutex, rwbase)", hook, CoverageState::Full, None);
    }
    // Without PREEMPT_RT only rtmutexes proper (futex PI, i2c) take this path.
    SPEC.line("rtmutex waits (futex PI, i2c)", hook, CoverageState::Full, None)
}
