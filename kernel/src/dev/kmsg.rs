//! /dev/kmsg and syslog(2): the kernel's log for programs that have CAP_SYSLOG, as on a Linux with
//! `kernel.dmesg_restrict=1` (kernel/printk/printk.c, `check_syslog_permissions`).

use core::fmt::{self, Write};

use freehold_collections::{Arc, String, Vec, reserve};

use crate::fs::{Blocking, File, Node, OpenFlags, Ready};
use crate::klog::{self, Cursor, LogRecord, NextRecord};
use crate::sync::{PollWaiter, SpinLock};
use crate::syscall::Args;
use crate::task::Capability;
use crate::user::{Sink, Source, UserSlice, so_far};
use crate::{Errno, Result, task};

/// An open log file. Every description reads from the oldest record on.
struct LogFile {
    node: Arc<dyn Node>,
    cursor: SpinLock<Cursor>,
}

/// Returns `EPERM` unless the caller may read the log: with CAP_SYSLOG, or with CAP_SYS_ADMIN,
/// which Linux 6.1 still accepts for this.
fn check_permission() -> Result<()> {
    let task = task::current();
    let credentials = task.process().credentials();
    let may = credentials.may(Capability::Syslog) || credentials.may(Capability::SysAdmin);
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// Opens /dev/kmsg.
///
/// # Errors
/// `EPERM` if the file is to be read and the caller may not read the log, whatever the file's mode.
pub fn open(node: Arc<dyn Node>, _minor: u32, flags: OpenFlags) -> Result<Arc<dyn File>> {
    if flags.reads() {
        check_permission()?;
    }
    Ok(reserve::arc(LogFile { node, cursor: SpinLock::new(klog::oldest()) }))
}

/// Replaces the content of `line` by a line of the log: a head, the record's text with unprintable
/// bytes escaped, a line feed.
///
/// # Errors
/// `ENOMEM`. A reused buffer does not grow without limit: a text has at most [`klog::TEXT_BYTES`].
fn make_line(line: &mut Vec<u8>, head: fmt::Arguments<'_>, record: &LogRecord) -> Result<()> {
    line.clear();
    let write = |line: &mut Vec<u8>| {
        line.write_fmt(head)?;
        for &byte in record.text() {
            match byte {
                b' '..=b'~' if byte != b'\\' => line.write_char(char::from(byte))?,
                _ => write!(line, "\\x{byte:02x}")?,
            }
        }
        line.write_char('\n')
    };
    write(line).map_err(|_| Errno::ENOMEM)
}

fn has_more(cursor: &Cursor) -> bool {
    cursor.sequence < klog::newest().sequence
}

impl File for LogFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let mut line = Vec::new();
        loop {
            let mut cursor = *self.cursor.lock();
            match klog::next(&mut cursor) {
                NextRecord::Record(record) => {
                    let (severity, sequence, micros) = (record.severity, record.sequence, record.time / 1000);
                    make_line(&mut line, format_args!("{severity},{sequence},{micros},-;"), &record)?;
                    if sink.remaining() < line.len() {
                        return Err(Errno::EINVAL);
                    }
                    *self.cursor.lock() = cursor;
                    return sink.put(&line);
                }
                NextRecord::Missed(_) => {
                    *self.cursor.lock() = cursor;
                    return Err(Errno::EPIPE);
                }
                NextRecord::End if blocking == Blocking::Never => return Err(Errno::EAGAIN),
                NextRecord::End => klog::arrived().wait_until(|| has_more(&cursor).then_some(()))?,
            }
        }
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        let mut line = [0; klog::TEXT_BYTES];
        let total = source.remaining();
        let count = source.take(&mut line)?;
        let (severity, text) = severity_of(&line[..count]);
        klog::add(severity, format_args!("{}", String::try_from_utf8_lossy(text)?));
        Ok(total)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&klog::arrived());
        }
        let mut ready = Ready::OUT;
        ready.set(Ready::IN, has_more(&self.cursor.lock()));
        ready
    }
}

/// Returns severity and text of a line that may begin with `<N>`.
fn severity_of(line: &[u8]) -> (klog::Severity, &[u8]) {
    let parsed = line.strip_prefix(b"<").and_then(|rest| {
        let end = rest.iter().position(|&byte| byte == b'>')?;
        let number: u32 = core::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        Some(((number & 7) as u8, &rest[end + 1..]))
    });
    let (severity, text) = parsed.unwrap_or((klog::WARNING, line));
    (severity, text.trim_ascii_end())
}

/// The position of SYSLOG_ACTION_READ, and that of the last SYSLOG_ACTION_CLEAR.
static READ: SpinLock<Cursor> = SpinLock::new(Cursor::START);
static CLEARED: SpinLock<Cursor> = SpinLock::new(Cursor::START);

fn cleared() -> Cursor {
    *CLEARED.lock()
}

fn syslog_line(line: &mut Vec<u8>, record: &LogRecord) -> Result<()> {
    let (seconds, micros) = record.stamp();
    make_line(line, format_args!("<{}>[{seconds:5}.{micros:06}] ", record.severity), record)
}

/// Returns the number of bytes of all lines from `cursor` on.
fn size_from(mut cursor: Cursor, line: &mut Vec<u8>) -> Result<usize> {
    let mut total = 0;
    loop {
        match klog::next(&mut cursor) {
            NextRecord::Record(record) => {
                syslog_line(line, &record)?;
                total += line.len();
            }
            NextRecord::Missed(_) => {}
            NextRecord::End => return Ok(total),
        }
    }
}

/// Reads the newest lines from `cursor` on that fit.
fn read_all(mut cursor: Cursor, sink: &mut dyn Sink) -> Result<usize> {
    let mut line = Vec::new();
    let mut skip = size_from(cursor, &mut line)?.saturating_sub(sink.remaining());
    let mut done = 0;
    loop {
        match klog::next(&mut cursor) {
            NextRecord::Record(record) => {
                syslog_line(&mut line, &record)?;
                if skip > 0 {
                    skip = skip.saturating_sub(line.len());
                } else {
                    if sink.remaining() < line.len() {
                        return Ok(done);
                    }
                    done += sink.put(&line)?;
                }
            }
            NextRecord::Missed(_) => {}
            NextRecord::End => return Ok(done),
        }
    }
}

/// Waits for a record and reads lines.
fn read_next(sink: &mut dyn Sink) -> Result<usize> {
    let mut line = Vec::new();
    let mut done = 0;
    loop {
        let mut cursor = *READ.lock();
        match klog::next(&mut cursor) {
            NextRecord::Record(record) => {
                if let Err(error) = syslog_line(&mut line, &record) {
                    return so_far(done, error);
                }
                if line.len() > sink.remaining() {
                    return so_far(done, Errno::EINVAL);
                }
                *READ.lock() = cursor;
                done += sink.put(&line)?;
            }
            NextRecord::Missed(_) => *READ.lock() = cursor,
            NextRecord::End if done > 0 => return Ok(done),
            NextRecord::End => klog::arrived().wait_until(|| has_more(&cursor).then_some(()))?,
        }
    }
}

/// syslog(type, buffer, length)
///
/// # Errors
/// As in the manual.
pub fn sys_syslog(args: &Args) -> Result<i64> {
    check_permission()?;
    let length = args.int(2);
    let mut sink = UserSlice::new(args[1], usize::try_from(length).unwrap_or(0));
    let action = args.int(0);
    if matches!(action, 2..=4) && (length < 0 || args[1] == 0) {
        return Err(Errno::EINVAL);
    }
    if matches!(action, 2..=4) && length == 0 {
        return Ok(0);
    }
    let count = match action {
        0 | 1 | 6 | 7 => 0,
        2 => read_next(&mut sink)?,
        3 | 4 => {
            // Accesses to the program's memory may sleep, so no lock is held meanwhile.
            let (from, end) = (cleared(), klog::newest());
            let count = read_all(from, &mut sink)?;
            if action == 4 {
                *CLEARED.lock() = end;
            }
            count
        }
        5 => {
            *CLEARED.lock() = klog::newest();
            0
        }
        8 if (1..=8).contains(&length) => 0,
        9 => {
            let from = *READ.lock();
            size_from(from, &mut Vec::new())?
        }
        10 => klog::RING_BYTES,
        _ => return Err(Errno::EINVAL),
    };
    Ok(count as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_severity_in_front_of_a_line_is_taken_off() {
        assert_eq!(severity_of(b"<3>disk on fire\n"), (3, &b"disk on fire"[..]));
        assert_eq!(severity_of(b"<30>daemon\n"), (6, &b"daemon"[..]));
        assert_eq!(severity_of(b"plain"), (klog::WARNING, &b"plain"[..]));
        assert_eq!(severity_of(b"<x>odd"), (klog::WARNING, &b"<x>odd"[..]));
    }
}
