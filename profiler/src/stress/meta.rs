//! Preset `meta`: files created, looked at and removed in batches, as mdtest does. On ext4 a file costs exactly three
//! journal handles: one to create it, one to unlink it, one to free its inode. In one directory the threads contend
//! on its `i_rwsem`. Control: a directory for each thread.
//!
//! Must not do anything to files beyond these three steps: the handles are counted.

use std::sync::Arc;

use serde_json::json;

use super::args::StressArgs;
use super::device::Mkfs;
use super::fault::Fault;
use super::folder::{Folder, Name};
use super::parts::Parts;
use super::report::Report;
use super::run::{Lane, Work};
use super::series::{self, Scene, Site};

/// Files of one thread that exist at a time.
const BATCH: u32 = 1000;
/// Larger than a batch and prime: its multiples visit every file of any batch once.
const STRIDE: u32 = 7919;
const HANDLES_PER_FILE: u32 = 3;

/// Runs the preset once per thread count.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    series::measure(args, Mkfs::EXACT, set_up)
}

fn set_up(site: &Site) -> anyhow::Result<Scene> {
    let private = site.args.private || site.args.control;
    let (dirsize, files) = (site.args.dirsize.unwrap_or(0), site.args.files);
    let folders = if private { site.threads } else { 1 };
    let folders = (0..folders).map(|i| filled(site, i, dirsize)).collect::<Result<Vec<_>, _>>()?;
    let folder_of = |i: u32| Arc::clone(&folders[i as usize % folders.len()]);
    let lane = |i| Lane {
        parts: &["create", "stat", "remove"],
        pace: site.pace(i),
        turns: files.map(|files| u64::from(files) * 3),
        ..Lane::new("task", Task::new(folder_of(i), i, files))
    };
    let parameters = json!({
        "shared": !private, "dirsize": dirsize, "files": files, "batch": BATCH,
        "handles_per_file": HANDLES_PER_FILE, "dir_inode": folders[0].inode()?,
    });
    Ok(Scene { lanes: (0..site.threads).map(lane).collect(), parameters })
}

fn filled(site: &Site, i: u32, dirsize: u32) -> anyhow::Result<Arc<Folder>> {
    let folder = site.private(i)?;
    folder.fill(dirsize)?;
    Ok(Arc::new(folder))
}

/// The three steps of a file's life, in the order of the parts.
const CREATE: usize = 0;
const STAT: usize = 1;
const REMOVE: usize = 2;

/// Creates a batch, looks at it, removes it, the latter two in scattered order.
struct Task {
    folder: Arc<Folder>,
    lane: u32,
    /// Files not in a batch yet; none: without end.
    left: Option<u32>,
    batch: u32,
    step: usize,
    at: u32,
    parts: Parts<3>,
}

impl Task {
    fn new(folder: Arc<Folder>, lane: u32, files: Option<u32>) -> Self {
        let mut task = Self { folder, lane, left: files, batch: 0, step: CREATE, at: 0, parts: Parts::new() };
        task.begin_batch();
        task
    }

    fn begin_batch(&mut self) {
        self.batch = self.left.map_or(BATCH, |left| left.min(BATCH));
        self.left = self.left.map(|left| left - self.batch);
        self.step = CREATE;
    }

    fn advance(&mut self) {
        self.at += 1;
        if self.at < self.batch {
            return;
        }
        self.at = 0;
        self.step += 1;
        if self.step > REMOVE {
            self.begin_batch();
        }
    }

    fn name(&self) -> Name {
        let index = if self.step == CREATE { self.at } else { self.at * STRIDE % self.batch };
        Name::of(self.lane, index)
    }
}

impl Work for Task {
    /// One step of one file.
    fn op(&mut self) -> Result<u64, Fault> {
        let (folder, name) = (&self.folder, self.name());
        self.parts.begin();
        self.parts.time(self.step, || match self.step {
            CREATE => folder.create(&name),
            STAT => folder.stat(&name),
            _ => folder.remove(&name),
        })?;
        self.advance();
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
    fn every_file_of_a_count_lives_through_all_three_steps() {
        let path = std::env::temp_dir().join(format!("lockscope-meta-{}", std::process::id()));
        let mut task = Task::new(Arc::new(Folder::make(&path).unwrap()), 0, Some(BATCH + 7));
        let mut counts = [0; 3];
        for _ in 0..3 * (BATCH + 7) {
            task.op().unwrap();
            counts.iter_mut().zip(task.parts()).for_each(|(n, part)| *n += u32::from(part.is_some()));
        }
        assert_eq!(counts, [BATCH + 7; 3]);
        // Empty again: everything that was created has been removed.
        std::fs::remove_dir(path).unwrap();
    }
}
