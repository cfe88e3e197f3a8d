//! Counts that every CPU raises and that are seldom read: statistics of fast paths.
//!
//! Invariant: a caller that counts accesses a cache line of its own CPU, which only CPUs of the
//! same number modulo [`LINES`] share. A sum is exact while no CPU counts; otherwise it adds counts
//! that were right at some moment of each CPU.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::CpuId;

/// Number of CPUs that count in separate cache lines.
const LINES: usize = 16;

/// Counts of one CPU, alone in the two cache lines that prefetchers take together.
#[repr(align(128))]
struct CpuTally<const N: usize>([AtomicU64; N]);

/// `N` counts. See the module's head.
pub struct Tally<const N: usize>([CpuTally<N>; LINES]);

impl<const N: usize> Tally<N> {
    /// Makes counts that are all 0.
    #[expect(clippy::new_without_default, reason = "statics need a const fn, and one way is enough")]
    pub const fn new() -> Self {
        Self([const { CpuTally([const { AtomicU64::new(0) }; N]) }; LINES])
    }
    /// Raises count `which` by `times`, on `cpu`. No count is lost if the caller has moved to
    /// another CPU meanwhile.
    ///
    /// # Panics
    /// If `which` is not below `N`.
    #[inline]
    pub fn add(&self, cpu: CpuId, which: usize, times: u64) {
        self.0[usize::from(cpu.0) % LINES].0[which].fetch_add(times, Ordering::Relaxed);
    }
    /// Returns the sum of count `which` over all CPUs, modulo 2^64: a CPU that lowers a count adds
    /// the negative number's two's complement.
    ///
    /// # Panics
    /// If `which` is not below `N`.
    pub fn sum(&self, which: usize) -> u64 {
        self.0.iter().fold(0, |sum, line| sum.wrapping_add(line.0[which].load(Ordering::Relaxed)))
    }
}

impl<const N: usize> core::fmt::Debug for Tally<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries((0..N).map(|which| self.sum(which))).finish()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn what_any_cpu_counts_is_in_the_sum_and_in_no_other() {
        static TALLY: Tally<3> = Tally::new();
        std::thread::scope(|scope| {
            for cpu in 0..40 {
                scope.spawn(move || (0..100).for_each(|_| TALLY.add(CpuId(cpu), usize::from(cpu % 2), 2)));
            }
        });
        assert_eq!([0, 1, 2].map(|which| TALLY.sum(which)), [4000, 4000, 0]);
        assert_eq!(std::format!("{TALLY:?}"), "[4000, 4000, 0]");
    }

    #[test]
    fn two_cpus_share_no_line() {
        assert_eq!(size_of::<CpuTally<1>>(), 128);
        assert_eq!(align_of::<CpuTally<17>>(), 128);
    }
}
