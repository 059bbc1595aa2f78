//! The folder of one run (`target/vm/runs/<id>/`), through which host and guest talk: scripts go in; `ready`, `out`,
//! `err` and `status` come out. Plain files on virtiofs keep output exact (no console, no carriage returns).
//! Must not start processes.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};

use super::{VmSpec, initrd, kernels::Unpacked};
use crate::exec::quote;
use crate::setup;

const GUEST_INIT: &str = include_str!("guest-init.sh");
/// How long the folders of failed runs are kept for reading.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// The run's folder. Removed when dropped unless [`RunDir::keep`] was called.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    keep: bool,
}

impl RunDir {
    /// Makes the folder with everything the guest will read.
    pub fn prepare(spec: &VmSpec, kernel: &Unpacked) -> Result<Self> {
        let run = Self::create()?;
        for empty in ["out", "err", "console.log"] {
            fs::write(run.file(empty), "")?;
        }
        fs::write(run.file("guest-init.sh"), GUEST_INIT)?;
        fs::write(run.file("command.sh"), command_script(spec))?;
        initrd::write(&run.file("initrd"), kernel, &run.variables(spec, kernel))?;
        Ok(run)
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What `name` holds by now ("" when it does not exist yet).
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.file(name)).unwrap_or_default()).into_owned()
    }

    /// Leaves the folder where it is, for reading; returns it.
    pub fn keep(&mut self) -> &Path {
        self.keep = true;
        &self.path
    }

    fn create() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let runs = setup::target().join("vm/runs");
        fs::create_dir_all(&runs)?;
        remove_old(&runs);
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = runs.join(id);
        let _ = fs::remove_dir_all(&path);
        // Only for us: it will hold the socket of a daemon that serves the whole root folder as root.
        DirBuilder::new().mode(0o700).create(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, keep: false })
    }

    fn variables(&self, spec: &VmSpec, kernel: &Unpacked) -> String {
        let set = |name: &str, value: &str| format!("{name}={}\n", quote(value));
        let writable: Vec<String> = writable().iter().map(|dir| dir.display().to_string()).collect();
        [
            set("RUN", &self.path.to_string_lossy()),
            set("KERNEL_DIR", &kernel.dir.to_string_lossy()),
            set("WRITABLE", &writable.join("\n")),
            set("JSZ", &spec.journal_mib.to_string()),
        ]
        .concat()
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.keep {
            // A folder that stays is only untidy; it is removed after a day.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn remove_old(runs: &Path) {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let age =
        |entry: &fs::DirEntry| SystemTime::now().duration_since(entry.metadata().ok()?.modified().ok()?).ok();
    for entry in entries.filter(|entry| age(entry).is_some_and(|age| age > KEEP)) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// What stays writable in the guest: the project's `target/`, and cargo's own when that is elsewhere.
fn writable() -> Vec<PathBuf> {
    let mut dirs = vec![setup::target()];
    let cargo = std::env::var_os("CARGO_TARGET_DIR").map(|dir| setup::root().join(dir));
    dirs.extend(cargo.filter(|dir| dir.is_dir() && !dir.starts_with(setup::target())));
    dirs
}

fn command_script(spec: &VmSpec) -> String {
    let root = setup::root();
    let mut script = format!("cd {} || exit 125\n", quote(&root.to_string_lossy()));
    for (name, value) in passed_variables().chain(spec.env.iter().cloned()) {
        script += &format!("export {name}={}\n", quote(&value));
    }
    script += &format!("export LOCKSCOPE_VM={}\n", spec.kernel.name());
    let words: Vec<String> = spec.command.iter().map(|word| quote(word)).collect();
    script + &format!("exec {}\n", words.join(" "))
}

/// Ours and Rust's variables follow the command into the guest; the rest of the caller's world does not.
fn passed_variables() -> impl Iterator<Item = (String, String)> {
    let ours = |name: &str| name.starts_with("LOCKSCOPE_") || name.starts_with("RUST_");
    let word = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    // vars_os: a variable that is not UTF-8 must not end us with a panic.
    let text = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(move |(name, _)| ours(name) && word(name))
}

/// Fails early on what the kernel's command line or a Unix socket cannot carry.
pub fn check_paths() -> Result<()> {
    let root = setup::root();
    ensure!(
        root.as_os_str().len() < 70,
        "the project's folder has too long a name for a Unix socket: {}",
        root.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::kernels::Kernel;

    #[test]
    fn the_command_is_quoted_and_runs_in_the_root_folder() {
        let mut spec = VmSpec::new(Kernel::Cloud61, ["sh", "-c", "echo 'a b'"]);
        spec.env.push(("LOCKSCOPE_X".into(), "1 2".into()));
        let script = command_script(&spec);
        assert!(script.starts_with("cd /"));
        assert!(script.contains("export LOCKSCOPE_X='1 2'\nexport LOCKSCOPE_VM=6.1-cloud\n"));
        assert_eq!(script.lines().last(), Some(r"exec sh -c 'echo '\''a b'\'''"));
    }
}
