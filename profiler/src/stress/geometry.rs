//! The sizes of an ext4 that decide what a load touches: block, inode, journal; from dumpe2fs, which only reads.
//!
//! Must not guess: a size that is not told is an error, but for the journal, which a file system may lack.

use anyhow::Context;

use super::tool::tool;

/// Sizes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub block_bytes: u64,
    pub inode_bytes: u64,
    pub journal_blocks: Option<u64>,
}

impl Geometry {
    /// Of the ext4 on `device`, mounted or not.
    pub fn of(device: &str) -> anyhow::Result<Self> {
        parse(&tool("dumpe2fs", &["-h", device])?)
    }

    /// How many neighbouring inodes stand in one block of the inode table.
    pub fn inodes_per_block(self) -> u64 {
        (self.block_bytes / self.inode_bytes).max(1)
    }
}

fn parse(text: &str) -> anyhow::Result<Geometry> {
    let number = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|rest| rest.trim().parse::<u64>().ok()).filter(|n| *n > 0)
    };
    Ok(Geometry {
        block_bytes: number("Block size").context("dumpe2fs told no block size")?,
        inode_bytes: number("Inode size").context("dumpe2fs told no inode size")?,
        // Its name before e2fsprogs 1.46 was "Journal length".
        journal_blocks: number("Total journal blocks").or_else(|| number("Journal length")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_a_missing_one_is_an_error() {
        let text =
            "Block size:               4096\nInode size:\t          256\nTotal journal blocks:     1024\n";
        let geometry = parse(text).unwrap();
        assert_eq!((geometry.inodes_per_block(), geometry.journal_blocks), (16, Some(1024)));
        assert_eq!(parse("Block size: 4096\nInode size: 128\n").unwrap().journal_blocks, None);
        assert!(parse("Block size: 4096\n").is_err());
    }
}
