//! `profiler/bpf/lockscope.bpf.txt`: with what and of what the committed object was made. Must not hold anything that
//! differs between two machines with the same tools (no paths, no dates).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use super::toolchain::Toolchain;

/// The file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    rustc: String,
    llvm: String,
    linker: String,
    cargo: String,
    /// sha256 of the object.
    pub object: String,
    /// sha256 over the sources' names and contents.
    pub sources: String,
}

impl Record {
    /// The record of an object just built.
    pub fn new(tools: &Toolchain, object: &[u8], root: &Path) -> Result<Self> {
        Ok(Self {
            rustc: tools.rustc_version.clone(),
            llvm: tools.llvm_version.clone(),
            linker: tools.linker_version.clone(),
            cargo: tools.cargo_version.clone(),
            object: digest(object),
            sources: sources_digest(root)?,
        })
    }

    /// As it stands in the file.
    pub fn to_text(&self) -> String {
        let mut text =
            String::from("# Written by `cargo xtask bpf`; compared by `cargo xtask bpf --check`.\n");
        for (name, value) in self.fields() {
            text += &format!("{name}: {value}\n");
        }
        text
    }

    /// Reads the file back.
    pub fn parse(text: &str) -> Result<Self> {
        let get = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.map(str::to_owned).with_context(|| format!("lockscope.bpf.txt has no line `{name}: …`"))
        };
        let (rustc, llvm, linker, cargo) = (get("rustc")?, get("llvm")?, get("bpf-linker")?, get("cargo")?);
        Ok(Self {
            rustc,
            llvm,
            linker,
            cargo,
            object: get("object-sha256")?,
            sources: get("sources-sha256")?,
        })
    }

    /// The tools in which `now` differs, one a line; empty when they are the same.
    pub fn other_tools(&self, now: &Self) -> String {
        let pairs = self.fields().into_iter().zip(now.fields()).take(4);
        let others = pairs.filter(|(then, now)| then.1 != now.1);
        others
            .map(|((name, then), (_, now))| format!("  {name}: {now} (recorded: {then})"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Tools first: [`Record::other_tools`] counts on it.
    fn fields(&self) -> [(&'static str, &str); 6] {
        [
            ("rustc", &self.rustc),
            ("llvm", &self.llvm),
            ("bpf-linker", &self.linker),
            ("cargo", &self.cargo),
            ("object-sha256", &self.object),
            ("sources-sha256", &self.sources),
        ]
    }
}

/// sha256 over the names (from the root) and contents of everything the object is made of.
pub fn sources_digest(root: &Path) -> Result<String> {
    let mut files: Vec<PathBuf> =
        ["profiler-ebpf/Cargo.toml", "profiler-ebpf/Cargo.lock"].map(PathBuf::from).into();
    for folder in ["profiler-ebpf/src", "profiler-common/src"] {
        collect(root, Path::new(folder), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let content = fs::read(root.join(&file)).with_context(|| file.display().to_string())?;
        // The length keeps the end of one file from being read as the name of the next.
        hash.update(format!("{} {}\n", file.display(), content.len()));
        hash.update(&content);
    }
    Ok(hex(hash))
}

/// sha256 of an object.
pub fn digest(object: &[u8]) -> String {
    hex(Sha256::new().chain_update(object))
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder)).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => collect(root, &path, files)?,
            false if path.extension().is_some_and(|e| e == "rs") => files.push(path),
            // Editors' leftovers are no sources.
            false => {}
        }
    }
    Ok(())
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let [rustc, llvm, linker, cargo, object, sources] =
            ["r 1", "22.1", "l 0.13", "c 1", "00", "11"].map(String::from);
        Record { rustc, llvm, linker, cargo, object, sources }
    }

    #[test]
    fn a_record_survives_the_file() {
        assert_eq!(Record::parse(&record().to_text()).unwrap(), record());
        assert!(Record::parse("rustc: r 1\n").unwrap_err().to_string().contains("`llvm: …`"));
    }

    #[test]
    fn other_tools_are_named_and_other_hashes_are_not_tools() {
        let now = Record { llvm: "22.2".into(), object: "99".into(), ..record() };
        assert_eq!(record().other_tools(&now), "  llvm: 22.2 (recorded: 22.1)");
        assert_eq!(record().other_tools(&Record { object: "99".into(), ..record() }), "");
    }
}
