//! Access to a space's bytes by the kernel, under the space's lock: small things, for execve and
//! /proc. Others use pins.

use alloc::sync::Arc;

use freehold_machine::{Access, PAGE_SIZE, VirtAddr};
use freehold_paging::Memory;
use freehold_xpfo::Windows;

use crate::area::AreaContent;
use crate::error::VmError;
use crate::leaf_hold::LeafHold;
use crate::resident::Want;
use crate::{AddressSpace, PageCache};

/// Use of the bytes, and the rights that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteAccess {
    /// Load what the process may load.
    Read,
    /// Store where the process may store.
    Write,
}

/// Key of a futex: equal for all tasks that use the same memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FutexKey {
    /// The address, in this space only.
    Private(VirtAddr),
    /// A byte of shared memory.
    Shared {
        /// [`PageCache::id`].
        object: u64,
        /// Offset in bytes.
        offset: u64,
    },
}

impl<S: Memory> AddressSpace<S> {
    /// Show up to `len` bytes from `addr` on to `f`, at most a page at a time, faulting pages in.
    /// For reading, `f` must not change them. `f` returns how many it handled; if these are not
    /// all, the call ends. Returns the number of handled bytes.
    ///
    /// # Errors
    /// [`VmError::Fault`] or [`VmError::NoMemory`] if no byte could be accessed.
    pub fn access_remote(
        &mut self,
        addr: VirtAddr,
        len: usize,
        access: RemoteAccess,
        mut f: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, VmError> {
        let machine = self.resident.source().machine();
        let mut done = 0;
        while done < len {
            let found = match addr.checked_add(done as u64) {
                Some(at) => self.remote_page(at, access).map(|page| (at, page)),
                None => Err(VmError::Fault),
            };
            let (at, page) = match found {
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
                Ok(found) => found,
            };
            let start = at.page_offset();
            let end = PAGE_SIZE.min(start + (len - done));
            let dealt = machine.with_bytes(&page.held(), |bytes| f(&mut bytes[start..end])).min(end - start);
            done += dealt;
            if dealt < end - start {
                break;
            }
        }
        Ok(done)
    }

    /// Read exactly `to.len()` bytes.
    ///
    /// # Errors
    /// [`VmError::Fault`], [`VmError::NoMemory`]; `to` may have been filled in part.
    pub fn read_remote(&mut self, addr: VirtAddr, to: &mut [u8]) -> Result<(), VmError> {
        let mut done = 0;
        // If the loop ends early, the next page's access returns the reason.
        while done < to.len() {
            let at = addr.checked_add(done as u64).ok_or(VmError::Fault)?;
            let mut next = done;
            done += self.access_remote(at, to.len() - done, RemoteAccess::Read, |bytes| {
                to[next..next + bytes.len()].copy_from_slice(bytes);
                next += bytes.len();
                bytes.len()
            })?;
        }
        Ok(())
    }

    /// Write exactly `from`.
    ///
    /// # Errors
    /// [`VmError::Fault`], [`VmError::NoMemory`]; a part may have been written.
    pub fn write_remote(&mut self, addr: VirtAddr, from: &[u8]) -> Result<(), VmError> {
        let mut done = 0;
        while done < from.len() {
            let at = addr.checked_add(done as u64).ok_or(VmError::Fault)?;
            let mut rest = &from[done..];
            done += self.access_remote(at, rest.len(), RemoteAccess::Write, |bytes| {
                let (now, later) = rest.split_at(bytes.len());
                bytes.copy_from_slice(now);
                rest = later;
                now.len()
            })?;
        }
        Ok(())
    }

    /// The page at `addr`, present and (for writing) this space's own. It stays so while the space
    /// is borrowed.
    fn remote_page(&mut self, addr: VirtAddr, access: RemoteAccess) -> Result<LeafHold<'_, S>, VmError> {
        let page = addr.page_start();
        let Self { areas, resident, .. } = self;
        let area = areas.at(addr).ok_or(VmError::Fault)?;
        let (allowed, want) = match access {
            RemoteAccess::Read => (area.protection.allows(Access::Read), Want::Read),
            RemoteAccess::Write => (area.protection.allows(Access::Write), Want::Write),
        };
        if !allowed || area.is_withheld() {
            return Err(VmError::Fault);
        }
        resident.fault_or_ask(area, page, want)?;
        resident.hold_of(page).ok_or(VmError::Fault)
    }

    /// Returns the key of a futex at `addr`, equal for all that share the memory.
    ///
    /// # Errors
    /// [`VmError::Fault`] where nothing is mapped.
    pub fn shared_key(&self, addr: VirtAddr) -> Result<FutexKey, VmError> {
        let area = self.areas.at(addr).ok_or(VmError::Fault)?;
        let shared = |cache: &Arc<PageCache<S>>, offset: u64| FutexKey::Shared {
            object: cache.id(),
            offset: offset + (addr.0 - area.start.0),
        };
        Ok(match &area.content {
            AreaContent::SharedFile(view, _, at) => shared(at.cache(), view.offset),
            AreaContent::SharedAnonymous(offset, at) => shared(at.cache(), *offset),
            AreaContent::Huge(view) if view.shared.is_some() => {
                FutexKey::Shared { object: view.id, offset: view.offset + (addr.0 - area.start.0) }
            }
            AreaContent::Huge(_)
            | AreaContent::Anonymous
            | AreaContent::PrivateFile(..)
            | AreaContent::Vdso(..) => FutexKey::Private(addr),
        })
    }
}
