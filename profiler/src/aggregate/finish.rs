//! Turns what was gathered into rows: names, shares in order, quantiles or the reason why there are none.
//!
//! Must not change sums.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use profiler_common::{Kind, Mode, OwnerKind, cell::Outcome};

use crate::snapshot::owner_kind;

use super::gather::{Gathered, Rows, Share};
use super::group::{class_of, row_name};
use super::settle::clamp;
use super::window::{Moment, NameBook};
use super::{
    Abilities, GroupBy, Hist, OutcomeCounts, Owner, OwnerShare, ProcessShare, Reading, Reason, Row, RowKey,
    StackShare, Sums,
};

/// What all rows of a table have in common.
pub struct Finish<'a> {
    pub by: GroupBy,
    pub names: &'a NameBook,
    pub abilities: &'a Abilities,
    pub prev: &'a Moment,
    pub now: &'a Moment,
}

/// Whose a histogram is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Home {
    One(RowKey),
    Several,
}

/// A quantile is shown if its histogram holds at least this many of ten waits: the maps are not read at one instant.
const COMPLETE_TENTHS: u128 = 9;

impl Finish<'_> {
    /// The rows, highest wait load first, then most contentions, then by name.
    pub fn rows(&self, gathered: &Rows) -> Vec<Row> {
        let homes = self.homes();
        let filled = gathered.iter().filter(|(_, row)| !row.is_empty());
        let mut rows: Vec<Row> = filled.map(|(key, row)| self.row(*key, row, &homes)).collect();
        rows.sort_by(|a, b| {
            let order = |row: &Row| (Reverse(row.sums.load_ns), Reverse(row.sums.contentions));
            order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    fn homes(&self) -> HashMap<u32, Home> {
        let mut homes = HashMap::new();
        for cell in self.names.cells() {
            let home = Home::One(RowKey::of_cell(self.by, cell, self.names));
            let known = homes.entry(cell.row).or_insert(home);
            if *known != home {
                *known = Home::Several;
            }
        }
        homes
    }

    fn row(&self, key: RowKey, row: &Gathered, homes: &HashMap<u32, Home>) -> Row {
        let kind = key.kind.and_then(Kind::from_number);
        let (hist, gap) = self.hist(key, row, homes);
        let told =
            |can: Result<(), Reason>, ns: u64| can.map_or_else(Reading::Missing, |()| Reading::Exact(ns));
        let outcomes = self.abilities.outcomes(kind).map(|()| OutcomeCounts(row.ended.outcomes));
        let lock = key.lock.and_then(|lock| self.names.lock(lock));
        let caller = key.caller.and_then(|number| self.names.caller(number));
        Row {
            name: row_name(self.by, key, self.names, caller.or_else(|| self.main_caller(row))),
            class: lock.and_then(class_of),
            instance: lock.and_then(|lock| lock.instance.clone()),
            lock_id: lock.map(|lock| lock.lock_id.clone()),
            kind: key.kind_word(),
            mode: key.mode_word(),
            caller: caller.map(str::to_string),
            workload: key.workload,
            sums: sums(row),
            window_ns: self.now.at_ns.saturating_sub(self.prev.at_ns),
            in_progress: row.in_progress,
            max_ns: self.max(row, &hist, &gap),
            p50_ns: quantile(row, &hist, &gap, 50),
            p99_ns: quantile(row, &hist, &gap, 99),
            spin_ns: told(self.abilities.spin(kind), row.ended.spin_ns),
            queue_ns: told(self.abilities.queue(kind), row.ended.queue_ns),
            steals_past_waiters: count_for(key, Mode::Read, &outcomes, &Ok(()), Outcome::StolenPastWaiters),
            handed_off: count_for(
                key,
                Mode::Write,
                &outcomes,
                &self.abilities.handed_off,
                Outcome::HandedOff,
            ),
            handoff_class: count_for(
                key,
                Mode::Write,
                &outcomes,
                &self.abilities.handoff_class,
                Outcome::HandoffClass,
            ),
            outcomes,
            owners: self.owners(&row.owners),
            processes: self.processes(&row.processes),
            stacks: self.stacks(&row.stacks),
            hist,
        }
    }

    /// The complete histograms of a row, merged, and why others are missing.
    fn hist(&self, key: RowKey, row: &Gathered, homes: &HashMap<u32, Home>) -> (Hist, Option<Reason>) {
        let mut merged = Hist::default();
        let mut gap = None;
        for number in &row.hists {
            if homes.get(number) != Some(&Home::One(key)) {
                gap = Some(Reason::from("its histogram is shared with other rows"));
            } else if let Some(reason) = self.names.without_hist(*number) {
                gap = Some(Reason::from(reason.to_string()));
            } else if let Some(now) = self.now.hists.get(number) {
                merged.add(&now.since(self.prev.hists.get(number)));
            }
        }
        let complete = u128::from(merged.n()) * 10 >= u128::from(row.ended.n) * COMPLETE_TENTHS;
        if !complete && gap.is_none() {
            gap = Some(Reason::from(if merged.n() == 0 {
                "no histogram slot"
            } else {
                "histogram incomplete"
            }));
        }
        (merged, gap)
    }

    fn max(&self, row: &Gathered, hist: &Hist, gap: &Option<Reason>) -> Reading {
        if row.ended.n == 0 {
            return Reading::TooFew;
        }
        // Sums keep the longest since the begin. It is the window's if it grew in the window, or if there is no
        // other window; else only the histogram knows, to a bucket.
        if self.prev.origin || row.risen_ns == row.ended.max_ns {
            return Reading::Exact(row.ended.max_ns);
        }
        match (gap, hist.highest()) {
            (None, Some(ns)) => Reading::Estimate(ns.min(row.ended.max_ns)),
            (Some(reason), _) => Reading::Missing(reason.clone()),
            (None, None) => Reading::Missing(Reason::from("no histogram slot")),
        }
    }

    /// The caller that was waited in longest.
    fn main_caller(&self, row: &Gathered) -> Option<&str> {
        let mut callers = BTreeMap::<u32, u64>::new();
        for (stack, (_, wait_ns)) in &row.stacks {
            if let Some(caller) = self.names.caller_number(*stack) {
                let sum = callers.entry(caller).or_default();
                *sum = sum.saturating_add(*wait_ns);
            }
        }
        let (caller, _) = callers.into_iter().max_by_key(|(_, wait_ns)| *wait_ns)?;
        self.names.caller(caller)
    }

    fn owners(&self, owners: &BTreeMap<(u8, u32), Share>) -> Vec<OwnerShare> {
        let mut shares: Vec<OwnerShare> = owners
            .iter()
            .filter_map(|((kind, tgid), (n, wait_ns))| {
                let (owner, on_cpu) = owner(*kind, *tgid)?;
                let comm = if on_cpu.is_some() { self.names.comm(*tgid) } else { Vec::new() };
                Some(OwnerShare { owner, comm, on_cpu, n: *n, wait_ns: *wait_ns })
            })
            .collect();
        shares.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.owner.cmp(&b.owner)));
        shares
    }

    fn processes(&self, processes: &BTreeMap<u32, Share>) -> Vec<ProcessShare> {
        let share = |(tgid, (n, wait_ns)): (&u32, &Share)| ProcessShare {
            tgid: *tgid,
            comm: self.names.comm(*tgid),
            n: *n,
            wait_ns: *wait_ns,
        };
        let mut shares: Vec<ProcessShare> = processes.iter().map(share).collect();
        shares.sort_by_key(|share| (Reverse(share.wait_ns), share.tgid));
        shares
    }

    fn stacks(&self, stacks: &BTreeMap<u32, Share>) -> Vec<StackShare> {
        let share = |(stack, (n, wait_ns)): (&u32, &Share)| StackShare {
            frames: self.names.frames(*stack),
            n: *n,
            wait_ns: *wait_ns,
        };
        let mut shares: Vec<StackShare> = stacks.iter().map(share).collect();
        shares.sort_by_key(|share| Reverse(share.wait_ns));
        shares
    }
}

/// Owner and whether it was on a CPU, from the numbers of a key; `None` where the lock keeps no owner.
pub fn owner(kind: u8, tgid: u32) -> Option<(Owner, Option<bool>)> {
    match owner_kind(kind) {
        OwnerKind::NotKept => None,
        OwnerKind::OffCpu => Some((Owner::Process(tgid), Some(false))),
        OwnerKind::OnCpu => Some((Owner::Process(tgid), Some(true))),
        OwnerKind::Readers => Some((Owner::Readers, None)),
        OwnerKind::Unknown => Some((Owner::Unknown, None)),
    }
}

fn sums(row: &Gathered) -> Sums {
    Sums {
        contentions: clamp(row.contentions),
        finished: row.ended.n,
        wait_ns: row.ended.wait_ns,
        interrupted_n: row.ended.interrupted_n,
        interrupted_ns: row.ended.interrupted_ns,
        load_ns: clamp(row.load_ns),
    }
}

fn quantile(row: &Gathered, hist: &Hist, gap: &Option<Reason>, percent: u64) -> Reading {
    if row.ended.n == 0 {
        return Reading::TooFew;
    }
    let complete = u128::from(hist.n()) * 10 >= u128::from(row.ended.n) * COMPLETE_TENTHS;
    match (gap, hist.percentile(percent)) {
        (Some(reason), _) if !complete => Reading::Missing(reason.clone()),
        // Most of it is there.
        (Some(_), Reading::Exact(ns)) => Reading::Estimate(ns),
        (_, reading) => reading,
    }
}

/// A count that only one mode has; of the whole lock where the grouping keeps no mode.
fn count_for(
    key: RowKey,
    mode: Mode,
    outcomes: &Result<OutcomeCounts, Reason>,
    can: &Result<(), Reason>,
    outcome: Outcome,
) -> Reading {
    match (outcomes, can) {
        (Err(reason), _) | (Ok(_), Err(reason)) => Reading::Missing(reason.clone()),
        (Ok(_), Ok(())) if key.mode.is_some_and(|of| of != mode as u8) => {
            Reading::Missing(Reason::from(match mode {
                Mode::Read => "counted for readers only",
                Mode::Write | Mode::Exclusive => "counted for writers only",
            }))
        }
        (Ok(counts), Ok(())) => Reading::Exact(counts.get(outcome)),
    }
}
