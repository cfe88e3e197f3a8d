//! The control channel between host and guest: frames of u8 type, u32 LE length, payload.
//!
//! The guest's side is kernel/src/host.rs, and guest/init.c on a stock Linux. Streams do not use
//! this channel: stdin and stdout share one port, stderr has another; both carry bare bytes.

use crate::owns::OwnerQuestion;

/// Longest accepted payload: a longer one means that the guest is out of step.
const MAX_PAYLOAD: usize = 16 << 20;

/// A message from the host to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToGuest {
    /// No more stdin after this many bytes in all.
    StdinEof(u64),
    /// The terminal's size: rows, columns.
    WindowSize(u16, u16),
    /// A signal for the program's foreground process group.
    Signal(u8),
    /// This stream has no reader any more (0 stdout, 1 stderr): writes get EPIPE.
    Closed(u8),
    /// Asks for the place of each thread. A stock Linux does not answer.
    Threads,
    /// Asks for the owner of a frame, or the frames of a process. A stock Linux does not answer.
    Owner(OwnerQuestion),
}

impl ToGuest {
    /// Appends the frame's bytes.
    pub fn encode(self, to: &mut Vec<u8>) {
        let mut frame = |kind: u8, payload: &[u8]| {
            to.push(kind);
            to.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            to.extend_from_slice(payload);
        };
        match self {
            ToGuest::StdinEof(total) => frame(1, &total.to_le_bytes()),
            ToGuest::WindowSize(rows, columns) => {
                let [a, b] = rows.to_le_bytes();
                let [c, d] = columns.to_le_bytes();
                frame(2, &[a, b, c, d]);
            }
            ToGuest::Signal(number) => frame(3, &[number]),
            ToGuest::Closed(stream) => frame(4, &[stream]),
            ToGuest::Threads => frame(5, &[]),
            ToGuest::Owner(question) => {
                let (kind, pid, number) = match question {
                    OwnerQuestion::Frame(frame) => (0, 0, frame),
                    OwnerQuestion::Process(pid) => (1, pid, 0),
                    OwnerQuestion::Address(pid, address) => (2, pid, address),
                };
                let mut payload = vec![kind];
                payload.extend(pid.to_le_bytes());
                payload.extend(number.to_le_bytes());
                frame(6, &payload);
            }
        }
    }
}

/// The end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The program called exit with this status.
    Exit(u8),
    /// This signal ended the program.
    Signal(u8),
}

impl Ending {
    /// Returns the program's status, if it called exit.
    pub fn exit(self) -> Option<u8> {
        match self {
            Ending::Exit(status) => Some(status),
            Ending::Signal(_) => None,
        }
    }

    /// Returns the signal that ended the program, if one did.
    pub fn signal(self) -> Option<u8> {
        match self {
            Ending::Exit(_) => None,
            Ending::Signal(signal) => Some(signal),
        }
    }
}

/// A message from the guest to the host.
#[derive(Debug, Clone, PartialEq)]
pub enum FromGuest {
    /// The kernel is up and about to start the program.
    Ready(serde_json::Value),
    /// The program's end. Where the guest counts them, it has the bytes sent on (stdout, stderr).
    Exit(Ending, Option<(u64, u64)>),
    /// Memory totals, system-call counts, files not found.
    Report(serde_json::Value),
    /// The kernel's report of a panic.
    Panic(serde_json::Value),
    /// Kernel log text.
    Log(String),
    /// A notice for the user (an OOM kill, for example).
    Notice(String),
    /// A stock Linux' functions: lines of address and name.
    Symbols(String),
    /// The place of each thread.
    Threads(serde_json::Value),
    /// Records of tracepoints.
    Events(Vec<u8>),
    /// Names of files that programs found, each with a zero byte behind it; how many are left out.
    Names(Vec<u8>, u64),
    /// The owner of a frame, or the frames of a process.
    Owners(serde_json::Value),
    /// The same at the program's end.
    LastOwners(serde_json::Value),
    /// This memory device should plug in this number of bytes in all.
    Memory(u8, u64),
}

/// Splits a stream of bytes, which arrives in pieces, into frames.
#[derive(Default)]
pub struct Decoder {
    held: Vec<u8>,
}

impl Decoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns the next whole frame, if there is one. `Err` says why the bytes cannot be frames.
    pub fn next(&mut self) -> Result<Option<FromGuest>, String> {
        loop {
            let Some((head, rest)) = self.held.split_at_checked(5) else {
                return Ok(None);
            };
            let kind = head[0];
            let size = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if size > MAX_PAYLOAD {
                return Err(format!("control frame of type {kind} claims {size} bytes"));
            }
            let Some(payload) = rest.get(..size) else {
                return Ok(None);
            };
            let frame = decode(kind, payload);
            self.held.drain(..5 + size);
            match frame? {
                Some(frame) => return Ok(Some(frame)),
                None => continue, // A type of a later version: skipped.
            }
        }
    }
}

fn decode(kind: u8, payload: &[u8]) -> Result<Option<FromGuest>, String> {
    let json =
        || serde_json::from_slice(payload).map_err(|error| format!("control frame of type {kind}: {error}"));
    let text = || String::from_utf8_lossy(payload).into_owned();
    Ok(Some(match kind {
        16 => FromGuest::Ready(json()?),
        17 => {
            let [kind, value, totals @ ..] = payload else {
                return Err("EXIT frame without a status".into());
            };
            let ending = match kind {
                0 => Ending::Exit(*value),
                _ => Ending::Signal(*value),
            };
            let number = |at: usize| {
                let bytes = totals.get(at..at + 8)?;
                bytes.try_into().ok().map(u64::from_le_bytes)
            };
            FromGuest::Exit(ending, number(0).zip(number(8)))
        }
        18 => FromGuest::Report(json()?),
        19 => FromGuest::Panic(json()?),
        20 => FromGuest::Log(text()),
        21 => FromGuest::Notice(text()),
        22 => FromGuest::Symbols(text()),
        23 => match *payload {
            [device, ref bytes @ ..] => FromGuest::Memory(
                device,
                bytes.try_into().map(u64::from_le_bytes).map_err(|_| "MEMORY frame without a size")?,
            ),
            [] => return Err("MEMORY frame without a device".into()),
        },
        24 => FromGuest::Threads(json()?),
        27 => FromGuest::Owners(json()?),
        28 => FromGuest::LastOwners(json()?),
        25 => FromGuest::Events(payload.to_vec()),
        26 => match payload.split_first_chunk() {
            Some((left_out, names)) => FromGuest::Names(names.to_vec(), u64::from_le_bytes(*left_out)),
            None => return Err("NAMES frame without a count".into()),
        },
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn frames_survive_any_cut_of_the_byte_stream() {
        let mut bytes = frame(16, br#"{"kernel":"x"}"#);
        bytes.extend(frame(99, b"of a later version"));
        bytes.extend(frame(17, &[0, 7]));
        for cut in 0..bytes.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                decoder.push(part);
                while let Some(frame) = decoder.next().expect("valid frames") {
                    seen.push(frame);
                }
            }
            assert_eq!(seen.len(), 2, "cut at {cut}");
            assert_eq!(seen[1], FromGuest::Exit(Ending::Exit(7), None));
        }
    }

    #[test]
    fn an_exit_frame_may_carry_stream_totals() {
        let mut payload = vec![1, 9];
        payload.extend(3u64.to_le_bytes());
        payload.extend(4u64.to_le_bytes());
        let mut decoder = Decoder::default();
        decoder.push(&frame(17, &payload));
        let seen = decoder.next().expect("valid");
        assert_eq!(seen, Some(FromGuest::Exit(Ending::Signal(9), Some((3, 4)))));
    }

    #[test]
    fn a_wish_for_memory_names_device_and_bytes() {
        let mut decoder = Decoder::default();
        decoder.push(&frame(23, &[3, 0, 0, 0, 4, 0, 0, 0, 0]));
        assert_eq!(decoder.next().expect("valid"), Some(FromGuest::Memory(3, 64 << 20)));
        for short in [&[][..], &[1], &[1, 2, 3, 4, 5, 6, 7, 8]] {
            decoder.push(&frame(23, short));
            assert!(decoder.next().is_err());
        }
    }

    #[test]
    fn nonsense_is_an_error_and_not_a_wait_for_ever() {
        let mut decoder = Decoder::default();
        decoder.push(&[16, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
        assert!(decoder.next().is_err());
        let mut decoder = Decoder::default();
        decoder.push(&frame(17, &[]));
        assert!(decoder.next().is_err());
    }
}
