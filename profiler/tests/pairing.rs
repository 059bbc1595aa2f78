//! Known answers for the pairing code: the object's own programs, driven by BPF_PROG_TEST_RUN with synthetic sequences.
//! Needs root and nothing else: no event of the kernel's is involved, so it runs where functions cannot be probed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics shows the line")]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use aya::programs::{RawTracePointRunOptions, TestRun};
use profiler::{
    kernel::{btf::Btf, features::Features, kallsyms::Kallsyms},
    load::{Loaded, Mapped, Options, Sizes},
    snapshot::{
        CellName, Names, Snapshot, Totals,
        read::{Namer, Reader},
        subsystems::{JournalTotals, LruTotals, OTHER_DEVICES},
    },
};
use profiler_common::{
    CellKey, Control, Interval, Kind,
    bh_lru::Lookup,
    cell::Outcome,
    control::SELECT_TGID,
    inflight::{
        FUNC_JBD2_WAIT_COMMIT, FUNC_JBD2_WAIT_SPACE, FUNC_RWSEM_READ, FUNC_RWSEM_SPIN_ON_OWNER,
        FUNC_RWSEM_WRITE,
    },
    journal::{CAUSES, Cause, HANDLE_IS_BARRED, HANDLE_IS_CROWDED, HANDLE_IS_RESERVED, JournalCounter, Span},
    limits::RESERVED_CELLS,
    loss::Counter,
};

/// LCB_F_* combinations as the kernel emits them.
const SPIN: u64 = 1;
const RWSEM_READ: u64 = 2;
const RWLOCK_READ: u64 = 3;
const RWLOCK_WRITE: u64 = 5;
const RWSEM_WRITE: u64 = 4;
const MUTEX_SPIN: u64 = 33;
const MUTEX_SLEEP: u64 = 32;
const EINTR: u64 = -4i64 as u64;
/// One reader's part of rw_semaphore.count.
const READER: u64 = 256;

/// Two addresses that no kernel object has: the owner word cannot be read there.
const LOCK: u64 = 0xffff_f000_0000_1000;
const OTHER: u64 = 0xffff_f000_0000_8000;

/// Numbers addresses by themselves.
#[derive(Default)]
struct Plain(Names, bool);

impl Namer for Plain {
    fn lock(&mut self, _key: &CellKey, address: u64) -> u32 {
        address as u32
    }
    fn open_lock(&mut self, open: &Interval) -> u32 {
        open.lock as u32
    }
    fn stack(&mut self, _hash: u64, _frames: &[u64]) -> (u32, u64) {
        (0, 0)
    }
    fn process(&mut self, _tgid: u32, _comm: [u8; 16]) {}
    fn cell(&mut self, name: CellName) {
        self.0.cells.push(name);
    }
    fn is_running(&self, _tid: u32) -> bool {
        true
    }
    fn has_left(&self, _tid: u32, _function: &str) -> bool {
        false
    }
    fn is_gone(&self, _tgid: u32) -> bool {
        self.1
    }
    fn without_hist(&mut self, row: u32, reason: &str) {
        self.0.rows_without_hist.push((row, reason.to_owned()));
    }
    fn take(&mut self) -> Names {
        std::mem::take(&mut self.0)
    }
}

/// The programs that are driven.
const PROGRAMS: [&str; 9] = [
    "contention_begin_raw",
    "contention_end_raw",
    "drive_entry",
    "drive_exit",
    "drive_handle",
    "drive_lru",
    "handle_started",
    "handle_restarted",
    "handle_stats",
];

/// The object, loaded but attached to nothing, recording this thread.
struct Bench {
    loaded: Loaded,
    reader: Reader,
    totals: BTreeMap<u32, Totals>,
    names: Vec<CellName>,
    last: Snapshot,
}

fn features() -> Features {
    Features::read(&Kallsyms::read().unwrap()).unwrap()
}

fn sizes() -> Sizes {
    let cpus = features().possible_cpus;
    Sizes { cpus, cells: 1024, hists: 64, shards: 1, slots: 4096, letters: 64 }
}

impl Bench {
    fn new() -> Self {
        Self::with(sizes(), Control::default())
    }

    fn with(sizes: Sizes, control: Control) -> Self {
        Self::named(sizes, control, Plain::default())
    }

    fn named(sizes: Sizes, control: Control, namer: Plain) -> Self {
        pin_to_this_cpu();
        let features = features();
        let btf = Btf::vmlinux().unwrap();
        let options = Options { sizes, kinds: u32::MAX, log: false };
        let mut loaded = Loaded::new(&options, Some(&btf), &features).expect("needs root");
        for program in PROGRAMS {
            loaded.load_raw_tracepoint(program).unwrap();
        }
        let reader = Reader::new(&mut loaded, Box::new(namer)).unwrap();
        reader.control().set(0, Control { enabled: 1, ..control });
        Bench { loaded, reader, totals: BTreeMap::new(), names: Vec::new(), last: Snapshot::default() }
    }

    fn run(&mut self, program: &str, args: &[u64]) {
        let mut options = RawTracePointRunOptions::new();
        options.args[..args.len()].copy_from_slice(args);
        let program = self.loaded.load_raw_tracepoint(program).unwrap();
        program.test_run(options).unwrap();
    }

    fn begin(&mut self, lock: u64, flags: u64) {
        self.run("contention_begin_raw", &[lock, flags]);
    }

    fn end(&mut self, lock: u64) {
        self.run("contention_end_raw", &[lock, 0]);
    }

    fn fail(&mut self, lock: u64) {
        self.run("contention_end_raw", &[lock, EINTR]);
    }

    fn enter(&mut self, func: u8, lock: u64, count: u64) {
        self.run("drive_entry", &[u64::from(func), lock, count]);
    }

    fn leave(&mut self, func: u8) {
        self.leave_with(func, LOCK);
    }

    /// Both slow paths return the lock, or an error.
    fn leave_with(&mut self, func: u8, returned: u64) {
        self.run("drive_exit", &[u64::from(func), returned]);
    }

    fn read(&mut self) {
        self.last = self.reader.snapshot(profiler::session::monotonic_ns).unwrap();
        self.totals.extend(self.last.cells.clone());
        self.names.extend(self.reader.take_names().cells);
    }

    /// Sums of all cells of a lock.
    fn of(&mut self, lock: u64) -> Totals {
        self.read();
        let mut sum = Totals::default();
        for name in self.names.iter().filter(|name| name.lock == lock as u32) {
            sum.add(self.totals.get(&name.id).unwrap_or(&Totals::default()));
        }
        sum
    }

    fn count(&self, counter: Counter) -> u64 {
        self.reader.counter(counter)
    }

    fn losses(&self) -> Vec<(&'static str, u64)> {
        let all = Counter::LOSSES.into_iter().map(|(counter, name)| (name, self.count(counter)));
        all.filter(|(_, count)| *count != 0).collect()
    }
}

/// Spinning waits live with the CPU: the thread must stay on one.
fn pin_to_this_cpu() {
    // SAFETY: a mask of our own, for our own thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
}

fn outcome(totals: &Totals, outcome: Outcome) -> u64 {
    totals.outcomes[outcome as usize]
}

#[test]
fn a_mutex_is_one_wait_from_its_first_begin_with_spin_and_sleep_apart() {
    let mut bench = Bench::new();
    for flags in [MUTEX_SPIN, MUTEX_SLEEP, MUTEX_SPIN, MUTEX_SLEEP] {
        bench.begin(LOCK, flags);
    }
    bench.end(LOCK);
    let wait = bench.of(LOCK);
    assert_eq!((wait.n, bench.count(Counter::MutexRebegins)), (1, 3));
    assert!(wait.spin_ns > 0 && wait.queue_ns > 0);
    assert_eq!(wait.spin_ns + wait.queue_ns, wait.wait_ns);
    assert_eq!(bench.losses(), []);
}

#[test]
fn a_wait_lock_inside_a_sleeping_lock_is_folded_not_added() {
    let mut bench = Bench::new();
    bench.begin(LOCK, RWSEM_WRITE);
    bench.begin(LOCK + 20, SPIN);
    bench.end(LOCK + 20);
    bench.end(LOCK);
    assert_eq!(bench.of(LOCK).n, 1);
    assert_eq!(bench.of(LOCK + 20).n, 0);
    assert_eq!(bench.count(Counter::Folded), 1);
    assert!(bench.count(Counter::FoldedNs) > 0);
    assert_eq!((bench.count(Counter::Begins), bench.count(Counter::Ends)), (2, 2));
}

#[test]
fn a_wait_lock_inside_a_rwlock_is_folded() {
    let mut bench = Bench::new();
    bench.begin(LOCK, RWLOCK_WRITE);
    bench.begin(LOCK + 4, SPIN);
    bench.end(LOCK + 4);
    bench.end(LOCK);
    assert_eq!((bench.of(LOCK).n, bench.of(LOCK + 4).n, bench.count(Counter::Folded)), (1, 0, 1));
}

#[test]
fn a_lock_just_behind_a_sleeping_lock_is_not_folded() {
    let mut bench = Bench::new();
    bench.begin(LOCK, RWSEM_WRITE);
    let behind = LOCK + u64::from(Btf::vmlinux().unwrap().size_of("rw_semaphore").unwrap());
    bench.begin(behind, SPIN);
    bench.end(behind);
    bench.end(LOCK);
    assert_eq!((bench.of(LOCK).n, bench.of(behind).n, bench.count(Counter::Folded)), (1, 1, 0));
}

#[test]
fn an_interrupt_inside_a_spin_is_accounted_beside_it() {
    let mut bench = Bench::new();
    bench.begin(LOCK, SPIN);
    bench.begin(OTHER, SPIN);
    bench.end(OTHER);
    bench.end(LOCK);
    let (outer, inner) = (bench.of(LOCK), bench.of(OTHER));
    assert_eq!((outer.n, inner.n), (1, 1));
    assert!(outer.wait_ns > inner.wait_ns);
    assert_eq!((outer.spin_ns, outer.queue_ns), (outer.wait_ns, 0));
    assert_eq!(bench.losses(), []);
}

#[test]
fn an_interrupted_wait_is_in_none_of_the_sums() {
    let mut bench = Bench::new();
    bench.begin(LOCK, RWSEM_READ);
    bench.fail(LOCK);
    let wait = bench.of(LOCK);
    assert_eq!((wait.n, wait.wait_ns, wait.interrupted_n), (0, 0, 1));
    assert!(wait.interrupted_ns > 0);
    assert!(bench.last.hists.values().all(BTreeMap::is_empty));
}

#[test]
fn a_lost_end_is_counted_and_never_becomes_a_long_wait() {
    let mut bench = Bench::new();
    bench.begin(LOCK, RWSEM_WRITE);
    std::thread::sleep(std::time::Duration::from_millis(50));
    bench.begin(LOCK, RWSEM_WRITE);
    bench.end(LOCK);
    let wait = bench.of(LOCK);
    assert_eq!((wait.n, bench.count(Counter::LostEnd)), (1, 1));
    assert!(wait.max_ns < 50_000_000, "{}", wait.max_ns);
}

#[test]
fn a_mutex_that_spins_anew_while_it_spins_lost_its_end() {
    let mut bench = Bench::new();
    bench.begin(LOCK, MUTEX_SPIN);
    bench.begin(LOCK, MUTEX_SPIN);
    bench.end(LOCK);
    assert_eq!((bench.of(LOCK).n, bench.count(Counter::LostEnd)), (1, 1));
}

#[test]
fn an_end_without_its_begin_is_counted_only() {
    let mut bench = Bench::new();
    bench.end(LOCK);
    bench.leave(FUNC_RWSEM_WRITE);
    assert_eq!(bench.of(LOCK), Totals::default());
    assert_eq!(bench.losses(), [("end_without_begin", 1), ("exit_without_entry", 1)]);
}

#[test]
fn a_spin_left_open_by_another_thread_never_pairs() {
    let mut bench = Bench::new();
    bench.begin(LOCK, SPIN);
    std::thread::scope(|scope| {
        let bench = &mut bench;
        scope.spawn(move || {
            bench.end(LOCK);
            bench.begin(OTHER, SPIN);
            bench.end(OTHER);
        });
    });
    assert_eq!((bench.of(LOCK).n, bench.of(OTHER).n), (0, 1));
    assert_eq!(bench.losses(), [("end_without_begin", 1), ("lost_end", 1)]);
}

#[test]
fn a_spin_that_began_inside_another_ends_with_it() {
    let mut bench = Bench::new();
    bench.begin(LOCK, SPIN);
    bench.begin(OTHER, SPIN);
    bench.end(LOCK);
    bench.end(OTHER);
    assert_eq!((bench.of(LOCK).n, bench.of(OTHER).n), (1, 0));
    assert_eq!(bench.losses(), [("end_without_begin", 1), ("lost_end", 1)]);
}

#[test]
fn more_nesting_than_there_is_room_for_is_counted() {
    let mut bench = Bench::new();
    for index in 0..5 {
        bench.begin(LOCK + 0x1000 * index, MUTEX_SLEEP);
    }
    for index in 0..4 {
        bench.end(LOCK + 0x1000 * index);
    }
    bench.read();
    assert_eq!(bench.totals.values().map(|totals| totals.n).sum::<u64>(), 4);
    assert_eq!(bench.losses(), [("too_deep", 1)]);
}

#[test]
fn a_slot_held_by_another_thread_is_a_counted_loss() {
    let mut bench = Bench::with(Sizes { slots: 1, ..sizes() }, Control::default());
    bench.begin(LOCK, RWSEM_WRITE);
    std::thread::scope(|scope| {
        let bench = &mut bench;
        scope.spawn(move || {
            bench.begin(OTHER, RWSEM_WRITE);
        });
    });
    bench.end(LOCK);
    assert_eq!((bench.of(LOCK).n, bench.of(OTHER).n), (1, 0));
    assert_eq!(bench.losses(), [("slot_collision", 1)]);
    bench.begin(OTHER, RWSEM_WRITE);
    bench.end(OTHER);
    assert_eq!(bench.of(OTHER).n, 1, "the slot is free again");
}

#[test]
fn both_probes_together_make_one_wait_of_a_queued_writer() {
    let mut bench = Bench::new();
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.begin(LOCK, RWSEM_WRITE);
    bench.end(LOCK);
    bench.leave(FUNC_RWSEM_WRITE);
    let wait = bench.of(LOCK);
    assert_eq!(
        (wait.n, outcome(&wait, Outcome::QueuedWriter), outcome(&wait, Outcome::HandedOff)),
        (1, 1, 0)
    );
    assert!(wait.spin_ns > 0 && wait.queue_ns > 0);
    assert_eq!(wait.spin_ns + wait.queue_ns, wait.wait_ns);
    assert_eq!(bench.losses(), []);
}

#[test]
fn a_writer_that_spins_in_never_queues() {
    let mut bench = Bench::new();
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.leave(FUNC_RWSEM_WRITE);
    let wait = bench.of(LOCK);
    assert_eq!((wait.n, outcome(&wait, Outcome::Spun), wait.queue_ns), (1, 1, 0));
    assert_eq!(wait.spin_ns, wait.wait_ns);
}

#[test]
fn a_handoff_is_a_queued_writer_that_spins_on_the_owner() {
    let mut bench = Bench::new();
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.enter(FUNC_RWSEM_SPIN_ON_OWNER, LOCK, 0);
    bench.leave(FUNC_RWSEM_WRITE);
    assert_eq!(outcome(&bench.of(LOCK), Outcome::HandedOff), 0, "spinning before it queues is no handoff");
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.begin(LOCK, RWSEM_WRITE);
    bench.enter(FUNC_RWSEM_SPIN_ON_OWNER, LOCK, 0);
    bench.end(LOCK);
    bench.leave(FUNC_RWSEM_WRITE);
    assert_eq!(outcome(&bench.of(LOCK), Outcome::HandedOff), 1);
}

#[test]
fn readers_steal_go_fast_or_queue_by_the_kernels_own_predicate() {
    let mut bench = Bench::new();
    let mut read = |count: u64, queues: bool| {
        bench.enter(FUNC_RWSEM_READ, LOCK, count);
        if queues {
            bench.begin(LOCK, RWSEM_READ);
            bench.end(LOCK);
        }
        bench.leave(FUNC_RWSEM_READ);
    };
    read(READER, false);
    read(READER | 2, false);
    read(READER | 1, false);
    read(READER | 1, true);
    read(READER | 4, true);
    read(READER | 2, true);
    let wait = bench.of(LOCK);
    let got = [
        outcome(&wait, Outcome::Stolen),
        outcome(&wait, Outcome::StolenPastWaiters),
        outcome(&wait, Outcome::Fast),
        outcome(&wait, Outcome::QueuedReader),
        outcome(&wait, Outcome::PredicateDisagreed),
    ];
    assert_eq!((wait.n, got), (6, [2, 1, 1, 3, 1]));
    assert_eq!(bench.count(Counter::RwsemReadEntries), 6, "entries and outcomes are counted apart and agree");
}

#[test]
fn an_interrupted_writer_is_an_outcome_and_no_wait() {
    let mut bench = Bench::new();
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.begin(LOCK, RWSEM_WRITE);
    bench.fail(LOCK);
    bench.run("drive_exit", &[u64::from(FUNC_RWSEM_WRITE), EINTR]);
    let wait = bench.of(LOCK);
    assert_eq!((wait.n, wait.interrupted_n, outcome(&wait, Outcome::InterruptedWriter)), (0, 1, 1));
    assert_eq!(outcome(&wait, Outcome::QueuedWriter), 0);
}

#[test]
fn an_entry_whose_exit_was_lost_is_overwritten_and_counted() {
    let mut bench = Bench::new();
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.enter(FUNC_RWSEM_WRITE, OTHER, 0);
    bench.leave_with(FUNC_RWSEM_WRITE, OTHER);
    assert_eq!((bench.of(LOCK).n, bench.of(OTHER).n), (0, 1));
    assert_eq!(bench.losses(), [("lost_end", 1)]);
}

#[test]
fn the_exit_of_another_lock_never_closes_an_entry_whose_exit_was_lost() {
    let mut bench = Bench::new();
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.leave_with(FUNC_RWSEM_WRITE, OTHER);
    bench.leave_with(FUNC_RWSEM_WRITE, LOCK);
    assert_eq!((bench.of(LOCK).n, bench.of(OTHER).n), (0, 0));
    assert_eq!(bench.losses(), [("exit_without_entry", 2), ("lost_end", 1)]);
}

#[test]
fn a_second_queueing_means_that_the_first_exit_was_lost() {
    let mut bench = Bench::new();
    bench.enter(FUNC_RWSEM_WRITE, LOCK, 0);
    bench.begin(LOCK, RWSEM_WRITE);
    bench.end(LOCK);
    std::thread::sleep(std::time::Duration::from_millis(50));
    bench.begin(LOCK, RWSEM_WRITE);
    bench.end(LOCK);
    let wait = bench.of(LOCK);
    assert!(wait.n == 1 && wait.max_ns < 50_000_000, "{wait:?}");
    assert_eq!(bench.count(Counter::LostEnd), 1);
}

#[test]
fn a_full_table_sends_waits_to_other_and_says_so() {
    let mut bench = Bench::with(Sizes { cells: RESERVED_CELLS + 8, ..sizes() }, Control::default());
    for round in 0..3 {
        for index in 0..10u64 {
            bench.begin(LOCK + 0x1000 * index, RWSEM_WRITE);
            bench.end(LOCK + 0x1000 * index);
        }
        bench.read();
        assert_eq!(bench.count(Counter::TableFull), 2 * (round + 1));
    }
    let known: u64 = bench.totals.values().map(|totals| totals.n).sum();
    let other: u64 = bench.last.other.values().map(|totals| totals.n).sum();
    assert_eq!((known, other), (24, 6));
    assert_eq!(bench.losses(), [("table_full", 6)]);
}

#[test]
fn cells_of_processes_that_are_gone_are_used_again_and_nothing_is_lost() {
    let gone = Plain(Names::default(), true);
    let sizes = Sizes { cells: RESERVED_CELLS + 8, ..sizes() };
    let mut bench = Bench::named(sizes, Control::default(), gone);
    for round in 1..=4u64 {
        for index in 0..8u64 {
            bench.begin(LOCK + 0x10_0000 * round + 0x1000 * index, RWSEM_WRITE);
            bench.end(LOCK + 0x10_0000 * round + 0x1000 * index);
        }
        for _ in 0..6 {
            bench.read();
        }
        let counted: u64 = bench.totals.values().map(|totals| totals.n).sum();
        assert_eq!((counted, bench.losses()), (8 * round, vec![]));
    }
}

#[test]
fn a_full_mailbox_sends_waits_to_other_and_says_so() {
    let mut bench = Bench::with(Sizes { letters: 16, ..sizes() }, Control::default());
    for index in 0..20u64 {
        bench.begin(LOCK + 0x1000 * index, RWSEM_WRITE);
        bench.end(LOCK + 0x1000 * index);
    }
    bench.read();
    let known: u64 = bench.totals.values().map(|totals| totals.n).sum();
    let other: u64 = bench.last.other.values().map(|totals| totals.n).sum();
    let lost = bench.count(Counter::MailboxFull);
    assert_eq!(known, bench.count(Counter::Letters));
    assert!(known > 1, "letters fill more than one slot: {known}");
    assert_eq!((known + other, other), (20, lost));
    assert!(lost > 0);
}

#[test]
fn every_wait_of_a_known_key_is_in_its_cell_and_histogram() {
    let mut bench = Bench::new();
    for round in 1..=3u64 {
        for _ in 0..100 {
            bench.begin(LOCK, RWSEM_WRITE);
            bench.end(LOCK);
            bench.reader.drain().unwrap();
        }
        assert_eq!(bench.of(LOCK).n, 100 * round);
        let in_hist: u64 = bench.last.hists.values().flat_map(BTreeMap::values).sum();
        assert_eq!(in_hist, 100 * round);
    }
    assert_eq!(bench.count(Counter::Letters), 1, "only the first wait was a letter");
}

#[test]
fn waits_below_the_minimum_are_counted_by_kind_without_a_stack() {
    let control = Control { min_wait_ns: 20_000_000, stack_depth: 8, ..Control::default() };
    let mut bench = Bench::with(sizes(), control);
    bench.begin(LOCK, RWSEM_WRITE);
    bench.end(LOCK);
    bench.begin(OTHER, RWSEM_WRITE);
    std::thread::sleep(std::time::Duration::from_millis(25));
    bench.end(OTHER);
    assert_eq!((bench.of(LOCK).n, bench.of(OTHER).n), (0, 1));
    assert_eq!(bench.last.below_minimum.values().map(|totals| totals.n).sum::<u64>(), 1);
    assert_eq!(bench.losses(), []);
}

#[test]
fn a_wait_in_progress_shows_with_its_age() {
    let mut bench = Bench::new();
    bench.begin(LOCK, RWSEM_WRITE);
    std::thread::sleep(std::time::Duration::from_millis(30));
    bench.read();
    let open = bench.last.in_progress.clone();
    assert_eq!(open.len(), 1);
    assert!(open[0].age_ns >= 30_000_000 && open[0].queued, "{open:?}");
    // SAFETY: the number of our own thread.
    assert_eq!(open[0].tid, unsafe { libc::gettid() } as u32);
    bench.end(LOCK);
    bench.read();
    assert!(bench.last.in_progress.is_empty());
}

#[test]
fn a_wait_of_a_thread_that_is_gone_is_dropped_and_counted() {
    let mut bench = Bench::new();
    bench.begin(LOCK, RWSEM_WRITE);
    let now = profiler::session::monotonic_ns();
    bench.reader.drop_abandoned(now, 1_000_000_000, |_| true);
    bench.read();
    assert_eq!(bench.last.in_progress.len(), 1, "too young to be dropped");
    bench.reader.drop_abandoned(now + 2_000_000_000, 1_000_000_000, |_| false);
    bench.reader.drop_abandoned(now + 2_000_000_000, 1_000_000_000, |_| true);
    bench.read();
    assert!(bench.last.in_progress.is_empty());
    assert_eq!(bench.losses(), [("abandoned", 1)]);
}

#[test]
fn nobody_but_the_selected_is_recorded_and_the_rest_is_no_loss() {
    let select = Control { select: SELECT_TGID, ..Control::default() };
    let mut bench = Bench::with(sizes(), select);
    bench.begin(LOCK, RWSEM_WRITE);
    bench.end(LOCK);
    assert_eq!((bench.of(LOCK).n, bench.count(Counter::Begins), bench.losses()), (0, 0, vec![]));
    let me = std::process::id();
    bench.loaded.tgids().unwrap().insert(me, me, 0).unwrap();
    bench.begin(LOCK, RWSEM_WRITE);
    bench.end(LOCK);
    assert_eq!(bench.of(LOCK).n, 1);
}

#[test]
fn nothing_is_recorded_when_off_and_never_ourselves() {
    let mut bench = Bench::new();
    let control: std::sync::Arc<Mapped<Control>> = bench.reader.control();
    for settings in
        [Control::default(), Control { enabled: 1, own_tgid: std::process::id(), ..Control::default() }]
    {
        control.set(0, settings);
        bench.begin(LOCK, RWSEM_WRITE);
        bench.end(LOCK);
        assert_eq!((bench.of(LOCK).n, bench.count(Counter::Begins)), (0, 0));
    }
}

/// A loop device's number, as the kernel has it.
const DEVICE: u32 = 7 << 20;
const LINE: u64 = 2842;

/// Bursts are always under way here.
fn in_burst() -> Control {
    Control { burst: 1, lru_mask: u32::MAX, ..Control::default() }
}

impl Bench {
    fn handle_starts(&mut self, flags: u32) {
        self.run("drive_handle", &[1, LOCK, u64::from(flags)]);
    }

    fn handle_started(&mut self) {
        self.run("handle_started", &[u64::from(DEVICE), 5, 4, LINE, 30]);
    }

    fn handle_stops(&mut self, sync: bool) {
        self.run("handle_stats", &[u64::from(DEVICE), 5, 4, LINE, 0, u64::from(sync), 30, 3]);
    }

    fn handle_leaves(&mut self) {
        self.run("drive_handle", &[3]);
    }

    fn handle_stopped(&mut self) {
        self.run("drive_handle", &[4]);
    }

    fn journal(&mut self) -> JournalTotals {
        self.read();
        self.last.subsystems.journals[&DEVICE].clone()
    }

    fn lru(&mut self) -> LruTotals {
        self.read();
        let mut all = self.last.subsystems.lru.iter().filter(|((_, device), _)| *device == DEVICE);
        *all.next().unwrap().1
    }
}

/// Sleeps, and says for how many nanoseconds it really was.
fn slept(ms: u64) -> u64 {
    let begin = std::time::Instant::now();
    std::thread::sleep(Duration::from_millis(ms));
    begin.elapsed().as_nanos() as u64
}

fn offset_in_journal(member: &str) -> u64 {
    u64::from(Btf::vmlinux().unwrap().offset(&format!("journal_s.{member}")).unwrap())
}

#[test]
fn a_handles_life_is_timed_from_start_to_stop_and_its_start_wait_has_causes() {
    let mut bench = Bench::with(sizes(), in_burst());
    bench.handle_starts(0);
    let state_lock = LOCK + offset_in_journal("j_state_lock");
    bench.begin(state_lock, RWLOCK_READ);
    let read = slept(2);
    bench.end(state_lock);
    let for_space = Instant::now();
    bench.enter(FUNC_JBD2_WAIT_SPACE, LOCK, 0);
    let mutex = LOCK + offset_in_journal("j_checkpoint_mutex");
    bench.begin(mutex, MUTEX_SLEEP);
    let at_mutex = slept(3);
    bench.end(mutex);
    let work = slept(5);
    bench.leave(FUNC_JBD2_WAIT_SPACE);
    let for_space = for_space.elapsed().as_nanos() as u64;
    bench.handle_started();
    let held = slept(7);
    let stopping = Instant::now();
    bench.handle_stops(true);
    let batched = slept(11);
    bench.handle_leaves();
    bench.enter(FUNC_JBD2_WAIT_COMMIT, LOCK, 0);
    let committed = slept(13);
    bench.leave(FUNC_JBD2_WAIT_COMMIT);
    bench.handle_stopped();
    let stopping = stopping.elapsed().as_nanos() as u64;
    let journal = bench.journal();
    let span = |span: Span| &journal.spans[span as usize];
    let cause = |cause: Cause| journal.cause_ns[cause as usize];
    assert!(cause(Cause::StateLockRead) >= read && cause(Cause::CheckpointMutex) >= at_mutex);
    // A wait inside another belongs to the inner place alone.
    let without_mutex = work..=for_space - at_mutex;
    assert!(without_mutex.contains(&cause(Cause::CheckpointWork)), "{journal:?}");
    assert_eq!(
        journal.cause_ns.iter().sum::<u64>(),
        span(Span::Start).total_ns,
        "causes add up to the start"
    );
    assert!(span(Span::Hold).total_ns >= held + batched && span(Span::Batching).total_ns >= batched);
    // Neither the deliberate sleep nor the commit is part of stopping.
    assert!(span(Span::Stop).total_ns <= stopping - batched - committed, "{journal:?}");
    let counted = |counter: JournalCounter| journal.counters[counter as usize];
    assert_eq!((counted(JournalCounter::Starts), counted(JournalCounter::Untimed)), (1, 0));
    assert_eq!((counted(JournalCounter::SyncStops), counted(JournalCounter::Requested)), (1, 30));
    assert_eq!(bench.losses(), []);
}

#[test]
fn what_one_start_waited_for_is_not_taken_from_the_next() {
    let mut bench = Bench::with(sizes(), in_burst());
    let mut waits = 0;
    for waiting in [true, false, false] {
        bench.handle_starts(0);
        if waiting {
            bench.enter(FUNC_JBD2_WAIT_COMMIT, LOCK, 0);
            waits += slept(20);
            bench.leave(FUNC_JBD2_WAIT_COMMIT);
        }
        bench.handle_started();
        bench.handle_stops(false);
        bench.handle_leaves();
        bench.handle_stopped();
    }
    let journal = bench.journal();
    let whole = journal.spans[Span::Start as usize].total_ns;
    assert_eq!(journal.cause_ns.iter().sum::<u64>(), whole, "{journal:?}");
    assert_eq!(journal.cause_n[Cause::Rest as usize], 3);
    assert!(journal.cause_ns[Cause::CheckpointCommit as usize] >= waits);
}

#[test]
fn a_start_that_slept_where_nothing_is_timed_is_told_by_the_journals_state() {
    for (flags, wanted) in [
        (HANDLE_IS_RESERVED, Cause::Switching),
        (HANDLE_IS_BARRED, Cause::Barrier),
        (HANDLE_IS_CROWDED, Cause::Reserved),
        (0, Cause::Rest),
    ] {
        let mut bench = Bench::with(sizes(), in_burst());
        bench.handle_starts(flags);
        std::thread::sleep(Duration::from_millis(2));
        bench.handle_started();
        let journal = bench.journal();
        let seen: Vec<usize> = (0..CAUSES).filter(|cause| journal.cause_n[*cause] > 0).collect();
        assert_eq!(seen, [wanted as usize], "{flags}");
        let reserved = journal.spans[Span::Reserved as usize].n;
        assert_eq!(reserved, u64::from(flags == HANDLE_IS_RESERVED));
    }
}

#[test]
fn failed_nested_and_restarted_handles_are_told_apart() {
    let mut bench = Bench::with(sizes(), in_burst());
    // A failed start fires nothing: it shows at the next one.
    bench.handle_starts(0);
    bench.handle_starts(0);
    bench.handle_started();
    // A nested handle's stop: no tracepoint in between.
    bench.handle_stopped();
    // A restart: the handle leaves, starts, and goes on.
    bench.handle_leaves();
    bench.handle_starts(0);
    bench.run("handle_restarted", &[u64::from(DEVICE), 6, 4, LINE, 30]);
    bench.handle_stops(false);
    bench.handle_leaves();
    bench.handle_stopped();
    let journal = bench.journal();
    let n = |span: Span| journal.spans[span as usize].n;
    assert_eq!((n(Span::Start), n(Span::Restart), n(Span::Hold), n(Span::Stop)), (1, 1, 2, 1));
    assert_eq!(n(Span::Batching), 0, "not a synchronous handle");
    let counted = |counter: JournalCounter| journal.counters[counter as usize];
    assert_eq!((counted(JournalCounter::Starts), counted(JournalCounter::Restarts)), (1, 1));
    assert_eq!(counted(JournalCounter::Nested), 1);
    assert_eq!((bench.count(Counter::HandleEntries), bench.count(Counter::FailedStarts)), (3, 1));
    assert_eq!(bench.losses(), []);
}

#[test]
fn outside_bursts_handles_are_counted_and_never_timed_and_an_old_burst_is_forgotten() {
    let mut bench = Bench::with(sizes(), in_burst());
    bench.handle_starts(0);
    let control = bench.reader.control();
    control.set(0, Control { burst: 0, ..control.get(0) });
    bench.handle_started();
    control.set(0, Control { burst: 2, ..control.get(0) });
    bench.handle_stopped();
    bench.handle_starts(0);
    bench.handle_started();
    let journal = bench.journal();
    assert_eq!(journal.counters[JournalCounter::Starts as usize], 2);
    assert_eq!(journal.counters[JournalCounter::Nested as usize], 0);
    assert_eq!(journal.spans[Span::Start as usize].n, 1);
    assert_eq!(bench.losses(), []);
}

#[test]
fn buffer_lookups_are_counted_by_outcome_and_sampled_with_their_stack() {
    let control = Control { lru_mask: 0, stack_depth: 8, ..in_burst() };
    let mut bench = Bench::with(sizes(), control);
    let device = u64::from(DEVICE);
    for (hit, found) in [(true, true), (true, true), (false, true), (false, false)] {
        bench.run("drive_lru", &[1, device]);
        if hit {
            bench.run("drive_lru", &[2, device]);
        }
        bench.run("drive_lru", &[3, device, u64::from(found)]);
    }
    let lru = bench.lru();
    assert_eq!((lru.lookups, lru.hits, lru.present, lru.absent), (4, 2, 3, 1));
    let samples = |outcome: Lookup| {
        let names = bench.names.iter().filter(|cell| cell.kind == Kind::LruLookup as u8);
        let of = names.filter(|cell| cell.mode == outcome as u8 && cell.device == DEVICE);
        of.map(|cell| bench.totals[&cell.id].n).sum::<u64>()
    };
    assert_eq!([samples(Lookup::Hit), samples(Lookup::Found), samples(Lookup::Absent)], [2, 1, 1]);
}

#[test]
fn more_devices_than_there_are_places_for_go_to_others_and_no_lookup_is_lost() {
    let mut bench = Bench::with(sizes(), in_burst());
    for minor in 0..200u64 {
        bench.run("drive_lru", &[1, u64::from(DEVICE) + minor]);
    }
    bench.read();
    let lru = &bench.last.subsystems.lru;
    assert_eq!(lru.values().map(|totals| totals.lookups).sum::<u64>(), 200);
    let own = lru.iter().filter(|((_, device), _)| *device != OTHER_DEVICES);
    assert!(own.clone().count() > 40 && own.clone().all(|(_, totals)| totals.lookups == 1), "{lru:?}");
}
