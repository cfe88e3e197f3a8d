//! Roots that CPUs load: one top-level table per node, and the CPUs that have one loaded.
//!
//! **Loading.** A CPU enters the set of users *before* it loads a root and leaves it *after* it
//! loaded another one. So a flush that reads the set after its change to the tables reaches every
//! CPU that may have cached the old entries; a CPU that enters later walks the new ones.
//!
//! **Lazy CPUs.** A CPU that runs only kernel code keeps the root loaded and marks itself lazy.
//! Flushes of pages then do not interrupt it. Every flush has a number. A CPU that runs user code
//! again compares the last flush in which it took part with the latest one, and flushes everything
//! if it missed any. "Set lazy" and "read the number" on one side, "raise the number" and "read the
//! lazy CPUs" on the other are sequentially consistent, so one of the two sees the other. When
//! tables are freed, lazy CPUs are interrupted, too, since their hardware walkers may still use a
//! cached upper entry.
//!
//! **Alone** ([`Roots::alone`]). A CPU that fills a new page through the page's user address sets
//! the leaf before the bytes are zero. It announces this, then reads which CPUs have the roots
//! loaded. A CPU that loads them enters the set first, then waits until no CPU announces a fill.
//! Both sides are sequentially consistent: either the filling CPU sees the other in the set and
//! does not begin, or the other CPU waits. The filling CPU does not wait and is not preempted, so
//! the other waits no longer than zeroing 4 KiB takes, plus interrupts.
//!
//! **Walking without the editor's lock** ([`Roots::walk`]). Before the frame of a freed table gets
//! another owner, every CPU with the roots loaded is interrupted and waited for. While a CPU delays
//! flushes, it has not answered. So all the tables that it reads still exist (Linux: gup-fast with
//! interrupts off). Frames are not protected by that, since a leaf that was never used needs no
//! flush: see [`freehold_frame::transition`].

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_frame::{Frame, NodePolicy, OutOfMemory, Owner, PageTable, Request};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{
    AtomicCpuSet, CpuId, CpuSet, Cpus, Flush, MAX_CPUS, NodeId, Pfn, Pinned, TABLE_ENTRIES, Tables, Tlb,
    VirtAddr,
};

use crate::space::find;
use crate::{Entry, KernelRoots, Memory, PageSize, Slot, USER_END};

/// Entries of a root that belong to user addresses.
pub(crate) const USER_ENTRIES: usize = TABLE_ENTRIES / 2;

/// Value for a node without a root.
const NONE: u64 = u64::MAX;

/// The CPUs that a flush has to interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// CPUs that may run user code.
    Active,
    /// Also lazy CPUs: tables will be freed.
    All,
}

/// The roots of one address space. See the module's head.
pub struct Roots<S: Memory> {
    source: S,
    kernel: KernelRoots,
    /// For each node, the root's frame number, or [`NONE`].
    roots: [AtomicU64; MAX_NODES],
    first: Pfn,
    /// The table from which the first root's kernel half was copied.
    template: Pfn,
    /// Held while user entries of roots change, so that all agree.
    top: spin::Mutex<()>,
    users: AtomicCpuSet,
    lazy: AtomicCpuSet,
    /// Whether a CPU is filling a page that no other CPU can access: [`Roots::alone`].
    filling: AtomicBool,
    /// How many flushes there were.
    flushes: AtomicU64,
    /// For each CPU, the last flush in which it took part, or the last one before it loaded the
    /// root.
    seen: [AtomicU64; MAX_CPUS],
}

impl<S: Memory> Roots<S> {
    pub(crate) fn new(source: S, kernel: KernelRoots) -> Result<Self, OutOfMemory> {
        let node = source.machine().node_of_cpu(source.machine().current_cpu());
        let first = make_root(source, kernel, node)?.into_raw();
        let roots = [const { AtomicU64::new(NONE) }; MAX_NODES];
        roots[usize::from(node.0)].store(first.0, Ordering::Relaxed);
        Ok(Self {
            source,
            kernel,
            roots,
            first,
            template: kernel.of(node),
            top: spin::Mutex::new(()),
            users: AtomicCpuSet::new(),
            lazy: AtomicCpuSet::new(),
            filling: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            seen: [const { AtomicU64::new(0) }; MAX_CPUS],
        })
    }

    /// Makes the root of `node` if there is none. Called where allocation is allowed.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the node's CPUs then make the root when they load these roots, or use
    /// another node's.
    pub fn prepare(&self, node: NodeId) -> Result<(), OutOfMemory> {
        let slot = &self.roots[usize::from(node.0)];
        if slot.load(Ordering::Acquire) != NONE {
            return Ok(());
        }
        let pinned = self.source.machine().pin();
        let mut root = Some(make_table(self.source, node)?);
        self.install(node, &mut root);
        drop(pinned);
        Ok(())
    }

    /// Makes `table` the root of `node`. If there is one by now, `table` stays with the caller. The
    /// table's old contents do not matter. The caller is pinned; nothing is allocated or freed.
    fn install(&self, node: NodeId, table: &mut Option<Frame<PageTable, S>>) {
        let Some(root) = table.as_ref().map(|frame| frame.pfn()) else { return };
        let (machine, slot) = (self.source.machine(), &self.roots[usize::from(node.0)]);
        machine.copy_entries(self.kernel.of(node), root, USER_ENTRIES..TABLE_ENTRIES);
        let top = self.top.lock();
        if slot.load(Ordering::Acquire) == NONE {
            machine.copy_entries(self.first, root, 0..USER_ENTRIES);
            slot.store(root.0, Ordering::Release);
            table.take().map(Frame::into_raw);
        }
        drop(top);
    }

    /// Returns the root for `cpu`, whose node has none yet. It is made from `spare` if the node's
    /// kernel half differs from the first root's.
    #[cold]
    fn first_load(&self, cpu: CpuId, spare: &mut Option<Frame<PageTable, S>>) -> Pfn {
        let node = self.source.machine().node_of_cpu(cpu);
        if self.kernel.of(node) == self.template {
            return self.first;
        }
        self.install(node, spare);
        let root = self.root_of(node);
        if root == self.first {
            self.kernel.note_sharing(cpu);
        }
        root
    }

    /// Switches to a root of this CPU's node, made from `spare`, if this CPU has the first root
    /// loaded because memory was short. Entries of the first root's kernel half may stay cached.
    /// The caller is pinned, with interrupts off.
    pub fn stop_sharing(&self, pinned: &Pinned<S::Machine>, spare: &mut Option<Frame<PageTable, S>>) {
        let (machine, cpu) = (self.source.machine(), pinned.cpu());
        let node = machine.node_of_cpu(cpu);
        if self.kernel.of(node) == self.template || !self.users.load().contains(cpu) {
            return;
        }
        if self.root_of(node) == self.first {
            self.install(node, spare);
        }
        let root = self.root_of(node);
        if root != self.first && machine.current_root() == self.first {
            machine.load_root(root);
        }
    }

    /// From now on this CPU translates user addresses through these roots; missed flushes are made
    /// up for. The caller keeps the roots alive until [`Roots::unload`]. Cheap if they are loaded
    /// already. If this CPU's node needs its own root and has none, the root is made from `spare`;
    /// without `spare` the CPU uses the first root.
    pub fn load(&self, pinned: &Pinned<S::Machine>, spare: &mut Option<Frame<PageTable, S>>) {
        let machine = self.source.machine();
        let cpu = pinned.cpu();
        let seen = &self.seen[usize::from(cpu.0)];
        if self.users.load().contains(cpu) {
            if self.lazy.load().contains(cpu) {
                self.lazy.remove(cpu);
                let now = self.flushes.load(Ordering::SeqCst);
                if seen.load(Ordering::Relaxed) != now {
                    machine.flush_local(Flush::NonGlobal);
                    seen.store(now, Ordering::Relaxed);
                }
            }
            return;
        }
        self.users.insert(cpu);
        while self.filling.load(Ordering::SeqCst) {
            machine.relax();
        }
        seen.store(self.flushes.load(Ordering::SeqCst), Ordering::Relaxed);
        let node = machine.node_of_cpu(cpu);
        let root = match self.roots[usize::from(node.0)].load(Ordering::Acquire) {
            NONE => self.first_load(cpu, spare),
            root => Pfn(root),
        };
        machine.load_root(root);
    }

    /// Runs `f` on `with` while no other CPU can translate through these roots. `f` is short; it
    /// does not sleep or free frames. If another CPU might, or this CPU has not loaded them,
    /// nothing is done. The caller is the tables' editor, so there is only one such call at a time.
    ///
    /// # Errors
    /// `with`, unchanged.
    #[inline(always)]
    pub fn alone<T, R>(&self, with: T, f: impl FnOnce(T) -> R) -> Result<R, T> {
        let pinned = self.source.machine().pin();
        self.filling.store(true, Ordering::SeqCst);
        // Lazy CPUs are users.
        let is_alone = self.users.load() == CpuSet::single(pinned.cpu()) && self.lazy.load().is_empty();
        let result = if is_alone { Ok(f(with)) } else { Err(with) };
        self.filling.store(false, Ordering::Release);
        result
    }

    /// Marks this CPU as lazy: it runs only kernel code until its next [`Roots::load`], so flushes
    /// of pages need not interrupt it.
    pub fn lazy(&self, pinned: &Pinned<S::Machine>) {
        self.lazy.insert(pinned.cpu());
    }

    /// Notes that this CPU has loaded another root.
    ///
    /// # Panics
    /// If it has not: its walker could use tables that will be freed.
    pub fn unload(&self, pinned: &Pinned<S::Machine>) {
        let current = self.source.machine().current_root();
        let mine = self.roots.iter().any(|root| root.load(Ordering::Relaxed) == current.0);
        assert!(!mine, "{:?} leaves an address space whose root it has loaded", pinned.cpu());
        self.users.remove(pinned.cpu());
        self.lazy.remove(pinned.cpu());
    }

    /// Shows `f` the tables, on a CPU that has them loaded, without their editor's lock: entries
    /// may change at any moment, but no table is freed. `f` is short; it does not sleep, fault, or
    /// free frames. `None` if this CPU has not loaded them.
    // Hot path: called for each page that is pinned separately.
    #[inline]
    pub fn walk<R>(&self, f: impl FnOnce(TableWalk<'_, S>) -> R) -> Option<R> {
        let machine = self.source.machine();
        machine.hold_flushes(|| {
            let is_told = self.users.load().contains(machine.current_cpu());
            is_told.then(|| f(TableWalk { roots: self }))
        })
    }

    /// The CPUs that have the roots loaded, lazily or not.
    pub fn users(&self) -> CpuSet {
        self.users.load()
    }

    /// The root that CPUs of `node` use.
    pub fn root_of(&self, node: NodeId) -> Pfn {
        match self.roots[usize::from(node.0)].load(Ordering::Acquire) {
            NONE => self.first,
            root => Pfn(root),
        }
    }

    /// Returns the first root, which exists as long as `self`.
    pub fn first(&self) -> Pfn {
        self.first
    }

    /// How many roots there are.
    pub fn count(&self) -> usize {
        self.all().count()
    }

    fn all(&self) -> impl Iterator<Item = Pfn> {
        self.roots.iter().map(|root| root.load(Ordering::Acquire)).filter(|&root| root != NONE).map(Pfn)
    }

    /// The one place where user entries of roots change.
    pub(crate) fn write_top(&self, index: usize, entry: Entry) {
        debug_assert!(index < USER_ENTRIES);
        let machine = self.source.machine();
        let pinned = machine.pin();
        let top = self.top.lock();
        self.all().for_each(|root| machine.store_entry(root, index, entry.bits()));
        drop(top);
        drop(pinned);
    }

    /// Flushes on all users; returns when all have flushed. Called after the tables changed.
    pub(crate) fn flush(&self, what: Flush, reach: Reach) {
        let number = self.flushes.fetch_add(1, Ordering::SeqCst) + 1;
        let users = self.users.load();
        let targets = match reach {
            Reach::Active => CpuSet(users.0 & !self.lazy.load().0),
            Reach::All => users,
        };
        if targets.is_empty() {
            return;
        }
        self.source.machine().flush_on(targets, what);
        for cpu in targets.iter() {
            self.note_seen(cpu, number);
        }
    }

    /// Notes that `cpu` took part in a flush. A CPU that missed the flush before keeps its old
    /// number, and flushes everything at its next load.
    fn note_seen(&self, cpu: CpuId, number: u64) {
        let seen = &self.seen[usize::from(cpu.0)];
        // If this fails, another flush or a load of the root has stored the number: both store a
        // correct one.
        let _ = seen.compare_exchange(number - 1, number, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl<S: Memory> Drop for Roots<S> {
    fn drop(&mut self) {
        let users = self.users.load();
        assert!(users.is_empty(), "an address space's roots are freed while {users:?} have them loaded");
        for root in self.all() {
            drop(take_table(self.source, root));
        }
    }
}

impl<S: Memory> core::fmt::Debug for Roots<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Roots({:?}, {} roots, users {:?})", self.first, self.count(), self.users.load())
    }
}

/// Read access to tables that others may be changing: see [`Roots::walk`].
pub struct TableWalk<'a, S: Memory> {
    roots: &'a Roots<S>,
}

impl<S: Memory> TableWalk<'_, S> {
    /// The slot of the leaf for `addr`, and the size that it maps; `None` if a table is missing.
    pub fn find(&self, addr: VirtAddr) -> Option<(Slot<S::Machine>, PageSize)> {
        if addr < USER_END { find(self.roots.source.machine(), self.roots.first, addr) } else { None }
    }
    /// The source of the frames.
    pub fn source(&self) -> S {
        self.roots.source
    }
}

impl<S: Memory> core::fmt::Debug for TableWalk<'_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Walk({:?})", self.roots)
    }
}

/// A new table of empty entries, on `node` if possible.
pub(crate) fn make_table<S: Memory>(source: S, node: NodeId) -> Result<Frame<PageTable, S>, OutOfMemory> {
    // Taken from this CPU's lists if these are of that node.
    let machine = source.machine();
    let policy = match machine.node_of_cpu(machine.current_cpu()) {
        here if here == node => NodePolicy::Local,
        _ => NodePolicy::Preferred(node),
    };
    let table = Frame::allocate_with(source, Request::new(Owner::PageTable).policy(policy))?;
    source.machine().clear_table(table.pfn());
    Ok(table)
}

/// Takes back a table whose number was stored in an entry.
pub(crate) fn take_table<S: Memory>(source: S, table: Pfn) -> Frame<PageTable, S> {
    Frame::from_raw(source, table).expect("table entries lead to frames that tables were made of")
}

fn make_root<S: Memory>(
    source: S,
    kernel: KernelRoots,
    node: NodeId,
) -> Result<Frame<PageTable, S>, OutOfMemory> {
    let machine = source.machine();
    let root = make_table(source, node)?;
    machine.copy_entries(kernel.of(node), root.pfn(), USER_ENTRIES..TABLE_ENTRIES);
    Ok(root)
}
