//! Turns maps into [`Snapshot`]s, and letters into cells. Knows the maps and the types, no symbol and no filter.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use anyhow::Result;
use aya::maps::MapData;
use profiler_common::{
    Cell, CellKey, CellRef, Control, Interval, Kind, Letter,
    cell::{OUTCOMES, Outcome},
    first_sight::{INTERRUPTED, MailboxEnds},
    hist::{STRIDE, bucket},
    inflight::{FLAG_FOLDED, FLAG_QUEUED, PHASE_QUEUE},
    key::{CacheInfo, NO_HIST},
    limits::{BELOW_CELLS, DEPTH, MAX_FRAMES, RESERVED_CELLS},
    loss::{COUNTERS, Counter},
};

mod hist;
mod subsystems;

use hist::Counts;

use super::subsystems::JournalFill;
use super::{CellId, CellName, Names, OpenWait, Snapshot, Totals};
use crate::load::{Loaded, Mapped, PodKey, PodRef, Sizes};

/// A spinning wait older than this is shown only while its thread runs: else its end was lost, and the next event on
/// its CPU will drop it.
const SURELY_SPINNING_NS: u64 = 1_000_000;

/// A call of a timed function older than this is shown only while the function is on its thread's stack.
const SURELY_INSIDE_NS: u64 = 1_000_000_000;

/// Gives numbers to what the maps only hold as addresses.
pub trait Namer: Send {
    /// The number of a lock by its key; `address` is where it was at this wait.
    fn lock(&mut self, key: &CellKey, address: u64) -> u32;
    /// The number of the lock of a wait in progress, of which the address is all that is known.
    fn open_lock(&mut self, open: &Interval) -> u32;
    /// The number of a stack, and a token that is the same for stacks of the same caller.
    fn stack(&mut self, hash: u64, frames: &[u64]) -> (u32, u64);
    /// Notes a process's name.
    fn process(&mut self, tgid: u32, comm: [u8; 16]);
    /// Notes what a new cell counts.
    fn cell(&mut self, name: CellName);
    /// Notes that a row has no complete histogram.
    fn without_hist(&mut self, row: u32, reason: &str);
    /// Hands out the names that came up since the last call.
    fn take(&mut self) -> Names;
    /// Whether this thread's kernel stack can be read, and has no function of this prefix on it.
    fn has_left(&self, tid: u32, function: &str) -> bool;
    /// Whether this process is gone.
    fn is_gone(&self, tgid: u32) -> bool;
    /// Whether this thread is running or waiting for a CPU now; `false` for the idle threads, which are all number 0.
    fn is_running(&self, tid: u32) -> bool;
    /// Slab caches that came since the last look, as of a module that was loaded.
    fn new_caches(&mut self) -> Vec<(u64, CacheInfo)> {
        Vec::new()
    }
    /// How full each journal is now, by its device. Looks for new mounts first: called at each snapshot, before names are taken.
    fn journal_fills(&mut self) -> BTreeMap<u32, JournalFill> {
        BTreeMap::new()
    }
    /// Buffers that the LRUs of these CPUs hold now; `None` when they cannot be read.
    fn lru_pinned(&self, _cpus: u32) -> Option<u64> {
        None
    }
    /// Called once all programs are attached: their own code has addresses from now on.
    fn refresh(&mut self) {}
}

/// Sums by (kind, mode).
type ByKindAndMode = BTreeMap<(u8, u8), Totals>;

/// From this share of the keys on, cells of processes that are gone are taken back.
const CROWDED: (usize, usize) = (3, 4);
/// Snapshots without a change after which the cell of a process that is gone is taken back, and any cell when the table
/// is full.
const IDLE_GONE: u32 = 3;
const IDLE_FULL: u32 = 30;

/// One cell that user space made.
struct Place {
    /// Its place in the map, which is used again once the cell was taken back.
    cell: u32,
    key: CellKey,
    /// Snapshots since it changed last.
    idle: u32,
    /// Its key is out of the map since the last snapshot: what still came in is read once more, then it is free.
    leaving: bool,
    /// Counted from letters, before the kernel side knew the key.
    base: Totals,
    /// Sums of outcomes: the kernel's counters are 32 bits wide and may wrap, their differences do not.
    outcomes: [u64; OUTCOMES],
    outcomes_raw: [u32; OUTCOMES],
    /// As last reported.
    last: Totals,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RowKey {
    lock: u64,
    instance: u64,
    offset: u32,
    device: u32,
    generation: u32,
    caller: u64,
    kind: u8,
    mode: u8,
    workload: u8,
}

/// A row's histogram; without a slot in the map there is nothing to keep.
struct RowHist {
    slot: u32,
    counts: Option<Box<Counts>>,
}

/// Reads the maps. One reader for each loaded object.
pub struct Reader {
    sizes: Sizes,
    keys: aya::maps::HashMap<MapData, PodKey, PodRef>,
    cells: Mapped<Cell>,
    hists: Mapped<[u32; STRIDE]>,
    slot_tids: Arc<Mapped<u64>>,
    slots: Arc<Mapped<[Interval; DEPTH]>>,
    spins: Arc<Mapped<[Interval; DEPTH]>>,
    mailbox: Mapped<Letter>,
    ends: Mapped<MailboxEnds>,
    counters: Mapped<[u64; COUNTERS]>,
    control: Arc<Mapped<Control>>,
    places: BTreeMap<CellId, Place>,
    place_of: HashMap<CellKey, CellId>,
    next_id: CellId,
    next_cell: u32,
    free_cells: Vec<u32>,
    row_of: HashMap<RowKey, u32>,
    rows: Vec<RowHist>,
    changed_rows: HashSet<u32>,
    reserved: Vec<Totals>,
    tables: subsystems::Tables,
    unknown_caches: u64,
    lost_in_table: u64,
    abandoned: u64,
    may_miss_returns: bool,
    namer: Box<dyn Namer>,
}

impl Reader {
    /// Maps everything. `namer` hears of each first sight.
    ///
    /// # Errors
    /// When a map cannot be mapped.
    pub fn new(loaded: &mut Loaded, namer: Box<dyn Namer>) -> Result<Reader> {
        let sizes = loaded.sizes;
        Ok(Reader {
            sizes,
            keys: loaded.take_keys()?,
            cells: loaded.mapped("CELLS", sizes.cpus * sizes.cells)?,
            hists: loaded.mapped("HISTS", sizes.shards * sizes.hists)?,
            slot_tids: Arc::new(loaded.mapped("SLOT_TIDS", sizes.slots)?),
            slots: Arc::new(loaded.mapped("SLOTS", sizes.slots)?),
            spins: Arc::new(loaded.mapped("SPINS", sizes.cpus)?),
            mailbox: loaded.mapped("MAILBOX", sizes.cpus * sizes.letters)?,
            ends: loaded.mapped("MAILBOX_ENDS", sizes.cpus)?,
            counters: loaded.mapped("COUNTERS", sizes.cpus)?,
            control: Arc::new(loaded.control()?),
            places: BTreeMap::new(),
            place_of: HashMap::new(),
            next_id: RESERVED_CELLS,
            next_cell: RESERVED_CELLS,
            free_cells: Vec::new(),
            row_of: HashMap::new(),
            rows: Vec::new(),
            changed_rows: HashSet::new(),
            reserved: vec![Totals::default(); RESERVED_CELLS as usize],
            tables: subsystems::Tables::new(loaded)?,
            unknown_caches: 0,
            lost_in_table: 0,
            abandoned: 0,
            may_miss_returns: false,
            namer,
        })
    }

    /// The settings, mapped.
    pub fn control(&self) -> Arc<Mapped<Control>> {
        Arc::clone(&self.control)
    }

    /// The kind of lock of each cell made so far.
    pub fn kinds_of_cells(&self) -> BTreeMap<CellId, u8> {
        self.places.iter().map(|(id, place)| (*id, place.key.kind)).collect()
    }

    /// To be called once all programs are attached, before anything is recorded.
    pub fn refresh_names(&mut self) {
        self.namer.refresh();
    }

    /// Slab caches to tell the kernel side of, when it has met one that it does not know since the last call.
    pub fn new_caches(&mut self) -> Vec<(u64, CacheInfo)> {
        let unknown = self.counter(Counter::UnknownCache);
        if std::mem::replace(&mut self.unknown_caches, unknown) == unknown {
            return Vec::new();
        }
        self.namer.new_caches()
    }

    /// Names that came up since the last call.
    pub fn take_names(&mut self) -> Names {
        self.namer.take()
    }

    /// A view of the in-flight table alone, for whoever samples it apart from the snapshots.
    pub fn open_waits(&self) -> OpenWaits {
        OpenWaits {
            slot_tids: Arc::clone(&self.slot_tids),
            slots: Arc::clone(&self.slots),
            spins: Arc::clone(&self.spins),
        }
    }

    /// Empties all mailboxes and makes cells of what was in them; says how many letters there were.
    ///
    /// # Errors
    /// When the kernel refuses a new key for another reason than a full table.
    pub fn drain(&mut self) -> Result<usize> {
        let mut letters = 0;
        for cpu in 0..self.sizes.cpus as usize {
            letters += self.drain_cpu(cpu)?;
        }
        self.tables.drain_commits();
        Ok(letters)
    }

    fn drain_cpu(&mut self, cpu: usize) -> Result<usize> {
        let size = self.sizes.letters as usize;
        let ends = self.ends.get(cpu);
        let mut tail = ends.tail;
        let mut letters = 0;
        while tail < ends.head {
            let slot = cpu * size + (tail as usize & (size - 1));
            // A letter being written: an interrupt's may be whole behind it, but order is kept.
            if self.sequence_of(slot) != tail + 1 {
                break;
            }
            let letter = self.mailbox.get(slot);
            self.read_letter(&letter)?;
            tail += 1;
            letters += 1;
            self.set_tail(cpu, tail);
        }
        Ok(letters)
    }

    /// A letter's sequence word, read before anything else of it: what it announces must not be loaded earlier.
    fn sequence_of(&self, slot: usize) -> u64 {
        // SAFETY: within the mapping.
        let sequence = unsafe { std::ptr::read_volatile(&raw const (*self.mailbox.at(slot)).sequence) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        sequence
    }

    fn set_tail(&self, cpu: usize, tail: u64) {
        // SAFETY: within the mapping; the kernel side only reads this word.
        unsafe { std::ptr::write_volatile(&raw mut (*self.ends.at(cpu)).tail, tail) };
    }

    fn read_letter(&mut self, letter: &Letter) -> Result<()> {
        self.namer.process(letter.key.tgid, letter.comm);
        let place = match self.place_of.get(&letter.key) {
            Some(place) => Some(*place),
            None => self.new_place(letter)?,
        };
        let wait = totals_of(letter);
        match place {
            Some(id) => {
                if let Some(place) = self.places.get_mut(&id) {
                    place.base.add(&wait);
                }
                let row = self.row_number(&letter.key, letter);
                self.count_in_base(row, letter);
            }
            None => {
                self.lost_in_table += 1;
                let cell = usize::from(letter.key.kind & 31) * 4 + usize::from(letter.key.mode & 3);
                self.reserved[cell].add(&wait);
            }
        }
        Ok(())
    }

    fn count_in_base(&mut self, row: u32, letter: &Letter) {
        if letter.outcomes & INTERRUPTED == 0
            && let Some(counts) = &mut self.rows[row as usize].counts
        {
            counts.add_one(bucket(letter.wait_ns));
            self.changed_rows.insert(row);
        }
    }

    fn new_place(&mut self, letter: &Letter) -> Result<Option<CellId>> {
        let Some(cell) = self.free_cell() else {
            self.set_table_full(1);
            return Ok(None);
        };
        let id = self.next_id;
        self.next_id += 1;
        let row = self.row_number(&letter.key, letter);
        let hist = self.rows[row as usize].slot;
        self.keys.insert(PodKey(letter.key), PodRef(CellRef { cell, hist }), 0)?;
        self.name_cell(id, row, letter);
        self.place_of.insert(letter.key, id);
        self.places.insert(id, Place::new(cell, letter.key));
        Ok(Some(id))
    }

    fn free_cell(&mut self) -> Option<u32> {
        if let Some(cell) = self.free_cells.pop() {
            return Some(cell);
        }
        let cell = self.next_cell;
        (cell < self.sizes.cells).then(|| {
            self.next_cell += 1;
            cell
        })
    }

    /// Takes back the cells of processes that are gone once the table is crowded, and idle ones once it is full. Two steps,
    /// a snapshot apart: the key leaves the map, then what still came in is read and the place is free.
    fn take_back(&mut self) -> Result<()> {
        self.free_the_leaving();
        let keys = self.sizes.keys() as usize;
        if self.places.len() * CROWDED.1 < keys * CROWDED.0 {
            return Ok(());
        }
        let full = self.places.len() >= keys;
        let namer = &self.namer;
        let goes = |place: &Place| {
            (place.idle >= IDLE_GONE && namer.is_gone(place.key.tgid)) || (full && place.idle >= IDLE_FULL)
        };
        for place in self.places.values_mut().filter(|place| goes(place)) {
            self.keys.remove(&PodKey(place.key))?;
            self.place_of.remove(&place.key);
            place.leaving = true;
        }
        Ok(())
    }

    fn free_the_leaving(&mut self) {
        let leaving: Vec<CellId> =
            self.places.iter().filter(|(_, place)| place.leaving).map(|(id, _)| *id).collect();
        for id in leaving {
            let Some(place) = self.places.remove(&id) else { continue };
            for cpu in 0..self.sizes.cpus {
                self.cells.set((cpu * self.sizes.cells + place.cell) as usize, Cell::default());
            }
            self.free_cells.push(place.cell);
            self.set_table_full(0);
        }
    }

    fn set_table_full(&self, full: u32) {
        // SAFETY: within the mapping; the kernel side only reads this word.
        unsafe { std::ptr::write_volatile(&raw mut (*self.control.at(0)).table_full, full) };
    }

    fn name_cell(&mut self, id: CellId, row: u32, letter: &Letter) {
        let key = &letter.key;
        let lock = self.namer.lock(key, letter.address);
        let (stack, _) = self.namer.stack(key.stack, frames_of(letter));
        self.namer.cell(CellName {
            id,
            row,
            lock,
            stack,
            kind: key.kind,
            mode: key.mode,
            tgid: key.tgid,
            owner_tgid: key.owner_tgid,
            owner_kind: key.owner_kind,
            workload: key.workload,
            device: key.device,
        });
    }

    fn row_number(&mut self, key: &CellKey, letter: &Letter) -> u32 {
        let (_, caller) = self.namer.stack(key.stack, frames_of(letter));
        let row_key = RowKey {
            lock: key.lock,
            instance: key.instance,
            offset: key.offset,
            device: key.device,
            generation: key.generation,
            caller,
            kind: key.kind,
            mode: key.mode,
            workload: key.workload,
        };
        if let Some(row) = self.row_of.get(&row_key) {
            return *row;
        }
        let row = self.rows.len() as u32;
        let slot = if row < self.sizes.hists { row } else { NO_HIST };
        if slot == NO_HIST {
            self.namer.without_hist(row, "no histogram slot");
        }
        let counts = (slot != NO_HIST).then(|| Box::new(Counts::new()));
        self.rows.push(RowHist { slot, counts });
        self.row_of.insert(row_key, row);
        row
    }

    /// Reads everything. `at_ns` is the stamp, taken by the caller when the reading is done.
    ///
    /// # Errors
    /// As [`Reader::drain`].
    pub fn snapshot(&mut self, clock: impl Fn() -> u64) -> Result<Snapshot> {
        self.drain()?;
        let cells = self.read_cells();
        self.take_back()?;
        let hists = self.read_hists();
        let (other, below_minimum) = self.read_reserved();
        let mut subsystems = self.tables.read();
        subsystems.lru_emptied = self.lru_emptied();
        subsystems.fills = self.namer.journal_fills();
        subsystems.lru_pinned = self.namer.lru_pinned(self.sizes.cpus);
        let counters = self.read_counters();
        let at_ns = clock();
        let in_progress = self.read_open_waits(at_ns);
        Ok(Snapshot {
            at_ns,
            cells,
            hists,
            other,
            below_minimum,
            in_progress,
            counters,
            subsystems,
            ..Snapshot::default()
        })
    }

    fn read_cells(&mut self) -> BTreeMap<CellId, Totals> {
        let mut changed = BTreeMap::new();
        let mut places = std::mem::take(&mut self.places);
        for (id, place) in &mut places {
            let (mut sum, raw) = self.sum_of(place.cell);
            for (index, (raw, last)) in raw.into_iter().zip(place.outcomes_raw).enumerate() {
                place.outcomes[index] += u64::from(raw.wrapping_sub(last));
            }
            place.outcomes_raw = raw;
            sum.outcomes = place.outcomes;
            sum.add(&place.base);
            place.idle += 1;
            if sum != place.last {
                place.last = sum;
                place.idle = 0;
                changed.insert(*id, sum);
            }
        }
        self.places = places;
        changed
    }

    /// One cell over all CPUs; the outcomes as sums that may have wrapped.
    fn sum_of(&self, cell: u32) -> (Totals, [u32; OUTCOMES]) {
        let mut sum = Totals::default();
        let mut raw = [0u32; OUTCOMES];
        for cpu in 0..self.sizes.cpus {
            let cell = self.cells.get((cpu * self.sizes.cells + cell) as usize);
            sum.add_cell(&cell);
            for (sum, count) in raw.iter_mut().zip(cell.outcomes) {
                *sum = sum.wrapping_add(count);
            }
        }
        sum.outcomes = [0; OUTCOMES];
        (sum, raw)
    }

    fn read_hists(&mut self) -> BTreeMap<u32, BTreeMap<u16, u64>> {
        let mut all = BTreeMap::new();
        for row in 0..self.rows.len() {
            let changed = self.update_hist(row) | self.changed_rows.contains(&(row as u32));
            if changed {
                let counts = self.rows[row].counts.as_ref();
                all.insert(row as u32, counts.map_or_else(BTreeMap::new, |counts| counts.sparse()));
            }
        }
        self.changed_rows.clear();
        all
    }

    fn update_hist(&mut self, row: usize) -> bool {
        let slot = self.rows[row].slot;
        if slot == NO_HIST {
            return false;
        }
        let now = self.sum_of_hist(slot);
        self.rows[row].counts.as_mut().is_some_and(|counts| counts.take(&now))
    }

    /// One histogram over all shards: sums that may have wrapped.
    fn sum_of_hist(&self, slot: u32) -> [u32; STRIDE] {
        let mut sum = [0u32; STRIDE];
        for shard in 0..self.sizes.shards {
            let counts = self.hists.get((shard * self.sizes.hists + slot) as usize);
            for (sum, count) in sum.iter_mut().zip(counts) {
                *sum = sum.wrapping_add(count);
            }
        }
        sum
    }

    /// The *other* and the *below the minimum* cells.
    fn read_reserved(&self) -> (ByKindAndMode, ByKindAndMode) {
        let (mut other, mut below) = (BTreeMap::new(), BTreeMap::new());
        for kind in Kind::ALL {
            for mode in 0..3u8 {
                let index = u32::from(kind as u8) * 4 + u32::from(mode);
                let mut lost = self.sum_with_outcomes(index);
                lost.add(&self.reserved[index as usize]);
                let short = self.sum_with_outcomes(BELOW_CELLS + index);
                if !lost.is_empty() {
                    other.insert((kind as u8, mode), lost);
                }
                if !short.is_empty() {
                    below.insert((kind as u8, mode), short);
                }
            }
        }
        (other, below)
    }

    fn sum_with_outcomes(&self, cell: u32) -> Totals {
        let (mut sum, raw) = self.sum_of(cell);
        for (to, from) in sum.outcomes.iter_mut().zip(raw) {
            *to = u64::from(from);
        }
        sum
    }

    /// Entries of timed functions whose exit was neither seen nor can still come. Exact when no event falls between the
    /// three readings.
    fn missed_returns(&self) -> u64 {
        let open = self.open_waits().read(u64::MAX).iter().filter(|open| open.func != 0).count() as u64;
        self.counter(Counter::Entries).saturating_sub(self.counter(Counter::Exits) + open)
    }

    /// From now on entries without an exit are a loss: their exits come from kretprobes.
    pub fn expect_missed_returns(&mut self) {
        self.may_miss_returns = true;
    }

    /// A counter's sum over all CPUs.
    pub fn counter(&self, counter: Counter) -> u64 {
        let sum: u64 =
            (0..self.sizes.cpus).map(|cpu| self.counters.get(cpu as usize)[counter as usize]).sum();
        match counter {
            Counter::TableFull => sum + self.lost_in_table,
            Counter::Abandoned => sum + self.abandoned,
            Counter::LostCommits => self.tables.lost_commits(),
            Counter::MissedReturns if self.may_miss_returns => self.missed_returns(),
            _ => sum,
        }
    }

    /// How often each CPU's buffer LRU was emptied.
    fn lru_emptied(&self) -> BTreeMap<u32, u64> {
        let of = |cpu: u32| self.counters.get(cpu as usize)[Counter::LruInvalidations as usize];
        (0..self.sizes.cpus).map(|cpu| (cpu, of(cpu))).filter(|(_, n)| *n != 0).collect()
    }

    fn read_counters(&self) -> BTreeMap<String, u64> {
        let losses = Counter::LOSSES.into_iter();
        losses
            .chain(Counter::TALLIES)
            .map(|(counter, name)| (name.to_owned(), self.counter(counter)))
            .collect()
    }

    fn read_open_waits(&mut self, now_ns: u64) -> Vec<OpenWait> {
        let open = self.open_waits().read(now_ns);
        let open: Vec<Interval> = open.into_iter().filter(|wait| !self.is_left_over(wait, now_ns)).collect();
        open.into_iter().map(|wait| self.name_open_wait(&wait, now_ns)).collect()
    }

    /// Whether a wait is open only because its end was lost: an old spin whose thread does not run, or an old call of a
    /// timed function that its thread is no longer in.
    fn is_left_over(&self, wait: &Interval, now_ns: u64) -> bool {
        let age = now_ns.saturating_sub(wait.begin_ns);
        let function = match Kind::from_number(wait.kind) {
            Some(Kind::Spin | Kind::Rwlock) => {
                return age > SURELY_SPINNING_NS && !self.namer.is_running(wait.tid);
            }
            _ if wait.func == 0 => return false,
            Some(Kind::Rwsem) => "rwsem_down_",
            Some(Kind::Folio) => "folio_",
            Some(Kind::Buffer | Kind::Jbd2Shadow) => "wait_on_bit",
            _ => "jbd2_",
        };
        age > SURELY_INSIDE_NS && self.namer.has_left(wait.tid, function)
    }

    fn name_open_wait(&mut self, open: &Interval, now_ns: u64) -> OpenWait {
        OpenWait {
            lock: self.namer.open_lock(open),
            kind: open.kind,
            mode: open.mode,
            tid: open.tid,
            tgid: open.tgid,
            owner_tgid: open.owner_tgid,
            owner_kind: open.owner_kind,
            workload: open.workload,
            age_ns: now_ns.saturating_sub(open.begin_ns),
            queued: open.flags & FLAG_QUEUED != 0 || open.phase == PHASE_QUEUE,
        }
    }

    /// Drops the waits in progress of functions (and tracepoints, 0) in this range, whose ends will not be seen; each is a
    /// counted loss.
    pub fn drop_open(&mut self, functions: std::ops::RangeInclusive<u8>) {
        let goes = |one: &Interval| one.begin_ns != 0 && functions.contains(&one.func);
        for (table, claims) in [(&self.slots, Some(&self.slot_tids)), (&self.spins, None)] {
            for slot in 0..table.len() {
                let open = table.get(slot);
                for (index, _) in open.iter().enumerate().filter(|(_, one)| goes(one)) {
                    // SAFETY: within the mapping; its probe is detached, so that nobody else writes this wait.
                    unsafe { std::ptr::write_volatile(&raw mut (*table.at(slot))[index].begin_ns, 0) };
                    self.abandoned += 1;
                }
                if let Some(claims) = claims.filter(|_| open.iter().any(goes))
                    && open.iter().all(|one| one.begin_ns == 0 || goes(one))
                {
                    claims.set(slot, 0);
                }
            }
        }
    }

    /// Frees the slots of waits older than `older_than_ns` whose thread `is_gone`; each is a counted loss.
    pub fn drop_abandoned(&mut self, now_ns: u64, older_than_ns: u64, is_gone: impl Fn(u32) -> bool) {
        for slot in 0..self.slot_tids.len() {
            let tid = self.slot_tids.get(slot);
            if tid == 0 {
                continue;
            }
            let open = self.slots.get(slot);
            let old = open.iter().any(|one| one.begin_ns != 0 && one.begin_ns + older_than_ns < now_ns);
            if old && is_gone(tid as u32) {
                self.abandoned += open.iter().filter(|one| one.begin_ns != 0).count() as u64;
                self.slots.set(slot, [Interval::default(); DEPTH]);
                self.slot_tids.set(slot, 0);
            }
        }
    }
}

impl Place {
    fn new(cell: u32, key: CellKey) -> Place {
        Place {
            cell,
            key,
            idle: 0,
            leaving: false,
            base: Totals::default(),
            outcomes: [0; OUTCOMES],
            outcomes_raw: [0; OUTCOMES],
            last: Totals::default(),
        }
    }
}

/// The in-flight table alone.
#[derive(Clone)]
pub struct OpenWaits {
    slot_tids: Arc<Mapped<u64>>,
    slots: Arc<Mapped<[Interval; DEPTH]>>,
    spins: Arc<Mapped<[Interval; DEPTH]>>,
}

impl OpenWaits {
    /// Every wait in progress. One that is being written is left out, or read twice the same.
    pub fn read(&self, now_ns: u64) -> Vec<Interval> {
        let mut open = Vec::new();
        for slot in 0..self.slot_tids.len() {
            if self.slot_tids.get(slot) != 0 {
                collect(&self.slots, slot, now_ns, &mut open);
            }
        }
        for cpu in 0..self.spins.len() {
            collect(&self.spins, cpu, now_ns, &mut open);
        }
        open
    }
}

fn collect(slots: &Mapped<[Interval; DEPTH]>, slot: usize, now_ns: u64, open: &mut Vec<Interval>) {
    let (first, second) = (slots.get(slot), slots.get(slot));
    for (one, again) in first.iter().zip(second) {
        let same = one.begin_ns == again.begin_ns && one.lock == again.lock && one.tid == again.tid;
        if same && one.begin_ns != 0 && one.begin_ns <= now_ns && one.flags & FLAG_FOLDED == 0 {
            open.push(again);
        }
    }
}

fn frames_of(letter: &Letter) -> &[u64] {
    &letter.frames[..(letter.frame_count as usize).min(MAX_FRAMES)]
}

fn totals_of(letter: &Letter) -> Totals {
    let mut totals = Totals::default();
    if letter.outcomes & INTERRUPTED == 0 {
        totals.n = 1;
        totals.wait_ns = letter.wait_ns;
        totals.spin_ns = letter.spin_ns;
        totals.queue_ns = letter.queue_ns;
        totals.max_ns = letter.wait_ns;
    } else {
        totals.interrupted_n = 1;
        totals.interrupted_ns = letter.wait_ns;
    }
    for outcome in 0..=Outcome::HandoffClass as usize {
        totals.outcomes[outcome] = u64::from(letter.outcomes >> outcome & 1);
    }
    totals
}
