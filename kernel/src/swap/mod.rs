//! The administrator's view of swap areas: swapon, swapoff, /proc/swaps. `freehold-vm` swaps the
//! pages.
//!
//! An area is a disk. Files are in memory here, and swapping to memory would be useless (`EINVAL`,
//! as on Linux' tmpfs). While it is in use the disk is [held](crate::block::Held): no other task
//! writes it or opens it for exclusive use.
//!
//! **Locks.** `AREAS` is a sleeping lock, ordered before all locks of memory. swapon and swapoff
//! hold it during the whole call, which for swapoff includes reading all swapped pages. Reclaim and
//! faults do not take it.

mod areas;
mod calls;
pub mod header;
mod store;

pub use areas::{Listed, list, on_at_boot, peak};
pub use calls::{sys_swapoff, sys_swapon};
