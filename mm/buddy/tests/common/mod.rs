//! A software machine with an allocator on it.
#![allow(clippy::unwrap_used, dead_code, reason = "each test file uses a part of it")]

use std::sync::atomic::AtomicU64;

use freehold_buddy::{AllocatorFault, Buddy, Managed, Options, Pcp};
use freehold_frame::{
    Beside, Contradiction, FrameRecord, FrameState, FrameTable, Order, Owner, ReverseKey, ready,
};
use freehold_machine::model::{Config, Model};
use freehold_machine::topology::{AddressMode, Indexing, NearCache, WritePolicy};
use freehold_machine::{CpuId, Machine, NodeId, PAGE_SIZE, Pfn, PfnRange, PhysicalBytes, Topology};

/// `nodes` nodes of `frames` frames each, one after the other, each behind a direct-mapped cache of
/// `cache` frames; CPUs are assigned to the nodes in turn.
pub fn behind_caches(nodes: u64, frames: u64, cache: u64, cpus: u64) -> Topology {
    let mut topology = Topology::new(nodes as usize).unwrap();
    for node in 0..nodes {
        let range = PfnRange::new(Pfn(node * frames), Pfn((node + 1) * frames));
        topology.add_range(range, NodeId(node as u8)).unwrap();
        let cache = NearCache {
            size: cache * PAGE_SIZE as u64,
            line_size: 64,
            level: 1,
            indexing: Indexing::Direct,
            write_policy: WritePolicy::Back,
            address_mode: AddressMode::Transparent,
        };
        topology.add_near_cache(NodeId(node as u8), cache).unwrap();
    }
    for cpu in 0..cpus {
        topology.set_cpu_node(CpuId(cpu as u16), NodeId((cpu % nodes) as u8)).unwrap();
    }
    topology
}

/// The allocator of `machine`, whose topology is `topology`, over a frame table that was not
/// cleared: each record says that its frame is owned.
pub fn buddy<M: Machine + PhysicalBytes>(
    machine: M,
    topology: &'static Topology,
    reserved: &[PfnRange],
    options: Options,
) -> &'static Buddy<M> {
    let records: Vec<_> = (0..topology.end().0).map(|_| FrameRecord::EMPTY).collect();
    let words = Buddy::<M>::metadata_words(topology, machine.cpu_count(), &options);
    let metadata: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
    let owned = FrameState::Owned { owner: Owner::Reserved, order: Order::FRAME, node: NodeId(0) };
    records.iter().for_each(|record| record.set_state(owned));
    let bits: Vec<_> = (0..ready::words(records.len())).map(|_| AtomicU64::new(0)).collect();
    let keys = (0..records.len()).map(|_| ReverseKey::EMPTY).collect::<Vec<_>>().leak();
    let table =
        FrameTable::new(records.leak()).with(Box::leak(Box::new(Beside::new(keys).with_ready(bits.leak()))));
    let pcps = Vec::from_iter((0..machine.cpu_count()).map(|_| Pcp::new())).leak();
    let managed = Managed { topology, reserved, table, metadata: metadata.leak(), pcps };
    Box::leak(Box::new(Buddy::new(machine, managed, options).unwrap()))
}

/// The allocator of a machine as `config` says.
pub fn model(config: Config, reserved: &[PfnRange], options: Options) -> &'static Buddy<Model> {
    let machine = Model::new(config);
    buddy(machine, machine.topology(), reserved, options)
}

/// Checks that everything agrees, except that these tests hold user frames by number and without
/// counts. Returns the number of free frames.
#[track_caller]
pub fn check<M: Machine + PhysicalBytes>(buddy: &Buddy<M>) -> u64 {
    let mut faults = Vec::new();
    let (audit, _) = buddy.validate(|fault| match fault {
        AllocatorFault::Table(Contradiction::Leaked(..)) => {}
        fault => faults.push(fault),
    });
    assert_eq!(faults, []);
    // The table's free frames include unplugged ones; validate() distinguishes them.
    for owner in &Owner::ALL[1..] {
        assert_eq!(buddy.frames_of(*owner), audit.frames(*owner), "frames of {}", owner.name());
    }
    buddy.free_frames()
}
