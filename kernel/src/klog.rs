//! The kernel's log: a ring of records, fed by the `log` crate, read by /dev/kmsg, syslog(2) and
//! the host.
//!
//! Any context may log, interrupt handlers too: a record is formatted on the stack, then copied
//! into a static ring under an interrupt-safe lock. New records overwrite the oldest. Readers keep
//! a [`Cursor`] and learn how many they missed. Serial output happens outside the lock, so that a
//! slow line delays no other CPU.
//!
//! **No kernel address is in the ring.** Programs read the ring, and an address of the kernel half
//! reveals where the image or the direct map lies. [`redact`] replaces each such address by
//! asterisks before a record enters the ring, for root as well. The serial line to the host has the
//! text as it was logged. Linux' nearest relative is the hashing of `%p` (lib/vsprintf.c), which
//! leaves out numbers that are printed as such.

use core::fmt::{self, Write};

use freehold_collections::{Arc, reserve};

use crate::sync::{IrqSpinLock, WaitQueue};
use crate::{hw, time};

/// Bytes of the ring (SYSLOG_ACTION_SIZE_BUFFER returns this number).
pub const RING_BYTES: usize = 32 << 10;
/// Longest text of a record; longer text is cut.
pub const TEXT_BYTES: usize = 240;
/// Bytes of a record's header: length, severity and time. The text follows.
const HEADER_BYTES: usize = 2 + 1 + 8;

/// Severity as in syslog(3): 0 is the worst, 7 the least.
pub type Severity = u8;
/// Error conditions.
pub const ERROR: Severity = 3;
/// Warnings.
pub const WARNING: Severity = 4;
/// Notable conditions.
pub const NOTICE: Severity = 5;
/// Informational.
pub const INFO: Severity = 6;
/// For debugging.
pub const DEBUG: Severity = 7;

/// A copy of one record.
#[derive(Clone, Copy)]
pub struct LogRecord {
    /// The record's number; the first is 0.
    pub sequence: u64,
    /// The record's severity.
    pub severity: Severity,
    /// Nanoseconds since boot.
    pub time: u64,
    text: [u8; TEXT_BYTES],
    length: usize,
}

impl LogRecord {
    /// Returns the text, without a newline.
    pub fn text(&self) -> &[u8] {
        &self.text[..self.length]
    }
    /// Returns seconds and microseconds since boot.
    pub const fn stamp(&self) -> (u64, u64) {
        (self.time / 1_000_000_000, self.time / 1000 % 1_000_000)
    }
}

/// A reader's position in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// Number of the next record.
    pub sequence: u64,
    /// Position of that record, counted from boot without wrapping. Meaningless once the record was
    /// overwritten.
    position: u64,
}

/// Result of reading the log.
#[expect(
    clippy::large_enum_variant,
    reason = "a record is copied out under a lock, where nothing may be allocated"
)]
pub enum NextRecord {
    /// The next record.
    Record(LogRecord),
    /// This many records were overwritten before they were read; the cursor is past them.
    Missed(u64),
    /// There is no further record yet.
    End,
}

impl Cursor {
    /// The cursor of the first record since boot.
    pub const START: Self = Self { sequence: 0, position: 0 };
}

struct LogRing {
    bytes: [u8; RING_BYTES],
    /// Positions of the oldest record and of the end, in bytes written since boot.
    first: Cursor,
    end: Cursor,
}

impl LogRing {
    const fn new() -> Self {
        Self { bytes: [0; RING_BYTES], first: Cursor::START, end: Cursor::START }
    }

    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.bytes[(self.end.position % RING_BYTES as u64) as usize] = byte;
            self.end.position += 1;
        }
    }

    fn get(&self, position: u64, bytes: &mut [u8]) {
        for (place, at) in bytes.iter_mut().zip(position..) {
            *place = self.bytes[(at % RING_BYTES as u64) as usize];
        }
    }

    fn length_at(&self, position: u64) -> u64 {
        let mut length = [0; 2];
        self.get(position, &mut length);
        u64::from(u16::from_le_bytes(length))
    }

    fn add(&mut self, severity: Severity, time: u64, text: &[u8]) {
        let length = (HEADER_BYTES + text.len()) as u64;
        while self.end.position + length - self.first.position > RING_BYTES as u64 {
            self.first.position += self.length_at(self.first.position);
            self.first.sequence += 1;
        }
        self.put(&(length as u16).to_le_bytes());
        self.put(&[severity]);
        self.put(&time.to_le_bytes());
        self.put(text);
        self.end.sequence += 1;
    }

    fn next(&self, cursor: &mut Cursor) -> NextRecord {
        if cursor.sequence < self.first.sequence {
            let missed = self.first.sequence - cursor.sequence;
            *cursor = self.first;
            return NextRecord::Missed(missed);
        }
        if cursor.sequence >= self.end.sequence {
            *cursor = self.end;
            return NextRecord::End;
        }
        let mut header = [0; HEADER_BYTES];
        self.get(cursor.position, &mut header);
        let whole = self.length_at(cursor.position);
        let mut time = [0; 8];
        time.copy_from_slice(&header[3..]);
        let mut record = LogRecord {
            sequence: cursor.sequence,
            severity: header[2],
            time: u64::from_le_bytes(time),
            text: [0; TEXT_BYTES],
            length: whole as usize - HEADER_BYTES,
        };
        self.get(cursor.position + HEADER_BYTES as u64, &mut record.text[..record.length]);
        cursor.position += whole;
        cursor.sequence += 1;
        NextRecord::Record(record)
    }
}

static RING: IrqSpinLock<LogRing> = IrqSpinLock::new(LogRing::new());
/// The queue that every record wakes. [`init`] makes it: a poll needs a queue with a reference
/// count.
static ARRIVED: spin::Once<Arc<WaitQueue>> = spin::Once::new();

/// Returns the queue that every record wakes.
pub fn arrived() -> Arc<WaitQueue> {
    ARRIVED.call_once(|| reserve::arc(WaitQueue::new())).clone()
}

/// The cursor of the oldest record in the ring.
pub fn oldest() -> Cursor {
    RING.lock().first
}

/// The cursor after the newest record.
pub fn newest() -> Cursor {
    RING.lock().end
}

/// Returns the next record for a reader; advances the cursor.
pub fn next(cursor: &mut Cursor) -> NextRecord {
    RING.lock().next(cursor)
}

/// Text of bounded length on the stack; a longer text is cut.
struct LogText {
    text: [u8; TEXT_BYTES],
    length: usize,
}

impl Write for LogText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let count = text.len().min(TEXT_BYTES - self.length);
        self.text[self.length..self.length + count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

/// The first address of the kernel half.
const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;
/// The first digits of each address of the kernel half. The next digit has bit 3 set.
const KERNEL_PREFIX: &[u8] = b"ffff";

/// Replaces each number in `text` that is an address of the kernel half by asterisks. Such a number
/// is decimal, or hexadecimal with 16 digits. If `text` is cut, a possible beginning of such an
/// address at its end is replaced, too.
fn redact(text: &mut [u8], cut: Cut) {
    let end = text.len();
    let mut at = 0;
    while at < end {
        let run = text[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let word = &mut text[at..at + run];
        if is_kernel_address(word) || cut == Cut::Perhaps && at + run == end && may_begin_address(word) {
            word.fill(b'*');
        }
        at += run.max(1);
    }
}

/// Whether the text may continue after its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    Never,
    Perhaps,
}

fn is_kernel_address(digits: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(digits) else { return false };
    let is_high = |number: u64| number >= KERNEL_HALF;
    let decimal = text.parse().is_ok_and(is_high);
    decimal || u64::from_str_radix(text, 16).is_ok_and(is_high)
}

fn may_begin_address(digits: &[u8]) -> bool {
    let common = digits.len().min(KERNEL_PREFIX.len());
    // From three digits on, hardly anything else begins like this. Fewer digits do not reveal the
    // slide.
    digits.len() > 2 && digits[..common].eq_ignore_ascii_case(&KERNEL_PREFIX[..common])
        || digits.len() > 4 && digits.starts_with(b"1844")
}

/// Shows a line on the serial line alone, which only the host reads. For text that reveals the
/// addresses of the kernel.
pub fn tell_host(text: fmt::Arguments<'_>) {
    hw::print_serial(format_args!("{}{text}\n", Stamp(time::now())));
}

/// The time of a record, in the format of the serial line.
struct Stamp(u64);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:5}.{:06}] ", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

/// Adds a record without addresses, and shows the full text on the serial line.
pub fn add(severity: Severity, text: fmt::Arguments<'_>) {
    let mut line = LogText { text: [0; TEXT_BYTES], length: 0 };
    // Writing to a `LogText` cannot fail. If a `Display` fails, the text written so far is kept.
    let _ = line.write_fmt(text);
    let bytes = line.text[..line.length].trim_ascii_end();
    let time = time::now();
    let mut public = [0; TEXT_BYTES];
    let public = &mut public[..bytes.len()];
    public.copy_from_slice(bytes);
    redact(public, if line.length == TEXT_BYTES { Cut::Perhaps } else { Cut::Never });
    RING.lock().add(severity, time, public);
    let shown = core::str::from_utf8(bytes)
        .unwrap_or_else(|error| core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default());
    hw::print_serial(format_args!("{}{shown}\n", Stamp(time)));
    if let Some(arrived) = ARRIVED.get() {
        arrived.wake_all();
    }
}

struct KernelLogger;

impl log::Log for KernelLogger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }
    fn log(&self, record: &log::Record<'_>) {
        let severity = match record.level() {
            log::Level::Error => ERROR,
            log::Level::Warn => WARNING,
            log::Level::Info => INFO,
            log::Level::Debug | log::Level::Trace => DEBUG,
        };
        add(severity, *record.args());
    }
    fn flush(&self) {}
}

/// Lets the `log` crate's macros write here. Called once the heap works. Records before that are
/// lost.
pub fn init(level: log::LevelFilter) {
    arrived();
    if log::set_logger(&KernelLogger).is_ok() {
        log::set_max_level(level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    fn redacted(text: &str, cut: Cut) -> std::string::String {
        let mut bytes = text.as_bytes().to_vec();
        redact(&mut bytes, cut);
        std::string::String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn addresses_of_the_kernel_half_are_covered_however_they_are_written() {
        for address in [KERNEL_HALF, 0xffff_ffff_8123_4567, 0xffff_c900_0000_0008, u64::MAX] {
            for text in [
                std::format!("{address:#x}"),
                std::format!("at {address:x}."),
                std::format!("{address:X}"),
                std::format!("={address}"),
                std::format!("virt 0x00{address:x}, next"),
                std::format!("\"{address:#x}\"{address:#x}"),
            ] {
                let public = redacted(&text, Cut::Never);
                assert!(public.contains('*'), "{text}");
                assert!(!public.contains(|c: char| c.is_ascii_digit() && c != '0'), "{text}: {public}");
            }
        }
    }

    #[test]
    fn other_numbers_stay_as_they_are() {
        for text in [
            "0x7fffffffe000",
            "pfn 0x81234",
            "18446603336221196287",
            "ffff",
            "ffffffff",
            "cafe d00d 1234567890123456",
            "0123456789abcdef0123456789abcdef01234567",
            "sequence 99999999999999999999999",
        ] {
            assert_eq!(redacted(text, Cut::Never), text);
        }
    }

    #[test]
    fn the_beginning_of_an_address_at_the_cut_is_covered() {
        assert_eq!(redacted("rip 0xffffffff812", Cut::Perhaps), "rip 0x***********");
        assert_eq!(redacted("rip 0xfff", Cut::Perhaps), "rip 0x***");
        assert_eq!(redacted("at 184467440", Cut::Perhaps), "at *********");
        assert_eq!(redacted("0xffffffff812 more", Cut::Perhaps), "0xffffffff812 more");
        assert_eq!(redacted("pid 1234", Cut::Perhaps), "pid 1234");
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let mut ring = Box::new(LogRing::new());
        ring.add(INFO, 1_500_000_000, b"one");
        ring.add(ERROR, 2, b"");
        let mut cursor = Cursor::default();
        let NextRecord::Record(record) = ring.next(&mut cursor) else { panic!("a record") };
        assert_eq!((record.sequence, record.severity, record.text()), (0, INFO, &b"one"[..]));
        assert_eq!(record.stamp(), (1, 500_000));
        let NextRecord::Record(record) = ring.next(&mut cursor) else { panic!("a record") };
        assert_eq!((record.sequence, record.text()), (1, &b""[..]));
        assert!(matches!(ring.next(&mut cursor), NextRecord::End));
    }

    #[test]
    fn the_oldest_make_room_and_readers_learn_what_they_missed() {
        let mut ring = Box::new(LogRing::new());
        let mut cursor = Cursor::default();
        let text = [b'x'; TEXT_BYTES];
        let fit = RING_BYTES / (HEADER_BYTES + TEXT_BYTES);
        for _ in 0..fit + 7 {
            ring.add(DEBUG, 0, &text);
        }
        let NextRecord::Missed(7) = ring.next(&mut cursor) else { panic!("7 are gone") };
        let mut seen = Vec::new();
        while let NextRecord::Record(record) = ring.next(&mut cursor) {
            assert_eq!(record.text(), text);
            seen.push(record.sequence);
        }
        assert_eq!(seen, (7..fit as u64 + 7).collect::<Vec<_>>());
    }
}
