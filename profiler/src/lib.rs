//! lockscope: which lock, which instance, who waits, how long, spinning or sleeping, behind whom – live, on a stock
//! kernel. A library with a thin program on top, so that tests use the same code as users do.
//!
//! Data flows one way: `load` and `probes` fill maps, `snapshot` reads them, `aggregate` turns snapshots into tables,
//! `export` shows tables. ARCHITECTURE.md has the rules, `cargo xtask tidy` checks them.

pub mod aggregate;
pub mod app;
pub mod budget;
pub mod cli;
pub mod doctor;
pub mod exit;
pub mod export;
pub mod fields;
pub mod identity;
pub mod kernel;
pub mod load;
pub mod privilege;
pub mod probes;
pub mod recording;
pub mod session;
pub mod snapshot;
pub mod stress;
pub mod terminal;
pub mod workload;
