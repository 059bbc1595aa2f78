//! The kernel's types, vmlinux's and those of the file systems' modules together. Only reads.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::btf::{Btf, MemberPath};

/// Modules whose structures hold locks that lockscope names, where they are modules.
const MODULES: [&str; 5] = ["ext4", "jbd2", "mbcache", "xfs", "btrfs"];

/// All types that are known.
pub struct Types {
    vmlinux: Arc<Btf>,
    modules: Vec<Btf>,
}

impl Types {
    /// vmlinux's types, and those of the modules that are loaded now.
    pub fn new(vmlinux: Arc<Btf>) -> Types {
        let modules =
            MODULES.iter().filter_map(|name| Btf::module(name, Arc::clone(&vmlinux)).ok()).collect();
        Types { vmlinux, modules }
    }

    /// Byte offset of a member, as [`Btf::offset`].
    ///
    /// # Errors
    /// When no such member is known anywhere.
    pub fn offset(&self, path: &str) -> Result<u64> {
        let found = self.all().find_map(|btf| btf.offset(path).ok());
        found.map(u64::from).with_context(|| format!("this kernel's types have no {path}"))
    }

    /// Size of a type in bytes, if it is known.
    pub fn size_of(&self, name: &str) -> Option<u64> {
        self.all().find_map(|btf| btf.size_of(name).ok()).map(u64::from)
    }

    /// Every named member that covers an offset, as [`Btf::at_offset`].
    pub fn at_offset(&self, name: &str, offset: u32) -> Vec<MemberPath> {
        self.all().map(|btf| btf.at_offset(name, offset)).find(|paths| !paths.is_empty()).unwrap_or_default()
    }

    /// The value of an enumerator, if it is known.
    pub fn enumerator(&self, name: &str) -> Option<u32> {
        self.vmlinux.enumerator(name)
    }

    fn all(&self) -> impl Iterator<Item = &Btf> {
        self.modules.iter().chain([&*self.vmlinux])
    }
}
