//! The state that snapshots add up to, and the names that go with it. A window lies between two moments.
//!
//! Must not compute rates: differences are taken in [`super::delta`] only.

use std::collections::{BTreeMap, HashMap};

use super::journal::CommitSums;
use super::{Abilities, GroupBy, Hist, Meta, Table, delta};
use crate::snapshot::subsystems::{JournalFill, JournalTotals, LruTotals, Subsystems};
use crate::snapshot::{
    BudgetStep, CellId, CellName, Cost, LockName, Names, OpenWait, Snapshot, StackName, Totals,
};

/// All sums as they were at one moment, since the recording began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Whether this is the recording's begin: nothing was counted before it.
    pub origin: bool,
    /// Sums of each cell.
    pub cells: BTreeMap<CellId, Totals>,
    /// Histograms by row number.
    pub hists: BTreeMap<u32, Hist>,
    /// Waits without a cell, by (kind, mode).
    pub other: BTreeMap<(u8, u8), Totals>,
    /// Waits shorter than the minimum, by (kind, mode).
    pub below_minimum: BTreeMap<(u8, u8), Totals>,
    /// Waits in progress.
    pub in_progress: Vec<OpenWait>,
    /// Losses and tallies.
    pub counters: BTreeMap<String, u64>,
    /// What we cost.
    pub cost: Cost,
    /// What was given up, or taken back, to keep the budget so far.
    pub budget: Vec<BudgetStep>,
    /// How long handles and buffer lookups were timed so far.
    pub timed_ns: u64,
    /// Journals by their file system's device.
    pub journals: BTreeMap<u32, JournalTotals>,
    /// Their commits.
    pub commits: BTreeMap<u32, CommitSums>,
    /// How full they were last.
    pub fills: BTreeMap<u32, JournalFill>,
    /// Buffer lookups by (CPU, device).
    pub lru: BTreeMap<(u32, u32), LruTotals>,
    /// Times that a CPU's LRU was emptied.
    pub lru_emptied: BTreeMap<u32, u64>,
    /// Buffers that the LRUs held last.
    pub lru_pinned: Option<u64>,
}

impl Moment {
    /// The recording's begin.
    pub fn origin(at_ns: u64) -> Moment {
        Moment { at_ns, origin: true, ..Moment::default() }
    }

    /// Moves on to the moment of this snapshot.
    pub fn absorb(&mut self, snapshot: &Snapshot) {
        self.origin = false;
        self.at_ns = snapshot.at_ns;
        self.cells.extend(snapshot.cells.iter());
        for (row, counts) in &snapshot.hists {
            self.hists.entry(*row).or_default().replace(counts);
        }
        self.other.extend(snapshot.other.iter());
        self.below_minimum.extend(snapshot.below_minimum.iter());
        self.in_progress.clone_from(&snapshot.in_progress);
        self.counters.extend(snapshot.counters.iter().map(|(name, n)| (name.clone(), *n)));
        self.cost.clone_from(&snapshot.cost);
        self.budget.extend(snapshot.budget.iter().cloned());
        self.absorb_subsystems(&snapshot.subsystems);
    }
}

impl Moment {
    fn absorb_subsystems(&mut self, read: &Subsystems) {
        self.timed_ns = read.timed_ns;
        self.journals.extend(read.journals.iter().map(|(device, totals)| (*device, totals.clone())));
        for commit in &read.commits {
            self.commits.entry(commit.device).or_default().add(commit);
        }
        self.fills.clone_from(&read.fills);
        self.lru.extend(read.lru.iter());
        self.lru_emptied.extend(read.lru_emptied.iter());
        self.lru_pinned = read.lru_pinned;
    }
}

/// Whether a lock is waited for from one place only: then a wait in progress, which has no stack yet, belongs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callers {
    One(Option<u32>),
    Several,
}

/// Kind, mode, lock and workload: what a wait in progress is known by.
type Place = (u8, u8, u32, u8);

/// Names by number.
#[derive(Clone, Debug, Default)]
pub struct NameBook {
    locks: HashMap<u32, LockName>,
    stacks: HashMap<u32, StackName>,
    cells: HashMap<CellId, CellName>,
    processes: HashMap<u32, Vec<u8>>,
    without_hist: HashMap<u32, String>,
    mounts: BTreeMap<u32, String>,
    isolated: Vec<u32>,
    device: Option<u32>,
    lru_sampling: u64,
    callers: Vec<String>,
    caller_numbers: HashMap<String, u32>,
    places: HashMap<Place, Callers>,
}

/// Stands for a cell whose name never came, in a damaged file: its waits must still be counted.
const UNNAMED: CellName = CellName {
    id: 0,
    row: u32::MAX,
    lock: u32::MAX,
    stack: 0,
    kind: u8::MAX,
    mode: u8::MAX,
    tgid: 0,
    owner_tgid: 0,
    owner_kind: 0,
    workload: 0,
    device: 0,
};

impl NameBook {
    /// Takes in names. A process's newest name wins, as after an exec.
    pub fn learn(&mut self, names: &Names) {
        self.locks.extend(names.locks.iter().map(|lock| (lock.id, lock.clone())));
        self.processes.extend(names.processes.iter().map(|process| (process.tgid, process.comm.clone())));
        self.mounts.extend(names.mounts.iter().cloned());
        self.without_hist.extend(names.rows_without_hist.iter().cloned());
        for stack in &names.stacks {
            self.number_caller(stack);
            self.stacks.insert(stack.id, stack.clone());
        }
        for cell in &names.cells {
            self.note_place(cell);
            self.cells.insert(cell.id, cell.clone());
        }
    }

    /// Takes in what the recording's head says of CPUs.
    pub fn learn_host(&mut self, meta: &Meta) {
        self.isolated.clone_from(&meta.isolated_cpus);
        self.device = meta.device;
        self.lru_sampling = meta.lru_sampling;
    }

    /// Whether a lock is one of those that are shown: all, or those of the selected device.
    pub fn shows_lock(&self, lock: u32) -> bool {
        self.device.is_none_or(|device| self.lock(lock).and_then(|lock| lock.device) == Some(device))
    }

    /// Whether this device is one of those that are shown.
    pub fn shows_device(&self, device: u32) -> bool {
        self.device.is_none_or(|selected| selected == device)
    }

    /// Where a device is mounted: untrusted.
    pub fn mount(&self, device: u32) -> Option<String> {
        self.mounts.get(&device).cloned()
    }

    /// Whether a CPU is isolated.
    pub fn is_isolated(&self, cpu: u32) -> bool {
        self.isolated.contains(&cpu)
    }

    /// One buffer lookup in so many is timed; 0 = none.
    pub fn lru_sampling(&self) -> u64 {
        self.lru_sampling
    }

    fn number_caller(&mut self, stack: &StackName) {
        let Some(caller) = &stack.caller else { return };
        if !self.caller_numbers.contains_key(caller) {
            self.caller_numbers.insert(caller.clone(), self.callers.len() as u32);
            self.callers.push(caller.clone());
        }
    }

    fn note_place(&mut self, cell: &CellName) {
        let caller = self.caller_number(cell.stack);
        let place = (cell.kind, cell.mode, cell.lock, cell.workload);
        let seen = self.places.entry(place).or_insert(Callers::One(caller));
        if *seen != Callers::One(caller) {
            *seen = Callers::Several;
        }
    }

    /// Number of the function outside the lock code of this stack.
    pub fn caller_number(&self, stack: u32) -> Option<u32> {
        self.caller_numbers.get(self.stacks.get(&stack)?.caller.as_ref()?).copied()
    }

    /// The caller with this number.
    pub fn caller(&self, number: u32) -> Option<&str> {
        self.callers.get(number as usize).map(String::as_str)
    }

    /// From where an open wait most likely came: the only place known, else nowhere.
    pub fn caller_of_open(&self, open: &OpenWait) -> Option<u32> {
        match self.places.get(&(open.kind, open.mode, open.lock, open.workload)) {
            Some(Callers::One(caller)) => *caller,
            Some(Callers::Several) | None => None,
        }
    }

    /// What a cell counts.
    pub fn cell(&self, id: CellId) -> &CellName {
        self.cells.get(&id).unwrap_or(&UNNAMED)
    }

    /// All cells.
    pub fn cells(&self) -> impl Iterator<Item = &CellName> {
        self.cells.values()
    }

    /// The lock with this number.
    pub fn lock(&self, id: u32) -> Option<&LockName> {
        self.locks.get(&id)
    }

    /// The frames of this stack, innermost first; empty if unknown.
    pub fn frames(&self, stack: u32) -> Vec<String> {
        self.stacks.get(&stack).map(|stack| stack.frames.clone()).unwrap_or_default()
    }

    /// A process's name, untrusted bytes; empty if unknown.
    pub fn comm(&self, tgid: u32) -> Vec<u8> {
        self.processes.get(&tgid).cloned().unwrap_or_default()
    }

    /// Why the row with this number has no complete histogram.
    pub fn without_hist(&self, row: u32) -> Option<&str> {
        self.without_hist.get(&row).map(String::as_str)
    }
}

/// Everything known up to now.
#[derive(Clone, Debug)]
pub struct State {
    /// The names.
    pub names: NameBook,
    /// The sums; clone it to keep the begin of a window.
    pub moment: Moment,
    abilities: Abilities,
    origin: Moment,
}

impl State {
    /// The state before the first snapshot.
    pub fn new(meta: &Meta) -> State {
        let origin = Moment::origin(meta.attached_ns);
        let abilities = Abilities::of(&meta.coverage);
        let mut names = NameBook::default();
        names.learn_host(meta);
        State { names, moment: origin.clone(), abilities, origin }
    }

    /// Takes in names.
    pub fn learn(&mut self, names: &Names) {
        self.names.learn(names);
    }

    /// Takes in a snapshot, after its names.
    pub fn absorb(&mut self, snapshot: &Snapshot) {
        self.moment.absorb(snapshot);
    }

    /// What happened since an earlier moment.
    pub fn since(&self, earlier: &Moment, by: GroupBy) -> Table {
        delta(&self.names, &self.abilities, earlier, &self.moment, by)
    }

    /// What happened since the recording began.
    pub fn whole(&self, by: GroupBy) -> Table {
        self.since(&self.origin, by)
    }
}
