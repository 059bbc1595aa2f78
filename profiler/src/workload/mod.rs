//! Whose waits are recorded: processes, names, cgroups, or a command that lockscope starts and follows. Writes the
//! control map's selectors; knows nothing of what is counted.

use std::{ffi::OsString, path::PathBuf};

use anyhow::{Context, Result, bail};
use profiler_common::{
    Control,
    control::{SELECT_CGROUP, SELECT_COMM, SELECT_TGID},
    device,
    limits::{COMM_LEN, MAX_CGROUPS, MAX_COMMS, MAX_TGIDS},
};

pub mod cgroup;
pub mod command;

/// What the user selected. A wait is recorded when any selector matches its task; with none, everybody is recorded.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Processes, by number.
    pub pids: Vec<u32>,
    /// Tasks, by name.
    pub comms: Vec<String>,
    /// Cgroup v2 directories, or paths below the mount point.
    pub cgroups: Vec<PathBuf>,
    /// The device that alone is shown, as `dev_t`, and how it was given.
    pub device: Option<(u32, String)>,
    /// A command to start; empty = none.
    pub command: Vec<OsString>,
}

impl Selection {
    /// Whether everybody is recorded.
    pub fn is_everybody(&self) -> bool {
        self.pids.is_empty() && self.comms.is_empty() && self.cgroups.is_empty() && self.command.is_empty()
    }

    /// The selectors in words, for headers.
    pub fn in_words(&self) -> Vec<String> {
        let mut words: Vec<String> = self.pids.iter().map(|pid| format!("pid {pid}")).collect();
        words.extend(self.comms.iter().map(|comm| format!("comm {comm}")));
        words.extend(self.cgroups.iter().map(|path| format!("cgroup {}", path.display())));
        words.extend(self.device.iter().map(|(_, given)| format!("device {given}")));
        if !self.command.is_empty() {
            let line: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
            words.push(format!("command {}", line.join(" ")));
        }
        words
    }

    /// Fails early on what the control map cannot hold, or does not exist.
    ///
    /// # Errors
    /// Too many selectors, a name that is too long, a process that does not exist.
    pub fn check(&self) -> Result<()> {
        if self.pids.len() > MAX_TGIDS as usize / 2 || self.comms.len() > MAX_COMMS {
            bail!("at most {} processes and {MAX_COMMS} names can be selected", MAX_TGIDS / 2);
        }
        if self.cgroups.len() + 1 > MAX_CGROUPS {
            bail!("at most {} cgroups can be selected", MAX_CGROUPS - 1);
        }
        for comm in &self.comms {
            name_bytes(comm)?;
        }
        for pid in &self.pids {
            tgid_of(*pid)?;
        }
        Ok(())
    }

    /// Processes of the selected pids: a thread's number selects its process.
    ///
    /// # Errors
    /// When one does not exist.
    pub fn tgids(&self) -> Result<Vec<u32>> {
        self.pids.iter().map(|pid| tgid_of(*pid)).collect()
    }

    /// Writes the selectors that need no map of their own; `cgroups` is how many directories were selected in all, and
    /// `follow` whether a command is followed by its processes.
    ///
    /// # Errors
    /// As [`Selection::check`].
    pub fn write(&self, control: &mut Control, cgroups: u32, follow: bool) -> Result<()> {
        control.cgroups = cgroups;
        control.comm_count = self.comms.len() as u32;
        for (slot, comm) in control.comms.iter_mut().zip(&self.comms) {
            *slot = name_bytes(comm)?;
        }
        let tgid = if self.pids.is_empty() && !follow { 0 } else { SELECT_TGID };
        let comm = if self.comms.is_empty() { 0 } else { SELECT_COMM };
        let cgroup = if cgroups == 0 { 0 } else { SELECT_CGROUP };
        control.select = tgid | comm | cgroup;
        Ok(())
    }
}

/// A device as `dev_t` (include/linux/kdev_t.h, MKDEV): `MAJ:MIN`, or whatever holds this path.
///
/// # Errors
/// When it is neither.
pub fn device_of(text: &str) -> Result<u32> {
    use std::os::unix::fs::MetadataExt;
    if let Some(device) = device::parse(text) {
        return Ok(device);
    }
    let meta =
        std::fs::metadata(text).with_context(|| format!("--device {text}: neither MAJ:MIN nor a path"))?;
    Ok(device::number(libc::major(meta.dev()), libc::minor(meta.dev())))
}

fn name_bytes(comm: &str) -> Result<[u8; COMM_LEN]> {
    let bytes = comm.as_bytes();
    if bytes.is_empty() || bytes.len() >= COMM_LEN {
        bail!("--comm {comm}: a task's name has 1 to {} bytes", COMM_LEN - 1);
    }
    let mut name = [0; COMM_LEN];
    name[..bytes.len()].copy_from_slice(bytes);
    Ok(name)
}

fn tgid_of(pid: u32) -> Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.with_context(|| format!("--pid {pid}: no such process"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|line| line.trim().parse().ok()).with_context(|| format!("--pid {pid}: /proc says no Tgid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_and_bounded() {
        assert_eq!(&name_bytes("fio").unwrap()[..4], b"fio\0");
        assert!(name_bytes("").is_err());
        assert!(name_bytes("sixteen-bytes-xx").is_err());
    }

    #[test]
    fn nothing_selected_is_everybody() {
        let mut control = Control::default();
        Selection::default().write(&mut control, 0, false).unwrap();
        assert_eq!(control.select, 0);
        assert!(Selection::default().is_everybody());
    }

    #[test]
    fn a_process_that_does_not_exist_is_named() {
        let selection = Selection { pids: vec![u32::MAX - 1], ..Selection::default() };
        assert!(selection.check().unwrap_err().to_string().contains("no such process"));
    }
}
