//! Machine checks: errors that the hardware finds in memory, caches and buses.
//!
//! Each CPU has banks of registers that say what happened. An error in kernel mode, or one that the
//! CPU cannot contain, is a panic: the report lists the banks. An error in user mode that leaves
//! the CPU's state intact (a poisoned load or fetch) costs the program a SIGBUS and has no other
//! effect. The frame stays where it is: a later use of it is another machine check.
//!
//! Nearest relative: Linux' `arch/x86/kernel/cpu/mce/`, without its rendezvous: a virtual machine's
//! banks are a CPU's own. Runs on the vector's own stack, between any two instructions: takes no
//! lock and allocates nothing. Manual: Intel SDM volume 3, 16.3 (registers), 16.6 (recovery).

use core::fmt;

use super::Registers;
use crate::registers::{self, MSR_MC0_CTL, MSR_MCG_CAP, MSR_MCG_CTL, MSR_MCG_STATUS, cpuid};

/// MCG_CAP: the number of banks, MCG_CTL exists, software error recovery.
const CAP_BANKS: u64 = 0xff;
const CAP_CTL: u64 = 1 << 8;
const CAP_RECOVERY: u64 = 1 << 24;
/// MCG_STATUS: the interrupted program can go on at its instruction pointer.
const RESTART_VALID: u64 = 1;
/// MCi_STATUS.
const VALID: u64 = 1 << 63;
const OVERFLOW: u64 = 1 << 62;
const UNCORRECTED: u64 = 1 << 61;
const MISC_VALID: u64 = 1 << 59;
const ADDRESS_VALID: u64 = 1 << 58;
const CONTEXT_CORRUPT: u64 = 1 << 57;
const SIGNALED: u64 = 1 << 56;
const ACTION_REQUIRED: u64 = 1 << 55;

/// Banks beyond these are ignored; no CPU has as many.
const MAX_BANKS: u32 = 32;
/// Registers per bank: control, status, address, miscellaneous.
const STRIDE: u32 = 4;

/// Consequence of a machine check for the CPU that got it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MachineCheckVerdict {
    /// No uncorrected error: continue.
    Continue,
    /// The program in user mode ends; everything else is intact. With the status of the bank.
    EndProgram(u64),
    /// No state can be trusted any more.
    EndMachine,
}

fn capabilities() -> u64 {
    let features = cpuid(1, 0).edx;
    // Machine-check exception and architecture.
    if features & 1 << 7 == 0 || features & 1 << 14 == 0 {
        return 0;
    }
    // SAFETY: CPUID says that the register is there.
    unsafe { registers::rdmsr(MSR_MCG_CAP) }
}

fn bank_count(capabilities: u64) -> u32 {
    ((capabilities & CAP_BANKS) as u32).min(MAX_BANKS)
}

/// Lets this CPU report errors that its banks find; errors that firmware left in them are cleared.
pub(crate) fn init_cpu() {
    let capabilities = capabilities();
    if capabilities & CAP_CTL != 0 {
        // SAFETY: the register is there; all ones turn everything on.
        unsafe { registers::wrmsr(MSR_MCG_CTL, u64::MAX) };
    }
    for bank in 0..bank_count(capabilities) {
        // SAFETY: a bank that is there; all ones enable all of its errors.
        unsafe { registers::wrmsr(MSR_MC0_CTL + STRIDE * bank, u64::MAX) };
        // SAFETY: zero clears the bank.
        unsafe { registers::wrmsr(MSR_MC0_CTL + STRIDE * bank + 1, 0) };
    }
}

/// One bank with a valid status.
#[derive(Clone, Copy)]
struct Bank {
    number: u32,
    status: u64,
}

impl Bank {
    fn register(self, offset: u32, valid: u64) -> Option<u64> {
        if self.status & valid == 0 {
            return None;
        }
        // SAFETY: the bank is there, and its status says that this register holds something.
        Some(unsafe { registers::rdmsr(MSR_MC0_CTL + STRIDE * self.number + offset) })
    }
}

impl fmt::Display for Bank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "; bank {}: status {:#x}", self.number, self.status)?;
        if let Some(address) = self.register(2, ADDRESS_VALID) {
            write!(f, ", physical address {address:#x}")?;
        }
        if let Some(misc) = self.register(3, MISC_VALID) {
            write!(f, ", misc {misc:#x}")?;
        }
        Ok(())
    }
}

/// Returns all banks with a valid status.
fn banks() -> impl Iterator<Item = Bank> {
    (0..bank_count(capabilities())).filter_map(|number| {
        // SAFETY: a bank that is there.
        let status = unsafe { registers::rdmsr(MSR_MC0_CTL + STRIDE * number + 1) };
        (status & VALID != 0).then_some(Bank { number, status })
    })
}

/// The banks as text, for the report of a panic.
pub(crate) struct Banks {
    status: u64,
}

impl fmt::Display for Banks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "global status {:#x}", self.status)?;
        banks().try_for_each(|bank| bank.fmt(f))
    }
}

fn global_status() -> u64 {
    if capabilities() == 0 {
        return 0;
    }
    // SAFETY: there is machine-check architecture.
    unsafe { registers::rdmsr(MSR_MCG_STATUS) }
}

/// Returns the verdict of the banks on the machine check in `frame`. Banks are emptied after a
/// check that the machine survives.
pub(super) fn judge_and_clear(frame: &Registers) -> MachineCheckVerdict {
    let status = global_status();
    let recovers = capabilities() & CAP_RECOVERY != 0;
    let user = frame.cs & 3 != 0;
    let worst = banks().map(|bank| judge(bank.status, status, recovers, user));
    let verdict = worst.fold(start(status), MachineCheckVerdict::worse);
    if verdict != MachineCheckVerdict::EndMachine {
        for bank in banks() {
            // SAFETY: zero clears the bank.
            unsafe { registers::wrmsr(MSR_MC0_CTL + STRIDE * bank.number + 1, 0) };
        }
        if capabilities() != 0 {
            // SAFETY: until the register is zero, the next machine check shuts the CPU down.
            unsafe { registers::wrmsr(MSR_MCG_STATUS, 0) };
        }
    }
    verdict
}

/// The banks of this CPU, to be printed.
pub(super) fn banks_as_text() -> Banks {
    Banks { status: global_status() }
}

/// Before any bank is read: without a valid instruction pointer, no code can continue.
fn start(global: u64) -> MachineCheckVerdict {
    if global & RESTART_VALID == 0 { MachineCheckVerdict::EndMachine } else { MachineCheckVerdict::Continue }
}

/// Returns the verdict on one bank's `status` (Intel SDM volume 3, table 16-6).
fn judge(status: u64, global: u64, recovers: bool, user: bool) -> MachineCheckVerdict {
    if status & UNCORRECTED == 0 {
        return MachineCheckVerdict::Continue;
    }
    let contained = recovers && global & RESTART_VALID != 0 && status & (CONTEXT_CORRUPT | OVERFLOW) == 0;
    match (contained, status & (SIGNALED | ACTION_REQUIRED)) {
        // Found by a scrubber or at a write-back: the data has not been used yet.
        (true, 0 | SIGNALED) => MachineCheckVerdict::Continue,
        (true, bits) if bits == SIGNALED | ACTION_REQUIRED && user => MachineCheckVerdict::EndProgram(status),
        _ => MachineCheckVerdict::EndMachine,
    }
}

impl MachineCheckVerdict {
    fn worse(self, other: Self) -> Self {
        match (self, other) {
            (MachineCheckVerdict::EndMachine, _) | (_, MachineCheckVerdict::EndMachine) => {
                MachineCheckVerdict::EndMachine
            }
            (MachineCheckVerdict::Continue, other) => other,
            (this, _) => this,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POISONED_LOAD: u64 = VALID | UNCORRECTED | SIGNALED | ACTION_REQUIRED | ADDRESS_VALID | 0x134;

    #[test]
    fn a_poisoned_load_of_a_program_ends_the_program_alone() {
        let verdict = judge(POISONED_LOAD, RESTART_VALID, true, true);
        assert_eq!(verdict, MachineCheckVerdict::EndProgram(POISONED_LOAD));
    }

    #[test]
    fn whatever_the_cpu_cannot_contain_ends_the_machine() {
        let end = MachineCheckVerdict::EndMachine;
        assert_eq!(judge(POISONED_LOAD, RESTART_VALID, true, false), end, "in kernel mode");
        assert_eq!(judge(POISONED_LOAD, 0, true, true), end, "no valid instruction pointer");
        assert_eq!(judge(POISONED_LOAD, RESTART_VALID, false, true), end, "a CPU without recovery");
        assert_eq!(judge(POISONED_LOAD | CONTEXT_CORRUPT, RESTART_VALID, true, true), end);
        assert_eq!(judge(POISONED_LOAD | OVERFLOW, RESTART_VALID, true, true), end);
        assert_eq!(start(0), end);
    }

    #[test]
    fn errors_that_nobody_used_or_that_were_corrected_change_nothing() {
        assert_eq!(judge(VALID, RESTART_VALID, true, false), MachineCheckVerdict::Continue);
        assert_eq!(
            judge(VALID | UNCORRECTED | SIGNALED, RESTART_VALID, true, false),
            MachineCheckVerdict::Continue
        );
        let fatal = MachineCheckVerdict::Continue
            .worse(MachineCheckVerdict::EndProgram(1))
            .worse(MachineCheckVerdict::EndMachine);
        assert_eq!(fatal.worse(MachineCheckVerdict::Continue), MachineCheckVerdict::EndMachine);
    }
}
