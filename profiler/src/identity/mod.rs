//! Names for what the maps hold as addresses: locks by class and instance, stacks by function, processes by /proc.
//!
//! A lock's class comes from the slab cache and offset that the kernel side found (`slabs`, `classes`), from a registry of
//! kmalloc'ed objects, or from kallsyms; its instance from the inode or address space it lies in (`instances`).
//! Kernel addresses end here: nothing that leaves this module holds one, unless the user asked for raw addresses.
//! No counter is known here.

use std::collections::{BTreeMap, HashMap};

use profiler_common::{
    CellKey, Interval, Kind, device,
    key::{BUFFER_CLASS, CACHE_INODE, CACHE_KMALLOC, CACHE_MM, CacheInfo, FOLIO_CLASS, NO_CLASS, OwnerKind},
};

use crate::{
    kernel::{kallsyms::Kallsyms, memory::Memory, types::Types},
    snapshot::{CellName, LockName, Names, ProcessName, StackName, read::Namer, subsystems::JournalFill},
};

pub mod classes;
pub mod instances;
pub mod registry;
pub mod slabs;

use registry::Registry;
use slabs::Slabs;

/// What it takes to say what lock an address is.
pub struct Anatomy {
    /// Reads kernel memory.
    pub memory: Box<dyn Memory>,
    /// The kernel's types.
    pub types: Types,
    /// The kernel's slab caches.
    pub slabs: Slabs,
    /// Known objects from kmalloc.
    pub registry: Registry,
}

/// A lock apart from who waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct LockKey {
    lock: u64,
    instance: u64,
    offset: u32,
    device: u32,
    generation: u32,
}

/// Names given so far, and those not handed out yet.
pub struct Identity {
    symbols: Option<Kallsyms>,
    raw_addresses: bool,
    new: Names,
    anatomy: Option<Anatomy>,
    locks: HashMap<LockKey, u32>,
    /// Locks by address that nothing is known of yet: a mount to come may tell.
    unnamed: Vec<(u32, u64)>,
    stacks: HashMap<u64, (u32, u64)>,
    processes: HashMap<u32, Vec<u8>>,
    mounts: BTreeMap<u32, String>,
    per_cpu_bases: Vec<u64>,
}

impl Identity {
    /// Names nothing by symbol until [`Namer::refresh`] has read them; shows addresses only if `raw_addresses`.
    pub fn new(raw_addresses: bool, anatomy: Option<Anatomy>) -> Self {
        Identity {
            symbols: None,
            anatomy,
            raw_addresses,
            new: Names::default(),
            locks: HashMap::new(),
            unnamed: Vec::new(),
            stacks: HashMap::new(),
            processes: HashMap::new(),
            mounts: BTreeMap::new(),
            per_cpu_bases: Vec::new(),
        }
    }

    fn number(&mut self, key: LockKey, address: u64, tgid: u32) -> u32 {
        if let Some(id) = self.locks.get(&key) {
            return *id;
        }
        let id = self.locks.len() as u32 + 1;
        let mut name = self.lock_name(id, &key, address, tgid);
        if name.class.is_none() && self.walk_again() {
            name = self.lock_name(id, &key, address, tgid);
        }
        if name.class.is_none() && key.offset == NO_CLASS {
            self.unnamed.push((id, address));
        }
        self.new.locks.push(name);
        self.locks.insert(key, id);
        id
    }

    /// Walks the known objects again if mounts have changed, and names what had no name; says whether it did.
    fn walk_again(&mut self) -> bool {
        let Some(anatomy) = self.anatomy.as_mut().filter(|anatomy| anatomy.registry.is_stale()) else {
            return false;
        };
        anatomy.registry = Registry::walk(&*anatomy.memory, &anatomy.types);
        self.note_mounts();
        let unnamed = std::mem::take(&mut self.unnamed);
        for (id, address) in unnamed {
            let name = self.lock_name(id, &LockKey::address(address), address, 0);
            if name.class.is_some() {
                self.new.locks.push(name);
            } else {
                self.unnamed.push((id, address));
            }
        }
        true
    }

    /// Hands out where devices are mounted, those that are new.
    fn note_mounts(&mut self) {
        let Some(anatomy) = &self.anatomy else { return };
        for (device, point) in anatomy.registry.mount_points() {
            if self.mounts.get(&device) != Some(&point) {
                self.mounts.insert(device, point.clone());
                self.new.mounts.push((device, point));
            }
        }
    }

    fn lock_name(&self, id: u32, key: &LockKey, address: u64, tgid: u32) -> LockName {
        let lock_id = if self.raw_addresses { format!("{address:#x}") } else { format!("lock-{id}") };
        let symbol = self.symbols.as_ref().and_then(|symbols| symbols.data_symbol(address));
        let symbol = symbol.map(|symbol| with_offset(symbol.name, symbol.offset));
        let (symbol, cpu) = match symbol {
            Some(symbol) => (Some(symbol), None),
            None => self.per_cpu_variable(address).unzip(),
        };
        let (class, instance) = self.anatomy.as_ref().map_or((None, None), |anatomy| {
            if key.offset == NO_CLASS {
                anatomy.known(address, id)
            } else {
                self.of_cache(anatomy, key, tgid)
            }
        });
        let device = self.anatomy.as_ref().and_then(|anatomy| anatomy.device(key, address));
        let instance = instance.or(cpu.map(|cpu| format!("of CPU {cpu}")));
        let is_static = key.offset == NO_CLASS && address >= IMAGE;
        LockName { id, lock_id, symbol, class, instance, is_static, device }
    }

    /// The per-CPU variable that an address lies in, and whose.
    fn per_cpu_variable(&self, address: u64) -> Option<(String, usize)> {
        let symbols = self.symbols.as_ref()?;
        self.per_cpu_bases.iter().enumerate().find_map(|(cpu, base)| {
            let symbol = symbols.per_cpu_symbol(address.checked_sub(*base)?)?;
            Some((format!("per-CPU {}", with_offset(symbol.name, symbol.offset)), cpu))
        })
    }

    /// Where each CPU's area lies (`__per_cpu_offset`); empty where the kernel does not list that variable.
    fn read_per_cpu_bases(&self) -> Vec<u64> {
        let array = self.symbols.as_ref().and_then(|symbols| symbols.address("__per_cpu_offset"));
        let (Some(array), Some(anatomy)) = (array, &self.anatomy) else { return Vec::new() };
        // SAFETY: a constant of the system.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(0) as u64;
        (0..cpus).map_while(|cpu| anatomy.memory.word(array + 8 * cpu)).collect()
    }

    /// Class and instance of a lock in an object of a slab cache.
    fn of_cache(&self, anatomy: &Anatomy, key: &LockKey, tgid: u32) -> (Option<String>, Option<String>) {
        match key.lock {
            BUFFER_CLASS => {
                return (Some(BUFFER.to_owned()), Some(instances::block(key.instance, key.device)));
            }
            FOLIO_CLASS => {
                return (Some(FOLIO.to_owned()), Some(instances::file_of(key.instance, key.device, tgid)));
            }
            _ => {}
        }
        let Some(cache) = anatomy.slabs.caches.get(&key.lock) else { return (None, None) };
        let mut classes: Vec<String> = cache
            .structures
            .iter()
            .filter_map(|structure| classes::class(&anatomy.types, structure, key.offset))
            .collect();
        classes.dedup();
        let instance = match cache.info.kind {
            CACHE_INODE => Some(instances::inode(key.instance, key.device, tgid)),
            CACHE_MM => Some(instances::process(key.instance, &self.comm_of(key.instance as u32))),
            _ => None,
        };
        let class = (1..=MOST_CANDIDATES).contains(&classes.len()).then(|| classes.join(" or "));
        (class, instance)
    }

    fn comm_of(&self, tgid: u32) -> Vec<u8> {
        self.processes.get(&tgid).cloned().or_else(|| read_comm(tgid)).unwrap_or_default()
    }

    /// The stack's name and a token of its caller: the start of the caller's function.
    fn stack_name(&self, id: u32, frames: &[u64]) -> (StackName, u64) {
        let Some(symbols) = &self.symbols else {
            return (StackName { id, frames: self.bare_frames(frames), caller: None }, 0);
        };
        let caller = symbols.caller(frames);
        let first = caller.as_ref().map_or(0, |(index, _)| *index);
        // Trampolines of functions that we trace ourselves stand between their callers and them.
        let names = frames.iter().skip(first).map(|frame| self.frame_name(symbols, *frame));
        let names = names.filter(|name| !name.starts_with("bpf_trampoline_")).collect();
        let token = caller.as_ref().map_or(0, |(index, symbol)| frames[*index].wrapping_sub(symbol.offset));
        let caller = caller.map(|(_, symbol)| symbol.name.to_owned());
        (StackName { id, frames: names, caller }, token)
    }

    fn frame_name(&self, symbols: &Kallsyms, frame: u64) -> String {
        match symbols.symbol_of_return(frame) {
            Some(symbol) => {
                let module = symbol.module.map_or(String::new(), |module| format!(" [{module}]"));
                format!("{}+{:#x}{module}", symbol.name, symbol.offset)
            }
            None => self.bare_frame(frame),
        }
    }

    fn bare_frames(&self, frames: &[u64]) -> Vec<String> {
        frames.iter().map(|frame| self.bare_frame(*frame)).collect()
    }

    fn bare_frame(&self, frame: u64) -> String {
        if self.raw_addresses { format!("{frame:#x}") } else { "[unknown]".to_owned() }
    }

    /// Names a process, and names it anew when it has become another one: an exec, or a number used again.
    fn note_process(&mut self, tgid: u32, fallback: &[u8]) {
        if tgid == 0 {
            return;
        }
        let known = self.processes.get(&tgid);
        let comm = match read_comm(tgid) {
            Some(comm) => comm,
            None if known.is_some() => return,
            None => fallback.to_vec(),
        };
        if known != Some(&comm) {
            self.new.processes.push(ProcessName { tgid, comm: comm.clone() });
            self.processes.insert(tgid, comm);
        }
    }
}

impl Namer for Identity {
    fn lock(&mut self, key: &CellKey, address: u64) -> u32 {
        let lock = LockKey {
            lock: key.lock,
            instance: key.instance,
            offset: key.offset,
            device: key.device,
            generation: key.generation,
        };
        self.number(lock, address, key.tgid)
    }

    fn open_lock(&mut self, open: &Interval) -> u32 {
        let key = self.anatomy.as_ref().and_then(|anatomy| anatomy.identify_open(open));
        self.number(key.unwrap_or(LockKey::address(open.lock)), open.lock, open.tgid)
    }

    fn stack(&mut self, hash: u64, frames: &[u64]) -> (u32, u64) {
        if hash == 0 {
            return (0, 0);
        }
        if let Some(known) = self.stacks.get(&hash) {
            return *known;
        }
        let id = self.stacks.len() as u32 + 1;
        let (name, token) = self.stack_name(id, frames);
        self.new.stacks.push(name);
        self.stacks.insert(hash, (id, token));
        (id, token)
    }

    fn process(&mut self, tgid: u32, comm: [u8; 16]) {
        let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
        self.note_process(tgid, &comm[..end]);
    }

    fn cell(&mut self, name: CellName) {
        let owner = OwnerKind::from_number(name.owner_kind);
        if matches!(owner, OwnerKind::OnCpu | OwnerKind::OffCpu) {
            self.note_process(name.owner_tgid, b"");
        }
        self.new.cells.push(name);
    }

    fn journal_fills(&mut self) -> BTreeMap<u32, JournalFill> {
        // A journal that was unmounted is no longer there to be read.
        self.walk_again();
        self.anatomy.as_ref().map_or_else(BTreeMap::new, Anatomy::journal_fills)
    }

    fn lru_pinned(&self, cpus: u32) -> Option<u64> {
        let symbols = self.symbols.as_ref()?;
        let lrus = symbols.per_cpu_offset("bh_lrus")?;
        let bases = self.per_cpu_bases.get(..cpus as usize)?;
        self.anatomy.as_ref()?.count_pinned(lrus, bases)
    }

    fn new_caches(&mut self) -> Vec<(u64, CacheInfo)> {
        let symbols = self.symbols.as_ref();
        let symbol = |name: &str| symbols.and_then(|symbols| symbols.address(name));
        let Some(anatomy) = &mut self.anatomy else { return Vec::new() };
        let Ok(slabs) = Slabs::find(&*anatomy.memory, &anatomy.types, &symbol) else { return Vec::new() };
        let mut infos = slabs.infos();
        infos.retain(|(address, _)| !anatomy.slabs.caches.contains_key(address));
        anatomy.slabs = slabs;
        infos
    }

    fn without_hist(&mut self, row: u32, reason: &str) {
        self.new.rows_without_hist.push((row, reason.to_owned()));
    }

    fn is_running(&self, tid: u32) -> bool {
        let stat = std::fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
        // The name before it may hold anything, a parenthesis too: the state follows the last one.
        let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
        tid != 0 && state == Some(&b'R')
    }

    fn has_left(&self, tid: u32, function: &str) -> bool {
        let stack = std::fs::read_to_string(format!("/proc/{tid}/stack"));
        stack.is_ok_and(|stack| !stack.is_empty() && !stack.contains(function))
    }

    fn is_gone(&self, tgid: u32) -> bool {
        tgid != 0 && !std::path::Path::new("/proc").join(tgid.to_string()).exists()
    }

    /// Reads the kernel's symbols: only now, since the programs' own code and trampolines have just got theirs.
    fn refresh(&mut self) {
        self.symbols = Kallsyms::read().ok().filter(Kallsyms::usable);
        self.per_cpu_bases = self.read_per_cpu_bases();
        self.note_mounts();
    }

    fn take(&mut self) -> Names {
        std::mem::take(&mut self.new)
    }
}

fn with_offset(name: &str, offset: u64) -> String {
    if offset == 0 { name.to_owned() } else { format!("{name}+{offset:#x}") }
}

fn read_comm(tgid: u32) -> Option<Vec<u8>> {
    let comm = std::fs::read(format!("/proc/{tgid}/comm")).ok()?;
    Some(comm.strip_suffix(b"\n").unwrap_or(&comm).to_vec())
}

/// From here on lie the kernel's image and the modules (arch/x86/include/asm/page_64_types.h, __START_KERNEL_map).
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// PAGE_MAPPING_FLAGS (include/linux/page-flags.h): not a file's page.
const NO_FILE: u64 = 3;

/// The classes of bit locks: the bit lies in this member.
const BUFFER: &str = "buffer_head.b_state";
const FOLIO: &str = "folio.flags";

/// More candidates than this are no help: the lock stays without a class.
const MOST_CANDIDATES: usize = 3;

impl LockKey {
    fn address(address: u64) -> LockKey {
        LockKey { lock: address, instance: 0, offset: NO_CLASS, device: 0, generation: 0 }
    }
}

impl Anatomy {
    /// Class and instance of a lock in a registered object, or in a page's own structure: a page table's lock, of which
    /// there is one for each page, told apart by the lock's number.
    fn known(&self, address: u64, id: u32) -> (Option<String>, Option<String>) {
        let Some((object, offset)) = self.registry.find(address) else {
            let class = self.slabs.offset_in_page(address).and_then(|offset| self.page_class(offset));
            return (class.clone(), class.map(|_| format!("no. {id}")));
        };
        // jbd2's waits are at the journal itself, no lock lies at its start.
        let whole = (offset == 0).then(|| object.structure.to_owned());
        let class = classes::class(&self.types, object.structure, offset).or(whole);
        let instance = class.is_some().then(|| format!("of {}", object.instance));
        (class, instance)
    }

    /// How full the known journals are (include/linux/jbd2.h, journal_s).
    fn journal_fills(&self) -> BTreeMap<u32, JournalFill> {
        self.registry
            .journals()
            .filter_map(|(device, start)| Some((device, self.journal_fill(start)?)))
            .collect()
    }

    fn journal_fill(&self, journal: u64) -> Option<JournalFill> {
        let word = |path: &str| self.memory.word(journal + self.types.offset(path).ok()?);
        let most = self.types.offset("journal_s.j_max_transaction_buffers").ok()?;
        let running = word("journal_s.j_running_transaction")?;
        let credits = self.types.offset("transaction_s.t_outstanding_credits").ok()?;
        Some(JournalFill {
            log_blocks: word("journal_s.j_last")?.saturating_sub(word("journal_s.j_first")?),
            log_free: word("journal_s.j_free")?,
            transaction_most: u64::from(self.memory.half(journal + most)?),
            transaction_credits: if running == 0 {
                0
            } else {
                u64::from(self.memory.half(running + credits).unwrap_or(0))
            },
        })
    }

    /// Buffers in the per-CPU variable `bh_lrus` of all CPUs (fs/buffer.c).
    fn count_pinned(&self, lrus: u64, bases: &[u64]) -> Option<u64> {
        let bytes = usize::try_from(self.types.size_of("bh_lru")?).ok()?;
        let mut held = 0;
        for base in bases {
            let mut slots = vec![0; bytes];
            if self.memory.read(base.wrapping_add(lrus), &mut slots) {
                held +=
                    slots.chunks_exact(8).filter(|slot| slot.iter().any(|byte| *byte != 0)).count() as u64;
            }
        }
        Some(held)
    }

    /// The device that a lock belongs to: the key's own, or that of the registered object that it lies in.
    fn device(&self, key: &LockKey, address: u64) -> Option<u32> {
        if key.device != 0 {
            return Some(key.device);
        }
        let (object, _) = self.registry.find(address).filter(|_| key.offset == NO_CLASS)?;
        device::parse(object.instance.split(',').next()?)
    }

    fn page_class(&self, offset: u32) -> Option<String> {
        ["ptdesc", "page"].iter().find_map(|structure| classes::class(&self.types, structure, offset))
    }

    /// What the kernel side will make of this wait's lock at its end (profiler-ebpf/src/identity.rs).
    fn identify_open(&self, open: &Interval) -> Option<LockKey> {
        let word = |at: u64, path: &str| self.memory.word(at + self.types.offset(path).ok()?);
        match Kind::from_number(open.kind) {
            Some(Kind::Buffer | Kind::Jbd2Shadow) => {
                let bdev = word(open.lock, "buffer_head.b_bdev")?;
                Some(LockKey {
                    instance: word(open.lock, "buffer_head.b_blocknr")?,
                    device: self.memory.half(bdev + self.types.offset("block_device.bd_dev").ok()?)?,
                    offset: 0,
                    ..LockKey::address(BUFFER_CLASS)
                })
            }
            Some(Kind::Folio) => {
                let mapping = word(open.lock, "folio.mapping")?;
                let mut key = LockKey { offset: 0, ..LockKey::address(FOLIO_CLASS) };
                if mapping & NO_FILE == 0 {
                    self.describe_inode(&mut key, word(mapping, "address_space.host")?)?;
                }
                Some(key)
            }
            _ => self.identify(open.lock, open.tgid),
        }
    }

    /// What it makes of an address.
    fn identify(&self, address: u64, tgid: u32) -> Option<LockKey> {
        let place = self.slabs.place(&*self.memory, address)?;
        let info = self.slabs.caches.get(&place.cache)?.info;
        let mut key = LockKey { lock: place.cache, offset: place.offset, ..LockKey::address(address) };
        match info.kind {
            CACHE_KMALLOC => return None,
            CACHE_INODE => self.describe_inode(&mut key, place.object + u64::from(info.inode_offset))?,
            CACHE_MM => key.instance = u64::from(self.owner_of(place.object).unwrap_or(tgid)),
            _ => {}
        }
        Some(key)
    }

    fn describe_inode(&self, key: &mut LockKey, inode: u64) -> Option<()> {
        let at = |path: &str| self.types.offset(path).ok();
        key.instance = self.memory.word(inode + at("inode.i_ino")?)?;
        key.generation = self.memory.half(inode + at("inode.i_generation")?)?;
        let sb = self.memory.word(inode + at("inode.i_sb")?)?;
        key.device = self.memory.half(sb + at("super_block.s_dev")?)?;
        Some(())
    }

    fn owner_of(&self, mm: u64) -> Option<u32> {
        let owner = self.memory.word(mm + self.types.offset("mm_struct.owner").ok()?)?;
        self.memory.half(owner + self.types.offset("task_struct.tgid").ok()?)
    }
}
