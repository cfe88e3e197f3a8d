//! Drivers by device number.
//!
//! Drivers register a range of minors of a major once, at boot. Opening a device node looks up its
//! driver here. The table is short and read-mostly: a spin lock around a list.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Arc, TryCollect, Vec};

use super::file::File;
use super::flags::OpenFlags;
use super::node::{Node, NodeKind};
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// Opens a device: its node, its minor number, the flags.
pub type OpenDevice = fn(Arc<dyn Node>, u32, OpenFlags) -> Result<Arc<dyn File>>;

struct Driver {
    kind: NodeKind,
    major: u32,
    minors: RangeInclusive<u32>,
    name: &'static str,
    open: OpenDevice,
}

static FIFOS: SpinLock<Option<OpenFifo>> = SpinLock::new(None);

/// Opens a FIFO by its node.
pub type OpenFifo = fn(Arc<dyn Node>, OpenFlags) -> Result<Arc<dyn File>>;

/// Sets the function that opens FIFOs.
pub fn register_fifos(open: OpenFifo) {
    *FIFOS.lock() = Some(open);
}

/// Opens the FIFO `node`: `ENXIO` if no driver serves FIFOs.
pub fn open_fifo(node: Arc<dyn Node>, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let open = (*FIFOS.lock()).ok_or(Errno::ENXIO)?;
    open(node, flags)
}

static DRIVERS: SpinLock<Vec<Driver>> = SpinLock::new(Vec::new());

/// The device number of `major` and `minor`, as stat(2) shows it (the C library's makedev).
pub const fn make_device(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12) | ((major & !0xfff) << 32)
}

/// Smaller minors are taken by nameless files and the like.
static NEXT_UNNAMED: AtomicU32 = AtomicU32::new(20);

/// A device number for a file system without a device (major 0).
pub fn unnamed_device() -> u64 {
    make_device(0, NEXT_UNNAMED.fetch_add(1, Ordering::Relaxed))
}

/// Major and minor number of a device number.
pub const fn split_device(device: u64) -> (u32, u32) {
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & !0xfff);
    let minor = (device & 0xff) | ((device >> 12) & !0xff);
    (major as u32, minor as u32)
}

/// Registers a driver for the character devices `major:minors`; /proc/devices shows `name`.
///
/// # Errors
/// `ENOMEM`.
pub fn register_char(
    major: u32,
    minors: RangeInclusive<u32>,
    name: &'static str,
    open: OpenDevice,
) -> Result<()> {
    register(Driver { kind: NodeKind::CharDevice, major, minors, name, open })
}

/// Registers a driver for the block devices `major:minors`.
///
/// # Errors
/// `ENOMEM`.
pub fn register_block(
    major: u32,
    minors: RangeInclusive<u32>,
    name: &'static str,
    open: OpenDevice,
) -> Result<()> {
    register(Driver { kind: NodeKind::BlockDevice, major, minors, name, open })
}

fn register(driver: Driver) -> Result<()> {
    Ok(DRIVERS.lock().try_push(driver)?)
}

static SYNCS: SpinLock<Vec<fn()>> = SpinLock::new(Vec::new());

/// Makes sync(2) call `sync`, which writes cached data of a driver's devices to them.
///
/// # Errors
/// `ENOMEM`.
pub fn register_sync(sync: fn()) -> Result<()> {
    Ok(SYNCS.lock().try_push(sync)?)
}

/// Writes the cached data of all devices to them.
pub fn sync_all() {
    let sync_at = |at: usize| SYNCS.lock().get(at).copied();
    (0..).map_while(sync_at).for_each(|sync| sync());
}

/// Opens the device of `node`, whose metadata holds the number: `ENXIO` if the number has no
/// driver.
pub fn open(node: Arc<dyn Node>, kind: NodeKind, rdev: u64, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let (major, minor) = split_device(rdev);
    let open = DRIVERS
        .lock()
        .iter()
        .find(|d| d.kind == kind && d.major == major && d.minors.contains(&minor))
        .map(|d| d.open)
        .ok_or(Errno::ENXIO)?;
    open(node, minor, flags)
}

/// Opens a node that is neither a file nor a directory.
///
/// # Errors
/// `ELOOP` for a symbolic link, `ENXIO` for a socket; those of the FIFO's or the device's driver.
pub fn open_special(node: Arc<dyn Node>, flags: OpenFlags) -> Result<Arc<dyn File>> {
    match node.kind() {
        NodeKind::Symlink => Err(Errno::ELOOP),
        NodeKind::Fifo => open_fifo(node, flags),
        kind @ (NodeKind::CharDevice | NodeKind::BlockDevice) => {
            let rdev = node.metadata().rdev;
            open(node, kind, rdev, flags)
        }
        _ => Err(Errno::ENXIO),
    }
}

/// Major numbers and names of all drivers of a kind, sorted by number (for /proc/devices).
///
/// # Errors
/// `ENOMEM`.
pub fn list(kind: NodeKind) -> Result<Vec<(u32, &'static str)>> {
    let drivers = DRIVERS.lock();
    let of_kind = drivers.iter().filter(|driver| driver.kind == kind);
    let mut found = of_kind.map(|driver| (driver.major, driver.name)).try_collect_vec()?;
    drop(drivers);
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
