//! mprotect(2), and protection keys: pkey_alloc(2), pkey_free(2), pkey_mprotect(2).
//!
//! An address space knows the keys of its areas, and which keys were given out
//! ([`freehold_vm::KeySet`]); each thread has its own rights to them, in a register
//! (`freehold_arch`'s module `key_rights`). As on Linux, freeing a key changes no area, and a range
//! that mprotect makes executable only gets a key of its own, which the thread may then not load.

use freehold_machine::{Access, KeyRights, ProtectionKey, VirtAddr};
use freehold_vm::{AreaFlags, KeyChange, Protect, ProtectExtent, Protection};

use super::{PROT_GROWSDOWN, PROT_GROWSUP, implies_exec, protection, with_space};
use crate::hw::user::{has_protection_keys, key_rights, set_key_rights};
use crate::mem::{AddressSpace, ProcessSpace};
use crate::syscall::Args;
use crate::task::Resource;
use crate::{Errno, Result, task};

/// mprotect(addr, length, prot)
pub fn sys_mprotect(args: &Args) -> Result<i64> {
    protect(args, None)
}

/// pkey_mprotect(address, length, protection, key). Key -1 makes it mprotect.
pub fn sys_pkey_mprotect(args: &Args) -> Result<i64> {
    match args.int(3) {
        -1 => protect(args, None),
        key => protect(args, Some(key)),
    }
}

/// Changes the protection of a range, and its key if one is given.
fn protect(args: &Args, key: Option<i32>) -> Result<i64> {
    let prot = args[2];
    let extent = match prot & (PROT_GROWSDOWN | PROT_GROWSUP) {
        0 => ProtectExtent::Exact,
        PROT_GROWSDOWN => ProtectExtent::GrowsDown,
        PROT_GROWSUP => ProtectExtent::GrowsUp,
        _ => return Err(Errno::EINVAL),
    };
    // PROT_SEM (8) is accepted and has no effect on this architecture.
    if prot & !(7 | 8 | PROT_GROWSDOWN | PROT_GROWSUP) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut protection = protection(prot)?;
    let data_limit = || task::with_current(|task| task.process().limit(Resource::Data).soft);
    let (start, len) = (VirtAddr(args[0]), args[1]);
    let implies_exec = implies_exec(protection);
    with_space(|space| {
        let mut areas = space.lock();
        let key = match key {
            Some(key) if len != 0 => KeyChange::Set(owned(&mut areas, key)?),
            None if protection == Protection::EXEC && len != 0 => execute_only(&mut areas),
            _ => KeyChange::Keep,
        };
        if implies_exec {
            // Linux decides for each area; here one that must not become executable decides for
            // all.
            let mut range = areas.areas_in(start, VirtAddr(start.0.saturating_add(len)));
            let all_may = range.all(|area| !area.flags.contains(AreaFlags::NEVEREXEC));
            protection.set(Protection::EXEC, all_may || protection.contains(Protection::EXEC));
        }
        note_key(space, key);
        areas.protect(Protect { start, len, protection, extent, key }, data_limit)?;
        Ok(0)
    })
}

/// From now on pins look at the keys of areas.
fn note_key(space: &ProcessSpace, key: KeyChange) {
    if !matches!(key, KeyChange::Keep | KeyChange::Set(ProtectionKey::DEFAULT)) {
        space.note_keys();
    }
}

/// Returns the key of this number, if the program has it.
fn owned(areas: &mut AddressSpace, number: i32) -> Result<ProtectionKey> {
    let key = u64::try_from(number).ok().and_then(ProtectionKey::new);
    let key = key.filter(|&key| has_protection_keys() && areas.keys().has(key));
    key.ok_or(Errno::EINVAL)
}

/// Returns the key change for memory that can only be executed, and takes the thread's right to
/// load it. The memory can be loaded if there is no key (Linux: `__execute_only_pkey`).
#[cold]
fn execute_only(areas: &mut AddressSpace) -> KeyChange {
    if !has_protection_keys() {
        return KeyChange::Keep;
    }
    let is_new = areas.keys().execute_only().is_none();
    let Some(key) = areas.keys().take_execute_only() else { return KeyChange::Keep };
    let rights = key_rights();
    if is_new || !rights.denies(key, Access::Read) {
        set_key_rights(rights.with_denial(key, KeyRights::DENY_ACCESS));
    }
    KeyChange::Set(key)
}

/// Gives a new area of memory that can only be executed the key for that. Without the memory to
/// split areas it stays as it is.
#[cold]
pub(super) fn make_execute_only(space: &ProcessSpace, areas: &mut AddressSpace, start: VirtAddr, len: u64) {
    let key = execute_only(areas);
    note_key(space, key);
    let (protection, extent) = (Protection::EXEC, ProtectExtent::Exact);
    let _ = areas.protect(Protect { start, len, protection, extent, key }, || u64::MAX);
}

/// pkey_alloc(flags, rights): takes a key, and gives the thread these rights to it.
pub fn sys_pkey_alloc(args: &Args) -> Result<i64> {
    let [flags, denial, ..] = args.all();
    if flags != 0 || denial & !u64::from(KeyRights::DENY_ACCESS | KeyRights::DENY_WRITE) != 0 {
        return Err(Errno::EINVAL);
    }
    if !has_protection_keys() {
        return Err(Errno::ENOSPC);
    }
    let key = with_space(|space| space.lock().keys().allocate()).ok_or(Errno::ENOSPC)?;
    set_key_rights(key_rights().with_denial(key, denial as u32));
    Ok(key.number().into())
}

/// pkey_free(key)
pub fn sys_pkey_free(args: &Args) -> Result<i64> {
    with_space(|space| {
        let mut areas = space.lock();
        let key = owned(&mut areas, args.int(0))?;
        areas.keys().free(key)?;
        Ok(0)
    })
}
