//! The machine's IOMMU: the domain and the interrupts of each device, and reports of faults.
//!
//! The IOMMU is started before any device. So no device can access memory before it has a domain,
//! or send interrupts before it has an entry. If the machine cannot remap interrupts, the log says
//! so. There are two kinds ([`MachineIommu`]): Intel VT-d, and a virtio device. The virtio driver
//! has its rings and buffers from the DMA API, without a domain: nothing checks the IOMMU itself.
//!
//! Faults are read by a task, which the unit's interrupt wakes. It reads at most
//! [`FAULTS_PER_LOOK`] faults at once and sleeps [`LOOK_INTERVAL`] in between. It also polls a
//! virtio IOMMU every [`VIRTIO_INTERVAL`]. The first [`FAULTS_TOLD`] faults are logged; all are
//! counted in /sys/kernel/debug/iommu.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_bounce::DmaAddr;
use freehold_firmware::{Iommu as Found, Platform as Firmware, VirtualIommu};
use freehold_frame::FrameSource;
use freehold_iommu::{
    Arrival, CpuNumbers, Deed, DeviceFault, GivenEntry, Interrupts, IommuError, Mode, Transfers, Unit, unit,
};
use freehold_machine::{DeviceDomain, Pfn};
use freehold_virtio::SetupError;
use freehold_virtio::iommu::{Occupied, VirtioIommu, function_at, let_pass};
use freehold_virtio::platform::{Function, MsiMessage, Notify, Platform};
use freehold_virtio::transport::PciTransport;
use freehold_virtqueue::DeviceType;
use spin::Once;

use super::devices::{dma, rules};
use super::pci::{self, Bar, Pci};
use crate::cmdline::Iommu;
use crate::hw::irq::{self, Msi};
use crate::mem::{self, Frames};
use crate::sync::{Mutex, WaitQueue};
use crate::{sched, time};

/// Number of faults that are logged.
const FAULTS_TOLD: usize = 16;
/// Number of faults that are read before the task sleeps.
const FAULTS_PER_LOOK: usize = 64;
/// How long the task sleeps in between.
const LOOK_INTERVAL: u64 = time::SECOND / 100;
/// Interval between polls of a virtio IOMMU, which may send no interrupts (QEMU's sends none).
const VIRTIO_INTERVAL: u64 = time::SECOND / 10;

/// The machine's IOMMU, and firmware's description of it.
pub enum MachineIommu {
    /// Intel VT-d.
    VtD(&'static Unit<Bar, Frames>, Found),
    /// A virtio device.
    Virtio(&'static VirtioIommu<Frames, PciTransport<Bar>>, VirtualIommu),
}

/// Figures of a domain.
pub struct DomainFigures {
    /// The name of the domain's device.
    pub name: &'static str,
    /// Bus, device and function in 8, 5 and 3 bits.
    pub source_id: u16,
    /// Frames of the domain's tables; 0 if the host keeps the tables.
    pub tables: usize,
    /// Number of pages that the device can access.
    pub pages: usize,
    /// Number of refused accesses that were noticed.
    pub faults: usize,
}

static IOMMU: Once<MachineIommu> = Once::new();
static CHANGED: WaitQueue = WaitQueue::new();
static HAS_FAULTS: AtomicBool = AtomicBool::new(false);

/// The IOMMU's interrupt.
struct FaultLine;

impl Notify for FaultLine {
    fn notify(&self) {
        HAS_FAULTS.store(true, Ordering::Release);
        CHANGED.wake_all();
    }
}

/// Returns the IOMMU, if there is one that translates.
pub fn get() -> Option<&'static MachineIommu> {
    IOMMU.get()
}

impl MachineIommu {
    /// Number of refused accesses and interrupts that were noticed.
    pub fn faults(&self) -> usize {
        match self {
            Self::VtD(unit, _) => unit.faults(),
            Self::Virtio(unit, _) => unit.faults(),
        }
    }
    /// Number of invalidations sent: of VT-d's tables, or virtio requests that removed mappings.
    pub fn invalidations(&self) -> usize {
        match self {
            Self::VtD(unit, _) => unit.invalidations(),
            Self::Virtio(unit, _) => unit.invalidations(),
        }
    }
    /// Number of frames of the IOMMU's tables. A virtio IOMMU's tables are the host's.
    pub fn tables(&self) -> usize {
        match self {
            Self::VtD(unit, _) => unit.tables(),
            Self::Virtio(..) => 0,
        }
    }
    /// Returns an entry of the interrupt table.
    pub fn entry(&self, index: usize) -> Option<GivenEntry> {
        match self {
            Self::VtD(unit, _) => unit.entry(index),
            Self::Virtio(..) => None,
        }
    }
    /// Calls `f` for each domain with a device.
    pub fn each_domain(&self, mut f: impl FnMut(DomainFigures)) {
        match self {
            Self::VtD(unit, _) => unit.each_domain(|domain| {
                let (name, source_id, tables) = (domain.name(), domain.source_id(), domain.tables());
                f(DomainFigures { name, source_id, tables, pages: domain.pages(), faults: domain.faults() });
            }),
            Self::Virtio(unit, _) => unit.each_domain(|domain| {
                let (name, source_id) = (domain.name(), domain.source_id());
                f(DomainFigures {
                    name,
                    source_id,
                    tables: 0,
                    pages: domain.pages(),
                    faults: domain.faults(),
                });
            }),
        }
    }
    /// Returns a device's name.
    fn name(&self, source_id: u16) -> &'static str {
        let name = match self {
            Self::VtD(unit, _) => unit.domain_of(source_id).map(|domain| domain.name()),
            Self::Virtio(unit, _) => unit.domain_of(source_id).map(|domain| domain.name()),
        };
        name.unwrap_or("no domain")
    }
    /// Takes and logs faults that the IOMMU has reported, at most [`FAULTS_PER_LOOK`]. Returns
    /// their number. Tasks only: it waits for another task in this function, so that all counted
    /// faults are in the log.
    pub fn look(&self) -> usize {
        static LOOKS: Mutex<()> = Mutex::new(());
        let _look = LOOKS.lock();
        for number in 0..FAULTS_PER_LOOK {
            let Some(fault) = self.take_fault() else { return number };
            if self.faults() <= FAULTS_TOLD {
                tell(self, fault);
            }
        }
        FAULTS_PER_LOOK
    }
    fn take_fault(&self) -> Option<DeviceFault> {
        match self {
            Self::VtD(unit, _) => Some(unit.take_fault()?.0),
            // A fault of an unknown endpoint is attributed to the last function.
            Self::Virtio(unit, found) => {
                Some(unit.take_fault(|endpoint| found.function_of(endpoint).unwrap_or(u16::MAX))?.0)
            }
        }
    }
}

/// The reason why the machine's IOMMU cannot be used.
pub enum StartError {
    /// There is no unit, or the unit is not usable.
    Unit(IommuError),
    /// The virtio device is not usable.
    Device(SetupError),
}

impl From<IommuError> for StartError {
    fn from(error: IommuError) -> Self {
        Self::Unit(error)
    }
}
impl From<SetupError> for StartError {
    fn from(error: SetupError) -> Self {
        Self::Device(error)
    }
}
impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
        }
    }
}

/// Starts the machine's IOMMU, unless it is to be off. On the boot CPU, before the first device.
///
/// # Errors
/// [`StartError`]. Either the machine has an IOMMU, or one was requested, and devices would have
/// access to all memory without it. Or the IOMMU is to be off and cannot be set to let accesses
/// pass.
pub fn start(firmware: &Firmware, wanted: Option<Iommu>, transfers: Transfers) -> Result<(), StartError> {
    let is_needed = transfers == Transfers::InPlace;
    let mode = match wanted {
        Some(Iommu::Off) if is_needed => return Err(IommuError::Off.into()),
        Some(Iommu::Off) => return pass(firmware),
        Some(Iommu::On) | None => Mode::Batched,
        Some(Iommu::Strict) => Mode::Strict,
    };
    match (firmware.iommu, firmware.virtual_iommu) {
        (Some(found), _) => start_unit(found, mode, transfers)?,
        (None, Some(found)) => start_virtio(found, mode, transfers)?,
        (None, None) if wanted.is_none() && !is_needed => return Ok(()),
        (None, None) => return Err(IommuError::Absent.into()),
    }
    if is_needed {
        mem::offer_frames();
    }
    log::info!("iommu: devices reach what they were given");
    Ok(())
}

fn start_unit(found: Found, mode: Mode, transfers: Transfers) -> Result<(), IommuError> {
    let registers = Pci.map(found.registers, unit::REGISTERS);
    let registers = registers.ok_or(IommuError::Unsupported("registers that can be mapped"))?;
    let numbers = if irq::has_wide_numbers() { CpuNumbers::Wide } else { CpuNumbers::Narrow };
    let interrupts = if found.remaps_interrupts { Interrupts::Remapped(numbers) } else { Interrupts::Passed };
    let unit = Unit::start(registers, mem::frames(), mode, interrupts)?;
    IOMMU.call_once(|| MachineIommu::VtD(unit, found));
    // The unit's own interrupts are not remapped (VT-d, chapter 5).
    if let Some(message) = pci::vector(&FaultLine) {
        unit.interrupt_by(message.address, message.data);
    }
    if unit.remaps_interrupts() {
        pci::REMAP.call_once(|| remap);
    } else {
        log::warn!("iommu: it does not remap interrupts: a device can raise any");
    }
    if transfers == Transfers::InPlace {
        unit.allow_windows();
    }
    Ok(())
}

fn start_virtio(found: VirtualIommu, mode: Mode, transfers: Transfers) -> Result<(), StartError> {
    let transport = transport(found)?;
    let device = dma().attach(rules("iommu", 1 << 16, None)).map_err(SetupError::from)?;
    let unit = VirtioIommu::start(transport, device, mode, time::now)?;
    IOMMU.call_once(|| MachineIommu::Virtio(unit, found));
    if !unit.is_always_closed() {
        log::warn!("iommu: devices may have reached all memory until now, and will if it fails");
    }
    log::warn!("iommu: it does not remap interrupts: a device can raise any");
    if transfers == Transfers::InPlace {
        unit.allow_windows();
    }
    Ok(())
}

/// Returns the registers of a virtio IOMMU.
fn transport(found: VirtualIommu) -> Result<PciTransport<Bar>, StartError> {
    let function = function_at(&Pci, found.source_id)?;
    Ok(PciTransport::watched(&Pci, function, DeviceType::IOMMU, &FaultLine)?)
}

/// Leaves the IOMMU off. A virtio IOMMU may block all accesses until it is told to let them pass.
fn pass(firmware: &Firmware) -> Result<(), StartError> {
    match (firmware.iommu, firmware.virtual_iommu) {
        (None, Some(found)) => Ok(let_pass(transport(found)?)?),
        _ => Ok(()),
    }
}

/// Returns an entry for an interrupt of a function. `None`, and a line in the log, if there is
/// none.
fn remap(function: Function, message: Msi) -> Option<MsiMessage> {
    let Some(MachineIommu::VtD(unit, _)) = get() else { return None };
    let Msi { vector, cpu, .. } = message;
    match unit.allow_interrupt(source_id(function), Arrival { vector, cpu }) {
        Ok(address) => Some(MsiMessage { address, data: 0 }),
        Err(error) => {
            log::error!("iommu: no interrupt for {}: {error}", place(source_id(function)));
            None
        }
    }
}

/// Bus, device and function in 8, 5 and 3 bits.
fn source_id(Function { bus, device, function }: Function) -> u16 {
    u16::from(bus) << 8 | u16::from(device) << 3 | u16::from(function)
}

/// Formats a device's address in the usual notation.
pub fn place(source_id: u16) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{:02x}:{:02x}.{}", source_id >> 8, source_id >> 3 & 31, source_id & 7))
}

/// Returns a new domain for a function; `None` without an IOMMU.
///
/// # Errors
/// [`SetupError`]: the function has access to no memory, or is not behind the IOMMU and must not be
/// used.
pub(super) fn domain(
    function: Function,
    name: &'static str,
) -> Result<Option<&'static dyn DeviceDomain>, SetupError> {
    let Some(domain) = attach((function, function), name, Occupied::Now)? else { return Ok(None) };
    if let Some(MachineIommu::VtD(_, found)) = get() {
        for frames in found.shared_with(function.device, function.function) {
            domain.map(frames).map_err(|_| MEMORY)?;
        }
    }
    Ok(Some(domain))
}

/// Returns a new domain for devices that are plugged into the slot of the port `bridge`, as
/// [`domain`] does.
///
/// # Errors
/// As [`domain`].
pub(super) fn slot_domain(
    bridge: Function,
    function: Function,
    name: &'static str,
) -> Result<Option<&'static dyn DeviceDomain>, SetupError> {
    if let Some(MachineIommu::Virtio(..)) = get() {
        // A virtio IOMMU refuses the port's own interrupts while the port has no domain.
        attach((bridge, bridge), "port", Occupied::Now)?;
    }
    attach((bridge, function), name, Occupied::Later)
}

const MEMORY: SetupError = SetupError::Memory(freehold_bounce::DmaError::OutOfMemory);

/// Returns a new domain for `function`. With VT-d, the function must be behind `bridge`, a function
/// of bus 0 that firmware lists; VIOT lists functions of all buses.
fn attach(
    (bridge, function): (Function, Function),
    name: &'static str,
    occupied: Occupied,
) -> Result<Option<&'static dyn DeviceDomain>, SetupError> {
    let id = source_id(function);
    let domain = match get() {
        None => return Ok(None),
        Some(MachineIommu::VtD(unit, found)) => {
            if bridge.bus != 0 || !found.has(bridge.device, bridge.function) {
                return Err(SetupError::NoDomain);
            }
            unit.attach(id, name).map(|domain| domain as &'static dyn DeviceDomain)
        }
        Some(MachineIommu::Virtio(unit, found)) => {
            let endpoint = found.endpoint_of(id).ok_or(SetupError::NoDomain)?;
            unit.attach((id, endpoint), name, occupied).map(|domain| domain as _)
        }
    };
    match domain {
        Ok(domain) => Ok(Some(domain)),
        Err(IommuError::OutOfMemory) => Err(MEMORY),
        Err(error) => {
            log::error!("iommu: no domain for {} ({name}): {error}", place(id));
            Err(SetupError::NoDomain)
        }
    }
}

/// Starts the task that reads faults, if there is an IOMMU.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn start_worker() -> crate::Result<()> {
    let Some(guard) = get() else { return Ok(()) };
    sched::spawn_kernel("iommu", || {
        loop {
            let has_faults = || HAS_FAULTS.swap(false, Ordering::Acquire).then_some(());
            match guard {
                MachineIommu::VtD(..) => CHANGED.wait_uninterruptible(has_faults),
                MachineIommu::Virtio(..) => {
                    let _ = CHANGED.wait_uninterruptible_until(time::now() + VIRTIO_INTERVAL, has_faults);
                }
            }
            read_faults(guard);
        }
    })
    .map(drop)
}

fn read_faults(guard: &MachineIommu) {
    while guard.look() == FAULTS_PER_LOOK {
        let _ = CHANGED.wait_uninterruptible_until(time::now() + LOOK_INTERVAL, || None::<()>);
    }
}

fn tell(guard: &MachineIommu, DeviceFault { source_id, deed, reason }: DeviceFault) {
    let what = fmt::from_fn(|f| match deed {
        Deed::Read(address) => write!(f, "read {address:#x} ({})", owner(address)),
        Deed::Write(address) => write!(f, "write {address:#x} ({})", owner(address)),
        Deed::Reach(address) => write!(f, "reach {address:#x} ({})", owner(address)),
        Deed::Interrupt(index) => match guard.entry(usize::from(index)) {
            Some(entry) => {
                let of = entry.source_id;
                write!(f, "interrupt by entry {index} (of {}, {})", place(of), guard.name(of))
            }
            None => write!(f, "interrupt by entry {index} (none)"),
        },
        Deed::PlainInterrupt => f.write_str("interrupt without an entry"),
    });
    log::warn!("iommu: {} ({}) may not {what}: reason {reason}", place(source_id), guard.name(source_id));
}

/// Formats the owner of the frame at `address` and the device that uses the memory.
fn owner(address: u64) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let frame = Pfn(address / freehold_machine::PAGE_SIZE as u64);
        let table = mem::frames().table();
        let block = table.block_of(frame).map(|(_, _, owner, _)| owner.name());
        f.write_str(table.get(frame).map_or("no memory", |_| block.unwrap_or("free")))?;
        match dma().owner(DmaAddr(address)) {
            Some(device) => write!(f, " of {device}"),
            None => Ok(()),
        }
    })
}
