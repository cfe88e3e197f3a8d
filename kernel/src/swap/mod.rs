//! Swap areas as the administrator sees them: swapon, swapoff, /proc/swaps. `freehold-vm` swaps the
//! pages.
//!
//! An area is a disk; files are in memory here, and swapping to memory makes no sense (`EINVAL`, as
//! on Linux' tmpfs). While it is in use the disk is [held](crate::block::Held): no other task
//! writes it or opens it for exclusive use.
//!
//! **Locks.** `AREAS` is a sleeping lock, ordered before everything of memory: swapon and swapoff
//! hold it for their whole time, which for swapoff means reading all that is there. Reclaim and
//! faults do not take it.

mod areas;
mod calls;
pub mod header;
mod store;

pub use areas::{Listed, list, on_at_boot, peak};
pub use calls::{sys_swapoff, sys_swapon};
