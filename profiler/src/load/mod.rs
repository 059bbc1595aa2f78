//! Loads the BPF object, sizes its maps, sets what it must know of this kernel, and attaches the probes that can be.
//! Counts nothing and names nothing.

use std::{
    io::Write,
    os::fd::{AsFd, OwnedFd},
};

use anyhow::{Context, Result, anyhow};
use aya::{
    Ebpf, EbpfLoader,
    maps::{CgroupArray, HashMap, MapData},
    programs::RawTracePoint,
};
use profiler_common::{CellKey, CellRef, Control, key::CacheInfo};

use crate::kernel::{btf::Btf, features::Features};

pub mod attach;
pub mod bursts;
pub mod globals;
pub mod mapped;
pub mod peek;
pub mod raw;
pub mod sizes;

pub use attach::Attacher;
pub use mapped::{Mapped, Plain};
pub use sizes::Sizes;

/// The compiled kernel side, committed beside its toolchain's versions (`cargo xtask bpf`).
pub const OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/lockscope.bpf.o"));

/// Names an object to load in place of [`OBJECT`]: the tests of a rebuilt one.
pub const OBJECT_VARIABLE: &str = "LOCKSCOPE_BPF_OBJECT";

/// The layout of profiler-common that this program knows; an object with another one is refused.
const ABI: &str = "LOCKSCOPE_ABI_4";

/// `Level::Info` of aya-log-common.
const LOG_INFO: u8 = 3;

/// What to load.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the maps.
    pub sizes: Sizes,
    /// Kinds of locks to record, bits 1 << kind.
    pub kinds: u32,
    /// Whether the programs may write log lines for rare events.
    pub log: bool,
}

/// The loaded object: its maps exist, nothing is attached.
pub struct Loaded {
    ebpf: Ebpf,
    raw: Option<raw::RawObject>,
    /// Sizes of the maps.
    pub sizes: Sizes,
    statistics: Option<OwnedFd>,
}

impl Loaded {
    /// Creates the maps and parses the programs.
    ///
    /// # Errors
    /// When the kernel refuses maps altogether (no rights, lockdown), or the object is broken.
    pub fn new(options: &Options, btf: Option<&Btf>, features: &Features) -> Result<Loaded> {
        let elf = object()?;
        let values = globals::values(options, btf, features);
        let entries = options.sizes.entries();
        let log_level = if options.log { LOG_INFO } else { 0 };
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        for (name, count) in &entries {
            loader.map_max_entries(name, *count);
        }
        for (name, value) in &values.words {
            loader.override_global(name, value, true);
        }
        loader.override_global(ABI, &4u32, true);
        loader.override_global("HANDOFF_NS", &values.handoff_ns, true);
        loader.override_global("AYA_LOG_LEVEL", &log_level, false);
        let ebpf = loader.load(&elf).context("creating the BPF maps")?;
        let raw = raw::RawObject::new(&elf, &ebpf).map(Some)?;
        let statistics = aya::sys::enable_stats(aya::sys::Stats::RunTime).ok();
        Ok(Loaded { ebpf, raw, sizes: options.sizes, statistics })
    }

    /// Whether the kernel counts how long our programs run.
    pub fn is_timed(&self) -> bool {
        self.statistics.is_some()
    }

    /// Maps one of the mappable arrays.
    ///
    /// # Errors
    /// When there is no such map, or it cannot be mapped.
    pub fn mapped<T: Plain>(&self, name: &str, len: u32) -> Result<Mapped<T>> {
        let map = self.ebpf.map(name).ok_or_else(|| anyhow!("the object has no map {name}"))?;
        Mapped::new(raw::map_fd(map)?, len as usize, name)
    }

    /// The settings, mapped.
    ///
    /// # Errors
    /// As [`Loaded::mapped`].
    pub fn control(&self) -> Result<Mapped<Control>> {
        self.mapped("CONTROL", 1)
    }

    /// Takes the map of known keys out of the object, to be written by whoever makes cells.
    ///
    /// # Errors
    /// When it was taken already.
    pub fn take_keys(&mut self) -> Result<HashMap<MapData, PodKey, PodRef>> {
        let map =
            self.ebpf.take_map("CELL_OF").ok_or_else(|| anyhow!("the map CELL_OF was taken already"))?;
        Ok(HashMap::try_from(map)?)
    }

    /// The set of selected processes.
    ///
    /// # Errors
    /// When the object has no such map.
    pub fn tgids(&mut self) -> Result<HashMap<&mut MapData, u32, u32>> {
        let map = self.ebpf.map_mut("TGIDS").ok_or_else(|| anyhow!("the object has no map TGIDS"))?;
        Ok(HashMap::try_from(map)?)
    }

    /// Tells the kernel side of slab caches.
    ///
    /// # Errors
    /// When the map is full, or the kernel refuses it.
    pub fn tell_caches(&mut self, caches: &[(u64, CacheInfo)]) -> Result<()> {
        let map = self.ebpf.map_mut("CACHES").ok_or_else(|| anyhow!("the object has no map CACHES"))?;
        let mut map: HashMap<&mut MapData, u64, PodCache> = HashMap::try_from(map)?;
        for (address, info) in caches {
            map.insert(address, PodCache(*info), 0).context("telling the kernel side of a slab cache")?;
        }
        Ok(())
    }

    /// What reads kernel memory.
    ///
    /// # Errors
    /// When the kernel refuses the program.
    pub fn peek(&mut self) -> Result<peek::Peek> {
        let program = self.load_raw_tracepoint("peek")?.fd()?.as_fd().try_clone_to_owned()?;
        Ok(peek::Peek::new(program, self.mapped("PEEK", 1)?))
    }

    /// Puts a cgroup's directory into the array of selected cgroups.
    ///
    /// # Errors
    /// When the kernel does not take it for a cgroup v2 directory.
    pub fn select_cgroup(&mut self, index: u32, directory: impl AsFd) -> Result<()> {
        let map = self.ebpf.map_mut("CGROUPS").ok_or_else(|| anyhow!("the object has no map CGROUPS"))?;
        let mut cgroups: CgroupArray<&mut MapData> = CgroupArray::try_from(map)?;
        cgroups.set(index, directory.as_fd(), 0).context("selecting the cgroup")
    }

    /// Loads a raw tracepoint program without attaching it, to be driven by BPF_PROG_TEST_RUN.
    ///
    /// # Errors
    /// When there is no such program or the kernel refuses it.
    pub fn load_raw_tracepoint(&mut self, program: &str) -> Result<&mut RawTracePoint> {
        let found =
            self.ebpf.program_mut(program).ok_or_else(|| anyhow!("the object has no program {program}"))?;
        let program: &mut RawTracePoint = found.try_into()?;
        if program.fd().is_err() {
            program.load()?;
        }
        Ok(program)
    }

    /// The reader of the programs' log lines, which go to standard error.
    ///
    /// # Errors
    /// When the object has no log.
    pub fn logger(&mut self) -> Result<LogReader> {
        aya_log::EbpfLogger::init_with_logger(&mut self.ebpf, StandardError)
            .context("opening the programs' log")
    }
}

/// Reads the programs' log when it is flushed.
pub type LogReader = aya_log::EbpfLogger<StandardError>;

/// Prints log lines of the kernel side.
#[derive(Debug)]
pub struct StandardError;

impl log::Log for StandardError {
    fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let _ = writeln!(std::io::stderr(), "lockscope: bpf: {}", record.args());
    }

    fn flush(&self) {}
}

fn object() -> Result<Vec<u8>> {
    match std::env::var_os(OBJECT_VARIABLE) {
        Some(path) => std::fs::read(&path).with_context(|| format!("{OBJECT_VARIABLE}={}", path.display())),
        None => Ok(OBJECT.to_vec()),
    }
}

/// [`CellKey`] as aya wants it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PodKey(pub CellKey);
/// [`CellRef`] as aya wants it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PodRef(pub CellRef);
/// [`CacheInfo`] as aya wants it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PodCache(pub CacheInfo);
// SAFETY: `repr(C)` integers without hidden padding; their sizes are asserted in profiler-common.
unsafe impl aya::Pod for PodCache {}
// SAFETY: as above.
unsafe impl aya::Pod for PodKey {}
// SAFETY: as above.
unsafe impl aya::Pod for PodRef {}
