//! The list of disks: those that are present at boot, which stay, and those in slots.
//!
//! A disk's *place* is its letter: 0 is vda. The disks that are present at boot have the first
//! places. A disk that is plugged in takes the first free place. A place is free once the last file
//! that was open on the previous disk is closed. So no name and no device number means two disks at
//! a time (Linux frees a disk's number at its last close, too).

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::reserve::ArcMethods;
use freehold_collections::{Arc, Vec, Weak};
use spin::Once;

use super::counted::DiskCounts;
use super::{DiskContent, MAJOR, MINORS};
use crate::fs::FileContent;
use crate::fs::device::make_device;
use crate::host::{self, Disk};
use crate::sync::SpinLock;

/// Number of letters.
const MOST: usize = 26;

static FIRST: Once<Vec<Arc<DiskContent>>> = Once::new();
/// The places after those of the disks that stay.
static PLUGGED: [SpinLock<DiskPlace>; MOST] =
    [const { SpinLock::new(DiskPlace { disk: None, before: None }) }; MOST];
/// How many of these places were ever taken: the others need not be searched.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A place for disks that are plugged in and out.
struct DiskPlace {
    disk: Option<Arc<DiskContent>>,
    /// The previous disk, while files are open on it.
    before: Option<Weak<DiskContent>>,
}

impl DiskPlace {
    fn is_free(&self) -> bool {
        self.disk.is_none() && self.before.as_ref().is_none_or(|before| before.strong_count() == 0)
    }
}

fn first() -> &'static [Arc<DiskContent>] {
    FIRST.get().map_or(&[], Vec::as_slice)
}

/// Sets the disks that are present at boot and stay.
pub(super) fn begin(disks: Vec<Arc<DiskContent>>) {
    FIRST.call_once(|| disks);
}

/// Returns the largest possible number of places. While a file is open on a disk that was plugged
/// out, the next disk in its slot has another place.
pub fn most() -> usize {
    (first().len() + 2 * host::slots().len()).min(MOST)
}

/// Returns an upper bound: all places with a disk have lower numbers.
pub(super) fn known() -> usize {
    first().len() + TAKEN.load(Ordering::Acquire)
}

/// Returns the disk at a place, and the place.
pub(super) fn find(place: usize) -> Option<(usize, Arc<DiskContent>)> {
    let disk = match place.checked_sub(first().len()) {
        None => first()[place].clone(),
        Some(place) => PLUGGED.get(place)?.lock().disk.clone()?,
    };
    Some((place, disk))
}

/// Calls `f` with each disk.
pub(super) fn each(mut f: impl FnMut(&DiskContent)) {
    first().iter().for_each(|disk| f(disk));
    let taken = TAKEN.load(Ordering::Acquire);
    for place in &PLUGGED[..taken] {
        let disk = place.lock().disk.clone();
        disk.iter().for_each(|disk| f(disk));
    }
}

/// Returns the sum of `of` over all disks.
pub(super) fn sum(of: impl Fn(&DiskContent) -> u64) -> u64 {
    let mut sum = 0;
    each(|disk| sum += of(disk));
    sum
}

/// Puts a disk into the first free place. Returns `None` if there is none.
pub(super) fn add(disk: &Arc<DiskContent>) -> Option<usize> {
    for number in 0..most().saturating_sub(first().len()) {
        let mut place = PLUGGED[number].lock();
        if place.is_free() {
            *place = DiskPlace { disk: Some(disk.clone()), before: None };
            drop(place);
            TAKEN.fetch_max(number + 1, Ordering::AcqRel);
            return Some(first().len() + number);
        }
    }
    None
}

/// Takes a disk out of its place. The place is free once no file is open on the disk.
pub(super) fn remove(place: usize) -> Option<Arc<DiskContent>> {
    let mut place = PLUGGED.get(place.checked_sub(first().len())?)?.lock();
    let disk = place.disk.take()?;
    place.before = Some(disk.downgrade());
    Some(disk)
}

/// The name of a place's disk: `vda` is the first.
pub const fn name_of(place: usize) -> [u8; 3] {
    [b'v', b'd', b'a' + place as u8]
}

/// The device number of a place's disk.
pub const fn number_of(place: usize) -> u64 {
    make_device(MAJOR, place as u32 * MINORS)
}

/// The disk's size in bytes; `None` if there is no disk.
pub fn size_of(place: usize) -> Option<u64> {
    find(place).map(|(_, disk)| disk.size())
}

/// The device; `None` if there is no disk.
pub fn disk_of(place: usize) -> Option<Disk> {
    find(place).map(|(_, disk)| -> Disk { disk.disk.clone() })
}

/// The disk's counts of requests since it was plugged in; `None` if there is no disk.
pub fn counts_of(place: usize) -> Option<DiskCounts> {
    find(place).map(|(_, disk)| disk.disk.counts())
}

/// The disks' names, device numbers and bytes: `vda` first.
pub fn list() -> impl Iterator<Item = ([u8; 3], u64, u64)> {
    let all = (0..known()).filter_map(find);
    all.map(|(place, disk)| (name_of(place), number_of(place), disk.size()))
}
