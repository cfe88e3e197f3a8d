//! I/O contexts of threads. A context contains only the I/O priority.
//!
//! A thread gets a context at its first ioprio_set. A thread that it creates gets a copy, or shares
//! the context with CLONE_IO. Linux' nearest relative is `struct io_context`. Callers: clone,
//! ioprio_set, ioprio_get, kcmp. Any context that may take a spin lock.

use core::sync::atomic::{AtomicU16, Ordering};

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};

use crate::sync::SpinLock;

/// A thread's I/O context, if it has one.
#[derive(Default)]
pub struct IoContext(SpinLock<Option<Arc<AtomicU16>>>);

/// The I/O context that a new thread gets from its creator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoSharing {
    /// The new thread shares the context (CLONE_IO).
    Shared,
    /// The new thread gets a separate context with the same priority.
    Copied,
}

impl IoContext {
    /// Returns the I/O priority, if one was ever set.
    pub fn priority(&self) -> Option<u16> {
        self.0.lock().as_ref().map(|priority| priority.load(Ordering::Relaxed))
    }
    /// Sets the I/O priority.
    pub fn set_priority(&self, new: u16) {
        self.0.lock().get_or_insert_with(|| reserve::arc(AtomicU16::new(0))).store(new, Ordering::Relaxed);
    }
    /// Gives the new thread its part of the creator's context, before it runs.
    pub fn inherit(&self, maker: &Self, sharing: IoSharing) {
        let Some(context) = maker.0.lock().clone() else { return };
        let context = match sharing {
            IoSharing::Shared => context,
            IoSharing::Copied => reserve::arc(AtomicU16::new(context.load(Ordering::Relaxed))),
        };
        *self.0.lock() = Some(context);
    }
    /// Returns the address of the context; 0 for none.
    pub fn address(&self) -> usize {
        self.0.lock().as_ref().map_or(0, |context| context.address().addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_copied_or_shared_and_none_stays_none() {
        let [maker, copy, partner, none] = [const { IoContext(SpinLock::new(None)) }; 4];
        none.inherit(&maker, IoSharing::Shared);
        assert_eq!((none.priority(), none.address()), (None, 0));
        maker.set_priority(5);
        copy.inherit(&maker, IoSharing::Copied);
        partner.inherit(&maker, IoSharing::Shared);
        maker.set_priority(6);
        assert_eq!([&maker, &copy, &partner].map(IoContext::priority), [Some(6), Some(5), Some(6)]);
        assert_eq!(maker.address(), partner.address());
        assert_ne!(maker.address(), copy.address());
    }
}
