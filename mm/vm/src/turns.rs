//! Turns to copy a shared frame, one task at a time.
//!
//! If two processes store to the same shared page at once, both see that the other has it. Both
//! would copy it, and one copy would be unnecessary: the frame would be free afterwards. So a task
//! that will copy an anonymous frame first waits for its turn, and then checks again whether a copy
//! is needed. The turn ends when all TLBs have flushed the task's leaf and its mapping is dropped.
//!
//! **Locks.** Spin locks, one for each of 64 groups of frames; ordered after address spaces, before
//! the swap and the page allocator. Held over a flush: waiting CPUs have interrupts on, so they
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
    /// Waits until no task copies `frame`.
    #[inline]
    pub(crate) fn take(&self, frame: Pfn) -> MutexGuard<'_, ()> {
        self.0[frame.0 as usize % SORTS].lock()
    }
}
