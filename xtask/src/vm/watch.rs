//! Follows a running machine: passes the command's output on while it appears and decides how the run ended.
//! Must not start, stop or repeat anything.

use std::fs::File;
use std::io::{Read as _, Write};
use std::path::Path;
use std::process::ExitStatus;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::VmSpec;
use super::guest::RunDir;
use super::machine::Machine;

const POLL: Duration = Duration::from_millis(30);
/// After a kernel panic QEMU ends by itself; when it hangs instead, this is how long it may.
const PANIC_GRACE: Duration = Duration::from_secs(10);

/// How a run ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// The command's exit status.
    Status(i32),
    /// The machine ended, or hung, without one.
    Died(String),
    /// The command ran longer than it may.
    Timeout,
    /// It printed nothing for longer than it may.
    Silent,
}

/// What was seen of a run.
#[derive(Debug)]
pub struct Seen {
    /// How it ended.
    pub end: End,
    /// Whether the guest ever said that it is ready.
    pub ready: bool,
    /// Stdout, if it was to be captured.
    pub output: Vec<u8>,
}

/// Watches until the command or the machine ends.
pub fn watch(spec: &VmSpec, machine: &mut Machine, run: &RunDir) -> Result<Seen> {
    let mut watcher = Watcher::new(spec, run)?;
    let end = loop {
        if let Some(end) = watcher.step(machine)? {
            break end;
        }
        sleep(POLL);
    };
    // Once more: the last bytes may have come between the last look and the end.
    watcher.pass_on()?;
    Ok(Seen { end, ready: watcher.ready.is_some(), output: watcher.out.kept })
}

struct Watcher<'a> {
    spec: &'a VmSpec,
    run: &'a RunDir,
    out: Tail,
    err: Tail,
    started: Instant,
    ready: Option<Instant>,
    panicked: Option<Instant>,
    /// When the command last printed something.
    heard: Option<Instant>,
}

impl<'a> Watcher<'a> {
    fn new(spec: &'a VmSpec, run: &'a RunDir) -> Result<Self> {
        let out = Tail::open(&run.file("out"), spec.capture)?;
        let err = Tail::open(&run.file("err"), false)?;
        Ok(Self { spec, run, out, err, started: Instant::now(), ready: None, panicked: None, heard: None })
    }

    fn step(&mut self, machine: &mut Machine) -> Result<Option<End>> {
        // Asked before the files are looked at: what a machine wrote before it ended must count.
        let ended = machine.ended()?;
        self.pass_on()?;
        self.notice_ready();
        if let Some(status) = self.status() {
            return Ok(Some(End::Status(status)));
        }
        match ended {
            Some(status) => self.without_status(status).map(Some),
            None => Ok(self.overdue()),
        }
    }

    /// A guest that dies ends QEMU with 0; a crash of the emulator is a signal; anything else is a refusal of ours.
    fn without_status(&self, qemu: ExitStatus) -> Result<End> {
        if qemu.code().is_some_and(|code| code != 0) {
            bail!("QEMU refuses to run ({qemu}): {}", self.run.text("qemu.log").trim_end());
        }
        Ok(End::Died(format!("QEMU ended ({qemu})")))
    }

    fn pass_on(&mut self) -> Result<()> {
        let (out, err) = if self.spec.stream {
            (
                self.out.pass_on(&mut std::io::stdout().lock())?,
                self.err.pass_on(&mut std::io::stderr().lock())?,
            )
        } else {
            (self.out.pass_on(&mut std::io::sink())?, self.err.pass_on(&mut std::io::sink())?)
        };
        if out + err > 0 {
            self.heard = Some(Instant::now());
        }
        Ok(())
    }

    fn notice_ready(&mut self) {
        if self.ready.is_none() && self.run.file("ready").exists() {
            self.ready = Some(Instant::now());
            let seconds = self.started.elapsed().as_secs_f32();
            eprintln!("xtask vm: {} after {seconds:.0} s", self.run.text("ready").trim_end());
        }
    }

    fn status(&self) -> Option<i32> {
        self.run.text("status").trim().parse().ok()
    }

    fn overdue(&mut self) -> Option<End> {
        if self.panicked.is_none() && self.run.text("console.log").contains("Kernel panic") {
            self.panicked = Some(Instant::now());
        }
        if self.panicked.is_some_and(|at| at.elapsed() > PANIC_GRACE) {
            return Some(End::Died("the guest's kernel panicked and hung".into()));
        }
        match self.ready {
            Some(at) if at.elapsed() > self.spec.timeout => Some(End::Timeout),
            Some(_) if self.is_silent() => Some(End::Silent),
            None if self.started.elapsed() > self.spec.boot_limit() => {
                Some(End::Died("the boot hung".into()))
            }
            _ => None,
        }
    }
}

impl Watcher<'_> {
    fn is_silent(&self) -> bool {
        self.spec.silence.zip(self.heard).is_some_and(|(most, heard)| heard.elapsed() > most)
    }
}

/// A file that grows, and how far it was passed on.
struct Tail {
    file: File,
    keep: bool,
    kept: Vec<u8>,
}

impl Tail {
    fn open(path: &Path, keep: bool) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        Ok(Self { file, keep, kept: Vec::new() })
    }

    /// Says how many bytes there were.
    fn pass_on(&mut self, to: &mut impl Write) -> Result<usize> {
        let mut new = Vec::new();
        let bytes = self.file.read_to_end(&mut new)?;
        to.write_all(&new).and_then(|()| to.flush()).context("passing the guest's output on")?;
        if self.keep {
            self.kept.append(&mut new);
        }
        Ok(bytes)
    }
}

/// The line of the guest's console that shows QEMU's known fault: multi-threaded emulation runs into a breakpoint
/// that the kernel has just written into its own text and has no handler for any more.
pub fn text_patching_oops(console: &str) -> Option<&str> {
    let known = |line: &&str| {
        line.contains("Oops: int3") || line.contains("int3: 0000") || line.contains("alternative.c")
    };
    let died = console.contains("Kernel panic") || console.contains("Oops");
    console.lines().find(known).filter(|_| died).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_patching_oops_is_told_from_other_panics() {
        let fault = "[ 3.1] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\r\n[ 3.2] Kernel panic - not syncing\r\n";
        assert_eq!(text_patching_oops(fault), Some("[ 3.1] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI"));
        let other = "BUG: kernel NULL pointer dereference\nOops: 0002 [#1]\nKernel panic - not syncing\n";
        assert_eq!(text_patching_oops(other), None);
        assert_eq!(text_patching_oops(""), None);
    }

    #[test]
    fn a_tail_passes_every_byte_on_once() {
        let path = std::env::temp_dir().join(format!("lockscope-tail-{}", std::process::id()));
        std::fs::write(&path, "one\n").unwrap();
        let mut tail = Tail::open(&path, true).unwrap();
        let mut seen = Vec::new();
        tail.pass_on(&mut seen).unwrap();
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"two\r\n").unwrap();
        tail.pass_on(&mut seen).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(seen, b"one\ntwo\r\n");
        assert_eq!(tail.kept, seen);
    }
}
