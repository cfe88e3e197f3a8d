//! The control channel: sends frames one after the other; a task receives the host's frames.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_virtio::ByteStream;

use super::devices::{self, Port};
use super::frame::{Decoder, FromHost, HEAD, Output, OwnerQuestion, ToHost, head};
use super::json::Counter;
use crate::sync::Mutex;
use crate::{Result, sched};

/// Handler of the host's messages. Called by the control channel's task; may sleep.
pub trait Events: Sync {
    /// stdin ends after `total` bytes.
    fn end_of_input(&self, total: u64);
    /// The terminal's window changed.
    fn window(&self, rows: u16, columns: u16);
    /// The host sends a signal to the program's foreground process group.
    fn signal(&self, number: u8);
    /// The output stream has no reader any more.
    fn closed(&self, output: Output);
    /// The host asks for the backtraces of all threads: [`threads`] answers.
    fn threads(&self);
    /// The host asks for the owner of a frame, or for the frames of a process: [`owners`] answers.
    fn owner(&self, question: OwnerQuestion);
}

/// The program's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The program exited with this status.
    Exit(u8),
    /// This signal ended the program.
    Signal(u8),
}

/// Serialises frames. No other lock is taken while it is held, except the port's own.
static SENDER: Mutex<()> = Mutex::new(());
/// Bytes of the present frame that the port has not received yet: a panic sends as many before its
/// own frame.
static OWED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many bytes of a frame are still missing on the control channel.
pub(super) fn owed() -> usize {
    OWED.load(Ordering::Relaxed)
}

/// Starts the task that receives the host's frames.
///
/// # Errors
/// `ENOMEM`.
pub fn listen(events: &'static dyn Events) -> Result<()> {
    let Some(port) = devices::control() else { return Ok(()) };
    sched::spawn_kernel("control", move || {
        let mut decoder = Decoder::new();
        let mut bytes = [0; 64];
        loop {
            let read = port.changed().wait_uninterruptible(|| match port.try_read(&mut bytes) {
                Ok(0) => None,
                other => Some(other),
            });
            // A broken channel delivers nothing more.
            let Ok(count) = read else { return };
            for frame in bytes[..count].iter().filter_map(|&byte| decoder.push(byte)) {
                match frame {
                    FromHost::EndOfInput(total) => events.end_of_input(total),
                    FromHost::Window { rows, columns } => events.window(rows, columns),
                    FromHost::Signal(number) => events.signal(number),
                    FromHost::Closed(output) => events.closed(output),
                    FromHost::Threads => events.threads(),
                    FromHost::Owner(question) => events.owner(question),
                }
            }
        }
    })?;
    Ok(())
}

/// Tells the host that the kernel is up. `facts` is a JSON object.
pub fn ready(facts: impl core::fmt::Display) {
    send_text(ToHost::Ready, facts);
}

/// Sends the host the report on memory. `tables` is a JSON object. Called before [`end`].
pub fn report(tables: impl core::fmt::Display) {
    send_text(ToHost::Report, tables);
}

/// Sends the host the backtraces of all threads. `threads` is a JSON object.
pub fn threads(threads: impl core::fmt::Display) {
    send_text(ToHost::Threads, threads);
}

/// Tells the host the owner of a frame, or the frames of a process, in a frame of this kind.
/// `answer` is a JSON object.
pub fn owners(kind: ToHost, answer: impl core::fmt::Display) {
    send_text(kind, answer);
}

/// Sends records of tracepoints.
pub fn events(records: &[u8]) {
    let Some(control) = devices::control() else { return };
    let _one_at_a_time = SENDER.lock();
    Frame::begin(control, ToHost::Events, records.len()).put(records);
}

/// Sends names of files that programs found, each followed by a zero byte, and the number of names
/// that are left out.
pub fn names(names: &[u8], left_out: u64) {
    let Some(control) = devices::control() else { return };
    let _one_at_a_time = SENDER.lock();
    let mut frame = Frame::begin(control, ToHost::Names, 8 + names.len());
    frame.put(&left_out.to_le_bytes());
    frame.put(names);
}

/// Sends text for the user.
pub fn notice(text: impl core::fmt::Display) {
    send_text(ToHost::Notice, text);
}

/// Asks the host to have memory device number `device` plug in `bytes` in all. The host answers by
/// changing the device's requested size, or not at all.
pub fn want_memory(device: u8, bytes: u64) {
    let Some(control) = devices::control() else { return };
    let _one_at_a_time = SENDER.lock();
    let mut frame = Frame::begin(control, ToHost::Memory, 9);
    frame.put(&[device]);
    frame.put(&bytes.to_le_bytes());
}

/// Tells the host how the program ended, after all its output. Waits until the host has received
/// everything.
pub fn end(ending: Ending) {
    let ports = [devices::stream(), devices::error()];
    ports.into_iter().flatten().for_each(|port| port.drain());
    let mut payload = [0; 18];
    (payload[0], payload[1]) = match ending {
        Ending::Exit(status) => (0, status),
        Ending::Signal(number) => (1, number),
    };
    for (port, place) in ports.into_iter().zip(payload[2..].chunks_exact_mut(8)) {
        place.copy_from_slice(&port.map_or(0, |port| port.sent()).to_le_bytes());
    }
    if let Some(control) = devices::control() {
        let _one_at_a_time = SENDER.lock();
        let mut frame = Frame::begin(control, ToHost::Exit, payload.len());
        frame.put(&payload);
        // The frame is sent only when it is dropped.
        drop(frame);
        control.drain();
    }
}

/// Sends one frame with the payload `text`, which must display the same text twice.
fn send_text(kind: ToHost, text: impl core::fmt::Display) {
    let Some(control) = devices::control() else { return };
    let mut length = Counter::default();
    // Counting cannot fail. If a `Display` fails, the text before that is sent.
    let _ = write!(length, "{text}");
    let _one_at_a_time = SENDER.lock();
    let mut frame = Frame::begin(control, kind, length.0);
    let _ = write!(frame, "{text}");
}

/// A frame that is being sent. Dropping it completes it: missing bytes are filled with spaces.
/// Surplus bytes are discarded.
struct Frame<'a> {
    port: &'a Port,
    left: usize,
    buffer: [u8; 256],
    used: usize,
}

impl<'a> Frame<'a> {
    fn begin(port: &'a Port, kind: ToHost, length: usize) -> Self {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let mut frame = Self { port, left: HEAD + length as usize, buffer: [0; 256], used: 0 };
        frame.put(&head(kind, length));
        frame
    }

    fn put(&mut self, mut bytes: &[u8]) {
        bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        while !bytes.is_empty() {
            if self.used == self.buffer.len() {
                self.flush();
            }
            let count = bytes.len().min(self.buffer.len() - self.used);
            self.buffer[self.used..self.used + count].copy_from_slice(&bytes[..count]);
            self.used += count;
            bytes = &bytes[count..];
        }
    }

    /// Passes the gathered bytes to the port, sleeping until there is room. A broken port takes
    /// nothing more.
    fn flush(&mut self) {
        let mut bytes = &self.buffer[..self.used];
        while !bytes.is_empty() {
            let written = self.port.changed().wait_uninterruptible(|| match self.port.try_write(bytes) {
                Ok(0) => None,
                other => Some(other),
            });
            let Ok(count) = written else { break };
            bytes = &bytes[count..];
            OWED.store(bytes.len() + self.left, Ordering::Relaxed);
        }
        self.used = 0;
    }
}

impl Write for Frame<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        while self.left > 0 {
            self.put(&[b' '; 64]);
        }
        self.flush();
        OWED.store(0, Ordering::Relaxed);
    }
}
