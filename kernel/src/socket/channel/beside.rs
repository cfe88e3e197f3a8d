//! Ancillary data that the receiver of a channel requests ([`crate::socket::beside`]).

use core::sync::atomic::Ordering;

use super::Channel;
use crate::socket::beside::{Facts, Notes, Told};

impl Channel {
    /// Returns the options that the receiver has set.
    #[inline]
    pub(in crate::socket) fn told(&self) -> Told {
        Told::from_bits_retain(self.told.load(Ordering::Relaxed))
    }

    /// Sets the options `what` of the receiver, and clears `other`.
    pub(in crate::socket) fn tell(&self, what: Told, other: Told) {
        let change = |told: u32| Some(told & !other.bits() | what.bits());
        // The closure never refuses.
        let _ = self.told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Returns the notes that the receiver requests for a message that arrives now.
    #[inline]
    pub(in crate::socket) fn notes(&self, facts: impl FnOnce() -> Option<Facts>) -> Option<Notes> {
        if self.told().wants_notes() { Some(self.make_notes(facts())) } else { None }
    }

    #[cold]
    fn make_notes(&self, facts: Option<Facts>) -> Notes {
        Notes::now(self.lost(), facts)
    }

    /// Returns the number of messages dropped for lack of room, modulo 2^32.
    pub(in crate::socket) fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the bytes that are left to receive (TCP_INQ). As on Linux, a stream that has ended
    /// counts one more.
    pub(in crate::socket) fn left(&self) -> usize {
        match self.bytes() {
            0 if !self.has_sender() => 1,
            bytes => bytes,
        }
    }

    /// Returns the number of waiting pages.
    pub(in crate::socket) fn pages(&self) -> usize {
        self.pages.load(Ordering::SeqCst)
    }

    /// Records that a message was dropped for lack of room.
    #[cold]
    pub(in crate::socket) fn note_loss(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}
