//! The tree of accounts against a naive one.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use freehold_charge::{
    AccountEntry, AccountEvent, AccountLimit, Accounts, CHUNK, ChargeError, ChargedKind, FrameCharge,
    OpenError, Resource, Urgency,
};
use freehold_frame::{AccountId, Owner};
use proptest::prelude::*;

fn room() -> Option<&'static [AccountEntry; CHUNK]> {
    Some(Box::leak(Box::new([const { AccountEntry::EMPTY }; CHUNK])))
}

#[derive(Default)]
struct Naive {
    /// For each number: the account above, both limits, whether the account is closed, and the
    /// charges to it alone.
    accounts: BTreeMap<AccountId, (AccountId, [u64; 2], bool, BTreeMap<Owner, u64>)>,
    met: BTreeMap<AccountId, u64>,
}

impl Naive {
    fn upwards(&self, account: AccountId) -> Vec<AccountId> {
        std::iter::successors(Some(account), |account| self.accounts.get(account).map(|found| found.0))
            .take_while(|account| *account != AccountId::ROOT)
            .collect()
    }
    fn charged(&self, account: AccountId) -> u64 {
        let all = self.accounts.iter().filter(|(below, _)| self.upwards(**below).contains(&account));
        all.map(|(_, found)| found.3.values().sum::<u64>()).sum()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open(prop::sample::Index),
    Close(prop::sample::Index),
    Limit(prop::sample::Index, bool, u64),
    Charge(prop::sample::Index, Owner, u64, bool),
    Uncharge(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let owner = prop::sample::select(&[Owner::Anon, Owner::PageCache, Owner::PageTable][..]);
    prop_oneof![
        2 => index().prop_map(Step::Open),
        1 => index().prop_map(Step::Close),
        1 => (index(), any::<bool>(), 0..40_u64).prop_map(|(at, high, n)| Step::Limit(at, high, n)),
        6 => (index(), owner, 1..9_u64, any::<bool>()).prop_map(|(at, owner, n, all)| Step::Charge(at, owner, n, all)),
        4 => index().prop_map(Step::Uncharge),
    ]
}

fn check(accounts: &Accounts, naive: &Naive) -> Result<(), TestCaseError> {
    for (&account, (_, limits, ..)) in &naive.accounts {
        prop_assert_eq!(accounts.charged(account, Resource::Memory), naive.charged(account));
        prop_assert!(accounts.peak(account, Resource::Memory) >= naive.charged(account));
        prop_assert_eq!(
            [AccountLimit::Max, AccountLimit::High].map(|limit| accounts.limit(account, limit)),
            *limits
        );
        let local = naive.met.get(&account).copied().unwrap_or(0);
        prop_assert_eq!(accounts.local_events(account, AccountEvent::Max), local);
        let below = naive.accounts.keys().filter(|below| naive.upwards(**below).contains(&account));
        let met: u64 = below.filter_map(|below| naive.met.get(below)).sum();
        prop_assert!(accounts.events(account, AccountEvent::Max) >= met);
        for (kind, owner) in [
            (ChargedKind::Anon, Owner::Anon),
            (ChargedKind::File, Owner::PageCache),
            (ChargedKind::PageTables, Owner::PageTable),
        ] {
            let below = naive.accounts.iter().filter(|(below, _)| naive.upwards(**below).contains(&account));
            let charged: u64 = below.filter_map(|(_, found)| found.3.get(&owner)).sum();
            prop_assert_eq!(accounts.charged_kinds(account).of(kind), charged);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn accounts_are_charged_with_those_above_them(steps in prop::collection::vec(step(), 1..150)) {
        let accounts = Accounts::new();
        let mut naive = Naive::default();
        let mut charges: Vec<(AccountId, Owner, u64)> = Vec::new();
        for step in steps {
            let at = |index: prop::sample::Index| {
                let known: Vec<_> = [AccountId::ROOT].into_iter().chain(naive.accounts.keys().copied()).collect();
                known[index.index(known.len())]
            };
            match step {
                Step::Open(parent) => {
                    let parent = at(parent);
                    let opened = accounts.open(parent, room);
                    if naive.accounts.get(&parent).is_some_and(|found| found.2) {
                        prop_assert_eq!(opened, Err(OpenError::NoParent));
                    } else {
                        let account = opened.unwrap();
                        if let Some((_, _, closed, charged)) = naive.accounts.get(&account) {
                            prop_assert!(*closed && charged.values().all(|frames| *frames == 0));
                            prop_assert!(naive.accounts.values().all(|found| found.0 != account));
                        }
                        naive.accounts.insert(account, (parent, [u64::MAX; 2], false, BTreeMap::new()));
                        naive.met.remove(&account);
                    }
                }
                Step::Close(account) => {
                    let account = at(account);
                    accounts.close(account);
                    if let Some(found) = naive.accounts.get_mut(&account) {
                        found.2 = true;
                    }
                }
                Step::Limit(account, high, frames) => {
                    let account = at(account);
                    let limit = if high { AccountLimit::High } else { AccountLimit::Max };
                    accounts.set_limit(account, limit, frames);
                    if let Some(found) = naive.accounts.get_mut(&account) {
                        found.1[limit as usize] = frames;
                    }
                }
                Step::Charge(account, owner, frames, exempt) => {
                    let account = at(account);
                    let urgency = if exempt { Urgency::Exempt } else { Urgency::Limited };
                    let limit = |account: &AccountId, limit: AccountLimit| naive.accounts[account].1[limit as usize];
                    let would = |account: &AccountId| naive.charged(*account) + frames;
                    let above = naive.upwards(account);
                    let over = above.iter().find(|account| !exempt && would(account) > limit(account, AccountLimit::Max));
                    let high = above.iter().find(|account| would(account) > limit(account, AccountLimit::High));
                    match over {
                        Some(&over) => {
                            let error = Err(ChargeError { account: over });
                            prop_assert_eq!(accounts.charge(account, owner, frames, urgency), error);
                            *naive.met.entry(over).or_default() += 1;
                        }
                        None => {
                            let charge = FrameCharge { account, above_high: high.copied() };
                            prop_assert_eq!(accounts.charge(account, owner, frames, urgency), Ok(charge));
                            if account != AccountId::ROOT {
                                charges.push((account, owner, frames));
                                *naive.accounts.get_mut(&account).unwrap().3.entry(owner).or_default() += frames;
                            }
                        }
                    }
                }
                Step::Uncharge(index) if !charges.is_empty() => {
                    let (account, owner, frames) = charges.swap_remove(index.index(charges.len()));
                    accounts.uncharge(account, owner, frames);
                    *naive.accounts.get_mut(&account).unwrap().3.get_mut(&owner).unwrap() -= frames;
                }
                Step::Uncharge(_) => {}
            }
            check(&accounts, &naive)?;
        }
    }
}

#[test]
fn a_machine_has_no_more_accounts_than_frames_can_name_and_all_of_them_again_when_they_are_paid() {
    let accounts = Accounts::new();
    let mut all = Vec::new();
    let last = loop {
        match accounts.open(AccountId::ROOT, room) {
            Ok(account) => all.push(account),
            Err(error) => break error,
        }
    };
    assert_eq!((last, all.len()), (OpenError::TooMany, usize::from(AccountId::LAST)));
    all.iter().for_each(|account| accounts.close(*account));
    let owing = all[7];
    assert_eq!(accounts.charge(owing, Owner::Anon, 1, Urgency::Limited).unwrap().account, owing);
    let again: Vec<_> = std::iter::from_fn(|| accounts.open(AccountId::ROOT, room).ok()).collect();
    assert_eq!((again.len(), again.contains(&owing)), (all.len() - 1, false));
    accounts.uncharge(owing, Owner::Anon, 1);
    assert_eq!(accounts.open(AccountId::ROOT, room), Ok(owing));
}

#[test]
fn an_account_that_is_gone_pays_for_nothing() {
    let accounts = Accounts::new();
    let never = AccountId::new(9).unwrap();
    let nobody = Ok(FrameCharge { account: AccountId::ROOT, above_high: None });
    assert_eq!(accounts.charge(never, Owner::Anon, 1, Urgency::Limited), nobody);
    assert_eq!(accounts.open(AccountId::ROOT, || None), Err(OpenError::NoMemory));
    let account = accounts.open(AccountId::ROOT, room).unwrap();
    assert_eq!(accounts.charge(account, Owner::Kernel, 1, Urgency::Limited), nobody, "not of that owner");
    accounts.set_limit(account, AccountLimit::Max, 4);
    let below = accounts.open(account, room).unwrap();
    assert!(accounts.charge(below, Owner::Anon, 5, Urgency::Exempt).is_ok());
    assert!(accounts.exceeded(below, AccountLimit::Max).eq([account]));
    assert!(accounts.is_below(below, account) && !accounts.is_below(account, below));
}

#[test]
fn objects_are_charged_as_the_frames_that_they_fill() {
    let accounts = Accounts::new();
    let above = accounts.open(AccountId::ROOT, room).unwrap();
    let account = accounts.open(above, room).unwrap();
    accounts.set_limit(above, AccountLimit::Max, 2);
    let charge = || accounts.charge_object(account, 1000, Urgency::Limited);
    let charged = || accounts.charged(above, Resource::Memory);
    let mut made = 0;
    while charge().is_ok() {
        made += 1;
        assert_eq!(charged(), (made * 1000_u64).div_ceil(4096));
    }
    assert_eq!((made, charge()), (8, Err(ChargeError { account: above })));
    assert_eq!(accounts.local_events(above, AccountEvent::Max), 2);
    let exempt = accounts.charge_object(account, 1000, Urgency::Exempt).unwrap();
    assert_eq!((exempt.account, charged()), (account, 3), "what cannot be refused passes the limit");
    assert_eq!(accounts.charged_kinds(above).of(ChargedKind::Objects), 3);
    accounts.close(account);
    for left in (0..=made).rev() {
        accounts.uncharge_object(account, 1000);
        let needed = (left * 1000).div_ceil(4096);
        let most = if left == 0 { 0 } else { needed + 1 };
        assert!((needed..=most).contains(&charged()), "{left} objects: {} frames", charged());
    }
    assert_eq!(accounts.charged_kinds(above).of(ChargedKind::Objects), 0);
    let nobodys = accounts.charge_object(AccountId::ROOT, 1000, Urgency::Limited).unwrap();
    assert_eq!(nobodys.account, AccountId::ROOT);
}
