//! Preset `jbd2-dirsync`: files created and removed in directories with the `dirsync` attribute. Every such handle
//! is synchronous, and when another thread's was the last one, jbd2 sleeps on purpose before it commits, so that
//! others can join: inside the create. Then it waits for the commit. Control: directories without the attribute.
//!
//! Must have at least two threads to show the sleep: a thread never waits to be joined by itself.

use std::sync::Arc;

use anyhow::Context;
use serde_json::json;

use super::args::StressArgs;
use super::device::Mkfs;
use super::dir_readers::Creator;
use super::folder::Folder;
use super::report::Report;
use super::run::Lane;
use super::series::{self, Scene, Site};

/// Runs the preset once per thread count.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    series::measure(args, Mkfs::EXACT, set_up)
}

fn set_up(site: &Site) -> anyhow::Result<Scene> {
    let mut lanes = Vec::new();
    for i in 0..site.threads {
        let creator = Creator::new(Arc::new(folder(site, i)?), i);
        let (parts, pace) = (&["create", "remove"], site.pace(i));
        lanes.push(Lane { parts, pace, ..Lane::new("creator", creator) });
    }
    Ok(Scene { lanes, parameters: json!({ "dirsync": !site.args.control }) })
}

fn folder(site: &Site, i: u32) -> anyhow::Result<Folder> {
    let folder = site.private(i)?;
    if !site.args.control {
        folder.make_synchronous().context("setting the dirsync attribute")?;
    }
    Ok(folder)
}
