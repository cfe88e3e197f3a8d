//! Which disks there are: those that the machine began with, which stay, and those in slots.
//!
//! A disk's *place* is its letter: 0 is vda. The first places are the first disks'. A disk that
//! comes takes the first place that is free; a place is free once the last file that was open on
//! the disk before is closed, so that no name and no device number means two disks at a time (Linux
//! frees a disk's number at its last close, too).

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::reserve::ArcMethods;
use freehold_collections::{Arc, Vec, Weak};
use spin::Once;

use super::{DiskContent, MAJOR, MINORS};
use crate::fs::FileContent;
use crate::fs::device::make_device;
use crate::host::{self, Disk};
use crate::sync::SpinLock;

/// Letters.
const MOST: usize = 26;

static FIRST: Once<Vec<Arc<DiskContent>>> = Once::new();
/// The places behind the first ones.
static PLUGGED: [SpinLock<DiskPlace>; MOST] =
    [const { SpinLock::new(DiskPlace { disk: None, before: None }) }; MOST];
/// How many of those were ever taken: the others need no look.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A place of disks that come and go.
struct DiskPlace {
    disk: Option<Arc<DiskContent>>,
    /// The disk that left, while files are open on it.
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

/// Begins with the disks that stay.
pub(super) fn begin(disks: Vec<Arc<DiskContent>>) {
    FIRST.call_once(|| disks);
}

/// Returns the most places that there can be. While a file is open on a disk that left, the next
/// disk in its slot has another place.
pub fn most() -> usize {
    (first().len() + 2 * host::slots().len()).min(MOST)
}

/// Returns the number that all places with a disk are below.
pub(super) fn known() -> usize {
    first().len() + TAKEN.load(Ordering::Acquire)
}

/// Returns the disk of a place, and the place.
pub(super) fn find(place: usize) -> Option<(usize, Arc<DiskContent>)> {
    let disk = match place.checked_sub(first().len()) {
        None => first()[place].clone(),
        Some(place) => PLUGGED.get(place)?.lock().disk.clone()?,
    };
    Some((place, disk))
}

/// Shows `f` all disks.
pub(super) fn each(mut f: impl FnMut(&DiskContent)) {
    first().iter().for_each(|disk| f(disk));
    let taken = TAKEN.load(Ordering::Acquire);
    for place in &PLUGGED[..taken] {
        let disk = place.lock().disk.clone();
        disk.iter().for_each(|disk| f(disk));
    }
}

/// A sum over all disks.
pub(super) fn sum(of: impl Fn(&DiskContent) -> u64) -> u64 {
    let mut sum = 0;
    each(|disk| sum += of(disk));
    sum
}

/// Puts a disk into the first place that is free. `None`: there is none.
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

/// Takes a disk out of its place, which is free once no file has it.
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

/// Its device number.
pub const fn number_of(place: usize) -> u64 {
    make_device(MAJOR, place as u32 * MINORS)
}

/// Its bytes; `None` where there is no disk.
pub fn size_of(place: usize) -> Option<u64> {
    find(place).map(|(_, disk)| disk.size())
}

/// The device; `None` where there is no disk.
pub fn disk_of(place: usize) -> Option<Disk> {
    find(place).map(|(_, disk)| disk.disk.clone())
}

/// The disks' names, device numbers and bytes: `vda` first.
pub fn list() -> impl Iterator<Item = ([u8; 3], u64, u64)> {
    let all = (0..known()).filter_map(find);
    all.map(|(place, disk)| (name_of(place), number_of(place), disk.size()))
}
