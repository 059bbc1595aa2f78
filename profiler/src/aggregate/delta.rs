//! The difference of two moments as a table. The only place where a window's length and rates come from.
//!
//! Must not round, name or show anything.

use std::collections::BTreeMap;

use profiler_common::loss::Counter;

use crate::snapshot::{OpenWait, ProgramCost, Totals, kind_name, mode_letter};

use super::bh_lru::bh_lru;
use super::finish::{Finish, owner};
use super::gather::{Debt, Rows, between, ended, ended_ns, gather, is_wait, settle_rows};
use super::group::{class_of, lock_name};
use super::journal::journals;
use super::settle::{clamp, pay};
use super::window::{Moment, NameBook};
use super::{Abilities, Bucket, GroupBy, Open, OutcomeCounts, OwnCost, ProgramShare, Row, Sums, Table};

/// What happened between two moments of one recording.
pub fn delta(names: &NameBook, abilities: &Abilities, prev: &Moment, now: &Moment, by: GroupBy) -> Table {
    let rows_by = |by| settled_rows(&Finish { by, names, abilities, prev, now }).0;
    let (rows, debts) = settled_rows(&Finish { by, names, abilities, prev, now });
    let mut other = Buckets::between(&now.other, &prev.other);
    let mut below = Buckets::between(&now.below_minimum, &prev.below_minimum);
    let written_off = pay_debts(&debts, &mut below, &mut other);
    let (losses, tallies) = counters(prev, now);
    let window_ns = now.at_ns.saturating_sub(prev.at_ns);
    let timed_ns = now.timed_ns.saturating_sub(prev.timed_ns).min(window_ns);
    let abilities = &abilities.in_window(timed_ns);
    Table {
        by,
        window_ns,
        whole: prev.origin,
        rows,
        by_kind: rows_by(GroupBy::Kind),
        rwsems: rows_by(GroupBy::LockMode).into_iter().filter(|row| row.outcomes.is_ok()).collect(),
        in_progress: open_waits(names, now),
        losses,
        tallies,
        totals: totals(names, prev, now, written_off),
        other_devices: other_devices(names, prev, now),
        budget: now.budget.iter().filter(|step| step.at_ns > prev.at_ns || prev.origin).cloned().collect(),
        other: other.0.into_values().collect(),
        below_minimum: below.0.into_values().collect(),
        written_off_ns: clamp(written_off.load_ns),
        written_off: clamp(written_off.contentions),
        own_cost: own_cost(prev, now, window_ns),
        timed_ns,
        journals: abilities.jbd2_counts.clone().map(|()| journals(names, abilities, prev, now)),
        bh_lru: abilities.lru.clone().map(|()| bh_lru(names, abilities, prev, now)),
    }
}

type Debts = BTreeMap<(Option<u8>, Option<u8>), Debt>;

fn settled_rows(finish: &Finish) -> (Vec<Row>, Debts) {
    let mut gathered: Rows = gather(finish.by, finish.names, finish.prev, finish.now);
    let debts = settle_rows(&mut gathered);
    (finish.rows(&gathered), debts)
}

/// Waits without a row, by (kind, mode).
struct Buckets(BTreeMap<(u8, u8), Bucket>);

impl Buckets {
    fn between(now: &BTreeMap<(u8, u8), Totals>, prev: &BTreeMap<(u8, u8), Totals>) -> Buckets {
        let grown = now.iter().map(|(key, totals)| (*key, between(totals, prev.get(key))));
        Buckets(
            grown.filter(|(_, totals)| !totals.is_empty()).map(|(key, t)| (key, bucket(key, &t))).collect(),
        )
    }

    /// Pays a debt of this kind and mode, or of any where the grouping does not keep them, as far as it goes: a wait
    /// that was in progress at the window's begin may have ended here, below the minimum or without a cell.
    fn pay(&mut self, (kind, mode): (Option<u8>, Option<u8>), mut debt: Debt) -> Debt {
        for (key, bucket) in &mut self.0 {
            if kind.is_none_or(|kind| kind == key.0) && mode.is_none_or(|mode| mode == key.1) {
                debt.contentions = pay(debt.contentions, &mut bucket.sums.contentions);
                debt.load_ns = pay(debt.load_ns, &mut bucket.sums.load_ns);
            }
        }
        debt
    }
}

fn bucket(key: (u8, u8), totals: &Totals) -> Bucket {
    let sums = Sums {
        contentions: clamp(ended(totals)),
        finished: totals.n,
        wait_ns: totals.wait_ns,
        interrupted_n: totals.interrupted_n,
        interrupted_ns: totals.interrupted_ns,
        load_ns: clamp(ended_ns(totals)),
    };
    let outcomes = OutcomeCounts(totals.outcomes);
    Bucket { kind: kind_name(key.0), mode: mode_letter(key.1), sums, max_ns: totals.max_ns, outcomes }
}

/// What nobody could pay.
fn pay_debts(debts: &Debts, below: &mut Buckets, other: &mut Buckets) -> Debt {
    let mut left = Debt::default();
    for (key, debt) in debts {
        let rest = other.pay(*key, below.pay(*key, *debt));
        left.contentions += rest.contentions;
        left.load_ns += rest.load_ns;
    }
    left
}

/// Everything together, from the sums themselves and not from the rows, so that a test can compare both.
fn totals(names: &NameBook, prev: &Moment, now: &Moment, written_off: Debt) -> Sums {
    let mut sums = Sums::default();
    let mut contentions = written_off.contentions;
    let mut load_ns = written_off.load_ns;
    let shown = |id: &u32| is_wait(names.cell(*id)) && names.shows_lock(names.cell(*id).lock);
    let waits = now.cells.iter().filter(|(id, _)| shown(id));
    let cells = waits.map(|(id, totals)| between(totals, prev.cells.get(id)));
    let other = now.other.iter().map(|(key, totals)| between(totals, prev.other.get(key)));
    let below = now.below_minimum.iter().map(|(key, totals)| between(totals, prev.below_minimum.get(key)));
    for grown in cells.chain(other).chain(below) {
        contentions += ended(&grown);
        load_ns += ended_ns(&grown);
        sums.finished = sums.finished.saturating_add(grown.n);
        sums.wait_ns = sums.wait_ns.saturating_add(grown.wait_ns);
        sums.interrupted_n = sums.interrupted_n.saturating_add(grown.interrupted_n);
        sums.interrupted_ns = sums.interrupted_ns.saturating_add(grown.interrupted_ns);
    }
    let (open_now, open_before) = (shown_open(names, now), shown_open(names, prev));
    contentions += open_now.len() as i128 - open_before.len() as i128;
    load_ns += elapsed(&open_now) - elapsed(&open_before);
    Sums { contentions: clamp(contentions), load_ns: clamp(load_ns), ..sums }
}

/// Finished waits that are left out, being at locks of other devices or of none.
fn other_devices(names: &NameBook, prev: &Moment, now: &Moment) -> Sums {
    let mut sums = Sums::default();
    for (id, totals) in &now.cells {
        let cell = names.cell(*id);
        if is_wait(cell) && !names.shows_lock(cell.lock) {
            let grown = between(totals, prev.cells.get(id));
            sums.add(&bucket((cell.kind, cell.mode), &grown).sums);
        }
    }
    sums
}

/// Waits in progress at the locks that are shown.
fn shown_open<'a>(names: &NameBook, moment: &'a Moment) -> Vec<&'a OpenWait> {
    moment.in_progress.iter().filter(|open| names.shows_lock(open.lock)).collect()
}

fn elapsed(open: &[&OpenWait]) -> i128 {
    open.iter().map(|open| i128::from(open.age_ns)).sum()
}

fn open_waits(names: &NameBook, now: &Moment) -> Vec<Open> {
    let mut open: Vec<Open> = shown_open(names, now).into_iter().map(|open| open_wait(names, open)).collect();
    open.sort_by(|a, b| b.age_ns.cmp(&a.age_ns).then_with(|| a.tid.cmp(&b.tid)));
    open
}

fn open_wait(names: &NameBook, open: &OpenWait) -> Open {
    let lock = names.lock(open.lock);
    let caller = names.caller_of_open(open).and_then(|number| names.caller(number));
    let (owner, owner_on_cpu) = owner(open.owner_kind, open.owner_tgid).unzip();
    let owner_on_cpu = owner_on_cpu.flatten();
    Open {
        name: lock_name(names, open.lock, caller),
        class: lock.and_then(class_of),
        lock_id: lock.map(|lock| lock.lock_id.clone()),
        kind: kind_name(open.kind),
        mode: mode_letter(open.mode),
        workload: open.workload,
        tid: open.tid,
        tgid: open.tgid,
        comm: names.comm(open.tgid),
        owner,
        owner_comm: if owner_on_cpu.is_some() { names.comm(open.owner_tgid) } else { Vec::new() },
        owner_on_cpu,
        age_ns: open.age_ns,
        queued: open.queued,
    }
}

type Counts = Vec<(String, u64)>;

/// Losses, zeros included, and the other counters. What the kernel skipped is a loss as well, where it can tell.
fn counters(prev: &Moment, now: &Moment) -> (Counts, Counts) {
    let grown = |name: &str| {
        let at = |moment: &Moment| moment.counters.get(name).copied().unwrap_or(0);
        at(now).saturating_sub(at(prev))
    };
    let mut losses: Counts =
        Counter::LOSSES.iter().map(|(_, name)| (name.to_string(), grown(name))).collect();
    let is_loss = |name: &String| Counter::LOSSES.iter().any(|(_, loss)| loss == name);
    let tallies = now.counters.keys().filter(|name| !is_loss(name));
    let tallies = tallies.map(|name| (name.clone(), grown(name))).collect();
    if let Some(misses) = sum(&programs(prev, now), |program| program.recursion_misses) {
        losses.push(("recursion_misses".to_string(), misses));
    }
    (losses, tallies)
}

fn own_cost(prev: &Moment, now: &Moment, window_ns: u64) -> OwnCost {
    // CPU time before attaching (loading programs) is part of the recording's cost but not of its window's load.
    let before = if prev.origin { 0 } else { prev.cost.own_cpu_ns };
    let own_cpu_ns = now.cost.own_cpu_ns.saturating_sub(before);
    let programs = programs(prev, now);
    OwnCost {
        own_cpu_ns,
        own_cpu_percent: (window_ns > 0).then(|| own_cpu_ns as f64 * 100.0 / window_ns as f64),
        bpf_runs: sum(&programs, |program| program.run_count),
        bpf_ns: sum(&programs, |program| program.run_ns),
        recursion_misses: sum(&programs, |program| program.recursion_misses),
        map_bytes: now.cost.map_bytes,
        programs,
    }
}

fn programs(prev: &Moment, now: &Moment) -> Vec<ProgramShare> {
    let before = |name: &str| prev.cost.programs.iter().find(|program| program.name == name);
    now.cost.programs.iter().map(|program| program_share(program, before(&program.name))).collect()
}

fn program_share(now: &ProgramCost, prev: Option<&ProgramCost>) -> ProgramShare {
    let grown = |part: fn(&ProgramCost) -> Option<u64>| {
        part(now).map(|n| n.saturating_sub(prev.and_then(part).unwrap_or(0)))
    };
    ProgramShare {
        name: now.name.clone(),
        run_count: grown(|program| program.run_count),
        run_ns: grown(|program| program.run_ns),
        recursion_misses: grown(|program| program.recursion_misses),
        verified_instructions: now.verified_instructions,
    }
}

/// The sum of what the kernel could tell; `None` if it could tell nothing.
fn sum(programs: &[ProgramShare], part: impl Fn(&ProgramShare) -> Option<u64>) -> Option<u64> {
    programs.iter().filter_map(part).reduce(u64::saturating_add)
}
