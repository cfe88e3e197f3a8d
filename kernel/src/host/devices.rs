//! Finding the host's consoles, disks, folders, network and memory devices, and starting them.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_bounce::{Device, DeviceRules, Dma, DmaAddr, DmaError, Limits, Worker};
use freehold_collections::{Arc, Vec, reserve};
use freehold_machine::{DeviceDomain, PAGE_SIZE};
use freehold_virtio::block::VirtioBlock;
use freehold_virtio::console::{Buffers, Console, EMERGENCY_OFFSET};
use freehold_virtio::net::Net;
use freehold_virtio::p9::Messages;
use freehold_virtio::platform::{Function, Lines, Notify, Sleep, Wait, Waited};
use freehold_virtio::transport::{PciTransport, device_type};
use freehold_virtio::{BlockDevice, ByteStream, Failed, FrameDevice, MessageDevice, SetupError, pci, port};
use freehold_virtqueue::{DeviceType, NoRings};
use spin::Once;

use super::iommu;
use super::memory::{FoundMemory, MemoryDevice};
use super::pci::{Bar, Pci};
use super::slots::DiskSlot;
use crate::mem::{Frames, evacuate, reclaim};
use crate::sync::WaitQueue;
use crate::{sched, time};

/// A byte stream to the host, with a wait queue. The queue is woken when bytes may have arrived or
/// room may have been made.
pub struct Port {
    console: Console<Frames, PciTransport<Bar>, Bar>,
    changed: Arc<WaitQueue>,
    sent: AtomicU64,
}

impl Port {
    /// The queue that is woken when a read or a write that transferred nothing may be tried again.
    pub const fn changed(&self) -> &Arc<WaitQueue> {
        &self.changed
    }
    /// Bytes written so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
    /// Sleeps until the host has taken all bytes.
    pub fn drain(&self) {
        self.changed.wait_uninterruptible(|| self.console.is_drained().then_some(()));
    }
}

impl ByteStream for Port {
    fn try_read(&self, bytes: &mut [u8]) -> Result<usize, Failed> {
        self.console.try_read(bytes)
    }
    fn try_write(&self, bytes: &[u8]) -> Result<usize, Failed> {
        let count = self.console.try_write(bytes)?;
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
    fn is_readable(&self) -> bool {
        self.console.is_readable()
    }
    fn is_writable(&self) -> bool {
        self.console.is_writable()
    }
    fn is_drained(&self) -> bool {
        self.console.is_drained()
    }
    fn settle(&self, looks: usize) -> bool {
        self.console.settle(looks)
    }
    fn emergency_write(&self, byte: u8) -> bool {
        self.console.emergency_write(byte)
    }
}

/// A disk of the host, in the order of the slots: 0 is /dev/vda.
pub type Disk = Arc<dyn BlockDevice>;

/// A folder of the host, identified by its tag.
pub type Folder = Arc<dyn MessageDevice>;

/// The network device.
pub struct Network {
    /// The device.
    pub device: Arc<dyn FrameDevice>,
    line: &'static NetworkLine,
}

impl Network {
    /// Returns the queue that is woken when frames may have arrived, or room may have been made.
    pub const fn changed(&self) -> &Arc<WaitQueue> {
        &self.line.changed
    }
    /// Returns the flag that the device's interrupt sets before it wakes the queue; the reader
    /// clears it.
    pub const fn interrupted(&self) -> &'static AtomicBool {
        &self.line.interrupted
    }
}

/// Interrupt notification of a network device.
struct NetworkLine {
    changed: Arc<WaitQueue>,
    interrupted: AtomicBool,
}

impl Notify for NetworkLine {
    fn notify(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }
}

/// Default limit for all slots together, in bytes. The limit never exceeds an eighth of memory.
const MOST_SLOTS: usize = 1 << 30;

/// Names of disks, for the log and for the accounts of the DMA API.
const DISKS: [&str; 26] = [
    "vda", "vdb", "vdc", "vdd", "vde", "vdf", "vdg", "vdh", "vdi", "vdj", "vdk", "vdl", "vdm", "vdn", "vdo",
    "vdp", "vdq", "vdr", "vds", "vdt", "vdu", "vdv", "vdw", "vdx", "vdy", "vdz",
];

/// Devices that the host provides.
pub struct Host {
    ports: Vec<Arc<Port>>,
    disks: Vec<Disk>,
    folders: Vec<Folder>,
    networks: Vec<Network>,
    memory: Vec<MemoryDevice>,
    slots: Vec<DiskSlot>,
}

static HOST: Once<Host> = Once::new();
static DMA: Dma<Frames> = Dma::new();

/// A wait queue that interrupts wake.
pub(super) struct InterruptQueue(pub(super) Arc<WaitQueue>);

impl Notify for InterruptQueue {
    fn notify(&self) {
        self.0.wake_all();
    }
}

impl Wait for InterruptQueue {
    fn wait_until(&self, limit_ns: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        let deadline = time::now().saturating_add(limit_ns);
        let condition = || condition().then_some(());
        let held = match sleep {
            Sleep::Uninterruptible => Ok(self.0.wait_uninterruptible_until(deadline, condition)),
            Sleep::Killable => self.0.wait_killable_until(deadline, condition),
        };
        match held {
            Ok(Some(())) => Waited::Held,
            Ok(None) => Waited::TimedOut,
            Err(_) => Waited::Killed,
        }
    }
    fn notify_one(&self) {
        self.0.wake_one();
    }
}

/// Interrupt notifications of a request device.
pub(super) struct DeviceLines {
    pub answers: InterruptQueue,
    pub turns: InterruptQueue,
}

impl DeviceLines {
    /// Makes lines in which no task waits. They are never freed.
    pub fn new() -> &'static Self {
        let line = || InterruptQueue(reserve::arc(WaitQueue::new()));
        reserve::leaked(Self { answers: line(), turns: line() })
    }
}

impl Notify for DeviceLines {
    fn notify(&self) {
        if self.answers.0.is_empty() {
            // A late answer, for which no task waits: a task that waits for a free slot has to
            // check.
            self.turns.notify_one();
        } else {
            self.answers.notify();
        }
    }
}

/// Interrupt notification of a folder.
struct FolderLines(&'static DeviceLines);

/// See [`folders_ended`].
static FOLDERS_ENDED: WaitQueue = WaitQueue::new();

/// Notifies the task that waits for [`folders_ended`].
struct EndedMessages;

impl Notify for EndedMessages {
    fn notify(&self) {
        FOLDERS_ENDED.wake_all();
    }
}

impl Notify for FolderLines {
    fn notify(&self) {
        if self.0.answers.0.is_empty() {
            // A late answer, for which no task waits.
            EndedMessages.notify();
        }
        self.0.notify();
    }
}

/// The DMA API's state; it has no memory before [`init`].
pub const fn dma() -> &'static Dma<Frames> {
    &DMA
}

/// The port of the program's stdin and stdout, or of its terminal.
pub fn stream() -> Option<&'static Arc<Port>> {
    port(0)
}

/// The port of the program's stderr.
pub fn error() -> Option<&'static Arc<Port>> {
    port(1)
}

/// The control channel.
pub fn control() -> Option<&'static Arc<Port>> {
    port(2)
}

fn port(number: usize) -> Option<&'static Arc<Port>> {
    HOST.get()?.ports.get(number)
}

/// The disks.
pub fn disks() -> &'static [Disk] {
    HOST.get().map_or(&[], |host| &host.disks)
}

/// The folders that the host shows.
pub fn folders() -> &'static [Folder] {
    HOST.get().map_or(&[], |host| &host.folders)
}

/// The network device, if there is one.
pub fn network() -> Option<&'static Network> {
    HOST.get()?.networks.first()
}

/// The queue of the task that releases abandoned messages of folders. It is woken when a folder's
/// server may have answered such a message, and when there is other work for the task.
pub fn folders_ended() -> &'static WaitQueue {
    &FOLDERS_ENDED
}

/// The devices that plug memory in.
pub fn memory() -> &'static [MemoryDevice] {
    HOST.get().map_or(&[], |host| &host.memory)
}

/// Slots that disks are plugged into while the machine runs.
pub fn slots() -> &'static [DiskSlot] {
    HOST.get().map_or(&[], |host| &host.slots)
}

/// Limits of devices' bounce memory.
#[derive(Clone, Copy, Debug)]
pub struct BounceSettings {
    /// Limits of all devices together.
    pub limits: Limits,
    /// The disk that has bounce memory of its own and uses no other: its number, and bytes.
    pub restricted: Option<(usize, usize)>,
}

/// Gives devices memory, up to `limits`, and with it memory for rings. On the boot CPU, once,
/// before the first device.
///
/// # Errors
/// There is no memory for the first frames: no device can be started.
pub fn start_dma(frames: Frames, limits: Limits) -> Result<(), NoRings> {
    let all = frames.total_frames() as usize * PAGE_SIZE;
    let cap = limits.cap.min((all / 8).min(MOST_SLOTS));
    DMA.start(frames, Limits { cap, ..limits });
    // The rings' only frame shows where the direct map is.
    let rings = DMA.attach(rules("virtqueues", PAGE_SIZE, None)).map_err(|_| NoRings)?;
    freehold_virtqueue::install(rings)
}

/// Finds and starts the host's devices; `memory` are the memory devices that were found before
/// there was a page allocator. On the boot CPU, once, with interrupts available and before tasks
/// run. Calls `warn` for each device that cannot be used.
// The stack frame of this function holds 40 KiB. If it were inlined into the start-up code, this
// would be there, too, while the page allocator is made. Together they exceed the start-up stack.
#[inline(never)]
#[cold]
pub fn init(
    restricted: Option<(usize, usize)>,
    memory: &[FoundMemory],
    warn: &mut dyn FnMut(Function, SetupError),
) {
    let dma = &DMA;
    let mut host = Host {
        ports: Vec::new(),
        disks: Vec::new(),
        folders: Vec::new(),
        networks: Vec::new(),
        memory: Vec::new(),
        slots: Vec::new(),
    };
    for found in memory {
        let device = iommu::domain(found.function, "memory")
            .and_then(|domain| Ok(dma.attach(rules("memory", 1 << 16, domain))?));
        let started = device.and_then(|device| {
            make_room(&mut host.memory)?;
            MemoryDevice::start(found, device)
        });
        match started {
            Ok(device) => host.memory.push_reserved(device),
            Err(error) => warn(found.function, error),
        }
    }
    for (function, vendor, device) in pci::functions(&Pci) {
        let started = match device_type(vendor, device) {
            Some(DeviceType::Console) => host.start_console(dma, function),
            Some(DeviceType::Block) => host.start_disk((dma, restricted), function),
            Some(DeviceType::_9P) => host.start_folder(dma, function),
            Some(DeviceType::Network) => host.start_network(dma, function),
            _ => Ok(()),
        };
        if let Err(error) = started {
            warn(function, error);
        }
    }
    for port in port::ports(&Pci) {
        let bridge = port.bridge();
        let started = make_room(&mut host.slots).and_then(|()| DiskSlot::new(dma, port, host.slots.len()));
        match started {
            Ok(slot) => host.slots.push_reserved(slot),
            Err(error) => warn(bridge, error),
        }
    }
    HOST.call_once(|| host);
}

/// Gives a test's machine disks and folders in place of the host's devices.
#[cfg(test)]
pub(crate) fn init_with(disks: Vec<Disk>, folders: Vec<Folder>) {
    let (ports, networks, memory, slots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    HOST.call_once(|| Host { ports, disks, folders, networks, memory, slots });
}

pub(super) fn rules(
    name: &'static str,
    quota: usize,
    domain: Option<&'static dyn DeviceDomain>,
) -> DeviceRules {
    DeviceRules { name, reach: DmaAddr(u64::MAX), quota, domain }
}

/// Makes room in `devices` before a device is started.
fn make_room<T>(devices: &mut Vec<T>) -> Result<(), SetupError> {
    devices.try_reserve(1).map_err(|_| DmaError::OutOfMemory.into())
}

impl Host {
    fn start_console(&mut self, dma: &'static Dma<Frames>, function: Function) -> Result<(), SetupError> {
        make_room(&mut self.ports)?;
        // The second console is never read; the third carries few and small frames.
        let (name, receive, transmit) = match self.ports.len() {
            0 => ("stream", 8, 8),
            1 => ("error", 0, 4),
            _ => ("control", 2, 4),
        };
        let device: Device<Frames> = dma.attach(rules(name, 1 << 20, iommu::domain(function, name)?))?;
        let changed = reserve::arc(WaitQueue::new());
        let line: &'static InterruptQueue = reserve::leaked(InterruptQueue(changed.clone()));
        let transport = PciTransport::new(&Pci, function, DeviceType::Console, line)?;
        let emergency = PciTransport::map_config(&Pci, function, EMERGENCY_OFFSET, 4);
        let buffers = Buffers { receive, transmit, size: 4096 };
        let console = Console::new(transport, device, buffers, emergency)?;
        self.ports.push_reserved(reserve::arc(Port { console, changed, sent: AtomicU64::new(0) }));
        Ok(())
    }

    fn start_disk(
        &mut self,
        (dma, restricted): (&'static Dma<Frames>, Option<(usize, usize)>),
        function: Function,
    ) -> Result<(), SetupError> {
        make_room(&mut self.disks)?;
        let number = self.disks.len();
        let name = DISKS.get(number).copied().unwrap_or("disk");
        let rules = rules(name, usize::MAX, iommu::domain(function, name)?);
        let device = match restricted.filter(|&(disk, _)| disk == number) {
            Some((_, bytes)) => dma.attach_restricted(rules, bytes)?,
            None => dma.attach(rules)?,
        };
        let lines = DeviceLines::new();
        let transport = PciTransport::new(&Pci, function, DeviceType::Block, lines)?;
        let lines = Lines { answers: &lines.answers, turns: &lines.turns };
        self.disks.push_reserved(reserve::arc(VirtioBlock::new(transport, device, lines)?));
        Ok(())
    }
}

impl Host {
    fn start_folder(&mut self, dma: &'static Dma<Frames>, function: Function) -> Result<(), SetupError> {
        const NAME: &str = "folder";
        make_room(&mut self.folders)?;
        let device = dma.attach(rules(NAME, usize::MAX, iommu::domain(function, NAME)?))?;
        let lines: &'static FolderLines = reserve::leaked(FolderLines(DeviceLines::new()));
        let transport = PciTransport::new(&Pci, function, DeviceType::_9P, lines)?;
        let lines = Lines { answers: &lines.0.answers, turns: &lines.0.turns };
        self.folders.push_reserved(reserve::arc(Messages::new(transport, device, lines, &EndedMessages)?));
        Ok(())
    }
}

impl Host {
    fn start_network(&mut self, dma: &'static Dma<Frames>, function: Function) -> Result<(), SetupError> {
        const NAME: &str = "eth0";
        make_room(&mut self.networks)?;
        let device = dma.attach(rules(NAME, usize::MAX, iommu::domain(function, NAME)?))?;
        let (changed, interrupted) = (reserve::arc(WaitQueue::new()), AtomicBool::new(false));
        let line: &'static NetworkLine = reserve::leaked(NetworkLine { changed, interrupted });
        let transport = PciTransport::new(&Pci, function, DeviceType::Network, line)?;
        let device = reserve::arc(Net::new(transport, device)?);
        self.networks.push_reserved(Network { device, line });
        Ok(())
    }
}

static WORK_QUEUE: WaitQueue = WaitQueue::new();
static WORK_PENDING: AtomicBool = AtomicBool::new(false);

struct Waker;

impl Worker for Waker {
    fn wake(&self) {
        WORK_PENDING.store(true, Ordering::Release);
        WORK_QUEUE.wake_all();
    }
}

/// Time between two pageblocks that are emptied for devices.
const EVACUATION_INTERVAL: u64 = 10 * time::SECOND;

/// Starts the task that returns unused memory of devices, and adds some when little is free. It
/// sleeps while the DMA API has no more than at start-up, and checks once per second otherwise. If
/// memory came in small pieces only, it has pageblocks emptied for larger ones.
/// (Linux' `swiotlb_dyn_alloc` only adds.)
///
/// # Errors
/// `ENOMEM`.
pub fn start_worker() -> crate::Result<()> {
    static WAKER: Waker = Waker;
    dma().set_worker(&WAKER);
    iommu::start_worker()?;
    reclaim::register_idle(|| (dma().shrink() / PAGE_SIZE) as u64);
    sched::spawn_kernel("swiotlb", work).map(drop)
}

fn work() {
    let mut next = 0;
    loop {
        WORK_QUEUE.wait_uninterruptible(|| WORK_PENDING.swap(false, Ordering::Acquire).then_some(()));
        while dma().wants_ticks() {
            dma().tick();
            if dma().is_fragmented() && dma().mend() && time::now() >= next {
                next = time::now() + EVACUATION_INTERVAL;
                if evacuate::compact_once() > 0 {
                    dma().mend();
                }
            }
            let _ = WORK_QUEUE.wait_uninterruptible_until(time::now() + time::SECOND, || None::<()>);
        }
    }
}
