//! A disk for virtual machines that is a process of its own, or a thread of a test: a
//! vhost-user-blk server.
//!
//! The server holds bytes in memory. It is correct by default. The caller may choose a [`Lie`] and
//! the number of a request: from that request on, the server breaks the protocol in this way. It
//! speaks the messages that QEMU sends to a disk with one queue (QEMU's
//! docs/interop/vhost-user.rst) and virtio 1.2, 5.2. The crates `vhost` and `vhost-user-backend`
//! have a memory model and a queue that cannot break the protocol. The part of the protocol that is
//! needed here is smaller than work-arounds for that.
//!
//! The guest's memory is accessed through the files that QEMU passes, with pread and pwrite.
#![forbid(unsafe_code)]

mod lie;
mod memory;
mod ring;
mod sightings;
mod wire;

use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use lie::{LIES, Lie, UnknownLie};
use memory::{GuestRegion, SharedMemory};
use ring::{ChainPart, SplitRing};
pub use sightings::Sightings;
use wire::{VhostMessage, VhostRequest, receive, reply};

/// Bytes in a sector.
pub const SECTOR: usize = 512;
/// VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_BLK_F_FLUSH.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 9;
/// Features of disks and rings: SIZE_MAX, SEG_MAX, GEOMETRY, RO, BLK_SIZE, FLUSH, TOPOLOGY,
/// CONFIG_WCE, DISCARD, WRITE_ZEROES, INDIRECT_DESC, EVENT_IDX.
const ALL_FEATURES: u64 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 14;
/// VHOST_USER_PROTOCOL_F_CONFIG.
const PROTOCOL_FEATURES: u64 = 1 << 9;
/// Delay of late answers.
const LATE: Duration = Duration::from_secs(2);
/// Time that a [watched](Disk::watched) disk keeps each request, so that several disks have
/// requests at the same time.
pub const LOOK: Duration = Duration::from_millis(2);
/// Interval at which the server checks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// A disk: its bytes and its fault.
#[derive(Debug)]
pub struct Disk {
    bytes: Mutex<Vec<u8>>,
    sectors: u64,
    lie: Lie,
    /// Number of requests that are served correctly first.
    honest: u64,
    served: AtomicU64,
    writes: AtomicU64,
    stop: AtomicBool,
    /// This disk's number, and the record of the pages that it sees.
    watch: Option<(u8, Arc<Sightings>)>,
}

impl Disk {
    /// Makes a correct disk of `bytes`, whole sectors.
    ///
    /// # Panics
    /// If the bytes are no whole sectors.
    pub fn new(bytes: Vec<u8>) -> Self {
        assert!(bytes.len().is_multiple_of(SECTOR), "a disk is whole sectors");
        let (served, writes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (sectors, bytes) = ((bytes.len() / SECTOR) as u64, Mutex::new(bytes));
        let stop = AtomicBool::new(false);
        Self { bytes, sectors, lie: Lie::None, honest: 0, served, writes, stop, watch: None }
    }
    /// Makes the disk break the protocol after `honest` requests.
    #[must_use]
    pub fn lying(self, lie: Lie, honest: u64) -> Self {
        Self { lie, honest, ..self }
    }
    /// Records the pages that the disk sees, as disk `number`, and takes [`LOOK`] for each request.
    #[must_use]
    pub fn watched(self, number: u8, sightings: Arc<Sightings>) -> Self {
        Self { watch: Some((number, sightings)), ..self }
    }
    /// Returns the number of requests so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
    /// Ends [`serve`] soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn features(&self) -> u64 {
        if self.lie == Lie::FeaturesOfAllOnes { FEATURES | ALL_FEATURES } else { FEATURES }
    }

    /// Returns `struct virtio_blk_config`.
    fn config(&self) -> [u8; 60] {
        let sectors = match self.lie {
            Lie::SizeImpossible => u64::MAX,
            Lie::SizeZero => 0,
            _ => self.sectors,
        };
        let block_size: u32 = if self.lie == Lie::ConfigNonsense { 3 } else { SECTOR as u32 };
        let mut config = [0; 60];
        config[..8].copy_from_slice(&sectors.to_le_bytes());
        config[20..24].copy_from_slice(&block_size.to_le_bytes());
        // num_queues
        config[34] = 1;
        config
    }
}

/// Listens at `path`, serves one connection, and returns when it ends or the disk is told to stop.
///
/// # Errors
/// The socket cannot be made, or the peer does not speak the protocol.
pub fn serve(path: &Path, disk: &Disk) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    serve_on(&listener, disk)
}

/// Serves as [`serve`] does, on a socket that listens already.
///
/// # Errors
/// The peer does not speak the protocol.
pub fn serve_on(listener: &UnixListener, disk: &Disk) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if disk.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::thread::sleep(STOP_INTERVAL);
            }
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    Connection { stream, disk, memory: SharedMemory::default(), ring: SplitRing::default() }.run()
}

struct Connection<'a> {
    stream: UnixStream,
    disk: &'a Disk,
    memory: SharedMemory,
    ring: SplitRing,
}

/// Whether the connection goes on after a message.
#[derive(PartialEq, Eq)]
enum AfterMessage {
    Go,
    End,
}

impl Connection<'_> {
    fn run(mut self) -> io::Result<()> {
        while !self.disk.stop.load(Ordering::Relaxed) {
            let (message, kicked) = {
                let mut sources = vec![PollFd::new(&self.stream, PollFlags::IN)];
                sources.extend(self.ring.kick.as_ref().map(|kick| PollFd::new(kick, PollFlags::IN)));
                let limit = Timespec { tv_sec: 0, tv_nsec: STOP_INTERVAL.subsec_nanos().into() };
                poll(&mut sources, Some(&limit))?;
                let ready = |at: usize| sources.get(at).is_some_and(|source| !source.revents().is_empty());
                (ready(0), ready(1))
            };
            if kicked && let Some(kick) = &mut self.ring.kick {
                kick.read_exact(&mut [0; 8])?;
            }
            if message {
                let Some(message) = receive(&self.stream)? else { return Ok(()) };
                self.handle(message)?;
            }
            // Firmware may leave its ring behind, in memory that the kernel uses again, so the ring
            // is read only after a kick. A disk that suppresses kicks polls once it has been used.
            let looks = self.disk.lie == Lie::UsedFlags && self.disk.served() > 0;
            if (kicked || looks) && self.ring.is_ready() && self.work()? == AfterMessage::End {
                return Ok(());
            }
        }
        Ok(())
    }

    fn handle(&mut self, mut message: VhostMessage) -> io::Result<()> {
        let index_and_value = (message.word(0), message.word(4));
        match message.request {
            VhostRequest::GetFeatures => reply(&self.stream, &message, &self.disk.features().to_le_bytes())?,
            VhostRequest::GetProtocolFeatures => {
                reply(&self.stream, &message, &PROTOCOL_FEATURES.to_le_bytes())?;
            }
            VhostRequest::GetConfig => {
                let (offset, size) = (message.word(0) as usize, message.word(4) as usize);
                let config = self.disk.config();
                let mut answer = message.payload.clone();
                for (at, byte) in answer.iter_mut().skip(12).take(size).enumerate() {
                    *byte = config.get(offset + at).copied().unwrap_or(0);
                }
                reply(&self.stream, &message, &answer)?;
            }
            VhostRequest::SetMemoryTable => {
                let files = std::mem::take(&mut message.files);
                let region = |(number, file)| {
                    let at = 8 + 32 * number;
                    let [guest, size, user, offset] = [0, 8, 16, 24].map(|field| message.long(at + field));
                    GuestRegion { guest, size, user, offset, file }
                };
                self.memory = SharedMemory(files.into_iter().enumerate().map(region).collect());
            }
            VhostRequest::SetRingSize => self.ring.size = index_and_value.1 as u16,
            VhostRequest::SetRingBase => {
                (self.ring.taken, self.ring.given) = (index_and_value.1 as u16, index_and_value.1 as u16);
            }
            VhostRequest::SetRingAddresses => {
                let [descriptors, used, available] =
                    [8, 16, 24].map(|at| self.memory.guest_address(message.long(at)));
                (self.ring.descriptors, self.ring.used, self.ring.available) =
                    (descriptors?, used?, available?);
            }
            VhostRequest::GetRingBase => {
                (self.ring.kick, self.ring.is_enabled) = (None, false);
                let mut answer = message.payload[..4].to_vec();
                answer.extend(u32::from(self.ring.taken).to_le_bytes());
                reply(&self.stream, &message, &answer)?;
            }
            VhostRequest::SetRingKick => self.ring.kick = message.files.pop(),
            VhostRequest::SetRingCall => self.ring.call = message.files.pop(),
            VhostRequest::EnableRing => self.ring.is_enabled = index_and_value.1 == 1,
            // A later agreement on features changes nothing here.
            VhostRequest::Other => {}
        }
        Ok(())
    }

    /// Serves all available requests.
    fn work(&mut self) -> io::Result<AfterMessage> {
        while let Some((head, parts)) = self.ring.take(&self.memory)? {
            let number = self.disk.served.fetch_add(1, Ordering::Relaxed);
            let lie = if number < self.disk.honest { Lie::None } else { self.disk.lie };
            match lie {
                Lie::NoAnswer => continue,
                Lie::Disconnect => return Ok(AfterMessage::End),
                Lie::LateAnswer if number == self.disk.honest => std::thread::sleep(LATE),
                _ => {}
            }
            if let Some((disk, sightings)) = &self.disk.watch {
                sightings.begin(*disk, &parts);
                std::thread::sleep(LOOK);
            }
            let written = self.transfer(lie, &parts)?;
            if let Some((_, sightings)) = &self.disk.watch {
                sightings.end(&parts);
            }
            self.ring.answer(&self.memory, lie, head, written)?;
        }
        Ok(AfterMessage::Go)
    }

    /// Performs a request. Returns the number of bytes written to the guest.
    fn transfer(&self, lie: Lie, parts: &[ChainPart]) -> io::Result<u32> {
        let [header, data @ .., status] = parts else { return Ok(0) };
        let mut start = [0; 16];
        self.memory.read(header.address, &mut start)?;
        let kind = u32::from_le_bytes(std::array::from_fn(|i| start[i]));
        let sector = u64::from_le_bytes(std::array::from_fn(|i| start[8 + i]));
        let mut at = usize::try_from(sector).unwrap_or(usize::MAX).saturating_mul(SECTOR);
        let (mut written, mut outcome) = (1, 0u8);
        if kind == 1 && lie == Lie::FailSecondWrite {
            outcome = (self.disk.writes.fetch_add(1, Ordering::Relaxed) % 2) as u8;
        }
        let mut bytes = self.disk.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        for part in data {
            if outcome != 0 {
                break;
            }
            let end = at.saturating_add(part.length as usize);
            let Some(place) = bytes.get_mut(at..end) else {
                outcome = 1;
                break;
            };
            match (kind, part.writable) {
                (0, true) => {
                    self.memory.write(part.address, place)?;
                    written += part.length;
                }
                (1, false) => self.memory.read(part.address, place)?,
                _ => outcome = 2,
            }
            at = end;
        }
        // Read, write and flush are known.
        if ![0, 1, 4].contains(&kind) {
            outcome = 2;
        }
        if lie == Lie::StatusNonsense {
            outcome = 77;
        }
        self.memory.write(status.address, &[outcome])?;
        Ok(written)
    }
}
