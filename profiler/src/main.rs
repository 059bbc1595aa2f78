//! The program `lockscope`: parses the command line, hands over to [`profiler::app`], and turns what comes back into an
//! exit code. Must not do anything else.

use std::process::ExitCode;

use clap::Parser;
use profiler::{app, cli::Cli, exit, terminal::say};

fn main() -> ExitCode {
    let code = app::run(Cli::parse()).unwrap_or_else(|error| {
        let code = exit::code_of(&error);
        if code != exit::DONE {
            say(&format!("{error:#}"));
        }
        code
    });
    ExitCode::from(code)
}
