//! One measuring session: loads the object, selects whose waits, attaches the probes, and empties the mailboxes from a
//! thread of its own until it is closed. Decides nothing about what is shown.

use std::{
    mem::offset_of,
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use profiler_common::{
    Control, Kind,
    inflight::{
        FUNC_JBD2_SHADOW, FUNC_JBD2_WAIT_LOCKED, FUNC_LOCK_BUFFER, FUNC_LOCK_FOLIO_KILLABLE, FUNC_RWSEM_READ,
        FUNC_RWSEM_SPIN_ON_OWNER,
    },
    limits::STALE_NS,
};

use crate::{
    budget::{self, Governor, ProbeCost, Step, Verdict},
    cli::MeasureArgs,
    exit::CannotRun,
    identity::{Anatomy, Identity, registry::Registry, slabs::Slabs},
    kernel::{btf::Btf, features::Features, kallsyms::Kallsyms, types::Types},
    load::{
        Attacher, Loaded, LogReader, Mapped, Options, Sizes,
        attach::Links,
        bursts::{BurstClock, Bursts},
    },
    privilege,
    probes::{self, ProbeSpec, spec::Attached},
    snapshot::{BudgetStep, Coverage, CoverageState, Names, Snapshot, read::OpenWaits, read::Reader},
    workload::{
        Selection, cgroup,
        cgroup::FreshCgroup,
        command::{self, CommandUser},
    },
};

/// How long the mailboxes are left alone while letters come in, and while none do.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const IDLE_PAUSE: Duration = Duration::from_millis(10);

/// One buffer lookup in so many is timed: a power of two. All the time, and in bursts.
const LRU_SAMPLING: u32 = 1024;
const LRU_SAMPLING_IN_BURSTS: u32 = 64;

/// What the session is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What to measure.
    pub measure: MeasureArgs,
    /// Whose waits.
    pub selection: Selection,
}

/// What of the host a session, and doctor, look at first.
pub struct Host {
    /// Facts read.
    pub features: Features,
    /// The kernel's types, or why there are none.
    pub btf: Result<Btf>,
    /// The kernel's symbols, or why there are none.
    pub symbols: Result<Kallsyms>,
}

impl Host {
    /// Looks.
    ///
    /// # Errors
    /// When not even the number of CPUs can be read.
    pub fn look() -> Result<Host> {
        let symbols = Kallsyms::read();
        let none = Kallsyms::default();
        let features = Features::read(symbols.as_ref().unwrap_or(&none))?;
        Ok(Host { features, btf: Btf::vmlinux(), symbols })
    }
}

/// A running session. Dropping it detaches every program and removes the cgroup.
pub struct Session {
    loaded: Loaded,
    links: Links,
    reader: Arc<Mutex<Reader>>,
    control: Arc<Mapped<Control>>,
    drain: Option<Drain>,
    bursts: Option<Bursts>,
    burst_clock: Arc<BurstClock>,
    governor: Governor,
    budget_steps: Vec<BudgetStep>,
    stack_depth: u32,
    lru_mask: u32,
    log: Option<LogReader>,
    cgroup: Option<FreshCgroup>,
    follows_by_process: bool,
    own_cpu_before_ns: u64,
    /// What this host lets us see.
    pub coverage: Vec<Coverage>,
    /// Facts about the host.
    pub features: Features,
    /// Nanoseconds of the monotonic clock from which on waits are recorded; 0 = not yet.
    pub attached_ns: u64,
    /// What the user should know before the first number.
    pub warnings: Vec<String>,
}

struct Drain {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

/// The kernel in one line: release, version and machine.
pub fn kernel_line(features: &Features) -> String {
    format!("{} {} {}", features.release, features.version, features.machine)
}

/// The monotonic clock, as `bpf_ktime_get_ns` reads it, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of this process so far, user and system, in nanoseconds.
fn own_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Session {
    /// Opens a session with everything attached and nothing recorded yet: [`Session::start`] does that.
    ///
    /// # Errors
    /// [`CannotRun`] when no probe can be attached on this host; else what went wrong with the plan.
    pub fn open(plan: &Plan) -> Result<Session> {
        plan.selection.check()?;
        let host = Host::look()?;
        Session::open_on(plan, host)
    }

    fn open_on(plan: &Plan, host: Host) -> Result<Session> {
        let Host { features, btf, symbols } = host;
        let mut warnings = Vec::new();
        let btf = btf.map_err(|error| warnings.push(format!("no kernel types: {error:#}"))).ok();
        let symbols = symbols.map_err(|error| warnings.push(format!("no kernel symbols: {error:#}"))).ok();
        if let Some(reason) = symbols.as_ref().and_then(Kallsyms::reason) {
            warnings.push(format!("no kernel symbols: {reason}"));
        }
        if !in_first_pid_namespace() {
            if !plan.selection.pids.is_empty() {
                bail!(
                    "--pid: process numbers here are those of a PID namespace, the kernel side sees the host's"
                );
            }
            warnings
                .push("in a PID namespace: process numbers are the host's, names may be missing".to_owned());
        }
        let options = options(&plan.measure, &features)?;
        let mut loaded = Loaded::new(&options, btf.as_ref(), &features).map_err(cannot_load)?;
        if !loaded.is_timed() && plan.measure.max_overhead < 100.0 {
            warnings.push(
                "--max-overhead cannot be kept: the kernel does not count how long BPF programs run"
                    .to_owned(),
            );
        }
        let btf = btf.map(Arc::new);
        let symbol = |name: &str| symbols.as_ref().and_then(|symbols| symbols.address(name));
        let anatomy = anatomy(&mut loaded, btf.as_ref(), &symbol);
        let page_constant = anatomy.as_ref().map_or(0, |anatomy| anatomy.slabs.constant);
        let coverage = vec![identity_coverage(&anatomy)];
        let identity = Identity::new(plan.measure.raw_addresses, anatomy.ok());
        let reader = Reader::new(&mut loaded, Box::new(identity))?;
        let control = reader.control();
        control.set(0, Control { page_constant, ..Control::default() });
        let mut session = Session {
            loaded,
            links: Links::default(),
            reader: Arc::new(Mutex::new(reader)),
            control,
            drain: None,
            bursts: None,
            burst_clock: Arc::default(),
            governor: Governor::new(plan.measure.max_overhead, features.online_cpus),
            budget_steps: Vec::new(),
            stack_depth: plan.measure.stack_depth,
            lru_mask: u32::MAX,
            log: None,
            cgroup: None,
            follows_by_process: false,
            own_cpu_before_ns: 0,
            coverage,
            features,
            attached_ns: 0,
            warnings,
        };
        if plan.measure.bpf_log {
            session.log = Some(session.loaded.logger()?);
        }
        session.select(plan)?;
        session.attach(plan, btf.as_deref())?;
        Ok(session)
    }

    fn select(&mut self, plan: &Plan) -> Result<()> {
        let selection = &plan.selection;
        let mut cgroups = 0;
        for path in &selection.cgroups {
            self.loaded.select_cgroup(cgroups, cgroup::open(path)?)?;
            cgroups += 1;
        }
        if !selection.command.is_empty() {
            cgroups += self.select_command(cgroups)?;
        }
        let tgids = selection.tgids()?;
        let mut selected = self.loaded.tgids()?;
        for tgid in tgids {
            selected.insert(tgid, tgid, 0).context("selecting a process")?;
        }
        let mut control = Control {
            min_wait_ns: plan.measure.min_wait,
            stack_depth: plan.measure.stack_depth,
            own_tgid: std::process::id(),
            page_constant: self.control.get(0).page_constant,
            ..Control::default()
        };
        selection.write(&mut control, cgroups, self.follows_by_process)?;
        self.control.set(0, control);
        Ok(())
    }

    /// Prepares to follow a command: by a cgroup of its own, else by its processes. Says how many cgroups that took.
    fn select_command(&mut self, index: u32) -> Result<u32> {
        let fresh = FreshCgroup::new().and_then(|fresh| {
            self.loaded.select_cgroup(index, fresh.directory()?)?;
            Ok(fresh)
        });
        match fresh {
            Ok(fresh) => {
                self.warnings.extend(fresh.warning());
                self.cgroup = Some(fresh);
                Ok(1)
            }
            Err(error) => {
                let how = "the command is followed by its processes";
                self.warnings.push(format!("no cgroup of its own ({error:#}): {how}"));
                self.links.follow(&mut self.loaded, "follow_exit", "sched_process_exit")?;
                self.links.follow(&mut self.loaded, "follow_fork", "sched_process_fork")?;
                self.follows_by_process = true;
                Ok(0)
            }
        }
    }

    fn attach(&mut self, plan: &Plan, btf: Option<&Btf>) -> Result<()> {
        let mut stands = false;
        for spec in probes::ALL {
            let attached = self.attach_probe(spec, plan, btf);
            stands |= attached.hook.is_some();
            if attached.hook == Some("kprobe/kretprobe") {
                lock(&self.reader).expect_missed_returns();
            }
            self.coverage.extend((spec.coverage)(&attached, &self.features));
        }
        if stands {
            return Ok(());
        }
        Err(CannotRun(nothing_stands(&self.coverage)).into())
    }

    fn attach_probe(&mut self, spec: &ProbeSpec, plan: &Plan, btf: Option<&Btf>) -> Attached {
        if !is_wanted(spec, &plan.measure) {
            return Attached::default();
        }
        if spec.id == "rwsem" && self.links.is_empty() {
            let failures = vec!["needs the lock tracepoints for the queued part".to_owned()];
            return Attached { wanted: true, failures, ..Attached::default() };
        }
        let only = match spec.id {
            "rwsem" => plan.measure.rwsem_hook.as_deref(),
            "contention" => plan.measure.contention_hook.as_deref(),
            _ => None,
        };
        let always = plan.measure.probes.iter().any(|probe| probe.id() == spec.id);
        let attached = Attacher::new(&mut self.loaded, btf).attach(spec, only, always, &mut self.links);
        Attached { kinds: kinds(&plan.measure), ..attached }
    }

    /// Starts to record, and to empty the mailboxes.
    pub fn start(&mut self) {
        lock(&self.reader).refresh_names();
        self.own_cpu_before_ns = own_cpu_ns();
        self.attached_ns = monotonic_ns();
        let places = Arc::new(self.links.take_bursts());
        let sampling = if places.is_empty() { LRU_SAMPLING } else { LRU_SAMPLING_IN_BURSTS };
        self.lru_mask = sampling - 1;
        self.control.set_word(offset_of!(Control, lru_mask), self.lru_mask);
        self.control.set_word(offset_of!(Control, enabled), 1);
        let clock = Arc::clone(&self.burst_clock);
        self.bursts = Some(Bursts::start(places, Arc::clone(&self.control), clock, monotonic_ns));
        let stop = Arc::new(AtomicBool::new(false));
        let (reader, stopped, log) = (Arc::clone(&self.reader), Arc::clone(&stop), self.log.take());
        let thread = std::thread::spawn(move || drain_until(&reader, &stopped, log));
        self.drain = Some(Drain { stop, thread });
    }

    /// The command of the plan, ready to be spawned into what is followed.
    ///
    /// # Errors
    /// When its user is unknown, or the cgroup has gone.
    pub fn command(&self, plan: &Plan, user: &CommandUser) -> Result<Command> {
        let procs = self.cgroup.as_ref().map(FreshCgroup::procs).transpose()?;
        command::prepare(&plan.selection.command, user, procs)
    }

    /// What undoes outside changes for somebody who leaves at once.
    pub fn leaver(&self) -> impl FnOnce() + Send + use<> {
        let cgroup = self.cgroup.as_ref().map(FreshCgroup::leaver);
        move || {
            if let Some(leave) = cgroup {
                leave();
            }
        }
    }

    /// While this is set, children of the calling thread are followed: only where there is no cgroup v2.
    pub fn adopt(&self, adopting: bool) {
        if !self.follows_by_process {
            return;
        }
        // SAFETY: the number of our own thread.
        let tid = unsafe { libc::gettid() } as u32;
        self.control.set_word(offset_of!(Control, adopt_tid), if adopting { tid } else { 0 });
    }

    /// Reads everything, and the names that came up.
    ///
    /// # Errors
    /// When the kernel refuses a new key.
    pub fn snapshot(&mut self) -> Result<(Names, Snapshot)> {
        if self.drain.as_ref().is_some_and(|drain| drain.thread.is_finished()) {
            self.stop_draining().context("the mailboxes are no longer read")?;
        }
        let mut reader = lock(&self.reader);
        reader.drop_abandoned(monotonic_ns(), STALE_NS, |tid| !task_exists(tid));
        let mut snapshot = reader.snapshot(monotonic_ns)?;
        let names = reader.take_names();
        let caches = reader.new_caches();
        drop(reader);
        self.loaded.tell_caches(&caches)?;
        snapshot.subsystems.timed_ns = self.burst_clock.ran_ns(snapshot.at_ns);
        snapshot.budget = std::mem::take(&mut self.budget_steps);
        snapshot.cost.programs = self.links.costs();
        snapshot.cost.own_cpu_ns = own_cpu_ns() - self.own_cpu_before_ns;
        snapshot.cost.map_bytes = self.loaded.sizes.bytes();
        Ok((names, snapshot))
    }

    /// Looks at what our programs cost and gives something up, or takes it back, to keep the budget. To be called once a
    /// second or so; says what was done.
    ///
    /// # Errors
    /// When a probe cannot be attached again.
    pub fn keep_budget(&mut self) -> Result<Option<String>> {
        if let Some(why) = self.bursts.as_ref().and_then(Bursts::take_failure) {
            return Ok(Some(format!(
                "no further bursts, handles and buffer lookups are no longer timed: {why}"
            )));
        }
        let costs = self.links.costs_by_probe().into_iter();
        let costs =
            costs.map(|(id, (run_ns, pausable))| ProbeCost { id: id.to_owned(), run_ns, pausable }).collect();
        let now = monotonic_ns();
        let verdict = self.governor.observe(now, costs);
        let (percent, most) = (self.governor.decided_percent(), self.governor.most_percent());
        let (step, shed) = match verdict {
            Verdict::Keep => return Ok(None),
            Verdict::Shed(step) => (step, true),
            Verdict::Recover(step) => (step, false),
        };
        if let Err(error) = self.carry_out(&step, shed) {
            return Ok(Some(format!("{} stays given up: {error:#}", step.in_words())));
        }
        let what = step.in_words();
        self.budget_steps.push(BudgetStep { at_ns: now, what: what.clone(), shed, percent });
        let verb = if shed { "gives up" } else { "takes back" };
        Ok(Some(format!(
            "our programs took {percent:.2} % of the machine, the budget is {most} %: {verb} {what}"
        )))
    }

    fn carry_out(&mut self, step: &Step, shed: bool) -> Result<()> {
        match step {
            Step::Stacks => {
                let depth = if shed { 0 } else { self.stack_depth };
                self.control.set_word(offset_of!(Control, stack_depth), depth);
            }
            Step::Samples => {
                let mask = if shed { u32::MAX } else { self.lru_mask };
                self.control.set_word(offset_of!(Control, lru_mask), mask);
                if let Some(bursts) = &self.bursts {
                    bursts.pause(shed);
                }
            }
            Step::Probe(id) if shed => self.pause_probe(id),
            Step::Probe(id) => self.resume_probe(id)?,
        }
        Ok(())
    }

    /// Detaches a probe with those that rest on it; their waits in progress will have no end.
    fn pause_probe(&mut self, id: &str) {
        for id in budget::with_dependents(id) {
            self.links.pause(id);
            if let Some(functions) = functions_of(id) {
                lock(&self.reader).drop_open(functions);
            }
        }
    }

    /// Attaches a probe again, and those that rest on it unless they were given up for themselves.
    fn resume_probe(&mut self, id: &str) -> Result<()> {
        for id in budget::with_dependents(id) {
            if !self.governor.shed().contains(&Step::Probe(id.to_owned())) {
                self.links.resume(id)?;
            }
        }
        Ok(())
    }

    /// The kind of lock of each cell made so far, for tests that need no names.
    pub fn kinds_of_cells(&self) -> std::collections::BTreeMap<u32, u8> {
        lock(&self.reader).kinds_of_cells()
    }

    /// Leaves every lock at its address from now on: to measure what identifying costs.
    pub fn stop_identifying(&mut self) {
        let control = Control { page_constant: 0, ..self.control.get(0) };
        self.control.set(0, control);
    }

    /// One buffer lookup in so many is timed.
    pub fn lru_sampling(&self) -> u64 {
        u64::from(self.lru_mask) + 1
    }

    /// The in-flight table, for an independent sampler.
    pub fn open_waits(&self) -> OpenWaits {
        lock(&self.reader).open_waits()
    }

    /// Programs that are attached, as fds.
    pub fn program_fds(&self) -> Vec<i32> {
        self.links.program_fds()
    }

    /// The loaded object, for tests that drive its programs.
    pub fn loaded(&mut self) -> &mut Loaded {
        &mut self.loaded
    }

    /// Stops recording: what is in the maps stays to be read.
    pub fn stop(&mut self) {
        self.control.set_word(offset_of!(Control, enabled), 0);
        if let Some(bursts) = &mut self.bursts {
            bursts.stop();
        }
    }

    fn stop_draining(&mut self) -> Result<()> {
        let Some(drain) = self.drain.take() else { return Ok(()) };
        drain.stop.store(true, Ordering::Relaxed);
        drain.thread.join().unwrap_or(Ok(()))
    }

    /// Detaches everything.
    ///
    /// # Errors
    /// What stopped the mailbox thread, if something did.
    pub fn close(mut self) -> Result<()> {
        self.stop();
        let result = self.stop_draining();
        self.links.detach(&mut self.loaded);
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
        let _ = self.stop_draining();
        self.links.detach(&mut self.loaded);
    }
}

/// What it takes to identify locks, told to the kernel side as well; or why locks are addresses only.
fn anatomy(
    loaded: &mut Loaded,
    btf: Option<&Arc<Btf>>,
    symbol: &dyn Fn(&str) -> Option<u64>,
) -> Result<Anatomy> {
    let btf = btf.context("no kernel types")?;
    let memory = Box::new(loaded.peek().context("reading kernel memory")?);
    let types = Types::new(Arc::clone(btf));
    let slabs = Slabs::find(&*memory, &types, symbol)?;
    loaded.tell_caches(&slabs.infos())?;
    let registry = Registry::walk(&*memory, &types);
    Ok(Anatomy { memory, types, slabs, registry })
}

fn identity_coverage(anatomy: &Result<Anatomy>) -> Coverage {
    let (hook, state, reason) = match anatomy {
        Ok(_) => (Some("slab caches".to_owned()), CoverageState::Full, None),
        Err(error) => (None, CoverageState::Absent, Some(format!("{error:#}"))),
    };
    Coverage {
        probe: "identity".to_owned(),
        metric: "classes and instances of locks".to_owned(),
        hook,
        state,
        reason,
    }
}

/// The timed functions of a probe (profiler_common::inflight, FUNC_*); 0 is the lock tracepoints.
fn functions_of(probe: &str) -> Option<std::ops::RangeInclusive<u8>> {
    match probe {
        "contention" => Some(0..=0),
        "rwsem" => Some(FUNC_RWSEM_READ..=FUNC_RWSEM_SPIN_ON_OWNER),
        "jbd2" => Some(FUNC_JBD2_WAIT_LOCKED..=FUNC_JBD2_SHADOW),
        "bit-lock" => Some(FUNC_LOCK_BUFFER..=FUNC_LOCK_FOLIO_KILLABLE),
        _ => None,
    }
}

fn is_wanted(spec: &ProbeSpec, measure: &MeasureArgs) -> bool {
    // The rwsem probe takes its queued part from the tracepoints; then only rwsems are recorded by them.
    let asked = |id: &str| measure.probes.iter().any(|probe| probe.id() == id);
    // So does jbd2 the state lock, the checkpoint mutex and every other lock among a start's causes.
    let rests_on_it = asked("rwsem") || asked("jbd2");
    measure.probes.is_empty() || asked(spec.id) || (spec.id == "contention" && rests_on_it)
}

fn kinds(measure: &MeasureArgs) -> u32 {
    let asked = |id: &str| measure.probes.iter().any(|probe| probe.id() == id);
    let only_rwsem = asked("rwsem") && !asked("contention") && !asked("jbd2");
    if only_rwsem { 1 << Kind::Rwsem as u32 | 1 << Kind::Rt as u32 } else { u32::MAX }
}

fn options(measure: &MeasureArgs, features: &Features) -> Result<Options> {
    let cpus = features.possible_cpus;
    let bound = measure.map_memory.map_or_else(|| Sizes::default_bound(cpus), |mib| mib << 20);
    Ok(Options { sizes: Sizes::within(cpus, bound)?, kinds: kinds(measure), log: measure.bpf_log })
}

fn cannot_load(error: anyhow::Error) -> anyhow::Error {
    let missing: Vec<String> =
        privilege::missing().iter().map(|(name, purpose)| format!("{name} ({purpose})")).collect();
    let advice = if missing.is_empty() {
        "this kernel refuses BPF maps".to_owned()
    } else {
        format!("missing: {}; run it with sudo", missing.join(", "))
    };
    CannotRun(format!("{advice}: {error:#}")).into()
}

fn nothing_stands(coverage: &[Coverage]) -> String {
    let mut text = String::from("no probe can be attached on this host:");
    for line in coverage.iter().filter(|line| line.state != CoverageState::Off) {
        let reason = line.reason.as_deref().unwrap_or("no reason given");
        text.push_str(&format!("\n  {}: {}: {reason}", line.probe, line.metric));
    }
    for (name, purpose) in privilege::missing() {
        text.push_str(&format!("\n  missing {name}: {purpose}"));
    }
    text
}

/// Inode of the first PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const FIRST_PID_NAMESPACE: u64 = 0xeffffffc;

fn in_first_pid_namespace() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|meta| meta.ino() == FIRST_PID_NAMESPACE)
}

fn task_exists(tid: u32) -> bool {
    std::path::Path::new("/proc").join(tid.to_string()).exists()
}

fn lock(reader: &Mutex<Reader>) -> MutexGuard<'_, Reader> {
    reader.lock().unwrap_or_else(PoisonError::into_inner)
}

fn drain_until(reader: &Mutex<Reader>, stop: &AtomicBool, mut log: Option<LogReader>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let letters = lock(reader).drain()?;
        if let Some(log) = &mut log {
            log.flush();
        }
        std::thread::sleep(if letters == 0 { IDLE_PAUSE } else { BUSY_PAUSE });
    }
    Ok(())
}
