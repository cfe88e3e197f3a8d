//! The machine's IOMMU: which device has which domain and which interrupts, and what faults say.
//!
//! It is started before any device is, so that no device reaches memory before it has a domain, nor
//! interrupts before it has an entry. Where the machine cannot remap interrupts, the log says so.
//! Faults are read by a task, which the unit's interrupt wakes; it looks at most
//! [`FAULTS_PER_LOOK`] times and sleeps [`LOOK_INTERVAL`] between looks. The log has the first
//! [`FAULTS_TOLD`]; all are counted in /sys/kernel/debug/iommu.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_firmware::Iommu as Found;
use freehold_frame::FrameSource;
use freehold_iommu::{
    Arrival, CpuNumbers, Deed, DeviceFault, Domain, Interrupts, IommuError, Mode, Transfers, Unit, unit,
};
use freehold_machine::{DeviceDomain, Pfn};
use freehold_virtio::SetupError;
use freehold_virtio::platform::{Function, MsiMessage, Notify, Platform};
use spin::Once;

use super::pci::{self, Bar, Pci};
use crate::cmdline::Iommu;
use crate::hw::irq::{self, Msi};
use crate::mem::{self, Frames};
use crate::sync::WaitQueue;
use crate::{sched, time};

/// Faults that the log has.
const FAULTS_TOLD: usize = 16;
/// Faults that are read before the task sleeps.
const FAULTS_PER_LOOK: usize = 64;
/// How long it sleeps.
const LOOK_INTERVAL: u64 = time::SECOND / 100;

/// The unit, and what firmware says of it.
static UNIT: Once<(&'static Unit<Bar, Frames>, Found)> = Once::new();
static CHANGED: WaitQueue = WaitQueue::new();
static HAS_FAULTS: AtomicBool = AtomicBool::new(false);

/// The unit's interrupt.
struct FaultLine;

impl Notify for FaultLine {
    fn notify(&self) {
        HAS_FAULTS.store(true, Ordering::Release);
        CHANGED.wake_all();
    }
}

/// The unit, where there is one that translates.
pub fn get() -> Option<&'static Unit<Bar, Frames>> {
    UNIT.get().map(|&(unit, _)| unit)
}

/// Starts the machine's IOMMU, unless it is not wanted. On the boot CPU, before the first device.
///
/// # Errors
/// Why there is none: the machine has one, or was asked for one, and devices would reach all memory
/// without it.
pub fn start(found: Option<Found>, wanted: Option<Iommu>, transfers: Transfers) -> Result<(), IommuError> {
    let is_needed = transfers == Transfers::InPlace;
    let mode = match wanted {
        Some(Iommu::Off) if is_needed => return Err(IommuError::Off),
        Some(Iommu::Off) => return Ok(()),
        Some(Iommu::On) | None => Mode::Batched,
        Some(Iommu::Strict) => Mode::Strict,
    };
    let Some(found) = found else {
        return if wanted.is_none() && !is_needed { Ok(()) } else { Err(IommuError::Absent) };
    };
    let registers = Pci.map(found.registers, unit::REGISTERS).ok_or(IommuError::OutOfMemory)?;
    let numbers = if irq::has_wide_numbers() { CpuNumbers::Wide } else { CpuNumbers::Narrow };
    let interrupts = if found.remaps_interrupts { Interrupts::Remapped(numbers) } else { Interrupts::Passed };
    let unit = Unit::start(registers, mem::frames(), mode, interrupts)?;
    UNIT.call_once(|| (unit, found));
    // The unit's own interrupts are not remapped (VT-d, chapter 5).
    if let Some(message) = pci::vector(&FaultLine) {
        unit.interrupt_by(message.address, message.data);
    }
    if unit.remaps_interrupts() {
        pci::REMAP.call_once(|| remap);
    } else {
        log::warn!("iommu: it does not remap interrupts: a device can raise any");
    }
    if is_needed {
        unit.allow_windows();
        mem::offer_frames();
    }
    log::info!("iommu: devices reach what they were given");
    Ok(())
}

/// An entry for an interrupt of a function; `None`, and a line in the log, where there is none.
fn remap(function: Function, message: Msi) -> Option<MsiMessage> {
    let Msi { vector, cpu, .. } = message;
    match get()?.allow_interrupt(source_id(function), Arrival { vector, cpu }) {
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

/// As people write it.
pub fn place(source_id: u16) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{:02x}:{:02x}.{}", source_id >> 8, source_id >> 3 & 31, source_id & 7))
}

/// A new domain for a function; `None` without an IOMMU.
///
/// # Errors
/// [`SetupError`]: the function reaches nothing, or is not behind the IOMMU and is not to be used.
pub(super) fn domain(
    function: Function,
    name: &'static str,
) -> Result<Option<&'static dyn DeviceDomain>, SetupError> {
    let Some(domain) = attach(function, function, name)? else { return Ok(None) };
    let frames = UNIT.get().map(|(_, found)| found.shared_with(function.device, function.function));
    for frames in frames.into_iter().flatten() {
        domain.map(frames).map_err(|_| MEMORY)?;
    }
    Ok(Some(domain))
}

/// A new domain for what is plugged into the slot of a port, `bridge`: it is behind the IOMMU where
/// the port is.
///
/// # Errors
/// As [`domain`].
pub(super) fn slot_domain(
    bridge: Function,
    function: Function,
    name: &'static str,
) -> Result<Option<&'static dyn DeviceDomain>, SetupError> {
    Ok(attach(bridge, function, name)?.map(|domain| domain as _))
}

const MEMORY: SetupError = SetupError::Memory(freehold_bounce::DmaError::OutOfMemory);

/// A new domain for `function`, which is behind the IOMMU where `place`, of bus 0, is.
fn attach(
    place: Function,
    function: Function,
    name: &'static str,
) -> Result<Option<&'static Domain<Bar, Frames>>, SetupError> {
    let Some(&(unit, found)) = UNIT.get() else { return Ok(None) };
    if place.bus != 0 || !found.has(place.device, place.function) {
        return Err(SetupError::NoDomain);
    }
    let domain = unit.attach(source_id(function), name).map_err(|error| match error {
        IommuError::OutOfMemory => MEMORY,
        _ => SetupError::NoDomain,
    })?;
    Ok(Some(domain))
}

/// Starts the task that reads faults, where there is an IOMMU.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn start_worker() -> crate::Result<()> {
    if get().is_none() {
        return Ok(());
    }
    sched::spawn_kernel("iommu", || {
        let Some(unit) = get() else { return };
        loop {
            CHANGED.wait_uninterruptible(|| HAS_FAULTS.swap(false, Ordering::Acquire).then_some(()));
            read_faults(unit);
        }
    })
    .map(drop)
}

fn read_faults(unit: &'static Unit<Bar, Frames>) {
    loop {
        for _ in 0..FAULTS_PER_LOOK {
            let Some((fault, domain)) = unit.take_fault() else { return };
            if unit.faults() <= FAULTS_TOLD {
                tell(unit, fault, domain);
            }
        }
        let _ = CHANGED.wait_uninterruptible_until(time::now() + LOOK_INTERVAL, || None::<()>);
    }
}

fn tell(
    unit: &Unit<Bar, Frames>,
    DeviceFault { source_id, deed, reason }: DeviceFault,
    domain: Option<&Domain<Bar, Frames>>,
) {
    let name = |domain: Option<&Domain<Bar, Frames>>| domain.map_or("no domain", Domain::name);
    let what = fmt::from_fn(|f| match deed {
        Deed::Read(address) => write!(f, "read {address:#x} ({})", owner(address)),
        Deed::Write(address) => write!(f, "write {address:#x} ({})", owner(address)),
        Deed::Interrupt(index) => match unit.entry(usize::from(index)) {
            Some(entry) => {
                let of = entry.source_id;
                write!(f, "interrupt by entry {index} (of {}, {})", place(of), name(unit.domain_of(of)))
            }
            None => write!(f, "interrupt by entry {index} (none)"),
        },
        Deed::PlainInterrupt => f.write_str("interrupt without an entry"),
    });
    log::warn!("iommu: {} ({}) may not {what}: reason {reason}", place(source_id), name(domain));
}

/// Returns the name of the owner of the frame at `address`.
fn owner(address: u64) -> &'static str {
    let frame = Pfn(address / freehold_machine::PAGE_SIZE as u64);
    let table = mem::frames().table();
    let block = table.block_of(frame).map(|(_, _, owner, _)| owner.name());
    table.get(frame).map_or("no memory", |_| block.unwrap_or("free"))
}
