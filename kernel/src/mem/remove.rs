//! MADV_REMOVE: makes a hole in mapped shared memory or in a mapped file, as fallocate(2) does.

use freehold_collections::Arc;
use freehold_machine::{PAGE_SIZE, VirtAddr};

use super::{FileMapping, ProcessSpace};
use crate::fs::file::Allocate;
use crate::{Errno, Result, sched};

/// Makes the holes. Unmapped parts do not stop it; they are reported at the end (madvise(2)).
pub(super) fn remove(space: &Arc<ProcessSpace>, start: u64, len: u64) -> Result<()> {
    if !start.is_multiple_of(PAGE_SIZE as u64) {
        return Err(Errno::EINVAL);
    }
    let len = len.checked_next_multiple_of(PAGE_SIZE as u64).ok_or(Errno::EINVAL)?;
    let end = VirtAddr(start.checked_add(len).ok_or(Errno::EINVAL)?);
    let (mut from, mut holes) = (VirtAddr(start), false);
    while from < end {
        let Some(removal) = space.lock().removal(from..end)? else { return Err(Errno::ENOMEM) };
        holes |= removal.start > from;
        from = removal.end;
        match removal.file {
            None => removal.cache.punch_hole(removal.bytes)?,
            Some(file) => {
                let mapping = FileMapping::behind(&*file).ok_or(Errno::EINVAL)?;
                mapping.file().allocate(removal.bytes, Allocate::PunchHole)?;
            }
        }
        sched::checkpoint()?;
    }
    if holes { Err(Errno::ENOMEM) } else { Ok(()) }
}
