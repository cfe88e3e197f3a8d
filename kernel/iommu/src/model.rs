//! A remapping unit in software. It walks the tables in the machine's memory as hardware does, and
//! its caches remember.

extern crate std;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use freehold_machine::model::Model;
use freehold_machine::{Access, Pfn, Tables};

use crate::domain::{ADDRESS, READ_WRITE};
use crate::unit::{
    CONTEXT_GLOBAL, IOTLB_DOMAIN, IOTLB_GLOBAL, IOTLB_PAGES, PRESENT, QUEUE, SET_ROOT, TRANSLATE, WAIT,
    register,
};
use crate::{DmaFault, Registers};

/// Offset of the fault record that it has.
const FAULT_RECORD: usize = 0x220;
/// 4-level tables, page-selective invalidation up to 2^18 pages, one fault record; 2^16 domains.
pub const CAPABILITY: u64 = 1 << 10 | 1 << 39 | 18 << 48 | (FAULT_RECORD as u64 / 16) << 24 | 6;
/// Queued invalidation.
pub const EXTENDED: u64 = 1 << 1;

/// Properties of a unit.
#[derive(Clone, Copy)]
pub struct UnitKind {
    pub capability: u64,
    pub extended: u64,
    /// Invalidations that it obeys before it goes deaf.
    pub obeys: usize,
}

impl Default for UnitKind {
    fn default() -> Self {
        Self { capability: CAPABILITY, extended: EXTENDED, obeys: usize::MAX }
    }
}

#[derive(Default)]
struct UnitState {
    status: u32,
    root: u64,
    queue: u64,
    head: u64,
    left: usize,
    /// By function: second-level root, levels, domain.
    contexts: HashMap<u16, (Pfn, u32, u16)>,
    /// By domain and page: the entry.
    iotlb: HashMap<(u16, u64), u64>,
    /// Faults without a record yet; the first is in the record.
    faults: VecDeque<DmaFault>,
    descriptors: std::vec::Vec<u64>,
}

/// The unit; clones are the same one.
#[derive(Clone)]
pub struct SoftwareUnit {
    machine: Model,
    kind: UnitKind,
    state: Arc<Mutex<UnitState>>,
}

impl SoftwareUnit {
    pub fn new(machine: Model, kind: UnitKind) -> Self {
        let state = UnitState { left: kind.obeys, ..UnitState::default() };
        Self { machine, kind, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, UnitState> {
        self.state.lock().unwrap()
    }

    /// A device's access to an address: the physical one, or the reason of the fault.
    pub fn access(&self, source_id: u16, address: u64, access: Access) -> Result<u64, u8> {
        let is_read = access == Access::Read;
        let mut state = self.state();
        if state.status & TRANSLATE == 0 {
            return Ok(address);
        }
        let result = self.translate(&mut state, source_id, address, access);
        if let Err(reason) = result {
            state.faults.push_back(DmaFault { source_id, address: address & !0xfff, reason, is_read });
        }
        result
    }

    fn translate(
        &self,
        state: &mut UnitState,
        source_id: u16,
        address: u64,
        access: Access,
    ) -> Result<u64, u8> {
        let load = |table: Pfn, index: usize| self.machine.load_entry(table, index);
        let target = |entry: u64| Pfn((entry & ADDRESS) >> 12);
        if !state.contexts.contains_key(&source_id) {
            let root = load(Pfn(state.root >> 12), 2 * usize::from(source_id >> 8));
            if root & PRESENT == 0 {
                return Err(1);
            }
            let index = 2 * usize::from(source_id & 0xff);
            let (low, high) = (load(target(root), index), load(target(root), index + 1));
            if low & PRESENT == 0 {
                return Err(2);
            }
            assert_eq!(low & 0xffe, 0, "no translated requests, no reserved bits");
            let context = (target(low), (high & 7) as u32 + 2, (high >> 8) as u16);
            state.contexts.insert(source_id, context);
        }
        let (root, levels, domain) = state.contexts[&source_id];
        let page = address >> 12;
        let (allowing, refused) = if access == Access::Read { (1, 6) } else { (2, 5) };
        let is_allowed = |entry: u64| entry & allowing != 0;
        if page >> (9 * levels) != 0 {
            return Err(4);
        }
        if let Some(&entry) = state.iotlb.get(&(domain, page)) {
            return if is_allowed(entry) { Ok(entry & ADDRESS | address & 0xfff) } else { Err(refused) };
        }
        let mut entry = root.start().0 | READ_WRITE;
        for level in (0..levels).rev() {
            entry = load(target(entry), (page >> (9 * level)) as usize & 0x1ff);
            if !is_allowed(entry) {
                return Err(refused);
            }
        }
        state.iotlb.insert((domain, page), entry);
        Ok(entry & ADDRESS | address & 0xfff)
    }

    /// Invalidations that it was sent, by kind.
    pub fn sent(&self, kind: u64) -> usize {
        self.state().descriptors.iter().filter(|&&low| low & 0x3f == kind & 0x3f).count()
    }

    fn run_queue(&self, tail: u64) {
        let mut state = self.state();
        while state.head != tail {
            let index = (state.head / 8) as usize;
            let (low, high) = (
                self.machine.load_entry(Pfn(state.queue >> 12), index),
                self.machine.load_entry(Pfn(state.queue >> 12), index + 1),
            );
            if state.left == 0 {
                return;
            }
            state.left -= 1;
            self.obey(&mut state, low, high);
            state.head = (state.head + 16) % 4096;
        }
    }

    fn obey(&self, state: &mut UnitState, low: u64, high: u64) {
        let domain = (low >> 16) as u16;
        state.descriptors.push(low);
        match low & 0x3f {
            CONTEXT_GLOBAL => state.contexts.clear(),
            IOTLB_GLOBAL => state.iotlb.clear(),
            IOTLB_DOMAIN => state.iotlb.retain(|&(of, _), _| of != domain),
            IOTLB_PAGES => {
                let order = high & 0x3f;
                assert!((high >> 12).is_multiple_of(1 << order), "pages of a descriptor are aligned");
                state.iotlb.retain(|&(of, page), _| of != domain || page >> order != high >> 12 >> order);
            }
            WAIT => self.machine.store_entry(Pfn(high >> 12), (high & 0xfff) as usize / 8, low >> 32),
            other => panic!("descriptor {other:#x}"),
        }
    }
}

impl Registers for SoftwareUnit {
    fn read32(&self, offset: usize) -> u32 {
        assert_eq!(offset, register::STATUS);
        self.state().status
    }
    fn write32(&self, offset: usize, value: u32) {
        let mut state = self.state();
        match offset {
            register::COMMAND => {
                assert_eq!(state.status & !SET_ROOT & !value, 0, "no order turns another off");
                state.status |= value & (TRANSLATE | SET_ROOT | QUEUE);
            }
            register::FAULT_STATUS => {}
            place if place == FAULT_RECORD + 12 => drop(state.faults.pop_front()),
            other => panic!("write to {other:#x}"),
        }
    }
    fn read64(&self, offset: usize) -> u64 {
        let first = self.state().faults.front().copied();
        match offset {
            register::CAPABILITY => self.kind.capability,
            register::EXTENDED => self.kind.extended,
            FAULT_RECORD => first.map_or(0, |fault| fault.address),
            _ if offset == FAULT_RECORD + 8 => first.map_or(0, |fault| {
                let (id, reason) = (u64::from(fault.source_id), u64::from(fault.reason));
                1 << 63 | u64::from(fault.is_read) << 62 | reason << 32 | id
            }),
            other => panic!("read of {other:#x}"),
        }
    }
    fn write64(&self, offset: usize, value: u64) {
        match offset {
            register::ROOT => self.state().root = value,
            register::QUEUE_ADDRESS => self.state().queue = value,
            register::QUEUE_TAIL => self.run_queue(value),
            other => panic!("write to {other:#x}"),
        }
    }
}
