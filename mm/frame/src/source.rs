//! Sources of frames: the interface between typed frames and a page allocator.

use freehold_machine::{NodeId, Pfn};

use crate::{AccountId, FrameTable, Order, Owner};

/// There is no frame for this request: the value that becomes `ENOMEM`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for OutOfMemory {}

/// Initial bytes of a new block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Content {
    /// The old bytes: the caller writes every byte before any byte can be read.
    #[default]
    Undefined,
    /// Zeroes.
    Zeroed,
}

/// Whether a request may use the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pressure {
    /// The request does not use the reserve. Requests of the kernel's owners may still succeed when
    /// those for user memory fail.
    #[default]
    Normal,
    /// The request may use the reserve: it helps to free memory, or the kernel cannot continue
    /// without it.
    Reserve,
}

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSet(pub u16);

impl NodeSet {
    /// Every node.
    pub const ALL: Self = Self(u16::MAX);
    /// The set of one node.
    pub const fn single(node: NodeId) -> Self {
        Self(1 << (node.0 & 15))
    }
    /// Whether `node` is a member.
    pub const fn contains(self, node: NodeId) -> bool {
        node.0 < 16 && self.0 & (1 << node.0) != 0
    }
    /// Member number `n` modulo the size of the set; `None` for an empty set.
    pub fn nth(self, n: u64) -> Option<NodeId> {
        let len = u64::from(self.0.count_ones());
        let members = (0..16).map(NodeId).filter(|&node| self.contains(node));
        if len == 0 { None } else { members.clone().nth((n % len) as usize) }
    }
}

/// The nodes whose memory to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NodePolicy {
    /// The node of this CPU, then the others by distance (first touch).
    #[default]
    Local,
    /// This node, then the others by distance from it.
    Preferred(NodeId),
    /// Only these, the nearest first.
    Bind(NodeSet),
    /// Only these, the nearest to this node first.
    BindNear(NodeSet, NodeId),
    /// Node number `n` modulo the size of the set; then the others by distance from it.
    Interleave(NodeSet, u64),
}

/// The account that is charged for a block, if frames are charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payer {
    /// The caller's account.
    Asker,
    /// The account of this frame: the new block serves the same page.
    SameAs(Pfn),
    /// This account.
    Account(AccountId),
    /// None, until the charge of another frame is moved to it
    /// ([`FrameTable::move_charge`]).
    Nobody,
}

/// A request for one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Request {
    /// The owner of the new block.
    pub owner: Owner,
    /// Its size.
    pub order: Order,
    /// The block's initial bytes.
    pub content: Content,
    /// The nodes to take it from.
    pub policy: NodePolicy,
    /// Whether the reserve may be used.
    pub pressure: Pressure,
}

impl Request {
    /// Returns a request for one frame of undefined content for `owner`, near this CPU.
    pub const fn new(owner: Owner) -> Self {
        Self {
            owner,
            order: Order::FRAME,
            content: Content::Undefined,
            policy: NodePolicy::Local,
            pressure: Pressure::Normal,
        }
    }
    /// Asks for a block of 2^`order` frames.
    pub const fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }
    /// Asks for zeroes.
    pub const fn zeroed(self) -> Self {
        Self { content: Content::Zeroed, ..self }
    }
    /// Asks for memory of these nodes.
    pub const fn policy(self, policy: NodePolicy) -> Self {
        Self { policy, ..self }
    }
    /// Allows the reserve, if need be.
    pub const fn from_reserve(self) -> Self {
        Self { pressure: Pressure::Reserve, ..self }
    }
}

/// A page allocator, as users of frames see it. A handle that is copied freely.
pub trait FrameSource: Copy + Send + Sync + 'static {
    /// The machine whose frames these are; code that accesses bytes or TLBs adds bounds for the
    /// traits that it needs.
    type Machine: Copy + Send + Sync + 'static;
    /// The machine.
    fn machine(self) -> Self::Machine;
    /// The table with the frames' records.
    fn table(self) -> FrameTable;
    /// Returns a block as requested. Its first record names its owner; its counts are zero.
    ///
    /// # Errors
    /// [`OutOfMemory`]; never waits.
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory>;
    /// As [`FrameSource::allocate`], but charges `payer` instead of the caller's account.
    ///
    /// # Errors
    /// As [`FrameSource::allocate`].
    fn allocate_for(self, _payer: Payer, request: Request) -> Result<Pfn, OutOfMemory> {
        self.allocate(request)
    }
    /// Makes sure that a few small objects can be allocated next. A loop that makes one object per
    /// item, for a number of items that a program chooses, calls this before each item. If there is
    /// memory, it costs one load.
    ///
    /// # Errors
    /// [`OutOfMemory`]; never waits.
    fn ensure_objects(self) -> Result<(), OutOfMemory> {
        Ok(())
    }
    /// Lets other tasks have the CPU, if one waits for it: between two steps of work whose length a
    /// program chose. The caller holds no spin lock and may sleep here. Afterwards the reserve of
    /// small objects is full again if there is memory.
    fn rest(self) {}
    /// Take back a block that [`FrameSource::allocate`] handed out. A block that is not the
    /// caller's is reported and not changed.
    fn release(self, block: Pfn, order: Order);
    /// As [`FrameSource::release`], for a caller that knows the likely owner: the block's record
    /// decides.
    fn release_of(self, _likely: Owner, block: Pfn, order: Order) {
        self.release(block, order);
    }
}
