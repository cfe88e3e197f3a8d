//! The rights to protection keys (PKRU) of the thread that runs.
//!
//! The register is the running thread's at any time, in the kernel too: the kernel's accesses at
//! the program's addresses obey it. So a switch of threads changes it ([`switch`]), and XSAVE and
//! XRSTOR there leave it alone. In a state for programs (a handler's frame, a tracer's view) it is
//! an XSAVE component. Manual: Intel SDM volume 1, 13.5.7; volume 3, 4.6.2.

#[cfg(target_os = "none")]
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use freehold_machine::KeyRights;

use super::UserContext;

/// PKRU, as an XSAVE component.
pub(super) const COMPONENT: usize = 9;
/// The component's bit in XCR0.
pub(super) const FEATURE: u64 = 1 << COMPONENT;

/// Whether CR4.PKE is set on all CPUs.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

/// Whether user pages have protection keys.
#[inline]
pub fn has_protection_keys() -> bool {
    ARE_THERE.load(Ordering::Relaxed)
}

/// Gives this CPU's register the first value, after CR4.PKE was set.
pub(super) fn init_cpu() {
    ARE_THERE.store(true, Ordering::Relaxed);
    write(KeyRights::INITIAL);
}

/// Returns the running thread's rights; the initial ones where pages have no keys.
#[inline]
pub fn key_rights() -> KeyRights {
    if has_protection_keys() { read() } else { KeyRights::INITIAL }
}

/// Changes the running thread's rights. Has no effect where pages have no keys.
pub fn set_key_rights(rights: KeyRights) {
    if has_protection_keys() && read() != rights {
        write(rights);
    }
}

#[inline(always)]
fn read() -> KeyRights {
    #[cfg(target_os = "none")]
    {
        let bits: u32;
        // SAFETY: CR4.PKE is on; ECX is zero as required.
        unsafe { asm!("rdpkru", in("ecx") 0, out("eax") bits, out("edx") _, options(nomem, nostack)) };
        KeyRights::from_bits(bits)
    }
    #[cfg(not(target_os = "none"))]
    KeyRights::INITIAL
}

fn write(rights: KeyRights) {
    #[cfg(target_os = "none")]
    // SAFETY: CR4.PKE is on; ECX and EDX are zero as required. It restricts accesses at programs'
    // addresses only, which may fail at any time.
    unsafe {
        asm!("wrpkru", in("eax") rights.bits(), in("ecx") 0, in("edx") 0, options(nostack))
    };
    #[cfg(not(target_os = "none"))]
    let _ = rights;
}

impl UserContext {
    /// Gives the running thread, a new one, the rights to protection keys that the program had when
    /// it was copied.
    pub fn take_first_rights(&self) {
        set_key_rights(self.first_rights);
    }
}

/// The rights of a thread while it does not run.
pub(crate) struct SavedRights(AtomicU32);

impl SavedRights {
    /// The rights of a new thread.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(KeyRights::INITIAL.bits()))
    }
}

/// The CPU leaves one thread for another. Interrupts are off. Most threads have the same rights,
/// and writing the register is slow.
#[inline(always)]
pub(crate) fn switch(left: &SavedRights, next: &SavedRights) {
    if !has_protection_keys() {
        return;
    }
    let (now, then) = (read(), next.0.load(Ordering::Relaxed));
    left.0.store(now.bits(), Ordering::Relaxed);
    if now.bits() != then {
        write(KeyRights::from_bits(then));
    }
}
