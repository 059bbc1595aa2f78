//! The program on this host, with what it permits: the tracepoints at least. Needs root. Whatever a test makes – file
//! systems, processes, cgroups – it removes, also when it fails.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics shows the line")]

mod harness;

use std::{
    io::Read,
    os::unix::{ffi::OsStrExt, process::ExitStatusExt},
    process::{Command, Stdio},
    time::Duration,
};

use harness::*;

/// Contends mmap_lock for two seconds.
const MMAP: [&str; 6] = [LOCKSCOPE, "stress", "mmap", "--secs", "2", "--warmup=0"];

macro_rules! needs_root {
    ($name:literal) => {
        if !is_root() {
            return skip($name, "needs root");
        }
        let _turn = turn();
    };
}

#[test]
fn a_commands_lock_waits_are_measured_by_the_tracepoints() {
    needs_root!("a_commands_lock_waits_are_measured_by_the_tracepoints");
    let scratch = Scratch::new("tracepoints");
    let report = record(&scratch.path("a.rec"), &["-d", "30", "--probe", "contention"], &MMAP);
    let writes: Vec<_> =
        rows(&report).iter().filter(|row| row["kind"] == "rwsem" && row["mode"] == "W").collect();
    assert!(writes.iter().map(|row| n(&row["contentions"])).sum::<u64>() > 0, "{report:#}");
    for row in writes {
        assert!(row["spin_ns"].is_null() && row["outcomes"].is_null(), "not measured is null: {row:#}");
        assert!(n(&row["queue_ns"]) > 0 && n(&row["max_ns"]) < n(&report["window_ns"]));
    }
    assert_eq!(coverage(&report, "rwsem", "outcomes")["state"], "off");
    assert!(rows(&report).iter().all(|row| row["lock_id"].as_str().unwrap().starts_with("lock-")));
}

#[test]
fn without_function_probes_outcomes_are_absent_with_the_reason() {
    needs_root!("without_function_probes_outcomes_are_absent_with_the_reason");
    if functions_can_be_probed() {
        return skip(
            "without_function_probes_outcomes_are_absent_with_the_reason",
            "this host permits function probes",
        );
    }
    let scratch = Scratch::new("absent");
    let file = scratch.path("a.rec");
    let report = record(&file, &["-d", "30"], &MMAP);
    let outcomes = coverage(&report, "rwsem", "outcomes");
    assert_eq!(outcomes["state"], "absent");
    assert!(outcomes["reason"].as_str().unwrap().contains("function probes not permitted"), "{outcomes}");
    let queued = rows(&report).iter().filter(|row| row["kind"] == "rwsem");
    assert!(
        queued.map(|row| n(&row["contentions"])).sum::<u64>() > 0,
        "queued waits come from the tracepoint"
    );
    assert!(table(&file).contains("function probes not permitted"));
}

#[test]
fn a_raw_tracepoint_serves_where_tp_btf_is_not_to_be_had() {
    needs_root!("a_raw_tracepoint_serves_where_tp_btf_is_not_to_be_had");
    let scratch = Scratch::new("raw");
    let options = ["-d", "30", "--probe", "contention", "--contention-hook", "raw_tp"];
    let report = record(&scratch.path("a.rec"), &options, &MMAP);
    assert_eq!(coverage(&report, "contention", "mutex")["hook"], "raw_tp");
    assert!(rows(&report).iter().any(|row| row["kind"] == "rwsem" && n(&row["contentions"]) > 0));
}

#[test]
fn callers_are_functions_outside_the_lock_code() {
    needs_root!("callers_are_functions_outside_the_lock_code");
    let scratch = Scratch::new("callers");
    let report = record(&scratch.path("a.rec"), &["-d", "30"], &MMAP);
    let lock_code =
        ["down_read", "down_write", "_raw_spin", "rwsem_", "mutex_lock", "__traceiter", "bpf_", "queued_"];
    let mut seen = 0;
    for caller in rows(&report).iter().filter_map(|row| row["caller"].as_str()) {
        assert!(!lock_code.iter().any(|name| caller.starts_with(name)), "{caller}");
        seen += 1;
    }
    assert!(seen > 0, "{report:#}");
}

#[test]
fn a_freeze_shows_during_the_stall() {
    needs_root!("a_freeze_shows_during_the_stall");
    let made = LoopExt4::new("freeze");
    a_freeze_shows_while_it_lasts("freeze-record", &made.mount);
}

#[test]
fn sigkill_leaves_no_program_attached_and_a_readable_file() {
    needs_root!("sigkill_leaves_no_program_attached_and_a_readable_file");
    let scratch = Scratch::new("sigkill");
    let file = scratch.path("killed.rec");
    let mut recorder =
        Running::start(lockscope(&["record", "--max-overhead", "100", "--interval", "0.2", "-o"]).arg(&file));
    wait_for(Duration::from_secs(20), "some snapshots", || {
        std::fs::metadata(&file).is_ok_and(|m| m.len() > 4000)
    });
    let programs = bpf_programs_of(recorder.0.id());
    assert!(programs.len() >= 2, "{programs:?}");
    let mut load = Running::start(Command::new(MMAP[0]).args(&MMAP[1..]).stdout(Stdio::null()));
    std::thread::sleep(Duration::from_millis(700));
    recorder.signal(libc::SIGKILL);
    let status = recorder.end_within(Duration::from_secs(10)).unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    wait_for(Duration::from_secs(10), "the programs to go", || {
        let loaded = loaded_bpf_programs();
        programs.iter().all(|id| !loaded.contains(id))
    });
    load.end_within(Duration::from_secs(20));
    let report = report(&file);
    assert!(report["ended"].is_null(), "it did not end in order: {}", report["ended"]);
    assert!(n(&report["window_ns"]) > 0);
    assert!(table(&file).contains("no end mark"), "{}", table(&file));
}

#[test]
fn one_interrupt_ends_and_writes() {
    needs_root!("one_interrupt_ends_and_writes");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let scratch = Scratch::new("interrupt");
        let file = scratch.path("a.rec");
        let mut recorder = Running::start(
            lockscope(&["record", "--max-overhead", "100", "-o"]).arg(&file).stderr(Stdio::null()),
        );
        wait_for(Duration::from_secs(20), "the first snapshot", || snapshots_in(&file) >= 1);
        recorder.signal(signal);
        assert_eq!(recorder.end_within(Duration::from_secs(20)).unwrap().code(), Some(0));
        assert_eq!(report(&file)["ended"]["reason"], "interrupted");
    }
}

#[test]
fn a_second_interrupt_leaves_at_once_with_130() {
    needs_root!("a_second_interrupt_leaves_at_once_with_130");
    let scratch = Scratch::new("twice");
    let file = scratch.path("a.rec");
    let stubborn = ["bash", "-c", "trap '' TERM INT; sleep 20 & wait; sleep 20"];
    let mut line = lockscope(&["record", "--max-overhead", "100", "--cmd-user", "root", "-o"]);
    let mut recorder = Running::start(line.arg(&file).arg("--").args(stubborn).stderr(Stdio::null()));
    wait_for(Duration::from_secs(20), "the first snapshot", || snapshots_in(&file) >= 1);
    recorder.signal(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(500));
    assert!(recorder.0.try_wait().unwrap().is_none(), "it waits for the command, which ignores SIGTERM");
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.end_within(Duration::from_secs(5)).unwrap().code(), Some(130));
    end_stubborn_sleepers();
}

/// The command of the test above ignores SIGTERM on purpose; it is ours, found by its parent's command line.
fn end_stubborn_sleepers() {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.windows(20).any(|part| part == b"trap '' TERM INT; sl") {
            // SAFETY: a process that this test started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

#[test]
fn only_the_selected_are_recorded() {
    needs_root!("only_the_selected_are_recorded");
    let scratch = Scratch::new("select");
    let mut one =
        Running::start(Command::new(MMAP[0]).args(["stress", "mmap", "--secs", "30"]).stdout(Stdio::null()));
    let mut other =
        Running::start(Command::new(MMAP[0]).args(["stress", "mmap", "--secs", "30"]).stdout(Stdio::null()));
    std::thread::sleep(Duration::from_millis(500));
    let pid = one.0.id();
    let report = record(&scratch.path("pid.rec"), &["-d", "2", "--pid", &pid.to_string()], &[]);
    let mut seen = std::collections::BTreeSet::new();
    for process in rows(&report).iter().flat_map(|row| row["processes"].as_array().unwrap()) {
        seen.insert(n(&process["tgid"]));
    }
    assert_eq!(seen, [u64::from(pid)].into(), "{report:#}");
    let nobody = record(&scratch.path("comm.rec"), &["-d", "1", "--comm", "no-such-name"], &[]);
    assert!(rows(&nobody).is_empty());
    let named = record(&scratch.path("comm2.rec"), &["-d", "2", "--comm", "stress-0,stress-1"], &[]);
    assert!(!rows(&named).is_empty());
    one.signal(libc::SIGINT);
    other.signal(libc::SIGINT);
    one.end_within(Duration::from_secs(20));
    other.end_within(Duration::from_secs(20));
}

#[test]
fn a_command_is_followed_with_all_its_children_and_nobody_else() {
    needs_root!("a_command_is_followed_with_all_its_children_and_nobody_else");
    let scratch = Scratch::new("children");
    let mut foreign =
        Running::start(Command::new(MMAP[0]).args(["stress", "mmap", "--secs", "6"]).stdout(Stdio::null()));
    let script = format!("setsid {LOCKSCOPE} stress mmap --secs 2 >/dev/null & wait");
    let report = record(&scratch.path("a.rec"), &["-d", "30"], &["bash", "-c", &script]);
    let processes: Vec<_> =
        rows(&report).iter().flat_map(|row| row["processes"].as_array().unwrap()).collect();
    assert!(!processes.is_empty(), "{report:#}");
    let stranger = u64::from(foreign.0.id());
    assert!(processes.iter().all(|process| n(&process["tgid"]) != stranger));
    foreign.end_within(Duration::from_secs(20));
}

#[test]
fn the_cgroup_of_the_command_is_gone_afterwards() {
    needs_root!("the_cgroup_of_the_command_is_gone_afterwards");
    let scratch = Scratch::new("cgroup");
    record(&scratch.path("a.rec"), &["-d", "10"], &["bash", "-c", "sleep 10 >/dev/null 2>&1 & exit 3"]);
    let left =
        succeed(Command::new("find").args(["/sys/fs/cgroup", "-maxdepth", "4", "-name", "lockscope.*"]));
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
    let report = report(&scratch.path("a.rec"));
    assert_eq!(report["ended"]["command_status"], 3);
}

#[test]
fn the_command_runs_as_the_user_who_called_sudo_and_owns_the_file() {
    needs_root!("the_command_runs_as_the_user_who_called_sudo_and_owns_the_file");
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("sudo");
    let file = scratch.path("a.rec");
    let mut line = lockscope(&["record", "--max-overhead", "100", "-d", "10", "-o"]);
    line.arg(&file).args(["--", "id", "-u"]);
    line.env("SUDO_USER", "nobody").env("SUDO_UID", "65534").env("SUDO_GID", "65534");
    let output = succeed(&mut line);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "65534\n");
    let meta = std::fs::metadata(&file).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (65534, 65534, 0o600));
}

#[test]
fn a_command_that_cannot_start_is_named() {
    needs_root!("a_command_that_cannot_start_is_named");
    let scratch = Scratch::new("nostart");
    let output = lockscope(&["record", "--max-overhead", "100", "-o"])
        .arg(scratch.path("a.rec"))
        .args(["--", "/no/such/program"])
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/program"));
}

#[test]
fn a_hostile_process_name_does_no_harm() {
    needs_root!("a_hostile_process_name_does_no_harm");
    let scratch = Scratch::new("hostile");
    let hostile = scratch.path("x").with_file_name(std::ffi::OsStr::from_bytes(b"\x1b[31m;\xffev\"<"));
    std::fs::copy(LOCKSCOPE, &hostile).unwrap();
    let file = scratch.path("a.rec");
    let mut line = lockscope(&["record", "--max-overhead", "100", "--cmd-user", "root", "-d", "30", "-o"]);
    line.arg(&file).arg("--").arg(&hostile).args(["stress", "mmap", "--secs", "2"]);
    succeed(&mut line);
    let json = succeed(lockscope(&["report", "--format", "json"]).arg(&file)).stdout;
    let text = succeed(lockscope(&["report"]).arg(&file)).stdout;
    for output in [&json, &text] {
        assert!(
            output.iter().all(|byte| *byte == b'\n' || (*byte >= 0x20 && *byte != 0x7f)),
            "control bytes"
        );
        assert!(std::str::from_utf8(output).is_ok());
    }
    let report: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let mut names = rows(&report).iter().flat_map(|row| row["processes"].as_array().unwrap());
    assert!(names.any(|process| process["comm"].as_str().unwrap().contains("\\x1b[31m;\\xff")), "{report:#}");
}

#[test]
fn top_prints_tables_and_stops_at_a_closed_pipe() {
    needs_root!("top_prints_tables_and_stops_at_a_closed_pipe");
    let output =
        succeed(&mut lockscope(&["top", "--max-overhead", "100", "--batch", "--interval", "0.5", "-n", "2"]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("losses:").count(), 2, "{text}");
    let mut line = lockscope(&["top", "--max-overhead", "100", "--batch", "--interval", "0.2"]);
    let mut child = Running::start(line.stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut first = [0u8; 16];
    let mut pipe = child.0.stdout.take().unwrap();
    pipe.read_exact(&mut first).unwrap();
    drop(pipe);
    assert_eq!(child.end_within(Duration::from_secs(20)).unwrap().code(), Some(0));
}

#[test]
fn without_rights_it_says_which_and_exits_3() {
    needs_root!("without_rights_it_says_which_and_exits_3");
    let scratch = Scratch::new("rights");
    let program = scratch.path("lockscope");
    std::fs::copy(LOCKSCOPE, &program).unwrap();
    for args in [&["doctor"][..], &["record", "-d", "1", "-o", "/dev/null"][..]] {
        let mut line = Command::new("setpriv");
        line.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(args);
        let output = line.output().unwrap();
        let all = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&all);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {text}");
        assert!(text.contains("CAP_BPF"), "{text}");
    }
}

#[test]
fn doctor_prints_json_and_the_memory_of_all_maps() {
    needs_root!("doctor_prints_json_and_the_memory_of_all_maps");
    let output = succeed(&mut lockscope(&["doctor", "--json"]));
    let doctor: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(doctor["schema"], "lockscope.doctor.v1");
    assert_eq!(doctor["can_run"], true);
    assert!((1 << 20..64 << 20).contains(&n(&doctor["map_bytes"])));
}

#[test]
fn the_kernel_sides_log_lines_come_only_when_asked_for() {
    needs_root!("the_kernel_sides_log_lines_come_only_when_asked_for");
    let scratch = Scratch::new("log");
    for (option, wanted) in [(&["--bpf-log"][..], true), (&[][..], false)] {
        let mut line =
            lockscope(&["record", "--max-overhead", "100", "--cmd-user", "root", "-d", "30", "-o"]);
        line.arg(scratch.path("a.rec")).args(option).arg("--").args(MMAP);
        let output = succeed(&mut line);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.contains("lockscope: bpf: first sight"), wanted, "{text}");
    }
}

#[test]
fn attaching_in_mid_wait_leaves_no_phantom_and_no_wait_outlasts_the_recording() {
    needs_root!("attaching_in_mid_wait_leaves_no_phantom_and_no_wait_outlasts_the_recording");
    let scratch = Scratch::new("midwait");
    let file = scratch.path("a.rec");
    let args = ["stress", "mmap", "--secs", "20", "--threads", "8"];
    let load = Running::start(Command::new(LOCKSCOPE).args(args).stdout(Stdio::null()));
    std::thread::sleep(Duration::from_secs(1));
    let report = record(&file, &["-d", "2", "--interval", "0.25"], &[]);
    load.signal(libc::SIGINT);
    let window = n(&report["window_ns"]);
    assert!(rows(&report).iter().any(|row| n(&row["contentions"]) > 0));
    for row in rows(&report) {
        assert!(n(&row["max_ns"]) <= window, "{row:#}");
    }
    let recording = profiler::recording::Recording::open(&file).unwrap();
    for snapshot in &recording.snapshots {
        let since = snapshot.at_ns - recording.meta.attached_ns;
        assert!(snapshot.in_progress.iter().all(|open| open.age_ns <= since), "older than the recording");
    }
}

#[test]
fn without_a_cgroup_v2_the_command_is_followed_by_its_processes() {
    needs_root!("without_a_cgroup_v2_the_command_is_followed_by_its_processes");
    let scratch = Scratch::new("nocgroup");
    let file = scratch.path("a.rec");
    let hide = "for m in $(awk '$3 == \"cgroup2\" {print $2}' /proc/self/mounts); do umount -l $m; done; exec \"$@\"";
    let mut line = Command::new("unshare");
    line.args([
        "-m",
        "bash",
        "-c",
        hide,
        "-",
        LOCKSCOPE,
        "record",
        "--max-overhead",
        "100",
        "--cmd-user",
        "root",
        "-d",
        "30",
        "-o",
    ]);
    line.arg(&file)
        .args(["--", "bash", "-c"])
        .arg(format!("{LOCKSCOPE} stress mmap --secs 2 >/dev/null & wait"));
    let mut foreign =
        Running::start(Command::new(MMAP[0]).args(["stress", "mmap", "--secs", "20"]).stdout(Stdio::null()));
    let output = succeed(&mut line);
    assert!(String::from_utf8_lossy(&output.stderr).contains("followed by its processes"));
    let report = report(&file);
    let stranger = u64::from(foreign.0.id());
    let processes: Vec<_> =
        rows(&report).iter().flat_map(|row| row["processes"].as_array().unwrap()).collect();
    assert!(!processes.is_empty(), "{report:#}");
    assert!(processes.iter().all(|process| n(&process["tgid"]) != stranger));
    foreign.signal(libc::SIGINT);
    foreign.end_within(Duration::from_secs(20));
}

#[test]
fn a_cgroup_selects_what_runs_below_it() {
    needs_root!("a_cgroup_selects_what_runs_below_it");
    let Some(root) = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
        .into_iter()
        .find(|path| std::path::Path::new(path).join("cgroup.procs").exists())
    else {
        return skip("a_cgroup_selects_what_runs_below_it", "no cgroup v2 is mounted");
    };
    let group = format!("{root}/lockscope-test.{}", std::process::id());
    std::fs::create_dir(&group).unwrap();
    let script = format!("echo 0 > {group}/cgroup.procs; exec {LOCKSCOPE} stress mmap --secs 20 > /dev/null");
    let mut inside = Running::start(Command::new("bash").args(["-c", &script]));
    let mut outside =
        Running::start(Command::new(MMAP[0]).args(["stress", "mmap", "--secs", "20"]).stdout(Stdio::null()));
    std::thread::sleep(Duration::from_secs(1));
    let scratch = Scratch::new("bycgroup");
    let report = record(&scratch.path("a.rec"), &["-d", "2", "--cgroup", &group], &[]);
    let wanted = u64::from(inside.0.id());
    let processes: Vec<_> =
        rows(&report).iter().flat_map(|row| row["processes"].as_array().unwrap()).collect();
    for running in [&mut inside, &mut outside] {
        running.signal(libc::SIGINT);
        running.end_within(Duration::from_secs(20));
    }
    std::fs::remove_dir(&group).unwrap();
    assert!(
        !processes.is_empty() && processes.iter().all(|process| n(&process["tgid"]) == wanted),
        "{report:#}"
    );
}

#[test]
fn a_command_that_is_killed_is_said_and_nothing_is_lost() {
    needs_root!("a_command_that_is_killed_is_said_and_nothing_is_lost");
    let scratch = Scratch::new("killed-cmd");
    let script = format!("{LOCKSCOPE} stress mmap --secs 1 --warmup=0 >/dev/null; kill -9 $$");
    let report = record(&scratch.path("a.rec"), &["-d", "30"], &["bash", "-c", &script]);
    assert_eq!(report["ended"]["command_status"], 128 + 9);
    assert!(!rows(&report).is_empty());
}

#[test]
fn a_broken_recording_is_refused_or_read_up_to_its_last_whole_frame() {
    let scratch = Scratch::new("broken");
    let file = scratch.path("a.rec");
    std::fs::write(&file, b"\x7fELF no recording at all").unwrap();
    let output = lockscope(&["report"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("a.rec"));
    if !is_root() {
        return skip(
            "a_broken_recording_is_refused_or_read_up_to_its_last_whole_frame",
            "its second half needs root",
        );
    }
    let _turn = turn();
    std::fs::remove_file(&file).unwrap();
    record(&file, &["-d", "20"], &MMAP);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 7]).unwrap();
    let report = report(&file);
    assert!(report["truncated"].is_string() && !rows(&report).is_empty());
}

#[test]
fn asking_for_rwsems_only_says_that_nothing_else_is_recorded() {
    needs_root!("asking_for_rwsems_only_says_that_nothing_else_is_recorded");
    let scratch = Scratch::new("only-rwsem");
    let report = record(&scratch.path("a.rec"), &["-d", "30", "--probe", "rwsem"], &MMAP);
    let other = coverage(&report, "contention", "every other lock");
    assert_eq!(other["state"], "off");
    assert!(rows(&report).iter().all(|row| row["kind"] == "rwsem" || row["kind"] == "rt"));
}

#[test]
fn a_reader_that_has_stopped_does_not_hold_top_up() {
    needs_root!("a_reader_that_has_stopped_does_not_hold_top_up");
    let mut line = lockscope(&["top", "--max-overhead", "100", "--batch", "--interval", "0.05"]);
    let mut child = Running::start(line.stdout(Stdio::piped()).stderr(Stdio::null()));
    std::thread::sleep(Duration::from_secs(4));
    child.signal(libc::SIGTERM);
    assert_eq!(child.end_within(Duration::from_secs(10)).expect("it ends").code(), Some(0));
}

#[test]
fn an_output_that_is_no_recording_is_not_overwritten() {
    needs_root!("an_output_that_is_no_recording_is_not_overwritten");
    let scratch = Scratch::new("precious");
    let file = scratch.path("precious.conf");
    std::fs::write(&file, "keep me\n").unwrap();
    let output =
        lockscope(&["record", "--max-overhead", "100", "-d", "1", "-o"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "keep me\n");
}

#[test]
fn locks_have_classes_and_instances_without_any_data_symbol() {
    needs_root!("locks_have_classes_and_instances_without_any_data_symbol");
    let scratch = Scratch::new("identity");
    let report = record(&scratch.path("a.rec"), &["-d", "30"], &MMAP);
    assert_eq!(coverage(&report, "identity", "classes")["state"], "full");
    let share = identified_share(&report);
    println!("identified: {:.1} % of the wait time", share * 100.0);
    assert!(share >= 0.95, "{share}");
    let mut mmap = rows(&report).iter().filter(|row| row["class"] == "mm_struct.mmap_lock");
    let top = mmap.next().expect("a row of mmap_lock");
    let tgid = n(&top["processes"][0]["tgid"]);
    assert!(top["instance"].as_str().unwrap().ends_with(&format!("[{tgid}]")), "{top:#}");
}

#[test]
fn an_inodes_lock_is_named_by_its_number_and_device() {
    needs_root!("an_inodes_lock_is_named_by_its_number_and_device");
    the_appenders_inode_is_right(&Scratch::new("inode"), &[]);
}

#[test]
fn two_inodes_that_use_one_address_after_the_other_never_share_a_row() {
    needs_root!("two_inodes_that_use_one_address_after_the_other_never_share_a_row");
    let scratch = Scratch::new("reuse");
    let made = LoopExt4::new("reuse-fs");
    let script = format!(
        "for i in 1 2 3 4 5 6; do mkdir {0}/$i; {1} stress dio-append --dir {0}/$i --secs 0.5 --warmup 0 >/dev/null; \
         rm -rf {0}/$i; done",
        made.mount.display(),
        LOCKSCOPE
    );
    let report = record(&scratch.path("a.rec"), &["-d", "60"], &["bash", "-c", &script]);
    let writers: Vec<_> = rows(&report)
        .iter()
        .filter(|row| row["class"] == "inode.i_rwsem" && row["caller"] == "ext4_file_write_iter")
        .collect();
    // Each round is a process of its own with a file of its own: a row with two processes would have merged two inodes.
    assert!(writers.len() >= 4, "{}", writers.len());
    for row in writers {
        assert_eq!(row["processes"].as_array().unwrap().len(), 1, "{row:#}");
    }
}

#[test]
fn buffer_lru_hits_are_exact_and_handles_counted_by_tracepoints_alone() {
    needs_root!("buffer_lru_hits_are_exact_and_handles_counted_by_tracepoints_alone");
    let scratch = Scratch::new("tracepoints");
    // A device of its own for each, made beforehand: other tests make some at the same time.
    let image = LoopExt4::new("tracepoints-fs");
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(&image.mount).unwrap().dev();
    let number = libc::major(device) << 20 | libc::minor(device);
    let name = format!("{}:{}", libc::major(device), libc::minor(device));
    let mount = image.mount.to_str().unwrap();
    let preset = ["lru-cliff", "--blocks", "16", "--secs", "2", "--warmup", "0", "--dir", mount];
    let mut hits = 0;
    let report = beside(&scratch.path("lru.rec"), &[], || {
        hits = counted_by_perf(&scratch, "block:block_touch_buffer", number, &preset).0;
    });
    let devices = report["bh_lru"]["per_device"].as_array().unwrap();
    let row = devices.iter().find(|row| row["device"] == name.as_str()).unwrap();
    println!("{row}, perf: {hits}");
    assert_eq!(n(&row["hit"]), hits, "hits as perf counts them");
    assert!(hits > 1000);
    assert!(row["lookups"].is_null() && row["hit_percent"].is_null(), "not 0: {row}");
    let reason = coverage(&report, "bh-lru", "LRU lookups")["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("not permitted"), "{reason}");
    let preset = ["meta", "--files", "200", "--dir", mount];
    let mut starts = 0;
    let report = beside(&scratch.path("meta.rec"), &[], || {
        starts = counted_by_perf(&scratch, "jbd2:jbd2_handle_start", number, &preset).0;
    });
    let journals = report["jbd2"].as_array().unwrap();
    let journal = journals.iter().find(|journal| journal["device"] == name.as_str()).unwrap();
    assert_eq!(n(&journal["starts"]), starts);
    assert!(starts >= 3 * 200 * 4, "{starts}");
    assert!(journal["hold"].is_null() && journal["start_wait_ns"].is_null() && journal["fsync"].is_null());
    assert!(n(&journal["credits"]["requested"]) > 0);
}
