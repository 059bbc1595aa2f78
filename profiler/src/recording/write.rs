//! Writes a recording: one `write` for each frame, so that a kill leaves whole frames only.
//!
//! Must not follow a link: a root-run tool that is told to write `/tmp/x` must not hit somebody else's file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::{FRAME_HEADER_LEN, FrameKind, MAGIC, MAX_PAYLOAD, VERSION, frame_crc};
use crate::snapshot::{End, Meta, Names, Snapshot};

/// A recording being written.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    /// Bytes of whole frames in the file.
    written: u64,
}

impl Writer {
    /// Makes the file, mode 0600, owned by sudo's caller where there is one. A regular file of that name that belongs
    /// to us or to sudo's caller is replaced; anything else (a link, a device, another user's file) is refused.
    pub fn create(path: &Path) -> Result<Writer> {
        let caller = sudo_caller();
        remove_own(path, caller)?;
        // O_EXCL follows no link (open(2)): whoever puts something there between the two calls makes us fail.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .with_context(|| format!("cannot make the recording {}", path.display()))?;
        if let Some((uid, gid)) = caller {
            std::os::unix::fs::fchown(&file, Some(uid), Some(gid))
                .with_context(|| format!("cannot give {} to user {uid}", path.display()))?;
        }
        let mut writer = Writer { file, path: path.to_path_buf(), written: 0 };
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        writer.append(&header)?;
        Ok(writer)
    }

    /// Writes what the recording says of itself; to be called once, first.
    pub fn meta(&mut self, meta: &Meta) -> Result<()> {
        self.frame(FrameKind::Meta, meta)
    }

    /// Writes new names, before the first snapshot that uses them. Nothing new writes nothing.
    pub fn names(&mut self, names: &Names) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        self.frame(FrameKind::Names, names)
    }

    /// Writes one reading of the maps.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.frame(FrameKind::Snapshot, snapshot)
    }

    /// Writes the end mark and makes the file durable.
    pub fn end(&mut self, end: &End) -> Result<()> {
        self.frame(FrameKind::End, end)?;
        self.file.sync_all().with_context(|| format!("cannot sync {}", self.path.display()))
    }

    /// Bytes in the file.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Where the recording goes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn frame<T: Serialize>(&mut self, kind: FrameKind, payload: &T) -> Result<()> {
        let buffer = encode(kind, payload)?;
        self.append(&buffer)
    }

    /// Appends a whole buffer. After a failed write the torn part is cut off again: the file stays readable, and a
    /// later frame would be too.
    fn append(&mut self, buffer: &[u8]) -> Result<()> {
        let Err(error) = self.file.write_all(buffer) else {
            self.written += buffer.len() as u64;
            return Ok(());
        };
        // Both may fail on a dying disk; the reader copes with a torn tail anyway.
        let _ = self.file.set_len(self.written);
        let _ = self.file.seek(SeekFrom::Start(self.written));
        let full = if error.kind() == ErrorKind::StorageFull { " (the disk is full)" } else { "" };
        Err(error).with_context(|| {
            let (path, written) = (self.path.display(), self.written);
            format!("cannot write to {path}{full}: {written} bytes were written and stay readable")
        })
    }
}

/// One frame, whole.
fn encode<T: Serialize>(kind: FrameKind, payload: &T) -> Result<Vec<u8>> {
    let mut buffer = vec![0; FRAME_HEADER_LEN];
    ciborium::into_writer(payload, &mut buffer).context("cannot encode a frame")?;
    let length = buffer.len() - FRAME_HEADER_LEN;
    ensure!(length <= MAX_PAYLOAD, "a frame of {length} bytes is more than a recording takes");
    let crc = frame_crc(kind as u8, &buffer[FRAME_HEADER_LEN..]);
    buffer[..4].copy_from_slice(&(length as u32).to_le_bytes());
    buffer[4..8].copy_from_slice(&crc.to_le_bytes());
    buffer[8] = kind as u8;
    Ok(buffer)
}

/// User and group of the one who called sudo. Only root believes these variables.
fn sudo_caller() -> Option<(u32, u32)> {
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let id = |name| std::env::var(name).ok()?.parse().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

/// Removes an old regular file of ours. Looked at without following a link, and unlinking never follows one.
fn remove_own(path: &Path, caller: Option<(u32, u32)>) -> Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", path.display())),
    };
    if !found.is_file() {
        bail!("{} is there already and is not a regular file: not touched", path.display());
    }
    // SAFETY: no arguments, cannot fail.
    let own = unsafe { libc::geteuid() };
    if found.uid() != own && caller.is_none_or(|(uid, _)| uid != found.uid()) {
        bail!("{} is there already and belongs to user {}: not touched", path.display(), found.uid());
    }
    if found.len() > 0 && !is_recording(path) {
        bail!("{} is there already and is no recording: not touched", path.display());
    }
    std::fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))
}

/// Whether a file begins as our recordings do.
fn is_recording(path: &Path) -> bool {
    use std::io::Read;
    let mut begin = [0u8; super::MAGIC.len()];
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    file.and_then(|mut file| file.read_exact(&mut begin)).is_ok_and(|()| begin == *super::MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::HEADER_LEN;
    use std::os::unix::fs::PermissionsExt;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("lockscope-write-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_new_file_is_private_and_replaces_an_old_one() {
        let path = folder("new").join("a.rec");
        std::fs::write(&path, [super::super::MAGIC.as_slice(), b"and more"].concat()).unwrap();
        let mut writer = Writer::create(&path).unwrap();
        writer.meta(&Meta::default()).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        assert_eq!(found.len(), writer.written());
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn links_and_devices_are_refused() {
        let folder = folder("link");
        let (target, link) = (folder.join("target"), folder.join("link"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let error = Writer::create(&link).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        assert!(Writer::create(Path::new("/dev/null")).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_full_disk_is_named_and_the_file_stays_whole() {
        // /dev/full answers every write with ENOSPC (full(4)).
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writer = Writer { file, path: PathBuf::from("/x/y.rec"), written: 4711 };
        let error = format!("{:#}", writer.end(&End::default()).unwrap_err());
        assert!(
            error.contains("/x/y.rec") && error.contains("4711") && error.contains("disk is full"),
            "{error}"
        );
        assert_eq!(writer.written(), 4711);
    }

    #[test]
    fn no_names_write_nothing() {
        let path = folder("names").join("a.rec");
        let mut writer = Writer::create(&path).unwrap();
        writer.names(&Names::default()).unwrap();
        assert_eq!(writer.written(), HEADER_LEN as u64);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
