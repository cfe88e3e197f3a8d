//! A frame's word as the model checker sees it, and a page that has one.

#[allow(dead_code, reason = "each test's file is built with this one by itself")]
pub mod page;

use std::sync::atomic::Ordering;

use freehold_frame::{AtomicWord, Counts, Order, Owner, Tag};
use freehold_machine::NodeId;
use loom::sync::atomic::AtomicU64;
use loom::thread;

pub struct Loom(AtomicU64);

impl Loom {
    #[allow(dead_code, reason = "each test's file is built with this one by itself")]
    pub fn new(word: u64) -> Self {
        Self(AtomicU64::new(word))
    }
}

/// The word of an anonymous frame without a holder.
#[allow(dead_code, reason = "as above")]
pub fn unheld() -> Counts<Loom> {
    let tag = Tag::new(Owner::Anon, Order::FRAME, NodeId(0));
    Counts::with_word(Loom(AtomicU64::new(tag.bits())))
}

impl AtomicWord for Loom {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange_weak(current, new, success, failure)
    }
    fn relax(&self) {
        thread::yield_now();
    }
}
