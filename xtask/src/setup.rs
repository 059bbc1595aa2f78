//! What this machine must have: Debian packages by group, and where the project's own tools live.
//! Must not build or run anything of lockscope, nor name an address to download from: apt and cargo know theirs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use anyhow::{Context as _, Result};

use crate::exec::{self, cannot_here};

/// Packages that belong together because one command needs them.
pub struct Group {
    /// What needs them; shown in messages.
    pub what: &'static str,
    /// Debian's names.
    pub packages: &'static [&'static str],
}

/// The compiler, library sources and LLVM for the BPF object. All of one LLVM major (22): bpf-linker reads what
/// rustc writes. libpolly, zlib and zstd are what LLVM's own link line asks for when bpf-linker is built.
pub const BPF: Group = Group {
    what: "the BPF object",
    packages: &[
        "rustc-web",
        "rust-web-src",
        "llvm-22-dev",
        "llvm-22",
        "libpolly-22-dev",
        "zlib1g-dev",
        "libzstd-dev",
        "gcc",
        "g++",
    ],
};

/// The emulator (its -common package holds virtiofsd), the initrd's shell, the module tools, mke2fs.
pub const VM: Group = Group {
    what: "virtual machines",
    packages: &[
        "qemu-system-x86",
        "qemu-system-common",
        "busybox-static",
        "kmod",
        "xz-utils",
        "e2fsprogs",
        "iproute2",
        "bash",
    ],
};

/// What the tests compare with or drive.
pub const TEST: Group =
    Group { what: "the tests", packages: &["linux-perf", "e2fsprogs", "util-linux", "python3", "tmux"] };

/// The project's root folder: the parent of xtask's own.
pub fn root() -> PathBuf {
    // Cargo sets it at run time too: a copied tree that shares a target folder must not build the other tree.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().unwrap_or(Path::new("/")).to_path_buf()
}

/// The project's own `target/`, wherever cargo's may be: tools, kernels and run folders live here.
pub fn target() -> PathBuf {
    root().join("target")
}

/// Where programs are installed that only this project uses.
pub fn tools() -> PathBuf {
    target().join("tools")
}

/// Makes sure that the packages of `groups` are installed: installs what is missing when root, else says how.
pub fn ensure(groups: &[&Group]) -> Result<()> {
    let packages: Vec<&str> = groups.iter().flat_map(|group| group.packages).copied().collect();
    let what: Vec<&str> = groups.iter().map(|group| group.what).collect();
    ensure_packages(&packages).with_context(|| format!("packages for {}", what.join(", ")))
}

/// The same for a list of package names.
pub fn ensure_packages(packages: &[&str]) -> Result<()> {
    if !is_debian() {
        return Err(not_debian(packages));
    }
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        return Err(cannot_here(format!(
            "these Debian packages are missing; install them as root and try again:\n  apt-get update && \
             apt-get install -y --no-install-recommends {}",
            missing.join(" ")
        )));
    }
    eprintln!("xtask: installing {}", missing.join(" "));
    apt_update();
    exec::run(apt().args(["install", "-y", "--no-install-recommends"]).args(&missing))
}

/// Refreshes apt's lists, at most once per process. One source of several may be down: what counts is whether the
/// packages can be had afterwards, so a failure is only reported.
pub fn apt_update() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(error) = exec::run(apt().arg("update")) {
            eprintln!("xtask: {error:#}; going on with the lists as they are");
        }
    });
}

/// apt-get that never asks and keeps our stdout clean (data only).
pub fn apt() -> Command {
    let mut cmd = exec::system("apt-get");
    // As root it would warn that its own user cannot write to our folder.
    cmd.args(["-qq", "-o", "APT::Sandbox::User=root", "-o", "DPkg::Lock::Timeout=300"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(std::io::stderr());
    cmd
}

/// Whether we run as root (user id only: what root may do here shows when it is tried).
pub fn is_root() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether this machine has Debian's package tools.
pub fn is_debian() -> bool {
    ["/usr/bin/dpkg-query", "/usr/bin/apt-get"].iter().all(|tool| Path::new(tool).exists())
}

fn not_debian(packages: &[&str]) -> anyhow::Error {
    cannot_here(format!(
        "this machine has no apt-get/dpkg; this command is set up for Debian 12. It needs what these packages hold: {}",
        packages.join(" ")
    ))
}

fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    let mut query = exec::system("dpkg-query");
    query.args(["-W", "-f", "${Package} ${db:Status-Status}\n"]).args(packages);
    // Its exit status is 1 as soon as one name is unknown; the list is still complete.
    let listed = String::from_utf8_lossy(&exec::any_status(&mut query)?.stdout).into_owned();
    let installed = |name: &str| listed.lines().any(|line| line == format!("{name} installed"));
    Ok(packages.iter().copied().filter(|name| !installed(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_holds_this_crate() {
        assert!(root().join("xtask/src/setup.rs").exists());
    }

    #[test]
    fn only_what_is_not_installed_is_missing() {
        if !is_debian() {
            println!("SKIP only_what_is_not_installed_is_missing: no dpkg-query here");
            return;
        }
        assert_eq!(missing(&["dpkg", "no-such-package-lockscope"]).unwrap(), ["no-such-package-lockscope"]);
    }
}
