//! What a table is made of. Data only; nothing here computes more than a sum.

use std::borrow::Cow;

use profiler_common::{cell::OUTCOMES, cell::Outcome};

use crate::snapshot::BudgetStep;

use super::{GroupBy, Hist, JournalRow, LruTable};

/// Why a value is missing, in words for the user.
pub type Reason = Cow<'static, str>;

/// A value that may be missing. Never 0 for *not measured*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Measured.
    Exact(u64),
    /// Estimated: printed with `≈`.
    Estimate(u64),
    /// Too few waits to say: printed `–`.
    TooFew,
    /// Not measured here, and why.
    Missing(Reason),
}

impl Reading {
    /// The number, if there is one.
    pub fn value(&self) -> Option<u64> {
        match self {
            Reading::Exact(value) | Reading::Estimate(value) => Some(*value),
            Reading::TooFew | Reading::Missing(_) => None,
        }
    }

    /// Why there is none.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Reading::Missing(reason) => Some(reason),
            _ => None,
        }
    }
}

/// What is additive over rows. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Waits that began in the window: those that ended, and those in progress at its end, without those in progress
    /// at its begin.
    pub contentions: u64,
    /// Waits that ended with the lock taken.
    pub finished: u64,
    /// Their total.
    pub wait_ns: u64,
    /// Waits that ended without the lock (metric M-08).
    pub interrupted_n: u64,
    /// Their total.
    pub interrupted_ns: u64,
    /// Time that tasks spent waiting within the window, whether their waits ended or not: the censoring rule. Divided
    /// by the window it is the mean number of waiting tasks (Little's law).
    pub load_ns: u64,
}

impl Sums {
    /// Adds others to these; stops at the largest number rather than wrap.
    pub fn add(&mut self, other: &Sums) {
        let add = |to: &mut u64, what: u64| *to = to.saturating_add(what);
        add(&mut self.contentions, other.contentions);
        add(&mut self.finished, other.finished);
        add(&mut self.wait_ns, other.wait_ns);
        add(&mut self.interrupted_n, other.interrupted_n);
        add(&mut self.interrupted_ns, other.interrupted_ns);
        add(&mut self.load_ns, other.load_ns);
    }

    /// Mean number of waiting tasks over a window of so many nanoseconds.
    pub fn wait_load(&self, window_ns: u64) -> f64 {
        if window_ns == 0 { 0.0 } else { self.load_ns as f64 / window_ns as f64 }
    }
}

/// Waits in progress at the window's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InProgress {
    /// How many.
    pub n: u64,
    /// The sum of their ages, in nanoseconds.
    pub elapsed_ns: u64,
    /// The oldest one's age, in nanoseconds.
    pub max_age_ns: u64,
}

impl InProgress {
    /// Takes in one wait of this age in nanoseconds.
    pub fn add(&mut self, age_ns: u64) {
        self.n += 1;
        self.elapsed_ns = self.elapsed_ns.saturating_add(age_ns);
        self.max_age_ns = self.max_age_ns.max(age_ns);
    }
}

/// Counts by [`Outcome`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts(pub [u64; OUTCOMES]);

impl OutcomeCounts {
    /// How many came out like this.
    pub fn get(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Readers and writers that gave up on a signal.
    pub fn interrupted(&self) -> u64 {
        self.get(Outcome::InterruptedReader).saturating_add(self.get(Outcome::InterruptedWriter))
    }

    /// Writers that got the lock.
    pub fn writers(&self) -> u64 {
        self.get(Outcome::Spun).saturating_add(self.get(Outcome::QueuedWriter))
    }
}

/// Who held the lock when a wait began.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A task of this process.
    Process(u32),
    /// Readers: never one task, since a reader-owned rwsem names an arbitrary one.
    Readers,
    /// The lock keeps an owner, but it could not be read.
    Unknown,
}

/// Finished waits that met one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerShare {
    /// The owner.
    pub owner: Owner,
    /// Its process's name: untrusted bytes, empty if unknown.
    pub comm: Vec<u8>,
    /// Whether it was running on a CPU; `None` where it is not one task.
    pub on_cpu: Option<bool>,
    /// How many.
    pub n: u64,
    /// Their total in nanoseconds.
    pub wait_ns: u64,
}

/// Finished waits of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessShare {
    /// The process.
    pub tgid: u32,
    /// Its name: untrusted bytes, empty if unknown.
    pub comm: Vec<u8>,
    /// How many.
    pub n: u64,
    /// Their total in nanoseconds.
    pub wait_ns: u64,
}

/// Finished waits that came along one stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackShare {
    /// Innermost first; empty = not walked.
    pub frames: Vec<String>,
    /// How many.
    pub n: u64,
    /// Their total in nanoseconds.
    pub wait_ns: u64,
}

/// One line of a table. What a grouping does not keep apart reads `None` (names) or `*` (kind, mode).
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// How the lock, or the group, is shown. A `~` before it marks a guess: the function that waited.
    pub name: String,
    /// The lock's class, as far as it is known: structure and member, or a static lock's symbol.
    pub class: Option<String>,
    /// Which one of the class; unknown until identity exists.
    pub instance: Option<String>,
    /// Opaque name of the lock.
    pub lock_id: Option<String>,
    /// The kind's word.
    pub kind: &'static str,
    /// The mode's letter.
    pub mode: &'static str,
    /// The function outside the lock code that waited.
    pub caller: Option<String>,
    /// Number of the selector that chose the waiters.
    pub workload: Option<u8>,
    /// What adds up.
    pub sums: Sums,
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// Waits in progress at its end.
    pub in_progress: InProgress,
    /// The longest finished wait, in nanoseconds.
    pub max_ns: Reading,
    /// Median of the finished waits, in nanoseconds.
    pub p50_ns: Reading,
    /// Their 99th percentile, in nanoseconds.
    pub p99_ns: Reading,
    /// Their spinning part, in nanoseconds.
    pub spin_ns: Reading,
    /// Their queued part, in nanoseconds.
    pub queue_ns: Reading,
    /// How waits at a rwsem came out, or why that is not known.
    pub outcomes: Result<OutcomeCounts, Reason>,
    /// Readers that stole the lock while others waited (metric E-3).
    pub steals_past_waiters: Reading,
    /// Queued writers that got the lock by its handoff (metric E-4).
    pub handed_off: Reading,
    /// Writers that waited at least the kernel's handoff timeout (metric E-7).
    pub handoff_class: Reading,
    /// Who held the lock, most waited for first. Locks that keep no owner have none.
    pub owners: Vec<OwnerShare>,
    /// Who waited, longest first.
    pub processes: Vec<ProcessShare>,
    /// From where, longest first.
    pub stacks: Vec<StackShare>,
    /// The distribution behind the quantiles, as far as it is complete.
    pub hist: Hist,
}

impl Row {
    /// Mean number of waiting tasks.
    pub fn wait_load(&self) -> f64 {
        self.sums.wait_load(self.window_ns)
    }

    /// Contentions a second; `None` for an empty window.
    pub fn contentions_per_s(&self) -> Option<f64> {
        (self.window_ns > 0).then(|| self.sums.contentions as f64 * 1e9 / self.window_ns as f64)
    }

    /// The spinning part of the finished waits, in per cent.
    pub fn spin_percent(&self) -> Option<f64> {
        let spin = self.spin_ns.value()?;
        (self.sums.wait_ns > 0).then(|| spin as f64 * 100.0 / self.sums.wait_ns as f64)
    }
}

/// Waits that have no row, of one kind and mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The kind's word.
    pub kind: &'static str,
    /// The mode's letter.
    pub mode: &'static str,
    /// What they add up to.
    pub sums: Sums,
    /// The longest since the recording began, in nanoseconds.
    pub max_ns: u64,
    /// How they came out, for rwsems; all 0 for other kinds.
    pub outcomes: OutcomeCounts,
}

/// A wait in progress at the window's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// How the lock is shown.
    pub name: String,
    /// The lock's class, if known.
    pub class: Option<String>,
    /// Opaque name of the lock.
    pub lock_id: Option<String>,
    /// The kind's word.
    pub kind: &'static str,
    /// The mode's letter.
    pub mode: &'static str,
    /// Number of the selector that chose the waiter.
    pub workload: u8,
    /// The waiter's thread.
    pub tid: u32,
    /// The waiter's process.
    pub tgid: u32,
    /// Its name: untrusted bytes, empty if unknown.
    pub comm: Vec<u8>,
    /// Who held the lock when the wait began; `None` where the lock keeps no owner.
    pub owner: Option<Owner>,
    /// The owner's process's name: untrusted bytes.
    pub owner_comm: Vec<u8>,
    /// Whether the owner was running on a CPU.
    pub owner_on_cpu: Option<bool>,
    /// How long it has lasted, in nanoseconds.
    pub age_ns: u64,
    /// Whether it is known to be queued.
    pub queued: bool,
}

/// What one BPF program cost within the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramShare {
    /// The program and its hook.
    pub name: String,
    /// Times it ran, if the kernel counted.
    pub run_count: Option<u64>,
    /// Nanoseconds it ran, if the kernel counted.
    pub run_ns: Option<u64>,
    /// Runs that the kernel skipped, if it can tell.
    pub recursion_misses: Option<u64>,
    /// Instructions that the verifier walked.
    pub verified_instructions: Option<u32>,
}

/// What lockscope cost within the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnCost {
    /// CPU time of our own process, in nanoseconds.
    pub own_cpu_ns: u64,
    /// That as a share of one CPU, in per cent; `None` for an empty window.
    pub own_cpu_percent: Option<f64>,
    /// Times that BPF programs ran, if the kernel counted.
    pub bpf_runs: Option<u64>,
    /// Nanoseconds that they ran, if the kernel counted.
    pub bpf_ns: Option<u64>,
    /// Runs that the kernel skipped, if it can tell.
    pub recursion_misses: Option<u64>,
    /// Bytes of all maps.
    pub map_bytes: u64,
    /// Each program.
    pub programs: Vec<ProgramShare>,
}

impl OwnCost {
    /// Nanoseconds of BPF a run, if the kernel counted any.
    pub fn bpf_ns_per_run(&self) -> Option<f64> {
        match (self.bpf_ns, self.bpf_runs) {
            (Some(ns), Some(runs)) if runs > 0 => Some(ns as f64 / runs as f64),
            _ => None,
        }
    }
}

/// What happened in a window.
///
/// Invariant for [`Sums`]: rows + other + below minimum = totals, and for `load_ns` the same less `written_off_ns`.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What the rows are.
    pub by: GroupBy,
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// Whether the window is the whole recording.
    pub whole: bool,
    /// Highest wait load first.
    pub rows: Vec<Row>,
    /// The rows by kind and mode.
    pub by_kind: Vec<Row>,
    /// The rows of rwsems by lock and mode.
    pub rwsems: Vec<Row>,
    /// Waits that found no cell.
    pub other: Vec<Bucket>,
    /// Waits shorter than the minimum.
    pub below_minimum: Vec<Bucket>,
    /// Waits in progress at the window's end, oldest first.
    pub in_progress: Vec<Open>,
    /// What is missing, by reason, zeros included.
    pub losses: Vec<(String, u64)>,
    /// The other counters.
    pub tallies: Vec<(String, u64)>,
    /// Everything together.
    pub totals: Sums,
    /// Elapsed time that counted in an earlier window and belongs to a wait that vanished without an end (its task is
    /// gone, its end was lost), in nanoseconds.
    pub written_off_ns: u64,
    /// The same for contentions.
    pub written_off: u64,
    /// What lockscope cost.
    pub own_cost: OwnCost,
    /// What the selected device leaves out.
    pub other_devices: Sums,
    /// What was given up, or taken back, to keep the budget within the window.
    pub budget: Vec<BudgetStep>,
    /// The part of the window in which handles and buffer lookups were timed, in nanoseconds.
    pub timed_ns: u64,
    /// jbd2's journals, or why nothing of them is measured.
    pub journals: Result<Vec<JournalRow>, Reason>,
    /// The LRU of buffer heads, or why nothing of it is measured.
    pub bh_lru: Result<LruTable, Reason>,
}

impl Table {
    /// Everything lost, whatever the reason.
    pub fn lost(&self) -> u64 {
        self.losses.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Mean number of waiting tasks, all locks together.
    pub fn wait_load(&self) -> f64 {
        self.totals.wait_load(self.window_ns)
    }
}
