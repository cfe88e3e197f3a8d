//! Whether the device's cache may hold bytes that were written since it was last emptied.
//!
//! **Protocol.** Everything happens under the disk's lock. A write counts once the device has
//! answered it, whatever the answer is and even if no task waits any more. A flush takes the count
//! before it is sent, since it covers the writes that were answered before (virtio 1.2, 5.2.6.2),
//! and hands it back if it succeeds. A flush is left out where no write was answered since the last
//! successful flush began. The cache's contents at start-up count as a write. Linux sends each
//! flush and leaves it to the device to find that there is nothing to do.

/// See the module's head.
#[derive(Debug)]
pub(super) struct WriteCache {
    /// Number of writes that the device has answered, plus one for the cache's contents at
    /// start-up.
    answered: u64,
    /// Number of writes that a flush has covered.
    flushed: u64,
}

/// The writes that a flush covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Covered(u64);

impl WriteCache {
    pub const fn new() -> Self {
        Self { answered: 1, flushed: 0 }
    }
    /// The device has answered a write.
    pub fn count_write(&mut self) {
        self.answered += 1;
    }
    /// Returns the writes that a flush covers if it is sent now; `None` where there is nothing to
    /// flush.
    pub fn uncovered(&self) -> Option<Covered> {
        (self.flushed < self.answered).then_some(Covered(self.answered))
    }
    /// A flush has succeeded.
    pub fn flushed(&mut self, Covered(writes): Covered) {
        self.flushed = self.flushed.max(writes);
    }
}

#[cfg(test)]
mod tests {
    use super::WriteCache;

    #[test]
    fn a_flush_covers_what_was_answered_before_it_began() {
        let mut cache = WriteCache::new();
        let first = cache.uncovered().expect("what was there at start-up");
        cache.count_write();
        let second = cache.uncovered().expect("a write");
        cache.flushed(first);
        assert!(cache.uncovered().is_some(), "the write came after the flush that has ended");
        cache.flushed(second);
        assert_eq!(cache.uncovered(), None);
        cache.flushed(first);
        assert_eq!(cache.uncovered(), None, "a flush that began earlier and ends later takes nothing back");
        cache.count_write();
        assert!(cache.uncovered().is_some());
    }
}
