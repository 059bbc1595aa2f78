//! One worker's figures: counts, bytes and an H-spec latency histogram, in memory that a forked worker shares.
//!
//! Must not be written by two workers (plain load and store, no locked instruction: the load must not contend on
//! its own bookkeeping), and must stay valid when zeroed: it starts life as a fresh mapping.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

use profiler_common::hist::{self, BUCKETS, bucket};

use super::fault::Fault;

/// Aligned to two cache lines, so that neighbours never share one (the prefetcher fetches pairs).
#[repr(C, align(128))]
pub(super) struct Gauge {
    counts: [AtomicU64; BUCKETS],
    bytes: AtomicU64,
    max_ns: AtomicU64,
    unserved: AtomicU64,
    unserved_age_ns: AtomicU64,
    ended_ns: AtomicU64,
    fault_step: AtomicU32,
    fault_errno: AtomicI32,
    finished: AtomicU32,
}

impl Gauge {
    /// One operation of `ns`, which moved `bytes`.
    pub fn record(&self, ns: u64, bytes: u64) {
        add(&self.counts[bucket(ns).min(BUCKETS - 1)], 1);
        add(&self.bytes, bytes);
        self.max_ns.store(self.max_ns.load(Relaxed).max(ns), Relaxed);
    }

    /// Operations that were due but never started, and the age of the oldest at the end, ns.
    pub fn unserved(&self, n: u64, age_ns: u64) {
        self.unserved.store(n, Relaxed);
        self.unserved_age_ns.store(age_ns, Relaxed);
    }

    /// The operation that ended this worker.
    pub fn fail(&self, fault: Fault) {
        self.fault_errno.store(fault.errno, Relaxed);
        self.fault_step.store(fault.step, Release);
    }

    /// The last word of a worker that came to its end, and when.
    pub fn finish(&self, now: u64) {
        self.ended_ns.store(now, Relaxed);
        self.finished.store(1, Release);
    }

    /// Copies the figures; exact once the worker has ended.
    pub fn read(&self) -> Tally {
        let step = self.fault_step.load(Relaxed);
        Tally {
            counts: self.counts.iter().map(|c| c.load(Relaxed)).collect(),
            bytes: self.bytes.load(Relaxed),
            max_ns: self.max_ns.load(Relaxed),
            unserved: self.unserved.load(Relaxed),
            unserved_age_ns: self.unserved_age_ns.load(Relaxed),
            ended_ns: self.ended_ns.load(Relaxed),
            errors: u64::from(step != 0),
            fault: (step != 0).then(|| Fault { step, errno: self.fault_errno.load(Relaxed) }),
            finished: self.finished.load(Relaxed) != 0,
        }
    }
}

fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed) + n, Relaxed);
}

/// The figures of one worker, or of several merged.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub counts: Vec<u64>,
    pub bytes: u64,
    pub max_ns: u64,
    pub unserved: u64,
    pub unserved_age_ns: u64,
    pub ended_ns: u64,
    pub errors: u64,
    pub fault: Option<Fault>,
    pub finished: bool,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            bytes: 0,
            max_ns: 0,
            unserved: 0,
            unserved_age_ns: 0,
            ended_ns: 0,
            errors: 0,
            fault: None,
            finished: true,
        }
    }
}

impl Tally {
    pub fn merge(&mut self, other: &Tally) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.bytes += other.bytes;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.unserved += other.unserved;
        self.unserved_age_ns = self.unserved_age_ns.max(other.unserved_age_ns);
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        self.errors += other.errors;
        self.fault = self.fault.or(other.fault);
        self.finished &= other.finished;
    }

    /// Operations recorded.
    pub fn n(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The `q` quantile in ns, or none where fewer than `least` operations stand behind it.
    pub fn quantile(&self, q: f64, least: u64) -> Option<u64> {
        if self.n() < least {
            return None;
        }
        // A bucket's middle may lie above the largest value in it.
        hist::quantile(&self.counts, q).map(|ns| ns.min(self.max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(values: impl Iterator<Item = u64>) -> Tally {
        let mut t = Tally::default();
        for v in values {
            t.counts[bucket(v)] += 1;
            t.max_ns = t.max_ns.max(v);
        }
        t
    }

    #[test]
    fn thin_tails_are_hidden() {
        assert_eq!(tally(0..0).quantile(0.5, 1), None);
        assert_eq!(tally((0..299).map(|_| 1000)).quantile(0.99, 300), None);
        assert!(tally((0..300).map(|_| 1000)).quantile(0.99, 300).is_some());
        assert_eq!(tally((0..2999).map(|_| 1000)).quantile(0.999, 3000), None);
    }

    #[test]
    fn quantiles_are_within_a_bucket_and_below_the_maximum() {
        let t = tally((1..=10_000).map(|i| i * 1000));
        for (q, want) in [(0.5, 5_000_000.0), (0.99, 9_900_000.0)] {
            let got = t.quantile(q, 1).unwrap() as f64;
            assert!((got / want - 1.0).abs() < 0.13, "{q}: {got}");
        }
        assert!(t.quantile(1.0, 1).unwrap() <= t.max_ns);
    }

    #[test]
    fn merging_adds_counts_and_keeps_the_worst() {
        let mut a = tally([100, 200].into_iter());
        a.merge(&tally([5_000_000].into_iter()));
        assert_eq!((a.n(), a.max_ns), (3, 5_000_000));
    }
}
