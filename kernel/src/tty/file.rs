//! An open terminal: reading, writing, polling.

use freehold_collections::WipedChunk;

use super::discipline::Read;
use super::{LineState, Tty, job};
use crate::fs::file::{NewsOwner, NewsQueues};
use crate::fs::{Blocking, File, Node, OpenFlags, Ready};
use crate::sync::PollWaiter;
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, time};
use freehold_collections::{Arc, reserve};

/// Number of bytes that are moved between two acquisitions of the terminal's lock.
const CHUNK: usize = 512;

/// The open program's side of a terminal.
pub struct TtyFile {
    tty: Arc<Tty>,
    node: Arc<dyn Node>,
    /// The value of [`super::TerminalState::hangups`] when it was opened.
    generation: u32,
    /// The flags that it was opened with.
    pub(super) opened: OpenFlags,
}

/// Result of a check of the input.
enum InputLook {
    Read(Read),
    /// The terminal was hung up.
    Dead,
}

impl TtyFile {
    pub(super) fn new(
        tty: Arc<Tty>,
        node: Arc<dyn Node>,
        (generation, opened): (u32, OpenFlags),
    ) -> Arc<Self> {
        reserve::arc(Self { tty, node, generation, opened })
    }

    /// Returns the terminal.
    pub fn tty(&self) -> &Arc<Tty> {
        &self.tty
    }

    pub(super) fn is_dead(&self) -> bool {
        let state = self.tty.state.lock();
        state.hangups != self.generation || state.line == LineState::Down
    }

    fn look(&self, bytes: &mut [u8]) -> InputLook {
        let mut state = self.tty.state.lock();
        let read = state.discipline.read(bytes);
        // Input that arrived before the other end was closed can still be read.
        if read == Read::Empty && (state.hangups != self.generation || state.line == LineState::Down) {
            return InputLook::Dead;
        }
        drop(state);
        if read != Read::Empty {
            self.tty.wire_room.wake_all();
        }
        InputLook::Read(read)
    }

    /// Sleeps until there is input or no more will arrive. Returns `false` when the deadline has
    /// passed.
    fn wait_for_input(&self, deadline: Option<u64>) -> Result<bool> {
        let ready = || {
            let state = self.tty.state.lock();
            let dead = state.hangups != self.generation || state.line == LineState::Down;
            (dead || state.discipline.has_input()).then_some(())
        };
        Ok(self.tty.input_ready.wait_until_deadline(deadline, ready)?.is_some())
    }

    fn read(&self, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let (canonical, min, timeout) = {
            let state = self.tty.state.lock();
            let termios = state.discipline.termios();
            (state.discipline.is_canonical(), termios.min(), termios.time())
        };
        // If VMIN is 0, VTIME is a limit for the whole read. Otherwise it is a limit between bytes,
        // from the first byte on.
        let mut deadline = match (canonical, min, timeout) {
            (false, 0, timeout) => Some(time::now() + timeout.unwrap_or(0)),
            _ => None,
        };
        let mut done = 0;
        let mut chunk = WipedChunk::<CHUNK>::new();
        loop {
            let chunk = chunk.part(sink.remaining());
            let wanted = chunk.len();
            if wanted == 0 {
                return Ok(done);
            }
            match self.look(chunk) {
                InputLook::Dead => return Ok(done),
                InputLook::Read(Read::Done(count)) => {
                    done += put(sink, &chunk[..count], done)?;
                    if canonical || done >= min.max(1) && (count < wanted || sink.remaining() == 0) {
                        return Ok(done);
                    }
                    if !canonical && min > 0 {
                        deadline = timeout.map(|timeout| time::now() + timeout);
                    }
                    continue;
                }
                InputLook::Read(Read::Part(count)) => {
                    done += put(sink, &chunk[..count], done)?;
                    if sink.remaining() == 0 {
                        self.tty.state.lock().discipline.skip_end_of_file();
                        return Ok(done);
                    }
                    continue;
                }
                InputLook::Read(Read::Empty) => {}
            }
            if done > 0 && (canonical || done >= min.max(1)) {
                return Ok(done);
            }
            if !canonical && min == 0 && timeout.is_none() {
                return Ok(0);
            }
            if blocking == Blocking::Never {
                return so_far(done, Errno::EAGAIN);
            }
            match self.wait_for_input(deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(done),
                Err(error) => return so_far(done, error),
            }
            job::check_read(&self.tty)?;
        }
    }

    fn write(&self, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        let mut done = 0;
        let mut chunk = WipedChunk::<CHUNK>::new();
        while source.remaining() > 0 {
            let chunk = chunk.part(source.remaining());
            let count = match source.take(chunk) {
                Ok(count) => count,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            match self.write_chunk(&chunk[..count], blocking, &mut done) {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_chunk(&self, bytes: &[u8], blocking: Blocking, done: &mut usize) -> Result<()> {
        let tty = &self.tty;
        let mut rest = bytes;
        loop {
            let has_output;
            let count = {
                let mut state = tty.state.lock();
                if state.hangups != self.generation || state.line == LineState::Down {
                    return Err(Errno::EIO);
                }
                let count = state.discipline.write(rest);
                tty.flush_locked(&mut state);
                if count < rest.len() {
                    state.wants_room = super::WantsRoom::Yes;
                }
                has_output = !state.discipline.wire().is_empty();
                count
            };
            tty.tell_wire(has_output);
            *done += count;
            rest = &rest[count..];
            if rest.is_empty() {
                return Ok(());
            }
            if count > 0 {
                continue;
            }
            if blocking == Blocking::Never {
                return Err(Errno::EAGAIN);
            }
            tty.output_room.wait_until(|| {
                let mut state = tty.state.lock();
                let dead = state.hangups != self.generation || state.line == LineState::Down;
                tty.flush_locked(&mut state);
                (dead || state.discipline.writable()).then_some(())
            })?;
        }
    }

    /// Waits until all output is on the wire (tcdrain).
    pub(super) fn drain(&self) -> Result<()> {
        self.tty.output_room.wait_until(|| {
            let mut state = self.tty.state.lock();
            self.tty.flush_locked(&mut state);
            let dead = state.hangups != self.generation || state.line == LineState::Down;
            (dead || state.discipline.output_length() == 0).then_some(())
        })
    }
}

/// Stores all of `bytes`. A fault after the first byte of the call shortens the result.
fn put(sink: &mut dyn Sink, bytes: &[u8], done: usize) -> Result<usize> {
    match sink.put(bytes) {
        Ok(count) if count == bytes.len() || done > 0 || count > 0 => Ok(count),
        Ok(_) if bytes.is_empty() => Ok(0),
        Ok(_) => Err(Errno::EFAULT),
        Err(_) if done > 0 => Ok(0),
        Err(error) => Err(error),
    }
}

impl File for TtyFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        if self.is_dead() {
            return Ok(0);
        }
        job::check_read(&self.tty)?;
        self.read(sink, blocking)
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        if self.is_dead() {
            return Err(Errno::EIO);
        }
        job::check_write(&self.tty)?;
        self.write(source, blocking)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        let tty = &self.tty;
        if let Some(waiter) = waiter {
            waiter.register(&tty.input_ready);
            waiter.register(&tty.output_room);
        }
        let mut state = tty.state.lock();
        if state.hangups != self.generation || state.line == LineState::Down {
            return Ready::IN | Ready::OUT | Ready::ERR | Ready::HUP;
        }
        tty.flush_locked(&mut state);
        let mut ready = Ready::empty();
        ready.set(Ready::IN, state.discipline.readable());
        ready.set(Ready::OUT, state.discipline.writable());
        ready
    }

    fn news(&self) -> Option<NewsQueues<'_>> {
        let owner = match self.tty.foreground() {
            0 => NewsOwner::Caller,
            group => NewsOwner::Group(group),
        };
        Some(NewsQueues { queues: [Some(&self.tty.input_ready), Some(&self.tty.output_room)], owner })
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        self.control(request, argument)
    }
}

impl Drop for TtyFile {
    fn drop(&mut self) {
        let last = {
            let mut state = self.tty.state.lock();
            state.opens -= 1;
            if state.opens == 0 {
                state.sharing = super::FurtherOpens::Open;
            }
            state.opens == 0
        };
        if last {
            self.tty.wire_ready.wake_all();
        }
    }
}
