//! Accounts and the frames that they are charged for, against a naive count.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;

use freehold_buddy::{Bill, Buddy, Ledger, Options};
use freehold_frame::{AccountId, FrameSource, Order, OutOfMemory, Owner, Payer, Pressure, Request};
use freehold_machine::Pfn;
use freehold_machine::model::{Config, Model};
use proptest::prelude::*;

/// The charges of accounts, the caller's account, and the limits of accounts.
#[derive(Default)]
struct Book {
    charged: BTreeMap<(Owner, AccountId), u64>,
    asker: AccountId,
    most: u64,
}

thread_local! {
    static BOOK: RefCell<Book> = RefCell::new(Book::default());
}

fn charge(bill: Bill) -> Result<AccountId, OutOfMemory> {
    BOOK.with_borrow_mut(|book| {
        let account = bill.account.unwrap_or(book.asker);
        if account == AccountId::ROOT {
            return Ok(account);
        }
        let charged = book.charged.entry((bill.owner, account)).or_default();
        if bill.pressure == Pressure::Normal && *charged + bill.frames > book.most {
            return Err(OutOfMemory);
        }
        *charged += bill.frames;
        Ok(account)
    })
}

fn uncharge(owner: Owner, frames: u64, account: AccountId) {
    BOOK.with_borrow_mut(|book| {
        let charged = book.charged.get_mut(&(owner, account)).expect("it was charged");
        *charged = charged.checked_sub(frames).expect("no more is given back than was charged");
    });
}

fn account(number: u16) -> AccountId {
    AccountId::new(number).unwrap()
}

fn machine(most: u64) -> &'static Buddy<Model> {
    BOOK.set(Book { most, ..Book::default() });
    let ledger = Some(Ledger { charge, uncharge });
    let config = Config { frames: 4096, ..Config::default() };
    common::model(config, &[], Options { ledger, ..Options::default() })
}

fn charged() -> BTreeMap<(Owner, AccountId), u64> {
    BOOK.with_borrow(|book| book.charged.iter().filter(|(_, n)| **n > 0).map(|(k, n)| (*k, *n)).collect())
}

const FRAME: Request = Request::new(Owner::Anon);

#[test]
fn frames_that_were_handed_out_before_charges_began_cost_nobody() {
    let buddy = machine(u64::MAX);
    BOOK.with_borrow_mut(|book| book.asker = account(3));
    let old = buddy.allocate(FRAME).unwrap();
    buddy.machine().charge_frames();
    let new = buddy.allocate(FRAME).unwrap();
    assert_eq!(charged(), [((Owner::Anon, account(3)), 1)].into());
    buddy.release(old, Order::FRAME);
    assert_eq!(charged().len(), 1);
    buddy.release(new, Order::FRAME);
    assert_eq!(charged(), BTreeMap::new());
}

#[test]
fn what_the_allocator_does_not_have_is_not_charged_and_a_block_that_is_not_given_back_stays_charged() {
    let buddy = machine(u64::MAX);
    buddy.machine().charge_frames();
    BOOK.with_borrow_mut(|book| book.asker = account(1));
    let held: Vec<_> = std::iter::from_fn(|| buddy.allocate(FRAME).ok()).collect();
    let frames = held.len() as u64;
    assert_eq!(charged(), [((Owner::Anon, account(1)), frames)].into(), "the last request is not in it");
    let misuses = buddy.misuses();
    buddy.release(held[0], Order::new(1).unwrap());
    assert_eq!((buddy.misuses() - misuses, charged().values().sum()), (1, frames));
    held.iter().for_each(|&frame| buddy.release(frame, Order::FRAME));
    assert_eq!(charged(), BTreeMap::new());
    common::check(buddy);
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        owner: Owner,
        log2: u32,
        asker: u16,
        payer: u8,
        pressure: Pressure,
    },
    Give(prop::sample::Index),
    /// A page moves from the frame of the first block to that of the second, without a change of
    /// charges.
    Move(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let owner = prop::sample::select(&[Owner::Anon, Owner::PageCache, Owner::PageTable, Owner::Kernel][..]);
    let log2 = prop::sample::select(&[0, 0, 0, 1, 3, 9][..]);
    let pressure = prop::sample::select(&[Pressure::Normal, Pressure::Normal, Pressure::Reserve][..]);
    prop_oneof![
        3 => (owner, log2, 0..4_u16, 0..4_u8, pressure)
            .prop_map(|(owner, log2, asker, payer, pressure)| Step::Take { owner, log2, asker, payer, pressure }),
        3 => any::<prop::sample::Index>().prop_map(Step::Give),
        1 => any::<prop::sample::Index>().prop_map(Step::Move),
    ]
}

/// A block, its order, its owner, and the account that is charged for each of its frames.
type Held = (Pfn, Order, Owner, AccountId);

proptest! {
    #[test]
    fn every_account_is_charged_for_the_frames_that_it_pays_for(
        steps in prop::collection::vec(step(), 1..200),
        most in prop::sample::select(&[8_u64, 600, u64::MAX][..]),
    ) {
        let buddy = machine(most);
        buddy.machine().charge_frames();
        let mut held: Vec<Held> = Vec::new();
        for step in steps {
            match step {
                Step::Take { owner, log2, asker, payer, pressure } => {
                    let asker = account(asker);
                    BOOK.with_borrow_mut(|book| book.asker = asker);
                    let like = held.iter().rfind(|(_, _, owner, _)| owner.is_charged());
                    let (payer, pays) = match (payer, like) {
                        (0, _) => (Payer::Nobody, AccountId::ROOT),
                        (1, Some(&(frame, _, _, account))) => (Payer::SameAs(frame), account),
                        _ => (Payer::Asker, asker),
                    };
                    let pays = if owner.is_charged() { pays } else { AccountId::ROOT };
                    let order = Order::new(log2).unwrap();
                    let request = Request { pressure, ..Request::new(owner).order(order) };
                    let block = match payer {
                        Payer::Asker => buddy.allocate(request),
                        payer => buddy.allocate_for(payer, request),
                    };
                    if let Ok(block) = block {
                        held.push((block, order, owner, pays));
                    }
                }
                Step::Give(index) if !held.is_empty() => {
                    let (block, order, ..) = held.swap_remove(index.index(held.len()));
                    buddy.release(block, order);
                }
                Step::Move(index) if !held.is_empty() => {
                    let from = index.index(held.len());
                    let (old, order, owner, pays) = held[from];
                    let request = Request::new(owner).order(order);
                    if owner.is_charged() && let Ok(new) = buddy.allocate_for(Payer::Nobody, request) {
                        (0..order.frames()).for_each(|n| buddy.table().move_charge(old.offset(n), new.offset(n)));
                        held[from] = (new, order, owner, pays);
                        buddy.release(old, order);
                    }
                }
                Step::Give(_) | Step::Move(_) => {}
            }
            let mut expected = BTreeMap::new();
            for &(_, order, owner, pays) in held.iter().filter(|held| held.3 != AccountId::ROOT) {
                *expected.entry((owner, pays)).or_insert(0) += order.frames();
            }
            prop_assert_eq!(charged(), expected);
        }
        held.drain(..).for_each(|(block, order, ..)| buddy.release(block, order));
        prop_assert_eq!(charged(), BTreeMap::new());
        common::check(buddy);
    }
}
