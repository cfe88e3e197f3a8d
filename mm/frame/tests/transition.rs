//! Every interleaving of a lock-free pin with what its owner does to the page: fork, a store, unmapping, swap-out, clearing of marks.
#![allow(clippy::unwrap_used)]

mod checker;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use checker::{Loom, unheld};
use freehold_frame::transition::{Leaf, NotPinned, Serves, forget_written, pin};
use freehold_frame::{CountError, Counts, Exclusive};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
use loom::thread;

const WRITE: u64 = 1;
const MARK: u64 = 2;
const NONE: u64 = 0;

/// The leaf of frame `n`.
const fn leading_to(n: u64, bits: u64) -> u64 {
    (n + 1) << 8 | bits
}

/// The frame that a leaf leads to.
fn frame_of(entry: u64) -> Option<usize> {
    (entry >> 8).checked_sub(1).map(|n| n as usize)
}

struct ModelLeaf(AtomicU64);

impl Leaf for ModelLeaf {
    type Entry = u64;
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    fn change(&self, mut now: u64, change: impl Fn(u64) -> u64) -> u64 {
        loop {
            match self.0.compare_exchange(now, change(now), Ordering::AcqRel, Ordering::Acquire) {
                Ok(was) => return was,
                Err(other) => now = other,
            }
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A frame with its record.
struct Frame {
    counts: Counts<Loom>,
    writers: AtomicUsize,
    freed: AtomicUsize,
}

impl Frame {
    fn new() -> Self {
        Self { counts: unheld(), writers: AtomicUsize::new(0), freed: AtomicUsize::new(0) }
    }
    fn own(&self) {
        self.counts.start(Exclusive::Yes);
        self.counts.reference_to_mapping().unwrap();
    }
    /// Let go of a hold by `drop_hold`, which says whether it was the last.
    fn let_go(&self, drop_hold: impl FnOnce(&Counts<Loom>) -> bool) {
        if drop_hold(&self.counts) {
            // The allocator's lock.
            self.freed.fetch_add(1, Ordering::AcqRel);
        }
    }
    fn freed(&self) -> usize {
        self.freed.load(Ordering::Acquire)
    }
}

/// Whether a device writes what is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Read,
    Write,
}

/// One page of an address space, with its frame 0, and a frame 1 for a copy.
struct Page {
    leaf: ModelLeaf,
    frames: [Frame; 2],
    lock: Mutex<()>,
}

impl Page {
    /// Exclusive and written.
    fn new() -> Arc<Self> {
        let page = Self {
            leaf: ModelLeaf(AtomicU64::new(leading_to(0, WRITE | MARK))),
            frames: [Frame::new(), Frame::new()],
            lock: Mutex::new(()),
        };
        page.frames[0].own();
        Arc::new(page)
    }
    fn entry(&self) -> u64 {
        self.leaf.load()
    }
    fn store_leaf(&self, entry: u64) {
        self.leaf.change(self.leaf.load(), |_| entry);
    }
    fn pins(&self) -> u32 {
        self.frames[0].counts.load().pins
    }

    /// Pin without the lock; which frame.
    fn pin(&self, purpose: Purpose) -> Option<usize> {
        let hold = |entry| {
            let frame = frame_of(entry)?;
            if purpose == Purpose::Write && entry & WRITE == 0 {
                return None;
            }
            self.frames[frame].counts.pin_exclusive().ok()?;
            if purpose == Purpose::Write {
                self.frames[frame].writers.fetch_add(1, Ordering::AcqRel);
            }
            Some(frame)
        };
        let serves = |first: u64, second: u64| {
            let writable = purpose == Purpose::Read || second & WRITE != 0;
            if frame_of(first) == frame_of(second) && writable { Serves::Yes } else { Serves::No }
        };
        match pin(&self.leaf, hold, serves) {
            Ok(frame) => Some(frame),
            Err(NotPinned::Refused) => None,
            Err(NotPinned::Changed(frame)) => {
                self.unpin(frame, purpose);
                None
            }
        }
    }
    fn unpin(&self, frame: usize, purpose: Purpose) {
        let frame = &self.frames[frame];
        if purpose == Purpose::Write {
            frame.writers.fetch_sub(1, Ordering::AcqRel);
        }
        frame.let_go(Counts::unpin);
    }

    /// Whether the child shares the frame; else it has a copy.
    fn fork(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        match self.frames[frame].counts.share() {
            Ok(()) => {
                self.leaf.change(self.entry(), |entry| entry & !WRITE);
                true
            }
            Err(why) => {
                assert_eq!(why, CountError::Pinned);
                false
            }
        }
    }
    /// The child that shared frame 0 is gone.
    fn child_exits(&self) {
        let frame = &self.frames[0];
        frame.let_go(Counts::unmap);
    }
    /// Whether the page has a copy now.
    fn write_fault(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        let reused = self.frames[frame].counts.reuse();
        match reused {
            Ok(()) => {
                self.leaf.change(self.entry(), |entry| entry | WRITE | MARK);
            }
            Err(why) => {
                assert_eq!(why, CountError::Held);
                self.frames[1].own();
                self.store_leaf(leading_to(1, WRITE | MARK));
                self.frames[frame].let_go(Counts::unmap);
            }
        }
        reused.is_err()
    }
    /// Whether there was a page.
    fn unmap(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        self.store_leaf(NONE);
        self.frames[frame].let_go(Counts::unmap);
        true
    }
    /// Whether the frame left the page: its bytes are somewhere else now and its reference is gone.
    fn swap_out(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        if self.frames[frame].counts.vacate().is_err() {
            return false;
        }
        self.store_leaf(NONE);
        // Flushed: here the bytes are copied.
        assert_eq!(self.frames[frame].counts.load().pins, 0, "the bytes move under a pin");
        self.frames[frame].let_go(Counts::unreference);
        true
    }
    /// Whether the page counts as not written.
    fn clear_refs(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let entry = self.entry();
        let Some(frame) = frame_of(entry) else { return false };
        let is_written = || self.frames[frame].writers.load(Ordering::Acquire) != 0;
        let undo = |entry, was| entry | was & (WRITE | MARK);
        forget_written(&self.leaf, entry, |entry| entry & !(WRITE | MARK), undo, is_written).is_some()
    }
}

/// Try every order of `owner` beside a pin; `judge` is told which frame is pinned.
fn beside_a_pin<R: 'static>(
    purpose: Purpose,
    owner: impl Fn(&Page) -> R + Sync + Send + Copy + 'static,
    judge: impl Fn(&Page, Option<usize>, R) + Sync + Send + 'static,
) {
    loom::model(move || {
        let page = Page::new();
        let pinner = {
            let page = page.clone();
            thread::spawn(move || page.pin(purpose))
        };
        let result = owner(&page);
        let pinned = pinner.join().unwrap();
        judge(&page, pinned, result);
    });
}

#[test]
fn a_child_shares_the_frame_or_a_device_has_it() {
    for purpose in [Purpose::Read, Purpose::Write] {
        beside_a_pin(purpose, Page::fork, |page, pinned, shared| {
            assert_ne!(pinned.is_some(), shared);
            assert_eq!(page.entry() & WRITE != 0, !shared);
        });
    }
}

#[test]
fn an_unmapped_frame_is_freed_once_and_not_under_a_pin() {
    beside_a_pin(Purpose::Write, Page::unmap, |page, pinned, _| {
        assert_eq!(page.frames[0].freed(), usize::from(pinned.is_none()));
        if let Some(frame) = pinned {
            page.unpin(frame, Purpose::Write);
        }
        assert_eq!(page.frames[0].freed(), 1);
        assert_eq!(page.frames[0].writers.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_frame_that_leaves_its_page_is_not_pinned() {
    for purpose in [Purpose::Read, Purpose::Write] {
        beside_a_pin(purpose, Page::swap_out, |page, pinned, out| {
            assert!(!(pinned.is_some() && out), "swapped under a pin");
            assert_eq!(page.entry() == NONE, out);
            assert_eq!(page.frames[0].freed(), usize::from(out));
        });
    }
}

#[test]
fn what_a_device_may_write_keeps_its_mark() {
    beside_a_pin(Purpose::Write, Page::clear_refs, |page, pinned, _| {
        let kept = page.entry() & (WRITE | MARK) == WRITE | MARK;
        assert!(kept || pinned.is_none(), "a device's stores would go unnoticed");
        assert!(kept || page.pins() == 0);
    });
}

#[test]
fn what_a_device_reads_may_lose_its_mark() {
    beside_a_pin(Purpose::Read, Page::clear_refs, |page, pinned, _| {
        assert_eq!((page.entry() & (WRITE | MARK), pinned), (0, Some(0)));
    });
}

#[test]
fn a_late_pin_of_a_frame_that_is_anothers_now_leaves_it_exact() {
    // Unmapped here, the frame is allocated by another space, which forks.
    let changes_hands = |page: &Page| {
        page.unmap();
        if page.frames[0].freed() == 0 {
            return None;
        }
        page.frames[0].own();
        Some(page.frames[0].counts.share().is_ok())
    };
    beside_a_pin(Purpose::Read, changes_hands, |page, pinned, shared| {
        let now = page.frames[0].counts.load();
        match shared {
            None => assert!(pinned.is_some() || page.frames[0].freed() == 1),
            Some(shared) => {
                assert_eq!(pinned, None, "the page was gone");
                assert_eq!((now.mappings, now.exclusive, now.pins), (1 + u32::from(shared), !shared, 0));
            }
        }
    });
}

#[test]
fn a_store_after_a_fork_and_a_pin_agree_on_one_frame() {
    let fork_and_store = |page: &Page| {
        let shared = page.fork();
        if shared {
            page.child_exits();
        }
        page.write_fault()
    };
    beside_a_pin(Purpose::Write, fork_and_store, |page, pinned, _| {
        // Alone again, the parent keeps its frame; pinned all the while, too.
        assert_eq!(frame_of(page.entry()), Some(0));
        assert!(pinned.is_none() || page.pins() == 1);
        assert_eq!(page.frames[1].freed(), 0);
    });
}

#[test]
fn with_a_child_alive_a_store_copies_unless_the_device_was_first() {
    let fork_and_store = |page: &Page| {
        let shared = page.fork();
        page.write_fault();
        shared
    };
    beside_a_pin(Purpose::Write, fork_and_store, |page, pinned, shared| {
        assert_eq!(frame_of(page.entry()), Some(usize::from(shared)));
        // Whatever is pinned is what the page has.
        assert!(pinned.is_none() || pinned == frame_of(page.entry()));
    });
}

/// Two who hold the lock in turn, in either order, beside a pin.
fn two_beside_a_pin(
    one: fn(&Page) -> bool,
    two: fn(&Page) -> bool,
    judge: impl Fn(&Page, Option<usize>) + Sync + Send + Copy + 'static,
) {
    loom::model(move || {
        let page = Page::new();
        let spawn = |f: fn(&Page) -> bool| {
            let page = page.clone();
            thread::spawn(move || f(&page))
        };
        let (first, second) = (spawn(one), spawn(two));
        let pinned = page.pin(Purpose::Write);
        first.join().unwrap();
        second.join().unwrap();
        judge(&page, pinned);
        if let Some(frame) = pinned {
            page.unpin(frame, Purpose::Write);
        }
        assert_eq!(page.pins(), 0);
    });
}

/// A pin that lives while nothing was unmapped is a pin of what the page has, and of nobody else's.
fn page_and_pin_agree(page: &Page, pinned: Option<usize>) {
    if let Some(frame) = pinned {
        assert_eq!(frame_of(page.entry()), Some(frame));
        assert!(page.frames[frame].counts.load().exclusive);
        assert_eq!(page.entry() & (WRITE | MARK), WRITE | MARK);
    }
}

#[test]
fn fork_and_swap_out_beside_a_pin() {
    two_beside_a_pin(Page::fork, Page::swap_out, page_and_pin_agree);
}

#[test]
fn clearing_and_storing_beside_a_pin() {
    two_beside_a_pin(Page::clear_refs, Page::write_fault, page_and_pin_agree);
}

#[test]
fn clearing_and_swap_out_beside_a_pin() {
    two_beside_a_pin(Page::clear_refs, Page::swap_out, page_and_pin_agree);
}

#[test]
fn fork_and_unmap_beside_a_pin() {
    two_beside_a_pin(
        |page| {
            let shared = page.fork();
            if shared {
                page.child_exits();
            }
            shared
        },
        Page::unmap,
        |page, pinned| {
            assert_eq!(page.entry(), NONE);
            assert_eq!(page.frames[0].freed(), usize::from(pinned.is_none()));
        },
    );
}
