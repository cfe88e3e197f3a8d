//! One record per physical page frame: who owns it, how it is held, and nothing that can disagree.
//!
//! **Invariant.** Every frame has exactly one owner at every moment. Free frames belong to the page
//! allocator; the others carry their [`Owner`] in the record of the block's first frame. An owner
//! changes only by a move: [`Frame<K, S>`] is taken from a [`FrameSource`] and gives the block back
//! when dropped.
//!
//! **Counts.** A user frame has three separate, exact counts (mappings, references, pins) and one
//! exclusive mark. They live in one atomic word ([`Counts`]), so that pinning and sharing compete
//! for the same compare-exchange and no window lies between them: pinned ⇒ exclusive, or truly
//! shared memory.
//!
//! **Locks.** None. Records are atomics; the owner of a frame is the only writer of its
//! [`FrameState`], and [`Counts`] orders its own changes. Any context may call, interrupt handlers
//! included.
//!
//! ```
//! use std::sync::Mutex;
//!
//! use freehold_frame::{
//!     Anon, CountError, Frame, FrameRecord, FrameSource, FrameTable, Order, OutOfMemory, Owner,
//!     Request, Tag,
//! };
//! use freehold_machine::{CpuId, NodeId, Pfn};
//!
//! // A page allocator of two frames; freehold-buddy is a real one.
//! static RECORDS: [FrameRecord; 2] = [FrameRecord::EMPTY; 2];
//! static FREE: Mutex<Vec<Pfn>> = Mutex::new(Vec::new());
//!
//! #[derive(Clone, Copy)]
//! struct Source;
//! impl FrameSource for Source {
//!     type Machine = ();
//!     fn machine(self) {}
//!     fn table(self) -> FrameTable {
//!         FrameTable::new(&RECORDS)
//!     }
//!     fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
//!         let frame = FREE.lock().unwrap().pop().ok_or(OutOfMemory)?;
//!         let tag = Tag::new(request.owner, request.order, NodeId(0));
//!         self.table().get(frame).unwrap().hand_out(tag).unwrap();
//!         Ok(frame)
//!     }
//!     fn release(self, block: Pfn, order: Order) {
//!         let record = self.table().get(block).unwrap();
//!         record.take_back(record.freeable(order).unwrap().trace(CpuId(0)));
//!         FREE.lock().unwrap().push(block);
//!     }
//! }
//! FREE.lock().unwrap().extend([Pfn(0), Pfn(1)]);
//!
//! // A page is mapped, pinned by a device, and cannot be shared at fork while it is.
//! let page: Frame<Anon, Source> = Frame::allocate(Source).unwrap();
//! let mapping = page.into_mapping().unwrap();
//! let pin = mapping.pin().unwrap();
//! assert_eq!(mapping.share().unwrap_err().why(), CountError::Pinned);
//! // Unmapped, it is still there for the device; the last holder gives it back.
//! drop(mapping);
//! assert_eq!(Source.table().owner(pin.pfn()), Owner::Anon);
//! drop(pin);
//! assert_eq!(FREE.lock().unwrap().len(), 2);
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
mod counts;
mod handle;
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

pub use account::AccountId;
pub use counts::{AtomicWord, Belongs, CountError, Counts, Holders};
pub use handle::{Frame, Handle, LeafMapping, Pin, WrongOwner};
pub use large::{LargeMapping, Shattered};
pub use order::Order;
pub use owner::{
    Anon, Bounce, DeviceTable, FrameKind, Kernel, Owner, PageCache, PageTable, Replica, Side, Time, User,
    UserKind,
};
pub use record::{FrameRecord, FrameState, Freed, NotGiven, RecordLayout, Tag, Trace};
pub use reverse_key::ReverseKey;
pub use source::{Content, FrameSource, NodePolicy, NodeSet, OutOfMemory, Payer, Pressure, Request};
pub use table::{Audit, Beside, Contradiction, FrameTable};
pub use whole::{LastHold, NotWhole};
