//! `cargo xtask test`: all checks and tests, ring by ring – the repository's rules, the BPF object, this host, and the
//! VMs – ending with one line that counts them. A ring that fails does not hide the next one.

mod counts;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;

use crate::bpf::{self, Check};
use crate::exec;
use crate::setup;
use crate::vm::{self, Accel, Kernel, VmSpec};
use crate::{lint, tidy};
use counts::{Counts, parse_libtest};

/// Names an object that the program loads in place of the committed one.
const OBJECT_VARIABLE: &str = "LOCKSCOPE_BPF_OBJECT";

/// `cargo xtask test`
#[derive(Args)]
pub struct TestArgs {
    /// Leave out the virtual machines
    #[arg(long)]
    no_vm: bool,
}

/// Everything found so far.
#[derive(Default)]
struct Tally {
    counts: Counts,
    notes: Vec<String>,
}

impl Tally {
    fn check(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.counts.passed += 1,
            Err(error) => {
                self.counts.failed += 1;
                self.notes.push(format!("FAILED {name}: {error:#}"));
            }
        }
    }

    /// Adds a test program's counts; a program that ends badly without a failed test is a failure of its own.
    fn ring(&mut self, name: &str, result: Result<(Counts, bool)>) {
        match result {
            Ok((counts, ended_well)) => {
                eprintln!(
                    "xtask test: {name}: {} passed, {} failed, {} skipped",
                    counts.passed, counts.failed, counts.skipped
                );
                if counts.failed > 0 || !ended_well {
                    self.notes.push(format!("FAILED {name}: {} failed", counts.failed));
                }
                let silent = counts.failed == 0 && (!ended_well || counts.passed == 0);
                self.counts.passed += counts.passed;
                self.counts.failed += counts.failed + usize::from(silent);
                self.counts.skipped += counts.skipped;
                self.notes.extend(counts.reasons.iter().map(|reason| format!("skipped in {name}: {reason}")));
            }
            Err(error) => self.check(name, Err(error)),
        }
    }
}

/// Runs the subcommand.
pub fn command(args: &TestArgs) -> Result<ExitCode> {
    setup::ensure(&[&setup::BPF, &setup::VM, &setup::TEST])?;
    let mut tally = Tally::default();
    tally.check("lint", lint::command());
    tally.check("tidy", tidy::command());
    let object = check_object(&mut tally);
    tally.ring("host", host_ring(object.as_ref()));
    if !args.no_vm {
        vm_rings(&mut tally, object.as_ref());
    }
    Ok(finish(&tally))
}

fn finish(tally: &Tally) -> ExitCode {
    for note in &tally.notes {
        println!("{note}");
    }
    let Counts { passed, failed, skipped, .. } = &tally.counts;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if *failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Rebuilds the BPF object; with other tools than the recorded ones, the tests run on the rebuilt object.
fn check_object(tally: &mut Tally) -> Option<PathBuf> {
    match bpf::check() {
        Ok(Check::Same) => tally.check("bpf --check", Ok(())),
        Ok(Check::OtherTools { object }) => {
            tally.counts.skipped += 1;
            let path = object.display();
            tally.notes.push(format!(
                "skipped bpf --check: other tools than recorded; the tests ran on the rebuilt {path}"
            ));
            return Some(object);
        }
        Err(error) => tally.check("bpf --check", Err(error)),
    }
    None
}

fn cargo() -> Command {
    let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.current_dir(setup::root());
    cmd
}

/// Test programs of the profiler that run on this host; `vm` is for the VMs.
const HOST_TESTS: [&str; 5] = ["golden", "object", "pairing", "live", "witness"];

fn host_ring(object: Option<&PathBuf>) -> Result<(Counts, bool)> {
    let mut cmd = cargo();
    cmd.args(["test", "--release", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
    cmd.args(HOST_TESTS.iter().flat_map(|name| ["--test", name]));
    cmd.args(["--", "--show-output"]);
    if let Some(object) = object {
        cmd.env(OBJECT_VARIABLE, object);
    }
    let (text, ended_well) = stream(&mut cmd)?;
    Ok((parse_libtest(&text), ended_well))
}

/// Passes a command's output on and keeps it.
fn stream(cmd: &mut Command) -> Result<(String, bool)> {
    let mut child =
        cmd.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| exec::show(cmd))?;
    let out = child.stdout.take().ok_or_else(|| anyhow!("no output of {}", exec::show(cmd)))?;
    let mut text = String::new();
    for line in BufReader::new(out).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        text.push_str(&line);
        text.push('\n');
    }
    Ok((text, child.wait()?.success()))
}

/// The test programs that run in a VM, built.
struct VmPrograms {
    vm: String,
    pairing: String,
}

fn vm_rings(tally: &mut Tally, object: Option<&PathBuf>) {
    let programs = match build_vm_programs() {
        Ok(programs) => programs,
        Err(error) => return tally.check("building the VM tests", Err(error)),
    };
    for kernel in [Kernel::Cloud61, Kernel::Cloud612] {
        let ring = format!("VM {}", kernel.name());
        tally.ring(&ring, vm_ring(&whole_spec(kernel, &programs, object), tally_note(&ring)));
    }
    for (ring, spec) in special_specs(&programs, object) {
        tally.ring(ring, vm_ring(&spec, tally_note(ring)));
    }
}

fn tally_note(ring: &str) -> String {
    format!("xtask test: {ring}")
}

fn base_spec(kernel: Kernel, program: &str, object: Option<&PathBuf>) -> VmSpec {
    let mut spec = VmSpec::new(kernel, [program, "--test-threads=1", "--show-output"]);
    if let Some(object) = object {
        spec.env.push((OBJECT_VARIABLE.into(), object.display().to_string()));
    }
    spec
}

/// Both test programs in one boot.
fn whole_spec(kernel: Kernel, programs: &VmPrograms, object: Option<&PathBuf>) -> VmSpec {
    let mut spec = base_spec(kernel, &programs.vm, object);
    let run = |program: &str| format!("{program} --test-threads=1 --show-output");
    let (vm, pairing) = (run(&programs.vm), run(&programs.pairing));
    spec.timeout = Duration::from_secs(1800);
    // No test of these takes half as long.
    spec.silence = Some(Duration::from_secs(300));
    spec.command = vec!["sh".into(), "-c".into(), format!("{vm}; first=$?; {pairing} && exit $first")];
    spec
}

/// One test each, in a machine of its own kind.
fn special_specs(programs: &VmPrograms, object: Option<&PathBuf>) -> Vec<(&'static str, VmSpec)> {
    let only = |name: &str| {
        let mut spec = base_spec(Kernel::Cloud612, &programs.vm, object);
        spec.command.push(name.into());
        spec.env.push(("LOCKSCOPE_ONLY".into(), name.into()));
        spec
    };
    let mut hypervisor = only("with_the_hypervisor_bit_spinlock_waits_are_said_to_be_invisible");
    hypervisor.cpu_model = "max".into();
    let mut icount = only("under_icount");
    icount.accel = Accel::Icount;
    vec![
        ("VM 6.12-cloud with the hypervisor bit", hypervisor),
        ("VM 6.12-cloud counting instructions", icount),
    ]
}

fn vm_ring(spec: &VmSpec, note: String) -> Result<(Counts, bool)> {
    eprintln!("{note}");
    let outcome = vm::run(spec)?;
    if let Some(fault) = &outcome.retried {
        println!("harness fault: {fault}; the figures are of the repetition");
    }
    Ok((parse_libtest(&outcome.output), outcome.status == 0))
}

fn build_vm_programs() -> Result<VmPrograms> {
    let mut cmd = cargo();
    cmd.args(["test", "--release", "--no-run", "-p", "profiler", "--test", "vm", "--test", "pairing"]);
    cmd.arg("--message-format=json-render-diagnostics");
    let text = exec::output(&mut cmd)?;
    let find =
        |name: &str| executable(&text, name).with_context(|| format!("cargo named no executable {name}"));
    Ok(VmPrograms { vm: find("vm")?, pairing: find("pairing")? })
}

/// The executable of a test target, from cargo's messages.
fn executable(messages: &str, name: &str) -> Result<String> {
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if message["target"]["name"] == name
            && let Some(path) = message["executable"].as_str()
        {
            return Ok(path.to_owned());
        }
    }
    bail!("no such target in cargo's messages");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_by_its_target() {
        let text = "{\"target\":{\"name\":\"lib\"},\"executable\":null}\nnoise\n\
                    {\"target\":{\"name\":\"vm\"},\"executable\":\"/t/vm-1\"}\n";
        assert_eq!(executable(text, "vm").unwrap(), "/t/vm-1");
        assert!(executable(text, "pairing").is_err());
    }

    #[test]
    fn a_program_that_dies_without_a_failed_test_is_a_failure() {
        let mut tally = Tally::default();
        tally.ring("died", Ok((Counts { passed: 3, ..Counts::default() }, false)));
        tally.ring("ran nothing", Ok((Counts::default(), true)));
        assert_eq!((tally.counts.passed, tally.counts.failed), (3, 2));
    }
}
