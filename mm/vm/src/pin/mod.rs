//! Pins: a page's frame for a device, or for other code that works on its bytes, also if the page
//! changes or is unmapped.
//!
//! **Kinds.** Two things are said of a pin, both as types:
//!
//! | | [`ReadOnly`] | [`ReadWrite`] |
//! |---|---|---|
//! | [`Transient`]: until one call or request is done | the frame as it is; one that is not the page's own (shared after a fork, zeroes, a private file's) is held by a reference, under which no store happens | the page's own frame |
//! | [`LongTerm`]: as long as its holder likes | the page's own frame | the page's own frame |
//!
//! "The page's own frame" is an anonymous exclusive one, or one of truly shared memory. If the page
//! has no own frame, it gets one by a copy or zeroes, as for a store, even if its area does not
//! allow stores. So the pinned frame stays the one that the process sees, and no other process ever
//! sees later stores to it. For a single read a reference is enough: it has the bytes of that
//! moment.
//!
//! **Two ways.** [`pin_fast`], and [`pin_fast_run`] for several pages, takes no lock: it pins the
//! leaf's frame if that is already the page's own, by the protocol of `freehold_frame::transition`,
//! and does not check areas. It takes a frame of shared memory only where the leaf grants writing,
//! since no other leaf tells it from a private file's. [`AddressSpace::pin`] does the rest under
//! the lock.
//!
//! **Secret memory** ([`PageCache::secret`](crate::PageCache::secret)) is never pinned: the fast
//! path sees this in the leaves, the other one in the areas.
//!
//! **Writing.** A page that is pinned [`ReadWrite`] counts as written (soft-dirty), and its leaf
//! stays dirty, until it is unpinned.

pub(crate) mod detach;

use alloc::sync::Arc;
use core::marker::PhantomData;

use freehold_frame::transition::{self, NotPinned, Serves};
use freehold_frame::{
    Anon, Frame, FrameRecord, Held, HeldFrame, LeafMapping, PageCache as CacheKind, Pin, ReverseKey,
};
use freehold_machine::{Access, Cpus, PAGE_SIZE, Pfn, VirtAddr};
use freehold_paging::{Entry, Memory, PageSize, Roots, Slot, TableWalk};

use crate::area::Area;
use crate::error::{FaultError, SegvCode};
use crate::request::{AreaFlags, Protection};
use crate::resident::{LeafKind, Resident, Want};
use crate::view::OfFile;
use crate::{AddressSpace, Commons};

/// A further reference for a single read is only given if the frame has at most this many: half of
/// the largest count. Programs may keep such references for long (a waiting request). There must be
/// enough left so that other tasks can read, fault in and swap the page.
const LOOKS: u32 = 1 << 15;

mod sealed {
    pub trait Sealed {}
}

/// How long a pin lasts: [`Transient`] or [`LongTerm`].
pub trait Term: sealed::Sealed {
    #[doc(hidden)]
    const LASTING: Lasting;
}
/// Use of the bytes: [`ReadOnly`] or [`ReadWrite`].
pub trait Purpose: sealed::Sealed + Send + Sync + 'static {
    #[doc(hidden)]
    const ACCESS: Access;
}

/// Until one call or request is done.
#[derive(Debug)]
pub enum Transient {}
/// As long as its holder likes.
#[derive(Debug)]
pub enum LongTerm {}
/// The bytes are read.
#[derive(Debug)]
pub enum ReadOnly {}
/// The bytes are read and written.
#[derive(Debug)]
pub enum ReadWrite {}

/// [`Term`], as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasting {
    /// [`Transient`].
    Moment,
    /// [`LongTerm`].
    Long,
}

impl sealed::Sealed for Transient {}
impl sealed::Sealed for LongTerm {}
impl sealed::Sealed for ReadOnly {}
impl sealed::Sealed for ReadWrite {}
impl Term for Transient {
    const LASTING: Lasting = Lasting::Moment;
}
impl Term for LongTerm {
    const LASTING: Lasting = Lasting::Long;
}
impl Purpose for ReadOnly {
    const ACCESS: Access = Access::Read;
}
impl Purpose for ReadWrite {
    const ACCESS: Access = Access::Write;
}

/// The rights that are checked for a pin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The process' rights: memory that it may not load or store is not pinned.
    Asked,
    /// Exactly the area's rights: memory that may only be written is not read, though the processor
    /// would allow it.
    Stated,
    /// A debugger's (Linux: FOLL_FORCE): every mapped page may be read; one that is private, or
    /// shared and writable, may be written. A private page gets a frame of its own first, and its
    /// leaf grants no more than before (CVE-2016-5195).
    Forced,
}

/// One pinned page: its frame stays this page's frame until this is dropped; the module's head
/// describes the exception, where a reference only holds the frame.
pub struct PinnedPage<S: Memory, P: Purpose> {
    hold: Hold<S>,
    purpose: PhantomData<P>,
}

enum Hold<S: Memory> {
    /// Anonymous and exclusive.
    Anon(Pin<Anon, S>),
    /// Shared memory.
    Shared(Pin<CacheKind, S>),
    /// Anonymous, and shared with others: read only, unless it is of shared huge pages.
    Looked(Frame<Anon, S>),
    /// A private file page that was never written: read only.
    LookedFile(Frame<CacheKind, S>),
    /// A frame that leaves do not count (zeroes, a page of the vDSO), which the system holds: read
    /// only.
    Uncounted(Arc<Commons<S>>, Pfn),
}

impl<S: Memory, P: Purpose> PinnedPage<S, P> {
    fn new(hold: Hold<S>) -> Self {
        let this = Self { hold, purpose: PhantomData };
        if P::ACCESS == Access::Write
            && let Some(reverse_key) = this.reverse_key()
        {
            reverse_key.add_writer();
        }
        this
    }
    /// The frame.
    pub fn held(&self) -> HeldFrame<'_> {
        match &self.hold {
            Hold::Anon(pin) => pin.held(),
            Hold::Shared(pin) => pin.held(),
            Hold::Looked(frame) => frame.held(),
            Hold::LookedFile(frame) => frame.held(),
            Hold::Uncounted(commons, frame) => {
                commons.uncounted(*frame).expect("the system never lets go of these")
            }
        }
    }
    /// Its number.
    pub fn pfn(&self) -> Pfn {
        self.held().pfn()
    }
    /// Whether the page belongs to a file or to shared memory.
    pub const fn of_file(&self) -> OfFile {
        match &self.hold {
            Hold::Shared(_) | Hold::LookedFile(_) => OfFile::Yes,
            Hold::Anon(_) | Hold::Looked(_) | Hold::Uncounted(..) => OfFile::No,
        }
    }
    /// The reverse key that counts the writers; `None` for a frame that may not be written.
    fn reverse_key(&self) -> Option<&'static ReverseKey> {
        match &self.hold {
            Hold::Anon(pin) => Some(pin.reverse_key()),
            Hold::Shared(pin) => Some(pin.reverse_key()),
            Hold::Looked(_) | Hold::LookedFile(_) | Hold::Uncounted(..) => None,
        }
    }
}

impl<S: Memory, P: Purpose> Drop for PinnedPage<S, P> {
    fn drop(&mut self) {
        if P::ACCESS == Access::Write
            && let Some(reverse_key) = self.reverse_key()
        {
            reverse_key.remove_writer();
        }
    }
}

impl<S: Memory, P: Purpose> core::fmt::Debug for PinnedPage<S, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PinnedPage({:?})", self.pfn())
    }
}

/// Largest number of pages that are pinned in one walk of the tables: the CPU takes no interrupt
/// meanwhile.
const RUN: usize = 16;

/// Pins the page at `addr` of the space with these roots, which this CPU has loaded, without a
/// lock, if that is possible. This works for any [`Term`], since only the page's own frame is
/// pinned.
pub fn pin_fast<S: Memory, P: Purpose>(roots: &Roots<S>, addr: VirtAddr) -> Option<PinnedPage<S, P>> {
    let mut pinned = None;
    pin_fast_run(roots, addr, 1, |page| pinned = Some(page));
    pinned
}

/// As [`pin_fast`], for up to `count` pages from `addr` on. `each` gets one pinned page after the
/// other, and allocates and frees no frame. Returns the number of pages. It stops at the first page
/// that cannot be pinned this way, at the end of a table, and at 16 pages.
#[inline]
pub fn pin_fast_run<S: Memory, P: Purpose>(
    roots: &Roots<S>,
    addr: VirtAddr,
    count: usize,
    mut each: impl FnMut(PinnedPage<S, P>),
) -> usize {
    let mut pinned = 0;
    let changed = roots.walk(|walk| {
        let (mut slot, size) = walk.find(addr)?;
        let mut at = addr;
        loop {
            match pin_leaf(&walk, (slot, size), at) {
                Ok(page) => each(page),
                Err(NotPinned::Refused) => return None,
                Err(NotPinned::Changed(page)) => return Some(page),
            }
            pinned += 1;
            if pinned == count.min(RUN) {
                return None;
            }
            at = at.checked_add(PAGE_SIZE as u64)?;
            match size {
                PageSize::Small => slot = slot.next()?,
                PageSize::Large if at.0.is_multiple_of(size.bytes()) => return None,
                PageSize::Large => {}
            }
        }
    });
    // A pin whose page has changed is dropped here, where frames may be freed.
    drop(changed);
    pinned
}

/// Pin the page at `addr`, whose leaf is in `slot`, if it is the page's own frame.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the compiler calls it, which stores 100 bytes per page")]
fn pin_leaf<S: Memory, P: Purpose>(
    walk: &TableWalk<'_, S>,
    (slot, size): (Slot<S::Machine>, PageSize),
    addr: VirtAddr,
) -> Result<PinnedPage<S, P>, NotPinned<PinnedPage<S, P>>> {
    let hold = |entry: Entry| {
        let entry = match size {
            PageSize::Small => entry,
            PageSize::Large => entry.piece_at(addr),
        };
        let hold = if !grants::<P>(entry) || !entry.may_be_pinned() {
            return None;
        } else if let Some(pin) = Pin::try_exclusive(walk.source(), entry.frame()) {
            Hold::Anon(pin)
        } else if entry.is_writable() {
            Hold::Shared(Pin::try_shared(walk.source(), entry.frame())?)
        } else {
            return None;
        };
        Some(PinnedPage::<S, P>::new(hold))
    };
    let serves = |first: Entry, now: Entry| {
        // If a large leaf has become a table, the slow path with the lock checks it.
        let same = first.frame() == now.frame() && first.is_large() == now.is_large();
        if same && grants::<P>(now) { Serves::Yes } else { Serves::No }
    };
    transition::pin(&slot, hold, serves)
}

/// Whether the leaf allows `P` without a fault. For writing it must be dirty already, since no CPU
/// will mark it.
fn grants<P: Purpose>(entry: Entry) -> bool {
    match P::ACCESS {
        Access::Write => entry.is_writable() && entry.is_dirty(),
        Access::Read | Access::Execute => !entry.rights().is_none(),
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Pin the page at `addr` for `T` and `P`: see the module's head. Faults it in.
    ///
    /// # Errors
    /// As [`AddressSpace::fault`]; a forced write to shared memory that the process may not write
    /// is refused as an access.
    pub fn pin<T: Term, P: Purpose>(
        &mut self,
        addr: VirtAddr,
        rule: Rule,
    ) -> Result<PinnedPage<S, P>, FaultError> {
        let Self { areas, resident, .. } = self;
        let area = areas.at(addr).ok_or(FaultError::Segv(SegvCode::MapErr))?;
        let allowed = match (rule, P::ACCESS) {
            (Rule::Forced, Access::Write) => {
                let is_copied = !area.is_shared() && !area.flags.contains(AreaFlags::NEVERWRITE);
                is_copied || area.protection.allows(Access::Write)
            }
            (Rule::Forced, _) => true,
            (Rule::Stated, Access::Read) => area.protection.contains(Protection::READ),
            (Rule::Asked | Rule::Stated, access) => area.protection.allows(access),
        };
        if !allowed || area.is_withheld() {
            return Err(FaultError::Segv(SegvCode::AccErr));
        }
        resident.pin::<P>(area, addr.page_start(), T::LASTING)
    }
}

impl<S: Memory> Resident<S> {
    fn pin<P: Purpose>(
        &mut self,
        area: &Area<S>,
        page: VirtAddr,
        lasting: Lasting,
    ) -> Result<PinnedPage<S, P>, FaultError> {
        let looks = lasting == Lasting::Moment && P::ACCESS == Access::Read && !area.is_shared();
        let writes = P::ACCESS == Access::Write;
        let want = if writes || !(looks || area.is_shared()) { Want::Write } else { Want::Read };
        // A frame that only this page uses can be read, whatever access its leaf grants.
        if writes || want == Want::Read || !self.has_own(page) {
            if area.is_monitored() {
                self.fault_to_pin(area, page, want, P::ACCESS)?;
            } else {
                self.fault(area, page, want)?;
            }
        }
        self.count_pieces(page);
        if writes && let Some((slot, _)) = self.tables.find(page) {
            // No CPU will mark the leaf while the device writes.
            slot.update(Entry::marked_dirty);
        }
        let entry = self.present(page).ok_or(FaultError::Bus)?;
        let own = self.hold_own(area, entry);
        let hold = if looks { own.or_else(|| self.look(area, page, entry)) } else { own };
        // This only fails if a count is at its maximum, or if there are too many references for
        // reads.
        hold.map(PinnedPage::new).ok_or(FaultError::Bus)
    }

    /// Whether the page has an exclusive frame, which a pin takes as it is.
    fn has_own(&self, page: VirtAddr) -> bool {
        self.present(page).is_some_and(|entry| self.is_exclusive(entry))
    }

    /// Pins the frame of `entry` if it is the page's own, or can become so without a copy.
    fn hold_own(&self, area: &Area<S>, entry: Entry) -> Option<Hold<S>> {
        let (source, frame) = (self.source(), entry.frame());
        match self.kind_of(entry) {
            // The frames of shared huge pages are anonymous: a reference is enough, since every
            // store reaches all that share them.
            LeafKind::Anon if area.is_shared() => self.look(area, VirtAddr(0), entry),
            // A file's huge page, in a private area.
            LeafKind::Anon if entry.is_of_file() => None,
            LeafKind::Anon => {
                let mapping = LeafMapping::<Anon, S>::borrow_leaf(source, frame).ok()?;
                mapping.reuse().ok()?;
                mapping.pin().ok().map(Hold::Anon)
            }
            LeafKind::Cache if area.is_shared() => {
                LeafMapping::<CacheKind, S>::borrow_leaf(source, frame).ok()?.pin().ok().map(Hold::Shared)
            }
            LeafKind::Cache | LeafKind::Zero => None,
        }
    }

    /// Holds the frame of `entry`. No store happens to it while it is held.
    fn look(&self, area: &Area<S>, page: VirtAddr, entry: Entry) -> Option<Hold<S>> {
        let (source, frame) = (self.source(), entry.frame());
        let has_room = |record: &FrameRecord| record.counts().load().references < LOOKS;
        match self.kind_of(entry) {
            LeafKind::Anon => {
                let mapping = LeafMapping::<Anon, S>::borrow_leaf(source, frame).ok()?;
                if has_room(mapping.record()) { mapping.reference().ok().map(Hold::Looked) } else { None }
            }
            LeafKind::Cache => {
                // Stores to the file reach the page's frame, and not a mirror that has fallen.
                if source.machine().mirrors_text()
                    && let Some((cache, index)) = area.cache_page(page)
                    && let Ok(Some(frame)) = cache.get(index)
                {
                    return has_room(frame.record()).then_some(Hold::LookedFile(frame));
                }
                let mapping = LeafMapping::<CacheKind, S>::borrow_leaf(source, frame).ok()?;
                if has_room(mapping.record()) { mapping.reference().ok().map(Hold::LookedFile) } else { None }
            }
            LeafKind::Zero => {
                self.commons.uncounted(frame)?;
                Some(Hold::Uncounted(self.commons.clone(), frame))
            }
        }
    }
}
