//! Random bits: a generator per CPU, keyed from one that all share, which is keyed from RDSEED,
//! RDRAND and the time-stamp counter.
//!
//! **Protocol.** Each CPU has a [`KeyStream`] (fast key erasure: `stream.rs`) behind a lock of its
//! own, which others take only when a caller moves to another CPU between finding it and locking
//! it. A stream takes a new key from the [`Base`] at its first draw, and at its first refill after
//! the base was reseeded. After [`RESEED_AFTER`] refills it reseeds the base. Lock order: stream,
//! then base; interrupts are off in both. With each key that the base gives out, it replaces its
//! own key.
//!
//! Linux' nearest relative is drivers/char/random.c (`crngs` and `base_crng`).

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::Entropy;

use crate::registers::{rdrand, rdseed, rdtsc};
use crate::sync::IrqSpinLock;
use crate::{X86, cpu};

mod stream;

use stream::{CipherKey, KEY, KeyStream};

/// Refills of one CPU's stream until the base is reseeded: half a MiB.
const RESEED_AFTER: u32 = 2048;
/// Up to this many bytes come from the stream's own block.
const SHORT: usize = 64;

/// A CPU's generator.
pub(crate) struct CpuRandom(IrqSpinLock<Local>);

struct Local {
    stream: KeyStream,
    /// The [`GENERATION`] of the base when it gave this key; 0 before there is a key.
    generation: u64,
    refills: u32,
}

/// The source of the CPUs' keys.
struct Base {
    key: CipherKey,
    /// Whether all of a seed's words came from hardware.
    is_seeded: bool,
}

static BASE: IrqSpinLock<Base> = IrqSpinLock::new(Base { key: CipherKey::ZERO, is_seeded: false });
/// Number of times that the base was seeded. Changed with [`BASE`] locked.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl Base {
    /// Mixes hardware bits and the time stamp into the key, which keeps its old entropy.
    fn reseed(&mut self) {
        let mut material = [0; KEY];
        let mut hardware = 0;
        for word in material.chunks_exact_mut(8) {
            let drawn = rdseed().or_else(rdrand);
            hardware += u32::from(drawn.is_some());
            let again = rdrand().unwrap_or(0).rotate_left(17);
            let stamp = rdtsc().wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&(drawn.unwrap_or(0) ^ again ^ stamp).to_le_bytes());
        }
        self.key.stir(&material);
        self.is_seeded |= hardware == 4;
        GENERATION.fetch_add(1, Ordering::Release);
    }

    /// Returns a key for a CPU.
    fn draw_key(&mut self) -> CipherKey {
        let mut stream = KeyStream::empty();
        stream.restart(self.key.clone());
        let given = stream.draw_key();
        self.key = stream.draw_key();
        given
    }
}

impl CpuRandom {
    pub(crate) const fn new() -> Self {
        Self(IrqSpinLock::new(Local { stream: KeyStream::empty(), generation: 0, refills: 0 }))
    }
}

impl Local {
    fn draw<const N: usize>(&mut self) -> [u8; N] {
        if self.stream.is_spent(N) {
            self.before_refill();
        }
        self.stream.draw()
    }

    /// Takes a new key if one is due.
    #[cold]
    fn before_refill(&mut self) {
        self.refills += 1;
        let is_old = self.refills > RESEED_AFTER;
        if !is_old && self.generation != 0 && self.generation == GENERATION.load(Ordering::Acquire) {
            return;
        }
        let mut base = BASE.lock();
        if is_old || GENERATION.load(Ordering::Relaxed) == 0 {
            base.reseed();
        }
        self.stream.restart(base.draw_key());
        self.generation = GENERATION.load(Ordering::Relaxed);
        self.refills = 0;
    }
}

/// Fills `bytes`. Long requests get a key of their own, whose output is not buffered; no lock is
/// held while they are filled.
pub fn fill(bytes: &mut [u8]) {
    if bytes.len() > SHORT {
        let key = CipherKey::from(cpu::this().random.0.lock().draw());
        return stream::expand(key, bytes);
    }
    let mut local = cpu::this().random.0.lock();
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&local.draw::<8>()[..word.len()]);
    }
}

impl Entropy for X86 {
    fn random_u64(self) -> u64 {
        u64::from_le_bytes(cpu::this().random.0.lock().draw())
    }
    fn is_seeded(self) -> bool {
        BASE.lock().is_seeded
    }
}

/// Returns random bits for the memory layout, before memory management exists.
pub(crate) fn early() -> impl FnMut() -> u64 {
    || X86.random_u64()
}
