//! Swap: anonymous pages whose bytes are in a slot of a device or file.
//!
//! | file | what |
//! |---|---|
//! | `slots.rs` | the slots of one area, and the swap cache: one word each |
//! | `mod.rs` | all areas, and the steps that a page goes through, each under the swap's lock |
//! | `evict.rs` | choosing pages, taking them out, writing them |
//! | `back.rs` | bringing pages back: faults, read-ahead, swapoff |
//! | `lazy.rs` | pages that were given up (MADV_FREE) |
//!
//! Shared memory and files in memory use the slots, too: their cache has the one entry of each
//! (`cache/swapped.rs`).
//!
//! **Pages out of memory.** Such a page's entry in the page table names a slot ([`SwapPlace`]), and
//! the slot has an exact count of these entries. The last space that reads the page back owns it
//! alone, unless a leaf of another space, from before the swap-out, still maps the frame. So no
//! separate mark is needed: a page that was exclusive is exclusive again when it is mapped, even if
//! its frame has other holders. A shared one becomes exclusive as soon as the other users are gone.
//!
//! **The swap cache.** A slot may have a frame with the same bytes, to which it holds one
//! reference. Such a frame is in no other slot, gets no store (it is not exclusive, or its slot has
//! no entries any more), and has no pin. Its record's reverse key names the slot; the slot's word
//! decides, since old reverse keys are not cleared.
//!
//! | step | under which locks | slot | frame |
//! |---|---|---|---|
//! | out: leaf taken away and flushed | the space | | mapping becomes a reference, not exclusive |
//! | stow | the space, swap | one entry, writing (or one entry more, of a frame that is here already) | the slot's |
//! | write | none | writing | gets no store, or the slot will not be read |
//! | finish | swap | stored; free without entries | free, if nothing maps it |
//! | in: find, else read | the space (and the device) | | a reference, or a new frame |
//! | redeem | the space, swap | one entry less; free after the last | mapped, exclusive if the last entry led here and nothing else maps it |
//!
//! A page taken back before its write is done keeps its frame; the slot stays, without entries,
//! until the device is done with the frame's bytes, and then is free. Pages that the store does not
//! take together are written one by one. A page that cannot be written stays in the swap cache for
//! now. The next walk of reclaim maps it again, and later it gets another slot; a slot that failed
//! is never used again. Access to a page that cannot be read is a bus error, and the page stays in
//! the swap.
//!
//! **Locks.** One spin lock for all areas, ordered after address spaces and before the page
//! allocator; never held over I/O. Stores are called with no spin lock.
//!
//! **Memory.** Eight bytes and a bit per slot, allocated when the area is added. Swapping out
//! allocates nothing, except a table if a large leaf is split.

mod back;
mod evict;
mod lazy;
pub(crate) mod slots;

use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use freehold_charge::Accounts;
#[cfg(test)]
use freehold_charge::Resource;
use freehold_frame::{
    AccountId, Anon, Belongs, CountError, Frame, FrameKind, FrameSource, Held, HeldFrame, LeafMapping,
    OutOfMemory, Payer, ReverseKey,
};
use freehold_machine::{Cpus, Pfn};
use freehold_paging::{Memory, SwapPlace};

use crate::{Commons, VmError};
pub use evict::{Age, EvictWish, SwapEvicted};
pub(crate) use slots::Wrote;
use slots::{ReadFor, SlotWord, Slots};

/// Largest number of pages in one request to a store.
pub const SWAP_RUN: usize = 32;

/// Largest number of areas (Linux: MAX_SWAPFILES without migration, hardware poison and device
/// entries).
const AREAS: usize = 29;

/// The object of a frame's reverse key that means "a slot of the swap". Page caches count from 1.
const HOME: u64 = ReverseKey::LAST_OBJECT;

/// The storage of an area's pages: a device or a file, in pages from its beginning on.
pub trait SwapStore: Send + Sync {
    /// Fill the frames with the pages from `first` on. May sleep; called under an address space's
    /// lock.
    ///
    /// # Errors
    /// [`VmError::Io`]: these bytes are lost for now. [`VmError::NoMemory`].
    fn read(&self, first: u64, frames: &[HeldFrame<'_>]) -> Result<(), VmError>;
    /// Stores the frames' bytes as the pages from `first` on. May sleep, and must work without new
    /// memory, because it is called when memory is short.
    ///
    /// # Errors
    /// No page counts as stored. [`VmError::Io`]: they are tried one by one, and the slot of one
    /// that fails is not used again. [`VmError::NoMemory`]: the slots can be used again.
    fn write(&self, first: u64, frames: &[HeldFrame<'_>]) -> Result<(), VmError>;
}

/// Fill `frames`, at most [`SWAP_RUN`], with the pages from `first` on: see [`SwapStore::read`].
pub(crate) fn read_frames<K: FrameKind, S: FrameSource>(
    store: &dyn SwapStore,
    first: u64,
    frames: &[Frame<K, S>],
) -> Result<(), VmError> {
    let held: ArrayVec<HeldFrame<'_>, SWAP_RUN> = frames.iter().map(Held::held).collect();
    store.read(first, &held)
}

/// An area's number, as in swap entries and /proc/PID/pagemap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwapArea(u8);

impl SwapArea {
    /// The number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// An area in figures, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapAreaInfo {
    /// The area.
    pub area: SwapArea,
    /// Usable slots.
    pub slots: u64,
    /// Used slots.
    pub used: u64,
    /// The higher, the sooner it is used.
    pub priority: i32,
}

/// All areas in figures, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapUsage {
    /// Usable slots.
    pub slots: u64,
    /// Free slots, without those of areas that are being turned off.
    pub free: u64,
    /// Frames in the swap cache.
    pub cached: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AreaState {
    /// The area takes pages.
    On,
    /// The area is being emptied.
    Leaving,
}

struct SwapInfo {
    store: Arc<dyn SwapStore>,
    slots: Slots,
    priority: i32,
    state: AreaState,
}

/// The swap areas of a system. See the module's head.
pub struct Swap<S: Memory> {
    source: S,
    /// The accounts to which slots are charged.
    accounts: spin::Once<&'static Accounts>,
    /// Number of areas; while it is 0, callers look no further.
    count: AtomicUsize,
    areas: spin::Mutex<[Option<SwapInfo>; AREAS]>,
    ahead: Ahead,
    /// The space that reclaim visited last.
    pub(crate) hand: AtomicU64,
    /// The place where the next search for frames of the swap cache begins.
    cache_hand: AtomicU64,
}

/// The place of the bytes of a page that is not mapped.
enum UnmappedPage<S: Memory> {
    /// In the swap cache.
    Cached(Frame<Anon, S>),
    /// In the swap cache; this is the first access to a page that was read ahead.
    ReadAhead(Frame<Anon, S>),
    /// In the store only.
    Stored(Arc<dyn SwapStore>),
}

/// Result of stowing a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stowed {
    /// Its slot is new: the bytes are to be written, then [`Swap::finish`] called.
    ToWrite,
    /// Others have already added it to the swap cache.
    Cached,
    /// As `Cached`, and the store has the bytes, and this was the last mapping: the frame is free.
    Freed,
}

impl<S: Memory> Swap<S> {
    pub(crate) const fn new(source: S) -> Self {
        Self {
            source,
            accounts: spin::Once::new(),
            count: AtomicUsize::new(0),
            areas: spin::Mutex::new([const { None }; AREAS]),
            ahead: Ahead::new(),
            hand: AtomicU64::new(0),
            cache_hand: AtomicU64::new(0),
        }
    }

    /// Charge slots to `accounts`, whose numbers frames' records have. Called once, before there is
    /// an area.
    pub fn charge_to(&self, accounts: &'static Accounts) {
        self.accounts.call_once(|| accounts);
    }

    /// Begin to use `store`, whose pages `1..end` without the `bad` ones become slots.
    ///
    /// # Errors
    /// [`VmError::Invalid`] where that is not a single page, or more than entries can name;
    /// [`VmError::Permission`] where there are too many areas; [`VmError::NoMemory`].
    pub fn add(
        &self,
        store: Arc<dyn SwapStore>,
        end: u64,
        bad: &[u64],
        priority: i32,
    ) -> Result<SwapArea, VmError> {
        if end > SwapPlace::SLOTS {
            return Err(VmError::Invalid);
        }
        let slots = Slots::new(end, bad, self.accounts.get().copied())?;
        if slots.usable() == 0 {
            return Err(VmError::Invalid);
        }
        let mut areas = self.areas.lock();
        let number = areas.iter().position(Option::is_none).ok_or(VmError::Permission)?;
        areas[number] = Some(SwapInfo { store, slots, priority, state: AreaState::On });
        self.count.fetch_add(1, Ordering::Release);
        Ok(SwapArea(number as u8))
    }

    /// The areas, by number.
    pub fn areas(&self) -> impl Iterator<Item = SwapAreaInfo> {
        let areas = self.areas.lock();
        let infos = core::array::from_fn::<_, AREAS, _>(|number| {
            areas[number].as_ref().map(|area| SwapAreaInfo {
                area: SwapArea(number as u8),
                slots: area.slots.usable(),
                used: area.slots.usable() - area.slots.free(),
                priority: area.priority,
            })
        });
        infos.into_iter().flatten()
    }

    /// Returns the figures of all areas together.
    pub fn usage(&self) -> SwapUsage {
        let mut usage = SwapUsage::default();
        for area in self.areas.lock().iter().flatten() {
            usage.slots += area.slots.usable();
            usage.free += if area.state == AreaState::On { area.slots.free() } else { 0 };
            usage.cached += area.slots.cached();
        }
        usage
    }

    /// Returns whether there is no area, so that no frame is in the swap cache and no page in an
    /// area.
    pub(crate) fn is_off(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the payer of a frame for the page in `place`: the page's own account, whichever task
    /// reads it back.
    pub(crate) fn payer_of(&self, place: SwapPlace) -> Payer {
        if !self.source.machine().charges_frames() {
            return Payer::Asker;
        }
        let area = &mut self.areas.lock();
        area_of(area, place).map_or(Payer::Asker, |area| Payer::Account(area.slots.payer(place.slot)))
    }

    pub(crate) fn store_of(&self, place: SwapPlace) -> Option<Arc<dyn SwapStore>> {
        area_of(&mut self.areas.lock(), place).map(|area| area.store.clone())
    }
    /// Takes over the reference that a slot held.
    fn held(&self, frame: Option<Pfn>) -> Option<Frame<Anon, S>> {
        frame.map(|frame| Frame::from_raw(self.source, frame).expect("slots hold anonymous frames"))
    }
    /// Takes one more reference to a slot's frame. The slot keeps the frame while the lock is held.
    fn one_more(&self, frame: Pfn) -> Result<Frame<Anon, S>, OutOfMemory> {
        let held = self.held(Some(frame)).map(ManuallyDrop::new);
        held.and_then(|frame| frame.try_clone().ok()).ok_or(OutOfMemory)
    }
    /// Gives `frame` to `slot`, which has none.
    fn keep(area: &mut SwapInfo, place: SwapPlace, frame: Frame<Anon, S>, read_for: ReadFor) {
        frame.set_reverse_key(HOME, place.number());
        area.slots.put(place.slot, frame.into_raw(), read_for);
    }
    /// Returns the slot that holds `frame`.
    fn slot_of(&self, areas: &[Option<SwapInfo>; AREAS], frame: Pfn) -> Option<(SwapPlace, SlotWord)> {
        let (object, index) = self.source.table().reverse_key(frame)?.get();
        let place = SwapPlace::from_number(index);
        let word = areas.get(usize::from(place.area))?.as_ref()?.slots.word(place.slot);
        (object == HOME && word.frame() == Some(frame)).then_some((place, word))
    }
    fn mappings(&self, frame: Pfn) -> u32 {
        self.source.table().get(frame).map_or(0, |record| record.counts().load().mappings)
    }

    /// Gives `frame`, which was removed from its page, a slot with one entry; `None` if none is
    /// free. A new slot ([`Stowed::ToWrite`]) takes over the caller's reference.
    fn stow(&self, frame: &Frame<Anon, S>) -> Option<(SwapPlace, Stowed)> {
        let number = frame.pfn();
        let mut areas = self.areas.lock();
        if let Some((place, word)) = self.slot_of(&areas, number) {
            // A slot without entries only waits for the device, and its bytes may be out of date. A
            // dirty page will get another slot as soon as the other spaces have mapped it again.
            let is_open = word.entries() > 0 && !word.is_dirty();
            let open = |area: &&mut SwapInfo| area.state == AreaState::On && is_open;
            let entered = area_of(&mut areas, place).filter(open).map(|area| area.slots.enter(place.slot));
            entered?.ok()?;
            let unmapped = self.mappings(number) == 0;
            let gone = area_of(&mut areas, place)
                .filter(|_| unmapped)
                .and_then(|area| area.slots.forget_frame(place.slot));
            drop(areas);
            let outcome = if gone.is_some() { Stowed::Freed } else { Stowed::Cached };
            drop(self.held(gone));
            return Some((place, outcome));
        }
        let place = take_best(&mut areas, Some(number), self.source.table().account(number))?;
        frame.set_reverse_key(HOME, place.number());
        Some((place, Stowed::ToWrite))
    }

    /// A slot with one entry for a page that its cache keeps until its bytes are written, charged
    /// to `payer`; `None` if none is free. The caller calls [`Swap::finish`] later.
    pub(crate) fn reserve(&self, payer: AccountId) -> Option<SwapPlace> {
        take_best(&mut self.areas.lock(), None, payer)
    }

    /// Reports the end of the write for [`Swap::stow`]. Returns whether that made the frame free.
    pub(crate) fn finish(&self, place: SwapPlace, how: Wrote) -> bool {
        let mut areas = self.areas.lock();
        let Some(area) = area_of(&mut areas, place) else { return false };
        let frame = area.slots.word(place.slot).frame();
        let unmapped = frame.is_some_and(|frame| self.mappings(frame) == 0);
        let gone = area.slots.wrote(place.slot, how);
        let gone = gone.or_else(|| if unmapped { area.slots.forget_frame(place.slot) } else { None });
        drop(areas);
        drop(self.held(gone));
        gone.is_some() && unmapped
    }

    /// Returns the location of the page's bytes.
    fn find(&self, place: SwapPlace) -> Result<UnmappedPage<S>, OutOfMemory> {
        let mut areas = self.areas.lock();
        let area = area_of(&mut areas, place).expect("an entry keeps its area");
        match area.slots.word(place.slot).frame() {
            Some(frame) => {
                let first = area.slots.note_hit(place.slot);
                let frame = self.one_more(frame)?;
                self.ahead.hits.fetch_add(first.into(), Ordering::Relaxed);
                Ok(if first { UnmappedPage::ReadAhead(frame) } else { UnmappedPage::Cached(frame) })
            }
            None => Ok(UnmappedPage::Stored(area.store.clone())),
        }
    }

    /// Whether the page is available without its store.
    pub(crate) fn is_cached(&self, place: SwapPlace) -> bool {
        let mut areas = self.areas.lock();
        area_of(&mut areas, place).is_some_and(|area| area.slots.word(place.slot).frame().is_some())
    }

    /// Whether `frame` is in the swap cache.
    pub fn is_cache_frame(&self, frame: Pfn) -> bool {
        !self.is_off() && self.slot_of(&self.areas.lock(), frame).is_some()
    }

    /// Whether no store has the page's bytes or is receiving them.
    fn is_dirty(&self, place: SwapPlace) -> bool {
        area_of(&mut self.areas.lock(), place).is_some_and(|area| area.slots.word(place.slot).is_dirty())
    }

    /// The number of dirty pages.
    fn dirty_pages(&self) -> u64 {
        self.areas.lock().iter().flatten().map(|area| area.slots.dirty()).sum()
    }

    /// How many entries lead to the page's slot.
    pub(crate) fn entries(&self, place: SwapPlace) -> u64 {
        area_of(&mut self.areas.lock(), place).map_or(1, |area| area.slots.word(place.slot).entries())
    }

    /// Exchanges one entry of `place` for a mapping of `frame`, which has the bytes and to which
    /// the caller has a reference. Returns whether the frame is exclusive now.
    fn redeem(
        &self,
        place: SwapPlace,
        frame: Frame<Anon, S>,
    ) -> Result<(LeafMapping<Anon, S>, Belongs), OutOfMemory> {
        let mut areas = self.areas.lock();
        let area = area_of(&mut areas, place).expect("an entry keeps its area");
        let word = area.slots.word(place.slot);
        let (frame, spare) = match word.frame() {
            // Another space has read it meanwhile.
            Some(cached) if cached != frame.pfn() => (self.one_more(cached)?, Some(frame)),
            _ => (frame, None),
        };
        let others = word.entries() > 1;
        if word.entries() > 1 && word.frame().is_none() {
            let theirs = frame.try_clone().map_err(|_| OutOfMemory)?;
            Self::keep(area, place, theirs, ReadFor::Fault);
        }
        // A space whose page is being swapped out, and has no slot yet, has a reference but no
        // mapping, and needs the bytes, too. Without mappings no further swap-out can start now.
        let own = 1 + u32::from(word.frame() == Some(frame.pfn()));
        let counts = self.source.table().get(frame.pfn()).map(|record| record.counts().load());
        let others = others || counts.is_none_or(|now| now.mappings > 0 || now.references > own);
        let mapped = if others { Err((frame, CountError::Held)) } else { map_as(frame, Belongs::Exclusive) };
        // Leaves of spaces that forked before the swap-out may still exist.
        let mapped = match mapped {
            Err((frame, CountError::Held)) => map_as(frame, Belongs::Shared),
            mapped => mapped,
        };
        let mapped = mapped.map_err(|_| OutOfMemory)?;
        let gone = area.slots.leave(place.slot);
        drop(areas);
        drop((spare, self.held(gone)));
        Ok(mapped)
    }

    /// Counts one more entry for `place` (fork).
    pub(crate) fn enter(&self, place: SwapPlace) -> Result<(), OutOfMemory> {
        let mut areas = self.areas.lock();
        area_of(&mut areas, place)
            .map_or(Ok(()), |area| area.slots.enter(place.slot).map_err(|_| OutOfMemory))
    }

    /// Drops one entry of `place`: its page was unmapped.
    pub(crate) fn leave(&self, place: SwapPlace) {
        let mut areas = self.areas.lock();
        let gone = area_of(&mut areas, place).and_then(|area| area.slots.leave(place.slot));
        drop(areas);
        drop(self.held(gone));
    }

    /// Keeps `frame` for the next request for `place`, unless that place is in the swap cache
    /// already, or free. The caller's space has an entry for it.
    fn keep_for_later(&self, place: SwapPlace, frame: Frame<Anon, S>) {
        let mut areas = self.areas.lock();
        let empty = |area: &&mut SwapInfo| area.slots.word(place.slot).frame().is_none();
        match area_of(&mut areas, place).filter(empty) {
            Some(area) => Self::keep(area, place, frame, ReadFor::Ahead),
            None => {
                drop(areas);
                drop(frame);
            }
        }
    }

    /// Returns the result of `alone` for `frame`, which one leaf maps and which will be written.
    /// `alone` gets the number of the swap's references to the frame, which are unneeded; it does
    /// not change during the call. Returns false if an entry needs the bytes.
    pub(crate) fn spares(&self, frame: Pfn, alone: impl FnOnce(u32) -> bool) -> bool {
        if self.is_off() {
            return alone(0);
        }
        let mut areas = self.areas.lock();
        let Some((place, word)) = self.slot_of(&areas, frame) else {
            drop(areas);
            return alone(0);
        };
        if word.entries() == 0 {
            // The device is not done yet, but its write will not be read.
            return alone(1);
        }
        // Spaces with entries find the bytes in the store.
        let gone = area_of(&mut areas, place).and_then(|area| area.slots.forget_frame(place.slot));
        drop(areas);
        let spared = gone.is_some();
        drop(self.held(gone));
        spared && alone(0)
    }

    /// Makes the swap cache drop `frame`, if its bytes can be read again.
    pub(crate) fn forget(&self, frame: Pfn) {
        self.spares(frame, |_| true);
    }

    /// Frees up to `want` frames that only the swap cache holds and whose bytes are stored; returns
    /// the number.
    pub fn shrink_cache(&self, want: usize) -> usize {
        let mut freed = 0;
        // Each frame of the cache is looked at once at most.
        let mut left = self.usage().cached;
        while freed < want && left > 0 {
            let looked = left.min(SWAP_RUN as u64);
            left -= looked;
            freed += self.shrink_some(looked, want - freed);
        }
        freed
    }

    /// As [`Swap::shrink_cache`], of the next `count` frames from the hand on.
    fn shrink_some(&self, count: u64, want: usize) -> usize {
        let mut gone = arrayvec::ArrayVec::<Pfn, SWAP_RUN>::new();
        let mut areas = self.areas.lock();
        let mut hand = SwapPlace::from_number(self.cache_hand.load(Ordering::Relaxed));
        for _ in 0..count {
            let Some(place) = next_cached(&areas, hand) else { break };
            if gone.len() >= want {
                break;
            }
            hand = SwapPlace::from_number(place.number() + 1);
            let Some(area) = area_of(&mut areas, place) else { break };
            let idle = area.slots.word(place.slot).frame().is_some_and(|frame| self.mappings(frame) == 0);
            gone.extend(if idle { area.slots.forget_frame(place.slot) } else { None });
        }
        self.cache_hand.store(hand.number(), Ordering::Relaxed);
        drop(areas);
        gone.iter().for_each(|&frame| drop(self.held(Some(frame))));
        gone.len()
    }

    /// Counts all slots again; returns the number of their entries.
    #[cfg(test)]
    pub(crate) fn validate(&self) -> u64 {
        let areas = self.areas.lock();
        let paid: u64 = areas.iter().flatten().map(|area| area.slots.paid()).sum();
        let charged = |accounts: &&Accounts| accounts.charged(freehold_paging::model::ASKER, Resource::Swap);
        assert_eq!(self.accounts.get().map_or(0, charged), paid, "slots that are charged for");
        areas.iter().flatten().map(|area| area.slots.validate()).sum()
    }
}

fn area_of(areas: &mut [Option<SwapInfo>; AREAS], place: SwapPlace) -> Option<&mut SwapInfo> {
    areas.get_mut(usize::from(place.area))?.as_mut()
}

/// The first slot with a frame from `hand` on, or from the first area's beginning if there is none.
fn next_cached(areas: &[Option<SwapInfo>; AREAS], hand: SwapPlace) -> Option<SwapPlace> {
    let in_area = |number: u8, from: u64| {
        let slot = areas[usize::from(number)].as_ref()?.slots.next_cached(from)?;
        Some(SwapPlace { area: number, slot })
    };
    in_area(hand.area, hand.slot)
        .or_else(|| (hand.area + 1..AREAS as u8).find_map(|number| in_area(number, 0)))
        .or_else(|| (0..=hand.area).find_map(|number| in_area(number, 0)))
}

/// A slot of the best area that has one.
fn take_best(
    areas: &mut [Option<SwapInfo>; AREAS],
    frame: Option<Pfn>,
    payer: AccountId,
) -> Option<SwapPlace> {
    let roomy = |area: &SwapInfo| area.state == AreaState::On && area.slots.free() > 0;
    let best = (0..AREAS as u8)
        .filter_map(|number| Some((number, areas[usize::from(number)].as_ref().filter(|area| roomy(area))?)))
        .max_by_key(|(number, area)| (area.priority, core::cmp::Reverse(*number)));
    let area = best?.0;
    let slot = areas[usize::from(area)].as_mut()?.slots.take(frame, payer)?;
    Some(SwapPlace { area, slot })
}

type Mapped<S> = Result<(LeafMapping<Anon, S>, Belongs), (Frame<Anon, S>, CountError)>;

fn map_as<S: Memory>(frame: Frame<Anon, S>, belongs: Belongs) -> Mapped<S> {
    frame.into_mapping_as(belongs).map(|mapping| (mapping, belongs))
}

impl<S: Memory> Commons<S> {
    /// The swap areas.
    pub const fn swap(&self) -> &Swap<S> {
        &self.swap
    }
}

impl<S: Memory> core::fmt::Debug for Swap<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Swap({:?})", self.usage())
    }
}

/// State of read-ahead: guesses, which concurrent faults may disturb for each other.
struct Ahead {
    /// log2 of the largest number of pages at a time (Linux: vm.page-cluster).
    most: AtomicU32,
    /// Pages that were read ahead and then used, since the last check.
    hits: AtomicU32,
    /// Pages of the last window.
    last: AtomicU32,
    /// The slot that was read last.
    slot: AtomicU64,
}

impl Ahead {
    const fn new() -> Self {
        Self {
            most: AtomicU32::new(3),
            hits: AtomicU32::new(0),
            last: AtomicU32::new(8),
            slot: AtomicU64::new(0),
        }
    }
    /// How many pages to read around `slot`, itself included: more if read-ahead was useful before,
    /// fewer if not.
    fn window(&self, slot: u64) -> u32 {
        let hits = self.hits.swap(0, Ordering::Relaxed);
        let near = self.slot.swap(slot, Ordering::Relaxed).abs_diff(slot) == 1;
        let last = self.last.load(Ordering::Relaxed);
        let wanted = match hits {
            0 if near => last.max(2),
            0 => last / 2,
            hits => (hits + 2).next_power_of_two(),
        };
        let window = wanted.clamp(1, 1 << self.most.load(Ordering::Relaxed));
        self.last.store(window, Ordering::Relaxed);
        window
    }
}

impl<S: Memory> Swap<S> {
    /// log2 of the largest number of pages that are read at a time around a needed one
    /// (vm.page-cluster).
    pub fn ahead(&self) -> u32 {
        self.ahead.most.load(Ordering::Relaxed)
    }
    /// Set it, to 5 at most.
    pub fn set_ahead(&self, log2: u32) {
        self.ahead.most.store(log2.min(SWAP_RUN.ilog2()), Ordering::Relaxed);
    }
}
