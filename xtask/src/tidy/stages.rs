//! The stage rules: which folder of profiler/src may know which (ARCHITECTURE.md). One table. Looks at `crate::…`
//! paths outside test code; must not try to understand more of the language.

use std::path::Path;

use super::SourceFile;
use super::functions::without_tests;

/// What a folder may use.
struct Stage {
    /// Below profiler/src.
    folder: &'static str,
    /// The modules of the crate it may name.
    may_use: &'static [&'static str],
}

const STAGES: [Stage; 11] = [
    Stage { folder: "probes", may_use: &["probes", "load", "kernel", "snapshot"] },
    Stage { folder: "load", may_use: &["load", "kernel", "probes", "snapshot"] },
    Stage { folder: "kernel", may_use: &["kernel"] },
    Stage { folder: "snapshot", may_use: &["snapshot"] },
    Stage { folder: "identity", may_use: &["identity", "kernel", "snapshot"] },
    Stage { folder: "aggregate", may_use: &["aggregate", "snapshot"] },
    Stage { folder: "view", may_use: &["view", "aggregate", "fields", "snapshot", "terminal"] },
    Stage {
        folder: "export",
        may_use: &["export", "aggregate", "fields", "snapshot", "identity", "terminal"],
    },
    Stage { folder: "recording", may_use: &["recording", "snapshot", "identity"] },
    Stage { folder: "workload", may_use: &["workload", "kernel"] },
    Stage { folder: "stress", may_use: &["stress"] },
];

/// The one part of `snapshot` that sees maps: it turns them into plain types.
const READER: &str = "snapshot/read";
const READER_MAY_USE: [&str; 2] = ["load", "probes"];

/// `aggregate` is pure functions: no maps, no runtime, no files, no clock, no terminal.
const PURE: &str = "aggregate";
const IMPURE_CRATES: [&str; 4] = ["aya", "tokio", "ratatui", "crossterm"];
const IMPURE_STD: [&str; 2] = ["fs", "time"];

/// These never need unsafe code, and say so.
const SAFE_ONLY: [&str; 3] = ["aggregate", "export", "view"];
const FORBID_UNSAFE: &str = "#![forbid(unsafe_code)]";

/// Complaints about all files.
pub fn check(files: &[SourceFile]) -> Vec<String> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<String> {
    let Ok(inside) = file.path.strip_prefix("profiler/src") else { return Vec::new() };
    let Some(stage) = STAGES.iter().find(|stage| belongs(inside, stage.folder)) else { return Vec::new() };
    let code = without_tests(&file.code);
    let mut complaints = uses(file, inside, stage, &code);
    if stage.folder == PURE {
        complaints.extend(impurities(file, &code));
    }
    if SAFE_ONLY.contains(&stage.folder)
        && is_module_root(inside, stage.folder)
        && !code.contains(FORBID_UNSAFE)
    {
        complaints.push(file.complain(&format!("must say {FORBID_UNSAFE}")));
    }
    complaints
}

/// `folder/…` and, when the module's root lies beside its folder, `folder.rs`.
fn belongs(inside: &Path, folder: &str) -> bool {
    inside.starts_with(folder) || inside == Path::new(&format!("{folder}.rs"))
}

fn is_module_root(inside: &Path, folder: &str) -> bool {
    inside == Path::new(&format!("{folder}/mod.rs")) || inside == Path::new(&format!("{folder}.rs"))
}

fn uses(file: &SourceFile, inside: &Path, stage: &Stage, code: &str) -> Vec<String> {
    let reader = belongs(inside, READER);
    let allowed = |name: &str| stage.may_use.contains(&name) || (reader && READER_MAY_USE.contains(&name));
    let mut forbidden: Vec<String> =
        first_segments(code, "crate").into_iter().filter(|name| !allowed(name)).collect();
    forbidden.sort();
    forbidden.dedup();
    let complain = |name| file.complain(&format!("{} must not know crate::{name}", stage.folder));
    forbidden.into_iter().map(complain).collect()
}

fn impurities(file: &SourceFile, code: &str) -> Vec<String> {
    let crates = IMPURE_CRATES
        .iter()
        .filter(|name| words(code).any(|word| word == **name))
        .map(|name| (*name).to_owned());
    let std = first_segments(code, "std").into_iter().filter(|name| IMPURE_STD.contains(&name.as_str()));
    let found = crates.chain(std.map(|name| format!("std::{name}")));
    found.map(|what| file.complain(&format!("{PURE} is pure and must not know {what}"))).collect()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The names right behind `root::`, through groups: `crate::{a, b::c}` gives a and b.
fn first_segments(code: &str, root: &str) -> Vec<String> {
    let path = format!("{root}::");
    let starts = code.match_indices(&path).filter(|(at, _)| is_path_start(&code[..*at]));
    starts.flat_map(|(at, _)| names(code[at + path.len()..].trim_start())).collect()
}

/// Not `other_crate::` and not `a::std::`; `$crate::` in a macro is the crate itself.
fn is_path_start(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') || before.ends_with(" ::")
}

fn names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return vec![first_word(rest)] };
    let (mut depth, mut start) = (0usize, 0);
    let mut found = Vec::new();
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                found.push(first_word(&group[start..at]));
                start = at + 1;
            }
            '}' => {
                found.push(first_word(&group[start..at]));
                break;
            }
            _ => {}
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        check(&[example(path, text)])
    }

    #[test]
    fn groups_and_plain_paths_are_seen_comments_and_tests_are_not() {
        let code = "use crate::{a, b::{c, d},\n e};\nfn f() { crate::g::h(); other_crate::i(); }";
        assert_eq!(first_segments(code, "crate"), ["a", "b", "e", "g"]);
        let hidden =
            "//! x\n// crate::view\nlet s = \"crate::view\";\n#[cfg(test)]\nmod tests { use crate::view; }\n";
        assert!(complaints("profiler/src/kernel/btf.rs", hidden).is_empty());
    }

    #[test]
    fn a_stage_may_know_only_what_the_table_says() {
        assert!(complaints("profiler/src/load/mod.rs", "use crate::kernel::Btf;").is_empty());
        let found = complaints("profiler/src/load/mod.rs", "use crate::view::Screen; use crate::view::Key;");
        assert_eq!(found, ["profiler/src/load/mod.rs: load must not know crate::view"]);
        assert!(complaints("profiler/src/app.rs", "use crate::view::Screen;").is_empty());
    }

    #[test]
    fn only_the_reader_of_snapshots_sees_maps() {
        assert!(complaints("profiler/src/snapshot/read.rs", "use crate::load::Maps;").is_empty());
        assert_eq!(complaints("profiler/src/snapshot/cell.rs", "use crate::load::Maps;").len(), 1);
    }

    #[test]
    fn aggregate_is_pure_and_forbids_unsafe() {
        let path = "profiler/src/aggregate/mod.rs";
        assert!(complaints(path, "#![forbid(unsafe_code)]\nuse std::collections::BTreeMap;").is_empty());
        assert_eq!(complaints(path, "#![forbid(unsafe_code)]\nuse std::{fs, io};\nuse aya::Ebpf;").len(), 2);
        assert_eq!(complaints(path, "fn f(t: std::time::Instant) {}").len(), 2);
        assert!(complaints("profiler/src/aggregate/delta.rs", "fn papaya() {}").is_empty());
    }
}
