//! Every reason for which something is not in the rows, and the plain tallies beside them. One array for each CPU.

/// Room for counters on one CPU.
pub const COUNTERS: usize = 32;

/// A counter of the kernel side. Those in [`Counter::LOSSES`] are shown in every view and file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Counter {
    /// `contention_begin` events that passed the selectors.
    Begins = 0,
    /// `contention_end` events that met their begin.
    Ends = 1,
    /// Timed functions entered.
    Entries = 2,
    /// Timed functions left that met their entry.
    Exits = 3,
    /// Inner waits folded into their parent.
    Folded = 4,
    /// Their nanoseconds.
    FoldedNs = 5,
    /// Further begins of a mutex whose wait was already open.
    MutexRebegins = 6,
    /// Entries of `rwsem_down_read_slowpath`, counted before and apart from any outcome.
    RwsemReadEntries = 7,
    /// Entries of `rwsem_down_write_slowpath`, counted before and apart from any outcome.
    RwsemWriteEntries = 8,
    /// Letters written.
    Letters = 9,
    /// Waits at a lock in an object of a slab cache that user space had not heard of: known by their address.
    UnknownCache = 10,
    /// A CPU's buffer LRU was emptied (fs/buffer.c, invalidate_bh_lru, invalidate_bh_lrus_cpu): metric C-9.
    LruInvalidations = 11,
    /// `start_this_handle` entered: successful starts and restarts, failed ones, and those in progress.
    HandleEntries = 12,
    /// `start_this_handle` left with an error, seen at the thread's next start.
    FailedStarts = 13,

    /// An end whose begin was not seen: it began before attaching, or its begin was lost. Not counted under a selector.
    EndWithoutBegin = 16,
    /// An exit whose entry was not seen. Not counted under a selector.
    ExitWithoutEntry = 17,
    /// A begin while the same wait was still open: the end in between was lost.
    LostEnd = 18,
    /// Another task's wait holds this task's slot.
    SlotCollision = 19,
    /// More waits nested than there is room for.
    TooDeep = 20,
    /// The mailbox was full: the wait went to *other*.
    MailboxFull = 21,
    /// No cell was left: the wait went to *other*.
    TableFull = 22,
    /// The stack could not be walked.
    StackFailed = 23,
    /// The clock went backwards between begin and end.
    NegativeWait = 24,
    /// Returns that a kretprobe missed: entries without an exit, reckoned by user space. Other hooks count none.
    MissedReturns = 26,
    /// Processes of the followed command for which there was no room in the set: their waits are not recorded.
    FollowFull = 27,
    /// Another thread's handle, or fsync, holds this thread's place: it is counted but not timed.
    HandleCollision = 28,
    /// Commits that user space came too late for: they are in no timeline.
    LostCommits = 29,
    /// A wait left open by a task that is gone, dropped by user space.
    Abandoned = 25,
}

impl Counter {
    /// Counters that mean that something is missing, with the words for it.
    pub const LOSSES: [(Counter, &'static str); 14] = [
        (Counter::EndWithoutBegin, "end_without_begin"),
        (Counter::ExitWithoutEntry, "exit_without_entry"),
        (Counter::LostEnd, "lost_end"),
        (Counter::SlotCollision, "slot_collision"),
        (Counter::TooDeep, "too_deep"),
        (Counter::MailboxFull, "mailbox_full"),
        (Counter::TableFull, "table_full"),
        (Counter::StackFailed, "stack_failed"),
        (Counter::NegativeWait, "negative_wait"),
        (Counter::Abandoned, "abandoned"),
        (Counter::MissedReturns, "missed_returns"),
        (Counter::FollowFull, "follow_full"),
        (Counter::HandleCollision, "handle_collision"),
        (Counter::LostCommits, "lost_commits"),
    ];

    /// Counters that lose nothing, with the words for them.
    pub const TALLIES: [(Counter, &'static str); 14] = [
        (Counter::Begins, "begins"),
        (Counter::Ends, "ends"),
        (Counter::Entries, "entries"),
        (Counter::Exits, "exits"),
        (Counter::Folded, "folded"),
        (Counter::FoldedNs, "folded_ns"),
        (Counter::MutexRebegins, "mutex_rebegins"),
        (Counter::RwsemReadEntries, "rwsem_read_entries"),
        (Counter::RwsemWriteEntries, "rwsem_write_entries"),
        (Counter::Letters, "letters"),
        (Counter::UnknownCache, "unknown_cache"),
        (Counter::LruInvalidations, "lru_invalidations"),
        (Counter::HandleEntries, "handle_entries"),
        (Counter::FailedStarts, "failed_starts"),
    ];
}
