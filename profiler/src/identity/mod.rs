//! Names for what the maps hold as addresses: locks by kallsyms, stacks by function, processes by /proc.
//!
//! Kernel addresses end here: nothing that leaves this module holds one, unless the user asked for raw addresses.
//! No counter is known here.

use std::collections::HashMap;

use profiler_common::key::OwnerKind;

use crate::{
    kernel::kallsyms::Kallsyms,
    snapshot::{CellName, LockName, Names, ProcessName, StackName, read::Namer},
};

/// Names given so far, and those not handed out yet.
pub struct Identity {
    symbols: Option<Kallsyms>,
    raw_addresses: bool,
    new: Names,
    locks: HashMap<u64, u32>,
    stacks: HashMap<u64, (u32, u64)>,
    processes: HashMap<u32, Vec<u8>>,
}

impl Identity {
    /// Names nothing by symbol until [`Namer::refresh`] has read them; shows addresses only if `raw_addresses`.
    pub fn new(raw_addresses: bool) -> Self {
        Identity {
            symbols: None,
            raw_addresses,
            new: Names::default(),
            locks: HashMap::new(),
            stacks: HashMap::new(),
            processes: HashMap::new(),
        }
    }

    fn lock_name(&self, id: u32, address: u64) -> LockName {
        let lock_id = if self.raw_addresses { format!("{address:#x}") } else { format!("lock-{id}") };
        let symbol = self.symbols.as_ref().and_then(|symbols| symbols.data_symbol(address));
        let symbol = symbol.map(|symbol| with_offset(symbol.name, symbol.offset));
        LockName { id, lock_id, symbol }
    }

    /// The stack's name and a token of its caller: the start of the caller's function.
    fn stack_name(&self, id: u32, frames: &[u64]) -> (StackName, u64) {
        let Some(symbols) = &self.symbols else {
            return (StackName { id, frames: self.bare_frames(frames), caller: None }, 0);
        };
        let caller = symbols.caller(frames);
        let first = caller.as_ref().map_or(0, |(index, _)| *index);
        let names = frames.iter().skip(first).map(|frame| self.frame_name(symbols, *frame)).collect();
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
        let comm = match std::fs::read(format!("/proc/{tgid}/comm")) {
            Ok(comm) => comm.strip_suffix(b"\n").unwrap_or(&comm).to_vec(),
            Err(_) if known.is_some() => return,
            Err(_) => fallback.to_vec(),
        };
        if known != Some(&comm) {
            self.new.processes.push(ProcessName { tgid, comm: comm.clone() });
            self.processes.insert(tgid, comm);
        }
    }
}

impl Namer for Identity {
    fn lock(&mut self, address: u64, _kind: u8) -> u32 {
        if let Some(id) = self.locks.get(&address) {
            return *id;
        }
        let id = self.locks.len() as u32 + 1;
        let name = self.lock_name(id, address);
        self.new.locks.push(name);
        self.locks.insert(address, id);
        id
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
    }

    fn take(&mut self) -> Names {
        std::mem::take(&mut self.new)
    }
}

fn with_offset(name: &str, offset: u64) -> String {
    if offset == 0 { name.to_owned() } else { format!("{name}+{offset:#x}") }
}
