//! `lockscope doctor`: what this host lets lockscope see, tested by trying – the probes are really attached for a
//! moment – and what is missing, what that costs, and how to get it. Records nothing.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::{
    cli::{DoctorArgs, MeasureArgs},
    exit,
    kernel::features::Features,
    load::Sizes,
    privilege, probes,
    session::{Host, Plan, Session, kernel_line},
    snapshot::{Coverage, CoverageState},
    terminal::printable_str,
    workload::Selection,
};

/// One thing looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// `ok`, `lacking` or `note`.
    pub state: &'static str,
    /// What was found.
    pub found: String,
    /// What it costs the user, when lacking.
    pub cost: Option<String>,
    /// What to do about it.
    pub fix: Option<String>,
}

/// All that doctor says.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// Name and version of this format.
    pub schema: &'static str,
    /// Facts about the host.
    pub host: Features,
    /// Prerequisites.
    pub checks: Vec<Check>,
    /// What each probe lets us see.
    pub coverage: Vec<Coverage>,
    /// Bytes of all maps on this host.
    pub map_bytes: Option<u64>,
    /// Whether any probe stands.
    pub can_run: bool,
}

/// Looks, tries, prints; exit code 3 if nothing can run.
///
/// # Errors
/// When nothing can be printed, or not even the number of CPUs can be read.
pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<u8> {
    let diagnosis = diagnose(args)?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&diagnosis)?)?;
    } else {
        out.write_all(in_words(&diagnosis).as_bytes())?;
    }
    Ok(if diagnosis.can_run { exit::DONE } else { exit::CANNOT })
}

/// Looks and tries.
///
/// # Errors
/// When not even the number of CPUs can be read.
pub fn diagnose(args: &DoctorArgs) -> Result<Diagnosis> {
    let host = Host::look()?;
    let features = host.features.clone();
    let mut checks = host_checks(&host);
    let bound = args.map_memory.map_or_else(|| Sizes::default_bound(features.possible_cpus), |mib| mib << 20);
    let sizes = Sizes::within(features.possible_cpus, bound);
    checks.push(memory_check(&features, bound, &sizes));
    let tried = try_probes(args);
    checks.extend(tried.as_ref().err().map(|reason| lacking("probes", reason, None, None)));
    checks.extend(
        tried.iter().flat_map(|session| session.warnings.iter().map(|warning| note("warning", warning))),
    );
    Ok(Diagnosis {
        schema: "lockscope.doctor.v1",
        host: features,
        checks,
        coverage: tried.as_ref().map(|session| session.coverage.clone()).unwrap_or_default(),
        map_bytes: sizes.ok().map(|sizes| sizes.bytes()),
        can_run: tried.is_ok(),
    })
}

fn try_probes(args: &DoctorArgs) -> Result<Session, String> {
    let measure = MeasureArgs::nothing_special(args.map_memory);
    Session::open(&Plan { measure, selection: Selection::default() }).map_err(|error| format!("{error:#}"))
}

fn host_checks(host: &Host) -> Vec<Check> {
    let mut checks = vec![rights_check()];
    checks.push(match &host.btf {
        Ok(_) => ok("kernel types", "/sys/kernel/btf/vmlinux"),
        Err(error) => lacking(
            "kernel types",
            &format!("{error:#}"),
            Some("no rwsem outcomes, no owners, no folding of inner locks; raw tracepoints only"),
            Some("a kernel with CONFIG_DEBUG_INFO_BTF"),
        ),
    });
    checks.push(symbols_check(host));
    if let Some(mode) = host.features.lockdown.as_deref().filter(|mode| *mode != "none") {
        let cost = "confidentiality forbids reading kernel memory: no probe can run";
        checks.push(lacking("lockdown", mode, Some(cost), Some("boot without lockdown=confidentiality")));
    }
    checks
}

fn symbols_check(host: &Host) -> Check {
    let fix = Some("sysctl kernel.kptr_restrict=0, or CAP_SYSLOG");
    match &host.symbols {
        Ok(symbols) if symbols.usable() => {
            let data = if symbols.has_data_symbols() { "functions and data" } else { "functions only" };
            ok("kernel symbols", &format!("/proc/kallsyms: {data}"))
        }
        Ok(symbols) => {
            let reason = symbols.reason().unwrap_or("no addresses");
            lacking("kernel symbols", reason, Some("no callers, no names of static locks"), fix)
        }
        Err(error) => lacking("kernel symbols", &format!("{error:#}"), Some("no callers, no names"), fix),
    }
}

fn rights_check() -> Check {
    let missing: Vec<String> =
        privilege::missing().iter().map(|(name, purpose)| format!("{name} ({purpose})")).collect();
    if missing.is_empty() {
        return ok("rights", "all capabilities that are needed");
    }
    let found = format!("missing {}", missing.join(", "));
    lacking("rights", &found, Some("probes cannot be loaded"), Some("sudo lockscope doctor"))
}

fn memory_check(features: &Features, bound: u64, sizes: &Result<Sizes>) -> Check {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    match sizes {
        Ok(sizes) => {
            let text = format!(
                "{:.1} MiB of at most {:.0} for {} possible CPUs: {} keys, {} histograms, {} waiting tasks, {} letters a CPU",
                mib(sizes.bytes()),
                mib(bound),
                features.possible_cpus,
                sizes.keys(),
                sizes.hists,
                sizes.slots,
                sizes.letters
            );
            ok("map memory", &text)
        }
        Err(error) => {
            lacking("map memory", &format!("{error:#}"), Some("no probe can run"), Some("--map-memory"))
        }
    }
}

fn ok(what: &str, found: &str) -> Check {
    Check { what: what.to_owned(), state: "ok", found: found.to_owned(), cost: None, fix: None }
}

fn note(what: &str, found: &str) -> Check {
    Check { what: what.to_owned(), state: "note", found: found.to_owned(), cost: None, fix: None }
}

fn lacking(what: &str, found: &str, cost: Option<&str>, fix: Option<&str>) -> Check {
    Check {
        what: what.to_owned(),
        state: "lacking",
        found: found.to_owned(),
        cost: cost.map(str::to_owned),
        fix: fix.map(str::to_owned),
    }
}

fn in_words(diagnosis: &Diagnosis) -> String {
    let host = &diagnosis.host;
    let mut text = format!(
        "lockscope {} on {}: {}, {} CPUs possible, {} online\n\nhost\n",
        env!("CARGO_PKG_VERSION"),
        printable_str(&host.hostname),
        printable_str(&kernel_line(host)),
        host.possible_cpus,
        host.online_cpus
    );
    for check in &diagnosis.checks {
        text.push_str(&check_in_words(check));
    }
    text.push_str("\nprobes\n");
    for spec in probes::ALL {
        text.push_str(&format!("  {}: {}\n    costs: {}\n", spec.id, spec.sentence, spec.cost));
        text.push_str(&coverage_in_words(spec.id, &diagnosis.coverage));
        if !stands(spec.id, &diagnosis.coverage) {
            text.push_str(&format!("    lost without it: {}\n", spec.lost));
        }
    }
    let verdict = if diagnosis.can_run { "lockscope can run here" } else { "lockscope cannot run here" };
    text.push_str(&format!("\n{verdict}\n"));
    text
}

fn check_in_words(check: &Check) -> String {
    let mut text = format!("  {:<8} {}: {}\n", check.state, check.what, printable_str(&check.found));
    for (label, line) in [("costs you", &check.cost), ("fix", &check.fix)] {
        if let Some(line) = line {
            text.push_str(&format!("           {label}: {line}\n"));
        }
    }
    text
}

fn stands(probe: &str, coverage: &[Coverage]) -> bool {
    coverage.iter().any(|line| line.probe == probe && line.hook.is_some())
}

fn coverage_in_words(probe: &str, coverage: &[Coverage]) -> String {
    let mut text = String::new();
    for line in coverage.iter().filter(|line| line.probe == probe) {
        let state = match line.state {
            CoverageState::Full => "full",
            CoverageState::Partial => "partial",
            CoverageState::Absent => "n/a",
            CoverageState::Off => "off",
        };
        let hook = line.hook.as_deref().map_or(String::new(), |hook| format!(" by {hook}"));
        let reason = line.reason.as_deref().map_or(String::new(), |reason| format!(" – {reason}"));
        text.push_str(&format!("    {state:<8} {}{hook}{reason}\n", line.metric));
    }
    text
}
