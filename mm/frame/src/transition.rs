//! Lock-free pins, and what changes a page-table leaf under them.
//!
//! A leaf of private memory and the record of its frame are one state in two words. A CPU that
//! changes a leaf has its address space's lock; one that pins a page for a device often has not
//! (Linux: gup-fast). The protocol between them:
//!
//! **The frame's word decides, the leaf follows.** An anonymous frame is pinned by a
//! compare-exchange that wants the exclusive mark. An operation that will share the frame with
//! another holder, or move its bytes elsewhere, first clears that mark in the same word. This fails
//! where a pin lives. Only then the leaf changes; only then TLBs forget. A pin that comes late is
//! refused, one that came early refuses. Nothing has to be looked at twice.
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
//! A pin's second look serves two: unmap, which asks no pin (a pin outlives its page, and one that
//! was refused must not be kept by a page that is gone), and *forget*, which is no matter of the
//! word. There the two sides write their own word and read the other's, with a full fence between,
//! so that one of them sees the other: either the pin is late, finds a leaf that no longer grants
//! writing and goes the slow way; or its writer is counted in time and the mark stays.
//!
//! **A frame that has changed hands.** Between steps 1 and 2 of a pin the frame may be given back,
//! and be another's. Records are never freed, a free frame's names no owner and refuses. Another's
//! frame may be pinned for a moment, by mistake: its holder sees a pin too many at the worst, that
//! is a copy too many, and the word stays exact: if it lets go meanwhile, the pinner is the last
//! holder and frees it.
//!
//! **Tables.** That the table is still one while a walker reads it is `freehold_paging`'s affair
//! (`Roots::walk`).

use core::sync::atomic::{Ordering, fence};

use crate::{CountError, Frame, FrameSource, Held, HeldFrame, LeafMapping, PageCache};

/// A leaf of a page table, as much of it as this protocol needs.
pub trait Leaf {
    /// Value of the leaf.
    type Entry: Copy;
    /// Returns the present value (acquire).
    fn load(&self) -> Self::Entry;
    /// Replaces the value, which was `now` a moment ago, by `change` of it, in one step (acquire
    /// and release). Returns the value that was replaced.
    fn change(&self, now: Self::Entry, change: impl Fn(Self::Entry) -> Self::Entry) -> Self::Entry;
    /// Full fence. If a load after the fence misses another CPU's store, then that CPU, after its
    /// own fence, sees the stores before this one.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Why there is no pin.
#[derive(Debug)]
pub enum NotPinned<P> {
    /// The frame's word refused, or the leaf was none to begin with.
    Refused,
    /// The leaf has changed. The caller lets go of the pin where frames may be freed.
    Changed(P),
}

/// Pin what `leaf` leads to. `hold` pins the frame of the entry that it is given, and counts a
/// writer where it is to be written; `serves` says whether the second look at the leaf, beside the
/// first, is good enough.
///
/// # Errors
/// [`NotPinned`]: go the slow way.
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
/// writes: no store of a device would be noticed, so the leaf stays as it is. Returns the old value
/// if the leaf changed.
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

/// Why a frame's bytes are copied and the frame is not kept: there is no such value for an
/// exclusive frame without a pin.
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
    /// The frame, which the hold that was asked keeps.
    #[inline(always)]
    pub const fn held(&self) -> HeldFrame<'a> {
        self.frame
    }
    /// Why it cannot be kept, or shared.
    pub const fn why(&self) -> CountError {
        self.why
    }
}

impl<'a, S: FrameSource> From<&'a Frame<PageCache, S>> for CopyFrom<'a> {
    /// A file's page is exclusive to no space.
    fn from(frame: &'a Frame<PageCache, S>) -> Self {
        Self::new(frame, CountError::NotExclusive)
    }
}

impl<'a, S: FrameSource> From<&'a LeafMapping<PageCache, S>> for CopyFrom<'a> {
    /// A file's page is exclusive to no space.
    fn from(mapping: &'a LeafMapping<PageCache, S>) -> Self {
        Self::new(mapping, CountError::NotExclusive)
    }
}
