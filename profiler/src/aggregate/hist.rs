//! Histograms of user space: sparse counts by H-spec bucket, and their quantiles with the rule for too few waits.
//!
//! Must not know where the counts come from.

use std::collections::BTreeMap;

use profiler_common::hist::{BUCKETS, midpoint, quantile};

use super::Reading;

/// Counts by bucket of [`profiler_common::hist`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hist(BTreeMap<u16, u64>);

/// A quantile stands on at least so many waits beyond it: p99 needs 300 in all.
const BEYOND: u64 = 3;

impl Hist {
    /// Takes in sums that replace older ones bucket by bucket. Buckets that cannot be are ignored.
    pub fn replace(&mut self, counts: &BTreeMap<u16, u64>) {
        self.0.extend(counts.iter().filter(|(bucket, _)| usize::from(**bucket) < BUCKETS));
    }

    /// What came in between the earlier one and this.
    pub fn since(&self, earlier: Option<&Hist>) -> Hist {
        let before = |bucket| earlier.and_then(|e| e.0.get(bucket)).copied().unwrap_or(0);
        let counts = self.0.iter().map(|(bucket, n)| (*bucket, n.saturating_sub(before(bucket))));
        Hist(counts.filter(|(_, n)| *n > 0).collect())
    }

    /// Adds another one: buckets are the same everywhere, so histograms merge by addition.
    pub fn add(&mut self, other: &Hist) {
        for (bucket, n) in &other.0 {
            let sum = self.0.entry(*bucket).or_default();
            *sum = sum.saturating_add(*n);
        }
    }

    /// Waits in it.
    pub fn n(&self) -> u64 {
        self.0.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Middle of the highest bucket in use, in nanoseconds.
    pub fn highest(&self) -> Option<u64> {
        self.0.iter().rev().find(|(_, n)| **n > 0).map(|(bucket, _)| midpoint(usize::from(*bucket)))
    }

    /// The counts by bucket.
    pub fn counts(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.iter().map(|(bucket, n)| (*bucket, *n))
    }

    /// The quantile at `percent`, 1 to 99, in nanoseconds, or `TooFew`.
    pub fn percentile(&self, percent: u64) -> Reading {
        // The median of a single wait is that wait; only tails need many.
        let needed = if percent <= 50 { 1 } else { BEYOND * 100 / (100 - percent.min(99)) };
        if self.n() < needed {
            return Reading::TooFew;
        }
        match quantile(&self.dense(), percent as f64 / 100.0) {
            Some(ns) => Reading::Exact(ns),
            None => Reading::TooFew,
        }
    }

    /// Bounded so that the sum of hostile counts cannot overflow.
    fn dense(&self) -> [u64; BUCKETS] {
        let mut dense = [0; BUCKETS];
        for (bucket, n) in &self.0 {
            if let Some(slot) = dense.get_mut(usize::from(*bucket)) {
                *slot = (*n).min(u64::MAX / (2 * BUCKETS as u64));
            }
        }
        dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::hist::bucket;

    fn of(waits: &[(u64, u64)]) -> Hist {
        let mut hist = Hist::default();
        hist.replace(&waits.iter().map(|(ns, n)| (bucket(*ns) as u16, *n)).collect());
        hist
    }

    #[test]
    fn tails_need_enough_waits() {
        let few = of(&[(1000, 299)]);
        assert_eq!(few.percentile(99), Reading::TooFew);
        assert!(few.percentile(50).value().is_some());
        assert!(of(&[(1000, 300)]).percentile(99).value().is_some());
        assert_eq!(Hist::default().percentile(50), Reading::TooFew);
    }

    #[test]
    fn a_difference_holds_what_came_in_between() {
        let (before, now) = (of(&[(1000, 5), (9000, 1)]), of(&[(1000, 7), (9000, 1)]));
        let between = now.since(Some(&before));
        assert_eq!(between, of(&[(1000, 2)]));
        assert_eq!(between.highest(), of(&[(1000, 1)]).highest());
        let mut sum = before.clone();
        sum.add(&between);
        assert_eq!(sum, now);
    }

    #[test]
    fn hostile_counts_do_no_harm() {
        let mut hist = Hist::default();
        hist.replace(&BTreeMap::from([(0, u64::MAX), (249, u64::MAX), (250, 1), (u16::MAX, 1)]));
        assert_eq!(hist.n(), u64::MAX);
        assert!(hist.percentile(99).value().is_some());
        assert_eq!(hist.counts().count(), 2);
    }
}
