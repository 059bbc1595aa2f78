//! Preset `mmap`: threads that map, touch, protect and unmap 1 MiB; every step takes the address space's
//! `mmap_lock`, three of them for writing. Control: as many processes, each with its own address space.
//!
//! Must not allocate within the loop (malloc maps memory too, and control workers are forked).

use serde_json::json;

use super::args::StressArgs;
use super::clock::Pace;
use super::fault::{Fault, Step};
use super::report::{self, Report};
use super::run::{self, Crew, Lane, Plan, Work};
use super::signal;

const MAP_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;

/// Runs the preset once per thread count.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    let crew = if args.control { Crew::Processes } else { Crew::Threads };
    let plan = Plan::new(args, crew);
    let parameters =
        json!({ "map_bytes": MAP_BYTES, "workers": if args.control { "processes" } else { "threads" } });
    let mut reports = Vec::new();
    for threads in args.thread_counts() {
        if signal::count() > 0 {
            break;
        }
        let outcome = run::run(&plan, lanes(args, threads))?;
        reports.push(report::build(args, threads, parameters.clone(), outcome));
    }
    Ok(reports)
}

fn lanes(args: &StressArgs, threads: u32) -> Vec<Lane> {
    let lane =
        |i| Lane { pace: args.rate.map(|rate| Pace::new(rate, threads, i)), ..Lane::new("mapper", Mapper) };
    (0..threads).map(lane).collect()
}

/// Has no state: each operation ends as it began.
struct Mapper;

impl Work for Mapper {
    fn op(&mut self) -> Result<u64, Fault> {
        let map = Map::new()?;
        map.touch();
        map.protect()?;
        map.unmap()?;
        Ok(MAP_BYTES as u64)
    }
}

/// A private anonymous mapping.
struct Map(*mut u8);

impl Map {
    fn new() -> Result<Self, Fault> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), MAP_BYTES, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED { Err(Fault::last(Step::Map)) } else { Ok(Self(at.cast())) }
    }

    /// A write to each page: page faults take the lock for reading.
    fn touch(&self) {
        for offset in (0..MAP_BYTES).step_by(PAGE) {
            // SAFETY: inside our own writable mapping; volatile, so that the store is not left out.
            unsafe { self.0.add(offset).write_volatile(1) };
        }
    }

    fn protect(&self) -> Result<(), Fault> {
        // SAFETY: our own mapping; nothing reads or writes it any more.
        let rc = unsafe { libc::mprotect(self.0.cast(), MAP_BYTES, libc::PROT_READ) };
        if rc == 0 { Ok(()) } else { Err(Fault::last(Step::Protect)) }
    }

    /// A map that fails before this is left to the end of the run: the failure ends it.
    fn unmap(self) -> Result<(), Fault> {
        // SAFETY: our own mapping, given up here; `self` is consumed.
        let rc = unsafe { libc::munmap(self.0.cast(), MAP_BYTES) };
        if rc == 0 { Ok(()) } else { Err(Fault::last(Step::Unmap)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_leaves_nothing_behind() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<i64>().unwrap()
        };
        let before = resident();
        (0..400).for_each(|_| assert_eq!(Mapper.op().unwrap(), 1 << 20));
        // Leaked, they would be 102,400 pages; other tests run meanwhile.
        assert!(resident() - before < 50_000);
    }
}
