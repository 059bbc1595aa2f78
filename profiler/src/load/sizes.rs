//! How large the maps are: computed from the possible CPUs and a memory bound, never guessed from what is online.

use std::mem::size_of;

use anyhow::{Result, bail};
use profiler_common::{
    Cell, CellKey, CellRef, Interval, Letter,
    bh_lru::{DEVICES, LruCell, LruSample},
    first_sight::MailboxEnds,
    hist::STRIDE,
    journal::{Fsync, Handle, JOURNALS, Journal, JournalCell},
    limits::{CELL_ROUND, DEPTH, FAMILIES, MAX_CACHES, MAX_FRAMES, MAX_TGIDS, RESERVED_CELLS},
    loss::COUNTERS,
};

const MIB: u64 = 1 << 20;
/// The bound unless the user gives another one, for hosts of up to [`BASE_CPUS`]; larger hosts get as much for each CPU.
const BASE_BYTES: u64 = 64 * MIB;
const BASE_CPUS: u64 = 64;
/// What the kernel adds to each entry of a hash map (kernel/bpf/hashtab.c, struct htab_elem) and its bucket.
const HASH_OVERHEAD: u64 = 48 + 16;

/// Numbers of entries, and what they cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Possible CPUs.
    pub cpus: u32,
    /// Cells of one CPU, the reserved ones included.
    pub cells: u32,
    /// Histograms of one shard.
    pub hists: u32,
    /// Shards of the histograms; a power of two.
    pub shards: u32,
    /// In-flight slots; a power of two.
    pub slots: u32,
    /// Letters of one CPU's mailbox; a power of two.
    pub letters: u32,
}

impl Sizes {
    /// The bound for a host of this many possible CPUs, in bytes, unless the user gives another one.
    pub fn default_bound(cpus: u32) -> u64 {
        BASE_BYTES * u64::from(cpus).div_ceil(BASE_CPUS).max(1)
    }

    /// The largest sizes within `bound` bytes.
    ///
    /// # Errors
    /// When even the smallest useful sizes are more than that.
    pub fn within(cpus: u32, bound: u64) -> Result<Sizes> {
        let shards = cpus.next_power_of_two().min(8);
        let mut sizes = Sizes { cpus, cells: 16_384, hists: 1024, shards, slots: 65_536, letters: 2048 };
        while sizes.bytes() > bound {
            let before = sizes;
            sizes.shrink();
            if sizes == before {
                let least = sizes.bytes().div_ceil(MIB);
                bail!("--map-memory: {cpus} possible CPUs need at least {least} MiB");
            }
        }
        Ok(sizes)
    }

    /// Takes from whatever is largest and can still give.
    fn shrink(&mut self) {
        let choices = [
            (self.mailbox_bytes(), self.letters > 64),
            (self.cell_bytes(), self.cells > 1024),
            (self.hist_bytes(), self.shards > 1 || self.hists > 64),
            (self.slot_bytes(), self.slots > 4096),
        ];
        let largest = (0..choices.len()).filter(|i| choices[*i].1).max_by_key(|i| choices[*i].0);
        match largest {
            Some(0) => self.letters /= 2,
            Some(1) => self.cells = (self.cells * 3 / 4).next_multiple_of(CELL_ROUND).max(1024),
            Some(2) if self.shards > 1 => self.shards /= 2,
            Some(2) => self.hists /= 2,
            Some(3) => self.slots /= 2,
            _ => {}
        }
    }

    fn mailbox_bytes(&self) -> u64 {
        u64::from(self.cpus) * (u64::from(self.letters) * bytes_of::<Letter>() + bytes_of::<MailboxEnds>())
    }

    fn cell_bytes(&self) -> u64 {
        let key = bytes_of::<CellKey>() + bytes_of::<CellRef>() + HASH_OVERHEAD;
        u64::from(self.cpus) * u64::from(self.cells) * bytes_of::<Cell>() + u64::from(self.keys()) * key
    }

    fn hist_bytes(&self) -> u64 {
        u64::from(self.shards) * u64::from(self.hists) * STRIDE as u64 * 4
    }

    fn slot_bytes(&self) -> u64 {
        let handles = u64::from(self.handles()) * (bytes_of::<Handle>() + bytes_of::<Fsync>() + 8);
        u64::from(self.slots) * (bytes_of::<[Interval; DEPTH]>() + 8) + handles
    }

    /// Places for open jbd2 handles; a power of two. Fewer than in-flight slots: few threads have one open at a time.
    pub fn handles(&self) -> u32 {
        (self.slots / 4).max(1)
    }

    /// What the subsystems' tables take for each CPU.
    fn subsystem_bytes() -> u64 {
        JOURNALS as u64 * bytes_of::<JournalCell>()
            + DEVICES as u64 * bytes_of::<LruCell>()
            + bytes_of::<LruSample>()
    }

    /// Keys that can have a cell.
    pub fn keys(&self) -> u32 {
        self.cells - RESERVED_CELLS
    }

    /// Bytes of all maps together.
    pub fn bytes(&self) -> u64 {
        let per_cpu = bytes_of::<[Interval; DEPTH]>()
            + COUNTERS as u64 * 8
            + u64::from(FAMILIES) * (MAX_FRAMES as u64 * 8 + 64)
            + Sizes::subsystem_bytes();
        let fixed = (u64::from(MAX_TGIDS) + u64::from(MAX_CACHES)) * (24 + HASH_OVERHEAD)
            + JOURNALS as u64 * bytes_of::<Journal>()
            + 16_384;
        self.mailbox_bytes()
            + self.cell_bytes()
            + self.hist_bytes()
            + self.slot_bytes()
            + u64::from(self.cpus) * per_cpu
            + fixed
    }

    /// The name and number of entries of each map whose size depends on the host.
    pub fn entries(&self) -> [(&'static str, u32); 17] {
        [
            ("CELL_OF", self.keys()),
            ("CELLS", self.cpus * self.cells),
            ("HISTS", self.shards * self.hists),
            ("SLOT_TIDS", self.slots),
            ("SLOTS", self.slots),
            ("SPINS", self.cpus),
            ("MAILBOX", self.cpus * self.letters),
            ("MAILBOX_ENDS", self.cpus),
            ("COUNTERS", self.cpus),
            ("SCRATCH", self.cpus * FAMILIES),
            ("PAGES", self.cpus * FAMILIES),
            ("HANDLES", self.handles()),
            ("FSYNCS", self.handles()),
            ("LRU_LAST_CPU", self.handles()),
            ("JOURNAL_CELLS", self.cpus * JOURNALS as u32),
            ("LRU_CELLS", self.cpus * DEVICES as u32),
            ("LRU_SAMPLES", self.cpus),
        ]
    }
}

fn bytes_of<T>() -> u64 {
    size_of::<T>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stay_within_the_default_bound_on_every_host() {
        for cpus in [1, 2, 4, 16, 64, 65, 128, 192, 256, 512, 1024] {
            let bound = Sizes::default_bound(cpus);
            let sizes = Sizes::within(cpus, bound).unwrap();
            assert!(sizes.bytes() <= bound, "{cpus}: {} > {bound}", sizes.bytes());
            assert!(sizes.cells >= 1024 && sizes.slots >= 4096 && sizes.letters >= 64, "{sizes:?}");
            assert!(sizes.cells.is_multiple_of(CELL_ROUND), "{sizes:?}");
        }
        assert_eq!(Sizes::default_bound(64), 64 * MIB);
        assert_eq!(Sizes::default_bound(256), 256 * MIB);
    }

    #[test]
    fn an_impossible_bound_is_refused() {
        assert!(Sizes::within(64, MIB).is_err());
    }
}
