//! Objects that come from kmalloc and so cannot be told by their slab cache: super blocks, journals, run queues, zones. Found
//! by walking from what is ours – mounts, our task – at start and when mounts change, at no cost where events happen.

use std::{
    fs,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use anyhow::{Context, Result};

use profiler_common::device;

use super::slabs::own_file;
use crate::kernel::{
    memory::{Memory, is_kernel_address},
    types::Types,
};

/// A known object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its address.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its structure.
    pub structure: &'static str,
    /// Which one it is, in words.
    pub instance: String,
}

/// All known objects.
#[derive(Debug, Default)]
pub struct Registry {
    objects: Vec<Object>,
    mounts: String,
}

impl Registry {
    /// Walks everything. What cannot be reached is left out: its locks stay without a name.
    pub fn walk(memory: &dyn Memory, types: &Types) -> Registry {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut finder = Finder { memory, types, objects: Vec::new() };
        for mount in parse_mounts(&mounts) {
            let _ = finder.file_system(&mount);
        }
        let _ = finder.run_queues();
        let _ = finder.memory_nodes();
        let mut objects = finder.objects;
        objects.sort_by_key(|object| object.start);
        objects.dedup();
        Registry { objects, mounts }
    }

    /// Whether mounts have changed since.
    pub fn is_stale(&self) -> bool {
        fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts != self.mounts)
    }

    /// Each journal's device and address.
    pub fn journals(&self) -> impl Iterator<Item = (u32, u64)> {
        let journals = self.objects.iter().filter(|object| object.structure == "journal_s");
        journals.filter_map(|object| Some((device::parse(&object.instance)?, object.start)))
    }

    /// Where each file system's device is mounted, by `dev_t`.
    pub fn mount_points(&self) -> impl Iterator<Item = (u32, String)> {
        let mounts = parse_mounts(&self.mounts).into_iter();
        mounts.filter_map(|mount| Some((device::parse(&mount.device)?, mount.point)))
    }

    /// The object that an address lies in, and where.
    pub fn find(&self, address: u64) -> Option<(&Object, u32)> {
        let before = self.objects.partition_point(|object| object.start <= address);
        let object = self.objects.get(before.checked_sub(1)?)?;
        let offset = address - object.start;
        (offset < object.size).then_some((object, u32::try_from(offset).ok()?))
    }
}

/// A mount of a block device's file system.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    device: String,
    point: String,
    kind: String,
}

fn parse_mounts(mountinfo: &str) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = mountinfo.lines().filter_map(parse_mount).collect();
    mounts.sort_by(|a, b| a.device.cmp(&b.device));
    mounts.dedup_by(|a, b| a.device == b.device);
    mounts
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let fields: Vec<&str> = before.split(' ').collect();
    let kind = after.split(' ').next()?.to_owned();
    let known = matches!(kind.as_str(), "ext4" | "ext3" | "ext2" | "xfs" | "btrfs");
    let point = unescape(fields.get(4)?);
    known.then(|| Mount { device: fields.get(2).copied().unwrap_or("?").to_owned(), point, kind })
}

/// mountinfo writes white space and backslashes as octal numbers.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

struct Finder<'a> {
    memory: &'a dyn Memory,
    types: &'a Types,
    objects: Vec<Object>,
}

impl Finder<'_> {
    fn at(&self, from: u64, path: &str) -> Result<u64> {
        let value = self.memory.word(from + self.types.offset(path)?);
        value.filter(|value| is_kernel_address(*value)).with_context(|| format!("{path} leads nowhere"))
    }

    fn add(&mut self, start: u64, structure: &'static str, instance: &str) {
        if let Some(size) = self.types.size_of(structure) {
            self.objects.push(Object { start, size, structure, instance: instance.to_owned() });
        }
    }

    fn add_at(&mut self, from: u64, path: &str, structure: &'static str, instance: &str) {
        if let Ok(start) = self.at(from, path) {
            self.add(start, structure, instance);
        }
    }

    fn file_system(&mut self, mount: &Mount) -> Result<()> {
        let point = open_path(&mount.point)?;
        let file = own_file(self.memory, self.types, point.as_raw_fd())?;
        let sb = self.at(self.at(file, "file.f_inode")?, "inode.i_sb")?;
        self.add(sb, "super_block", &mount.device);
        self.add_at(sb, "super_block.s_bdi", "backing_dev_info", &mount.device);
        if let Ok(bdev) = self.at(sb, "super_block.s_bdev") {
            self.add_at(bdev, "block_device.bd_queue", "request_queue", &mount.device);
        }
        if mount.kind.starts_with("ext") {
            self.ext4(self.at(sb, "super_block.s_fs_info")?, &mount.device);
        }
        Ok(())
    }

    fn ext4(&mut self, info: u64, device: &str) {
        self.add(info, "ext4_sb_info", device);
        self.add_at(info, "ext4_sb_info.s_journal", "journal_s", device);
        self.add_at(info, "ext4_sb_info.s_ea_block_cache", "mb_cache", &format!("{device}, blocks"));
        self.add_at(info, "ext4_sb_info.s_ea_inode_cache", "mb_cache", &format!("{device}, inodes"));
        self.add_at(info, "ext4_sb_info.s_blockgroup_lock", "blockgroup_lock", device);
    }

    /// Each CPU's run queue, by way of our own task pinned there for a moment.
    fn run_queues(&mut self) -> Result<()> {
        let before = Affinity::get();
        for cpu in 0..libc::CPU_SETSIZE as usize {
            if !before.has(cpu) || !Affinity::only(cpu).set() {
                continue;
            }
            let task = self.memory.own_task().context("our own task cannot be read")?;
            if let Ok(rq) =
                self.at(task, "task_struct.se.cfs_rq").and_then(|queue| self.at(queue, "cfs_rq.rq"))
            {
                self.add(rq, "rq", &format!("CPU {cpu}"));
            }
        }
        before.set();
        Ok(())
    }

    /// The first node's zones and our own memory cgroup's LRU lists.
    fn memory_nodes(&mut self) -> Result<()> {
        let task = self.memory.own_task().context("our own task cannot be read")?;
        let id = u64::from(self.types.enumerator("memory_cgrp_id").context("no memory cgroups")?);
        let set = self.at(task, "task_struct.cgroups")?;
        let group =
            self.memory.word(set + self.types.offset("css_set.subsys")? + 8 * id).context("no css")?;
        let node = self.at(group, "mem_cgroup.nodeinfo")?;
        self.add(node, "mem_cgroup_per_node", "our memory cgroup, node 0");
        let data = self.at(node, "mem_cgroup_per_node.lruvec.pgdat")?;
        self.add(data, "pglist_data", "node 0");
        Ok(())
    }
}

/// Opens a mount point without touching it: the file system may be frozen.
fn open_path(path: &str) -> Result<OwnedFd> {
    let name = std::ffi::CString::new(path).context("a mount point with a zero in its name")?;
    // SAFETY: a terminated name; the fd is ours.
    let fd = unsafe { libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("opening {path}"));
    }
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The CPUs that this thread may run on.
struct Affinity(libc::cpu_set_t);

impl Affinity {
    fn none() -> Affinity {
        // SAFETY: a set of bits, for which zero is a value.
        Affinity(unsafe { std::mem::zeroed() })
    }

    fn get() -> Affinity {
        let mut set = Affinity::none();
        // SAFETY: writes one set of ours.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set.0) };
        set
    }

    fn only(cpu: usize) -> Affinity {
        let mut set = Affinity::none();
        // SAFETY: callers stay below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set.0) };
        set
    }

    fn has(&self, cpu: usize) -> bool {
        // SAFETY: callers stay below CPU_SETSIZE.
        unsafe { libc::CPU_ISSET(cpu, &self.0) }
    }

    fn set(&self) -> bool {
        // SAFETY: reads one set of ours.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_block_devices_once_each() {
        let text = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                    23 22 0:5 / /dev rw - devtmpfs devtmpfs rw\n\
                    24 22 7:0 / /mnt/a\\040b rw shared:3 - xfs /dev/loop0 rw\n\
                    25 22 254:0 /x /bind rw - ext4 /dev/vda rw\n";
        let mounts = parse_mounts(text);
        let seen: Vec<(&str, &str)> = mounts.iter().map(|m| (m.device.as_str(), m.point.as_str())).collect();
        assert_eq!(seen, [("254:0", "/"), ("7:0", "/mnt/a b")]);
    }

    #[test]
    fn an_address_is_found_in_the_object_that_holds_it() {
        let object = |start, size| Object { start, size, structure: "rq", instance: String::new() };
        let registry = Registry { objects: vec![object(100, 50), object(200, 10)], mounts: String::new() };
        assert_eq!(registry.find(120).map(|(object, offset)| (object.start, offset)), Some((100, 20)));
        assert_eq!(registry.find(150), None);
        assert_eq!(registry.find(99), None);
        assert_eq!(registry.find(209).map(|(_, offset)| offset), Some(9));
    }
}
