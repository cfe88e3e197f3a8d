//! Address spaces on the real page allocator: the two crates work together, running out of memory
//! is an error value, and every frame is freed.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use freehold_buddy::{Buddy, Managed, Options, Pcp, Shuffle};
use freehold_frame::{Beside, FrameRecord, FrameSource, FrameTable, Owner, ReverseKey};
use freehold_machine::model::{Config, Model};
use freehold_machine::{Cpus, PAGE, PAGE_SIZE, Pfn, PfnRange, Tables, Tlb, VirtAddr};
use freehold_paging::{KernelRoots, USER_END};
use freehold_vm::{
    Access, AddressSpace, Advice, AreaFlags, AreaPlace, Backing, Commons, FaultError, Layout, Limits,
    MapRequest, PageCache, Protection, VmError,
};

type Frames = &'static Buddy<Model>;
type Space = AddressSpace<Frames>;

/// The kernel's half of every root: the last frame, which the allocator does not get.
const KERNEL_ROOT: Pfn = Pfn(FRAMES - 1);
const FRAMES: u64 = 16 * 512;

fn frames() -> Frames {
    let model = Model::new(Config { frames: FRAMES, cpus: 2, ..Config::default() });
    let options = Options { shuffle: Shuffle::On, ..Options::default() };
    let records: Vec<_> = (0..FRAMES).map(|_| FrameRecord::EMPTY).collect();
    let words = Buddy::<Model>::metadata_words(model.topology(), 2, &options);
    let metadata: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
    let reserved = [PfnRange::new(Pfn(FRAMES - 1), Pfn(FRAMES))];
    let reverse_keys: Vec<_> = (0..FRAMES).map(|_| ReverseKey::EMPTY).collect();
    let table = FrameTable::new(records.leak()).with(Box::leak(Box::new(Beside::new(reverse_keys.leak()))));
    let metadata = metadata.leak();
    let pcps = Vec::from_iter((0..2).map(|_| Pcp::new())).leak();
    let managed = Managed { topology: model.topology(), reserved: &reserved, table, metadata, pcps };
    let buddy = Buddy::new(model, managed, options).unwrap();
    model.clear_table(KERNEL_ROOT);
    Box::leak(Box::new(buddy))
}

fn kernel_roots() -> KernelRoots {
    KernelRoots::new(|_| KERNEL_ROOT)
}

fn layout() -> Layout {
    Layout { lowest: VirtAddr(0x1_0000), end: USER_END, mmap_base: VirtAddr(0x7000_0000_0000) }
}

fn anonymous(space: &mut Space, pages: u64) -> u64 {
    let request = MapRequest {
        place: AreaPlace::Anywhere,
        len: pages * PAGE,
        protection: Protection::READ | Protection::WRITE,
        backing: Backing::Anonymous,
        flags: AreaFlags::empty(),
    };
    space.map(request, &Limits::NONE).unwrap().0
}

/// A store by the process on this CPU.
fn store(model: Model, space: &mut Space, at: u64, value: u8) -> Result<(), FaultError> {
    let roots = space.translation().clone();
    roots.load(&model.pin(), &mut None);
    let outcome = loop {
        match model.store(VirtAddr(at), value) {
            Ok(()) => break Ok(()),
            Err(_) => match space.fault(VirtAddr(at), Access::Write, &Limits::NONE) {
                Ok(_) => {}
                Err(error) => break Err(error),
            },
        }
    };
    let pinned = model.pin();
    model.load_root(KERNEL_ROOT);
    roots.unload(&pinned);
    outcome
}

fn assert_sound(frames: Frames) {
    let (_, faults) = frames.validate(|fault| eprintln!("{fault:?}"));
    assert_eq!(faults, 0);
}

#[test]
fn memory_that_runs_out_is_a_value_and_comes_back_to_the_frame() {
    let frames = frames();
    let model = frames.machine();
    let before = frames.free_frames();
    let commons = Commons::new(frames, kernel_roots()).unwrap();
    let mut parent = AddressSpace::new(&commons, layout()).unwrap();
    let a = anonymous(&mut parent, 2 * FRAMES);
    let mut stored = 0;
    let end = loop {
        match store(model, &mut parent, a + stored * PAGE, stored as u8) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(end, FaultError::OutOfMemory);
    assert!(stored > FRAMES / 2, "only {stored} pages of {FRAMES} frames");
    // There may or may not be memory for the child's tables; in both cases nothing is leaked.
    assert!(matches!(parent.fork().map(drop), Ok(()) | Err(VmError::NoMemory)));
    assert_sound(frames);
    parent.advise(VirtAddr(a), stored / 2 * PAGE, Advice::DontNeed).unwrap();
    let mut child = parent.fork().unwrap();
    for page in [stored / 2, stored - 1] {
        store(model, &mut child, a + page * PAGE, 200).unwrap();
        let mut byte = [0];
        parent.read_remote(VirtAddr(a + page * PAGE), &mut byte).unwrap();
        assert_eq!(byte, [page as u8]);
    }
    assert_sound(frames);
    assert_eq!(frames.frames_of(Owner::Anon), stored - stored / 2 + 2);
    drop((parent, child, commons));
    assert_eq!(frames.free_frames(), before);
    assert_sound(frames);
    model.assert_coherent();
}

#[test]
fn a_file_in_memory_lives_and_goes_with_its_cache() {
    let frames = frames();
    let before = frames.free_frames();
    let cache: Arc<PageCache<Frames>> = PageCache::new(frames);
    let n = cache.write_at(0, 100 * PAGE_SIZE, |to| {
        to.fill(7);
        to.len()
    });
    assert_eq!(n, Ok(100 * PAGE_SIZE));
    assert_eq!(frames.frames_of(Owner::PageCache), 100);
    cache.truncate(10 * PAGE + 1).unwrap();
    assert_eq!(frames.frames_of(Owner::PageCache), 11);
    drop(cache);
    assert_eq!(frames.free_frames(), before);
    assert_sound(frames);
}
