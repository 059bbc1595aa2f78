//! `cargo xtask demo`: builds, runs the stress presets under the recorder, prints the reports. On this host when it
//! permits function probes, else in a VM, and says which and why. Must not need anything that it does not set up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::exec::{self, cannot_here};
use crate::setup;
use crate::vm::{self, Kernel, VmSpec};

/// `cargo xtask demo`
#[derive(Args)]
pub struct DemoArgs {
    /// Run on this host, with whatever it permits
    #[arg(long, conflicts_with = "vm")]
    host: bool,
    /// Run in a VM with this kernel
    #[arg(long, value_name = "KERNEL", num_args = 0..=1, default_missing_value = "6.12-cloud")]
    vm: Option<Kernel>,
    /// Seconds of each preset
    #[arg(long, default_value_t = 5)]
    secs: u32,
    /// Run right here and build nothing: how the demo runs inside the VM
    #[arg(long, hide = true)]
    here: bool,
}

/// A preset to show, and what to look at in its report.
struct Scene {
    name: &'static str,
    args: &'static [&'static str],
    /// Probes asked for by name, to have them all the time; none: all, as by default.
    probes: Option<&'static str>,
    look: &'static str,
}

const SCENES: [Scene; 8] = [
    Scene {
        name: "dio-append",
        args: &["dio-append", "--pin"],
        probes: None,
        look: "one appender and one reader of the same file: the appender's inode lock is the top write wait",
    },
    Scene {
        name: "dio-append-control",
        args: &["dio-append", "--pin", "--control"],
        probes: None,
        look: "the same load on two files: no such wait, so it was the lock and not the CPUs",
    },
    Scene {
        name: "mmap",
        args: &["mmap"],
        probes: None,
        look: "four threads of one process map and unmap memory: mmap_lock, written and read",
    },
    Scene {
        name: "jbd2-tiny",
        args: &["jbd2-tiny"],
        probes: Some("jbd2,contention,bit-lock"),
        look: "files replaced with a journal of 4 MiB: see in START WAIT what a handle's start waits for – room in the log",
    },
    Scene {
        name: "jbd2-fsync",
        args: &["jbd2-fsync"],
        probes: Some("jbd2,contention,bit-lock"),
        look: "four threads append and fsync: the line *fsync* says where the time goes, COMMITS how long each phase took",
    },
    Scene {
        name: "jbd2-dirsync",
        args: &["jbd2-dirsync"],
        probes: Some("jbd2,contention"),
        look: "two creators in dirsync directories: *batching* is a deliberate sleep inside the create, and no contention",
    },
    Scene {
        name: "lru-cliff-16",
        args: &["lru-cliff", "--blocks", "16"],
        probes: Some("bh-lru"),
        look: "16 inode-table blocks in turn on one CPU: all of them fit its buffer LRU",
    },
    Scene {
        name: "lru-cliff-17",
        args: &["lru-cliff", "--blocks", "17"],
        probes: Some("bh-lru"),
        look: "17 of them: not one does",
    },
];

/// Runs the subcommand.
pub fn command(args: &DemoArgs) -> Result<ExitCode> {
    if args.here {
        return show_all(args.secs);
    }
    build()?;
    if !setup::is_root() {
        return Err(cannot_here("the demo attaches probes and makes a file system: run it as root"));
    }
    let (kernel, why) = place(args)?;
    println!("demo: {why}\n");
    match kernel {
        None => show_all(args.secs),
        Some(kernel) => in_vm(kernel, args.secs),
    }
}

fn build() -> Result<()> {
    let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    exec::run(cmd.args(["build", "--release", "-p", "profiler"]).current_dir(setup::root()))
}

fn lockscope() -> PathBuf {
    setup::target().join("release/lockscope")
}

/// Where to run, and why there.
fn place(args: &DemoArgs) -> Result<(Option<Kernel>, String)> {
    if let Some(kernel) = args.vm {
        return Ok((Some(kernel), format!("in a VM with Debian's {}, as asked", kernel.name())));
    }
    let reason = function_probes()?;
    Ok(match (args.host, reason) {
        (_, None) => (None, "on this host, which permits function probes".into()),
        (true, Some(reason)) => (None, format!("on this host as asked, without function probes: {reason}")),
        (false, Some(reason)) => {
            let kernel = Kernel::Cloud612;
            (
                Some(kernel),
                format!(
                    "in a VM with Debian's {}, since this host has no function probes: {reason}",
                    kernel.name()
                ),
            )
        }
    })
}

/// Why this host has no function probes; `None` when it has.
fn function_probes() -> Result<Option<String>> {
    let output = exec::any_status(Command::new(lockscope()).args(["doctor", "--json"]))?;
    let doctor: Value = serde_json::from_slice(&output.stdout).context("reading lockscope doctor --json")?;
    let lines = doctor["coverage"].as_array().cloned().unwrap_or_default();
    let line = lines.iter().find(|line| line["probe"] == "rwsem");
    Ok(match line {
        Some(line) if line["hook"].is_string() => None,
        Some(line) => Some(line["reason"].as_str().unwrap_or("no reason given").to_owned()),
        None => Some("no probe can be attached".to_owned()),
    })
}

fn in_vm(kernel: Kernel, secs: u32) -> Result<ExitCode> {
    setup::ensure(&[&setup::VM])?;
    let own = std::env::current_exe()?.display().to_string();
    let mut spec =
        VmSpec::new(kernel, [own, "demo".into(), "--here".into(), "--secs".into(), secs.to_string()]);
    spec.capture = false;
    let outcome = vm::run(&spec)?;
    if let Some(fault) = outcome.retried {
        println!("harness fault: {fault}; these are the figures of the single-threaded repetition");
    }
    Ok(ExitCode::from(u8::try_from(outcome.status).unwrap_or(1)))
}

fn show_all(secs: u32) -> Result<ExitCode> {
    setup::ensure_packages(&["e2fsprogs", "util-linux"])?;
    let folder = setup::target().join("demo");
    fs::create_dir_all(&folder)?;
    let mut rates = Vec::new();
    for scene in &SCENES {
        rates.push((scene.name, show(scene, secs, &folder)?));
    }
    println!("{}", closing(&rates));
    Ok(ExitCode::SUCCESS)
}

/// Records one scene and prints its report; says the operations a second of the first role.
fn show(scene: &Scene, secs: u32, folder: &Path) -> Result<f64> {
    let file = folder.join(format!("{}.rec", scene.name));
    println!("==== {}: {}\n", scene.name, scene.look);
    let mut record = Command::new(lockscope());
    // Emulated CPUs make our programs look dearer than they are: without a bound.
    record.args(["record", "--max-overhead", "100", "--cmd-user", "root", "-d", "120", "-o"]).arg(&file);
    record.args(scene.probes.iter().flat_map(|probes| ["--probe", probes])).arg("--").arg(lockscope());
    record.arg("stress").args(scene.args).args(where_to_write(scene)).args([
        "--json",
        "--secs",
        &secs.to_string(),
    ]);
    let output =
        record.stdin(Stdio::null()).stderr(Stdio::inherit()).output().with_context(|| exec::show(&record))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, exec::show(&record));
    }
    let stress: Value = serde_json::from_slice(&output.stdout).context("reading the load's own summary")?;
    println!("{}", load_in_words(&stress));
    exec::run(Command::new(lockscope()).args(["report", "-n", "6"]).arg(&file))?;
    println!();
    Ok(stress["roles"][0]["ops_per_s"].as_f64().unwrap_or(0.0))
}

/// In the VM the RAM disk that the harness has made: a loop device's own work would dwarf the lock's there.
fn where_to_write(scene: &Scene) -> &'static [&'static str] {
    let in_vm = std::env::var_os("LOCKSCOPE_VM").is_some();
    if in_vm && scene.name.starts_with("dio") { &["--dir", "/tmp/mnt"] } else { &[] }
}

fn load_in_words(stress: &Value) -> String {
    let roles = stress["roles"].as_array().cloned().unwrap_or_default();
    let words: Vec<String> = roles
        .iter()
        .map(|role| {
            let (name, rate) =
                (role["role"].as_str().unwrap_or("?"), role["ops_per_s"].as_f64().unwrap_or(0.0));
            format!("{name} {rate:.0} operations/s")
        })
        .collect();
    format!("the load itself counted: {}\n", words.join(", "))
}

fn closing(rates: &[(&str, f64)]) -> String {
    let rate = |name: &str| rates.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, rate)| *rate);
    let (shared, apart) = (rate("dio-append"), rate("dio-append-control"));
    let ratio =
        if shared > 0.0 { format!("{:.1} times as many", apart / shared) } else { "n/a (none)".into() };
    let folder = setup::target().join("demo");
    format!(
        "the appender did {shared:.0} writes/s beside a reader of its file and {apart:.0} beside a reader of another file: {ratio}\n\
         recordings: {} (lockscope report FILE, --format json)",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_compares_shared_and_apart() {
        let text = closing(&[("dio-append", 1000.0), ("dio-append-control", 20_000.0), ("mmap", 5.0)]);
        assert!(text.contains("20.0 times as many"), "{text}");
        assert!(closing(&[]).contains("n/a (none)"));
    }
}
