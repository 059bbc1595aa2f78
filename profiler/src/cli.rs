//! The command line, as types. No default is decided elsewhere; nothing is done here.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{stress::StressArgs, workload, workload::Selection, workload::command::CommandUser};

/// Frames walked unless the user says otherwise.
const DEFAULT_DEPTH: u32 = 16;

/// A live lock-contention profiler for Linux: which lock, who waits, how long, spinning or sleeping, behind whom.
#[derive(Debug, Parser)]
#[command(name = "lockscope", version, arg_required_else_help = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done · 2 usage or error · 3 this host cannot run it · 130 second Ctrl-C"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record lock waits to a file, for a time, until Ctrl-C, or while a command runs
    Record(RecordArgs),
    /// Print the tables of a recording; needs no root
    Report(ReportArgs),
    /// Print the worst waits again and again
    Top(TopArgs),
    /// Say what this host lets lockscope see, found by trying, and what is missing
    Doctor(DoctorArgs),
    /// Make lock contention on purpose, on a loop or RAM device of its own
    Stress(StressArgs),
}

/// What to measure, and whose.
#[derive(Args, Clone, Debug)]
pub struct MeasureArgs {
    /// Probes to attach [default: all that can be]
    #[arg(long = "probe", value_name = "PROBE", value_delimiter = ',')]
    pub probes: Vec<ProbeName>,
    /// Record this process; may be given several times. With several selectors, any that matches counts
    #[arg(long = "pid", value_name = "PID", value_delimiter = ',')]
    pub pids: Vec<u32>,
    /// Record tasks of this name (at most 15 bytes)
    #[arg(long = "comm", value_name = "NAME", value_delimiter = ',')]
    pub comms: Vec<String>,
    /// Record everything below this cgroup v2: a directory, or a path below the mount point
    #[arg(long = "cgroup", value_name = "PATH")]
    pub cgroups: Vec<PathBuf>,
    /// Count waits shorter than this by kind only, with no stack walked: 500ns, 10us, 1ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_ns)]
    pub min_wait: u64,
    /// Frames of each kernel stack to walk, 0 to 32; 0 walks none, and no caller is known
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DEPTH, value_parser = clap::value_parser!(u32).range(0..=32))]
    pub stack_depth: u32,
    /// Bound on the memory of all maps, in MiB [default: 64 for each 64 possible CPUs begun]
    #[arg(long, value_name = "MIB")]
    pub map_memory: Option<u64>,
    /// Most of the machine's CPU time that our BPF programs may take, in per cent. Above it stacks are given up, then sampled
    /// timings, then whole probes, each with a message; 100 = no bound
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = parse_percent)]
    pub max_overhead: f64,
    /// Record only waits in this file system or block device: MAJ:MIN, or a mount point
    #[arg(long, value_name = "MAJ:MIN|MOUNTPOINT")]
    pub device: Option<String>,
    /// Put kernel addresses into what is written; without it they never leave this host
    #[arg(long)]
    pub raw_addresses: bool,
    /// Print the kernel side's own log lines for rare events (a key's first sight, a full table)
    #[arg(long)]
    pub bpf_log: bool,
    /// Use only this hook for the rwsem probe, to compare hooks
    #[arg(long, value_name = "HOOK", hide = true)]
    pub rwsem_hook: Option<String>,
    /// Use only this hook for the contention probe, to compare hooks
    #[arg(long, value_name = "HOOK", hide = true)]
    pub contention_hook: Option<String>,
}

/// A probe by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbeName {
    /// Every kernel lock's tracepoints
    Contention,
    /// The slow paths of reader-writer semaphores
    Rwsem,
    /// jbd2's handles, waits by cause, commits and fsync
    Jbd2,
    /// The bit locks of buffers and folios
    BitLock,
    /// The per-CPU LRU of buffer heads
    BhLru,
}

impl ProbeName {
    /// The probe's id.
    pub fn id(self) -> &'static str {
        match self {
            ProbeName::Contention => "contention",
            ProbeName::Rwsem => "rwsem",
            ProbeName::Jbd2 => "jbd2",
            ProbeName::BitLock => "bit-lock",
            ProbeName::BhLru => "bh-lru",
        }
    }
}

impl MeasureArgs {
    /// Everything at its default but the bound on memory: what doctor tries.
    pub fn nothing_special(map_memory: Option<u64>) -> MeasureArgs {
        MeasureArgs {
            probes: Vec::new(),
            pids: Vec::new(),
            comms: Vec::new(),
            cgroups: Vec::new(),
            min_wait: 0,
            stack_depth: DEFAULT_DEPTH,
            map_memory,
            max_overhead: 100.0,
            device: None,
            raw_addresses: false,
            bpf_log: false,
            rwsem_hook: None,
            contention_hook: None,
        }
    }

    /// Whose waits, with the command that a subcommand may have.
    ///
    /// # Errors
    /// When the device does not exist.
    pub fn selection(&self, command: &[OsString]) -> anyhow::Result<Selection> {
        let device = self.device.as_ref().map(|text| anyhow::Ok((workload::device_of(text)?, text.clone())));
        Ok(Selection {
            device: device.transpose()?,
            pids: self.pids.clone(),
            comms: self.comms.clone(),
            cgroups: self.cgroups.clone(),
            command: command.to_vec(),
        })
    }
}

/// `lockscope record`
#[derive(Args, Clone, Debug)]
pub struct RecordArgs {
    /// File to write; its owner is the user who called sudo, its mode 0600
    #[arg(short, long, value_name = "FILE", default_value = "lockscope.rec")]
    pub output: PathBuf,
    /// Stop after this many seconds; a command still running then gets SIGTERM
    #[arg(short, long, value_name = "SECS")]
    pub duration: Option<f64>,
    /// Seconds between two snapshots
    #[arg(long, value_name = "SECS", default_value_t = 1.0)]
    pub interval: f64,
    /// User to run the command as [default: the one who called sudo]
    #[arg(long, value_name = "USER")]
    pub cmd_user: Option<String>,
    /// What to measure.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Command to run and follow, with all its children and threads, from exec on. Work that others do for it (kworkers,
    /// the jbd2 thread) is not followed; interrupts that hit its tasks are counted
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl RecordArgs {
    /// Whom the command runs as.
    pub fn user(&self) -> CommandUser {
        self.cmd_user.clone().map_or(CommandUser::Caller, CommandUser::Named)
    }
}

/// `lockscope report`
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// The recording
    pub file: PathBuf,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Rows of the table
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
}

/// A report's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text
    Table,
    /// One JSON object (docs/report-v1.schema.json)
    Json,
}

/// `lockscope top`
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Print tables to standard output, one after the other
    #[arg(long, required = true)]
    pub batch: bool,
    /// Seconds between two tables
    #[arg(long, value_name = "SECS", default_value_t = 2.0)]
    pub interval: f64,
    /// Stop after this many tables
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// What to measure.
    #[command(flatten)]
    pub measure: MeasureArgs,
}

/// `lockscope doctor`
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Bound on the memory of all maps, in MiB [default: 64 for each 64 possible CPUs begun]
    #[arg(long, value_name = "MIB")]
    pub map_memory: Option<u64>,
}

/// A share in per cent, above 0.
fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.trim_end_matches('%').parse().map_err(|_| format!("{text} is no number"))?;
    if percent.is_finite() && percent > 0.0 && percent <= 100.0 {
        Ok(percent)
    } else {
        Err(format!("{text}: give more than 0 and at most 100"))
    }
}

/// A time with its unit, as nanoseconds; a bare number is nanoseconds.
fn parse_ns(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        other => return Err(format!("unknown unit {other}: use ns, us, ms or s")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("{text} is no time: try 10us"))?;
    if !number.is_finite() || number < 0.0 || number * unit > 1e15 {
        return Err(format!("{text} is out of range"));
    }
    Ok((number * unit).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_ns("0"), Ok(0));
        assert_eq!(parse_ns("500ns"), Ok(500));
        assert_eq!(parse_ns("1.5us"), Ok(1500));
        assert_eq!(parse_ns("2ms"), Ok(2_000_000));
        assert!(parse_ns("3min").is_err());
        assert!(parse_ns("-1us").is_err());
        assert!(parse_ns("us").is_err());
    }

    #[test]
    fn every_probe_has_a_name() {
        for spec in crate::probes::ALL {
            assert!(ProbeName::value_variants().iter().any(|name| name.id() == spec.id));
        }
    }
}
