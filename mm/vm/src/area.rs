//! One area: a run of addresses with one protection and one backing.
//!
//! An area is page-aligned and never empty. An area of a file or of shared memory is attached to
//! its cache as long as it exists, so truncation and reclaim find its leaves. [`Area::copied`] is
//! false only while no page of a private file has a frame of its own.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_machine::{PAGE_SHIFT, ProtectionKey, VirtAddr};
use freehold_paging::{Memory, Rights};

use crate::cache::Attachment;
use crate::hugetlb::HugeView;
use crate::monitor::Monitor;
use crate::policy::Policy;
use crate::request::{AreaFlags, FileView, MappedFile, Protection, SharedWrite};
use crate::vdso::VdsoPart;
use crate::{PageCache, VmError};

/// Content of an area. File areas are attached to the file's cache, so that truncation finds them.
pub(crate) enum AreaContent<S: Memory> {
    Anonymous,
    PrivateFile(FileView<S>, Attachment<S>),
    SharedFile(FileView<S>, SharedWrite, Attachment<S>),
    SharedAnonymous(u64, Attachment<S>),
    Vdso(VdsoPart, u64),
    /// 2 MiB pages on request. Borders of the area are borders of such pages.
    Huge(HugeView<S>),
}

impl<S: Memory> Clone for AreaContent<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::PrivateFile(view, at) => Self::PrivateFile(view.clone(), at.clone()),
            Self::SharedFile(view, write, at) => Self::SharedFile(view.clone(), *write, at.clone()),
            Self::SharedAnonymous(offset, at) => Self::SharedAnonymous(*offset, at.clone()),
            Self::Vdso(part, offset) => Self::Vdso(*part, *offset),
            Self::Huge(view) => Self::Huge(view.clone()),
        }
    }
}

impl<S: Memory> AreaContent<S> {
    /// Offset of the area's first byte in its content; 0 for anonymous memory.
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Self::Anonymous => 0,
            Self::PrivateFile(view, _) | Self::SharedFile(view, ..) => view.offset,
            Self::SharedAnonymous(offset, _) | Self::Vdso(_, offset) => *offset,
            Self::Huge(view) => view.offset,
        }
    }
    fn advance(&mut self, bytes: u64) {
        self.set_offset(self.offset() + bytes);
    }
    /// Sets [`offset`](Self::offset); anonymous memory has none.
    pub(crate) fn set_offset(&mut self, to: u64) {
        match self {
            Self::Anonymous => {}
            Self::PrivateFile(view, _) | Self::SharedFile(view, ..) => view.offset = to,
            Self::SharedAnonymous(offset, _) | Self::Vdso(_, offset) => *offset = to,
            Self::Huge(view) => view.offset = to,
        }
    }
    /// Whether `other` shows the same shared memory, which may be stored to, perhaps another part.
    pub(crate) fn is_same_shared(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::SharedFile(a, SharedWrite::Allowed, _), Self::SharedFile(b, SharedWrite::Allowed, _)) => {
                core::ptr::addr_eq(Arc::as_ptr(&a.file), Arc::as_ptr(&b.file))
            }
            (Self::SharedAnonymous(_, a), Self::SharedAnonymous(_, b)) => Arc::ptr_eq(a.cache(), b.cache()),
            _ => false,
        }
    }
    /// The content for a child's area (or a moved area).
    pub(crate) fn attached_to(&self, space: u64) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::PrivateFile(view, at) => Self::PrivateFile(view.clone(), at.for_space(space)),
            Self::SharedFile(view, write, at) => Self::SharedFile(view.clone(), *write, at.for_space(space)),
            Self::SharedAnonymous(offset, at) => Self::SharedAnonymous(*offset, at.for_space(space)),
            Self::Vdso(part, offset) => Self::Vdso(*part, *offset),
            Self::Huge(view) => Self::Huge(view.inherited(space)),
        }
    }
    fn continues(&self, next: &Self, len: u64) -> bool {
        let same = |a: &Arc<dyn MappedFile<S>>, b: &Arc<dyn MappedFile<S>>| {
            core::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
        };
        match (self, next) {
            (Self::Anonymous, Self::Anonymous) => true,
            (Self::PrivateFile(a, _), Self::PrivateFile(b, _)) => {
                same(&a.file, &b.file) && a.offset + len == b.offset
            }
            (Self::SharedFile(a, wa, _), Self::SharedFile(b, wb, _)) => {
                same(&a.file, &b.file) && wa == wb && a.offset + len == b.offset
            }
            (Self::SharedAnonymous(a, x), Self::SharedAnonymous(b, y)) => {
                Arc::ptr_eq(x.cache(), y.cache()) && a + len == *b
            }
            (Self::Vdso(a, from), Self::Vdso(b, to)) => a == b && from + len == *to,
            (Self::Huge(a), Self::Huge(b)) => a.continues(b, len),
            _ => false,
        }
    }
}

/// Whether a page was copied; once set, it stays set.
#[derive(Debug, Default)]
pub(crate) struct Copied(AtomicBool);

impl Copied {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
    #[inline]
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Clone for Copied {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.is_set()))
    }
}

/// The use of an area, by its flags and protection (Linux: `vm_stat_account`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AreaUse {
    /// Memory that a program does not write, or shares.
    Other,
    /// Executable, not writable.
    Code,
    /// An area that grows downwards.
    Stack,
    /// Private and writable, not the stack. These areas count towards RLIMIT_DATA.
    Data,
}

impl AreaUse {
    /// Number of uses.
    pub(crate) const COUNT: usize = Self::Data as usize + 1;
}

/// An area. Its start is its key in the tree and is kept here too.
pub(crate) struct Area<S: Memory> {
    pub start: VirtAddr,
    pub end: VirtAddr,
    pub protection: Protection,
    /// Protection key of all leaves here.
    pub key: ProtectionKey,
    pub flags: AreaFlags,
    pub policy: Option<Policy>,
    pub content: AreaContent<S>,
    /// Some page here was made present for writing, or got its own frame for reading. So a private
    /// area of a file may have frames that are not the cache's.
    pub copied: Copied,
    /// Monitor that serves the kinds of faults that the area's flags name
    /// ([`AreaFlags::MONITORED`]).
    pub monitor: Option<Arc<dyn Monitor>>,
}

impl<S: Memory> Clone for Area<S> {
    fn clone(&self) -> Self {
        let (content, copied) = (self.content.clone(), self.copied.clone());
        Self { content, copied, monitor: self.monitor.clone(), ..*self }
    }
}

impl<S: Memory> Area<S> {
    pub(crate) fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }
    pub(crate) fn pages(&self) -> u64 {
        self.len() >> PAGE_SHIFT
    }
    pub(crate) fn is_shared(&self) -> bool {
        match &self.content {
            AreaContent::SharedFile(..) | AreaContent::SharedAnonymous(..) => true,
            AreaContent::Huge(view) => view.shared.is_some(),
            _ => false,
        }
    }
    /// Whether the area may have frames that no other area has: anonymous memory, or private copies
    /// of a file's pages. Huge pages on request do not count.
    pub(crate) fn may_have_own_frames(&self) -> bool {
        match self.content {
            AreaContent::Anonymous => true,
            AreaContent::PrivateFile(..) | AreaContent::Vdso(..) => self.copied.is_set(),
            AreaContent::SharedFile(..) | AreaContent::SharedAnonymous(..) | AreaContent::Huge(..) => false,
        }
    }
    /// Returns the area's use.
    pub(crate) fn area_use(&self) -> AreaUse {
        self.use_as(self.protection)
    }
    /// Returns the area's use with this protection.
    pub(crate) fn use_as(&self, protection: Protection) -> AreaUse {
        if self.flags.contains(AreaFlags::GROWSDOWN) {
            AreaUse::Stack
        } else if !protection.contains(Protection::WRITE) {
            if protection.contains(Protection::EXEC) { AreaUse::Code } else { AreaUse::Other }
        } else if self.is_shared() {
            AreaUse::Other
        } else {
            AreaUse::Data
        }
    }
    /// Whether, with this protection, the area's memory must be promised, and was not promised yet.
    pub(crate) fn is_new_promise_as(&self, protection: Protection) -> bool {
        !self.is_shared()
            && self.huge_view().is_none()
            && protection.contains(Protection::WRITE)
            && !self.flags.intersects(AreaFlags::NORESERVE | AreaFlags::ACCOUNT)
    }
    /// Whether the kernel never reads or writes the area's bytes for a caller: the page of time,
    /// and secret memory.
    pub(crate) fn is_withheld(&self) -> bool {
        self.is_time() || self.is_secret()
    }
    /// Whether the area maps secret memory, which only programs may access.
    pub(crate) fn is_secret(&self) -> bool {
        self.attachment().is_some_and(|at| at.cache().is_secret())
    }
    /// The area's cache, and the index there of the page at `addr`.
    pub(crate) fn cache_page(&self, addr: VirtAddr) -> Option<(&Arc<PageCache<S>>, u64)> {
        let at = self.attachment()?;
        let offset = self.content.offset() + (addr.page_start().0 - self.start.0);
        Some((at.cache(), offset >> PAGE_SHIFT))
    }
    /// The area's attachment to the cache of its pages.
    pub(crate) fn attachment(&self) -> Option<&Attachment<S>> {
        match &self.content {
            AreaContent::Anonymous | AreaContent::Vdso(..) | AreaContent::Huge(..) => None,
            AreaContent::PrivateFile(_, at)
            | AreaContent::SharedFile(_, _, at)
            | AreaContent::SharedAnonymous(_, at) => Some(at),
        }
    }
    /// As [`Area::attachment`], of huge pages, too.
    pub(crate) fn attached(&self) -> Option<&Attachment<S>> {
        let huge = || self.huge_view()?.file.as_ref().map(|file| &file.attachment);
        self.attachment().or_else(huge)
    }
    /// The addresses at which pages `from..to` of its cache are mapped.
    pub(crate) fn addresses_of(&self, from: u64, to: u64) -> Option<core::ops::Range<VirtAddr>> {
        let first = self.content.offset() >> PAGE_SHIFT;
        let last = first + self.pages();
        let (from, to) = (from.max(first), to.min(last));
        let address = |page: u64| VirtAddr(self.start.0 + ((page - first) << PAGE_SHIFT));
        (from < to).then(|| address(from)..address(to))
    }
    /// Returns the rights here of a leaf whose frame is exclusive.
    #[inline]
    pub(crate) fn rights(&self) -> Rights {
        self.protection.rights().with_key(self.key)
    }
    /// Returns the rights here of a leaf whose frame is not exclusive.
    pub(crate) fn shared_frame_rights(&self) -> Rights {
        self.rights().without(Rights::WRITE)
    }
    /// Checks whether `protection` is allowed here.
    pub(crate) fn check_protection(&self, protection: Protection) -> Result<(), VmError> {
        let denied = self.flags.contains(AreaFlags::NEVERWRITE)
            || self.is_time()
            || matches!(self.content, AreaContent::SharedFile(_, SharedWrite::Denied, _))
            || self.huge_view().is_some_and(HugeView::denies_stores);
        let runs = protection.contains(Protection::EXEC) && self.flags.contains(AreaFlags::NEVEREXEC);
        if denied && protection.contains(Protection::WRITE) || runs { Err(VmError::Access) } else { Ok(()) }
    }
    /// Splits the area at `at`, which is inside: this keeps the lower part, and the upper part is
    /// returned.
    pub(crate) fn split_off(&mut self, at: VirtAddr) -> Self {
        debug_assert!(self.start < at && at < self.end);
        let mut upper = self.clone();
        upper.content.advance(at.0 - self.start.0);
        upper.start = at;
        self.end = at;
        upper
    }
    /// Whether `next`, which starts where this area ends, can be joined with it.
    pub(crate) fn joins(&self, next: &Self) -> bool {
        self.end == next.start
            && self.protection == next.protection
            && self.key == next.key
            && (self.flags ^ next.flags).difference(AreaFlags::SOFTDIRTY).is_empty()
            && self.policy == next.policy
            && self.has_monitor_of(next)
            && self.content.continues(&next.content, self.len())
    }
    /// Joins `next` to this area.
    pub(crate) fn absorb(&mut self, next: &Self) {
        self.end = next.end;
        if next.copied.is_set() {
            self.copied.set();
        }
        // In doubt a page counts as written.
        self.flags |= next.flags & AreaFlags::SOFTDIRTY;
    }
}
