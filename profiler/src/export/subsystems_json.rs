//! The subsystems' sections of the JSON report: `jbd2` and `bh_lru`.
//!
//! Must not print a number for what was not measured: that is `null`, with its reason in `gaps`.

use serde_json::{Map, Value, json};

use crate::aggregate::{JournalRow, LruCounts, LruRow, LruTable, Reading, SpanRow, Table};

/// The two sections; one that is not measured at all is `null`.
pub fn sections(table: &Table) -> Value {
    json!({
        "timed_ns": table.timed_ns,
        "other_devices": { "contentions": table.other_devices.contentions, "wait_ns": table.other_devices.wait_ns },
        "budget": table.budget.iter().map(|step| json!({
            "at_ns": step.at_ns,
            "what": step.what,
            "shed": step.shed,
            "percent": step.percent,
        })).collect::<Vec<_>>(),
        "jbd2": table.journals.as_ref().ok().map(|rows| rows.iter().map(journal).collect::<Vec<_>>()),
        "bh_lru": table.bh_lru.as_ref().ok().map(lru),
    })
}

/// Each (metric, reason) for which a section has a `null`.
pub fn gaps(table: &Table) -> Vec<(String, String)> {
    let mut gaps = Vec::new();
    let mut note = |metric: &str, reason: Option<&str>| {
        let gap = reason.map(|reason| (metric.to_owned(), reason.to_owned()));
        gaps.extend(gap.filter(|gap| !gaps.contains(gap)));
    };
    match &table.journals {
        Err(reason) => note("jbd2", Some(reason)),
        Ok(rows) => rows.iter().for_each(|row| journal_gaps(row, &mut note)),
    }
    match &table.bh_lru {
        Err(reason) => note("bh_lru", Some(reason)),
        Ok(lru) => lru_gaps(lru, &mut note),
    }
    gaps
}

fn journal_gaps(row: &JournalRow, note: &mut impl FnMut(&str, Option<&str>)) {
    note("jbd2.nested", row.nested.reason());
    row.spans.iter().for_each(|span| note(&format!("jbd2.{}", span.name), span.n.reason()));
    for metric in ["jbd2.start_wait_ns", "jbd2.start_wait_n"] {
        note(metric, row.causes.as_ref().err().map(AsRef::as_ref));
    }
    note("jbd2.credits", row.credits.as_ref().err().map(AsRef::as_ref));
    note("jbd2.commit_wait", row.commit_wait.as_ref().err().map(AsRef::as_ref));
    note("jbd2.kept_open", row.blamed.as_ref().err().map(AsRef::as_ref));
    note("jbd2.fsync", row.fsync.as_ref().err().map(AsRef::as_ref));
    if row.mount.is_none() {
        note("jbd2.mount", Some("not mounted, or before it was looked for"));
    }
    if row.fill.is_none() {
        note("jbd2.fill", Some("the journal could not be found in memory"));
    }
}

fn lru_gaps(lru: &LruTable, note: &mut impl FnMut(&str, Option<&str>)) {
    for metric in ["lookups", "found", "absent", "migrated", "hit_percent"] {
        note(&format!("bh_lru.{metric}"), lru.counts.lookups.reason());
    }
    note("bh_lru.hit", lru.counts.hit.reason());
    note("bh_lru.per_caller", lru.per_caller.as_ref().err().map(AsRef::as_ref));
    note("bh_lru.costs", lru.costs.as_ref().err().map(AsRef::as_ref));
    note("bh_lru.asked", lru.asked.as_ref().err().map(AsRef::as_ref));
    note("bh_lru.pinned", lru.pinned.reason());
}

fn journal(row: &JournalRow) -> Value {
    let mut value = json!({
        "device": row.device,
        "mount": row.mount,
        "starts": row.starts,
        "restarts": row.restarts,
        "failed_restarts": row.failed_restarts,
        "untimed": row.untimed,
        "nested": row.nested.value(),
        "start_wait_ns": by_cause(row, |(_, _, ns)| *ns),
        "start_wait_n": by_cause(row, |(_, n, _)| *n),
        "commit_wait": row.commit_wait.as_ref().ok().map(|(n, ns)| json!({ "n": n, "total_ns": ns })),
        "credits": row.credits.as_ref().ok().map(|credits| json!({
            "stops": credits.stops,
            "sync_stops": credits.sync_stops,
            "requested": credits.requested,
            "used": credits.used,
        })),
        "commits": row.commits,
        "phases": phases(row),
        "kept_open": row.blamed.as_ref().ok().map(|blamed| blamed.iter().map(|one| json!({
            "operation": one.operation,
            "line": one.line,
            "n": one.n,
            "locked_ns": one.locked_ns,
        })).collect::<Vec<_>>()),
        "fsync": row.fsync.as_ref().ok().map(|fsync| json!({
            "n": fsync.n,
            "total_ns": fsync.total_ns,
            "write_and_wait_ns": fsync.write_and_wait_ns,
            "commit_wait_ns": fsync.commit_wait_ns,
            "flush_ns": fsync.flush_ns,
        })),
        "fill": row.fill.map(|fill| json!({
            "log_blocks": fill.log_blocks,
            "log_free": fill.log_free,
            "transaction_most": fill.transaction_most,
            "transaction_credits": fill.transaction_credits,
        })),
    });
    for part in &row.spans {
        value[part.name] = span(part);
    }
    value
}

fn by_cause(row: &JournalRow, part: fn(&(&'static str, u64, u64)) -> u64) -> Value {
    let Ok(causes) = &row.causes else { return Value::Null };
    Value::Object(causes.iter().map(|cause| (cause.0.to_owned(), json!(part(cause)))).collect::<Map<_, _>>())
}

fn phases(row: &JournalRow) -> Value {
    let phase = |phase: &crate::aggregate::PhaseRow| {
        let value = json!({ "n": phase.n, "total_ns": phase.total_ns, "max_ns": phase.max_ns });
        (phase.name.to_owned(), value)
    };
    Value::Object(row.phases.iter().map(phase).collect::<Map<_, _>>())
}

fn span(span: &SpanRow) -> Value {
    let Reading::Exact(n) = span.n else { return Value::Null };
    json!({
        "n": n,
        "total_ns": span.total_ns.value(),
        "p50_ns": span.p50_ns.value(),
        "p99_ns": span.p99_ns.value(),
        "max_ns": span.max_ns.value(),
    })
}

fn lru(lru: &LruTable) -> Value {
    let mut value = counts(&lru.counts);
    let callers = lru.per_caller.as_ref().ok().map(|callers| {
        let caller = |one: &crate::aggregate::LruCaller| {
            json!({
                "caller": one.caller, "samples": one.samples,
                "hit": one.hit, "found": one.found, "absent": one.absent,
            })
        };
        callers.iter().map(caller).collect::<Vec<_>>()
    });
    let costs = lru.costs.as_ref().ok().map(|costs| {
        let cost = |one: &crate::aggregate::LruCost| {
            json!({
                "outcome": one.outcome, "samples": one.samples, "mean_ns": one.mean_ns,
                "p50_ns": one.p50_ns.value(), "p99_ns": one.p99_ns.value(),
            })
        };
        costs.iter().map(cost).collect::<Vec<_>>()
    });
    let asked =
        lru.asked.as_ref().ok().map(|asked| {
            asked.iter().map(|(caller, n)| json!({ "caller": caller, "n": n })).collect::<Vec<_>>()
        });
    value["per_cpu"] = lru.per_cpu.iter().map(|row| lru_row("cpu", row)).collect();
    value["per_device"] = lru.per_device.iter().map(|row| lru_row("device", row)).collect();
    value["per_caller"] = json!(callers);
    value["costs"] = json!(costs);
    value["asked"] = json!(asked);
    value["pinned"] = json!(lru.pinned.value());
    value["sampling"] = json!(lru.sampling);
    value["samples_lost"] = json!(lru.samples_lost);
    value
}

fn lru_row(what: &str, row: &LruRow) -> Value {
    let mut value = counts(&row.counts);
    value[what] = json!(row.name);
    if what == "cpu" {
        value["emptied"] = json!(row.emptied.value());
        value["isolated"] = json!(row.isolated);
    }
    value
}

fn counts(counts: &LruCounts) -> Value {
    json!({
        "lookups": counts.lookups.value(),
        "hit": counts.hit.value(),
        "found": counts.found.value(),
        "absent": counts.absent.value(),
        "migrated": counts.migrated.value(),
        "hit_percent": counts.hit_percent(),
    })
}
