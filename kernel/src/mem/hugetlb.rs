//! The settings of the pool of huge pages (vm.nr_hugepages, /sys/kernel/mm/hugepages; Linux:
//! Documentation/admin-guide/mm/hugetlbpage.rst).

use freehold_collections::Arc;
use freehold_frame::NodeSet;
use freehold_machine::NodeId;
use freehold_vm::VmError;

use super::{Frames, commons, evacuate};
use crate::hw::PAGE;
use crate::{Errno, Result, sched};

/// Bytes of a huge page.
pub const HUGE_PAGE: u64 = 2 << 20;
/// Frames of a huge page.
pub const HUGE_FRAMES: u64 = HUGE_PAGE / PAGE;

/// Checks the size that a call asks for: log2 of its bytes, or 0 for the default size.
///
/// # Errors
/// `EINVAL`: 2 MiB is the only size.
pub fn check_size(log2: u64) -> Result<()> {
    if log2 == 0 || 1 << log2 == HUGE_PAGE { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The limit of a mount of huge pages, and the pages that it keeps.
pub type HugeBudget = freehold_vm::HugeBudget<Frames>;

/// Makes a budget of at most `most` pages, which keeps `least`.
///
/// # Errors
/// `ENOMEM` if the pool has too few.
pub fn budget(most: u64, least: u64) -> Result<Arc<HugeBudget>> {
    Ok(HugeBudget::new(commons(), most, least)?)
}

/// Returns the number of persistent pages (vm.nr_hugepages).
pub fn persistent() -> u64 {
    let figures = commons().huge_pool(None);
    figures.total - figures.surplus
}

/// Makes the pool have `count` persistent pages; with `node`, makes it have `count` pages there. It
/// has fewer if there is no memory for more, even after memory was compacted.
///
/// # Errors
/// `EINTR` if the task has to end.
pub fn set_persistent(count: u64, node: Option<NodeId>) -> Result<()> {
    let others = node.map_or(0, |_| commons().huge_pool(None).total - commons().huge_pool(node).total);
    let (count, nodes) = (count.saturating_add(others), node.map_or(NodeSet::ALL, NodeSet::single));
    let mut pause = || sched::checkpoint().map_err(|_| VmError::Interrupted);
    commons().resize_huge_pool(count, nodes, &mut pause)?;
    if persistent() < count {
        evacuate::compact_all();
        commons().resize_huge_pool(count, nodes, &mut pause)?;
    }
    Ok(())
}

/// Sets the largest number of surplus pages (vm.nr_overcommit_hugepages).
///
/// # Errors
/// None.
pub fn set_overcommit(most: u64) -> Result<()> {
    commons().set_huge_overcommit(most);
    Ok(())
}

/// Gives all pages of the pool back, when no program is left: also those of files.
pub fn close() {
    commons().empty_huge_files();
    // No pause, so no error.
    let _ = commons().resize_huge_pool(0, NodeSet::ALL, &mut || Ok(()));
}
