//! `cargo xtask vm`: boots a Debian kernel under software emulation with the host's root folder as the guest's,
//! runs one command there and passes its output and exit status through. `run` is the same for other commands.
//!
//! In the guest / is read-only; the project's `target/` (and cargo's own, if elsewhere) is writable and shared; /tmp
//! and /run are the guest's own, so a program built under the host's /tmp is visible only inside CARGO_TARGET_DIR.
//! Must not hide a fault of the harness: a repeated run is always reported.

mod guest;
mod initrd;
pub mod kernels;
mod machine;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use clap::Args;

use crate::exec::{Exit, cannot_here};
use crate::setup;
use guest::RunDir;
pub use kernels::Kernel;
use machine::Machine;
use watch::{End, Seen, text_patching_oops, watch};

/// Hides the emulator's hypervisor bit: with it the kernel switches to paravirtual locks and clocks.
const CPU_MODEL: &str = "max,-hypervisor";
/// The exit status when the command ran too long, as timeout(1) has it.
pub const TIMED_OUT: i32 = 124;
/// The exit status when the harness itself failed: not to be mixed up with the command's.
const HARNESS_FAILED: u8 = 125;

/// `cargo xtask vm KERNEL -- CMD…`
#[derive(Debug, Args)]
pub struct VmArgs {
    /// Which kernel to boot.
    kernel: Kernel,
    /// Virtual CPUs.
    #[arg(long, default_value_t = 4)]
    cpus: u32,
    /// The guest's memory.
    #[arg(long, default_value = "4G")]
    mem: String,
    /// Seconds the command may take, from the end of the boot (exit status 124 beyond).
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// QEMU's CPU model.
    #[arg(long, default_value = CPU_MODEL)]
    cpu_model: String,
    /// Show the hypervisor bit to the kernel (paravirtual locks).
    #[arg(long, conflicts_with = "cpu_model")]
    hypervisor: bool,
    /// One CPU, one instruction = one nanosecond: for measuring cost, repeatable to about 1 %.
    #[arg(long)]
    icount: bool,
    /// Emulate all CPUs in one thread: slower, without the known boot panics.
    #[arg(long)]
    single: bool,
    /// Journal size of the ext4 on /tmp/mnt, in MiB.
    #[arg(long, default_value_t = 16)]
    jsz: u32,
    /// More words for the kernel's command line.
    #[arg(long, default_value = "")]
    append: String,
    /// The command, run in the project's root folder.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// How the CPUs are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// One host thread per CPU: fast; sometimes panics while the kernel patches its text.
    Multi,
    /// One host thread for all.
    Single,
    /// One CPU whose clock counts instructions.
    Icount,
}

/// What to boot and what to run there.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Which kernel.
    pub kernel: Kernel,
    /// Virtual CPUs (always 1 with [`Accel::Icount`]).
    pub cpus: u32,
    /// Memory as QEMU writes it.
    pub mem: String,
    /// How long the command may take, from the end of the boot.
    pub timeout: Duration,
    /// A command that has begun to print and then prints nothing for this long is taken for a hung guest; none: never.
    pub silence: Option<Duration>,
    /// QEMU's CPU model.
    pub cpu_model: String,
    /// How the CPUs are emulated.
    pub accel: Accel,
    /// Journal size of the ext4 on /tmp/mnt.
    pub journal_mib: u32,
    /// More words for the kernel's command line.
    pub append: String,
    /// Program and arguments; the working folder is the project's root.
    pub command: Vec<String>,
    /// Variables for the command, besides the caller's `LOCKSCOPE_*` and `RUST_*`.
    pub env: Vec<(String, String)>,
    /// Pass output on while it appears.
    pub stream: bool,
    /// Return output in [`VmOutcome`].
    pub capture: bool,
}

impl VmSpec {
    /// The usual machine: 4 CPUs, 4 GiB, 10 minutes, output streamed and captured.
    pub fn new<W: Into<String>>(kernel: Kernel, command: impl IntoIterator<Item = W>) -> Self {
        Self {
            kernel,
            cpus: 4,
            mem: "4G".into(),
            timeout: Duration::from_secs(600),
            silence: None,
            cpu_model: CPU_MODEL.into(),
            accel: Accel::Multi,
            journal_mib: 16,
            append: String::new(),
            command: command.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            stream: true,
            capture: true,
        }
    }

    fn effective_cpus(&self) -> u32 {
        if self.accel == Accel::Icount { 1 } else { self.cpus }
    }

    /// 7 s is usual for 4 CPUs and 140 s for 64 on an idle machine of 2 cores; busy ones are several times slower.
    fn boot_limit(&self) -> Duration {
        Duration::from_secs(120 + 8 * u64::from(self.effective_cpus()))
    }
}

/// How a command in the guest ended.
#[derive(Debug)]
pub struct VmOutcome {
    /// Its exit status ([`TIMED_OUT`] when it ran too long).
    pub status: i32,
    /// The harness fault because of which the run was repeated single-threaded.
    pub retried: Option<String>,
    /// Its stdout, if captured (of the repeated run alone).
    pub output: String,
}

/// Runs the subcommand.
pub fn command(args: VmArgs) -> Result<ExitCode> {
    let outcome = run(&spec_of(args)).map_err(harness_failure)?;
    if outcome.retried.is_some() {
        eprintln!(
            "xtask vm: this is the result of the single-threaded repetition, see the harness fault above"
        );
    }
    // A status beyond 255 cannot come out of a shell.
    Ok(ExitCode::from(u8::try_from(outcome.status).unwrap_or(HARNESS_FAILED)))
}

fn spec_of(args: VmArgs) -> VmSpec {
    let accel = match (args.icount, args.single) {
        (true, _) => Accel::Icount,
        (false, true) => Accel::Single,
        (false, false) => Accel::Multi,
    };
    let cpu_model = if args.hypervisor { "max".into() } else { args.cpu_model };
    let (kernel, cpus, mem, append) = (args.kernel, args.cpus, args.mem, args.append);
    let timeout = Duration::from_secs(args.timeout);
    let usual = VmSpec::new(kernel, args.command);
    VmSpec { cpus, mem, timeout, cpu_model, accel, journal_mib: args.jsz, append, capture: false, ..usual }
}

fn harness_failure(error: anyhow::Error) -> anyhow::Error {
    if error.is::<Exit>() || error.chain().any(|cause| cause.is::<Exit>()) {
        return error;
    }
    Exit { code: HARNESS_FAILED, message: format!("{error:#}") }.into()
}

/// Boots, runs the command, switches off. A boot that never gets ready, or a run that dies of QEMU's known
/// text-patching fault, is repeated once single-threaded; a guest that hangs (see `VmSpec::silence`) once as it was;
/// everything else that kills the guest is an error.
pub fn run(spec: &VmSpec) -> Result<VmOutcome> {
    prepare_host(spec)?;
    match attempt(spec)? {
        Attempt::Done(outcome) => Ok(outcome),
        Attempt::Hung(fault) => again(spec, fault, spec.accel),
        Attempt::Fault(fault) if spec.accel == Accel::Multi => again(spec, fault, Accel::Single),
        Attempt::Fault(fault) => Err(anyhow!("harness fault: {fault}")),
    }
}

fn again(spec: &VmSpec, fault: String, accel: Accel) -> Result<VmOutcome> {
    let how = if accel == Accel::Single { "single-threaded" } else { "as it was" };
    eprintln!("xtask vm: harness fault: {fault}, retried {how}");
    match attempt(&VmSpec { accel, ..spec.clone() })? {
        Attempt::Done(outcome) => Ok(VmOutcome { retried: Some(fault), ..outcome }),
        Attempt::Fault(second) | Attempt::Hung(second) => {
            Err(anyhow!("harness fault twice: {fault}; then {how}: {second}"))
        }
    }
}

fn prepare_host(spec: &VmSpec) -> Result<()> {
    ensure!(!spec.command.is_empty(), "no command to run in the guest");
    setup::ensure(&[&setup::VM])?;
    if !setup::is_root() {
        return Err(cannot_here("virtual machines need root here: virtiofsd serves the host's root folder"));
    }
    guest::check_paths()
}

enum Attempt {
    Done(VmOutcome),
    /// Not the command's doing.
    Fault(String),
    /// The guest stands still, with a CPU that spins.
    Hung(String),
}

fn attempt(spec: &VmSpec) -> Result<Attempt> {
    let kernel = kernels::ensure(spec.kernel)?;
    let mut run = RunDir::prepare(spec, &kernel)?;
    let mut machine = Machine::start(spec, &kernel, &run)?;
    let seen = watch(spec, &mut machine, &run)?;
    drop(machine);
    judge(spec, seen, &mut run)
}

fn judge(spec: &VmSpec, seen: Seen, run: &mut RunDir) -> Result<Attempt> {
    let status = match &seen.end {
        End::Status(status) => return Ok(Attempt::Done(outcome(*status, &seen))),
        End::Timeout | End::Silent => TIMED_OUT,
        End::Died(_) => i32::from(HARNESS_FAILED),
    };
    let kept = run.keep().display().to_string();
    let console = run.text("console.log");
    if let Some(oops) = text_patching_oops(&console) {
        return Ok(Attempt::Fault(format!("{oops} (emulation, see {kept})")));
    }
    match seen.end {
        End::Silent => Ok(Attempt::Hung(format!("the guest fell silent (see {kept})"))),
        End::Died(why) if !seen.ready => {
            Ok(Attempt::Fault(format!("the guest never got ready: {why} (see {kept})")))
        }
        End::Died(why) => {
            Err(anyhow!("the guest died: {why}; logs in {kept}; its console:\n{}", last_lines(&console)))
        }
        _ => {
            eprintln!("xtask vm: timed out after {} s; logs in {kept}", spec.timeout.as_secs());
            Ok(Attempt::Done(outcome(status, &seen)))
        }
    }
}

fn outcome(status: i32, seen: &Seen) -> VmOutcome {
    VmOutcome { status, retried: None, output: String::from_utf8_lossy(&seen.output).into_owned() }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
