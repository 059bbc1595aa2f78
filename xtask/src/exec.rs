//! Runs other programs. Every failure names the whole command line, so that it can be repeated by hand.
//! Must not know what any of the programs is for.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

/// An error that chooses xtask's exit status itself (any other error exits with 1).
#[derive(Debug)]
pub struct Exit {
    /// The exit status of xtask.
    pub code: u8,
    /// What to print.
    pub message: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

/// An error for "this machine cannot do it" (status 3 everywhere in lockscope).
pub fn cannot_here(message: impl Into<String>) -> anyhow::Error {
    Exit { code: 3, message: message.into() }.into()
}

/// A command that also finds the administrator's tools: `/usr/sbin` is not in every caller's PATH.
pub fn system(program: impl AsRef<OsStr>) -> Command {
    let mut cmd = Command::new(program);
    cmd.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    cmd
}

/// Runs `cmd` with our own input and output; fails unless it exits with 0.
pub fn run(cmd: &mut Command) -> Result<()> {
    let status = cmd.status().with_context(|| format!("could not start: {}", show(cmd)))?;
    if !status.success() {
        bail!("{status}: {}", show(cmd));
    }
    Ok(())
}

/// Runs `cmd` and returns what it printed on stdout; its stderr goes into the error.
pub fn output(cmd: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(cmd)?).into_owned())
}

/// The same as [`output`], for data that is not text.
pub fn bytes(cmd: &mut Command) -> Result<Vec<u8>> {
    let Output { status, stdout, stderr } = any_status(cmd)?;
    if !status.success() {
        bail!("{status}: {}\n{}", show(cmd), String::from_utf8_lossy(&stderr).trim_end());
    }
    Ok(stdout)
}

/// Runs `cmd` and returns everything, whatever its exit status: fails only if it cannot be started.
pub fn any_status(cmd: &mut Command) -> Result<Output> {
    cmd.stdin(Stdio::null()).output().with_context(|| format!("could not start: {}", show(cmd)))
}

/// The command line as one would type it (environment changes first).
pub fn show(cmd: &Command) -> String {
    let set = cmd.get_envs().filter(|(key, _)| *key != "PATH");
    let envs = set
        .filter_map(|(key, value)| Some(format!("{}={}", key.display(), quote(&value?.to_string_lossy()))));
    let words = std::iter::once(cmd.get_program()).chain(cmd.get_args());
    envs.chain(words.map(|word| quote(&word.to_string_lossy()))).collect::<Vec<_>>().join(" ")
}

/// Quotes `word` for a POSIX shell, if it has to be.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A child process that is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Guarded(Child);

impl Guarded {
    /// Starts `cmd` so that it also dies with us when we are killed and no destructor runs (Ctrl-C).
    pub fn spawn(cmd: &mut Command) -> Result<Self> {
        die_with_parent(cmd);
        Ok(Self(cmd.spawn().with_context(|| format!("could not start: {}", show(cmd)))?))
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<std::process::ExitStatus>> {
        Ok(self.0.try_wait()?)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only when the child is gone already, which is what we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets the kernel kill the child when the thread that starts it ends.
fn die_with_parent(cmd: &mut Command) {
    let hook = || {
        // SAFETY: prctl with PR_SET_PDEATHSIG takes two plain numbers and is async-signal-safe.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the hook runs between fork and exec and makes one system call: no allocation, no lock.
    unsafe { cmd.pre_exec(hook) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_its_words() {
        let error = run(Command::new("sh").args(["-c", "exit 7"])).unwrap_err().to_string();
        assert_eq!(error, "exit status: 7: sh -c 'exit 7'");
    }

    #[test]
    fn quoting_survives_a_shell() {
        for word in ["", "plain", "two words", "it's", "$HOME `x` \\ \"", "a\nb"] {
            let echoed =
                output(Command::new("sh").args(["-c", &format!("printf %s {}", quote(word))])).unwrap();
            assert_eq!(echoed, word);
        }
    }
}
