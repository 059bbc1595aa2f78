//! Preset `dio-append`: O_DIRECT appenders against O_DIRECT readers of one ext4 file. Extending writes take
//! `i_rwsem` exclusively, reads share it. Control: the readers have a file of their own.
//!
//! Must write only below the directory it is given, and never let the file grow past its limit.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context;
use serde_json::{Value, json};

use super::args::StressArgs;
use super::clock::Pace;
use super::device::{Ground, Mkfs};
use super::fault::{Fault, HostCannot, Step};
use super::report::{self, Report};
use super::run::{self, Crew, Lane, Plan, Work};
use super::seed::Stream;
use super::signal;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// What is written beforehand, read by the readers, and left by a truncation.
const BASE_BYTES: u64 = 16 * MIB;
/// The file is cut back beyond this, or earlier on a small device.
const LIMIT_BYTES: u64 = 256 * MIB;
const LEAST_GROWTH: u64 = 16 * MIB;

/// An O_DIRECT buffer.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// Runs the preset once per thread count, on one device.
pub(super) fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    let ground = Ground::prepare(args, Mkfs::PLAIN)?;
    let files = Files::prepare(&ground, args.control, args.seed)?;
    announce(&ground, &files)?;
    let plan = Plan::new(args, Crew::Threads);
    let mut reports = Vec::new();
    for threads in args.thread_counts() {
        if signal::count() > 0 {
            break;
        }
        files.tail.cut().context("cutting the file back")?;
        let before = files.tail.cuts.load(Relaxed);
        let outcome = run::run(&plan, lanes(args, threads, &files))?;
        let cuts = files.tail.cuts.load(Relaxed) - before;
        reports.push(report::build(args, threads, parameters(args, &ground, &files, cuts)?, outcome));
    }
    Ok(reports)
}

/// Says where the lock is before the load begins, for whoever has a profiler to point at it.
fn announce(ground: &Ground, files: &Files) -> anyhow::Result<()> {
    let inode = files.tail.file.metadata()?.ino();
    eprintln!("lockscope stress: {}/app on {}, inode {inode}", ground.dir.display(), ground.mount);
    Ok(())
}

fn parameters(args: &StressArgs, ground: &Ground, files: &Files, cuts: u64) -> anyhow::Result<Value> {
    let read_inode = files.read.metadata()?.ino();
    Ok(json!({
        "readers": readers(args),
        "block_bytes": BLOCK,
        "base_bytes": BASE_BYTES,
        "limit_bytes": files.tail.limit.load(Relaxed),
        "cuts": cuts,
        "device": ground.describe(),
        "file": { "path": ground.dir.join("app"), "inode": files.tail.file.metadata()?.ino() },
        "read_file": { "inode": read_inode, "same": !args.control },
    }))
}

fn readers(args: &StressArgs) -> u32 {
    args.readers.unwrap_or(1)
}

fn lanes(args: &StressArgs, threads: u32, files: &Files) -> Vec<Lane> {
    let appender = |i| {
        let (tail, block) = (Arc::clone(&files.tail), filled(args.seed, i));
        let pace = args.rate.map(|rate| Pace::new(rate, threads, i));
        Lane { pace, ..Lane::new("appender", Appender { tail, block, retried: false }) }
    };
    let reader = |i| {
        let offsets = Stream::new(args.seed, 1 + u64::from(i));
        Lane::new("reader", Reader { file: Arc::clone(&files.read), block: filled(0, 0), offsets })
    };
    (0..threads).map(appender).chain((0..readers(args)).map(reader)).collect()
}

fn filled(seed: u64, lane: u32) -> Box<Block> {
    let mut block = Box::new(Block([0; BLOCK]));
    let mut stream = Stream::new(seed, u64::from(lane));
    block.0.iter_mut().for_each(|byte| *byte = stream.next() as u8);
    block
}

/// The file appended to, and the one that is read: the same, but for the control.
struct Files {
    tail: Arc<Tail>,
    read: Arc<File>,
}

impl Files {
    fn prepare(ground: &Ground, control: bool, seed: u64) -> anyhow::Result<Self> {
        let limit = limit(ground.free_bytes()?)?;
        let app = Arc::new(written(&ground.dir.join("app"), seed)?);
        let read =
            if control { Arc::new(written(&ground.dir.join("other"), seed)?) } else { Arc::clone(&app) };
        Ok(Self { tail: Arc::new(Tail::new(app, limit)), read })
    }
}

/// The largest size that `free` bytes allow next to the second file, with a tenth to spare.
fn limit(free: u64) -> anyhow::Result<u64> {
    let growth = (free.saturating_sub(2 * BASE_BYTES) / 10 * 9 / MIB * MIB).min(LIMIT_BYTES - BASE_BYTES);
    if growth < LEAST_GROWTH {
        let need = (2 * BASE_BYTES + LEAST_GROWTH * 10 / 9) / MIB + 1;
        return Err(HostCannot(format!("{} MiB free on the device, {need} MiB needed", free / MIB)).into());
    }
    Ok(BASE_BYTES + growth)
}

/// A new file of `BASE_BYTES`, written through: reads of it must not meet holes or unwritten extents.
fn written(path: &Path, seed: u64) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_DIRECT);
    let file = options.open(path).with_context(|| format!("opening {} with O_DIRECT", path.display()))?;
    let block = filled(seed, u32::MAX);
    for offset in (0..BASE_BYTES).step_by(BLOCK) {
        file.write_all_at(&block.0, offset).with_context(|| format!("writing {}", path.display()))?;
    }
    file.sync_all().context("fsync")?;
    Ok(file)
}

/// The end of the file, shared by the appenders.
struct Tail {
    file: Arc<File>,
    next: AtomicU64,
    limit: AtomicU64,
    cuts: AtomicU64,
    /// Written to only for a cut: a write still under way past the cut would leave the file long and make the
    /// following writes fill holes instead of extending.
    cutting: RwLock<()>,
}

impl Tail {
    fn new(file: Arc<File>, limit: u64) -> Self {
        let (next, limit) = (AtomicU64::new(BASE_BYTES), AtomicU64::new(limit));
        Self { file, next, limit, cuts: AtomicU64::new(0), cutting: RwLock::new(()) }
    }

    fn full(&self) -> bool {
        self.next.load(Relaxed) >= self.limit.load(Relaxed)
    }

    fn cut_if_full(&self) -> Result<(), Fault> {
        let _all_writes_done = self.cutting.write().unwrap_or_else(PoisonError::into_inner);
        if !self.full() {
            return Ok(()); // another appender was first
        }
        self.cuts.fetch_add(1, Relaxed);
        self.cut()
    }

    fn cut(&self) -> Result<(), Fault> {
        self.file.set_len(BASE_BYTES).map_err(|e| Fault::new(Step::Truncate, &e))?;
        self.next.store(BASE_BYTES, Relaxed);
        Ok(())
    }

    /// Appends one block; an error comes with the offset it happened at.
    fn append(&self, block: &Block) -> Result<usize, (std::io::Error, u64)> {
        let _no_cut_meanwhile = self.cutting.read().unwrap_or_else(PoisonError::into_inner);
        let offset = self.next.fetch_add(BLOCK as u64, Relaxed);
        self.file.write_at(&block.0, offset).map_err(|e| (e, offset))
    }
}

/// Extends the file block by block; cuts it back when it has reached its limit.
struct Appender {
    tail: Arc<Tail>,
    block: Box<Block>,
    retried: bool,
}

impl Work for Appender {
    fn between(&mut self) -> Result<(), Fault> {
        if self.tail.full() { self.tail.cut_if_full() } else { Ok(()) }
    }

    fn op(&mut self) -> Result<u64, Fault> {
        match self.tail.append(&self.block) {
            Ok(BLOCK) => {
                self.retried = false;
                Ok(BLOCK as u64)
            }
            Ok(_) => Err(Fault::short(Step::Write)),
            Err((error, offset)) => self.full_or_failed(&error, offset),
        }
    }
}

impl Appender {
    /// A full device lowers the limit for good and is tried once more; twice in a row it is a failure.
    fn full_or_failed(&mut self, error: &std::io::Error, offset: u64) -> Result<u64, Fault> {
        let fault = Fault::new(Step::Write, error);
        let lower = offset / 10 * 9 / BLOCK as u64 * BLOCK as u64;
        if fault.errno != libc::ENOSPC || self.retried || lower < BASE_BYTES + LEAST_GROWTH {
            return Err(fault);
        }
        self.retried = true;
        self.tail.limit.fetch_min(lower, Relaxed);
        self.between()?;
        self.op()
    }
}

/// Reads blocks at random offsets of the part that is always there.
struct Reader {
    file: Arc<File>,
    block: Box<Block>,
    offsets: Stream,
}

impl Work for Reader {
    fn op(&mut self) -> Result<u64, Fault> {
        let offset = self.offsets.below(BASE_BYTES / BLOCK as u64) * BLOCK as u64;
        match self.file.read_at(&mut self.block.0, offset) {
            Ok(BLOCK) => Ok(BLOCK as u64),
            Ok(_) => Err(Fault::short(Step::Read)),
            Err(error) => Err(Fault::new(Step::Read, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_shrinks_with_the_device_and_then_refuses() {
        assert_eq!(limit(1024 * MIB).unwrap(), LIMIT_BYTES);
        assert_eq!(limit(132 * MIB).unwrap(), BASE_BYTES + 90 * MIB);
        assert!(limit(49 * MIB).unwrap_err().is::<HostCannot>());
    }

    #[test]
    fn the_tail_is_cut_back_once_full() {
        let path = std::env::temp_dir().join(format!("lockscope-tail-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(BASE_BYTES).unwrap();
        let tail = Arc::new(Tail::new(Arc::new(file), BASE_BYTES + 2 * BLOCK as u64));
        let mut appender = Appender { tail: Arc::clone(&tail), block: filled(1, 0), retried: false };
        for _ in 0..5 {
            appender.between().unwrap();
            assert_eq!(appender.op().unwrap(), BLOCK as u64);
        }
        assert_eq!(tail.cuts.load(Relaxed), 2);
        assert_eq!(tail.file.metadata().unwrap().len(), BASE_BYTES + BLOCK as u64);
        std::fs::remove_file(path).unwrap();
    }
}
