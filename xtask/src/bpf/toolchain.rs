//! Finds (and where it may, installs) what compiles BPF: a rustc whose LLVM has bpf-linker's major version, the
//! library sources that go with it, bpf-linker, llvm-objcopy. Must not download toolchains.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::exec::{self, cannot_here};
use crate::setup;

const LLVM_MAJOR: &str = "22";
const LINKER_VERSION: &str = "0.13.0";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// Everything needed, with versions.
#[derive(Debug)]
pub struct Toolchain {
    /// The compiler itself, not rustup's proxy.
    pub rustc: PathBuf,
    /// Its library sources: `<sysroot>/lib/rustlib/src/rust`.
    library: PathBuf,
    /// What drives it.
    pub cargo: PathBuf,
    /// Where cargo unpacks crates.
    pub cargo_home: PathBuf,
    /// Of the compiler's LLVM major.
    pub objcopy: PathBuf,
    /// First line of `rustc -vV`.
    pub rustc_version: String,
    /// rustc's LLVM.
    pub llvm_version: String,
    /// `bpf-linker --version`.
    pub linker_version: String,
    /// `cargo --version`.
    pub cargo_version: String,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rustc, rustc_version, llvm_version, linker_version, cargo_version, .. } = self;
        write!(
            f,
            "{} ({rustc_version}, LLVM {llvm_version}), {linker_version}, {cargo_version}",
            rustc.display()
        )
    }
}

impl Toolchain {
    /// Debian's library folder is a link: both names can end up in the object.
    pub fn library_folders(&self) -> Result<Vec<PathBuf>> {
        let real = self.library.canonicalize().with_context(|| self.library.display().to_string())?;
        Ok(vec![self.library.clone(), real])
    }
}

/// A compiler that can build `core` for BPF.
struct Compiler {
    rustc: PathBuf,
    library: PathBuf,
    version: String,
    llvm: String,
}

/// Finds the tools; installs Debian's packages and bpf-linker where they are missing.
pub fn ensure() -> Result<Toolchain> {
    if setup::is_debian() {
        setup::ensure(&[&setup::BPF])?;
    }
    let compiler = compiler()?;
    let objcopy = objcopy()?;
    let linker_version = ensure_linker()?;
    let cargo = PathBuf::from(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    Ok(Toolchain {
        rustc: compiler.rustc,
        library: compiler.library,
        cargo_version: exec::output(Command::new(&cargo).arg("--version"))?.trim().to_owned(),
        cargo,
        cargo_home: cargo_home()?,
        objcopy,
        rustc_version: compiler.version,
        llvm_version: compiler.llvm,
        linker_version,
    })
}

/// Debian's first: it is a package with a fixed version; then whatever rustup has.
fn compiler() -> Result<Compiler> {
    let candidates = std::iter::once(PathBuf::from(DEBIAN_RUSTC)).chain(rustup_compilers());
    candidates.filter_map(|rustc| inspect(&rustc)).next().ok_or_else(|| {
        cannot_here(format!(
            "no rustc with LLVM {LLVM_MAJOR} and its library sources. Debian 12: rustc-web and rust-web-src; with rustup: \
             a toolchain up to 1.98 and its component rust-src"
        ))
    })
}

fn rustup_compilers() -> Vec<PathBuf> {
    let listed =
        exec::output(Command::new("rustup").args(["toolchain", "list", "--quiet"])).unwrap_or_default();
    let which =
        |name| exec::output(Command::new("rustup").args(["which", "rustc", "--toolchain", name])).ok();
    listed.split_whitespace().filter_map(which).map(|path| PathBuf::from(path.trim())).collect()
}

/// `None` when it is not there or does not fit.
fn inspect(rustc: &Path) -> Option<Compiler> {
    let about = exec::output(Command::new(rustc).arg("-vV")).ok()?;
    let llvm = about.lines().find_map(|line| line.strip_prefix("LLVM version: "))?.to_owned();
    let sysroot = exec::output(Command::new(rustc).args(["--print", "sysroot"])).ok()?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    let fits = llvm.split('.').next() == Some(LLVM_MAJOR) && library.join("library/core").is_dir();
    fits.then(|| Compiler {
        rustc: rustc.into(),
        library,
        version: about.lines().next().unwrap_or("").into(),
        llvm,
    })
}

fn llvm_prefix() -> PathBuf {
    std::env::var_os("LLVM_PREFIX")
        .map_or_else(|| format!("/usr/lib/llvm-{LLVM_MAJOR}").into(), PathBuf::from)
}

fn objcopy() -> Result<PathBuf> {
    let path = llvm_prefix().join("bin/llvm-objcopy");
    match path.exists() {
        true => Ok(path),
        false => {
            Err(cannot_here(format!("no {} (LLVM {LLVM_MAJOR}; LLVM_PREFIX tells where)", path.display())))
        }
    }
}

fn ensure_linker() -> Result<String> {
    let linker = setup::tools().join("bin/bpf-linker");
    let wanted = format!("bpf-linker {LINKER_VERSION}");
    if linker_version(&linker).as_deref() != Some(&wanted) {
        install_linker()?;
    }
    linker_version(&linker).with_context(|| format!("{} does not run", linker.display()))
}

fn linker_version(linker: &Path) -> Option<String> {
    Some(exec::output(Command::new(linker).arg("--version")).ok()?.trim().to_owned())
}

fn install_linker() -> Result<()> {
    eprintln!("xtask bpf: installing bpf-linker {LINKER_VERSION} into {}", setup::tools().display());
    let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"]);
    cmd.args(["--no-default-features", "--features", &format!("llvm-{LLVM_MAJOR}"), "--root"])
        .arg(setup::tools());
    cmd.env("LLVM_PREFIX", llvm_prefix());
    ["CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"].iter().for_each(|name| {
        cmd.env_remove(name);
    });
    exec::run(&mut cmd)
}

fn cargo_home() -> Result<PathBuf> {
    let default = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(default);
    home.context("neither CARGO_HOME nor HOME is set")
}
