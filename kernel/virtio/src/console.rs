//! A virtio console with one port, as a [`ByteStream`] (virtio 1.2, 5.3).
//!
//! Buffers are taken once, from the DMA API: the host always has all receive buffers except those
//! being read, and writes copy into free transmit buffers. Receive buffers come back in the order
//! in which the host filled them. While there is room the transmit side needs no interrupts; a
//! writer that found no room turns them on.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use freehold_bounce::{Device, Direction, DmaError, DmaSource};
use freehold_virtqueue::{Chain, Part, Queue, Transport};
use spin::Mutex;

use crate::link::{Link, TwoWays, Why};
use crate::platform::Registers;
use crate::transport::{Features, negotiate};
use crate::{ByteStream, Failed, SetupError};

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Descriptors in a ring, and so the largest number of buffers of one kind.
const RING: usize = 16;
/// Where a byte for emergencies is written in the device's configuration.
pub const EMERGENCY_OFFSET: u32 = 8;

/// Set in every word written there.
const EMERGENCY_MARK: u32 = 0x100;

/// How many buffers a console has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// Buffers that the host fills, 0..=16. Without any, nothing can be read.
    pub receive: usize,
    /// Buffers that the host empties, 1..=16.
    pub transmit: usize,
    /// Bytes in each.
    pub size: usize,
}

/// A console.
pub struct Console<S: DmaSource, T: Transport, R: Registers> {
    /// Taken by tasks only, for as long as a copy of a buffer takes. Orders with no other lock.
    inner: Mutex<ConsoleInner<S, T>>,
    emergency: Option<R>,
}

struct ConsoleInner<S: DmaSource, T: Transport> {
    link: Link<S, T, Rings<S>>,
    /// Filled receive buffers: number, bytes, bytes already read.
    filled: VecDeque<(usize, usize, usize)>,
    /// Number of receive buffers that came back empty.
    empty: Vec<usize>,
    /// Numbers of the transmit buffers that the host does not have.
    free: Vec<usize>,
}

type Rings<S> = TwoWays<S, Option<Queue<S, RING>>, RING>;

impl<S: DmaSource, T: Transport, R: Registers> Console<S, T, R> {
    /// Starts the console. The transport's interrupt announces that bytes may have come or that
    /// there may be room; `emergency` is the register for [`ByteStream::emergency_write`], used if
    /// the device has it.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(
        mut transport: T,
        device: Device<S>,
        buffers: Buffers,
        emergency: Option<R>,
    ) -> Result<Self, SetupError> {
        let features = negotiate(&mut transport, Features::CONSOLE_EMERGENCY_WRITE)?;
        let emergency = emergency.filter(|_| features.contains(Features::CONSOLE_EMERGENCY_WRITE));
        let (receive, transmit) = (buffers.receive.min(RING), buffers.transmit.clamp(1, RING));
        // Before the device knows of any memory.
        let mut memory = Vec::new();
        let mut filled = VecDeque::new();
        let (mut free, mut empty) = (Vec::new(), Vec::new());
        let room = memory.try_reserve_exact(receive + transmit).is_ok()
            && filled.try_reserve_exact(RING).is_ok()
            && empty.try_reserve_exact(RING).is_ok()
            && free.try_reserve_exact(RING).is_ok();
        if !room {
            return Err(SetupError::Memory(DmaError::OutOfMemory));
        }
        for number in 0..receive + transmit {
            let direction = if number < receive { Direction::FromDevice } else { Direction::ToDevice };
            memory.push(Arc::new(device.buffer(buffers.size, direction)?));
        }
        free.extend(receive..receive + transmit);
        let rx_queue = if receive > 0 { Some(Queue::new(&mut transport, RECEIVE, device)?) } else { None };
        let tx_queue = match Queue::new(&mut transport, TRANSMIT, device) {
            Ok(queue) => queue,
            Err(error) => {
                // The device knows one queue already: this resets it.
                drop(Link::new(transport, device, rx_queue));
                return Err(error.into());
            }
        };
        let rings = TwoWays { receive: rx_queue, transmit: tx_queue, buffers: memory };
        let mut inner = ConsoleInner { link: Link::new(transport, device, rings), filled, empty, free };
        inner.set_interrupts(Queue::disable_interrupts);
        inner.link.transport.finish_init();
        for number in 0..receive {
            inner.lend(number);
        }
        inner.notify_if_wanted(RECEIVE);
        Ok(Self { inner: Mutex::new(inner), emergency })
    }
}

impl<S: DmaSource, T: Transport> ConsoleInner<S, T> {
    /// Let the host fill receive buffer `number`.
    fn lend(&mut self, number: usize) {
        let Ok((rings, _)) = self.link.lent() else { return };
        let memory = rings.buffers[number].clone();
        let length = memory.len();
        let chain = Part::writable(memory, 0..length).and_then(|part| Chain::new(number, [part]));
        let lent =
            chain.zip(rings.receive.as_mut()).is_some_and(|(chain, queue)| queue.submit(chain).is_ok());
        if !lent {
            self.link.fail(Why::BrokeTheProtocol);
        }
    }

    fn notify_if_wanted(&mut self, queue: u16) {
        let Ok((rings, transport)) = self.link.lent() else { return };
        let wanted = match queue {
            RECEIVE => rings.receive.as_ref().is_some_and(Queue::wants_notice),
            _ => rings.transmit.wants_notice(),
        };
        if wanted {
            transport.notify(queue);
        }
    }

    /// Asks for interrupts on room to write, or does without.
    fn set_interrupts(&mut self, set: fn(&mut Queue<S, RING>)) {
        if let Ok((rings, _)) = self.link.lent() {
            set(&mut rings.transmit);
        }
    }

    /// Chains that the host has still to empty.
    fn unsent(&self) -> usize {
        self.link.look().map_or(0, |rings| rings.transmit.in_flight())
    }

    /// Gathers the buffers that the host has given back. Gives up a device that breaks the
    /// protocol.
    fn reap(&mut self) -> Result<(), Failed> {
        let result = self.gather();
        if result.is_err() {
            self.link.fail(Why::BrokeTheProtocol);
        }
        while let Some(number) = self.empty.pop() {
            self.lend(number);
            if self.empty.is_empty() {
                self.notify_if_wanted(RECEIVE);
            }
        }
        if self.link.is_failed() { Err(Failed) } else { result }
    }

    /// Gathers the buffers that the host has given back. Lends none again meanwhile, so that a host
    /// that gives buffers back as fast as it gets them does not keep a task here; frees nothing,
    /// takes no lock.
    fn gather(&mut self) -> Result<(), Failed> {
        let (rings, _) = self.link.lent()?;
        while let Some(queue) = rings.receive.as_mut()
            && let Some(done) = queue.complete()?
        {
            match done.written {
                0 => self.empty.push(done.tag),
                written => self.filled.push_back((done.tag, written, 0)),
            }
        }
        Ok(rings.gather_sent(&mut self.free)?)
    }

    /// Make sure that an interrupt comes when there is room, and look once more.
    fn await_room(&mut self) -> Result<(), Failed> {
        self.set_interrupts(Queue::enable_interrupts);
        self.reap()
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Failed> {
        let mut done = 0;
        let mut lent = false;
        while done < bytes.len()
            && let Some((number, length, read)) = self.filled.front_mut()
        {
            let (rings, _) = self.link.lent()?;
            let count = (*length - *read).min(bytes.len() - done);
            rings.buffers[*number].read(*read, &mut bytes[done..done + count]);
            done += count;
            *read += count;
            if read == length {
                let number = *number;
                self.filled.pop_front();
                self.lend(number);
                lent = true;
            }
        }
        if lent {
            self.notify_if_wanted(RECEIVE);
        }
        if self.link.is_failed() { Err(Failed) } else { Ok(done) }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Failed> {
        let mut done = 0;
        while done < bytes.len()
            && let Some(number) = self.free.pop()
        {
            let (rings, _) = self.link.lent()?;
            let memory = rings.buffers[number].clone();
            let count = memory.write(0, &bytes[done..]);
            let chain = Part::readable(memory, 0..count).and_then(|part| Chain::new(number, [part]));
            if chain.is_none_or(|chain| rings.transmit.submit(chain).is_err()) {
                self.link.fail(Why::BrokeTheProtocol);
                return Err(Failed);
            }
            done += count;
        }
        if done > 0 {
            self.notify_if_wanted(TRANSMIT);
        }
        Ok(done)
    }
}

impl<S, T, R> ByteStream for Console<S, T, R>
where
    S: DmaSource,
    T: Transport + Send,
    R: Registers,
{
    fn try_read(&self, bytes: &mut [u8]) -> Result<usize, Failed> {
        let mut inner = self.inner.lock();
        inner.reap()?;
        inner.read(bytes)
    }

    fn try_write(&self, bytes: &[u8]) -> Result<usize, Failed> {
        let mut inner = self.inner.lock();
        inner.reap()?;
        let mut done = inner.write(bytes)?;
        if done < bytes.len() {
            inner.await_room()?;
            done += inner.write(&bytes[done..])?;
        }
        if done == bytes.len() {
            inner.set_interrupts(Queue::disable_interrupts);
        }
        Ok(done)
    }

    fn is_readable(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.reap().is_err() || !inner.filled.is_empty()
    }

    fn is_writable(&self) -> bool {
        let mut inner = self.inner.lock();
        if inner.reap().is_err() || !inner.free.is_empty() {
            return true;
        }
        inner.await_room().is_err() || !inner.free.is_empty()
    }

    fn is_drained(&self) -> bool {
        let mut inner = self.inner.lock();
        if inner.reap().is_err() || inner.unsent() == 0 {
            return true;
        }
        inner.await_room().is_err() || inner.unsent() == 0
    }

    fn emergency_write(&self, byte: u8) -> bool {
        if let Some(register) = &self.emergency {
            // The low byte counts; QEMU takes a word of zero for no write at all.
            register.write32(0, EMERGENCY_MARK | u32::from(byte));
        }
        self.emergency.is_some()
    }

    fn settle(&self, looks: usize) -> bool {
        (0..looks).any(|_| {
            core::hint::spin_loop();
            // No reset, which would free memory: a CPU that stands still may hold the allocator's
            // locks.
            self.inner.try_lock().is_some_and(|mut inner| inner.gather().is_err() || inner.unsent() == 0)
        })
    }
}
