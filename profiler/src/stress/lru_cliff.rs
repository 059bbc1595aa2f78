//! Preset `lru-cliff`: one thread on one CPU touches the inodes of K blocks of the inode table in turn; each touch
//! looks one buffer up. A CPU remembers its last 16 buffers, so that all look-ups hit at K = 16 and none at K = 17.
//! Control: as many inodes, but neighbours, whose few blocks fit.
//!
//! Must not use a buffer beside these in its loop, nor let a thread leave its CPU.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, ensure};
use serde_json::json;

use super::args::StressArgs;
use super::device::Mkfs;
use super::fault::{Fault, Step};
use super::report::Report;
use super::run::{Crew, Lane, Plan, Work, allowed_cpus};
use super::series::{self, Scene, Site};

const BLOCKS: u32 = 17;
/// BH_LRU_SIZE of fs/buffer.c since Linux 3.18.
const SLOTS: usize = 16;

/// Runs the preset once per thread count.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    let cpus = allowed_cpus();
    let most = args.thread_counts().into_iter().max().unwrap_or(1) as usize;
    ensure!(most <= cpus.len(), "lru-cliff needs a CPU for each thread: {most} threads, {} CPUs", cpus.len());
    let plan = Plan { cpus, ..Plan::new(args, Crew::Threads) };
    series::measure_on(args, Mkfs::EXACT, &plan, set_up)
}

fn set_up(site: &Site) -> anyhow::Result<Scene> {
    let inodes = site.args.blocks.unwrap_or(BLOCKS) as usize;
    let geometry = site.ground.geometry.context("the device's block and inode size could not be read")?;
    let mut nursery = Nursery { site, per_block: geometry.inodes_per_block(), born: 0 };
    let (mut lanes, mut blocks) = (Vec::new(), Vec::new());
    for i in 0..site.threads {
        let (files, of_thread) = nursery.raise(inodes)?;
        blocks.push(of_thread);
        lanes.push(Lane { pace: site.pace(i), ..Lane::new("toucher", Toucher { files, taken: 0 }) });
    }
    let parameters = json!({
        "blocks": inodes, "table_blocks": blocks, "slots": SLOTS, "files_set_up": nursery.born,
        "hits_per_op_expected": u8::from(blocks.iter().all(|n| *n <= SLOTS)),
    });
    Ok(Scene { lanes, parameters })
}

/// Makes files and picks those in the right places.
struct Nursery<'a> {
    site: &'a Site<'a>,
    per_block: u64,
    born: usize,
}

impl Nursery<'_> {
    /// Open files, and in how many blocks of the inode table they are.
    fn raise(&mut self, inodes: usize) -> anyhow::Result<(Vec<File>, usize)> {
        let most = self.born + (inodes + 2) * self.per_block as usize * 2;
        let (mut files, mut blocks) = (Vec::new(), BTreeSet::new());
        while files.len() < inodes {
            ensure!(self.born < most, "the new inodes are not where they were expected");
            let file = self.bear()?;
            let fresh = blocks.insert((file.metadata()?.ino() - 1) / self.per_block);
            if fresh || self.site.args.control {
                files.push(file);
            }
        }
        let used = blocks.len();
        ensure!(
            !self.site.args.control || used <= SLOTS,
            "--control: {inodes} inodes need {used} blocks, not {SLOTS}"
        );
        Ok((files, used))
    }

    fn bear(&mut self) -> anyhow::Result<File> {
        let path = self.site.dir.join(format!("c{}", self.born));
        self.born += 1;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).open(&path).with_context(|| path.display().to_string())
    }
}

/// Gives the inodes ever new times, one after the other.
struct Toucher {
    files: Vec<File>,
    taken: usize,
}

impl Work for Toucher {
    fn op(&mut self) -> Result<u64, Fault> {
        let file = &self.files[self.taken % self.files.len()];
        self.taken += 1;
        let time = libc::timespec { tv_sec: self.taken as libc::time_t, tv_nsec: 0 };
        // SAFETY: an open file and two valid times.
        let rc = unsafe { libc::futimens(file.as_raw_fd(), [time; 2].as_ptr()) };
        if rc == 0 { Ok(0) } else { Err(Fault::last(Step::Touch)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_touch_changes_the_time_of_the_next_file() {
        let path = |i| std::env::temp_dir().join(format!("lockscope-touch-{}-{i}", std::process::id()));
        let files = (0..2).map(|i| File::create_new(path(i)).unwrap()).collect();
        let mut toucher = Toucher { files, taken: 0 };
        (0..3).for_each(|_| assert_eq!(toucher.op().unwrap(), 0));
        let times: Vec<_> = toucher.files.iter().map(|f| f.metadata().unwrap().mtime()).collect();
        assert_eq!(times, [3, 2]);
        (0..2).for_each(|i| std::fs::remove_file(path(i)).unwrap());
    }
}
