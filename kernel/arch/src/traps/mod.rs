//! Exceptions and interrupts.
//!
//! Interrupts that arrive in kernel mode are handled on the current stack with interrupts off;
//! those from user mode are handled when [`crate::user`] sees them, on the thread's own stack. A
//! page fault of a user copy is served by the registered [`Handlers`], with interrupts on, and may
//! sleep; any other exception in kernel mode is a panic ([`crate::panic`]).

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::{Access, VirtAddr};

#[cfg(target_os = "none")]
use crate::alternatives::Feature;
use crate::cpu::PerCpu;
use crate::memory::windows;
use crate::sync::Once;
use crate::usercopy::{self, Faults};
use crate::{apic, boot, cpu, irq, panic, probes, provoke, registers, static_keys, time};

mod checks;
mod descriptors;
mod frame;
pub(crate) mod machine_check;

pub(crate) use checks::{CheckPoint, entry_state};
#[cfg(feature = "entry-checks")]
pub use checks::{NmiHook, checked_entries, set_nmi_hook};
pub(crate) use descriptors::{
    Descriptors, OWN_STACKS, init_cpu, interrupt_table, renew_stacks, tell_place, write_idt,
};
pub use frame::PROTECTION_KEY;
pub use frame::Registers;
pub(crate) use frame::decode_page_fault;
use machine_check::MachineCheckVerdict;

/// No page can be made present for a user copy's fault: the copy stops there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unresolved;

/// A place in the kernel's text, as an offset in the image: it reveals no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageOffset(pub u64);

/// Code that an interrupt stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupted {
    /// A program.
    Program,
    /// The kernel, before the instruction here.
    Kernel(ImageOffset),
}

/// Functions of the kernel that the hardware's events call.
pub trait Handlers: Sync {
    /// A user copy of the kernel accessed `addr`, which has no page for `access`. Interrupts are
    /// on; may sleep.
    ///
    /// # Errors
    /// If no page can be made present.
    fn kernel_page_fault(&self, addr: VirtAddr, access: Access) -> Result<(), Unresolved>;
    /// This CPU's timer fired, `late` nanoseconds after its deadline. Interrupts are off.
    fn timer(&self, late: u64, interrupted: Interrupted);
    /// Another CPU asked this one to check its run queue. Interrupts are off.
    fn reschedule(&self);
    /// An interrupt was served, and the kernel continues where it was interrupted. Interrupts are
    /// off.
    fn goes_on(&self, place: ImageOffset);
    /// An enabled event happens here, in any context except NMIs, double faults and machine checks.
    /// Interrupts may be off and locks held, so the handler waits for nothing.
    fn record_event(&self, event: usize, fields: &[u64]);
    /// A CPU has come to the probe with this slot, in the same contexts. The handler waits for
    /// nothing.
    fn probe_hit(&self, slot: usize);
    /// The body of the current thread returned: leave it for good.
    fn thread_finished(&self) -> !;
}

static HANDLERS: Once<&'static dyn Handlers> = Once::new();

/// Set the handlers, before the first thread, timer or user copy.
///
/// # Panics
/// When they are set already.
pub fn register(handlers: &'static dyn Handlers) {
    HANDLERS.set(handlers);
}

pub(crate) fn handlers() -> &'static dyn Handlers {
    *HANDLERS.get().expect("the kernel registered its handlers")
}

#[cfg(target_os = "none")]
global_asm!(
    include_str!("../alternative.s"),
    include_str!("entry.s"),
    ".purgem alternative",
    kernel_stack = const offset_of!(PerCpu, kernel_stack),
    context_end = const offset_of!(PerCpu, context_end),
    user_stack = const offset_of!(PerCpu, user_stack),
    task_rsp0 = const offset_of!(PerCpu, descriptors) + Descriptors::RSP0,
    kernel_trap = sym kernel_trap,
    own_stack_trap = sym own_stack_trap,
    kernel_data = const offset_of!(PerCpu, kernel_data),
    clears_buffers = const Feature::ClearsBuffers as u16,
);

pub(crate) const VECTOR_PAGE_FAULT: u64 = 14;
const VECTOR_DEBUG: u64 = 1;
/// The vector in the context of a program that is given up ([`give_program_up`]): that of double
/// faults, which programs never cause.
const VECTOR_LOST: u64 = 8;
const VECTOR_NMI: u64 = 2;
const VECTOR_BREAKPOINT: u64 = 3;
const VECTOR_MACHINE_CHECK: u64 = 18;
/// The names of the stacks of [`OWN_STACKS`], in their order.
const OWN_STACK_NAMES: [&str; OWN_STACKS] = ["NMI", "double fault", "machine check", "debug"];
/// Largest distance, below the stack pointer, of a push by the CPU or by a function's first lines.
const GUARD_REACH: u64 = 4096;
pub(crate) const INTERRUPT_FLAG: u64 = 1 << 9;

/// Interrupts and exceptions in kernel mode. Interrupts are off.
extern "C" fn kernel_trap(frame: &mut Registers) {
    entry_state(CheckPoint::KernelTrap);
    match frame.vector {
        32.. => {
            let place = ImageOffset(frame.rip.wrapping_sub(boot::image_base()));
            interrupt(frame.vector as u8, Interrupted::Kernel(place));
            handlers().goes_on(place);
        }
        VECTOR_PAGE_FAULT => page_fault(frame),
        VECTOR_BREAKPOINT => breakpoint(frame),
        _ => panic::exception(frame, 0),
    }
}

/// Handles an INT3 in kernel mode, which is a probe's, or stands where an instruction is being
/// patched.
fn breakpoint(frame: &mut Registers) {
    if probes::hit(frame) {
        return;
    }
    match static_keys::resume(frame.rip) {
        Some(resume) => frame.rip = resume,
        None if probes::is_gone(frame.rip.wrapping_sub(1)) => frame.rip = frame.rip.wrapping_sub(1),
        None => panic::exception(frame, 0),
    }
}

/// Handles a fault in kernel mode, which only the instructions of user copies may cause.
fn page_fault(frame: &mut Registers) {
    let address = registers::read_cr2();
    let allowed = if address < crate::user::USER_END { usercopy::fixup(frame.rip) } else { None };
    let Some(fixup) = allowed else {
        match provoke::resume(frame.rip, address) {
            Some(resume) => frame.rip = resume,
            None => panic::exception(frame, address),
        }
        return;
    };
    let may_sleep = cpu::preemption_count() == 0 && frame.rflags & INTERRUPT_FLAG != 0;
    // A page that is present and whose protection key denies the access is not served.
    let is_denied = frame.error & PROTECTION_KEY != 0;
    if fixup.faults == Faults::Sleep && may_sleep && !is_denied {
        let access = decode_page_fault(frame.error);
        registers::enable_interrupts();
        let served = handlers().kernel_page_fault(VirtAddr(address), access);
        registers::disable_interrupts();
        if served.is_ok() {
            return;
        }
    }
    frame.rip = fixup.resume;
}

/// Handles an external interrupt, from either mode. Interrupts are off. Returns whether the kernel
/// above was told.
pub(crate) fn interrupt(vector: u8, interrupted: Interrupted) -> bool {
    if vector == apic::SPURIOUS_VECTOR {
        return false;
    }
    // Before the handler, which may arm the timer anew. No interrupt can arrive before interrupts
    // are on.
    apic::end_of_interrupt();
    windows::enter_interrupt();
    let mut is_told = true;
    match vector {
        irq::VECTOR_TIMER => is_told = time::fired(|late| handlers().timer(late, interrupted)),
        irq::VECTOR_RESCHEDULE => handlers().reschedule(),
        irq::VECTOR_SHOOTDOWN => cpu::serve_flushes(),
        _ => irq::dispatch(vector),
    }
    windows::leave_interrupt();
    is_told
}

/// The place where `entry.s` continues after [`own_stack_trap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Return {
    /// The place that was interrupted.
    Back = 0,
    /// The path from user mode to the kernel, as after any other exception of the program.
    Exception = 1,
}

/// Handles NMI, double fault, machine check and debug exceptions: on their own stacks, from any
/// state.
extern "C" fn own_stack_trap(frame: &mut Registers) -> Return {
    entry_state(CheckPoint::OwnStack);
    match frame.vector {
        VECTOR_NMI => {
            checks::nmi(frame);
            panic::stop_if_asked(frame);
            Return::Back
        }
        VECTOR_MACHINE_CHECK => machine_check(frame),
        VECTOR_DEBUG => debug(frame),
        _ => double_fault(frame),
    }
}

fn machine_check(frame: &mut Registers) -> Return {
    match machine_check::judge_and_clear(frame) {
        MachineCheckVerdict::Continue => Return::Back,
        MachineCheckVerdict::EndMachine => panic::machine_check(frame, &machine_check::banks_as_text()),
        MachineCheckVerdict::EndProgram(status) => {
            frame.error = status;
            hand_to_program(frame)
        }
    }
}

/// Handles an exception of the program as if it had no stack of its own. The CPU was in user mode.
fn hand_to_program(frame: &Registers) -> Return {
    let context = cpu::this().context_end.load(Ordering::Relaxed) as *mut Registers;
    // SAFETY: the CPU was in user mode, so the registers that end there are those of the running
    // program's context, which `user_enter` was given and `entry.s` fills at every other trap.
    unsafe { context.wrapping_sub(1).write(*frame) };
    Return::Exception
}

/// Handles a single step or a watchpoint of the program. In kernel mode, watchpoints are armed only
/// on the way in and out, where the kernel does not touch the program's memory. So a watchpoint
/// there was delayed by MOV SS or POP SS in the program, until its SYSCALL or INT had led here. It
/// is ignored.
fn debug(frame: &Registers) -> Return {
    if frame.cs & 3 != 0 {
        return hand_to_program(frame);
    }
    let status = registers::take_debug_status();
    if frame.rip == descriptors::entry_of(VECTOR_DEBUG) && registers::is_programs_gs_loaded() {
        return give_program_up(frame);
    }
    if !registers::is_watchpoint(status) {
        panic::exception(frame, 0)
    }
    Return::Back
}

/// Handles a second debug exception that came before the first instruction of the handler of a
/// program's debug exception. It has overwritten the first one's frame, so the program's position
/// is lost and the program ends. QEMU's emulator does this if a program steps over an access to a
/// watched address (a pending hit in `cpu_check_watchpoint`, which the exception of the step does
/// not include); no CPU does.
fn give_program_up(frame: &Registers) -> Return {
    let context = cpu::this().context_end.load(Ordering::Relaxed) as *mut Registers;
    // SAFETY: as in `hand_to_program`: the CPU had been in user mode, and the context's registers
    // are those with which the program was entered.
    let before = unsafe { context.wrapping_sub(1).read() };
    let Registers { rip, cs, rflags, rsp, ss, .. } = before;
    hand_to_program(&Registers { rip, cs, rflags, rsp, ss, vector: VECTOR_LOST, ..*frame })
}

fn double_fault(frame: &Registers) -> ! {
    let address = registers::read_cr2();
    // The push that failed below the stack pointer was to the guard page.
    if frame.rsp.wrapping_sub(address) > GUARD_REACH {
        panic::exception(frame, address)
    }
    let below = |bottom: &AtomicU64| {
        bottom.load(Ordering::Relaxed).wrapping_sub(address).wrapping_sub(1) < GUARD_REACH
    };
    let own = cpu::this().own_stacks.iter().position(below);
    panic::stack_overflow(frame, address, own.map_or("kernel", |index| OWN_STACK_NAMES[index]))
}
