//! A directory of files with numbers for names, and what the loads do to them.
//!
//! Must not allocate in what is done within operations, and must not open files there: threads share the table of
//! open files, whose lock would be contended beside the one a preset is about. A file is made by mknod.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;

use super::fault::{Fault, Step};
use super::signal;

/// ext4 allows 65000 names for one inode.
const LINKS: u32 = 60_000;
/// The lane whose names are those of the entries put in beforehand.
const FILLING: u32 = 0xffff;

/// The name of file `index` of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name([u8; 15]);

impl Name {
    pub fn of(lane: u32, index: u32) -> Self {
        let mut text = *b"t0000-00000000\0";
        hex(&mut text[1..5], lane);
        hex(&mut text[6..14], index);
        Self(text)
    }

    fn as_ptr(&self) -> *const libc::c_char {
        self.0.as_ptr().cast()
    }
}

fn hex(digits: &mut [u8], mut number: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// An open directory.
pub(super) struct Folder(File);

impl Folder {
    /// Makes the directory, which must be new.
    pub fn make(path: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir(path)
            .and_then(|()| File::open(path))
            .map(Self)
            .with_context(|| path.display().to_string())
    }

    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    /// A new empty file.
    pub fn create(&self, name: &Name) -> Result<(), Fault> {
        // SAFETY: an open directory and a string with its zero, both outliving the call.
        let rc = unsafe { libc::mknodat(self.0.as_raw_fd(), name.as_ptr(), libc::S_IFREG | 0o600, 0) };
        done(rc, Step::Create)
    }

    pub fn stat(&self, name: &Name) -> Result<(), Fault> {
        // SAFETY: all-zero is a valid stat structure.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as in `create`; `stat` is valid to write to.
        let rc = unsafe { libc::fstatat(self.0.as_raw_fd(), name.as_ptr(), &mut stat, 0) };
        done(rc, Step::Stat)
    }

    pub fn remove(&self, name: &Name) -> Result<(), Fault> {
        // SAFETY: as in `create`.
        let rc = unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), 0) };
        done(rc, Step::Remove)
    }

    /// Puts `entries` names in. They are links to few files: a directory is as large, and made in half the time.
    /// A signal ends it early, as it does the run.
    pub fn fill(&self, entries: u32) -> Result<(), Fault> {
        for i in (0..entries).take_while(|_| signal::count() == 0) {
            let name = Name::of(FILLING, i);
            match i % LINKS {
                0 => self.create(&name)?,
                _ => self.link(&Name::of(FILLING, i / LINKS * LINKS), &name)?,
            }
        }
        Ok(())
    }

    fn link(&self, old: &Name, new: &Name) -> Result<(), Fault> {
        let dir = self.0.as_raw_fd();
        // SAFETY: as in `create`, for both names.
        done(unsafe { libc::linkat(dir, old.as_ptr(), dir, new.as_ptr(), 0) }, Step::Link)
    }

    /// Reads all entries into `room`, a piece at a time, from the first; returns how many bytes they were.
    pub fn list(&self, room: &mut [u64]) -> Result<u64, Fault> {
        let fd = self.0.as_raw_fd();
        // SAFETY: an open directory; a seek touches no memory.
        if unsafe { libc::lseek(fd, 0, libc::SEEK_SET) } < 0 {
            return Err(Fault::last(Step::List));
        }
        let mut bytes = 0;
        loop {
            // SAFETY: `room` is valid for writes of its size, and aligned as directory entries are.
            let n = unsafe { libc::syscall(libc::SYS_getdents64, fd, room.as_mut_ptr(), size_of_val(room)) };
            match n {
                0 => return Ok(bytes),
                1.. => bytes += n as u64,
                _ => return Err(Fault::last(Step::List)),
            }
        }
    }

    /// A second open directory for the same one: with a position of its own.
    pub fn reopened(&self) -> io::Result<Self> {
        File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd())).map(Self)
    }

    /// Gives the directory the `dirsync` attribute of chattr(1).
    pub fn make_synchronous(&self) -> io::Result<()> {
        let mut flags: libc::c_int = 0;
        // SAFETY: the call writes an int, whatever the size in its number says.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut flags) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        flags |= FS_DIRSYNC_FL;
        // SAFETY: the call reads an int.
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes the whole file system out, so that what was set up does not burden what is measured.
    pub fn settle(&self) -> Result<(), Fault> {
        // SAFETY: an open directory.
        done(unsafe { libc::syncfs(self.0.as_raw_fd()) }, Step::Sync)
    }
}

/// linux/fs.h.
const FS_DIRSYNC_FL: libc::c_int = 0x0001_0000;

fn done(rc: libc::c_int, step: Step) -> Result<(), Fault> {
    if rc == 0 { Ok(()) } else { Err(Fault::last(step)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_end_in_zero() {
        assert_eq!(&Name::of(3, 255).0, b"t0003-000000ff\0");
        assert_ne!(Name::of(1, 2), Name::of(2, 1));
    }

    #[test]
    fn files_come_and_go_and_are_listed() {
        let path = std::env::temp_dir().join(format!("lockscope-folder-{}", std::process::id()));
        let folder = Folder::make(&path).unwrap();
        let name = Name::of(0, 1);
        folder.create(&name).unwrap();
        folder.stat(&name).unwrap();
        assert_eq!(folder.create(&name).unwrap_err().errno, libc::EEXIST);
        folder.fill(100).unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 101);
        let listed = folder.reopened().unwrap().list(&mut [0; 64]).unwrap();
        assert!(listed > 101 * 32, "{listed} bytes");
        folder.remove(&name).unwrap();
        assert_eq!(folder.stat(&name).unwrap_err().errno, libc::ENOENT);
        std::fs::remove_dir_all(path).unwrap();
    }
}
