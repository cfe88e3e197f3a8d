//! Areas that map a segment of System V shared memory.
//!
//! They are shared areas of a file. The areas of one attachment share one [`FileMapping`], and the
//! object that it [holds](FileMapping::held) identifies them. shmdt finds them by that, and by the
//! start of the attachment.

use core::any::Any;
use core::ops::Range;

use freehold_collections::Arc;
use freehold_collections::reserve::ArcMethods as _;

use freehold_machine::VirtAddr;
use freehold_vm::{
    AreaFlags, AreaPlace, Backing, FileView, Limits, MapRequest, MappedFile as _, Protection, SharedWrite,
    VmError,
};

use super::populate::and_populate_if_possible;
use super::{FileMapping, ProcessSpace, mirrors};
use crate::fs::OpenFile;
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
    // Huge pages were reserved for the whole segment, if at all.
    flags.set(AreaFlags::NORESERVE, mapping.cache().is_huge());
    let place = match place {
        SegmentPlace::Anywhere => AreaPlace::Anywhere,
        SegmentPlace::Free(at) => AreaPlace::FixedNoReplace(VirtAddr(at)),
        SegmentPlace::Replace(at) => AreaPlace::Fixed(VirtAddr(at)),
    };
    let backing = Backing::SharedFile(FileView { file: mapping, offset: 0 }, write);
    let changed = mirrors::file_to_change(&backing);
    let _change = changed.as_ref().and_then(|file| file.cache().expect_stores());
    let request = MapRequest { place, len: size, protection, backing, flags };
    let start = and_populate_if_possible(space, |areas| {
        areas.map(request, limits).map_err(|error| match error {
            VmError::Exists => Errno::EINVAL,
            error => error.into(),
        })
    })?;
    Ok(start.0)
}

/// An area of an attachment.
struct Piece {
    start: u64,
    end: u64,
    file: Arc<OpenFile>,
    held: Arc<dyn Any + Send + Sync>,
}

/// The first area of the attachment at `start` that lies in `range`. `of` is the attachment, if it
/// is known.
fn next_area(
    space: &ProcessSpace,
    start: u64,
    range: Range<u64>,
    of: Option<&Arc<dyn Any + Send + Sync>>,
) -> Option<Piece> {
    let areas = space.lock();
    areas.areas_in(VirtAddr(range.start), VirtAddr(range.end)).find_map(|area| {
        let mapping = FileMapping::of(area.name)?;
        let held = mapping.hold()?;
        let is_it = of.is_none_or(|of| of.is_same(held)) && area.start.0 >= start;
        let is_in_place = area.start.0.wrapping_sub(start) == area.offset;
        (is_it && is_in_place).then(|| Piece {
            start: area.start.0,
            end: area.end.0,
            file: mapping.file().clone(),
            held: held.clone(),
        })
    })
}

/// Unmaps the rest of the attachment that began at `start`, and returns the object that it holds.
///
/// # Errors
/// `EINVAL` if there is none.
pub fn detach(space: &ProcessSpace, start: u64) -> Result<Arc<dyn Any + Send + Sync>> {
    let mut found: Option<Arc<dyn Any + Send + Sync>> = None;
    let mut range = start..u64::MAX;
    while let Some(piece) = next_area(space, start, range.clone(), found.as_ref()) {
        space.unmap(VirtAddr(piece.start), piece.end - piece.start)?;
        // Areas behind the segment's size are of no interest, however many there are.
        range = piece.end..start.saturating_add(piece.file.node().metadata().size);
        found = Some(piece.held);
        crate::sched::checkpoint()?;
    }
    found.ok_or(Errno::EINVAL)
}
