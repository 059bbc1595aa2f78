//! Reads a recording, whole frames only.
//!
//! Must not panic or allocate more than the file is long, whatever is in the file: it may come from anybody.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;

use super::{FRAME_HEADER_LEN, FrameKind, HEADER_LEN, MAGIC, MAX_PAYLOAD, VERSION, frame_crc};
use crate::snapshot::{End, Meta, Names, Snapshot};

/// CBOR may nest; our types need five levels.
const MAX_DEPTH: usize = 16;

/// A recording, read.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What it says of itself.
    pub meta: Meta,
    /// All names, in the order in which they came up.
    pub names: Names,
    /// The readings, oldest first; each holds the cells that changed since the one before, in sums since the begin.
    pub snapshots: Vec<Snapshot>,
    /// How it ended; `None` when its writer was killed.
    pub end: Option<End>,
    /// Where and why reading stopped before the file's end, if it did.
    pub truncated: Option<String>,
}

impl Recording {
    /// Reads the file at `path`, or standard input for `-`.
    pub fn open(path: &Path) -> Result<Recording> {
        let bytes = if path == Path::new("-") { slurp(std::io::stdin()) } else { slurp_file(path) };
        bytes.and_then(|bytes| Recording::from_bytes(&bytes)).with_context(|| path.display().to_string())
    }

    /// Reads a recording that is in memory.
    pub fn from_bytes(bytes: &[u8]) -> Result<Recording> {
        check_header(bytes)?;
        let mut recording = Recording::default();
        let mut has_meta = false;
        let mut at = HEADER_LEN;
        while at < bytes.len() && recording.end.is_none() {
            match recording.frame(&bytes[at..], &mut has_meta) {
                Ok(length) => at += length,
                Err(why) => {
                    recording.truncated = Some(format!("at byte {at} of {}: {why}", bytes.len()));
                    break;
                }
            }
        }
        recording.note_tail(at, bytes.len());
        if !has_meta {
            let why = recording.truncated.as_deref().unwrap_or("it ends before its first frame");
            bail!("this recording says nothing of itself, so nothing can be shown ({why})");
        }
        Ok(recording)
    }

    /// Takes in the frame that `bytes` begins with; its length in bytes, or why there is none.
    fn frame(&mut self, bytes: &[u8], has_meta: &mut bool) -> Result<usize, String> {
        let (kind, payload) = split(bytes)?;
        match kind {
            FrameKind::Meta if *has_meta => return Err("a second meta frame".to_string()),
            FrameKind::Meta => {
                self.meta = decode(payload)?;
                *has_meta = true;
            }
            _ if !*has_meta => return Err("a frame before the meta frame".to_string()),
            FrameKind::Names => self.merge(decode(payload)?),
            FrameKind::Snapshot => self.snapshots.push(decode(payload)?),
            FrameKind::End => self.end = Some(decode(payload)?),
        }
        Ok(FRAME_HEADER_LEN + payload.len())
    }

    fn merge(&mut self, new: Names) {
        self.names.locks.extend(new.locks);
        self.names.stacks.extend(new.stacks);
        self.names.cells.extend(new.cells);
        self.names.processes.extend(new.processes);
        self.names.rows_without_hist.extend(new.rows_without_hist);
        self.names.mounts.extend(new.mounts);
    }

    fn note_tail(&mut self, at: usize, length: usize) {
        if self.truncated.is_none() && at < length {
            self.truncated = Some(format!("at byte {at} of {length}: something follows the end mark"));
        }
    }
}

fn slurp_file(path: &Path) -> Result<Vec<u8>> {
    slurp(File::open(path).context("cannot open the recording")?)
}

/// Reads it all, but only behind a right header: `/dev/zero` has no end.
fn slurp(mut from: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.by_ref().take(HEADER_LEN as u64).read_to_end(&mut bytes).context("cannot read the recording")?;
    check_header(&bytes)?;
    from.read_to_end(&mut bytes).context("cannot read the recording")?;
    Ok(bytes)
}

fn check_header(bytes: &[u8]) -> Result<()> {
    ensure!(bytes.starts_with(MAGIC), "this is not a lockscope recording");
    let version = bytes.get(MAGIC.len()..).and_then(u32_at_start);
    let version = version.context("this recording ends within its header")?;
    ensure!(
        version == VERSION,
        "this recording has format version {version}, this lockscope reads version {VERSION}: use the lockscope that made it"
    );
    Ok(())
}

fn u32_at_start(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

/// Kind and payload of the frame that `bytes` begins with.
fn split(bytes: &[u8]) -> Result<(FrameKind, &[u8]), String> {
    let header = bytes.first_chunk::<FRAME_HEADER_LEN>().ok_or("short frame: its header is cut off")?;
    let [l0, l1, l2, l3, c0, c1, c2, c3, kind] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > MAX_PAYLOAD {
        return Err(format!("absurd length: a frame of {length} bytes"));
    }
    let rest = &bytes[FRAME_HEADER_LEN..];
    let payload = rest
        .get(..length)
        .ok_or_else(|| format!("short frame: {} of {length} bytes are there", rest.len()))?;
    if frame_crc(kind, payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err("bad crc: the frame was damaged".to_string());
    }
    let kind = FrameKind::from_number(kind).ok_or_else(|| format!("unknown frame kind {kind}"))?;
    Ok((kind, payload))
}

/// Decodes a payload. Serde's own caution bounds what a forged length can reserve before its elements are there.
fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    ciborium::de::from_reader_with_recursion_limit(payload, MAX_DEPTH)
        .map_err(|error| format!("the frame's content does not decode: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Writer;
    use crate::snapshot::{CellName, LockName, ProcessName, Totals};
    use std::collections::BTreeMap;

    fn sample_bytes() -> Vec<u8> {
        let path = std::env::temp_dir().join(format!("lockscope-read-{:?}.rec", std::thread::current().id()));
        let mut writer = Writer::create(&path).unwrap();
        writer.meta(&Meta { host: "h".into(), attached_ns: 5, ..Meta::default() }).unwrap();
        for tick in 1..=3u32 {
            let cell = CellName {
                id: tick,
                row: 0,
                lock: 1,
                stack: 0,
                kind: 4,
                mode: 2,
                tgid: 9,
                owner_tgid: 0,
                owner_kind: 3,
                workload: 0,
                device: 0,
            };
            let names = Names {
                locks: vec![LockName { id: tick, lock_id: format!("lock-{tick}"), ..LockName::default() }],
                cells: vec![cell],
                processes: vec![ProcessName { tgid: tick, comm: b"\xff\x1b".to_vec() }],
                ..Names::default()
            };
            writer.names(&names).unwrap();
            let cells = BTreeMap::from([(tick, Totals { n: 1, wait_ns: 7, ..Totals::default() })]);
            writer.snapshot(&Snapshot { at_ns: u64::from(tick) * 10, cells, ..Snapshot::default() }).unwrap();
        }
        writer.end(&End { at_ns: 40, reason: "duration".into(), command_status: None }).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let recording = Recording::from_bytes(&sample_bytes()).unwrap();
        assert_eq!(recording.meta.host, "h");
        assert_eq!(recording.snapshots.len(), 3);
        assert_eq!(recording.names.locks.len(), 3);
        assert_eq!(recording.names.processes[0].comm, b"\xff\x1b");
        assert_eq!(recording.end.as_ref().unwrap().reason, "duration");
        assert_eq!(recording.truncated, None);
    }

    #[test]
    fn every_truncation_keeps_the_whole_frames() {
        let bytes = sample_bytes();
        let mut last = 0;
        for length in 0..bytes.len() {
            let Ok(recording) = Recording::from_bytes(&bytes[..length]) else {
                assert_eq!(last, 0, "became unreadable at {length}");
                continue;
            };
            let now = 1 + recording.names.locks.len() + recording.snapshots.len();
            assert!(now >= last);
            assert!(recording.end.is_none());
            last = now;
        }
        assert_eq!(last, 7);
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let bytes = sample_bytes();
        for position in 0..bytes.len() {
            for bit in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[position] ^= bit;
                if let Ok(recording) = Recording::from_bytes(&damaged) {
                    assert!(recording.truncated.is_some(), "byte {position} bit {bit:x}");
                }
            }
        }
    }

    /// A frame whose crc is right and whose content is garbage: the decoder is reached.
    fn forged(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
        bytes.extend(frame_crc(kind, payload).to_le_bytes());
        bytes.push(kind);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn garbage_with_a_right_crc_neither_panics_nor_allocates() {
        let head = {
            let bytes = sample_bytes();
            let (_, meta) = split(&bytes[HEADER_LEN..]).unwrap();
            bytes[..HEADER_LEN + FRAME_HEADER_LEN + meta.len()].to_vec()
        };
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        for round in 0..20_000u32 {
            let payload: Vec<u8> = (0..round % 40)
                .map(|_| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed as u8
                })
                .collect();
            let mut bytes = head.clone();
            bytes.extend(forged(1 + (round % 4) as u8, &payload));
            let _ = Recording::from_bytes(&bytes);
        }
        // An array and a map that claim 2^62 elements, a byte string of 2^62 bytes, and 100,000 nested arrays.
        for claim in [0x9bu8, 0xbb, 0x5b, 0x7b] {
            let mut payload = b"\xa1\x65locks".to_vec();
            payload.extend([claim, 0x40, 0, 0, 0, 0, 0, 0, 0]);
            let mut bytes = head.clone();
            bytes.extend(forged(2, &payload));
            assert!(Recording::from_bytes(&bytes).unwrap().truncated.is_some());
        }
        let mut bytes = head;
        bytes.extend(forged(2, &vec![0x81; 100_000]));
        assert!(Recording::from_bytes(&bytes).unwrap().truncated.is_some());
    }

    #[test]
    fn what_is_no_recording_is_said_so() {
        let error = |bytes: &[u8]| format!("{:#}", Recording::from_bytes(bytes).unwrap_err());
        assert!(error(b"").contains("not a lockscope recording"));
        assert!(error(b"\x7fELF").contains("not a lockscope recording"));
        assert!(error(b"LOCKSCOPE-REC\n\x01").contains("within its header"));
        assert!(error(b"LOCKSCOPE-REC\n\x02\0\0\0").contains("format version 2"));
        assert!(error(b"LOCKSCOPE-REC\n\x01\0\0\0").contains("ends before its first frame"));
    }

    #[test]
    fn an_absurd_length_is_corruption() {
        let mut bytes = sample_bytes();
        bytes.truncate(HEADER_LEN + FRAME_HEADER_LEN);
        bytes[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(format!("{:#}", Recording::from_bytes(&bytes).unwrap_err()).contains("absurd length"));
    }
}
