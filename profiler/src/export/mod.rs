//! Reports for files and pipes, one file per format.
//!
//! Must not know aya, maps or the live view, and must not compute what `aggregate` did not.
#![forbid(unsafe_code)]

mod grid;
pub mod json;
mod subsystems_json;
mod subsystems_table;
pub mod table;
