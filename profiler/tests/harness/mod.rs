//! What the tests that run the program share: a scratch folder, the program's command lines, its JSON. Holds no test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics shows the line")]
#![allow(dead_code, reason = "each test program uses its own part of this")]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Tests that attach probes take turns: one session must not see another's load.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for this test's turn.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says why a test did not run; `cargo xtask test` counts it as skipped.
pub fn skip(name: &str, reason: &str) {
    println!("SKIP {name}: {reason}");
}

/// Whether we are root: without it nothing can be attached.
pub fn is_root() -> bool {
    // SAFETY: reads our own effective user.
    unsafe { libc::geteuid() == 0 }
}

/// The program under test.
pub const LOCKSCOPE: &str = env!("CARGO_BIN_EXE_lockscope");

/// The program, ready for arguments.
pub fn lockscope(args: &[&str]) -> Command {
    let mut command = Command::new(LOCKSCOPE);
    command.args(args).stdin(Stdio::null());
    command
}

/// A folder that goes when this is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("lockscope-test.{}.{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs to the end and wants exit code 0.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    output
}

/// `lockscope record OPTIONS -o FILE -- COMMAND`, then its report as JSON. The command runs as root.
pub fn record(file: &Path, options: &[&str], command: &[&str]) -> Value {
    let mut line = lockscope(&["record", "--max-overhead", "100", "--cmd-user", "root", "-o"]);
    line.arg(file).args(options);
    if !command.is_empty() {
        line.arg("--").args(command);
    }
    succeed(&mut line);
    report(file)
}

/// The report of a recording as JSON.
pub fn report(file: &Path) -> Value {
    let output = succeed(lockscope(&["report", "--format", "json"]).arg(file));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The report of a recording as text.
pub fn table(file: &Path) -> String {
    String::from_utf8(succeed(lockscope(&["report"]).arg(file)).stdout).unwrap()
}

pub fn rows(report: &Value) -> &Vec<Value> {
    report["rows"].as_array().unwrap()
}

/// A number of a row, 0 where it is missing.
pub fn n(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// The coverage lines of a probe whose metric contains `metric`.
pub fn coverage<'a>(report: &'a Value, probe: &str, metric: &str) -> &'a Value {
    let lines = report["coverage"].as_array().unwrap();
    let found =
        lines.iter().find(|line| line["probe"] == probe && line["metric"].as_str().unwrap().contains(metric));
    found.unwrap_or_else(|| panic!("no coverage line {probe}: {metric}"))
}

/// Whether this kernel lets us probe functions, by trying.
pub fn functions_can_be_probed() -> bool {
    let output = lockscope(&["doctor", "--json"]).output().unwrap();
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    coverage(&doctor, "rwsem", "outcomes")["hook"].is_string()
}

/// Whole snapshots that a recording holds so far.
pub fn snapshots_in(file: &Path) -> usize {
    profiler::recording::Recording::open(file).map_or(0, |recording| recording.snapshots.len())
}

/// A child that is ended when this is dropped, also when a test fails.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        Running(command.spawn().unwrap())
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(self.0.id() as libc::pid_t, signal) };
    }

    /// Waits at most `limit`.
    pub fn end_within(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `condition` holds, at most `limit`.
pub fn wait_for(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < end, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ids of the BPF programs that a process holds.
pub fn bpf_programs_of(pid: u32) -> Vec<u32> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        ids.extend(text.lines().filter_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok()));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Ids of all loaded BPF programs.
pub fn loaded_bpf_programs() -> Vec<u32> {
    aya::programs::loaded_programs().flatten().map(|info| info.id()).collect()
}

/// An ext4 of our own on a loop device over a sparse file in /dev/shm; unmounted and detached when dropped.
pub struct LoopExt4 {
    pub mount: PathBuf,
    image: PathBuf,
    _scratch: Scratch,
}

impl LoopExt4 {
    pub fn new(name: &str) -> LoopExt4 {
        let scratch = Scratch::new(name);
        let image = PathBuf::from(format!("/dev/shm/lockscope-test.{}.{name}.img", std::process::id()));
        let mount = scratch.path("mnt");
        std::fs::create_dir_all(&mount).unwrap();
        let made = LoopExt4 { mount, image, _scratch: scratch };
        std::fs::File::create(&made.image).unwrap().set_len(256 << 20).unwrap();
        succeed(Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-F"]).arg(&made.image));
        succeed(Command::new("mount").args(["-o", "loop"]).arg(&made.image).arg(&made.mount));
        made
    }
}

impl Drop for LoopExt4 {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.mount).output();
        let _ = Command::new("umount").arg(&self.mount).output();
        let _ = std::fs::remove_file(&self.image);
    }
}

/// Freezes the file system for 3 s under a writer while recording, and wants the wait seen while it lasts, with an age
/// that grows.
pub fn a_freeze_shows_while_it_lasts(name: &str, mount: &Path) {
    use profiler::recording::Recording;
    let scratch = Scratch::new(name);
    let file = scratch.path("freeze.rec");
    let mut recorder = Running::start(
        lockscope(&["record", "--max-overhead", "100", "-d", "7", "--interval", "0.25", "-o"]).arg(&file),
    );
    wait_for(Duration::from_secs(120), "the recording", || file.exists());
    std::thread::sleep(Duration::from_secs(1));
    succeed(Command::new("fsfreeze").arg("-f").arg(mount));
    let target = mount.join("frozen");
    let writer = std::thread::spawn(move || std::fs::write(target, b"late").unwrap());
    std::thread::sleep(Duration::from_secs(3));
    succeed(Command::new("fsfreeze").arg("-u").arg(mount));
    writer.join().unwrap();
    assert!(recorder.end_within(Duration::from_secs(60)).unwrap().success());
    let recording = Recording::open(&file).unwrap();
    let me = std::process::id();
    let ages: Vec<u64> = recording
        .snapshots
        .iter()
        .flat_map(|snapshot| snapshot.in_progress.iter())
        .filter(|open| open.tgid == me && open.kind == profiler_common::Kind::PercpuRwsem as u8)
        .map(|open| open.age_ns)
        .collect();
    println!(
        "ages seen during the freeze, ms: {:?}",
        ages.iter().map(|age| age / 1_000_000).collect::<Vec<_>>()
    );
    assert!(ages.len() >= 4, "seen {} times", ages.len());
    assert!(ages.is_sorted(), "the age grows: {ages:?}");
    assert!(*ages.last().unwrap() > 1_500_000_000, "{ages:?}");
    let report = report(&file);
    let waits = rows(&report).iter().filter(|row| row["kind"] == "percpu-rwsem");
    let longest = waits.map(|row| n(&row["max_ns"])).max().unwrap_or(0);
    assert!((2_500_000_000..n(&report["window_ns"])).contains(&longest), "{longest}");
}

/// Share of the rows' wait time at locks whose class is known, and whose instance is known where the class has one.
pub fn identified_share(report: &Value) -> f64 {
    let all: u64 = rows(report).iter().map(|row| n(&row["wait_ns"])).sum();
    let has_instance = |class: &str| class.starts_with("inode.") || class.starts_with("mm_struct.");
    let known = rows(report).iter().filter(|row| {
        row["class"].as_str().is_some_and(|class| !has_instance(class) || row["instance"].is_string())
    });
    known.map(|row| n(&row["wait_ns"])).sum::<u64>() as f64 / all as f64
}

/// Records a `dio-append` and wants the appender's lock named by the inode and device that the load itself reports.
pub fn the_appenders_inode_is_right(scratch: &Scratch, more: &[&str]) {
    let file = scratch.path("inode.rec");
    let mut line = lockscope(&["record", "--max-overhead", "100", "--cmd-user", "root", "-d", "60", "-o"]);
    line.arg(&file)
        .args(["--", LOCKSCOPE, "stress", "dio-append", "--json", "--secs", "4", "--warmup", "0"])
        .args(more);
    let load: Value = serde_json::from_slice(&succeed(&mut line).stdout).unwrap();
    let report = report(&file);
    let mut writes = rows(&report).iter().filter(|row| row["mode"] == "W" && row["kind"] == "rwsem");
    let top = writes.next().expect("a write wait");
    let parameters = &load["parameters"];
    let (inode, device) = (n(&parameters["file"]["inode"]), parameters["device"]["number"].as_str().unwrap());
    println!("{} {} – the load says inode {inode} on {device}", top["class"], top["instance"]);
    assert_eq!(top["class"], "inode.i_rwsem");
    let instance = top["instance"].as_str().unwrap();
    assert!(instance.starts_with(&format!("ino {inode} ")), "{instance}");
    assert!(instance.ends_with(&format!(" of {device}")), "{instance}");
    let share = identified_share(&report);
    assert!(share >= 0.95, "identified {share}");
}

/// Runs something while lockscope records beside it; the report.
pub fn beside(file: &Path, options: &[&str], run: impl FnOnce()) -> Value {
    let mut line = lockscope(&["record", "--max-overhead", "100", "--interval", "0.5"]);
    let mut recorder = Running::start(line.args(options).arg("-o").arg(file).stderr(Stdio::null()));
    wait_for(Duration::from_secs(200), "the first snapshot", || snapshots_in(file) >= 1);
    run();
    recorder.signal(libc::SIGINT);
    assert!(recorder.end_within(Duration::from_secs(60)).unwrap().success());
    println!("{}", table(file));
    report(file)
}

/// The loop device that the next preset will make: its name in reports, and in trace events.
pub fn next_loop_device() -> (String, u32) {
    let output = succeed(Command::new("losetup").arg("-f"));
    let name = String::from_utf8(output.stdout).unwrap();
    let minor: u32 = name.trim().trim_start_matches("/dev/loop").parse().unwrap();
    (format!("7:{minor}"), 7 << 20 | minor)
}

/// Runs a preset under `perf stat`, which counts one tracepoint on one device; the count, and what the preset reports.
pub fn counted_by_perf(scratch: &Scratch, event: &str, device: u32, preset: &[&str]) -> (u64, Value) {
    let counts = scratch.path("perf.csv");
    let mut perf = Command::new("perf");
    perf.args(["stat", "-a", "-x", ",", "-e", event, "--filter", &format!("dev == {device}"), "-o"]);
    perf.arg(&counts).arg(LOCKSCOPE).arg("stress").args(preset).arg("--json");
    let load = serde_json::from_slice(&succeed(&mut perf).stdout).unwrap();
    let text = std::fs::read_to_string(&counts).unwrap();
    let line = text.lines().find(|line| line.contains(event)).expect("perf counted");
    (line.split(',').next().unwrap().parse().unwrap(), load)
}
