//! Pending signals, and a process' reaction to each signal.

use freehold_collections::VecDeque;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::set::{DefaultAction, SigInfo, SigSet, Signal, code};
use crate::task::users::{Payer, QueuedSignal};
use crate::{Errno, Result};

/// Pending signals of a process or of one of its threads.
#[derive(Debug, Default)]
pub struct Pending {
    set: SigSet,
    /// The siginfo of the signals, in order of arrival. For a member of `set` without an entry only
    /// the number is known: there was no room, or it was sent in an interrupt.
    queue: VecDeque<Queued>,
    /// Number of POSIX timers for whose signals there is room, whether they are queued or not.
    timers: usize,
}

/// Largest number of queued signals up to which signals without a charge are queued with their
/// siginfo. A timer may send such a signal at each expiry.
const MAX_FREE: usize = 1024;

/// The part of a signal that was kept for the thread that takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptSignal {
    /// Nothing: it is ignored, or its receiver is ending.
    Nothing,
    /// The number. It was pending already, or there was no room.
    Number,
    /// The siginfo.
    Siginfo,
}

/// The siginfo of a signal, and its charge to a user's account, if any.
#[derive(Debug)]
pub struct Queued {
    info: SigInfo,
    _place: Option<QueuedSignal>,
}

impl Pending {
    /// Makes an empty queue.
    pub const fn new() -> Self {
        Self { set: SigSet::EMPTY, queue: VecDeque::new(), timers: 0 }
    }
    /// Returns the pending signals.
    pub const fn set(&self) -> SigSet {
        self.set
    }
    /// Whether one more signal fits without allocation, beside those of timers.
    fn has_room(&self) -> bool {
        self.queue.len() + self.timers < self.queue.capacity()
    }
    /// Keeps room for the signal of one more timer. If there is none, returns the capacity of a
    /// buffer to be given first.
    pub fn reserve_for_timer(&mut self) -> Option<usize> {
        if self.has_room() {
            self.timers += 1;
            return None;
        }
        self.room_wanted()
    }
    /// Gives up the room of one timer.
    pub fn release_for_timer(&mut self) {
        self.timers = self.timers.saturating_sub(1);
    }
    /// Returns the capacity of a buffer to replace a full one; `None` while the present one is not
    /// full.
    pub fn room_wanted(&self) -> Option<usize> {
        (!self.has_room()).then(|| (2 * (self.queue.len() + self.timers)).max(4))
    }
    /// Replaces the queue's buffer with a larger one. Returns the old one, to be freed without the
    /// lock.
    #[must_use]
    pub fn give_room(&mut self, buffer: VecDeque<Queued>) -> VecDeque<Queued> {
        self.queue.move_to(buffer)
    }
    /// Adds a signal without allocation. A standard signal that is pending already is not added
    /// again, unless a timer sends it, which waits until its own signal is taken.
    ///
    /// `payer` is the user to whom a signal with a program's siginfo is charged. Without one the
    /// signal is not charged: it comes from the kernel, or from a timer, which was charged when it
    /// was made. At the user's limit only the signal's number is kept, as on Linux.
    ///
    /// # Errors
    /// `EAGAIN` if a real-time signal with siginfo cannot be charged or queued.
    pub fn add(&mut self, signal: Signal, info: SigInfo, payer: Option<Payer>) -> Result<KeptSignal> {
        let real_time = signal.is_real_time();
        let is_timers = info.code == code::TIMER && payer.is_none();
        if !real_time && self.set.contains(signal) && !is_timers {
            return Ok(KeptSignal::Number);
        }
        let has_room = self.has_room();
        let place = match payer {
            Some(payer) if real_time || info.code < 0 => {
                let place = if has_room { QueuedSignal::charge(payer) } else { None };
                if place.is_none() && real_time && info.code != code::USER {
                    return Err(Errno::EAGAIN);
                }
                place.map(Some)
            }
            // It was charged when the timer was made.
            _ if is_timers => (self.queue.len() < self.queue.capacity()).then_some(None),
            _ => (has_room && self.queue.len() < MAX_FREE).then_some(None),
        };
        self.set = self.set.with(signal);
        let Some(place) = place else { return Ok(KeptSignal::Number) };
        self.queue.push_back_reserved(Queued { info, _place: place });
        Ok(KeptSignal::Siginfo)
    }
    /// Removes all pending `signals`. Returns whether there were any.
    pub fn remove(&mut self, signals: SigSet) -> bool {
        let has_any = !self.set.intersection(signals).is_empty();
        if has_any {
            self.set = self.set.minus(signals);
            self.queue.retain(|queued| queued.info.signal().is_some_and(|signal| !signals.contains(signal)));
        }
        has_any
    }
    /// Returns the signal with index `index` in the queue, without removing it.
    pub fn at(&self, index: usize) -> Option<SigInfo> {
        self.queue.get(index).map(|queued| queued.info)
    }
    /// Removes and returns the first signal that is in `wanted`.
    #[inline]
    pub fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        let signal = self.set.intersection(wanted).first()?;
        let is_next = self.queue.front().is_some_and(|next| next.is(signal));
        // Usually it is the only one.
        if is_next && self.queue.len() == 1 {
            self.set = self.set.without(signal);
            return self.queue.pop_front().map(|queued| queued.info);
        }
        Some(self.take_from_among(signal))
    }
    /// Removes `signal`, which is pending, from any position.
    #[inline(never)]
    fn take_from_among(&mut self, signal: Signal) -> SigInfo {
        let at = self.queue.iter().position(|queued| queued.is(signal));
        let queued = at.and_then(|at| self.queue.remove(at));
        if !self.queue.iter().any(|queued| queued.is(signal)) {
            self.set = self.set.without(signal);
        }
        match queued {
            Some(queued) => queued.info,
            None => SigInfo::user(signal, code::USER, 0, 0),
        }
    }
}

impl Queued {
    fn is(&self, signal: Signal) -> bool {
        self.info.number == i32::from(signal.number())
    }
}

/// SA_NOCLDSTOP.
pub const SA_NOCLDSTOP: u64 = 1;
/// SA_NOCLDWAIT.
pub const SA_NOCLDWAIT: u64 = 2;
/// SA_SIGINFO.
pub const SA_SIGINFO: u64 = 4;
/// SA_RESTORER.
pub const SA_RESTORER: u64 = 0x0400_0000;
/// SA_ONSTACK.
pub const SA_ONSTACK: u64 = 0x0800_0000;
/// SA_RESTART.
pub const SA_RESTART: u64 = 0x1000_0000;
/// SA_NODEFER.
pub const SA_NODEFER: u64 = 0x4000_0000;
/// SA_RESETHAND.
pub const SA_RESETHAND: u64 = 0x8000_0000;

/// The default action.
pub const SIG_DFL: u64 = 0;
/// Ignore the signal.
pub const SIG_IGN: u64 = 1;

/// A process' reaction to a signal: the kernel's `struct sigaction`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Action {
    /// The handler, [`SIG_DFL`] or [`SIG_IGN`].
    pub handler: u64,
    /// SA_*.
    pub flags: u64,
    /// The address to which a handler returns.
    pub restorer: u64,
    /// Signals that are blocked while the handler runs.
    pub mask: SigSet,
}

/// A process' reactions to all signals; shared by CLONE_SIGHAND.
#[derive(Clone, Copy, Debug)]
pub struct Actions([Action; 64]);

impl Actions {
    /// Makes the default reactions.
    pub const fn new() -> Self {
        let default = Action { handler: SIG_DFL, flags: 0, restorer: 0, mask: SigSet::EMPTY };
        Self([default; 64])
    }
    /// Returns the reaction to `signal`.
    pub const fn get(&self, signal: Signal) -> Action {
        self.0[signal.number() as usize - 1]
    }
    /// Sets the reaction to `signal`.
    pub const fn set(&mut self, signal: Signal, action: Action) {
        self.0[signal.number() as usize - 1] = action;
    }
    /// Whether sending `signal` would have no effect.
    pub fn ignores(&self, signal: Signal) -> bool {
        match self.get(signal).handler {
            SIG_IGN => true,
            SIG_DFL => signal.default_action() == DefaultAction::Ignore,
            _ => false,
        }
    }
    /// Resets the reactions for execve: ignored signals stay ignored, and handlers are removed,
    /// because the program is replaced.
    pub fn reset_for_exec(&mut self) {
        for action in &mut self.0 {
            let handler = if action.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
            *action = Action { handler, ..Action::default() };
        }
    }
    /// Returns the ignored signals, and those with a handler.
    pub fn dispositions(&self) -> (SigSet, SigSet) {
        let (mut ignored, mut caught) = (0, 0);
        for (place, action) in self.0.iter().enumerate() {
            match action.handler {
                SIG_DFL => {}
                SIG_IGN => ignored |= 1 << place,
                _ => caught |= 1 << place,
            }
        }
        (SigSet(ignored), SigSet(caught))
    }
}

impl Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::signal::set::code;

    fn with_room() -> Pending {
        let mut pending = Pending::new();
        drop(pending.give_room(VecDeque::try_with_capacity(4).unwrap()));
        pending
    }

    #[test]
    fn a_standard_signal_is_pending_once_and_a_real_time_one_as_often_as_sent() {
        let mut pending = with_room();
        for pid in [5, 6] {
            pending.add(Signal::USR1, SigInfo::user(Signal::USR1, code::USER, pid, 0), None).unwrap();
            pending.add(Signal::RT_MIN, SigInfo::user(Signal::RT_MIN, code::QUEUE, pid, 0), None).unwrap();
        }
        let all = SigSet(u64::MAX);
        let order: std::vec::Vec<_> =
            core::iter::from_fn(|| pending.take(all)).map(|i| (i.number, i.sender())).collect();
        assert_eq!(order, [(10, 5), (32, 5), (32, 6)]);
        assert!(pending.set().is_empty());
    }

    #[test]
    fn each_timer_has_a_signal_of_its_own() {
        let mut pending = with_room();
        assert_eq!((pending.reserve_for_timer(), pending.reserve_for_timer()), (None, None));
        assert_eq!(pending.add(Signal::USR1, SigInfo::kernel(Signal::USR1), None), Ok(KeptSignal::Siginfo));
        let sent = |id| SigInfo::timer(Signal::ALRM, id, 0, 0);
        assert_eq!(pending.add(Signal::ALRM, SigInfo::kernel(Signal::ALRM), None), Ok(KeptSignal::Siginfo));
        assert_eq!(pending.add(Signal::ALRM, SigInfo::kernel(Signal::ALRM), None), Ok(KeptSignal::Number));
        assert_eq!(
            pending.add(Signal::HUP, SigInfo::kernel(Signal::HUP), None),
            Ok(KeptSignal::Number),
            "no room"
        );
        assert_eq!(pending.room_wanted(), Some(8));
        assert_eq!(pending.add(Signal::ALRM, sent(3), None), Ok(KeptSignal::Siginfo));
        assert_eq!(pending.add(Signal::ALRM, sent(4), None), Ok(KeptSignal::Siginfo));
        let all = SigSet(u64::MAX);
        let taken = core::iter::from_fn(|| pending.take(all)).map(|info| info.code);
        let rest = [code::USER, code::KERNEL, code::KERNEL, code::TIMER, code::TIMER];
        assert!(taken.eq(rest), "HUP, USR1 and the alarms");
        assert!(pending.set().is_empty());
    }

    #[test]
    fn a_signal_that_finds_no_room_is_still_delivered() {
        let mut pending = Pending::new();
        pending.add(Signal::TERM, SigInfo::kernel(Signal::TERM), None).unwrap();
        assert_eq!(pending.take(SigSet::of(&[Signal::HUP])), None);
        assert_eq!(pending.take(SigSet(u64::MAX)).and_then(|info| info.signal()), Some(Signal::TERM));
        assert!(pending.set().is_empty());
    }

    #[test]
    fn an_exec_keeps_ignored_signals_and_drops_handlers() {
        let mut actions = Actions::new();
        actions.set(Signal::HUP, Action { handler: SIG_IGN, ..Action::default() });
        actions.set(Signal::INT, Action { handler: 0x4000, flags: SA_RESTART, ..Action::default() });
        actions.reset_for_exec();
        assert!(
            actions.ignores(Signal::HUP) && !actions.ignores(Signal::INT) && actions.ignores(Signal::CHLD)
        );
        assert_eq!(actions.get(Signal::INT), Action::default());
    }
}
