//! adjtimex and clock_adjtime: all programs may read the clock's state. CAP_SYS_TIME permits the
//! supported changes ([`crate::time::adjust`]).
//!
//! An unsupported adjustment is `EOPNOTSUPP`, unless it sets the present value. Unsupported are an
//! offset to correct gradually, a frequency, another tick, an offset of CLOCK_TAI, leap seconds,
//! and a phase-locked loop. Such a call changes nothing.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{may_set_time, settable};
use crate::syscall::Args;
use crate::task::clock::{Clock, REALTIME};
use crate::time::adjust::{self, ClockQuality, MOST_CONSTANT, MOST_ERROR, Status};
use crate::time::{SECOND, TimeVal, now, wall_nanoseconds};
use crate::user::UserPtr;
use crate::{Errno, Result};

bitflags! {
    /// ADJ_*: the values that a call changes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Modes: u32 {
        const OFFSET = 0x1;
        const FREQUENCY = 0x2;
        const MAXERROR = 0x4;
        const ESTERROR = 0x8;
        const STATUS = 0x10;
        const TIMECONST = 0x20;
        const TAI = 0x80;
        const SETOFFSET = 0x100;
        const MICRO = 0x1000;
        const NANO = 0x2000;
        const TICK = 0x4000;
        /// The call comes from adjtime(3): then [`OFFSET`](Self::OFFSET) is also set, and 0x2000
        /// means that it only reads.
        const ADJTIME = 0x8000;
    }
}

impl Modes {
    /// The bit that means read-only in a call from adjtime(3).
    const READONLY: Self = Self::NANO;
}

/// `struct timex`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UserClock {
    modes: u32,
    pad: u32,
    offset: i64,
    frequency: i64,
    most_error: i64,
    estimated_error: i64,
    status: i32,
    pad2: u32,
    constant: i64,
    precision: i64,
    tolerance: i64,
    time: TimeVal,
    tick: i64,
    pps_frequency: i64,
    jitter: i64,
    shift: i32,
    pad3: u32,
    pps: [i64; 5],
    tai: i32,
    unused: [u32; 11],
}

/// Microseconds per tick, at 100 ticks per second.
const TICK: i64 = 10_000;
/// One millionth, in the unit of frequencies, which have 16 fractional bits.
const PPM: i64 = 1 << 16;
/// The largest rate by which Linux would slew the clock.
const TOLERANCE: i64 = 500 * PPM;
/// The largest frequency that Linux accepts: multiplied by its PPM_SCALE, more would overflow 64
/// bits.
const MOST_FREQUENCY: i64 = i64::MAX / (1000 << 16);
/// Status bits that only the clock sets.
const READ_ONLY: i32 = 0xff00;

const TIME_OK: i64 = 0;
const TIME_ERROR: i64 = 5;

impl UserClock {
    /// Returns the requested modes after Linux' checks (`timekeeping_validate_timex`), in its
    /// order.
    fn checked_modes(&self) -> Result<Modes> {
        let modes = Modes::from_bits_truncate(self.modes);
        if modes.contains(Modes::ADJTIME) {
            if !modes.contains(Modes::OFFSET) {
                return Err(Errno::EINVAL);
            }
            if !modes.contains(Modes::READONLY) {
                may_set_time()?;
            }
        } else {
            if self.modes != 0 {
                may_set_time()?;
            }
            if modes.contains(Modes::TICK) && !(TICK * 9 / 10..=TICK * 11 / 10).contains(&self.tick) {
                return Err(Errno::EINVAL);
            }
        }
        if modes.contains(Modes::SETOFFSET) {
            may_set_time()?;
            let parts = if modes.contains(Modes::NANO) { SECOND as i64 } else { 1_000_000 };
            if !(0..parts).contains(&self.time.microseconds) {
                return Err(Errno::EINVAL);
            }
        }
        if modes.contains(Modes::FREQUENCY) && !(-MOST_FREQUENCY..=MOST_FREQUENCY).contains(&self.frequency) {
            return Err(Errno::EINVAL);
        }
        Ok(modes)
    }

    /// Returns `EOPNOTSUPP` for unsupported adjustments.
    fn check_possible(&self, modes: Modes) -> Result<()> {
        if modes.contains(Modes::ADJTIME) {
            let reads = modes.contains(Modes::READONLY) || self.offset == 0;
            return if reads { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
        }
        let status = self.status & !READ_ONLY & !Status::UNSYNC.bits();
        let refused = [
            (Modes::OFFSET, self.offset),
            (Modes::FREQUENCY, self.frequency),
            (Modes::TICK, self.tick - TICK),
            (Modes::TAI, self.constant),
            (Modes::STATUS, status.into()),
        ];
        let is_refused = |&(mode, value): &(Modes, i64)| modes.contains(mode) && value != 0;
        if refused.iter().any(is_refused) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    /// Returns the time of the wall clock after `SETOFFSET`.
    fn injected(&self, modes: Modes) -> Result<i64> {
        let unit = if modes.contains(Modes::NANO) { 1 } else { 1000 };
        let seconds = self.time.seconds.checked_mul(SECOND as i64).ok_or(Errno::EINVAL)?;
        let new = seconds.checked_add(self.time.microseconds * unit);
        let new = new.and_then(|offset| wall_nanoseconds().checked_add(offset)).ok_or(Errno::EINVAL)?;
        // Not earlier than the time since boot.
        let new = u64::try_from(new).ok().filter(|&new| new >= now()).ok_or(Errno::EINVAL)?;
        settable(new)
    }

    fn change(&self, modes: Modes, quality: &mut ClockQuality) {
        if modes.contains(Modes::ADJTIME) {
            return;
        }
        if modes.contains(Modes::STATUS) {
            let unsync = self.status & Status::UNSYNC.bits() != 0;
            quality.status.set(Status::UNSYNC, unsync);
        }
        if modes.contains(Modes::NANO) {
            quality.status |= Status::NANO;
        }
        if modes.contains(Modes::MICRO) {
            quality.status -= Status::NANO;
        }
        if modes.contains(Modes::MAXERROR) {
            quality.set_bound(self.most_error, now());
        }
        if modes.contains(Modes::ESTERROR) {
            quality.estimated_error = self.estimated_error.clamp(0, MOST_ERROR);
        }
        if modes.contains(Modes::TIMECONST) {
            let step = if quality.status.contains(Status::NANO) { 0 } else { 4 };
            quality.constant = (self.constant.clamp(0, MOST_CONSTANT) + step).min(MOST_CONSTANT);
        }
    }

    /// Returns the state for programs.
    fn tell(modes: u32, quality: &ClockQuality) -> Self {
        let wall = wall_nanoseconds();
        let unit = if quality.status.contains(Status::NANO) { 1 } else { 1000 };
        let second = SECOND as i64;
        Self {
            modes,
            pad: 0,
            offset: 0,
            frequency: 0,
            most_error: quality.bound_at(now()),
            estimated_error: quality.estimated_error,
            status: quality.status.bits(),
            pad2: 0,
            constant: quality.constant,
            precision: 1,
            tolerance: TOLERANCE,
            time: TimeVal { seconds: wall.div_euclid(second), microseconds: wall.rem_euclid(second) / unit },
            tick: TICK,
            pps_frequency: 0,
            jitter: 0,
            shift: 0,
            pad3: 0,
            pps: [0; 5],
            tai: 0,
            unused: [0; 11],
        }
    }
}

/// Performs the adjustment `asked`. Returns the resulting state, and the call's result.
fn adjust(asked: &UserClock) -> Result<(UserClock, i64)> {
    let modes = asked.checked_modes()?;
    asked.check_possible(modes)?;
    if modes.contains(Modes::SETOFFSET) {
        super::set_wall_for_all(asked.injected(modes)?);
    }
    Ok(adjust::with(|quality| {
        asked.change(modes, quality);
        let state = if quality.status.contains(Status::UNSYNC) { TIME_ERROR } else { TIME_OK };
        (UserClock::tell(asked.modes, quality), state)
    }))
}

fn adjust_at(place: UserPtr<UserClock>, asked: &UserClock) -> Result<i64> {
    let (told, state) = adjust(asked)?;
    place.write(&told)?;
    Ok(state)
}

/// adjtimex(clock)
pub fn sys_adjtimex(args: &Args) -> Result<i64> {
    let place = UserPtr::<UserClock>::new(args[0]);
    adjust_at(place, &place.read()?)
}

/// clock_adjtime(clock, state)
pub fn sys_clock_adjtime(args: &Args) -> Result<i64> {
    let place = UserPtr::<UserClock>::new(args[1]);
    let asked = place.read()?;
    Clock::new(args.int(0))?;
    if args.int(0) != REALTIME {
        return Err(Errno::EOPNOTSUPP);
    }
    adjust_at(place, &asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_linux_size() {
        assert_eq!(size_of::<UserClock>(), 208);
    }

    #[test]
    fn what_the_clock_cannot_do_is_refused_and_what_stays_is_not() {
        let asked = UserClock::tell(0, &adjust::with(|quality| *quality));
        let outcome = |modes, change: fn(&mut UserClock)| {
            let mut asked = asked;
            change(&mut asked);
            asked.check_possible(modes)
        };
        for modes in [Modes::OFFSET, Modes::FREQUENCY, Modes::TICK, Modes::STATUS] {
            assert_eq!(outcome(modes, |_| ()), Ok(()));
        }
        let no = Err(Errno::EOPNOTSUPP);
        assert_eq!(outcome(Modes::OFFSET, |asked| asked.offset = -1), no);
        assert_eq!(outcome(Modes::FREQUENCY, |asked| asked.frequency = 1), no);
        assert_eq!(outcome(Modes::TICK, |asked| asked.tick = 9999), no);
        assert_eq!(outcome(Modes::TAI, |asked| asked.constant = 37), no);
        assert_eq!(outcome(Modes::STATUS, |asked| asked.status = 0x10), no);
        let single = Modes::ADJTIME | Modes::OFFSET;
        assert_eq!(outcome(single, |asked| asked.offset = 5), no);
        assert_eq!(outcome(single | Modes::READONLY, |asked| asked.offset = 5), Ok(()));
    }
}
