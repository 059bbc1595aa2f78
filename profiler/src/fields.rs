//! Every column once: its id, header, unit, place and text. Tables, JSON's documentation and the live view use these.
//!
//! Must not compute anything but how a number is written, and must not print a 0 for what was not measured.

use crate::aggregate::{Reading, Row};
use crate::terminal::{Align, printable_str};

/// A column of the rows' table.
#[derive(Debug)]
pub struct Column {
    /// Its name in options and in JSON.
    pub id: &'static str,
    /// What stands above it.
    pub header: &'static str,
    /// The values' unit, empty for names; texts carry their unit where it varies.
    pub unit: &'static str,
    /// Terminal columns that it takes, at least where it may grow.
    pub width: usize,
    /// Whether it takes what the line has left.
    pub grows: bool,
    /// Where text stands in it.
    pub align: Align,
    /// One sentence for help and documents.
    pub doc: &'static str,
    /// Its text for a row, safe for a terminal.
    pub text: fn(&Row) -> String,
}

/// All columns, in the order in which a table shows them.
pub const COLUMNS: [Column; 17] = [
    name(
        "lock",
        "LOCK",
        12,
        "The lock's name; for a lock without one its number and, after ~, the function that waited (a guess).",
        lock,
    ),
    name("kind", "KIND", 10, "The kind of lock, and R or W for the mode of a reader-writer lock.", kind),
    name("caller", "CALLER", 8, "The function outside the lock code that waited.", caller),
    name("lock_id", "LOCK-ID", 8, "Opaque name of the lock within the recording.", |row| {
        printable_str(row.lock_id.as_deref().unwrap_or(NOT_AVAILABLE))
    }),
    name(
        "workload",
        "WL",
        3,
        "Number of the workload; 0 = all that are recorded, selectors are not told apart yet.",
        |row| row.workload.map_or_else(|| "*".to_string(), |number| number.to_string()),
    ),
    number("contentions_per_s", "WAITS/s", "1/s", 7, "Waits that began, a second.", |row| {
        row.contentions_per_s().map_or_else(missing, rate)
    }),
    number("contentions", "WAITS", "", 7, "Waits that began in the window.", |row| {
        count(row.sums.contentions)
    }),
    number(
        "wait_load",
        "LOAD",
        "tasks",
        6,
        "Mean number of tasks waiting at any moment: time waited ÷ window.",
        |row| load(row.wait_load()),
    ),
    number("wait_ns", "TIME", "time", 7, "Total of the finished waits.", |row| duration(row.sums.wait_ns)),
    number(
        "p50_ns",
        "P50",
        "time",
        7,
        "Half of the finished waits were shorter, to a bucket of ±6 %.",
        |row| time(&row.p50_ns),
    ),
    number(
        "p99_ns",
        "P99",
        "time",
        7,
        "99 % of the finished waits were shorter; – below 300 waits.",
        |row| time(&row.p99_ns),
    ),
    number("max_ns", "MAX", "time", 7, "The longest finished wait; after ≈ to a histogram bucket.", |row| {
        time(&row.max_ns)
    }),
    number(
        "spin_percent",
        "SPIN%",
        "%",
        5,
        "Share of the finished waits' time that was spent spinning.",
        spin,
    ),
    number(
        "queue_ns",
        "QUEUED",
        "time",
        7,
        "Part of the finished waits' time that was spent queued.",
        |row| time(&row.queue_ns),
    ),
    number(
        "interrupted",
        "INTR",
        "",
        5,
        "Waits given up on a signal; in no other column but WAITS and LOAD.",
        |row| count(row.sums.interrupted_n),
    ),
    number("in_progress", "OPEN", "", 5, "Waits in progress at the window's end.", |row| {
        count(row.in_progress.n)
    }),
    number("oldest_ns", "OLDEST", "time", 7, "Age of the oldest of them.", |row| match row.in_progress.n {
        0 => NONE.to_string(),
        _ => duration(row.in_progress.max_age_ns),
    }),
];

/// What a report of plain text shows.
pub const REPORT: [&str; 11] = [
    "lock",
    "kind",
    "caller",
    "contentions_per_s",
    "wait_load",
    "p50_ns",
    "p99_ns",
    "max_ns",
    "spin_percent",
    "in_progress",
    "oldest_ns",
];

/// What each loss means, by its name in `losses`.
pub const LOSSES: [(&str, &str); 15] = [
    ("end_without_begin", "ends whose begin was not seen, as of waits that began before attaching"),
    ("exit_without_entry", "exits of timed functions whose entry was not seen"),
    ("lost_end", "waits whose end was lost"),
    ("slot_collision", "waits not timed: another task's wait held the slot"),
    ("too_deep", "waits not timed: nested too deep"),
    ("mailbox_full", "waits without a row (in `other`): they came faster than they were read"),
    ("table_full", "waits without a row (in `other`): the table was full"),
    ("stack_failed", "stacks that could not be walked"),
    ("negative_wait", "waits dropped: the clock went backwards"),
    ("missed_returns", "returns that the kretprobe missed, as when many tasks sleep inside"),
    ("follow_full", "processes of the command that could not be followed: too many at once"),
    ("abandoned", "waits left open by tasks that are gone"),
    ("handle_collision", "handles and fsyncs counted but not timed: another thread's held the place"),
    ("lost_commits", "commits in no timeline: they ended faster than they were read"),
    ("recursion_misses", "probe runs that the kernel skipped since the probe was running on that CPU"),
];

/// Text of a value that cannot be measured here.
pub const NOT_AVAILABLE: &str = "n/a";
/// Text of a value that there are too few waits for, or none.
pub const NONE: &str = "–";

const fn name(
    id: &'static str,
    header: &'static str,
    width: usize,
    doc: &'static str,
    text: fn(&Row) -> String,
) -> Column {
    Column { id, header, unit: "", width, grows: true, align: Align::Left, doc, text }
}

const fn number(
    id: &'static str,
    header: &'static str,
    unit: &'static str,
    width: usize,
    doc: &'static str,
    text: fn(&Row) -> String,
) -> Column {
    Column { id, header, unit, width, grows: false, align: Align::Right, doc, text }
}

/// The column with this id.
pub fn column(id: &str) -> Option<&'static Column> {
    COLUMNS.iter().find(|column| column.id == id)
}

/// Why values of this row are missing, as (column id, reason): for the footnotes under a table.
pub fn reasons(row: &Row) -> impl Iterator<Item = (&'static str, &str)> {
    let readings = [
        ("p50_ns", &row.p50_ns),
        ("p99_ns", &row.p99_ns),
        ("max_ns", &row.max_ns),
        ("spin_percent", &row.spin_ns),
        ("queue_ns", &row.queue_ns),
    ];
    readings.into_iter().filter_map(|(id, reading)| reading.reason().map(|reason| (id, reason)))
}

fn kind(row: &Row) -> String {
    kind_text(row.kind, row.mode)
}

/// Kind and mode as shown: `rwsem:W`, `mutex`.
pub fn kind_text(kind: &str, mode: &str) -> String {
    // The word of perf lock: ten letters with the mode.
    let kind = if kind == "percpu-rwsem" { "pcpu-sem" } else { kind };
    if matches!(mode, "X" | "*") { kind.to_string() } else { format!("{kind}:{mode}") }
}

/// A lock without a name already shows its caller: there its number tells it from others.
fn caller(row: &Row) -> String {
    row.caller.as_deref().map_or_else(|| NONE.to_string(), printable_str)
}

/// The lock's name, with its number where the name is a guess: two locks must not look like one.
pub fn lock(row: &Row) -> String {
    match &row.lock_id {
        Some(id) if row.name.starts_with('~') => printable_str(&format!("{id} {}", row.name)),
        _ => printable_str(&row.name),
    }
}

fn spin(row: &Row) -> String {
    match (&row.spin_ns, row.spin_percent()) {
        (Reading::Missing(_), _) => missing(),
        (_, Some(percent)) => format!("{percent:.0}"),
        (_, None) => NONE.to_string(),
    }
}

fn missing() -> String {
    NOT_AVAILABLE.to_string()
}

/// A reading in nanoseconds as text.
pub fn time(reading: &Reading) -> String {
    match reading {
        Reading::Exact(ns) => duration(*ns),
        Reading::Estimate(ns) => format!("≈{}", duration(*ns)),
        Reading::TooFew => NONE.to_string(),
        Reading::Missing(_) => missing(),
    }
}

/// Nanoseconds in three significant digits with their unit: `850ns`, `1.23us`, `45.6ms`, `137s`.
pub fn duration(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..999_500 => format!("{}us", digits(value / 1e3)),
        999_500..999_500_000 => format!("{}ms", digits(value / 1e6)),
        _ => format!("{}s", digits(value / 1e9)),
    }
}

/// A count: plain up to 99,999, then with k, M, G, T, P, E.
pub fn count(n: u64) -> String {
    if n < 100_000 { n.to_string() } else { with_prefix(n as f64) }
}

/// Events a second.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 99_999.5 => with_prefix(r),
        r if r >= 999.5 => format!("{r:.0}"),
        r if r > 0.0 && r < 0.01 => "<0.01".to_string(),
        r => digits(r),
    }
}

/// Mean number of waiting tasks.
pub fn load(tasks: f64) -> String {
    match tasks {
        t if t >= 99_999.5 => with_prefix(t),
        t if t >= 0.01 => digits(t),
        t if t >= 0.000_95 => format!("{t:.3}"),
        t if t > 0.0 => "<0.001".to_string(),
        _ => "0".to_string(),
    }
}

/// Bytes with a binary prefix.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 999.5 {
            return if unit == "B" { format!("{n} B") } else { format!("{} {unit}", digits(value)) };
        }
        value /= 1024.0;
    }
    format!("{} TiB", digits(value))
}

/// A share in per cent.
pub fn percent(value: f64) -> String {
    if value > 0.0 && value < 0.01 { "<0.01%".to_string() } else { format!("{}%", digits(value)) }
}

fn with_prefix(mut value: f64) -> String {
    for prefix in ["", "k", "M", "G", "T", "P"] {
        if value < 999.5 {
            return format!("{}{prefix}", digits(value));
        }
        value /= 1000.0;
    }
    format!("{}E", digits(value))
}

/// Three significant digits of a value below 1000; larger ones whole.
fn digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.9995 => format!("{v:.2}"),
        v if v >= 0.09995 => format!("{v:.3}"),
        v if v > 0.0 => format!("{v:.4}"),
        _ => "0".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_exists_once_and_reports_name_real_ones() {
        for (index, column) in COLUMNS.iter().enumerate() {
            assert!(COLUMNS[..index].iter().all(|c| c.id != column.id && c.header != column.header));
            assert!(column.doc.ends_with('.'));
            assert!(column.width >= column.header.len(), "{}", column.id);
        }
        assert!(REPORT.iter().all(|id| column(id).is_some()));
    }

    #[test]
    fn every_loss_has_its_words() {
        use profiler_common::loss::Counter;
        for (_, name) in Counter::LOSSES {
            assert!(LOSSES.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        let written = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00us"),
            (9_996, "10.0us"),
            (99_960, "100us"),
            (999_499, "999us"),
            (999_500, "1.00ms"),
            (45_600_000, "45.6ms"),
            (999_500_000, "1.00s"),
            (137_438_953_472, "137s"),
        ];
        for (ns, text) in written {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn other_numbers() {
        assert_eq!(count(99_999), "99999");
        assert_eq!(count(100_000), "100k");
        assert_eq!(count(1_234_567), "1.23M");
        assert_eq!(count(u64::MAX), "18.4E");
        assert_eq!(rate(0.001), "<0.01");
        assert_eq!(rate(12_684.2), "12684");
        assert_eq!(rate(0.0), "0");
        assert_eq!(load(0.0001), "<0.001");
        assert_eq!(load(0.75), "0.750");
        assert_eq!(load(0.0), "0");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(percent(1.234), "1.23%");
        assert_eq!(time(&Reading::Estimate(1500)), "≈1.50us");
        assert_eq!(time(&Reading::TooFew), "–");
        assert_eq!(time(&Reading::Missing("x".into())), "n/a");
    }
}
