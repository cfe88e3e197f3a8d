//! Each adapter as a user of the other crate sees it, and what its frames' records say meanwhile.
#![allow(unsafe_code, clippy::unwrap_used)]
#![allow(clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use axallocator::{AllocError, BaseAllocator, PageAllocator};
use embedded_dma::{ReadBuffer, WriteBuffer};
use freehold_adapters::{BuddyPages, DmaBuffer, SpaceMapper, TypedFrames, start_buddy};
use freehold_bounce::{DeviceRules, Dma, DmaAddr, Limits};
use freehold_buddy::Buddy;
use freehold_frame::{Anon, Kernel, Owner};
use freehold_machine::model::{Config, Model};
use freehold_machine::{Cpus, PAGE_SIZE, Pfn, Tlb, VirtAddr};
use freehold_paging::Space;
use freehold_paging::model::{KERNEL_ROOTS, ModelFrames};
use x86_64::structures::paging::mapper::{FlagUpdateError, MapToError, TranslateError, UnmapError};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, Page, PageTableFlags, PhysFrame, Size2MiB, Size4KiB,
};

const PAGE: usize = PAGE_SIZE;
const READ: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::USER_ACCESSIBLE);
const WRITE: PageTableFlags = READ.union(PageTableFlags::WRITABLE);

fn buddy(frames: u64) -> (Model, &'static Buddy<Model>) {
    let machine = Model::new(Config { frames, cpus: 1, nodes: 1, ..Config::default() });
    (machine, start_buddy(machine, machine.topology().clone(), &[]).unwrap())
}

fn panics(f: impl FnOnce()) -> String {
    let said = catch_unwind(AssertUnwindSafe(f)).expect_err("it is refused");
    said.downcast_ref::<String>().cloned().unwrap_or_else(|| said.downcast_ref::<&str>().unwrap().to_string())
}

fn page(address: u64) -> Page<Size4KiB> {
    Page::containing_address(x86_64::VirtAddr::new(address))
}

#[test]
fn frames_of_both_sizes_have_an_owner_until_they_are_given_back() {
    let (_, buddy) = buddy(4096);
    let mut frames = TypedFrames::<Anon, _>::new(buddy);
    let small: PhysFrame<Size4KiB> = frames.allocate_frame().unwrap();
    let large: PhysFrame<Size2MiB> = frames.allocate_frame().unwrap();
    assert_eq!(buddy.frames_of(Owner::Anon), 513);
    // Another kind, another size, or twice.
    let mut others = TypedFrames::<Kernel, _>::new(buddy);
    let said = panics(|| unsafe { others.deallocate_frame(small) });
    assert!(said.contains("belongs to"), "{said}");
    let part: PhysFrame<Size4KiB> = PhysFrame::containing_address(large.start_address());
    let said = panics(|| unsafe { frames.deallocate_frame(part) });
    assert!(said.contains("does not begin a block of 4096 bytes"), "{said}");
    unsafe {
        frames.deallocate_frame(small);
        frames.deallocate_frame(large);
    }
    panics(|| unsafe { frames.deallocate_frame(small) });
    assert_eq!(buddy.frames_of(Owner::Anon), 0);
    // The end of memory is no panic.
    let held: Vec<PhysFrame<Size2MiB>> = std::iter::from_fn(|| frames.allocate_frame()).collect();
    assert!((6..=8).contains(&held.len()), "{}", held.len());
}

#[test]
fn pages_are_mapped_protected_and_unmapped() {
    let frames = ModelFrames::new(Config { frames: 2048, ..Config::default() });
    let machine = frames.model();
    let mut allocator = TypedFrames::<Anon, _>::new(frames);
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    let pinned = machine.pin();
    space.roots().load(&pinned, &mut None);
    let mut mapper = SpaceMapper::new(&mut space);
    let (at, frame) = (page(0x40_0000), allocator.allocate_frame().unwrap());

    assert!(matches!(mapper.translate_page(at), Err(TranslateError::PageNotMapped)));
    unsafe { mapper.map_to(at, frame, WRITE, &mut allocator) }.unwrap().ignore();
    assert_eq!(mapper.translate_page(at).unwrap(), frame);
    let again = unsafe { mapper.map_to(at, frame, WRITE, &mut allocator) }.err();
    assert!(matches!(again, Some(MapToError::PageAlreadyMapped(there)) if there == frame), "{again:?}");
    machine.store(VirtAddr(0x40_0000), 7).unwrap();

    unsafe { mapper.update_flags(at, READ | PageTableFlags::NO_EXECUTE) }.unwrap().ignore();
    assert_eq!(machine.load(VirtAddr(0x40_0000)), Ok(7));
    assert!(machine.store(VirtAddr(0x40_0000), 8).is_err());
    let nowhere = unsafe { mapper.update_flags(page(0x50_0000), READ) }.err();
    assert!(matches!(nowhere, Some(FlagUpdateError::PageNotMapped)), "{nowhere:?}");

    let (back, flush) = mapper.unmap(at).unwrap();
    flush.ignore();
    assert_eq!(back, frame);
    assert!(machine.stale().is_empty() && machine.load(VirtAddr(0x40_0000)).is_err());
    assert!(matches!(mapper.unmap(at).err(), Some(UnmapError::PageNotMapped)));
    // The frame is the caller's again.
    assert_eq!(frames.owned(Owner::Anon), 1);
    unsafe { allocator.deallocate_frame(back) };
    assert_eq!(frames.owned(Owner::Anon), 0);
    machine.load_root(Pfn(0));
    space.roots().unload(&pinned);
    drop((pinned, space));
    frames.assert_all_free();
}

#[test]
fn a_mapped_frame_is_freed_with_its_space_and_what_the_trait_cannot_say_is_a_panic() {
    let frames = ModelFrames::new(Config { frames: 2048, ..Config::default() });
    let (mut allocator, mut kernel) =
        (TypedFrames::<Anon, _>::new(frames), TypedFrames::<Kernel, _>::new(frames));
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    let mut mapper = SpaceMapper::new(&mut space);
    let frame: PhysFrame<Size4KiB> = allocator.allocate_frame().unwrap();
    let mut map = |address, frame, flags| unsafe {
        mapper.map_to(page(address), frame, flags, &mut allocator).map(|flush| flush.ignore())
    };
    for (address, flags, part) in [
        (0xffff_8000_0000_0000, WRITE, "is not in the lower half"),
        (0x1000, PageTableFlags::PRESENT, "is present and the program's"),
        (0x1000, READ | PageTableFlags::GLOBAL, "cannot be set"),
    ] {
        let said = panics(|| drop(map(address, frame, flags)));
        assert!(said.contains(part), "{said}");
    }
    let wrong: PhysFrame<Size4KiB> = kernel.allocate_frame().unwrap();
    let said = panics(|| drop(map(0x1000, wrong, READ)));
    assert!(said.contains("belongs to"), "{said}");
    unsafe { kernel.deallocate_frame(wrong) };
    // Out of memory for tables, and nothing is lost.
    frames.fail_after(0);
    assert!(matches!(map(0x1000, frame, READ), Err(MapToError::FrameAllocationFailed)));
    frames.fail_never();
    map(0x1000, frame, READ).unwrap();
    let (slot, _) = space.find(VirtAddr(0x1000)).unwrap();
    let old = slot.replace(freehold_paging::Entry::EMPTY);
    let hold = freehold_frame::LeafMapping::<Anon, _>::from_leaf(frames, old.frame()).unwrap();
    space.forget(VirtAddr(0x1000), old, Some(hold));
    drop(space);
    frames.assert_all_free();
}

#[test]
fn pages_of_the_buddy_allocator_have_addresses_of_the_direct_map() {
    const MAP: usize = 0xffff_9000_0000_0000;
    let (_, buddy) = buddy(4096);
    let mut pages = BuddyPages::new(buddy, MAP);
    pages.init(MAP, 16 << 20);
    assert!(panics(|| pages.init(MAP, 17 << 20)).contains("is not memory"));
    assert!(matches!(pages.add_memory(MAP, 4096), Err(AllocError::InvalidParam)));
    assert!(matches!(pages.alloc_pages(0, PAGE), Err(AllocError::InvalidParam)));
    assert!(matches!(pages.alloc_pages(1, 100), Err(AllocError::InvalidParam)));
    assert!(matches!(pages.alloc_pages(4096, PAGE), Err(AllocError::NoMemory)));
    assert!(matches!(pages.alloc_pages_at(MAP, 1, PAGE), Err(AllocError::InvalidParam)));
    let before = pages.available_pages();
    let (one, five) = (pages.alloc_pages(1, PAGE).unwrap(), pages.alloc_pages(5, 8 * PAGE).unwrap());
    let aligned = pages.alloc_pages(1, 64 * PAGE).unwrap();
    assert!(one.is_multiple_of(PAGE) && five.is_multiple_of(8 * PAGE) && aligned.is_multiple_of(64 * PAGE));
    assert!([one, five, aligned].iter().all(|at| (MAP..MAP + (16 << 20)).contains(at)));
    assert_eq!(buddy.frames_of(Owner::Kernel), 1 + 8 + 64);
    assert_eq!(pages.total_pages(), 4096);
    assert!(pages.available_pages() <= before - 73, "{} of {before}", pages.available_pages());
    assert_eq!(pages.used_pages(), 4096 - pages.available_pages());
    assert!(panics(|| pages.dealloc_pages(one, 2)).contains("of which 1 were allocated"));
    assert!(panics(|| pages.dealloc_pages(7, 1)).contains("is no page of the direct map"));
    pages.dealloc_pages(one, 1);
    pages.dealloc_pages(five, 5);
    pages.dealloc_pages(aligned, 1);
    panics(|| pages.dealloc_pages(five, 5));
    assert_eq!(buddy.frames_of(Owner::Kernel), 0);
}

/// A page of the host, which stands for the address of a frame in a kernel's direct map.
#[repr(align(4096))]
struct HostPage([u8; PAGE]);

#[test]
fn a_buffer_is_memory_that_its_device_reaches_until_it_is_dropped() {
    let (_, buddy) = buddy(4096);
    let dma: &'static Dma<_> = Box::leak(Box::new(Dma::new()));
    dma.start(buddy, Limits::default());
    let rules = DeviceRules { name: "uart", reach: DmaAddr(u64::MAX), quota: 64 << 10, domain: None };
    let device = dma.attach(rules).unwrap();
    let bytes = &mut Box::leak(Box::new(HostPage([0; PAGE]))).0;
    let start = NonNull::from(&mut *bytes).cast::<u8>();

    let memory = device.coherent(PAGE).unwrap();
    let said = panics(|| drop(unsafe { DmaBuffer::<_, u8>::new(memory, start, PAGE + 1) }));
    assert!(said.contains("4097 bytes, of which there are 4096"), "{said}");
    let memory = device.coherent(PAGE).unwrap();
    let odd = unsafe { start.add(64) };
    let said = panics(|| drop(unsafe { DmaBuffer::<_, u8>::new(memory, odd, 64) }));
    assert!(said.contains("does not begin a page"), "{said}");
    assert_eq!(buddy.frames_of(Owner::Ring), 0, "memory of buffers that were refused goes back");

    let memory = device.coherent(PAGE).unwrap();
    let address = memory.address();
    let mut buffer = unsafe { DmaBuffer::<_, u32>::new(memory, start, 66) };
    assert_eq!(buffer.address(), address);
    let (words, count) = unsafe { buffer.write_buffer() };
    assert_eq!((count, unsafe { buffer.read_buffer() }), (16, (words.cast_const(), 16)));
    (0..count).for_each(|at| unsafe { words.add(at).write(at as u32) });
    assert_eq!((bytes[0], bytes[60], bytes[64]), (0, 15, 0));
    assert_eq!(buddy.frames_of(Owner::Ring), 1);
    drop(buffer);
    assert_eq!(buddy.frames_of(Owner::Ring), 0);
}
