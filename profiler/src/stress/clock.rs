//! Time: the monotonic clock (the one BPF stamps with), sleeping up to a moment, and the open-loop schedule.
//!
//! Must not allocate or lock: used between operations and in forked workers.

use std::time::Duration;

/// A sleeper wakes this much early and spins: timers are late by tens of µs, which would count as the lock's.
const SPIN_NS: u64 = 50_000;
/// Longest single sleep, so that a stop is seen soon.
const NAP_NS: u64 = 10_000_000;

/// CLOCK_MONOTONIC, ns.
pub(super) fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to; CLOCK_MONOTONIC exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Takes the calling thread's timer slack from 50 µs to 1 ns.
pub(super) fn sharpen() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches only the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64) };
}

/// Goes some way towards `moment`; false once it is reached.
pub(super) fn approach(moment: u64) -> bool {
    let left = moment.saturating_sub(now());
    if left > SPIN_NS {
        std::thread::sleep(Duration::from_nanos((left - SPIN_NS).min(NAP_NS)));
    } else {
        std::hint::spin_loop();
    }
    left > 0
}

/// The open-loop schedule of one of `threads` threads that together start `rate` operations a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    rate: u64,
    threads: u64,
    thread: u64,
}

impl Pace {
    pub fn new(rate: u64, threads: u32, thread: u32) -> Self {
        Self { rate: rate.max(1), threads: u64::from(threads.max(1)), thread: u64::from(thread) }
    }

    /// Intended start of this thread's operation `k`, ns after the run began.
    pub fn intended(&self, k: u64) -> u64 {
        let global = u128::from(k) * u128::from(self.threads) + u128::from(self.thread);
        (global * 1_000_000_000 / u128::from(self.rate)) as u64
    }

    /// How many of this thread's operations should have started before `ns` after the run began.
    pub fn due_before(&self, ns: u64) -> u64 {
        let global = (u128::from(ns) * u128::from(self.rate)).div_ceil(1_000_000_000);
        let own = global.saturating_sub(u128::from(self.thread));
        own.div_ceil(u128::from(self.threads)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_rate_evenly() {
        let (a, b) = (Pace::new(1000, 2, 0), Pace::new(1000, 2, 1));
        assert_eq!(
            [a.intended(0), b.intended(0), a.intended(1), b.intended(1)],
            [0, 1_000_000, 2_000_000, 3_000_000]
        );
        assert_eq!(
            Pace::new(3, 1, 0).intended(3_000_000),
            1_000_000_000_000_000,
            "no drift over 3 M operations"
        );
    }

    #[test]
    fn due_before_is_the_inverse_of_intended() {
        for (rate, threads, thread) in [(1000, 2, 0), (1000, 2, 1), (7, 3, 2), (999_983, 5, 4)] {
            let pace = Pace::new(rate, threads, thread);
            for k in [0, 1, 2, 17, 1000] {
                assert_eq!(pace.due_before(pace.intended(k)), k, "{pace:?} {k}");
                assert_eq!(pace.due_before(pace.intended(k) + 1), k + 1, "{pace:?} {k}");
            }
        }
    }
}
