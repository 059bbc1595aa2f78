//! The kernels that lockscope is tried on, and how they get here: Debian's packages, fetched by apt and unpacked into
//! `target/vm/kernels/<name>/`. Must not boot anything.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::{exec, setup};

/// A kernel of the test matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// Debian 12's cloud kernel: no FPROBE; ext4, jbd2 and mbcache built in.
    #[value(name = "6.1-cloud")]
    Cloud61,
    /// The backported cloud kernel: FPROBE and IBT.
    #[value(name = "6.12-cloud")]
    Cloud612,
    /// Debian 12's generic kernel: ext4, jbd2, mbcache and xfs are modules (split BTF).
    #[value(name = "6.1")]
    Generic61,
    /// The backported real-time kernel: modules too, sleeping spinlocks.
    #[value(name = "6.12-rt")]
    Rt612,
}

impl Kernel {
    /// The name on the command line and of the folder.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    fn meta_package(self) -> &'static str {
        self.row().1
    }

    fn row(self) -> (&'static str, &'static str) {
        match self {
            Self::Cloud61 => ("6.1-cloud", "linux-image-cloud-amd64"),
            Self::Cloud612 => ("6.12-cloud", "linux-image-6.12-cloud-amd64"),
            Self::Generic61 => ("6.1", "linux-image-amd64"),
            Self::Rt612 => ("6.12-rt", "linux-image-6.12-rt-amd64"),
        }
    }
}

/// A kernel that lies ready.
#[derive(Debug)]
pub struct Unpacked {
    /// Holds `boot/` and `lib/modules/`.
    pub dir: PathBuf,
    /// `uname -r`.
    pub release: String,
}

impl Unpacked {
    /// The file to boot.
    pub fn image(&self) -> PathBuf {
        self.dir.join("boot").join(format!("vmlinuz-{}", self.release))
    }
}

/// Fetches and unpacks `kernel` unless that was done before (delete the folder to get a newer one).
pub fn ensure(kernel: Kernel) -> Result<Unpacked> {
    let kernels = setup::target().join("vm/kernels");
    fs::create_dir_all(&kernels)?;
    let _lock = lock(&kernels.join("lock"))?;
    let dir = kernels.join(kernel.name());
    if !dir.exists() {
        fetch(kernel, &dir).with_context(|| format!("fetching kernel {}", kernel.name()))?;
    }
    Ok(Unpacked { release: only_entry(&dir.join("lib/modules"))?, dir })
}

/// Two commands started together must not unpack into one folder.
fn lock(path: &Path) -> Result<fs::File> {
    let file = fs::File::create(path)?;
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

fn fetch(kernel: Kernel, dir: &Path) -> Result<()> {
    let staging = dir.with_file_name(format!("{}.partial", kernel.name()));
    let _ = fs::remove_dir_all(&staging);
    fs::create_dir_all(&staging)?;
    // A new machine has no lists, an old one outdated ones: refresh only then, it takes a while.
    let deb = download(kernel, &staging).or_else(|first| {
        eprintln!("xtask: {first:#}; refreshing apt's lists");
        setup::apt_update();
        download(kernel, &staging)
    })?;
    exec::run(exec::system("dpkg").arg("-x").args([&deb, &staging]))?;
    fs::remove_file(deb)?;
    let modules = modules_folder(&staging)?;
    exec::run(exec::system("depmod").arg("-b").arg(&staging).arg(only_entry(&modules)?))?;
    // Renamed last: a folder with the final name is complete.
    Ok(fs::rename(staging, dir)?)
}

fn download(kernel: Kernel, into: &Path) -> Result<PathBuf> {
    let depends = exec::output(exec::system("apt-cache").arg("depends").arg(kernel.meta_package()))?;
    let package =
        image_package(&depends).with_context(|| format!("no image behind {}", kernel.meta_package()))?;
    eprintln!("xtask: fetching {package}");
    exec::run(setup::apt().arg("download").arg(package).current_dir(into))?;
    let debs = fs::read_dir(into)?.filter_map(|entry| Some(entry.ok()?.path()));
    debs.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb")).context("apt-get left no .deb")
}

fn image_package(depends: &str) -> Option<&str> {
    depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "))
}

/// `modprobe -d` wants `lib/modules`; packages of merged-/usr releases hold `usr/lib/modules`.
fn modules_folder(unpacked: &Path) -> Result<PathBuf> {
    let lib = unpacked.join("lib");
    if !lib.exists() {
        std::os::unix::fs::symlink("usr/lib", &lib)?;
    }
    Ok(lib.join("modules"))
}

fn only_entry(dir: &Path) -> Result<String> {
    let entry = fs::read_dir(dir).with_context(|| dir.display().to_string())?.next();
    let entry = entry.with_context(|| format!("{} is empty", dir.display()))??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_names_are_the_table_s() {
        for kernel in Kernel::value_variants() {
            let value = kernel.to_possible_value().unwrap();
            assert_eq!(value.get_name(), kernel.name());
        }
    }

    #[test]
    fn the_image_is_the_first_dependency() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-57-amd64\n    other\n";
        assert_eq!(image_package(depends), Some("linux-image-6.1.0-57-amd64"));
        assert_eq!(image_package("linux-image-amd64\n"), None);
    }
}
