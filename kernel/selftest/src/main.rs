//! An image that tests freehold-arch itself and says `selftest: passed`: `tools/build-kernel
//! selftest`. May use `unsafe`: to name the entry point, and to try accesses that must fail.
//!
//! Each test is named after the promise that it checks. Tests that must fault in kernel mode run
//! with `selftest.die=` on the command line; `tools/selftest` finds the fault in the panic report.
//! With `selftest.place` the image only prints its address, for `tools/slide-entropy`.

#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "the entry point has a name, and what must not work is tried")]

extern crate alloc;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use freehold_arch::alternatives::Feature;
use freehold_arch::boot::{self, BootInfo};
use freehold_arch::heap::KernelHeap;
use freehold_arch::memory::{FrameProvider, KernelPages};
use freehold_arch::mmio::{self, NoRegisters};
use freehold_arch::sync::SpinLock;
use freehold_arch::thread::{self, Thread};
use freehold_arch::traps::{Handlers, ImageOffset, Interrupted, Unresolved};
use freehold_arch::user::{FpuImage, UserContext, UserEvent};
use freehold_arch::usercopy::{self, Faults};
use freehold_arch::{X86, alternatives, cpu, heap, irq, memory, power, provoke, serial, time, traps};
use freehold_machine::{
    Access, CpuId, CpuSet, Cpus, DirectMap, Entropy, Flush, NodeId, PAGEBLOCK_FRAMES, Pfn, PfnRange,
    PhysAddr, PhysicalBytes, Tables, Tlb, Topology, VirtAddr,
};

#[global_allocator]
static HEAP: KernelHeap = KernelHeap;

freehold_arch::kernel_entry!(main);

// Cargo links again when the linker script has changed.
const _: &str = include_str!("../../image/kernel.ld");

// On a host, where only `cargo check` compiles this, the standard library has one.
#[cfg(target_os = "none")]
#[panic_handler]
fn panicked(info: &core::panic::PanicInfo) -> ! {
    freehold_arch::panic::die(format_args!("{info}"))
}

macro_rules! say {
    ($($argument:tt)*) => { serial::print(format_args!("selftest: {}\n", format_args!($($argument)*))) };
}

mod entry;
mod windows;

/// Hands out frames upwards from the first free block on. It can take back only the last one.
struct Upwards {
    state: SpinLock<(Pfn, Pfn)>,
    given: AtomicUsize,
}

static FRAMES: Upwards = Upwards { state: SpinLock::new((Pfn(0), Pfn(0))), given: AtomicUsize::new(0) };

impl FrameProvider for Upwards {
    fn alloc_near(&self, _node: NodeId, order: u32) -> Option<Pfn> {
        self.alloc(order)
    }
    fn alloc(&self, order: u32) -> Option<Pfn> {
        let (start, block) = {
            let mut state = self.state.lock();
            let start = Pfn(state.0.0.next_multiple_of(1 << order));
            let end = start.offset(1 << order);
            if end > state.1 {
                return None;
            }
            state.0 = end;
            (start, start.pageblock_start())
        };
        X86.enter(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)));
        self.given.fetch_add(1 << order, Ordering::Relaxed);
        Some(start)
    }
    fn alloc_stack(&self, _node: NodeId) -> Option<Pfn> {
        self.given.fetch_add(1, Ordering::Relaxed);
        Some(user_frame())
    }
    fn free(&self, _first: Pfn, order: u32) {
        self.given.fetch_sub(1 << order, Ordering::Relaxed);
    }
    fn free_stack(&self, frame: Pfn) {
        self.free(frame, 0);
    }
}

/// Where user pages are mapped: one table of each level.
struct Space {
    root: Pfn,
    leaf: Pfn,
}

const USER_BASE: u64 = 0x40_0000;

impl Space {
    fn new() -> Self {
        let table = || {
            let frame = FRAMES.alloc(0).expect("memory for a table");
            X86.clear_table(frame);
            frame
        };
        let (root, l3, l2, leaf) = (table(), table(), table(), table());
        let template = X86.kernel_root(NodeId(0));
        for index in 256..512 {
            X86.store_entry(root, index, X86.load_entry(template, index));
        }
        X86.store_entry(root, 0, l3.0 << 12 | 7);
        X86.store_entry(l3, 0, l2.0 << 12 | 7);
        X86.store_entry(l2, 2, leaf.0 << 12 | 7);
        Self { root, leaf }
    }
    fn map(&self, page: usize, frame: Pfn, flags: u64) {
        X86.store_entry(self.leaf, page, frame.0 << 12 | flags);
    }
}

/// A frame that the kernel does not own: beyond the provider's frames, not in the direct map.
fn user_frame() -> Pfn {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let end = FRAMES.state.lock().1;
    Pfn(end.0 + NEXT.fetch_add(1, Ordering::Relaxed))
}

static SERVED: AtomicUsize = AtomicUsize::new(0);
static TICKS: AtomicUsize = AtomicUsize::new(0);
/// Whether the timer runs: code that it must interrupt may begin only after it fired.
static REPEAT: AtomicBool = AtomicBool::new(false);
static RESCHEDULES: AtomicUsize = AtomicUsize::new(0);
static SPACE: SpinLock<Option<Space>> = SpinLock::new(None);
static MAIN: SpinLock<Option<Arc<Thread>>> = SpinLock::new(None);

struct Kernel;

impl Handlers for Kernel {
    fn kernel_page_fault(&self, addr: VirtAddr, _access: Access) -> Result<(), Unresolved> {
        let page = (addr.0.wrapping_sub(USER_BASE) >> 12) as usize;
        // Page 5 is served on demand; everything else is not.
        if page != 5 {
            return Err(Unresolved);
        }
        SERVED.fetch_add(1, Ordering::Relaxed);
        let frame = user_frame();
        X86.zero(frame);
        SPACE.lock().as_ref().ok_or(Unresolved)?.map(5, frame, 7);
        Ok(())
    }
    fn timer(&self, _late: u64, _interrupted: Interrupted) {
        TICKS.fetch_add(1, Ordering::Relaxed);
        if REPEAT.load(Ordering::Relaxed) {
            time::arm(time::now() + 1_000_000);
        }
    }
    fn reschedule(&self) {
        RESCHEDULES.fetch_add(1, Ordering::Relaxed);
    }
    fn goes_on(&self, _place: ImageOffset) {}
    fn record_event(&self, event: usize, _fields: &[u64]) {
        unreachable!("event {event} happens, and nobody has turned one on")
    }
    fn probe_hit(&self, slot: usize) {
        unreachable!("slot {slot} has no probe")
    }
    fn thread_finished(&self) -> ! {
        let main = MAIN.lock().clone().expect("the main thread");
        thread::switch(&main);
        unreachable!("a finished thread ran again")
    }
}

fn main(boot: &'static BootInfo) -> ! {
    say!("memory ends at {:?}, image {:?}, slide {:#x}", boot.memory_end(), boot.image(), boot.slide());
    if boot.command_line() == "selftest.place" {
        power::exit(0)
    }
    alternatives_are_chosen();
    let reserved = memory::seal();
    let largest = boot.usable_ranges().max_by_key(|range| range.len()).expect("memory");
    // Whole pageblocks without a user, since the image's place is random. The last is for frames of
    // user memory.
    let mut at = largest.start;
    let gaps = reserved.iter().map(|range| (range.start, range.end)).chain([(largest.end, largest.end)]).map(
        |(start, end)| {
            let gap = (at.0.next_multiple_of(PAGEBLOCK_FRAMES), start.pageblock_start().0);
            at = at.max(end);
            gap
        },
    );
    let (start, end) = gaps.max_by_key(|gap| gap.1.saturating_sub(gap.0)).expect("memory");
    let (start, end) = (Pfn(start), Pfn((end - PAGEBLOCK_FRAMES).min(start + 8 * PAGEBLOCK_FRAMES)));
    *FRAMES.state.lock() = (start, end);
    memory::set_frame_provider(&FRAMES);

    the_direct_map_shows_no_frame_of_the_image(boot);
    registers_are_where_no_memory_is_and_addresses_exist(boot);
    runs_of_bytes_are_moved_and_compared();
    heap_keeps_objects_apart();
    traps::register(&Kernel);
    // The HPET's address on this machine, unless the command line selects the 8254.
    let hpet = (!boot.command_line().contains("selftest.8254")).then_some(PhysAddr(0xfed0_0000));
    time::measure(hpet);
    time::start();
    say!("the clock runs {} us after the first instruction", time::now() / 1000);
    irq::enable();
    windows::windows_show_frames_that_the_direct_map_does_not();
    windows::a_pageblock_is_zeroed_in_one_window(boot);
    user_copies_stop_where_memory_ends();
    user_programs_run_and_trap();
    entry::tests();
    threads_switch_and_finish();
    timers_fire();
    if all_cpus_answer(boot) > 1 {
        entry::nmis_find_this_cpus_data_at_any_moment();
    }
    assert_eq!(
        boot::initrd().expect("tables for the initial RAM disk").len() as u64,
        boot.initrd().map_or(0, |i| i.1)
    );
    boot::release_initrd();
    say!("booted in {} us", time::now() / 1000);
    let death =
        boot.command_line().split_ascii_whitespace().find_map(|word| word.strip_prefix("selftest.die="));
    if let Some(death) = death {
        die(death, boot);
    }
    windows::closed_windows_are_forgotten_in_time();
    say!("passed");
    power::exit(0)
}

/// Checks that alternatives suit the CPU, and that the emulator can run them.
fn alternatives_are_chosen() {
    // QEMU's CPU needs no VERW, and has it. It does not say that it has short moves of bytes.
    let is_wanted = |feature: Feature| match feature {
        Feature::ClearsBuffers => true,
        Feature::FastShortStrings => Feature::FastStrings.is_there(),
        _ => feature.is_there(),
    };
    alternatives::apply(is_wanted, &mut |feature, sites| {
        assert!(sites > 0);
        say!("alternatives: {} ({sites} places)", feature.name());
    });
}

/// Ends in the way that `death` names: each must end with the panic report for it, and with nothing
/// else.
fn die(death: &str, boot: &BootInfo) -> ! {
    static DATA: AtomicU64 = AtomicU64::new(0xc3);
    let data = DATA.as_ptr();
    let text = main as *const () as *mut u64;
    match death {
        "panic" => panic!("asked for"),
        "overflow" => say!("{}", overflow(boot.slide())),
        "overflow-nmi" => entry::overflow_the_nmi_stack(),
        "machine-checks" => entry::wait_for_machine_checks(),
        // SAFETY: text is read-only, so this faults; that it does is the test.
        "write-text" => unsafe { text.write_volatile(0) },
        "run-data" => {
            // SAFETY: data is not executable, so the call faults; that it does is the test.
            let function = unsafe { core::mem::transmute::<*mut u64, extern "C" fn()>(data) };
            function();
        }
        "write-rodata" => {
            let constant = b"constant".as_ptr().cast_mut();
            // SAFETY: constants are read-only, so this faults; that it does is the test.
            unsafe { constant.write_volatile(0) }
        }
        // SAFETY: user memory can be accessed only by user copies (SMAP), so this faults; that it
        // does is the test.
        "touch-user" => unsafe { (USER_BASE as *mut u64).write_volatile(0) },
        // SAFETY: low memory is not mapped once start-up is over, so this faults; that it does is
        // the test.
        "touch-low" => unsafe { (0x51000 as *mut u64).write_volatile(0) },
        "touch-user-frame" => {
            let kernel = FRAMES.alloc(0).expect("a frame");
            let here = KernelPages::from_frames(kernel, 0).as_ptr();
            let there = here.wrapping_add(((user_frame().0 - kernel.0) << 12) as usize);
            // SAFETY: a user frame is not in the direct map, so this faults; that it does is the
            // test.
            unsafe { there.write_volatile(0) }
        }
        _ => panic!("no such end: {death}"),
    }
    unreachable!("{death} went unnoticed")
}

/// Run over the end of the stack: the guard page turns that into a double fault that is reported.
#[allow(unconditional_recursion, reason = "that is the test")]
fn overflow(depth: u64) -> u64 {
    let here = [depth; 64];
    black_box(&here);
    overflow(black_box(depth + 1)) + here[(depth % 64) as usize]
}

/// Text and constants have no writable alias, even after their pageblocks were entered as the page
/// allocator does with each block that start-up keeps.
fn registers_are_where_no_memory_is_and_addresses_exist(boot: &BootInfo) {
    let range = boot.usable_ranges().max_by_key(|range| range.len()).expect("memory");
    let (first, end) = (range.start.start().0, range.end.start().0);
    for (address, length) in [(first, 4), (end - 4, 4), (first.wrapping_sub(4), 8), (first + 0x1000, 0x4000)]
    {
        assert_eq!(mmio::map(PhysAddr(address), length).err(), Some(NoRegisters::Memory), "{address:#x}");
    }
    // Bits that a table's entry has for other things.
    for bit in 52..64 {
        assert_eq!(mmio::map(PhysAddr(1 << bit | first), 4).err(), Some(NoRegisters::Beyond), "bit {bit}");
    }
    assert_eq!(mmio::map(PhysAddr(u64::MAX - 3), 4).err(), Some(NoRegisters::Beyond));
    assert!(mmio::map(PhysAddr(0xfee0_0000), 0x1000).is_ok());
    say!("registers are where no memory is");
}

fn the_direct_map_shows_no_frame_of_the_image(boot: &BootInfo) {
    black_box(&FILLER);
    let image = boot.image();
    assert!(image.len() > 2 * PAGEBLOCK_FRAMES);
    let last = Pfn(image.end.0.next_multiple_of(PAGEBLOCK_FRAMES));
    X86.enter(PfnRange::new(image.start.pageblock_start(), last));
    for frame in image.iter() {
        assert!(!memory::is_in_direct_map(frame), "{frame:?} of the image has an alias");
    }
    say!("the direct map shows no frame of the image");
}

/// Makes the image longer than a pageblock anywhere, so that some block holds nothing else.
static FILLER: [AtomicU64; 2 * (PAGEBLOCK_FRAMES as usize) * 512] =
    [const { AtomicU64::new(0) }; 2 * (PAGEBLOCK_FRAMES as usize) * 512];

/// Functions that the compiler calls for slices, against the same byte by byte: short and long,
/// overlapping both ways, at any alignment.
fn runs_of_bytes_are_moved_and_compared() {
    const PLACES: [usize; 7] = [0, 1, 3, 8, 13, 32, 57];
    let pattern: [u8; 160] = core::array::from_fn(|at| (at * 7 + 1) as u8);
    for len in 0..100 {
        for (from, to) in PLACES.iter().flat_map(|&from| PLACES.map(|to| (from, to))) {
            let mut moved = pattern;
            moved.copy_within(from..from + len, to);
            let mut copied = pattern;
            copied[to..to + len].copy_from_slice(&pattern[from..from + len]);
            let mut filled = pattern;
            filled[to..to + len].fill(from as u8);
            for at in 0..pattern.len() {
                let inside = (to..to + len).contains(&at);
                let expected = if inside { pattern[from + at - to] } else { pattern[at] };
                assert_eq!((black_box(moved[at]), black_box(copied[at])), (expected, expected));
                assert_eq!(black_box(filled[at]), if inside { from as u8 } else { pattern[at] });
            }
            let (left, right) = (&mut filled, &pattern[from..from + len]);
            left[to..to + len].copy_from_slice(right);
            assert!(black_box(&left[to..to + len]) == right);
            if let Some(last) = len.checked_sub(1 + from % len.max(1)) {
                let changed = left[to + last];
                left[to + last] = changed.wrapping_add(1);
                assert_eq!(left[to..to + len].cmp(right), (changed.wrapping_add(1)).cmp(&changed));
                assert!(black_box(&left[to..to + len]) != right);
            }
        }
    }
    say!("runs of bytes are moved and compared");
}

fn heap_keeps_objects_apart() {
    let before = heap::stats();
    let mut objects: Vec<Box<[u64]>> = Vec::new();
    for round in 0..300usize {
        objects.push((0..round % 97).map(|i| (round * 1000 + i) as u64).collect());
    }
    for (round, object) in objects.iter().enumerate() {
        assert!(object.iter().enumerate().all(|(i, &v)| v == (round * 1000 + i) as u64));
    }
    drop(objects);
    let large = alloc::vec![7u8; 100_000];
    assert!(large.iter().all(|&b| b == 7));
    drop(large);
    assert_eq!(heap::stats().allocated_bytes, before.allocated_bytes);
    heap::ensure(16 << 10).expect("a reserve");
    assert!(X86.is_seeded() && X86.random_u64() != X86.random_u64());
    say!("heap: {:?}", heap::stats());
}

fn user_copies_stop_where_memory_ends() {
    let space = Space::new();
    let frames = [user_frame(), user_frame()];
    frames.iter().for_each(|&frame| X86.zero(frame));
    space.map(0, frames[0], 7);
    space.map(1, frames[1], 5);
    X86.load_root(space.root);
    *SPACE.lock() = Some(space);
    let at = |offset: u64| VirtAddr(USER_BASE + offset);
    let text = [0x5au8; 8192];
    assert_eq!(usercopy::write(at(100), &text, Faults::Never), 4096 - 100, "the second page is read-only");
    let mut back = [0u8; 8192];
    assert_eq!(usercopy::read(at(0), &mut back, Faults::Never), 8192);
    assert!(back[..100].iter().all(|&b| b == 0) && back[100..4096].iter().all(|&b| b == 0x5a));
    assert_eq!(usercopy::read(at(4096 + 5), &mut back, Faults::Sleep), 4096 - 5, "the third page is absent");
    assert_eq!(usercopy::read(VirtAddr(0xffff_8000_0000_0000), &mut back, Faults::Sleep), 0);
    assert_eq!(usercopy::load_u32(at(8192), Faults::Sleep), None);
    // Page 5 appears on demand, for the kind of copy that may wait for it.
    assert_eq!(usercopy::write(at(5 * 4096), &text[..8], Faults::Never), 0);
    assert_eq!(SERVED.load(Ordering::Relaxed), 0);
    assert_eq!(usercopy::write(at(5 * 4096), &text[..13], Faults::Sleep), 13);
    assert_eq!(
        usercopy::compare_exchange_u32(at(5 * 4096), 0x5a5a_5a5a, 7, Faults::Sleep),
        Some(0x5a5a_5a5a)
    );
    assert_eq!(usercopy::load_u64(at(5 * 4096), Faults::Sleep), Some(0x5a5a_5a5a_0000_0007));
    assert_eq!(usercopy::zero(at(5 * 4096), 4096, Faults::Sleep), 4096);
    assert_eq!(SERVED.load(Ordering::Relaxed), 1);
    say!("user copies stop where memory ends");
}

/// Machine code at page 6; stack in page 0.
fn user_programs_run_and_trap() {
    let code: &[u8] = &[
        0x0f, 0x05, // syscall
        0x48, 0x89, 0xc3, // mov rbx, rax
        0xf3, 0x0f, 0x10, 0x06, // movss xmm0, [rsi]
        0xf3, 0x0f, 0x11, 0x46, 0x08, // movss [rsi + 8], xmm0
        0x64, 0x48, 0x8b, 0x14, 0x25, 0, 0, 0, 0, // mov rdx, fs:[0]
        0x0f, 0x05, // syscall
        0x0f, 0x0b, // ud2
        0xeb, 0xfe, // jmp .
    ];
    let frame = user_frame();
    X86.zero(frame);
    X86.with_bytes(frame, |bytes| bytes[..code.len()].copy_from_slice(code));
    SPACE.lock().as_ref().expect("a space").map(6, frame, 5);
    let entry = USER_BASE + 6 * 4096;
    let mut program = UserContext::new().expect("memory for a context");
    program.start(entry, USER_BASE + 4096);
    program.regs_mut().rax = 1234;
    program.regs_mut().rsi = USER_BASE;
    program.set_fs_base(USER_BASE + 16).expect("a user address");
    usercopy::store_u64(VirtAddr(USER_BASE), 0x3f80_0000, Faults::Never).expect("page 0");
    usercopy::store_u64(VirtAddr(USER_BASE + 16), 0x1122_3344_5566_7788, Faults::Never).expect("page 0");
    assert_eq!(program.run(), UserEvent::Syscall);
    assert_eq!((program.syscall_number(), program.syscall_args()[1]), (1234, USER_BASE));
    program.set_return(77);
    let mut twin = program.try_clone().expect("memory for a context");
    assert_eq!(program.run(), UserEvent::Syscall);
    assert_eq!((program.regs().rbx, program.regs().rdx), (77, 0x1122_3344_5566_7788));
    assert_eq!(usercopy::load_u32(VirtAddr(USER_BASE + 8), Faults::Never), Some(0x3f80_0000));
    assert_eq!(&program.fpu()[160..164], &0x3f80_0000u32.to_le_bytes(), "xmm0");
    assert_eq!(program.run(), UserEvent::Exception { vector: 6, code: 0 });
    twin.regs_mut().rip = entry + 9 * 4096;
    let expected =
        UserEvent::PageFault { addr: VirtAddr(entry + 9 * 4096), access: Access::Execute, code: 0x14 };
    assert_eq!(twin.run(), expected);
    twin.regs_mut().rip = 1 << 47;
    assert_eq!(twin.run(), UserEvent::Exception { vector: 13, code: 0 });
    // The kernel half is not the program's, and the program changes only registers that it may
    // change.
    twin.start(entry + 5, USER_BASE + 4096);
    twin.regs_mut().rsi = 0xffff_ffff_8020_0000;
    twin.regs_mut().rflags = 0x3200;
    assert!(matches!(twin.run(), UserEvent::PageFault { .. } | UserEvent::Exception { vector: 13, .. }));
    assert_eq!(twin.regs().rflags & 0x3000, 0, "IOPL");
    let mut area = program.fpu().to_vec();
    area[27] = 0xff;
    let refused = program.load_fpu(|place| {
        place[..area.len()].copy_from_slice(&area);
        FpuImage { bytes: area.len(), components: u64::MAX }
    });
    assert!(refused.is_err());
    // A program that never stops is interrupted.
    program.start(entry + code.len() as u64 - 2, USER_BASE + 4096);
    REPEAT.store(true, Ordering::Relaxed);
    time::arm(time::now() + 1_000_000);
    assert_eq!(program.run(), UserEvent::Interrupt);
    REPEAT.store(false, Ordering::Relaxed);
    time::arm(u64::MAX);
    // The system call at the program's start, over and over, by the fast way and by the slow one.
    let jump: [u8; 2] = [0xeb, 0xfc];
    X86.with_bytes(frame, |bytes| bytes[2..4].copy_from_slice(&jump));
    twin.start(entry, USER_BASE + 4096);
    assert_eq!(twin.run(), UserEvent::Syscall);
    let fast = time::now();
    for _ in 0..10_000 {
        twin.set_return(0);
        assert_eq!(twin.run(), UserEvent::Syscall);
    }
    let slow = time::now();
    for _ in 0..10_000 {
        twin.regs_mut().rax = 0;
        assert_eq!(twin.run(), UserEvent::Syscall);
    }
    let end = time::now();
    say!(
        "a program runs and traps; {} ns a system call, {} after a change",
        (slow - fast) / 10_000,
        (end - slow) / 10_000
    );
}

fn threads_switch_and_finish() {
    static STEPS: AtomicUsize = AtomicUsize::new(0);
    *MAIN.lock() = Some(Arc::new(Thread::adopt()));
    thread::show_for_ever(&1u32);
    let frames = FRAMES.given.load(Ordering::Relaxed);
    for round in 0..50u32 {
        let life = move || {
            assert_eq!(thread::with_current(|number: &u32| *number), Some(round));
            assert_eq!(thread::with_current(|_: &u64| ()), None);
            assert!(irq::are_enabled());
            STEPS.fetch_add(1, Ordering::Relaxed);
            let main = MAIN.lock().clone().expect("the main thread");
            thread::switch(&main);
            assert_eq!(thread::with_current(|number: &u32| *number), Some(round));
            STEPS.fetch_add(1, Ordering::Relaxed);
        };
        let body = Box::new(move || {
            thread::show(&round, life);
            assert_eq!(thread::with_current(|_: &u32| ()), None);
            assert_eq!(provoke::read_alias(black_box(&[0; 8])), None, "the stack has a second address");
        });
        let other = Thread::new(NodeId(0), body).expect("memory for a thread");
        thread::switch(&other);
        thread::switch(&other);
        assert_eq!(thread::with_current(|number: &u32| *number), Some(1));
    }
    assert_eq!(STEPS.load(Ordering::Relaxed), 100);
    let mut many = Vec::new();
    for _ in 0..40 {
        many.push(Thread::new(NodeId(0), Box::new(|| ())).expect("memory for a thread"));
    }
    drop(many);
    let kept = FRAMES.given.load(Ordering::Relaxed) - frames;
    let most = thread::MOST_IDLE_STACKS * thread::STACK_PAGES as usize + 8;
    assert!(kept <= most, "stacks come back: {kept} frames are kept");
    say!("threads switch and finish");
}

fn timers_fire() {
    let before = TICKS.load(Ordering::Relaxed);
    let start = time::now();
    time::arm(start + 2_000_000);
    while TICKS.load(Ordering::Relaxed) == before {
        let off = irq::disable();
        if TICKS.load(Ordering::Relaxed) == before {
            cpu::idle();
        }
        drop(off);
    }
    let took = time::now() - start;
    assert!(took >= 1_900_000, "a timer for 2 ms fired after {took} ns");
    say!(
        "a timer for 2 ms fired after {took} ns; now {} s since 1970",
        time::wall_clock_at_boot() / 1_000_000_000
    );
}

static RUNNING: AtomicU32 = AtomicU32::new(0);

fn secondary(cpu: CpuId) -> ! {
    assert_eq!(X86.current_cpu(), cpu);
    RUNNING.fetch_add(1, Ordering::AcqRel);
    irq::enable();
    loop {
        while cpu == CpuId(1) && entry::STORM.load(Ordering::Acquire) {
            cpu::send_nmi(CpuId(0));
            (0..2000).for_each(|_| core::hint::spin_loop());
        }
        let _ = irq::disable();
        cpu::idle();
    }
}

/// `selftest.cpus=N` on the command line: there is no firmware table reader here.
fn boot_cpus(boot: &BootInfo) -> u32 {
    let words = boot.command_line().split_ascii_whitespace();
    words.filter_map(|word| word.strip_prefix("selftest.cpus=")?.parse().ok()).next().unwrap_or(1)
}

fn all_cpus_answer(boot: &BootInfo) -> usize {
    let cpus = boot_cpus(boot);
    let ids: Vec<u32> = (0..cpus).collect();
    cpu::set_topology(&Topology::new(1).expect("one node"), cpus as usize);
    let started = cpu::start_secondary(&ids, secondary);
    assert_eq!(started, cpus as usize);
    let cpus = started;
    while (RUNNING.load(Ordering::Acquire) as usize) < cpus - 1 {
        core::hint::spin_loop();
    }
    for round in 0..100 {
        X86.flush_on(CpuSet::first(cpus), if round % 2 == 0 { Flush::All } else { Flush::NonGlobal });
        let start = VirtAddr(USER_BASE);
        X86.flush_on(CpuSet::first(cpus), Flush::Range { start, pages: 3 });
    }
    for cpu in 1..cpus {
        cpu::send_reschedule(CpuId(cpu as u16));
    }
    let start = time::now();
    while RESCHEDULES.load(Ordering::Relaxed) < cpus - 1 {
        assert!(time::now() < start + 5_000_000_000, "a CPU does not answer");
    }
    say!("{cpus} CPUs answer");
    cpus
}
