//! Preset `jbd2-tiny`: files replaced (removed and created again) in private directories, on a journal of 4 MiB.
//! Each replacement goes to another block of the inode table, more of them than the journal holds, so that it is
//! full all the time and whoever starts a handle waits for a checkpoint. Control: the default journal, which holds
//! all these blocks.
//!
//! Must keep the files spread out: in neighbouring inodes the same work logs a sixteenth of the blocks, and the
//! journal never fills.

use anyhow::ensure;
use serde_json::json;

use super::args::StressArgs;
use super::device::Mkfs;
use super::fault::Fault;
use super::folder::{Folder, Name};
use super::parts::Parts;
use super::report::Report;
use super::run::{Lane, Work};
use super::series::{self, Scene, Site};
use super::signal;

/// Of all threads together: 800 blocks of inodes and some 100 of directories. A transaction takes a quarter of the
/// journal, and a checkpoint is due when less than that is free. So three transactions of 256 blocks do not reach
/// round, and the oldest has to be written out; one of 1024 blocks holds everything, and nothing ever has.
const FILES: u32 = 12_800;
/// Journals that are small, or large, enough for these; mkfs.ext4 makes them of 1024 and 4096 blocks.
const TINY_BLOCKS: u64 = 1100;
const ROOMY_BLOCKS: u64 = 4000;
/// From one file to the next in order of age: beyond the 16 inodes of a block.
const STRIDE: u32 = 17;

/// Runs the preset once per thread count.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    let mkfs = if args.control { Mkfs::EXACT } else { Mkfs::TINY_JOURNAL };
    series::measure(args, mkfs, set_up)
}

/// With `--dir` the journal is what it is: refused where it would show the opposite of what was asked.
fn fits(journal_blocks: Option<u64>, control: bool) -> anyhow::Result<()> {
    let Some(blocks) = journal_blocks else { return Ok(()) };
    let fits = if control { blocks >= ROOMY_BLOCKS } else { blocks <= TINY_BLOCKS };
    let need = if control { "the control needs at least 4000" } else { "jbd2-tiny needs at most 1100" };
    ensure!(fits, "the journal there has {blocks} blocks, {need}; without --dir one is made to measure");
    Ok(())
}

fn set_up(site: &Site) -> anyhow::Result<Scene> {
    fits(site.ground.geometry.and_then(|g| g.journal_blocks), site.args.control)?;
    let files = FILES.div_ceil(site.threads);
    let mut lanes = Vec::new();
    for i in 0..site.threads {
        let (parts, pace) = (&["remove", "create"], site.pace(i));
        lanes.push(Lane { parts, pace, ..Lane::new("replacer", Replacer::new(site.private(i)?, files)?) });
    }
    Ok(Scene { lanes, parameters: json!({ "files_per_thread": files }) })
}

/// Replaces the files of a directory, far from one another.
struct Replacer {
    folder: Folder,
    files: u32,
    at: u32,
    parts: Parts<2>,
}

impl Replacer {
    fn new(folder: Folder, files: u32) -> Result<Self, Fault> {
        let mut numbers = (0..files).take_while(|_| signal::count() == 0);
        numbers.try_for_each(|i| folder.create(&Name::of(0, i)))?;
        Ok(Self { folder, files, at: 0, parts: Parts::new() })
    }

    /// Goes round in strides, each round beginning one file later than the one before.
    fn next(at: u32, files: u32) -> u32 {
        if at + STRIDE < files { at + STRIDE } else { (at % STRIDE + 1) % STRIDE.min(files) }
    }
}

impl Work for Replacer {
    fn op(&mut self) -> Result<u64, Fault> {
        let Self { folder, files, at, parts } = self;
        let name = Name::of(0, *at);
        parts.begin();
        parts.time(0, || folder.remove(&name))?;
        parts.time(1, || folder.create(&name))?;
        *at = Self::next(*at, *files);
        Ok(0)
    }

    fn parts(&self) -> &[Option<u64>] {
        self.parts.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_would_show_the_opposite_is_refused() {
        assert!(
            fits(Some(1024), false).is_ok() && fits(Some(4096), true).is_ok() && fits(None, true).is_ok()
        );
        assert!(fits(Some(4096), false).is_err() && fits(Some(1024), true).is_err());
    }

    #[test]
    fn every_file_has_its_turn_in_strides() {
        for files in [1, 5, 17, 400, 3200] {
            let mut seen = vec![0; files as usize];
            let mut at = 0;
            for _ in 0..files {
                seen[at as usize] += 1;
                at = Replacer::next(at, files);
            }
            assert!(seen.iter().all(|n| *n == 1) && at == 0, "{files}");
        }
    }
}
