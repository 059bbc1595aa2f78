//! A BPF array mapped into our memory: read and written without a system call. Nothing here knows what a value means.

use std::{
    io,
    marker::PhantomData,
    mem::size_of,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use anyhow::{Context, Result};
use profiler_common::{
    Cell, Control, Interval, Letter, bh_lru::LruCell, first_sight::MailboxEnds, hist::STRIDE,
    journal::Journal, journal::JournalCell, limits::DEPTH, limits::PEEK_BYTES, loss::COUNTERS,
};

/// Types that any bytes are a value of, and whose size is the map's stride.
///
/// # Safety
/// Plain integers only, no padding that matters, size a multiple of 8.
pub unsafe trait Plain: Copy {}
// SAFETY: `repr(C)` structs and arrays of integers with explicit padding (profiler-common).
unsafe impl Plain for Cell {}
// SAFETY: as above.
unsafe impl Plain for Control {}
// SAFETY: as above.
unsafe impl Plain for Letter {}
// SAFETY: as above.
unsafe impl Plain for MailboxEnds {}
// SAFETY: as above.
unsafe impl Plain for [Interval; DEPTH] {}
// SAFETY: as above.
unsafe impl Plain for [u32; STRIDE] {}
// SAFETY: as above.
unsafe impl Plain for [u64; COUNTERS] {}
// SAFETY: as above.
unsafe impl Plain for [u64; 1 + PEEK_BYTES / 8] {}
// SAFETY: as above.
unsafe impl Plain for JournalCell {}
// SAFETY: as above.
unsafe impl Plain for Journal {}
// SAFETY: as above.
unsafe impl Plain for LruCell {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

/// A mapped array of `len` values.
#[derive(Debug)]
pub struct Mapped<T: Plain> {
    base: *mut T,
    len: usize,
    bytes: usize,
    values: PhantomData<T>,
}

// SAFETY: the mapping is shared memory that the kernel writes at any time; every access is volatile and by value.
unsafe impl<T: Plain> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Mapped<T> {}

impl<T: Plain> Mapped<T> {
    /// Maps `len` values of the array behind `fd`, for reading and writing.
    ///
    /// # Errors
    /// What mmap says, with the map's name.
    pub fn new(fd: BorrowedFd<'_>, len: usize, name: &str) -> Result<Self> {
        let page = page_size();
        let bytes = (len * size_of::<T>()).next_multiple_of(page);
        // SAFETY: a new shared mapping of an array map; the kernel checks the length.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).with_context(|| format!("mapping the BPF array {name}"));
        }
        Ok(Self { base: base.cast(), len, bytes, values: PhantomData })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map has no value at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the value lies; the index is clamped, so that a wrong one reads a wrong value, never other memory.
    pub fn at(&self, index: usize) -> *mut T {
        debug_assert!(index < self.len);
        // SAFETY: within the mapping.
        unsafe { self.base.add(index.min(self.len.saturating_sub(1))) }
    }

    /// A copy of the value as it is now. The kernel may be writing it: words are whole, the value may not be.
    pub fn get(&self, index: usize) -> T {
        // SAFETY: within the mapping, and any bytes are a value.
        unsafe { ptr::read_volatile(self.at(index)) }
    }

    /// Overwrites the value.
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: within the mapping.
        unsafe { ptr::write_volatile(self.at(index), value) }
    }
}

impl Mapped<Control> {
    /// Sets one word of the settings and touches no other: several threads steer.
    ///
    /// # Panics
    /// When there is no whole word at this offset in bytes.
    pub fn set_word(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= size_of::<Control>());
        // SAFETY: within the mapping; the kernel side only reads it.
        unsafe { ptr::write_volatile(self.at(0).byte_add(offset).cast::<u32>(), value) }
    }
}

impl<T: Plain> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and nobody holds a reference into it.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

fn page_size() -> usize {
    // SAFETY: a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
