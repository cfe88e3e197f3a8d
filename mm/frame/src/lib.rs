//! One record per physical page frame: who owns it, how it is held, and nothing that can disagree.
//!
//! **Invariant.** Every frame has exactly one owner at every moment. Free frames belong to the page
//! allocator; the others carry their [`Owner`] in the record of the block's first frame. An owner
//! changes only by a move: [`Frame<K, S>`] is taken from a [`FrameSource`] and gives the block back when dropped.
//!
//! **Counts.** A user frame has three separate, exact counts (mappings, references, pins) and one
//! exclusive mark. They live in one atomic word ([`Counts`]), so that pinning and sharing compete for the
//! same compare-exchange and no window lies between them: pinned ⇒ exclusive, or truly shared memory.
//!
//! **Locks.** None. Records are atomics; the owner of a frame is the only writer of its [`State`], and
//! [`Counts`] orders its own changes. Any context may call, interrupt handlers included.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod counts;
mod handle;
mod order;
mod owner;
mod record;
mod source;
mod table;

pub use counts::{CountError, Counts, Exclusive, Holders, Word};
pub use handle::{Frame, Mapping, Pin, WrongOwner};
pub use order::Order;
pub use owner::{Anon, Bounce, Kernel, Kind, Owner, PageCache, PageTable, Replica, Side, User, UserKind};
pub use record::{FrameRecord, Freed, NotGiven, State, Tag};
pub use source::{Content, FrameSource, NodePolicy, NodeSet, OutOfMemory, Pressure, Request};
pub use table::{Audit, Contradiction, FrameTable};
