//! Every interleaving of charges with an account that is closed and used again, and of broken
//! variants.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use freehold_charge::{Balance, BalanceError, ObjectBytes, charge_upwards, uncharge_upwards};
use freehold_frame::AtomicWord;
use loom::sync::atomic::AtomicU64;
use loom::thread;

struct Loom(AtomicU64);

impl AtomicWord for Loom {
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
        self.0.compare_exchange(current, new, success, failure)
    }
    fn relax(&self) {
        thread::yield_now();
    }
}

/// An account, the one above it at first, and another one.
struct Tree {
    balances: [Balance<Loom>; 3],
    /// The account above the first.
    parent: AtomicU64,
}

const NONE: u64 = u64::MAX;
/// The limit of the account above.
const LIMIT: u64 = 2;

impl Tree {
    fn new() -> Arc<Self> {
        let balances = [0; 3].map(|_| Balance::with_word(Loom(AtomicU64::new(0))));
        assert!(balances.iter().all(Balance::open));
        Arc::new(Self { balances, parent: AtomicU64::new(1) })
    }
    /// The account and the one above it, which is looked up when the iterator reaches it.
    fn levels(&self) -> impl Iterator<Item = (&Balance<Loom>, u64)> + Clone {
        (0..2).map(|level| match level {
            0 => (&self.balances[0], NONE),
            _ => (&self.balances[self.parent.load(Ordering::Relaxed) as usize], LIMIT),
        })
    }
    fn charge(&self) -> Result<(), (usize, BalanceError)> {
        charge_upwards(self.levels(), 1, |_, _| ())
    }
    fn uncharge(&self) {
        uncharge_upwards(self.levels().map(|(balance, _)| balance), 1);
    }
    fn charged(&self) -> [u64; 3] {
        [0, 1, 2].map(|n| self.balances[n].charged())
    }
}

/// One thread charges and uncharges. Another closes the account and uses it again, below the other
/// account, as soon as `retire` allows it.
fn close_and_use_again(retire: fn(&Balance<Loom>) -> bool) {
    loom::model(move || {
        let tree = Tree::new();
        let other = {
            let tree = tree.clone();
            thread::spawn(move || {
                if tree.charge().is_ok() {
                    tree.uncharge();
                }
            })
        };
        tree.balances[0].close();
        if retire(&tree.balances[0]) {
            tree.parent.store(2, Ordering::Relaxed);
            tree.balances[0].open();
        }
        other.join().unwrap();
        assert_eq!(tree.charged(), [0; 3], "what was charged was given back where it was charged");
    });
}

#[test]
fn an_account_is_used_again_when_nothing_is_charged_to_it() {
    close_and_use_again(Balance::retire);
}

/// As [`Balance::retire`], in two steps.
fn look_then_retire(balance: &Balance<Loom>) -> bool {
    let may = balance.charged() == 0;
    thread::yield_now();
    may
}

#[test]
#[should_panic(expected = "more is given back than was charged")]
fn to_look_first_and_take_it_then_is_too_late() {
    close_and_use_again(look_then_retire);
}

/// Two threads charge at the same time; the limit has no room for both.
fn compete(charge: fn(&Tree) -> bool) {
    loom::model(move || {
        let tree = Tree::new();
        assert!(charge(&tree));
        let other = {
            let tree = tree.clone();
            thread::spawn(move || charge(&tree))
        };
        let mine = charge(&tree);
        let theirs = other.join().unwrap();
        let all = 1 + u64::from(mine) + u64::from(theirs);
        assert_eq!(tree.charged(), [all, all, 0], "who was refused has charged nothing");
        assert_eq!(all, LIMIT, "there is room for one of them");
    });
}

#[test]
fn of_two_charges_one_has_room() {
    compete(|tree| tree.charge().is_ok());
}

#[test]
#[should_panic(expected = "who was refused has charged nothing")]
fn a_refusal_above_that_leaves_what_is_below_charged_is_found() {
    compete(|tree| tree.levels().all(|(balance, limit)| balance.charge(1, limit).is_ok()));
}

/// An account with objects.
struct WithObjects {
    balance: Balance<Loom>,
    objects: ObjectBytes<Loom>,
}

impl WithObjects {
    fn new() -> Arc<Self> {
        let [balance, objects] = [0; 2].map(|_| Loom(AtomicU64::new(0)));
        let (balance, objects) = (Balance::with_word(balance), ObjectBytes::with_word(objects));
        assert!(balance.open());
        Arc::new(Self { balance, objects })
    }
    /// Charges an object; returns whether that succeeded.
    fn make(&self, bytes: u64) -> bool {
        let charge = |frames| self.balance.charge(frames, LIMIT).map(|_| ());
        self.objects
            .add(bytes, BalanceError::Over, charge, |(), frames| self.balance.uncharge(frames))
            .is_ok()
    }
    fn end(&self, bytes: u64) {
        let frames = self.objects.take(bytes);
        if frames > 0 {
            self.balance.uncharge(frames);
        }
    }
}

/// Bytes of which two objects need more than a frame.
const OBJECT: u64 = 2500;

/// Two threads make and free objects. The first thread uses `make`.
fn objects_come_and_go(make: fn(&WithObjects, u64) -> bool) {
    let mut model = loom::model::Builder::new();
    // Two words per step: without a bound it takes minutes.
    model.preemption_bound = Some(3);
    model.check(move || {
        let account = WithObjects::new();
        let other = {
            let account = account.clone();
            thread::spawn(move || {
                assert!(account.make(OBJECT), "there is room for two");
                account.end(OBJECT);
            })
        };
        assert!(make(&account, OBJECT), "there is room for two");
        assert!(account.balance.charged() >= 1, "bytes are charged for");
        account.end(OBJECT);
        other.join().unwrap();
        assert_eq!((account.objects.bytes(), account.balance.charged()), (0, 0), "all is given back");
    });
}

#[test]
fn objects_are_charged_by_the_frame_and_all_is_given_back() {
    objects_come_and_go(WithObjects::make);
}

/// As [`ObjectBytes::add`], but broken: if the word has changed, its charge is not undone.
fn make_and_forget(account: &WithObjects, bytes: u64) -> bool {
    let charge = |frames| account.balance.charge(frames, u64::MAX).map(|_| ());
    account.objects.add(bytes, BalanceError::Over, charge, |(), _| ()).is_ok()
}

#[test]
#[should_panic(expected = "all is given back")]
fn a_charge_for_a_word_that_changed_is_given_back() {
    objects_come_and_go(make_and_forget);
}
