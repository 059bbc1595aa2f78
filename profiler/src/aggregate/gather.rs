//! Gathers what changed between two moments into rows: finished waits from cells, elapsed time from waits in progress.
//!
//! Must not show, sort or round anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use profiler_common::Kind;

use crate::snapshot::{CellName, OpenWait, Totals};

use super::settle::settle;
use super::window::{Moment, NameBook};
use super::{GroupBy, InProgress, RowKey};

/// Waits and their nanoseconds.
pub type Share = (u64, u64);

/// A row in the making.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// What finished in the window; `max_ns` is the longest since the recording began.
    pub ended: Totals,
    /// The longest among cells whose longest grew in the window, in nanoseconds.
    pub risen_ns: u64,
    /// Waits that began; negative while a wait in progress left for another row.
    pub contentions: i128,
    /// Time waited within the window; may be negative for the same reason.
    pub load_ns: i128,
    /// Waits in progress at the window's end.
    pub in_progress: InProgress,
    /// Finished waits by (owner kind, owner's process).
    pub owners: BTreeMap<(u8, u32), Share>,
    /// Finished waits by process.
    pub processes: BTreeMap<u32, Share>,
    /// Finished waits by stack.
    pub stacks: BTreeMap<u32, Share>,
    /// Numbers of its histograms.
    pub hists: BTreeSet<u32>,
}

/// All rows in the making.
pub type Rows = BTreeMap<RowKey, Gathered>;

/// What grew between two sums. Sums of a damaged file may fall: that reads as nothing.
pub fn between(now: &Totals, before: Option<&Totals>) -> Totals {
    let Some(before) = before else { return *now };
    let mut grown = *now;
    let less = |to: &mut u64, by: u64| *to = to.saturating_sub(by);
    less(&mut grown.n, before.n);
    less(&mut grown.wait_ns, before.wait_ns);
    less(&mut grown.spin_ns, before.spin_ns);
    less(&mut grown.queue_ns, before.queue_ns);
    less(&mut grown.interrupted_n, before.interrupted_n);
    less(&mut grown.interrupted_ns, before.interrupted_ns);
    for (to, by) in grown.outcomes.iter_mut().zip(before.outcomes) {
        less(to, by);
    }
    grown
}

/// Adds sums, stopping at the largest number: [`Totals::add`] is for trusted ones.
pub fn add_totals(to: &mut Totals, more: &Totals) {
    let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
    add(&mut to.n, more.n);
    add(&mut to.wait_ns, more.wait_ns);
    add(&mut to.spin_ns, more.spin_ns);
    add(&mut to.queue_ns, more.queue_ns);
    to.max_ns = to.max_ns.max(more.max_ns);
    add(&mut to.interrupted_n, more.interrupted_n);
    add(&mut to.interrupted_ns, more.interrupted_ns);
    for (to, more) in to.outcomes.iter_mut().zip(more.outcomes) {
        add(to, more);
    }
}

/// Waits that ended.
pub fn ended(totals: &Totals) -> i128 {
    i128::from(totals.n) + i128::from(totals.interrupted_n)
}

/// Time of the waits that ended. Interrupted ones are in no quantile and in no `wait_ns`, but their tasks did wait:
/// without them the mean number of waiting tasks would fall behind what a look at the tasks shows.
pub fn ended_ns(totals: &Totals) -> i128 {
    i128::from(totals.wait_ns) + i128::from(totals.interrupted_ns)
}

/// Gathers the window's rows. Not settled yet.
pub fn gather(by: GroupBy, names: &NameBook, prev: &Moment, now: &Moment) -> Rows {
    let mut rows = Rows::new();
    for (id, totals) in &now.cells {
        let before = prev.cells.get(id);
        let grown = between(totals, before);
        let cell = names.cell(*id);
        if !grown.is_empty() && is_wait(cell) && names.shows_lock(cell.lock) {
            let row = rows.entry(RowKey::of_cell(by, cell, names)).or_default();
            row.take(cell, &grown, before.map_or(0, |before| before.max_ns));
        }
    }
    for open in prev.in_progress.iter().filter(|open| names.shows_lock(open.lock)) {
        rows.entry(RowKey::of_open(by, open, names)).or_default().forget(open);
    }
    for open in now.in_progress.iter().filter(|open| names.shows_lock(open.lock)) {
        rows.entry(RowKey::of_open(by, open, names)).or_default().see(open);
    }
    rows
}

/// Samples of what is no wait are counted in cells as well, and stand in tables of their own.
pub fn is_wait(cell: &CellName) -> bool {
    Kind::from_number(cell.kind).is_none_or(Kind::is_wait)
}

impl Gathered {
    fn take(&mut self, cell: &CellName, grown: &Totals, max_before_ns: u64) {
        add_totals(&mut self.ended, grown);
        if grown.max_ns > max_before_ns {
            self.risen_ns = self.risen_ns.max(grown.max_ns);
        }
        self.contentions += ended(grown);
        self.load_ns += ended_ns(grown);
        self.hists.insert(cell.row);
        if grown.n > 0 {
            credit(self.owners.entry((cell.owner_kind, cell.owner_tgid)).or_default(), grown);
            credit(self.processes.entry(cell.tgid).or_default(), grown);
            credit(self.stacks.entry(cell.stack).or_default(), grown);
        }
    }

    /// An open wait's elapsed part counted in the window before this one.
    fn forget(&mut self, open: &OpenWait) {
        self.contentions -= 1;
        self.load_ns -= i128::from(open.age_ns);
    }

    fn see(&mut self, open: &OpenWait) {
        self.contentions += 1;
        self.load_ns += i128::from(open.age_ns);
        self.in_progress.add(open.age_ns);
    }

    /// Whether there is anything to show.
    pub fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.in_progress.n == 0 && self.contentions == 0 && self.load_ns == 0
    }
}

fn credit(share: &mut Share, grown: &Totals) {
    share.0 = share.0.saturating_add(grown.n);
    share.1 = share.1.saturating_add(grown.wait_ns);
}

/// What no row of a place could pay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Waits.
    pub contentions: i128,
    /// Nanoseconds.
    pub load_ns: i128,
}

/// Settles the rows of each lock among themselves. The debts left are returned by (kind, mode).
pub fn settle_rows(rows: &mut Rows) -> BTreeMap<(Option<u8>, Option<u8>), Debt> {
    let mut places: HashMap<RowKey, Vec<RowKey>> = HashMap::new();
    for key in rows.keys() {
        places.entry(key.place()).or_default().push(*key);
    }
    let mut debts = BTreeMap::<_, Debt>::new();
    for (place, members) in places {
        let debt = debts.entry((place.kind, place.mode)).or_default();
        debt.contentions += settle_by(rows, &members, |row| &mut row.contentions);
        debt.load_ns += settle_by(rows, &members, |row| &mut row.load_ns);
    }
    debts
}

fn settle_by(rows: &mut Rows, members: &[RowKey], part: impl Fn(&mut Gathered) -> &mut i128) -> i128 {
    let mut values: Vec<i128> =
        members.iter().filter_map(|key| rows.get_mut(key).map(|row| *part(row))).collect();
    let debt = settle(&mut values);
    for (key, value) in members.iter().zip(values) {
        if let Some(row) = rows.get_mut(key) {
            *part(row) = value;
        }
    }
    debt
}
