//! What a run found, as text for people and JSON (`lockscope.stress.v1`) for programs.
//!
//! Must not compute anything but rates and quantiles, and must not print a 0 for what was not measured.

use std::io::Write;

use serde::Serialize;
use serde_json::{Value, json};

use super::args::StressArgs;
use super::run::{Outcome, RoleTally, Span};

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Its time was up.
    Done,
    /// A signal.
    Interrupted,
    /// A failed operation; see [`Report::error`].
    Failed,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// `lockscope.stress.v1`.
    pub schema: &'static str,
    /// The preset's name.
    pub preset: &'static str,
    /// Whether this was the de-sharing control.
    pub control: bool,
    /// Threads of the writing role.
    pub threads: u32,
    /// Seconds measured; none when the run ended within the warm-up.
    pub seconds: Option<f64>,
    /// When these seconds were; none when the run ended within the warm-up.
    pub window: Option<Span>,
    /// The seed of the offsets.
    pub seed: u64,
    /// Why it ended.
    pub ending: Ending,
    /// The failed operation.
    pub error: Option<String>,
    /// What the run was made of: common ones, then the preset's own (file, inode, device).
    pub parameters: Value,
    /// One entry per role, the writing one first; after it the parts of its operations, if they are timed.
    pub roles: Vec<Role>,
}

/// What the threads of one role did together.
#[derive(Debug, Clone, Serialize)]
pub struct Role {
    /// `appender`, `reader`, `mapper`, …; for a part of the operations its name: `create`, `fsync`, …
    pub role: &'static str,
    /// The role whose operations this is a part of; a part's latency is its own, in an open loop too.
    pub part_of: Option<&'static str>,
    /// Threads (or processes) in this role.
    pub threads: u32,
    /// `closed` or `open`.
    #[serde(rename = "loop")]
    pub kind: &'static str,
    /// Operations begun within the measured time.
    pub ops: Option<u64>,
    /// Operations per second.
    pub ops_per_s: Option<f64>,
    /// Bytes these operations moved (mmap: mapped and touched); none for a part.
    pub bytes: Option<u64>,
    /// Operations that failed.
    pub errors: u64,
    /// Latency of these operations; in an open loop from the intended start.
    pub latency_ns: Latency,
    /// Open loop: what was due at the end and had not been begun.
    pub unserved: Option<Unserved>,
}

/// Latency in ns; none where too few operations stand behind a figure (p99: 300, p99.9: 3000).
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// Median, ns, to a histogram bucket (±1/16).
    pub p50: Option<u64>,
    /// 99th percentile, ns.
    pub p99: Option<u64>,
    /// 99.9th percentile, ns.
    pub p999: Option<u64>,
    /// Longest, ns, exact.
    pub max: Option<u64>,
    /// Operations behind the figures.
    pub n: u64,
}

/// The open loop's queue at the end of the run.
#[derive(Debug, Clone, Serialize)]
pub struct Unserved {
    /// Operations.
    pub n: u64,
    /// How long the oldest had been due, ns; none for an empty queue.
    pub max_age_ns: Option<u64>,
}

/// Puts a report together; `own` are the preset's parameters.
pub(super) fn build(args: &StressArgs, threads: u32, own: Value, outcome: Outcome) -> Report {
    let seconds = outcome.window.map(|w| w.seconds());
    let failed = outcome.roles.iter().find_map(|r| Some(format!("{} failed: {}", r.role, r.tally.fault?)));
    let ending = match (&failed, outcome.interrupted) {
        (Some(_), _) => Ending::Failed,
        (None, true) => Ending::Interrupted,
        (None, false) => Ending::Done,
    };
    Report {
        schema: "lockscope.stress.v1",
        preset: args.preset.name(),
        control: args.control,
        threads,
        seconds,
        window: outcome.window,
        seed: args.seed,
        ending,
        error: failed,
        parameters: parameters(args, own),
        roles: outcome.roles.iter().map(|r| role(r, seconds)).collect(),
    }
}

fn parameters(args: &StressArgs, own: Value) -> Value {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let mut all = json!({
        "secs": args.files.is_none().then_some(args.secs),
        "warmup_secs": args.files.map_or(args.warmup, |_| 0.0),
        "rate": args.rate,
        "pin": args.pin,
        "cpus": std::thread::available_parallelism().ok(),
        "kernel": kernel.as_deref().map(str::trim),
    });
    if let (Value::Object(all), Value::Object(own)) = (&mut all, own) {
        all.extend(own);
    }
    all
}

fn role(r: &RoleTally, seconds: Option<f64>) -> Role {
    let n = r.tally.n();
    let latency_ns = Latency {
        p50: r.tally.quantile(0.5, 1),
        p99: r.tally.quantile(0.99, 300),
        p999: r.tally.quantile(0.999, 3000),
        max: (n > 0).then_some(r.tally.max_ns),
        n,
    };
    let (queue, age) = (r.tally.unserved, r.tally.unserved_age_ns);
    Role {
        role: r.role,
        part_of: r.part_of,
        threads: r.threads,
        kind: if r.open_loop { "open" } else { "closed" },
        ops: seconds.map(|_| n),
        ops_per_s: seconds.map(|s| (n as f64 / s * 10.0).round() / 10.0),
        bytes: seconds.filter(|_| r.part_of.is_none()).map(|_| r.tally.bytes),
        errors: r.tally.errors,
        latency_ns,
        unserved: r.open_loop.then_some(Unserved { n: queue, max_age_ns: (queue > 0).then_some(age) }),
    }
}

/// Writes one JSON object for one run, a list for several; or text.
pub(super) fn print(reports: &[Report], as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    match (as_json, reports) {
        (true, [one]) => writeln!(out, "{}", serde_json::to_string_pretty(one)?)?,
        (true, many) => writeln!(out, "{}", serde_json::to_string_pretty(many)?)?,
        (false, many) => many.iter().try_for_each(|r| text(r, out))?,
    }
    Ok(())
}

fn text(r: &Report, out: &mut dyn Write) -> std::io::Result<()> {
    let control = if r.control { " control" } else { "" };
    let seconds = r.seconds.map_or("n/a (ended in the warm-up)".into(), |s| format!("{s:.1} s measured"));
    writeln!(out, "{}{control}, threads {}, seed {}: {seconds}{}", r.preset, r.threads, r.seed, ending(r))?;
    place(&r.parameters).map_or(Ok(()), |line| writeln!(out, "{line}"))?;
    let heads =
        ["role", "threads", "loop", "ops", "ops/s", "MiB/s", "p50", "p99", "p99.9", "max", "unserved"];
    line(&heads.map(String::from), out)?;
    r.roles.iter().try_for_each(|role| line(&cells(role, r.seconds), out))?;
    writeln!(out)
}

/// Where it ran; none for a preset without files.
fn place(parameters: &Value) -> Option<String> {
    let device = parameters["device"].as_object()?;
    let word = |key: &str| device.get(key).and_then(Value::as_str).unwrap_or("n/a");
    let file = parameters["file"]["inode"].as_u64().map_or(String::new(), |i| format!("file inode {i} "));
    let blocks = device.get("journal_blocks").and_then(Value::as_u64);
    let journal = blocks.map_or(String::new(), |n| format!(", journal of {n} blocks"));
    Some(format!("{file}on {} {} ({}){journal}", word("fs"), word("source"), word("number")))
}

fn ending(r: &Report) -> String {
    match (r.ending, &r.error) {
        (Ending::Done, _) => String::new(),
        (Ending::Interrupted, _) => ", interrupted".into(),
        (Ending::Failed, error) => format!(", FAILED: {}", error.as_deref().unwrap_or("n/a")),
    }
}

fn line(cells: &[String; 11], out: &mut dyn Write) -> std::io::Result<()> {
    const WIDTHS: [usize; 11] = [0, 7, 6, 10, 9, 8, 7, 7, 7, 7, 0];
    write!(out, "{:<9}", cells[0])?;
    for (cell, width) in cells.iter().zip(WIDTHS).skip(1) {
        write!(out, " {cell:>width$}")?;
    }
    writeln!(out)
}

fn cells(r: &Role, seconds: Option<f64>) -> [String; 11] {
    let dash = || "–".to_owned();
    let time = |ns: Option<u64>| ns.map_or_else(dash, duration);
    let rate = r.bytes.zip(seconds).map(|(b, s)| format!("{:.1}", b as f64 / s / f64::from(1 << 20)));
    let unserved = r.unserved.as_ref().map(|u| match u.max_age_ns {
        Some(age) => format!("{} (oldest {})", u.n, duration(age)),
        None => u.n.to_string(),
    });
    let l = &r.latency_ns;
    [
        r.part_of.map_or(r.role.to_owned(), |_| format!("- {}", r.role)),
        r.threads.to_string(),
        r.kind.to_owned(),
        r.ops.map_or_else(dash, |n| n.to_string()),
        r.ops_per_s.map_or_else(dash, |n| format!("{n:.0}")),
        rate.unwrap_or_else(dash),
        time(l.p50),
        time(l.p99),
        time(l.p999),
        time(l.max),
        unserved.unwrap_or_else(dash),
    ]
}

/// Three significant digits and a unit.
fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match value {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::gauge::Tally;
    use super::*;

    fn with(n: u64, seconds: Option<f64>) -> Role {
        let mut tally = Tally::default();
        tally.counts[80] = n;
        tally.max_ns = 99_000;
        role(&RoleTally { role: "reader", part_of: None, threads: 1, open_loop: false, tally }, seconds)
    }

    #[test]
    fn thin_tails_are_null_in_json_and_a_dash_in_text() {
        let thin = with(299, Some(2.0));
        let json = serde_json::to_value(&thin).unwrap();
        assert!(json["latency_ns"]["p99"].is_null() && json["latency_ns"]["p50"].is_u64());
        assert_eq!((json["loop"].as_str(), json["ops_per_s"].as_f64()), (Some("closed"), Some(149.5)));
        assert!(json["unserved"].is_null());
        assert_eq!(cells(&thin, Some(2.0))[7..9], ["–", "–"]);
        assert!(with(3000, Some(2.0)).latency_ns.p999.is_some());
    }

    #[test]
    fn nothing_measured_is_null_not_zero() {
        let json = serde_json::to_value(with(0, None)).unwrap();
        for field in ["ops", "ops_per_s", "bytes"] {
            assert!(json[field].is_null(), "{field}");
        }
        assert!(json["latency_ns"]["max"].is_null());
    }

    #[test]
    fn the_place_names_file_and_journal_where_there_are() {
        let device = json!({ "fs": "ext4", "source": "/dev/loop0", "number": "7:0", "journal_blocks": 1024 });
        let shown = place(&json!({ "device": device }));
        assert_eq!(shown.unwrap(), "on ext4 /dev/loop0 (7:0), journal of 1024 blocks");
        let device = json!({ "fs": "ext4", "source": "/dev/ram0", "number": "1:0" });
        let shown = place(&json!({ "device": device, "file": { "inode": 12 } }));
        assert_eq!(shown.unwrap(), "file inode 12 on ext4 /dev/ram0 (1:0)");
        assert_eq!(place(&json!({})), None);
    }

    #[test]
    fn durations_have_three_digits() {
        let shown = [999, 1_234, 56_700, 4_990_000, 103_000_000, 12_340_000_000].map(duration);
        assert_eq!(shown, ["999ns", "1.23us", "56.7us", "4.99ms", "103ms", "12.3s"]);
    }
}
