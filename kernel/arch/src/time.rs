//! The clock and each CPU's timer.
//!
//! The clock is the time-stamp counter, whose frequency comes from the hypervisor (KVM, CPUID
//! 0x4000_0010), from the CPU (CPUID 0x15), or from a short comparison with the HPET or the PIT. It
//! is taken to be the same on all CPUs, as it is under QEMU. The timer is the local APIC's, in
//! TSC-deadline mode where there is one.
//!
//! Programs read the clock in user mode, by the pages of time that [`show_in`] fills.

use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_frame::HeldFrame;
use freehold_machine::{CpuId, PAGE_SIZE, Pfn, PhysAddr, PhysicalBytes};
use freehold_vdso::{SHIFTED, SLEWED_BASE, SLEWED_WALL, TimePage};
use freehold_xpfo::Windows;
use zerocopy::FromBytes;

use crate::apic::{self, TimerMode};
use crate::memory::windows;
use crate::registers::{self, MSR_TSC_DEADLINE, in_u8, out_u8, rdtsc};
use crate::{X86, cpu, irq, mmio};

const NANOSECONDS: u64 = 1_000_000_000;
/// How long a comparison of two clocks takes. Long enough for one part in a thousand at 1 GHz;
/// short, since it is spent at every boot.
const COMPARE_NS: u64 = 1_000_000;
/// The shift of the fixed-point factors below.
const SHIFT: u32 = 32;

crate::boot_value! {
    /// Nanoseconds per tick of the counter, << 32.
    static NS_PER_TICK: u64 = 1 << SHIFT;
}
/// Ticks of the counter per nanosecond, << 32.
static TICKS_PER_NS: AtomicU64 = AtomicU64::new(1 << SHIFT);
/// Ticks of the timer per nanosecond, << 32; 0 in deadline mode.
static TIMER_PER_NS: AtomicU64 = AtomicU64::new(0);
crate::boot_value! {
    /// The counter's value when the kernel was entered.
    static START: u64 = 0;
}
/// Whether timers may be armed.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);
static WALL_AT_START: AtomicU64 = AtomicU64::new(0);
/// The frames that show the clock to programs; [`NOWHERE`] before there are any.
static SHOWN_IN: [AtomicU64; 2] = [const { AtomicU64::new(NOWHERE) }; 2];
const NOWHERE: u64 = u64::MAX;

fn scale(value: u64, factor: u64) -> u64 {
    ((u128::from(value) * u128::from(factor)) >> SHIFT) as u64
}

/// Nanoseconds since the kernel was entered, the same on all CPUs, never going back.
pub fn now() -> u64 {
    nanoseconds(rdtsc().saturating_sub(START.get()))
}

/// Returns the time-stamp counter, to measure short and frequent steps. [`nanoseconds`] converts a
/// difference.
#[inline]
pub fn ticks() -> u64 {
    rdtsc()
}

/// Returns the duration of `ticks` of the time-stamp counter.
pub fn nanoseconds(ticks: u64) -> u64 {
    scale(ticks, NS_PER_TICK.get())
}

/// Returns the nanoseconds since 1970 at the clock's zero.
pub fn wall_clock_at_boot() -> u64 {
    WALL_AT_START.load(Ordering::Relaxed)
}

/// Shows the clock to programs in `frames`, which are zeroed and held for ever: [`TimePage`], and
/// the same for programs in time namespaces. Called once, after [`start`]; `wall` is as for
/// [`show_wall`].
pub fn show_in(frames: [HeldFrame<'static>; 2], wall: i64) {
    let (factor, start) = (NS_PER_TICK.get(), START.get());
    for ((frame, base), shown) in frames.iter().zip([start, SHIFTED]).zip(&SHOWN_IN) {
        Windows::with_bytes(X86, frame, |page| {
            for (offset, value) in [
                (offset_of!(TimePage, base), base),
                (offset_of!(TimePage, factor), factor),
                (offset_of!(TimePage, seconds_factor), TimePage::seconds_factor(factor)),
                (offset_of!(TimePage, start), start),
            ] {
                word(page, offset).store(value, Ordering::Relaxed);
            }
        });
        shown.store(frame.pfn().0, Ordering::Relaxed);
    }
    show_wall(wall, WallRate::Machine);
}

/// The rate of the wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WallRate {
    /// That of [`now`].
    Machine,
    /// Another one: programs ask the kernel.
    Slewed,
}

/// Show programs a wall clock that was at `wall` nanoseconds since 1970 when [`now`] was 0. Of a
/// slewed clock, `wall` is for time(2) only. One call at a time.
pub fn show_wall(wall: i64, rate: WallRate) {
    let factor = TimePage::seconds_factor(NS_PER_TICK.get());
    let shown_wall = if rate == WallRate::Slewed { SLEWED_WALL } else { wall };
    let base = TimePage::seconds_base(START.get(), factor, wall);
    for shown in &SHOWN_IN {
        let frame = shown.load(Ordering::Relaxed);
        if frame == NOWHERE {
            return;
        }
        // `show_in` got a hold on the frame that never ends.
        PhysicalBytes::with_bytes(X86, Pfn(frame), |page| {
            // One store each, which programs read as a whole: the protocol is in the head of
            // `TimePage`'s module.
            let start = word(page, offset_of!(TimePage, base));
            if rate == WallRate::Slewed && start.load(Ordering::Relaxed) != SHIFTED {
                start.store(SLEWED_BASE, Ordering::Release);
            }
            word(page, offset_of!(TimePage, wall)).store(shown_wall as u64, Ordering::Release);
            word(page, offset_of!(TimePage, seconds_base)).store(base, Ordering::Relaxed);
        });
    }
}

/// The word at `offset` of a page.
fn word(page: &mut [u8; PAGE_SIZE], offset: usize) -> &AtomicU64 {
    AtomicU64::mut_from_bytes(&mut page[offset..offset + 8]).expect("words of a page are aligned")
}

/// How many ticks of the time-stamp counter make a second.
pub fn counter_frequency() -> u64 {
    scale(NANOSECONDS, TICKS_PER_NS.load(Ordering::Relaxed))
}

/// Counts from `entry`, the counter's value when the kernel was entered. Until [`measure`], the
/// counter is taken to make 10^9 ticks per second.
pub(crate) fn count_from(entry: u64) {
    START.set_unprotected(entry);
}

/// Finds the counter's frequency, before nodes get copies of the kernel's read-only data, which has
/// it. `hpet` is the HPET's address according to firmware.
///
/// # Panics
/// If there is no memory for the patching window.
pub fn measure(hpet: Option<PhysAddr>) {
    let deadline_mode = registers::cpuid(1, 0).ecx & 1 << 24 != 0;
    apic::set_timer_count(u32::MAX);
    let frequency = hypervisor_frequency().or_else(cpu_frequency);
    if frequency.is_none() || !deadline_mode {
        let compared = compare(hpet);
        let ticks = frequency.map_or(compared.ticks, |f| f * compared.nanoseconds / NANOSECONDS);
        set_frequency(ticks, compared.nanoseconds);
        if !deadline_mode {
            let timer = u128::from(compared.timer) << SHIFT;
            TIMER_PER_NS.store((timer / u128::from(compared.nanoseconds)) as u64, Ordering::Relaxed);
        }
    } else if let Some(frequency) = frequency {
        set_frequency(frequency, NANOSECONDS);
    }
}

/// Starts the clock, and the first CPU's timer, after [`measure`].
pub fn start() {
    WALL_AT_START.store(read_wall_clock().saturating_sub(now()), Ordering::Relaxed);
    IS_RUNNING.store(true, Ordering::Relaxed);
    init_secondary();
}

/// Starts this CPU's timer; the clock runs already.
pub(crate) fn init_secondary() {
    apic::set_timer_count(0);
    let mode =
        if TIMER_PER_NS.load(Ordering::Relaxed) == 0 { TimerMode::Deadline } else { TimerMode::OneShot };
    apic::set_timer(mode, irq::VECTOR_TIMER);
}

fn set_frequency(ticks: u64, nanoseconds: u64) {
    let ratio = |a: u64, b: u64| ((u128::from(a) << SHIFT) / u128::from(b.max(1))) as u64;
    TICKS_PER_NS.store(ratio(ticks, nanoseconds), Ordering::Relaxed);
    let is_set = NS_PER_TICK.set(ratio(nanoseconds, ticks));
    assert!(is_set.is_ok(), "no memory for a table at start-up");
}

/// Makes the timer interrupt this CPU at `deadline` (as [`now`] counts): at once if the deadline is
/// past, never for `u64::MAX`. Replaces the armed deadline. Interrupts are off, or the caller stays
/// on this CPU.
pub fn arm(deadline: u64) {
    let this = cpu::this();
    this.timer.store(deadline, Ordering::Relaxed);
    program(deadline.min(this.windows.deadline.load(Ordering::Relaxed)), now);
}

/// Makes the timer interrupt `cpu` at once, if it has started.
pub fn interrupt_now(cpu: CpuId) {
    if let Some(other) = cpu::of(cpu) {
        other.timer.store(now(), Ordering::Relaxed);
        cpu::send(cpu, irq::VECTOR_TIMER);
    }
}

/// Makes the timer interrupt this CPU also in `after_ns`, to flush closed windows; the deadline of
/// [`arm`] stays. Interrupts are off. Does nothing before the clock runs.
pub(crate) fn arm_for_windows(after_ns: u64) {
    if IS_RUNNING.load(Ordering::Relaxed) {
        let (this, now) = (cpu::this(), now());
        let deadline = now + after_ns;
        this.windows.deadline.store(deadline, Ordering::Relaxed);
        if deadline < this.timer.load(Ordering::Relaxed) {
            program(deadline, || now);
        }
    }
}

/// Cancels the deadline of [`arm_for_windows`]: no closed window is cached. Interrupts are off.
pub(crate) fn disarm_for_windows() {
    let this = cpu::this();
    let deadline = this.windows.deadline.swap(u64::MAX, Ordering::Relaxed);
    let asked = this.timer.load(Ordering::Relaxed);
    if deadline < asked {
        program(asked, now);
    }
}

/// Handles this CPU's timer interrupt: flushes windows; if the deadline of [`arm`] has come, calls
/// `due` with the nanoseconds since then; and sets the timer for the next deadline. Interrupts are
/// off. Returns whether `due` was called.
pub(crate) fn fired(due: impl FnOnce(u64)) -> bool {
    let this = cpu::this();
    let began = now();
    if this.windows.deadline.load(Ordering::Relaxed) <= began {
        let again = windows::expire().map_or(u64::MAX, |after_ns| began + after_ns);
        this.windows.deadline.store(again, Ordering::Relaxed);
    }
    let asked = this.timer.load(Ordering::Relaxed);
    let is_due = asked <= began;
    if is_due {
        this.timer.store(u64::MAX, Ordering::Relaxed);
        due(began - asked);
        if this.timer.load(Ordering::Relaxed) != u64::MAX {
            // `due` called `arm`, which has set the timer.
            return true;
        }
    }
    let next = this.timer.load(Ordering::Relaxed).min(this.windows.deadline.load(Ordering::Relaxed));
    if next != u64::MAX {
        program(next, || if is_due { now() } else { began });
    }
    is_due
}

/// Sets the timer. A deadline beyond its range fires early, and [`fired`] sets the timer again.
/// `now` is not called if the timer counts to a deadline itself.
#[inline]
fn program(deadline: u64, now: impl FnOnce() -> u64) {
    let per_ns = TIMER_PER_NS.load(Ordering::Relaxed);
    if per_ns == 0 {
        let counter = match deadline {
            u64::MAX => 0,
            _ => {
                let ticks = scale(deadline, TICKS_PER_NS.load(Ordering::Relaxed));
                START.get().saturating_add(ticks).max(1)
            }
        };
        // SAFETY: makes an interrupt come, which this crate's handler serves.
        unsafe { registers::wrmsr(MSR_TSC_DEADLINE, counter) };
        return;
    }
    let count = match deadline {
        u64::MAX => 0,
        _ => scale(deadline.saturating_sub(now()), per_ns).clamp(1, u64::from(u32::MAX)) as u32,
    };
    apic::set_timer_count(count);
}

/// Kilohertz from KVM's or VMware's timing leaf.
fn hypervisor_frequency() -> Option<u64> {
    const PRESENT: u32 = 1 << 31;
    if registers::cpuid(1, 0).ecx & PRESENT == 0 || registers::cpuid(0x4000_0000, 0).eax < 0x4000_0010 {
        return None;
    }
    match registers::cpuid(0x4000_0010, 0).eax {
        0 => None,
        kilohertz => Some(u64::from(kilohertz) * 1000),
    }
}

/// The crystal's frequency times the ratio that CPUID gives.
fn cpu_frequency() -> Option<u64> {
    if registers::cpuid(0, 0).eax < 0x15 {
        return None;
    }
    let leaf = registers::cpuid(0x15, 0);
    if leaf.eax == 0 || leaf.ebx == 0 || leaf.ecx == 0 {
        return None;
    }
    Some(u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax))
}

/// Time that passed on each clock during a comparison.
struct Compared {
    nanoseconds: u64,
    ticks: u64,
    /// Ticks of the local APIC's timer.
    timer: u64,
}

fn compare(hpet: Option<PhysAddr>) -> Compared {
    hpet.and_then(compare_with_hpet).unwrap_or_else(compare_with_pit)
}

/// IA-PC HPET specification 1.0a: capabilities at 0 (period in femtoseconds in the upper half),
/// configuration at 0x10, counter at 0xf0.
fn compare_with_hpet(base: PhysAddr) -> Option<Compared> {
    let hpet = mmio::map(base, 0x400).ok()?;
    let period = hpet.read_u64(0) >> 32;
    if period == 0 || period > 100_000_000 {
        return None;
    }
    hpet.write_u64(0x10, hpet.read_u64(0x10) | 1);
    // The lower half is enough for the short time, and exists on 32-bit timers, too.
    let look = || {
        let before = rdtsc();
        let (hpet, timer) = (hpet.read_u32(0xf0), apic::timer_count());
        let after = rdtsc();
        ClockSample { hpet, timer, ticks: before, width: after - before }
    };
    // A host that runs something else between two of the readings spoils a comparison, so the
    // narrowest of several is used.
    let look_well = || (0..LOOKS).map(|_| look()).min_by_key(|look| look.width);
    let elapsed = |from: u32, to: u32| u64::from(to.wrapping_sub(from)) * period / 1_000_000;
    let from = look_well()?;
    let mut patience = 100_000_000u32;
    while elapsed(from.hpet, hpet.read_u32(0xf0)) < COMPARE_NS {
        patience = patience.checked_sub(1)?;
    }
    let to = look_well()?;
    Some(Compared {
        nanoseconds: elapsed(from.hpet, to.hpet),
        ticks: to.ticks - from.ticks,
        timer: u64::from(from.timer - to.timer),
    })
}

/// How often all clocks are read at each end of the comparison.
const LOOKS: usize = 5;

/// All clocks at about the same time.
struct ClockSample {
    hpet: u32,
    timer: u32,
    ticks: u64,
    /// Ticks of the counter that the reading took.
    width: u64,
}

/// Channel 2 of the 8254, gated by port 0x61, which shows its output in bit 5.
fn compare_with_pit() -> Compared {
    const FREQUENCY: u64 = 1_193_182;
    let count = (FREQUENCY * COMPARE_NS / NANOSECONDS) as u16;
    out_u8(0x61, in_u8(0x61) & !0b11);
    // Channel 2, low byte then high byte, mode 0 (output rises at the end), binary.
    out_u8(0x43, 0b1011_0000);
    let [low, high] = count.to_le_bytes();
    out_u8(0x42, low);
    out_u8(0x42, high);
    let (ticks, timer) = (rdtsc(), apic::timer_count());
    out_u8(0x61, in_u8(0x61) & !0b11 | 1);
    while in_u8(0x61) & 1 << 5 == 0 {
        core::hint::spin_loop();
    }
    Compared {
        nanoseconds: u64::from(count) * NANOSECONDS / FREQUENCY,
        ticks: rdtsc() - ticks,
        timer: u64::from(timer - apic::timer_count()),
    }
}

fn cmos(register: u8) -> u8 {
    out_u8(0x70, register | 0x80);
    in_u8(0x71)
}

/// Nanoseconds since 1970, to the second, from the CMOS clock (which is taken to run in UTC, as
/// QEMU's does).
fn read_wall_clock() -> u64 {
    let mut last = None;
    // Two equal readings mean that no second passed between the first register and the last.
    for _ in 0..1000 {
        if cmos(0x0a) & 0x80 != 0 {
            continue;
        }
        let reading = [0x00, 0x02, 0x04, 0x07, 0x08, 0x09, 0x32].map(cmos);
        if last == Some(reading) {
            return decode_wall_clock(reading, cmos(0x0b)) * NANOSECONDS;
        }
        last = Some(reading);
    }
    0
}

/// Seconds since 1970 of a CMOS reading (second, minute, hour, day, month, year, century) in the
/// format that `status` names.
fn decode_wall_clock(reading: [u8; 7], status: u8) -> u64 {
    let binary = status & 0x04 != 0;
    let decode = |value: u8| u64::from(if binary { value } else { (value >> 4) * 10 + (value & 0x0f) });
    let [second, minute, hour, day, month, year, century] = reading;
    let mut hours = decode(hour & 0x7f);
    if status & 0x02 == 0 {
        hours = hours % 12 + if hour & 0x80 != 0 { 12 } else { 0 };
    }
    let century = match decode(century) {
        century @ 19..=22 => century,
        _ => 20,
    };
    let year = century * 100 + decode(year);
    // Days since 0000-03-01, years counted from March so that a leap day is a year's last.
    let (month, day) = (decode(month).clamp(1, 12), decode(day).max(1));
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    const EPOCH: u64 = 719_468;
    (days.saturating_sub(EPOCH) * 24 + hours) * 3600 + decode(minute) * 60 + decode(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmos_readings_become_seconds_since_1970() {
        assert_eq!(decode_wall_clock([0x00, 0x00, 0x00, 0x01, 0x01, 0x70, 0x19], 0x02), 0);
        assert_eq!(decode_wall_clock([0x59, 0x30, 0x23, 0x29, 0x02, 0x24, 0x20], 0x02), 1_709_249_459);
        assert_eq!(
            decode_wall_clock([59, 30, 0x80 | 11, 29, 2, 24, 20], 0x04),
            1_709_249_459,
            "binary, 12 hours"
        );
    }
}
