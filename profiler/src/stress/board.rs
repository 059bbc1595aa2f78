//! The memory all workers of a run share: the measuring window and one gauge each. A shared mapping, because a
//! worker may be a forked process; all-atomic, because it may be a thread.
//!
//! Must not hold anything that is not valid as zero bytes.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use super::clock;
use super::gauge::Gauge;

/// When the run began, and from when until when operations count; CLOCK_MONOTONIC ns. All zero before the start.
#[repr(C, align(128))]
pub(super) struct Window {
    origin: AtomicU64,
    from: AtomicU64,
    until: AtomicU64,
    ready: AtomicU32,
}

impl Window {
    /// Releases the workers: the warm-up begins now.
    pub fn open(&self, warmup_ns: u64, measured_ns: u64) {
        let origin = clock::now();
        self.from.store(origin + warmup_ns, Relaxed);
        self.until.store(origin + warmup_ns + measured_ns, Relaxed);
        self.origin.store(origin, Release);
    }

    /// Ends the run now, whether or not it has begun.
    pub fn close(&self) {
        if self.origin.load(Acquire) == 0 {
            // An origin with an end in the past: whoever is at the barrier goes through and stops.
            self.until.store(1, Relaxed);
            self.origin.store(1, Release);
        } else {
            self.stop_at(clock::now());
        }
    }

    /// The start barrier, worker's side: returns the moment of the start.
    pub fn wait_for_start(&self) -> u64 {
        self.ready.fetch_add(1, Release);
        loop {
            match self.origin.load(Acquire) {
                0 => std::thread::sleep(Duration::from_micros(100)),
                origin => return origin,
            }
        }
    }

    pub fn ready(&self) -> u32 {
        self.ready.load(Acquire)
    }

    pub fn until(&self) -> u64 {
        self.until.load(Relaxed)
    }

    /// Whether an operation begun at `moment` counts. Counting by start takes each operation exactly once, and
    /// includes the one that is stuck when the time is up.
    pub fn counts(&self, moment: u64) -> bool {
        moment >= self.from.load(Relaxed)
    }

    /// Ends the measured time at `moment`, if it has not ended before.
    pub fn stop_at(&self, moment: u64) {
        self.until.fetch_min(moment, Relaxed);
    }

    /// From when until when operations counted; none when the run ended within the warm-up.
    pub fn span(&self) -> Option<(u64, u64)> {
        let (from, until) = (self.from.load(Relaxed), self.until.load(Relaxed));
        (from > 0 && until > from).then_some((from, until))
    }
}

/// The mapping: a window, then `lanes` gauges.
pub(super) struct Board {
    base: NonNull<u8>,
    lanes: usize,
}

// SAFETY: the mapping lives as long as the Board, and only atomics in it are ever handed out.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    pub fn new(lanes: usize) -> io::Result<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::bytes(lanes), prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, lanes })
    }

    fn bytes(lanes: usize) -> usize {
        size_of::<Window>() + lanes * size_of::<Gauge>()
    }

    pub fn window(&self) -> &Window {
        // SAFETY: page-aligned, inside the mapping, valid as zero bytes, all-atomic.
        unsafe { self.base.cast::<Window>().as_ref() }
    }

    pub fn gauges(&self) -> &[Gauge] {
        // SAFETY: the window's size is a multiple of the gauges' alignment, `lanes` of them were mapped, and they
        // are valid as zero bytes and all-atomic.
        unsafe {
            let first = self.base.add(size_of::<Window>()).cast::<Gauge>();
            std::slice::from_raw_parts(first.as_ptr(), self.lanes)
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no reference outlives the Board.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Self::bytes(self.lanes)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ended_in_the_warm_up_measured_nothing() {
        let board = Board::new(1).unwrap();
        board.window().open(60_000_000_000, 1);
        board.window().close();
        assert_eq!(board.window().span(), None);
    }

    #[test]
    fn closing_before_the_start_frees_the_barrier() {
        let board = Board::new(3).unwrap();
        board.window().close();
        assert!(board.window().wait_for_start() >= board.window().until());
        assert_eq!(board.window().span(), None);
        assert_eq!(board.gauges().len(), 3);
    }
}
