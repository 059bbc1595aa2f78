//! `cargo xtask tidy`: the rules of this repository that no compiler checks. Each rule is a function from the tree to
//! complaints. Must not repair anything, and must not know what rustfmt and clippy know.

mod functions;
mod mask;
mod stages;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{bpf, setup};

/// Names that say nothing about what is inside.
const VAGUE_NAMES: [&str; 3] = ["utils.rs", "helpers.rs", "manager.rs"];
/// Folders that are not ours to check.
const SKIPPED: [&str; 2] = ["target", ".git"];
/// Texts that no file may hold, and why. In halves, since this file is checked as well.
const FORBIDDEN_TEXTS: [(&str, &str); 9] = [
    (concat!("../", "shared"), "reads a folder outside the repository"),
    (concat!("work/", "shared"), "reads a folder outside the repository"),
    (concat!("crates", ".io"), "names a package registry"),
    (concat!("static.rust", "-lang.org"), "names a package registry"),
    (concat!("deb.debian", ".org"), "names a package registry"),
    (concat!("pypi", ".org"), "names a package registry"),
    (concat!("registry.npmjs", ".org"), "names a package registry"),
    (concat!("ghcr", ".io"), "names a package registry"),
    (concat!("docker", ".io"), "names a package registry"),
];

/// A file of the repository.
pub struct SourceFile {
    /// From the root folder.
    pub path: PathBuf,
    /// As it stands there.
    pub text: String,
    /// Comments and literals blanked out; empty unless it is Rust.
    pub code: String,
}

impl SourceFile {
    fn new(path: PathBuf, text: String) -> Self {
        let rust = path.extension().is_some_and(|e| e == "rs");
        let code = if rust { mask::code_only(&text) } else { String::new() };
        Self { path, text, code }
    }

    fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|e| e == "rs")
    }

    fn complain(&self, what: &str) -> String {
        format!("{}: {what}", self.path.display())
    }
}

/// Runs the subcommand.
pub fn command() -> Result<()> {
    let files = files(&setup::root())?;
    let mut complaints: Vec<String> = files.iter().flat_map(file_rules).collect();
    complaints.extend(stages::check(&files));
    let lengths = functions::Lengths::of(&files);
    println!("{lengths}");
    complaints.extend(lengths.complaints());
    complaints.extend(bpf::stale()?);
    if !complaints.is_empty() {
        bail!("tidy has {} complaints:\n  {}", complaints.len(), complaints.join("\n  "));
    }
    println!("tidy: {} files, nothing to complain about", files.len());
    Ok(())
}

/// What every file must keep to, whatever its folder.
fn file_rules(file: &SourceFile) -> Vec<String> {
    let mut complaints = Vec::new();
    if file.is_rust() && !file.text.starts_with("//!") {
        complaints.push(file.complain("must open with //! (what it is, what it must not do)"));
    }
    if VAGUE_NAMES.iter().any(|name| file.path.file_name().is_some_and(|own| own == *name)) {
        complaints.push(file.complain("a name that says nothing; name it after what it does"));
    }
    complaints.extend(forbidden_texts(file));
    complaints
}

fn forbidden_texts(file: &SourceFile) -> Vec<String> {
    // Written by cargo, which names its registry there.
    if file.path.file_name().is_some_and(|name| name == "Cargo.lock") {
        return Vec::new();
    }
    let found = FORBIDDEN_TEXTS.iter().filter(|(text, _)| file.text.contains(text));
    found.map(|(text, why)| file.complain(&format!("{why} ({text})"))).collect()
}

/// Every text file below `root`, sorted.
fn files(root: &Path) -> Result<Vec<SourceFile>> {
    let mut paths = Vec::new();
    walk(root, Path::new(""), &mut paths)?;
    paths.sort();
    // What is not UTF-8 is data (the BPF object, recordings).
    let read = |path: PathBuf| Some(SourceFile::new(path.clone(), fs::read_to_string(root.join(path)).ok()?));
    Ok(paths.into_iter().filter_map(read).collect())
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder)).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED.iter().any(|name| entry.file_name() == *name) {
            walk(root, &path, paths)?;
        } else if kind.is_file() {
            paths.push(path);
        }
    }
    Ok(())
}

/// A file for the tests of the rules.
#[cfg(test)]
fn example(path: &str, text: &str) -> SourceFile {
    SourceFile::new(path.into(), text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_purpose_or_with_a_vague_name_is_complained_about() {
        assert!(file_rules(&example("a/probe.rs", "//! Good.\nfn f() {}\n")).is_empty());
        assert_eq!(file_rules(&example("a/probe.rs", "fn f() {}\n")).len(), 1);
        assert_eq!(file_rules(&example("a/utils.rs", "//! Bad name.\n")).len(), 1);
    }

    #[test]
    fn outside_folders_and_registries_are_found_in_any_file_but_a_lock_file() {
        let text = format!("see {} and {}", FORBIDDEN_TEXTS[0].0, FORBIDDEN_TEXTS[2].0);
        assert_eq!(file_rules(&example("README.md", &text)).len(), 2);
        assert!(file_rules(&example("Cargo.lock", &text)).is_empty());
    }
}
