//! Accounts of groups of processes: the account to which a frame is charged, and how an account at
//! its limit may get room.
//!
//! The page allocator charges a process' frame to the account of the running thread
//! ([`freehold_charge`]). Kernel tasks are not charged. A private page that another process or a
//! kernel task makes in a space is charged to the space's account. A page that is read back from
//! the swap is charged to its previous account, whichever process needs it. Accounts are those of
//! control groups ([`crate::cgroup::memory`]). Until the first account is opened, nothing is
//! charged, and a charge is a no-op ([`StaticKey::FRAME_CHARGES`]). Frames handed out before then
//! remain uncharged.
//!
//! **Objects of the kernel** are charged like frames, by the byte: an object of the heap to the
//! account of its thread ([`OBJECTS`]), and the stack of a new thread to the account of its creator
//! ([`StackCharge`]).
//!
//! **Reached limits.** A charge that would exceed an account's `max` fails like a request that
//! finds no frame. The thread records the account that refused it. When the thread next searches
//! for memory ([`super::find_more`]), it reclaims frames that are charged to this account or below.
//! If there are none, the account's own [`Killer`] chooses a process. A thread that ends, or that
//! is reclaiming memory, may exceed all limits.
//!
//! An object that the heap must not refuse, because its creator cannot handle a failure, may exceed
//! `max`, by at most a system call's reserve. Before the thread returns to user mode, reclaim or
//! the [`Killer`] brings the account below its limit again.
//!
//! A charge that exceeds `high` succeeds. Before the thread returns to user mode it reclaims the
//! excess, and sleeps if it cannot reclaim enough ([`attend`]).

use core::sync::atomic::Ordering;

use freehold_buddy::{Bill, Ledger};
use freehold_charge::{
    AccountEvent, AccountLimit, Below, ChargeError, ChargedKind, FrameCharge, Resource, Urgency,
};
use freehold_frame::{AccountId, AtomicAccountId, FrameSource as _, Order, OutOfMemory, Owner, Pressure};
use freehold_machine::{Cpus as _, PAGE_SIZE, Pfn};

use super::hotplug::GrowthOutcome;
use super::oom;
use super::reclaim;
use crate::cgroup::memory::{Charging, accounts, tell_of};
use crate::hw::heap::charge::{ObjectLedger, ObjectNeed};
use crate::hw::static_keys::{KeyState, StaticKey};
use crate::hw::thread::STACK_PAGES;
use crate::hw::{self, Hardware};
use crate::sched::{self, thread};
use crate::sync::WaitQueue;
use crate::{Errno, Result, time};

/// The functions that the page allocator calls.
pub(super) const LEDGER: Ledger = Ledger { charge, uncharge };

/// Chooses a process whose account is `top` or below it, and ends it.
///
/// Returns whether one ends; `false` if there is no process to end.
pub type Killer = fn(top: AccountId) -> bool;

static KILLER: spin::Once<Killer> = spin::Once::new();

/// Registers `killer`, which is called if an account is at its limit and nothing can be reclaimed.
/// Once.
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
    take(charge, urgency).map_err(|refused| {
        oom::note_refusal(bill.frames, refused.account);
        OutOfMemory
    })
}

/// Calls `charge` to charge something for the running thread. Returns the charged account.
fn take(
    charge: impl Fn(Urgency) -> core::result::Result<FrameCharge, ChargeError>,
    urgency: Urgency,
) -> core::result::Result<AccountId, ChargeError> {
    let charged = charge(urgency).or_else(|refused| {
        if reclaim::is_under_way() || thread::is_current_dying() || is_without_limits() {
            return charge(Urgency::Exempt);
        }
        Err(refused)
    })?;
    if let Some(above) = charged.above_high {
        thread::with_current(|thread| thread.pass_high(above));
    }
    Ok(charged.account)
}

/// Runs `body`, which moves memory of other processes. Its charges may exceed their limits.
pub fn without_limits<R>(body: impl FnOnce() -> R) -> R {
    let set = |exempt| {
        thread::with_current(|thread| thread.passes_limits.swap(exempt, Ordering::Relaxed)).unwrap_or(false)
    };
    let before = set(true);
    let result = body();
    set(before);
    result
}

fn is_without_limits() -> bool {
    thread::with_current(|thread| thread.passes_limits.load(Ordering::Relaxed)).unwrap_or(false)
}

fn uncharge(owner: Owner, frames: u64, account: AccountId) {
    accounts().uncharge(account, owner, frames);
}

/// The functions that the heap calls to charge objects.
const OBJECTS: ObjectLedger =
    ObjectLedger { charge: charge_object, uncharge: uncharge_object, set_block_payer, take_block_payer };

fn charge_object(bytes: usize, need: ObjectNeed) -> Option<u16> {
    let account = thread::account();
    if account == AccountId::ROOT {
        return Some(0);
    }
    let charge = |urgency| accounts().charge_object(account, bytes as u64, urgency);
    match take(charge, Urgency::Limited) {
        Ok(account) => Some(account.number()),
        Err(_) if need == ObjectNeed::MustBe => {
            thread::with_current(|thread| thread.pass_high(account));
            charge(Urgency::Exempt).ok().map(|charged| charged.account.number())
        }
        Err(refused) => {
            oom::note_refusal(bytes.div_ceil(PAGE_SIZE) as u64, refused.account);
            None
        }
    }
}

fn uncharge_object(payer: u16, bytes: usize) {
    if let Some(account) = AccountId::new(payer) {
        accounts().uncharge_object(account, bytes as u64);
    }
}

fn set_block_payer(block: Pfn, payer: u16) {
    if let Some(account) = AccountId::new(payer) {
        hw::frames().table().set_account(block, Order::FRAME, account);
    }
}

fn take_block_payer(block: Pfn) -> u16 {
    let payer = hw::frames().table().account(block);
    hw::frames().table().set_account(block, Order::FRAME, AccountId::ROOT);
    payer.number()
}

/// The account that is charged for a thread's stack: that of the creating thread; none at first.
#[derive(Debug, Default)]
pub struct StackCharge(AtomicAccountId);

impl StackCharge {
    /// Charges a stack to the running thread's account. Once.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub fn take(&self) -> Result<()> {
        if Hardware.charges_frames() { self.charge() } else { Ok(()) }
    }
    #[cold]
    #[inline(never)]
    fn charge(&self) -> Result<()> {
        let account = thread::account();
        let charge = |urgency| accounts().charge_kind(account, ChargedKind::Stacks, STACK_PAGES, urgency);
        let payer = take(charge, Urgency::Limited).map_err(|refused| {
            oom::note_refusal(STACK_PAGES, refused.account);
            Errno::ENOMEM
        })?;
        self.0.store(payer, Ordering::Relaxed);
        Ok(())
    }
    #[cold]
    #[inline(never)]
    fn give_back(&self) {
        let payer = self.0.swap(AccountId::ROOT, Ordering::Relaxed);
        if payer != AccountId::ROOT {
            accounts().uncharge_kind(payer, ChargedKind::Stacks, STACK_PAGES);
        }
    }
}

impl Drop for StackCharge {
    #[inline]
    fn drop(&mut self) {
        if Hardware.charges_frames() {
            self.give_back();
        }
    }
}

/// Finds room in `account` for a thread that it refused. [`GrowthOutcome::Grown`]: there may be
/// room now, or when a process that was chosen to end has freed its memory.
pub(super) fn find_room(account: AccountId) -> GrowthOutcome {
    if reclaim::free_charged(below(account)) > 0 {
        return GrowthOutcome::Grown;
    }
    if thread::is_current_dying() {
        return GrowthOutcome::None;
    }
    if kill(account) {
        // The chosen process needs the CPU to end.
        sched::yield_now();
        return GrowthOutcome::Grown;
    }
    GrowthOutcome::None
}

/// Ends a process that is charged to `account`. Returns whether there is one.
fn kill(account: AccountId) -> bool {
    accounts().note(account, AccountEvent::Oom);
    let ends = KILLER.get().is_some_and(|kill| kill(account));
    tell_of(account);
    ends
}

fn below(account: AccountId) -> Below {
    Below::new(accounts(), account)
}

/// The interface of accounts for control groups.
pub struct GroupCharging;

impl Charging for GroupCharging {
    fn begin(&self) -> Result<()> {
        super::turn_key(StaticKey::FRAME_CHARGES, KeyState::On)?;
        hw::heap::charge::begin(OBJECTS);
        Ok(())
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

/// Time that an ending process gets before the next check, and the longest and shortest sleep for
/// an excess (nanoseconds).
const SHORT: u64 = time::SECOND / 1000;
const LONGEST: u64 = 2 * time::SECOND;
const SHORTEST: u64 = 10 * SHORT;

/// Handles a limit of `account` that the running thread has exceeded. Called on the way to user
/// mode.
pub(crate) fn attend(account: AccountId) {
    while let Some(above) = accounts().exceeded(account, AccountLimit::Max).next() {
        let enforced = GroupCharging.enforce(above, AccountLimit::Max);
        if enforced.is_err()
            || accounts().charged(above, Resource::Memory) > accounts().limit(above, AccountLimit::Max)
        {
            // The thread is ending, or no process can be ended.
            break;
        }
    }
    while let Some(above) = accounts().exceeded(account, AccountLimit::High).next() {
        accounts().note(above, AccountEvent::High);
        tell_of(above);
        if reclaim::free_charged(below(above)) == 0 {
            let high = accounts().limit(above, AccountLimit::High).max(1);
            let excess = accounts().charged(above, Resource::Memory).saturating_sub(high);
            // The sleep grows with the square of the excess's share of the limit, so a small excess
            // hardly delays the thread.
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

/// Takes the account whose limit the running thread has reached since the last call.
pub(super) fn take_refusal() -> Option<AccountId> {
    thread::with_current(|thread| thread.refused_by.swap(AccountId::ROOT, Ordering::Relaxed))?.unless_root()
}

/// Whether the running thread has reached an account's limit since its last search for memory.
pub fn is_refused() -> bool {
    thread::with_current(|thread| thread.refused_by.load(Ordering::Relaxed) != AccountId::ROOT)
        .unwrap_or(false)
}
