//! One run: workers (threads or processes) behind a start barrier, a warm-up, a measured window, an end.
//!
//! Must not know what the work is, and must come to an end whatever the work does: a worker stuck in the kernel
//! is given up after a grace period and reported.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};

use super::args::StressArgs;
use super::board::{Board, Window};
use super::clock::{self, Pace};
use super::fault::{Fault, Step};
use super::gauge::{Gauge, Tally};
use super::signal;

/// How long a worker may take to get ready, and to come back after the end, ns.
const GRACE_NS: u64 = 30_000_000_000;
const POLL: Duration = Duration::from_millis(2);

/// What a worker repeats. Must not allocate or panic where it is run in processes.
pub(super) trait Work: Send {
    /// One operation, timed; returns the bytes it moved.
    fn op(&mut self) -> Result<u64, Fault>;

    /// Housekeeping before an operation, outside its closed-loop latency.
    fn between(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

/// One worker: its role, its schedule (none = closed loop), its work.
pub(super) struct Lane {
    pub role: &'static str,
    pub pace: Option<Pace>,
    pub work: Box<dyn Work>,
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
    pub crew: Crew,
    /// CPUs to pin to, in turn; empty: no pinning.
    pub cpus: Vec<usize>,
}

impl Plan {
    pub fn new(args: &StressArgs, crew: Crew) -> Self {
        let ns = |secs: f64| (secs * 1e9) as u64;
        let cpus = if args.pin { allowed_cpus() } else { Vec::new() };
        Self { warmup_ns: ns(args.warmup), measured_ns: ns(args.secs), crew, cpus }
    }

    fn cpu(&self, lane: usize) -> Option<usize> {
        self.cpus.get(lane.checked_rem(self.cpus.len())?).copied()
    }
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Seconds measured; none when it ended within the warm-up.
    pub seconds: Option<f64>,
    pub interrupted: bool,
    /// One per role, in order of first appearance.
    pub roles: Vec<RoleTally>,
}

/// The merged figures of one role.
#[derive(Debug)]
pub(super) struct RoleTally {
    pub role: &'static str,
    pub threads: u32,
    pub open_loop: bool,
    pub tally: Tally,
}

/// Runs the lanes to the end of the plan, the first signal, or the first failed operation.
pub(super) fn run(plan: &Plan, lanes: Vec<Lane>) -> anyhow::Result<Outcome> {
    let labels: Vec<_> = lanes.iter().map(|l| (l.role, l.pace.is_some())).collect();
    let board = Arc::new(Board::new(lanes.len()).context("shared memory for the workers")?);
    let mut crew = Running::start(plan, lanes, &board)?;
    let ready = wait_ready(&board, labels.len(), &mut crew);
    if ready {
        board.window().open(plan.warmup_ns, plan.measured_ns);
    }
    let interrupted = supervise(&board, &mut crew)?;
    let roles = by_role(&labels, &board);
    if let Some(role) = roles.iter().find(|r| !r.tally.finished) {
        bail!("a {} worker died in the middle of its work", role.role);
    }
    Ok(Outcome { seconds: board.window().seconds(), interrupted, roles })
}

fn by_role(labels: &[(&'static str, bool)], board: &Board) -> Vec<RoleTally> {
    let mut roles: Vec<RoleTally> = Vec::new();
    for ((role, open_loop), gauge) in labels.iter().zip(board.gauges()) {
        let at = roles.iter().position(|r| r.role == *role).unwrap_or(roles.len());
        if at == roles.len() {
            roles.push(RoleTally { role, threads: 0, open_loop: *open_loop, tally: Tally::default() });
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
        for (i, lane) in lanes.into_iter().enumerate() {
            if let Err(error) = running.add(i, lane, plan.cpu(i), board) {
                board.window().close();
                running.give_up();
                return Err(error);
            }
        }
        Ok(running)
    }

    fn add(&mut self, i: usize, lane: Lane, cpu: Option<usize>, board: &Arc<Board>) -> anyhow::Result<()> {
        match self {
            Self::Threads(handles) => handles.push(spawn(i, lane, cpu, Arc::clone(board))?),
            Self::Processes(pids) => pids.push(fork(i, lane, cpu, board)?),
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

fn spawn(i: usize, mut lane: Lane, cpu: Option<usize>, board: Arc<Board>) -> anyhow::Result<JoinHandle<()>> {
    let body = move || worker(board.window(), &board.gauges()[i], cpu, lane.pace, lane.work.as_mut());
    std::thread::Builder::new().name(format!("stress-{i}")).spawn(body).context("starting a worker thread")
}

fn fork(i: usize, mut lane: Lane, cpu: Option<usize>, board: &Board) -> anyhow::Result<libc::pid_t> {
    let parent = std::process::id();
    // SAFETY: the child runs `worker` only, which neither allocates nor locks, and leaves by _exit: locks that
    // other threads of the parent hold at this moment are never asked for, and no destructor runs twice.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("forking a worker"),
        0 => {
            die_with(parent);
            worker(board.window(), &board.gauges()[i], cpu, lane.pace, lane.work.as_mut());
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

/// A worker's life.
fn worker(window: &Window, gauge: &Gauge, cpu: Option<usize>, pace: Option<Pace>, work: &mut dyn Work) {
    let outcome = cpu.map_or(Ok(()), pin).and_then(|()| {
        clock::sharpen();
        let mut turns = Turns { window, pace, origin: window.wait_for_start(), taken: 0 };
        let end = repeat(&mut turns, gauge, work);
        turns.settle(gauge);
        end
    });
    if let Err(fault) = outcome {
        gauge.fail(fault);
        window.close();
    }
    gauge.finish();
}

fn repeat(turns: &mut Turns, gauge: &Gauge, work: &mut dyn Work) -> Result<(), Fault> {
    loop {
        work.between()?;
        let Some(turn) = turns.next() else { return Ok(()) };
        let bytes = work.op()?;
        if turns.window.counts(turn.begun) {
            gauge.record(clock::now() - turn.intended, bytes);
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
    origin: u64,
    taken: u64,
}

impl Turns<'_> {
    fn next(&mut self) -> Option<Turn> {
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
        let Some(pace) = self.pace else { return };
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
fn allowed_cpus() -> Vec<usize> {
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
        Lane { role: "napper", pace, work: Box::new(Nap(Duration::from_millis(ms), times)) }
    }

    fn plan(crew: Crew) -> Plan {
        Plan { warmup_ns: 50_000_000, measured_ns: 300_000_000, crew, cpus: Vec::new() }
    }

    #[test]
    fn threads_and_processes_count_alike() {
        for crew in [Crew::Threads, Crew::Processes] {
            let out = run(&plan(crew), vec![nap(10, 1000, None), nap(10, 1000, None)]).unwrap();
            let role = &out.roles[0];
            assert_eq!((out.roles.len(), role.threads), (1, 2));
            assert_eq!(out.seconds, Some(0.3));
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
        assert!(out.seconds.is_none_or(|s| s < 30.0));
    }

    #[test]
    fn open_loop_counts_the_wait_for_a_turn() {
        // 10 ms of work due every 5 ms: the queue grows, and latency with it.
        let out = run(&plan(Crew::Threads), vec![nap(10, 1000, Some(Pace::new(200, 1, 0)))]).unwrap();
        let tally = &out.roles[0].tally;
        assert!(tally.max_ns > 50_000_000, "{}", tally.max_ns);
        assert!(tally.unserved > 5 && tally.unserved_age_ns > 50_000_000, "{tally:?}");
    }

    #[test]
    fn pinning_goes_round_the_allowed_cpus() {
        let plan = Plan { cpus: vec![2, 5], ..plan(Crew::Threads) };
        assert_eq!([0, 1, 2].map(|i| plan.cpu(i)), [Some(2), Some(5), Some(2)]);
        assert_eq!(Plan { cpus: vec![], ..plan }.cpu(0), None);
    }
}
