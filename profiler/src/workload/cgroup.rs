//! A fresh cgroup v2 below our own, for the command that is started: its limits still hold, and every child and thread
//! is in it from exec on, also those that make cgroups of their own below it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

/// Names of our groups, before the process number.
const PREFIX: &str = "lockscope.";
/// Times that removing the group is tried while its last processes go.
const REMOVE_TRIES: u32 = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(50);

/// A cgroup that is removed when this is dropped; processes left in it are moved to the parent, never killed.
#[derive(Debug)]
pub struct FreshCgroup {
    path: PathBuf,
}

impl FreshCgroup {
    /// Makes a cgroup below our own.
    ///
    /// # Errors
    /// When there is no cgroup v2, or it cannot be written here.
    pub fn new() -> Result<FreshCgroup> {
        let own = own_directory()?;
        sweep(&own);
        let path = own.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making the cgroup {}", path.display()))?;
        Ok(FreshCgroup { path })
    }

    /// The directory, opened: what the BPF map wants.
    ///
    /// # Errors
    /// When it has gone.
    pub fn directory(&self) -> Result<File> {
        open_directory(&self.path)
    }

    /// `cgroup.procs`, opened for writing.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn procs(&self) -> Result<File> {
        let path = self.path.join("cgroup.procs");
        OpenOptions::new().write(true).open(&path).with_context(|| format!("opening {}", path.display()))
    }

    /// A warning when being in a group of its own changes how the command is scheduled.
    pub fn warning(&self) -> Option<String> {
        let parent = self.path.parent()?;
        let controllers = fs::read_to_string(parent.join("cgroup.subtree_control")).ok()?;
        let controllers = controllers.trim();
        (!controllers.is_empty()).then(|| {
            format!("the command runs in a cgroup of its own under these controllers, at their defaults: {controllers}")
        })
    }

    /// What removes the group for somebody who leaves at once: one try, nothing waited for.
    pub fn leaver(&self) -> impl FnOnce() + Send + use<> {
        let twin = std::mem::ManuallyDrop::new(FreshCgroup { path: self.path.clone() });
        move || {
            twin.empty();
            let _ = fs::remove_dir(&twin.path);
        }
    }

    fn remove(&self) -> io::Result<()> {
        let mut result = fs::remove_dir(&self.path);
        for _ in 0..REMOVE_TRIES {
            if result.is_ok() {
                return result;
            }
            self.empty();
            std::thread::sleep(REMOVE_PAUSE);
            result = fs::remove_dir(&self.path);
        }
        result
    }

    /// Moves what is still running to the parent group, and removes groups that the command left below.
    fn empty(&self) {
        let Some(parent) = self.path.parent().map(Path::to_path_buf) else { return };
        empty_into(&self.path, &parent.join("cgroup.procs"));
    }
}

/// Removes groups that a lockscope killed by SIGKILL has left: the process is gone, and nobody runs in them.
fn sweep(own: &Path) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| {
            pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists()
        }) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn empty_into(group: &Path, target: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            empty_into(&entry.path(), target);
            let _ = fs::remove_dir(entry.path());
        }
    }
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        let _ = fs::write(target, pid);
    }
}

impl Drop for FreshCgroup {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            let _ =
                writeln!(io::stderr(), "lockscope: the cgroup {} stays behind: {error}", self.path.display());
        }
    }
}

/// Opens a cgroup's directory given by path, or by path below the cgroup v2 mount point.
///
/// # Errors
/// When there is no such directory, or no cgroup v2.
pub fn open(path: &Path) -> Result<File> {
    if path.is_dir() {
        return open_directory(path);
    }
    let below = mount_point()?.join(path.strip_prefix("/").unwrap_or(path));
    if below.is_dir() {
        return open_directory(&below);
    }
    bail!("--cgroup {}: no such directory, neither here nor below the cgroup v2 mount point", path.display())
}

fn open_directory(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("opening the cgroup {}", path.display()))
}

fn own_directory() -> Result<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
    let path =
        own.lines().find_map(|line| line.strip_prefix("0::")).ok_or_else(|| anyhow!("no cgroup v2 here"))?;
    Ok(mount_point()?.join(path.trim_start_matches('/')))
}

fn mount_point() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
    parse_mount_point(&mounts).ok_or_else(|| anyhow!("no cgroup v2 is mounted"))
}

fn parse_mount_point(mountinfo: &str) -> Option<PathBuf> {
    let line = mountinfo.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_point_of_a_hybrid_host() {
        let text = "30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                    40 20 0:36 / /sys/fs/cgroup/unified rw,relatime shared:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(parse_mount_point(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(parse_mount_point("1 2 0:3 / / rw - ext4 /dev/vda rw\n"), None);
    }
}
