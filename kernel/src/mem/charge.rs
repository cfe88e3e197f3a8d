//! Accounts of groups of processes: who is charged for frames, and how an account that has all it
//! may gets room.
//!
//! The page allocator charges a frame that exists for a process' sake to the account of the running
//! thread ([`freehold_charge`]). A task of the kernel pays for nothing. Until the first account is
//! opened nothing is charged, and costs a no-op ([`StaticKey::FRAME_CHARGES`]); what was handed out
//! before stays free of charge.
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
use freehold_charge::{
    AccountEntry, AccountEvent, AccountLimit, Accounts, Below, CHUNK, OpenError, Resource, Urgency,
};
use freehold_collections::Vec;
use freehold_frame::{AccountId, OutOfMemory, Owner, Pressure};

use super::hotplug::GrowthOutcome;
use super::oom;
use super::reclaim::{self, ReclaimOutcome};
use crate::hw::static_keys::{KeyState, StaticKey};
use crate::sched::{self, thread};
use crate::sync::WaitQueue;
use crate::{Errno, Result, time};

static ACCOUNTS: Accounts = Accounts::new();

/// All accounts.
pub fn accounts() -> &'static Accounts {
    &ACCOUNTS
}

/// What the page allocator asks.
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

/// Opens an account below `parent`, without limits. The first one has frames charged from now on.
///
/// # Errors
/// `ENOMEM`; `ENOSPC` where there are as many accounts as can be, closed ones that still pay for
/// frames included; `ENOENT` where `parent` is closed.
pub fn open_account(parent: AccountId) -> Result<AccountId> {
    super::turn_key(StaticKey::FRAME_CHARGES, KeyState::On)?;
    // Entries are allocated before they are asked for: with the tree locked nobody waits.
    let mut opened = ACCOUNTS.open(parent, || None);
    if opened == Err(OpenError::NoMemory) {
        let mut entries = Vec::default();
        entries.try_extend((0..CHUNK).map(|_| AccountEntry::EMPTY))?;
        opened = ACCOUNTS.open(parent, || (&*entries.leak()).try_into().ok());
    }
    opened.map_err(|error| match error {
        OpenError::NoMemory => Errno::ENOMEM,
        OpenError::TooMany => Errno::ENOSPC,
        OpenError::NoParent => Errno::ENOENT,
    })
}

fn charge(bill: Bill) -> core::result::Result<AccountId, OutOfMemory> {
    let account = bill.account.unwrap_or_else(thread::account);
    if account == AccountId::ROOT {
        return Ok(account);
    }
    let charge = |urgency| ACCOUNTS.charge(account, bill.owner, bill.frames, urgency);
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
    ACCOUNTS.uncharge(account, owner, frames);
}

/// How often nothing may be found, though pages were written, before somebody is ended.
const PATIENCE: usize = 16;

/// Finds room in `account` for somebody who was refused: [`GrowthOutcome::Grown`] where there may
/// be some now, which whoever was chosen to end may still have to give back.
pub(super) fn find_room(account: AccountId) -> GrowthOutcome {
    for _ in 0..PATIENCE {
        match reclaim::free_charged(Below::new(&ACCOUNTS, account)) {
            ReclaimOutcome::Freed => return GrowthOutcome::Grown,
            ReclaimOutcome::Nothing => {}
        }
    }
    if thread::is_current_dying() {
        return GrowthOutcome::None;
    }
    ACCOUNTS.note(account, AccountEvent::Oom);
    if KILLER.get().is_some_and(|kill| kill(account)) {
        // It needs the CPU to end.
        sched::yield_now();
        return GrowthOutcome::Grown;
    }
    GrowthOutcome::None
}

/// Takes frames back until no more than `limit` says are charged to `account`, or there is nothing
/// to take.
///
/// # Errors
/// `EINTR` where the thread is to end, or a signal waits; what was taken back stays so.
pub fn take_back(account: AccountId, limit: AccountLimit) -> Result<ReclaimOutcome> {
    while ACCOUNTS.charged(account, Resource::Memory) > ACCOUNTS.limit(account, limit) {
        if reclaim::free_charged(Below::new(&ACCOUNTS, account)) == ReclaimOutcome::Nothing {
            return Ok(ReclaimOutcome::Nothing);
        }
        check_interrupted()?;
    }
    Ok(ReclaimOutcome::Freed)
}

/// Takes `frames` back that are charged to `account` or below; how many there were.
///
/// # Errors
/// As [`take_back`].
pub fn take_back_some(account: AccountId, frames: u64) -> Result<u64> {
    let before = ACCOUNTS.charged(account, Resource::Memory);
    let taken = || before.saturating_sub(ACCOUNTS.charged(account, Resource::Memory));
    while taken() < frames {
        if reclaim::free_charged(Below::new(&ACCOUNTS, account)) == ReclaimOutcome::Nothing {
            break;
        }
        check_interrupted()?;
    }
    Ok(taken())
}

/// Has the killer end processes until `account` is within its `max`; before, takes back what can be
/// had.
///
/// # Errors
/// As [`take_back`].
pub fn enforce_max(account: AccountId) -> Result<()> {
    while take_back(account, AccountLimit::Max)? == ReclaimOutcome::Nothing {
        ACCOUNTS.note(account, AccountEvent::Oom);
        if !KILLER.get().is_some_and(|kill| kill(account)) {
            return Ok(());
        }
        WaitQueue::new().wait_killable_until(time::now() + SHORT, || None::<()>)?;
    }
    Ok(())
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
    while let Some(above) = ACCOUNTS.exceeded(account, AccountLimit::High).next() {
        ACCOUNTS.note(above, AccountEvent::High);
        if reclaim::free_charged(Below::new(&ACCOUNTS, above)) == ReclaimOutcome::Nothing {
            let high = ACCOUNTS.limit(above, AccountLimit::High).max(1);
            let excess = ACCOUNTS.charged(above, Resource::Memory).saturating_sub(high);
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
    let taken = thread::with_current(|thread| thread.refused_by.swap(0, Ordering::Relaxed)).unwrap_or(0);
    AccountId::new(taken).filter(|account| *account != AccountId::ROOT)
}

/// Whether the running thread met an account's limit since it last looked for memory.
pub fn is_refused() -> bool {
    thread::with_current(|thread| thread.refused_by.load(Ordering::Relaxed) != 0).unwrap_or(false)
}
