//! Repeatable pseudo-random numbers (splitmix64), one stream per thread.
//!
//! Must not draw from time, addresses or the system: the same seed has to give the same sequence on every host.

/// One thread's stream.
#[derive(Debug, Clone)]
pub(super) struct Stream(u64);

impl Stream {
    /// Stream number `lane` of `seed`; streams of neighbouring lanes are unrelated.
    pub fn new(seed: u64, lane: u64) -> Self {
        let mut stream = Self(seed ^ lane.wrapping_mul(0xd134_2543_de82_ef95));
        stream.next();
        stream
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, by multiplication: no division and no bias worth naming for small `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, lane: u64) -> Vec<u64> {
        let mut stream = Stream::new(seed, lane);
        (0..64).map(|_| stream.below(4096)).collect()
    }

    #[test]
    fn same_seed_same_sequence() {
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }

    #[test]
    fn below_covers_the_range_and_stays_in_it() {
        let mut stream = Stream::new(1, 0);
        let mut seen = [false; 16];
        (0..2000).for_each(|_| seen[stream.below(16) as usize] = true);
        assert!(seen.iter().all(|s| *s));
    }
}
