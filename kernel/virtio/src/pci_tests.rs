//! A virtio function as its registers: found, wired and notified as the specification says, and
//! refused where its registers make no sense.

extern crate std;

use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_iommu::IommuError;
use freehold_machine::PhysAddr;
use freehold_virtqueue::{DeviceStatus, DeviceType, Transport, TransportError};
use proptest::prelude::*;

use crate::SetupError;
use crate::iommu::function_at;
use crate::pci::{capabilities, functions};
use crate::platform::{Function, MsiMessage, Notify, Platform, Registers};
use crate::transport::{PciTransport, device_type};

/// Where the fake's BAR 4 is, and its parts.
const BAR: u64 = 0x8_0000_0000;
const COMMON: usize = 0;
const NOTIFY: usize = 0x1000;
const CONFIG: usize = 0x2000;
const TABLE: usize = 0x3000;
const LENGTH: usize = 0x4000;

const PLACE: Function = Function { bus: 0, device: 4, function: 0 };

/// One function on bus 0.
#[derive(Clone)]
struct Machine {
    space: Arc<Mutex<[u8; 256]>>,
    memory: Arc<Mutex<Vec<u8>>>,
    vectors: usize,
}

/// A mapping of some of the BAR.
struct Mapped {
    memory: Arc<Mutex<Vec<u8>>>,
    start: usize,
    length: usize,
}

impl Mapped {
    fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset + N <= self.length && offset.is_multiple_of(N), "a read outside the mapping");
        self.memory.lock().unwrap()[self.start + offset..][..N].try_into().unwrap()
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length, "a write outside the mapping");
        self.memory.lock().unwrap()[self.start + offset..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl Registers for Mapped {
    fn read8(&self, offset: usize) -> u8 {
        self.read::<1>(offset)[0]
    }
    fn read16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.read(offset))
    }
    fn read32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.read(offset))
    }
    fn write8(&self, offset: usize, value: u8) {
        self.write(offset, &[value]);
    }
    fn write16(&self, offset: usize, value: u16) {
        self.write(offset, &value.to_le_bytes());
    }
    fn write32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }
}

impl Platform for Machine {
    type Registers = Mapped;

    fn read_config(&self, function: Function, register: u8) -> u32 {
        assert!(register.is_multiple_of(4), "configuration reads are aligned");
        if function != PLACE {
            return u32::MAX;
        }
        let space = self.space.lock().unwrap();
        u32::from_le_bytes(space[usize::from(register)..][..4].try_into().unwrap())
    }
    fn write_config(&self, function: Function, register: u8, value: u32) {
        assert_eq!(function, PLACE);
        // Status bits are cleared by writing ones.
        let status = if register == 4 { self.read_config(function, 4) >> 16 & !(value >> 16) } else { 0 };
        let value = if register == 4 { status << 16 | value & 0xffff } else { value };
        self.space.lock().unwrap()[usize::from(register)..][..4].copy_from_slice(&value.to_le_bytes());
    }
    fn write_config16(&self, _: Function, _: u8, _: u16) {
        unreachable!("no port");
    }
    fn map(&self, address: PhysAddr, length: usize) -> Option<Mapped> {
        let start = usize::try_from(address.0.checked_sub(BAR)?).ok()?;
        let fits = start.checked_add(length).is_some_and(|end| end <= LENGTH);
        fits.then(|| Mapped { memory: self.memory.clone(), start, length })
    }
    fn interrupt(&self, function: Function, _: &'static dyn Notify) -> Option<MsiMessage> {
        assert_eq!(function, PLACE, "the function that will write it");
        (self.vectors > 0).then_some(MsiMessage { address: 0xfee0_1000, data: 0x41 })
    }
}

impl Machine {
    fn new() -> Self {
        let space = Arc::new(Mutex::new([0; 256]));
        let machine = Self { space, memory: Arc::new(Mutex::new(std::vec![0; LENGTH])), vectors: 1 };
        machine.set(0x00, 0x1043_1af4);
        machine.space.lock().unwrap()[4..8].copy_from_slice(&(1u32 << 20 | 1).to_le_bytes());
        machine.set(0x20, BAR as u32 | 0b1100);
        machine.set(0x24, (BAR >> 32) as u32);
        machine.set(0x34, 0x40);
        machine.set(0x40, 0x0002_5011); // MSI-X, three vectors
        machine.set(0x44, TABLE as u32 | 4);
        machine.capability(0x50, 0x64, 1, 16, COMMON, 56);
        machine.capability(0x64, 0x78, 2, 20, NOTIFY, 0x100);
        machine.set(0x64 + 16, 4);
        machine.capability(0x78, 0, 4, 16, CONFIG, 0x10);
        machine
    }
    fn set(&self, register: u8, value: u32) {
        self.write_config(PLACE, register, value);
    }
    fn capability(&self, at: u8, next: u8, kind: u8, length: u8, offset: usize, size: u32) {
        self.set(at, u32::from_le_bytes([9, next, length, kind]));
        self.set(at + 4, 4);
        self.set(at + 8, offset as u32);
        self.set(at + 12, size);
    }
    fn word16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.memory.lock().unwrap()[at..at + 2].try_into().unwrap())
    }
    fn word32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.memory.lock().unwrap()[at..at + 4].try_into().unwrap())
    }
    fn open(&self) -> Result<PciTransport<Mapped>, SetupError> {
        PciTransport::new(self, PLACE, DeviceType::Console, &Nobody)
    }
    /// The error of an opening that fails.
    fn refusal(&self) -> Option<SetupError> {
        self.open().err()
    }
}

struct Nobody;

impl Notify for Nobody {
    fn notify(&self) {}
}

#[test]
fn the_function_and_its_capabilities_are_found() {
    let machine = Machine::new();
    let found: Vec<_> = functions(&machine).collect();
    assert_eq!(found, [(PLACE, 0x1af4, 0x1043)]);
    assert_eq!(device_type(0x1af4, 0x1043), Some(DeviceType::Console));
    assert_eq!(device_type(0x1af4, 0x1001), Some(DeviceType::Block));
    assert_eq!(device_type(0x1af4, 0x1000), Some(DeviceType::Network));
    assert_eq!(device_type(0x1af4, 0x1041), Some(DeviceType::Network));
    assert_eq!(device_type(0x8086, 0x1043), None);
    let at: Vec<_> = capabilities(&machine, PLACE).map(|(at, _)| at).collect();
    assert_eq!(at, [0x40, 0x50, 0x64, 0x78]);
}

/// Firmware names a function as the IOMMU; the function has to say so, too.
#[test]
fn only_an_iommu_is_an_iommu() {
    let machine = Machine::new();
    let place = u16::from(PLACE.device) << 3;
    for other in [0x1043_1af4, 0x1057_8086, 0x1042_1af4, 0x1017_1af4] {
        machine.set(0, other);
        assert!(matches!(function_at(&machine, place), Err(IommuError::Unsupported(_))), "{other:#x}");
    }
    machine.set(0, 0x1057_1af4);
    assert_eq!(function_at(&machine, place), Ok(PLACE));
    for absent in [place + 8, place + 1, place | 1 << 8] {
        assert_eq!(function_at(&machine, absent), Err(IommuError::Absent));
    }
}

#[test]
fn a_device_becomes_bus_master_with_one_vector_and_no_line_interrupt() {
    let machine = Machine::new();
    let _transport = machine.open().unwrap();
    assert_eq!(machine.read_config(PLACE, 4) & 0xffff, 1 | 2 | 4 | 0x400);
    assert_eq!(machine.read_config(PLACE, 0x40) >> 30, 0b10, "MSI-X is on and not masked");
    assert_eq!((machine.word32(TABLE), machine.word32(TABLE + 4)), (0xfee0_1000, 0));
    assert_eq!((machine.word32(TABLE + 8), machine.word32(TABLE + 12)), (0x41, 0));
}

#[test]
fn a_queue_gets_its_addresses_its_vector_and_is_enabled_last() {
    let machine = Machine::new();
    let mut transport = machine.open().unwrap();
    machine.memory.lock().unwrap()[30] = 3; // its notify offset
    machine.memory.lock().unwrap()[26..28].fill(0xff);
    transport.queue_set(1, 16, 0x1_0000_1000, 0x2000, 0x3000);
    assert_eq!((machine.word16(22), machine.word16(24), machine.word16(26)), (1, 16, 0));
    assert_eq!((machine.word32(32), machine.word32(36)), (0x1000, 1));
    assert_eq!((machine.word32(40), machine.word32(48), machine.word16(28)), (0x2000, 0x3000, 1));
    transport.notify(1);
    assert_eq!(machine.word16(NOTIFY + 3 * 4), 1);
    transport.notify(0);
    assert!(transport.queue_used(1));
}

#[test]
fn a_watched_device_tells_of_its_configuration_too_or_is_used_without_messages() {
    let watched = |machine: &Machine| PciTransport::watched(machine, PLACE, DeviceType::Memory, &Nobody);
    let mut machine = Machine::new();
    machine.open().unwrap().queue_set(0, 16, 0x1000, 0x2000, 0x3000);
    assert_eq!((machine.word16(16), machine.word16(26)), (0xffff, 0));
    watched(&machine).unwrap().queue_set(0, 16, 0x1000, 0x2000, 0x3000);
    assert_eq!((machine.word16(16), machine.word16(26)), (0, 0));
    machine.vectors = 0;
    watched(&machine).unwrap().queue_set(0, 16, 0x1000, 0x2000, 0x3000);
    assert_eq!((machine.word16(16), machine.word16(26)), (0xffff, 0xffff));
    assert_eq!(machine.read_config(PLACE, 4) & 4, 4, "a bus master all the same");
}

#[test]
fn looking_at_a_device_gives_it_no_way_to_memory() {
    let machine = Machine::new();
    assert!(PciTransport::look(&machine, PLACE, DeviceType::Console).is_ok());
    assert_eq!(machine.read_config(PLACE, 4) & 0xffff, 1 | 2);
}

#[test]
fn a_notify_offset_outside_the_registers_is_never_written() {
    let machine = Machine::new();
    let mut transport = machine.open().unwrap();
    machine.memory.lock().unwrap()[30..32].fill(0xff);
    transport.queue_set(0, 16, 0x1000, 0x2000, 0x3000);
    transport.notify(0); // a write outside the mapping would panic
}

#[test]
fn configuration_is_read_in_the_fields_own_width_and_bounds() {
    let machine = Machine::new();
    let transport = machine.open().unwrap();
    machine.memory.lock().unwrap()[CONFIG..CONFIG + 8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(transport.read_config_space::<u16>(2), Ok(0x0403));
    assert_eq!(transport.read_config_space::<u32>(4), Ok(0x0807_0605));
    assert_eq!(transport.read_config_space::<[u8; 3]>(1), Ok([2, 3, 4]));
    assert_eq!(transport.read_config_space::<u32>(14), Err(TransportError::ConfigSpaceTooSmall));
    assert_eq!(transport.read_config_space::<u64>(usize::MAX - 3), Err(TransportError::ConfigSpaceTooSmall));
    assert!(PciTransport::map_config(&machine, PLACE, 8, 4).is_some());
    assert!(PciTransport::map_config(&machine, PLACE, 14, 4).is_none());
}

#[test]
fn dropping_a_device_resets_it() {
    let machine = Machine::new();
    let mut transport = machine.open().unwrap();
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    assert_eq!(machine.memory.lock().unwrap()[20], 3);
    drop(transport);
    assert_eq!(machine.memory.lock().unwrap()[20], 0);
}

#[test]
fn registers_that_make_no_sense_are_refused_and_the_device_stays_without_memory() {
    type Damage = fn(&mut Machine);
    let cases: [(Damage, SetupError); 7] = [
        (|m| m.set(0x34, 0), SetupError::Legacy),
        (|m| m.set(0x20, 1), SetupError::NoRegisters("common registers")),
        (|m| m.set(0x50 + 12, 40), SetupError::NoRegisters("whole common registers")),
        (|m| m.set(0x50 + 8, !3), SetupError::NoRegisters("common registers")),
        (|m| m.set(0x64 + 16, 3), SetupError::Nonsense("notify offset")),
        (|m| m.set(0x44, 0xffff_fffc), SetupError::NoRegisters("MSI-X table")),
        (|m| m.vectors = 0, SetupError::NoInterrupt),
    ];
    for (damage, expected) in cases {
        let mut machine = Machine::new();
        damage(&mut machine);
        assert_eq!(machine.refusal(), Some(expected));
        assert_eq!(machine.read_config(PLACE, 4) & 4, 0, "{expected:?}: still a bus master");
    }
}

#[test]
fn a_capability_list_that_runs_in_a_circle_ends() {
    let machine = Machine::new();
    machine.capability(0x78, 0x50, 4, 16, CONFIG, 0x10);
    assert!(machine.open().is_ok());
    assert!(capabilities(&machine, PLACE).count() < 100);
}

proptest! {
    /// Any configuration space at all: a transport or an error, never a panic, and never an access
    /// outside a mapping.
    #[test]
    fn hostile_configuration_never_panics(bytes in proptest::collection::vec((4usize..256, any::<u8>()), 0..40)) {
        let machine = Machine::new();
        for (at, byte) in bytes {
            machine.space.lock().unwrap()[at] = byte;
        }
        if let Ok(mut transport) = machine.open() {
            transport.queue_set(0, 16, 0x1000, 0x2000, 0x3000);
            transport.notify(0);
            let _ = transport.read_config_space::<u64>(0);
        }
        let _ = PciTransport::map_config(&machine, PLACE, 8, 4);
    }
}
