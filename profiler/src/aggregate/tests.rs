//! The invariants of tables, over made-up and over random recordings. Must not test how anything is shown.

use std::collections::BTreeMap;

use profiler_common::{Kind, Mode, OwnerKind, hist};

use super::*;
use crate::snapshot::{CellName, LockName, Names, OpenWait, ProcessName, Snapshot, StackName, Totals};

const RWSEM: u8 = Kind::Rwsem as u8;
const WRITE: u8 = Mode::Write as u8;
const ALL: [GroupBy; 6] = [
    GroupBy::LockModeCaller,
    GroupBy::LockMode,
    GroupBy::Lock,
    GroupBy::Caller,
    GroupBy::Kind,
    GroupBy::Process,
];

fn cell(id: u32, lock: u32, stack: u32, tgid: u32) -> CellName {
    let owner_kind = OwnerKind::Readers as u8;
    CellName {
        id,
        row: id,
        lock,
        stack,
        kind: RWSEM,
        mode: WRITE,
        tgid,
        owner_tgid: 0,
        owner_kind,
        workload: 0,
        device: 0,
    }
}

fn names(cells: Vec<CellName>) -> Names {
    let stack =
        |id: u32| StackName { id, frames: vec![format!("f{id}+0x1")], caller: Some(format!("f{id}")) };
    Names {
        locks: (1..4)
            .map(|id| LockName { id, lock_id: format!("lock-{id}"), ..LockName::default() })
            .collect(),
        stacks: (1..4).map(stack).collect(),
        cells,
        processes: vec![ProcessName { tgid: 7, comm: b"seven".to_vec() }],
        ..Names::default()
    }
}

fn open(lock: u32, age_ns: u64) -> OpenWait {
    OpenWait {
        lock,
        kind: RWSEM,
        mode: WRITE,
        tid: 70,
        tgid: 7,
        owner_tgid: 0,
        owner_kind: OwnerKind::Readers as u8,
        workload: 0,
        age_ns,
        queued: true,
    }
}

fn totals(n: u64, wait_ns: u64, max_ns: u64) -> Totals {
    Totals { n, wait_ns, max_ns, ..Totals::default() }
}

fn state(cells: Vec<CellName>) -> State {
    let mut state = State::new(&Meta { attached_ns: 1000, ..Meta::default() });
    state.learn(&names(cells));
    state
}

fn tick(at_ns: u64, cells: &[(u32, Totals)], in_progress: Vec<OpenWait>) -> Snapshot {
    Snapshot { at_ns, cells: cells.iter().copied().collect(), in_progress, ..Snapshot::default() }
}

/// Rows, other and below the minimum are all there is, whatever the grouping.
fn holds_together(table: &Table) {
    let mut sum = Sums::default();
    table.rows.iter().for_each(|row| sum.add(&row.sums));
    table.other.iter().chain(&table.below_minimum).for_each(|bucket| sum.add(&bucket.sums));
    assert_eq!(sum, table.totals, "{:?}", table.by);
}

#[test]
fn a_stall_counts_while_it_lasts_and_not_twice() {
    let mut state = state(vec![cell(1, 1, 1, 7)]);
    state.absorb(&tick(2000, &[], vec![open(1, 900)]));
    let first = state.whole(GroupBy::LockModeCaller);
    assert_eq!(first.rows.len(), 1);
    let row = &first.rows[0];
    assert_eq!((row.sums.load_ns, row.sums.contentions, row.sums.wait_ns), (900, 1, 0));
    assert_eq!(row.in_progress, InProgress { n: 1, elapsed_ns: 900, max_age_ns: 900 });
    assert_eq!(row.caller.as_deref(), Some("f1"), "the only caller known");
    assert_eq!(row.name, "~f1");

    let before = state.moment.clone();
    state.absorb(&tick(3000, &[(1, totals(1, 1500, 1500))], Vec::new()));
    let second = state.since(&before, GroupBy::LockModeCaller);
    assert_eq!((second.rows[0].sums.load_ns, second.rows[0].sums.contentions), (600, 0));
    assert_eq!(second.rows[0].sums.wait_ns, 1500);
    assert!((second.rows[0].wait_load() - 0.6).abs() < 1e-9);
    holds_together(&second);
}

#[test]
fn a_wait_that_may_come_from_two_places_has_a_row_of_its_own_and_no_row_goes_negative() {
    let mut state = state(vec![cell(1, 1, 1, 7), cell(2, 1, 2, 7)]);
    let busy = [(1, totals(1, 50, 50)), (2, totals(1, 10, 10))];
    state.absorb(&tick(2000, &busy, vec![open(1, 900)]));
    let before = state.moment.clone();
    let whole = state.whole(GroupBy::LockModeCaller);
    assert_eq!(whole.rows.len(), 3);
    assert_eq!(whole.rows[0].caller, None);

    state.absorb(&tick(3000, &[(1, totals(2, 1550, 1500))], Vec::new()));
    let table = state.since(&before, GroupBy::LockModeCaller);
    let rows: Vec<_> = table.rows.iter().map(|row| (row.name.as_str(), row.sums.load_ns)).collect();
    assert_eq!(rows, [("~f1", 600)]);
    assert_eq!(table.written_off_ns, 0);
    holds_together(&table);
}

#[test]
fn what_ends_below_the_minimum_or_nowhere_is_taken_from_there() {
    let mut state = state(vec![cell(1, 1, 1, 7)]);
    state.absorb(&tick(2000, &[], vec![open(1, 300)]));
    let before = state.moment.clone();
    let mut ended = tick(3000, &[], Vec::new());
    ended.below_minimum = BTreeMap::from([((RWSEM, WRITE), totals(1, 400, 400))]);
    let mut one = state.clone();
    one.absorb(&ended);
    let table = one.since(&before, GroupBy::LockModeCaller);
    assert_eq!(table.below_minimum[0].sums.load_ns, 100);
    assert_eq!((table.written_off, table.written_off_ns), (0, 0));
    holds_together(&table);

    state.absorb(&tick(3000, &[], Vec::new()));
    let table = state.since(&before, GroupBy::LockModeCaller);
    assert_eq!((table.written_off, table.written_off_ns), (1, 300));
    assert_eq!(table.totals, Sums::default());
    holds_together(&table);
}

#[test]
fn interrupted_waits_load_the_lock_and_are_in_no_wait() {
    let mut state = state(vec![cell(1, 1, 1, 7)]);
    let interrupted = Totals { interrupted_n: 1, interrupted_ns: 500, ..Totals::default() };
    state.absorb(&tick(2000, &[(1, interrupted)], Vec::new()));
    let row = &state.whole(GroupBy::LockModeCaller).rows[0];
    assert_eq!((row.sums.contentions, row.sums.finished, row.sums.wait_ns, row.sums.load_ns), (1, 0, 0, 500));
    assert_eq!(row.p50_ns, Reading::TooFew);
    assert!(row.processes.is_empty());
}

#[test]
fn a_windows_maximum_is_exact_only_if_it_rose() {
    let mut state = state(vec![cell(1, 1, 1, 7)]);
    let mut first = tick(2000, &[(1, totals(1, 90_000, 90_000))], Vec::new());
    first.hists = BTreeMap::from([(1, BTreeMap::from([(hist::bucket(90_000) as u16, 1)]))]);
    state.absorb(&first);
    assert_eq!(state.whole(GroupBy::Lock).rows[0].max_ns, Reading::Exact(90_000));
    let before = state.moment.clone();

    let mut second = tick(3000, &[(1, totals(2, 91_000, 90_000))], Vec::new());
    second.hists = BTreeMap::from([(1, BTreeMap::from([(hist::bucket(1000) as u16, 1)]))]);
    state.absorb(&second);
    let wanted = hist::midpoint(hist::bucket(1000));
    assert_eq!(state.since(&before, GroupBy::Lock).rows[0].max_ns, Reading::Estimate(wanted));
    assert_eq!(state.whole(GroupBy::Lock).rows[0].max_ns, Reading::Exact(90_000));

    state.absorb(&tick(4000, &[(1, totals(3, 191_000, 100_000))], Vec::new()));
    assert_eq!(state.since(&before, GroupBy::Lock).rows[0].max_ns, Reading::Exact(100_000));
}

#[test]
fn a_missing_histogram_has_its_reason() {
    let mut state = state(vec![cell(1, 1, 1, 7), cell(2, 2, 2, 7), cell(3, 3, 3, 8)]);
    let names = Names { rows_without_hist: vec![(1, "demoted".to_string())], ..Names::default() };
    state.learn(&names);
    let one = totals(1, 1000, 1000);
    let mut snapshot = tick(2000, &[(1, one), (2, one), (3, one)], Vec::new());
    let hist = BTreeMap::from([(hist::bucket(1000) as u16, 1)]);
    snapshot.hists = BTreeMap::from([(1, hist.clone()), (3, hist)]);
    state.absorb(&snapshot);
    let table = state.whole(GroupBy::LockModeCaller);
    let reason = |lock: &str| {
        let row = table.rows.iter().find(|row| row.lock_id.as_deref() == Some(lock));
        row.and_then(|row| row.p50_ns.reason().map(str::to_string))
    };
    assert_eq!(reason("lock-1").as_deref(), Some("demoted"));
    assert_eq!(reason("lock-2").as_deref(), Some("no histogram slot"));
    assert_eq!(reason("lock-3"), None);
    assert!(table.by_kind[0].p50_ns.reason().is_some(), "a third of the waits is no distribution");
}

#[test]
fn a_cell_without_a_name_still_counts() {
    let mut state = state(Vec::new());
    state.absorb(&tick(2000, &[(99, totals(3, 30, 10))], Vec::new()));
    let table = state.whole(GroupBy::LockModeCaller);
    assert_eq!(table.rows[0].kind, "unknown");
    holds_together(&table);
}

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A model of tasks that wait: what an observer who looks at all of them would count.
#[derive(Default)]
struct Model {
    open: Vec<(OpenWait, u32, u64)>,
    cells: BTreeMap<u32, Totals>,
    below: Totals,
    waited_ns: u64,
}

impl Model {
    fn step(&mut self, random: &mut Random, now: u64) {
        self.waited_ns += self.open.len() as u64;
        if random.below(3) == 0 && self.open.len() < 6 {
            let id = 1 + random.below(6) as u32;
            let mut wait = open(1 + (id - 1) % 3, 0);
            wait.tgid = 7 + (id - 1) / 3;
            self.open.push((wait, id, now));
        }
        if random.below(4) == 0 && !self.open.is_empty() {
            let (_, id, begin) = self.open.swap_remove(random.below(self.open.len() as u64) as usize);
            let wait_ns = now - begin;
            let cell = if wait_ns < 5 { &mut self.below } else { self.cells.entry(id).or_default() };
            if random.below(10) == 0 {
                cell.interrupted_n += 1;
                cell.interrupted_ns += wait_ns;
            } else {
                cell.n += 1;
                cell.wait_ns += wait_ns;
                cell.max_ns = cell.max_ns.max(wait_ns);
            }
        }
    }

    fn snapshot(&self, at_ns: u64) -> Snapshot {
        let aged =
            |(open, _, begin): &(OpenWait, u32, u64)| OpenWait { age_ns: at_ns - begin, ..open.clone() };
        Snapshot {
            at_ns,
            cells: self.cells.clone(),
            below_minimum: BTreeMap::from([((RWSEM, WRITE), self.below)]),
            in_progress: self.open.iter().map(aged).collect(),
            ..Snapshot::default()
        }
    }
}

/// Little's law: wait load × window = the time that an observer sees tasks waiting, in every window and grouping.
#[test]
fn little_holds_in_every_window_of_random_recordings() {
    let cells: Vec<CellName> =
        (1..=6).map(|id| cell(id, 1 + (id - 1) % 3, 1 + id % 3, 7 + (id - 1) / 3)).collect();
    for seed in 1..40 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut model = Model::default();
        let mut state = state(cells.clone());
        let (mut now, mut before, mut waited) = (1000, state.moment.clone(), 0);
        for _ in 0..30 {
            for _ in 0..1 + random.below(60) {
                now += 1;
                model.step(&mut random, now);
            }
            state.absorb(&model.snapshot(now));
            for by in ALL {
                let table = state.since(&before, by);
                holds_together(&table);
                assert_eq!(table.written_off_ns, 0, "seed {seed}, {by:?}");
                assert_eq!(table.totals.load_ns, model.waited_ns - waited, "seed {seed}, {by:?}");
            }
            assert_eq!(state.whole(GroupBy::Kind).totals.load_ns, model.waited_ns);
            (before, waited) = (state.moment.clone(), model.waited_ns);
        }
    }
}

#[test]
fn hostile_sums_do_not_panic() {
    let huge = Totals {
        n: u64::MAX,
        wait_ns: u64::MAX,
        spin_ns: u64::MAX,
        queue_ns: u64::MAX,
        max_ns: u64::MAX,
        interrupted_n: u64::MAX,
        interrupted_ns: u64::MAX,
        outcomes: [u64::MAX; profiler_common::cell::OUTCOMES],
    };
    let mut state = state(vec![cell(1, 1, 1, 7), cell(2, 1, 2, 7)]);
    let mut snapshot = tick(u64::MAX, &[(1, huge), (2, huge)], vec![open(1, u64::MAX), open(9, u64::MAX)]);
    snapshot.other = BTreeMap::from([((255, 255), huge)]);
    snapshot.hists = BTreeMap::from([(1, BTreeMap::from([(9999, u64::MAX), (3, u64::MAX)]))]);
    state.absorb(&snapshot);
    let before = state.moment.clone();
    state.absorb(&tick(0, &[(1, totals(1, 1, 1))], Vec::new()));
    for by in ALL {
        let _ = (state.whole(by), state.since(&before, by));
    }
}
