//! Futexes: sleeping until a word in memory changes.
//!
//! Waiters are in hashed buckets under plain spin locks, in each by their words ([`bucket`]): a
//! wake costs nothing for waiters of other words. A waiter compares the word under its bucket's
//! lock, and a waker takes that lock after the word was changed: so no wake-up falls between
//! comparing and queueing. The word is read without faults there; where its page is absent, the
//! page is brought in outside and all begins again.
//!
//! A thread that waits for several words ([`futex2`]) has a waiter in the bucket of each. At the
//! end of its wait it removes them one by one. A missing waiter was woken. Its waker counted this
//! wake-up, so the thread reports it, even if the wait had already failed (`model`).
//!
//! Locks with priority inheritance ([`pi`]) have a separate table. The plain calls check whether
//! the table is empty, and refuse words that are in it.

mod bucket;
mod calls;
mod futex2;
mod id;
#[cfg(test)]
mod model;
mod pi;

pub use calls::{sys_futex, sys_get_robust_list, sys_set_robust_list, sys_set_tid_address};
pub use futex2::{sys_futex_requeue, sys_futex_wait, sys_futex_waitv, sys_futex_wake};
pub use pi::table::PiTask;

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, reserve};
use freehold_machine::VirtAddr;
use freehold_vm::FutexKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use self::bucket::{Bucket, More, WaiterPlace, WaiterWalk};
use self::id::FutexId;
use self::pi::table;
use super::{Pid, Task, current, with_current};
use crate::hw::usercopy::{self, Faults};
use crate::mem::ProcessSpace;
use crate::sched::{self, Sleep};
use crate::sync::{SpinLock, SpinLockGuard};
use crate::syscall::Args;
use crate::time::Deadline;
use crate::user::UserPtr;
use crate::{Errno, Result};

/// Bits of a lock's word: there are waiters, the owner has ended, and the owner's number.
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID_MASK: u32 = 0x3fff_ffff;

const MATCH_ANY: u32 = u32::MAX;

struct Waiter {
    task: Arc<Task>,
    /// Its word, and where it is in the word's bucket; changes under the bucket's lock.
    place: SpinLock<WaiterPlace>,
    bitset: u32,
    woken: AtomicBool,
}

impl Waiter {
    fn new(task: &Arc<Task>, key: FutexId, bitset: u32) -> Arc<Self> {
        reserve::arc(Self {
            task: task.clone(),
            place: SpinLock::new((key, 0)),
            bitset,
            woken: AtomicBool::new(false),
        })
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        sched::wake(&self.task, &[Sleep::Interruptible]);
    }
}

type Waiters = Bucket<Arc<Waiter>>;

/// The waiters of one bucket, on a cache line of their own.
#[repr(align(64))]
struct BucketLock(SpinLock<Waiters>);

impl BucketLock {
    #[inline]
    fn lock(&self) -> SpinLockGuard<'_, Waiters> {
        self.0.lock()
    }
}

static BUCKETS: [BucketLock; id::BUCKETS] = [const { BucketLock(SpinLock::new(Bucket::new())) }; id::BUCKETS];

/// Whether other address spaces may use the same word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Private,
    Shared,
}

/// A word, as a program names it.
#[derive(Clone, Copy)]
struct FutexWord {
    address: u64,
    scope: Scope,
}

impl FutexWord {
    fn key(self) -> Result<FutexId> {
        key_of(self.address, self.scope)
    }
}

fn key_of(address: u64, scope: Scope) -> Result<FutexId> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let private = |space: &Arc<ProcessSpace>, address| FutexId::Private { space: space.id(), address };
    if scope == Scope::Private {
        return Ok(with_current(|task| task.with_space(|space| private(space, address))));
    }
    // The mapping of the word's page determines the identity. The page is present after a read.
    UserPtr::<u32>::new(address).read()?;
    with_current(|task| {
        task.with_space(|space| {
            Ok(match space.lock().shared_key(VirtAddr(address))? {
                FutexKey::Private(address) => private(space, address.0),
                FutexKey::Shared { object, offset } => FutexId::Shared { object, offset },
            })
        })
    })
}

fn count(number: i32) -> Result<usize> {
    // As on Linux, a wake of 0 wakes one.
    usize::try_from(number).map_err(|_| Errno::EINVAL)
}

/// Reads a word without faults. `Err` means that the page must be brought in first. Under the
/// bucket's lock, the value has not changed before queueing.
fn load(address: u64) -> core::result::Result<u32, Absent> {
    usercopy::load_u32(VirtAddr(address), Faults::Never).ok_or(Absent)
}

struct Absent;

fn bring_in(address: u64) -> Result<()> {
    UserPtr::<u32>::new(address).read().map(|_| ())
}

/// Brings the page in for writing.
fn bring_in_writable(address: u64) -> Result<()> {
    let value = UserPtr::<u32>::new(address).read()?;
    usercopy::compare_exchange_u32(VirtAddr(address), value, value, Faults::Sleep)
        .map(|_| ())
        .ok_or(Errno::EFAULT)
}

/// Adds `waiter` to the waiters for the word at `address`, if the word is `expected`.
fn enqueue(waiter: &Arc<Waiter>, address: u64, expected: u32) -> Result<()> {
    let (key, _) = *waiter.place.lock();
    loop {
        let mut bucket = BUCKETS[key.bucket()].lock();
        match load(address) {
            Ok(value) if value != expected => return Err(Errno::EAGAIN),
            Ok(_) => {
                let place = bucket.push(key, waiter.clone())?;
                *waiter.place.lock() = place;
                return Ok(());
            }
            Err(Absent) => {}
        }
        drop(bucket);
        bring_in(address)?;
        sched::checkpoint()?;
    }
}

/// Sleeps until `is_woken`.
///
/// # Errors
/// `ETIMEDOUT`, `ERESTARTSYS`.
fn sleep(task: &Arc<Task>, deadline: Option<Deadline>, is_woken: impl Fn() -> bool) -> Result<()> {
    let outcome = loop {
        task.prepare_to_sleep(Sleep::Interruptible);
        if is_woken() {
            break Ok(());
        }
        if task.signal_pending() {
            break Err(Errno::ERESTARTSYS);
        }
        if deadline.is_some_and(Deadline::has_passed) {
            break Err(Errno::ETIMEDOUT);
        }
        sched::block(task.thread(), deadline);
    };
    task.finish_sleep();
    outcome
}

fn wait_once(word: FutexWord, expected: u32, bitset: u32, deadline: Option<Deadline>) -> Result<i64> {
    if bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let task = current();
    let waiter = Waiter::new(&task, word.key()?, bitset);
    enqueue(&waiter, word.address, expected)?;
    let outcome = sleep(&task, deadline, || waiter.woken.load(Ordering::SeqCst));
    // Woken, maybe at the moment of the time-out: a wake-up is never lost.
    if outcome.is_ok() || !leave(&waiter) { Ok(0) } else { outcome.map(|()| 0) }
}

fn wait(word: FutexWord, expected: u32, bitset: u32, deadline: Option<Deadline>) -> Result<i64> {
    match wait_once(word, expected, bitset, deadline) {
        // A restart must not wait for the full time again.
        Err(Errno::ERESTARTSYS) if deadline.is_some() => {
            Err(current().restart_with(reserve::boxed(move || wait(word, expected, bitset, deadline))))
        }
        outcome => outcome,
    }
}

/// Removes a waiter from its bucket; `false` if a waker has removed it before.
fn leave(waiter: &Arc<Waiter>) -> bool {
    loop {
        let place = *waiter.place.lock();
        let mut bucket = BUCKETS[place.0.bucket()].lock();
        if waiter.woken.load(Ordering::SeqCst) {
            return false;
        }
        if *waiter.place.lock() != place {
            continue;
        }
        let left = bucket.remove(place);
        drop(bucket);
        drop(left);
        return true;
    }
}

/// Wakes waiters of a walk until `woken` is `limit`, some at once.
#[inline(always)]
fn wake_some(
    bucket: &mut Waiters,
    walk: &mut WaiterWalk,
    (woken, limit): (&mut usize, usize),
    bitset: u32,
) -> More {
    let suits = |waiter: &Arc<Waiter>| waiter.bitset & bitset != 0;
    bucket.take(walk, limit - *woken, suits, |waiter| {
        waiter.wake();
        *woken += 1;
    })
}

/// Moves waiters of a walk to the word `to` until `moved` is `limit`, some at once. `other` is the
/// bucket of `to`, if it is another one. A waiter for which there is no memory there is woken
/// instead: a wait may end early.
fn move_some(
    bucket: &mut Waiters,
    mut other: Option<&mut Waiters>,
    (walk, to): (&mut WaiterWalk, FutexId),
    (moved, limit): (&mut usize, usize),
) -> More {
    for _ in 0..bucket::AT_ONCE {
        if *moved == limit {
            return More::No;
        }
        let Some(waiter) = bucket.pop(walk) else { return More::No };
        let target = other.as_deref_mut().unwrap_or(bucket);
        match target.push(to, waiter.clone()) {
            Ok(place) => *waiter.place.lock() = place,
            Err(_) => waiter.wake(),
        }
        *moved += 1;
    }
    More::Yes
}

/// Wakes up to `limit` of the present waiters for a word; `bucket` is its bucket.
#[inline(always)]
fn wake_in(mut bucket: SpinLockGuard<'static, Waiters>, key: FutexId, limit: usize, bitset: u32) -> usize {
    let (mut walk, mut woken) = (bucket.walk(key), 0);
    while wake_some(&mut bucket, &mut walk, (&mut woken, limit), bitset) == More::Yes {
        drop(bucket);
        sched::rest();
        bucket = BUCKETS[key.bucket()].lock();
    }
    woken
}

#[inline(always)]
fn wake(key: FutexId, limit: usize, bitset: u32) -> Result<i64> {
    if bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let woken = wake_in(BUCKETS[key.bucket()].lock(), key, limit.max(1), bitset);
    if table::are_used() {
        table::check_plain(key, woken)?;
    }
    Ok(woken as i64)
}

/// Wakes waiters for a word of the current program, private or shared.
pub fn wake_address(address: u64, limit: usize) {
    for scope in [Scope::Private, Scope::Shared] {
        if let Ok(key) = key_of(address, scope) {
            let _ = wake(key, limit, MATCH_ANY);
        }
    }
}

/// Locks two buckets in order. If both are the same, the second is absent.
fn lock_both(
    first: FutexId,
    second: FutexId,
) -> (SpinLockGuard<'static, Waiters>, Option<SpinLockGuard<'static, Waiters>>) {
    let (a, b) = (first.bucket(), second.bucket());
    if a == b {
        (BUCKETS[a].lock(), None)
    } else if a < b {
        let one = BUCKETS[a].lock();
        (one, Some(BUCKETS[b].lock()))
    } else {
        let two = BUCKETS[b].lock();
        (BUCKETS[a].lock(), Some(two))
    }
}

/// Returns how many waiters a call wakes, and how many others it moves or wakes.
fn counts(args: &Args) -> Result<(usize, usize)> {
    Ok((count(args.int(2))?, count(args.int(3))?))
}

fn requeue(
    [source, target]: [FutexWord; 2],
    (wakes, moves): (usize, usize),
    expected: Option<u32>,
) -> Result<i64> {
    let (from, to, address) = (source.key()?, target.key()?, source.address);
    loop {
        let (mut source, mut other) = lock_both(from, to);
        if let Some(expected) = expected {
            match load(address) {
                Ok(value) if value != expected => return Err(Errno::EAGAIN),
                Ok(_) => {}
                Err(Absent) => {
                    drop((source, other));
                    bring_in(address)?;
                    sched::checkpoint()?;
                    continue;
                }
            }
        }
        if table::are_used() {
            table::check_plain(from, 0)?;
        }
        let (mut walk, mut woken, mut moved) = (source.walk(from), 0, 0);
        while wake_some(&mut source, &mut walk, (&mut woken, wakes), MATCH_ANY) == More::Yes
            || from != to
                && move_some(&mut source, other.as_deref_mut(), (&mut walk, to), (&mut moved, moves))
                    == More::Yes
        {
            drop((source, other));
            sched::rest();
            (source, other) = lock_both(from, to);
        }
        if from == to {
            moved = source.count(from, moves);
        }
        return Ok((woken + moved) as i64);
    }
}

/// Returns the value that FUTEX_WAKE_OP stores in a word; `None` for an unknown operation.
fn changed(operation: u32, old: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        0 => operand,
        1 => old.wrapping_add(operand),
        2 => old | operand,
        3 => old & !operand,
        4 => old ^ operand,
        _ => return None,
    })
}

fn wake_op(
    (first, second): (u64, u64),
    scope: Scope,
    (wakes, wakes2): (usize, usize),
    encoded: u32,
) -> Result<i64> {
    let (key, key2) = (key_of(first, scope)?, key_of(second, scope)?);
    let sign_extend = |bits: u32| ((bits << 20) as i32) >> 20;
    let (operation, comparison) = (encoded >> 28 & 7, encoded >> 24 & 15);
    let mut operand = sign_extend(encoded >> 12);
    let against = sign_extend(encoded);
    if encoded >> 31 != 0 {
        operand = 1i32.wrapping_shl(operand as u32 & 31);
    }
    loop {
        let (bucket, other) = lock_both(key, key2);
        let outcome = load(second).and_then(|old| match changed(operation, old, operand as u32) {
            None => Ok(Err(Errno::ENOSYS)),
            Some(new) => usercopy::compare_exchange_u32(VirtAddr(second), old, new, Faults::Never)
                .map(|was| Ok((old, was)))
                .ok_or(Absent),
        });
        let old = match outcome {
            Ok(Err(error)) => return Err(error),
            Ok(Ok((old, was))) if old == was => old as i32,
            Ok(Ok(_)) => continue,
            Err(Absent) => {
                drop((bucket, other));
                bring_in_writable(second)?;
                sched::checkpoint()?;
                continue;
            }
        };
        let holds = match comparison {
            0 => old == against,
            1 => old != against,
            2 => old < against,
            3 => old <= against,
            4 => old > against,
            5 => old >= against,
            _ => return Err(Errno::ENOSYS),
        };
        drop(other);
        let woken = wake_in(bucket, key, wakes.max(1), MATCH_ANY);
        if table::are_used() {
            table::check_plain(key, woken)?;
        }
        if !holds {
            return Ok(woken as i64);
        }
        let woken2 = wake_in(BUCKETS[key2.bucket()].lock(), key2, wakes2.max(1), MATCH_ANY);
        if table::are_used() {
            table::check_plain(key2, woken2)?;
        }
        return Ok((woken + woken2) as i64);
    }
}

/// `struct robust_list_head`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RobustHead {
    next: u64,
    offset: i64,
    pending: u64,
}

/// Largest number of locks that are released from one thread's list.
const ROBUST_LIMIT: usize = 2048;

/// Set in the address of a lock with priority inheritance.
const IS_PI: u64 = 1;

/// Whether the thread had completely taken the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RobustPlace {
    /// The lock is on the list.
    Listed,
    /// The thread was about to take or to release the lock.
    Pending,
}

/// Tells waiters for the ended thread's locks that the owner has ended. Waiters for locks with
/// priority inheritance are notified when the thread abandons its locks ([`Task::abandon_locks`]).
pub(super) fn release_robust_list(head: u64, tid: Pid) {
    let Ok(list) = UserPtr::<RobustHead>::new(head).read() else { return };
    let mut entry = list.next;
    for _ in 0..ROBUST_LIMIT {
        if entry & !IS_PI == head {
            break;
        }
        let next = UserPtr::<u64>::new(entry & !IS_PI).read();
        if entry & !IS_PI != list.pending & !IS_PI
            && release_robust(entry, list.offset, tid, RobustPlace::Listed).is_err()
        {
            return;
        }
        match next {
            Ok(next) => entry = next,
            Err(_) => break,
        }
    }
    if list.pending & !IS_PI != 0 {
        let _ = release_robust(list.pending, list.offset, tid, RobustPlace::Pending);
    }
}

/// # Errors
/// `EFAULT` if there is no such word: then the rest of the list is ignored.
fn release_robust(entry: u64, offset: i64, tid: Pid, place: RobustPlace) -> Result<()> {
    let address = VirtAddr((entry & !IS_PI).wrapping_add_signed(offset));
    let is_pi = entry & IS_PI != 0;
    if !address.0.is_multiple_of(4) {
        return Err(Errno::EFAULT);
    }
    loop {
        let value = usercopy::load_u32(address, Faults::Sleep).ok_or(Errno::EFAULT)?;
        // The lock was released, and its waiter may not have been woken.
        if place == RobustPlace::Pending && !is_pi && value == 0 {
            wake_address(address.0, 1);
        }
        if value & TID_MASK != tid {
            return Ok(());
        }
        let died = value & WAITERS | OWNER_DIED;
        let was = usercopy::compare_exchange_u32(address, value, died, Faults::Sleep).ok_or(Errno::EFAULT)?;
        if was == value {
            if value & WAITERS != 0 && !is_pi {
                wake_address(address.0, 1);
            }
            return Ok(());
        }
    }
}
