//! Misuse of the allocator: always detected, reported with the frame's last owner, and without
//! effect on the lists.

use core::fmt;

use freehold_frame::{Freed, Order, Owner};
use freehold_machine::Pfn;

/// Misuse of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// The caller freed a frame beyond the end of memory.
    NotMemory(Pfn),
    /// The caller freed a block that is free already, or was never handed out.
    NotOwned {
        /// The block.
        block: Pfn,
        /// The size in which it was freed.
        order: Order,
        /// The last owner that freed the block, if there was one.
        before: Option<Freed>,
    },
    /// The caller freed a part of a larger block, or a block with another size than it was handed
    /// out with.
    WrongOrder {
        /// The block that was freed.
        block: Pfn,
        /// The size in which it was freed.
        given: Order,
        /// The first frame of the block that is really owned.
        head: Pfn,
        /// That block's size.
        actual: Order,
        /// Its owner.
        owner: Owner,
    },
    /// The caller freed frames that were reserved at boot, without
    /// [`release_reserved`](crate::Buddy::release_reserved).
    Reserved(Pfn),
    /// The caller freed a user block that is still mapped, referenced or pinned.
    StillHeld(Pfn),
    /// A block from the free lists has an owner: its record was written while it was free.
    OwnedWhileFree {
        /// The block, which is left to that owner.
        block: Pfn,
        /// The owner that the record names.
        owner: Owner,
    },
    /// A freed block is already free in its pageblock's bitmap: two CPUs freed it at the same
    /// moment.
    FreedTwice(Pfn),
    /// The bytes of a free frame changed (`page_alloc.check=fill`).
    WrittenWhileFree {
        /// The frame.
        frame: Pfn,
        /// The first changed byte.
        offset: usize,
        /// The byte's present value.
        found: u8,
        /// The last owner of the frame.
        before: Freed,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotMemory(block) => write!(f, "{block:?} was freed and is no memory"),
            Self::NotOwned { block, order, before: None } => {
                write!(f, "{block:?} was freed (order {}) and was never handed out", order.log2())
            }
            Self::NotOwned { block, order, before: Some(before) } => write!(
                f,
                "{block:?} was freed twice (order {}); before by CPU {}, when it was {}'s (order {})",
                order.log2(),
                before.cpu.0,
                before.owner.name(),
                before.order.log2()
            ),
            Self::WrongOrder { block, given, head, actual, owner } => write!(
                f,
                "{block:?} was freed with order {}, but belongs to {}'s block of order {} at {head:?}",
                given.log2(),
                owner.name(),
                actual.log2()
            ),
            Self::Reserved(block) => write!(f, "{block:?} was freed and is reserved"),
            Self::StillHeld(block) => write!(f, "{block:?} was freed while somebody holds it"),
            Self::OwnedWhileFree { block, owner } => {
                write!(f, "{block:?} is in the free lists, but its record says {}", owner.name())
            }
            Self::FreedTwice(block) => write!(f, "{block:?} was freed by two CPUs at once"),
            Self::WrittenWhileFree { frame, offset, found, before } => write!(
                f,
                "byte {offset:#x} of free {frame:?} was changed to {found:#04x}; before by CPU {}, when it was {}'s",
                before.cpu.0,
                before.owner.name()
            ),
        }
    }
}
