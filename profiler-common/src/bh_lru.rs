//! What is counted of the per-CPU LRU of buffer heads (fs/buffer.c). The counts are independent of one another, so that
//! hit + found + absent = lookups is a test and no identity.

/// Devices that are told apart; the last place is everybody else's.
pub const DEVICES: usize = 64;

/// One CPU's counts of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LruCell {
    /// `find_get_block_common` entered, or `__find_get_block` where that is the only one: metric C-1.
    pub lookups: u64,
    /// It returned nothing: the buffer is in no page; no LRU would help.
    pub absent: u64,
    /// It returned a buffer.
    pub present: u64,
    /// Tracepoint block_touch_buffer, which fires on a hit only.
    pub hits: u64,
    /// Present, not by a hit, and the task's last such lookup was on another CPU: metric C-13.
    pub migrated: u64,
    /// Timed samples that could not be used: the task was moved to another CPU.
    pub samples_lost: u64,
}

/// The lookup that is being timed on a CPU. Free when `tid` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LruSample {
    /// When it was entered.
    pub begin_ns: u64,
    /// Who does it.
    pub tid: u32,
    /// Lookups of this CPU so far: every so manieth is timed.
    pub turn: u32,
    /// Whose lookup hit last on this CPU.
    pub touched_by: u32,
    /// How the timed one came out: passed through memory, so that the verifier follows one path.
    pub outcome: u32,
}

/// How a lookup came out, where a lock has its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Lookup {
    /// In this CPU's LRU.
    Hit = 0,
    /// In the page cache.
    Found = 1,
    /// In neither.
    Absent = 2,
}

/// The names of the outcomes, in the order of their numbers.
pub const LOOKUPS: [&str; 3] = ["hit", "found", "absent"];
