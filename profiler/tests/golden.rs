//! Reports of synthetic recordings against committed texts: `tests/golden/*.txt`, rewritten with `BLESS=1`.
//!
//! No root, no kernel: a recording is written by code, read back, aggregated and rendered.

// The lint knows test functions, not what only they call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use profiler::aggregate::{GroupBy, Report, whole};
use profiler::export::{json, table};
use profiler::probes::{bh_lru, jbd2};
use profiler::recording::{Recording, Writer};
use profiler::snapshot::subsystems::{
    CommitSeen, JournalFill, JournalTotals, LruTotals, SpanTotals, Subsystems,
};
use profiler::snapshot::{
    BudgetStep, CellName, Cost, Coverage, CoverageState, End, LockName, Meta, Names, OpenWait, ProcessName,
    ProgramCost, Snapshot, StackName, Totals,
};
use profiler_common::{Kind, Mode, OwnerKind, cell::OUTCOMES, cell::Outcome, hist};
use serde_json::Value;

const HOSTILE: &[u8] = b"\x1b[31mevil;\xff";
const START_NS: u64 = 1_000_000_000;

fn coverage(
    probe: &str,
    metric: &str,
    hook: Option<&str>,
    state: CoverageState,
    reason: Option<&str>,
) -> Coverage {
    let own = str::to_string;
    Coverage { probe: own(probe), metric: own(metric), hook: hook.map(own), state, reason: reason.map(own) }
}

fn contention_coverage() -> Vec<Coverage> {
    let spin = "a lock's only waiter spins on the pending bit and is not traced";
    vec![
        coverage(
            "contention",
            "waits at sleeping locks",
            Some("tp_btf/contention_begin"),
            CoverageState::Full,
            None,
        ),
        coverage(
            "contention",
            "waits at spinlocks",
            Some("tp_btf/contention_begin"),
            CoverageState::Partial,
            Some(spin),
        ),
    ]
}

/// Of the subsystems: all of it, or, as on a host with tracepoints only, what needs no function for this reason.
fn subsystem_coverage(absent: Option<&str>) -> Vec<Coverage> {
    let hook = absent.map_or("fentry/fexit", |_| "raw_tp");
    let line = |probe: &str, metric: &str, absent: Option<&str>| match absent {
        None => coverage(probe, metric, Some(hook), CoverageState::Full, None),
        reason => coverage(probe, metric, None, CoverageState::Absent, reason),
    };
    vec![
        line("jbd2", jbd2::COUNTS, None),
        line("jbd2", jbd2::CREDITS, None),
        line("jbd2", jbd2::WAITS, absent),
        line("jbd2", jbd2::STARTS, absent),
        line("jbd2", jbd2::HOLDS, absent),
        line("jbd2", jbd2::FSYNCS, absent),
        line("bh-lru", bh_lru::HITS, None),
        line("bh-lru", bh_lru::LOOKUPS, absent),
        line("bh-lru", bh_lru::COSTS, absent),
        line("bh-lru", bh_lru::INVALIDATIONS, absent),
    ]
}

fn meta(rwsem: Coverage, subsystems: Vec<Coverage>) -> Meta {
    let mut coverage = contention_coverage();
    coverage.extend(subsystems);
    coverage.push(rwsem);
    Meta {
        version: "0.1.0".into(),
        host: "vm\x1b]0;title\x07".into(),
        kernel: "6.12.117+deb12-cloud-amd64 x86_64".into(),
        possible_cpus: 4,
        online_cpus: 2,
        started_unix_s: 1_700_000_000,
        attached_ns: START_NS,
        command: vec!["lockscope".into(), "record".into(), "--".into(), "app".into()],
        selection: vec!["command app".into()],
        min_wait_ns: 1_000,
        stack_depth: 8,
        coverage,
        hz: Some(250),
        ..Meta::default()
    }
}

fn rwsem_full() -> Coverage {
    coverage("rwsem", "outcomes", Some("fentry+fexit/rwsem_down_write_slowpath"), CoverageState::Full, None)
}

fn rwsem_absent() -> Coverage {
    coverage("rwsem", "outcomes", None, CoverageState::Absent, Some("function probes not permitted"))
}

fn cell(
    id: u32,
    lock: u32,
    stack: u32,
    (kind, mode): (Kind, Mode),
    tgid: u32,
    owner: (OwnerKind, u32),
) -> CellName {
    CellName {
        id,
        row: id,
        lock,
        stack,
        kind: kind as u8,
        mode: mode as u8,
        tgid,
        owner_tgid: owner.1,
        owner_kind: owner.0 as u8,
        workload: 0,
        device: 0,
    }
}

fn stack(id: u32, caller: &str) -> StackName {
    let frames = vec![format!("{caller}+0x1f [ext4]"), "vfs_write+0x2a0".into(), "ksys_write+0x6b".into()];
    StackName { id, frames, caller: Some(caller.into()) }
}

fn names() -> Names {
    let lock = |id, symbol: Option<&str>| LockName {
        id,
        lock_id: format!("lock-{id}"),
        symbol: symbol.map(str::to_string),
        class: (id == 1).then(|| "inode.i_rwsem".to_string()),
        instance: (id == 1).then(|| "ino 12 (/mnt/a\x1b[0m) of 7:0".to_string()),
        device: (id == 1).then_some(7 << 20),
        is_static: false,
    };
    let process = |tgid, comm: &[u8]| ProcessName { tgid, comm: comm.to_vec() };
    let rwsem = |mode| (Kind::Rwsem, mode);
    Names {
        locks: vec![lock(1, None), lock(2, Some("event_mutex")), lock(3, None), lock(4, Some("pcpu_lock"))],
        stacks: vec![
            stack(1, "ext4_file_write_iter"),
            stack(2, "ext4_file_read_iter"),
            stack(3, "perf_trace_init"),
            stack(4, "cgroup_attach_task"),
        ],
        cells: vec![
            cell(1, 1, 1, rwsem(Mode::Write), 100, (OwnerKind::Readers, 0)),
            cell(2, 1, 2, rwsem(Mode::Read), 200, (OwnerKind::OnCpu, 100)),
            cell(3, 2, 3, (Kind::Mutex, Mode::Exclusive), 300, (OwnerKind::OffCpu, 200)),
            cell(4, 3, 4, (Kind::PercpuRwsem, Mode::Write), 100, (OwnerKind::NotKept, 0)),
            cell(5, 4, 0, (Kind::Spin, Mode::Exclusive), 100, (OwnerKind::NotKept, 0)),
        ],
        processes: vec![process(100, b"appender"), process(200, HOSTILE), process(300, b"perf")],
        mounts: vec![(LOOP, "/mnt/\x1b[31ma".into())],
        rows_without_hist: vec![(4, "no histogram slot".into())],
    }
}

/// `n` waits of `each_ns`, with their histogram.
fn waits(n: u64, each_ns: u64, spin_percent: u64) -> (Totals, BTreeMap<u16, u64>) {
    let wait_ns = n * each_ns;
    let spin_ns = wait_ns * spin_percent / 100;
    let totals =
        Totals { n, wait_ns, spin_ns, queue_ns: wait_ns - spin_ns, max_ns: each_ns * 2, ..Totals::default() };
    (totals, BTreeMap::from([(hist::bucket(each_ns) as u16, n)]))
}

fn outcomes(counts: &[(Outcome, u64)]) -> [u64; OUTCOMES] {
    let mut outcomes = [0; OUTCOMES];
    for (outcome, n) in counts {
        outcomes[*outcome as usize] = *n;
    }
    outcomes
}

fn snapshot(at_s: u64, scale: u64) -> Snapshot {
    let parts = [
        (1, waits(400 * scale, 900_000, 40)),
        (2, waits(5_000 * scale, 12_000, 0)),
        (3, waits(7 * scale, 1_230_000, 90)),
        (4, waits(2 * scale, 45_000_000, 0)),
        (5, waits(90_000 * scale, 1_400, 100)),
    ];
    let mut cells: BTreeMap<_, _> = parts.iter().map(|(id, (totals, _))| (*id, *totals)).collect();
    let mut hists: BTreeMap<_, _> = parts.into_iter().map(|(id, (_, hist))| (id, hist)).collect();
    hists.remove(&4);
    let write = cells.get_mut(&1).unwrap();
    write.interrupted_n = scale;
    write.interrupted_ns = 3_000_000 * scale;
    use Outcome::*;
    write.outcomes = outcomes(&[
        (Spun, 150 * scale),
        (QueuedWriter, 250 * scale),
        (InterruptedWriter, scale),
        (HandedOff, 9 * scale),
        (HandoffClass, 11 * scale),
    ]);
    cells.get_mut(&2).unwrap().outcomes = outcomes(&[
        (Stolen, 4_000 * scale),
        (Fast, 300 * scale),
        (QueuedReader, 700 * scale),
        (StolenPastWaiters, 3_500 * scale),
        (PredicateDisagreed, 2 * scale),
    ]);
    let counters = [("begins", 100_000 * scale), ("table_full", 12 * scale), ("lost_end", 1)];
    Snapshot {
        at_ns: START_NS + at_s * 1_000_000_000,
        cells,
        hists,
        other: BTreeMap::from([((Kind::Spin as u8, 0), waits(12 * scale, 2_000, 100).0)]),
        below_minimum: BTreeMap::from([((Kind::Spin as u8, 0), waits(40_000 * scale, 300, 100).0)]),
        in_progress: if scale == 2 { open_waits() } else { Vec::new() },
        counters: counters.map(|(name, n)| (name.to_string(), n)).into(),
        cost: cost(scale),
        subsystems: subsystems(scale),
        budget: if scale == 2 { budget() } else { Vec::new() },
    }
}

fn budget() -> Vec<BudgetStep> {
    let step = |at_s: u64, what: &str, shed, percent| BudgetStep {
        at_ns: START_NS + at_s * 1_000_000_000,
        what: what.into(),
        shed,
        percent,
    };
    vec![
        step(6, "stacks: waits have no caller", true, 1.73),
        step(9, "stacks: waits have no caller", false, 0.1),
    ]
}

const LOOP: u32 = profiler_common::device::number(7, 0);

fn journal(scale: u64) -> JournalTotals {
    let span = |n: u64, mean_ns: u64| SpanTotals {
        n: n * scale,
        total_ns: n * scale * mean_ns,
        max_ns: mean_ns * 9,
        hist: waits(n * scale, mean_ns, 0).1,
    };
    JournalTotals {
        counters: [
            50_000 * scale,
            20 * scale,
            0,
            4_000 * scale,
            40 * scale,
            52_000 * scale,
            1_200 * scale,
            300 * scale,
            0,
        ],
        cause_n: [90 * scale, 5 * scale, 40 * scale, 0, 1, 0, 0, 30 * scale, 12 * scale, 3, 0, 3_900 * scale],
        cause_ns: [
            900_000 * scale,
            70_000,
            8_000_000 * scale,
            0,
            500_000,
            0,
            0,
            6_000_000,
            4_000_000 * scale,
            9_000_000,
            0,
            3_000_000,
        ],
        fsync: [40 * scale, 400_000_000 * scale, 120_000_000 * scale, 230_000_000 * scale, 8_000_000 * scale],
        spans: [
            span(4_000, 11_000),
            span(0, 0),
            span(20, 350_000),
            span(4_000, 80_000),
            span(4_000, 5_000),
            span(40, 2_500_000),
        ],
    }
}

fn commit(transaction: u32, line: u32) -> CommitSeen {
    CommitSeen {
        device: LOOP,
        transaction,
        running_ns: 1_000_000,
        start_ns: 5_000_000,
        locking_ns: 5_100_000,
        flushing_ns: 6_300_000,
        logging_ns: 6_400_000,
        end_ns: 18_000_000,
        left_ns: 6_200_000,
        held_ns: 4_000_000,
        tgid: 100,
        operation: 4,
        line,
    }
}

fn subsystems(scale: u64) -> Subsystems {
    let lru = |lookups: u64, hits: u64, absent: u64| LruTotals {
        lookups: lookups * scale,
        absent: absent * scale,
        present: (lookups - absent) * scale,
        hits: hits * scale,
        migrated: 7 * scale,
        samples_lost: 1,
    };
    Subsystems {
        timed_ns: 400_000_000 * scale,
        journals: BTreeMap::from([(LOOP, journal(scale))]),
        commits: vec![commit(scale as u32 * 2, 2842), commit(scale as u32 * 2 + 1, 3270)],
        fills: BTreeMap::from([(
            LOOP,
            JournalFill {
                log_blocks: 4_095,
                log_free: 3_000,
                transaction_most: 1_024,
                transaction_credits: 200,
            },
        )]),
        lru: BTreeMap::from([((0, LOOP), lru(90_000, 88_000, 100)), ((1, LOOP), lru(40_000, 300, 0))]),
        lru_emptied: BTreeMap::from([(0, 2 * scale)]),
        lru_pinned: None,
    }
}

fn open_waits() -> Vec<OpenWait> {
    let open = |lock, mode, tid, tgid, age_ns, queued, owner_kind, owner_tgid| OpenWait {
        lock,
        kind: Kind::Rwsem as u8,
        mode: mode as u8,
        tid,
        tgid,
        owner_tgid,
        owner_kind: owner_kind as u8,
        workload: 0,
        age_ns,
        queued,
    };
    vec![
        open(1, Mode::Write, 101, 100, 30_000, false, OwnerKind::Readers, 0),
        open(1, Mode::Write, 102, 100, 3_100_000_000, true, OwnerKind::OnCpu, 200),
    ]
}

fn cost(scale: u64) -> Cost {
    let program = |name: &str, run_count| ProgramCost {
        name: name.into(),
        run_count: Some(run_count),
        run_ns: Some(run_count * 210),
        recursion_misses: Some(3),
        verified_instructions: Some(1_700),
    };
    let programs =
        vec![program("contention_begin", 95_000 * scale), program("contention_end", 95_000 * scale)];
    Cost { programs, own_cpu_ns: 31_000_000 * scale, map_bytes: 21 << 20 }
}

fn temporary(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("lockscope-golden-{name}-{}-{number}.rec", std::process::id()))
}

/// Writes a recording, reads it back, and makes its report.
fn report(name: &str, meta: &Meta, names: &Names, snapshots: &[Snapshot], end: Option<End>) -> Report {
    let path = temporary(name);
    let mut writer = Writer::create(&path).unwrap();
    writer.meta(meta).unwrap();
    writer.names(names).unwrap();
    for snapshot in snapshots {
        writer.snapshot(snapshot).unwrap();
    }
    if let Some(end) = end {
        writer.end(&end).unwrap();
    }
    let read = Recording::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let table = whole(&read.meta, &read.names, &read.snapshots, GroupBy::LockModeCaller);
    Report { meta: read.meta, table, end: read.end, truncated: read.truncated }
}

fn end() -> Option<End> {
    Some(End { at_ns: START_NS + 10_000_000_000, reason: "command ended".into(), command_status: Some(0) })
}

fn full(name: &str) -> Report {
    report(
        name,
        &meta(rwsem_full(), subsystem_coverage(None)),
        &names(),
        &[snapshot(5, 1), snapshot(10, 2)],
        end(),
    )
}

/// As on a host without function probes: the rwsem's cells come from the tracepoint and have no outcomes.
fn tracepoints_only() -> Report {
    let mut snapshots = [snapshot(5, 1), snapshot(10, 2)];
    for totals in snapshots.iter_mut().flat_map(|snapshot| snapshot.cells.values_mut()) {
        totals.outcomes = [0; OUTCOMES];
    }
    report(
        "tracepoints",
        &meta(rwsem_absent(), subsystem_coverage(Some("function probes not permitted"))),
        &names(),
        &snapshots,
        None,
    )
}

fn empty() -> Report {
    let snapshot = Snapshot { at_ns: START_NS + 1_000_000_000, ..Snapshot::default() };
    report("empty", &meta(rwsem_absent(), Vec::new()), &Names::default(), &[snapshot], end())
}

/// The committed text, rewritten first if that is asked for.
fn compare_or_bless(name: &str, found: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
    }
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; BLESS=1 makes it", path.display()))
}

fn compare(name: &str, found: &str) {
    assert_eq!(found, compare_or_bless(name, found), "differs from {name}; BLESS=1 rewrites it");
}

fn harmless(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn tables_read_as_committed() {
    for (name, report) in
        [("full.txt", full("full")), ("tracepoints.txt", tracepoints_only()), ("empty.txt", empty())]
    {
        let text = table::render(&report, &table::Options::default());
        harmless(&text);
        for line in text.lines() {
            assert!(line.chars().count() <= table::Options::default().max_width, "{line}");
        }
        compare(name, &text);
    }
}

#[test]
fn json_reads_as_committed_and_keeps_its_schema() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/report-v1.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    for report in [full("json"), tracepoints_only(), empty()] {
        let value = json::render(&report);
        let mut faults = Vec::new();
        check(&schema, &schema, &value, "", &mut faults);
        assert_eq!(faults, [] as [String; 0]);
        let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
        harmless(&text);
        every_null_has_its_reason(&value);
    }
    // As values: the order of members is not promised.
    let value = json::render(&full("json2"));
    let wanted = compare_or_bless("full.json.txt", &(serde_json::to_string_pretty(&value).unwrap() + "\n"));
    assert_eq!(value, serde_json::from_str::<Value>(&wanted).unwrap());
}

/// The checker must be able to fail.
#[test]
fn the_schema_refuses_what_breaks_the_contract() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/report-v1.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let faults = |change: fn(&mut Value)| {
        let mut value = json::render(&full("broken"));
        change(&mut value);
        let mut faults = Vec::new();
        check(&schema, &schema, &value, "", &mut faults);
        faults.join("\n")
    };
    assert!(faults(|v| v["schema"] = "v2".into()).contains("/schema"));
    assert!(faults(|v| v["rows"][0]["mode"] = "Z".into()).contains("/rows/0/mode"));
    assert!(faults(|v| v["rows"][0]["contentions"] = (-1).into()).contains("/rows/0/contentions"));
    assert!(faults(|v| v["losses"]["lost_end"] = "one".into()).contains("/losses/lost_end"));
    assert!(faults(|v| _ = v.as_object_mut().unwrap().remove("kernel")).contains("kernel is missing"));
}

fn every_null_has_its_reason(value: &Value) {
    let coverage = value["coverage"].as_array().unwrap();
    for row in value["rows"].as_array().unwrap() {
        for (name, member) in row.as_object().unwrap().iter().filter(|(_, member)| member.is_null()) {
            let told =
                coverage.iter().any(|line| line["metric"] == name.as_str() && line["reason"].is_string());
            assert!(told, "{name} is {member} without a reason");
        }
    }
    let empty = Vec::new();
    let journals = value["jbd2"].as_array().unwrap_or(&empty).iter().map(|journal| ("jbd2", journal));
    for (section, part) in journals.chain([("bh_lru", &value["bh_lru"])]) {
        for (name, member) in part.as_object().into_iter().flatten().filter(|(_, member)| member.is_null()) {
            let metric = format!("{section}.{name}");
            let told = coverage.iter().any(|line| line["metric"] == metric.as_str());
            assert!(told, "{metric} is {member} without a reason");
        }
    }
}

/// As much of JSON Schema as the committed one uses.
fn check(root: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    if let Some(target) = schema["$ref"].as_str() {
        let target = root.pointer(target.trim_start_matches('#')).expect("a dangling $ref");
        check(root, target, value, at, faults);
    }
    let mut fault = |why: &str| faults.push(format!("{at}: {why}: {value}"));
    if let Some(wanted) = schema.get("const").filter(|wanted| *wanted != value) {
        fault(&format!("is not {wanted}"));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        fault("is none of the enum");
    }
    if !type_fits(&schema["type"], value) {
        fault("has another type");
    }
    if schema["minimum"].as_i64().zip(value.as_i64()).is_some_and(|(least, n)| n < least) {
        fault("is below the minimum");
    }
    let Some(members) = value.as_object() else { return check_items(root, schema, value, at, faults) };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !members.contains_key(name) {
            faults.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, member) in members {
        let of = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
        check(root, of, member, &format!("{at}/{name}"), faults);
    }
}

fn check_items(root: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(root, &schema["items"], item, &format!("{at}/{index}"), faults);
    }
}

fn type_fits(types: &Value, value: &Value) -> bool {
    let fits = |name: &Value| match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        _ => false,
    };
    match types {
        Value::Null => true,
        Value::Array(names) => names.iter().any(fits),
        name => fits(name),
    }
}

#[test]
fn what_no_burst_fell_upon_is_not_printed_as_nothing() {
    let mut quiet = snapshot(10, 2);
    quiet.subsystems.timed_ns = 0;
    for totals in quiet.subsystems.lru.values_mut() {
        *totals = LruTotals::default();
    }
    let meta = meta(rwsem_full(), subsystem_coverage(None));
    let report = report("quiet", &meta, &names(), &[quiet], end());
    let value = json::render(&report);
    every_null_has_its_reason(&value);
    let journal = &value["jbd2"][0];
    for part in ["nested", "start", "hold", "stop", "batching", "start_wait_ns", "kept_open", "credits"] {
        assert!(journal[part].is_null(), "{part}: {}", journal[part]);
    }
    // Counted all the time.
    assert_eq!((&journal["starts"], &journal["commits"]), (&100_000.into(), &2.into()));
    for part in ["lookups", "hit", "found", "absent", "hit_percent", "costs"] {
        assert!(value["bh_lru"][part].is_null(), "{part}: {}", value["bh_lru"][part]);
    }
    let text = table::render(&report, &table::Options::default());
    for part in ["start, hold and stop n/a", "credits n/a", "buffer LRU n/a"] {
        assert!(text.contains(&format!("{part}: no burst fell into the window")), "{part} in {text}");
    }
}
