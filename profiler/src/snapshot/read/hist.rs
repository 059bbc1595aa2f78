//! A histogram whose counters are 32 bits wide on the kernel's side and may wrap: their differences do not. Knows no map.

use std::collections::BTreeMap;

use profiler_common::hist::{BUCKETS, STRIDE};

/// Sums since the recording began.
#[derive(Clone)]
pub struct Counts {
    sums: [u64; BUCKETS],
    raw: [u32; STRIDE],
}

impl Counts {
    /// Nothing counted yet.
    pub fn new() -> Counts {
        Counts { sums: [0; BUCKETS], raw: [0; STRIDE] }
    }

    /// Counts one that the kernel's counters do not hold.
    pub fn add_one(&mut self, bucket: usize) {
        self.sums[bucket] += 1;
    }

    /// Takes in the kernel's counters as they are now; says whether there was something new.
    pub fn take(&mut self, now: &[u32; STRIDE]) -> bool {
        let mut changed = false;
        for (bucket, sum) in self.sums.iter_mut().enumerate() {
            let more = now[bucket].wrapping_sub(self.raw[bucket]);
            *sum += u64::from(more);
            changed |= more != 0;
        }
        self.raw = *now;
        changed
    }

    /// The buckets in use.
    pub fn sparse(&self) -> BTreeMap<u16, u64> {
        let counts = self.sums.iter().enumerate().filter(|(_, count)| **count != 0);
        counts.map(|(bucket, count)| (bucket as u16, *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_wrap_lose_nothing() {
        let mut counts = Counts::new();
        let mut now = [0; STRIDE];
        now[7] = u32::MAX;
        assert!(counts.take(&now) && !counts.take(&now));
        now[7] = now[7].wrapping_add(3);
        counts.add_one(7);
        assert!(counts.take(&now));
        assert_eq!(counts.sparse(), BTreeMap::from([(7, u64::from(u32::MAX) + 4)]));
    }
}
