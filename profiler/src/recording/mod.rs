//! The recording: an append-only file of whole frames, readable after a SIGKILL up to the last of them.
//!
//! Must not interpret what it stores: no rates, no names made up, no clock. A file is hostile until proven otherwise.
//!
//! Layout: `LOCKSCOPE-REC\n`, version as u32, then frames. A frame is the payload's length (u32), the CRC-32 of
//! kind and payload (u32), the kind (u8), the payload in CBOR. All integers little-endian. CBOR names its fields, so that an older
//! reader skips a newer field.

mod read;
mod write;

pub use read::Recording;
pub use write::Writer;

/// The first bytes of every recording.
pub const MAGIC: &[u8; 14] = b"LOCKSCOPE-REC\n";
/// The version that this program writes, and the only one it reads.
pub const VERSION: u32 = 1;
/// Bytes of magic and version.
pub const HEADER_LEN: usize = MAGIC.len() + 4;
/// Bytes before a frame's payload.
pub const FRAME_HEADER_LEN: usize = 9;
/// A longer payload, in bytes, is not written and is taken for corruption when read.
pub const MAX_PAYLOAD: usize = 256 << 20;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// [`crate::snapshot::Meta`], once, first.
    Meta = 1,
    /// [`crate::snapshot::Names`] that are new.
    Names = 2,
    /// [`crate::snapshot::Snapshot`].
    Snapshot = 3,
    /// [`crate::snapshot::End`], once, last, missing after a SIGKILL.
    End = 4,
}

impl FrameKind {
    /// The kind with this number, if there is one.
    pub fn from_number(number: u8) -> Option<FrameKind> {
        [FrameKind::Meta, FrameKind::Names, FrameKind::Snapshot, FrameKind::End]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// CRC-32 of a frame: the kind is in it, so that a damaged kind byte shows.
fn frame_crc(kind: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(payload);
    hasher.finalize()
}
