//! One file for each probe; user space has a file of the same name that says what it costs and what is lost without it.

pub mod bh_lru;
pub mod commit;
pub mod contention;
pub mod follow;
pub mod fsync;
pub mod handle;
pub mod peek;
pub mod rwsem;
pub mod sleep;
