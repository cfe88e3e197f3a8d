//! Random delays before locks, so that rare interleavings of CPUs become frequent.
//!
//! Compiled in with the feature `delays` only, which kernels of `DELAYS=1 tools/build-kernel` have.
//! Between two critical sections other CPUs can see what the first one left. These windows are a
//! few instructions wide, and a CPU rarely stops in one, except on a busy host.

#[cfg(not(feature = "delays"))]
#[inline(always)]
pub(super) fn before_lock() {}

/// Waits for a random time, mostly for none: half as often for twice as long, from 16,384 cycles of
/// the time-stamp counter before one lock in 32, to 4 million before one in 4,096.
#[cfg(feature = "delays")]
pub(super) fn before_lock() {
    use core::sync::atomic::{AtomicU64, Ordering};

    use crate::registers::rdtsc;

    const RARE: u32 = 4;
    const SHORTEST: u32 = 14;
    const LONGEST: u32 = 22;
    static SEQUENCE: AtomicU64 = AtomicU64::new(0);

    let begun = rdtsc();
    // SplitMix64 (Steele, Lea, Flood 2014) of a counter that the time disturbs.
    let mut random = SEQUENCE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) ^ begun;
    random = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    random ^= random >> 31;
    let zeros = random.trailing_zeros();
    if zeros < RARE {
        return;
    }
    let length = 1 << (SHORTEST + zeros - RARE).min(LONGEST);
    while rdtsc().wrapping_sub(begun) < length {
        core::hint::spin_loop();
    }
}
