//! The initial RAM disk: busybox, the few modules that mount the host's root by virtiofs, one script, and the run's
//! own variables. Written here as a "newc" cpio archive. Must not know what will run in the guest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::kernels::Unpacked;
use crate::exec;

const INIT: &str = include_str!("initrd-init.sh");
const APPLETS: [&str; 8] = ["sh", "mount", "insmod", "switch_root", "mkdir", "echo", "sleep", "poweroff"];
/// They bring their dependencies; a kernel that has them built in lists nothing.
const MODULES: [&str; 2] = ["virtio_pci", "virtiofs"];

/// Writes the RAM disk of one run to `path`; `env` becomes `/lockscope.env` in it.
pub fn write(path: &Path, kernel: &Unpacked, env: &str) -> Result<()> {
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "mods", "newroot"] {
        archive.entry(dir, DIR, b"");
    }
    add_busybox(&mut archive)?;
    for (number, module) in module_files(kernel)?.iter().enumerate() {
        archive.entry(&format!("mods/{number:02}.ko"), FILE, &unpacked(module)?);
    }
    archive.entry("init", PROGRAM, INIT.as_bytes());
    archive.entry("lockscope.env", FILE, env.as_bytes());
    fs::write(path, archive.finish()).with_context(|| path.display().to_string())
}

fn add_busybox(archive: &mut Archive) -> Result<()> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().find_map(|path| fs::read(path).ok());
    archive.entry("bin/busybox", PROGRAM, &busybox.context("no busybox (Debian: busybox-static)")?);
    APPLETS.iter().for_each(|applet| archive.entry(&format!("bin/{applet}"), LINK, b"busybox"));
    Ok(())
}

/// Module files in the order to load them.
fn module_files(kernel: &Unpacked) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for module in MODULES {
        let mut cmd = exec::system("modprobe");
        cmd.arg("-d").arg(&kernel.dir).args(["-S", &kernel.release, "--show-depends", module]);
        for file in insmod_lines(&exec::output(&mut cmd)?) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn insmod_lines(listing: &str) -> Vec<PathBuf> {
    listing.lines().filter_map(|line| line.strip_prefix("insmod ")).map(|rest| rest.trim().into()).collect()
}

/// busybox's insmod cannot unpack.
fn unpacked(module: &Path) -> Result<Vec<u8>> {
    match module.extension().is_some_and(|e| e == "xz") {
        true => exec::bytes(exec::system("xz").arg("-dc").arg(module)),
        false => fs::read(module).with_context(|| module.display().to_string()),
    }
}

const DIR: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// A cpio archive in the making ("newc": Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Default)]
struct Archive {
    data: Vec<u8>,
    entries: usize,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (inode, size, name_size) = (self.entries, content.len(), name.len() + 1);
        // magic, inode, mode, uid, gid, links, mtime, size, four device numbers, name's size, checksum (unused).
        let header = format!("070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}", 0, 1);
        self.data.extend_from_slice(header.as_bytes());
        self.data
            .extend_from_slice(format!("{0:08x}{0:08x}{0:08x}{0:08x}{name_size:08x}{0:08x}", 0).as_bytes());
        self.data.extend_from_slice(name.as_bytes());
        self.data.push(0);
        self.pad();
        self.data.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.data.resize(self.data.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, b"");
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_fixed_header_and_is_padded() {
        let mut archive = Archive::default();
        archive.entry("init", PROGRAM, b"hello");
        let text = String::from_utf8(archive.data).unwrap();
        assert_eq!(&text[..30], "07070100000001000081ed00000000");
        assert_eq!(&text[110..], "init\0\0hello\0\0\0");
        assert_eq!(text.len() % 4, 0);
    }

    #[test]
    fn built_in_modules_need_no_file() {
        let listing = "builtin virtio_pci\ninsmod /k/fuse.ko.xz \ninsmod /k/virtiofs.ko\n";
        assert_eq!(insmod_lines(listing), [PathBuf::from("/k/fuse.ko.xz"), PathBuf::from("/k/virtiofs.ko")]);
    }
}
