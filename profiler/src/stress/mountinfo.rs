//! Which device a directory stands on, and whether it may be written to: only loop and RAM devices may.
//!
//! Must not trust a path or a name: the kernel's device numbers decide.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, bail};

/// Block majors, Documentation/admin-guide/devices.txt: 1 RAM disk, 7 loopback.
const RAM_MAJOR: u32 = 1;
const LOOP_MAJOR: u32 = 7;

/// A line of /proc/self/mountinfo, proc_pid_mountinfo(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub number: (u32, u32),
    pub point: PathBuf,
    pub fs: String,
    pub source: String,
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.number;
        write!(f, "{} {} ({major}:{minor})", self.fs, self.source)
    }
}

impl Mount {
    /// "loop" or "ram"; none for a device that must not be touched.
    pub fn kind(&self) -> Option<&'static str> {
        match self.number.0 {
            LOOP_MAJOR => Some("loop"),
            RAM_MAJOR => Some("ram"),
            _ => None,
        }
    }
}

fn parse_line(line: &str) -> Option<Mount> {
    // Any number of optional fields stands before the lone dash.
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (major, minor) = left.next()?.split_once(':')?;
    let point = PathBuf::from(unescape(left.nth(1)?));
    let mut right = right.split(' ');
    let (fs, source) = (right.next()?.to_owned(), unescape(right.next()?));
    Some(Mount { number: (major.parse().ok()?, minor.parse().ok()?), point, fs, source })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// All mounts of the text.
pub(super) fn parse(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(parse_line).collect()
}

/// The mounts this process sees now.
pub(super) fn read() -> anyhow::Result<String> {
    std::fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")
}

/// The mount of device `number`, refused unless it is a loop or RAM device.
pub(super) fn admit(mountinfo: &str, number: (u32, u32)) -> anyhow::Result<Mount> {
    let (major, minor) = number;
    let rule = "lockscope stress refuses anything but a loop or RAM device; without --dir it makes one";
    let found = parse(mountinfo).into_iter().find(|m| m.number == number);
    let Some(mount) = found else {
        bail!("device {major}:{minor} of that directory is not among the mounts; {rule}");
    };
    if mount.kind().is_none() {
        bail!("that directory is on {mount}; {rule}");
    }
    Ok(mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
25 24 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
26 25 0:24 / /dev/pts rw,relatime shared:2 master:1 - devpts devpts rw,mode=600
42 25 0:39 / /tmp/a\\040b rw,relatime - tmpfs none rw,size=65536k
43 42 7:0 / /tmp/a\\040b/fs rw,relatime - ext4 /dev/loop0 rw
44 25 1:0 / /tmp/mnt rw,relatime - ext4 /dev/ram0 rw
45 25 8:1 / /data rw - xfs /dev/sda1 rw
broken line
";

    #[test]
    fn lines_with_and_without_optional_fields() {
        let mounts = parse(SAMPLE);
        assert_eq!(mounts.len(), 6);
        assert_eq!(mounts[3].point, PathBuf::from("/tmp/a b/fs"));
        assert_eq!((mounts[0].fs.as_str(), mounts[0].source.as_str()), ("ext4", "/dev/vda"));
    }

    #[test]
    fn only_loop_and_ram_are_admitted() {
        assert_eq!(admit(SAMPLE, (7, 0)).unwrap().kind(), Some("loop"));
        assert_eq!(admit(SAMPLE, (1, 0)).unwrap().kind(), Some("ram"));
        for number in [(254, 0), (0, 39), (8, 1), (7, 1), (259, 3)] {
            let refusal = admit(SAMPLE, number).unwrap_err().to_string();
            assert!(refusal.contains("refuses anything but a loop or RAM device"), "{refusal}");
        }
    }

    #[test]
    fn the_real_file_parses() {
        assert!(!parse(&read().unwrap()).is_empty());
    }
}
