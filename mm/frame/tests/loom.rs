//! Every interleaving of pin, share, unmap and reuse on one frame's counts, and of a block's two
//! forms.
#![allow(clippy::unwrap_used)]

mod checker;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use checker::{Loom, unheld};
use freehold_frame::{Belongs, CountError, Counts, LastHold, NotWhole};
use loom::sync::atomic::AtomicUsize;
use loom::thread;

/// An anonymous frame with one mapping, exclusive.
fn mapped() -> Arc<Counts<Loom>> {
    let counts = unheld();
    counts.start(Belongs::Exclusive);
    counts.reference_to_mapping().unwrap();
    Arc::new(counts)
}

#[test]
fn a_pin_and_a_share_never_both_succeed() {
    loom::model(|| {
        let counts = mapped();
        let pinner = {
            let counts = counts.clone();
            thread::spawn(move || counts.pin_exclusive())
        };
        let shared = counts.share();
        let pinned = pinner.join().unwrap();
        let now = counts.load();
        match (pinned, shared) {
            (Ok(()), Err(CountError::Pinned)) => {
                assert!(now.is_exclusive() && now.pins == 1 && now.mappings == 1)
            }
            (Err(CountError::NotExclusive), Ok(())) => {
                assert!(!now.is_exclusive() && now.pins == 0 && now.mappings == 2)
            }
            other => panic!("{other:?} leaves {now:?}"),
        }
    });
}

#[test]
fn the_last_holder_and_only_the_last_frees_and_sees_what_the_others_did() {
    loom::model(|| {
        let counts = mapped();
        counts.pin_exclusive().unwrap();
        counts.reference().unwrap();
        let freed = Arc::new(AtomicUsize::new(0));
        // A mark of each holder's work on the frame before it dropped its hold. The accesses are
        // relaxed, so that only the counts order them.
        let done: Arc<[AtomicUsize; 3]> =
            Arc::new([AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)]);
        let let_go =
            move |who: usize, counts: &Counts<Loom>, done: &[AtomicUsize; 3], freed: &AtomicUsize| {
                done[who].store(1, Ordering::Relaxed);
                let last = match who {
                    0 => counts.unmap(),
                    1 => counts.unpin(),
                    _ => counts.unreference(),
                };
                if last {
                    freed.fetch_add(1, Ordering::Relaxed);
                    assert!(
                        done.iter().all(|d| d.load(Ordering::Relaxed) == 1),
                        "freed before a holder was done"
                    );
                }
            };
        let threads: Vec<_> = (1..3)
            .map(|who| {
                let (counts, done, freed) = (counts.clone(), done.clone(), freed.clone());
                thread::spawn(move || let_go(who, &counts, &done, &freed))
            })
            .collect();
        let_go(0, &counts, &done, &freed);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(freed.load(Ordering::Relaxed), 1);
        assert!(counts.load().is_none() && !counts.load().is_exclusive());
    });
}

#[test]
fn reuse_never_takes_a_frame_that_another_space_still_maps() {
    loom::model(|| {
        let counts = mapped();
        counts.share().unwrap();
        let other = {
            let counts = counts.clone();
            thread::spawn(move || counts.unmap())
        };
        let reused = counts.reuse();
        assert!(!other.join().unwrap(), "two mappings: the first to go is not the last");
        let now = counts.load();
        assert_eq!(now.is_exclusive(), reused.is_ok());
        assert_eq!(now.mappings, 1);
        assert_eq!(counts.reuse(), Ok(()), "alone at last");
    });
}

#[test]
fn a_reused_frame_is_pinned_or_shared_but_not_both() {
    loom::model(|| {
        let counts = mapped();
        counts.share().unwrap();
        assert!(!counts.unmap());
        let pinner = {
            let counts = counts.clone();
            thread::spawn(move || counts.reuse().and_then(|()| counts.pin_exclusive()))
        };
        let shared = counts.share();
        let pinned = pinner.join().unwrap();
        let now = counts.load();
        assert!(now.pins == 0 || now.is_exclusive(), "pinned and shared: {pinned:?} {shared:?} {now:?}");
    });
}

/// A whole block of two frames with two large leaves: two frames represent 512.
fn shared_block() -> Arc<[Counts<Loom>; 2]> {
    let block = [(); 2].map(|()| unheld());
    block[0].start_whole();
    block[0].share_whole().unwrap();
    Arc::new(block)
}

/// Drops one large leaf, in any form of the block; returns the number of frames that were freed.
fn let_go_of_leaf(block: &[Counts<Loom>; 2]) -> usize {
    match block[0].unmap_whole() {
        Ok(LastHold::Gone) => 2,
        Ok(LastHold::Others) => 0,
        Err(_) => block.iter().map(|counts| usize::from(counts.unmap())).sum(),
    }
}

#[test]
fn a_block_shattered_while_a_partner_lets_go_loses_and_frees_every_frame_once() {
    loom::model(|| {
        let block = shared_block();
        let partner = {
            let block = block.clone();
            thread::spawn(move || let_go_of_leaf(&block))
        };
        block[0].shatter(block[1..].iter()).unwrap();
        let mut freed = usize::from(block[1].unmap());
        freed += usize::from(block[0].unmap());
        assert_eq!(freed + partner.join().unwrap(), 2);
        assert!(block.iter().all(|counts| counts.load().is_none()));
    });
}

#[test]
fn a_block_shattered_while_a_partner_forks_counts_three_on_every_frame() {
    loom::model(|| {
        let block = shared_block();
        let partner = {
            let block = block.clone();
            thread::spawn(move || match block[0].share_whole() {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, NotWhole::Pieces);
                    block.iter().for_each(|counts| counts.share().unwrap());
                }
            })
        };
        block[0].shatter(block[1..].iter()).unwrap();
        partner.join().unwrap();
        assert!(block.iter().all(|counts| {
            let now = counts.load();
            now.mappings == 3 && !now.is_exclusive() && !now.whole
        }));
    });
}

#[test]
fn two_who_shatter_a_block_at_once_do_it_once() {
    loom::model(|| {
        let block = shared_block();
        let other = {
            let block = block.clone();
            thread::spawn(move || {
                let done = block[0].shatter(block[1..].iter()).is_ok();
                // The block is in pieces, so now a single frame can be dropped.
                assert!(!block[1].unmap());
                done
            })
        };
        let mine = block[0].shatter(block[1..].iter()).is_ok();
        assert!(mine != other.join().unwrap());
        assert_eq!((block[0].load().mappings, block[1].load().mappings), (2, 1));
    });
}

#[test]
fn a_block_is_not_gathered_under_a_pin_and_no_pin_is_had_of_a_gathered_frame() {
    loom::model(|| {
        let block = shared_block();
        block[0].shatter(block[1..].iter()).unwrap();
        for counts in block.iter() {
            assert!(!counts.unmap());
            counts.reuse().unwrap();
        }
        let pinner = {
            let block = block.clone();
            thread::spawn(move || block[1].pin_exclusive())
        };
        let gathered = block[0].gather(block[1..].iter());
        let pinned = pinner.join().unwrap();
        let (head, tail) = (block[0].load(), block[1].load());
        match (gathered, pinned) {
            (Ok(()), Err(CountError::NotExclusive)) => {
                assert!(head.whole && head.is_exclusive() && head.mappings == 1 && tail.is_none());
            }
            (Err(NotWhole::Held), Ok(())) => {
                assert!(!head.whole && head.is_exclusive() && head.mappings == 1);
                assert!(tail.is_exclusive() && tail.mappings == 1 && tail.pins == 1);
            }
            // Too late for the old form, too early for the new one: no pin was taken, and nothing
            // is lost.
            (Err(NotWhole::Held), Err(CountError::NotExclusive)) => {
                assert!(head.is_exclusive() && tail.is_exclusive())
            }
            other => panic!("{other:?} leaves {head:?} {tail:?}"),
        }
    });
}

#[test]
fn a_block_reused_by_its_last_leaf_is_shared_by_nobody() {
    loom::model(|| {
        let block = shared_block();
        let partner = {
            let block = block.clone();
            thread::spawn(move || let_go_of_leaf(&block))
        };
        let reused = block[0].reuse_whole();
        assert_eq!(partner.join().unwrap(), 0, "two leaves: the first to go is not the last");
        let now = block[0].load();
        assert_eq!((now.is_exclusive(), now.mappings), (reused.is_ok(), 1));
    });
}

#[test]
fn a_pin_that_meets_its_frame_as_a_piece_of_anothers_block_sees_that_its_leaf_is_gone() {
    loom::model(|| {
        // Frame 1 was a page of a space that has unmapped it. By now it is in another space's
        // block.
        let block = Arc::new([unheld(), unheld()]);
        let leaf = Arc::new(AtomicUsize::new(1));
        let pinner = {
            let (block, leaf) = (block.clone(), leaf.clone());
            thread::spawn(move || {
                if leaf.load(Ordering::Acquire) == 1 && block[1].pin_exclusive().is_ok() {
                    loom::sync::atomic::fence(Ordering::SeqCst);
                    let again = leaf.load(Ordering::Acquire);
                    assert!(!block[1].unpin());
                    assert_eq!(again, 0, "it pinned what is not its page");
                }
            })
        };
        leaf.swap(0, Ordering::AcqRel);
        block[0].start_whole();
        block[0].shatter(block[1..].iter()).unwrap();
        pinner.join().unwrap();
    });
}

/// A merged frame with one mapping.
fn merged() -> Arc<Counts<Loom>> {
    let counts = mapped();
    counts.vacate().unwrap();
    counts.merge().unwrap();
    counts.map_merged().unwrap();
    assert!(!counts.unreference());
    counts
}

#[test]
fn a_merged_frame_is_mapped_once_more_or_becomes_one_spaces_own() {
    loom::model(|| {
        let counts = merged();
        // The page is swapped out, and comes back.
        counts.vacate().unwrap();
        let scanner = {
            let counts = counts.clone();
            thread::spawn(move || {
                let held = counts.reference_merged();
                let mapped = held.and_then(|()| counts.map_merged());
                assert!(held.is_err() || !counts.unreference());
                mapped.is_ok()
            })
        };
        let own = counts.occupy(Belongs::Exclusive).is_ok();
        if !own {
            counts.occupy(Belongs::Shared).unwrap();
        }
        let mapped = scanner.join().unwrap();
        let now = counts.load();
        assert!(own != mapped || !own, "stores of one space reach another: {now:?}");
        assert_eq!((now.is_exclusive(), counts.is_merged()), (own, !own));
        assert_eq!((now.mappings, now.references), (1 + u32::from(mapped), 0));
    });
}

#[test]
fn a_frame_is_merged_or_another_space_stores_to_it_but_not_both() {
    loom::model(|| {
        // A fork shares the frame. The scan has removed one space's leaf.
        let counts = mapped();
        counts.share().unwrap();
        assert_eq!(counts.vacate(), Ok(Belongs::Shared));
        let other = {
            let counts = counts.clone();
            thread::spawn(move || counts.reuse_beside(1).is_ok())
        };
        let merged = counts.merge().is_ok();
        let stores = other.join().unwrap();
        assert!(merged != stores, "merged: {merged}, stores: {stores}");
        assert_eq!((counts.is_merged(), counts.load().is_exclusive()), (merged, stores));
    });
}

#[test]
fn a_merged_frame_is_never_reused_and_freed_once() {
    loom::model(|| {
        let counts = merged();
        let scanner = {
            let counts = counts.clone();
            thread::spawn(move || counts.reference_merged().is_ok() && counts.unreference())
        };
        assert_eq!(counts.reuse(), Err(CountError::Held));
        assert_eq!(counts.pin_exclusive(), Err(CountError::NotExclusive));
        let last = counts.unmap();
        assert!(last != scanner.join().unwrap(), "freed once");
        assert!(counts.load().is_none() && !counts.is_merged());
        assert_eq!(counts.reference_merged(), Err(CountError::NotMerged));
    });
}
