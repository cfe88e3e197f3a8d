//! Accounts of groups of processes: who is charged for frames, and how an account that has all it
//! may gets room.
//!
//! The page allocator charges a frame that exists for a process' sake to the account of the running
//! thread ([`freehold_charge`]). A task of the kernel pays for nothing. Accounts are those of
//! control groups ([`crate::cgroup::memory`]). Until the first is opened nothing is charged, and
//! costs a no-op ([`StaticKey::FRAME_CHARGES`]); what was handed out before stays free of charge.
//!
//! **Met limits.** A charge that would pass an account's `max` fails as a request does that finds
//! no frame; the thread remembers which account refused. Where it looks for memory next
//! ([`super::find_more`]), it takes frames back that are charged to this account or below, and
//! where there are none the account's own [`Killer`] chooses a process. Who ends, and who is
//! finding memory for others, passes all limits.
//!
//! A charge that passes `high` succeeds; before the thread is back in user mode it takes back what
//! is too much, and sleeps where that is more than it can ([`attend`]).

use core::sync::atomic::Ordering;

use freehold_buddy::{Bill, Ledger};
use freehold_charge::{AccountEvent, AccountLimit, Below, Resource, Urgency};
use freehold_frame::{AccountId, OutOfMemory, Owner, Pressure};

use super::hotplug::GrowthOutcome;
use super::oom;
use super::reclaim;
use crate::cgroup::memory::{Charging, accounts, tell_of};
use crate::hw::static_keys::{KeyState, StaticKey};
use crate::sched::{self, thread};
use crate::sync::WaitQueue;
use crate::{Errno, Result, time};

/// Calls of the page allocator.
pub(super) const LEDGER: Ledger = Ledger { charge, uncharge };

/// Chooses a process of those whose accounts are `top` or below it, and ends it.
///
/// Returns whether one ends; `false` where there is nobody to end.
pub type Killer = fn(top: AccountId) -> bool;

static KILLER: spin::Once<Killer> = spin::Once::new();

/// Has `killer` called where an account has all it may and nothing can be taken back. Once.
pub fn register_killer(killer: Killer) {
    KILLER.call_once(|| killer);
}

fn charge(bill: Bill) -> core::result::Result<AccountId, OutOfMemory> {
    let account = bill.account.unwrap_or_else(thread::account);
    if account == AccountId::ROOT {
        return Ok(account);
    }
    let charge = |urgency| accounts().charge(account, bill.owner, bill.frames, urgency);
    let urgency = match bill.pressure {
        Pressure::Normal => Urgency::Limited,
        Pressure::Reserve => Urgency::Exempt,
    };
    let charged = charge(urgency).or_else(|refused| {
        if reclaim::is_under_way() || thread::is_current_dying() {
            return charge(Urgency::Exempt);
        }
        Err(refused)
    });
    match charged {
        Ok(charged) => {
            if let Some(above) = charged.above_high {
                thread::with_current(|thread| thread.pass_high(above));
            }
            Ok(charged.account)
        }
        Err(refused) => {
            oom::note_refusal(bill.frames, refused.account);
            Err(OutOfMemory)
        }
    }
}

fn uncharge(owner: Owner, frames: u64, account: AccountId) {
    accounts().uncharge(account, owner, frames);
}

/// Finds room in `account` for somebody who was refused: [`GrowthOutcome::Grown`] where there may
/// be some now, which whoever was chosen to end may still have to give back.
pub(super) fn find_room(account: AccountId) -> GrowthOutcome {
    if reclaim::free_charged(below(account)) > 0 {
        return GrowthOutcome::Grown;
    }
    if thread::is_current_dying() {
        return GrowthOutcome::None;
    }
    if kill(account) {
        // It needs the CPU to end.
        sched::yield_now();
        return GrowthOutcome::Grown;
    }
    GrowthOutcome::None
}

/// Has a process end that `account` is charged for. Returns whether there is one.
fn kill(account: AccountId) -> bool {
    accounts().note(account, AccountEvent::Oom);
    let ends = KILLER.get().is_some_and(|kill| kill(account));
    tell_of(account);
    ends
}

fn below(account: AccountId) -> Below {
    Below::new(accounts(), account)
}

/// Accounts as control groups use them.
pub struct GroupCharging;

impl Charging for GroupCharging {
    fn begin(&self) -> Result<()> {
        super::turn_key(StaticKey::FRAME_CHARGES, KeyState::On)
    }

    fn enforce(&self, account: AccountId, limit: AccountLimit) -> Result<()> {
        let above = || accounts().charged(account, Resource::Memory) > accounts().limit(account, limit);
        while above() {
            if reclaim::free_charged(below(account)) == 0 {
                if limit == AccountLimit::High || !kill(account) {
                    return Ok(());
                }
                WaitQueue::new().wait_killable_until(time::now() + SHORT, || None::<()>)?;
            }
            check_interrupted()?;
        }
        Ok(())
    }

    fn take_back(&self, account: AccountId, frames: u64) -> Result<u64> {
        let mut taken = 0;
        while taken < frames {
            match reclaim::free_charged(below(account)) {
                0 => break,
                freed => taken += freed,
            }
            check_interrupted()?;
        }
        Ok(taken)
    }
}

fn check_interrupted() -> Result<()> {
    sched::checkpoint()?;
    let pending = thread::with_current(|thread| thread.signal_pending()).unwrap_or(false);
    if pending { Err(Errno::EINTR) } else { Ok(()) }
}

/// How long an ending process gets before one looks again, and the longest and shortest sleep for
/// what is too much (nanoseconds).
const SHORT: u64 = time::SECOND / 1000;
const LONGEST: u64 = 2 * time::SECOND;
const SHORTEST: u64 = 10 * SHORT;

/// The running thread has passed the soft limit of `account`, and is on its way to user mode.
pub(crate) fn attend(account: AccountId) {
    while let Some(above) = accounts().exceeded(account, AccountLimit::High).next() {
        accounts().note(above, AccountEvent::High);
        tell_of(above);
        if reclaim::free_charged(below(above)) == 0 {
            let high = accounts().limit(above, AccountLimit::High).max(1);
            let excess = accounts().charged(above, Resource::Memory).saturating_sub(high);
            // The more is too much the longer, by its share of the limit, squared: a little hurts
            // nobody.
            let share = (excess << 10) / high;
            let sleep = (share.saturating_mul(share).saturating_mul(time::SECOND) >> 20).min(LONGEST);
            if sleep >= SHORTEST {
                let _ = WaitQueue::new().wait_killable_until(time::now() + sleep, || None::<()>);
            }
            return;
        }
        if check_interrupted().is_err() {
            return;
        }
    }
}

/// The account whose limit the running thread met since somebody asked.
pub(super) fn take_refusal() -> Option<AccountId> {
    thread::with_current(|thread| thread.refused_by.swap(AccountId::ROOT, Ordering::Relaxed))?.unless_root()
}

/// Whether the running thread met an account's limit since it last looked for memory.
pub fn is_refused() -> bool {
    thread::with_current(|thread| thread.refused_by.load(Ordering::Relaxed) != AccountId::ROOT)
        .unwrap_or(false)
}
