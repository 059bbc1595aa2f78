//! One file for each probe; user space has a file of the same name that says what it costs and what is lost without it.

pub mod contention;
pub mod follow;
pub mod jbd2;
pub mod peek;
pub mod rwsem;
