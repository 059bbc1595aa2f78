//! `cargo xtask`: lockscope's own build, test and demo commands. Dispatches only; each command has its file.

mod bpf;
mod demo;
mod exec;
mod lint;
mod setup;
mod test;
mod tidy;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "lockscope's own build, test and demo commands", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile the kernel side into profiler/bpf/lockscope.bpf.o, or check that this gives the committed bytes.
    Bpf(bpf::BpfArgs),
    /// Record the stress presets and print the reports: what lockscope shows, in about two minutes.
    Demo(demo::DemoArgs),
    /// All checks and tests: this repository's rules, the BPF object, this host, and the VMs.
    Test(test::TestArgs),
    /// Check format and clippy.
    Lint,
    /// Check the repository's own rules: stages, file headers, names, function lengths.
    Tidy,
    /// Boot a Debian kernel under software emulation and run a command in it.
    Vm(vm::VmArgs),
}

fn main() -> ExitCode {
    report(bpf::as_rustc_wrapper().unwrap_or_else(dispatch))
}

fn dispatch() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Bpf(args) => bpf::command(&args),
        Command::Demo(args) => demo::command(&args),
        Command::Test(args) => test::command(&args),
        Command::Lint => done(lint::command()),
        Command::Tidy => done(tidy::command()),
        Command::Vm(args) => vm::command(args),
    }
}

fn done(result: Result<()>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

fn report(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        let exit = error.chain().find_map(|cause| cause.downcast_ref::<exec::Exit>());
        ExitCode::from(exit.map_or(1, |exit| exit.code))
    })
}
