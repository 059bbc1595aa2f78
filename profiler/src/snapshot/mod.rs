//! What one reading of the maps is: plain, serialisable data with the stamp it was given. Live views, recordings and
//! reports all start from these types. They know no map, no terminal and no clock.

use std::collections::BTreeMap;

use profiler_common::{Cell, Kind, Mode, OwnerKind, cell::OUTCOMES};
use serde::{Deserialize, Serialize};

pub mod read;
pub mod subsystems;

pub use subsystems::Subsystems;

/// Number of a cell, unique within a recording: a cell's place in the map may be reused, its number is not.
pub type CellId = u32;

/// Sums over all CPUs of one cell since the recording began. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Finished waits.
    pub n: u64,
    /// Their total, spinning included.
    pub wait_ns: u64,
    /// Their spinning part.
    pub spin_ns: u64,
    /// Their queued part.
    pub queue_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Waits that ended without the lock.
    pub interrupted_n: u64,
    /// Their total.
    pub interrupted_ns: u64,
    /// Counts by [`profiler_common::cell::Outcome`].
    pub outcomes: [u64; OUTCOMES],
}

impl Totals {
    /// Adds one CPU's sums.
    pub fn add_cell(&mut self, cell: &Cell) {
        self.n += cell.n;
        self.wait_ns += cell.wait_ns;
        self.spin_ns += cell.spin_ns;
        self.queue_ns += cell.queue_ns;
        self.max_ns = self.max_ns.max(cell.max_ns);
        self.interrupted_n += cell.interrupted_n;
        self.interrupted_ns += cell.interrupted_ns;
        for (sum, count) in self.outcomes.iter_mut().zip(cell.outcomes) {
            *sum += u64::from(count);
        }
    }

    /// Adds other sums to these.
    pub fn add(&mut self, other: &Totals) {
        self.n += other.n;
        self.wait_ns += other.wait_ns;
        self.spin_ns += other.spin_ns;
        self.queue_ns += other.queue_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.interrupted_n += other.interrupted_n;
        self.interrupted_ns += other.interrupted_ns;
        for (sum, count) in self.outcomes.iter_mut().zip(other.outcomes) {
            *sum += count;
        }
    }

    /// Whether nothing was ever counted here.
    pub fn is_empty(&self) -> bool {
        self.n == 0 && self.interrupted_n == 0
    }
}

/// A wait that was in progress when the maps were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenWait {
    /// Number of the lock in [`Names::locks`].
    pub lock: u32,
    /// A [`Kind`]'s number.
    pub kind: u8,
    /// A [`Mode`]'s number.
    pub mode: u8,
    /// The waiter's thread.
    pub tid: u32,
    /// The waiter's process.
    pub tgid: u32,
    /// The owner's process at the wait's begin, if `owner_kind` says a task.
    pub owner_tgid: u32,
    /// An [`OwnerKind`]'s number.
    pub owner_kind: u8,
    /// Number of the selector that chose the waiter.
    pub workload: u8,
    /// How long it has lasted, in nanoseconds.
    pub age_ns: u64,
    /// Whether it is known to be queued; else it spins, or only the function's entry was seen.
    pub queued: bool,
}

/// What a BPF program cost since the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramCost {
    /// The program's name, and the function it is attached to.
    pub name: String,
    /// Times it ran; `None` when the kernel's run-time statistics are off.
    pub run_count: Option<u64>,
    /// Nanoseconds it ran.
    pub run_ns: Option<u64>,
    /// Runs that the kernel skipped because the program was already running on that CPU.
    pub recursion_misses: Option<u64>,
    /// Instructions that the verifier walked.
    pub verified_instructions: Option<u32>,
}

/// Our own cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Each attached program.
    pub programs: Vec<ProgramCost>,
    /// CPU time of our own process, user and system, in nanoseconds.
    pub own_cpu_ns: u64,
    /// Bytes of all maps.
    pub map_bytes: u64,
}

/// The maps as they were at one moment. All sums since the recording began; cells that did not change since the last
/// snapshot are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Nanoseconds of the monotonic clock, taken when the reading was done.
    pub at_ns: u64,
    /// Cells that changed.
    pub cells: BTreeMap<CellId, Totals>,
    /// Histograms that changed, by the row's number: bucket → count.
    pub hists: BTreeMap<u32, BTreeMap<u16, u64>>,
    /// Waits that found no cell, by (kind, mode).
    pub other: BTreeMap<(u8, u8), Totals>,
    /// Waits shorter than the minimum, by (kind, mode).
    pub below_minimum: BTreeMap<(u8, u8), Totals>,
    /// Waits in progress.
    pub in_progress: Vec<OpenWait>,
    /// Tallies and losses by name ([`profiler_common::loss::Counter`]).
    pub counters: BTreeMap<String, u64>,
    /// What we cost.
    pub cost: Cost,
    /// The subsystems' own tables.
    pub subsystems: Subsystems,
    /// What was given up, or taken back, to keep the budget since the last snapshot.
    pub budget: Vec<BudgetStep>,
}

/// Something given up, or taken back, to keep our own cost within its budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetStep {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// What, in words.
    pub what: String,
    /// Whether it was given up; else taken back.
    pub shed: bool,
    /// The share of the machine's CPU time that made it so, in per cent.
    pub percent: f64,
}

/// A lock's name, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockName {
    /// Number within the recording.
    pub id: u32,
    /// Opaque name for a lock without one: `lock-17`, or its address with `--raw-addresses`.
    pub lock_id: String,
    /// kallsyms' name of a static lock, with an offset if the lock lies inside.
    pub symbol: Option<String>,
    /// Structure and member: `inode.i_rwsem`; `A or B` when the kernel merged their caches.
    pub class: Option<String>,
    /// Which object of the class, in words that follow the class: `ino 1234 of 8:1`. Untrusted.
    pub instance: Option<String>,
    /// Whether it lies in the kernel's or a module's own data; without symbols that is all that is known.
    pub is_static: bool,
    /// The device (`dev_t`) that the lock belongs to: its file system's, or its buffer's.
    pub device: Option<u32>,
}

/// A stack, innermost frame first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StackName {
    /// Number within the recording; 0 is *not walked*.
    pub id: u32,
    /// `symbol+0x1f`, ` [module]` behind it where there is one; lock code and tracing machinery at the top left out.
    pub frames: Vec<String>,
    /// The function outside the lock code that waited, without offset.
    pub caller: Option<String>,
}

/// What a cell counts: a key with its names' numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellName {
    /// The cell.
    pub id: CellId,
    /// Number of its row's histogram in [`Snapshot::hists`].
    pub row: u32,
    /// Number of the lock.
    pub lock: u32,
    /// Number of the stack, 0 = not walked.
    pub stack: u32,
    /// A [`Kind`]'s number.
    pub kind: u8,
    /// A [`Mode`]'s number.
    pub mode: u8,
    /// The waiting process.
    pub tgid: u32,
    /// The owning process, if `owner_kind` says a task.
    pub owner_tgid: u32,
    /// An [`OwnerKind`]'s number.
    pub owner_kind: u8,
    /// Number of the selector that chose the waiter.
    pub workload: u8,
    /// The device that the key names, as `dev_t`; 0 = none.
    pub device: u32,
}

/// A process's name as the kernel gave it: untrusted bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessName {
    /// The process.
    pub tgid: u32,
    /// Its name, without the padding zeros.
    pub comm: Vec<u8>,
}

/// Names that came up since the last ones. A recording's names only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Names {
    /// Locks.
    pub locks: Vec<LockName>,
    /// Stacks.
    pub stacks: Vec<StackName>,
    /// Cells.
    pub cells: Vec<CellName>,
    /// Processes.
    pub processes: Vec<ProcessName>,
    /// Devices of file systems (`dev_t`), and where they are mounted: untrusted. Those that are new or were moved.
    pub mounts: Vec<(u32, String)>,
    /// Rows that have no complete histogram, with the reason.
    pub rows_without_hist: Vec<(u32, String)>,
}

impl Names {
    /// Whether nothing new came up.
    pub fn is_empty(&self) -> bool {
        self == &Names::default()
    }
}

/// One thing that this host lets us see, or does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// The probe's id.
    pub probe: String,
    /// The metric in the field's words.
    pub metric: String,
    /// The hook used, if any.
    pub hook: Option<String>,
    /// How well it is covered.
    pub state: CoverageState,
    /// Why not, or what is hidden all the same.
    pub reason: Option<String>,
}

/// How well a metric is covered on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoverageState {
    /// Measured in full.
    Full,
    /// Measured, with a blind spot that the reason names.
    Partial,
    /// Not measured here.
    Absent,
    /// Not asked for.
    Off,
}

/// What a recording says of itself before its first snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// The program's version.
    pub version: String,
    /// The host's name: untrusted.
    pub host: String,
    /// Kernel release and version, machine.
    pub kernel: String,
    /// CPUs that can ever be online.
    pub possible_cpus: u32,
    /// CPUs online at the start.
    pub online_cpus: u32,
    /// Wall-clock time of the start, seconds since 1970.
    pub started_unix_s: u64,
    /// Nanoseconds of the monotonic clock when the last program was attached.
    pub attached_ns: u64,
    /// The command line that made it.
    pub command: Vec<String>,
    /// The selectors in force, in words.
    pub selection: Vec<String>,
    /// Waits shorter than this were counted by kind and mode only, in nanoseconds.
    pub min_wait_ns: u64,
    /// Frames walked at most.
    pub stack_depth: u32,
    /// What this host lets us see.
    pub coverage: Vec<Coverage>,
    /// The device that alone is shown (`--device`), as `dev_t`.
    pub device: Option<u32>,
    /// CPUs that are isolated (isolcpus, nohz_full): their buffer LRUs are not used.
    pub isolated_cpus: Vec<u32>,
    /// One buffer lookup in so many is timed; 0 = none.
    pub lru_sampling: u64,
    /// Ticks per second of the kernel's timer, if it could be read.
    pub hz: Option<u64>,
}

/// What a recording says when it ended in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Why it ended: `duration`, `command ended`, `interrupted`.
    pub reason: String,
    /// The traced command's exit code, or 128 + signal.
    pub command_status: Option<i32>,
}

/// The kind with this number, for types that keep numbers.
pub fn kind_name(kind: u8) -> &'static str {
    Kind::from_number(kind).map_or("unknown", Kind::name)
}

/// The mode's letter with this number.
pub fn mode_letter(mode: u8) -> &'static str {
    Mode::from_number(mode).map_or("?", Mode::letter)
}

/// The owner kind with this number.
pub fn owner_kind(kind: u8) -> OwnerKind {
    OwnerKind::from_number(kind)
}
