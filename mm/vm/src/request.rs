//! Requests to an address space.

use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;

use bitflags::bitflags;
use freehold_machine::{Access, VirtAddr};
use freehold_paging::{Memory, Rights};

use crate::{KeyChange, PageCache, VdsoPart};

bitflags! {
    /// Accesses that a process may make in an area: the values of Linux' `PROT_` constants.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Protection: u32 {
        /// No access.
        const NONE = 0;
        /// Load.
        const READ = 1;
        /// Store.
        const WRITE = 2;
        /// Fetch instructions.
        const EXEC = 4;
    }
}

impl Protection {
    /// Returns the rights that a leaf grants for this protection. x86-64 cannot withhold reading
    /// from a page that may be written or executed.
    pub(crate) fn rights(self) -> Rights {
        let mut rights = if self.is_empty() { Rights::NONE } else { Rights::READ };
        if self.contains(Self::WRITE) {
            rights = rights | Rights::WRITE;
        }
        if self.contains(Self::EXEC) {
            rights = rights | Rights::EXECUTE;
        }
        rights
    }
    pub(crate) fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => !self.is_empty(),
            Access::Write => self.contains(Self::WRITE),
            Access::Execute => self.contains(Self::EXEC),
        }
    }
}

bitflags! {
    /// Other properties of an area.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AreaFlags: u32 {
        /// The area grows downwards when the page below is touched (the stack).
        const GROWSDOWN = 1;
        /// The area is never checked against the commit limit.
        const NORESERVE = 1 << 1;
        /// Pages stay in memory.
        const LOCKED = 1 << 2;
        /// In a request: fault everything in at once.
        const POPULATE = 1 << 3;
        /// The main stack: shown as `[stack]`.
        const STACK = 1 << 4;
        /// The break: shown as `[heap]`.
        const HEAP = 1 << 5;
        /// With `LOCKED`: pages are locked as they are touched.
        const LOCK_ON_FAULT = 1 << 6;
        /// A child does not get the area.
        const DONTFORK = 1 << 7;
        /// A child gets the area empty.
        const WIPEONFORK = 1 << 8;
        /// The area is not part of a core dump.
        const DONTDUMP = 1 << 9;
        /// The area is read from front to back.
        const SEQUENTIAL = 1 << 10;
        /// The area is read in no order: faults do not map neighbours.
        const RANDOM = 1 << 11;
        /// Large pages are preferred, also in mode [`HugeMode::Advised`](crate::HugeMode::Advised).
        const HUGEPAGE = 1 << 12;
        /// Large pages are avoided.
        const NOHUGEPAGE = 1 << 13;
        /// The whole area counts as written, since it is newer than the last clearing of such
        /// marks. New areas have this flag.
        const SOFTDIRTY = 1 << 14;
        /// The area's memory is promised: the area was, or became, private and writable
        /// ([`PromiseLimit`](crate::PromiseLimit)). The flag stays if the area changes later.
        const ACCOUNT = 1 << 15;
        /// It may never become writable: a shared mapping of zeroes that was not opened for writing
        /// (Linux: no VM_MAYWRITE).
        const NEVERWRITE = 1 << 16;
        /// It may never become executable: a file of a mount that lets nothing run (Linux: no
        /// VM_MAYEXEC).
        const NEVEREXEC = 1 << 17;
        /// The area's [`Monitor`](crate::Monitor) has to provide missing pages.
        const MONITOR_MISSING = 1 << 18;

        /// A store to a page that is [watched](crate::AddressSpace::watch) is reported to the
        /// area's monitor.
        const MONITOR_STORES = 1 << 19;
        /// The area's monitor has to map pages of shared memory that are present but not mapped
        /// here.
        const MONITOR_MINOR = 1 << 20;
        /// Pages with equal bytes are merged (MADV_MERGEABLE).
        const MERGEABLE = 1 << 21;

        /// The faults that go to a monitor.
        const MONITORED = Self::MONITOR_MISSING.bits() | Self::MONITOR_STORES.bits() | Self::MONITOR_MINOR.bits();
    }
}

/// The place of a new area. Addresses are page-aligned (`Hint` is rounded down).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AreaPlace {
    /// The highest hole below the layout's `mmap_base`, else any.
    Anywhere,
    /// This address, if it is free; else anywhere.
    Hint(VirtAddr),
    /// This address; existing mappings are removed.
    Fixed(VirtAddr),
    /// This address, or [`VmError::Exists`](crate::VmError::Exists).
    FixedNoReplace(VirtAddr),
    /// This address, if it is free and the area ends by 2 GiB; else the lowest hole within
    /// [`LOW`] (MAP_32BIT).
    Low(Option<VirtAddr>),
}

impl AreaPlace {
    /// Returns the place that a hint falls back to.
    pub(crate) const fn without_hint(self) -> Self {
        match self {
            Self::Hint(_) => Self::Anywhere,
            Self::Low(_) => Self::Low(None),
            place => place,
        }
    }
}

/// The addresses of areas that programs address by 32-bit offsets: the second GiB (Linux:
/// `find_start_end` in arch/x86/kernel/sys_x86_64.c, without its random beginning).
pub const LOW: Range<VirtAddr> = VirtAddr(1 << 30)..VirtAddr(1 << 31);

/// A mapped file: the kernel's open file with its frames. The areas keep it alive.
pub trait MappedFile<S: Memory>: Any + Send + Sync {
    /// The file's frames. Always the same cache.
    fn cache(&self) -> &Arc<PageCache<S>>;
}

/// A view of a file from `offset` on.
pub struct FileView<S: Memory> {
    /// The file; [`AddressSpace::areas`](crate::AddressSpace::areas) returns it.
    pub file: Arc<dyn MappedFile<S>>,
    /// Offset in bytes, page-aligned.
    pub offset: u64,
}

impl<S: Memory> Clone for FileView<S> {
    fn clone(&self) -> Self {
        Self { file: self.file.clone(), offset: self.offset }
    }
}

impl<S: Memory> core::fmt::Debug for FileView<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} + {:#x}", self.file.cache(), self.offset)
    }
}

/// Whether a shared mapping of a file may ever become writable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedWrite {
    /// The file was opened for writing.
    Allowed,
    /// The file was not opened for writing: mprotect to writable is refused.
    Denied,
}

/// The source and destination of an area's bytes.
#[derive(Debug)]
pub enum Backing<S: Memory> {
    /// Zeroes, private.
    Anonymous,
    /// Zeroes, shared with children.
    SharedAnonymous,
    /// The file's bytes; writes stay here. A file of huge pages is mapped in whole pages.
    PrivateFile(FileView<S>),
    /// The file's bytes; writes reach the file.
    SharedFile(FileView<S>, SharedWrite),
    /// Zeroes in 2 MiB pages on request, private. The length is rounded up to such pages. The
    /// offset has no meaning, but is shown.
    Huge(u64),
    /// As `Huge`, shared with children.
    SharedHuge(u64),
    /// Pages of the kernel ([`Vdso`](crate::Vdso)); writes to the image stay here.
    Vdso(VdsoPart),
}

impl<S: Memory> Backing<S> {
    /// Whether it has 2 MiB pages on request.
    pub fn is_huge(&self) -> bool {
        match self {
            Self::Huge(_) | Self::SharedHuge(_) => true,
            Self::PrivateFile(view) | Self::SharedFile(view, _) => view.file.cache().is_huge(),
            _ => false,
        }
    }
}

impl<S: Memory> Clone for Backing<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::SharedAnonymous => Self::SharedAnonymous,
            Self::PrivateFile(view) => Self::PrivateFile(view.clone()),
            Self::SharedFile(view, write) => Self::SharedFile(view.clone(), *write),
            Self::Vdso(part) => Self::Vdso(*part),
            Self::Huge(offset) => Self::Huge(*offset),
            Self::SharedHuge(offset) => Self::SharedHuge(*offset),
        }
    }
}

/// A request for one area.
#[derive(Clone, Debug)]
pub struct MapRequest<S: Memory> {
    /// The place.
    pub place: AreaPlace,
    /// Bytes, more than 0; rounded up to pages.
    pub len: u64,
    /// Protection of the area.
    pub protection: Protection,
    /// Memory that the area shows.
    pub backing: Backing<S>,
    /// Other properties.
    pub flags: AreaFlags,
}

/// Limits of a process' memory, in bytes; `u64::MAX` is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// RLIMIT_AS: all areas.
    pub address_space: u64,
    /// RLIMIT_DATA: private writable areas.
    pub data: u64,
    /// RLIMIT_STACK: how far an area that grows downwards may grow.
    pub stack: u64,
    /// RLIMIT_MEMLOCK; no limit for the privileged.
    pub memlock: u64,
}

impl Limits {
    /// No limits, but 8 MiB of stack.
    pub const NONE: Self =
        Self { address_space: u64::MAX, data: u64::MAX, stack: 8 << 20, memlock: u64::MAX };
}

/// The layout of an address space, chosen (at random) by its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Nothing is mapped below (Linux: `mmap_min_addr`, 64 KiB).
    pub lowest: VirtAddr,
    /// One past the last address; at most [`freehold_paging::USER_END`].
    pub end: VirtAddr,
    /// Areas without a requested address are placed below this.
    pub mmap_base: VirtAddr,
}

/// A request for mprotect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protect {
    /// Where the range starts, page-aligned.
    pub start: VirtAddr,
    /// Its bytes.
    pub len: u64,
    /// Protection of the range from now on.
    pub protection: Protection,
    /// Whether the change extends beyond the range.
    pub extent: ProtectExtent,
    /// The range's protection key from now on.
    pub key: KeyChange,
}

/// How far mprotect reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtectExtent {
    /// The range.
    Exact,
    /// From the start of the area that grows downwards (PROT_GROWSDOWN).
    GrowsDown,
    /// To the end of the area that grows upwards (PROT_GROWSUP): there is none here.
    GrowsUp,
}
