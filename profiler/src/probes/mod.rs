//! The probes: one file each, of the same name as its kernel side. `--probe`, `doctor`, help and coverage follow from
//! these specifications; nothing is registered anywhere else. No map and no number is read here.

pub mod bh_lru;
pub mod bit_lock;
pub mod contention;
pub mod jbd2;
pub mod rwsem;
pub mod spec;

pub use spec::{Attachment, Hook, ProbeSpec, Target};

/// Every probe, in the order in which they are attached.
pub const ALL: [&ProbeSpec; 5] =
    [&contention::SPEC, &rwsem::SPEC, &jbd2::SPEC, &bit_lock::SPEC, &bh_lru::SPEC];

/// Programs of the object that no probe attaches: for tests (`drive_*`), to follow a command (`follow_*`), and to read kernel
/// memory by BPF_PROG_TEST_RUN (`peek`).
pub const UNATTACHED: [&str; 7] =
    ["drive_entry", "drive_exit", "drive_handle", "drive_lru", "follow_fork", "follow_exit", "peek"];

/// The probe with this id.
pub fn by_id(id: &str) -> Option<&'static ProbeSpec> {
    ALL.into_iter().find(|spec| spec.id == id)
}
