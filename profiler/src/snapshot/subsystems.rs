//! What is read of the subsystems' own tables: jbd2's journals, and the LRU of buffer heads. Plain, serialisable data; sums
//! since the recording began, times in nanoseconds.

use std::collections::BTreeMap;

use profiler_common::journal::{CAUSES, Commit, FSYNC_PARTS, JOURNAL_COUNTERS, SPANS};
use serde::{Deserialize, Serialize};

/// Stands for the device of all devices that found no place in a table of the kernel side.
pub const OTHER_DEVICES: u32 = u32::MAX;

/// Sums of one timed stretch of a handle's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpanTotals {
    /// How many.
    pub n: u64,
    /// Their total.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Bucket → count.
    pub hist: BTreeMap<u16, u64>,
}

/// Sums of one journal over all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalTotals {
    /// By [`profiler_common::journal::JournalCounter`].
    pub counters: [u64; JOURNAL_COUNTERS],
    /// Starts by [`profiler_common::journal::Cause`].
    pub cause_n: [u64; CAUSES],
    /// Their nanoseconds.
    pub cause_ns: [u64; CAUSES],
    /// By [`profiler_common::journal::FsyncPart`].
    pub fsync: [u64; FSYNC_PARTS],
    /// By [`profiler_common::journal::Span`].
    pub spans: [SpanTotals; SPANS.len()],
}

/// A commit that ended since the last snapshot. 0 = not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommitSeen {
    /// The journal's device.
    pub device: u32,
    /// The transaction's number.
    pub transaction: u32,
    /// When its first handle started, nanoseconds of the monotonic clock, as all of these.
    pub running_ns: u64,
    /// When it began.
    pub start_ns: u64,
    /// When it was locked.
    pub locking_ns: u64,
    /// When the last handle had left.
    pub flushing_ns: u64,
    /// When it began to write the log.
    pub logging_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// When the last handle left while it was locked; 0 = none did.
    pub left_ns: u64,
    /// How long that handle had been open.
    pub held_ns: u64,
    /// Its process.
    pub tgid: u32,
    /// Its file system's type of operation.
    pub operation: u32,
    /// The line that started it.
    pub line: u32,
}

impl CommitSeen {
    /// From the kernel side's own form.
    pub fn of(device: u32, commit: &Commit) -> CommitSeen {
        CommitSeen {
            device,
            transaction: commit.transaction,
            running_ns: commit.running_ns,
            start_ns: commit.start_ns,
            locking_ns: commit.locking_ns,
            flushing_ns: commit.flushing_ns,
            logging_ns: commit.logging_ns,
            end_ns: commit.end_ns,
            left_ns: commit.left_ns,
            held_ns: commit.held_ns,
            tgid: commit.tgid,
            operation: commit.operation,
            line: commit.line,
        }
    }
}

/// How full a journal was at the snapshot, in blocks: metric B-15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalFill {
    /// Blocks of the log in all (`j_last` − `j_first`).
    pub log_blocks: u64,
    /// Those that are free (`j_free`).
    pub log_free: u64,
    /// The most that one transaction may take (`j_max_transaction_buffers`).
    pub transaction_most: u64,
    /// What the running one has taken (`t_outstanding_credits`); 0 when none runs.
    pub transaction_credits: u64,
}

/// Counts of buffer lookups of one CPU and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LruTotals {
    /// All lookups.
    pub lookups: u64,
    /// Those that returned nothing.
    pub absent: u64,
    /// Those that returned a buffer.
    pub present: u64,
    /// Those that hit.
    pub hits: u64,
    /// Found elsewhere, by a task that was on another CPU at its last such lookup.
    pub migrated: u64,
    /// Timed samples that could not be used.
    pub samples_lost: u64,
}

/// Everything read of the subsystems' tables at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subsystems {
    /// How long handles and buffer lookups were timed and counted so far: all the time, or in bursts.
    pub timed_ns: u64,
    /// Journals by their file system's device, those that changed.
    pub journals: BTreeMap<u32, JournalTotals>,
    /// Commits that ended since the last snapshot.
    pub commits: Vec<CommitSeen>,
    /// How full journals were.
    pub fills: BTreeMap<u32, JournalFill>,
    /// Buffer lookups by (CPU, device), those that changed.
    pub lru: BTreeMap<(u32, u32), LruTotals>,
    /// Times that a CPU's LRU was emptied.
    pub lru_emptied: BTreeMap<u32, u64>,
    /// Buffers that the LRUs held at the snapshot, and so pinned: metric C-12; `None` when they could not be read.
    pub lru_pinned: Option<u64>,
}
