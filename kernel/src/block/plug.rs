//! Disks that are plugged in and out while the machine runs.
//!
//! A task per slot looks after it. A new disk gets a place, a node in /dev and its entries in /proc
//! and /sys. When a slot's button requests the removal of a disk, the disk's changes are stored
//! first. To a disk that is already removed they cannot be stored. Then the disk leaves its place,
//! so that opening its node is ENXIO, and its requests fail: pending requests of programs end as
//! EIO, and so does each further call on files that are open on it. Pages that are mapped stay as
//! they are until they are unmapped; others are SIGBUS. Pages that were swapped out to the disk are
//! lost, as on Linux.
//!
//! A press of the button acts at once. Linux waits five seconds, in which a second press cancels
//! the first. Here a program presses the button, so this is not needed.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, reserve};
use freehold_virtio::port::SlotState;

use super::{DiskContent, name_of, number_of, places, show};
use crate::fs::device::split_device;
use crate::fs::root::remove_device;
use crate::fs::{FileContent, NodeKind};
use crate::host::{self, Disk, DiskSlot};
use crate::hw::heap;
use crate::mem::Frames;
use crate::{Errno, Result, sched};

/// Starts the tasks of the slots, where there are any.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn start(frames: Frames) -> Result<()> {
    for slot in host::slots() {
        sched::spawn_kernel("pciehp", move || run(slot, frames))?;
    }
    Ok(())
}

/// Content of a slot, as the slot's task knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// Not determined yet.
    Unknown,
    /// Nothing, or a device that was released and has no power.
    Off,
    /// The disk of this place.
    Disk(usize),
    /// A device that the kernel cannot use. It still has power.
    Refused,
}

/// The reason why a disk is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leave {
    /// The host requests the removal; the disk works until then.
    Asked,
    /// The disk is already removed.
    Surprise,
}

fn run(slot: &'static DiskSlot, frames: Frames) {
    let mut content = Content::Unknown;
    loop {
        content = step(slot, frames, content, slot.take_events());
        slot.wait();
    }
}

/// Whether the device in the slot is to be removed.
fn leaves(content: Content, state: SlotState) -> Option<Leave> {
    let is_on = matches!(content, Content::Disk(_) | Content::Refused);
    if !is_on {
        None
    } else if !state.is_occupied || state.has_changed {
        // If there is a device now, it is another one.
        Some(Leave::Surprise)
    } else {
        state.is_pressed.then_some(Leave::Asked)
    }
}

/// Whether the device in the slot is to be started, once the previous one is removed.
fn comes(content: Content, state: SlotState) -> bool {
    // A press that requests a device's removal does not request its return.
    let is_asked = state.is_pressed && content == Content::Off;
    state.is_occupied && (state.has_changed || is_asked || content == Content::Unknown)
}

/// Handles the slot's state. Returns the slot's content afterwards.
fn step(slot: &DiskSlot, frames: Frames, content: Content, state: SlotState) -> Content {
    let leave = leaves(content, state);
    match (content, leave) {
        (Content::Disk(place), Some(leave)) => unplug(place, leave, slot),
        (Content::Refused, Some(_)) => slot.release(),
        _ => {}
    }
    match leave {
        _ if comes(content, state) => plug(slot, frames),
        None if content != Content::Unknown => content,
        _ => Content::Off,
    }
}

fn plug(slot: &DiskSlot, frames: Frames) -> Content {
    // The driver and the disk's files are small objects of fixed size. Their allocations must not
    // fail.
    if heap::ensure(heap::CALL_RESERVE).is_err() {
        log::error!("{}: no memory for the driver", slot.name());
        return Content::Refused;
    }
    let started = slot.start_disk().map_err(|error| log::error!("{}: {error}", slot.name()));
    let Ok(disk) = started else { return Content::Refused };
    match add(disk, frames) {
        Some(place) => {
            log::info!("{}: /dev/{}", slot.name(), name_of(place).escape_ascii());
            Content::Disk(place)
        }
        None => {
            log::error!("{}: no letter is left for the disk", slot.name());
            Content::Refused
        }
    }
}

/// Registers a disk. Returns `None` if all places are taken.
pub(super) fn add(disk: Disk, frames: Frames) -> Option<usize> {
    let content: Arc<DiskContent> = reserve::arc(DiskContent::new(frames, disk));
    let place = places::add(&content)?;
    show(place, content.size());
    Some(place)
}

fn unplug(place: usize, leave: Leave, slot: &DiskSlot) {
    log::info!("{}: /dev/{} leaves", slot.name(), name_of(place).escape_ascii());
    let content = forget(place, leave);
    slot.release();
    if let Some(content) = content {
        drop_pages(&content);
    }
}

/// Takes a disk out of its place: its names are removed, and calls on it fail.
fn forget(place: usize, leave: Leave) -> Option<Arc<DiskContent>> {
    let content = places::remove(place)?;
    // A program may have removed the node.
    let _ = remove_device(&name_of(place), NodeKind::BlockDevice, split_device(number_of(place)));
    if leave == Leave::Asked
        && let Err(error) = content.sync()
    {
        log::error!("/dev/{}: what was written could not be kept: {error:?}", name_of(place).escape_ascii());
    }
    content.is_gone.store(true, Ordering::Release);
    Some(content)
}

/// Drops the pages of a disk that was removed. Dirty pages are lost.
fn drop_pages(content: &DiskContent) {
    let cache = content.cached.cache();
    // The device refuses all writes, and a refused page becomes clean.
    let _ = cache.launder();
    cache.shrink(u64::MAX);
}

impl DiskContent {
    /// Checks that the disk is present.
    ///
    /// # Errors
    /// `EIO`: it was plugged out.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_gone.load(Ordering::Relaxed) { Err(Errno::EIO) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: SlotState = SlotState { is_occupied: true, has_changed: false, is_pressed: false };
    const EMPTY: SlotState = SlotState { is_occupied: false, ..QUIET };

    #[test]
    fn a_slot_does_what_presence_and_button_ask_for() {
        let (disk, off) = (Content::Disk(1), Content::Off);
        let pressed = |state| SlotState { is_pressed: true, ..state };
        let changed = |state| SlotState { has_changed: true, ..state };
        let cases = [
            // A device that is present at boot is started; an empty slot stays empty.
            (Content::Unknown, QUIET, None, true),
            (Content::Unknown, EMPTY, None, false),
            // A device is plugged in, with its button pressed by QEMU.
            (off, changed(pressed(QUIET)), None, true),
            // Its removal is requested. It is still in the slot when its power is off, and is not
            // started again.
            (disk, pressed(QUIET), Some(Leave::Asked), false),
            (off, QUIET, None, false),
            (off, changed(EMPTY), None, false),
            // Its removal and the arrival of the next are seen as one change.
            (off, changed(QUIET), None, true),
            // The device is removed, or another one is in the slot.
            (disk, changed(EMPTY), Some(Leave::Surprise), false),
            (disk, EMPTY, Some(Leave::Surprise), false),
            (disk, changed(QUIET), Some(Leave::Surprise), true),
            (disk, changed(pressed(QUIET)), Some(Leave::Surprise), true),
            // A press starts a device that was released.
            (off, pressed(QUIET), None, true),
            (off, pressed(EMPTY), None, false),
            // A device that cannot be used is removed the same way.
            (Content::Refused, pressed(QUIET), Some(Leave::Asked), false),
            (disk, QUIET, None, false),
        ];
        for (content, state, leave, coming) in cases {
            assert_eq!(
                (leaves(content, state), comes(content, state)),
                (leave, coming),
                "{content:?} {state:?}"
            );
        }
    }
}
