//! Attaches probes: each by the best of its hooks that stands on this host, found by trying. A probe that cannot be
//! attached is data with a reason, never the end of the program.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use anyhow::{Context, Error, Result, anyhow, bail};
use aya::programs::{KProbe, Program};

use super::{
    Loaded,
    bursts::{How, Place},
    raw,
};
use crate::{
    kernel::btf::Btf,
    probes::{Attachment, Hook, ProbeSpec, Target, spec::Attached},
    snapshot::ProgramCost,
};

/// Without it kprobes load but never attach.
const KPROBE_PMU: &str = "/sys/bus/event_source/devices/kprobe/type";

/// A program that is attached, and its own fd for statistics.
struct Running {
    /// The probe that it belongs to; empty for what belongs to none.
    probe: &'static str,
    name: String,
    program: OwnedFd,
    /// Dropping it detaches; `None` when aya holds the link, or while no burst is under way.
    link: Option<OwnedFd>,
    /// How to attach it again, where that is ours to do.
    again: Option<How>,
    /// Whether it is detached for a while.
    paused: bool,
}

impl Running {
    /// Detaches it and says how to attach it for a burst; `None` when it cannot be.
    fn for_bursts(&mut self) -> Result<Option<Place>> {
        let Some(how) = self.again else { return Ok(None) };
        self.link = None;
        self.again = None;
        Ok(Some(Place { program: self.program.try_clone()?, how }))
    }
}

/// Everything attached so far. Dropping it detaches all.
pub struct Attacher<'a> {
    loaded: &'a mut Loaded,
    btf: Option<&'a Btf>,
}

/// What stays attached as long as it lives.
#[derive(Default)]
pub struct Links {
    running: Vec<Running>,
    bursts: Vec<Place>,
}

impl<'a> Attacher<'a> {
    /// Attaches programs of `loaded`, with the kernel's types for those that need them.
    pub fn new(loaded: &'a mut Loaded, btf: Option<&'a Btf>) -> Self {
        Attacher { loaded, btf }
    }

    /// Attaches a probe by the first of its hooks that stands; `only` leaves just the hook of that name.
    /// What is meant to run in bursts is attached for a moment, to see that it can be, unless `always`.
    pub fn attach(
        &mut self,
        spec: &ProbeSpec,
        only: Option<&str>,
        always: bool,
        links: &mut Links,
    ) -> Attached {
        let mut attached = Attached { wanted: true, ..Attached::default() };
        for hook in spec.hooks.iter().filter(|hook| only.is_none_or(|name| name == hook.name)) {
            match self.attach_hook(hook, always, &mut attached) {
                Ok((running, bursts)) => {
                    attached.in_bursts = !bursts.is_empty();
                    links.running.extend(running.into_iter().map(|one| Running { probe: spec.id, ..one }));
                    links.bursts.extend(bursts);
                    attached.hook = Some(hook.name);
                    return attached;
                }
                Err(error) => attached.failures.push(failure(hook, &error)),
            }
        }
        attached
    }

    fn attach_hook(
        &mut self,
        hook: &Hook,
        always: bool,
        attached: &mut Attached,
    ) -> Result<(Vec<Running>, Vec<Place>)> {
        let (mut running, mut bursts) = (Vec::new(), Vec::new());
        let mut missing = Vec::new();
        for attachment in hook.attachments {
            match self.attach_one(attachment) {
                Ok(mut one) => {
                    if attachment.bursts && !always {
                        bursts.extend(one.for_bursts()?);
                    }
                    running.push(one);
                }
                Err(error) if attachment.optional => {
                    missing.push((attachment.target.name().to_owned(), reason(&error)));
                }
                Err(error) => {
                    self.undo(hook);
                    return Err(error);
                }
            }
        }
        attached.missing = missing;
        Ok((running, bursts))
    }

    /// Detaches what aya holds of a hook that does not stand; our own links go with their fds.
    fn undo(&mut self, hook: &Hook) {
        for attachment in hook.attachments {
            let _ = match self.loaded.ebpf.program_mut(attachment.program) {
                Some(Program::KProbe(program)) => program.unload(),
                _ => Ok(()),
            };
        }
    }

    fn attach_one(&mut self, attachment: &Attachment) -> Result<Running> {
        let name = attachment.program;
        match attachment.target {
            Target::BtfTracepoint(tracepoint) => {
                let id = self.btf()?.typedef_id(&format!("btf_trace_{tracepoint}"));
                let id = id.ok_or_else(|| anyhow!("this kernel has no tracepoint {tracepoint}"))?;
                self.attach_tracing(name, raw::Tracing::Tracepoint, id, 0, tracepoint)
            }
            Target::Entry(function, cookie) => {
                let id = self.function(function)?;
                self.attach_tracing(name, raw::Tracing::Entry, id, cookie, function)
            }
            Target::Exit(function, cookie) => {
                let id = self.function(function)?;
                self.attach_tracing(name, raw::Tracing::Exit, id, cookie, function)
            }
            Target::RawTracepoint(tracepoint) => self.attach_raw_tracepoint(name, tracepoint),
            Target::Kprobe(function) | Target::Kretprobe(function) => self.attach_kprobe(name, function),
        }
    }

    fn btf(&self) -> Result<&'a Btf> {
        self.btf.ok_or_else(|| anyhow!("the kernel has no BTF (/sys/kernel/btf/vmlinux)"))
    }

    fn function(&self, name: &str) -> Result<u32> {
        let id = self.btf()?.func_id(name);
        id.ok_or_else(|| anyhow!("this kernel has no function {name} in its BTF"))
    }

    fn attach_tracing(
        &self,
        name: &str,
        tracing: raw::Tracing,
        id: u32,
        cookie: u8,
        target: &str,
    ) -> Result<Running> {
        let raw = self.loaded.raw.as_ref().ok_or_else(|| anyhow!("the object was not parsed"))?;
        let program = raw.load(name, tracing, id).with_context(|| format!("loading {name} for {target}"))?;
        let link = raw::attach(program.as_fd(), tracing, u64::from(cookie))
            .with_context(|| format!("attaching {name} to {target}"))?;
        let again = Some(How::Tracing(tracing, u64::from(cookie)));
        Ok(Running {
            probe: "",
            name: format!("{name}:{target}"),
            program,
            link: Some(link),
            again,
            paused: false,
        })
    }

    fn attach_raw_tracepoint(&mut self, name: &str, tracepoint: &'static str) -> Result<Running> {
        let program = self.loaded.load_raw_tracepoint(name)?.fd()?.as_fd().try_clone_to_owned()?;
        let link = raw::attach_raw_tracepoint(program.as_fd(), tracepoint)
            .with_context(|| format!("attaching {name} to {tracepoint}"))?;
        let again = Some(How::RawTracepoint(tracepoint));
        Ok(Running {
            probe: "",
            name: format!("{name}:{tracepoint}"),
            program,
            link: Some(link),
            again,
            paused: false,
        })
    }

    fn attach_kprobe(&mut self, name: &str, function: &str) -> Result<Running> {
        if !Path::new(KPROBE_PMU).exists() {
            bail!("this kernel has no kprobes");
        }
        let program =
            self.loaded.ebpf.program_mut(name).ok_or_else(|| anyhow!("the object has no program {name}"))?;
        let program: &mut KProbe = program.try_into()?;
        program.load().with_context(|| format!("loading {name}"))?;
        program.attach(function, 0).with_context(|| format!("attaching {name} to {function}"))?;
        let fd = program.fd()?.as_fd().try_clone_to_owned()?;
        Ok(Running {
            probe: "",
            name: format!("{name}:{function}"),
            program: fd,
            link: None,
            again: None,
            paused: false,
        })
    }
}

impl Links {
    /// Attaches a raw tracepoint program that belongs to no probe.
    ///
    /// # Errors
    /// When there is no such program, or the kernel refuses it.
    pub fn follow(&mut self, loaded: &mut Loaded, program: &str, tracepoint: &'static str) -> Result<()> {
        self.running.push(Attacher::new(loaded, None).attach_raw_tracepoint(program, tracepoint)?);
        Ok(())
    }

    /// What each probe's programs ran so far, in nanoseconds, as far as the kernel counts; and whether it can be paused.
    pub fn costs_by_probe(&self) -> BTreeMap<&'static str, (u64, bool)> {
        let mut costs = BTreeMap::new();
        for running in self.running.iter().filter(|running| !running.probe.is_empty()) {
            let ran = raw::program_info(running.program.as_fd()).map_or(0, |info| info.run_ns);
            let cost: &mut (u64, bool) = costs.entry(running.probe).or_default();
            cost.0 += ran;
            cost.1 |= running.again.is_some();
        }
        costs
    }

    /// Detaches a probe, to attach it again later. What aya holds stays.
    pub fn pause(&mut self, probe: &str) {
        // Begins first, so that no begin is left without its end.
        for running in self.running.iter_mut().rev().filter(|running| running.probe == probe) {
            if running.again.is_some() {
                running.link = None;
                running.paused = true;
            }
        }
    }

    /// Attaches again what was paused of a probe.
    ///
    /// # Errors
    /// When the kernel refuses it by now.
    pub fn resume(&mut self, probe: &str) -> Result<()> {
        for running in self.running.iter_mut().filter(|running| running.probe == probe && running.paused) {
            if let Some(how) = running.again {
                let link = how.attach(running.program.as_fd());
                running.link = Some(link.with_context(|| format!("attaching {} again", running.name))?);
                running.paused = false;
            }
        }
        Ok(())
    }

    /// What is to run in bursts; handed out once.
    pub fn take_bursts(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.bursts)
    }

    /// What each attached program cost so far.
    pub fn costs(&self) -> Vec<ProgramCost> {
        self.running.iter().map(|running| cost(&running.name, running.program.as_fd())).collect()
    }

    /// Kernel ids of the attached programs.
    pub fn program_fds(&self) -> Vec<i32> {
        self.running.iter().map(|running| running.program.as_raw_fd()).collect()
    }

    /// Whether nothing is attached.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Detaches everything that is held here, and what aya holds of `loaded`.
    pub fn detach(&mut self, loaded: &mut Loaded) {
        self.running.clear();
        for (_, program) in loaded.ebpf.programs_mut() {
            let _ = match program {
                Program::KProbe(program) => KProbe::unload(program),
                _ => Ok(()),
            };
        }
    }
}

fn cost(name: &str, program: BorrowedFd<'_>) -> ProgramCost {
    let info = raw::program_info(program).ok();
    ProgramCost {
        name: name.to_owned(),
        run_count: info.map(|info| info.run_count),
        run_ns: info.map(|info| info.run_ns),
        recursion_misses: info.map(|info| info.recursion_misses),
        verified_instructions: info.map(|info| info.verified_instructions),
    }
}

/// Why a hook does not stand, in the words that a reader of the coverage wants.
fn failure(hook: &Hook, error: &Error) -> String {
    let functions = matches!(hook.name, "fentry/fexit" | "kprobe/kretprobe");
    match os_error(error) {
        Some(libc::EPERM) if functions => format!("function probes not permitted ({})", hook.name),
        _ => format!("{}: {}", hook.name, reason(error)),
    }
}

fn os_error(error: &Error) -> Option<i32> {
    error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
}

/// An error in one line, as a reader of the coverage wants it.
fn reason(error: &Error) -> String {
    if let Some(code) = os_error(error) {
        match code {
            libc::EPERM => return "not permitted (EPERM)".to_owned(),
            524 => return "this kernel cannot trace this function (ENOTSUPP)".to_owned(),
            libc::EBUSY => return "this function must not be traced (EBUSY)".to_owned(),
            _ => {}
        }
    }
    without_addresses(&format!("{error:#}"))
}

/// One line of bounded length in which no kernel address is left: an error may hold the verifier's whole log.
fn without_addresses(text: &str) -> String {
    let last: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let kept = if last.len() > 6 { [&last[..2], &last[last.len() - 4..]].concat() } else { last };
    let words = kept.join(" | ");
    let hide = |word: &str| {
        if word.contains("ffff") && word.len() > 10 { "(address)".to_owned() } else { word.to_owned() }
    };
    words.split(' ').map(hide).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_left_in_a_reason() {
        let log = "loading x\nfirst\n5: r1=map_ptr 0xffffc900012\n6\n7\n8 0xffff888100000000\nlast";
        let reason = without_addresses(log);
        assert!(!reason.contains("ffff") && reason.ends_with("last") && !reason.contains('\n'), "{reason}");
    }
}
