//! adjtimex and clock_adjtime: all programs may read the clock's state. CAP_SYS_TIME permits
//! changes ([`crate::time::discipline`], [`crate::time::adjust`]).
//!
//! An offset of CLOCK_TAI other than 0 is `EOPNOTSUPP`, and such a call changes nothing. There is
//! no PPS signal.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{may_set_time, settable};
use crate::syscall::Args;
use crate::task::clock::{Clock, REALTIME};
use crate::time::adjust::MOST_ERROR;
use crate::time::discipline::{Status, TICK};
use crate::time::wall::{self, WallClock};
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

/// One millionth, in the unit of frequencies, which have 16 fractional bits.
const PPM: i64 = 1 << 16;
/// The largest rate by which Linux would slew the clock.
const TOLERANCE: i64 = 500 * PPM;
/// The largest frequency that Linux accepts: multiplied by its PPM_SCALE, more would overflow 64
/// bits.
const MOST_FREQUENCY: i64 = i64::MAX / (1000 << 16);

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

    /// Changes the clock (Linux: `process_adjtimex_modes`). `now` is the time since boot.
    fn change(&self, modes: Modes, clock: &mut WallClock, now: u64) {
        let second = clock.at(now).div_euclid(SECOND as i64);
        let WallClock { discipline, quality, .. } = clock;
        if modes.contains(Modes::ADJTIME) {
            if !modes.contains(Modes::READONLY) {
                discipline.single = self.offset;
            }
            return;
        }
        if modes.contains(Modes::STATUS) {
            discipline.set_status(self.status, second);
        }
        if modes.contains(Modes::NANO) {
            discipline.status |= Status::NANO;
        }
        if modes.contains(Modes::MICRO) {
            discipline.status -= Status::NANO;
        }
        if modes.contains(Modes::FREQUENCY) {
            discipline.set_frequency(self.frequency);
        }
        if modes.contains(Modes::MAXERROR) {
            quality.set_bound(self.most_error, now);
        }
        if modes.contains(Modes::ESTERROR) {
            quality.estimated_error = self.estimated_error.clamp(0, MOST_ERROR);
        }
        if modes.contains(Modes::TIMECONST) {
            discipline.set_constant(self.constant);
        }
        if modes.contains(Modes::OFFSET) {
            discipline.set_offset(self.offset, second);
        }
        if modes.contains(Modes::TICK) {
            discipline.tick = self.tick;
        }
    }

    /// Returns the state for programs.
    fn tell(modes: u32, clock: &WallClock, now: u64) -> Self {
        let (wall, discipline, quality) = (clock.at(now), &clock.discipline, &clock.quality);
        let unit = if discipline.status.contains(Status::NANO) { 1 } else { 1000 };
        let second = SECOND as i64;
        Self {
            modes,
            pad: 0,
            offset: discipline.offset(),
            frequency: discipline.frequency(),
            most_error: quality.bound_at(now),
            estimated_error: quality.estimated_error,
            status: discipline.status.bits(),
            pad2: 0,
            constant: discipline.constant,
            precision: 1,
            tolerance: TOLERANCE,
            time: TimeVal { seconds: wall.div_euclid(second), microseconds: wall.rem_euclid(second) / unit },
            tick: discipline.tick,
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
    if !modes.contains(Modes::ADJTIME) && modes.contains(Modes::TAI) && asked.constant != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if modes.contains(Modes::SETOFFSET) {
        super::set_wall_for_all(asked.injected(modes)?);
    }
    if !modes.is_empty() {
        wall::start()?;
    }
    Ok(wall::with(|clock, now| {
        let single = clock.discipline.single;
        asked.change(modes, clock, now);
        let state = match clock.discipline.status.contains(Status::UNSYNC) {
            true => TIME_ERROR,
            false => clock.discipline.leap as i64,
        };
        let mut told = UserClock::tell(asked.modes, clock, now);
        if modes.contains(Modes::ADJTIME) {
            told.offset = single;
        }
        (told, state)
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
}
