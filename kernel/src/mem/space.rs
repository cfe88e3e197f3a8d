//! A process' memory.
//!
//! A [`ProcessSpace`] is an address space, protected by one sleeping lock. Its translation (the
//! roots that a CPU loads) can be used without that lock, so a context switch never waits for a
//! fault. A CPU that has a space's root loaded holds an `Arc` of it, so the roots outlive their
//! use.
//!
//! If several tasks run in a space, the lock permits concurrent first accesses to anonymous memory
//! ([`ProcessSpace::fault_shared`]). An exclusive holder of the lock waits for these, at most for
//! the time of clearing 4 KiB.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use freehold_collections::{
    Arc, Vec, Weak,
    reserve::{self, ArcMethods},
};
use freehold_frame::{AccountId, AtomicAccountId};
use freehold_machine::{Cpus as _, PAGE_SIZE, VirtAddr};
use freehold_vm::{Access, FaultKind, Locking, SpaceHandle, Unmapped, Visited};

use super::{AddressSpace, Frames, commons};
use crate::Result;
use crate::fs::OpenFile;
use crate::hw::Hardware;
use crate::sched::{self, whereabouts::ConcurrencyIds};
use crate::sync::{PerCpuRwGuard, PerCpuRwLock, Sleeping, SleepingGuard, SpinLock};
use crate::task::credentials::Dumpable;
use crate::task::userns::UserNs;

/// The roots of one address space, for a context switch.
pub type Translation = freehold_vm::Translation<Frames>;

/// The guard of a locked space.
pub type SpaceGuard<'a> = SleepingGuard<'a, PerCpuRwGuard<'a, AddressSpace>>;

/// The layout of a program's memory, chosen at execve.
pub type ProgramLayout = freehold_vm::Layout;

/// Facts about the program in a space, for /proc and prctl.
#[derive(Clone, Default)]
pub struct Program {
    /// The executable, for /proc/PID/exe.
    pub executable: Option<Arc<OpenFile>>,
    /// First and last byte of code.
    pub code: Range<u64>,
    /// First and last byte of initialised data.
    pub data: Range<u64>,
    /// The initial break.
    pub break_start: u64,
    /// The stack pointer at the start.
    pub stack_start: u64,
    /// Argument strings.
    pub arguments: Range<u64>,
    /// Environment strings.
    pub environment: Range<u64>,
    /// The auxiliary vector, for /proc/PID/auxv. It is shared, because each fork copies this
    /// structure.
    pub auxiliary: Option<Arc<Vec<(u64, u64)>>>,
}

/// The default contents of a core file: private memory, shared anonymous memory, ELF headers, and
/// memory in huge pages (Linux: MMF_DUMP_FILTER_DEFAULT).
const DUMP_FILTER: u32 = 0x33;
const DUMP_FILTER_BITS: u32 = 0x1ff;

/// A process' memory.
pub struct ProcessSpace {
    id: u64,
    translation: Arc<Translation>,
    areas: Sleeping<PerCpuRwLock<AddressSpace>>,
    program: SpinLock<Program>,
    /// See [`SpaceHandle::account`].
    account: AtomicAccountId,
    /// See [`Dumpable`].
    dumpable: AtomicU32,
    /// The user namespace in which its program was started. Its capabilities apply to the memory,
    /// too.
    owner: SpinLock<UserNs>,
    /// /proc/PID/coredump_filter.
    dump_filter: AtomicU32,
    /// Whether an area may have a protection key of its own.
    keyed: AtomicBool,
    /// The concurrency IDs of the space's threads; made when a thread first needs them.
    concurrency_ids: SpinLock<Option<Arc<ConcurrencyIds>>>,
}

impl ProcessSpace {
    /// Makes an empty space.
    pub fn new(layout: ProgramLayout) -> Result<Arc<Self>> {
        Ok(Self::around(AddressSpace::new(commons(), layout)?, Program::default(), Dumpable::Yes))
    }

    /// Makes a space without any addresses, for kernel tasks. A process that ends gets it while it
    /// still has its files. So it is not dumpable: it must not open a process that was not.
    pub fn empty() -> Result<Arc<Self>> {
        let nowhere = VirtAddr(PAGE_SIZE as u64);
        let empty = Self::new(ProgramLayout { lowest: nowhere, end: nowhere, mmap_base: nowhere })?;
        empty.set_dumpable(Dumpable::No);
        Ok(empty)
    }

    /// Makes a copy-on-write copy, for fork.
    pub fn fork(&self) -> Result<Arc<Self>> {
        let areas = self.lock().fork()?;
        let program = self.program.lock().clone();
        let twin = Self::around(areas, program, self.dumpable());
        twin.set_dump_filter(self.dump_filter());
        twin.set_owner(self.owner());
        twin.keyed.store(self.has_keys(), Ordering::Relaxed);
        Ok(twin)
    }

    fn around(areas: AddressSpace, program: Program, dumpable: Dumpable) -> Arc<Self> {
        let translation = areas.translation().clone();
        let id = areas.id();
        let (areas, program) = (Sleeping::around(PerCpuRwLock::new(areas)), SpinLock::new(program));
        let dumpable = AtomicU32::new(dumpable.number());
        let dump_filter = AtomicU32::new(DUMP_FILTER);
        let (account, concurrency_ids) =
            (AtomicAccountId::new(sched::thread::account()), SpinLock::new(None));
        let space = reserve::arc(Self {
            id,
            translation,
            areas,
            program,
            dumpable,
            owner: SpinLock::new(UserNs::INITIAL),
            dump_filter,
            account,
            keyed: AtomicBool::new(false),
            concurrency_ids,
        });
        let handle: Weak<dyn SpaceHandle<Frames>> =
            (space.clone() as Arc<dyn SpaceHandle<Frames>>).downgrade();
        space.areas.lock().set_handle(handle);
        space
    }

    /// An area gets a protection key of its own.
    pub fn note_keys(&self) {
        self.keyed.store(true, Ordering::Relaxed);
    }
    /// Whether an area may have a protection key of its own.
    #[inline]
    pub fn has_keys(&self) -> bool {
        self.keyed.load(Ordering::Relaxed)
    }

    /// Returns the space's number, which is never reused.
    pub fn id(&self) -> u64 {
        self.id
    }
    /// Locks the areas. May sleep; the holder must not access user addresses.
    pub fn lock(&self) -> SpaceGuard<'_> {
        self.acted_for(self.areas.lock())
    }
    /// As [`lock`](Self::lock), if the lock is free now.
    pub(super) fn try_lock(&self) -> Option<SpaceGuard<'_>> {
        self.areas.try_lock().map(|areas| self.acted_for(areas))
    }
    /// Makes faults of the running task obey its memory policy.
    #[inline]
    fn acted_for<'a>(&self, areas: SpaceGuard<'a>) -> SpaceGuard<'a> {
        let mut areas = self.paid(areas);
        if let Some(policy) = super::policy::acting() {
            areas.act_for(policy);
        }
        areas
    }
    /// Charges pages that a task of another group, or the kernel, makes here to the group of the
    /// space.
    #[inline]
    fn paid<'a>(&self, mut areas: SpaceGuard<'a>) -> SpaceGuard<'a> {
        let filled = areas.inner().take_notes();
        areas.add_filled(filled);
        if Hardware.charges_frames() {
            let payer = self.account.load(Ordering::Relaxed);
            areas.pay_by((payer != sched::thread::account()).then_some(payer));
        }
        areas
    }
    /// Permits several tasks in the space from now on. If memory is short, they handle their faults
    /// one after the other.
    pub fn share(&self) {
        if !self.areas.inner().is_readable() && sched::online().len() > 1 {
            // Without memory for the counts nothing changes.
            let _ = self.areas.lock().inner().let_read(sched::online().len());
        }
    }
    /// Handles a fault of the running task concurrently with others, if that is possible. `None`,
    /// with nothing changed, if the lock is needed.
    #[inline]
    pub fn fault_shared(&self, addr: VirtAddr, access: Access) -> Option<FaultKind> {
        self.areas.read(|space, filled| {
            space.fault_shared((addr, access), super::policy::acting().flatten().as_deref(), filled)
        })?
    }
    /// Unmaps `len` bytes from `start` on. While CPUs flush the old translations, other threads may
    /// fill pages elsewhere.
    pub fn unmap(&self, start: VirtAddr, len: u64) -> Result<()> {
        let mut areas = self.lock();
        let mut unmapped = Unmapped::new(&self.translation);
        areas.unmap_first(start, len, &mut unmapped)?;
        let kept = areas.downgrade();
        unmapped.finish();
        drop(kept);
        Ok(())
    }
    /// Returns the page tables that a context switch loads.
    pub fn translation(&self) -> &Arc<Translation> {
        &self.translation
    }
    /// Returns whether processes with its IDs may inspect it.
    pub fn dumpable(&self) -> Dumpable {
        Dumpable::from_number(self.dumpable.load(Ordering::Acquire).into()).unwrap_or(Dumpable::No)
    }
    /// Sets whether processes with its IDs may inspect it.
    pub fn set_dumpable(&self, dumpable: Dumpable) {
        self.dumpable.store(dumpable.number(), Ordering::Release);
    }
    /// Returns the user namespace whose capabilities apply to its memory (Linux: the `user_ns` of
    /// an `mm_struct`).
    pub fn owner(&self) -> UserNs {
        self.owner.lock().clone()
    }
    /// Sets the user namespace whose capabilities apply to its memory.
    pub fn set_owner(&self, owner: UserNs) {
        let before = core::mem::replace(&mut *self.owner.lock(), owner);
        drop(before);
    }
    /// Returns the areas in a core file: bits of /proc/PID/coredump_filter.
    pub fn dump_filter(&self) -> u32 {
        self.dump_filter.load(Ordering::Relaxed)
    }
    /// Sets the areas in a core file; other bits are ignored.
    pub fn set_dump_filter(&self, bits: u32) {
        self.dump_filter.store(bits & DUMP_FILTER_BITS, Ordering::Relaxed);
    }
    /// Returns the concurrency IDs of its threads; `None` on a machine with one CPU, where no
    /// thread needs any.
    pub fn concurrency_ids(&self) -> Option<Arc<ConcurrencyIds>> {
        if sched::online().len() == 1 {
            return None;
        }
        if let Some(ids) = &*self.concurrency_ids.lock() {
            return Some(ids.clone());
        }
        let fresh = reserve::arc(ConcurrencyIds::default());
        // Another thread may have set the value first. An unused value is dropped without the lock.
        let (ids, unused) = {
            let mut ids = self.concurrency_ids.lock();
            match &*ids {
                Some(ids) => (ids.clone(), Some(fresh)),
                None => {
                    *ids = Some(fresh.clone());
                    (fresh, None)
                }
            }
        };
        drop(unused);
        Some(ids)
    }
    /// Charges its program to another account from now on.
    pub fn set_account(&self, account: AccountId) {
        self.account.store(account, Ordering::Relaxed);
    }
    /// Returns the facts about the program, for /proc and prctl.
    pub fn program(&self) -> Program {
        self.program.lock().clone()
    }
    /// Changes the facts about the program.
    pub fn update_program(&self, change: impl FnOnce(&mut Program)) {
        change(&mut self.program.lock());
    }
}

impl Drop for ProcessSpace {
    fn drop(&mut self) {
        // Adds what was counted beside the lock.
        let _areas = self.areas.try_lock().map(|areas| self.paid(areas));
    }
}

impl SpaceHandle<Frames> for ProcessSpace {
    fn with(&self, how: Locking, f: &mut dyn FnMut(&mut AddressSpace)) -> Visited {
        let areas = match how {
            Locking::Wait => self.areas.lock(),
            Locking::Try => match self.areas.try_lock() {
                Some(areas) => areas,
                None => return Visited::Busy,
            },
        };
        f(&mut self.paid(areas));
        Visited::Done
    }
    fn account(&self) -> AccountId {
        self.account.load(Ordering::Relaxed)
    }
}

/// Returns `len` bytes from `start` as whole pages; `None` if that wraps around.
pub(super) fn whole_pages(start: u64, len: u64) -> Option<Range<VirtAddr>> {
    Some(VirtAddr(start)..VirtAddr(start).checked_add(freehold_vm::whole_pages(len))?)
}
