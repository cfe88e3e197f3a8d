//! A root port as its registers: found, told what to do, and heard, with a device in its slot that
//! comes, goes and lies about its sizes.

extern crate std;

use std::sync::Mutex;
use std::vec::Vec;

use freehold_machine::PhysAddr;
use proptest::prelude::*;

use crate::SetupError;
use crate::pci::functions;
use crate::platform::{Function, MsiMessage, Notify, Platform, Registers};
use crate::port::{Port, Power, SlotState, place_registers, ports};

const BRIDGE: Function = Function { bus: 0, device: 3, function: 0 };
const DEVICE: Function = Function { bus: 5, device: 0, function: 0 };
/// Where the bridge has its capability of PCI Express.
const EXPRESS: usize = 0x54;
const CONTROL: usize = EXPRESS + 0x18;
const STATUS: usize = EXPRESS + 0x1a;
/// Registers of messages: MSI.
const MSI: usize = 0x80;
const WINDOW: core::ops::Range<u64> = 0xfe20_0000..0xfe40_0000;

/// A bridge, and a device of six BARs.
struct Machine {
    bridge: Mutex<[u8; 256]>,
    /// Each BAR's answer when its size is asked for, and the value that was written.
    bars: Mutex<[(u32, u32); 6]>,
    command: Mutex<u32>,
}

/// Registers that no test here touches.
struct NoRegisters;

impl Registers for NoRegisters {
    fn read8(&self, _: usize) -> u8 {
        u8::MAX
    }
    fn read16(&self, _: usize) -> u16 {
        u16::MAX
    }
    fn read32(&self, _: usize) -> u32 {
        u32::MAX
    }
    fn write8(&self, _: usize, _: u8) {}
    fn write16(&self, _: usize, _: u16) {}
    fn write32(&self, _: usize, _: u32) {}
}

impl Platform for Machine {
    type Registers = NoRegisters;

    fn read_config(&self, function: Function, register: u8) -> u32 {
        let at = usize::from(register);
        match function {
            BRIDGE => u32::from_le_bytes(self.bridge.lock().unwrap()[at..at + 4].try_into().unwrap()),
            DEVICE if !self.is_reachable() => u32::MAX,
            DEVICE if register == 0 => 0x1042_1af4,
            DEVICE if register == 4 => *self.command.lock().unwrap(),
            DEVICE if (0x10..0x28).contains(&register) => self.bars.lock().unwrap()[(at - 0x10) / 4].1,
            DEVICE => 0,
            _ => u32::MAX,
        }
    }
    fn write_config(&self, function: Function, register: u8, value: u32) {
        let at = usize::from(register);
        match function {
            // The upper half of the word at 4 is the status.
            BRIDGE if at == 4 => {
                self.bridge.lock().unwrap()[4..6].copy_from_slice(&(value as u16).to_le_bytes());
            }
            BRIDGE => self.set(at, value),
            DEVICE if register == 4 => *self.command.lock().unwrap() = value,
            DEVICE if self.is_reachable() => {
                let mut bars = self.bars.lock().unwrap();
                let (mask, now) = &mut bars[(at - 0x10) / 4];
                *now = if value == u32::MAX { *mask } else { value };
            }
            _ => {}
        }
    }
    fn write_config16(&self, function: Function, register: u8, value: u16) {
        assert_eq!(function, BRIDGE);
        let at = usize::from(register);
        let value = if at == STATUS { self.status() & !value } else { value };
        self.bridge.lock().unwrap()[at..at + 2].copy_from_slice(&value.to_le_bytes());
        if at == CONTROL {
            self.set_status(self.status() | 1 << 4);
        }
    }
    fn map(&self, _: PhysAddr, _: usize) -> Option<NoRegisters> {
        None
    }
    fn interrupt(&self, function: Function, _: &'static dyn Notify) -> Option<MsiMessage> {
        assert_eq!(function, BRIDGE, "the function that will write it");
        Some(MsiMessage { address: 0xfee0_1000, data: 0x41 })
    }
}

impl Machine {
    fn new() -> Self {
        let machine =
            Self { bridge: Mutex::new([0; 256]), bars: Mutex::new([(0, 0); 6]), command: Mutex::new(7) };
        machine.set(0x00, 0x000c_1b36);
        machine.set(0x04, 1 << 20);
        machine.set(0x0c, 1 << 16);
        machine.set(0x18, 0x0005_0500);
        machine.set(0x20, 0xfe30_fe20);
        machine.set(0x34, EXPRESS as u32);
        // A root port with a slot; version 2.
        machine.set(EXPRESS, u32::from_le_bytes([0x10, MSI as u8, 0x42, 0x01]));
        machine.set(EXPRESS + 0x14, 9 << 19 | 1 << 6);
        machine.set(EXPRESS + 0x18, 1 << 10 | 3 << 8 | 3 << 6);
        machine.set(MSI, 0x0080_0005);
        machine
    }
    fn set(&self, at: usize, value: u32) {
        self.bridge.lock().unwrap()[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn word16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bridge.lock().unwrap()[at..at + 2].try_into().unwrap())
    }
    fn status(&self) -> u16 {
        self.word16(STATUS)
    }
    fn set_status(&self, status: u16) {
        self.bridge.lock().unwrap()[STATUS..STATUS + 2].copy_from_slice(&status.to_le_bytes());
    }
    /// The device is there and has power.
    fn is_reachable(&self) -> bool {
        self.status() & 1 << 6 != 0 && self.word16(CONTROL) & 1 << 10 == 0
    }
    fn plug(&self) {
        self.set_status(self.status() | 1 << 6 | 1 << 3 | 1);
    }
    fn port(&self) -> Port {
        ports(self).next().unwrap()
    }
    fn placed(&self) -> [u32; 6] {
        self.bars.lock().unwrap().map(|(_, now)| now)
    }
}

struct Nobody;

impl Notify for Nobody {
    fn notify(&self) {}
}

#[test]
fn ports_with_slots_for_hot_plug_are_found_and_no_other_function() {
    let machine = Machine::new();
    let port = machine.port();
    assert_eq!((port.bridge(), port.device(), port.number()), (BRIDGE, DEVICE, 9));
    assert_eq!(port.window(), WINDOW);
    assert_eq!(functions(&machine).count(), 1);
    let changes: [(usize, u32); 5] = [
        (0x0c, 0),                                         // no bridge
        (EXPRESS, u32::from_le_bytes([0x10, 0, 0x42, 0])), // no slot
        (EXPRESS, u32::from_le_bytes([0x10, 0, 0x62, 1])), // a switch's port
        (EXPRESS + 0x14, 9 << 19),                         // no hot-plug
        (0x18, 0),                                         // firmware gave it no bus
    ];
    for (at, value) in changes {
        let machine = Machine::new();
        machine.set(at, value);
        assert!(ports(&machine).next().is_none(), "{at:#x}");
    }
    // A window that ends before it begins has no addresses.
    machine.set(0x20, 0xfe20_fe30);
    assert!(machine.port().window().is_empty());
}

#[test]
fn a_device_that_comes_is_told_once_and_gets_power_when_it_is_given() {
    let machine = Machine::new();
    let port = machine.port();
    port.listen(&machine, &Nobody).unwrap();
    assert_eq!(machine.word16(CONTROL) & 0x2b, 0x2b, "button, faults, presence, interrupts");
    assert_eq!(machine.word16(CONTROL) & 1 << 10, 1 << 10, "power stays as it was");
    assert_eq!(machine.read_config(BRIDGE, 4) & 6, 6, "accesses pass, both ways");
    let message = machine.bridge.lock().unwrap()[MSI..MSI + 16].to_vec();
    assert_eq!(message, [5, 0, 0x81, 0, 0, 0x10, 0xe0, 0xfe, 0, 0, 0, 0, 0x41, 0, 0, 0]);
    let quiet = SlotState { is_occupied: false, has_changed: false, is_pressed: false };
    assert_eq!(port.take_events(&machine), quiet);
    assert!(port.is_off(&machine) && port.find(&machine).is_none());
    machine.plug();
    let came = SlotState { is_occupied: true, has_changed: true, is_pressed: true };
    assert_eq!(port.take_events(&machine), came);
    assert_eq!(port.take_events(&machine), SlotState { is_occupied: true, ..quiet });
    assert!(port.is_off(&machine), "it has no power yet");
    port.set_power(&machine, Power::On);
    assert_eq!(port.find(&machine), Some((0x1af4, 0x1042)));
    assert!(!port.is_off(&machine));
    port.set_power(&machine, Power::Off);
    assert!(port.is_off(&machine) && port.find(&machine).is_none());
    assert_eq!(machine.word16(CONTROL) & 0x2b, 0x2b, "it still tells");
    // It goes without being asked.
    port.set_power(&machine, Power::On);
    machine.set_status(1 << 3);
    assert!(port.is_off(&machine));
    assert_eq!(port.take_events(&machine), SlotState { has_changed: true, ..quiet });
}

#[test]
fn registers_are_placed_in_the_ports_window_by_their_sizes() {
    let machine = Machine::new();
    let port = machine.port();
    machine.plug();
    port.set_power(&machine, Power::On);
    // I/O, 4 KiB, nothing, 16 KiB of 64 bits that can be fetched early, nothing.
    *machine.bars.lock().unwrap() =
        [0xffff_ff81, 0xffff_f000, 0, 0, 0xffff_c00c, u32::MAX].map(|mask| (mask, 0));
    place_registers(&machine, port.device(), port.window()).unwrap();
    assert_eq!(machine.placed(), [0xffff_ff81, 0xfe20_0000, 0, 0, 0xfe20_4000, 0]);
    assert_eq!(*machine.command.lock().unwrap(), 0, "it answers to nothing meanwhile");
    for (bars, refusal) in [
        ([0xffc0_0000, 0, 0, 0, 0, 0], SetupError::NoRegisters("room for its registers")),
        ([0x0f0f_0000, 0, 0, 0, 0, 0], SetupError::Nonsense("size of registers")),
        ([0xc, 0x8000_0000, 0, 0, 0, 0], SetupError::NoRegisters("room for its registers")),
        ([u32::MAX, 0, 0, 0, 0, 0], SetupError::NoRegisters("device")),
    ] {
        *machine.bars.lock().unwrap() = bars.map(|mask| (mask, 0));
        assert_eq!(place_registers(&machine, port.device(), port.window()), Err(refusal), "{bars:x?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Registers of a device with any sizes lie in the window, apart and in order, or are refused.
    #[test]
    fn a_device_cannot_be_placed_outside_its_ports_window(
        kinds in proptest::array::uniform6((0u32..34, 0u32..16, any::<u32>())),
    ) {
        let machine = Machine::new();
        machine.plug();
        let port = machine.port();
        port.set_power(&machine, Power::On);
        let masks = kinds.map(|(order, low, noise)| match order {
            32 => noise,
            33 => 0,
            order => u32::MAX << order & !0xf | low,
        });
        *machine.bars.lock().unwrap() = masks.map(|mask| (mask, 0));
        if place_registers(&machine, port.device(), port.window()).is_err() {
            return Ok(());
        }
        let (placed, mut at, mut places) = (machine.placed(), 0, Vec::new());
        while at < 6 {
            let is_wide = masks[at] & 7 == 4 && at < 5;
            if masks[at] & 1 == 0 && placed[at] != masks[at] {
                let high = if is_wide { u64::from(placed[at + 1]) << 32 } else { 0 };
                places.push(high | u64::from(placed[at]));
            }
            at += if is_wide { 2 } else { 1 };
        }
        prop_assert!(places.iter().all(|place| WINDOW.contains(place)), "{masks:x?}: {places:x?}");
        prop_assert!(places.is_sorted_by(|one, next| one < next));
    }
}
