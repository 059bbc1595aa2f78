//! Runs the system's own tools (losetup, mkfs.ext4, modprobe), each for a bounded time.
//!
//! Must not go through a shell, and must not be used while measuring.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::fault::HostCannot;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs a tool and returns its trimmed output (a few lines at most); its own message when it fails.
pub(super) fn tool(name: &str, args: &[&str]) -> anyhow::Result<String> {
    let mut child = start(name, args)?;
    let status = wait(&mut child).with_context(|| name.to_owned())?;
    let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
    if !status.success() {
        bail!("{name} {}: {} ({status})", args.join(" "), err.trim());
    }
    Ok(out.trim().to_owned())
}

fn start(name: &str, args: &[&str]) -> anyhow::Result<Child> {
    // Users under su and cron often lack the sbin folders. In a group of its own: Ctrl-C is for us, not for a
    // half-done mkfs.
    let path = format!("{}:/usr/sbin:/sbin:/usr/bin:/bin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(name);
    command.args(args).env("PATH", path).env("LC_ALL", "C").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => HostCannot(format!("{name} is not installed")).into(),
        _ => anyhow::Error::new(error).context(format!("starting {name}")),
    })
}

fn wait(child: &mut Child) -> anyhow::Result<ExitStatus> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if begun.elapsed() > LIMIT {
            // Not waited for: it may be stuck in the kernel.
            child.kill()?;
            bail!("no end after {} s, killed", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn drain(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    if let Some(mut pipe) = pipe {
        // A tool's words are only for messages: what cannot be read is left out.
        let _ = pipe.read_to_string(&mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_failure_and_absence_differ() {
        assert_eq!(tool("echo", &["a", "b"]).unwrap(), "a b");
        assert!(!tool("false", &[]).unwrap_err().is::<HostCannot>());
        assert!(tool("lockscope-no-such-tool", &[]).unwrap_err().is::<HostCannot>());
    }
}
