//! Random numbers that repeat in every run.

/// SplitMix64: 64 bits of state; every seed is equally good.
///
/// Source: Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The sequence of these seeds; other seeds have another one.
    pub(super) fn new(seeds: &[u64]) -> Self {
        Self(seeds.iter().fold(0, |state, &seed| Self(state ^ seed).next()))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// True with this probability, from 0 to 1.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        // A float holds 53 bits.
        let drawn = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < probability
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_reference_implementation() {
        // The first outputs of java.util.SplittableRandom's algorithm for seed 0.
        let mut random = Random(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn probability_holds_and_extremes_are_certain() {
        let mut random = Random::new(&[1, 2]);
        let count = (0..100_000).filter(|_| random.happens(0.01)).count();
        assert!((900..1100).contains(&count), "{count} of 100000 at 1 %");
        assert!((0..1000).all(|_| random.happens(1.0) && !random.happens(0.0)));
    }

    #[test]
    fn numbers_below_a_limit_are_spread_evenly() {
        let mut random = Random::new(&[]);
        let mut counts = [0; 7];
        (0..70_000).for_each(|_| counts[random.below(7)] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn each_seed_list_has_its_own_sequence() {
        let first = |seeds: &[u64]| Random::new(seeds).next();
        let all = [first(&[1, 2]), first(&[2, 1]), first(&[1]), first(&[1, 2, 0]), first(&[0, 3])];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one));
        }
    }
}
