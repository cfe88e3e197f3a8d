//! The tracepoint `syscall_text`: texts in a program's memory to which a system call's arguments
//! point.
//!
//! Texts that a call reads are recorded before it begins, since after execve the memory does not
//! exist any more. Bytes that a call fills are recorded after its end. All of this runs only if
//! `sys_enter` or `sys_exit` is on. An address that cannot be read has no event. The program may
//! change a text between its event and the call, so no decision may be based on a text. Linux'
//! nearest relative is the output of strace, which reads the same bytes through ptrace.

use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::calls::{ArgumentKind, arguments};
use freehold_tracepoints::table::SyscallText;

use crate::hw::{Faults, PAGE, read_user};
use crate::tracing;
use crate::user::UserPtr;

/// Largest number of bytes of a path or another text.
const MOST_TEXT: usize = 512;
/// Largest number of bytes of data, and of a text in a vector.
const MOST_BYTES: usize = 32;
/// Largest number of texts of a vector.
const MOST_PARTS: u32 = 32;
/// Number of words of an event before its bytes.
const HEAD: usize = 2;

/// Records the texts that a call reads, before it runs. Called while the event is on.
#[inline(never)]
pub fn entered(number: u64, values: [u64; 6]) {
    each(number, values, |arg, kind| match kind {
        ArgumentKind::Path | ArgumentKind::Text => text((arg, 0), values[arg], MOST_TEXT),
        ArgumentKind::Vector => vector(arg, values[arg]),
        ArgumentKind::In(length) => bytes(arg, values[arg], values[usize::from(length)]),
        _ => {}
    });
}

/// Records the bytes that a call filled. Called while the event is on. `result` is its value.
#[inline(never)]
pub fn left(number: u64, values: [u64; 6], result: i64) {
    let Ok(length @ 1..) = u64::try_from(result) else { return };
    each(number, values, |arg, kind| match kind {
        ArgumentKind::Out => bytes(arg, values[arg], length),
        ArgumentKind::OutText => text((arg, 0), values[arg], MOST_TEXT),
        _ => {}
    });
}

/// Visits the arguments of a call.
fn each(number: u64, values: [u64; 6], mut visit: impl FnMut(usize, ArgumentKind)) {
    for (arg, &kind) in arguments(number).into_iter().flatten().enumerate() {
        if values[arg] != 0 {
            visit(arg, kind);
        }
    }
}

/// Records the text at `address`, without the zero byte at its end.
fn text(place: (usize, u32), address: u64, most: usize) {
    let mut buffer = [0; MOST_TEXT];
    // Page by page: the page after the one in which the text ends is not accessed.
    let (mut taken, mut end) = (0, None);
    while taken < most && end.is_none() {
        let at = address.wrapping_add(taken as u64);
        let piece = (most - taken).min((PAGE - at % PAGE) as usize);
        let into = &mut buffer[taken..taken + piece];
        let read = read_user(at, into, Faults::Sleep);
        end = into[..read].iter().position(|&byte| byte == 0).map(|zero| taken + zero);
        taken += read;
        if read < piece && end.is_none() {
            return;
        }
    }
    record(place, &buffer[..end.unwrap_or(taken)], u32::from(end.is_none()));
}

/// Records the beginning of `length` bytes at `address`.
fn bytes(arg: usize, address: u64, length: u64) {
    let mut buffer = [0; MOST_BYTES];
    let wanted = length.min(MOST_BYTES as u64) as usize;
    if read_user(address, &mut buffer[..wanted], Faults::Sleep) == wanted {
        record((arg, 0), &buffer[..wanted], u32::from(length > wanted as u64));
    }
}

/// Records the texts in the vector of addresses at `address`. If there are too many, the last event
/// has no text.
fn vector(arg: usize, address: u64) {
    for part in 0..=MOST_PARTS {
        match UserPtr::<u64>::new(address).add(part as usize).read() {
            Err(_) | Ok(0) => return,
            Ok(_) if part == MOST_PARTS => record((arg, part), b"", 1),
            Ok(at) => text((arg, part), at, MOST_BYTES),
        }
    }
}

/// Records an event with `bytes` after its fields.
fn record((arg, part): (usize, u32), bytes: &[u8], more: u32) {
    let event = SyscallText { arg: arg as u32, part, taken: bytes.len() as u32, more, buf: () };
    let mut words = [0; HEAD + MOST_TEXT / 8];
    words[..HEAD].copy_from_slice(&event.words());
    for (word, bytes) in words[HEAD..].iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    tracing::record(SyscallText::NUMBER, &words[..HEAD + bytes.len().div_ceil(8)]);
}
