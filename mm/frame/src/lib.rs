//! One record per physical page frame: its owner and its holders, without redundant data that could
//! disagree.
//!
//! **Invariant.** Every frame has exactly one owner at every moment. Free frames belong to the page
//! allocator; the others carry their [`Owner`] in the record of the block's first frame. An owner
//! changes only by a move: [`Frame<K, S>`] is taken from a [`FrameSource`] and gives the block back
//! when dropped.
//!
//! **Counts.** A user frame has three separate, exact counts (mappings, references, pins) and one
//! exclusive mark. They live in one atomic word ([`Counts`]), so that pinning and sharing compete
//! for the same compare-exchange, without a race between them: pinned ⇒ exclusive, or truly shared
//! memory.
//!
//! **Locks.** None. Records are atomics; the owner of a frame is the only writer of its
//! [`FrameState`], and [`Counts`] orders its own changes. Any context may call, interrupt handlers
//! included.
#![doc = "\n"]
#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
mod counts;
mod handle;
mod held;
mod kept;
mod large;
mod order;
mod owner;
pub mod ready;
mod record;
mod reverse_key;
mod source;
mod table;
pub mod transition;
mod whole;

pub use account::{AccountId, AtomicAccountId};
pub use counts::{AtomicWord, Belongs, CountError, Counts, Holders};
pub use handle::{Frame, Handle, LeafMapping, Pin, WrongOwner};
pub use held::{Held, HeldFrame, HeldRun};
pub use kept::{FrameSlot, KeptFrame};
pub use large::{LargeMapping, Shattered};
pub use order::Order;
pub use owner::{
    Anon, Bounce, DeviceTable, FrameKind, Kernel, Owner, PageCache, PageTable, Replica, Ring, Side, Time,
    User, UserKind,
};
pub use record::{FrameRecord, FrameState, Freed, NotGiven, RecordLayout, Tag, Trace};
pub use reverse_key::ReverseKey;
pub use source::{Content, FrameSource, NodePolicy, NodeSet, OutOfMemory, Payer, Pressure, Request};
pub use table::{Audit, Beside, Contradiction, FrameTable};
pub use whole::{LastHold, NotWhole};
