//! The subsystems' tables of the text report: jbd2's journals in the style of the t_handle_lock thread, the buffer LRU in
//! that of BH_LRU_SIZE.
//!
//! Must not print a 0 for what was not measured. Every text from outside is escaped.

use super::grid::{Grid, Head, wrap};
use super::table::Options;
use crate::aggregate::{FsyncRow, JournalRow, LruCounts, LruRow, LruTable, Reading, Reason, SpanRow, Table};
use crate::fields::{NONE, NOT_AVAILABLE, count, duration, percent, rate, time};
use crate::terminal::printable_str;

/// CPUs, devices and callers that are listed.
const MOST: usize = 12;

/// Both; empty for what did not happen.
pub fn sections(table: &Table, options: &Options) -> Vec<String> {
    let journals = table.journals.as_ref().map_or(&[][..], Vec::as_slice);
    let mut out: Vec<String> = journals.iter().map(|row| journal(row, table, options)).collect();
    if let Ok(lru) = &table.bh_lru {
        out.extend(lru.counts.hit.reason().map(|reason| {
            wrap(&format!("buffer LRU {NOT_AVAILABLE}: {}", printable_str(reason)), 4, options.max_width)
        }));
        if !lru.per_device.is_empty() {
            out.push(lru_section(lru, table, options));
        }
    }
    out
}

fn note(text: &str, options: &Options) -> String {
    wrap(&format!("  {text}"), 4, options.max_width)
}

/// The part of the window that was looked at, where it is not all of it.
fn in_bursts(table: &Table) -> Option<String> {
    (table.timed_ns < table.window_ns / 100 * 99).then(|| {
        let part = table.timed_ns as f64 * 100.0 / table.window_ns.max(1) as f64;
        format!(
            "in bursts: {} of {} ({})",
            duration(table.timed_ns),
            duration(table.window_ns),
            percent(part)
        )
    })
}

fn journal(row: &JournalRow, table: &Table, options: &Options) -> String {
    let mount = row.mount.as_ref().map(|mount| format!(" ({mount})")).unwrap_or_default();
    let per_s = |n: u64| rate(n as f64 * 1e9 / table.window_ns.max(1) as f64);
    let head = format!(
        "jbd2 {}{mount}: {} handles started ({}/s), {} restarted, {} nested, {} commits",
        row.device,
        count(row.starts),
        per_s(row.starts),
        count(row.restarts),
        number(&row.nested),
        count(row.commits)
    );
    let mut out = wrap(&printable_str(&head), 4, options.max_width);
    out += &spans(row, table, options);
    out += &causes(row, options);
    out += &commits(row, options);
    if let Ok(fsync) = &row.fsync
        && fsync.n > 0
    {
        out += &note(&fsync_line(fsync), options);
    }
    out + &credits(row, options)
}

fn number(reading: &Reading) -> String {
    match reading {
        Reading::Estimate(n) => format!("≈{}", count(*n)),
        _ => reading.value().map_or(NOT_AVAILABLE.to_string(), count),
    }
}

fn spans(row: &JournalRow, table: &Table, options: &Options) -> String {
    let seen: Vec<&SpanRow> = row.spans.iter().filter(|span| span.n.value().is_some_and(|n| n > 0)).collect();
    if seen.is_empty() {
        let reason = row.spans.iter().find_map(|span| span.n.reason());
        return reason.map_or(String::new(), |reason| {
            note(&format!("start, hold and stop {NOT_AVAILABLE}: {}", printable_str(reason)), options)
        });
    }
    let mut grid = Grid::new(vec![
        Head::name("  HANDLES", 18),
        Head::number("TIMED"),
        Head::number("MEAN"),
        Head::number("P50"),
        Head::number("P99"),
        Head::number("MAX"),
        Head::number("TOTAL"),
    ]);
    for span in seen {
        let total = span.total_ns.value().unwrap_or(0);
        let n = span.n.value().unwrap_or(0);
        grid.push(vec![
            format!("  {}", span.name.replace('_', " ")),
            count(n),
            total.checked_div(n).map_or(NONE.to_string(), duration),
            time(&span.p50_ns),
            time(&span.p99_ns),
            time(&span.max_ns),
            duration(total),
        ]);
    }
    let mut out = grid.render(options.max_width);
    if let Some(part) = in_bursts(table) {
        out += &note(
            &format!("handles are timed {part}; no longer start or hold than a burst can be seen"),
            options,
        );
    }
    if row.untimed > 0 {
        out += &note(
            &format!("{} starts were not timed: their begin was not seen", count(row.untimed)),
            options,
        );
    }
    if row.credits.as_ref().is_ok_and(|credits| credits.sync_stops > 0) {
        out += &note(
            "batching = the deliberate sleep of synchronous handles, for others to join their commit: no contention",
            options,
        );
    }
    out
}

fn causes(row: &JournalRow, options: &Options) -> String {
    let (Ok(causes), Some(all)) = (&row.causes, row.start_ns()) else { return String::new() };
    let timed: u64 = row.spans.iter().take(3).filter_map(|span| span.n.value()).fold(0, u64::saturating_add);
    if all == 0 || timed == 0 {
        return String::new();
    }
    let mut grid = Grid::new(vec![
        Head::name("  START WAIT", 20),
        Head::number("STARTS"),
        Head::number("A START"),
        Head::number("SHARE"),
    ]);
    for (name, n, ns) in causes.iter().filter(|(_, n, _)| *n > 0) {
        grid.push(vec![
            format!("  {}", name.replace('_', " ")),
            count(*n),
            duration(ns / timed),
            percent(*ns as f64 * 100.0 / all as f64),
        ]);
    }
    grid.render(options.max_width)
}

fn commits(row: &JournalRow, options: &Options) -> String {
    if row.commits == 0 {
        return String::new();
    }
    let mut grid = Grid::new(vec![
        Head::name("  COMMITS", 18),
        Head::number("SEEN"),
        Head::number("MEAN"),
        Head::number("MAX"),
        Head::number("TOTAL"),
    ]);
    for phase in &row.phases {
        grid.push(vec![
            format!("  {}", phase.name),
            count(phase.n),
            phase.total_ns.checked_div(phase.n).map_or(NONE.to_string(), duration),
            if phase.n == 0 { NONE.to_string() } else { duration(phase.max_ns) },
            duration(phase.total_ns),
        ]);
    }
    let mut out = grid.render(options.max_width);
    if let Ok((n, ns)) = &row.commit_wait
        && *n > 0
    {
        let mean = ns.checked_div(*n).map_or(NONE.to_string(), duration);
        out += &note(
            &format!("waits for a commit: {}, {mean} each, {} in all", count(*n), duration(*ns)),
            options,
        );
    }
    let blamed = row.blamed.as_ref().map_or(&[][..], Vec::as_slice);
    let texts: Vec<String> = blamed
        .iter()
        .map(|one| {
            format!(
                "{} (line {}) {}, locked for {}",
                one.operation,
                one.line,
                count(one.n),
                duration(one.locked_ns)
            )
        })
        .collect();
    if !texts.is_empty() {
        out += &note(
            &format!("kept open by, the last handle to leave a locked commit: {}", texts.join("; ")),
            options,
        );
    }
    out
}

fn fsync_line(fsync: &FsyncRow) -> String {
    let each = |ns: u64| duration(ns / fsync.n.max(1));
    let parts = [fsync.write_and_wait_ns, fsync.commit_wait_ns, fsync.flush_ns];
    let told = parts.into_iter().fold(0, u64::saturating_add);
    format!(
        "fsync: {}, {} each = write and wait {} + commit wait {} + flush {} + rest {}",
        count(fsync.n),
        each(fsync.total_ns),
        each(fsync.write_and_wait_ns),
        each(fsync.commit_wait_ns),
        each(fsync.flush_ns),
        each(fsync.total_ns.saturating_sub(told))
    )
}

fn credits(row: &JournalRow, options: &Options) -> String {
    let mut parts = Vec::new();
    match &row.credits {
        Ok(credits) if credits.stops > 0 => {
            let mean = |blocks: u64| format!("{:.1}", blocks as f64 / credits.stops as f64);
            let (asked, used) = (mean(credits.requested), mean(credits.used));
            parts.push(format!("credits a handle: {asked} asked for, {used} used"));
        }
        Ok(_) => {}
        Err(reason) => parts.push(format!("credits {NOT_AVAILABLE}: {}", printable_str(reason))),
    }
    if let Some(fill) = row.fill {
        let share = |part: u64, all: u64| percent(part as f64 * 100.0 / all.max(1) as f64);
        parts.push(format!(
            "at the end the running transaction was {} full, the log {} free of {} blocks",
            share(fill.transaction_credits, fill.transaction_most),
            share(fill.log_free, fill.log_blocks),
            count(fill.log_blocks)
        ));
    }
    if parts.is_empty() { String::new() } else { note(&parts.join("; "), options) }
}

fn lru_section(lru: &LruTable, table: &Table, options: &Options) -> String {
    let mut out = "buffer LRU (16 buffer heads a CPU), lookups by __find_get_block and its kin\n".to_string();
    let mut grid = Grid::new(lru_heads("  DEVICE"));
    for row in lru.per_device.iter().take(MOST) {
        grid.push(lru_line(row));
    }
    out += &grid.render(options.max_width);
    let mut grid = Grid::new([lru_heads("  CPU"), vec![Head::number("EMPTIED")]].concat());
    for row in lru.per_cpu.iter().take(MOST) {
        grid.push([lru_line(row), vec![number(&row.emptied)]].concat());
    }
    out += &grid.render(options.max_width);
    out += &callers(lru, options);
    out += &costs(lru, options);
    let mut notes = vec![
        "HIT% = hit / (hit + found): absent buffers are in no cache, no LRU would help; MOVED = found after the task changed its CPU".to_string(),
    ];
    notes.extend(
        in_bursts(table).map(|part| format!("counted {part}; EMPTIED and who asked for it all the time")),
    );
    notes.extend(
        lru.counts
            .lookups
            .reason()
            .map(|reason| format!("all but HIT {NOT_AVAILABLE}: {}", printable_str(reason))),
    );
    if lru.samples_lost > 0 {
        notes.push(format!(
            "{} timed lookups could not be used: their task was moved",
            count(lru.samples_lost)
        ));
    }
    notes.extend(asked(&lru.asked));
    notes.extend(lru.pinned.value().map(|n| format!("{} buffers pinned by the LRUs at the end", count(n))));
    notes.iter().for_each(|text| out += &note(text, options));
    out
}

fn asked(asked: &Result<Vec<(String, u64)>, Reason>) -> Option<String> {
    let asked = asked.as_ref().ok().filter(|asked| !asked.is_empty())?;
    let texts: Vec<String> =
        asked.iter().map(|(who, n)| format!("{} {}", printable_str(who), count(*n))).collect();
    Some(format!("had all LRUs emptied: {}", texts.join(", ")))
}

fn lru_heads(first: &'static str) -> Vec<Head> {
    let mut heads = vec![Head::name(first, 14)];
    heads.extend(["LOOKUPS", "HIT%", "HIT", "FOUND", "ABSENT", "MOVED"].map(Head::number));
    heads
}

fn lru_line(row: &LruRow) -> Vec<String> {
    let isolated = if row.isolated { " (isolated: has none)" } else { "" };
    let LruCounts { lookups, hit, found, absent, migrated } = &row.counts;
    let share = row
        .counts
        .hit_percent()
        .map_or(NOT_AVAILABLE.to_string(), |share| format!("{:.1}%", (share * 10.0).floor() / 10.0));
    vec![
        format!("  {}{isolated}", row.name),
        number(lookups),
        share,
        number(hit),
        number(found),
        number(absent),
        number(migrated),
    ]
}

fn callers(lru: &LruTable, options: &Options) -> String {
    let callers = lru.per_caller.as_ref().map_or(&[][..], Vec::as_slice);
    if callers.is_empty() {
        return String::new();
    }
    let mut grid = Grid::new(vec![
        Head::name("  CALLER", 24),
        Head::number("SAMPLES"),
        Head::number("≈HIT"),
        Head::number("≈FOUND"),
        Head::number("≈ABSENT"),
    ]);
    for one in callers.iter().take(MOST) {
        let counts = [one.hit, one.found, one.absent].map(|n| format!("≈{}", count(n)));
        grid.push(
            [vec![format!("  {}", printable_str(&one.caller)), count(one.samples)], counts.to_vec()].concat(),
        );
    }
    grid.render(options.max_width)
}

fn costs(lru: &LruTable, options: &Options) -> String {
    let costs = lru.costs.as_ref().map_or(&[][..], Vec::as_slice);
    let text = |one: &crate::aggregate::LruCost| {
        let mean = one.mean_ns?;
        Some(format!(
            "{} ≈{} (p50 {}, {} samples)",
            one.outcome,
            duration(mean),
            time(&one.p50_ns),
            count(one.samples)
        ))
    };
    let texts: Vec<String> = costs.iter().filter_map(text).collect();
    if texts.is_empty() {
        return String::new();
    }
    note(&format!("cost, with the tracing's own in it: {}", texts.join("; ")), options)
}
