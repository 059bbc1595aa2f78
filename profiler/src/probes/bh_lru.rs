//! Probe `bh-lru`: lookups in the per-CPU LRU of buffer heads. Says which of it stands on this host.

use super::spec::{Attached, Attachment, Hook, IN_BURSTS, ProbeSpec, Target};
use crate::kernel::features::Features;
use crate::snapshot::{Coverage, CoverageState};

/// The one way in, since the lookups were split into sleeping and atomic ones (2025); before, the other was.
const COMMON: &str = "find_get_block_common";
const OLD: &str = "__find_get_block";
const TOUCH: &str = "block_touch_buffer";
const EMPTIED: [&str; 2] = ["invalidate_bh_lru", "invalidate_bh_lrus_cpu"];
const ASKED: [&str; 2] = ["invalidate_bh_lrus", "lru_add_drain_all"];

const fn on(function: &'static str) -> [Attachment; 7] {
    [
        Attachment::needed("lru_lookup_exit", Target::Exit(function, 0)).in_bursts(),
        Attachment::needed("lru_touch", Target::BtfTracepoint(TOUCH)).in_bursts(),
        Attachment::needed("lru_lookup_entry", Target::Entry(function, 0)).in_bursts(),
        Attachment::optional("lru_invalidated", Target::Entry(EMPTIED[0], 0)),
        Attachment::optional("lru_invalidated", Target::Entry(EMPTIED[1], 0)),
        Attachment::optional("lru_invalidate_asked", Target::Entry(ASKED[0], 0)),
        Attachment::optional("lru_invalidate_asked", Target::Entry(ASKED[1], 0)),
    ]
}

/// The probe.
pub const SPEC: ProbeSpec = ProbeSpec {
    id: "bh-lru",
    sentence: "the per-CPU LRU of buffer heads: lookups, hits, what was found elsewhere or nowhere, by CPU and device",
    cost: "an increment at each lookup's entry, hit and exit, in bursts; a few lookups are timed, with their stacks",
    lost: "whether __find_get_block's LRU of 16 buffers serves a load, and on which CPU it does not",
    hooks: &[
        Hook { name: "fentry/fexit", attachments: &on(COMMON) },
        Hook { name: "fentry/fexit", attachments: &on(OLD) },
        Hook {
            name: "tp_btf",
            attachments: &[Attachment::needed("lru_touch", Target::BtfTracepoint(TOUCH))],
        },
        Hook {
            name: "raw_tp",
            attachments: &[Attachment::needed("lru_touch_raw", Target::RawTracepoint(TOUCH))],
        },
    ],
    coverage,
};

/// Names of the metrics, for whoever must say why a figure is missing.
pub const HITS: &str = "buffer LRU hits by CPU and device";
/// As above.
pub const LOOKUPS: &str = "buffer LRU lookups, found and absent";
/// As above.
pub const COSTS: &str = "buffer LRU lookups by caller, and their cost";
/// As above.
pub const INVALIDATIONS: &str = "buffer LRU invalidations, and who asked";

const SAMPLED: &str = "from a few lookups: estimates, with the tracing's own time in them";

fn coverage(attached: &Attached, _features: &Features) -> Vec<Coverage> {
    let absent = if attached.wanted { CoverageState::Absent } else { CoverageState::Off };
    let Some(hook) = attached.hook else {
        return [HITS, LOOKUPS, COSTS, INVALIDATIONS]
            .map(|metric| SPEC.line(metric, None, absent, Some(attached.reason())))
            .to_vec();
    };
    let (state, reason) = if attached.in_bursts {
        (CoverageState::Partial, Some(IN_BURSTS.to_owned()))
    } else {
        (CoverageState::Full, None)
    };
    let hits = SPEC.line(HITS, Some(hook.to_owned()), state, reason.clone());
    if hook != "fentry/fexit" {
        let rest = [LOOKUPS, COSTS, INVALIDATIONS];
        let rest = rest.map(|metric| SPEC.line(metric, None, absent, Some(attached.failures.join("; "))));
        return [vec![hits], rest.to_vec()].concat();
    }
    let invalidations = match attached.lacks(&[EMPTIED[0], EMPTIED[1], ASKED[0], ASKED[1]]) {
        Some(why) => SPEC.line(INVALIDATIONS, None, CoverageState::Partial, Some(why)),
        None => SPEC.line(INVALIDATIONS, Some(hook.to_owned()), CoverageState::Full, None),
    };
    vec![
        hits,
        SPEC.line(LOOKUPS, Some(hook.to_owned()), state, reason),
        SPEC.line(COSTS, Some(hook.to_owned()), CoverageState::Partial, Some(SAMPLED.to_owned())),
        invalidations,
    ]
}
