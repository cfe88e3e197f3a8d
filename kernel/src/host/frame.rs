//! Frames of the control channel: a type byte, a little-endian 32-bit length, a payload.

/// Message from the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromHost {
    /// The program's stdin ends after this many bytes in total.
    EndOfInput(u64),
    /// The terminal's window has this many rows and columns.
    Window {
        /// Rows.
        rows: u16,
        /// Columns.
        columns: u16,
    },
    /// A signal for the program's foreground process group.
    Signal(u8),
    /// This stream has no reader any more.
    Closed(Output),
    /// A request for the backtraces of all threads.
    Threads,
    /// A question about the owner of a frame or the frames of a process.
    Owner(OwnerQuestion),
}

/// A question about owners of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerQuestion {
    /// About the frame with this number.
    Frame(u64),
    /// About the frames of the process with this number.
    Process(u32),
    /// About the frame at this address of the process with this number.
    Address(u32, u64),
}

impl OwnerQuestion {
    /// Parses `frame:FRAME`, `PID` or `PID:ADDRESS`, all numbers decimal. `None` for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(text).ok()?;
        match text.split_once(':') {
            None => text.parse().ok().map(Self::Process),
            Some(("frame", frame)) => frame.parse().ok().map(Self::Frame),
            Some((pid, address)) => Some(Self::Address(pid.parse().ok()?, address.parse().ok()?)),
        }
    }
}

/// A stream that the program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
}

/// Message to the host; the number is the frame's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ToHost {
    /// The kernel is up and about to start the program (JSON).
    Ready = 16,
    /// The program's end.
    Exit = 17,
    /// Figures of memory and system calls, and files that were not found (JSON).
    Report = 18,
    /// The kernel panicked (JSON).
    Panic = 19,
    /// Text for the user: an OOM kill, for example.
    Notice = 21,
    /// How much memory a device should plug in: the device's number, and bytes.
    Memory = 23,
    /// The backtraces of all threads (JSON).
    Threads = 24,
    /// Records of tracepoints. Per record: the CPU, the number of words (16 bits each), the words.
    Events = 25,
    /// Names of files that programs found: the number of those left out (64 bits), then the names,
    /// each followed by a zero byte.
    Names = 26,
    /// The owner of a frame, or the frames of a process (JSON).
    Owners = 27,
    /// The same at the program's end, for a question of the specification (JSON). The answers have
    /// the questions' order.
    LastOwners = 28,
}

/// Bytes in a frame's head.
pub const HEAD: usize = 5;
/// Longest payload of a known frame from the host. Longer frames are skipped.
const MAX_PAYLOAD: usize = 16;

/// Returns the head of a frame with a payload of `length` bytes.
pub fn head(kind: ToHost, length: u32) -> [u8; HEAD] {
    let [a, b, c, d] = length.to_le_bytes();
    [kind as u8, a, b, c, d]
}

/// Decodes frames from bytes that arrive in pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    held: [u8; HEAD + MAX_PAYLOAD],
    length: usize,
    /// Remaining bytes of a frame that is too long and is skipped.
    skip: usize,
}

impl Decoder {
    /// Makes a decoder that expects the start of a frame.
    pub const fn new() -> Self {
        Self { held: [0; HEAD + MAX_PAYLOAD], length: 0, skip: 0 }
    }

    /// Takes the next byte. Returns the frame if the byte completes a known one.
    pub fn push(&mut self, byte: u8) -> Option<FromHost> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.held[self.length] = byte;
        self.length += 1;
        let head: [u8; HEAD] = self.held[..self.length].get(..HEAD)?.try_into().ok()?;
        let payload = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if payload > MAX_PAYLOAD {
            (self.length, self.skip) = (0, payload);
            return None;
        }
        if self.length < HEAD + payload {
            return None;
        }
        self.length = 0;
        understand(head[0], &self.held[HEAD..HEAD + payload])
    }
}

fn understand(kind: u8, payload: &[u8]) -> Option<FromHost> {
    match (kind, payload) {
        (1, total) => Some(FromHost::EndOfInput(u64::from_le_bytes(total.try_into().ok()?))),
        (2, &[a, b, c, d]) => {
            Some(FromHost::Window { rows: u16::from_le_bytes([a, b]), columns: u16::from_le_bytes([c, d]) })
        }
        (3, &[number]) => Some(FromHost::Signal(number)),
        (4, [0]) => Some(FromHost::Closed(Output::Stdout)),
        (4, [1]) => Some(FromHost::Closed(Output::Stderr)),
        (5, []) => Some(FromHost::Threads),
        (6, [kind, rest @ ..]) => {
            let (pid, number) = rest.split_first_chunk()?;
            let (pid, number) = (u32::from_le_bytes(*pid), u64::from_le_bytes(number.try_into().ok()?));
            match kind {
                0 => Some(FromHost::Owner(OwnerQuestion::Frame(number))),
                1 => Some(FromHost::Owner(OwnerQuestion::Process(pid))),
                2 => Some(FromHost::Owner(OwnerQuestion::Address(pid, number))),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn decode(bytes: &[u8]) -> Vec<FromHost> {
        let mut decoder = Decoder::new();
        bytes.iter().filter_map(|&byte| decoder.push(byte)).collect()
    }

    #[test]
    fn every_frame_of_the_host_is_understood_and_others_are_passed_over() {
        let mut bytes = std::vec![1, 8, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0];
        bytes.extend([99, 3, 0, 0, 0, 1, 2, 3]); // a later version's
        bytes.extend([2, 4, 0, 0, 0, 24, 0, 80, 0]);
        bytes.extend([98, 0, 1, 0, 0]); // 256 bytes
        bytes.extend([3; 256]);
        bytes.extend([3, 1, 0, 0, 0, 15]);
        bytes.extend([4, 1, 0, 0, 0, 1]);
        bytes.extend([4, 1, 0, 0, 0, 7]); // no such stream
        bytes.extend([3, 0, 0, 0, 0]); // no payload
        bytes.extend([5, 0, 0, 0, 0]);
        bytes.extend([6, 13, 0, 0, 0, 2, 7, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
        bytes.extend([6, 13, 0, 0, 0, 9, 7, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]); // no such question
        bytes.extend([6, 4, 0, 0, 0, 0, 7, 0, 0]); // too short
        bytes.extend([3, 1, 0, 0, 0, 2]);
        let expected = [
            FromHost::EndOfInput(0x201),
            FromHost::Window { rows: 24, columns: 80 },
            FromHost::Signal(15),
            FromHost::Closed(Output::Stderr),
            FromHost::Threads,
            FromHost::Owner(OwnerQuestion::Address(7, 0x1000)),
            FromHost::Signal(2),
        ];
        assert_eq!(decode(&bytes), expected);
    }

    #[test]
    fn no_bytes_from_the_host_panic() {
        for seed in 0..200u32 {
            let mut state = seed | 1;
            let bytes: Vec<u8> = (0..500)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Small numbers are frequent: they are the interesting types and lengths.
                    if state & 0x100 == 0 { (state >> 24) as u8 & 7 } else { (state >> 24) as u8 }
                })
                .collect();
            decode(&bytes);
        }
    }

    #[test]
    fn a_head_says_type_and_length() {
        assert_eq!(head(ToHost::Exit, 0x0102), [17, 2, 1, 0, 0]);
    }
}
