//! A process' memory.
//!
//! A [`ProcessSpace`] is an address space behind one sleeping lock; its translation (the roots a
//! CPU loads) is reached without that lock, so that a context switch never waits for a fault. A CPU
//! that has a space's root loaded holds an `Arc` of it, so the roots outlive their use.
//!
//! Where several tasks run in a space, the lock lets first touches of anonymous memory in beside
//! each other ([`ProcessSpace::fault_shared`]). An exclusive holder of the lock waits for these,
//! for the time of 4 KiB of zeroes at most.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

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

/// The roots of one address space, as a context switch loads them.
pub type Translation = freehold_vm::Translation<Frames>;

/// The proof that a space is locked.
pub type SpaceGuard<'a> = SleepingGuard<'a, PerCpuRwGuard<'a, AddressSpace>>;

/// Where a program's memory lies; chosen at execve.
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
    /// Where the break began.
    pub break_start: u64,
    /// The stack pointer at the start.
    pub stack_start: u64,
    /// Argument strings.
    pub arguments: Range<u64>,
    /// Environment strings.
    pub environment: Range<u64>,
    /// The auxiliary vector, for /proc/PID/auxv; shared, since each fork copies what is here.
    pub auxiliary: Option<Arc<Vec<(u64, u64)>>>,
}

/// The areas of a core file at first: private memory, shared anonymous memory, ELF headers, and
/// what is in huge pages (Linux: MMF_DUMP_FILTER_DEFAULT).
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
    /// The user namespace that its program was begun in; its capabilities are over the memory, too.
    owner: SpinLock<UserNs>,
    /// /proc/PID/coredump_filter.
    dump_filter: AtomicU32,
    /// The concurrency IDs of the space's threads; made when the first thread asks.
    concurrency_ids: SpinLock<Option<Arc<ConcurrencyIds>>>,
}

impl ProcessSpace {
    /// An empty space.
    pub fn new(layout: ProgramLayout) -> Result<Arc<Self>> {
        Ok(Self::around(AddressSpace::new(commons(), layout)?, Program::default(), Dumpable::Yes))
    }

    /// A space without a single address, for the kernel's own tasks.
    pub fn empty() -> Result<Arc<Self>> {
        let nowhere = VirtAddr(PAGE_SIZE as u64);
        Self::new(ProgramLayout { lowest: nowhere, end: nowhere, mmap_base: nowhere })
    }

    /// A copy-on-write twin, for fork.
    pub fn fork(&self) -> Result<Arc<Self>> {
        let areas = self.lock().fork()?;
        let program = self.program.lock().clone();
        let twin = Self::around(areas, program, self.dumpable());
        twin.set_dump_filter(self.dump_filter());
        twin.set_owner(self.owner());
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
            concurrency_ids,
        });
        let handle: Weak<dyn SpaceHandle<Frames>> =
            (space.clone() as Arc<dyn SpaceHandle<Frames>>).downgrade();
        space.areas.lock().set_handle(handle);
        space
    }

    /// A number no other space has ever had.
    pub fn id(&self) -> u64 {
        self.id
    }
    /// The areas, locked. May sleep; the holder must not touch user addresses.
    pub fn lock(&self) -> SpaceGuard<'_> {
        self.acted_for(self.areas.lock())
    }
    /// As [`lock`](Self::lock), if the lock is free now.
    pub(super) fn try_lock(&self) -> Option<SpaceGuard<'_>> {
        self.areas.try_lock().map(|areas| self.acted_for(areas))
    }
    /// Faults of the running task obey its memory policy.
    #[inline]
    fn acted_for<'a>(&self, areas: SpaceGuard<'a>) -> SpaceGuard<'a> {
        let mut areas = self.paid(areas);
        if let Some(policy) = super::policy::acting() {
            areas.act_for(policy);
        }
        areas
    }
    /// Pages that a task of another group, or the kernel, makes here are the group's of the space.
    #[inline]
    fn paid<'a>(&self, mut areas: SpaceGuard<'a>) -> SpaceGuard<'a> {
        areas.add_filled();
        if Hardware.charges_frames() {
            let payer = self.account.load(Ordering::Relaxed);
            areas.pay_by((payer != sched::thread::account()).then_some(payer));
        }
        areas
    }
    /// From now on several tasks may run in it. Where memory is short, they serve their faults one
    /// after the other.
    pub fn share(&self) {
        if !self.areas.inner().is_readable() && sched::online().len() > 1 {
            // Without room for the counts nothing changes.
            let _ = self.areas.lock().inner().let_read(sched::online().len());
        }
    }
    /// Serve a fault of the running task beside others that do the same, if that is possible:
    /// `None`, and nothing changed, where the lock is needed.
    #[inline]
    pub fn fault_shared(&self, addr: VirtAddr, access: Access) -> Option<FaultKind> {
        self.areas
            .read(|space| space.fault_shared(addr, access, super::policy::acting().flatten().as_deref()))?
    }
    /// Unmap `len` bytes from `start` on. While CPUs forget what was there, others may fill pages
    /// elsewhere.
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
    /// Whether processes with its ids may inspect it.
    pub fn dumpable(&self) -> Dumpable {
        Dumpable::from_number(self.dumpable.load(Ordering::Acquire).into()).unwrap_or(Dumpable::No)
    }
    /// Let processes with its ids inspect it, or not.
    pub fn set_dumpable(&self, dumpable: Dumpable) {
        self.dumpable.store(dumpable.number(), Ordering::Release);
    }
    /// The user namespace whose capabilities are over its memory (Linux: the `user_ns` of an
    /// `mm_struct`).
    pub fn owner(&self) -> UserNs {
        self.owner.lock().clone()
    }
    /// Sets that.
    pub fn set_owner(&self, owner: UserNs) {
        let before = core::mem::replace(&mut *self.owner.lock(), owner);
        drop(before);
    }
    /// Which areas a core file has: bits of /proc/PID/coredump_filter.
    pub fn dump_filter(&self) -> u32 {
        self.dump_filter.load(Ordering::Relaxed)
    }
    /// Sets that; other bits are left out.
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
        // Another thread may have been faster; an unused value is dropped without the lock.
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
    /// Its program pays with another account from now on.
    pub fn set_account(&self, account: AccountId) {
        self.account.store(account, Ordering::Relaxed);
    }
    /// Returns the facts about the program, for /proc and prctl.
    pub fn program(&self) -> Program {
        self.program.lock().clone()
    }
    /// Change it.
    pub fn update_program(&self, change: impl FnOnce(&mut Program)) {
        change(&mut self.program.lock());
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

/// `len` bytes from `start` as whole pages; `None` if that wraps around.
pub(super) fn whole_pages(start: u64, len: u64) -> Option<Range<VirtAddr>> {
    Some(VirtAddr(start)..VirtAddr(start).checked_add(freehold_vm::whole_pages(len))?)
}
