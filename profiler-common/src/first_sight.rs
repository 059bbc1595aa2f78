//! The mailbox: a wait whose key is not known yet is written whole, and user space makes its cell.
//!
//! A mailbox is a ring in a plain array, one for each CPU. A slot is reserved by an atomic fetch-add on the head,
//! since interrupts nest on a CPU, and published by its sequence word, written last.

use crate::key::CellKey;
use crate::limits::{COMM_LEN, MAX_FRAMES};

/// One wait of a key that had no cell.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Letter {
    /// Position + 1 when the letter is whole; anything else means it is being written.
    pub sequence: u64,
    /// What it is counted under.
    pub key: CellKey,
    /// The lock's address at this wait.
    pub address: u64,
    /// The whole wait, in nanoseconds.
    pub wait_ns: u64,
    /// Its spinning part.
    pub spin_ns: u64,
    /// Its queued or sleeping part.
    pub queue_ns: u64,
    /// Bits 1 << [`crate::cell::Outcome`], or [`INTERRUPTED`].
    pub outcomes: u32,
    /// The waiter's thread.
    pub tid: u32,
    /// Frames in use.
    pub frame_count: u32,
    /// Always 0.
    pub pad: u32,
    /// The waiter's name: untrusted bytes.
    pub comm: [u8; COMM_LEN],
    /// Return addresses, innermost first.
    pub frames: [u64; MAX_FRAMES],
}

/// In `outcomes`: the wait ended without the lock.
pub const INTERRUPTED: u32 = 1 << 31;

/// Head and tail of one CPU's mailbox, each on its own cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MailboxEnds {
    /// Letters ever reserved; written by the kernel side.
    pub head: u64,
    /// Always 0.
    pub pad0: [u64; 7],
    /// Letters ever read; written by user space.
    pub tail: u64,
    /// Always 0.
    pub pad1: [u64; 7],
}

const _: () = assert!(core::mem::size_of::<Letter>() == 8 + 48 + 8 + 24 + 16 + 16 + 8 * MAX_FRAMES);
const _: () = assert!(core::mem::size_of::<MailboxEnds>() == 128);
