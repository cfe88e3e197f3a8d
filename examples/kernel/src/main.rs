//! A kernel on the crates: it boots, starts the page allocator, maps a page in an address space,
//! lets a device read and write memory by bouncing, prints the results, and ends QEMU.
//!
//! May use `unsafe`: the PC (`pc.rs`) and a device's registers (`edu.rs`); there is none here.
#![no_std]
#![no_main]
#![deny(unsafe_code)]

extern crate alloc;

#[allow(unsafe_code, reason = "a device's registers")]
mod edu;
#[allow(unsafe_code, reason = "the first page tables, ports and the heap")]
mod pc;

use alloc::vec::Vec;

use freehold_adapters::start_buddy;
use freehold_bounce::{DeviceRules, Direction, Dma, DmaAddr, Limits};
use freehold_buddy::Buddy;
use freehold_frame::{
    Anon, Frame, FrameKind, FrameSource, Held, Kernel, LeafMapping, OutOfMemory, Owner, User,
};
use freehold_machine::{Cpus, Entropy, Pfn, PfnRange, Tlb, VirtAddr};
use freehold_paging::{Backing, Entry, KernelRoots, Marks, PageSize, Rights, Space};
use freehold_xpfo::Windows;
use pc::println;

type Frames = &'static Buddy<pc::Machine>;

extern "C" fn start(start_info: u64) -> ! {
    let topology = pc::memory(start_info);
    let reserved = [PfnRange::new(topology.ranges()[0].frames.start, pc::END_OF_IMAGE)];
    let frames = start_buddy(pc::machine(), topology, &reserved).expect("there is memory");
    let free = frames.free_frames();
    random_order::<Kernel>(frames, "the kernel").expect("there is memory for some thousand frames");
    random_order::<Anon>(frames, "programs").expect("there is still as much memory");
    address_space(frames).expect("there is memory for one page and its tables");
    bounce(frames);

    let (_, faults) = frames.validate(|fault| println!("{fault:?}"));
    let devices = frames.frames_of(Owner::Bounce) + frames.frames_of(Owner::Ring);
    let (misuses, lost) = (frames.misuses(), free.wrapping_sub(frames.free_frames() + devices));
    println!("at the end: {faults} faults, {misuses} misuses, {lost} frames lost");
    pc::exit(faults + misuses + lost)
}

/// Takes most of memory, writes each frame's number into it, and frees all in random order. The
/// allocator moves pageblocks to the side of the direct map where frames of this kind have to be:
/// inside if they are the kernel's, outside if they are programs'.
fn random_order<K: FrameKind>(frames: Frames, whose: &str) -> Result<(), OutOfMemory> {
    const COUNT: usize = 10_000;
    let machine = frames.machine();
    let mut taken = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        let frame = Frame::<K, Frames>::allocate(frames)?;
        machine.with_bytes(&frame, |bytes| bytes[..8].copy_from_slice(&frame.pfn().0.to_le_bytes()));
        taken.push(frame);
    }
    let is_right = |frame: Pfn| machine.is_in_direct_map(frame) == (K::OWNER == Owner::Kernel);
    let right = taken.iter().filter(|frame| is_right(frame.pfn())).count();
    let mut kept = 0;
    while !taken.is_empty() {
        let frame = taken.swap_remove(machine.random_u64() as usize % taken.len());
        kept += usize::from(first_word(frames, &frame) == frame.pfn().0);
    }
    let left = frames.frames_of(K::OWNER);
    println!(
        "frames of {whose}: {right} on their side of the direct map, {kept} kept what was written, {left} left"
    );
    Ok(())
}

/// Reads the first word of a frame through a window, which is open while the closure runs.
fn first_word(frames: Frames, frame: &impl Held) -> u64 {
    frames.machine().read_bytes(frame, |bytes| u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes")))
}

/// Maps a page at an address of a new space: the CPU writes through the address, the test reads
/// through the walk and the frame.
fn address_space(frames: Frames) -> Result<(), OutOfMemory> {
    const ADDRESS: VirtAddr = VirtAddr(0x40_0000);
    let (machine, pinned) = (frames.machine(), frames.machine().pin());
    let mut space = Space::new(frames, KernelRoots::new(|_| pc::kernel_root()))?;
    let page = Frame::<Anon, _>::allocate_zeroed(frames)?.into_mapping().map_err(|_| OutOfMemory)?;
    let leaf =
        Entry::leaf(page.into_leaf(), Rights::READ | Rights::WRITE, Marks::Untouched, Backing::Counted);
    space.make(ADDRESS, PageSize::Small)?.fill(leaf);

    space.roots().load(&pinned, &mut None);
    pc::store_at(ADDRESS, 0x5eed);
    let (slot, size) = space.find(ADDRESS).expect("it was made");
    let page = LeafMapping::<User, _>::borrow_leaf(frames, slot.load().frame()).expect("the leaf holds it");
    let value = first_word(frames, &*page);
    println!("mapped at {:#x}: the walk finds a {size:?} page that holds {value:#x}", ADDRESS.0);

    // The page leaves the table, then the CPU's translation cache, and only then is freed.
    let mut batch = space.batch();
    let old = slot.replace(Entry::EMPTY);
    let hold = LeafMapping::<User, _>::from_leaf(frames, old.frame()).expect("the leaf held it");
    batch.unmapped(ADDRESS, old, Some(hold));
    drop(batch);
    machine.load_root(pc::kernel_root());
    space.roots().unload(&pinned);
    drop((pinned, space));
    let left = frames.frames_of(Owner::Anon) + frames.frames_of(Owner::PageTable);
    println!("unmapped: {left} frames of the page and its tables are left");
    Ok(())
}

/// Copies bytes into QEMU's device "edu", whose DMA engine has 28 bits of address, and back. The
/// device can access bounce memory only.
fn bounce(frames: Frames) {
    static DMA: Dma<Frames> = Dma::new();
    DMA.start(frames, Limits::default());
    let reach = DmaAddr((1 << 28) - 1);
    let device = DMA
        .attach(DeviceRules { name: "edu", reach, quota: 64 << 10, domain: None })
        .expect("the first device");
    let edu = edu::Edu::find(frames.machine());

    let mut bytes: Vec<u8> = (0..3000).map(|at| (at * 7) as u8).collect();
    let mapping = device.map(bytes.as_slice(), Direction::ToDevice).expect("bounce memory");
    let owner = DMA.owner(mapping.address());
    let is_copy = Pfn(mapping.address().0 >> 12) >= pc::END_OF_IMAGE;
    edu.transfer(&mapping);
    mapping.unmap(bytes.as_mut_slice());

    let mut back = alloc::vec![0; bytes.len()];
    let mapping = device.map(back.as_slice(), Direction::FromDevice).expect("bounce memory");
    edu.transfer(&mapping);
    mapping.unmap(back.as_mut_slice());
    println!("bounced: memory of {owner:?}, in other frames: {is_copy}; {} bytes went to it", bytes.len());
    println!("and came back equal: {}; it holds {} bytes", back == bytes, device.held());
}
