//! The object's tracing programs (tp_btf, fentry, fexit), loaded by our own `bpf()` calls: aya has no attach cookie and
//! no program for several functions. aya owns the maps; a second parse of the same object is bound to them.
//!
//! aya-obj's generated field names (`__bindgen_anon_3` …) are its private habit and appear in this file only.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use anyhow::{Context, Result, anyhow, bail};
use aya::{Ebpf, maps::Map};
use aya_obj::{
    Function, Object, Program,
    generated::{
        bpf_attach_type, bpf_attr, bpf_cmd, bpf_func_info, bpf_line_info, bpf_prog_info, bpf_prog_type,
    },
};

/// Lines of the verifier's log worth showing: the last ones say why.
const LOG_LINES: usize = 12;

/// The object's programs, bound to the maps of an [`Ebpf`] of the same object.
#[derive(Debug)]
pub struct RawObject {
    object: Object,
    btf: Option<OwnedFd>,
}

/// Which of the three tracing attach types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// A tracepoint with BTF types (`tp_btf`).
    Tracepoint,
    /// A function's entry.
    Entry,
    /// A function's exit.
    Exit,
}

impl Tracing {
    fn attach_type(self) -> bpf_attach_type {
        match self {
            Tracing::Tracepoint => bpf_attach_type::BPF_TRACE_RAW_TP,
            Tracing::Entry => bpf_attach_type::BPF_TRACE_FENTRY,
            Tracing::Exit => bpf_attach_type::BPF_TRACE_FEXIT,
        }
    }
}

impl RawObject {
    /// Parses `elf` and binds it to the maps that `ebpf` made from it.
    ///
    /// # Errors
    /// When the object and the maps do not fit together, or the kernel refuses the program types' BTF.
    pub fn new(elf: &[u8], ebpf: &Ebpf) -> Result<Self> {
        let mut object = Object::parse(elf).context("parsing the BPF object")?;
        let btf = load_btf(&mut object)?;
        let maps = mem::take(&mut object.maps);
        let mut fds = Vec::new();
        for (name, map) in &maps {
            let loaded = ebpf.map(name).ok_or_else(|| anyhow!("map {name} was not created"))?;
            fds.push((name.as_str(), map_fd(loaded)?.as_raw_fd(), map));
        }
        let text = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_maps(fds.into_iter(), &text).context("binding the BPF object to its maps")?;
        object.relocate_calls(&text).context("linking the BPF object's functions")?;
        object.sanitize_functions(aya::features());
        Ok(Self { object, btf })
    }

    /// Loads one program against a BTF type of the kernel's: a function, or a tracepoint's typedef.
    ///
    /// # Errors
    /// The kernel's error, with the end of the verifier's log.
    pub fn load(&self, name: &str, tracing: Tracing, btf_id: u32) -> Result<OwnedFd> {
        let program =
            self.object.programs.get(name).ok_or_else(|| anyhow!("the object has no program {name}"))?;
        let function = self
            .object
            .functions
            .get(&program.function_key())
            .ok_or_else(|| anyhow!("the object has no code for {name}"))?;
        match self.try_load(name, program, function, tracing, btf_id, &mut []) {
            Ok(fd) => Ok(fd),
            // The verifier's log costs time, so it is asked for only when there is something to explain.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(error.into()),
            Err(error) => {
                let mut log = vec![0u8; 1 << 20];
                let _ = self.try_load(name, program, function, tracing, btf_id, &mut log);
                Err(anyhow!(error).context(log_end(&log)))
            }
        }
    }

    fn try_load(
        &self,
        name: &str,
        program: &Program,
        function: &Function,
        tracing: Tracing,
        btf_id: u32,
        log: &mut [u8],
    ) -> io::Result<OwnedFd> {
        let mut attr = zeroed();
        let (functions, lines) = (function.func_info.func_info_bytes(), function.line_info.line_info_bytes());
        let load = {
            // SAFETY: this member is the one that BPF_PROG_LOAD reads, and all zeros is a value of it.
            unsafe { &mut attr.__bindgen_anon_3 }
        };
        load.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
        load.expected_attach_type = tracing.attach_type() as u32;
        load.insns = function.instructions.as_ptr() as u64;
        load.insn_cnt = function.instructions.len() as u32;
        load.license = program.license.as_ptr() as u64;
        for (to, from) in load.prog_name.iter_mut().zip(name.bytes().take(15)) {
            *to = from as _;
        }
        load.attach_btf_id = btf_id;
        if let Some(btf) = &self.btf {
            load.prog_btf_fd = btf.as_raw_fd() as u32;
            load.func_info = functions.as_ptr() as u64;
            load.func_info_cnt = function.func_info.len() as u32;
            load.func_info_rec_size = mem::size_of::<bpf_func_info>() as u32;
            load.line_info = lines.as_ptr() as u64;
            load.line_info_cnt = function.line_info.len() as u32;
            load.line_info_rec_size = mem::size_of::<bpf_line_info>() as u32;
        }
        if !log.is_empty() {
            load.log_buf = log.as_mut_ptr() as u64;
            load.log_size = log.len() as u32;
            load.log_level = 1;
        }
        bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr)
    }
}

/// Attaches a loaded program; `cookie` is what `bpf_get_attach_cookie` will say. The link lives as long as its fd.
///
/// # Errors
/// The kernel's error.
pub fn attach(program: BorrowedFd<'_>, tracing: Tracing, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    if tracing == Tracing::Tracepoint {
        attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
        return bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr);
    }
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.attach_type = tracing.attach_type() as u32;
    attr.link_create.__bindgen_anon_3.tracing.cookie = cookie;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Attaches a raw tracepoint program by the tracepoint's name, a module's too once it is loaded.
///
/// # Errors
/// What the kernel says: ENOENT when there is no such tracepoint.
pub fn attach_raw_tracepoint(program: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(name)?;
    let mut attr = zeroed();
    attr.raw_tracepoint.name = name.as_ptr() as u64;
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
}

/// Runs a raw tracepoint program once, here and now, with these arguments.
///
/// # Errors
/// The kernel's error.
pub fn test_run(program: BorrowedFd<'_>, args: &[u64; 12]) -> io::Result<()> {
    let mut attr = zeroed();
    attr.test.prog_fd = program.as_raw_fd() as u32;
    attr.test.ctx_in = args.as_ptr() as u64;
    attr.test.ctx_size_in = mem::size_of_val(args) as u32;
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr).map(drop)
}

/// What the kernel says of a loaded program.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramInfo {
    /// Times it ran while run-time statistics were on.
    pub run_count: u64,
    /// Nanoseconds it ran.
    pub run_ns: u64,
    /// Runs skipped since it was already running on that CPU.
    pub recursion_misses: u64,
    /// Instructions that the verifier walked.
    pub verified_instructions: u32,
}

/// Reads a program's statistics.
///
/// # Errors
/// The kernel's error.
pub fn program_info(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    // SAFETY: plain integers, for which zero is a value.
    let mut info: bpf_prog_info = unsafe { mem::zeroed() };
    let mut attr = zeroed();
    attr.info.bpf_fd = program.as_raw_fd() as u32;
    attr.info.info_len = mem::size_of_val(&info) as u32;
    attr.info.info = &raw mut info as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(ProgramInfo {
        run_count: info.run_cnt,
        run_ns: info.run_time_ns,
        recursion_misses: info.recursion_misses,
        verified_instructions: info.verified_insns,
    })
}

/// The fd of a map that aya made.
///
/// # Errors
/// For a kind of map that the object does not have; a new kind must be named here.
pub fn map_fd(map: &Map) -> Result<BorrowedFd<'_>> {
    match map {
        Map::Array(data) | Map::HashMap(data) | Map::RingBuf(data) | Map::CgroupArray(data) => {
            Ok(data.fd().as_fd())
        }
        other => bail!("a map of a kind that load/raw.rs does not name: {other:?}"),
    }
}

fn load_btf(object: &mut Object) -> Result<Option<OwnedFd>> {
    let Some(features) = aya::features().btf() else { return Ok(None) };
    let Some(btf) = object.fixup_and_sanitize_btf(features).context("the BPF object's own BTF")? else {
        return Ok(None);
    };
    let bytes = btf.to_bytes();
    let mut attr = zeroed();
    attr.__bindgen_anon_7.btf = bytes.as_ptr() as u64;
    attr.__bindgen_anon_7.btf_size = bytes.len() as u32;
    Ok(bpf_fd(bpf_cmd::BPF_BTF_LOAD, &mut attr).ok())
}

fn log_end(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let lines: Vec<&str> = text.lines().collect();
    format!("the verifier's last words: {}", lines[lines.len().saturating_sub(LOG_LINES)..].join(" | "))
}

fn zeroed() -> bpf_attr {
    // SAFETY: a union of plain integers, for which zero is a value.
    unsafe { mem::zeroed() }
}

fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i64> {
    // SAFETY: the attribute is whole and outlives the call, as do the buffers it points to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as u32, attr, mem::size_of::<bpf_attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just handed us this fd.
    bpf(command, attr).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
