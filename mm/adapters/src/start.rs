//! The page allocator of a kernel that has a heap.

extern crate alloc;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use freehold_buddy::{Buddy, InitError, Managed, Options, Pcp};
use freehold_frame::{FrameRecord, FrameTable};
use freehold_machine::{Machine, PfnRange, PhysicalBytes, Topology};

/// Makes a page allocator over all memory of `topology` except `reserved`, which are sorted,
/// disjoint runs. Everything that it needs is from the global heap and stays for ever: 8 bytes per
/// frame from frame 0 on, a list per CPU of the machine, and some bits per pageblock.
///
/// # Errors
/// There is no memory, or the machine has too many CPUs.
///
/// # Panics
/// If the heap is too small.
pub fn start_buddy<M: Machine + PhysicalBytes>(
    machine: M,
    topology: Topology,
    reserved: &[PfnRange],
) -> Result<&'static Buddy<M>, InitError> {
    let topology: &'static Topology = Box::leak(Box::new(topology));
    let options = Options::default();
    let cpus = machine.cpu_count();
    let records: Vec<_> = (0..topology.end().0).map(|_| FrameRecord::EMPTY).collect();
    let words = Buddy::<M>::metadata_words(topology, cpus, &options);
    let metadata: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
    let pcps: Vec<_> = (0..cpus).map(|_| Pcp::new()).collect();
    let table = FrameTable::new(records.leak());
    let managed = Managed { topology, reserved, table, metadata: metadata.leak(), pcps: pcps.leak() };
    Ok(Box::leak(Box::new(Buddy::new(machine, managed, options)?)))
}
