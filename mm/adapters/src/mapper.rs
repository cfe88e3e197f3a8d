//! `x86_64`'s mapper over the page tables of one address space.

use freehold_frame::{Anon, Frame, LeafMapping, User};
use freehold_machine::VirtAddr;
use freehold_paging::{Backing, Entry, Marks, Memory, PageSize, Rights, Slot, Space, USER_END};
use x86_64::structures::paging::mapper::{
    FlagUpdateError, MapToError, Mapper, MapperFlush, MapperFlushAll, TranslateError, UnmapError,
};
use x86_64::structures::paging::{FrameAllocator, Page, PageTableFlags, PhysFrame, Size4KiB};

use crate::frames::{to_pfn, to_x86_64};

/// Flags that [`SpaceMapper`] understands.
const KNOWN: PageTableFlags = PageTableFlags::PRESENT
    .union(PageTableFlags::WRITABLE)
    .union(PageTableFlags::USER_ACCESSIBLE)
    .union(PageTableFlags::ACCESSED)
    .union(PageTableFlags::DIRTY)
    .union(PageTableFlags::NO_EXECUTE);

/// Result of a change of an entry above the leaves.
type UpperUpdate = Result<MapperFlushAll, FlagUpdateError>;

/// An address space, as `x86_64` maps pages: 4 KiB pages of the lower half.
///
/// Frames are of kind [`Anon`], as those of `TypedFrames<Anon, _>` are. A frame that is mapped
/// belongs to its leaf. It is the caller's again when it is unmapped. By then every CPU has
/// forgotten the page, so the returned `MapperFlush` may be ignored.
///
/// Tables come from the space's own source: the frame allocator of a call is not asked.
///
/// # Panics
/// Where the trait has no error for it: an address of the upper half; flags without PRESENT or
/// USER_ACCESSIBLE, or with others than WRITABLE, NO_EXECUTE, ACCESSED and DIRTY; a frame that is
/// no [`Anon`] frame in use; flags of entries of upper tables, whose rights are those of leaves.
#[derive(Debug)]
pub struct SpaceMapper<'a, S: Memory>(&'a mut Space<S>);

impl<'a, S: Memory> SpaceMapper<'a, S> {
    /// Maps pages in `space`.
    pub const fn new(space: &'a mut Space<S>) -> Self {
        Self(space)
    }

    /// The leaf of a page, if it has one.
    fn leaf(&self, page: Page<Size4KiB>) -> Option<(Slot<S::Machine>, PageSize)> {
        let (slot, size) = self.0.find(address(page))?;
        slot.load().is_leaf().then_some((slot, size))
    }
}

fn address(page: Page<Size4KiB>) -> VirtAddr {
    let address = VirtAddr(page.start_address().as_u64());
    assert!(address < USER_END, "{address:?} is not in the lower half");
    address
}

fn rights(flags: PageTableFlags) -> Rights {
    let needed = PageTableFlags::PRESENT | PageTableFlags::USER_ACCESSIBLE;
    assert!(flags.contains(needed), "{flags:?}: a page of the lower half is present and the program's");
    assert!(KNOWN.contains(flags), "{:?} cannot be set", flags.difference(KNOWN));
    let mut rights = Rights::READ;
    if flags.contains(PageTableFlags::WRITABLE) {
        rights = rights | Rights::WRITE;
    }
    if !flags.contains(PageTableFlags::NO_EXECUTE) {
        rights = rights | Rights::EXECUTE;
    }
    rights
}

impl<S: Memory> Mapper<Size4KiB> for SpaceMapper<'_, S> {
    unsafe fn map_to_with_table_flags<A>(
        &mut self,
        page: Page<Size4KiB>,
        frame: PhysFrame<Size4KiB>,
        flags: PageTableFlags,
        _parents: PageTableFlags,
        _tables: &mut A,
    ) -> Result<MapperFlush<Size4KiB>, MapToError<Size4KiB>>
    where
        A: FrameAllocator<Size4KiB> + ?Sized,
    {
        let (address, rights) = (address(page), rights(flags));
        match self.leaf(page) {
            Some((_, PageSize::Large)) => return Err(MapToError::ParentEntryHugePage),
            Some((slot, PageSize::Small)) => {
                return Err(MapToError::PageAlreadyMapped(to_x86_64(slot.load().frame())));
            }
            None => {}
        }
        let source = self.0.source();
        if let Err(error) = Frame::<Anon, S>::borrow_raw(source, to_pfn(frame)) {
            panic!("{error}");
        }
        let slot = self.0.make(address, PageSize::Small).map_err(|_| MapToError::FrameAllocationFailed)?;
        let marks = match flags {
            flags if flags.contains(PageTableFlags::DIRTY) => Marks::Dirty,
            flags if flags.contains(PageTableFlags::ACCESSED) => Marks::Accessed,
            _ => Marks::Untouched,
        };
        // The caller's reference becomes the hold of the leaf.
        let frame = Frame::<Anon, S>::from_raw(source, to_pfn(frame)).expect("it was looked at");
        let leaf = frame.into_mapping().expect("a reference becomes a mapping").into_leaf();
        slot.fill(Entry::leaf(leaf, rights, marks, Backing::Counted));
        Ok(MapperFlush::new(page))
    }

    fn unmap(
        &mut self,
        page: Page<Size4KiB>,
    ) -> Result<(PhysFrame<Size4KiB>, MapperFlush<Size4KiB>), UnmapError> {
        let (slot, size) = self.leaf(page).ok_or(UnmapError::PageNotMapped)?;
        if size == PageSize::Large {
            return Err(UnmapError::ParentEntryHugePage);
        }
        let source = self.0.source();
        let frame = slot.load().frame();
        let mapping = LeafMapping::<Anon, S>::borrow_leaf(source, frame)
            .map_err(|_| UnmapError::InvalidFrameAddress(to_x86_64::<Size4KiB>(frame).start_address()))?;
        // The caller's reference, beside the leaf's hold.
        let raw = mapping.reference().expect("a mapping has room for one reference").into_raw();
        let old = slot.replace(Entry::EMPTY);
        let hold = LeafMapping::<User, S>::from_leaf(source, old.frame()).expect("it was looked at");
        let mut batch = self.0.batch();
        batch.unmapped(address(page), old, Some(hold));
        drop(batch);
        Ok((to_x86_64(raw), MapperFlush::new(page)))
    }

    unsafe fn update_flags(
        &mut self,
        page: Page<Size4KiB>,
        flags: PageTableFlags,
    ) -> Result<MapperFlush<Size4KiB>, FlagUpdateError> {
        let rights = rights(flags);
        let (slot, size) = self.leaf(page).ok_or(FlagUpdateError::PageNotMapped)?;
        if size == PageSize::Large {
            return Err(FlagUpdateError::ParentEntryHugePage);
        }
        let old = slot.update(|entry| entry.with_rights(rights));
        let mut batch = self.0.batch();
        batch.restricted(address(page), old);
        drop(batch);
        Ok(MapperFlush::new(page))
    }

    unsafe fn set_flags_p4_entry(&mut self, _: Page<Size4KiB>, _: PageTableFlags) -> UpperUpdate {
        refuse_upper_flags()
    }

    unsafe fn set_flags_p3_entry(&mut self, _: Page<Size4KiB>, _: PageTableFlags) -> UpperUpdate {
        refuse_upper_flags()
    }

    unsafe fn set_flags_p2_entry(&mut self, _: Page<Size4KiB>, _: PageTableFlags) -> UpperUpdate {
        refuse_upper_flags()
    }

    fn translate_page(&self, page: Page<Size4KiB>) -> Result<PhysFrame<Size4KiB>, TranslateError> {
        match self.leaf(page).ok_or(TranslateError::PageNotMapped)? {
            (_, PageSize::Large) => Err(TranslateError::ParentEntryHugePage),
            (slot, PageSize::Small) => Ok(to_x86_64(slot.load().frame())),
        }
    }
}

fn refuse_upper_flags() -> ! {
    panic!("rights are in leaves: an upper entry has no flags of its own")
}
