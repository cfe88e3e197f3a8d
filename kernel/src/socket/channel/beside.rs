//! Data beside messages that the receiver of a channel asks for ([`crate::socket::beside`]).

use core::sync::atomic::Ordering;

use super::Channel;
use crate::socket::beside::{Notes, PacketFacts, Told};

impl Channel {
    /// The options that the receiver has set.
    #[inline]
    pub(in crate::socket) fn told(&self) -> Told {
        Told::from_bits_retain(self.told.load(Ordering::Relaxed))
    }

    /// Lets the receiver be told of `what` from now on, and no more of `other`.
    pub(in crate::socket) fn tell(&self, what: Told, other: Told) {
        let change = |told: u32| Some(told & !other.bits() | what.bits());
        // The closure never refuses.
        let _ = self.told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Returns the notes that the receiver wants with a message that comes now.
    #[inline]
    pub(in crate::socket) fn notes(&self, facts: impl FnOnce() -> Option<PacketFacts>) -> Option<Notes> {
        if self.told().wants_notes() { Some(self.make_notes(facts())) } else { None }
    }

    #[cold]
    fn make_notes(&self, facts: Option<PacketFacts>) -> Notes {
        Notes::now(self.lost(), facts)
    }

    /// Messages that found no room, modulo 2^32.
    pub(in crate::socket) fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Bytes that are left to receive (TCP_INQ): a stream that has ended has one more, as on Linux.
    pub(in crate::socket) fn left(&self) -> usize {
        match self.bytes() {
            0 if !self.has_sender() => 1,
            bytes => bytes,
        }
    }

    /// Pages that wait.
    pub(in crate::socket) fn pages(&self) -> usize {
        self.pages.load(Ordering::SeqCst)
    }

    /// A message found no room.
    #[cold]
    pub(in crate::socket) fn note_loss(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}
