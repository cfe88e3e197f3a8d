//! The host's memory devices. They are found before there is a page allocator, which has to know
//! where memory may be plugged in. They are started with the other devices.

use freehold_bounce::{Device, DmaError};
use freehold_collections::{Vec, reserve};
use freehold_machine::{NodeId, PfnRange};
use freehold_virtio::mem::resize::Device as _;
use freehold_virtio::mem::{Answer, Mem, Region, Sizes, resize};
use freehold_virtio::platform::{Function, Notify, Sleep, Wait, Waited};
use freehold_virtio::transport::{PciTransport, device_type};
use freehold_virtio::{Failed, SetupError, pci};
use freehold_virtqueue::DeviceType;

use super::devices::InterruptQueue;
use super::pci::{Bar, Pci};
use crate::mem::{Frames, hotplug};
use crate::sync::WaitQueue;
use crate::time;

/// A memory device without a driver.
pub struct FoundMemory {
    /// The host's number for it: the devices in the order of their slots.
    pub number: u8,
    /// The device's PCI function.
    pub function: Function,
    /// The addresses at which the device can plug memory in.
    pub region: Region,
    /// The node of that memory.
    pub node: NodeId,
}

/// Returns the memory devices on the bus. `node_of` gives the node of a region. Calls `warn` for
/// devices that make no sense.
pub fn find_memory(
    node_of: impl Fn(&Region) -> NodeId,
    warn: &mut dyn FnMut(Function, SetupError),
) -> Vec<FoundMemory> {
    let all = pci::functions(&Pci)
        .filter(|&(_, vendor, device)| device_type(vendor, device) == Some(DeviceType::Memory));
    let mut found = Vec::new();
    for (number, (function, ..)) in (0..=u8::MAX).zip(all) {
        match Region::find(&Pci, function) {
            Ok(region) => {
                let device = FoundMemory { number, function, region, node: node_of(&region) };
                if found.try_push(device).is_err() {
                    warn(function, DmaError::OutOfMemory.into());
                }
            }
            Err(error) => warn(function, error),
        }
    }
    found
}

/// A memory device that answers.
pub struct MemoryDevice {
    /// See [`FoundMemory::number`].
    pub number: u8,
    /// The node of the memory that it plugs in.
    pub node: NodeId,
    device: Mem<Frames, PciTransport<Bar>>,
}

/// Interrupt notification: wakes the task that waits for an answer, and the task that follows the
/// host's requests. If the device sends no interrupts (QEMU's does not), the task polls.
struct MemoryLine(InterruptQueue);

/// How long to sleep between two polls, at first and at most.
const NAPS: (u64, u64) = (20_000, 2_000_000);

impl Notify for MemoryLine {
    fn notify(&self) {
        self.0.notify();
        hotplug::wake();
    }
}

impl Wait for MemoryLine {
    fn wait_until(&self, limit_ns: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        let deadline = time::now().saturating_add(limit_ns);
        let mut nap = NAPS.0;
        loop {
            let waited = self.0.wait_until(nap, sleep, condition);
            if waited != Waited::TimedOut || time::now() >= deadline {
                return waited;
            }
            nap = (2 * nap).min(NAPS.1);
        }
    }
    fn notify_one(&self) {
        self.0.notify_one();
    }
}

impl MemoryDevice {
    pub(super) fn start(found: &FoundMemory, dma: Device<Frames>) -> Result<Self, SetupError> {
        let line: &'static MemoryLine =
            reserve::leaked(MemoryLine(InterruptQueue(reserve::arc(WaitQueue::new()))));
        let transport = PciTransport::watched(&Pci, found.function, DeviceType::Memory, line)?;
        let device = Mem::new(transport, dma, line, found.region)?;
        Ok(Self { number: found.number, node: found.node, device })
    }
    /// Unplugs all memory that was plugged in before this kernel started.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn forget_the_past(&self) -> Result<(), Failed> {
        if self.sizes()?.plugged > 0 { self.device.unplug_all().map(|_| ()) } else { Ok(()) }
    }
}

impl resize::Device for MemoryDevice {
    fn region(&self) -> Region {
        *self.device.region()
    }
    fn sizes(&self) -> Result<Sizes, Failed> {
        self.device.sizes()
    }
    fn plug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        if hotplug::has_ended() { Ok(Answer::Busy) } else { self.device.plug(frames) }
    }
    fn unplug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        if hotplug::has_ended() { Ok(Answer::Busy) } else { self.device.unplug(frames) }
    }
}
