//! For each page of a segment, the device that had it last, and whose domain has the page.
//!
//! **Protocol.** A page's owner changes while the page is taken ([`FreePages`]): by the thread that
//! took it. That thread reads the owner, removes the page from the owner's domain, and then stores
//! the new owner (release). So as long as a page names a device, a thread may be in that device's
//! domain because of the page. Once no page names the device, no thread is in its domain, and none
//! enters it. This orders the end of a domain after all calls of it, and takes need no lock
//! (`gone.rs`).
//!
//! [`Owners::claim`] is the departing device's part. It takes the pages that are free, and counts
//! those that another thread has. That thread stores another owner, or frees the page with the old
//! owner, and then the page can be claimed. A page that the IOMMU did not confirm as unmapped is
//! never freed. It is marked as *lost*, so that the count does not wait for it, and keeps the name
//! of the device that may still access it.
//!
//! A frame's record names the device as well ([`FrameRecord::device`]), for look-ups by address. It
//! is written by the same thread, before the owner here.
//!
//! [`FrameRecord::device`]: freehold_frame::FrameRecord::device
//!
//! `tests/loom.rs` tries the interleavings of this file with the end of a domain, and broken
//! variants of it.

use crate::atomic::{AtomicU8, Ordering};
use crate::word::{FreePages, Span};

/// The owner of a page that no device had: its bytes are zero.
pub const NOBODY: u8 = u8::MAX;
/// Flag in addition to a device's number: the page is lost.
pub const LOST: u8 = 1 << 6;

/// See the module's head.
pub struct Owners<const PAGES: usize>([AtomicU8; PAGES]);

impl<const PAGES: usize> Owners<PAGES> {
    /// Returns owners for pages that no device had.
    pub fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU8::new(NOBODY)))
    }

    /// The owner of the first page of `span`, all of which the caller has taken, and the following
    /// pages that have the same owner.
    #[inline]
    pub fn first_run(&self, span: Span) -> (u8, Span) {
        let owners = &self.0[span.first as usize..(span.first + span.count) as usize];
        let owner = owners[0].load(Ordering::Relaxed);
        let same = owners.iter().take_while(|other| other.load(Ordering::Relaxed) == owner);
        (owner, Span { first: span.first, count: same.count() as u32 })
    }

    /// Sets the owner of pages that the caller has taken and that no other domain has any more.
    pub fn set(&self, span: Span, owner: u8) {
        self.each(span, |page| page.store(owner, Ordering::Release));
    }

    /// Marks pages that the caller has taken, that a device had, and that stay taken for ever.
    pub fn lose(&self, span: Span) {
        self.each(span, |page| page.store(page.load(Ordering::Relaxed) | LOST, Ordering::Release));
    }

    /// Whether a page is marked as lost.
    pub fn is_lost(&self, page: u32) -> bool {
        let owner = self.0[page as usize].load(Ordering::Relaxed);
        owner != NOBODY && owner & LOST != 0
    }

    fn each(&self, span: Span, change: impl FnMut(&AtomicU8)) {
        self.0[span.first as usize..(span.first + span.count) as usize].iter().for_each(change);
    }

    /// Takes the free pages that `device` had last. Returns their bits, and the number of other
    /// pages that `device` had last, which other threads have taken. That number is 0 if no thread
    /// takes pages for the device.
    pub fn claim(&self, free: &FreePages, device: u8) -> (u64, u32) {
        let mine = self.bits(device);
        if mine == 0 {
            return (0, 0);
        }
        let taken = free.claim(mine);
        // Other devices may have had the pages since the first read. A read while the pages are
        // taken is reliable.
        let mine = self.bits(device);
        Span::runs(taken & !mine).for_each(|span| free.give(span));
        (taken & mine, (mine & !taken).count_ones())
    }

    /// The pages that `device` had last and that are not lost.
    fn bits(&self, device: u8) -> u64 {
        let is_its = |page: &AtomicU8| u64::from(page.load(Ordering::Acquire) == device);
        (0..).zip(&self.0).map(|(number, page)| is_its(page) << number).sum()
    }
}
