//! One run: workers (threads or processes) behind a start barrier, a warm-up, a measured window, an end.
//!
//! Must not know what the work is, and must come to an end whatever the work does: a worker stuck in the kernel
//! is given up after a grace period and reported.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use super::args::StressArgs;
use super::board::{Board, Window};
use super::clock::{self, Pace};
use super::fault::{Fault, Step};
use super::gauge::{Gauge, Tally};
use super::signal;

/// How long a worker may take to get ready, and to come back after the end, ns.
const GRACE_NS: u64 = 30_000_000_000;
/// The longest a run by count may take, ns.
const COUNT_LIMIT_NS: u64 = 3_600_000_000_000;
const POLL: Duration = Duration::from_millis(2);

/// What a worker repeats. Must not allocate or panic where it is run in processes.
pub(super) trait Work: Send {
    /// One operation, timed; returns the bytes it moved.
    fn op(&mut self) -> Result<u64, Fault>;

    /// Housekeeping before an operation, outside its closed-loop latency.
    fn between(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// How long the parts of the last operation took, ns, in the lane's order; none for a part it did not have.
    fn parts(&self) -> &[Option<u64>] {
        &[]
    }
}

/// One worker.
pub(super) struct Lane {
    pub role: &'static str,
    /// Names of what [`Work::parts`] gives.
    pub parts: &'static [&'static str],
    /// The schedule; none: closed loop.
    pub pace: Option<Pace>,
    /// How many operations; none: until the time is up.
    pub turns: Option<u64>,
    pub work: Box<dyn Work>,
}

impl Lane {
    /// A closed loop without parts, until the time is up.
    pub fn new(role: &'static str, work: impl Work + 'static) -> Self {
        Self { role, parts: &[], pace: None, turns: None, work: Box::new(work) }
    }
}

/// What one gauge stands for: a lane's operations, or a part of them.
struct Label {
    role: &'static str,
    part_of: Option<&'static str>,
    open_loop: bool,
}

impl Label {
    fn all_of(lane: &Lane) -> impl Iterator<Item = Label> + use<> {
        let (role, parts) = (lane.role, lane.parts);
        let whole = Label { role, part_of: None, open_loop: lane.pace.is_some() };
        let part = move |name: &&'static str| Label { role: name, part_of: Some(role), open_loop: false };
        std::iter::once(whole).chain(parts.iter().map(part))
    }
}

/// Whether workers share an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crew {
    Threads,
    Processes,
}

/// The lengths and places of a run.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub warmup_ns: u64,
    pub measured_ns: u64,
    /// The lanes end by their own counts; the time is only a limit.
    pub counted: bool,
    pub crew: Crew,
    /// CPUs to pin to, in turn; empty: no pinning.
    pub cpus: Vec<usize>,
}

impl Plan {
    pub fn new(args: &StressArgs, crew: Crew) -> Self {
        let ns = |secs: f64| (secs * 1e9) as u64;
        let cpus = if args.pin { allowed_cpus() } else { Vec::new() };
        match args.files {
            Some(_) => Self { warmup_ns: 0, measured_ns: COUNT_LIMIT_NS, counted: true, crew, cpus },
            None => {
                let (warmup_ns, measured_ns) = (ns(args.warmup), ns(args.secs));
                Self { warmup_ns, measured_ns, counted: false, crew, cpus }
            }
        }
    }

    fn cpu(&self, lane: usize) -> Option<usize> {
        self.cpus.get(lane.checked_rem(self.cpus.len())?).copied()
    }
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// None when it ended within the warm-up.
    pub window: Option<Span>,
    pub interrupted: bool,
    /// One per role, in order of first appearance.
    pub roles: Vec<RoleTally>,
}

/// The measured time on CLOCK_MONOTONIC, ns: for counters that ran beside the load.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Span {
    /// The first operation that counts began here or later; without a warm-up nothing was done before.
    pub start_ns: u64,
    /// No operation began after this.
    pub stop_ns: u64,
    /// The last operation had ended.
    pub ended_ns: u64,
}

impl Span {
    /// The time rates refer to.
    pub fn seconds(&self) -> f64 {
        (self.stop_ns - self.start_ns) as f64 / 1e9
    }
}

/// The merged figures of one role.
#[derive(Debug)]
pub(super) struct RoleTally {
    pub role: &'static str,
    /// The role whose operations this is a part of.
    pub part_of: Option<&'static str>,
    pub threads: u32,
    pub open_loop: bool,
    pub tally: Tally,
}

/// Runs the lanes to the end of the plan, the first signal, or the first failed operation.
pub(super) fn run(plan: &Plan, lanes: Vec<Lane>) -> anyhow::Result<Outcome> {
    let workers = lanes.len();
    let labels: Vec<_> = lanes.iter().flat_map(Label::all_of).collect();
    let board = Arc::new(Board::new(labels.len()).context("shared memory for the workers")?);
    let mut crew = Running::start(plan, lanes, &board)?;
    let ready = wait_ready(&board, workers, &mut crew);
    if ready {
        board.window().open(plan.warmup_ns, plan.measured_ns);
    }
    let interrupted = supervise(&board, &mut crew)?;
    outcome(plan, &board, by_role(&labels, &board), interrupted)
}

fn outcome(plan: &Plan, board: &Board, roles: Vec<RoleTally>, interrupted: bool) -> anyhow::Result<Outcome> {
    if let Some(role) = roles.iter().find(|r| !r.tally.finished) {
        bail!("a {} worker died in the middle of its work", role.role);
    }
    let ended_ns = roles.iter().map(|r| r.tally.ended_ns).max().unwrap_or(0);
    if plan.counted {
        let cut_short = interrupted || roles.iter().any(|r| r.tally.fault.is_some());
        let in_time = ended_ns < board.window().until();
        ensure!(in_time || cut_short, "the count was not reached in {} s", COUNT_LIMIT_NS / 1_000_000_000);
        board.window().stop_at(ended_ns);
    }
    let window = board.window().span().map(|(start_ns, stop_ns)| Span { start_ns, stop_ns, ended_ns });
    Ok(Outcome { window, interrupted, roles })
}

fn by_role(labels: &[Label], board: &Board) -> Vec<RoleTally> {
    let mut roles: Vec<RoleTally> = Vec::new();
    for (label, gauge) in labels.iter().zip(board.gauges()) {
        let Label { role, part_of, open_loop } = *label;
        let same = |r: &RoleTally| r.role == role && r.part_of == part_of;
        let at = roles.iter().position(same).unwrap_or(roles.len());
        if at == roles.len() {
            roles.push(RoleTally { role, part_of, threads: 0, open_loop, tally: Tally::default() });
        }
        roles[at].threads += 1;
        roles[at].tally.merge(&gauge.read());
    }
    roles
}

/// Waits until every worker stands at the barrier; closes the window instead if that does not happen.
fn wait_ready(board: &Board, lanes: usize, crew: &mut Running) -> bool {
    let deadline = clock::now() + GRACE_NS;
    while (board.window().ready() as usize) < lanes {
        if signal::count() > 0 || clock::now() > deadline || crew.finished() {
            board.window().close();
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// Watches for the end; returns whether a signal brought it.
fn supervise(board: &Board, crew: &mut Running) -> anyhow::Result<bool> {
    let begun = clock::now();
    let mut closed = false;
    while !crew.finished() {
        if signal::count() > 0 && !closed {
            board.window().close();
            closed = true;
        }
        if clock::now() > board.window().until().max(begun) + GRACE_NS {
            crew.give_up();
            bail!("a worker is stuck in the kernel: no answer {} s after the end", GRACE_NS / 1_000_000_000);
        }
        std::thread::sleep(POLL);
    }
    Ok(signal::count() > 0)
}

/// The workers that are under way.
enum Running {
    Threads(Vec<JoinHandle<()>>),
    Processes(Vec<libc::pid_t>),
}

impl Running {
    fn start(plan: &Plan, lanes: Vec<Lane>, board: &Arc<Board>) -> anyhow::Result<Self> {
        let mut running = match plan.crew {
            Crew::Threads => Self::Threads(Vec::new()),
            Crew::Processes => Self::Processes(Vec::new()),
        };
        let mut first = 0;
        for (i, lane) in lanes.into_iter().enumerate() {
            let share = first..first + 1 + lane.parts.len();
            first = share.end;
            if let Err(error) = running.add(i, lane, plan.cpu(i), board, share) {
                board.window().close();
                running.give_up();
                return Err(error);
            }
        }
        Ok(running)
    }

    fn add(
        &mut self,
        i: usize,
        lane: Lane,
        cpu: Option<usize>,
        board: &Arc<Board>,
        share: Range<usize>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Threads(handles) => handles.push(spawn(i, lane, cpu, Arc::clone(board), share)?),
            Self::Processes(pids) => pids.push(fork(lane, cpu, board, share)?),
        }
        Ok(())
    }

    fn finished(&mut self) -> bool {
        match self {
            Self::Threads(handles) => handles.iter().all(JoinHandle::is_finished),
            Self::Processes(pids) => {
                pids.retain(|pid| !reap(*pid));
                pids.is_empty()
            }
        }
    }

    /// Kills what can be killed; threads are left to the end of the process.
    fn give_up(&mut self) {
        if let Self::Processes(pids) = self {
            for pid in pids.drain(..) {
                // SAFETY: a child of ours that has not been reaped, so the number is still its own.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                reap(pid);
            }
        }
    }
}

/// Whether the child is gone.
fn reap(pid: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` is valid to write to; WNOHANG never blocks.
    unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) != 0 }
}

fn spawn(
    i: usize,
    mut lane: Lane,
    cpu: Option<usize>,
    board: Arc<Board>,
    share: Range<usize>,
) -> anyhow::Result<JoinHandle<()>> {
    let body = move || worker(board.window(), &board.gauges()[share], cpu, &mut lane);
    std::thread::Builder::new().name(format!("stress-{i}")).spawn(body).context("starting a worker thread")
}

fn fork(
    mut lane: Lane,
    cpu: Option<usize>,
    board: &Board,
    share: Range<usize>,
) -> anyhow::Result<libc::pid_t> {
    let parent = std::process::id();
    // SAFETY: the child runs `worker` only, which neither allocates nor locks, and leaves by _exit: locks that
    // other threads of the parent hold at this moment are never asked for, and no destructor runs twice.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("forking a worker"),
        0 => {
            die_with(parent);
            worker(board.window(), &board.gauges()[share], cpu, &mut lane);
            leave()
        }
        pid => Ok(pid),
    }
}

/// Ties a forked worker's life to its parent's, which may already be over.
fn die_with(parent: u32) {
    // SAFETY: a plain integer call that concerns the calling process only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if std::os::unix::process::parent_id() != parent {
        leave();
    }
}

fn leave() -> ! {
    // SAFETY: ends a forked worker without running the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

/// A worker's life; `gauges` are one for its operations and one for each part of them.
fn worker(window: &Window, gauges: &[Gauge], cpu: Option<usize>, lane: &mut Lane) {
    let [gauge, parts @ ..] = gauges else { return };
    let outcome = cpu.map_or(Ok(()), pin).and_then(|()| {
        clock::sharpen();
        let origin = window.wait_for_start();
        let mut turns = Turns { window, pace: lane.pace, limit: lane.turns, origin, taken: 0 };
        let end = repeat(&mut turns, gauge, parts, lane.work.as_mut());
        turns.settle(gauge);
        end
    });
    if let Err(fault) = outcome {
        gauge.fail(fault);
        window.close();
    }
    let ended = clock::now();
    gauges.iter().for_each(|gauge| gauge.finish(ended));
}

fn repeat(turns: &mut Turns, gauge: &Gauge, parts: &[Gauge], work: &mut dyn Work) -> Result<(), Fault> {
    loop {
        work.between()?;
        let Some(turn) = turns.next() else { return Ok(()) };
        let bytes = work.op()?;
        if turns.window.counts(turn.begun) {
            gauge.record(clock::now() - turn.intended, bytes);
            for (gauge, ns) in parts.iter().zip(work.parts()) {
                ns.iter().for_each(|ns| gauge.record(*ns, 0));
            }
        }
    }
}

/// When an operation should have begun, and when it did; equal in a closed loop.
struct Turn {
    intended: u64,
    begun: u64,
}

/// Hands out the turns of one worker until the window closes.
struct Turns<'a> {
    window: &'a Window,
    pace: Option<Pace>,
    limit: Option<u64>,
    origin: u64,
    taken: u64,
}

impl Turns<'_> {
    fn next(&mut self) -> Option<Turn> {
        if self.limit == Some(self.taken) {
            return None;
        }
        let intended = self.pace.map(|p| self.origin + p.intended(self.taken));
        if let Some(moment) = intended {
            while moment < self.window.until() && clock::approach(moment) {}
        }
        let begun = clock::now();
        if begun.max(intended.unwrap_or(0)) >= self.window.until() {
            return None;
        }
        self.taken += 1;
        Some(Turn { intended: intended.unwrap_or(begun), begun })
    }

    /// Open loop: what was due and never started would otherwise vanish from the figures.
    fn settle(&self, gauge: &Gauge) {
        let (Some(pace), None) = (self.pace, self.limit) else { return };
        let until = self.window.until();
        let due = pace.due_before(until.saturating_sub(self.origin));
        let oldest = self.origin + pace.intended(self.taken);
        gauge.unserved(due.saturating_sub(self.taken), until.saturating_sub(oldest));
    }
}

fn pin(cpu: usize) -> Result<(), Fault> {
    // SAFETY: all-zero is an empty set; CPU_SET checks its bounds; the call concerns the calling thread only.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if rc == 0 { Ok(()) } else { Err(Fault::last(Step::Pin)) }
}

/// The CPUs this process may use: under a cpuset, `i mod n` over all CPUs would fail.
pub(super) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: all-zero is an empty set, written by the kernel up to the size given; CPU_ISSET stays inside it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nap(Duration, u32);

    impl Work for Nap {
        fn op(&mut self) -> Result<u64, Fault> {
            if self.1 == 0 {
                return Err(Fault { step: Step::Write as u32, errno: libc::ENOSPC });
            }
            self.1 -= 1;
            std::thread::sleep(self.0);
            Ok(1)
        }
    }

    fn nap(ms: u64, times: u32, pace: Option<Pace>) -> Lane {
        Lane { pace, ..Lane::new("napper", Nap(Duration::from_millis(ms), times)) }
    }

    fn plan(crew: Crew) -> Plan {
        Plan { warmup_ns: 50_000_000, measured_ns: 300_000_000, counted: false, crew, cpus: Vec::new() }
    }

    #[test]
    fn threads_and_processes_count_alike() {
        for crew in [Crew::Threads, Crew::Processes] {
            let out = run(&plan(crew), vec![nap(10, 1000, None), nap(10, 1000, None)]).unwrap();
            let role = &out.roles[0];
            assert_eq!((out.roles.len(), role.threads), (1, 2));
            assert_eq!(out.window.unwrap().seconds(), 0.3);
            assert!((2..=62).contains(&role.tally.n()), "{crew:?}: {}", role.tally.n());
            assert_eq!(role.tally.n(), role.tally.bytes);
        }
    }

    #[test]
    fn a_failed_operation_ends_the_run_early() {
        let long = Plan { measured_ns: 60_000_000_000, ..plan(Crew::Processes) };
        let out = run(&long, vec![nap(1, 3, None), nap(1, u32::MAX, None)]).unwrap();
        assert_eq!(out.roles[0].tally.errors, 1);
        assert_eq!(out.roles[0].tally.fault.unwrap().errno, libc::ENOSPC);
        assert!(out.window.is_none_or(|w| w.seconds() < 30.0));
    }

    #[test]
    fn open_loop_counts_the_wait_for_a_turn() {
        // 10 ms of work due every 5 ms: the queue grows, and latency with it.
        let out = run(&plan(Crew::Threads), vec![nap(10, 1000, Some(Pace::new(200, 1, 0)))]).unwrap();
        let tally = &out.roles[0].tally;
        assert!(tally.max_ns > 50_000_000, "{}", tally.max_ns);
        assert!(tally.unserved > 5 && tally.unserved_age_ns > 50_000_000, "{tally:?}");
    }

    /// Naps whose two halves are timed, the second only every other time.
    struct Halves(Nap, [Option<u64>; 2]);

    impl Work for Halves {
        fn op(&mut self) -> Result<u64, Fault> {
            self.1 = [Some(7), self.1[1].is_none().then_some(9)];
            self.0.op()
        }

        fn parts(&self) -> &[Option<u64>] {
            &self.1
        }
    }

    #[test]
    fn a_count_is_kept_exactly_and_ends_the_window() {
        let plan = Plan { warmup_ns: 0, measured_ns: COUNT_LIMIT_NS, counted: true, ..plan(Crew::Threads) };
        let lane = || {
            let work = Halves(Nap(Duration::from_millis(1), 1000), [None; 2]);
            Lane { parts: &["first", "second"], turns: Some(10), ..Lane::new("napper", work) }
        };
        let out = run(&plan, vec![lane(), lane()]).unwrap();
        let counts =
            out.roles.iter().map(|r| (r.role, r.part_of, r.threads, r.tally.n())).collect::<Vec<_>>();
        let part = Some("napper");
        assert_eq!(counts, [("napper", None, 2, 20), ("first", part, 2, 20), ("second", part, 2, 10)]);
        let window = out.window.unwrap();
        assert!(window.ended_ns == window.stop_ns && window.seconds() < 30.0, "{window:?}");
    }

    #[test]
    fn pinning_goes_round_the_allowed_cpus() {
        let plan = Plan { cpus: vec![2, 5], ..plan(Crew::Threads) };
        assert_eq!([0, 1, 2].map(|i| plan.cpu(i)), [Some(2), Some(5), Some(2)]);
        assert_eq!(Plan { cpus: vec![], ..plan }.cpu(0), None);
    }
}
