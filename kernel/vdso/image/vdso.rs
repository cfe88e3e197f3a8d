//! The functions of the vDSO, which run in programs. `build.rs` compiles this file on its own.
//!
//! May use `unsafe`: it reads the page of time and writes where the program says, as any function
//! of a C library does. It uses no stack but the caller's and keeps no state.
//!
//! For a clock that is not here, or a value that the page does not have, the image makes the system
//! call and returns its answer as it is.
#![no_std]

use core::arch::x86_64::{_mm_lfence, _rdtsc};
use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

#[path = "../src/page.rs"]
#[allow(dead_code)]
mod page;

use page::{CPU_SELECTOR, NODE_SHIFT, SECOND, SHIFTED, TimeOffsets, TimePage, UNIT};

const SYS_CLOCK_GETTIME: u64 = 228;
const SYS_CLOCK_GETRES: u64 = 229;

/// CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI.
const WALL: u32 = 1 << 0 | 1 << 5 | 1 << 11;
/// CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME. All show the same
/// time outside of time namespaces: only the wall clock is slewed, and the machine does not sleep.
const MONOTONIC: u32 = 1 << 1 | 1 << 4 | 1 << 6 | 1 << 7;
const BOOTTIME: i32 = 7;
/// The clocks whose resolution is Linux' tick: 4 ms, as with HZ=250.
const COARSE: u32 = 1 << 5 | 1 << 6;
const COARSE_RESOLUTION: i64 = 4_000_000;

/// `struct timespec`, and with microseconds `struct timeval`.
#[repr(C)]
pub struct Time {
    seconds: i64,
    part: i64,
}

global_asm!(
    ".hidden freehold_time_page",
    ".hidden freehold_time_offsets",
    ".macro alias name",
    ".weak \\name",
    ".set \\name, __vdso_\\name",
    ".endm",
    "alias clock_gettime",
    "alias gettimeofday",
    "alias time",
    "alias getcpu",
    "alias clock_getres",
    ".purgem alias",
);

#[inline(always)]
fn time_page() -> &'static TimePage {
    let page: *const TimePage;
    // SAFETY: the address of the page before the image, as the linker script has it.
    unsafe {
        asm!("lea {}, [rip + freehold_time_page]", out(reg) page, options(pure, nomem, nostack, preserves_flags))
    };
    // SAFETY: the kernel maps the page with the image, and its words are atomic. A program that
    // unmaps it faults here, as on Linux.
    unsafe { &*page }
}

/// The offsets of the program's time namespace. Without one, the page has no offsets.
#[inline(always)]
fn time_offsets() -> &'static TimeOffsets {
    let page: *const TimeOffsets;
    // SAFETY: as in `time_page`.
    unsafe {
        asm!("lea {}, [rip + freehold_time_offsets]", out(reg) page, options(pure, nomem, nostack, preserves_flags))
    };
    // SAFETY: as in `time_page`; every page before the page of time is at least as long as this.
    unsafe { &*page }
}

/// The time-stamp counter, read after all earlier steps of the program: so no CPU sees a time
/// earlier than one that it saw before.
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has both instructions.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

#[inline(always)]
fn system_call(number: u64, first: i32, second: *mut Time) -> i32 {
    let answer: u64;
    // SAFETY: a system call that writes only where the program asked it to.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer, in("rdi") i64::from(first), in("rsi") second,
            lateout("rcx") _, lateout("r11") _, options(nostack))
    };
    answer as i32
}

#[inline(always)]
fn is_among(clock: i32, clocks: u32) -> bool {
    (clock as u32) < 32 && clocks >> clock & 1 != 0
}

/// Store `nanoseconds` in parts of `PART` nanoseconds.
///
/// # Safety
/// `to` is the program's.
#[inline(always)]
unsafe fn store<const PART: u64>(to: *mut Time, nanoseconds: u64) {
    let time = Time { seconds: (nanoseconds / SECOND) as i64, part: (nanoseconds % SECOND / PART) as i64 };
    // SAFETY: the caller's promise.
    unsafe { to.write(time) };
}

/// Tells the time of a clock where the page of time alone does not tell it: in a time namespace,
/// and of a clock that is not here. It is called in the end only, so the callers need no stack.
///
/// # Safety
/// `to` is the program's.
#[cold]
#[inline(never)]
unsafe extern "C" fn tell_otherwise(clock: i32, to: *mut Time) -> i32 {
    let page = time_page();
    let nanoseconds = if is_among(clock, WALL) {
        let Some(nanoseconds) = page.machine_wall(ticks) else {
            return system_call(SYS_CLOCK_GETTIME, clock, to);
        };
        nanoseconds
    } else if is_among(clock, MONOTONIC) {
        let offsets = time_offsets();
        let offset = if clock == BOOTTIME { &offsets.boottime } else { &offsets.monotonic };
        let is_shifted = page.base.load(Ordering::Relaxed) == SHIFTED;
        let offset = if is_shifted { offset.load(Ordering::Relaxed) } else { 0 };
        page.machine_monotonic(ticks()).wrapping_add(offset as u64)
    } else {
        return system_call(SYS_CLOCK_GETTIME, clock, to);
    };
    // SAFETY: the caller's promise.
    unsafe { store::<1>(to, nanoseconds) };
    0
}

/// # Safety
/// `to` is the program's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_gettime(clock: i32, to: *mut Time) -> i32 {
    let page = time_page();
    let nanoseconds = if is_among(clock, MONOTONIC) {
        page.monotonic(ticks())
    } else if is_among(clock, WALL) {
        page.wall(ticks)
    } else {
        None
    };
    let Some(nanoseconds) = nanoseconds else {
        // SAFETY: the program's promise.
        return unsafe { tell_otherwise(clock, to) };
    };
    // SAFETY: the program's promise.
    unsafe { store::<1>(to, nanoseconds) };
    0
}

/// # Safety
/// Pointers that are not null are the program's: a `struct timeval`, a `struct timezone`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_gettimeofday(to: *mut Time, zone: *mut [i32; 2]) -> i32 {
    if !zone.is_null() {
        // SAFETY: the program's promise.
        unsafe { zone.write([0; 2]) };
    }
    if to.is_null() {
        return 0;
    }
    let page = time_page();
    let Some(nanoseconds) = page.wall(ticks).or_else(|| page.machine_wall(ticks)) else {
        // SAFETY: the program's promise.
        return unsafe { tell_slewed(to) };
    };
    // SAFETY: the program's promise.
    unsafe { store::<1000>(to, nanoseconds) };
    0
}

/// gettimeofday while the wall clock is slewed.
///
/// # Safety
/// `to` is the program's.
#[cold]
#[inline(never)]
unsafe extern "C" fn tell_slewed(to: *mut Time) -> i32 {
    let answer = system_call(SYS_CLOCK_GETTIME, 0, to);
    // SAFETY: the caller's promise; the kernel has stored a time there, or the program ends here.
    unsafe { (*to).part /= 1000 };
    answer
}

/// Returns the second: [`TimePage::seconds`], with the counter's halves put together and divided by
/// [`UNIT`] at once. The counter may be read out of order with earlier steps: the error is
/// nanoseconds, and the result counts seconds.
#[inline(always)]
fn seconds() -> i64 {
    let seconds;
    #[cfg(target_feature = "bmi2")]
    // SAFETY: reads the counter and two words of the page, as `time_page` says. The CPU has the
    // instruction, or the kernel takes the other image.
    unsafe {
        asm!("rdtsc", "shl rax, 32", "shld rdx, rax, {high}",
            "sub rdx, [rip + freehold_time_page + {base}]", "mulx rax, rcx, [rip + freehold_time_page + {factor}]",
            high = const 32 - UNIT.trailing_zeros(), base = const offset_of!(TimePage, seconds_base),
            factor = const offset_of!(TimePage, seconds_factor), out("rax") seconds, out("rdx") _, out("rcx") _,
            options(nostack, readonly))
    };
    #[cfg(not(target_feature = "bmi2"))]
    // SAFETY: as above.
    unsafe {
        asm!("rdtsc", "shl rax, 32", "shrd rax, rdx, {high}",
            "sub rax, [rip + freehold_time_page + {base}]", "mul qword ptr [rip + freehold_time_page + {factor}]",
            high = const 32 + UNIT.trailing_zeros(), base = const offset_of!(TimePage, seconds_base),
            factor = const offset_of!(TimePage, seconds_factor), out("rax") _, out("rdx") seconds,
            options(nostack, readonly))
    };
    seconds
}

/// **Cost.** 8 instructions for a null pointer, as on Linux, whose tick leaves the second in
/// memory; here there is no tick, and no CPU is woken for this. That is the floor: 1 reads the
/// counter, 2 put it together, 2 make seconds of it, 3 answer. A CPU without BMI2 needs 9.
///
/// # Safety
/// A pointer that is not null is the program's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_time(to: *mut i64) -> i64 {
    let seconds = seconds();
    if !to.is_null() {
        // SAFETY: the program's promise.
        unsafe { to.write(seconds) };
    }
    seconds
}

/// **Cost.** 11 instructions for the CPU alone. (glibc's `sched_getcpu` does not come here: it
/// reads what rseq(2) keeps.)
///
/// # Safety
/// Pointers that are not null are the program's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_getcpu(cpu: *mut u32, node: *mut u32, _unused: *mut c_void) -> i64 {
    let place: u32;
    // SAFETY: reads a segment's limit. Each CPU has its own table of segments, so the answer is one
    // CPU's; it is not read anew in a loop.
    unsafe {
        asm!("lsl {0:e}, {1:e}", out(reg) place, in(reg) u32::from(CPU_SELECTOR), options(nomem, nostack))
    };
    if !cpu.is_null() {
        // SAFETY: the program's promise.
        unsafe { cpu.write(place & ((1 << NODE_SHIFT) - 1)) };
    }
    if !node.is_null() {
        // SAFETY: the program's promise.
        unsafe { node.write(place >> NODE_SHIFT) };
    }
    0
}

/// # Safety
/// A pointer that is not null is the program's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_getres(clock: i32, to: *mut Time) -> i32 {
    if !is_among(clock, MONOTONIC | WALL) {
        return system_call(SYS_CLOCK_GETRES, clock, to);
    }
    if !to.is_null() {
        let part = if is_among(clock, COARSE) { COARSE_RESOLUTION } else { 1 };
        // SAFETY: the program's promise.
        unsafe { to.write(Time { seconds: 0, part }) };
    }
    0
}
