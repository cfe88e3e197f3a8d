//! Pages that are evicted because of an account's limit, and slots that are charged to it.

use freehold_charge::{AccountEvent, AccountLimit, Below, Resource};
use freehold_frame::{AccountId, FrameSource};
use freehold_paging::model::ASKER;

use super::super::world::shared as shared_backing;
use super::*;

#[test]
fn only_pages_that_the_account_pays_for_go() {
    let (s, p, a) = with_filled(64, 8);
    let other = AccountId::new(3).unwrap();
    let wish = |account| {
        let frames = FrameChoice::charged_to(Below::new(s.world.accounts, account));
        EvictWish { frames, ..wish(8, Age::Ignore) }
    };
    assert_eq!(p.run(|| s.world.commons.evict(&wish(other))).freed, 0);
    assert_eq!(p.run(|| s.world.commons.evict(&wish(ASKER))).freed, 8);
    assert_filled(&p, a, 8, 1);
    drop(p);
    s.end();
}

#[test]
fn a_page_that_comes_back_is_charged_to_the_account_that_it_left_whoever_brings_it_back() {
    let (s, p, a) = with_filled(64, 8);
    let other = AccountId::new(3).unwrap();
    let account = |addr: u64| s.world.frames.table().account(p.frame(addr));
    let cache = shared::file(&s, 8, 1);
    assert_eq!(s.evict(&p, 8, Age::Ignore).freed, 8);
    s.evict_shared(&p);
    assert_eq!(cache.pages(), 0);
    s.world.frames.set_asker(other);
    // With neighbours that are read ahead, and for the collapse of a range.
    assert_filled(&p, a, 8, 1);
    assert!((0..8).all(|n| account(a + n * PAGE) == ASKER));
    let at = p.map(AreaPlace::Anywhere, 8, RW, shared_backing(&cache)).unwrap();
    (0..8).for_each(|n| assert!(p.load(at + n * PAGE).is_ok()));
    assert!((0..8).all(|n| account(at + n * PAGE) == ASKER));
    // New pages are charged to the running task, unless the space has another payer.
    let new = p.anonymous(3);
    p.store(new, 1).unwrap();
    p.space().pay_by(Some(ASKER));
    p.store(new + PAGE, 1).unwrap();
    p.space().pay_by(None);
    p.store(new + 2 * PAGE, 1).unwrap();
    assert_eq!([0, 1, 2].map(|n| account(new + n * PAGE)), [other, ASKER, other]);
    s.world.frames.set_asker(ASKER);
    drop((p, cache));
    s.end();
}

#[test]
fn a_page_whose_account_may_have_no_more_slots_stays() {
    let (s, p, a) = with_filled(64, 8);
    let accounts = s.world.accounts;
    accounts.set_limit(ASKER, AccountLimit::SwapMax, 3);
    assert_eq!(s.evict(&p, 8, Age::Ignore).freed, 3);
    assert_eq!((accounts.charged(ASKER, Resource::Swap), accounts.has_slot_room(ASKER)), (3, false));
    assert!(accounts.events(ASKER, AccountEvent::SwapMax) >= 1);
    assert_eq!((p.usage().rss_anon, p.usage().swapped, s.used()), (5, 3, 3));
    s.check();
    assert_filled(&p, a, 8, 1);
    assert_eq!(s.used(), accounts.charged(ASKER, Resource::Swap), "slots that are left are paid for");
    accounts.set_limit(ASKER, AccountLimit::SwapMax, 5);
    assert_eq!(s.page_out(&p, a, 8).freed, 5);
    let child = p.fork(1);
    drop(p);
    assert_eq!((s.used(), accounts.charged(ASKER, Resource::Swap)), (5, 5), "the child has them now");
    drop(child);
    assert_eq!(accounts.charged(ASKER, Resource::Swap), 0);
    assert_eq!(accounts.peak(ASKER, Resource::Swap), 5);
    s.end();
}
