//! A page of bytes that is no part of any file, for pipes and sockets. It is the kernel's own, or
//! lent by a program (vmsplice).

mod real {
    use crate::hw::Hardware;
    use freehold_frame::HeldFrame;
    use freehold_machine::PAGE_SIZE;
    use freehold_xpfo::Windows;

    use super::Holding;
    use crate::Result;
    use crate::mem::{PinnedOne, TransitPage};

    /// Its bytes are reached through a window only.
    pub enum BytePage {
        /// The kernel's.
        Own(TransitPage),
        /// A program's; the kernel does not write it.
        Lent(PinnedOne),
    }

    impl BytePage {
        /// A page with any content.
        ///
        /// # Errors
        /// `ENOMEM`.
        pub fn allocate() -> Result<Self> {
            Ok(Self::Own(TransitPage::allocate()?))
        }
        /// A program's page.
        pub const fn lent(page: PinnedOne) -> Self {
            Self::Lent(page)
        }
        /// Returns the owner of the page.
        pub const fn holding(&self) -> Holding {
            match self {
                Self::Own(_) => Holding::Own,
                Self::Lent(_) => Holding::Lent,
            }
        }
        /// Its frame.
        pub fn held(&self) -> HeldFrame<'_> {
            match self {
                Self::Own(page) => page.held(),
                Self::Lent(page) => page.held(),
            }
        }
        /// Run `f` on the bytes, in a window: it must not sleep or fault.
        pub fn with_bytes<R>(&self, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
            Hardware.with_bytes(&self.held(), f)
        }
        /// As [`BytePage::with_bytes`], for bytes that are only read.
        pub fn read_bytes<R>(&self, f: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
            Hardware.read_bytes(&self.held(), f)
        }
    }
}

pub use real::BytePage;

/// Owner of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holding {
    /// The kernel's: it may be written and kept for later.
    Own,
    /// A program's, which goes on writing it.
    Lent,
}

/// Bytes of a lent page that are moved at a time.
const STEP: usize = 512;

use core::ops::Range;

use freehold_collections::WipedChunk;

use crate::Result;
use crate::user::{Sink, Source, so_far};

impl BytePage {
    /// Take `range.len()` bytes (or what the source has left) into the page at `range`; how many
    /// came. May sleep.
    ///
    /// # Errors
    /// `EFAULT` only where not one byte came.
    pub fn fill(&self, range: Range<usize>, source: &mut dyn Source) -> Result<usize> {
        let wanted = range.len().min(source.remaining());
        let mut done = 0;
        while done < wanted {
            let at = range.start + done..range.start + wanted;
            done += self.with_bytes(|bytes| source.take_without_fault(&mut bytes[at]));
            if done < wanted
                && let Err(error) = source.fault_in()
            {
                return so_far(done, error);
            }
        }
        Ok(done)
    }

    /// Put the page's bytes at `range` into the sink, as many as it takes. May sleep.
    ///
    /// # Errors
    /// `EFAULT` only where not one byte could be placed.
    pub fn drain(&self, range: Range<usize>, sink: &mut dyn Sink) -> Result<usize> {
        let wanted = range.len().min(sink.remaining());
        let mut done = 0;
        while done < wanted {
            let at = range.start + done..range.start + wanted;
            done += match self.holding() {
                Holding::Own => self.read_bytes(|bytes| sink.put_without_fault(&bytes[at])),
                // The sink may be this very page, which is in one window at a time.
                Holding::Lent => {
                    let mut step = WipedChunk::<STEP>::new();
                    let step = step.part(at.len());
                    self.read_bytes(|bytes| step.copy_from_slice(&bytes[at.start..at.start + step.len()]));
                    let put = sink.put_without_fault(step);
                    if put == step.len() {
                        done += put;
                        continue;
                    }
                    put
                }
            };
            if done < wanted
                && let Err(error) = sink.fault_in()
            {
                return so_far(done, error);
            }
        }
        Ok(done)
    }
}
