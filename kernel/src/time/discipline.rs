//! How adjtimex(2) changes the rate of the wall clock, second by second (Linux:
//! kernel/time/ntp.c): a frequency, a length of the tick, an offset that is corrected gradually,
//! and leap seconds. Nothing here reads a clock: the wall clock ([`wall`](super::wall)) tells when
//! one of its seconds ends.

use bitflags::bitflags;

bitflags! {
    /// STA_*: the state bits of the clock. There is no PPS signal.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Status: i32 {
        /// Offsets are corrected by the control loop.
        const PLL = 0x1;
        /// The control loop changes the frequency, and not the phase.
        const FLL = 0x8;
        /// A second is inserted at the end of the day (UTC).
        const INSERT = 0x10;
        /// The last second of the day is left out.
        const DELETE = 0x20;
        /// No program synchronizes the clock.
        const UNSYNC = 0x40;
        /// The frequency stays when an offset is set.
        const HOLD = 0x80;
        /// Times are reported in nanoseconds, not in microseconds.
        const NANO = 0x2000;
        /// The frequency was derived from offsets that are far apart.
        const MODE = 0x4000;
        /// Other bits that programs set: PPS.
        const REST = 0x6;
        /// Bits that only the kernel sets.
        const READ_ONLY = 0xff00;
    }
}

/// Microseconds per tick, at 100 ticks per second.
pub const TICK: i64 = 10_000;
/// The largest time constant (MAXTC).
pub const MOST_CONSTANT: i64 = 10;
/// The largest frequency (MAXFREQ): 500 ppm.
const MOST_FREQUENCY: i64 = 500_000 << SCALE;
/// The largest offset, in nanoseconds (MAXPHASE).
const MOST_OFFSET: i64 = 500_000_000;
/// Microseconds per second by which adjtime(3) corrects (MAX_TICKADJ).
const MOST_SINGLE: i64 = 500;
/// Fractional bits of the fields below.
pub const SCALE: u32 = 32;
/// The control loop's time constant is 2^(this and [`Discipline::constant`]) seconds (SHIFT_PLL).
const SHIFT_PLL: u32 = 2;
const SHIFT_FLL: u32 = 2;
const SECONDS_PER_DAY: i64 = 86_400;
const NEVER: i64 = i64::MAX;

/// TIME_*: the progress of a leap second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leap {
    /// None is near.
    None = 0,
    /// A second will be inserted.
    Insert = 1,
    /// A second will be left out.
    Delete = 2,
    /// The inserted second.
    InProgress = 3,
    /// It has passed; the program has not cleared its bit.
    Wait = 4,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discipline {
    /// The state bits.
    pub status: Status,
    /// The progress of a leap second.
    pub leap: Leap,
    /// The second at whose beginning the clock leaps.
    next_leap: i64,
    /// Microseconds per tick, [`TICK`] at the clock's own rate.
    pub tick: i64,
    /// Nanoseconds per second, << [`SCALE`].
    frequency: i64,
    /// The rest of the offset in nanoseconds, << [`SCALE`].
    offset: i64,
    /// The time constant of the control loop.
    pub constant: i64,
    /// The second in which the last offset was set.
    reference: i64,
    /// The rest of the correction of adjtime(3), in microseconds.
    pub single: i64,
    /// Nanoseconds by which this second is corrected, << [`SCALE`].
    step: i64,
}

impl Discipline {
    /// The state at boot.
    pub const INITIAL: Self = Self {
        status: Status::UNSYNC,
        leap: Leap::None,
        next_leap: NEVER,
        tick: TICK,
        frequency: 0,
        offset: 0,
        constant: 2,
        reference: 0,
        single: 0,
        step: 0,
    };

    /// Returns the nanoseconds per second by which the clock is faster in this second, <<
    /// [`SCALE`].
    pub const fn rate(&self) -> i64 {
        ((self.tick - TICK) * 100_000 << SCALE) + self.frequency + self.step
    }

    /// Whether anything changes at the end of a second, or the rate is not the clock's own.
    pub fn is_active(&self) -> bool {
        let leaps = self.status.intersects(Status::INSERT | Status::DELETE) || self.leap != Leap::None;
        leaps || self.rate() != 0 || self.part_of_offset() != 0 || self.single != 0
    }

    /// Returns the part of the offset that the next second corrects.
    fn part_of_offset(&self) -> i64 {
        self.offset / (1 << self.shift())
    }

    fn shift(&self) -> u32 {
        SHIFT_PLL + self.constant as u32
    }

    /// The second `second` of the wall clock begins. Returns the seconds to add to the clock
    /// (Linux: `second_overflow`).
    pub fn second(&mut self, second: i64) -> i64 {
        let step = self.leap_at(second);
        self.step = self.part_of_offset();
        self.offset -= self.step;
        let single = self.single.clamp(-MOST_SINGLE, MOST_SINGLE);
        self.single -= single;
        self.step += single * 1000 << SCALE;
        step
    }

    fn leap_at(&mut self, second: i64) -> i64 {
        let (inserts, deletes) = (self.status.contains(Status::INSERT), self.status.contains(Status::DELETE));
        let end_of_day = |second: i64| second + SECONDS_PER_DAY - second.rem_euclid(SECONDS_PER_DAY);
        match self.leap {
            Leap::None if inserts => (self.leap, self.next_leap) = (Leap::Insert, end_of_day(second)),
            Leap::None if deletes => (self.leap, self.next_leap) = (Leap::Delete, end_of_day(second + 1) - 1),
            Leap::None => {}
            Leap::Insert if !inserts => (self.leap, self.next_leap) = (Leap::None, NEVER),
            Leap::Delete if !deletes => (self.leap, self.next_leap) = (Leap::None, NEVER),
            Leap::Insert if second == self.next_leap => {
                self.leap = Leap::InProgress;
                return -1;
            }
            Leap::Delete if second == self.next_leap => {
                (self.leap, self.next_leap) = (Leap::Wait, NEVER);
                return 1;
            }
            Leap::Insert | Leap::Delete => {}
            Leap::InProgress => (self.leap, self.next_leap) = (Leap::Wait, NEVER),
            Leap::Wait if !inserts && !deletes => self.leap = Leap::None,
            Leap::Wait => {}
        }
        0
    }

    /// The clock was set: corrections under way end (Linux: `ntp_clear`).
    pub fn forget(&mut self) {
        self.status |= Status::UNSYNC;
        (self.single, self.offset, self.step, self.next_leap) = (0, 0, 0, NEVER);
        if matches!(self.leap, Leap::Insert | Leap::Delete) {
            self.leap = Leap::None;
        }
    }

    /// Sets the bits that programs set, in the second `now` (Linux: `process_adj_status`).
    pub fn set_status(&mut self, wanted: i32, now: i64) {
        let wanted = Status::from_bits_truncate(wanted) - Status::READ_ONLY;
        if self.status.contains(Status::PLL) && !wanted.contains(Status::PLL) {
            (self.leap, self.next_leap) = (Leap::None, NEVER);
            self.status = Status::UNSYNC;
        } else if wanted.contains(Status::PLL) && !self.status.contains(Status::PLL) {
            self.reference = now;
        }
        self.status = self.status & Status::READ_ONLY | wanted;
    }

    /// Returns the frequency in millionths, << 16, as programs have it.
    pub const fn frequency(&self) -> i64 {
        self.frequency / (1000 << 16)
    }

    /// Sets [`frequency`](Self::frequency), to at most 500 ppm.
    pub fn set_frequency(&mut self, frequency: i64) {
        let wanted = frequency.saturating_mul(1000 << 16);
        self.frequency = wanted.clamp(-MOST_FREQUENCY, MOST_FREQUENCY);
    }

    /// Returns the rest of the offset, in the unit of reported times.
    pub fn offset(&self) -> i64 {
        let nanoseconds = self.offset >> SCALE;
        if self.status.contains(Status::NANO) { nanoseconds } else { nanoseconds / 1000 }
    }

    /// Sets an offset to correct, in the unit of reported times, in the second `now`. It is ignored
    /// without [`Status::PLL`] (Linux: `ntp_update_offset`).
    pub fn set_offset(&mut self, offset: i64, now: i64) {
        if !self.status.contains(Status::PLL) {
            return;
        }
        let offset = if self.status.contains(Status::NANO) { offset } else { offset.saturating_mul(1000) };
        let offset = offset.clamp(-MOST_OFFSET, MOST_OFFSET);
        let seconds = if self.status.contains(Status::HOLD) { 0 } else { (now - self.reference).max(0) };
        self.reference = now;
        let far = if self.status.contains(Status::FLL) { seconds >= 256 } else { seconds > 2048 };
        self.status.set(Status::MODE, far);
        let mut change = if far { (offset << (SCALE - SHIFT_FLL)) / seconds } else { 0 };
        let most = 1 << (SHIFT_PLL + 1 + self.constant as u32);
        let shift = SCALE as i32 - 2 * (self.shift() + 2) as i32;
        let product = i128::from(offset * seconds.min(most));
        let by_phase = if shift >= 0 { product << shift } else { product >> -shift };
        change += by_phase as i64;
        self.frequency = (self.frequency + change).clamp(-MOST_FREQUENCY, MOST_FREQUENCY);
        self.offset = offset << SCALE;
    }

    /// Sets the time constant, by the number that programs pass.
    pub fn set_constant(&mut self, constant: i64) {
        let more = if self.status.contains(Status::NANO) { 0 } else { 4 };
        self.constant = (constant.clamp(0, MOST_CONSTANT) + more).min(MOST_CONSTANT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_corrected_by_shrinking_parts_and_changes_the_frequency() {
        let mut clock = Discipline { status: Status::PLL | Status::NANO, constant: 0, ..Discipline::INITIAL };
        clock.set_offset(4000, 0);
        assert_eq!((clock.offset(), clock.rate(), clock.is_active()), (4000, 0, true));
        let mut corrected = 0;
        for second in 1..=100 {
            assert_eq!(clock.second(second), 0);
            corrected += clock.rate() >> SCALE;
        }
        assert!((3900..=4000).contains(&corrected), "{corrected}");
        clock.set_offset(1_000_000, 116);
        assert!(clock.frequency() > 0);
        clock.status = Status::empty();
        clock.set_offset(5, 117);
        assert_ne!(clock.offset(), 5, "without the loop an offset is ignored");
    }

    #[test]
    fn adjtime_corrects_half_a_millisecond_per_second() {
        let mut clock = Discipline { single: -1200, ..Discipline::INITIAL };
        let steps: [i64; 4] = core::array::from_fn(|second| {
            clock.second(second as i64);
            clock.rate() >> SCALE
        });
        assert_eq!(steps, [-500_000, -500_000, -200_000, 0]);
        assert!(!clock.is_active());
    }

    #[test]
    fn frequency_and_tick_are_rates_with_bounds() {
        let mut clock = Discipline::INITIAL;
        clock.set_frequency(100 << 16);
        assert_eq!((clock.rate() >> SCALE, clock.frequency()), (100_000, 100 << 16));
        clock.set_frequency(i64::MIN);
        assert_eq!(clock.frequency(), -500 << 16);
        (clock.frequency, clock.tick) = (0, 11_000);
        assert_eq!(clock.rate() >> SCALE, 100_000_000);
    }

    #[test]
    fn a_second_is_inserted_or_left_out_at_the_end_of_the_day() {
        let mut clock = Discipline::INITIAL;
        clock.set_status(0x10, 0);
        let end = 3 * SECONDS_PER_DAY;
        assert_eq!((clock.second(end - 2), clock.leap), (0, Leap::Insert));
        assert_eq!((clock.second(end - 1), clock.second(end), clock.leap), (0, -1, Leap::InProgress));
        assert_eq!((clock.second(end), clock.leap), (0, Leap::Wait));
        clock.set_status(0, end);
        assert_eq!((clock.second(end + 1), clock.leap, clock.is_active()), (0, Leap::None, false));
        clock.set_status(0x20, end);
        assert_eq!((clock.second(end + 2), clock.leap), (0, Leap::Delete));
        assert_eq!((clock.second(2 * end / 3 * 2 - 1), clock.leap), (1, Leap::Wait));
        clock.set_status(1, 0);
        clock.set_status(0, 0);
        assert_eq!((clock.leap, clock.status), (Leap::None, Status::empty()));
    }
}
