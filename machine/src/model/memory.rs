//! Physical memory as words that any CPU may access at any moment.
//!
//! A frame's words come into being when it is first touched, so a machine of many gigabytes costs
//! only the frames that a test uses.

use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

use crate::{PAGE_SIZE, Pfn, TABLE_ENTRIES};

type Words = [AtomicU64; TABLE_ENTRIES];

pub(super) struct ModelMemory {
    frames: Box<[OnceLock<Box<Words>>]>,
    /// Frames whose bytes the kernel may not read.
    withheld: Mutex<BTreeSet<Pfn>>,
}

impl ModelMemory {
    pub(super) fn new(frames: u64) -> Self {
        Self { frames: (0..frames).map(|_| OnceLock::new()).collect(), withheld: Mutex::default() }
    }

    pub(super) fn withhold(&self, frame: Pfn) {
        self.withheld.lock().expect("no window was refused").insert(frame);
    }

    pub(super) fn is_withheld(&self, frame: Pfn) -> bool {
        self.withheld.lock().expect("no window was refused").contains(&frame)
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    fn slot(&self, frame: Pfn) -> &OnceLock<Box<Words>> {
        self.frames.get(frame.0 as usize).unwrap_or_else(|| panic!("{frame:?} is not memory"))
    }

    fn words(&self, frame: Pfn) -> &Words {
        self.slot(frame).get_or_init(|| Box::new([const { AtomicU64::new(0) }; TABLE_ENTRIES]))
    }

    pub(super) fn word(&self, frame: Pfn, index: usize) -> &AtomicU64 {
        &self.words(frame)[index]
    }

    pub(super) fn zero(&self, frame: Pfn) {
        // A frame that was never stored to is zero already, and gets no memory.
        if let Some(words) = self.slot(frame).get() {
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    pub(super) fn copy(&self, from: Pfn, to: Pfn) {
        assert!(
            !self.is_withheld(from) && !self.is_withheld(to),
            "{from:?} to {to:?}: withheld bytes are copied"
        );
        if self.slot(from).get().is_none() {
            return self.zero(to);
        }
        for (from, to) in self.words(from).iter().zip(self.words(to)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Gives `f` a copy of the bytes, then writes back the words that it changed: stores of other
    /// threads to other words meanwhile are kept.
    pub(super) fn with_bytes<R>(&self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        assert!(!self.is_withheld(frame), "{frame:?}: a window shows withheld bytes");
        let words = self.words(frame);
        let mut before = Box::new([0u8; PAGE_SIZE]);
        for (bytes, word) in before.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let mut after = before.clone();
        let result = f(&mut after);
        let pairs = before.chunks_exact(8).zip(after.chunks_exact(8));
        for ((before, after), word) in pairs.zip(words) {
            if before != after {
                let bytes = <[u8; 8]>::try_from(after).expect("chunks have 8 bytes");
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
        }
        result
    }

    pub(super) fn byte(&self, frame: Pfn, offset: usize) -> u8 {
        let word = self.word(frame, offset / 8).load(Ordering::Relaxed);
        word.to_le_bytes()[offset % 8]
    }

    pub(super) fn set_byte(&self, frame: Pfn, offset: usize, value: u8) {
        let shift = 8 * (offset as u64 % 8);
        let change = |word: u64| Some(word & !(0xff << shift) | u64::from(value) << shift);
        // The closure always returns a value, so the update cannot fail.
        let _ = self.word(frame, offset / 8).fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }
}
