//! Identity of a futex word in memory.

/// Lists of waiters, among which words are spread.
pub(super) const BUCKETS: usize = 512;

/// Identity of a futex word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FutexId {
    /// A word of one address space.
    Private {
        /// The address space's number.
        space: u64,
        /// The word's address.
        address: u64,
    },
    /// A word of a file or of shared memory.
    Shared {
        /// The object's number.
        object: u64,
        /// The word's offset in the object.
        offset: u64,
    },
}

impl FutexId {
    /// Returns the bucket of the word's waiters.
    pub fn bucket(self) -> usize {
        let (a, b) = match self {
            Self::Private { space, address } => (space, address),
            Self::Shared { object, offset } => (!object, offset),
        };
        let mixed = (a ^ (b >> 2)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 48) as usize % BUCKETS
    }
}
