//! The list of what has been made, taken back in reverse order when dropped: at the end, on an error, on a panic.
//!
//! Must not touch anything that is not on its list.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tool::tool;

/// One thing made.
#[derive(Debug)]
pub(super) enum Made {
    /// An empty directory (a mount point).
    Dir(PathBuf),
    /// A directory with files of ours.
    Tree(PathBuf),
    /// A mount on this directory.
    Mount(PathBuf),
    /// A loop device, standing on this file.
    Loop(String, PathBuf),
    /// The first MiB of a RAM disk that was blank before.
    RamHead(String),
    /// A kernel module that was not loaded before.
    Module(&'static str),
}

/// Takes back what was [`made`](Undo::made), latest first, once.
#[derive(Debug, Default)]
pub(super) struct Undo(Vec<Made>);

impl Undo {
    pub fn made(&mut self, thing: Made) {
        self.0.push(thing);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        while let Some(thing) = self.0.pop() {
            if let Err(error) = take_back(&thing) {
                eprintln!("lockscope stress: could not take back {thing:?}: {error:#}");
            }
        }
    }
}

fn take_back(thing: &Made) -> anyhow::Result<()> {
    match thing {
        Made::Dir(path) => Ok(std::fs::remove_dir(path)?),
        Made::Tree(path) => Ok(std::fs::remove_dir_all(path)?),
        Made::Mount(path) => Ok(unmount(path)?),
        Made::Loop(device, file) => release(device, file),
        Made::RamHead(device) => Ok(blank(device)?),
        Made::Module(name) => tool("modprobe", &["-r", name]).map(drop),
    }
}

/// Unmounts; one that stays busy for 3 s (a stuck worker, a curious shell) is detached from the tree.
fn unmount(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    for _ in 0..60 {
        match umount2(&name, 0) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(Duration::from_millis(50)),
            other => return other,
        }
    }
    eprintln!("lockscope stress: {} is busy, detached: it goes when its last user goes", path.display());
    umount2(&name, libc::MNT_DETACH)
}

fn umount2(name: &CString, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a valid C string that outlives the call.
    let rc = unsafe { libc::umount2(name.as_ptr(), flags) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A loop device frees itself at the last unmount (it was detached lazily right after mounting); detached here
/// only while it still stands on our file, since its number may be someone else's by now.
fn release(device: &str, file: &Path) -> anyhow::Result<()> {
    let name = device.trim_start_matches("/dev/");
    match std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")) {
        Ok(backing) if Path::new(backing.trim_end()) == file => tool("losetup", &["-d", device]).map(drop),
        _ => Ok(()),
    }
}

/// Zeroes the head, so that the disk is taken for blank the next time too.
fn blank(device: &str) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    std::fs::OpenOptions::new().write(true).open(device)?.write_all_at(&vec![0; 1 << 20], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_back_in_reverse_also_on_panic() {
        let outer = std::env::temp_dir().join(format!("lockscope-undo-{}", std::process::id()));
        let inner = outer.join("a");
        let made = outer.clone();
        let panicked = std::panic::catch_unwind(move || {
            let mut undo = Undo::default();
            for dir in [&made, &inner] {
                std::fs::create_dir(dir).unwrap();
                undo.made(Made::Dir(dir.clone()));
            }
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert!(!outer.exists());
    }

    #[test]
    fn a_loop_device_of_someone_else_is_left_alone() {
        assert!(release("/dev/loop0", Path::new("/nowhere/disk.img")).is_ok());
    }
}
