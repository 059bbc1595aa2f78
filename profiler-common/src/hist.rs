//! The H-spec histogram (metrics.md §1.4): log-linear, eight sub-buckets an octave, integer only, no loops.
//!
//! A quantile is a bucket's midpoint, so its relative error is at most 1/16.

/// Counters of one histogram: bucket 0 is `[0, 64)` ns, the last one everything from 2^37 ns (137 s) on.
pub const BUCKETS: usize = 250;
/// The histogram's room in the map, a power of two so that an index can be masked.
pub const STRIDE: usize = 256;

const FIRST_OCTAVE: u32 = 6;
const LAST_OCTAVE: u32 = 36;

/// The bucket of a duration in nanoseconds.
#[inline(always)]
pub const fn bucket(ns: u64) -> usize {
    if ns < 1 << FIRST_OCTAVE {
        return 0;
    }
    let octave = log2(ns);
    if octave > LAST_OCTAVE {
        return BUCKETS - 1;
    }
    let sub = (ns >> (octave - 3)) & 7;
    1 + 8 * (octave - FIRST_OCTAVE) as usize + sub as usize
}

/// ⌊log₂⌋ of a number above 0 by halving: the BPF machine has no instruction for it, and what the compiler makes of
/// `leading_zeros` there is three times as long.
#[inline(always)]
const fn log2(mut value: u64) -> u32 {
    let mut log = 0;
    if value >= 1 << 32 {
        value >>= 32;
        log += 32;
    }
    if value >= 1 << 16 {
        value >>= 16;
        log += 16;
    }
    if value >= 1 << 8 {
        value >>= 8;
        log += 8;
    }
    if value >= 1 << 4 {
        value >>= 4;
        log += 4;
    }
    if value >= 1 << 2 {
        value >>= 2;
        log += 2;
    }
    log + (value >> 1) as u32
}

/// The lowest duration of a bucket, in nanoseconds.
pub const fn lower(bucket: usize) -> u64 {
    if bucket == 0 {
        return 0;
    }
    let index = bucket - 1;
    let octave = FIRST_OCTAVE + (index / 8) as u32;
    (8 + (index % 8) as u64) << (octave - 3)
}

/// What a quantile that falls into this bucket reads: the middle of the bucket, in nanoseconds.
pub const fn midpoint(bucket: usize) -> u64 {
    if bucket + 1 >= BUCKETS {
        return lower(BUCKETS - 1);
    }
    lower(bucket).midpoint(lower(bucket + 1))
}

/// The `q`-quantile (0 < q ≤ 1) in nanoseconds, `None` for an empty histogram.
pub fn quantile(counts: &[u64], q: f64) -> Option<u64> {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return None;
    }
    // The smallest rank that covers the share, so that the median of three is the second; no library to round up here.
    let exact = total as f64 * q;
    let whole = exact as u64;
    let wanted = (whole + u64::from(exact > whole as f64)).clamp(1, total);
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= wanted {
            return Some(midpoint(bucket));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_the_specification() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(63), 0);
        assert_eq!(bucket(64), 1);
        assert_eq!(bucket((1 << 37) - 1), 248);
        assert_eq!(bucket(1 << 37), 249);
        assert_eq!(bucket(u64::MAX), 249);
    }

    #[test]
    fn log2_is_the_machines_own() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) | 1, u64::MAX >> (63 - shift)] {
                assert_eq!(log2(value), 63 - value.leading_zeros(), "{value}");
            }
        }
    }

    #[test]
    fn a_bucket_holds_what_lies_between_its_lower_edges() {
        for b in 1..BUCKETS - 1 {
            assert_eq!(bucket(lower(b)), b);
            assert_eq!(bucket(lower(b + 1) - 1), b);
        }
    }

    #[test]
    fn midpoints_are_within_one_sixteenth() {
        for v in [64u64, 100, 999, 4096, 123_456, 9_999_999, 1_000_000_007, 100_000_000_000] {
            let m = midpoint(bucket(v));
            assert!(m.abs_diff(v) * 16 <= v, "{v} reads {m}");
        }
    }

    #[test]
    fn the_median_of_three_is_the_second() {
        let mut counts = [0u64; BUCKETS];
        for v in [1_000u64, 1_000_000, 1_000_000] {
            counts[bucket(v)] += 1;
        }
        assert_eq!(quantile(&counts, 0.5), Some(midpoint(bucket(1_000_000))));
        assert_eq!(quantile(&counts, 1.0 / 3.0), Some(midpoint(bucket(1_000))));
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut counts = [0u64; BUCKETS];
        for v in 1..=1000u64 {
            counts[bucket(v * 1000)] += 1;
        }
        let p50 = quantile(&counts, 0.5).unwrap();
        let p99 = quantile(&counts, 0.99).unwrap();
        assert!(p50.abs_diff(500_000) * 16 <= 500_000, "{p50}");
        assert!(p99.abs_diff(990_000) * 16 <= 990_000, "{p99}");
        assert_eq!(quantile(&[0; BUCKETS], 0.5), None);
    }
}
