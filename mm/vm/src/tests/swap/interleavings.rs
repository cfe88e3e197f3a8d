//! Every interleaving of a page's swap-out and swap-in with the actions of the other process after
//! a fork: the steps of `swap` on one slot and its frame, with the real slots and the real counts.
//! Spaces have no lock in common; the slots' lock is the only one here.

use freehold_frame::{AccountId, AtomicWord, Belongs, Counts, Order, Owner, Tag};
use freehold_machine::{NodeId, Pfn};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::swap::slots::{ReadFor, Slots, Wrote};

struct Loom(AtomicU64);

impl AtomicWord for Loom {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn compare_exchange_weak(&self, now: u64, new: u64, ok: Ordering, no: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange_weak(now, new, ok, no)
    }
    fn relax(&self) {
        thread::yield_now();
    }
}

/// Number of frames: the one that both share at first, and those for copies and reads.
const FRAMES: usize = 4;
const SHARED: usize = 0;
const SLOT: u64 = 1;
const ANON: Tag = Tag::new(Owner::Anon, Order::FRAME, NodeId(0));

/// Counts that the redeemer of an entry reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Redeem {
    /// At one moment: mappings, and references that are neither the slot's nor its own.
    Counts,
    /// A broken kernel: reads only the mappings, when it maps.
    Mappings,
    /// A broken kernel: reads the references, then the mappings, when it maps.
    ReferencesFirst,
}

struct Frame {
    counts: Counts<Loom>,
    byte: AtomicUsize,
    freed: AtomicUsize,
}

struct System {
    slots: Mutex<Slots>,
    frames: [Frame; FRAMES],
    /// The byte in the store's slot.
    stored: AtomicUsize,
}

impl System {
    /// Frame 0 has byte 1 and is mapped by two spaces.
    fn after_a_fork() -> Arc<Self> {
        let frame = || Frame {
            counts: Counts::with_word(Loom(AtomicU64::new(ANON.bits()))),
            byte: AtomicUsize::new(1),
            freed: AtomicUsize::new(0),
        };
        let system = Self {
            slots: Mutex::new(Slots::new(2, &[], None).unwrap()),
            frames: core::array::from_fn(|_| frame()),
            stored: AtomicUsize::new(0),
        };
        let shared = &system.frames[SHARED].counts;
        shared.start(Belongs::Exclusive);
        shared.reference_to_mapping().unwrap();
        shared.share().unwrap();
        Arc::new(system)
    }
    fn counts(&self, frame: usize) -> &Counts<Loom> {
        &self.frames[frame].counts
    }
    fn freed(&self, frame: usize) {
        assert_eq!(self.frames[frame].freed.fetch_add(1, Ordering::Relaxed), 0, "freed twice");
    }
    fn drop_mapping(&self, frame: usize) {
        if self.counts(frame).unmap() {
            self.freed(frame);
        }
    }
    fn drop_reference(&self, frame: usize) {
        if self.counts(frame).unreference() {
            self.freed(frame);
        }
    }
    fn unreference(&self, frame: Option<Pfn>) {
        if let Some(frame) = frame {
            let frame = frame.0 as usize - 1;
            self.drop_reference(frame);
        }
    }
    fn unmapped(&self, frame: Option<Pfn>) -> bool {
        frame.is_some_and(|frame| self.counts(frame.0 as usize - 1).load().mappings == 0)
    }
    /// Makes a private copy of `frame`.
    fn copy(&self, frame: usize, to: usize) {
        let byte = self.frames[frame].byte.load(Ordering::Relaxed);
        self.counts(to).start(Belongs::Exclusive);
        self.counts(to).reference_to_mapping().unwrap();
        self.frames[to].byte.store(byte, Ordering::Relaxed);
    }

    /// Evicts the page: vacates the frame, takes a slot, stores the byte. [`Self::finish`] ends it.
    fn page_out(&self) {
        let belonged = self.counts(SHARED).vacate().unwrap();
        let taken = self.slots.lock().unwrap().take(Some(Pfn(SHARED as u64 + 1)), AccountId::ROOT);
        assert_eq!(taken, Some(SLOT));
        let byte = self.frames[SHARED].byte.load(Ordering::Relaxed);
        self.stored.store(byte, Ordering::Relaxed);
        assert!(belonged == Belongs::Shared || byte == 1);
    }
    fn finish(&self) {
        let mut slots = self.slots.lock().unwrap();
        let unmapped = self.unmapped(slots.word(SLOT).frame());
        let gone = slots.wrote(SLOT, Wrote::Stored);
        let gone = gone.or_else(|| if unmapped { slots.forget_frame(SLOT) } else { None });
        drop(slots);
        self.unreference(gone);
    }
    /// Evicts the other space's page, after the first one's: detaches and stows it. If that is not
    /// possible, returns the frame, which is mapped again.
    fn follow_out(&self) -> Option<usize> {
        let belonged = self.counts(SHARED).vacate().unwrap();
        let number = Pfn(SHARED as u64 + 1);
        let mut slots = self.slots.lock().unwrap();
        let word = slots.word(SLOT);
        if word.frame() != Some(number) {
            assert_eq!(slots.take(Some(number), AccountId::ROOT), Some(SLOT));
            drop(slots);
            let byte = self.frames[SHARED].byte.load(Ordering::Relaxed);
            self.stored.store(byte, Ordering::Relaxed);
            self.finish();
            return None;
        }
        if word.entries() == 0 {
            drop(slots);
            self.counts(SHARED).occupy(belonged).unwrap();
            return Some(SHARED);
        }
        slots.enter(SLOT).unwrap();
        let gone = if self.unmapped(Some(number)) { slots.forget_frame(SLOT) } else { None };
        drop(slots);
        self.unreference(gone);
        self.drop_reference(SHARED);
        None
    }
    /// Brings the page back: finds or reads it, and redeems the entry. Returns the mapped frame.
    fn page_in(&self, fresh: usize) -> usize {
        self.page_in_as(fresh, Redeem::Counts)
    }
    fn page_in_as(&self, fresh: usize, redeem: Redeem) -> usize {
        let slots = self.slots.lock().unwrap();
        let cached = slots.word(SLOT).frame();
        let mine = match cached {
            Some(frame) => {
                self.counts(frame.0 as usize - 1).reference().unwrap();
                frame.0 as usize - 1
            }
            None => fresh,
        };
        drop(slots);
        if cached.is_none() {
            self.counts(fresh).start(Belongs::Exclusive);
            self.frames[fresh].byte.store(self.stored.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let mut slots = self.slots.lock().unwrap();
        let word = slots.word(SLOT);
        let others = word.entries() > 1;
        if others && word.frame().is_none() {
            self.counts(mine).reference().unwrap();
            slots.put(SLOT, Pfn(mine as u64 + 1), ReadFor::Fault);
        }
        let own = 1 + u32::from(word.frame() == Some(Pfn(mine as u64 + 1)));
        let now = self.counts(mine).load();
        let held = match redeem {
            Redeem::Counts => now.mappings > 0 || now.references > own,
            Redeem::Mappings => false,
            Redeem::ReferencesFirst => now.references > own,
        };
        if others || held || self.counts(mine).occupy(Belongs::Exclusive).is_err() {
            self.counts(mine).occupy(Belongs::Shared).unwrap();
        }
        let gone = slots.leave(SLOT);
        drop(slots);
        self.unreference(gone);
        mine
    }
    /// Stores `byte` to the page whose leaf maps `frame`. Returns the frame afterwards.
    fn store(&self, frame: usize, copy: usize, byte: usize) -> usize {
        let own = self.counts(frame).reuse().is_ok() || {
            self.counts(frame).load().mappings == 1 && self.spares(frame)
        };
        let to = if own { frame } else { copy };
        if !own {
            self.copy(frame, copy);
            self.drop_mapping(frame);
        }
        assert!(self.counts(to).load().is_exclusive());
        self.frames[to].byte.store(byte, Ordering::Relaxed);
        to
    }
    fn spares(&self, frame: usize) -> bool {
        let mut slots = self.slots.lock().unwrap();
        let word = slots.word(SLOT);
        if word.frame() != Some(Pfn(frame as u64 + 1)) {
            drop(slots);
            return self.counts(frame).reuse_beside(0).is_ok();
        }
        if word.entries() == 0 {
            return self.counts(frame).reuse_beside(1).is_ok();
        }
        let gone = slots.forget_frame(SLOT);
        drop(slots);
        self.unreference(gone);
        gone.is_some() && self.counts(frame).reuse_beside(0).is_ok()
    }
    /// Both spaces unmap. Checks that every frame has been freed once, and that the slot is free.
    fn end(&self, leaves: [Option<usize>; 2]) {
        leaves.into_iter().flatten().for_each(|frame| self.drop_mapping(frame));
        let slots = self.slots.lock().unwrap();
        assert_eq!((slots.validate(), slots.free()), (0, 1));
        for frame in &self.frames {
            assert!(frame.counts.load().is_none());
        }
        assert_eq!(self.frames[SHARED].freed.load(Ordering::Relaxed), 1);
    }
    fn byte(&self, frame: usize) -> usize {
        self.frames[frame].byte.load(Ordering::Relaxed)
    }
}

#[test]
fn a_page_that_goes_and_comes_back_has_its_bytes_whatever_its_partner_stores() {
    loom::model(|| {
        let system = System::after_a_fork();
        let partner = {
            let system = system.clone();
            thread::spawn(move || system.store(SHARED, 1, 2))
        };
        system.page_out();
        system.finish();
        let mine = system.page_in(2);
        assert_eq!(system.byte(mine), 1);
        let theirs = partner.join().unwrap();
        assert_eq!((system.byte(theirs), system.byte(mine)), (2, 1));
        assert_ne!(mine, theirs);
        system.end([Some(mine), Some(theirs)]);
    });
}

#[test]
fn a_page_taken_back_and_stored_to_before_its_write_is_done_is_nobody_elses() {
    // Three threads have too many interleavings; a bound of two preemptions still finds every fault
    // (this was checked by breaking each step of this file).
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let system = System::after_a_fork();
        system.page_out();
        let writer = {
            let system = system.clone();
            thread::spawn(move || system.finish())
        };
        let partner = {
            let system = system.clone();
            thread::spawn(move || system.drop_mapping(SHARED))
        };
        let mine = system.page_in(2);
        assert_eq!(system.byte(mine), 1);
        let mine = system.store(mine, 1, 3);
        writer.join().unwrap();
        partner.join().unwrap();
        assert_eq!(system.byte(mine), 3);
        system.end([Some(mine), None]);
    });
}

#[test]
fn two_who_read_one_slot_at_once_share_a_frame_or_have_one_each_and_the_slot_is_free() {
    loom::model(|| {
        let system = System::after_a_fork();
        system.page_out();
        // The other space's page is evicted, too: one more entry, and the last mapping.
        system.counts(SHARED).vacate().unwrap();
        system.slots.lock().unwrap().enter(SLOT).unwrap();
        system.drop_reference(SHARED);
        system.finish();
        let partner = {
            let system = system.clone();
            thread::spawn(move || {
                let frame = system.page_in(1);
                assert_eq!(system.byte(frame), 1);
                frame
            })
        };
        let mine = system.page_in(2);
        assert_eq!(system.byte(mine), 1);
        let theirs = partner.join().unwrap();
        let unused = [1, 2].into_iter().filter(|&frame| frame != mine && frame != theirs);
        for frame in unused {
            // The read was not needed: the reader drops the frame.
            if !system.counts(frame).load().is_none() {
                system.drop_reference(frame);
            }
        }
        let exclusive = system.counts(mine).load().is_exclusive();
        assert!(!exclusive || mine != theirs);
        system.end([Some(mine), Some(theirs)]);
    });
}

/// The moment when the device has finished with the first page's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Before,
    After,
}

/// A page is swapped in and stored to while the other space's page, of the same frame, is at any
/// step of its swap-out. That page's leaf may be removed while it has no slot yet.
fn back_beside_a_partner_on_its_way_out(written: Written, redeem: Redeem) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let system = System::after_a_fork();
        system.page_out();
        if written == Written::Before {
            system.finish();
        }
        let partner = {
            let system = system.clone();
            thread::spawn(move || system.follow_out())
        };
        let mine = system.page_in_as(2, redeem);
        let mine = system.store(mine, 1, 3);
        let theirs = partner.join().unwrap();
        if written == Written::After {
            system.finish();
        }
        let theirs = theirs.unwrap_or_else(|| system.page_in(3));
        assert_eq!((system.byte(mine), system.byte(theirs)), (3, 1));
        system.end([Some(mine), Some(theirs)]);
    });
}

#[test]
fn a_page_that_comes_back_beside_a_partner_without_leaf_or_slot_is_not_its_own() {
    back_beside_a_partner_on_its_way_out(Written::Before, Redeem::Counts);
    back_beside_a_partner_on_its_way_out(Written::After, Redeem::Counts);
}

#[test]
#[should_panic(expected = "left: (3, 3)")]
fn who_redeems_an_entry_and_looks_at_mappings_alone_is_found() {
    back_beside_a_partner_on_its_way_out(Written::Before, Redeem::Mappings);
}

#[test]
#[should_panic(expected = "left: (3, 3)")]
fn who_redeems_an_entry_and_looks_at_references_before_mappings_is_found() {
    back_beside_a_partner_on_its_way_out(Written::Before, Redeem::ReferencesFirst);
}
