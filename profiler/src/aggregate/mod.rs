//! Turns sums into tables: the only place where differences of sums, rates and shares are computed.
//!
//! Pure functions of snapshots and names. Must not know aya, tokio, files, a clock or a terminal.
#![forbid(unsafe_code)]

mod abilities;
mod bh_lru;
mod delta;
mod finish;
mod gather;
mod group;
mod hist;
mod journal;
mod report;
mod row;
mod settle;
mod window;

pub use abilities::Abilities;
pub use bh_lru::{LruCaller, LruCost, LruCounts, LruRow, LruTable};
pub use delta::delta;
pub use group::{GroupBy, RowKey};
pub use hist::Hist;
pub use journal::{Blamed, Credits, FsyncRow, JournalRow, PhaseRow, SpanRow, device_name};
pub use report::{Report, whole};
pub use row::{
    Bucket, InProgress, Open, OutcomeCounts, OwnCost, Owner, OwnerShare, ProcessShare, ProgramShare, Reading,
    Reason, Row, StackShare, Sums, Table,
};
pub use window::{Moment, NameBook, State};

// What a report's head shows is handed through, so that exporters need not know snapshots.
pub use crate::snapshot::{BudgetStep, Coverage, CoverageState, End, Meta};

#[cfg(test)]
mod tests;
