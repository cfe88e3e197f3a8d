//! Interrupts: who may raise which, on a unit that remembers entries.

extern crate std;

use std::vec::Vec;

use freehold_machine::{DeviceDomain, NoTables, Unconfirmed};
use proptest::prelude::*;

use crate::interrupts::{ENTRY_GLOBAL, ENTRY_INDEX};
use crate::model::{EXTENDED, REMAPS, SoftwareUnit, UnitKind};
use crate::tests::{DISK, Frames, NET, frames};
use crate::unit::COMPATIBLE;
use crate::{Arrival, CpuNumbers, Deed, DeviceFault, GivenEntry, Interrupts, IommuError, Mode, Unit};

const KIND: UnitKind =
    UnitKind { capability: crate::model::CAPABILITY, extended: REMAPS, obeys: usize::MAX, firmware: 0 };
/// Invalidations and waits of a start: two and one for translation, one each for the table.
const START: usize = 5;

fn start(kind: UnitKind, numbers: CpuNumbers) -> (&'static Unit<SoftwareUnit, Frames>, SoftwareUnit) {
    let frames = frames();
    let hardware = SoftwareUnit::new(freehold_frame::FrameSource::machine(frames), kind);
    let unit = Unit::start(hardware.clone(), frames, Mode::Batched, Interrupts::Remapped(numbers));
    (unit.unwrap(), hardware)
}

fn arrival(vector: u8, cpu: u32) -> Arrival {
    Arrival { vector, cpu }
}

/// A device's old-format message for a vector on CPU 0.
fn plain(hardware: &SoftwareUnit, device: u16, vector: u32) -> Result<Arrival, u8> {
    hardware.interrupt(device, 0xfee0_0000, vector)
}

#[test]
fn a_function_raises_what_its_entries_say_and_nothing_else() {
    let (unit, hardware) = start(KIND, CpuNumbers::Wide);
    assert!(unit.remaps_interrupts());
    assert_eq!(hardware.interrupt(DISK, 0xfee0_0010, 0), Err(0x22), "no entries at first");
    let first = unit.allow_interrupt(DISK, arrival(0x31, 0)).unwrap();
    let second = unit.allow_interrupt(NET, arrival(0x32, 0x1_0003)).unwrap();
    assert_eq!((first, second), (0xfee0_0010, 0xfee0_0030));
    // The unit ignores the message's data.
    assert_eq!(hardware.interrupt(DISK, first, 0xffff_ffff), Ok(arrival(0x31, 0)));
    assert_eq!(hardware.interrupt(NET, second, 0), Ok(arrival(0x32, 0x1_0003)));
    // Another's entry, also by way of a sub-handle; no entry; beyond the table; the old format.
    assert_eq!(hardware.interrupt(DISK, second, 0), Err(0x26));
    assert_eq!(hardware.interrupt(DISK, first | 1 << 3, 1), Err(0x26));
    assert_eq!(hardware.interrupt(DISK, 0xfee0_0010 | 200 << 5, 0), Err(0x22));
    assert_eq!(hardware.interrupt(DISK, first | 1 << 2, 0), Err(0x21));
    assert_eq!(plain(&hardware, NET, 0x31), Err(0x25));
    let taken: Vec<_> = core::iter::from_fn(|| unit.take_fault()).map(|(fault, _)| fault).collect();
    let fault = |source_id, deed, reason| DeviceFault { source_id, deed, reason };
    let by = |index, reason| fault(DISK, Deed::Interrupt(index), reason);
    let expected = [by(0, 0x22), by(1, 0x26), by(1, 0x26), by(200, 0x22), by(0x8000, 0x21)];
    assert_eq!(taken[..5], expected);
    assert_eq!(taken[5..], [fault(NET, Deed::PlainInterrupt, 0x25)]);
    assert_eq!(unit.entry(1), Some(GivenEntry { source_id: NET, arrival: arrival(0x32, 0x1_0003) }));
    assert_eq!(unit.entry(2), None);
}

#[test]
fn a_device_that_went_raises_nothing_and_the_unit_forgets_its_entries() {
    let (unit, hardware) = start(KIND, CpuNumbers::Wide);
    let (slot, disk) = (unit.attach(0x100, "slot").unwrap(), unit.attach(DISK, "disk").unwrap());
    // Allowed while no device is there: from the next one on.
    slot.detach().unwrap();
    let (address, other) = (
        unit.allow_interrupt(0x100, arrival(0x40, 0)).unwrap(),
        unit.allow_interrupt(DISK, arrival(0x41, 0)).unwrap(),
    );
    for _ in 0..3 {
        assert_eq!(hardware.interrupt(0x100, address, 0), Err(0x22));
        slot.reattach().unwrap();
        assert_eq!(hardware.interrupt(0x100, address, 0), Ok(arrival(0x40, 0)));
        assert_eq!(hardware.interrupt(DISK, other, 0), Ok(arrival(0x41, 0)));
        let sent = hardware.sent(ENTRY_GLOBAL);
        slot.detach().unwrap();
        assert_eq!(hardware.sent(ENTRY_GLOBAL), sent + 1);
    }
    assert_eq!(hardware.interrupt(DISK, other, 0), Ok(arrival(0x41, 0)), "it is not the slot's");
    let sent = hardware.sent(ENTRY_INDEX);
    unit.allow_interrupt(NET, arrival(0x42, 0)).unwrap();
    assert_eq!(hardware.sent(ENTRY_INDEX), sent + 1);
    let sent = hardware.sent(ENTRY_GLOBAL);
    unit.attach(0x200, "quiet").unwrap().detach().unwrap();
    assert_eq!((hardware.sent(ENTRY_GLOBAL), disk.pages()), (sent, 0), "without entries none is forgotten");
}

#[test]
fn without_an_answer_no_interrupt_is_given_and_a_device_is_not_gone() {
    // It goes deaf after the start.
    let (unit, hardware) = start(UnitKind { obeys: START, ..KIND }, CpuNumbers::Wide);
    assert_eq!(unit.allow_interrupt(DISK, arrival(0x31, 0)), Err(IommuError::Dead("a new interrupt")));
    assert_eq!(hardware.interrupt(DISK, 0xfee0_0010, 0), Err(0x22), "no entry stays");
    // It goes deaf after one entry: what it remembers it lets pass, and the device is not gone.
    let (unit, hardware) = start(UnitKind { obeys: START + 2, ..KIND }, CpuNumbers::Wide);
    let slot = unit.attach(DISK, "slot").unwrap();
    let address = unit.allow_interrupt(DISK, arrival(0x31, 0)).unwrap();
    assert!(hardware.interrupt(DISK, address, 0).is_ok());
    assert_eq!(slot.detach(), Err(Unconfirmed));
    assert!(hardware.interrupt(DISK, address, 0).is_ok(), "the unit remembers");
    // It goes deaf between a device and the next, which then has no domain.
    let (unit, _) = start(UnitKind { obeys: START + 7, ..KIND }, CpuNumbers::Wide);
    let slot = unit.attach(DISK, "slot").unwrap();
    unit.allow_interrupt(DISK, arrival(0x31, 0)).unwrap();
    assert_eq!((slot.detach(), slot.reattach()), (Ok(()), Err(NoTables)));
    // It goes deaf in its start.
    for obeys in [3, 4] {
        let frames = frames();
        let kind = UnitKind { obeys, ..KIND };
        let hardware = SoftwareUnit::new(freehold_frame::FrameSource::machine(frames), kind);
        let wanted = Interrupts::Remapped(CpuNumbers::Wide);
        let refused = Unit::start(hardware, frames, Mode::Batched, wanted).err();
        assert_eq!(refused, Some(IommuError::Dead("interrupt table")));
    }
}

#[test]
fn the_old_format_is_blocked_also_where_firmware_let_it_pass() {
    for numbers in [CpuNumbers::Narrow, CpuNumbers::Wide] {
        let (_, hardware) = start(UnitKind { firmware: COMPATIBLE, ..KIND }, numbers);
        assert_eq!(plain(&hardware, DISK, 0x31), Err(0x25), "{numbers:?}");
    }
}

#[test]
fn numbers_of_cpus_have_the_bits_that_controllers_and_unit_have() {
    for (extended, numbers) in [
        (REMAPS, CpuNumbers::Narrow),
        (REMAPS & !(1 << 4), CpuNumbers::Wide),
        (REMAPS & !(1 << 4), CpuNumbers::Narrow),
    ] {
        let (unit, hardware) = start(UnitKind { extended, ..KIND }, numbers);
        let address = unit.allow_interrupt(DISK, arrival(0x31, 0xfe)).unwrap();
        assert_eq!(hardware.interrupt(DISK, address, 0), Ok(arrival(0x31, 0xfe)));
        assert!(matches!(unit.allow_interrupt(DISK, arrival(0x32, 0x100)), Err(IommuError::Unsupported(_))));
    }
}

#[test]
fn a_unit_that_cannot_or_is_not_to_lets_interrupts_pass_and_gives_no_entry() {
    let cannot = UnitKind { extended: EXTENDED, ..KIND };
    let remapped = Interrupts::Remapped(CpuNumbers::Wide);
    for (kind, wanted) in [(cannot, remapped), (KIND, Interrupts::Passed)] {
        let frames = frames();
        let hardware = SoftwareUnit::new(freehold_frame::FrameSource::machine(frames), kind);
        let unit = Unit::start(hardware.clone(), frames, Mode::Batched, wanted).unwrap();
        assert!(!unit.remaps_interrupts());
        assert_eq!(plain(&hardware, DISK, 0x31), Ok(arrival(0x31, 0)));
        assert!(matches!(unit.allow_interrupt(DISK, arrival(0x31, 0)), Err(IommuError::Unsupported(_))));
    }
}

/// The table's frame is counted, and there are as many entries as it has.
#[test]
fn the_table_has_entries_for_every_vector_and_then_no_more() {
    let frames = frames();
    let hardware = SoftwareUnit::new(freehold_frame::FrameSource::machine(frames), KIND);
    let wanted = Interrupts::Remapped(CpuNumbers::Wide);
    let unit = Unit::start(hardware.clone(), frames, Mode::Batched, wanted).unwrap();
    for index in 0..256u32 {
        let address = unit.allow_interrupt(index as u16, arrival(index as u8, index)).unwrap();
        assert_eq!(hardware.interrupt(index as u16, address, 0), Ok(arrival(index as u8, index)));
    }
    assert_eq!(unit.allow_interrupt(DISK, arrival(0x31, 0)), Err(IommuError::TooManyInterrupts));
    let (audit, faults) = frames.validate(|fault| panic!("{fault:?}"));
    assert_eq!((audit.frames(freehold_frame::Owner::DeviceTable), faults), (unit.tables() as u64, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A device may write any message: the interrupt that arrives is one that an entry of this
    /// device describes.
    #[test]
    fn no_message_arrives_that_its_device_has_no_entry_for(
        given in proptest::collection::vec((0u16..4, 0x30u8..0xf0, 0u32..4), 0..12),
        messages in proptest::collection::vec((0u16..4, 0u64..1 << 20, any::<u32>()), 1..40),
    ) {
        let (unit, hardware) = start(KIND, CpuNumbers::Wide);
        for &(device, vector, cpu) in &given {
            unit.allow_interrupt(device, arrival(vector, cpu)).unwrap();
        }
        let (mut refused, mut told) = (0, 0);
        for (device, low, data) in messages {
            match hardware.interrupt(device, 0xfee0_0000 | low & 0xff3fc, data & 0xf) {
                Ok(Arrival { vector, cpu }) => prop_assert!(given.contains(&(device, vector, cpu))),
                Err(_) => refused += 1,
            }
        }
        while let Some((fault, _)) = unit.take_fault() {
            prop_assert!(matches!(fault.deed, Deed::Interrupt(_) | Deed::PlainInterrupt));
            told += 1;
        }
        prop_assert_eq!(told, refused);
    }
}
