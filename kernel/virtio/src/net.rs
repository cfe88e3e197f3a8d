//! A virtio network device with one pair of queues, as a [`FrameDevice`] (virtio 1.2, 5.1).
//!
//! Buffers are taken once, from the DMA API: the host has all receive buffers except those whose
//! frames wait to be taken, and frames to be sent are copied into free transmit buffers. Nothing is
//! allocated or freed after start-up, except when a device is given up. The device computes neither
//! checksums nor segmentation, so the header before each frame that is sent is zero.
//!
//! **Room.** While there is room, the transmit side needs no interrupts: buffers come back as
//! frames are sent. A task that finds no room turns interrupts on and checks once more. They stay
//! on until half of the buffers are free: another task may take the room before the refused one,
//! which then needs a further interrupt.
//!
//! **Protocol violations.** A device that gives back less than a header or more than the buffer
//! has, names buffers of a frame that it has not given back together with it (5.1.6.4.1), or uses a
//! header feature that was not agreed on, is reset and stays out of use (`link.rs`). The receiver
//! checks a frame's contents.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use freehold_bounce::{Device, Direction, DmaError, DmaMapping, DmaSource};
use freehold_virtqueue::{Chain, Part, Queue, Transport, TransportError};
use spin::Mutex;

use crate::link::{Link, TwoWays, Why};
use crate::transport::{Features, negotiate, read_consistent};
use crate::{Failed, FrameCounts, FrameDevice, SetupError};

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Buffers of each kind, and descriptors in each ring: at 1 Gbit/s the longest frames fill them in
/// 0.8 ms, and a task that was woken runs sooner than that. Every host's queues have as many.
const BUFFERS: usize = 64;
/// Bytes in each: a header and the longest frame (1526), in half a page. So each is one descriptor.
const BUFFER_SIZE: usize = 2048;
/// Free transmit buffers with which interrupts are not needed any more.
const ENOUGH_ROOM: usize = BUFFERS / 2;
/// Bytes of `struct virtio_net_hdr`, which stands before each frame. Its first byte is flags, its
/// second what kind of segments the frame is to be cut into, its last two are the number of
/// buffers.
const HEADER: usize = 12;
/// A flag: the host has checked the checksum. Hosts that forward frames of a Linux tap set it
/// without being asked to (`tun_put_user`); the driver does not rely on it.
const DATA_VALID: u8 = 2;
/// Bytes of an Ethernet header, which a frame has at least.
const ETHERNET: usize = 14;
/// The longest packet: Ethernet's. A device may say less, or more and get this.
const MAX_MTU: u16 = 1500;
/// The smallest packet size that IPv4 allows for a network.
const MIN_MTU: u16 = 68;
/// Where the device's configuration has its address and its longest packet.
const ADDRESS_OFFSET: usize = 0;
const MTU_OFFSET: usize = 10;
/// The address of a device without one: a locally administered address.
const DEFAULT_ADDRESS: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

const _: () = assert!(HEADER + ETHERNET + MAX_MTU as usize <= BUFFER_SIZE);

/// A network device.
pub struct Net<S: DmaSource, T: Transport> {
    /// Taken by tasks only, for as long as a copy of a frame takes. Orders with no other lock.
    inner: Mutex<NetInner<S, T>>,
    address: [u8; 6],
    mtu: usize,
}

struct NetInner<S: DmaSource, T: Transport> {
    link: Link<S, T, NetRings<S>>,
    /// Filled receive buffers in the order of arrival: the buffer's number and its number of bytes,
    /// [`BUFFER_SIZE`] at most.
    filled: VecDeque<(usize, usize)>,
    /// Numbers of the transmit buffers that the host does not have.
    free: Vec<usize>,
    /// A sender found no room, and interrupts are on.
    awaits_room: bool,
    /// Largest number of buffers of a received frame.
    most_spanned: usize,
    /// Bytes of the longest frame to send.
    longest: usize,
    counts: FrameCounts,
}

type NetRings<S> = TwoWays<S, Queue<S, BUFFERS>, BUFFERS>;

/// The device's address: one of a single station.
fn address<T: Transport>(transport: &T, features: Features) -> Result<[u8; 6], SetupError> {
    if !features.contains(Features::NET_MAC) {
        return Ok(DEFAULT_ADDRESS);
    }
    let told: [u8; 6] = read_consistent(transport, |transport| transport.read_config_space(ADDRESS_OFFSET))?;
    let is_station = told[0] & 1 == 0 && told != [0; 6];
    if is_station { Ok(told) } else { Err(SetupError::Nonsense("address")) }
}

/// Bytes of the longest packet.
fn mtu<T: Transport>(transport: &T, features: Features) -> Result<usize, SetupError> {
    if !features.contains(Features::NET_MTU) {
        return Ok(MAX_MTU.into());
    }
    let told: u16 = read_consistent(transport, |transport| transport.read_config_space(MTU_OFFSET))?;
    Ok(u16::from_le(told).clamp(MIN_MTU, MAX_MTU).into())
}

/// All buffers of a device, with a header of zeroes in each. Buffers for sending keep it; in
/// receive buffers it is there in case a host writes only a part of the header.
fn buffers<S: DmaSource>(device: Device<S>) -> Result<Vec<Arc<DmaMapping<S>>>, SetupError> {
    let mut buffers = Vec::new();
    buffers.try_reserve_exact(2 * BUFFERS).map_err(|_| DmaError::OutOfMemory)?;
    for number in 0..2 * BUFFERS {
        let direction = if number < BUFFERS { Direction::FromDevice } else { Direction::ToDevice };
        let buffer = device.buffer(BUFFER_SIZE, direction)?;
        buffer.write(0, &[0; HEADER]);
        buffers.push(Arc::new(buffer));
    }
    Ok(buffers)
}

impl<S: DmaSource, T: Transport> Net<S, T> {
    /// Starts the device. The transport's interrupt announces that frames may have come or that
    /// there may be room.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(mut transport: T, device: Device<S>) -> Result<Self, SetupError> {
        let wanted = Features::NET_MAC | Features::NET_MTU | Features::NET_MERGEABLE;
        let features = negotiate(&mut transport, wanted)?;
        let (address, mtu) = (address(&transport, features)?, mtu(&transport, features)?);
        // Before the device knows of any memory.
        let buffers = buffers(device)?;
        let (mut filled, mut free) = (VecDeque::new(), Vec::new());
        if filled.try_reserve_exact(BUFFERS).is_err() || free.try_reserve_exact(BUFFERS).is_err() {
            return Err(SetupError::Memory(DmaError::OutOfMemory));
        }
        free.extend(BUFFERS..2 * BUFFERS);
        let receive = Queue::new(&mut transport, RECEIVE, device)?;
        let transmit = match Queue::new(&mut transport, TRANSMIT, device) {
            Ok(queue) => queue,
            Err(error) => {
                // The device knows one queue: this resets it.
                drop(Link::new(transport, device, receive));
                return Err(error.into());
            }
        };
        let mut inner = NetInner {
            link: Link::new(transport, device, TwoWays { receive, transmit, buffers }),
            filled,
            free,
            awaits_room: false,
            most_spanned: if features.contains(Features::NET_MERGEABLE) { BUFFERS } else { 1 },
            longest: mtu + ETHERNET,
            counts: FrameCounts::default(),
        };
        inner.begin().map_err(|_| SetupError::Ring(TransportError::QueueFull))?;
        Ok(Self { inner: Mutex::new(inner), address, mtu })
    }
}

impl<S: DmaSource, T: Transport> NetInner<S, T> {
    /// Puts the device to work.
    fn begin(&mut self) -> Result<(), Failed> {
        let (rings, transport) = self.link.lent()?;
        rings.transmit.disable_interrupts();
        transport.finish_init();
        (0..BUFFERS).try_for_each(|number| self.lend(number))?;
        self.notify_if_wanted(RECEIVE)
    }

    /// Does `work`, and gives the device up if that fails.
    fn checked<R>(&mut self, work: impl FnOnce(&mut Self) -> Result<R, Failed>) -> Result<R, Failed> {
        let result = work(self);
        if result.is_err() {
            self.link.fail(Why::BrokeTheProtocol);
        }
        result
    }

    /// Let the host fill receive buffer `number`.
    fn lend(&mut self, number: usize) -> Result<(), Failed> {
        let (rings, _) = self.link.lent()?;
        let part = Part::writable(rings.buffers[number].clone(), 0..BUFFER_SIZE);
        let chain = part.and_then(|part| Chain::new(number, [part])).ok_or(Failed)?;
        rings.receive.submit(chain).map_err(|_| Failed)
    }

    fn notify_if_wanted(&mut self, queue: u16) -> Result<(), Failed> {
        let (rings, transport) = self.link.lent()?;
        let ring = if queue == RECEIVE { &rings.receive } else { &rings.transmit };
        if ring.wants_notice() {
            transport.notify(queue);
        }
        Ok(())
    }

    /// Gather the buffers that the host has filled. Lends nothing again meanwhile, so that a host
    /// that gives buffers back as fast as it gets them does not keep a task here.
    fn gather_filled(&mut self) -> Result<(), Failed> {
        let (rings, _) = self.link.lent()?;
        while let Some(done) = rings.receive.complete()? {
            if done.claimed as usize > BUFFER_SIZE {
                return Err(Failed);
            }
            self.filled.push_back((done.tag, done.written));
        }
        Ok(())
    }

    /// Gather the buffers that the host has emptied.
    fn gather_sent(&mut self) -> Result<(), Failed> {
        let (rings, _) = self.link.lent()?;
        Ok(rings.gather_sent(&mut self.free)?)
    }

    /// Make sure that an interrupt comes when there is room, and look once more.
    fn await_room(&mut self) -> Result<(), Failed> {
        let (rings, _) = self.link.lent()?;
        rings.transmit.enable_interrupts();
        self.awaits_room = true;
        self.gather_sent()
    }

    fn send(&mut self, frame: &[u8]) -> Result<bool, Failed> {
        self.gather_sent()?;
        if !(ETHERNET..=self.longest).contains(&frame.len()) {
            self.counts.dropped += 1;
            return Ok(true);
        }
        if self.free.is_empty() {
            self.await_room()?;
        }
        let Some(number) = self.free.pop() else { return Ok(false) };
        let (rings, _) = self.link.lent()?;
        if self.awaits_room && self.free.len() >= ENOUGH_ROOM {
            rings.transmit.disable_interrupts();
            self.awaits_room = false;
        }
        let memory = rings.buffers[number].clone();
        memory.write(HEADER, frame);
        let part = Part::readable(memory, 0..HEADER + frame.len());
        let chain = part.and_then(|part| Chain::new(number, [part])).ok_or(Failed)?;
        rings.transmit.submit(chain).map_err(|_| Failed)?;
        self.notify_if_wanted(TRANSMIT)?;
        self.counts.sent_frames += 1;
        self.counts.sent_bytes += frame.len() as u64;
        Ok(true)
    }

    fn receive(&mut self, frame: &mut [u8]) -> Result<Option<usize>, Failed> {
        self.gather_filled()?;
        let waiting = self.filled.len();
        let mut taken = None;
        // Each turn takes buffers that were filled before.
        while taken.is_none()
            && let Some(span) = self.span()?
        {
            taken = self.take(span, frame)?;
        }
        if self.filled.len() < waiting {
            self.notify_if_wanted(RECEIVE)?;
        }
        Ok(taken)
    }

    /// Returns how many buffers the first received frame spans. `None`: no frame waits.
    fn span(&self) -> Result<Option<usize>, Failed> {
        let Some(&(number, written)) = self.filled.front() else { return Ok(None) };
        let rings = self.link.look().ok_or(Failed)?;
        let mut header = [0; HEADER];
        // Read only once: the device may change it at any moment.
        rings.buffers[number].read(0, &mut header);
        let [flags, segments, .., low, high] = header;
        let span = match u16::from_le_bytes([low, high]) {
            // QEMU up to 7.2.17 leaves the field alone where only one value can be.
            0 if self.most_spanned == 1 => 1,
            span => usize::from(span),
        };
        let is_sane = written >= HEADER
            && flags & !DATA_VALID == 0
            && segments == 0
            && (1..=self.filled.len().min(self.most_spanned)).contains(&span);
        if is_sane { Ok(Some(span)) } else { Err(Failed) }
    }

    /// Takes the frame in the first `span` filled buffers, if its length is possible, and lends
    /// them again.
    fn take(&mut self, span: usize, frame: &mut [u8]) -> Result<Option<usize>, Failed> {
        let bytes: usize = self.filled.iter().take(span).map(|&(_, written)| written).sum();
        let length = bytes - HEADER;
        let fits = (ETHERNET..=frame.len()).contains(&length);
        let (mut done, mut start) = (0, HEADER);
        for _ in 0..span {
            let (number, written) = self.filled.pop_front().ok_or(Failed)?;
            let (rings, _) = self.link.lent()?;
            if fits {
                let end = done + written - start;
                rings.buffers[number].read(start, &mut frame[done..end]);
                (done, start) = (end, 0);
            }
            self.lend(number)?;
        }
        if !fits {
            self.counts.dropped += 1;
            return Ok(None);
        }
        self.counts.received_frames += 1;
        self.counts.received_bytes += length as u64;
        Ok(Some(length))
    }
}

impl<S, T> FrameDevice for Net<S, T>
where
    S: DmaSource,
    T: Transport + Send,
{
    fn address(&self) -> [u8; 6] {
        self.address
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn send(&self, frame: &[u8]) -> Result<bool, Failed> {
        self.inner.lock().checked(|inner| inner.send(frame))
    }

    fn receive(&self, frame: &mut [u8]) -> Result<Option<usize>, Failed> {
        self.inner.lock().checked(|inner| inner.receive(frame))
    }

    fn counts(&self) -> FrameCounts {
        self.inner.lock().counts
    }
}
