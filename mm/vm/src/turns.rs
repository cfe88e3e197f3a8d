//! Who copies a shared frame, one at a time.
//!
//! Two processes that store to the same shared page at once both see that the other has it, and
//! both would copy it, for nobody: the frame would be free afterwards. So whoever is about to copy
//! an anonymous frame takes its turn first and asks again then; the turn ends when its own leaf is
//! forgotten by all TLBs and its mapping let go of.
//!
//! **Locks.** Spin locks, one for each of 64 sorts of frames; ordered after address spaces, before
//! the swap and the page allocator. Held over a flush: those who wait have interrupts on, so they
//! answer it.

use freehold_machine::Pfn;
use spin::{Mutex, MutexGuard};

const SORTS: usize = 64;

/// See the module's head.
pub(crate) struct Turns([Mutex<()>; SORTS]);

impl Turns {
    pub(crate) const fn new() -> Self {
        Self([const { Mutex::new(()) }; SORTS])
    }
    /// Wait until nobody copies `frame`.
    #[inline]
    pub(crate) fn take(&self, frame: Pfn) -> MutexGuard<'_, ()> {
        self.0[frame.0 as usize % SORTS].lock()
    }
}
