//! A small world: processes on the software machine's CPUs.

use std::boxed::Box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockWriteGuard, TryLockError, Weak};

use freehold_charge::{AccountEntry, Accounts, CHUNK};
use freehold_frame::AccountId;
pub use freehold_machine::PAGE;
use freehold_machine::model::{Config, Model};
use freehold_machine::{CpuId, Cpus, Pfn, Tlb, VirtAddr};
use freehold_paging::model::{ASKER, KERNEL_ROOTS, ModelFrames};
use freehold_paging::{Roots, USER_END};

use crate::*;

pub type Cache = PageCache<ModelFrames>;
pub type File = Arc<dyn MappedFile<ModelFrames>>;

pub const RW: Protection = Protection::READ.union(Protection::WRITE);

pub struct World {
    pub frames: ModelFrames,
    pub commons: Arc<Commons<ModelFrames>>,
    /// The accounts; [`ASKER`] is charged for all frames.
    pub accounts: &'static Accounts,
}

impl World {
    pub fn new() -> Self {
        Self::with(Config { cpus: 3, nodes: 2, frames: 4096, seed: 3 })
    }
    pub fn with(config: Config) -> Self {
        let frames = ModelFrames::new(config);
        let commons = Commons::new(frames, KERNEL_ROOTS).unwrap();
        let accounts = accounts();
        commons.swap().charge_to(accounts);
        Self { frames, commons, accounts }
    }
    pub fn model(&self) -> Model {
        self.frames.model()
    }
    pub fn space(&self) -> AddressSpace<ModelFrames> {
        AddressSpace::new(&self.commons, layout()).unwrap()
    }
    /// A process that runs on `cpu`.
    pub fn process(&self, cpu: u16) -> Process {
        Process::around(self.model(), self.space(), cpu)
    }
    /// A file in memory with these bytes.
    pub fn file(&self, bytes: &[u8]) -> File {
        let cache = Cache::new(self.frames);
        write(&cache, 0, bytes);
        Arc::new(TestFile(cache))
    }
    /// Checks that everything has been freed.
    pub fn end(self) {
        self.model().assert_coherent();
        assert_eq!(Arc::strong_count(&self.commons), 1, "an address space still lives");
        assert_eq!(self.commons.promised_pages(), 0, "promises that nobody holds");
        drop(self.commons);
        self.frames.assert_all_free();
    }
}

/// Accounts, among them the one that is charged for frames.
fn accounts() -> &'static Accounts {
    let accounts: &Accounts = Box::leak(Box::new(Accounts::new()));
    let room = || Some(&*Box::leak(Box::new([const { AccountEntry::EMPTY }; CHUNK])));
    while accounts.open(AccountId::ROOT, room).unwrap() != ASKER {}
    accounts
}

pub fn layout() -> Layout {
    Layout { lowest: VirtAddr(0x1_0000), end: USER_END, mmap_base: VirtAddr(0x7fff_0000_0000) }
}

pub struct TestFile(pub Arc<Cache>);

impl MappedFile<ModelFrames> for TestFile {
    fn cache(&self) -> &Arc<Cache> {
        &self.0
    }
}

pub fn write(cache: &Cache, offset: u64, bytes: &[u8]) {
    let mut done = 0;
    let n = cache.write_at(offset, bytes.len(), |to| {
        to.copy_from_slice(&bytes[done..done + to.len()]);
        done += to.len();
        to.len()
    });
    assert_eq!(n, Ok(bytes.len()));
}

pub fn read(cache: &Cache, offset: u64, len: usize) -> std::vec::Vec<u8> {
    let mut out = std::vec::Vec::new();
    cache
        .read_at(offset, len, |from| {
            out.extend_from_slice(from);
            from.len()
        })
        .unwrap();
    out
}

pub struct Locked(RwLock<AddressSpace<ModelFrames>>, AtomicU64);

impl Locked {
    pub fn lock(&self) -> RwLockWriteGuard<'_, AddressSpace<ModelFrames>> {
        let mut space = self.0.write().unwrap();
        space.add_filled(self.1.swap(0, Ordering::Relaxed));
        space
    }
    /// Handles a fault concurrently with other CPUs if possible, else with the lock.
    pub fn fault(&self, addr: VirtAddr, access: Access, limits: &Limits) -> Result<FaultKind, FaultError> {
        match self.fault_shared(addr, access) {
            Some(kind) => Ok(kind),
            None => self.lock().fault(addr, access, limits),
        }
    }
    pub fn fault_shared(&self, addr: VirtAddr, access: Access) -> Option<FaultKind> {
        self.0.read().unwrap().fault_shared((addr, access), None, &self.1)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Ok(space) = self.0.get_mut() {
            space.add_filled(*self.1.get_mut());
        }
    }
}

impl SpaceHandle<ModelFrames> for Locked {
    fn with(&self, how: Locking, f: &mut dyn FnMut(&mut AddressSpace<ModelFrames>)) -> Visited {
        let mut space = match (how, self.0.try_write()) {
            (_, Ok(space)) => space,
            (Locking::Wait, Err(_)) => self.0.write().unwrap(),
            (Locking::Try, Err(TryLockError::WouldBlock)) => return Visited::Busy,
            (Locking::Try, Err(TryLockError::Poisoned(_))) => panic!("who had the space has panicked"),
        };
        space.add_filled(self.1.swap(0, Ordering::Relaxed));
        f(&mut space);
        Visited::Done
    }
}

/// A process with one thread on one CPU, which keeps its root loaded. Dropping it is exit.
pub struct Process {
    pub model: Model,
    pub locked: Arc<Locked>,
    pub roots: Arc<Roots<ModelFrames>>,
    pub cpu: CpuId,
    pub limits: Limits,
    pub judge: Judge,
}

/// When stale translations are searched for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// After each step of the process: no other process is active.
    EachRun,
    /// Not while threads are active.
    AtTheEnd,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Process {
    pub fn around(model: Model, space: AddressSpace<ModelFrames>, cpu: u16) -> Self {
        let roots = space.translation().clone();
        let locked = Arc::new(Locked(RwLock::new(space), AtomicU64::new(0)));
        let handle: Weak<dyn SpaceHandle<ModelFrames>> =
            Arc::downgrade(&(locked.clone() as Arc<dyn SpaceHandle<_>>));
        locked.lock().set_handle(handle);
        Self { model, locked, roots, cpu: CpuId(cpu), limits: Limits::NONE, judge: Judge::EachRun }
    }
    pub fn space(&self) -> RwLockWriteGuard<'_, AddressSpace<ModelFrames>> {
        self.locked.lock()
    }
    /// Another thread of it, on `cpu`.
    pub fn thread(&self, cpu: u16) -> Self {
        let (locked, roots, cpu) = (self.locked.clone(), self.roots.clone(), CpuId(cpu));
        Self { model: self.model, locked, roots, cpu, limits: Limits::NONE, judge: self.judge }
    }
    /// Runs `f` as the process, on its CPU. Afterwards every entry of its TLB must be in the
    /// tables.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        self.model.on_cpu(self.cpu, || {
            self.roots.load(&self.model.pin(), &mut None);
            let result = f();
            match self.judge {
                Judge::EachRun => {
                    self.model.assert_coherent();
                    self.space().validate_promise();
                }
                // Other threads may be between a change and its flush, so each run starts with an
                // empty TLB.
                Judge::AtTheEnd => self.leave(),
            }
            result
        })
    }
    fn leave(&self) {
        if self.roots.users().contains(self.cpu) {
            self.model.on_cpu(self.cpu, || {
                let pinned = self.model.pin();
                self.model.load_root(Pfn(0));
                self.roots.unload(&pinned);
            });
        }
    }
    fn touch<R>(
        &self,
        addr: u64,
        access: Access,
        f: impl Fn(VirtAddr) -> Result<R, freehold_machine::model::AccessFault>,
    ) -> Result<R, FaultError> {
        // Other threads may remove the page between the fault and the access. They may not have
        // flushed it yet: a new page is cached before the program's own access.
        let tries = match self.judge {
            Judge::EachRun => 3,
            Judge::AtTheEnd => {
                self.model.let_flushes_be_late();
                10_000
            }
        };
        self.run(|| {
            for _ in 0..tries {
                if let Ok(result) = f(VirtAddr(addr)) {
                    return Ok(result);
                }
                self.space().fault(VirtAddr(addr), access, &self.limits)?;
            }
            panic!("{access:?} at {addr:#x} faults for ever");
        })
    }
    pub fn load(&self, addr: u64) -> Result<u8, FaultError> {
        self.touch(addr, Access::Read, |addr| self.model.load(addr))
    }
    pub fn store(&self, addr: u64, value: u8) -> Result<(), FaultError> {
        self.touch(addr, Access::Write, |addr| self.model.store(addr, value))
    }
    pub fn execute(&self, addr: u64) -> Result<(), FaultError> {
        self.touch(addr, Access::Execute, |addr| self.model.access(addr, Access::Execute)).map(drop)
    }
    pub fn usage(&self) -> Usage {
        self.space().usage()
    }
    pub fn frame(&self, addr: u64) -> Pfn {
        self.space().resident.tables.entry(VirtAddr(addr)).frame()
    }
    pub fn map(
        &self,
        place: AreaPlace,
        pages: u64,
        protection: Protection,
        backing: Backing<ModelFrames>,
    ) -> Result<u64, VmError> {
        // Copies of the file's pages fall before it can be stored to.
        let changed = match &backing {
            Backing::SharedFile(view, SharedWrite::Allowed) => Some(view.file.clone()),
            _ => None,
        };
        let _change = changed.as_ref().and_then(|file| file.cache().expect_stores());
        let request = MapRequest { place, len: pages * PAGE, protection, backing, flags: AreaFlags::empty() };
        let mut space = self.space();
        let start = space.map(request, &self.limits)?;
        let _: Result<(), VmError> = populate_due(&mut space, Populate::AsAllowed);
        Ok(start.0)
    }
    pub fn anonymous(&self, pages: u64) -> u64 {
        self.map(AreaPlace::Anywhere, pages, RW, Backing::Anonymous).unwrap()
    }
    pub fn fork(&self, cpu: u16) -> Self {
        let child = self.run(|| self.space().fork().unwrap());
        Self::around(self.model, child, cpu)
    }
    pub fn unmap(&self, addr: u64, pages: u64) -> Result<(), VmError> {
        self.run(|| self.space().unmap(VirtAddr(addr), pages * PAGE))
    }
    pub fn protect(&self, addr: u64, pages: u64, protection: Protection) -> Result<(), VmError> {
        let (start, len, extent) = (VirtAddr(addr), pages * PAGE, ProtectExtent::Exact);
        let key = KeyChange::Keep;
        let wish = Protect { start, len, protection, extent, key };
        self.run(|| self.space().protect(wish, || self.limits.data))
    }
    pub fn advise(&self, addr: u64, pages: u64, advice: Advice) -> Result<(), VmError> {
        self.run(|| self::advise(&mut self.space(), VirtAddr(addr), pages * PAGE, advice))
    }
    /// Lock pages and make them present.
    pub fn lock(&self, addr: u64, pages: u64, limits: &Limits) -> Result<(), VmError> {
        self.run(|| {
            let mut space = self.space();
            let outcome = space.lock(VirtAddr(addr), pages * PAGE, LockMode::Now, limits);
            populate_due(&mut space, Populate::AsAllowed).and(outcome)
        })
    }
}

/// Makes the pages present that the last call promised, a few at a time.
pub fn populate_due(space: &mut AddressSpace<ModelFrames>, how: Populate) -> Result<(), VmError> {
    let Some(due) = space.take_due() else { return Ok(()) };
    let mut next = due.start;
    while next < due.end {
        next = space.populate_some(next..due.end, how, 3)?;
    }
    Ok(())
}

/// Gives advice. If the advice requires that pages become present, makes them present.
pub fn advise(
    space: &mut AddressSpace<ModelFrames>,
    addr: VirtAddr,
    len: u64,
    advice: Advice,
) -> Result<(), VmError> {
    let how = if advice == Advice::PopulateWrite { Populate::Write } else { Populate::Read };
    let outcome = space.advise(addr, len, advice);
    populate_due(space, how).and(outcome)
}

/// Returns a shared, writable backing of `cache` from its first byte on.
pub fn shared(cache: &Arc<Cache>) -> Backing<ModelFrames> {
    let file: File = Arc::new(TestFile(cache.clone()));
    Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)
}

pub fn view(file: &File, offset: u64) -> FileView<ModelFrames> {
    FileView { file: file.clone(), offset }
}

pub const MAPERR: FaultError = FaultError::Segv(SegvCode::MapErr);
pub const ACCERR: FaultError = FaultError::Segv(SegvCode::AccErr);
