//! Lock-free pins, and concurrent changes of the page-table leaf.
//!
//! A leaf of private memory and the record of its frame are one state in two words. A CPU that
//! changes a leaf holds its address space's lock; one that pins a page for a device often does not
//! (Linux: gup-fast). The protocol between them:
//!
//! **The frame's word decides, the leaf follows.** An anonymous frame is pinned by a
//! compare-exchange that requires the exclusive mark. An operation that will share the frame with
//! another holder, or move its bytes elsewhere, first clears that mark in the same word. This fails
//! if there is a pin. Only then the leaf changes, and then TLBs are flushed. So a later pin is
//! refused, and an earlier pin makes the operation fail. No second check is needed.
//!
//! ```text
//!                    write fault: alone with it (reuse)
//!            ┌──────────────────────────────────────────────┐
//!            ▼                                              │
//!     Exclusive, n pins ──fork: share, if n = 0──▶ Shared, never pinned
//!        │   ▲     │                                   │
//!        │   │     └──────── unmap, whatever n ────────┴──▶ no leaf; the pins hold the frame
//!        │   │ occupy                                  │
//!        │   │                                         │
//!        └───┴── vacate, if n = 0 ──▶ Vacated ◀────────┘ vacate
//!                                     a reference that nobody can pin; the leaf is cleared,
//!                                     then flushed, then the bytes stand still: copy them,
//!                                     write them out
//! ```
//!
//! | step | 1 | 2 | 3 |
//! |---|---|---|---|
//! | pin ([`pin`]) | read the leaf | pin in the frame's word | read the leaf again; where it has changed let go |
//! | fork | share in the word; pinned: copy for the child | leaf read-only | flush, before fork returns |
//! | write fault | reuse in the word; refused: copy the shared page | leaf leads to the right frame, flush | |
//! | unmap | clear the leaf | flush | let go of the mapping |
//! | swap-out, migration | vacate the word; pinned: leave it | clear the leaf | flush, then use the bytes |
//! | forget that it was written ([`forget_written`]) | leaf without write right or mark | look for writers; there is one: undo | flush |
//!
//! A pin reads the leaf a second time because of two operations. Unmap does not check for pins: a
//! pin outlives its page, but a page that is gone must get no new pin. And *forget* does not use
//! the frame's word. There each side writes its own word and reads the other's, with a full fence
//! between, so that at least one of them sees the other. Either the pin is late, finds a leaf that
//! no longer grants writing, and uses the slow path; or its writer is counted in time, and the mark
//! stays.
//!
//! **A frame that has changed hands.** Between steps 1 and 2 of a pin the frame may be freed and
//! get another owner. Records are never freed, and the record of a free frame names no owner, so
//! the pin is refused. A frame of another owner may be pinned for a moment by mistake. At worst its
//! holder sees an extra pin and makes an unnecessary copy. The counts stay exact: if the holder
//! drops the frame meanwhile, the pinning CPU is the last holder and frees it.
//!
//! **Tables.** `freehold_paging` makes sure that the table still exists while a walker reads it
//! (`Roots::walk`).

use core::sync::atomic::{Ordering, fence};

use crate::{CountError, Frame, FrameSource, Held, HeldFrame, LeafMapping, PageCache};

/// The operations on a page-table leaf that this protocol needs.
pub trait Leaf {
    /// Value of the leaf.
    type Entry: Copy;
    /// Returns the present value (acquire).
    fn load(&self) -> Self::Entry;
    /// Applies `change` to the value, which was `now` a moment ago, in one step (acquire and
    /// release). Returns the value that was replaced.
    fn change(&self, now: Self::Entry, change: impl Fn(Self::Entry) -> Self::Entry) -> Self::Entry;
    /// Full fence. If a load after the fence misses another CPU's store, then that CPU, after its
    /// own fence, sees the stores before this one.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Reasons why there is no pin.
#[derive(Debug)]
pub enum NotPinned<P> {
    /// The frame's word refused, or the entry was no suitable leaf.
    Refused,
    /// The leaf has changed. The caller drops the pin at a point where frames may be freed.
    Changed(P),
}

/// Pins the frame of `leaf`. `hold` pins the frame of an entry, and counts a writer if the frame
/// will be written. `serves` compares the second value of the leaf with the first and decides
/// whether the pin is valid.
///
/// # Errors
/// [`NotPinned`]: the caller uses the slow path.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call stores 100 bytes per page, of registers and results")]
pub fn pin<L: Leaf, P>(
    leaf: &L,
    hold: impl FnOnce(L::Entry) -> Option<P>,
    serves: impl FnOnce(L::Entry, L::Entry) -> Serves,
) -> Result<P, NotPinned<P>> {
    let first = leaf.load();
    let pinned = hold(first).ok_or(NotPinned::Refused)?;
    leaf.fence();
    match serves(first, leaf.load()) {
        Serves::Yes => Ok(pinned),
        Serves::No => Err(NotPinned::Changed(pinned)),
    }
}

/// Whether a leaf is good enough for its use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serves {
    /// The leaf is good enough.
    Yes,
    /// The leaf is not good enough.
    No,
}

/// Changes `leaf` by `forget`, so that the next store faults, unless the frame has a pin that
/// writes: the leaf could not record such a device's stores, so it stays as it is. Returns the old
/// value if the leaf changed.
pub fn forget_written<L: Leaf>(
    leaf: &L,
    now: L::Entry,
    forget: impl Fn(L::Entry) -> L::Entry,
    undo: impl Fn(L::Entry, L::Entry) -> L::Entry,
    is_written: impl Fn() -> bool,
) -> Option<L::Entry> {
    if is_written() {
        return None;
    }
    let before = leaf.change(now, &forget);
    leaf.fence();
    if is_written() {
        leaf.change(forget(before), |entry| undo(entry, before));
        return None;
    }
    Some(before)
}

/// The reason why a frame must be copied and cannot be kept. No such value exists for an exclusive
/// frame without a pin.
#[derive(Debug)]
#[must_use = "the page needs a frame"]
pub struct CopyFrom<'a> {
    frame: HeldFrame<'a>,
    why: CountError,
}

impl<'a> CopyFrom<'a> {
    #[inline(always)]
    pub(crate) fn new(holder: &'a impl Held, why: CountError) -> Self {
        Self { frame: holder.held(), why }
    }
    /// The frame; the borrowed hold keeps it.
    #[inline(always)]
    pub const fn held(&self) -> HeldFrame<'a> {
        self.frame
    }
    /// The reason why the frame cannot be kept, or shared.
    pub const fn why(&self) -> CountError {
        self.why
    }
}

impl<'a, S: FrameSource> From<&'a Frame<PageCache, S>> for CopyFrom<'a> {
    /// A file's page is never exclusive to an address space.
    fn from(frame: &'a Frame<PageCache, S>) -> Self {
        Self::new(frame, CountError::NotExclusive)
    }
}

impl<'a, S: FrameSource> From<&'a LeafMapping<PageCache, S>> for CopyFrom<'a> {
    /// A file's page is never exclusive to an address space.
    fn from(mapping: &'a LeafMapping<PageCache, S>) -> Self {
        Self::new(mapping, CountError::NotExclusive)
    }
}
