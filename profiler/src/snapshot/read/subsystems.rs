//! Reads the subsystems' tables: journals, commits, buffer lookups. Knows maps and types, no name.

use std::collections::BTreeMap;

use anyhow::Result;
use profiler_common::{
    bh_lru::{DEVICES, LruCell},
    hist::STRIDE,
    journal::{COMMITS, Commit, JOURNALS, Journal, JournalCell, SPANS},
};

use super::hist::Counts;
use crate::{
    load::{Loaded, Mapped},
    snapshot::subsystems::{CommitSeen, JournalTotals, LruTotals, OTHER_DEVICES, Subsystems},
};

/// Commits kept for the next snapshot; more are counted as lost.
const MOST_PENDING: usize = 65_536;

/// The tables, and what was read of them before.
pub struct Tables {
    cpus: usize,
    journal_devices: Mapped<u64>,
    journal_cells: Mapped<JournalCell>,
    journals: Mapped<Journal>,
    lru_devices: Mapped<u64>,
    lru_cells: Mapped<LruCell>,
    /// Commits read so far, by journal.
    tails: [u64; JOURNALS],
    pending: Vec<CommitSeen>,
    lost_commits: u64,
    histograms: Vec<[Counts; SPANS.len()]>,
    last_journals: BTreeMap<u32, JournalTotals>,
    last_lru: BTreeMap<(u32, u32), LruTotals>,
}

impl Tables {
    /// Maps them.
    ///
    /// # Errors
    /// When a map cannot be mapped.
    pub fn new(loaded: &Loaded) -> Result<Tables> {
        let cpus = loaded.sizes.cpus;
        Ok(Tables {
            cpus: cpus as usize,
            journal_devices: loaded.mapped("JOURNAL_DEVICES", JOURNALS as u32)?,
            journal_cells: loaded.mapped("JOURNAL_CELLS", cpus * JOURNALS as u32)?,
            journals: loaded.mapped("JOURNAL_STATES", JOURNALS as u32)?,
            lru_devices: loaded.mapped("LRU_DEVICES", DEVICES as u32)?,
            lru_cells: loaded.mapped("LRU_CELLS", cpus * DEVICES as u32)?,
            tails: [0; JOURNALS],
            pending: Vec::new(),
            lost_commits: 0,
            histograms: vec![std::array::from_fn(|_| Counts::new()); JOURNALS],
            last_journals: BTreeMap::new(),
            last_lru: BTreeMap::new(),
        })
    }

    /// Commits that were overwritten before they were read.
    pub fn lost_commits(&self) -> u64 {
        self.lost_commits
    }

    /// Takes the commits that ended.
    pub fn drain_commits(&mut self) {
        for number in 0..JOURNALS {
            let ended = self.ended(number);
            while self.tails[number] < ended {
                let behind = ended - self.tails[number];
                if behind > COMMITS as u64 {
                    self.lost_commits += behind - COMMITS as u64;
                    self.tails[number] = ended - COMMITS as u64;
                }
                self.take_commit(number);
            }
        }
    }

    fn take_commit(&mut self, number: usize) {
        let place = self.tails[number] as usize % COMMITS;
        let commit = self.commit(number, place);
        self.tails[number] += 1;
        // Overwritten while it was read: half of it is another one's.
        if self.ended(number) - self.tails[number] >= COMMITS as u64 - 1 || self.pending.len() >= MOST_PENDING
        {
            self.lost_commits += 1;
            return;
        }
        self.pending.push(CommitSeen::of(device(&self.journal_devices, number), &commit));
    }

    fn ended(&self, number: usize) -> u64 {
        // SAFETY: within the mapping.
        let ended = unsafe { std::ptr::read_volatile(&raw const (*self.journals.at(number)).ended) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        ended
    }

    fn commit(&self, number: usize, place: usize) -> Commit {
        // SAFETY: within the mapping; any bytes are a value.
        unsafe { std::ptr::read_volatile(&raw const (*self.journals.at(number)).commits[place]) }
    }

    /// Reads what changed.
    pub fn read(&mut self) -> Subsystems {
        self.drain_commits();
        let journals = self.read_journals();
        let lru = self.read_lru();
        Subsystems { journals, commits: std::mem::take(&mut self.pending), lru, ..Subsystems::default() }
    }

    fn read_journals(&mut self) -> BTreeMap<u32, JournalTotals> {
        let mut changed = BTreeMap::new();
        for number in 0..JOURNALS {
            let totals = self.journal(number);
            let device = device(&self.journal_devices, number);
            if totals != JournalTotals::default() && self.last_journals.get(&device) != Some(&totals) {
                self.last_journals.insert(device, totals.clone());
                changed.insert(device, totals);
            }
        }
        changed
    }

    fn journal(&mut self, number: usize) -> JournalTotals {
        let mut totals = JournalTotals::default();
        let mut raw = [[0u32; STRIDE]; SPANS.len()];
        for cpu in 0..self.cpus {
            let cell = self.journal_cells.get(cpu * JOURNALS + number);
            add_all(&mut totals.counters, &cell.counters);
            add_all(&mut totals.cause_n, &cell.cause_n);
            add_all(&mut totals.cause_ns, &cell.cause_ns);
            add_all(&mut totals.fsync, &cell.fsync);
            for (span, (sums, raw)) in totals.spans.iter_mut().zip(cell.spans.iter().zip(&mut raw)) {
                span.n += sums.n;
                span.total_ns += sums.total_ns;
                span.max_ns = span.max_ns.max(sums.max_ns);
                raw.iter_mut().zip(sums.hist).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
            }
        }
        for ((span, raw), kept) in totals.spans.iter_mut().zip(&raw).zip(&mut self.histograms[number]) {
            kept.take(raw);
            span.hist = kept.sparse();
        }
        totals
    }

    fn read_lru(&mut self) -> BTreeMap<(u32, u32), LruTotals> {
        let mut changed = BTreeMap::new();
        for number in 0..DEVICES {
            let device = device(&self.lru_devices, number);
            for cpu in 0..self.cpus {
                let totals = lru_totals(&self.lru_cells.get(cpu * DEVICES + number));
                let key = (cpu as u32, device);
                if totals != LruTotals::default() && self.last_lru.insert(key, totals) != Some(totals) {
                    changed.insert(key, totals);
                }
            }
        }
        changed
    }
}

/// The device of a place; the last place is everybody else's.
fn device(devices: &Mapped<u64>, number: usize) -> u32 {
    match devices.get(number) {
        0 => OTHER_DEVICES,
        device => (device - 1) as u32,
    }
}

fn add_all(to: &mut [u64], more: &[u64]) {
    to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
}

fn lru_totals(cell: &LruCell) -> LruTotals {
    LruTotals {
        lookups: cell.lookups,
        absent: cell.absent,
        present: cell.present,
        hits: cell.hits,
        migrated: cell.migrated,
        samples_lost: cell.samples_lost,
    }
}
