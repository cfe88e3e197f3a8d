//! Every interleaving of a lock-free pin with operations of the owner on the page: fork, a store,
//! unmapping, swap-out, clearing of marks.
#![allow(clippy::unwrap_used)]

mod checker;

use std::sync::atomic::Ordering;

use checker::page::{MARK, NONE, Page, Purpose, WRITE, frame_of};
use loom::thread;

/// Tries every order of `owner` and a concurrent pin; `judge` gets the pinned frame.
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
    // After the unmapping, another space allocates the frame, and forks.
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
                assert_eq!((now.mappings, now.is_exclusive(), now.pins), (1 + u32::from(shared), !shared, 0));
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
        page.stores(2)
    };
    beside_a_pin(Purpose::Write, fork_and_store, |page, pinned, _| {
        // When the parent is alone again, it keeps its frame, also if the frame was pinned all the
        // while.
        assert_eq!(frame_of(page.entry()), Some(0));
        assert!(pinned.is_none() || page.pins() == 1);
        assert_eq!(page.frames[1].freed(), 0);
    });
}

#[test]
fn with_a_child_alive_a_store_copies_unless_the_device_was_first() {
    let fork_and_store = |page: &Page| {
        let shared = page.fork();
        page.stores(2);
        shared
    };
    beside_a_pin(Purpose::Write, fork_and_store, |page, pinned, shared| {
        assert_eq!(frame_of(page.entry()), Some(usize::from(shared)));
        // The pinned frame is the page's frame.
        assert!(pinned.is_none() || pinned == frame_of(page.entry()));
    });
}

/// Step of a page's owner under its space's lock.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Fork,
    Store,
    Unmap,
    SwapOut,
    ClearRefs,
}

const DEEDS: [Deed; 5] = [Deed::Fork, Deed::Store, Deed::Unmap, Deed::SwapOut, Deed::ClearRefs];

impl Deed {
    fn is_done_to(self, page: &Page) {
        match self {
            Self::Fork => drop(page.fork()),
            Self::Store => drop(page.stores(2)),
            Self::Unmap => drop(page.unmap()),
            Self::SwapOut => drop(page.swap_out()),
            Self::ClearRefs => drop(page.clear_refs()),
        }
    }
}

/// Every pair of steps, by threads that take the lock in turn, in either order, with a concurrent
/// pin.
#[test]
fn whatever_two_threads_do_beside_a_pin_it_is_a_pin_of_what_the_page_has() {
    for (first, one) in DEEDS.into_iter().enumerate() {
        for two in DEEDS.into_iter().skip(first) {
            for purpose in [Purpose::Read, Purpose::Write] {
                loom::model(move || two_beside_a_pin(one, two, purpose));
            }
        }
    }
}

fn two_beside_a_pin(one: Deed, two: Deed, purpose: Purpose) {
    let page = Page::new();
    let spawn = |deed: Deed| {
        let page = page.clone();
        thread::spawn(move || deed.is_done_to(&page))
    };
    let threads = [spawn(one), spawn(two)];
    let pinned = page.pin(purpose);
    threads.into_iter().for_each(|thread| thread.join().unwrap());

    let why = format!("{one:?} and {two:?} beside a pin to {purpose:?}");
    if let Some(frame) = pinned {
        let counts = page.frames[frame].counts.load();
        assert!(
            counts.is_exclusive() && counts.pins == 1 && page.frames[frame].freed() == 0,
            "{why}: {counts:?}"
        );
        let entry = page.entry();
        // The pin may outlive its page. A page that is still mapped has the pinned frame, and a
        // page that a device writes counts as written.
        assert!(entry == NONE || frame_of(entry) == Some(frame), "{why}: {entry:#x}");
        assert!(entry != NONE || [one, two].iter().any(|deed| matches!(deed, Deed::Unmap)), "{why}");
        let kept = entry & (WRITE | MARK) == WRITE | MARK;
        assert!(entry == NONE || kept || purpose == Purpose::Read, "{why}: {entry:#x}");
    }
    page.shows(2, pinned);
    page.children_see(&[2]);
    if let Some(frame) = pinned {
        page.unpin(frame, purpose);
    }
    page.ends();
    page.is_balanced();
}

/// A parent's step and its child's, each under its own space's lock, while a pin of the parent's
/// page is taken.
#[test]
fn whatever_parent_and_child_do_neither_sees_what_is_the_others() {
    for parents in DEEDS {
        for childs in DEEDS {
            loom::model(move || parent_and_child(parents, childs));
        }
    }
}

fn parent_and_child(parents: Deed, childs: Deed) {
    let [parent, child] = Page::after_a_fork();
    let first = {
        let parent = parent.clone();
        thread::spawn(move || parents.is_done_to(&parent))
    };
    let second = {
        let child = child.clone();
        thread::spawn(move || match childs {
            Deed::Store => drop(child.stores(3)),
            deed => deed.is_done_to(&child),
        })
    };
    let pinned = parent.pin(Purpose::Write);
    first.join().unwrap();
    second.join().unwrap();

    if let Some(frame) = pinned {
        assert_eq!(frame_of(parent.entry()), Some(frame), "{parents:?} beside the child's {childs:?}");
        assert!(parent.frames[frame].counts.load().is_exclusive());
    }
    parent.shows(2, pinned);
    child.shows(3, None);
    parent.children_see(&[]);
    child.children_see(&[]);
    if let Some(frame) = pinned {
        parent.unpin(frame, Purpose::Write);
    }
    parent.ends();
    child.ends();
    parent.is_balanced();
}
