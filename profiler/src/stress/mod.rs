//! `lockscope stress`: loads that are known to contend on one lock, each with a control that must not.
//!
//! What a profiler shows can only be believed against a load whose counts come from elsewhere; this is that load.
//! It knows the operating system and the histogram layout, nothing else of lockscope: it must never read a probe,
//! a map or a snapshot, or the measurement and its yardstick would share their mistakes.

mod args;
mod board;
mod clock;
mod device;
mod dio_append;
mod dir_readers;
mod fault;
mod folder;
mod gauge;
mod geometry;
mod jbd2_dirsync;
mod jbd2_fsync;
mod jbd2_tiny;
mod lru_cliff;
mod meta;
mod mmap;
mod mountinfo;
mod parts;
mod report;
mod run;
mod seed;
mod series;
mod signal;
mod tool;
mod undo;

pub use args::{DeviceChoice, Preset, StressArgs};
pub use fault::HostCannot;
pub use report::{Ending, Latency, Report, Role, Unserved};
pub use run::Span;

use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Two runs in one process would share signal handlers and disturb each other's figures.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the preset, prints the report to stdout and returns the exit code: 0 done (also when a first Ctrl-C cut
/// it short), 2 refused or failed, 3 this host cannot run it, 130 after a second Ctrl-C.
///
/// Messages about failures go to stderr; `Err` is left for a report that could not be printed.
pub fn run(args: &StressArgs) -> anyhow::Result<u8> {
    let mut out = std::io::stdout().lock();
    run_to(args, &mut out)
}

/// As [`run`], with the report written to `out`.
pub fn run_to(args: &StressArgs, out: &mut dyn Write) -> anyhow::Result<u8> {
    match measure(args) {
        Ok(_) if signal::count() > 1 => Ok(130),
        Ok(reports) => {
            report::print(&reports, args.json, out)?;
            Ok(verdict(&reports))
        }
        Err(error) => {
            eprintln!("lockscope stress: {error:#}");
            Ok(exit_code(&error))
        }
    }
}

/// Runs the preset, once per `--threads` value, and returns the reports; everything it made is gone by then.
pub fn measure(args: &StressArgs) -> anyhow::Result<Vec<Report>> {
    args.check()?;
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let _signals = signal::Guard::install();
    match args.preset {
        Preset::DioAppend => dio_append::measure(args),
        Preset::Mmap => mmap::measure(args),
        Preset::LruCliff => lru_cliff::measure(args),
        Preset::Meta => meta::measure(args),
        Preset::DirReaders => dir_readers::measure(args),
        Preset::Jbd2Tiny => jbd2_tiny::measure(args),
        Preset::Jbd2Fsync => jbd2_fsync::measure(args),
        Preset::Jbd2Dirsync => jbd2_dirsync::measure(args),
    }
}

/// The exit code an error of [`measure`] stands for: 3 when this host cannot run it, else 2.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<HostCannot>() { 3 } else { 2 }
}

fn verdict(reports: &[Report]) -> u8 {
    for report in reports {
        if let Some(error) = &report.error {
            eprintln!("lockscope stress: {error}");
            return 2;
        }
    }
    if reports.iter().all(|r| r.seconds.is_none()) {
        eprintln!("lockscope stress: stopped before anything was measured");
        return 2;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_that_cannot_gives_3() {
        let host = anyhow::Error::new(HostCannot("no loop".into())).context("setting up");
        assert_eq!(exit_code(&host), 3);
        assert_eq!(exit_code(&anyhow::anyhow!("refused")), 2);
    }
}
