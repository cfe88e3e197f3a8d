//! Records of kprobes: each armed probe has a text, which is recorded when a CPU comes to it.
//!
//! A slot's text changes only while its probe is not armed ([`crate::mem::kprobes`]), so readers
//! need no lock.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::Kprobe;

use crate::hw::probes::SLOTS;

/// Words of a text; a longer one is cut.
const WORDS: usize = 24;

struct HitText {
    words: [AtomicU64; WORDS],
    /// How many of the words are used.
    used: AtomicUsize,
    hits: AtomicU64,
}

static TEXTS: [HitText; SLOTS] = [const {
    HitText {
        words: [const { AtomicU64::new(0) }; WORDS],
        used: AtomicUsize::new(0),
        hits: AtomicU64::new(0),
    }
}; SLOTS];

/// Sets the text of a slot whose probe is not armed, and its count of hits to 0.
pub fn prepare(slot: usize, text: &str) {
    let HitText { words, used, hits } = &TEXTS[slot];
    let text = &text.as_bytes()[..text.len().min(8 * WORDS)];
    for (place, bytes) in words.iter().zip(text.chunks(8)) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        place.store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    used.store(text.len().div_ceil(8), Ordering::Relaxed);
    hits.store(0, Ordering::Relaxed);
}

/// Returns how often CPUs came to the slot's probe since it was armed.
pub fn hits(slot: usize) -> u64 {
    TEXTS[slot].hits.load(Ordering::Relaxed)
}

/// A CPU comes to the slot's probe. Any context, except NMIs, double faults and machine checks.
pub fn hit(slot: usize) {
    let text = &TEXTS[slot];
    text.hits.fetch_add(1, Ordering::Relaxed);
    let used = text.used.load(Ordering::Relaxed).min(WORDS);
    let mut words = [0; WORDS];
    words.iter_mut().zip(&text.words).take(used).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
    super::record(Kprobe::NUMBER, &words[..used]);
}
