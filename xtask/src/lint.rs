//! `cargo xtask lint`: rustfmt and clippy over everything. Runs all of them before it fails. Must not change files.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{exec, setup};

/// Runs the subcommand.
pub fn command() -> Result<()> {
    let ebpf = setup::root().join("profiler-ebpf/Cargo.toml");
    let checks = [
        cargo(&["fmt", "--all", "--check"]),
        // Its own workspace; clippy would need the BPF target's core, so only its format is checked here.
        formatted(&ebpf),
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ];
    let failures: Vec<String> = checks.into_iter().filter_map(failure).collect();
    if !failures.is_empty() {
        bail!("lint failed:\n  {}", failures.join("\n  "));
    }
    Ok(())
}

fn failure(mut check: Command) -> Option<String> {
    eprintln!("xtask lint: {}", exec::show(&check));
    exec::run(&mut check).err().map(|error| format!("{error:#}"))
}

fn formatted(manifest: &Path) -> Command {
    let mut cmd = cargo(&["fmt", "--check", "--manifest-path"]);
    cmd.arg(manifest);
    cmd
}

fn cargo(args: &[&str]) -> Command {
    let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.args(args).current_dir(setup::root());
    cmd
}
