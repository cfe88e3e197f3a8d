//! Random bits: a ChaCha20 generator, seeded from RDSEED and RDRAND and stirred with the time-stamp
//! counter, reseeded after every [`RESEED_AFTER`] draws (fast key erasure is ChaCha's own: a new key per seed).

use freehold_machine::Entropy;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};

use crate::X86;
use crate::registers::{rdrand, rdseed, rdtsc};
use crate::sync::IrqSpinLock;

const RESEED_AFTER: u32 = 1 << 16;

struct Generator {
    rng: ChaCha20Rng,
    draws: u32,
    seeded: bool,
}

static GENERATOR: IrqSpinLock<Option<Generator>> = IrqSpinLock::new(None);

impl Generator {
    /// Key material: hardware bits, the time stamp, and what the generator before it would have said.
    fn seeded_after(before: Option<&mut Generator>) -> Self {
        let mut seed = [0; 32];
        let mut hardware = 0;
        let mut old = before.map(|g| g.rng.clone());
        for word in seed.chunks_exact_mut(8) {
            let drawn = rdseed().or_else(rdrand);
            hardware += u32::from(drawn.is_some());
            let again = rdrand().unwrap_or(0).rotate_left(17);
            let stamp = rdtsc().wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let kept = old.as_mut().map_or(0, |rng| rng.next_u64());
            word.copy_from_slice(&(drawn.unwrap_or(0) ^ again ^ stamp ^ kept).to_le_bytes());
        }
        Self { rng: ChaCha20Rng::from_seed(seed), draws: 0, seeded: hardware == 4 }
    }
}

impl Entropy for X86 {
    fn random_u64(self) -> u64 {
        let mut generator = GENERATOR.lock();
        let stale = generator.as_ref().is_none_or(|g| g.draws >= RESEED_AFTER);
        if stale {
            let fresh = Generator::seeded_after(generator.as_mut());
            *generator = Some(fresh);
        }
        generator.as_mut().map_or_else(rdtsc, |g| {
            g.draws += 1;
            g.rng.next_u64()
        })
    }
    fn is_seeded(self) -> bool {
        GENERATOR.lock().as_ref().is_some_and(|g| g.seeded)
    }
}

/// Random bits for laying out memory, before the generator's lock and memory exist: hardware bits stirred
/// with the time stamp.
pub(crate) fn early() -> impl FnMut() -> u64 {
    || X86.random_u64()
}
