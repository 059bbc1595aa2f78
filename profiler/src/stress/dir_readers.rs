//! Preset `dir-readers`: files created and removed in a large directory, exclusively under its `i_rwsem`, while
//! others list it from end to end, sharing that lock for each piece. Control: they list another directory.
//!
//! Must not change the number of entries but by the writers' own files.

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

const DIRSIZE: u32 = 20_000;
/// 32 KiB at a time, as the C library does.
const ROOM: usize = 4096;

/// Runs the preset once per thread count.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    series::measure(args, Mkfs::EXACT, set_up)
}

fn set_up(site: &Site) -> anyhow::Result<Scene> {
    let (dirsize, readers) = (site.args.dirsize.unwrap_or(DIRSIZE), site.args.readers.unwrap_or(1));
    let written = Arc::new(filled(site, 0, dirsize)?);
    let other = if site.args.control { Some(filled(site, 1, dirsize)?) } else { None };
    let listed = other.as_ref().unwrap_or(&written);
    let writer = |i| Lane {
        parts: &["create", "remove"],
        pace: site.pace(i),
        ..Lane::new("creator", Creator::new(Arc::clone(&written), i))
    };
    let mut lanes: Vec<Lane> = (0..site.threads).map(writer).collect();
    for _ in 0..readers {
        lanes.push(Lane::new("reader", Lister { folder: listed.reopened()?, room: vec![0; ROOM] }));
    }
    let parameters = json!({
        "readers": readers, "dirsize": dirsize,
        "dir_inode": written.inode()?, "listed_inode": listed.inode()?,
    });
    Ok(Scene { lanes, parameters })
}

fn filled(site: &Site, i: u32, dirsize: u32) -> anyhow::Result<Folder> {
    let folder = site.private(i)?;
    folder.fill(dirsize)?;
    Ok(folder)
}

/// Creates a file and removes it.
pub(super) struct Creator {
    folder: Arc<Folder>,
    name: Name,
    parts: Parts<2>,
}

impl Creator {
    pub fn new(folder: Arc<Folder>, lane: u32) -> Self {
        Self { folder, name: Name::of(lane, 0), parts: Parts::new() }
    }
}

impl Work for Creator {
    fn op(&mut self) -> Result<u64, Fault> {
        let Self { folder, name, parts } = self;
        parts.begin();
        parts.time(0, || folder.create(name))?;
        parts.time(1, || folder.remove(name))?;
        Ok(0)
    }

    fn parts(&self) -> &[Option<u64>] {
        self.parts.all()
    }
}

/// Lists the whole directory.
struct Lister {
    folder: Folder,
    room: Vec<u64>,
}

impl Work for Lister {
    fn op(&mut self) -> Result<u64, Fault> {
        self.folder.list(&mut self.room)
    }
}
