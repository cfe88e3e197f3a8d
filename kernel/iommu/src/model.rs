//! A remapping unit in software. It walks the tables in the machine's memory as hardware does, and
//! its caches remember.

extern crate std;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use freehold_machine::model::Model;
use freehold_machine::{Access, Pfn, Tables};

use crate::domain::{ADDRESS, READ_WRITE};
use crate::interrupts::{ENTRY_GLOBAL, ENTRY_INDEX};
use crate::unit::{
    COMPATIBLE, CONTEXT_GLOBAL, IOTLB_DOMAIN, IOTLB_GLOBAL, IOTLB_PAGES, PRESENT, QUEUE, REMAP_INTERRUPTS,
    SET_INTERRUPT_TABLE, SET_ROOT, TRANSLATE, WAIT, register,
};
use crate::{Arrival, Deed, DeviceFault, Registers};

/// Offset of the fault record that it has.
const FAULT_RECORD: usize = 0x220;
/// 4-level tables, page-selective invalidation up to 2^18 pages, one fault record; 2^16 domains.
pub const CAPABILITY: u64 = 1 << 10 | 1 << 39 | 18 << 48 | (FAULT_RECORD as u64 / 16) << 24 | 6;
/// Queued invalidation.
pub const EXTENDED: u64 = 1 << 1;
/// And interrupt remapping, with CPUs' numbers of 32 bits.
pub const REMAPS: u64 = EXTENDED | 1 << 3 | 1 << 4;

/// Properties of a unit.
#[derive(Clone, Copy)]
pub struct UnitKind {
    pub capability: u64,
    pub extended: u64,
    /// Invalidations that it obeys before it goes deaf.
    pub obeys: usize,
    /// Bits of the status that firmware left on.
    pub firmware: u32,
}

impl Default for UnitKind {
    fn default() -> Self {
        Self { capability: CAPABILITY, extended: EXTENDED, obeys: usize::MAX, firmware: 0 }
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
    /// The interrupt table's register, as it was when the table was set.
    table: (u64, u64),
    /// By index: present entries.
    entries: HashMap<usize, (u64, u64)>,
    /// Faults without a record yet; the first is in the record.
    faults: VecDeque<DeviceFault>,
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
        let state = UnitState { left: kind.obeys, status: kind.firmware, ..UnitState::default() };
        Self { machine, kind, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, UnitState> {
        self.state.lock().unwrap()
    }

    /// A device's access to an address: the physical one, or the reason of the fault.
    pub fn access(&self, source_id: u16, address: u64, access: Access) -> Result<u64, u8> {
        let page = address & !0xfff;
        let deed = if access == Access::Read { Deed::Read(page) } else { Deed::Write(page) };
        let mut state = self.state();
        if state.status & TRANSLATE == 0 {
            return Ok(address);
        }
        let result = self.translate(&mut state, source_id, address, access);
        if let Err(reason) = result {
            state.faults.push_back(DeviceFault { source_id, deed, reason });
        }
        result
    }

    /// A device's message: what arrives, or the reason of the fault.
    pub fn interrupt(&self, source_id: u16, address: u64, data: u32) -> Result<Arrival, u8> {
        let mut state = self.state();
        let plain = Arrival { vector: data as u8, cpu: (address >> 12 & 0xff) as u32 };
        if state.status & REMAP_INTERRUPTS == 0 {
            return Ok(plain);
        }
        let (result, deed) = if address & 1 << 4 != 0 {
            let subhandle = if address & 1 << 3 != 0 { data as usize & 0xffff } else { 0 };
            let index = (address >> 5 & 0x7fff | address >> 2 << 15 & 0x8000) as usize + subhandle;
            (self.remap(&mut state, source_id, index), Deed::Interrupt(index as u16))
        } else if state.status & COMPATIBLE != 0 && state.table.1 & 1 << 11 == 0 {
            (Ok(plain), Deed::PlainInterrupt)
        } else {
            (Err(0x25), Deed::PlainInterrupt)
        };
        if let Err(reason) = result {
            state.faults.push_back(DeviceFault { source_id, deed, reason });
        }
        result
    }

    fn remap(&self, state: &mut UnitState, source_id: u16, index: usize) -> Result<Arrival, u8> {
        let (_, table) = state.table;
        if index >> ((table & 0xf) + 1) != 0 {
            return Err(0x21);
        }
        let load = |half| self.machine.load_entry(Pfn(table >> 12), 2 * index + half);
        let (low, high) = state.entries.get(&index).copied().unwrap_or_else(|| (load(0), load(1)));
        if low & PRESENT == 0 {
            return Err(0x22);
        }
        state.entries.insert(index, (low, high));
        assert_eq!(
            (low & 0xff00_fffe, high >> 20, high >> 16 & 3),
            (0, 0, 0),
            "a fixed edge, nothing reserved"
        );
        if high >> 18 & 3 != 1 || high as u16 != source_id {
            return Err(0x26);
        }
        let number = (low >> 32) as u32;
        let cpu = if table & 1 << 11 != 0 { number } else { number >> 8 & 0xff };
        Ok(Arrival { vector: (low >> 16) as u8, cpu })
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
            ENTRY_GLOBAL => state.entries.clear(),
            ENTRY_INDEX => drop(state.entries.remove(&((low >> 32 & 0xffff) as usize))),
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
                let once = SET_ROOT | SET_INTERRUPT_TABLE;
                assert_eq!(state.status & !once & !COMPATIBLE & !value, 0, "no order turns another off");
                let kept = state.status & !COMPATIBLE;
                state.status = kept | value & (TRANSLATE | QUEUE | REMAP_INTERRUPTS | COMPATIBLE | once);
                if value & SET_INTERRUPT_TABLE != 0 {
                    state.table.1 = state.table.0;
                }
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
            FAULT_RECORD => first.map_or(0, |fault| match fault.deed {
                Deed::Read(address) | Deed::Write(address) | Deed::Reach(address) => address,
                Deed::Interrupt(index) => u64::from(index) << 48,
                Deed::PlainInterrupt => 0,
            }),
            _ if offset == FAULT_RECORD + 8 => first.map_or(0, |fault| {
                let (id, reason) = (u64::from(fault.source_id), u64::from(fault.reason));
                let is_read = u64::from(matches!(fault.deed, Deed::Read(_)));
                1 << 63 | is_read << 62 | reason << 32 | id
            }),
            other => panic!("read of {other:#x}"),
        }
    }
    fn write64(&self, offset: usize, value: u64) {
        match offset {
            register::ROOT => self.state().root = value,
            register::QUEUE_ADDRESS => self.state().queue = value,
            register::INTERRUPT_TABLE => self.state().table.0 = value,
            register::QUEUE_TAIL => self.run_queue(value),
            other => panic!("write to {other:#x}"),
        }
    }
}
