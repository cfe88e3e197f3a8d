//! Operations of rseq(2): registering, storing a thread's CPU and IDs in its memory, and aborting
//! its sections. [`super::rseq`] has the registered state.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, reserve::ArcMethods};

use super::rseq::{Section, is_acceptable};
use crate::hw::user::{USER_END, UserContext};
use crate::sched::thread::PLACE;
use crate::sched::whereabouts::Company;
use crate::syscall::Args;
use crate::task::Task;
use crate::task::signal::Signal;
use crate::user::UserPtr;
use crate::{Errno, Result, hw};

const CPU_START: u64 = 0;
const CPU: u64 = 4;
const SECTION: u64 = 8;
const FLAGS: u64 = 16;
const NODE: u64 = 20;
const ID: u64 = 24;
/// The CPU number if nothing is registered.
const UNINITIALIZED: u32 = u32::MAX;
/// Size of the signature, which precedes the handler's first instruction.
const SIGNATURE_BYTES: u64 = 4;

const UNREGISTER: i32 = 1;

/// rseq(address, length, flags, signature)
pub fn sys_rseq(args: &Args) -> Result<i64> {
    let (address, length, flags, signature) = (args[0], args.uint(1), args.int(2), args.uint(3));
    crate::task::with_current(|task| {
        let now = &task.rseq;
        let is_same =
            now.address.load(Ordering::Relaxed) == address && now.length.load(Ordering::Relaxed) == length;
        let is_signed = now.signature.load(Ordering::Relaxed) == signature;
        match flags {
            UNREGISTER if !now.is_there() || !is_same => Err(Errno::EINVAL),
            UNREGISTER if !is_signed => Err(Errno::EPERM),
            UNREGISTER => {
                write_place(address, (0, UNINITIALIZED), (0, 0))?;
                task.leave_rseq();
                Ok(0)
            }
            0 if now.is_there() && !is_same => Err(Errno::EINVAL),
            0 if now.is_there() && !is_signed => Err(Errno::EPERM),
            0 if now.is_there() => Err(Errno::EBUSY),
            0 => task.register(address, length, signature),
            _ => Err(Errno::EINVAL),
        }
    })
}

/// Stores the CPU's number, twice, its node and the concurrency ID.
fn write_place(address: u64, (start, cpu): (u32, u32), (node, id): (u32, u32)) -> Result<()> {
    for (offset, value) in [(CPU_START, start), (CPU, cpu), (NODE, node), (ID, id)] {
        UserPtr::<u32>::new(address + offset).write(&value)?;
    }
    Ok(())
}

impl Task {
    fn register(&self, address: u64, length: u32, signature: u32) -> Result<i64> {
        if !is_acceptable(address, length) {
            return Err(Errno::EINVAL);
        }
        // Address 0 (NULL, never mapped) stands for no registration here.
        if address == 0 || address.checked_add(u64::from(length)).is_none_or(|end| end > USER_END) {
            return Err(Errno::EFAULT);
        }
        // Old C libraries reuse an ended thread's memory, with its section, for a new thread.
        let section = UserPtr::<u64>::new(address + SECTION);
        if section.read()? != 0 {
            section.write(&0)?;
        }
        self.rseq.address.store(address, Ordering::Relaxed);
        self.rseq.length.store(length, Ordering::Relaxed);
        self.rseq.signature.store(signature, Ordering::Relaxed);
        self.rseq.told.store(0, Ordering::Relaxed);
        self.rseq.preempted.store(false, Ordering::Relaxed);
        self.watch_place(self.process().space().concurrency_ids());
        Ok(0)
    }

    /// Copies the registration of `parent` to a new task that has a copy of the parent's memory.
    pub(in crate::task) fn inherit_rseq(&self, parent: &Self) {
        if parent.rseq.is_there() {
            self.rseq.inherit(&parent.rseq);
            self.watch_place(self.process().space().concurrency_ids());
        }
    }

    /// Ends the current thread's registration. Its memory is not changed.
    pub(in crate::task) fn leave_rseq(&self) {
        if self.rseq.is_there() {
            self.rseq.address.store(0, Ordering::Relaxed);
            self.forget_place();
        }
    }

    /// Records that the program was interrupted, or faulted. The thread may have left its CPU since
    /// `left` was cleared.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_preemption(&self) {
        if self.rseq.is_there() && self.schedule.left.load(Ordering::Relaxed) {
            self.rseq.preempted.store(true, Ordering::Relaxed);
            self.call_attention(PLACE);
        }
    }

    /// Called before the return to user mode if [`PLACE`] is set: aborts a section, and stores
    /// changed numbers.
    #[cold]
    #[inline(never)]
    pub(crate) fn attend_place(self: &Arc<Self>, context: &mut UserContext) {
        self.answer_call(PLACE);
        if !self.rseq.is_there() {
            return;
        }
        let was_preempted = self.rseq.preempted.swap(false, Ordering::Relaxed);
        let ended = if was_preempted { self.end_section(context) } else { Ok(()) };
        if ended.and_then(|()| self.tell_place()).is_err() {
            self.fail_delivery(None);
        }
    }

    /// Called before the handler of `signal` is entered.
    #[inline]
    pub(in crate::task) fn end_section_for(&self, context: &mut UserContext, signal: Signal) {
        if context.was_interrupted() && self.rseq.is_there() {
            self.end_section_or_fail(context, signal);
        }
    }

    // Not inlined, because it would make every signal's delivery save more registers.
    #[cold]
    #[inline(never)]
    fn end_section_or_fail(&self, context: &mut UserContext, signal: Signal) {
        if self.end_section(context).is_err() {
            self.fail_delivery(Some(signal));
        }
    }

    /// If the program is in its section, makes it continue at the handler. It is in no section
    /// afterwards.
    fn end_section(&self, context: &mut UserContext) -> Result<()> {
        let address = self.rseq.address.load(Ordering::Relaxed);
        let slot = UserPtr::<u64>::new(address + SECTION);
        let at = slot.read()?;
        if at == 0 {
            return Ok(());
        }
        if at >= USER_END {
            return Err(Errno::EINVAL);
        }
        let section = UserPtr::<Section>::new(at).read()?;
        if !section.is_sound(USER_END) {
            return Err(Errno::EINVAL);
        }
        // The signature shows that no attacker chose the address: it lies in code, before the
        // handler.
        let signed = UserPtr::<u32>::new(section.abort.wrapping_sub(SIGNATURE_BYTES)).read()?;
        if signed != self.rseq.signature.load(Ordering::Relaxed) {
            return Err(Errno::EINVAL);
        }
        let is_inside = section.contains(context.regs().rip);
        if is_inside && (section.flags != 0 || UserPtr::<u32>::new(address + FLAGS).read()? != 0) {
            return Err(Errno::EINVAL);
        }
        slot.write(&0)?;
        if is_inside {
            context.regs_mut().rip = section.abort;
        }
        Ok(())
    }

    /// Stores the thread's CPU and IDs, if they have changed. If the thread moves meanwhile, it is
    /// marked again.
    fn tell_place(&self) -> Result<()> {
        let cpu = hw::current_cpu();
        let node = hw::node_of(cpu);
        let id = self.concurrency_id(|| self.company());
        let place = (u64::from(cpu.0) + 1) << 32 | u64::from(node.0) << 16 | u64::from(id);
        if self.rseq.told.load(Ordering::Relaxed) == place {
            return Ok(());
        }
        let address = self.rseq.address.load(Ordering::Relaxed);
        // In case storing fails half-way.
        self.rseq.told.store(0, Ordering::Relaxed);
        let cpu = u32::from(cpu.0);
        write_place(address, (cpu, cpu), (u32::from(node.0), id))?;
        self.rseq.told.store(place, Ordering::Relaxed);
        Ok(())
    }

    fn company(&self) -> Company {
        // One reference is the process', the other is the one here.
        let is_alone = self.process().thread_count() == 1 && self.with_space(|space| space.references() <= 2);
        if is_alone { Company::Alone } else { Company::Others }
    }
}
