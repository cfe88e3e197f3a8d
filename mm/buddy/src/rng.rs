//! Random numbers for one run of the slow path.
//!
//! Seeded with 64 bits of the machine's generator, drawn before any lock. The mixing function is
//! the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); bounded numbers are Lemire's
//! unbiased multiply-and-reject (ACM TOMACS 2019).

/// A short-lived generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `bound`, every one equally likely; `bound` is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let mut wide = u128::from(self.next()) * u128::from(bound);
        if (wide as u64) < bound {
            let reject = bound.wrapping_neg() % bound;
            while (wide as u64) < reject {
                wide = u128::from(self.next()) * u128::from(bound);
            }
        }
        (wide >> 64) as u64
    }
}
