//! Preset `jbd2-fsync`: appends of 4 KiB, each followed by fsync, in a file for each thread; the fsync waits for the
//! journal's commit. Control: the same blocks are overwritten and synced as data only, which needs no commit.
//!
//! Must not let the files grow: they are cut back outside the operations.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use anyhow::Context;
use serde_json::json;

use super::args::StressArgs;
use super::device::Mkfs;
use super::fault::{Fault, Step};
use super::parts::Parts;
use super::report::Report;
use super::run::{Lane, Work};
use super::series::{self, Scene, Site};

const BLOCK: usize = 4096;
/// A file is cut to nothing at this size; the control's has it from the beginning.
const LIMIT: u64 = 4 << 20;

/// Runs the preset once per thread count.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    series::measure(args, Mkfs::EXACT, set_up)
}

fn set_up(site: &Site) -> anyhow::Result<Scene> {
    let mut lanes = Vec::new();
    for i in 0..site.threads {
        let (parts, pace) = (&["write", "fsync"], site.pace(i));
        lanes.push(Lane { parts, pace, ..Lane::new("writer", writer(site, i)?) });
    }
    let how = if site.args.control { "fdatasync of an overwritten block" } else { "fsync of an append" };
    Ok(Scene { lanes, parameters: json!({ "block_bytes": BLOCK, "limit_bytes": LIMIT, "sync": how }) })
}

fn writer(site: &Site, i: u32) -> anyhow::Result<Writer> {
    let path = site.dir.join(format!("f{i}"));
    let mut options = OpenOptions::new();
    let file =
        options.write(true).create_new(true).open(&path).with_context(|| path.display().to_string())?;
    if site.args.control {
        file.write_all_at(&vec![1; LIMIT as usize], 0).context("writing the control's file")?;
    }
    Ok(Writer { file, at: 0, overwrites: site.args.control, parts: Parts::new() })
}

/// Writes the next block and syncs it.
struct Writer {
    file: File,
    at: u64,
    overwrites: bool,
    parts: Parts<2>,
}

impl Writer {
    fn write(file: &File, at: u64) -> Result<(), Fault> {
        match file.write_at(&[2; BLOCK], at) {
            Ok(BLOCK) => Ok(()),
            Ok(_) => Err(Fault::short(Step::Write)),
            Err(error) => Err(Fault::new(Step::Write, &error)),
        }
    }
}

impl Work for Writer {
    fn between(&mut self) -> Result<(), Fault> {
        if self.at < LIMIT {
            return Ok(());
        }
        self.at = 0;
        if self.overwrites {
            return Ok(());
        }
        self.file.set_len(0).map_err(|e| Fault::new(Step::Truncate, &e))
    }

    fn op(&mut self) -> Result<u64, Fault> {
        let Self { file, at, overwrites, parts } = self;
        parts.begin();
        parts.time(0, || Self::write(file, *at))?;
        parts.time(1, || {
            let synced = if *overwrites { file.sync_data() } else { file.sync_all() };
            synced.map_err(|e| Fault::new(Step::Sync, &e))
        })?;
        *at += BLOCK as u64;
        Ok(BLOCK as u64)
    }

    fn parts(&self) -> &[Option<u64>] {
        self.parts.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_back_and_the_controls_is_not() {
        for overwrites in [false, true] {
            let path = std::env::temp_dir().join(format!("lockscope-fsync-{}", std::process::id()));
            let file = File::create_new(&path).unwrap();
            file.set_len(LIMIT).unwrap();
            let mut writer = Writer { file, at: LIMIT, overwrites, parts: Parts::new() };
            writer.between().unwrap();
            assert_eq!(writer.op().unwrap(), BLOCK as u64);
            let length = writer.file.metadata().unwrap().len();
            assert_eq!(length, if overwrites { LIMIT } else { BLOCK as u64 });
            assert!(writer.parts().iter().all(Option::is_some));
            std::fs::remove_file(path).unwrap();
        }
    }
}
