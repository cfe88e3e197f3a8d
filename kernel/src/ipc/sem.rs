//! Semaphores of System V: sets of counters, and operations that wait for them.
//!
//! A call's operations are performed all together or not at all. A call that cannot be performed
//! waits in the set's list. A task that changes a set performs the waiting operations and answers
//! the calls whose operations are done. It is first come, first served: first the calls that only
//! wait for zeroes, then the calls that change something (Linux: `do_smart_update`).
//!
//! No call that waits could be performed before a change. So while all waiting calls have one
//! operation each, a change concerns those of the changed semaphores only: the ones that wait for 0
//! where it became 0, and the ones that wait for more where it grew. A set with a waiting call of
//! several operations is walked as a whole, since its order counts across semaphores. That walk
//! begins again only if a semaphore grew, or one became 0, since only then an earlier call may go
//! on. The set's lock is a sleeping one: other tasks run between two walks.

mod waiting;

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::{Arc, Map, Vec, reserve};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use self::waiting::{Waiter, Waiting, Wanted};
use super::ids::{Head, NOWAIT, Object, WantedObject};
use super::limits::{SEMMNI, SEMMNS, SEMMSL};
use super::sleeper::Sleeper;
use super::{caller_pid, seconds};
use crate::sync::{Mutex, MutexGuard};
use crate::{Errno, Result, sched};

/// The largest value of a semaphore (SEMVMX).
pub const MOST_VALUE: i32 = 32_767;
/// The largest adjustment at exit (SEMAEM).
const MOST_ADJUSTMENT: i32 = MOST_VALUE;
/// Undo the operation at exit (SEM_UNDO).
pub const UNDO: i16 = 0x1000;

/// `struct sembuf`: 6 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Operation {
    /// Index of the semaphore in the set.
    pub number: u16,
    /// The amount that is added; 0 waits until the semaphore is 0.
    pub change: i16,
    /// IPC_NOWAIT and SEM_UNDO.
    pub flags: i16,
}

/// One counter.
#[derive(Clone, Copy, Debug, Default)]
struct Semaphore {
    /// 0..=[`MOST_VALUE`].
    value: i32,
    /// The process that last changed the semaphore, or whose wait for it last succeeded.
    pid: u32,
}

/// Result of the operations of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    Done,
    /// The operation with this index waits.
    Blocks(usize),
    Fails(Errno),
}

/// A call's operations.
pub struct SemOperations {
    /// The operations, at least one.
    pub operations: Vec<Operation>,
    /// The calling process.
    pub pid: u32,
    /// The number of the process' adjustments, if an operation has SEM_UNDO.
    pub undo: Option<u64>,
}

impl SemOperations {
    fn alters(&self) -> bool {
        self.operations.iter().any(|operation| operation.change != 0)
    }
    fn grows(&self) -> bool {
        self.operations.iter().any(|operation| operation.change > 0)
    }
    /// The semaphores that it changes when it is performed.
    fn changes(&self) -> impl Iterator<Item = (usize, ValueChange)> {
        let changes = self.operations.iter().map(|op| (usize::from(op.number), ValueChange::by(op.change)));
        changes.filter_map(|(number, change)| Some((number, change?)))
    }
}

/// How a semaphore's value changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ValueChange {
    /// Calls that wait for more may go on.
    Growth,
    /// Only calls that wait for 0 may go on.
    Decrease,
}

impl ValueChange {
    /// Returns the effect of adding `amount`, if it is not 0.
    fn by(amount: i16) -> Option<Self> {
        match amount {
            0 => None,
            1.. => Some(Self::Growth),
            _ => Some(Self::Decrease),
        }
    }
}

struct SetState {
    is_gone: bool,
    semaphores: Vec<Semaphore>,
    waiting: Waiting,
    /// Adjustments that ends of processes add, by the number of their list.
    adjustments: Map<u64, Vec<i16>>,
    /// The time of the last semop, or 0.
    operated: i64,
    /// The time of the last change by semctl, or of the creation.
    changed: i64,
}

/// A set.
pub struct Set {
    head: Head,
    /// Number of semaphores in the set.
    pub count: usize,
    state: Mutex<SetState>,
}

impl Object for Set {
    fn head(&self) -> &Head {
        &self.head
    }
}

/// Selects a figure of one semaphore (GETVAL and similar commands).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SemFigure {
    /// Its value.
    Value,
    /// The process that changed the semaphore last.
    Pid,
    /// Number of calls that wait for the semaphore to grow.
    WaitForMore,
    /// Number of calls that wait for the semaphore to be 0.
    WaitForZero,
}

/// semget: returns the ID of a set of `count` semaphores.
///
/// # Errors
/// As in the manual.
pub fn get(wanted: &WantedObject<'_>, count: i32) -> Result<i32> {
    let count = usize::try_from(count).ok().filter(|&count| count as u64 <= SEMMSL.get());
    let count = count.ok_or(Errno::EINVAL)?;
    let suits = |set: &Set| if set.count < count { Err(Errno::EINVAL) } else { Ok(()) };
    wanted.home.sets.get(wanted, SEMMNI.get() as usize, suits, || Set::make(wanted, count))
}

/// Performs all operations, or none.
fn perform(
    semaphores: &mut [Semaphore],
    mut undo: Option<&mut Vec<i16>>,
    request: &SemOperations,
) -> Attempt {
    for (at, operation) in request.operations.iter().enumerate() {
        let outcome = step(semaphores, undo.as_deref_mut(), operation);
        if outcome == Ok(true) {
            continue;
        }
        for done in request.operations[..at].iter().rev() {
            take_back(semaphores, undo.as_deref_mut(), done);
        }
        return match outcome {
            Err(error) => Attempt::Fails(error),
            Ok(_) if operation.flags & NOWAIT as i16 != 0 => Attempt::Fails(Errno::EAGAIN),
            Ok(_) => Attempt::Blocks(at),
        };
    }
    for operation in request.operations.iter() {
        semaphores[usize::from(operation.number)].pid = request.pid;
    }
    Attempt::Done
}

/// Performs one operation. Returns whether it could be performed.
fn step(semaphores: &mut [Semaphore], undo: Option<&mut Vec<i16>>, operation: &Operation) -> Result<bool> {
    let number = usize::from(operation.number);
    let semaphore = &mut semaphores[number];
    let value = semaphore.value + i32::from(operation.change);
    if value < 0 || (operation.change == 0 && value != 0) {
        return Ok(false);
    }
    if value > MOST_VALUE {
        return Err(Errno::ERANGE);
    }
    if operation.flags & UNDO != 0
        && let Some(undo) = undo
    {
        let adjustment = i32::from(undo[number]) - i32::from(operation.change);
        if !(-MOST_ADJUSTMENT - 1..=MOST_ADJUSTMENT).contains(&adjustment) {
            return Err(Errno::ERANGE);
        }
        undo[number] = adjustment as i16;
    }
    semaphore.value = value;
    Ok(true)
}

fn take_back(semaphores: &mut [Semaphore], undo: Option<&mut Vec<i16>>, operation: &Operation) {
    let number = usize::from(operation.number);
    semaphores[number].value -= i32::from(operation.change);
    if operation.flags & UNDO != 0
        && let Some(undo) = undo
    {
        undo[number] = undo[number].wrapping_add(operation.change);
    }
}

impl SetState {
    fn attempt(&mut self, request: &SemOperations) -> Attempt {
        let Self { semaphores, adjustments, .. } = self;
        let undo = request.undo.and_then(|number| adjustments.get_mut(&number));
        perform(semaphores, undo, request)
    }

    /// Performs the waiting calls that can be performed now, in the order of their arrival, after
    /// these semaphores changed.
    fn update(&mut self, changed: impl Iterator<Item = (usize, ValueChange)>) {
        if self.waiting.has_several() {
            return self.update_all();
        }
        for (number, change) in changed {
            if self.waiting.all.is_empty() {
                return;
            }
            self.serve(number as u16, change);
            sched::rest();
        }
    }

    /// Performs calls of one operation that wait for a semaphore.
    fn serve(&mut self, number: u16, change: ValueChange) {
        self.serve_those(number, Wanted::Zero);
        if change == ValueChange::Growth {
            self.serve_those(number, Wanted::More);
            // The last one may have left a 0.
            self.serve_those(number, Wanted::Zero);
        }
    }

    fn serve_those(&mut self, number: u16, wanted: Wanted) {
        let is_zero = |state: &Self| state.semaphores[usize::from(number)].value == 0;
        let mut next = 0;
        while is_zero(self) == (wanted == Wanted::Zero)
            && let Some((ticket, waiter)) = self.waiting.next_single((number, wanted, next))
        {
            next = ticket + 1;
            sched::rest();
            self.try_waiter(ticket, &waiter);
        }
    }

    /// Walks over all calls, until none can be performed.
    fn update_all(&mut self) {
        loop {
            self.walk(false);
            let again = self.walk(true);
            if !again {
                return;
            }
            sched::cond_resched();
        }
    }

    /// Walks over the waiting calls that change something, or over the others. Returns whether an
    /// earlier call may be possible now.
    fn walk(&mut self, altering: bool) -> bool {
        let mut next = 0;
        while let Some((ticket, waiter)) = self.waiting.next(next) {
            next = ticket + 1;
            sched::rest();
            if waiter.request.alters() == altering
                && self.try_waiter(ticket, &waiter)
                && altering
                && (waiter.request.grows() || self.made_zero(&waiter.request))
            {
                return true;
            }
        }
        false
    }

    /// Performs a waiting call, if it does not block any more, and answers it. Returns whether it
    /// was performed.
    fn try_waiter(&mut self, ticket: u64, waiter: &Arc<Waiter>) -> bool {
        let outcome = match self.attempt(&waiter.request) {
            Attempt::Blocks(at) => {
                waiter.blocking.store(at, Ordering::Relaxed);
                return false;
            }
            Attempt::Done => Ok(()),
            Attempt::Fails(error) => Err(error),
        };
        self.waiting.remove(ticket);
        if outcome.is_ok() {
            self.operated = seconds();
        }
        waiter.sleeper.answer(outcome);
        outcome.is_ok()
    }

    fn made_zero(&self, request: &SemOperations) -> bool {
        request.operations.iter().any(|operation| self.semaphores[usize::from(operation.number)].value == 0)
    }

    fn clear_adjustments(&mut self, range: core::ops::Range<usize>) {
        let lists: Option<u64> = self.adjustments.keys().next().copied();
        let mut next = lists;
        while let Some(number) = next {
            if let Some(list) = self.adjustments.get_mut(&number) {
                list[range.clone()].fill(0);
            }
            let behind = self.adjustments.first_from(core::ops::Bound::Excluded(&number));
            next = behind.map(|(&number, _)| number);
        }
    }
}

impl Set {
    fn make(wanted: &WantedObject<'_>, count: usize) -> Result<Arc<Self>> {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        if wanted.home.semaphores.load(Ordering::Relaxed) + count as u64 > SEMMNS.get() {
            return Err(Errno::ENOSPC);
        }
        let state = SetState {
            is_gone: false,
            semaphores: Vec::try_filled(Semaphore::default(), count)?,
            waiting: Waiting::default(),
            adjustments: Map::new(),
            operated: 0,
            changed: seconds(),
        };
        wanted.home.semaphores.fetch_add(count as u64, Ordering::Relaxed);
        let head = Head::new(wanted);
        Ok(reserve::arc(Self { head, count, state: Mutex::new(state) }))
    }

    /// Locks the state of a set that is not removed.
    fn lock(&self) -> Result<MutexGuard<'_, SetState>> {
        let state = self.state.lock_killable()?;
        if state.is_gone { Err(Errno::EIDRM) } else { Ok(state) }
    }

    /// semop: performs the operations, or waits until they can be performed. They name existing
    /// semaphores only. `deadline` is a time of the clock [`crate::time::now`].
    ///
    /// # Errors
    /// `EAGAIN`, `EIDRM`, `EINTR`, `ENOMEM`, `ERANGE`.
    pub fn operate(&self, request: SemOperations, deadline: Option<u64>) -> Result<()> {
        let (ticket, waiter) = {
            let mut state = self.lock()?;
            let at = match state.attempt(&request) {
                Attempt::Done => {
                    state.operated = seconds();
                    if request.alters() {
                        state.update(request.changes());
                    }
                    return Ok(());
                }
                Attempt::Fails(error) => return Err(error),
                Attempt::Blocks(at) => at,
            };
            let (blocking, sleeper) = (AtomicUsize::new(at), Sleeper::new());
            let waiter = reserve::arc(Waiter { request, blocking, sleeper });
            (state.waiting.add(&waiter)?, waiter)
        };
        let unanswered = match waiter.sleeper.sleep(deadline.map(Into::into)) {
            Ok(Some(answer)) => return answer,
            Ok(None) => Errno::EAGAIN,
            Err(error) => error,
        };
        self.state.lock().waiting.remove(ticket);
        // An answer that came meanwhile counts.
        waiter.sleeper.take().unwrap_or(Err(unanswered))
    }

    /// Reserves memory for the adjustments of the list `number`.
    ///
    /// # Errors
    /// `ENOMEM`, `EIDRM`.
    pub fn enter_undo(&self, number: u64) -> Result<()> {
        let mut state = self.lock()?;
        if !state.adjustments.contains_key(&number) {
            let none = Vec::try_filled(0, self.count)?;
            state.adjustments.try_insert(number, none)?;
        }
        Ok(())
    }

    /// Applies the adjustments of the list `number`, whose last process ends.
    pub fn undo(&self, number: u64) {
        let mut state = self.state.lock();
        let Some(adjustments) = state.adjustments.remove(&number) else { return };
        for (semaphore, &adjustment) in state.semaphores.iter_mut().zip(adjustments.iter()) {
            if adjustment != 0 {
                semaphore.value = (semaphore.value + i32::from(adjustment)).clamp(0, MOST_VALUE);
                semaphore.pid = caller_pid();
            }
        }
        state.operated = seconds();
        let changes = adjustments.iter().map(|&adjustment| ValueChange::by(adjustment)).enumerate();
        state.update(changes.filter_map(|(number, change)| Some((number, change?))));
    }

    /// SETVAL and SETALL: sets new values of semaphores from `first` on. The values are valid.
    ///
    /// # Errors
    /// `EIDRM`, `EINTR`.
    pub fn set_values(&self, first: usize, values: &[u16]) -> Result<()> {
        let mut state = self.lock()?;
        for (semaphore, &value) in state.semaphores[first..].iter_mut().zip(values) {
            *semaphore = Semaphore { value: i32::from(value), pid: caller_pid() };
        }
        state.clear_adjustments(first..first + values.len());
        state.changed = seconds();
        // Each may have grown.
        state.update((first..first + values.len()).map(|number| (number, ValueChange::Growth)));
        Ok(())
    }

    /// GETALL: returns the value of each semaphore.
    ///
    /// # Errors
    /// `ENOMEM`, `EIDRM`, `EINTR`.
    pub fn values(&self) -> Result<Vec<u16>> {
        let mut values = Vec::try_with_capacity(self.count)?;
        let state = self.lock()?;
        state.semaphores.iter().for_each(|semaphore| values.push_reserved(semaphore.value as u16));
        Ok(values)
    }

    /// Returns a figure of the semaphore `number`.
    ///
    /// # Errors
    /// `EIDRM`, `EINTR`.
    pub fn figure(&self, number: usize, figure: SemFigure) -> Result<i64> {
        let state = self.lock()?;
        let waiting = |for_zero: bool| {
            let blocks = |waiter: &&Arc<Waiter>| {
                let operation = waiter.request.operations[waiter.blocking.load(Ordering::Relaxed)];
                usize::from(operation.number) == number && (operation.change == 0) == for_zero
            };
            state.waiting.all.values().filter(blocks).count() as i64
        };
        Ok(match figure {
            SemFigure::Value => i64::from(state.semaphores[number].value),
            SemFigure::Pid => i64::from(state.semaphores[number].pid),
            SemFigure::WaitForMore => waiting(false),
            SemFigure::WaitForZero => waiting(true),
        })
    }

    /// Returns the time of the last operation, or 0, and the time of the last change by semctl.
    pub fn times(&self) -> (i64, i64) {
        let state = self.state.lock();
        (state.operated, state.changed)
    }

    /// Records a change by IPC_SET.
    pub fn note_changed(&self) {
        self.state.lock().changed = seconds();
    }

    /// IPC_RMID: the set leaves the table, and calls that wait fail with `EIDRM`.
    ///
    /// # Errors
    /// `EIDRM`, `EINTR`.
    pub fn remove(&self) -> Result<()> {
        let waiting = {
            let mut state = self.lock()?;
            state.is_gone = true;
            state.adjustments = Map::new();
            core::mem::take(&mut state.waiting)
        };
        if let Some(home) = self.head.home() {
            home.sets.remove_if(self, || true);
        }
        waiting.all.values().for_each(|waiter| waiter.sleeper.answer(Err(Errno::EIDRM)));
        Ok(())
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        if let Some(home) = self.head.home() {
            home.semaphores.fetch_sub(self.count as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::ids::CREATE;
    use crate::ipc::objects::IpcObjects;
    use crate::task::Credentials;
    use crate::task::userns::UserNs;

    fn set(values: &[u16]) -> Arc<Set> {
        let (caller, home) = (Credentials::of_user(0, 0), IpcObjects::new(UserNs::INITIAL));
        let wanted = WantedObject { key: 0, flags: CREATE | 0o600, caller: &caller, home: &home };
        let set = Set::make(&wanted, values.len()).unwrap();
        set.set_values(0, values).unwrap();
        set
    }

    fn request(operations: &[(u16, i16, i16)], undo: Option<u64>) -> SemOperations {
        let mut list = Vec::new();
        for &(number, change, flags) in operations {
            list.try_push(Operation { number, change, flags }).unwrap();
        }
        SemOperations { operations: list, pid: 7, undo }
    }

    fn operate(set: &Set, operations: &[(u16, i16, i16)], undo: Option<u64>) -> Attempt {
        set.state.lock().attempt(&request(operations, undo))
    }

    fn values(set: &Set) -> [u16; 2] {
        set.values().unwrap()[..].try_into().unwrap()
    }

    #[test]
    fn operations_are_performed_all_or_none() {
        let set = set(&[1, 0]);
        assert_eq!(operate(&set, &[(0, -1, 0), (1, -1, 0)], None), Attempt::Blocks(1));
        assert_eq!(values(&set), [1, 0]);
        assert_eq!(operate(&set, &[(0, -1, 0), (0, 0, 0), (1, 2, 0)], None), Attempt::Done);
        assert_eq!(values(&set), [0, 2]);
        let nowait = NOWAIT as i16;
        assert_eq!(operate(&set, &[(1, 1, 0), (0, -1, nowait)], None), Attempt::Fails(Errno::EAGAIN));
        assert_eq!(
            operate(&set, &[(1, 1, 0), (0, i16::MAX, 0), (0, 1, 0)], None),
            Attempt::Fails(Errno::ERANGE)
        );
        assert_eq!(values(&set), [0, 2]);
        assert_eq!(set.figure(1, SemFigure::Pid), Ok(7));
    }

    #[test]
    fn the_end_of_a_process_takes_back_what_it_did_and_setval_forgets_it() {
        let set = set(&[5, 5]);
        set.enter_undo(1).unwrap();
        assert_eq!(operate(&set, &[(0, -2, UNDO), (1, 3, UNDO)], Some(1)), Attempt::Done);
        assert_eq!(operate(&set, &[(0, -1, UNDO), (1, -9, 0)], Some(1)), Attempt::Blocks(1));
        set.set_values(1, &[1]).unwrap();
        set.undo(1);
        assert_eq!(values(&set), [5, 1]);
        set.undo(1);
        assert_eq!(values(&set), [5, 1], "once");
    }

    #[test]
    fn who_waits_is_served_in_turn() {
        let set = set(&[0, 0]);
        let wait = |operations: &[(u16, i16, i16)]| {
            let mut state = set.state.lock();
            let (blocking, sleeper) = (AtomicUsize::new(0), Sleeper::new());
            let waiter = reserve::arc(Waiter { request: request(operations, None), blocking, sleeper });
            state.waiting.add(&waiter).unwrap();
            waiter
        };
        let (large, small, moves) =
            (wait(&[(0, -2, 0)]), wait(&[(0, -1, 0)]), wait(&[(0, -1, 0), (1, 1, 0)]));
        let last = wait(&[(1, -1, 0)]);
        assert_eq!(set.figure(0, SemFigure::WaitForMore), Ok(3));
        set.set_values(0, &[1]).unwrap();
        assert_eq!((large.sleeper.take(), small.sleeper.take()), (None, Some(Ok(()))));
        set.set_values(0, &[1]).unwrap();
        assert_eq!((moves.sleeper.take(), last.sleeper.take()), (Some(Ok(())), Some(Ok(()))), "a chain");
        set.set_values(0, &[2]).unwrap();
        assert_eq!((large.sleeper.take(), values(&set)), (Some(Ok(())), [0, 0]));
    }

    /// The same set, but each change walks over all waiting calls.
    #[test]
    fn calls_are_served_as_by_walks_over_all() {
        const COUNT: u64 = 3;
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut served = 0;
        for round in 0..300 {
            let sets = [set(&[0; COUNT as usize]), set(&[0; COUNT as usize])];
            let mut waiters: std::vec::Vec<[Arc<Waiter>; 2]> = std::vec::Vec::new();
            for _ in 0..60 {
                // In two thirds of the rounds each call has one operation.
                let several = if round % 3 == 0 { 1 + draw(2) } else { 1 };
                let operations: std::vec::Vec<(u16, i16, i16)> =
                    (0..several).map(|_| (draw(COUNT) as u16, draw(5) as i16 - 2, 0)).collect();
                let both = [0, 1].map(|at| {
                    let mut state = sets[at].state.lock();
                    let request = request(&operations, None);
                    let attempt = state.attempt(&request);
                    if attempt == Attempt::Done {
                        match at {
                            0 => state.update(request.changes()),
                            _ => state.update_all(),
                        }
                        return None;
                    }
                    let (blocking, sleeper) = (AtomicUsize::new(0), Sleeper::new());
                    let waiter = reserve::arc(Waiter { request, blocking, sleeper });
                    state.waiting.add(&waiter).unwrap();
                    Some(waiter)
                });
                if let [Some(one), Some(other)] = both {
                    waiters.push([one, other]);
                }
                for pair in &waiters {
                    let [one, other] = pair.each_ref().map(|waiter| waiter.sleeper.take());
                    assert_eq!(one, other);
                    served += usize::from(one.is_some());
                }
                assert_eq!(sets[0].values().unwrap()[..], sets[1].values().unwrap()[..]);
                let [one, other] = [0, 1].map(|at| {
                    let state = sets[at].state.lock();
                    (
                        state.waiting.all.keys().copied().collect::<std::vec::Vec<_>>(),
                        state.waiting.single.len(),
                    )
                });
                assert_eq!(one, other);
            }
        }
        assert!(served > 1000, "{served}");
    }
}
