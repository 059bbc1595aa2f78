//! The report as plain text: coverage first, then the rows, then what is not in them and what it all cost.
//!
//! Must not colour, and must not print a 0 for what was not measured. Every text from outside is escaped.

use profiler_common::cell::Outcome;

use super::grid::{Grid, Head, wrap};
use super::subsystems_table;
use crate::aggregate::{
    Coverage, CoverageState, OutcomeCounts, Owner, OwnerShare, Reading, Report, Row, Sums, Table, device_name,
};
use crate::fields::{self, NONE, NOT_AVAILABLE, count, duration, load, percent, rate, time};
use crate::terminal::{printable, printable_str, truncate};

/// How much is shown.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Terminal columns, at least 60.
    pub max_width: usize,
    /// Rows of the main table.
    pub max_rows: usize,
    /// Rows for which owners, waiters and the main stack are listed.
    pub details: usize,
    /// Whether this is a live view and not a recording that ended, or was killed.
    pub live: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { max_width: 130, max_rows: 20, details: 5, live: false }
    }
}

/// The whole report.
pub fn render(report: &Report, options: &Options) -> String {
    let options = &Options { max_width: options.max_width.max(60), ..*options };
    let table = &report.table;
    let subsystems = subsystems_table::sections(table, options);
    let sections = [
        head(report, options),
        coverage(&report.meta.coverage, options),
        budget(report, options),
        rows(report, options),
        in_progress(table, options),
        rwsems(report, options),
        details(table, options),
    ];
    let last = [totals(report, options), foot(table, options)];
    sections
        .into_iter()
        .chain(subsystems)
        .chain(last)
        .filter(|section| !section.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

fn head(report: &Report, options: &Options) -> String {
    let (meta, table) = (&report.meta, &report.table);
    let whole = match (options.live, table.whole) {
        (true, _) => "live",
        (false, true) => "whole recording",
        (false, false) => "a part of the recording",
    };
    let least = match meta.min_wait_ns {
        0 => "all waits".to_string(),
        ns => format!("waits of {} and longer", duration(ns)),
    };
    let lines = [
        Some(format!(
            "lockscope {}: lock waits on {}, {} CPUs online",
            meta.version, meta.host, meta.online_cpus
        )),
        Some(format!("kernel    {}", meta.kernel)),
        Some(format!(
            "window    {} ({whole}{}), {least}",
            duration(table.window_ns),
            ending(report, options.live)
        )),
        Some(format!("tasks     {}", selection(report))),
        (!meta.command.is_empty()).then(|| format!("command   {}", meta.command.join(" "))),
        report.truncated.as_ref().map(|why| format!("WARNING   the recording is cut off {why}")),
    ];
    lines.into_iter().flatten().map(|line| wrap(&printable_str(&line), 10, options.max_width)).collect()
}

fn ending(report: &Report, live: bool) -> String {
    match &report.end {
        Some(end) => {
            let status =
                end.command_status.map(|status| format!(" with status {status}")).unwrap_or_default();
            format!(", ended: {}{status}", end.reason)
        }
        None if report.table.whole && !live => ", no end mark: still being written, or killed".to_string(),
        None => String::new(),
    }
}

fn selection(report: &Report) -> String {
    if report.meta.selection.is_empty() { "all".to_string() } else { report.meta.selection.join(", ") }
}

fn coverage(lines: &[Coverage], options: &Options) -> String {
    let mut out = "coverage (what this host lets us see)\n".to_string();
    if lines.is_empty() {
        out += "  nothing is known about it\n";
    }
    for line in lines {
        out += &coverage_line(line, options);
    }
    out
}

fn coverage_line(line: &Coverage, options: &Options) -> String {
    let state = match line.state {
        CoverageState::Full => "full",
        CoverageState::Partial => "partial",
        CoverageState::Absent => "absent",
        CoverageState::Off => "off",
    };
    let hook = line.hook.as_ref().map(|hook| format!(" by {hook}")).unwrap_or_default();
    let reason = line.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let text = format!("{}, {}{hook}{reason}", line.probe, line.metric);
    wrap(&format!("  {state:<8} {}", printable_str(&text)), 11, options.max_width)
}

/// What was given up to keep the budget: rows of that time lack it.
fn budget(report: &Report, options: &Options) -> String {
    if report.table.budget.is_empty() {
        return String::new();
    }
    let mut out = "budget (our own programs against --max-overhead): rows from between the steps lack what was given up\n".to_string();
    for step in &report.table.budget {
        let at = duration(step.at_ns.saturating_sub(report.meta.attached_ns));
        let verb = if step.shed { "gave up" } else { "took back" };
        let line = format!("  at {at}, {:.2} % of the machine: {verb} {}", step.percent, step.what);
        out += &wrap(&printable_str(&line), 4, options.max_width);
    }
    out
}

fn rows(report: &Report, options: &Options) -> String {
    let table = &report.table;
    if table.rows.is_empty() {
        return wrap(&printable_str(&why_empty(report)), 0, options.max_width);
    }
    let mut ids: Vec<&str> = fields::REPORT.to_vec();
    if table.rows.iter().any(|row| row.workload.is_some_and(|number| number != 0)) {
        ids.insert(3, "workload");
    }
    let columns: Vec<_> = ids.iter().filter_map(|id| fields::column(id)).collect();
    let mut grid = Grid::new(columns.iter().map(|column| Head::of(column)).collect());
    let shown = &table.rows[..table.rows.len().min(options.max_rows)];
    for row in shown {
        grid.push(columns.iter().map(|column| (column.text)(row)).collect());
    }
    let mut out = "lock waits, most waited for first\n".to_string();
    out += &grid.render(options.max_width);
    out += &hidden_rows(table, options);
    out + &legend(shown, &ids, options)
}

/// Why there is nothing to show; a table without rows must not look like a host without contention.
fn why_empty(report: &Report) -> String {
    let (meta, table) = (&report.meta, &report.table);
    let can = |line: &Coverage| matches!(line.state, CoverageState::Full | CoverageState::Partial);
    if !meta.coverage.is_empty() && !meta.coverage.iter().any(can) {
        return "No rows: no probe is active here, so nothing was measured; see coverage.".to_string();
    }
    let off = |line: &Coverage| line.probe != "contention" || line.state == CoverageState::Off;
    if !meta.coverage.is_empty() && meta.coverage.iter().all(off) && table.totals.contentions == 0 {
        return "No rows: the probes that were asked for record no lock waits, or saw none.".to_string();
    }
    if table.window_ns == 0 {
        return "No rows: the recording holds no reading yet.".to_string();
    }
    let mut text = if table.totals.contentions > 0 {
        format!("No rows: none of the {} waits has one; see the totals.", count(table.totals.contentions))
    } else if meta.selection.is_empty() {
        "No rows: no contention was seen in this window.".to_string()
    } else {
        "No rows: the selected tasks did not contend in this window; others are not recorded.".to_string()
    };
    if table.lost() > 0 {
        text += " Something was lost, see losses.";
    }
    text
}

fn hidden_rows(table: &Table, options: &Options) -> String {
    let hidden = table.rows.get(options.max_rows..).unwrap_or_default();
    if hidden.is_empty() {
        return String::new();
    }
    let mut sums = Sums::default();
    hidden.iter().for_each(|row| sums.add(&row.sums));
    let (waits, tasks) = (count(sums.contentions), load(sums.wait_load(table.window_ns)));
    format!("{} more rows are not shown: {waits} waits, load {tasks}\n", hidden.len())
}

fn legend(shown: &[Row], ids: &[&str], options: &Options) -> String {
    let mut out = String::new();
    let mut note = |text: &str| out.push_str(&wrap(&format!("  {text}"), 4, options.max_width));
    note(
        "LOAD = mean number of tasks waiting at any moment; OPEN, OLDEST = waits in progress at the window's end",
    );
    if shown.iter().any(|row| row.name.starts_with('~')) {
        note("~function = a lock without a name: its number, and the function that waited for it (a guess)");
    }
    let texts =
        || shown.iter().flat_map(|row| ids.iter().filter_map(|id| Some((fields::column(id)?.text)(row))));
    if texts().any(|text| text.starts_with('≈')) {
        note("≈ = estimate: the middle of a histogram bucket, ±6 %");
    }
    if texts().any(|text| text == NONE) {
        note("– = none, or too few finished waits to say (P99 needs 300)");
    }
    for reason in missing(shown, ids) {
        note(&printable_str(&reason));
    }
    out
}

/// The reasons of every `n/a` shown, each once, with all the columns that it is for.
fn missing(shown: &[Row], ids: &[&str]) -> Vec<String> {
    let mut reasons: Vec<((&str, &str), Vec<&str>)> = Vec::new();
    for row in shown {
        for (id, reason) in fields::reasons(row).filter(|(id, _)| ids.contains(id)) {
            let header = fields::column(id).map_or(id, |column| column.header);
            match reasons.iter_mut().find(|(of, _)| *of == (row.kind, reason)) {
                Some((_, headers)) if headers.contains(&header) => {}
                Some((_, headers)) => headers.push(header),
                None => reasons.push(((row.kind, reason), vec![header])),
            }
        }
    }
    let text = |((kind, reason), headers): ((&str, &str), Vec<&str>)| {
        format!("{} {NOT_AVAILABLE} for {kind}: {reason}", headers.join(", "))
    };
    reasons.into_iter().map(text).collect()
}

fn in_progress(table: &Table, options: &Options) -> String {
    if table.in_progress.is_empty() {
        return String::new();
    }
    let mut grid = Grid::new(vec![
        Head::number("AGE"),
        Head::name("LOCK", 12),
        Head::name("KIND", 8),
        Head::name("WAITING TASK", 12),
        Head::name("IN", 6),
        Head::name("HELD AT ITS BEGIN BY", 12),
    ]);
    for open in table.in_progress.iter().take(options.max_rows) {
        let who = format!("{} {} (thread {})", printable(&open.comm), open.tgid, open.tid);
        let owner = open.owner.as_ref().map_or(NOT_AVAILABLE.to_string(), |owner| {
            owner_text(owner, &open.owner_comm, open.owner_on_cpu)
        });
        let place = if open.queued { "queue" } else { "entry or spin" };
        let (name, kind) = (printable_str(&open.name), fields::kind_text(open.kind, open.mode));
        grid.push(vec![duration(open.age_ns), name, kind, who, place.to_string(), owner]);
    }
    let hidden = table.in_progress.len().saturating_sub(options.max_rows);
    let more = if hidden > 0 { format!("{hidden} more are not shown\n") } else { String::new() };
    format!("waits in progress at the window's end, oldest first\n{}{more}", grid.render(options.max_width))
}

fn owner_text(owner: &Owner, comm: &[u8], on_cpu: Option<bool>) -> String {
    let place = match on_cpu {
        Some(true) => ", on a CPU",
        Some(false) => ", off CPU",
        None => "",
    };
    match owner {
        Owner::Process(tgid) if comm.is_empty() => format!("process {tgid}{place}"),
        Owner::Process(tgid) => format!("{} {tgid}{place}", printable(comm)),
        Owner::Readers => "readers".to_string(),
        Owner::Unknown => "unknown".to_string(),
    }
}

fn rwsems(report: &Report, options: &Options) -> String {
    let table = &report.table;
    if table.rwsems.is_empty() {
        return String::new();
    }
    let numbers = ["STOLEN", "FAST", "SPUN", "QUEUED", "HANDED", "INTR", "PASSED", "SLOW%"];
    let mut heads =
        vec![Head::name("LOCK", 16), Head::name("MODE", 4), Head::number("WAITS/s"), Head::number("LOAD")];
    heads.extend(["P50", "P99"].map(Head::number));
    heads.extend(numbers.map(Head::number));
    let mut grid = Grid::new(heads);
    for sides in by_lock(&table.rwsems).into_iter().take(options.max_rows) {
        rwsem_lines(&sides).into_iter().for_each(|line| grid.push(line));
    }
    let disagreed = table.rwsems.iter().flat_map(|row| &row.outcomes);
    let disagreed =
        disagreed.fold(0u64, |sum, outcomes| sum.saturating_add(outcomes.get(Outcome::PredicateDisagreed)));
    let slow = format!(
        "SLOW% = writers that waited at least the kernel's handoff timeout ({})",
        handoff_timeout(report.meta.hz)
    );
    let notes = [
        "STOLEN = taken by a reader ahead of the queue; FAST = by a reader, queue empty; SPUN = by a spinning writer",
        "HANDED = of QUEUED, by the lock's handoff; INTR = gave up on a signal; PASSED = of STOLEN, past waiters",
        slow.as_str(),
    ];
    let mut out = format!("rwsems: how the waits came out\n{}", grid.render(options.max_width));
    for note in notes {
        out += &wrap(&format!("  {note}"), 4, options.max_width);
    }
    let rule = format!(
        "  readers that queued although the kernel's rule said steal: {}; the reverse cannot be told and counts as FAST",
        count(disagreed)
    );
    out += &wrap(&rule, 4, options.max_width);
    out + &elsewhere(report, options)
}

/// Outcomes that are in no row: without this line, steals below --min-wait would look like no steals.
fn elsewhere(report: &Report, options: &Options) -> String {
    let buckets =
        || report.table.below_minimum.iter().chain(&report.table.other).filter(|b| b.kind == "rwsem");
    let sum = |outcome| buckets().fold(0u64, |sum, bucket| sum.saturating_add(bucket.outcomes.get(outcome)));
    let (stolen, fast, spun) = (sum(Outcome::Stolen), sum(Outcome::Fast), sum(Outcome::Spun));
    let queued = sum(Outcome::QueuedReader).saturating_add(sum(Outcome::QueuedWriter));
    if stolen + fast + spun + queued == 0 {
        return String::new();
    }
    let line = format!(
        "  NOT in these rows, being shorter than --min-wait or without a row: stolen {} ({} past waiters), fast {}, spun {}, queued {}",
        count(stolen),
        count(sum(Outcome::StolenPastWaiters)),
        count(fast),
        count(spun),
        count(queued)
    );
    wrap(&line, 4, options.max_width)
}

/// Readers and writers of one lock together, the lock most waited for first.
fn by_lock(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut locks: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match locks.iter_mut().find(|sides| sides[0].lock_id == row.lock_id) {
            Some(sides) => sides.push(row),
            None => locks.push(vec![row]),
        }
    }
    let load = |sides: &Vec<&Row>| sides.iter().fold(0u64, |sum, side| sum.saturating_add(side.sums.load_ns));
    locks.sort_by_key(|sides| std::cmp::Reverse(load(sides)));
    locks
}

/// Two lines: the side most waited for names the lock.
fn rwsem_lines(sides: &[&Row]) -> Vec<Vec<String>> {
    let mut lines: Vec<Vec<String>> = sides.iter().map(|row| rwsem_line(row)).collect();
    if let Some(line) = lines.get_mut(1) {
        line[0].clear();
    }
    lines
}

fn rwsem_line(row: &Row) -> Vec<String> {
    let writer = row.mode == "W";
    let outcomes = row.outcomes.as_ref().ok();
    let number = |outcome| outcomes.map_or(NOT_AVAILABLE.to_string(), |all| count(all.get(outcome)));
    let of = |applies: bool, outcome| if applies { number(outcome) } else { NOT_AVAILABLE.to_string() };
    vec![
        fields::lock(row),
        row.mode.to_string(),
        row.contentions_per_s().map_or(NOT_AVAILABLE.to_string(), rate),
        load(row.wait_load()),
        time(&row.p50_ns),
        time(&row.p99_ns),
        of(!writer, Outcome::Stolen),
        of(!writer, Outcome::Fast),
        of(writer, Outcome::Spun),
        number(if writer { Outcome::QueuedWriter } else { Outcome::QueuedReader }),
        counted(&row.handed_off),
        outcomes.map_or(NOT_AVAILABLE.to_string(), |all| count(all.interrupted())),
        counted(&row.steals_past_waiters),
        slow_share(row),
    ]
}

fn counted(reading: &Reading) -> String {
    reading.value().map_or(NOT_AVAILABLE.to_string(), count)
}

/// Metric E-7.
fn slow_share(row: &Row) -> String {
    let writers = row.outcomes.as_ref().map_or(0, OutcomeCounts::writers);
    match (row.handoff_class.value(), writers) {
        (None, _) => NOT_AVAILABLE.to_string(),
        (Some(_), 0) => NONE.to_string(),
        (Some(slow), all) => percent(slow as f64 * 100.0 / all as f64),
    }
}

/// The kernel's RWSEM_WAIT_TIMEOUT in words: DIV_ROUND_UP(HZ, 250) ticks (kernel/locking/rwsem.c).
fn handoff_timeout(hz: Option<u64>) -> String {
    match hz.filter(|hz| *hz > 0) {
        Some(hz) => format!("{} ms here", hz.div_ceil(250) * 1000 / hz),
        None => "4 ms at HZ 250 or 1000, 10 ms at HZ 100".to_string(),
    }
}

fn details(table: &Table, options: &Options) -> String {
    let rows = table.rows.iter().filter(|row| !row.processes.is_empty()).take(options.details);
    let out: String = rows.map(|row| detail(row, options)).collect();
    if out.is_empty() {
        out
    } else {
        format!("who waited, for whom, and from where (shares of the finished waits' time)\n{out}")
    }
}

fn detail(row: &Row, options: &Options) -> String {
    let column = |id: &str| fields::column(id).map_or(String::new(), |column| (column.text)(row));
    let share = |wait_ns: u64| percent(wait_ns as f64 * 100.0 / row.sums.wait_ns.max(1) as f64);
    let waiters = row.processes.iter().take(4).map(|process| {
        let who = owner_text(&Owner::Process(process.tgid), &process.comm, None);
        format!("{} {who}", share(process.wait_ns))
    });
    let owners = row.owners.iter().take(4).map(|owner: &OwnerShare| {
        format!("{} {}", share(owner.wait_ns), owner_text(&owner.owner, &owner.comm, owner.on_cpu))
    });
    let stack = row.stacks.first().filter(|stack| !stack.frames.is_empty());
    let mut lines = vec![
        format!("  {} {} {}", column("lock"), column("kind"), column("caller")),
        format!("    waited  {}", and_more(waiters.collect(), row.processes.len())),
    ];
    if !row.owners.is_empty() {
        lines.push(format!("    held by {}", and_more(owners.collect(), row.owners.len())));
    }
    if let Some(stack) = stack {
        lines.push(format!(
            "    from    {} {}",
            share(stack.wait_ns),
            printable_str(&stack.frames.join(" < "))
        ));
    }
    lines.into_iter().map(|line| truncate(&line, options.max_width) + "\n").collect()
}

fn and_more(shown: Vec<String>, all: usize) -> String {
    let more = all.saturating_sub(shown.len());
    let text = shown.join("; ");
    if more > 0 { format!("{text}; {more} more") } else { text }
}

fn totals(report: &Report, options: &Options) -> String {
    let table = &report.table;
    let ids =
        ["contentions", "wait_load", "wait_ns", "p50_ns", "p99_ns", "max_ns", "interrupted", "in_progress"];
    let columns: Vec<_> = ids.iter().filter_map(|id| fields::column(id)).collect();
    let mut heads = vec![Head::name("TOTALS", 24)];
    heads.extend(columns.iter().map(|column| Head::of(column)));
    let mut grid = Grid::new(heads);
    for row in &table.by_kind {
        let mut line = vec![fields::column("kind").map_or(String::new(), |column| (column.text)(row))];
        line.extend(columns.iter().map(|column| (column.text)(row)));
        grid.push(line);
    }
    let below = match report.meta.min_wait_ns {
        0 => "shorter than the minimum".to_string(),
        ns => format!("shorter than {}", duration(ns)),
    };
    grid.push(sums_line(&below, table, &sum(table.below_minimum.iter().map(|bucket| bucket.sums)), "0"));
    grid.push(sums_line(
        "other (no row left)",
        table,
        &sum(table.other.iter().map(|bucket| bucket.sums)),
        "0",
    ));
    let open = count(table.in_progress.len() as u64);
    grid.push(sums_line("all", table, &table.totals, &open));
    let mut out = grid.render(options.max_width);
    if let Some(device) = report.meta.device {
        let left = &table.other_devices;
        out += &format!(
            "  left out, at locks of other devices than {} or of none: {} waits, {}\n",
            device_name(device),
            count(left.contentions),
            duration(left.wait_ns)
        );
    }
    if table.written_off > 0 || table.written_off_ns > 0 {
        let (n, ns) = (count(table.written_off), duration(table.written_off_ns));
        out += &format!("  of these {n} waits, {ns}: counted while in progress, then gone without an end\n");
    }
    out
}

fn sum(sums: impl Iterator<Item = Sums>) -> Sums {
    let mut total = Sums::default();
    sums.for_each(|sums| total.add(&sums));
    total
}

fn sums_line(name: &str, table: &Table, sums: &Sums, open: &str) -> Vec<String> {
    let none = || String::new();
    vec![
        name.to_string(),
        count(sums.contentions),
        load(sums.wait_load(table.window_ns)),
        duration(sums.wait_ns),
        none(),
        none(),
        none(),
        count(sums.interrupted_n),
        open.to_string(),
    ]
}

fn foot(table: &Table, options: &Options) -> String {
    losses(table, options) + &own_cost(table, options)
}

fn losses(table: &Table, options: &Options) -> String {
    let lost: Vec<_> = table.losses.iter().filter(|(_, n)| *n > 0).collect();
    if lost.is_empty() {
        return "losses: none\n".to_string();
    }
    let mut out = "losses:\n".to_string();
    for (name, n) in lost {
        let words = fields::LOSSES.iter().find(|(known, _)| known == name).map_or("", |(_, words)| words);
        let line = format!("  {} {}: {words}", count(*n), printable_str(name));
        out += &wrap(&line, 4, options.max_width);
    }
    out
}

fn own_cost(table: &Table, options: &Options) -> String {
    let cost = &table.own_cost;
    let cpu = cost.own_cpu_percent.map_or(NOT_AVAILABLE.to_string(), percent);
    let bpf = match (cost.bpf_runs, cost.bpf_ns_per_run()) {
        (Some(runs), Some(ns)) => format!("{} BPF runs of {ns:.0}ns on average", count(runs)),
        (Some(0), None) => "no BPF run".to_string(),
        _ => format!("BPF time {NOT_AVAILABLE} (the kernel's run-time statistics are off)"),
    };
    let misses = match cost.recursion_misses {
        Some(n) => format!("{} recursion misses", count(n)),
        None => format!("recursion misses {NOT_AVAILABLE} (this kernel does not tell)"),
    };
    let own = duration(cost.own_cpu_ns);
    let maps = fields::bytes(cost.map_bytes);
    let text = format!("own cost: {own} of CPU time = {cpu} of one CPU; {bpf}; {misses}; maps {maps}");
    wrap(&text, 4, options.max_width)
}
