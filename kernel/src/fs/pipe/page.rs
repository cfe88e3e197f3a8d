//! A page of bytes that belongs to no file, for pipes and sockets. It is the kernel's own, or lent
//! by a program (vmsplice).

mod real {
    use crate::hw::Hardware;
    use freehold_frame::HeldFrame;
    use freehold_machine::PAGE_SIZE;
    use freehold_xpfo::Windows;

    use super::Holding;
    use crate::Result;
    use crate::mem::{PinnedOne, TransitPage};

    /// A page whose bytes are accessed only through a window.
    pub enum BytePage {
        /// A page of the kernel.
        Own(TransitPage),
        /// A page of a program; the kernel does not write it.
        Lent(PinnedOne),
    }

    impl BytePage {
        /// Allocates a page with undefined content.
        ///
        /// # Errors
        /// `ENOMEM`.
        pub fn allocate() -> Result<Self> {
            Ok(Self::Own(TransitPage::allocate()?))
        }
        /// Makes a page from a program's page.
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
        /// The page's frame.
        pub fn held(&self) -> HeldFrame<'_> {
            match self {
                Self::Own(page) => page.held(),
                Self::Lent(page) => page.held(),
            }
        }
        /// Runs `f` on the bytes, in a window: `f` must not sleep or fault.
        pub fn with_bytes<R>(&self, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
            Hardware.with_bytes(&self.held(), f)
        }
        /// Like [`BytePage::with_bytes`], read-only.
        pub fn read_bytes<R>(&self, f: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
            Hardware.read_bytes(&self.held(), f)
        }
    }
}

pub use real::BytePage;

/// Owner of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holding {
    /// The kernel's: it may be written, and kept for reuse.
    Own,
    /// A program's: the program may still write it.
    Lent,
}

/// Number of bytes of a lent page that are moved at a time.
const STEP: usize = 512;

use core::ops::Range;

use freehold_collections::WipedChunk;

use crate::Result;
use crate::user::{Sink, Source, so_far};

impl BytePage {
    /// Takes `range.len()` bytes (or the rest of the source) into the page at `range`. Returns how
    /// many bytes were taken. May sleep.
    ///
    /// # Errors
    /// `EFAULT` only if no byte could be taken.
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

    /// Puts the page's bytes at `range` into the sink, as many as it takes. May sleep.
    ///
    /// # Errors
    /// `EFAULT` only if no byte could be stored.
    pub fn drain(&self, range: Range<usize>, sink: &mut dyn Sink) -> Result<usize> {
        let wanted = range.len().min(sink.remaining());
        let mut done = 0;
        while done < wanted {
            let at = range.start + done..range.start + wanted;
            done += match self.holding() {
                Holding::Own => self.read_bytes(|bytes| sink.put_without_fault(&bytes[at])),
                // The sink may be this very page, and a page can be in only one window at a time.
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
