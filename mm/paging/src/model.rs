//! A page allocator on the software machine: slow and simple, with many checks, and able to fail on
//! purpose.
//!
//! Frames are handed out full of junk, so that a page that was not zeroed is noticed. Freed frames
//! are checked against their records, and no hold may be left. [`ModelFrames::assert_all_free`]
//! ends a test.

use std::boxed::Box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

use freehold_frame::{
    AccountId, AtomicAccountId, Beside, Content, FrameRecord, FrameSource, FrameState, FrameTable,
    NodePolicy, Order, OutOfMemory, Owner, Payer, Request, ReverseKey, Side,
};
use freehold_machine::model::{Config, Model};
use freehold_machine::{
    DirectMap, Entropy, Machine, NodeId, PAGEBLOCK_FRAMES, Pfn, PfnRange, PhysicalBytes, Tables,
};

use crate::KernelRoots;

/// Bytes of a frame that has not been written.
pub const JUNK: u8 = 0xa5;

/// The budget with which no allocation fails.
const NEVER: u64 = u64::MAX;

/// The account that is charged for all requests, unless [`ModelFrames::set_asker`] sets another.
pub const ASKER: AccountId = AccountId::new(7).expect("a small number");

struct PagingModelState {
    model: Model,
    table: FrameTable,
    free: Mutex<Free>,
    total: usize,
    /// How many more allocations succeed.
    budget: AtomicU64,
    /// How often the caller let other threads run.
    rests: AtomicU64,
    /// See [`ModelFrames::during_next_allocation`].
    during_next: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The account of the task that runs.
    asker: AtomicAccountId,
}

/// Free frames. Single frames are taken at random from pageblocks that are already in use, so that
/// whole ones are preserved.
#[derive(Default)]
struct Free {
    kernel: Vec<Pfn>,
    user: Vec<Pfn>,
    /// Whole pageblocks of the user's side, by their first frame.
    blocks: Vec<Pfn>,
    /// Frames that are not handed out, and the free ones among them.
    withheld: (PfnRange, Vec<Pfn>),
}

impl Free {
    fn len(&self) -> usize {
        self.kernel.len()
            + self.user.len()
            + self.blocks.len() * PAGEBLOCK_FRAMES as usize
            + self.withheld.1.len()
    }
    /// One frame that is `wanted`; `random` chooses.
    fn take(&mut self, side: Side, random: usize, wanted: impl Fn(Pfn) -> bool) -> Option<Pfn> {
        if side == Side::User && !self.user.iter().any(|&frame| wanted(frame)) {
            let count = self.blocks.len();
            let mut places = (0..count).map(|n| (random % count + n) % count);
            let at = places.find(|&at| wanted(self.blocks[at]))?;
            let block = self.blocks.swap_remove(at);
            self.user.extend(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)).iter());
        }
        let frames = self.side(side);
        let count = frames.len();
        let at = (0..count).map(|n| (random % count + n) % count).find(|&at| wanted(frames[at]))?;
        Some(frames.swap_remove(at))
    }
    fn give(&mut self, side: Side, frame: Pfn) {
        if self.withheld.0.contains(frame) {
            return self.withheld.1.push(frame);
        }
        self.side(side).push(frame);
        let block = frame.pageblock_start();
        let in_block = |other: &Pfn| other.pageblock_start() == block;
        if side == Side::User && self.user.iter().filter(|other| in_block(other)).count() == 512 {
            self.user.retain(|other| !in_block(other));
            self.blocks.push(block);
        }
    }
    fn side(&mut self, side: Side) -> &mut Vec<Pfn> {
        match side {
            Side::Kernel => &mut self.kernel,
            Side::User => &mut self.user,
        }
    }
}

/// The allocator's handle. See the module's head.
#[derive(Clone, Copy)]
pub struct ModelFrames(&'static PagingModelState);

impl core::fmt::Debug for ModelFrames {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ModelFrames({} of {} free)", self.free(), self.0.total)
    }
}

/// The kernel's half of every root: frame 0, an empty table.
pub const KERNEL_ROOTS: KernelRoots = KernelRoots::new(|_| Pfn(0));

impl ModelFrames {
    /// A machine and an allocator of single frames and, on the user's side, of pageblocks: a
    /// quarter of the pageblocks (at least one) belongs to the kernel.
    ///
    /// # Panics
    /// Where the machine has fewer than two pageblocks.
    pub fn new(config: Config) -> Self {
        assert!(config.frames >= 2 * PAGEBLOCK_FRAMES, "too few frames for two sides");
        let model = Model::new(config);
        let records: Vec<FrameRecord> = (0..config.frames).map(|_| FrameRecord::EMPTY).collect();
        let reverse_keys: Vec<ReverseKey> = (0..config.frames).map(|_| ReverseKey::EMPTY).collect();
        let blocks = config.frames / PAGEBLOCK_FRAMES;
        let border = Pfn((blocks / 4).max(1) * PAGEBLOCK_FRAMES);
        model.enter(PfnRange::new(Pfn(0), border));
        model.clear_table(Pfn(0));
        let free = Free {
            kernel: PfnRange::new(Pfn(1), border).iter().collect(),
            user: PfnRange::new(Pfn(blocks * PAGEBLOCK_FRAMES), Pfn(config.frames)).iter().collect(),
            blocks: (border.0 / PAGEBLOCK_FRAMES..blocks).map(|n| Pfn(n * PAGEBLOCK_FRAMES)).collect(),
            withheld: (PfnRange::default(), Vec::new()),
        };
        let total = free.len();
        model.charge_frames();
        Self(Box::leak(Box::new(PagingModelState {
            model,
            table: FrameTable::new(Vec::leak(records))
                .with(Box::leak(Box::new(Beside::new(Vec::leak(reverse_keys))))),
            free: Mutex::new(free),
            total,
            budget: AtomicU64::new(NEVER),
            rests: AtomicU64::new(0),
            during_next: Mutex::new(None),
            asker: AtomicAccountId::new(ASKER),
        })))
    }

    /// The machine.
    pub fn model(self) -> Model {
        self.0.model
    }
    /// Let `count` more allocations succeed, then none until [`ModelFrames::fail_never`].
    pub fn fail_after(self, count: u64) {
        self.0.budget.store(count, Ordering::SeqCst);
    }
    /// Allocate as long as there is memory.
    pub fn fail_never(self) {
        self.0.budget.store(NEVER, Ordering::SeqCst);
    }
    /// Calls `f` when the next frame is requested: simulates actions of another CPU.
    pub fn during_next_allocation(self, f: impl FnOnce() + Send + 'static) {
        *self.0.during_next.lock().expect("no test panicked inside the allocator") = Some(Box::new(f));
    }
    /// Frames that are free.
    pub fn free(self) -> usize {
        self.0.free.lock().expect("no test panicked inside the allocator").len()
    }
    /// Returns the number of whole pageblocks.
    pub fn free_blocks(self) -> usize {
        self.0.free.lock().expect("no test panicked inside the allocator").blocks.len()
    }
    /// Hand out no frame of `range`, whole pageblocks, until [`ModelFrames::hand_out_all`].
    pub fn withhold(self, range: PfnRange) {
        let mut free = self.0.free.lock().expect("no test panicked inside the allocator");
        let inside = |frame: &mut Pfn| range.contains(*frame);
        let mut apart: Vec<Pfn> = free.user.extract_if(.., inside).collect();
        let blocks: Vec<Pfn> = free.blocks.extract_if(.., inside).collect();
        apart.extend(
            blocks.iter().flat_map(|&head| PfnRange::new(head, head.offset(PAGEBLOCK_FRAMES)).iter()),
        );
        free.withheld = (range, apart);
    }
    /// Hand out every frame again.
    pub fn hand_out_all(self) {
        let mut free = self.0.free.lock().expect("no test panicked inside the allocator");
        let (_, apart) = core::mem::take(&mut free.withheld);
        apart.into_iter().for_each(|frame| free.give(Side::User, frame));
    }
    /// How often long work has let others run.
    pub fn rests(self) -> u64 {
        self.0.rests.load(Ordering::SeqCst)
    }
    /// The running task has this account from now on.
    pub fn set_asker(self, account: AccountId) {
        self.0.asker.store(account, Ordering::SeqCst);
    }
    /// Frames of `owner`.
    pub fn owned(self, owner: Owner) -> usize {
        (0..self.0.table.end().0).filter(|&pfn| self.0.table.owner(Pfn(pfn)) == owner).count()
    }

    /// # Panics
    /// If a record contradicts itself or another, or a frame is charged to no account.
    pub fn assert_consistent(self) {
        let all = PfnRange::new(Pfn(0), self.0.table.end());
        let audit = self.0.table.audit([all], |found| std::eprintln!("{found:?}"));
        assert_eq!(audit.contradictions, 0, "the frame table contradicts itself");
        for frame in all.iter().filter(|&frame| self.0.table.state(frame).owner().is_charged()) {
            assert_eq!(self.0.table.account(frame), ASKER, "nobody pays for {frame:?}");
        }
    }

    /// # Panics
    /// If a frame was not freed, a record contradicts itself, or a TLB holds a stale entry.
    pub fn assert_all_free(self) {
        self.assert_consistent();
        self.0.model.assert_coherent();
        let leaked: Vec<_> = (0..self.0.table.end().0)
            .map(Pfn)
            .filter(|&pfn| self.0.table.state(pfn).owner() != Owner::Free)
            .map(|pfn| (pfn, self.0.table.owner(pfn), self.0.table.get(pfn).map(|r| r.counts().load())))
            .take(8)
            .collect();
        assert_eq!(self.free(), self.0.total, "frames were not given back, among them {leaked:?}");
    }
}

impl FrameSource for ModelFrames {
    type Machine = Model;

    fn machine(self) -> Model {
        self.0.model
    }
    fn table(self) -> FrameTable {
        self.0.table
    }
    fn rest(self) {
        self.0.rests.fetch_add(1, Ordering::SeqCst);
    }
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        self.allocate_for(Payer::Asker, request)
    }
    fn allocate_for(self, payer: Payer, request: Request) -> Result<Pfn, OutOfMemory> {
        let is_block = request.order == Order::PAGEBLOCK && request.owner.side() == Side::User;
        assert!(is_block || request.order == Order::FRAME, "single frames and a user's pageblocks only");
        let take = |left: u64| if left == NEVER { Some(NEVER) } else { left.checked_sub(1) };
        self.0.budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).map_err(|_| OutOfMemory)?;
        let meanwhile = self.0.during_next.lock().expect("no test panicked inside the allocator").take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let random = self.0.model.random_u64() as usize;
        let mut free = self.0.free.lock().expect("no test panicked inside the allocator");
        let taken = if is_block {
            let len = free.blocks.len();
            (len > 0).then(|| free.blocks.swap_remove(random % len))
        } else {
            free.take(request.owner.side(), random, |frame| match request.policy {
                NodePolicy::Bind(nodes) | NodePolicy::BindNear(nodes, _) => {
                    self.0.model.topology().node_of(frame).is_some_and(|node| nodes.contains(node))
                }
                _ => true,
            })
        };
        let frame = taken.ok_or(OutOfMemory)?;
        drop(free);
        for piece in PfnRange::new(frame, frame.offset(request.order.frames())).iter() {
            match request.content {
                Content::Zeroed => self.0.model.zero(piece),
                Content::Undefined => self.0.model.with_bytes(piece, |bytes| bytes.fill(JUNK)),
            }
        }
        let node = self.0.model.topology().node_of(frame).unwrap_or(NodeId(0));
        debug_assert!(usize::from(node.0) < self.0.model.node_count());
        let account = match payer {
            Payer::Asker => self.0.asker.load(Ordering::SeqCst),
            Payer::Account(account) => account,
            Payer::SameAs(other) => self.0.table.account(other),
            Payer::Nobody => AccountId::ROOT,
        };
        if request.owner.is_charged() {
            self.0.table.set_account(frame, request.order, account);
        }
        let record = self.0.table.get(frame).expect("free frames have records");
        record.set_state(FrameState::Owned { owner: request.owner, order: request.order, node });
        Ok(frame)
    }
    fn release(self, block: Pfn, order: Order) {
        let record = self.0.table.get(block).expect("released frames have records");
        let FrameState::Owned { owner, order: owned, .. } = record.state() else {
            panic!("{block:?} is freed twice");
        };
        assert_eq!(owned, order, "{block:?} is freed with a wrong order");
        let holders = record.counts().load();
        assert!(holders.is_none(), "{block:?} is freed while it is held: {holders:?}");
        record.set_state(FrameState::Unowned(None));
        let mut free = self.0.free.lock().expect("no test panicked inside the allocator");
        if order == Order::FRAME {
            free.give(owner.side(), block);
        } else if free.withheld.0.contains(block) {
            let pieces = PfnRange::new(block, block.offset(order.frames()));
            free.withheld.1.extend(pieces.iter());
        } else {
            free.blocks.push(block);
        }
    }
}
