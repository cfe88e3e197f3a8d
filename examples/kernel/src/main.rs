//! A kernel on the crates: it boots, starts the page allocator, maps a page in an address space,
//! lets a device read and write memory by bouncing, prints the results, and ends QEMU.
//!
//! May use `unsafe`: it has the hardware's side (`hardware.rs`), the heap and the entry.
#![no_std]
#![no_main]
#![deny(unsafe_code)]

extern crate alloc;

#[allow(unsafe_code, reason = "a device's registers")]
mod edu;
#[allow(unsafe_code, reason = "the hardware's side, the heap and the entry")]
mod hardware;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use freehold_bounce::{DeviceRules, Direction, Dma, DmaAddr, Limits};
use freehold_buddy::{Buddy, Managed, Options, Pcp};
use freehold_frame::{
    Anon, Frame, FrameKind, FrameRecord, FrameTable, Held, Kernel, LeafMapping, OutOfMemory, Owner, User,
};
use freehold_machine::{Cpus, Entropy, Pfn, PfnRange, Tlb, Topology, VirtAddr};
use freehold_paging::{Backing, Entry, KernelRoots, Marks, PageSize, Rights, Space};
use freehold_xpfo::Windows;
use hardware::{Hardware, println};

type Frames = &'static Buddy<Hardware>;

/// A record for each frame: up to 1 GiB.
static RECORDS: [FrameRecord; hardware::MOST_FRAMES] = [const { FrameRecord::EMPTY }; hardware::MOST_FRAMES];
static PCPS: [Pcp; 1] = [Pcp::new()];

extern "C" fn start(start_info: u64) -> ! {
    // The loader's tables are read while the first GiB is still mapped.
    let topology: &'static Topology = Box::leak(Box::new(hardware::topology(start_info)));
    hardware::start();
    let frames = page_allocator(topology);
    let free = frames.free_frames();
    random_order(frames).expect("there is memory for a few thousand frames");
    address_space(frames).expect("there is memory for one page and its tables");
    bounce(frames);
    let (_, faults) = frames.validate(|fault| println!("{fault:?}"));
    let devices = frames.frames_of(Owner::Bounce) + frames.frames_of(Owner::Ring);
    let lost = free.wrapping_sub(frames.free_frames() + devices);
    println!("at the end: {} faults, {} misuses, {lost} frames lost", faults, frames.misuses());
    hardware::exit(if faults + frames.misuses() + lost == 0 { hardware::SUCCESS } else { hardware::FAILURE })
}

/// Makes the allocator over all memory except the image.
fn page_allocator(topology: &'static Topology) -> Frames {
    let options = Options::default();
    let words = Buddy::<Hardware>::metadata_words(topology, 1, &options);
    let metadata: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
    let reserved = [PfnRange::new(topology.ranges()[0].frames.start, hardware::image_end())];
    let table = FrameTable::new(&RECORDS[..topology.end().0 as usize]);
    let managed = Managed { topology, reserved: &reserved, table, metadata: metadata.leak(), pcps: &PCPS };
    Box::leak(Box::new(Buddy::new(Hardware, managed, options).expect("enough metadata")))
}

/// Takes most of memory, writes each frame's number into it, and frees all in random order: first
/// as the kernel's frames, then as programs', whose pageblocks have to leave the direct map.
fn random_order(frames: Frames) -> Result<(), OutOfMemory> {
    turn_over::<Kernel>(frames, "the kernel", hardware::is_in_direct_map)?;
    turn_over::<Anon>(frames, "programs", |frame| !hardware::is_in_direct_map(frame))
}

fn turn_over<K: FrameKind>(
    frames: Frames,
    whose: &str,
    is_right: fn(Pfn) -> bool,
) -> Result<(), OutOfMemory> {
    const COUNT: usize = 10_000;
    let mut taken = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        let frame = Frame::<K, Frames>::allocate(frames)?;
        let number = frame.pfn().0.to_le_bytes();
        Hardware.with_bytes(&frame, |bytes| bytes[..8].copy_from_slice(&number));
        taken.push(frame);
    }
    let right = taken.iter().filter(|frame| is_right(frame.pfn())).count();
    let mut kept = 0;
    while !taken.is_empty() {
        let frame = taken.swap_remove(Hardware.random_u64() as usize % taken.len());
        kept += usize::from(first_word(&frame) == frame.pfn().0);
    }
    let left = frames.frames_of(K::OWNER);
    println!(
        "frames of {whose}: {right} on their side of the direct map, {kept} kept what was written, {left} left"
    );
    Ok(())
}

fn first_word(frame: &impl Held) -> u64 {
    Hardware.read_bytes(frame, |bytes| u64::from_le_bytes(*bytes.first_chunk().expect("a page is longer")))
}

/// Maps a page at an address of a new space: the CPU writes through the address, the test reads
/// through the walk and the frame.
fn address_space(frames: Frames) -> Result<(), OutOfMemory> {
    const ADDRESS: VirtAddr = VirtAddr(0x40_0000);
    let mut space = Space::new(frames, KernelRoots::new(|_| hardware::boot_root()))?;
    let page = Frame::<Anon, _>::allocate_zeroed(frames)?.into_mapping().map_err(|_| OutOfMemory)?;
    let rights = Rights::READ | Rights::WRITE;
    let leaf = Entry::leaf(page.into_leaf(), rights, Marks::Untouched, Backing::Counted);
    space.make(ADDRESS, PageSize::Small)?.fill(leaf);

    space.roots().load(&Hardware.pin(), &mut None);
    hardware::store_at(ADDRESS, 0x5eed);
    let (slot, size) = space.find(ADDRESS).expect("it was made");
    let found = slot.load();
    let page = LeafMapping::<User, _>::borrow_leaf(frames, found.frame()).expect("the leaf holds it");
    let value = first_word(&*page);
    println!("mapped at {:#x}: the walk finds a {size:?} page that holds {value:#x}", ADDRESS.0);

    // The page leaves the table, then the CPU's translation cache, and only then is freed.
    let mut batch = space.batch();
    let old = slot.replace(Entry::EMPTY);
    let hold = LeafMapping::<User, _>::from_leaf(frames, old.frame()).expect("the leaf held it");
    batch.unmapped(ADDRESS, old, Some(hold));
    drop(batch);
    let pinned = Hardware.pin();
    Hardware.load_root(hardware::boot_root());
    space.roots().unload(&pinned);
    drop((pinned, space));
    let left = frames.frames_of(Owner::Anon) + frames.frames_of(Owner::PageTable);
    println!("unmapped: {left} frames of the page and its tables are left");
    Ok(())
}

/// Copies bytes into QEMU's device "edu" and back: the device can access bounce memory only.
fn bounce(frames: Frames) {
    let dma: &'static Dma<Frames> = Box::leak(Box::new(Dma::new()));
    dma.start(frames, Limits::default());
    let rules = DeviceRules { name: "edu", reach: DmaAddr(edu::REACH), quota: 64 << 10, domain: None };
    let device = dma.attach(rules).expect("the first device");
    let edu = edu::Edu::find().expect("QEMU has -device edu");

    let mut bytes: Vec<u8> = (0..3000).map(|at| (at * 7) as u8).collect();
    let mapping = device.map(bytes.as_slice(), Direction::ToDevice).expect("bounce memory");
    let owner = dma.owner(mapping.address());
    let original = hardware::frame_of(bytes.as_ptr());
    let is_copy = Pfn(mapping.address().0 >> 12) != original;
    edu.copy_in(&mapping);
    mapping.unmap(bytes.as_mut_slice());

    let mut back = alloc::vec![0; bytes.len()];
    let mapping = device.map(back.as_slice(), Direction::FromDevice).expect("bounce memory");
    edu.copy_out(&mapping);
    mapping.unmap(back.as_mut_slice());
    println!("bounced: memory of {owner:?}, in other frames: {is_copy}; {} bytes went to it", bytes.len());
    println!("and came back equal: {}; it holds {} bytes", back == bytes, device.held());
}
