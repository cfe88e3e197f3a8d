//! A very simple page allocator: lowest free frame first, single frames only.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use freehold_frame::{FrameRecord, FrameSource, FrameTable, Order, OutOfMemory, Request, Tag};
use freehold_machine::{CpuId, NodeId, Pfn, PfnRange};

#[derive(Clone, Copy)]
pub struct Source {
    table: FrameTable,
    free: &'static Mutex<Vec<Pfn>>,
}

impl Source {
    pub fn new(frames: u64) -> Self {
        let records: Vec<_> = (0..frames).map(|_| FrameRecord::EMPTY).collect();
        let free = (0..frames).rev().map(Pfn).collect();
        Self { table: FrameTable::new(records.leak()), free: Box::leak(Box::new(Mutex::new(free))) }
    }
    pub fn memory(self) -> PfnRange {
        PfnRange::new(Pfn(0), self.table.end())
    }
    pub fn free_frames(self) -> usize {
        self.free.lock().unwrap().len()
    }
}

impl FrameSource for Source {
    type Machine = ();
    fn machine(self) {}
    fn table(self) -> FrameTable {
        self.table
    }
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        assert_eq!(request.order, Order::FRAME);
        let frame = self.free.lock().unwrap().pop().ok_or(OutOfMemory)?;
        self.table.get(frame).unwrap().hand_out(Tag::new(request.owner, request.order, NodeId(0))).unwrap();
        Ok(frame)
    }
    fn release(self, block: Pfn, order: Order) {
        let record = self.table.get(block).unwrap();
        record.take_back(record.freeable(order).unwrap().trace(CpuId(0)));
        self.free.lock().unwrap().push(block);
    }
}
