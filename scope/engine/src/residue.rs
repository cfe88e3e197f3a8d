//! Programs' bytes in memory: one bit for each byte that was stored while a program owned the frame
//! and was not overwritten since.
//!
//! A byte that is zero belongs to no program: it cannot be told from one that was wiped. The CPU
//! that stores sets and clears bits, in the callback of its store. The value is read from the
//! guest's memory there, so after two stores to one byte at once the bit may be that of either.
//! Software that runs before a kernel publishes itself is no program: its bytes are forgotten at
//! the publication. A frame has bits from the first program's byte on.
//!
//! Stores of devices are not seen as they happen. Frames through which transfers pass are read at
//! each sample, and when their owner lets go of them: each byte there that is not zero is a
//! program's, whether a device or a CPU stored it. With `--dma direct` a byte that a device stored
//! in a program's own frame is missed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use freehold_scope_record::Residue as Sample;

use crate::frames::Frames;
use crate::guest::GuestMemory;

type Bits = [AtomicU64; 64];

/// The party for which a byte was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoredFor {
    /// The program that owns the frame.
    Program,
    /// The kernel.
    Kernel,
}

/// The bits of all frames.
pub struct Residue {
    frames: Vec<OnceLock<Box<Bits>>>,
}

impl Residue {
    /// Makes the bits of a memory without programs' bytes.
    pub fn new(frames: usize) -> Self {
        Self { frames: (0..frames).map(|_| OnceLock::new()).collect() }
    }

    /// Clears all bits: bytes stored until now are the firmware's and the loader's.
    pub fn forget(&self) {
        let known = self.frames.iter().filter_map(OnceLock::get).flat_map(|bits| bits.iter());
        known.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Notes that `bytes` bytes were stored at a guest-physical address. Bytes beyond the page are
    /// left out.
    pub fn stored(&self, memory: &dyn GuestMemory, physical: u64, bytes: u64, by: StoredFor) {
        let Some(slot) = self.frames.get((physical >> 12) as usize) else { return };
        let bits = match slot.get() {
            Some(bits) => bits,
            None if by == StoredFor::Program => {
                slot.get_or_init(|| Box::new([const { AtomicU64::new(0) }; 64]))
            }
            None => return,
        };
        for (word, stored) in words(physical, bytes) {
            let value = if by == StoredFor::Program { memory.load(word).unwrap_or(0) } else { 0 };
            let set = (0..8).filter(|n| value >> (8 * n) & 0xff != 0).fold(0, |set, n| set | 1 << n) & stored;
            let (index, shift) = ((word & 0xfff) as usize / 64, word % 64);
            bits[index].fetch_or(set << shift, Ordering::Relaxed);
            bits[index].fetch_and(!((stored & !set) << shift), Ordering::Relaxed);
        }
    }

    /// Notes all bytes of a frame that transfers passed through.
    pub fn carried(&self, memory: &dyn GuestMemory, frame: u64) {
        self.stored(memory, frame << 12, 1 << 12, StoredFor::Program);
    }

    /// Notes all bytes of the frames that transfers pass through now.
    pub fn look_at_transfers(&self, memory: &dyn GuestMemory, frames: &Frames) {
        let all = 0..self.frames.len() as u64;
        all.filter(|&frame| frames.is_transfers(frame)).for_each(|frame| self.carried(memory, frame));
    }

    /// Returns whether the bytes at a guest-physical address are zero.
    pub fn is_zero(&self, memory: &dyn GuestMemory, physical: u64, bytes: u64) -> bool {
        words(physical, bytes).all(|(word, stored)| {
            let value = memory.load(word).unwrap_or(0);
            (0..8).all(|n| stored >> n & 1 == 0 || value >> (8 * n) & 0xff == 0)
        })
    }

    /// Returns the present state.
    pub fn sample(&self, memory: &dyn GuestMemory, frames: &Frames, time: u64, phase: usize) -> Sample {
        let mut sample = Sample { time, phase, ..Sample::default() };
        let is_linux = frames.published().is_none();
        let root = is_linux.then(|| frames.linux.root(memory, self.frames.len() as u64)).flatten();
        for (frame, bits) in self.frames.iter().enumerate() {
            let Some(bits) = bits.get() else { continue };
            let bytes: u64 =
                bits.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum();
            if bytes == 0 {
                continue;
            }
            let frame = frame as u64;
            sample.frames += 1;
            sample.bytes += bytes;
            if !frames.is_reachable(memory, root, frame) {
                continue;
            }
            sample.reachable_frames += 1;
            sample.reachable_bytes += bytes;
            if !frames.is_programs(frame) {
                sample.residue_frames += 1;
                sample.residue_bytes += bytes;
                sample.free_frames += u64::from(frames.was_given_back(frame));
            }
        }
        sample
    }
}

/// Returns the words of 8 bytes that a store touches, and a bit for each touched byte.
fn words(physical: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = (physical + bytes.max(1)).min((physical | 0xfff) + 1);
    (physical & !7..end).step_by(8).map(move |word| {
        let first = physical.saturating_sub(word);
        let last = (end - word).min(8);
        (word, ((1u64 << last) - 1) & !((1u64 << first) - 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::Words;
    use freehold_scope_model::PageSize;
    use freehold_scope_record::{HwAddress, MemoryBackends};

    #[test]
    fn a_store_touches_its_bytes_and_stays_in_its_page() {
        let all = |physical, bytes| words(physical, bytes).collect::<Vec<_>>();
        assert_eq!(all(0x1000, 8), [(0x1000, 0xff)]);
        assert_eq!(all(0x1006, 4), [(0x1000, 0xc0), (0x1008, 0x03)]);
        assert_eq!(all(0x1ffe, 8), [(0x1ff8, 0xc0)]);
    }

    #[test]
    fn bytes_are_a_programs_until_they_are_stored_over_or_zero() {
        let (words, residue) = (Words::default(), Residue::new(4));
        let frames = Frames::new(&MemoryBackends::q35(&[1 << 20], HwAddress::GuestPhysical), 4);
        let bytes = || residue.sample(&words, &frames, 0, 0).bytes;
        words.store(0x2000, 0x11_00_33_44);
        residue.stored(&words, 0x2000, 8, StoredFor::Program);
        assert_eq!(bytes(), 3, "a zero is nobody's");
        residue.stored(&words, 0x2001, 1, StoredFor::Kernel);
        assert_eq!(bytes(), 2, "the kernel's own byte");
        words.store(0x2000, 0);
        assert!(residue.is_zero(&words, 0x2000, 8));
        residue.stored(&words, 0x2000, 8, StoredFor::Program);
        assert_eq!(bytes(), 0, "wiped by the program itself");
        words.store(0x2000, 0x11);
        residue.stored(&words, 0x2000, 8, StoredFor::Program);
        residue.forget();
        assert_eq!(bytes(), 0, "the firmware's");
    }

    #[test]
    fn bytes_that_a_stock_linux_takes_out_of_its_direct_map_are_out_of_its_reach() {
        const ROOT: u64 = 0x10_0000;
        const DIRECT: u64 = 0xffff_8880_0000_0000;
        let (words, residue) = (Words::default(), Residue::new(0x2000));
        let frames = Frames::new(&MemoryBackends::q35(&[32 << 20], HwAddress::GuestPhysical), 4);
        for frame in [2, 3] {
            words.store(frame << 12, 0x11);
            residue.stored(&words, frame << 12, 8, StoredFor::Program);
        }
        let reachable = || residue.sample(&words, &frames, 0, 0).reachable_frames;
        assert_eq!(reachable(), 2, "there are no tables yet");
        words.map(ROOT, DIRECT + 0x2000, 0x2000, PageSize::Small, 0);
        assert_eq!(reachable(), 2, "a table without the image is not the kernel's root");
        for frame in [0x1000, 0x1200] {
            words.map(ROOT, DIRECT + (frame << 12), frame << 12, PageSize::Large, 0);
        }
        assert_eq!(reachable(), 1, "the other frame is not mapped");
        words.map(ROOT, DIRECT + 0x3000, 0x3000, PageSize::Small, 0);
        assert_eq!(reachable(), 2);
    }
}
