//! A table together with what must stand beside it: host, coverage, how the recording ended.
//!
//! Must not read files: who has a recording hands over its parts.

use crate::snapshot::{Names, Snapshot};

use super::{End, GroupBy, Meta, State, Table};

/// What exporters show.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Host, kernel, selection, coverage.
    pub meta: Meta,
    /// What was measured.
    pub table: Table,
    /// How the recording ended; `None` if it did not, or in a live view.
    pub end: Option<End>,
    /// Where and why the file could not be read to its end.
    pub truncated: Option<String>,
}

/// The table of a whole recording.
pub fn whole<'a>(
    meta: &Meta,
    names: &Names,
    snapshots: impl IntoIterator<Item = &'a Snapshot>,
    by: GroupBy,
) -> Table {
    let mut state = State::new(meta);
    state.learn(names);
    for snapshot in snapshots {
        state.absorb(snapshot);
    }
    state.whole(by)
}
