//! timerfd_create(2): a timer to wait on.
//!
//! Expiries are counted in interrupt context; a read returns the count and resets it. A repeating
//! timer's next deadline is the last one plus the interval, however late the interrupt was.
//! Intervals that passed meanwhile count, too.
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
use crate::task;
use crate::time::{self, Expire, TimeSpec, TimerSlot};
use crate::user::{Sink, UserPtr};
use crate::{Errno, Result};

/// `struct itimerspec`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct TimerSpec {
    interval: TimeSpec,
    value: TimeSpec,
}

/// The clock of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Clock {
    Wall,
    Boot,
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
    /// Next expiry in nanoseconds since boot; `None` if the timer is not set.
    deadline: Option<u64>,
    /// Nanoseconds between expiries; 0 for a single expiry.
    interval: u64,
    /// Expiries that no read has returned.
    expiries: u64,
    cancelling: Cancelling,
}

impl TimerState {
    /// Returns the expiries for a read, and forgets them; `None` if there are none.
    ///
    /// # Errors
    /// `ECANCELED` once after the timer was cancelled.
    fn take(&mut self) -> Option<Result<u64>> {
        let expiries = core::mem::take(&mut self.expiries);
        if self.cancelling == Cancelling::Cancelled {
            self.cancelling = Cancelling::OnSet;
            return Some(Err(Errno::ECANCELED));
        }
        (expiries > 0).then_some(Ok(expiries))
    }

    /// Counts expiries up to `now`, if the deadline has passed. Returns the next deadline.
    fn expire(&mut self, now: u64) -> Option<u64> {
        let deadline = self.deadline.filter(|&deadline| deadline <= now)?;
        match (now - deadline).checked_div(self.interval) {
            None => {
                self.expiries += 1;
                self.deadline = None;
            }
            Some(missed) => {
                self.expiries += missed + 1;
                self.deadline = Some(deadline.saturating_add((missed + 1).saturating_mul(self.interval)));
            }
        }
        self.deadline
    }

    /// Returns the nanoseconds until the next expiry, and between expiries.
    fn remaining(&self, now: u64) -> TimerSpec {
        // A timer that is due but not yet counted still runs: 0 would mean that it is not set.
        let value = self.deadline.map_or(0, |deadline| deadline.saturating_sub(now).max(1));
        TimerSpec {
            interval: TimeSpec::from_nanoseconds(self.interval),
            value: TimeSpec::from_nanoseconds(value),
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
    fn expire(&self, now: u64) -> Option<u64> {
        let next = self.state.lock().expire(now);
        self.expired.wake_all();
        next
    }
}

/// An open timer.
pub struct TimerFile {
    timer: Arc<Timer>,
    clock: Clock,
    /// Whether the timer is in the list of those that can be cancelled.
    is_listed: Mutex<bool>,
    node: Arc<dyn Node>,
}

impl TimerFile {
    fn set(&self, new: TimerSpec, flags: u32) -> Result<TimerSpec> {
        let (value, interval) = (new.value.nanoseconds()?, new.interval.nanoseconds()?);
        let now = time::now();
        let deadline = match (value, flags & c::TFD_TIMER_ABSTIME != 0) {
            (0, _) => None,
            (value, false) => Some(now.saturating_add(value)),
            (value, true) if self.clock == Clock::Boot => Some(value),
            (value, true) => Some(value.saturating_sub(u64::try_from(time::boot_wall()).unwrap_or(0))),
        };
        let wanted = c::TFD_TIMER_ABSTIME | c::TFD_TIMER_CANCEL_ON_SET;
        let cancelling = if self.clock == Clock::Wall && flags & wanted == wanted {
            self.make_cancellable()?;
            Cancelling::OnSet
        } else {
            Cancelling::Never
        };
        let armed: Arc<dyn Expire> = self.timer.clone();
        time::cancel(&armed);
        let before = {
            let mut state = self.timer.state.lock();
            core::mem::replace(&mut *state, TimerState { deadline, interval, expiries: 0, cancelling })
        };
        if let Some(deadline) = deadline {
            time::try_arm(&armed, deadline)?;
        }
        // As on Linux, the timer is set nevertheless.
        let is_cancelled = (before.cancelling, cancelling) == (Cancelling::Cancelled, Cancelling::OnSet);
        if is_cancelled { Err(Errno::ECANCELED) } else { Ok(before.remaining(now)) }
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
        let take = || self.timer.state.lock().take();
        read_counter(sink, || blocking.until(&self.timer.expired, take)?)
    }

    fn describe(&self, line: Line<'_>) -> Result<()> {
        let (spec, ticks) = {
            let state = self.timer.state.lock();
            (state.remaining(time::now()), state.expiries)
        };
        let clock = if self.clock == Clock::Wall { c::CLOCK_REALTIME } else { c::CLOCK_MONOTONIC };
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
        let mut ready = Ready::empty();
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
        c::CLOCK_MONOTONIC | c::CLOCK_BOOTTIME | c::CLOCK_BOOTTIME_ALARM => Clock::Boot,
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
    let remaining = {
        let timer = &file.file().downcast::<TimerFile>().ok_or(Errno::EINVAL)?.timer;
        let state = *timer.state.lock();
        state.remaining(time::now())
    };
    UserPtr::new(args[1]).write(&remaining)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_timer_expires_once() {
        let mut state = TimerState { deadline: Some(100), ..TimerState::default() };
        assert_eq!(state.expire(99), None);
        assert_eq!(state.expiries, 0);
        assert_eq!(state.expire(150), None);
        assert_eq!((state.deadline, state.expiries), (None, 1));
        assert_eq!(state.expire(200), None);
        assert_eq!(state.expiries, 1);
    }

    #[test]
    fn a_repeating_timer_keeps_its_beat_and_counts_what_it_missed() {
        let mut state = TimerState { deadline: Some(100), interval: 10, ..TimerState::default() };
        assert_eq!(state.expire(100), Some(110));
        assert_eq!(state.expire(137), Some(140));
        assert_eq!(state.expiries, 4);
        assert_eq!(state.remaining(139).value, TimeSpec { seconds: 0, nanoseconds: 1 });
        assert_eq!(state.remaining(500).value, TimeSpec { seconds: 0, nanoseconds: 1 });
    }
}
