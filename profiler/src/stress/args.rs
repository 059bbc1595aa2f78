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
}

impl Preset {
    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Preset::DioAppend => "dio-append",
            Preset::Mmap => "mmap",
        }
    }

    /// Threads of the writing role when `--threads` is not given.
    pub fn default_threads(self) -> u32 {
        match self {
            Preset::DioAppend => 1,
            Preset::Mmap => 4,
        }
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
    /// Threads of the writing role (dio-append: 1, mmap: 4); a list a,b,c runs each in turn
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,
    /// Reading threads (dio-append; default 1)
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub readers: Option<u32>,
    /// Open loop: start this many operations a second in the writing role, shared by its threads;
    /// latency is then counted from the intended start
    #[arg(long, value_name = "OPS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    /// Same work on disjoint objects: what remains slow is not this lock
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
    /// Use this directory; refused unless it is on a loop or RAM device (dio-append)
    #[arg(long, value_name = "DIR", conflicts_with = "device")]
    pub dir: Option<PathBuf>,
    /// What the file system it makes stands on (dio-append; default auto)
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
        let files = self.readers.is_some() || self.dir.is_some() || self.device.is_some();
        if self.preset == Preset::Mmap && files {
            bail!("--readers, --dir and --device do not apply to the mmap preset");
        }
        Ok(())
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
    }
}
