//! The auxiliary vector of a new program. The identity comes first, since it may change until the
//! program begins.

use freehold_vdso::AT_SYSINFO_EHDR;

use super::{elf, stack::aux};
use crate::hw::PAGE;
use crate::task::credentials::Credentials;
use crate::task::rseq;

/// AT_HWCAP2: programs may use RDFSBASE, WRFSBASE, RDGSBASE and WRGSBASE (HWCAP2_FSGSBASE).
const HWCAP2_FSGSBASE: u64 = 1 << 1;
/// AT_HWCAP: the bits of CPUID 1 EDX that every x86-64 CPU has (FPU, TSC, CX8, CMOV, MMX, FXSR,
/// SSE, SSE2).
const HWCAP: u64 = 0x0780_8111;

/// The entries of the auxiliary vector about the user that runs the program.
pub(super) type Identity = [(u64, u64); 5];

/// Returns the entries about the user with these credentials.
pub(super) fn identity(credentials: &Credentials) -> Identity {
    let Credentials { uid, euid, gid, egid, ref user_ns, .. } = *credentials;
    let secure = uid != euid || gid != egid;
    [
        (aux::UID, user_ns.shown_user(uid).into()),
        (aux::EUID, user_ns.shown_user(euid).into()),
        (aux::GID, user_ns.shown_group(gid).into()),
        (aux::EGID, user_ns.shown_group(egid).into()),
        (aux::SECURE, secure.into()),
    ]
}

/// Addresses of the parts of a program that the auxiliary vector reports.
pub(super) struct Bases {
    pub(super) vdso: u64,
    /// The interpreter's address; 0 for none.
    pub(super) interpreter: u64,
    /// The program's own entry point.
    pub(super) entry: u64,
    /// The difference between the program's addresses in memory and in its file.
    pub(super) bias: u64,
}

/// Returns all entries that do not depend on the stack.
pub(super) fn auxiliary(plan: &elf::Plan, bases: &Bases, identity: &Identity) -> [(u64, u64); 19] {
    let headers = if plan.headers == 0 { 0 } else { plan.headers.wrapping_add(bases.bias) };
    let [uid, euid, gid, egid, secure] = *identity;
    [
        uid,
        euid,
        gid,
        egid,
        secure,
        (AT_SYSINFO_EHDR, bases.vdso),
        (aux::MINSIGSTKSZ, 440 + 64 + crate::hw::user::xsave_size() as u64 + 128),
        (aux::HWCAP, HWCAP),
        (aux::PAGESZ, PAGE),
        (aux::CLKTCK, 100),
        (aux::PHDR, headers),
        (aux::PHENT, 56),
        (aux::PHNUM, plan.header_count),
        (aux::BASE, bases.interpreter),
        (aux::FLAGS, 0),
        (aux::ENTRY, bases.entry),
        (aux::RSEQ_FEATURE_SIZE, rseq::FEATURE_SIZE),
        (aux::RSEQ_ALIGN, rseq::ALIGNMENT),
        (aux::HWCAP2, if crate::hw::user::has_fsgsbase() { HWCAP2_FSGSBASE } else { 0 }),
    ]
}
