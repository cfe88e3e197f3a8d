//! A model of the lease protocol in many orders: an open, concurrently with the request for a
//! lease. The model checks that the open breaks the lease, or the lease is refused.

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

/// Order of one side's two steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// Announces itself, then checks the other side.
    ShowThenLook,
    /// Wrong: checks the other side first.
    LookThenShow,
}

/// One file.
#[derive(Default)]
struct LeasedFile {
    /// Descriptions other than the holder's.
    users: AtomicUsize,
    /// Leases.
    count: AtomicUsize,
    is_broken: AtomicBool,
    is_given: AtomicBool,
}

impl LeasedFile {
    /// `names::open_place` and `before_open`.
    fn open(&self, steps: Steps) {
        let show = || self.users.store(1, Ordering::SeqCst);
        let look = || self.is_broken.store(self.count.load(Ordering::SeqCst) > 0, Ordering::SeqCst);
        in_order(steps, show, look);
    }

    /// `set`, whose first check of users is an optimisation.
    fn lease(&self, steps: Steps) {
        let show = || self.count.store(1, Ordering::SeqCst);
        let look = || self.is_given.store(self.users.load(Ordering::SeqCst) == 0, Ordering::SeqCst);
        in_order(steps, show, look);
    }
}

fn in_order(steps: Steps, show: impl FnOnce(), look: impl FnOnce()) {
    match steps {
        Steps::ShowThenLook => {
            show();
            look();
        }
        Steps::LookThenShow => {
            look();
            show();
        }
    }
}

fn meet(open: Steps, lease: Steps) {
    let file = Arc::new(LeasedFile::default());
    let opener = file.clone();
    let other = thread::spawn(move || opener.open(open));
    file.lease(lease);
    other.join().unwrap();
    let (is_broken, is_given) = (file.is_broken.load(Ordering::SeqCst), file.is_given.load(Ordering::SeqCst));
    assert!(is_broken || !is_given, "the lease was given and the open did not see it");
}

#[test]
fn an_open_breaks_the_lease_or_the_lease_is_refused() {
    shuttle::check_random(|| meet(Steps::ShowThenLook, Steps::ShowThenLook), 2000);
}

#[test]
#[should_panic(expected = "the lease was given")]
fn an_open_that_looks_before_it_counts_is_caught() {
    shuttle::check_random(|| meet(Steps::LookThenShow, Steps::ShowThenLook), 2000);
}

#[test]
#[should_panic(expected = "the lease was given")]
fn a_lease_that_looks_before_it_is_entered_is_caught() {
    shuttle::check_random(|| meet(Steps::ShowThenLook, Steps::LookThenShow), 2000);
}
