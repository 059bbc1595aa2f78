//! Lookups in the LRU of buffer heads between two moments, by CPU, by device, and by caller from samples.
//!
//! Must not show anything. found = present − hits is computed here and nowhere else.

use std::collections::BTreeMap;

use profiler_common::{Kind, bh_lru::LOOKUPS};

use super::gather::between;
use super::journal::device_name;
use super::window::{Moment, NameBook};
use super::{Abilities, Hist, Reading, Reason};
use crate::snapshot::subsystems::LruTotals;

/// Lookups by outcome. Where functions cannot be probed hits are known and nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct LruCounts {
    /// All of them: metric C-1.
    pub lookups: Reading,
    /// In the LRU.
    pub hit: Reading,
    /// In the page cache.
    pub found: Reading,
    /// In neither.
    pub absent: Reading,
    /// Found by tasks that came from another CPU.
    pub migrated: Reading,
}

impl LruCounts {
    /// Hits among the lookups that a larger LRU could have served, in per cent: metric C-2. Absent ones are left out.
    pub fn hit_percent(&self) -> Option<f64> {
        let (hit, found) = (self.hit.value()?, self.found.value()?);
        let all = hit.saturating_add(found);
        (all > 0).then(|| hit as f64 * 100.0 / all as f64)
    }
}

/// One CPU's, or one device's.
#[derive(Clone, Debug, PartialEq)]
pub struct LruRow {
    /// The CPU's number, or the device's.
    pub name: String,
    /// Its lookups.
    pub counts: LruCounts,
    /// Times that the CPU's LRU was emptied.
    pub emptied: Reading,
    /// Whether the CPU is isolated: then it has no LRU, and never hits.
    pub isolated: bool,
}

/// Lookups of one caller: estimates from samples.
#[derive(Clone, Debug, PartialEq)]
pub struct LruCaller {
    /// The function that asked.
    pub caller: String,
    /// Samples.
    pub samples: u64,
    /// Lookups: samples as a share of all, times all lookups of that outcome.
    pub hit: u64,
    /// As above.
    pub found: u64,
    /// As above.
    pub absent: u64,
}

/// What lookups of one outcome cost, from samples.
#[derive(Clone, Debug, PartialEq)]
pub struct LruCost {
    /// The outcome.
    pub outcome: &'static str,
    /// Samples.
    pub samples: u64,
    /// Their mean in nanoseconds.
    pub mean_ns: Option<u64>,
    /// Median in nanoseconds.
    pub p50_ns: Reading,
    /// 99th percentile in nanoseconds.
    pub p99_ns: Reading,
}

/// The whole of it.
#[derive(Clone, Debug, PartialEq)]
pub struct LruTable {
    /// Everything together.
    pub counts: LruCounts,
    /// By CPU.
    pub per_cpu: Vec<LruRow>,
    /// By device.
    pub per_device: Vec<LruRow>,
    /// By caller, most lookups first; or why not.
    pub per_caller: Result<Vec<LruCaller>, Reason>,
    /// By outcome.
    pub costs: Result<Vec<LruCost>, Reason>,
    /// Who had all LRUs emptied, and how often.
    pub asked: Result<Vec<(String, u64)>, Reason>,
    /// Buffers that the LRUs held at the window's end, and so pinned.
    pub pinned: Reading,
    /// One lookup in so many is timed.
    pub sampling: u64,
    /// Samples that could not be used.
    pub samples_lost: u64,
}

/// Callers that are listed.
const MOST_CALLERS: usize = 32;

/// What happened.
pub fn bh_lru(names: &NameBook, abilities: &Abilities, prev: &Moment, now: &Moment) -> LruTable {
    let grown: BTreeMap<(u32, u32), LruTotals> = now
        .lru
        .iter()
        .filter(|((_, device), _)| names.shows_device(*device))
        .map(|(key, totals)| (*key, since(totals, prev.lru.get(key))))
        .collect();
    let all = sum(grown.values());
    let samples = Samples::gather(names, prev, now);
    LruTable {
        counts: counts(abilities, &all),
        per_cpu: per_cpu(names, abilities, prev, now, &grown),
        per_device: per_device(abilities, &grown),
        per_caller: abilities.lru_costs.clone().map(|()| samples.callers(&all)),
        costs: abilities.lru_costs.clone().map(|()| samples.costs(prev, now)),
        asked: abilities.lru_emptied.clone().map(|()| samples.asked.into_iter().collect()),
        pinned: match now.lru_pinned {
            Some(buffers) => Reading::Exact(buffers),
            None => Reading::Missing(Reason::from("the kernel's data symbols are not to be had")),
        },
        sampling: names.lru_sampling(),
        samples_lost: all.samples_lost,
    }
}

fn since(now: &LruTotals, before: Option<&LruTotals>) -> LruTotals {
    before.map_or(*now, |before| each(now, before, u64::saturating_sub))
}

fn sum<'a>(all: impl IntoIterator<Item = &'a LruTotals>) -> LruTotals {
    all.into_iter().fold(LruTotals::default(), |sum, one| each(&sum, one, u64::saturating_add))
}

/// The same done to each count.
fn each(a: &LruTotals, b: &LruTotals, of: fn(u64, u64) -> u64) -> LruTotals {
    LruTotals {
        lookups: of(a.lookups, b.lookups),
        absent: of(a.absent, b.absent),
        present: of(a.present, b.present),
        hits: of(a.hits, b.hits),
        migrated: of(a.migrated, b.migrated),
        samples_lost: of(a.samples_lost, b.samples_lost),
    }
}

/// A task that is moved to another CPU between its hit and its return counts as a hit here and as present there: one CPU's
/// hits may be more than what was present, the sum's never are.
fn counts(abilities: &Abilities, totals: &LruTotals) -> LruCounts {
    let known = |can: &Result<(), Reason>, value: u64| match can {
        Ok(()) => Reading::Exact(value),
        Err(reason) => Reading::Missing(reason.clone()),
    };
    let of = |value| known(&abilities.lru_lookups, value);
    LruCounts {
        lookups: of(totals.lookups),
        hit: known(&abilities.lru_hits, totals.hits),
        found: of(totals.present.saturating_sub(totals.hits)),
        absent: of(totals.absent),
        migrated: of(totals.migrated),
    }
}

fn per_cpu(
    names: &NameBook,
    abilities: &Abilities,
    prev: &Moment,
    now: &Moment,
    grown: &BTreeMap<(u32, u32), LruTotals>,
) -> Vec<LruRow> {
    let mut cpus: BTreeMap<u32, Vec<&LruTotals>> = BTreeMap::new();
    for ((cpu, _), totals) in grown {
        cpus.entry(*cpu).or_default().push(totals);
    }
    let emptied = |cpu: &u32| {
        let at = |moment: &Moment| moment.lru_emptied.get(cpu).copied().unwrap_or(0);
        at(now).saturating_sub(at(prev))
    };
    let row = |(cpu, totals): (u32, Vec<&LruTotals>)| LruRow {
        name: cpu.to_string(),
        counts: counts(abilities, &sum(totals)),
        emptied: match &abilities.lru_emptied {
            Ok(()) => Reading::Exact(emptied(&cpu)),
            Err(reason) => Reading::Missing(reason.clone()),
        },
        isolated: names.is_isolated(cpu),
    };
    cpus.into_iter().map(row).filter(|row| has_any(&row.counts)).collect()
}

fn per_device(abilities: &Abilities, grown: &BTreeMap<(u32, u32), LruTotals>) -> Vec<LruRow> {
    let mut devices: BTreeMap<u32, Vec<&LruTotals>> = BTreeMap::new();
    for ((_, device), totals) in grown {
        devices.entry(*device).or_default().push(totals);
    }
    let row = |(device, totals): (u32, Vec<&LruTotals>)| LruRow {
        name: device_name(device),
        counts: counts(abilities, &sum(totals)),
        emptied: Reading::Missing(Reason::from("a CPU's LRU is emptied for all devices at once")),
        isolated: false,
    };
    devices.into_iter().map(row).filter(|row| has_any(&row.counts)).collect()
}

fn has_any(counts: &LruCounts) -> bool {
    counts.hit.value().unwrap_or(0) > 0 || counts.lookups.value().unwrap_or(0) > 0
}

/// Samples of the window.
#[derive(Default)]
struct Samples {
    /// By caller: samples by outcome.
    callers: BTreeMap<String, [u64; 3]>,
    /// Samples and nanoseconds by outcome.
    outcomes: [(u64, u64); 3],
    /// Numbers of their histograms, by outcome.
    hists: [Vec<u32>; 3],
    asked: BTreeMap<String, u64>,
}

impl Samples {
    fn gather(names: &NameBook, prev: &Moment, now: &Moment) -> Samples {
        let mut samples = Samples::default();
        for (id, totals) in &now.cells {
            let cell = names.cell(*id);
            let grown = between(totals, prev.cells.get(id));
            let caller =
                || names.caller_number(cell.stack).and_then(|n| names.caller(n)).unwrap_or("?").to_string();
            if grown.n == 0 || (cell.device != 0 && !names.shows_device(cell.device)) {
                continue;
            }
            if cell.kind == Kind::LruInvalidate as u8 {
                *samples.asked.entry(caller()).or_default() += grown.n;
            } else if cell.kind == Kind::LruLookup as u8 && usize::from(cell.mode) < LOOKUPS.len() {
                let outcome = usize::from(cell.mode);
                samples.callers.entry(caller()).or_default()[outcome] += grown.n;
                samples.outcomes[outcome].0 += grown.n;
                samples.outcomes[outcome].1 = samples.outcomes[outcome].1.saturating_add(grown.wait_ns);
                samples.hists[outcome].push(cell.row);
            }
        }
        samples
    }

    fn callers(&self, all: &LruTotals) -> Vec<LruCaller> {
        let counted = [all.hits, all.present.saturating_sub(all.hits), all.absent];
        let estimate = |samples: &[u64; 3], outcome: usize| {
            let (own, every) = (samples[outcome], self.outcomes[outcome].0);
            if every == 0 {
                0
            } else {
                (u128::from(counted[outcome]) * u128::from(own) / u128::from(every)) as u64
            }
        };
        let caller = |(caller, samples): (&String, &[u64; 3])| LruCaller {
            caller: caller.clone(),
            samples: samples.iter().sum(),
            hit: estimate(samples, 0),
            found: estimate(samples, 1),
            absent: estimate(samples, 2),
        };
        let mut callers: Vec<LruCaller> = self.callers.iter().map(caller).collect();
        callers.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.caller.cmp(&b.caller)));
        callers.truncate(MOST_CALLERS);
        callers
    }

    fn costs(&self, prev: &Moment, now: &Moment) -> Vec<LruCost> {
        let cost = |(outcome, name): (usize, &&'static str)| {
            let (samples, ns) = self.outcomes[outcome];
            let mut rows = self.hists[outcome].clone();
            rows.sort_unstable();
            rows.dedup();
            let mut hist = Hist::default();
            for row in rows {
                if let Some(now) = now.hists.get(&row) {
                    hist.add(&now.since(prev.hists.get(&row)));
                }
            }
            LruCost {
                outcome: name,
                samples,
                mean_ns: ns.checked_div(samples),
                p50_ns: hist.percentile(50),
                p99_ns: hist.percentile(99),
            }
        };
        LOOKUPS.iter().enumerate().map(cost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_share_the_exact_counts_by_their_samples() {
        let samples = Samples {
            callers: BTreeMap::from([("a".to_string(), [3, 0, 0]), ("b".to_string(), [1, 2, 0])]),
            outcomes: [(4, 400), (2, 2000), (0, 0)],
            ..Samples::default()
        };
        let all = LruTotals { lookups: 1000, present: 1000, hits: 800, ..LruTotals::default() };
        let callers = samples.callers(&all);
        assert_eq!((callers[0].hit, callers[0].found), (600, 0));
        assert_eq!((callers[1].hit, callers[1].found, callers[1].absent), (200, 200, 0));
        let costs = samples.costs(&Moment::default(), &Moment::default());
        assert_eq!((costs[0].mean_ns, costs[1].mean_ns, costs[2].mean_ns), (Some(100), Some(1000), None));
    }
}
