//! Our allocator on a machine without bytes. Frames are only numbers, so nothing except takes and
//! gives is timed.

use std::sync::atomic::{AtomicU64, Ordering};

use freehold_bounce::{Device, DeviceRules, Direction, Dma, DmaAddr, DmaMapping, Limits, Scrub};
use freehold_frame::{FrameRecord, FrameSource, FrameTable, Order, OutOfMemory, Request};
use freehold_machine::{CpuId, Cpus, NodeId, PAGE_SIZE, Pfn, PhysicalBytes};
use zerocopy::FromZeros;

use crate::{Allocator, SEGMENT, cpu};

/// Two CPUs, one node, no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bare;

impl Cpus for Bare {
    fn current_cpu(self) -> CpuId {
        CpuId(cpu())
    }
    fn cpu_count(self) -> usize {
        2
    }
    fn node_of_cpu(self, _: CpuId) -> NodeId {
        NodeId(0)
    }
    // A thread here stays on its CPU anyway.
    fn disable_preemption(self) {}
    fn enable_preemption(self) {}
}

impl PhysicalBytes for Bare {
    fn with_bytes<R>(self, _: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        f(&mut [0; PAGE_SIZE])
    }
}

/// Frames in their order, each once: the experiments never give memory back to the page allocator.
#[derive(Clone, Copy)]
pub struct BenchFrames {
    table: FrameTable,
    next: &'static AtomicU64,
    end: u64,
}

impl FrameSource for BenchFrames {
    type Machine = Bare;
    fn machine(self) -> Bare {
        Bare
    }
    fn table(self) -> FrameTable {
        self.table
    }
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        let first = self.next.fetch_add(request.order.frames(), Ordering::Relaxed);
        if first + request.order.frames() > self.end { Err(OutOfMemory) } else { Ok(Pfn(first)) }
    }
    fn release(self, _: Pfn, _: Order) {}
}

/// A device of a pool that has `segments` segments.
pub struct Ours(Device<BenchFrames>);

impl Ours {
    pub fn new(segments: usize) -> Self {
        // The frames begin at a multiple of a segment's; one more chunk is for the DMA API's own
        // memory.
        let frames = (segments + 2) * SEGMENT / PAGE_SIZE;
        let records = FrameRecord::new_vec_zeroed(frames).unwrap_or_default();
        let source = BenchFrames {
            table: FrameTable::new(records.leak()),
            next: Box::leak(Box::new(AtomicU64::new(64))),
            end: frames as u64,
        };
        let dma: &'static Dma<BenchFrames> = Box::leak(Box::new(Dma::new()));
        let limits =
            Limits { slabs: segments * 128, areas: 0, cap: segments * SEGMENT, scrub: Scrub::OwnerChange };
        assert_eq!(dma.start(source, limits), segments * 128, "all segments are there");
        let rules = DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: None };
        Self(dma.attach(rules).expect("the first device"))
    }
}

impl Allocator for Ours {
    type Held = DmaMapping<BenchFrames>;

    fn take(&self, _: usize, bytes: usize) -> Option<DmaMapping<BenchFrames>> {
        self.0.buffer(bytes, Direction::FromDevice).ok()
    }
    fn give(&self, held: DmaMapping<BenchFrames>) {
        drop(held);
    }
}
