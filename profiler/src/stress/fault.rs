//! The two kinds of failure that code decides on: a host that cannot run a preset, and an operation that failed.
//!
//! Must not allocate in `Fault`: it is also raised in a forked worker, where the allocator may be locked.

use std::fmt;
use std::io;

/// This host cannot run the preset (rights, device, space): exit code 3.
#[derive(Debug)]
pub struct HostCannot(
    /// What is missing, and what would help.
    pub String,
);

impl fmt::Display for HostCannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HostCannot {}

/// Which part of an operation failed; numbered, to travel through shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Step {
    Pin = 1,
    Write,
    Read,
    Truncate,
    Map,
    Protect,
    Unmap,
    Create,
    Stat,
    Remove,
    Link,
    List,
    Touch,
    Sync,
}

const STEPS: [(Step, &str); 14] = [
    (Step::Pin, "sched_setaffinity"),
    (Step::Write, "pwrite"),
    (Step::Read, "pread"),
    (Step::Truncate, "ftruncate"),
    (Step::Map, "mmap"),
    (Step::Protect, "mprotect"),
    (Step::Unmap, "munmap"),
    (Step::Create, "mknod"),
    (Step::Stat, "fstatat"),
    (Step::Remove, "unlink"),
    (Step::Link, "link"),
    (Step::List, "getdents64"),
    (Step::Touch, "futimens"),
    (Step::Sync, "fsync"),
];

/// A failed operation: the call and its errno; errno 0 means that it moved fewer bytes than asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub step: u32,
    pub errno: i32,
}

impl Fault {
    pub fn new(step: Step, error: &io::Error) -> Self {
        Self { step: step as u32, errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    pub fn last(step: Step) -> Self {
        Self::new(step, &io::Error::last_os_error())
    }

    pub fn short(step: Step) -> Self {
        Self { step: step as u32, errno: 0 }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = STEPS.iter().find(|(s, _)| *s as u32 == self.step).map_or("operation", |(_, name)| name);
        match self.errno {
            0 => write!(f, "{step}: short transfer"),
            errno => write!(f, "{step}: {}", io::Error::from_raw_os_error(errno)),
        }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_the_call() {
        let full = Fault { step: Step::Write as u32, errno: libc::ENOSPC };
        assert!(full.to_string().starts_with("pwrite: No space left"));
        assert_eq!(Fault::short(Step::Read).to_string(), "pread: short transfer");
    }
}
