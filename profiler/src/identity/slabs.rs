//! The kernel's slab caches: found without any symbol, from a socket of our own, and told to the kernel side. The same
//! walk that the kernel side makes at a wait's end is made here for waits in progress. Names no lock.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::AsRawFd,
    os::unix::net::UnixDatagram,
};

use anyhow::{Context, Result, bail};
use profiler_common::key::{CACHE_CLASS, CACHE_INODE, CACHE_KMALLOC, CACHE_MM, CacheInfo};

use crate::kernel::{
    memory::{Memory, is_kernel_address},
    types::Types,
};

const PAGE_SHIFT: u64 = 12;
const PAGE_STRUCT: u64 = 64;
/// Caches walked at most; hosts have a few hundred.
const MOST_CACHES: usize = 1000;
/// Sockets opened to have partial slabs; below the usual limit of open files.
const MADE: usize = 600;
/// Objects that may vote for the page constant.
const VOTES: usize = 200;

/// A cache's name → the structure of its objects, where the two differ; read from the kernel's own kmem_cache_create calls.
const STRUCTS: [(&str, &str); 30] = [
    ("ext4_inode_cache", "ext4_inode_info"),
    ("xfs_inode", "xfs_inode"),
    ("btrfs_inode", "btrfs_inode"),
    ("inode_cache", "inode"),
    ("shmem_inode_cache", "shmem_inode_info"),
    ("proc_inode_cache", "proc_inode"),
    ("sock_inode_cache", "socket_alloc"),
    ("bdev_cache", "bdev_inode"),
    ("fuse_inode", "fuse_inode"),
    ("hugetlbfs_inode_cache", "hugetlbfs_inode_info"),
    ("mqueue_inode_cache", "mqueue_inode_info"),
    ("signal_cache", "signal_struct"),
    ("sighand_cache", "sighand_struct"),
    ("files_cache", "files_struct"),
    ("fs_cache", "fs_struct"),
    ("jbd2_transaction_s", "transaction_s"),
    ("jbd2_journal_head", "journal_head"),
    ("jbd2_journal_handle", "jbd2_journal_handle"),
    ("jbd2_inode", "jbd2_inode"),
    ("ext4_groupinfo_4k", "ext4_group_info"),
    ("filp", "file"),
    ("radix_tree_node", "xa_node"),
    ("UNIX", "unix_sock"),
    ("TCP", "tcp_sock"),
    ("blkdev_ioc", "io_context"),
    ("eventpoll_epi", "epitem"),
    ("cred_jar", "cred"),
    ("task_group", "task_group"),
    ("vma_lock", "vma_lock"),
    ("posix_timers_cache", "k_itimer"),
];

/// Where the inode lies in the objects of these structures.
const INODES: [(&str, &str); 11] = [
    ("ext4_inode_info", "ext4_inode_info.vfs_inode"),
    ("xfs_inode", "xfs_inode.i_vnode"),
    ("btrfs_inode", "btrfs_inode.vfs_inode"),
    ("inode", ""),
    ("shmem_inode_info", "shmem_inode_info.vfs_inode"),
    ("proc_inode", "proc_inode.vfs_inode"),
    ("socket_alloc", "socket_alloc.vfs_inode"),
    ("bdev_inode", "bdev_inode.vfs_inode"),
    ("fuse_inode", "fuse_inode.inode"),
    ("hugetlbfs_inode_info", "hugetlbfs_inode_info.vfs_inode"),
    ("mqueue_inode_info", "mqueue_inode_info.vfs_inode"),
];

/// One slab cache.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The structures that its objects can be: several when the kernel merged caches of one size.
    pub structures: Vec<String>,
    /// What the kernel side is told of it.
    pub info: CacheInfo,
}

/// All caches, and how to get from an address to its page.
#[derive(Debug, Default)]
pub struct Slabs {
    /// By address of the `kmem_cache`.
    pub caches: BTreeMap<u64, Cache>,
    /// page = constant + (address >> 12) × 64, modulo 2^64.
    pub constant: u64,
    /// Some page's structure: the others lie in the same terabyte.
    a_page: u64,
    offsets: Offsets,
}

#[derive(Clone, Copy, Debug, Default)]
struct Offsets {
    head: u64,
    flags: u64,
    page_type: u64,
    slab_cache: u64,
    type_slab: Option<u32>,
    flag_slab: u32,
}

/// Where in an object an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The `kmem_cache`.
    pub cache: u64,
    /// Start of the object.
    pub object: u64,
    /// Bytes from there.
    pub offset: u32,
}

impl Slabs {
    /// Walks the caches and finds the page constant, and tests both on our own task and address space.
    ///
    /// # Errors
    /// Why locks cannot be identified here.
    pub fn find(memory: &dyn Memory, types: &Types, symbol: &dyn Fn(&str) -> Option<u64>) -> Result<Slabs> {
        if types.size_of("page") != Some(PAGE_STRUCT) {
            bail!("struct page has another size than {PAGE_STRUCT} bytes");
        }
        let offsets = Offsets {
            head: types.offset("page.compound_head")?,
            flags: types.offset("page.flags")?,
            page_type: types.offset("page.page_type")?,
            slab_cache: types.offset("slab.slab_cache")?,
            type_slab: types.enumerator("PGTY_slab"),
            flag_slab: types.enumerator("PG_slab").unwrap_or(63),
        };
        let first = own_socket_cache(memory, types)?;
        let addresses = walk(memory, types, first)?;
        let constant = match from_symbols(memory, symbol) {
            Some(constant) => constant,
            None => from_partial_slabs(memory, types, &addresses)?,
        };
        let caches = describe(memory, types, &addresses)?;
        let a_page = page_of(constant, first);
        let slabs = Slabs { caches, constant, a_page, offsets };
        slabs.test(memory, types)?;
        Ok(slabs)
    }

    /// Our own `task_struct` must be found as one, at its start.
    fn test(&self, memory: &dyn Memory, types: &Types) -> Result<()> {
        let task = memory.own_task().context("our own task cannot be read")?;
        let mm = memory.word(task + types.offset("task_struct.mm")?).context("our own mm cannot be read")?;
        for (address, name) in [(task, "task_struct"), (mm, "mm_struct")] {
            let place = self.place(memory, address);
            let right = place.is_some_and(|place| place.offset == 0 && self.is_of(place.cache, name));
            if !right {
                bail!("the self-test failed: our own {name} is not found as one");
            }
        }
        Ok(())
    }

    fn is_of(&self, cache: u64, structure: &str) -> bool {
        self.caches.get(&cache).is_some_and(|cache| cache.structures.iter().any(|name| name == structure))
    }

    /// What the kernel side is to be told.
    pub fn infos(&self) -> Vec<(u64, CacheInfo)> {
        self.caches.iter().map(|(address, cache)| (*address, cache.info)).collect()
    }

    /// The object that an address lies in, as the kernel side finds it.
    pub fn place(&self, memory: &dyn Memory, address: u64) -> Option<Place> {
        let (page, cache) = self.slab_of(memory, address)?;
        let size = u64::from(self.caches.get(&cache)?.info.size);
        let start = (page.wrapping_sub(self.constant) / PAGE_STRUCT) << PAGE_SHIFT;
        let offset = address.wrapping_sub(start).checked_rem(size)?;
        Some(Place { cache, object: address - offset, offset: u32::try_from(offset).ok()? })
    }

    /// Where in a page's own structure an address lies, if it lies in one.
    pub fn offset_in_page(&self, address: u64) -> Option<u32> {
        (address >> 40 == self.a_page >> 40).then_some((address % PAGE_STRUCT) as u32)
    }

    fn slab_of(&self, memory: &dyn Memory, address: u64) -> Option<(u64, u64)> {
        let page = page_of(self.constant, address);
        let head = memory.word(page + self.offsets.head)?;
        let page = if head & 1 == 1 { head - 1 } else { page };
        let is_slab = match self.offsets.type_slab {
            Some(wanted) => memory.half(page + self.offsets.page_type)? >> 24 == wanted,
            None => memory.word(page + self.offsets.flags)? >> (self.offsets.flag_slab & 63) & 1 == 1,
        };
        if !is_slab {
            return None;
        }
        Some((page, memory.word(page + self.offsets.slab_cache)?))
    }
}

/// The structure of the page that an address lies in.
fn page_of(constant: u64, address: u64) -> u64 {
    constant.wrapping_add((address >> PAGE_SHIFT).wrapping_mul(PAGE_STRUCT))
}

/// A cache to start from: that of a UNIX socket of ours, by way of our own files (no file system is involved).
fn own_socket_cache(memory: &dyn Memory, types: &Types) -> Result<u64> {
    let socket = UnixDatagram::unbound().context("opening a socket")?;
    let file = own_file(memory, types, socket.as_raw_fd())?;
    let at = |from: u64, path: &str| -> Result<u64> {
        memory.word(from + types.offset(path)?).with_context(|| format!("reading {path}"))
    };
    let sock = at(at(file, "file.private_data")?, "socket.sk")?;
    at(at(sock, "sock.__sk_common.skc_prot")?, "proto.slab")
}

/// The `struct file` behind one of our fds.
///
/// # Errors
/// When it cannot be reached.
pub fn own_file(memory: &dyn Memory, types: &Types, fd: i32) -> Result<u64> {
    let at = |from: u64, path: &str| -> Result<u64> {
        memory.word(from + types.offset(path)?).with_context(|| format!("reading {path}"))
    };
    let task = memory.own_task().context("our own task cannot be read")?;
    let table = at(at(at(task, "task_struct.files")?, "files_struct.fdt")?, "fdtable.fd")?;
    memory.word(table + 8 * u64::try_from(fd)?).context("reading our table of files")
}

/// Addresses of all caches, by their list. Its head is no cache and lies in the kernel's image.
fn walk(memory: &dyn Memory, types: &Types, first: u64) -> Result<Vec<u64>> {
    let list = types.offset("kmem_cache.list")?;
    let name = types.offset("kmem_cache.name")?;
    let (mut caches, mut current) = (vec![first], first);
    for _ in 0..MOST_CACHES {
        let next = memory.word(current + list).context("walking the slab caches")?.wrapping_sub(list);
        if next == first {
            return Ok(caches);
        }
        if memory.word(next + name).is_some_and(|name| memory.text(name).is_some_and(|name| is_name(&name))) {
            caches.push(next);
        }
        current = next;
    }
    bail!("the list of slab caches does not end")
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

/// The page constant from the kernel's own variables, where kallsyms has data symbols.
fn from_symbols(memory: &dyn Memory, symbol: &dyn Fn(&str) -> Option<u64>) -> Option<u64> {
    let pages = memory.word(symbol("vmemmap_base")?)?;
    let direct = memory.word(symbol("page_offset_base")?)?;
    Some(pages.wrapping_sub((direct >> PAGE_SHIFT).wrapping_mul(PAGE_STRUCT)))
}

/// The page constant from partial slabs. A freshly booted kernel may have none on its lists: then we make some, by opening
/// many sockets and closing every other one.
fn from_partial_slabs(memory: &dyn Memory, types: &Types, addresses: &[u64]) -> Result<u64> {
    vote(memory, types, addresses).or_else(|_| {
        let mut sockets: Vec<UnixDatagram> = (0..MADE).filter_map(|_| UnixDatagram::unbound().ok()).collect();
        let mut index = 0;
        sockets.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        vote(memory, types, addresses)
    })
}

/// The page constant, by majority: a partial slab of order 0 names its page and, by its first free object, its address.
fn vote(memory: &dyn Memory, types: &Types, caches: &[u64]) -> Result<u64> {
    let mut votes: HashMap<u64, usize> = HashMap::new();
    for cache in caches {
        for constant in votes_of(memory, types, *cache)? {
            *votes.entry(constant).or_default() += 1;
        }
        if votes.values().sum::<usize>() >= VOTES {
            break;
        }
    }
    let all: usize = votes.values().sum();
    let best = votes.into_iter().max_by_key(|(_, count)| *count);
    let (constant, count) = best.context("no partial slab to find the page constant from")?;
    if count * 10 < all * 9 {
        bail!("slabs disagree on the page constant: {count} of {all}");
    }
    Ok(constant)
}

fn votes_of(memory: &dyn Memory, types: &Types, cache: u64) -> Result<Vec<u64>> {
    let order = memory.half(cache + types.offset("kmem_cache.oo")?).unwrap_or(u32::MAX) >> 16;
    let node = memory.word(cache + types.offset("kmem_cache.node")?).unwrap_or(0);
    if order != 0 || !is_kernel_address(node) {
        return Ok(Vec::new());
    }
    let (list, freelist) = (types.offset("slab.slab_list")?, types.offset("slab.freelist")?);
    let head = node + types.offset("kmem_cache_node.partial")?;
    let (mut votes, mut entry) = (Vec::new(), memory.word(head).unwrap_or(head));
    while entry != head && votes.len() < 4 && is_kernel_address(entry) {
        let slab = entry - list;
        if let Some(object) = memory.word(slab + freelist).filter(|object| is_kernel_address(*object)) {
            votes.push(slab.wrapping_sub((object >> PAGE_SHIFT).wrapping_mul(PAGE_STRUCT)));
        }
        entry = memory.word(entry).unwrap_or(head);
    }
    Ok(votes)
}

fn describe(memory: &dyn Memory, types: &Types, addresses: &[u64]) -> Result<BTreeMap<u64, Cache>> {
    let (name, size) = (types.offset("kmem_cache.name")?, types.offset("kmem_cache.size")?);
    let aliases = aliases();
    let mut caches = BTreeMap::new();
    for address in addresses {
        let text = memory.word(address + name).and_then(|name| memory.text(name));
        let (Some(text), Some(size)) = (text, memory.half(address + size)) else { continue };
        if size > 0 {
            caches.insert(*address, cache(types, &text, size, &aliases));
        }
    }
    Ok(caches)
}

fn cache(types: &Types, name: &str, size: u32, aliases: &HashMap<String, Vec<String>>) -> Cache {
    if name.starts_with("kmalloc-") || name.starts_with("dma-kmalloc") {
        return Cache {
            structures: Vec::new(),
            info: CacheInfo { size, kind: CACHE_KMALLOC, ..CacheInfo::default() },
        };
    }
    let own = vec![name.to_owned()];
    let names = aliases.get(name).unwrap_or(&own);
    let mut structures: Vec<String> = names.iter().map(|name| structure(name).to_owned()).collect();
    structures.retain(|name| types.size_of(name).is_some());
    structures.dedup();
    Cache { info: info(types, &structures, size), structures }
}

fn structure(cache: &str) -> &str {
    STRUCTS.iter().find(|(name, _)| *name == cache).map_or(cache, |(_, structure)| structure)
}

fn info(types: &Types, structures: &[String], size: u32) -> CacheInfo {
    let class = CacheInfo { size, kind: CACHE_CLASS, ..CacheInfo::default() };
    let [only] = structures else { return class };
    if only == "mm_struct" {
        return CacheInfo { kind: CACHE_MM, ..class };
    }
    let Some((_, path)) = INODES.iter().find(|(structure, _)| structure == only) else { return class };
    let offset = if path.is_empty() { Some(0) } else { types.offset(path).ok() };
    match offset.and_then(|offset| u32::try_from(offset).ok()) {
        Some(inode_offset) => CacheInfo { kind: CACHE_INODE, inode_offset, ..class },
        None => class,
    }
}

/// Names of merged caches: links in /sys/kernel/slab with the same target. Every name maps to all of its group.
fn aliases() -> HashMap<String, Vec<String>> {
    let mut groups: HashMap<String, Vec<String>> = HashMap::new();
    for entry in std::fs::read_dir("/sys/kernel/slab").into_iter().flatten().flatten() {
        if let (Ok(target), Ok(name)) = (std::fs::read_link(entry.path()), entry.file_name().into_string()) {
            groups.entry(target.to_string_lossy().into_owned()).or_default().push(name);
        }
    }
    let groups = groups.into_values().map(|mut names| {
        names.sort();
        names
    });
    groups.flat_map(|names| names.clone().into_iter().map(move |name| (name, names.clone()))).collect()
}
