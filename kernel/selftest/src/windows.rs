//! Windows on frames outside the direct map, and how long they stay cached.

use freehold_arch::boot::BootInfo;
use freehold_arch::memory::{self, KernelPages};
use freehold_arch::{X86, cpu, irq, provoke, serial, time};
use freehold_machine::{DirectMap, PAGEBLOCK_FRAMES, Pfn, PfnRange, PhysicalBytes};
use freehold_xpfo::Policy;

use crate::user_frame;

pub fn windows_show_frames_that_the_direct_map_does_not() {
    let (one, two) = (user_frame(), user_frame());
    X86.zero(one);
    X86.with_bytes(one, |bytes| bytes[17] = 42);
    X86.copy(one, two);
    for round in 0..200 {
        X86.with_bytes(two, |outer| {
            assert_eq!(outer[17], 42);
            X86.with_bytes(one, |inner| inner[18] = round);
        });
    }
    assert_eq!(X86.with_bytes(one, |bytes| bytes[18]), 199);
    // The direct map shows the bytes that a window showed before the block entered.
    let block = one.pageblock_start();
    let blocks = PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES));
    X86.enter(blocks);
    assert_eq!(KernelPages::from_frames(one, 0)[17], 42);
    X86.leave(blocks);
    assert_eq!(X86.with_bytes(one, |bytes| bytes[17]), 42);
    let start = time::now();
    (0..1000).for_each(|_| X86.with_bytes(one, |bytes| bytes[0] = 1));
    say!("windows and the direct map agree; {} ns for a window", (time::now() - start) / 1000);
}

/// A pageblock is zeroed in one window of 2 MiB: no slot of the CPU's is used. The smallest machine
/// may have no pageblock left for that.
pub fn a_pageblock_is_zeroed_in_one_window(boot: &BootInfo) {
    let start = Pfn(user_frame().0.next_multiple_of(PAGEBLOCK_FRAMES));
    let is_free = |block: &PfnRange| {
        boot.usable_ranges().any(|usable| usable.intersection(*block) == *block)
            && boot.image().intersection(*block).is_empty()
            && boot.initrd_frames().intersection(*block).is_empty()
    };
    let blocks = (0..8).map(|number| start.offset(number * PAGEBLOCK_FRAMES));
    let mut blocks = blocks.map(|first| PfnRange::new(first, first.offset(PAGEBLOCK_FRAMES)));
    let Some(first) = blocks.find(is_free).map(|block| block.start) else { return };
    let shown = [first, first.offset(300), first.offset(PAGEBLOCK_FRAMES - 1)];
    for frame in shown {
        X86.with_bytes(frame, |bytes| bytes.fill(0xa5));
    }
    let before = memory::window_totals();
    X86.zero_run(first, PAGEBLOCK_FRAMES);
    assert_eq!(memory::window_totals(), before, "windows, and laps of them");
    for frame in shown {
        X86.read_bytes(frame, |bytes| assert!(bytes.iter().all(|&byte| byte == 0), "{frame:?}"));
    }
    say!("a pageblock is zeroed in one window");
}

/// A closed window is in no translation cache after its CPU idled, nor in a program's time after a
/// kernel task had the CPU. The last test: from then on the timer ends closed windows' time, in
/// programs too.
pub fn closed_windows_are_forgotten_in_time() {
    memory::set_policy(Policy::On);
    let frame = user_frame();
    X86.with_bytes(frame, |bytes| bytes.fill(0x5a));
    // A window that was read, so that its translation is cached.
    let close = || {
        X86.read_bytes(frame, |bytes| {
            core::hint::black_box(bytes[0]);
            bytes.as_ptr() as u64
        })
    };
    let is_there = |window: u64| provoke::read_at(window) == Some(0x5a5a_5a5a_5a5a_5a5a);
    let off = irq::disable();
    // The controls: here no event ends a window's time.
    let window = close();
    assert!(is_there(window));
    memory::take_back();
    assert!(is_there(window), "no kernel task had the CPU");
    memory::lend();
    memory::take_back();
    assert!(is_there(window), "the kernel task opened no window");
    memory::lend();
    let of_task = close();
    // The next kernel task without a program's between them.
    memory::lend();
    assert!(is_there(of_task));
    memory::take_back();
    assert!(!is_there(of_task) && !is_there(window), "a kernel task's window in a program's time");
    let window = close();
    assert!(is_there(window));
    time::arm(time::now() + 100_000);
    core::mem::forget(off);
    cpu::idle();
    assert!(!is_there(window), "a window outlived the time in which the CPU idled");
    say!("closed windows are forgotten before a CPU idles, and after a kernel task");
}
