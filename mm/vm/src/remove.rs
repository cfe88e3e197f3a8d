//! Removal of shared memory from all its mappings (MADV_REMOVE).
//!
//! The hole is made in the mapped file, not in the mapping. This takes the file's own locks and,
//! one after the other, the lock of every space that maps it, so the caller may hold no space.
//! Therefore this module only names the parts, and the caller makes the holes after it has unlocked
//! this space.

use alloc::sync::Arc;
use core::ops::Range;

use freehold_machine::VirtAddr;
use freehold_paging::Memory;

use crate::area::AreaContent;
use crate::request::{AreaFlags, MappedFile, SharedWrite};
use crate::{AddressSpace, PageCache, VmError};

/// A part of shared memory that is to be removed.
pub struct Removal<S: Memory> {
    /// The cache that is mapped.
    pub cache: Arc<PageCache<S>>,
    /// The file that it is, if it is one.
    pub file: Option<Arc<dyn MappedFile<S>>>,
    /// The range of its bytes.
    pub bytes: Range<u64>,
    /// The part's first address.
    pub start: VirtAddr,
    /// One past its last address.
    pub end: VirtAddr,
}

impl<S: Memory> AddressSpace<S> {
    /// The first part of `range` that an area maps; `None` where there is none.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for memory that is locked or belongs to no file; [`VmError::Access`] if
    /// stores there could never be shared.
    pub fn removal(&self, range: Range<VirtAddr>) -> Result<Option<Removal<S>>, VmError> {
        let Some((area, Range { start, end })) = self.areas.parts(range).next() else { return Ok(None) };
        if area.flags.contains(AreaFlags::LOCKED) {
            return Err(VmError::Invalid);
        }
        let file = match &area.content {
            AreaContent::Anonymous | AreaContent::Vdso(..) => return Err(VmError::Invalid),
            AreaContent::Huge(view) => {
                let file = view.file.as_ref().ok_or(VmError::Invalid)?;
                if view.shared.is_none() || view.denies_stores() {
                    return Err(VmError::Access);
                }
                Some(file.file.clone())
            }
            AreaContent::PrivateFile(..) | AreaContent::SharedFile(_, SharedWrite::Denied, _) => {
                return Err(VmError::Access);
            }
            AreaContent::SharedFile(view, SharedWrite::Allowed, _) => Some(view.file.clone()),
            AreaContent::SharedAnonymous(..) => None,
        };
        let cache = area.attached().ok_or(VmError::Invalid)?.cache().clone();
        let first = area.content.offset() + (start.0 - area.start.0);
        Ok(Some(Removal { cache, file, bytes: first..first + (end.0 - start.0), start, end }))
    }
}
