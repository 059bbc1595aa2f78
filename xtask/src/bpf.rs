//! `cargo xtask bpf`: compiles the kernel side into the object that is committed as `profiler/bpf/lockscope.bpf.o`,
//! the same bytes on every machine that has the same tools; `--check` proves it.
//! Must not need the network once its packages are there, nor touch the committed files in `--check`.

mod lint;
mod record;
mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::exec::{self, Exit};
use crate::setup;
use record::Record;
use toolchain::Toolchain;

const TARGET: &str = "bpfel-unknown-none";
const PACKAGE: &str = "profiler-ebpf";
/// The exit status of `--check` when this machine's tools are others than the recorded ones.
const OTHER_TOOLS: u8 = 4;
/// Set for the inner cargo's rustc wrapper, which is xtask itself.
const WRAPPER: &str = "LOCKSCOPE_XTASK_RUSTC_WRAPPER";

/// `cargo xtask bpf`
#[derive(Debug, Args)]
pub struct BpfArgs {
    /// Rebuild and compare with the committed object; write nothing outside target/. Exit status 1: they differ;
    /// 4: other tools than the recorded ones, so that the bytes cannot be compared.
    #[arg(long)]
    check: bool,
}

/// What `--check` found, when the committed object is not simply out of date (that is an error).
#[derive(Debug)]
pub enum Check {
    /// Byte for byte the same.
    Same,
    /// Built with other tools than the committed one, so other bytes prove nothing. Tests can run on the rebuilt
    /// object: `LOCKSCOPE_BPF_OBJECT=<object>`.
    OtherTools {
        /// The rebuilt object.
        object: PathBuf,
    },
}

/// Runs the subcommand.
pub fn command(args: &BpfArgs) -> Result<ExitCode> {
    if !args.check {
        return build().map(|()| ExitCode::SUCCESS);
    }
    match check()? {
        Check::Same => Ok(ExitCode::SUCCESS),
        Check::OtherTools { object } => {
            eprintln!("xtask bpf: try the rebuilt object with LOCKSCOPE_BPF_OBJECT={}", object.display());
            Ok(ExitCode::from(OTHER_TOOLS))
        }
    }
}

/// Compiles and writes the committed object and its record.
pub fn build() -> Result<()> {
    let (object, record) = rebuild(false)?;
    fs::create_dir_all(committed_object().parent().unwrap_or(Path::new("/")))?;
    fs::write(committed_object(), &object)?;
    fs::write(committed_record(), record.to_text())?;
    eprintln!(
        "xtask bpf: {} ({} bytes, sha256 {})",
        committed_object().display(),
        object.len(),
        record.object
    );
    Ok(())
}

/// Rebuilds below target/ and compares with what is committed.
pub fn check() -> Result<Check> {
    let (object, record) = rebuild(true)?;
    let rebuilt = setup::target().join("bpf-rebuilt/lockscope.bpf.o");
    fs::create_dir_all(rebuilt.parent().unwrap_or(Path::new("/")))?;
    fs::write(&rebuilt, &object)?;
    if committed()? == object {
        eprintln!("xtask bpf: the rebuilt object equals the committed one ({})", record.object);
        return Ok(Check::Same);
    }
    compare(&committed_text()?, &record, rebuilt)
}

fn compare(committed: &Record, now: &Record, rebuilt: PathBuf) -> Result<Check> {
    let others = committed.other_tools(now);
    if !others.is_empty() {
        eprintln!("xtask bpf: other tools than the recorded ones, bytes cannot be compared:\n{others}");
        return Ok(Check::OtherTools { object: rebuilt });
    }
    let why = match committed.sources == now.sources {
        true => "although sources and tools are the recorded ones: the build is not reproducible",
        false => "because the sources changed: run `cargo xtask bpf` and commit the result",
    };
    let message = format!(
        "profiler/bpf/lockscope.bpf.o (sha256 {}) differs from the rebuilt {} ({}), {why}",
        committed.object,
        rebuilt.display(),
        now.object
    );
    Err(Exit { code: 1, message }.into())
}

/// Says in what the committed object is behind its sources, without building anything.
pub fn stale() -> Result<Option<String>> {
    if !committed_record().exists() {
        return Ok(None);
    }
    committed()?;
    let same = committed_text()?.sources == record::sources_digest(&setup::root())?;
    Ok((!same)
        .then(|| "profiler/bpf/lockscope.bpf.o is older than its sources: run `cargo xtask bpf`".into()))
}

fn committed_object() -> PathBuf {
    setup::root().join("profiler/bpf/lockscope.bpf.o")
}

fn committed_record() -> PathBuf {
    setup::root().join("profiler/bpf/lockscope.bpf.txt")
}

/// The committed object, after a look whether its record belongs to it.
fn committed() -> Result<Vec<u8>> {
    let object = fs::read(committed_object()).context("no committed object; run `cargo xtask bpf`")?;
    let (is, recorded) = (record::digest(&object), committed_text()?.object);
    ensure!(is == recorded, "lockscope.bpf.o (sha256 {is}) is not the one of lockscope.bpf.txt ({recorded})");
    Ok(object)
}

fn committed_text() -> Result<Record> {
    let path = committed_record();
    Record::parse(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)
}

fn rebuild(locked: bool) -> Result<(Vec<u8>, Record)> {
    let tools = toolchain::ensure()?;
    eprintln!("xtask bpf: using {tools}");
    compile(&tools, locked)?;
    let built = setup::target().join("bpf").join(TARGET).join("release").join(PACKAGE);
    lint::no_panics(&fs::read(&built).with_context(|| built.display().to_string())?)?;
    let object = stripped(&tools, &built)?;
    let record = Record::new(&tools, &object, &setup::root())?;
    Ok((object, record))
}

/// Without debug sections (eight times smaller); .BTF and .BTF.ext stay, so verifier logs keep source lines.
fn stripped(tools: &Toolchain, built: &Path) -> Result<Vec<u8>> {
    let stripped = setup::target().join("bpf/stripped.o");
    exec::run(Command::new(&tools.objcopy).arg("--strip-debug").arg(built).arg(&stripped))?;
    fs::read(&stripped).with_context(|| stripped.display().to_string())
}

fn compile(tools: &Toolchain, locked: bool) -> Result<()> {
    let manifest = setup::root().join(PACKAGE).join("Cargo.toml");
    // First, so that the folders of unpacked crates exist and can be remapped. Without a network the build decides.
    if let Err(error) =
        exec::run(cargo(tools).arg("fetch").arg("--quiet").arg("--manifest-path").arg(&manifest))
    {
        eprintln!("xtask bpf: {error:#}; going on with what is here");
    }
    let mut cmd = cargo(tools);
    cmd.args(["build", "--release", "-Zbuild-std=core", "--target", TARGET]);
    cmd.arg("--manifest-path").arg(&manifest).arg("--target-dir").arg(setup::target().join("bpf"));
    cmd.args(locked.then_some("--locked"));
    cmd.env("CARGO_ENCODED_RUSTFLAGS", rustflags(tools)?.join("\x1f"));
    cmd.env("RUSTC_WRAPPER", std::env::current_exe()?).env(WRAPPER, "1");
    exec::run(&mut cmd)
}

/// The inner cargo: nothing of the outer build's settings may reach it.
fn cargo(tools: &Toolchain) -> Command {
    let mut cmd = Command::new(&tools.cargo);
    let outer = ["CARGO_BUILD_", "CARGO_PROFILE_", "CARGO_TARGET_", "CARGO_UNSTABLE_"];
    let exact = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_INCREMENTAL", "RUSTC_WORKSPACE_WRAPPER"];
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if outer.iter().any(|prefix| name.starts_with(prefix)) || exact.contains(&name.as_str()) {
            cmd.env_remove(name);
        }
    }
    // Unstable features (build-std) of a stable compiler, for this one build.
    cmd.env("RUSTC", &tools.rustc).env("RUSTC_BOOTSTRAP", "1");
    let path = std::env::var("PATH").unwrap_or_default();
    cmd.env("PATH", format!("{}:{path}", setup::tools().join("bin").display()));
    cmd
}

fn rustflags(tools: &Toolchain) -> Result<Vec<String>> {
    let fixed = ["--cfg=bpf_target_arch=\"x86_64\"", "-Ctarget-cpu=v3", "-Cdebuginfo=2", "-Clink-arg=--btf"];
    let mut flags: Vec<String> = fixed.map(String::from).into();
    let mut remap =
        |from: &Path, to: &str| flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    // The last match wins: from the general to the special.
    remap(&setup::root(), "/src");
    remap(&tools.cargo_home, "/cargo");
    for crates in registry_sources(&tools.cargo_home) {
        remap(&crates, "/cargo");
    }
    for library in tools.library_folders()? {
        remap(&library, "/rust");
    }
    Ok(flags)
}

/// `registry/src/<index>-<hash>`: the name depends on cargo's version and on mirrors, so it must not be seen.
fn registry_sources(cargo_home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cargo_home.join("registry/src")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    folders
}

/// When cargo has called us as its rustc wrapper: runs rustc and returns its exit status.
///
/// Cargo mixes the absolute path of a path dependency outside the workspace (profiler-common) into `-C metadata`, and
/// with it into mangled names: the same tree in another folder would give other bytes. Our own two crates therefore
/// get a fixed one.
pub fn as_rustc_wrapper() -> Option<Result<ExitCode>> {
    std::env::var_os(WRAPPER)?;
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        return None;
    }
    fix_metadata(&mut words);
    let status = Command::new(&words[0]).args(&words[1..]).env_remove(WRAPPER).status();
    let code = status.map(|status| ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)));
    Some(code.with_context(|| words[0].clone()))
}

fn fix_metadata(words: &mut [String]) {
    let name = words.iter().position(|word| word == "--crate-name").and_then(|at| words.get(at + 1)).cloned();
    let Some(name) = name.filter(|name| name.starts_with("profiler_")) else { return };
    for word in words.iter_mut().filter(|word| word.starts_with("metadata=")) {
        *word = format!("metadata=lockscope-{name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_crates_get_a_fixed_metadata() {
        let words = |name: &str| ["rustc", "--crate-name", name, "-C", "metadata=0123"].map(String::from);
        let (mut ours, mut other) = (words("profiler_common"), words("aya_ebpf"));
        fix_metadata(&mut ours);
        fix_metadata(&mut other);
        assert_eq!(ours[4], "metadata=lockscope-profiler_common");
        assert_eq!(other[4], "metadata=0123");
    }
}
