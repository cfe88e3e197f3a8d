//! Time namespaces: offsets of CLOCK_MONOTONIC and CLOCK_BOOTTIME (time_namespaces(7)).
//!
//! A process that makes a namespace stays outside, and its children are inside. It may set the
//! offsets until a process enters; from then on they never change. So a process keeps a copy of the
//! offsets ([`Process::time_offsets`](crate::task::Process::time_offsets)), and its program finds
//! them in a page of the vDSO, which is written when the first process enters. As in Linux 6.1,
//! a process enters by fork, clone or setns, and not by execve.
//!
//! Callers: fork, unshare, setns, clocks, /proc. Task context.

use arrayvec::ArrayVec;
use freehold_collections::{Arc, reserve};

use crate::mem::vdso::{self, OffsetsPage};
use crate::sync::SpinLock;
use crate::task::Capability;
use crate::task::credentials::Credentials;
use crate::task::userns::{NamespaceHead, NamespaceKind};
use crate::time::{self, SECOND};
use crate::{Errno, Result};

/// Nanoseconds that a process adds to the machine's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offsets {
    /// For CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW and CLOCK_MONOTONIC_COARSE.
    pub monotonic: i64,
    /// For CLOCK_BOOTTIME and CLOCK_BOOTTIME_ALARM.
    pub boottime: i64,
}

struct OffsetState {
    offsets: Offsets,
    /// Whether a process has entered: the offsets do not change any more.
    is_frozen: bool,
}

/// A time namespace.
pub struct TimeNamespace {
    head: NamespaceHead,
    state: SpinLock<OffsetState>,
    /// `None` for the initial namespace.
    page: Option<OffsetsPage>,
}

impl TimeNamespace {
    /// Returns the initial namespace.
    pub(super) fn initial() -> Arc<Self> {
        let state = OffsetState { offsets: Offsets::default(), is_frozen: true };
        let head = NamespaceHead::initial(NamespaceKind::Time);
        reserve::arc(Self { head, state: SpinLock::new(state), page: None })
    }

    /// Makes a namespace with the same offsets, which the user namespace of `maker` owns.
    ///
    /// # Errors
    /// `ENOSPC` if there are too many, `ENOMEM`.
    pub(super) fn copy(&self, maker: &Credentials) -> Result<Arc<Self>> {
        let head = NamespaceHead::new(NamespaceKind::Time, maker)?;
        let state = OffsetState { offsets: self.offsets(), is_frozen: false };
        Ok(reserve::arc(Self { head, state: SpinLock::new(state), page: Some(vdso::offsets_page()?) }))
    }

    /// Returns the part that every namespace has.
    pub const fn head(&self) -> &NamespaceHead {
        &self.head
    }

    /// Returns its offsets.
    pub fn offsets(&self) -> Offsets {
        if self.head.is_initial() { Offsets::default() } else { self.state.lock().offsets }
    }

    /// Returns the page of the vDSO for programs inside; `None` in the initial namespace.
    pub(in crate::task) fn page(&self) -> Option<OffsetsPage> {
        self.page.clone()
    }

    /// Makes the offsets permanent: a process enters.
    pub(in crate::task) fn freeze(&self) {
        let mut state = self.state.lock();
        if let Some(page) = self.page.as_ref().filter(|_| !state.is_frozen) {
            state.is_frozen = true;
            vdso::write_offsets(page, state.offsets.monotonic, state.offsets.boottime);
        }
    }

    /// Sets offsets by the text that is written to /proc/PID/timens_offsets, for a file that
    /// `opener` opened (Linux: `proc_timens_set_offset`).
    ///
    /// # Errors
    /// `EINVAL`; `EPERM` without CAP_SYS_TIME in the owner; `ERANGE` if a clock would be negative,
    /// or above 146 years; `EACCES` after a process has entered. No offset is changed then.
    pub fn write(&self, text: &[u8], opener: &Credentials) -> Result<()> {
        let lines = parse(text)?;
        if !opener.may_in(self.head.owner(), Capability::SysTime) {
            return Err(Errno::EPERM);
        }
        let now = time::now();
        let mut wanted = ArrayVec::<_, MOST_LINES>::new();
        for line in lines {
            wanted.push((line.clock, line.offset(now)?));
        }
        let mut state = self.state.lock();
        if state.is_frozen {
            return Err(Errno::EACCES);
        }
        for (clock, offset) in wanted {
            match clock {
                ShiftedClock::Monotonic => state.offsets.monotonic = offset,
                ShiftedClock::Boottime => state.offsets.boottime = offset,
            }
        }
        Ok(())
    }
}

/// A clock that has an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ShiftedClock {
    Monotonic,
    Boottime,
}

/// Most lines of one write. More are ignored.
const MOST_LINES: usize = 2;
/// Most seconds of an offset (Linux: KTIME_SEC_MAX).
const MOST_SECONDS: i64 = i64::MAX / SECOND as i64;

/// A line of /proc/PID/timens_offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OffsetLine {
    clock: ShiftedClock,
    /// Saturated.
    seconds: i64,
    /// Below a second.
    nanoseconds: u64,
}

impl OffsetLine {
    /// Returns the offset in nanoseconds, for a clock that shows `now` without an offset.
    ///
    /// # Errors
    /// `ERANGE` if the clock would be negative, or so large that it could overflow.
    fn offset(self, now: u64) -> Result<i64> {
        if !(-MOST_SECONDS..=MOST_SECONDS).contains(&self.seconds) {
            return Err(Errno::ERANGE);
        }
        let second = i128::from(SECOND);
        let offset = i128::from(self.seconds) * second + i128::from(self.nanoseconds);
        let shown = (offset + i128::from(now)).div_euclid(second);
        if !(0..=i128::from(MOST_SECONDS / 2)).contains(&shown) {
            return Err(Errno::ERANGE);
        }
        i64::try_from(offset).map_err(|_| Errno::ERANGE)
    }
}

/// Reads a decimal number, after blanks: whether it is negative, its value (saturated), and the
/// rest of the text.
fn number(text: &[u8]) -> Result<(bool, u64, &[u8])> {
    let text = text.trim_ascii_start();
    let (is_negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return Err(Errno::EINVAL);
    }
    let step = |value: u64, digit: &u8| value.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Ok((is_negative, text[..digits].iter().fold(0, step), &text[digits..]))
}

/// Reads lines of a clock, seconds and nanoseconds. As on Linux, the rest of a line is ignored.
///
/// # Errors
/// `EINVAL` if a line has another form, or there is none.
fn parse(text: &[u8]) -> Result<ArrayVec<OffsetLine, MOST_LINES>> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut lines = ArrayVec::new();
    for line in text.split(|&byte| byte == b'\n').take(MOST_LINES) {
        let line = line.trim_ascii_start();
        let (name, rest) = line.split_at(line.iter().position(u8::is_ascii_whitespace).ok_or(Errno::EINVAL)?);
        let clock = match name {
            b"monotonic" | b"1" => ShiftedClock::Monotonic,
            b"boottime" | b"7" => ShiftedClock::Boottime,
            _ => return Err(Errno::EINVAL),
        };
        let (is_negative, seconds, rest) = number(rest)?;
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let (below_zero, nanoseconds, _) = number(rest)?;
        if below_zero || nanoseconds >= SECOND {
            return Err(Errno::EINVAL);
        }
        let seconds = if is_negative { -seconds } else { seconds };
        lines.push(OffsetLine { clock, seconds, nanoseconds });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_that_linux_accepts() {
        let line = |clock, seconds, nanoseconds| OffsetLine { clock, seconds, nanoseconds };
        let one = parse(b"monotonic 5 999999999 junk\n").unwrap();
        assert_eq!(one.as_slice(), [line(ShiftedClock::Monotonic, 5, 999_999_999)]);
        assert_eq!(parse(b"  1   -16   1").unwrap().as_slice(), [line(ShiftedClock::Monotonic, -16, 1)]);
        let two = parse(b"7 8 2\nmonotonic\t6 1\n1 7 7\n").unwrap();
        let wanted = [line(ShiftedClock::Boottime, 8, 2), line(ShiftedClock::Monotonic, 6, 1)];
        assert_eq!(two.as_slice(), wanted);
        assert_eq!(parse(b"1 99999999999999999999999 0").unwrap()[0].seconds, i64::MAX);
        for wrong in [
            "",
            "\n",
            "monotonic 5\n",
            "monotonic 5 1000000000",
            "monotonic 5 -1",
            "monotonicx 5 1",
            "2 5 1",
            "realtime 5 1",
            "1 6 1\n\n7 8 2\n",
            "1 0x10 0",
            "1 +5 0",
            "monotonic",
            "\n1 5 1",
        ] {
            assert_eq!(parse(wrong.as_bytes()), Err(Errno::EINVAL), "{wrong:?}");
        }
    }

    #[test]
    fn a_clock_is_never_negative_or_above_its_range() {
        let offset = |seconds, nanoseconds, now| {
            OffsetLine { clock: ShiftedClock::Monotonic, seconds, nanoseconds }.offset(now)
        };
        assert_eq!(offset(-5, 1, 5 * SECOND), Ok(-5 * SECOND as i64 + 1));
        assert_eq!(offset(-6, 0, 5 * SECOND), Err(Errno::ERANGE));
        assert_eq!(offset(-6, 999_999_999, 5 * SECOND + 1), Ok(-5 * SECOND as i64 - 1));
        assert_eq!(offset(MOST_SECONDS / 2, 0, 0), Ok(MOST_SECONDS / 2 * SECOND as i64));
        assert_eq!(offset(MOST_SECONDS / 2, 0, SECOND), Err(Errno::ERANGE));
        for seconds in [MOST_SECONDS, MOST_SECONDS + 1, i64::MAX, -MOST_SECONDS - 1, -i64::MAX] {
            assert_eq!(offset(seconds, 0, u64::MAX / 4), Err(Errno::ERANGE), "{seconds}");
        }
    }
}
