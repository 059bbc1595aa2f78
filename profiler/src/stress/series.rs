//! The frame of the presets that work on files: one ground, and on it one run for each thread count, set up afresh
//! in a directory of its own.
//!
//! Must not leave set-up work to be done within the measured time: all is written out before a run.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::args::StressArgs;
use super::clock::Pace;
use super::device::{Ground, Mkfs};
use super::folder::Folder;
use super::report::{self, Report};
use super::run::{self, Crew, Lane, Plan};
use super::signal;

/// What a preset sets up for one run.
pub(super) struct Scene {
    pub lanes: Vec<Lane>,
    /// The preset's own words for the report.
    pub parameters: Value,
}

/// Where and how large a run is to be set up.
pub(super) struct Site<'a> {
    pub args: &'a StressArgs,
    pub ground: &'a Ground,
    /// New and empty.
    pub dir: &'a Path,
    /// Threads of the writing role.
    pub threads: u32,
}

impl Site<'_> {
    /// A new directory for thread `i`.
    pub fn private(&self, i: u32) -> anyhow::Result<Folder> {
        Folder::make(&self.dir.join(format!("d{i}")))
    }

    /// The schedule of thread `i` of the writing role.
    pub fn pace(&self, i: u32) -> Option<Pace> {
        self.args.rate.map(|rate| Pace::new(rate, self.threads, i))
    }
}

/// Runs the preset once per thread count.
pub(super) fn measure(
    args: &StressArgs,
    mkfs: Mkfs,
    set_up: impl Fn(&Site) -> anyhow::Result<Scene>,
) -> anyhow::Result<Vec<Report>> {
    measure_on(args, mkfs, &Plan::new(args, Crew::Threads), set_up)
}

/// As [`measure`], with a plan of the preset's.
pub(super) fn measure_on(
    args: &StressArgs,
    mkfs: Mkfs,
    plan: &Plan,
    set_up: impl Fn(&Site) -> anyhow::Result<Scene>,
) -> anyhow::Result<Vec<Report>> {
    let ground = Ground::prepare(args, mkfs)?;
    let mut dirs = Dirs { base: ground.dir.clone(), last: None, count: 0 };
    let mut reports = Vec::new();
    for threads in args.thread_counts() {
        if signal::count() > 0 {
            break;
        }
        let dir = dirs.next()?;
        eprintln!("lockscope stress: {} on {}", dir.display(), ground.mount);
        let scene = set_up(&Site { args, ground: &ground, dir: &dir, threads }).context("setting up")?;
        settle(&dir)?;
        let outcome = run::run(plan, scene.lanes)?;
        reports.push(report::build(args, threads, placed(scene.parameters, &ground, &dir), outcome));
    }
    Ok(reports)
}

fn settle(dir: &Path) -> anyhow::Result<()> {
    Ok(Folder::make(&dir.join("settled"))?.settle()?)
}

fn placed(mut own: Value, ground: &Ground, dir: &Path) -> Value {
    let place = json!({ "dir": dir, "device": ground.describe() });
    if let (Value::Object(own), Value::Object(place)) = (&mut own, place) {
        own.extend(place);
    }
    own
}

/// The directories of the runs. The last one is left to the ground's end: on a file system of ours that is an
/// unmount, and no file need be removed while someone may still be counting.
struct Dirs {
    base: PathBuf,
    last: Option<PathBuf>,
    count: u32,
}

impl Dirs {
    fn next(&mut self) -> anyhow::Result<PathBuf> {
        if let Some(last) = self.last.take() {
            std::fs::remove_dir_all(&last).with_context(|| last.display().to_string())?;
        }
        self.count += 1;
        let dir = self.base.join(format!("run{}", self.count));
        std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        self.last = Some(dir.clone());
        Ok(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_removed_when_the_next_is_made() {
        let base = std::env::temp_dir().join(format!("lockscope-series-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let mut dirs = Dirs { base: base.clone(), last: None, count: 0 };
        let first = dirs.next().unwrap();
        std::fs::write(first.join("file"), "x").unwrap();
        let second = dirs.next().unwrap();
        assert!(!first.exists() && second.is_dir());
        std::fs::remove_dir_all(base).unwrap();
    }
}
