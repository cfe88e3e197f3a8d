//! Every interleaving of two files. `src/word.rs`: pages that are taken, freed, added and removed,
//! and the index. `src/owners.rs`: pages that other devices and reclaim take from a device that is
//! being removed.
//!
//! Each promise also has a broken variant whose defect the model detects, so the model does check
//! the promise.
#![forbid(unsafe_code)]
#![allow(missing_docs, dead_code, unreachable_pub, reason = "a test that includes a module of the crate")]

/// loom treats sequentially consistent accesses as acquire and release ones, but supports fences.
/// So an access has a fence on the side where its order with other such accesses matters.
mod atomic {
    use loom::sync::atomic::fence;
    pub use loom::sync::atomic::{AtomicU8, Ordering};

    pub struct AtomicU64(loom::sync::atomic::AtomicU64);

    fn ordered(order: Ordering) {
        if order == Ordering::SeqCst {
            fence(Ordering::SeqCst);
        }
    }

    impl AtomicU64 {
        pub fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }
        pub fn load(&self, order: Ordering) -> u64 {
            ordered(order);
            self.0.load(order)
        }
        pub fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
            ordered(order);
        }
        pub fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            let before = self.0.fetch_or(value, order);
            ordered(order);
            before
        }
        pub fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            let before = self.0.fetch_and(value, order);
            ordered(order);
            before
        }
        pub fn compare_exchange(
            &self,
            old: u64,
            new: u64,
            done: Ordering,
            not: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange(old, new, done, not)
        }
        pub fn compare_exchange_weak(
            &self,
            old: u64,
            new: u64,
            done: Ordering,
            not: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange_weak(old, new, done, not)
        }
    }
}
#[path = "../src/owners.rs"]
mod owners;
#[path = "../src/word.rs"]
mod word;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use loom::thread;
use owners::{NOBODY, Owners};
use word::{Fit, FreePages, Index, Span};

/// Two pages, and their bytes: a race is an error of the model.
struct Pages {
    free: FreePages,
    bytes: [UnsafeCell<()>; 2],
}

impl Pages {
    fn new(count: u32) -> Self {
        let pages = Self { free: FreePages::new(), bytes: [UnsafeCell::new(()), UnsafeCell::new(())] };
        pages.free.install(count);
        pages
    }
    /// Uses the pages: the model fails where another thread does at the same time.
    fn touch(&self, span: Span) {
        let pages = &self.bytes[span.first as usize..(span.first + span.count) as usize];
        pages.iter().for_each(|page| page.with_mut(|_| ()));
    }
}

#[test]
fn a_page_has_one_holder_whatever_is_taken_and_given_back_at_the_same_time() {
    loom::model(|| {
        let pages = Arc::new(Pages::new(2));
        let other = pages.clone();
        let thread = thread::spawn(move || {
            if let Some(span) = other.free.take(2, 1, Fit::Longest) {
                other.touch(span);
                other.free.give(span);
            }
        });
        if let Some(span) = pages.free.take(1, 1, Fit::Whole) {
            pages.touch(span);
            pages.free.give(span);
        }
        thread.join().unwrap();
        assert_eq!(pages.free.bits(), 0b11);
    });
}

/// The broken variant: the CPU that frees pages publishes this without releasing its stores.
#[test]
#[should_panic(expected = "Causality violation")]
fn giving_back_without_release_is_caught() {
    loom::model(|| {
        let (free, bytes) = (AtomicU64::new(1), UnsafeCell::new(()));
        let pages = Arc::new((free, bytes));
        let other = pages.clone();
        let thread = thread::spawn(move || {
            if other.0.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                other.1.with_mut(|_| ());
                other.0.fetch_or(1, Ordering::Relaxed);
            }
        });
        if pages.0.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            pages.1.with_mut(|_| ());
            pages.0.fetch_or(1, Ordering::Release);
        }
        thread.join().unwrap();
    });
}

/// Memory is removed and other memory is added in its place, while a taker has a stale copy of the
/// word. The taker must find the frame of the memory to which its pages belong.
#[test]
fn a_segment_that_is_removed_and_added_again_never_shows_its_old_frame() {
    loom::model(|| {
        let place = Arc::new((FreePages::new(), AtomicU64::new(100)));
        place.0.install(2);
        let taker = {
            let place = place.clone();
            thread::spawn(move || {
                let span = place.0.take(1, 1, Fit::Whole)?;
                let frame = place.1.load(Ordering::Relaxed);
                place.0.give(span);
                Some(frame)
            })
        };
        let removed = place.0.retire(2);
        if removed {
            place.1.store(200, Ordering::Relaxed);
            place.0.install(2);
        }
        let first = place.0.take(2, 1, Fit::Whole).is_some();
        if let Some(frame) = taker.join().unwrap() {
            assert!(frame == 100 || removed && frame == 200);
            assert!(!first || !removed || place.1.load(Ordering::Relaxed) == 200);
        }
    });
}

/// The broken variant: memory is removed when the word looks idle, without taking all pages.
#[test]
#[should_panic(expected = "held and gone")]
fn removing_a_segment_that_only_looked_idle_is_caught() {
    loom::model(|| {
        let place = Arc::new((FreePages::new(), AtomicU64::new(1)));
        place.0.install(1);
        let taker = {
            let place = place.clone();
            thread::spawn(move || {
                if let Some(span) = place.0.take(1, 1, Fit::Whole) {
                    assert_eq!(place.1.load(Ordering::SeqCst), 1, "held and gone");
                    place.0.give(span);
                }
            })
        };
        if place.0.bits() == 1 {
            place.1.store(0, Ordering::SeqCst);
        }
        taker.join().unwrap();
    });
}

/// A search marks a segment as full while its pages are given back: afterwards the index must name
/// the free page.
#[test]
fn no_free_page_is_forgotten_when_a_search_marks_its_segment_full() {
    loom::model(|| {
        let all = Arc::new((FreePages::new(), Index::new()));
        all.0.install(1);
        all.1.note_free(0);
        let span = all.0.take(1, 1, Fit::Whole).unwrap();
        let giver = {
            let all = all.clone();
            thread::spawn(move || {
                all.0.give(span);
                all.1.note_free(0);
            })
        };
        if all.0.bits() == 0 {
            all.1.note_full(0, &all.0);
        }
        giver.join().unwrap();
        assert_eq!(all.1.next(0), Some(0), "the page is free and found");
    });
}

/// The broken variant: the search does not read the word again.
#[test]
#[should_panic(expected = "the page is free and found")]
fn a_search_that_does_not_look_again_is_caught() {
    loom::model(|| {
        let all = Arc::new((FreePages::new(), Index::new(), FreePages::new()));
        all.0.install(1);
        all.1.note_free(0);
        let span = all.0.take(1, 1, Fit::Whole).unwrap();
        let giver = {
            let all = all.clone();
            thread::spawn(move || {
                all.0.give(span);
                all.1.note_free(0);
            })
        };
        if all.0.bits() == 0 {
            // A word that is always 0 simulates the omitted read.
            all.1.note_full(0, &all.2);
        }
        giver.join().unwrap();
        assert_eq!(all.1.next(0), Some(0), "the page is free and found");
    });
}

/// A segment of one page, whose memory moves from node 0 to node 1, and the nodes' indices.
struct Moving {
    free: FreePages,
    node: AtomicU8,
    indices: [Index; 2],
}

impl Moving {
    fn take_and_give(&self) {
        if let Some(span) = self.free.take(1, 1, Fit::Whole) {
            self.free.give(span);
            self.indices[usize::from(self.node.load(Ordering::Relaxed))].note_free(0);
        }
    }
    fn find_full(&self) {
        if self.indices[1].next(0) == Some(0) && self.free.bits() == 0 {
            self.indices[1].note_full(0, &self.free);
        }
    }
}

/// A page is taken and freed, and a search finds it taken, while the segment's memory moves.
fn moving(install: fn(&Moving)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let indices = [Index::new(), Index::new()];
        let all = Arc::new(Moving { free: FreePages::new(), node: AtomicU8::new(0), indices });
        all.free.install(1);
        all.indices[0].note_free(0);
        let (mover, taker) = (all.clone(), all.clone());
        let mover = thread::spawn(move || {
            if mover.free.retire(1) {
                install(&mover);
            }
        });
        let taker = thread::spawn(move || taker.take_and_give());
        all.find_full();
        mover.join().unwrap();
        taker.join().unwrap();
        let node = usize::from(all.node.load(Ordering::Relaxed));
        assert_eq!(all.indices[node].next(0), Some(0), "the page is free and found on its node");
    });
}

#[test]
fn a_free_page_is_in_the_index_of_the_node_that_it_moved_to() {
    moving(|all| {
        all.node.store(1, Ordering::Relaxed);
        all.free.install(1);
        all.indices[1].note_free(0);
    });
}

/// The broken variant: the page is not noted in the index of its new node.
#[test]
#[should_panic(expected = "the page is free and found on its node")]
fn memory_that_its_new_node_does_not_note_is_caught() {
    moving(|all| {
        all.node.store(1, Ordering::Relaxed);
        all.free.install(1);
    });
}

const GOES: u8 = 1;
const OTHER: u8 = 2;

/// Two pages that the departing device had last, and its domain.
struct Departure {
    free: FreePages,
    owners: Owners<2>,
    /// The domain's tables: freeing them while a call walks them is an error of the model.
    tables: UnsafeCell<()>,
    is_there: std::sync::atomic::AtomicBool,
}

const ALL: Span = Span { first: 0, count: 2 };

impl Departure {
    fn new() -> Self {
        let (free, owners) = (FreePages::new(), Owners::new());
        owners.set(ALL, GOES);
        free.install(2);
        Self { free, owners, tables: UnsafeCell::new(()), is_there: true.into() }
    }
    /// Pages leave the domain.
    fn leave(&self) {
        assert!(self.is_there.load(Ordering::Relaxed), "a call of a domain that is gone");
        self.tables.with(|_| ());
    }
    /// The domain is removed.
    fn end(&self) {
        self.is_there.store(false, Ordering::Relaxed);
        self.tables.with_mut(|_| ());
    }
    /// Another device takes `pages`, and keeps them or frees them.
    fn take(&self, pages: u32, is_kept: bool) {
        let Some(span) = self.free.take(pages, 1, Fit::Longest) else { return };
        let mut left = span;
        while left.count > 0 {
            let (before, same) = self.owners.first_run(left);
            if before == GOES {
                self.leave();
            }
            self.owners.set(same, OTHER);
            left = left.after(same);
        }
        if !is_kept {
            self.free.give(span);
        }
    }
    /// Another device takes pages that it cannot use.
    fn take_in_vain(&self) {
        if let Some(span) = self.free.take(1, 1, Fit::Whole) {
            self.free.give(span);
        }
    }
    /// Reclaim. Broken variant: no page names the device any more while its domain is called.
    fn retire(&self, order: Retirement) {
        if self.free.retire(2) {
            let before = self.owners.first_run(ALL).0;
            if order == Retirement::OwnersFirst {
                self.owners.set(ALL, NOBODY);
            }
            if before == GOES {
                self.leave();
            }
            self.owners.set(ALL, NOBODY);
        }
    }
    /// The first part of the device's end. Returns how many pages are still its own.
    fn disown(&self) -> u32 {
        let (claimed, others) = self.owners.claim(&self.free, GOES);
        for span in Span::runs(claimed) {
            self.leave();
            self.owners.set(span, NOBODY);
            self.free.give(span);
        }
        others
    }
    fn names_the_device(&self) -> bool {
        (0..2).any(|first| self.owners.first_run(Span { first, count: 1 }).0 == GOES)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Retirement {
    LeaveFirst,
    OwnersFirst,
}

/// Removes a device concurrently with `other`; `end` defines the order of the steps.
fn departure(other: fn(&Departure), end: fn(&Departure) -> bool) {
    loom::model(move || {
        let all = Arc::new(Departure::new());
        let thread = {
            let all = all.clone();
            thread::spawn(move || other(&all))
        };
        let is_over = end(&all);
        thread.join().expect("the other thread ends");
        // The removal is tried again.
        assert!(is_over || end(&all));
        assert!(!all.names_the_device());
    });
}

/// The same steps as in `src/gone.rs`.
fn disown_then_end(all: &Departure) -> bool {
    let is_over = all.disown() == 0;
    if is_over {
        all.end();
    }
    is_over
}

#[test]
fn no_call_of_a_domain_is_under_way_when_it_goes_and_none_comes() {
    for other in [
        |all: &Departure| all.take(1, true),
        |all: &Departure| all.take(2, false),
        |all: &Departure| all.take_in_vain(),
        |all: &Departure| all.retire(Retirement::LeaveFirst),
    ] {
        departure(other, disown_then_end);
    }
}

/// The broken variant: the domain is removed first, with all its mappings.
#[test]
#[should_panic(expected = "a call of a domain that is gone")]
fn a_domain_that_goes_before_its_pages_is_caught() {
    departure(
        |all| all.take(1, true),
        |all| {
            all.end();
            let (claimed, _) = all.owners.claim(&all.free, GOES);
            Span::runs(claimed).for_each(|span| {
                all.owners.set(span, NOBODY);
                all.free.give(span);
            });
            true
        },
    );
}

/// The broken variant: the removal does not wait for pages that another thread has.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_domain_that_does_not_wait_for_pages_on_their_way_is_caught() {
    departure(
        |all| all.take(1, true),
        |all| {
            all.disown();
            all.end();
            true
        },
    );
}

/// The broken variant: reclaim clears the owner of its pages before they have left the domain.
#[test]
#[should_panic(expected = "Causality violation")]
fn reclaim_that_clears_the_owners_first_is_caught() {
    departure(|all| all.retire(Retirement::OwnersFirst), disown_then_end);
}

/// The broken variant: the new owner is stored without releasing the call before it.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_new_owner_without_release_is_caught() {
    loom::model(|| {
        let all = Arc::new((AtomicU8::new(GOES), UnsafeCell::new(())));
        let other = all.clone();
        let thread = thread::spawn(move || {
            other.1.with(|_| ());
            other.0.store(OTHER, Ordering::Relaxed);
        });
        if all.0.load(Ordering::Acquire) != GOES {
            all.1.with_mut(|_| ());
        }
        thread.join().unwrap();
    });
}
