//! Every interleaving of pin, share, unmap and reuse on one frame's counts.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use freehold_frame::{CountError, Counts, Exclusive, Word};
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::thread;

struct Loom(AtomicU64);

impl Word for Loom {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange_weak(current, new, success, failure)
    }
}

/// An anonymous frame with one mapping, exclusive.
fn mapped() -> Arc<Counts<Loom>> {
    let counts = Counts::with_word(Loom(AtomicU64::new(0)));
    counts.start(Exclusive::Yes);
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
            (Ok(()), Err(CountError::Pinned)) => assert!(now.exclusive && now.pins == 1 && now.mappings == 1),
            (Err(CountError::NotExclusive), Ok(())) => {
                assert!(!now.exclusive && now.pins == 0 && now.mappings == 2)
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
        // What each holder did to the frame before it let go; plain enough that only the counts order it.
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
        assert!(counts.load().is_none() && !counts.load().exclusive);
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
        assert_eq!(now.exclusive, reused.is_ok());
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
        assert!(now.pins == 0 || now.exclusive, "pinned and shared: {pinned:?} {shared:?} {now:?}");
    });
}
