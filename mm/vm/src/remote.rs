//! Access to a space's bytes by others than its own CPU: the kernel on behalf of execve, /proc and ptrace; devices, through pins.

use alloc::sync::Arc;

use freehold_frame::{Anon, FrameRecord, Mapping, PageCache as CacheKind, Pin};
use freehold_machine::{PAGE_SIZE, Pfn, PhysicalBytes, VirtAddr};
use freehold_paging::Memory;

use crate::area::Content;
use crate::error::{FaultError, SegvCode, VmError};
use crate::request::Access;
use crate::resident::{Kind, Want};
use crate::view::OfFile;
use crate::{AddressSpace, PageCache};

/// What is done with the bytes, and whose rights count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteAccess {
    /// Load what the process may load.
    Read,
    /// Store where the process may store.
    Write,
    /// Load whatever is mapped (ptrace, /proc/PID/mem).
    ForceRead,
    /// Store whatever is private, or a shared file opened for writing; private pages get a frame of their own first.
    ForceWrite,
}

/// What a pin is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinAccess {
    /// The device reads.
    Read,
    /// The device writes.
    Write,
}

/// One pinned page: its frame stays this page's frame until the pin is dropped.
pub struct PinnedPage<S: Memory> {
    pin: PinOf<S>,
    access: PinAccess,
}

enum PinOf<S: Memory> {
    /// Anonymous and exclusive.
    Anon(Pin<Anon, S>),
    /// Truly shared memory.
    Shared(Pin<CacheKind, S>),
}

impl<S: Memory> PinnedPage<S> {
    fn new(pin: PinOf<S>, access: PinAccess) -> Self {
        let this = Self { pin, access };
        if access == PinAccess::Write {
            this.record().add_writer();
        }
        this
    }
    /// The frame.
    pub const fn pfn(&self) -> Pfn {
        match &self.pin {
            PinOf::Anon(pin) => pin.pfn(),
            PinOf::Shared(pin) => pin.pfn(),
        }
    }
    /// Whether it is of truly shared memory.
    pub const fn of_file(&self) -> OfFile {
        match &self.pin {
            PinOf::Anon(_) => OfFile::No,
            PinOf::Shared(_) => OfFile::Yes,
        }
    }
    fn record(&self) -> &'static FrameRecord {
        match &self.pin {
            PinOf::Anon(pin) => pin.record(),
            PinOf::Shared(pin) => pin.record(),
        }
    }
}

impl<S: Memory> Drop for PinnedPage<S> {
    fn drop(&mut self) {
        if self.access == PinAccess::Write {
            self.record().remove_writer();
        }
    }
}

impl<S: Memory> core::fmt::Debug for PinnedPage<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PinnedPage({:?})", self.pfn())
    }
}

/// What a futex waits on: the same for all who mean the same memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FutexKey {
    /// The address, in this space only.
    Private(VirtAddr),
    /// A byte of shared memory.
    Shared {
        /// [`PageCache::id`].
        object: u64,
        /// In bytes.
        offset: u64,
    },
}

impl<S: Memory> AddressSpace<S> {
    /// Show up to `len` bytes from `addr` on to `f`, at most a page at a time, faulting pages in. For reading, `f` must not change them.
    /// `f` says how many it dealt with; fewer than it was given ends the call. Bytes dealt with.
    ///
    /// # Errors
    /// [`VmError::Fault`] or [`VmError::NoMemory`] where not one byte could be had.
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
            let at = addr.checked_add(done as u64).ok_or(VmError::Fault);
            let frame = match at.and_then(|at| Ok((at, self.remote_frame(at, access)?))) {
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
                Ok(found) => found,
            };
            let (at, frame) = frame;
            let start = at.page_offset();
            let end = PAGE_SIZE.min(start + (len - done));
            let dealt = machine.with_bytes(frame, |bytes| f(&mut bytes[start..end])).min(end - start);
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
        let (len, mut done) = (to.len(), 0);
        let got = self.access_remote(addr, len, RemoteAccess::Read, |bytes| {
            to[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
            bytes.len()
        })?;
        if got == len { Ok(()) } else { Err(VmError::Fault) }
    }

    /// Write exactly `from`.
    ///
    /// # Errors
    /// [`VmError::Fault`], [`VmError::NoMemory`]; a part may have been written.
    pub fn write_remote(&mut self, addr: VirtAddr, from: &[u8]) -> Result<(), VmError> {
        let mut done = 0;
        let got = self.access_remote(addr, from.len(), RemoteAccess::Write, |bytes| {
            bytes.copy_from_slice(&from[done..done + bytes.len()]);
            done += bytes.len();
            bytes.len()
        })?;
        if got == from.len() { Ok(()) } else { Err(VmError::Fault) }
    }

    /// The frame of the page at `addr`, present and (for writing) this space's own. It stays so while the space is locked.
    fn remote_frame(&mut self, addr: VirtAddr, access: RemoteAccess) -> Result<Pfn, VmError> {
        let page = addr.page_start();
        let Self { areas, resident, .. } = self;
        let area = areas.at(addr).ok_or(VmError::Fault)?;
        let (allowed, want) = match access {
            RemoteAccess::Read => (area.protection.allows(Access::Read), Want::Read),
            RemoteAccess::Write => (area.protection.allows(Access::Write), Want::Write),
            RemoteAccess::ForceRead => (true, Want::Read),
            RemoteAccess::ForceWrite => {
                let own = !area.is_shared() || area.protection.allows(Access::Write);
                (own, Want::Write)
            }
        };
        if !allowed {
            return Err(VmError::Fault);
        }
        resident.fault(area, page, want)?;
        let entry = resident.present(page).ok_or(VmError::Fault)?;
        Ok(entry.frame())
    }

    /// Pin the page at `addr` for a device. A private page gets an exclusive frame first (a copy, where it is shared or a file's), for
    /// reading too: so what the device sees stays what the process sees, whatever happens to either's partners.
    ///
    /// # Errors
    /// As [`AddressSpace::fault`].
    pub fn pin(&mut self, addr: VirtAddr, access: PinAccess) -> Result<PinnedPage<S>, FaultError> {
        let page = addr.page_start();
        let Self { areas, resident, .. } = self;
        let area = areas.at(addr).ok_or(FaultError::Segv(SegvCode::MapErr))?;
        let needed = match access {
            PinAccess::Read => Access::Read,
            PinAccess::Write => Access::Write,
        };
        if !area.protection.allows(needed) {
            return Err(FaultError::Segv(SegvCode::AccErr));
        }
        let want = if area.is_shared() { needed.want() } else { Want::Write };
        resident.fault(area, page, want)?;
        resident.count_pieces(page);
        let entry = resident.present(page).ok_or(FaultError::Bus)?;
        let source = resident.source();
        let pinned = if resident.kind_of(entry) == Kind::Anon {
            Mapping::<Anon, S>::borrow_leaf(source, entry.frame())
                .ok()
                .and_then(|m| m.pin().ok())
                .map(PinOf::Anon)
        } else {
            let mapping = Mapping::<CacheKind, S>::borrow_leaf(source, entry.frame());
            mapping.ok().and_then(|m| m.pin().ok()).map(PinOf::Shared)
        };
        // Only a count at its maximum refuses here.
        pinned.map(|pin| PinnedPage::new(pin, access)).ok_or(FaultError::OutOfMemory)
    }

    /// What a futex at `addr` is, for everyone who shares the memory.
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
            Content::SharedFile(view, _, at) => shared(at.cache(), view.offset),
            Content::SharedAnonymous(offset, at) => shared(at.cache(), *offset),
            Content::Anonymous | Content::PrivateFile(..) => FutexKey::Private(addr),
        })
    }
}
