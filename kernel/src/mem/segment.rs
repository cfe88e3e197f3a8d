//! Areas that map a segment of System V shared memory.
//!
//! They are shared areas of a file. The areas of one attachment share one [`FileMapping`], and the
//! object that it [holds](FileMapping::held) identifies them. shmdt finds them by that, and by the
//! start of the attachment.

use core::any::Any;
use freehold_collections::Arc;
use freehold_collections::reserve::ArcMethods as _;

use freehold_machine::VirtAddr;
use freehold_vm::{
    AreaFlags, AreaPlace, Backing, FileView, Limits, MapRequest, Protection, SharedWrite, VmError,
};

use super::populate::and_populate_if_possible;
use super::{FileMapping, ProcessSpace};
use crate::{Errno, Result};

/// The address for attaching a segment. Addresses are page-aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentPlace {
    /// Any free place.
    Anywhere,
    /// Exactly this address; fails if it is not free.
    Free(u64),
    /// Exactly this address; an existing mapping is unmapped.
    Replace(u64),
}

/// Permitted use of a segment's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentUse {
    /// Loads and stores.
    Data,
    /// Code execution, too.
    Executable,
}

/// A segment, and how it is to be mapped.
pub struct SegmentMap {
    /// Its bytes. They can be written if the file can.
    pub mapping: Arc<FileMapping>,
    /// Length in bytes.
    pub size: u64,
    /// The place in the address space.
    pub place: SegmentPlace,
    /// The purpose.
    pub code: SegmentUse,
}

/// Attaches a segment to `space`. Returns its address.
///
/// # Errors
/// `EINVAL` if a place is not free; `ENOMEM`, and the errors of mmap.
pub fn attach(space: &ProcessSpace, limits: &Limits, map: SegmentMap) -> Result<u64> {
    let SegmentMap { mapping, size, place, code } = map;
    let writable = mapping.file().flags().writes();
    let mut protection = Protection::READ;
    protection.set(Protection::WRITE, writable);
    protection.set(Protection::EXEC, code == SegmentUse::Executable);
    let write = if writable { SharedWrite::Allowed } else { SharedWrite::Denied };
    let mut flags = AreaFlags::empty();
    flags.set(AreaFlags::NEVERWRITE, !writable);
    let place = match place {
        SegmentPlace::Anywhere => AreaPlace::Anywhere,
        SegmentPlace::Free(at) => AreaPlace::FixedNoReplace(VirtAddr(at)),
        SegmentPlace::Replace(at) => AreaPlace::Fixed(VirtAddr(at)),
    };
    let backing = Backing::SharedFile(FileView { file: mapping, offset: 0 }, write);
    let request = MapRequest { place, len: size, protection, backing, flags };
    let start = and_populate_if_possible(space, |areas| {
        areas.map(request, limits).map_err(|error| match error {
            VmError::Exists => Errno::EINVAL,
            error => error.into(),
        })
    })?;
    Ok(start.0)
}

/// Returns the first area at `from` or after it that belongs to the attachment at `start`: its
/// ends, and its content. `of` is the attachment, if it is known.
fn next_area(
    space: &ProcessSpace,
    start: u64,
    from: u64,
    of: Option<&Arc<dyn Any + Send + Sync>>,
) -> Option<(u64, u64, Arc<dyn Any + Send + Sync>)> {
    let areas = space.lock();
    areas.areas_in(VirtAddr(from), VirtAddr(u64::MAX)).find_map(|area| {
        let held = FileMapping::of(area.name)?.hold()?;
        let is_it = of.is_none_or(|of| of.is_same(held)) && area.start.0 >= start;
        let is_in_place = area.start.0.wrapping_sub(start) == area.offset;
        (is_it && is_in_place).then(|| (area.start.0, area.end.0, held.clone()))
    })
}

/// Unmaps the rest of the attachment that began at `start`, and returns the object that it holds.
///
/// # Errors
/// `EINVAL` if there is none.
pub fn detach(space: &ProcessSpace, start: u64) -> Result<Arc<dyn Any + Send + Sync>> {
    let mut found: Option<Arc<dyn Any + Send + Sync>> = None;
    let mut from = start;
    while let Some((first, end, held)) = next_area(space, start, from, found.as_ref()) {
        space.unmap(VirtAddr(first), end - first)?;
        (found, from) = (Some(held), end);
        crate::sched::checkpoint()?;
    }
    found.ok_or(Errno::EINVAL)
}
