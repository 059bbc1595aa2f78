//! The command line of `lockscope stress`: what may be asked, with the limits that keep a run small.
//!
//! Must not touch the system: a wrong argument is refused before anything is made.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};

/// Which lock the load contends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Appender against readers of one file, O_DIRECT on ext4: contends on `i_rwsem`
    DioAppend,
    /// Threads mapping and unmapping in one address space: contends on `mmap_lock`
    Mmap,
    /// Goes round the inodes of K inode-table blocks on one CPU: K = 17 overruns its 16 buffer-head slots
    LruCliff,
    /// Files created, looked at and removed, as mdtest does: 3 journal handles each, directory lock when shared
    Meta,
    /// Files created and removed in a large directory that others list: contends on the directory's `i_rwsem`
    DirReaders,
    /// Files replaced all over the inode table with a 4 MiB journal: waits for checkpoints
    Jbd2Tiny,
    /// Appends with fsync: waits for commits
    Jbd2Fsync,
    /// Files created in directories with the dirsync attribute: sleeps to share commits, inside the create
    Jbd2Dirsync,
}

const PRESETS: [(Preset, &str, u32); 8] = [
    (Preset::DioAppend, "dio-append", 1),
    (Preset::Mmap, "mmap", 4),
    (Preset::LruCliff, "lru-cliff", 1),
    (Preset::Meta, "meta", 4),
    (Preset::DirReaders, "dir-readers", 1),
    (Preset::Jbd2Tiny, "jbd2-tiny", 4),
    (Preset::Jbd2Fsync, "jbd2-fsync", 4),
    (Preset::Jbd2Dirsync, "jbd2-dirsync", 2),
];

impl Preset {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        self.row().map_or("?", |(_, name, _)| name)
    }

    /// Threads of the writing role when `--threads` is not given.
    pub fn default_threads(self) -> u32 {
        self.row().map_or(1, |(_, _, threads)| *threads)
    }

    fn row(self) -> Option<&'static (Preset, &'static str, u32)> {
        PRESETS.iter().find(|(preset, _, _)| *preset == self)
    }
}

/// What a made file system stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// A loop device, else a RAM disk
    Auto,
    /// A loop device over a file in a tmpfs
    Loop,
    /// A RAM disk of the brd module
    Ram,
}

/// Arguments of `lockscope stress`.
#[derive(Debug, Clone, Args)]
pub struct StressArgs {
    /// Which load
    #[arg(value_enum)]
    pub preset: Preset,
    /// Seconds measured, after the warm-up
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    pub secs: f64,
    /// Seconds run but not counted
    #[arg(long, value_name = "SECS", default_value_t = 1.0)]
    pub warmup: f64,
    /// Threads of the writing role (dio-append, lru-cliff, dir-readers: 1, jbd2-dirsync: 2, others: 4); a list
    /// a,b,c runs each in turn
    #[arg(long, visible_alias = "tasks", value_name = "N[,N...]", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Reading threads (dio-append, dir-readers; default 1)
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub readers: Option<u32>,
    /// Open loop: start this many operations a second in the writing role, shared by its threads;
    /// latency is then counted from the intended start
    #[arg(long, value_name = "OPS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    /// The same work without what makes it wait (on disjoint objects; jbd2-*: a roomy journal, nothing to commit):
    /// what remains slow is not this lock
    #[arg(long)]
    pub control: bool,
    /// JSON instead of text (one object; a list for several --threads values)
    #[arg(long)]
    pub json: bool,
    /// Same seed, same sequence of offsets
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Pin thread i to CPU i mod n
    #[arg(long)]
    pub pin: bool,
    /// lru-cliff: inodes to go round, each in an inode-table block of its own (default 17)
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub blocks: Option<u32>,
    /// Entries that are in the directories beforehand (meta: 0, dir-readers: 20000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=200_000))]
    pub dirsize: Option<u32>,
    /// meta: exactly N files in each thread, counted from the first, instead of a time
    #[arg(long, value_name = "N", conflicts_with_all = ["secs", "warmup"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub files: Option<u32>,
    /// meta: all threads in one directory (the default)
    #[arg(long, conflicts_with_all = ["private", "control"])]
    pub shared: bool,
    /// meta: a directory for each thread; the same as --control
    #[arg(long)]
    pub private: bool,
    /// Use this directory; refused unless it is on a loop or RAM device (not mmap)
    #[arg(long, value_name = "DIR", conflicts_with = "device")]
    pub dir: Option<PathBuf>,
    /// What the file system it makes stands on (not mmap; default auto)
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
}

impl StressArgs {
    /// The thread counts to run, in order.
    pub fn thread_counts(&self) -> Vec<u32> {
        if self.threads.is_empty() { vec![self.preset.default_threads()] } else { self.threads.clone() }
    }

    /// Refuses what clap cannot: lengths out of bounds, options the preset has no use for.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!((0.1..=3600.0).contains(&self.secs), "--secs must be 0.1 to 3600");
        ensure!((0.0..=600.0).contains(&self.warmup), "--warmup must be 0 to 600");
        ensure!(self.threads.len() <= 64, "--threads takes at most 64 values");
        ensure!(self.threads.iter().all(|n| (1..=1024).contains(n)), "--threads must be 1 to 1024");
        match self.stranger() {
            Some(option) => bail!("{option} does not apply to the {} preset", self.preset.name()),
            None => Ok(()),
        }
    }

    /// An option given that the preset has no use for.
    fn stranger(&self) -> Option<&'static str> {
        use Preset::{DioAppend, DirReaders, LruCliff, Meta, Mmap};
        let is = |presets: &[Preset]| presets.contains(&self.preset);
        [
            ("--readers", self.readers.is_some(), is(&[DioAppend, DirReaders])),
            ("--dir", self.dir.is_some(), !is(&[Mmap])),
            ("--device", self.device.is_some(), !is(&[Mmap])),
            ("--blocks", self.blocks.is_some(), is(&[LruCliff])),
            ("--dirsize", self.dirsize.is_some(), is(&[Meta, DirReaders])),
            ("--files", self.files.is_some(), is(&[Meta])),
            ("--shared", self.shared, is(&[Meta])),
            ("--private", self.private, is(&[Meta])),
        ]
        .into_iter()
        .find(|(_, given, applies)| *given && !applies)
        .map(|(option, _, _)| option)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: StressArgs,
    }

    fn parse(words: &[&str]) -> Result<StressArgs, clap::Error> {
        let line = std::iter::once("stress").chain(words.iter().copied());
        Cli::try_parse_from(line).map(|cli| cli.args)
    }

    #[test]
    fn defaults_follow_the_preset() {
        assert_eq!(parse(&["mmap"]).unwrap().thread_counts(), [4]);
        assert_eq!(parse(&["dio-append"]).unwrap().thread_counts(), [1]);
        assert_eq!(parse(&["mmap", "--threads", "1,2,8"]).unwrap().thread_counts(), [1, 2, 8]);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&["mmap", "--threads", "0"]).is_err());
        assert!(parse(&["mmap", "--rate", "0"]).is_err());
        assert!(parse(&["mmap", "--secs", "nan"]).unwrap().check().is_err());
        assert!(parse(&["mmap", "--readers", "2"]).unwrap().check().is_err());
        assert!(parse(&["dio-append", "--dir", "/x", "--device", "ram"]).is_err());
        assert!(parse(&["meta", "--files", "5", "--secs", "2"]).is_err());
        assert!(parse(&["meta", "--files", "5"]).unwrap().check().is_ok());
        assert!(parse(&["meta", "--shared", "--control"]).is_err());
        let refusal = parse(&["jbd2-tiny", "--blocks", "5"]).unwrap().check().unwrap_err().to_string();
        assert_eq!(refusal, "--blocks does not apply to the jbd2-tiny preset");
    }

    #[test]
    fn every_preset_is_called_what_the_command_line_calls_it() {
        for preset in Preset::value_variants() {
            assert_eq!(preset.to_possible_value().unwrap().get_name(), preset.name());
            assert_eq!(PRESETS.iter().filter(|(p, _, _)| p == preset).count(), 1);
        }
    }
}
