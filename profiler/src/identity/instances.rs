//! Which object of a class: an inode by number, device and path, an address space by its process. Reads /proc only.

use std::os::unix::fs::MetadataExt;

use profiler_common::device;

/// Fds of a process looked at for an inode's path; more would cost too much for a name.
const MOST_FDS: usize = 256;

/// An inode in words: `ino 1234 (/data/db) of 8:1`, the path only when the waiting process has it open.
pub fn inode(number: u64, dev: u32, tgid: u32) -> String {
    let (major, minor) = device::parts(dev);
    let path = path_of(number, (major, minor), tgid).map_or(String::new(), |path| format!(" ({path})"));
    format!("ino {number}{path} of {major}:{minor}")
}

/// A buffer in words: `block 1234 of 8:1`.
pub fn block(number: u64, dev: u32) -> String {
    let (major, minor) = device::parts(dev);
    format!("block {number} of {major}:{minor}")
}

/// What a folio belongs to, in words: its file, or a process's own memory.
pub fn file_of(number: u64, dev: u32, tgid: u32) -> String {
    if number == 0 && dev == 0 { "of no file".to_owned() } else { inode(number, dev, tgid) }
}

fn path_of(number: u64, device: (u32, u32), tgid: u32) -> Option<String> {
    let entries = std::fs::read_dir(format!("/proc/{tgid}/fd")).ok()?;
    let open = entries.flatten().take(MOST_FDS).find(|entry| {
        std::fs::metadata(entry.path()).is_ok_and(|meta| {
            let dev = (libc::major(meta.dev()), libc::minor(meta.dev()));
            meta.ino() == number && dev == device
        })
    })?;
    Some(std::fs::read_link(open.path()).ok()?.to_string_lossy().into_owned())
}

/// An address space in words: `of mysqld[812]`.
pub fn process(tgid: u64, comm: &[u8]) -> String {
    format!("of {}[{tgid}]", String::from_utf8_lossy(comm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_has_its_path() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let meta = file.metadata().unwrap();
        let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let text = inode(meta.ino(), device::number(major, minor), std::process::id());
        let path = std::fs::read_link("/proc/self/exe").unwrap();
        assert_eq!(text, format!("ino {} ({}) of {major}:{minor}", meta.ino(), path.display()));
        assert_eq!(
            inode(meta.ino(), device::number(major, minor), 0),
            format!("ino {} of {major}:{minor}", meta.ino())
        );
    }
}
