//! The ground a file preset runs on: a throw-away ext4 on a loop device (over a file in a tmpfs) or on a RAM disk,
//! or a directory of the user's on such a device.
//!
//! Must never write to a device that holds something: made devices are new or blank, a given directory gets one
//! folder that is removed again.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::args::{DeviceChoice, StressArgs};
use super::fault::HostCannot;
use super::geometry::Geometry;
use super::mountinfo::{self, Mount};
use super::tool::tool;
use super::undo::{Made, Undo};

const MIB: u64 = 1 << 20;
/// Room for the grown file, a second one and the journal; the hard cap is 1 GiB.
const WANTED_BYTES: u64 = 512 * MIB;
/// Below this ext4's journal leaves too little to append to.
const LEAST_BYTES: u64 = 96 * MIB;

/// How a file system of ours is made: words for mkfs.ext4.
#[derive(Clone, Copy)]
pub(super) struct Mkfs(&'static [&'static str]);

impl Mkfs {
    /// As the distribution has it.
    pub const PLAIN: Self = Self(&[]);
    /// Nothing left to be initialised beside the load; blocks and inodes of the usual sizes. No more inodes than
    /// needed: the check sum of a group's whole inode bitmap is made under its spin lock, at every creation.
    pub const EXACT: Self = Self(&EXACT);
    /// The same with the smallest journal there is: it must be checkpointed all the time.
    pub const TINY_JOURNAL: Self = Self(&TINY_JOURNAL);
}

const EXACT: [&str; 8] =
    ["-b", "4096", "-I", "256", "-N", "32768", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
const TINY_JOURNAL: [&str; 10] = {
    let [a, b, c, d, e, f, g, h] = EXACT;
    [a, b, c, d, e, f, g, h, "-J", "size=4"]
};

/// A directory to work in. Dropping it removes whatever was made for it.
pub(super) struct Ground {
    pub dir: PathBuf,
    pub mount: Mount,
    /// None where the device cannot be read.
    pub geometry: Option<Geometry>,
    made: bool,
    _undo: Undo,
}

impl Ground {
    /// Makes a device and a file system, or takes the directory given if that is on a loop or RAM device.
    pub fn prepare(args: &StressArgs, mkfs: Mkfs) -> anyhow::Result<Self> {
        if let Some(dir) = &args.dir {
            return in_given(dir);
        }
        need_root()?;
        match args.device.unwrap_or(DeviceChoice::Auto) {
            DeviceChoice::Loop => on_loop(mkfs),
            DeviceChoice::Ram => on_ram(mkfs),
            DeviceChoice::Auto => {
                on_loop(mkfs).or_else(|no_loop| on_ram(mkfs).map_err(|no_ram| neither(&no_loop, &no_ram)))
            }
        }
    }

    /// The device, for reports.
    pub fn describe(&self) -> Value {
        let (major, minor) = self.mount.number;
        json!({
            "kind": self.mount.kind(),
            "source": self.mount.source,
            "number": format!("{major}:{minor}"),
            "fs": self.mount.fs,
            "made": self.made,
            "block_bytes": self.geometry.map(|g| g.block_bytes),
            "inode_bytes": self.geometry.map(|g| g.inode_bytes),
            "journal_blocks": self.geometry.and_then(|g| g.journal_blocks),
        })
    }

    /// Bytes an ordinary user could still write there.
    pub fn free_bytes(&self) -> anyhow::Result<u64> {
        let path = c_path(&self.dir)?;
        // SAFETY: all-zero is a valid statvfs, `path` outlives the call.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for the call.
        if unsafe { libc::statvfs(path.as_ptr(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error()).context("statvfs");
        }
        Ok(stat.f_bavail * stat.f_frsize)
    }

    fn new(dir: PathBuf, made: bool, undo: Undo) -> anyhow::Result<Self> {
        let mount = mountinfo::admit(&mountinfo::read()?, number_of(&dir)?)?;
        // Only some presets need it, and they say so: without root a device cannot be read.
        let geometry = Geometry::of(&mount.source).ok();
        Ok(Self { dir, mount, geometry, made, _undo: undo })
    }
}

fn neither(no_loop: &anyhow::Error, no_ram: &anyhow::Error) -> anyhow::Error {
    let hint = "or give a directory on such a device with --dir";
    HostCannot(format!("no loop device ({no_loop:#}) and no RAM disk ({no_ram:#}); {hint}")).into()
}

fn number_of(dir: &Path) -> anyhow::Result<(u32, u32)> {
    let dev = fs::metadata(dir).with_context(|| dir.display().to_string())?.dev();
    Ok((libc::major(dev), libc::minor(dev)))
}

fn in_given(dir: &Path) -> anyhow::Result<Ground> {
    let dir = dir.canonicalize().with_context(|| format!("--dir {}", dir.display()))?;
    mountinfo::admit(&mountinfo::read()?, number_of(&dir)?)
        .with_context(|| format!("--dir {}", dir.display()))?;
    let mut undo = Undo::default();
    let own = fresh_dir(&dir)?;
    undo.made(Made::Tree(own.clone()));
    Ground::new(own, false, undo)
}

fn on_loop(mkfs: Mkfs) -> anyhow::Result<Ground> {
    let bytes = fitting_bytes(&fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?)?;
    let mut undo = Undo::default();
    let base = fresh_base(&mut undo)?;
    mount("tmpfs", &base, "tmpfs", &format!("size={},mode=0700", bytes + 4 * MIB))?;
    undo.made(Made::Mount(base.clone()));
    let (image, point) = (base.join("disk.img"), base.join("fs"));
    fs::File::create_new(&image).and_then(|f| f.set_len(bytes)).context("the loop device's file")?;
    let device = attach(&image)?;
    undo.made(Made::Loop(device.clone(), image));
    make_ext4(mkfs, &device, &point, &mut undo)?;
    // Lazy: the device frees itself at the unmount, even when this process can no longer see to it.
    tool("losetup", &["-d", &device])?;
    Ground::new(point, true, undo)
}

fn attach(image: &Path) -> anyhow::Result<String> {
    tool("losetup", &["-f", "--show", &image.to_string_lossy()])
        .map_err(|error| HostCannot(format!("{error:#}")).into())
}

fn on_ram(mkfs: Mkfs) -> anyhow::Result<Ground> {
    let mut undo = Undo::default();
    let device = blank_ram(&mut undo)?;
    let base = fresh_base(&mut undo)?;
    undo.made(Made::RamHead(device.clone()));
    let point = base.join("fs");
    make_ext4(mkfs, &device, &point, &mut undo)?;
    Ground::new(point, true, undo)
}

/// A RAM disk that nobody uses: an existing one that is large, unmounted, unopened and blank, else a new one.
fn blank_ram(undo: &mut Undo) -> anyhow::Result<String> {
    if !Path::new("/sys/block/ram0").exists() {
        let bytes = fitting_bytes(&fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?)?;
        tool("modprobe", &["brd", "rd_nr=1", &format!("rd_size={}", bytes / 1024)])
            .map_err(|error| HostCannot(format!("{error:#}")))?;
        undo.made(Made::Module("brd"));
    }
    let usable = |i: &u32| is_blank_ram(*i).unwrap_or(false);
    let found = (0..16).find(usable).map(|i| format!("/dev/ram{i}"));
    found.ok_or_else(|| HostCannot(format!("no unused blank RAM disk of {} MiB", LEAST_BYTES / MIB)).into())
}

fn is_blank_ram(i: u32) -> io::Result<bool> {
    let sectors = fs::read_to_string(format!("/sys/block/ram{i}/size"))?;
    if sectors.trim().parse::<u64>().unwrap_or(0) * 512 < LEAST_BYTES {
        return Ok(false);
    }
    // O_EXCL on a block device fails while it is mounted or claimed.
    let mut disk = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(format!("/dev/ram{i}"))?;
    let mut head = vec![1; MIB as usize];
    disk.read_exact(&mut head)?;
    Ok(head.iter().all(|byte| *byte == 0))
}

fn make_ext4(mkfs: Mkfs, device: &str, point: &Path, undo: &mut Undo) -> anyhow::Result<()> {
    tool("mkfs.ext4", &[&["-q", "-F"], mkfs.0, &[device]].concat())?;
    fs::create_dir(point).context("mount point")?;
    // On a loop device the point goes with the tmpfs; removing it here as well keeps one order for both.
    undo.made(Made::Dir(point.to_owned()));
    // Without noinit_itable a kernel thread writes inode tables during the measurement.
    mount(device, point, "ext4", "noinit_itable")?;
    undo.made(Made::Mount(point.to_owned()));
    Ok(())
}

fn need_root() -> anyhow::Result<()> {
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        let text = "making a device and mounting it needs root; with --dir an existing directory on a loop or RAM device does";
        return Err(HostCannot(text.into()).into());
    }
    Ok(())
}

/// The device size this machine's free memory allows: half of it, at most what is wanted.
fn fitting_bytes(meminfo: &str) -> anyhow::Result<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib: u64 =
        line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).context("no MemAvailable")?;
    let bytes = (kib * 1024 / 2).min(WANTED_BYTES) / MIB * MIB;
    if bytes < LEAST_BYTES {
        let (have, need) = (kib / 1024, 2 * LEAST_BYTES / MIB);
        return Err(HostCannot(format!("{have} MiB of memory available, {need} MiB needed")).into());
    }
    Ok(bytes)
}

fn fresh_base(undo: &mut Undo) -> anyhow::Result<PathBuf> {
    let base = fresh_dir(&std::env::temp_dir().canonicalize().context("the folder for temporary files")?)?;
    undo.made(Made::Dir(base.clone()));
    Ok(base)
}

/// A new directory of ours; an old one of the same name (a killed run's) is not reused.
fn fresh_dir(parent: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("lockscope-stress.{}", std::process::id());
    for attempt in 0..16 {
        let dir = parent.join(if attempt == 0 { name.clone() } else { format!("{name}.{attempt}") });
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => return other.map(|()| dir.clone()).with_context(|| dir.display().to_string()),
        }
    }
    anyhow::bail!("{} is full of left-over {name} directories", parent.display())
}

fn mount(source: &str, target: &Path, fs: &str, options: &str) -> anyhow::Result<()> {
    let [source_c, fs_c, options_c] = [source, fs, options].map(CString::new);
    let (source_c, target_c, fs_c, options_c) = (source_c?, c_path(target)?, fs_c?, options_c?);
    // SAFETY: five pointers to C strings that outlive the call.
    let rc = unsafe {
        libc::mount(source_c.as_ptr(), target_c.as_ptr(), fs_c.as_ptr(), 0, options_c.as_ptr().cast())
    };
    if rc == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(HostCannot(format!("mounting {fs} from {source} on {}: {error}", target.display())).into())
}

fn c_path(path: &Path) -> anyhow::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).context("a path with a zero byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_follows_free_memory_within_bounds() {
        let of = |kib: u64| fitting_bytes(&format!("MemTotal: 1 kB\nMemAvailable:  {kib} kB\n"));
        assert_eq!(of(64 << 20).unwrap(), WANTED_BYTES);
        assert_eq!(of(400 << 10).unwrap(), 200 * MIB);
        assert!(of(100 << 10).unwrap_err().is::<HostCannot>());
    }

    #[test]
    fn a_directory_without_a_loop_or_ram_device_is_refused() {
        let refusal = in_given(Path::new("/proc")).err().unwrap();
        assert!(!refusal.is::<HostCannot>(), "exit code 2, not 3");
        assert!(format!("{refusal:#}").contains("refuses anything but a loop or RAM device"), "{refusal:#}");
    }
}
