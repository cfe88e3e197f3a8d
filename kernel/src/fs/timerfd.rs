//! timerfd_create(2): a timer to wait on.
//!
//! The expiry is noted in interrupt context; a read returns the count of expiries and resets it. A
//! repeating timer is armed again by the read, or by a query of its time, as on Linux: so a timer
//! that no program reads costs nothing. Its next deadline is the last one plus as many intervals as
//! have passed. Intervals that passed meanwhile count, too.
//!
//! A timer for a time of the wall clock may ask to be cancelled when that clock is set
//! (TFD_TIMER_CANCEL_ON_SET): the next read fails with `ECANCELED`.

use freehold_collections::{Arc, reserve};
use linux_raw_sys::general as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::anonymous::AnonymousNode;
use super::eventfd::read_counter;
use super::file::Line;
use super::{Blocking, File, Node, NodeKind, OpenFlags, Ready};
use crate::sync::{IrqSpinLock, Mutex, PollWaiter, WaitQueue, WeakRegistry};
use crate::syscall::Args;
use crate::task::{self, clock::Clock};
use crate::time::{self, Deadline, Expire, TimeSpec, TimerSlot};
use crate::user::{Sink, UserPtr};
use crate::{Errno, Result};

/// `struct itimerspec`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct TimerSpec {
    interval: TimeSpec,
    value: TimeSpec,
}

/// Whether setting the wall clock cancels a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Cancelling {
    #[default]
    Never,
    OnSet,
    /// The clock was set, and no call has returned that yet.
    Cancelled,
}

/// The timers that once asked to be cancelled.
static CANCELLABLE: WeakRegistry<Timer> = WeakRegistry::new();

/// Cancels the timers that asked for it: the wall clock was set.
pub fn clock_was_set() {
    for timer in CANCELLABLE.entries().iter().flat_map(|entries| entries.iter()) {
        let Some(timer) = timer.upgrade() else { continue };
        let mut state = timer.state.lock();
        if state.cancelling == Cancelling::OnSet {
            state.cancelling = Cancelling::Cancelled;
            drop(state);
            timer.expired.wake_all();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct TimerState {
    /// Next expiry; `None` if the timer is not set.
    deadline: Option<Deadline>,
    /// Nanoseconds between expiries; 0 for a single expiry.
    interval: u64,
    /// Expiries that no read has returned.
    expiries: u64,
    /// Whether a repeating timer has expired at the deadline and is not armed again yet.
    is_stopped: bool,
    cancelling: Cancelling,
}

/// Whether a timer is to be armed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rearm {
    Yes,
    No,
}

impl TimerState {
    /// Returns the expiries for a read at `now`, and forgets them; `None` if there are none.
    ///
    /// # Errors
    /// `ECANCELED` once after the timer was cancelled.
    fn take(&mut self, now: u64) -> Option<(Result<u64>, Rearm)> {
        if self.cancelling == Cancelling::Cancelled {
            self.cancelling = Cancelling::OnSet;
            self.expiries = 0;
            if core::mem::take(&mut self.is_stopped) {
                self.deadline = None;
            }
            return Some((Err(Errno::ECANCELED), Rearm::No));
        }
        if self.expiries == 0 {
            return None;
        }
        let rearm = self.go_on(now);
        Some((Ok(core::mem::take(&mut self.expiries)), rearm))
    }

    /// Counts what a stopped timer has missed up to `now`, and gives it its next deadline.
    fn go_on(&mut self, now: u64) -> Rearm {
        let Some(deadline) = self.deadline.filter(|_| self.is_stopped) else { return Rearm::No };
        let missed = deadline.base.at(now).saturating_sub(deadline.at) / self.interval;
        self.expiries = self.expiries.saturating_add(missed);
        let at = deadline.at.saturating_add((missed + 1).saturating_mul(self.interval));
        self.deadline = Some(Deadline { at, ..deadline });
        self.is_stopped = false;
        Rearm::Yes
    }

    /// Notes the expiry, if the deadline has passed at `now`. Returns the deadline if it has not.
    fn expire(&mut self, now: u64) -> Option<Deadline> {
        let deadline = self.deadline.filter(|_| !self.is_stopped)?;
        if deadline.at > deadline.base.at(now) {
            return Some(deadline);
        }
        self.expiries = self.expiries.saturating_add(1);
        if self.interval == 0 {
            self.deadline = None;
        } else {
            self.is_stopped = true;
        }
        None
    }

    /// Returns the nanoseconds until the next expiry, and between expiries.
    fn remaining(&self, now: u64) -> TimerSpec {
        // A timer that is due but not yet counted still runs: 0 would mean that it is not set.
        let least = u64::from(!self.is_stopped);
        let left = |deadline: Deadline| deadline.at.saturating_sub(deadline.base.at(now)).max(least);
        TimerSpec {
            interval: TimeSpec::from_nanoseconds(self.interval),
            value: TimeSpec::from_nanoseconds(self.deadline.map_or(0, left)),
        }
    }
}

/// State of the timer that the interrupt handler accesses.
struct Timer {
    slot: TimerSlot,
    state: IrqSpinLock<TimerState>,
    expired: Arc<WaitQueue>,
}

impl Expire for Timer {
    fn slot(&self) -> &TimerSlot {
        &self.slot
    }
    fn expire(&self, now: u64) -> Option<Deadline> {
        let next = self.state.lock().expire(now);
        if next.is_none() {
            self.expired.wake_all();
        }
        next
    }
}

/// An open timer.
pub struct TimerFile {
    timer: Arc<Timer>,
    clock: Clock,
    /// Whether the timer is in the list of those that can be cancelled. Held while the timer is
    /// armed, so that it is armed for the last setting.
    is_listed: Mutex<bool>,
    node: Arc<dyn Node>,
}

impl TimerFile {
    fn set(&self, new: TimerSpec, flags: u32) -> Result<TimerSpec> {
        let (value, interval) = (new.value.nanoseconds()?, new.interval.nanoseconds()?);
        let now = time::now();
        let deadline = match (value, flags & c::TFD_TIMER_ABSTIME != 0) {
            (0, _) => None,
            (value, false) => Some(now.saturating_add(value).into()),
            (at, true) => Some(self.clock.deadline(at)?),
        };
        let wanted = c::TFD_TIMER_ABSTIME | c::TFD_TIMER_CANCEL_ON_SET;
        let cancelling = if self.clock == Clock::Wall && flags & wanted == wanted {
            self.make_cancellable()?;
            Cancelling::OnSet
        } else {
            Cancelling::Never
        };
        let before = {
            let mut state = self.timer.state.lock();
            state.go_on(now);
            let new = TimerState { deadline, interval, cancelling, ..TimerState::default() };
            core::mem::replace(&mut *state, new)
        };
        self.arm()?;
        // As on Linux, the timer is set nevertheless.
        let is_cancelled = (before.cancelling, cancelling) == (Cancelling::Cancelled, Cancelling::OnSet);
        if is_cancelled { Err(Errno::ECANCELED) } else { Ok(before.remaining(now)) }
    }

    /// Arms the timer for its next deadline.
    fn arm(&self) -> Result<()> {
        let _one_at_a_time = self.is_listed.lock();
        let armed: Arc<dyn Expire> = self.timer.clone();
        time::cancel(&armed);
        let state = *self.timer.state.lock();
        let next = state.deadline.filter(|_| !state.is_stopped);
        next.map_or(Ok(()), |next| time::try_arm(&armed, next))
    }

    /// Returns the time until the next expiry, which a stopped timer gets again.
    fn query(&self) -> Result<TimerSpec> {
        let now = time::now();
        let (rearm, remaining) = {
            let mut state = self.timer.state.lock();
            (state.go_on(now), state.remaining(now))
        };
        if rearm == Rearm::Yes {
            self.arm()?;
        }
        Ok(remaining)
    }

    /// Enters the timer into the list of those that can be cancelled, once.
    fn make_cancellable(&self) -> Result<()> {
        let mut is_listed = self.is_listed.lock();
        if !*is_listed {
            CANCELLABLE.enter(&self.timer)?;
            *is_listed = true;
        }
        Ok(())
    }
}

impl File for TimerFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let take = || self.timer.state.lock().take(time::now());
        read_counter(sink, || {
            let (expiries, rearm) = blocking.until(&self.timer.expired, take)?;
            if rearm == Rearm::Yes {
                self.arm()?;
            }
            expiries
        })
    }

    fn describe(&self, line: Line<'_>) -> Result<()> {
        let (spec, ticks) = {
            let state = self.timer.state.lock();
            (state.remaining(time::now()), state.expiries)
        };
        let clock = match self.clock {
            Clock::Wall => c::CLOCK_REALTIME,
            Clock::Boottime => c::CLOCK_BOOTTIME,
            _ => c::CLOCK_MONOTONIC,
        };
        line(format_args!("clockid: {clock}\nticks: {ticks}\nsettime flags: 00"));
        let TimerSpec { value, interval } = spec;
        line(format_args!("it_value: ({}, {})", value.seconds, value.nanoseconds));
        line(format_args!("it_interval: ({}, {})", interval.seconds, interval.nanoseconds));
        Ok(())
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.timer.expired);
        }
        let mut ready = Ready::ALONE;
        let state = *self.timer.state.lock();
        ready.set(Ready::IN, state.expiries > 0 || state.cancelling == Cancelling::Cancelled);
        ready
    }
}

impl Drop for TimerFile {
    fn drop(&mut self) {
        let armed: Arc<dyn Expire> = self.timer.clone();
        time::cancel(&armed);
    }
}

/// timerfd_create(clock, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_timerfd_create(args: &Args) -> Result<i64> {
    let clock = match args.uint(0) {
        c::CLOCK_REALTIME | c::CLOCK_REALTIME_ALARM => Clock::Wall,
        c::CLOCK_MONOTONIC => Clock::Monotonic,
        c::CLOCK_BOOTTIME | c::CLOCK_BOOTTIME_ALARM => Clock::Boottime,
        _ => return Err(Errno::EINVAL),
    };
    let flags = args.uint(1);
    if flags & !(c::TFD_CLOEXEC | c::TFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let timer = Timer {
        slot: TimerSlot::new(),
        state: IrqSpinLock::new(TimerState::default()),
        expired: reserve::arc(WaitQueue::new()),
    };
    let node = AnonymousNode::plain(NodeKind::Regular, "anon_inode:[timerfd]");
    let file =
        reserve::arc(TimerFile { timer: reserve::arc(timer), clock, is_listed: Mutex::new(false), node });
    task::install(file, OpenFlags::from_bits_retain(flags) | OpenFlags::RDWR).map(i64::from)
}

/// timerfd_settime(fd, flags, new, old)
///
/// # Errors
/// As in the manual.
pub fn sys_timerfd_settime(args: &Args) -> Result<i64> {
    let flags = args.uint(1);
    if flags & !(c::TFD_TIMER_ABSTIME | c::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let new = UserPtr::new(args[2]).read()?;
    let file = task::current().process().files().get(args.fd(0))?;
    let old = file.file().downcast::<TimerFile>().ok_or(Errno::EINVAL)?.set(new, flags)?;
    UserPtr::new(args[3]).write_optional(&old)?;
    Ok(0)
}

/// timerfd_gettime(fd, current)
///
/// # Errors
/// As in the manual.
pub fn sys_timerfd_gettime(args: &Args) -> Result<i64> {
    let file = task::current().process().files().get(args.fd(0))?;
    let remaining = file.file().downcast::<TimerFile>().ok_or(Errno::EINVAL)?.query()?;
    UserPtr::new(args[1]).write(&remaining)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(interval: u64) -> TimerState {
        TimerState { deadline: Some(100.into()), interval, ..TimerState::default() }
    }

    #[test]
    fn a_single_timer_expires_once() {
        let mut state = state(0);
        assert_eq!(state.expire(99), Some(100.into()), "it is not due");
        assert_eq!(state.expiries, 0);
        assert_eq!(state.expire(150), None);
        assert_eq!((state.deadline, state.expiries), (None, 1));
        assert_eq!(state.expire(200), None);
        assert_eq!(state.take(200), Some((Ok(1), Rearm::No)));
        assert_eq!(state.take(200), None);
    }

    #[test]
    fn a_repeating_timer_stops_until_it_is_read_keeps_its_beat_and_counts_what_it_missed() {
        let mut state = state(10);
        assert_eq!(state.expire(100), None);
        assert_eq!(state.expire(137), None, "it is stopped");
        assert_eq!(state.take(137), Some((Ok(4), Rearm::Yes)));
        assert_eq!(state.deadline, Some(140.into()));
        assert_eq!(state.take(137), None);
        assert_eq!(state.remaining(139).value, TimeSpec { seconds: 0, nanoseconds: 1 });
        assert_eq!(state.remaining(500).value, TimeSpec { seconds: 0, nanoseconds: 1 });
        assert_eq!(state.expire(500), None);
        assert_eq!(state.go_on(500), Rearm::Yes);
        assert_eq!((state.deadline, state.expiries), (Some(510.into()), 37));
    }
}
