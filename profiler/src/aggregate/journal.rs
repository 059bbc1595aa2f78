//! What happened to each journal between two moments: handles, why they waited, commits phase by phase, fsync.
//!
//! Must not read files or show anything: differences and shares only.

use std::collections::BTreeMap;

use profiler_common::{
    Kind, device,
    journal::{CAUSE_NAMES, CAUSES, FsyncPart, JournalCounter, SPANS, Span},
};

use super::gather::between;
use super::window::{Moment, NameBook};
use super::{Abilities, Hist, Reading, Reason};
use crate::snapshot::subsystems::{CommitSeen, JournalFill, JournalTotals, OTHER_DEVICES, SpanTotals};

/// The phases of a commit, in their order: the time that its transaction took handles, the time that it waited for the last
/// of them, writing data, writing the log.
pub const PHASES: [&str; 4] = ["running", "locked", "flush", "log"];
/// Operations that kept commits open which are listed.
const MOST_BLAMED: usize = 8;

/// Sums of one journal's commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitSums {
    /// Commits.
    pub n: u64,
    /// By phase: commits whose phase was seen, nanoseconds, and the longest.
    pub phases: [(u64, u64, u64); PHASES.len()],
    /// By operation and line of the handle that left last: commits, and their nanoseconds of being locked.
    pub blamed: BTreeMap<(u32, u32), (u64, u64)>,
    /// The one that was locked longest.
    pub worst: CommitSeen,
}

impl CommitSums {
    /// Takes in one commit.
    pub fn add(&mut self, commit: &CommitSeen) {
        self.n += 1;
        let marks =
            [commit.running_ns, commit.locking_ns, commit.flushing_ns, commit.logging_ns, commit.end_ns];
        for (phase, pair) in self.phases.iter_mut().zip(marks.windows(2)) {
            let (begin, end) = (pair[0], pair[1]);
            if begin != 0 && end >= begin {
                phase.0 += 1;
                phase.1 = phase.1.saturating_add(end - begin);
                phase.2 = phase.2.max(end - begin);
            }
        }
        let locked = locked_ns(commit);
        if is_last_to_leave(commit) {
            let blamed = self.blamed.entry((commit.operation, commit.line)).or_default();
            blamed.0 += 1;
            blamed.1 = blamed.1.saturating_add(locked);
        }
        if locked > locked_ns(&self.worst) {
            self.worst = commit.clone();
        }
    }
}

/// From the last handle's leaving to the tracepoint that ends the lock the commit thread wakes up and switches the revoke table.
const WAKE_UP_NS: u64 = 200_000;

/// Whether the handle that was seen to leave last can have been the last: only those that are timed are seen, and the one that
/// kept the commit open may be another.
fn is_last_to_leave(commit: &CommitSeen) -> bool {
    let after = commit.flushing_ns.saturating_sub(commit.left_ns);
    commit.left_ns != 0
        && commit.left_ns >= commit.locking_ns
        && after <= WAKE_UP_NS.max(locked_ns(commit) / 10)
}

/// How long a commit waited for its last handle, in nanoseconds.
fn locked_ns(commit: &CommitSeen) -> u64 {
    if commit.locking_ns == 0 { 0 } else { commit.flushing_ns.saturating_sub(commit.locking_ns) }
}

/// One timed stretch of handles' lives.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRow {
    /// Its name in JSON.
    pub name: &'static str,
    /// How many.
    pub n: Reading,
    /// Their total in nanoseconds.
    pub total_ns: Reading,
    /// Median in nanoseconds.
    pub p50_ns: Reading,
    /// 99th percentile in nanoseconds.
    pub p99_ns: Reading,
    /// The longest in nanoseconds; since the recording began, to a bucket in a window of it.
    pub max_ns: Reading,
}

/// One phase of the commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseRow {
    /// Its name.
    pub name: &'static str,
    /// Commits whose phase was seen.
    pub n: u64,
    /// Their nanoseconds.
    pub total_ns: u64,
    /// The longest since the recording began.
    pub max_ns: u64,
}

/// Commits that one operation kept open: its handle was the last to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blamed {
    /// ext4's name of the operation.
    pub operation: String,
    /// The line of fs/ext4 that started the handle.
    pub line: u32,
    /// Commits.
    pub n: u64,
    /// Nanoseconds for which they were locked.
    pub locked_ns: u64,
}

/// Outermost handles that stopped, and their blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// How many stopped.
    pub stops: u64,
    /// Synchronous ones.
    pub sync_stops: u64,
    /// Blocks asked for.
    pub requested: u64,
    /// Blocks used.
    pub used: u64,
}

/// fsync by part, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsyncRow {
    /// Calls that ended.
    pub n: u64,
    /// All of them.
    pub total_ns: u64,
    /// Writing data and waiting for it.
    pub write_and_wait_ns: u64,
    /// Waiting for a commit.
    pub commit_wait_ns: u64,
    /// Flushing the device.
    pub flush_ns: u64,
}

/// One journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalRow {
    /// Its file system's device: `8:1`; `others` for those without a place.
    pub device: String,
    /// Where it is mounted: untrusted.
    pub mount: Option<String>,
    /// Outermost handles started.
    pub starts: u64,
    /// Handles restarted, and restarts that failed.
    pub restarts: u64,
    /// Restarts that failed.
    pub failed_restarts: u64,
    /// Of the starts and restarts, those that were not timed.
    pub untimed: u64,
    /// Nested starts.
    pub nested: Reading,
    /// Handles that stopped while handles were timed.
    pub credits: Result<Credits, Reason>,
    /// By [`Span`].
    pub spans: Vec<SpanRow>,
    /// What starts and restarts waited for: name, how many, nanoseconds.
    pub causes: Result<Vec<(&'static str, u64, u64)>, Reason>,
    /// Waits for a commit: how many, nanoseconds.
    pub commit_wait: Result<(u64, u64), Reason>,
    /// Commits that ended.
    pub commits: u64,
    /// Their phases.
    pub phases: Vec<PhaseRow>,
    /// Who kept them open, longest first.
    pub blamed: Result<Vec<Blamed>, Reason>,
    /// fsync.
    pub fsync: Result<FsyncRow, Reason>,
    /// How full the journal was at the window's end.
    pub fill: Option<JournalFill>,
}

impl JournalRow {
    /// Time of all starts and restarts, in nanoseconds, as far as it is told.
    pub fn start_ns(&self) -> Option<u64> {
        let causes = self.causes.as_ref().ok()?;
        Some(causes.iter().fold(0, |sum, (_, _, ns)| sum.saturating_add(*ns)))
    }
}

/// All journals of which something happened.
pub fn journals(names: &NameBook, abilities: &Abilities, prev: &Moment, now: &Moment) -> Vec<JournalRow> {
    let mut devices: Vec<u32> = now.journals.keys().chain(now.commits.keys()).copied().collect();
    devices.sort_unstable();
    devices.dedup();
    devices.retain(|device| names.shows_device(*device));
    let row = |device| journal(&Context { names, abilities, prev, now, device });
    let happened = |row: &JournalRow| {
        [row.starts, row.restarts, row.commits].iter().any(|n| *n > 0)
            || row.credits.as_ref().is_ok_and(|credits| credits.stops > 0)
    };
    devices.into_iter().map(row).filter(happened).collect()
}

struct Context<'a> {
    names: &'a NameBook,
    abilities: &'a Abilities,
    prev: &'a Moment,
    now: &'a Moment,
    device: u32,
}

fn journal(context: &Context<'_>) -> JournalRow {
    let none = JournalTotals::default();
    let now = context.now.journals.get(&context.device).unwrap_or(&none);
    let before = context.prev.journals.get(&context.device).unwrap_or(&none);
    let grown = |counter: JournalCounter| {
        now.counters[counter as usize].saturating_sub(before.counters[counter as usize])
    };
    let abilities = context.abilities;
    let nested = abilities.jbd2_holds.clone().map(|()| grown(JournalCounter::Nested));
    let (commits, phases, blamed) = commits(context);
    JournalRow {
        device: device_name(context.device),
        mount: context.names.mount(context.device),
        starts: grown(JournalCounter::Starts),
        restarts: grown(JournalCounter::Restarts),
        failed_restarts: grown(JournalCounter::FailedRestarts),
        untimed: grown(JournalCounter::Untimed),
        nested: nested.map_or_else(Reading::Missing, |n| scaled(context, n)),
        credits: abilities.jbd2_credits.clone().map(|()| Credits {
            stops: grown(JournalCounter::Stops),
            sync_stops: grown(JournalCounter::SyncStops),
            requested: grown(JournalCounter::Requested),
            used: grown(JournalCounter::Used),
        }),
        spans: SPANS.iter().map(|(span, name)| span_row(context, *span, name, now, before)).collect(),
        causes: abilities.jbd2_starts.clone().map(|()| causes(now, before)),
        commit_wait: abilities.jbd2_waits.clone().map(|()| commit_wait(context)),
        commits,
        phases,
        blamed: abilities.jbd2_holds.clone().map(|()| blamed),
        fsync: abilities.fsync.clone().map(|()| fsync(now, before)),
        fill: context.now.fills.get(&context.device).copied(),
    }
}

/// What was counted while handles were timed, for the whole window.
fn scaled(context: &Context<'_>, n: u64) -> Reading {
    let window_ns = context.now.at_ns.saturating_sub(context.prev.at_ns);
    let timed_ns = context.now.timed_ns.saturating_sub(context.prev.timed_ns);
    if u128::from(timed_ns) * 100 >= u128::from(window_ns) * 99 {
        return Reading::Exact(n);
    }
    // Where nothing was timed this is not asked.
    let all = u128::from(n) * u128::from(window_ns) / u128::from(timed_ns.max(1));
    Reading::Estimate(u64::try_from(all).unwrap_or(u64::MAX))
}

/// `major:minor`, or `others`.
pub fn device_name(device: u32) -> String {
    if device == OTHER_DEVICES {
        return "others".to_string();
    }
    let (major, minor) = device::parts(device);
    format!("{major}:{minor}")
}

fn span_row(
    context: &Context<'_>,
    span: Span,
    name: &'static str,
    now: &JournalTotals,
    before: &JournalTotals,
) -> SpanRow {
    let starts = matches!(span, Span::Start | Span::Reserved | Span::Restart);
    let can = if starts { &context.abilities.jbd2_starts } else { &context.abilities.jbd2_holds };
    if let Err(reason) = can {
        let missing = || Reading::Missing(reason.clone());
        return SpanRow {
            name,
            n: missing(),
            total_ns: missing(),
            p50_ns: missing(),
            p99_ns: missing(),
            max_ns: missing(),
        };
    }
    let (now, before) = (&now.spans[span as usize], &before.spans[span as usize]);
    let (hist, n) = (hist_between(now, before), now.n.saturating_sub(before.n));
    let risen = context.prev.origin || now.max_ns > before.max_ns;
    SpanRow {
        name,
        n: Reading::Exact(n),
        total_ns: Reading::Exact(now.total_ns.saturating_sub(before.total_ns)),
        p50_ns: hist.percentile(50),
        p99_ns: hist.percentile(99),
        max_ns: match hist.highest() {
            None => Reading::TooFew,
            Some(_) if risen => Reading::Exact(now.max_ns),
            Some(highest) => Reading::Estimate(highest),
        },
    }
}

fn hist_between(now: &SpanTotals, before: &SpanTotals) -> Hist {
    let (mut hist, mut earlier) = (Hist::default(), Hist::default());
    hist.replace(&now.hist);
    earlier.replace(&before.hist);
    hist.since(Some(&earlier))
}

fn causes(now: &JournalTotals, before: &JournalTotals) -> Vec<(&'static str, u64, u64)> {
    let of = |cause: usize| {
        let n = now.cause_n[cause].saturating_sub(before.cause_n[cause]);
        (CAUSE_NAMES[cause], n, now.cause_ns[cause].saturating_sub(before.cause_ns[cause]))
    };
    (0..CAUSES).map(of).collect()
}

/// Waits for this journal's commits, whoever waited and wherever.
fn commit_wait(context: &Context<'_>) -> (u64, u64) {
    let wanted = format!("of {}", device_name(context.device));
    let mut sum = (0u64, 0u64);
    for (id, totals) in &context.now.cells {
        let cell = context.names.cell(*id);
        let ours =
            || context.names.lock(cell.lock).and_then(|lock| lock.instance.as_deref()) == Some(&wanted);
        if cell.kind == Kind::Commit as u8 && ours() {
            let grown = between(totals, context.prev.cells.get(id));
            sum = (sum.0.saturating_add(grown.n), sum.1.saturating_add(grown.wait_ns));
        }
    }
    sum
}

fn commits(context: &Context<'_>) -> (u64, Vec<PhaseRow>, Vec<Blamed>) {
    let none = CommitSums::default();
    let now = context.now.commits.get(&context.device).unwrap_or(&none);
    let before = context.prev.commits.get(&context.device).unwrap_or(&none);
    let phases = PHASES.iter().zip(now.phases.iter().zip(&before.phases));
    let phases = phases.map(|(name, (now, before))| PhaseRow {
        name,
        n: now.0.saturating_sub(before.0),
        total_ns: now.1.saturating_sub(before.1),
        max_ns: now.2,
    });
    let blamed = now.blamed.iter().map(|(key, now)| {
        let before = before.blamed.get(key).copied().unwrap_or_default();
        Blamed {
            operation: operation(key.0),
            line: key.1,
            n: now.0.saturating_sub(before.0),
            locked_ns: now.1.saturating_sub(before.1),
        }
    });
    let mut blamed: Vec<Blamed> = blamed.filter(|blamed| blamed.n > 0).collect();
    blamed.sort_by(|a, b| b.locked_ns.cmp(&a.locked_ns).then(a.line.cmp(&b.line)));
    blamed.truncate(MOST_BLAMED);
    (now.n.saturating_sub(before.n), phases.collect(), blamed)
}

/// ext4's types of handles (fs/ext4/ext4_jbd2.h, EXT4_HT_*); other file systems' are numbers.
const OPERATIONS: [&str; 12] = [
    "misc",
    "inode",
    "write page",
    "map blocks",
    "dir",
    "truncate",
    "quota",
    "resize",
    "migrate",
    "move extents",
    "xattr",
    "ext convert",
];

fn operation(number: u32) -> String {
    OPERATIONS.get(number as usize).map_or_else(|| format!("type {number}"), ToString::to_string)
}

fn fsync(now: &JournalTotals, before: &JournalTotals) -> FsyncRow {
    let of = |part: FsyncPart| now.fsync[part as usize].saturating_sub(before.fsync[part as usize]);
    FsyncRow {
        n: of(FsyncPart::Calls),
        total_ns: of(FsyncPart::Total),
        write_and_wait_ns: of(FsyncPart::WriteAndWait),
        commit_wait_ns: of(FsyncPart::CommitWait),
        flush_ns: of(FsyncPart::Flush),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(locking_ns: u64, flushing_ns: u64, line: u32) -> CommitSeen {
        CommitSeen {
            running_ns: 100,
            locking_ns,
            flushing_ns,
            logging_ns: flushing_ns + 5,
            end_ns: flushing_ns + 50,
            left_ns: if line == 0 { 0 } else { flushing_ns },
            operation: 4,
            line,
            ..CommitSeen::default()
        }
    }

    #[test]
    fn a_commits_phases_lie_between_its_marks_and_the_last_to_leave_is_blamed() {
        let mut sums = CommitSums::default();
        sums.add(&commit(1100, 1130, 77));
        sums.add(&commit(1200, 1300, 77));
        sums.add(&commit(1000, 1001, 0));
        assert_eq!(sums.phases[0], (3, 1000 + 1100 + 900, 1100));
        assert_eq!(sums.phases[1], (3, 30 + 100 + 1, 100));
        assert_eq!((sums.phases[2], sums.phases[3]), ((3, 15, 5), (3, 135, 45)));
        assert_eq!(sums.blamed, BTreeMap::from([((4, 77), (2, 130))]));
        assert_eq!(sums.worst.locking_ns, 1200);
        // Somebody else, who was not seen, left long after the last who was.
        let mut early = commit(1_000_000, 9_000_000, 99);
        early.left_ns = 1_000_100;
        assert!(!is_last_to_leave(&early));
        // Its begin was not seen: the phases that were are counted.
        sums.add(&CommitSeen { end_ns: 9, ..CommitSeen::default() });
        assert_eq!((sums.n, sums.phases[0].0, sums.phases[3].0), (4, 3, 3));
    }

    #[test]
    fn operations_have_ext4s_names() {
        assert_eq!((operation(4).as_str(), operation(99).as_str()), ("dir", "type 99"));
        assert_eq!(device_name(device::number(7, 3)), "7:3");
        assert_eq!(device::parse("7:3"), Some(device::number(7, 3)));
        assert_eq!((device::parse("/mnt"), device::parse("7:x")), (None, None));
        assert_eq!(device_name(OTHER_DEVICES), "others");
    }
}
