//! The report as JSON, schema `lockscope.report.v1` (docs/report-v1.schema.json).
//!
//! Must not print a number for what was not measured: that is `null`, with its reason in `coverage`. Names from
//! outside are escaped as in the table, so that a terminal survives `jq -r`.

use serde_json::{Map, Value, json};

use super::subsystems_json;
use crate::aggregate::{Bucket, Coverage, Open, OwnCost, Owner, Reading, Report, Row, Table};
use crate::terminal::{printable, printable_str};
use profiler_common::cell::Outcome;

/// Name and version of the format.
pub const SCHEMA: &str = "lockscope.report.v1";

/// The whole report.
pub fn render(report: &Report) -> Value {
    let table = &report.table;
    let value = json!({
        "schema": SCHEMA,
        "host": report.meta.host,
        "kernel": report.meta.kernel,
        "cpus": report.meta.online_cpus,
        "window_ns": table.window_ns,
        "coverage": coverage(report),
        "losses": counts(&table.losses),
        "own_cost": own_cost(&table.own_cost),
        "rows": table.rows.iter().map(row).collect::<Vec<_>>(),
        "in_progress": table.in_progress.iter().map(open).collect::<Vec<_>>(),
    });
    escape(merged(merged(value, about(report)), subsystems_json::sections(table)))
}

/// What is said beside the contract.
fn about(report: &Report) -> Value {
    let (meta, table) = (&report.meta, &report.table);
    json!({
        "version": meta.version,
        "possible_cpus": meta.possible_cpus,
        "started_unix_s": meta.started_unix_s,
        "command": meta.command,
        "selection": meta.selection,
        "min_wait_ns": meta.min_wait_ns,
        "whole_recording": table.whole,
        "ended": report.end.as_ref().map(|end| json!({
            "reason": end.reason,
            "command_status": end.command_status,
        })),
        "truncated": report.truncated,
        "tallies": counts(&table.tallies),
        "other": buckets(&table.other),
        "below_minimum": buckets(&table.below_minimum),
        "totals": totals(table),
    })
}

fn totals(table: &Table) -> Value {
    json!({
        "contentions": table.totals.contentions,
        "wait_ns": table.totals.wait_ns,
        "wait_load": load(table.wait_load(), table.window_ns),
        "interrupted": { "n": table.totals.interrupted_n, "ns": table.totals.interrupted_ns },
        "written_off": { "n": table.written_off, "ns": table.written_off_ns },
    })
}

/// The host's coverage, then the gaps of single rows: every `null` of a row finds its reason here.
fn coverage(report: &Report) -> Vec<Value> {
    let mut lines: Vec<Value> = report.meta.coverage.iter().map(coverage_line).collect();
    let gaps = gaps(&report.table.rows).into_iter().map(|(metric, reason)| (metric.to_owned(), reason));
    let gaps = gaps.chain(subsystems_json::gaps(&report.table));
    for (metric, reason) in gaps {
        lines.push(json!({
            "probe": "report", "metric": metric, "hook": null, "state": "partial", "reason": reason,
        }));
    }
    lines
}

fn coverage_line(line: &Coverage) -> Value {
    json!({
        "probe": line.probe,
        "metric": line.metric,
        "hook": line.hook,
        "state": line.state,
        "reason": line.reason,
    })
}

/// Each (metric, reason) for which some row has a `null`.
fn gaps(rows: &[Row]) -> Vec<(&'static str, String)> {
    let mut gaps = Vec::new();
    let mut note = |metric, reason: String| {
        if !gaps.contains(&(metric, reason.clone())) {
            gaps.push((metric, reason));
        }
    };
    for row in rows {
        let parts = [("handed_off", &row.handed_off), ("handoff_class", &row.handoff_class)];
        let parts = parts.into_iter().filter(|_| row.outcomes.is_ok());
        for (metric, reading) in readings(row).into_iter().chain(parts) {
            match reading {
                Reading::Missing(reason) => note(metric, gap(row.kind, reason)),
                Reading::TooFew => note(metric, "too few finished waits in a row".to_string()),
                Reading::Exact(_) | Reading::Estimate(_) => {}
            }
        }
        if let Err(reason) = &row.outcomes {
            note("outcomes", gap(row.kind, reason));
        }
    }
    gaps.extend(standing_gaps(rows));
    gaps
}

/// The reason with the kind it is for; a reason that says *only* is for all kinds.
fn gap(kind: &str, reason: &str) -> String {
    if reason.ends_with(" only") { reason.to_string() } else { format!("{kind}: {reason}") }
}

/// What no row has yet, or not every row can have.
fn standing_gaps(rows: &[Row]) -> Vec<(&'static str, String)> {
    let mut gaps = Vec::new();
    if rows.iter().any(|row| row.instance.is_none()) {
        let reason = "classes whose objects have no identity of their own have no instance, nor has a lock without a class";
        gaps.push(("instance", reason.to_string()));
    }
    if rows.iter().any(|row| row.class.is_none()) {
        let reason = "not in an object of a known type, nor a symbol: kmalloc, per-CPU or module data";
        gaps.push(("class", reason.to_string()));
    }
    if rows.iter().any(|row| row.caller.is_none()) {
        gaps.push((
            "caller",
            "the stack was not walked, or has no function outside the lock code".to_string(),
        ));
    }
    gaps
}

fn readings(row: &Row) -> [(&'static str, &Reading); 6] {
    [
        ("max_ns", &row.max_ns),
        ("p50_ns", &row.p50_ns),
        ("p99_ns", &row.p99_ns),
        ("spin_ns", &row.spin_ns),
        ("queue_ns", &row.queue_ns),
        ("steals_past_waiters", &row.steals_past_waiters),
    ]
}

fn row(row: &Row) -> Value {
    let mut value = json!({
        "kind": row.kind,
        "class": row.class,
        "instance": row.instance,
        "lock_id": row.lock_id,
        "name": row.name,
        "caller": row.caller,
        "mode": row.mode,
        "workload": row.workload,
        "contentions": row.sums.contentions,
        "finished": row.sums.finished,
        "wait_ns": row.sums.wait_ns,
        "wait_load": load(row.wait_load(), row.window_ns),
        "max_estimated": matches!(row.max_ns, Reading::Estimate(_)),
        "outcomes": outcomes(row),
        "interrupted": { "n": row.sums.interrupted_n, "ns": row.sums.interrupted_ns },
        "in_progress": {
            "n": row.in_progress.n,
            "elapsed_ns": row.in_progress.elapsed_ns,
            "max_age_ns": row.in_progress.max_age_ns,
        },
    });
    for (name, reading) in readings(row) {
        value[name] = json!(reading.value());
    }
    merged(value, shares(row))
}

fn shares(row: &Row) -> Value {
    let owners = row.owners.iter().map(|share| {
        merged(
            owner(Some(&share.owner), &share.comm, share.on_cpu),
            json!({ "n": share.n, "wait_ns": share.wait_ns }),
        )
    });
    let processes = row.processes.iter().map(|share| {
        json!({ "tgid": share.tgid, "comm": printable(&share.comm), "n": share.n, "wait_ns": share.wait_ns })
    });
    let stacks = row
        .stacks
        .iter()
        .map(|share| json!({ "frames": share.frames, "n": share.n, "wait_ns": share.wait_ns }));
    json!({
        "owners": owners.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
        "stacks": stacks.collect::<Vec<_>>(),
    })
}

/// Who: a process's name, `readers`, `unknown`; `null` where the lock keeps no owner.
fn owner(owner: Option<&Owner>, comm: &[u8], on_cpu: Option<bool>) -> Value {
    let (name, tgid) = match owner {
        Some(Owner::Process(tgid)) => (Some(printable(comm)), Some(*tgid)),
        Some(Owner::Readers) => (Some("readers".to_string()), None),
        Some(Owner::Unknown) => (Some("unknown".to_string()), None),
        None => (None, None),
    };
    let sort = match owner {
        Some(Owner::Process(_)) => Some("process"),
        Some(Owner::Readers) => Some("readers"),
        Some(Owner::Unknown) => Some("unknown"),
        None => None,
    };
    json!({ "owner": name, "owner_type": sort, "tgid": tgid, "on_cpu": on_cpu })
}

fn outcomes(row: &Row) -> Value {
    let Ok(counts) = &row.outcomes else { return Value::Null };
    json!({
        "stolen": counts.get(Outcome::Stolen),
        "fast": counts.get(Outcome::Fast),
        "queued_readers": counts.get(Outcome::QueuedReader),
        "spun": counts.get(Outcome::Spun),
        "queued_writers": counts.get(Outcome::QueuedWriter),
        "interrupted": counts.interrupted(),
        "handed_off": row.handed_off.value(),
        "stolen_past_waiters": counts.get(Outcome::StolenPastWaiters),
        "predicate_disagreed": counts.get(Outcome::PredicateDisagreed),
        "handoff_class": row.handoff_class.value(),
    })
}

/// Outcomes of waits that have no row; `null` for kinds that have none.
fn bucket_outcomes(bucket: &Bucket) -> Value {
    if bucket.kind != "rwsem" {
        return Value::Null;
    }
    let get = |outcome| bucket.outcomes.get(outcome);
    json!({
        "stolen": get(Outcome::Stolen),
        "fast": get(Outcome::Fast),
        "queued_readers": get(Outcome::QueuedReader),
        "spun": get(Outcome::Spun),
        "queued_writers": get(Outcome::QueuedWriter),
        "interrupted": bucket.outcomes.interrupted(),
        "stolen_past_waiters": get(Outcome::StolenPastWaiters),
    })
}

fn open(open: &Open) -> Value {
    json!({
        "kind": open.kind,
        "class": open.class,
        "lock_id": open.lock_id,
        "name": open.name,
        "mode": open.mode,
        "workload": open.workload,
        "tid": open.tid,
        "tgid": open.tgid,
        "comm": printable(&open.comm),
        "age_ns": open.age_ns,
        "queued": open.queued,
        "owner": owner(open.owner.as_ref(), &open.owner_comm, open.owner_on_cpu),
    })
}

fn own_cost(cost: &OwnCost) -> Value {
    let programs = cost.programs.iter().map(|program| {
        json!({
            "name": program.name,
            "run_count": program.run_count,
            "run_ns": program.run_ns,
            "recursion_misses": program.recursion_misses,
            "verified_instructions": program.verified_instructions,
        })
    });
    json!({
        "own_cpu_ns": cost.own_cpu_ns,
        "own_cpu_percent": cost.own_cpu_percent,
        "bpf_runs": cost.bpf_runs,
        "bpf_ns": cost.bpf_ns,
        "bpf_ns_per_run": cost.bpf_ns_per_run(),
        "recursion_misses": cost.recursion_misses,
        "map_bytes": cost.map_bytes,
        "programs": programs.collect::<Vec<_>>(),
    })
}

fn buckets(buckets: &[Bucket]) -> Vec<Value> {
    let bucket = |bucket: &Bucket| {
        json!({
            "kind": bucket.kind,
            "mode": bucket.mode,
            "contentions": bucket.sums.contentions,
            "wait_ns": bucket.sums.wait_ns,
            "max_ns": bucket.max_ns,
            "outcomes": bucket_outcomes(bucket),
            "interrupted": { "n": bucket.sums.interrupted_n, "ns": bucket.sums.interrupted_ns },
        })
    };
    buckets.iter().map(bucket).collect()
}

fn counts(counts: &[(String, u64)]) -> Value {
    Value::Object(counts.iter().map(|(name, n)| (name.clone(), json!(n))).collect())
}

/// An empty window has no load.
fn load(load: f64, window_ns: u64) -> Value {
    if window_ns == 0 { Value::Null } else { json!(load) }
}

fn merged(mut value: Value, more: Value) -> Value {
    if let (Value::Object(to), Value::Object(from)) = (&mut value, more) {
        to.extend(from);
    }
    value
}

/// Every text in it, keys included, made safe for a terminal.
fn escape(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable_str(&text)),
        Value::Array(items) => Value::Array(items.into_iter().map(escape).collect()),
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| (printable_str(&key), escape(value)));
            Value::Object(members.collect::<Map<_, _>>())
        }
        other => other,
    }
}
