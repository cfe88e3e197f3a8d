//! Slots that disks are plugged into while the machine runs.
//!
//! A slot's resources are made once, at start-up: an interrupt of the port and one for the device,
//! the account of the DMA API, the domain, and a mapping of the addresses for a device's registers.
//! An empty slot's account and domain are detached: they have no memory and no table.
//!
//! **Registers.** A driver outlives its device, since open files hold it. So each device has a
//! *gate*, which is closed before the next device can be plugged in. With a closed gate registers
//! read as all ones and writes have no effect, as without a device. The task that closes the gate
//! also holds the driver. So the gate is closed before the driver's last access, which is the reset
//! when the driver is dropped.
//!
//! **Order of release** ([`DiskSlot::release`]). The device confirms a reset, or loses power; then
//! the memory lent to it is freed. All tasks leave the driver; the gate is closed; the account and
//! the domain are detached. The power is switched off last, so a host that waits for that finds
//! nothing in use.
//!
//! **Context.** One task per slot (`block/plug.rs`), the only caller of [`DiskSlot::release`] and
//! [`DiskSlot::start_disk`]. Linux' nearest relative is drivers/pci/hotplug/pciehp_ctrl.c.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_bounce::{DetachError, Device, Dma};
use freehold_collections::{Arc, reserve};
use freehold_machine::PhysAddr;
use freehold_virtio::block::VirtioBlock;
use freehold_virtio::platform::{Function, Lines, MsiMessage, Notify, Platform, Registers};
use freehold_virtio::port::{Port, Power, SlotState, place_registers};
use freehold_virtio::transport::{PciTransport, device_type};
use freehold_virtio::{SetupError, pci};
use freehold_virtqueue::DeviceType;

use super::devices::{DeviceLines, Disk, rules};
use super::iommu;
use super::pci::{Bar, Pci};
use crate::mem::Frames;
use crate::sync::{SpinLock, WaitQueue};
use crate::time;

/// Names of slots, for the log and for the accounts of the DMA API.
const SLOTS: [&str; 8] = ["slot0", "slot1", "slot2", "slot3", "slot4", "slot5", "slot6", "slot7"];
/// Size of a port's address range that is mapped for its device's registers.
const WINDOW: u64 = 256 << 10;
/// How long a device may take to answer after it got power, and the interval between two queries.
const READY_WITHIN: u64 = time::SECOND;
const READY_INTERVAL: u64 = time::SECOND / 100;
/// Interval at which a task checks whether others have left a driver, and the number of checks
/// after which it logs that they have not.
const LEAVE_INTERVAL: u64 = time::SECOND / 100;
const LEAVE_LOOKS: usize = 500;

/// Whether a device's registers can be accessed.
struct Gate(AtomicBool);

/// Registers of a device in a slot.
pub struct SlotBar {
    window: &'static Bar,
    offset: usize,
    gate: Arc<Gate>,
}

impl SlotBar {
    fn open(&self) -> Option<&'static Bar> {
        self.gate.0.load(Ordering::Acquire).then_some(self.window)
    }
}

impl Registers for SlotBar {
    fn read8(&self, offset: usize) -> u8 {
        self.open().map_or(u8::MAX, |bar| Registers::read8(bar, self.offset + offset))
    }
    fn read16(&self, offset: usize) -> u16 {
        self.open().map_or(u16::MAX, |bar| Registers::read16(bar, self.offset + offset))
    }
    fn read32(&self, offset: usize) -> u32 {
        self.open().map_or(u32::MAX, |bar| Registers::read32(bar, self.offset + offset))
    }
    fn write8(&self, offset: usize, value: u8) {
        self.open().into_iter().for_each(|bar| Registers::write8(bar, self.offset + offset, value));
    }
    fn write16(&self, offset: usize, value: u16) {
        self.open().into_iter().for_each(|bar| Registers::write16(bar, self.offset + offset, value));
    }
    fn write32(&self, offset: usize, value: u32) {
        self.open().into_iter().for_each(|bar| Registers::write32(bar, self.offset + offset, value));
    }
}

/// The platform of one device in a slot.
struct SlotPlatform<'a> {
    slot: &'a DiskSlot,
    gate: Arc<Gate>,
}

impl Platform for SlotPlatform<'_> {
    type Registers = SlotBar;

    fn read_config(&self, function: Function, register: u8) -> u32 {
        Pci.read_config(function, register)
    }
    fn write_config(&self, function: Function, register: u8, value: u32) {
        Pci.write_config(function, register, value);
    }
    fn write_config16(&self, function: Function, register: u8, value: u16) {
        Pci.write_config16(function, register, value);
    }
    fn map(&self, address: PhysAddr, length: usize) -> Option<SlotBar> {
        let offset = address.0.checked_sub(self.slot.port.window().start)?;
        let fits = offset.checked_add(length as u64).is_some_and(|end| end <= WINDOW);
        let bar = |offset| SlotBar { window: self.slot.window, offset, gate: self.gate.clone() };
        usize::try_from(offset).ok().filter(|_| fits).map(bar)
    }
    fn interrupt(&self, _: Function, _: &'static dyn Notify) -> Option<MsiMessage> {
        Some(self.slot.message)
    }
}

/// Interrupt notification of the port: wakes a wait queue.
struct SlotLine {
    changed: WaitQueue,
    is_pending: AtomicBool,
}

impl Notify for SlotLine {
    fn notify(&self) {
        self.is_pending.store(true, Ordering::Release);
        self.changed.wake_all();
    }
}

/// The driver of the device in a slot.
struct Occupant {
    disk: Arc<VirtioBlock<Frames, PciTransport<SlotBar>>>,
    gate: Arc<Gate>,
}

/// A slot.
pub struct DiskSlot {
    name: &'static str,
    port: Port,
    window: &'static Bar,
    message: MsiMessage,
    lines: &'static DeviceLines,
    line: &'static SlotLine,
    device: Device<Frames>,
    occupant: SpinLock<Option<Occupant>>,
}

impl DiskSlot {
    /// Makes the slot of `port`, whose events are reported from now on. Start-up only.
    pub(super) fn new(dma: &'static Dma<Frames>, port: Port, number: usize) -> Result<Self, SetupError> {
        let name = SLOTS.get(number).copied().ok_or(SetupError::Nonsense("number of slots"))?;
        let addresses = port.window();
        if addresses.end - addresses.start < WINDOW {
            return Err(SetupError::NoRegisters("room for a device's registers"));
        }
        let domain = iommu::slot_domain(port.bridge(), port.device(), name)?;
        let device = dma.attach(rules(name, usize::MAX, domain))?;
        device.detach().map_err(|_| SetupError::NoDomain)?;
        let lines = DeviceLines::new();
        let message = Pci.interrupt(port.device(), lines).ok_or(SetupError::NoInterrupt)?;
        let window = Pci.map(PhysAddr(addresses.start), WINDOW as usize);
        let window = reserve::leaked(window.ok_or(SetupError::NoRegisters("mapping"))?);
        let (changed, is_pending) = (WaitQueue::new(), AtomicBool::new(true));
        let line: &'static SlotLine = reserve::leaked(SlotLine { changed, is_pending });
        port.listen(&Pci, line)?;
        let occupant = SpinLock::new(None);
        Ok(Self { name, port, window, message, lines, line, device, occupant })
    }

    /// The slot's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Sleeps until an event may have occurred.
    pub fn wait(&self) {
        let is_pending = || self.line.is_pending.swap(false, Ordering::AcqRel).then_some(());
        self.line.changed.wait_uninterruptible(is_pending);
    }

    /// Returns the slot's state and the events since the last call.
    pub fn take_events(&self) -> SlotState {
        self.port.take_events(&Pci)
    }

    /// Gives the device in the slot power, and starts it if it is a disk.
    ///
    /// # Errors
    /// [`SetupError`]: the device has no memory and no access to any. It keeps its power until
    /// [`DiskSlot::release`].
    pub fn start_disk(&self) -> Result<Disk, SetupError> {
        self.port.set_power(&Pci, Power::On);
        let started = self.start();
        if started.is_err() {
            self.let_go();
        }
        started
    }

    fn start(&self) -> Result<Disk, SetupError> {
        let function = self.port.device();
        let (vendor, device) = self.find().ok_or(SetupError::NoRegisters("answer"))?;
        if device_type(vendor, device) != Some(DeviceType::Block) {
            log::error!("{}: {vendor:04x}:{device:04x} is not supported here", self.name);
            return Err(SetupError::NoRegisters("disk"));
        }
        let addresses = self.port.window();
        place_registers(&Pci, function, addresses.start..addresses.start + WINDOW)?;
        if !self.device.is_detached() {
            // The previous device may still have access to its memory.
            return Err(SetupError::NoDomain);
        }
        self.device.reattach()?;
        let gate = reserve::arc(Gate(AtomicBool::new(true)));
        let platform = SlotPlatform { slot: self, gate: gate.clone() };
        let transport = PciTransport::new(&platform, function, DeviceType::Block, self.lines)?;
        let lines = Lines { answers: &self.lines.answers, turns: &self.lines.turns };
        let disk = reserve::arc(VirtioBlock::new(transport, self.device, lines)?);
        *self.occupant.lock() = Some(Occupant { disk: disk.clone(), gate });
        Ok(disk)
    }

    /// Returns vendor and device ID of the device in the slot, once the device answers.
    fn find(&self) -> Option<(u16, u16)> {
        let end = time::now() + READY_WITHIN;
        loop {
            let found = self.port.find(&Pci);
            if found.is_some() || time::now() > end {
                return found;
            }
            rest(READY_INTERVAL);
        }
    }

    /// Releases the slot's present or previous device: requests fail, and the device's memory,
    /// account and domain are released. The slot then has no power. Returns when no task is in the
    /// driver any more.
    pub fn release(&self) {
        self.let_go();
        self.port.set_power(&Pci, Power::Off);
    }

    fn let_go(&self) {
        let occupant = self.occupant.lock().take();
        if let Some(Occupant { disk, gate }) = occupant {
            if disk.remove(self).is_err() {
                log::error!("{}: the disk does not confirm a reset: it loses its power", self.name);
                self.port.set_power(&Pci, Power::Off);
            }
            if disk.remove(self).is_err() {
                // The driver, its memory and the account are kept: the slot is lost.
                log::error!("{}: the slot does not confirm that it has no power", self.name);
                return;
            }
            self.until_left(|| if disk.is_quiet() { Ok(()) } else { Err("tasks are in its driver") });
            gate.0.store(false, Ordering::Release);
        }
        pci::disable(&Pci, self.port.device());
        self.until_left(|| match self.device.detach() {
            Err(DetachError::Held(_)) if self.device.lost() == 0 => Err("its memory is held"),
            // After an error the slot is not used again: see [`DiskSlot::start_disk`].
            Err(error) => {
                log::error!("{}: no other disk can be used here: {error}", self.name);
                Ok(())
            }
            Ok(()) => Ok(()),
        });
    }

    /// Waits until `look` returns `Ok`.
    fn until_left(&self, mut look: impl FnMut() -> Result<(), &'static str>) {
        for round in 1.. {
            let Err(why) = look() else { return };
            if round == LEAVE_LOOKS {
                log::error!("{}: the device went, and {why}", self.name);
            }
            rest(LEAVE_INTERVAL);
        }
    }
}

impl freehold_virtqueue::PowerSlot for DiskSlot {
    fn is_off(&self) -> bool {
        self.port.is_off(&Pci)
    }
}

/// Sleeps for this many nanoseconds.
fn rest(nanoseconds: u64) {
    let _ = WaitQueue::new().wait_uninterruptible_until(time::now() + nanoseconds, || None::<()>);
}
