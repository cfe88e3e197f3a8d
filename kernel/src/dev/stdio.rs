//! The program's standard streams if the host's are no terminals: byte streams that behave like a
//! pipe.
//!
//! The host sends the bytes of stdin on the stream, and their total number on the control channel.
//! The end of the file is reached when both agree, whichever arrives first. Output waits for a slow
//! host; nothing is dropped, and [`flush`] waits for the last byte before the machine is switched
//! off.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, WipedChunk, reserve};

use super::stream::HostStream;
use crate::fs::anonymous::AnonymousNode;
use crate::fs::bytes::send_in_chunks;
use crate::fs::{Blocking, File, Node, NodeKind, OpenFlags, Ready};
use crate::host::frame::Output;
use crate::sync::{Mutex, PollWaiter, SpinLock};
use crate::tty::console;
use crate::user::{Sink, Source};
use crate::{Errno, Result};

const CHUNK: usize = 1024;
/// The host has not reported the length of stdin yet.
const UNKNOWN: u64 = u64::MAX;

/// Length of stdin that the host has reported.
static INPUT_LENGTH: AtomicU64 = AtomicU64::new(UNKNOWN);
/// Number of bytes of stdin taken from the stream.
static INPUT_TAKEN: AtomicU64 = AtomicU64::new(0);
/// The streams, once they exist: stdin and stdout share the first.
static STREAMS: SpinLock<Option<Streams>> = SpinLock::new(None);

/// The streams to the host.
#[derive(Clone)]
pub struct Streams {
    /// stdin and stdout.
    pub standard: Arc<HostStream>,
    /// stderr.
    pub error: Arc<HostStream>,
}

/// Registers the streams.
pub fn init(streams: Streams) {
    *STREAMS.lock() = Some(streams);
}

/// Returns the streams, if there are any.
pub fn streams() -> Option<Streams> {
    STREAMS.lock().clone()
}

/// Records that the host has sent all of stdin: `total` bytes since the start.
pub fn end_of_input(total: u64) {
    INPUT_LENGTH.store(total, Ordering::SeqCst);
    if let Some(streams) = streams() {
        streams.standard.changed().wake_all();
    }
}

/// Records that no reader is left for this stream on the host.
pub fn closed(output: Output) {
    if let Some(streams) = streams() {
        match output {
            Output::Stdout => streams.standard.desert(),
            Output::Stderr => streams.error.desert(),
        }
    }
}

/// Waits until the host has taken all output.
pub fn flush() {
    console::flush();
    if let Some(streams) = streams() {
        // A signal is irrelevant here: the program has ended.
        let _ = streams.standard.drain();
        let _ = streams.error.drain();
    }
}

fn at_end() -> bool {
    INPUT_TAKEN.load(Ordering::SeqCst) >= INPUT_LENGTH.load(Ordering::SeqCst)
}

/// Names of the standard streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standard {
    /// stdin.
    Input,
    /// stdout.
    Output,
    /// stderr.
    Error,
}

/// An open standard stream.
struct StreamFile {
    stream: Arc<HostStream>,
    standard: Standard,
    node: Arc<dyn Node>,
    /// Held by one reader or writer at a time, so that a call's bytes stay together.
    turn: Mutex<()>,
}

/// Makes the open file for one of the standard streams. Its node belongs to this user and group.
///
/// # Errors
/// `ENXIO` if the host gave no streams.
pub fn open(standard: Standard, owner: (u32, u32)) -> Result<Arc<dyn File>> {
    let streams = streams().ok_or(Errno::ENXIO)?;
    let stream = if standard == Standard::Error { streams.error } else { streams.standard };
    let node =
        AnonymousNode::owned(NodeKind::Fifo, "pipe", owner, move |_, _: OpenFlags| open(standard, owner));
    Ok(reserve::arc(StreamFile { stream, standard, node, turn: Mutex::new(()) }))
}

impl StreamFile {
    /// Whether a write would not wait: there is room, or it would fail.
    fn may_write(&self) -> bool {
        self.stream.is_writable() || !self.stream.has_reader()
    }

    fn wait_for_room(&self, blocking: Blocking) -> Result<()> {
        blocking.until(self.stream.changed(), || self.may_write().then_some(()))?;
        if self.stream.has_reader() {
            return Ok(());
        }
        crate::task::signal_broken_pipe();
        Err(Errno::EPIPE)
    }

    fn take(&self, sink: &mut dyn Sink) -> Result<usize> {
        let _turn = self.turn.lock();
        let mut chunk = WipedChunk::<CHUNK>::new();
        let mut done = 0;
        while sink.remaining() > 0 {
            let chunk = chunk.part(sink.remaining());
            let count = self.stream.try_read(chunk);
            if count == 0 {
                break;
            }
            INPUT_TAKEN.fetch_add(count as u64, Ordering::SeqCst);
            let placed = match sink.put(&chunk[..count]) {
                Ok(placed) => placed,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            done += placed;
            if placed < count {
                break;
            }
        }
        Ok(done)
    }
}

impl File for StreamFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        if self.standard != Standard::Input {
            return Err(Errno::EBADF);
        }
        if sink.remaining() == 0 {
            return Ok(0);
        }
        loop {
            let count = self.take(sink)?;
            if count > 0 || at_end() {
                return Ok(count);
            }
            if blocking == Blocking::Never {
                return Err(Errno::EAGAIN);
            }
            self.stream.changed().wait_until(|| (self.stream.is_readable() || at_end()).then_some(()))?;
        }
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        if self.standard == Standard::Input {
            return Err(Errno::EBADF);
        }
        let _turn = self.turn.lock();
        send_in_chunks(source, || self.wait_for_room(blocking), |bytes| self.stream.try_write(bytes))
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(self.stream.changed());
        }
        let mut ready = Ready::empty();
        if self.standard == Standard::Input {
            ready.set(Ready::IN, self.stream.is_readable());
            ready.set(Ready::HUP, at_end());
        } else {
            ready.set(Ready::OUT, self.may_write());
            ready.set(Ready::ERR, !self.stream.has_reader());
        }
        ready
    }
}
