//! Devices that go while others take their pages, over a unit in software.

extern crate std;

use core::fmt;
use std::boxed::Box;
use std::sync::Mutex;

use freehold_bounce::{DetachError, Device, DeviceRules, Direction, Dma, DmaAddr, Limits};
use freehold_frame::Owner;
use freehold_machine::{Access, DeviceDomain, NoTables, PfnRange, Unconfirmed};

use crate::model::{SoftwareUnit, UnitKind};
use crate::tests::{Frames, NET, run, start};
use crate::{Domain, Mode};

const SLOT: u16 = 0x100;

/// A deed beside a call.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A domain, and what happens at the beginning of the next call that takes frames away.
struct Beside {
    domain: &'static Domain<SoftwareUnit, Frames>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.domain.fmt(f)
    }
}

impl DeviceDomain for Beside {
    fn map(&self, frames: PfnRange) -> Result<(), NoTables> {
        self.domain.map(frames)
    }
    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        meanwhile.into_iter().for_each(|happens| happens());
        self.domain.unmap(frames)
    }
    fn detach(&self) -> Result<(), Unconfirmed> {
        self.domain.detach()
    }
    fn reattach(&self) -> Result<(), NoTables> {
        self.domain.reattach()
    }
}

fn attach(
    dma: &'static Dma<Frames>,
    name: &'static str,
    domain: &'static dyn DeviceDomain,
) -> Device<Frames> {
    let (reach, quota) = (DmaAddr(u64::MAX), usize::MAX);
    dma.attach(DeviceRules { name, reach, quota, domain: Some(domain) }).unwrap()
}

fn dma(frames: Frames) -> &'static Dma<Frames> {
    let dma: &'static Dma<Frames> = Box::leak(Box::new(Dma::new()));
    dma.start(frames, Limits { slabs: 0, ..Limits::default() });
    dma
}

/// The slot's device goes while another one's take, or reclaim, is in its domain.
#[test]
fn tables_stay_while_another_device_or_reclaim_takes_pages_from_their_domain() {
    for (mode, is_reclaim) in [(Mode::Batched, false), (Mode::Strict, false), (Mode::Batched, true)] {
        let (unit, hardware, frames) = start(UnitKind::default(), mode);
        let (slot, net) = (unit.attach(SLOT, "slot").unwrap(), unit.attach(NET, "net").unwrap());
        let beside: &'static Beside =
            Box::leak(Box::new(Beside { domain: slot, meanwhile: Mutex::new(None) }));
        let dma = dma(frames);
        let (device, other) = (attach(dma, "slot", beside), attach(dma, "net", net));
        let buffer = device.buffer(5 * 4096, Direction::Bidirectional).unwrap();
        let address = buffer.address().0;
        drop(buffer);
        assert!(hardware.access(SLOT, address, Access::Write).is_ok());
        let tables = slot.tables();
        *beside.meanwhile.lock().unwrap() = Some(Box::new(move || {
            assert_eq!(device.detach(), Err(DetachError::Held(5 * 4096)));
            assert_eq!((slot.tables(), slot.pages()), (tables, 5), "a call may walk them");
        }));
        if is_reclaim {
            assert_eq!(dma.shrink(), 256 << 10);
        } else {
            let taken = other.buffer(5 * 4096, Direction::Bidirectional).unwrap();
            assert_eq!(taken.address().0, address, "the same pages");
            assert!(hardware.access(NET, address, Access::Write).is_ok());
        }
        assert!(hardware.access(SLOT, address, Access::Write).is_err());
        device.detach().unwrap();
        assert_eq!((slot.tables(), slot.pages(), dma.statistics().lost), (0, 0, 0));
        device.reattach().unwrap();
        assert_eq!((slot.tables(), slot.pages()), (1, 0));
        drop(device.buffer(5 * 4096, Direction::Bidirectional).unwrap());
        device.detach().unwrap();
        let (audit, _) = frames.validate(|fault| panic!("{fault:?}"));
        assert_eq!(audit.frames(Owner::DeviceTable), unit.tables() as u64);
    }
}

/// A slot's devices come and go while another device takes and reclaim takes back: no take fails,
/// nothing is lost, and no table stays behind.
#[test]
fn devices_come_and_go_beside_takes_and_reclaim_and_nothing_is_lost() {
    let (unit, _, frames) = start(UnitKind::default(), Mode::Batched);
    let (slot, net) = (unit.attach(SLOT, "slot").unwrap(), unit.attach(NET, "net").unwrap());
    let dma = dma(frames);
    let (device, other) = (attach(dma, "slot", slot), attach(dma, "net", net));
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            for round in 0..3000 {
                let buffer = other.buffer((1 + round % 7) * 4096, Direction::Bidirectional).unwrap();
                assert_eq!(dma.owner(buffer.address()), Some("net"));
            }
        });
        let reclaim = scope.spawn(|| {
            for _ in 0..300 {
                dma.shrink();
                std::thread::yield_now();
            }
        });
        for _ in 0..300 {
            drop(device.buffer(96 * 4096, Direction::Bidirectional).unwrap());
            drop(device.coherent(4096).unwrap());
            while let Err(error) = device.detach() {
                assert!(matches!(error, DetachError::Held(_)), "{error}");
                std::thread::yield_now();
            }
            assert_eq!((slot.tables(), slot.pages()), (0, 0));
            device.reattach().unwrap();
        }
        taker.join().unwrap();
        reclaim.join().unwrap();
    });
    device.detach().unwrap();
    assert_eq!((dma.statistics().lost, dma.statistics().used), (0, 0));
    dma.shrink();
    assert_eq!(net.pages(), 0);
    let (audit, _) = frames.validate(|fault| panic!("{fault:?}"));
    assert_eq!(audit.frames(Owner::DeviceTable), unit.tables() as u64);
    assert_eq!(audit.frames(Owner::Bounce), 0);
}

/// Taking frames away makes no tables.
#[test]
fn frames_that_were_never_mapped_have_no_tables() {
    let (unit, ..) = start(UnitKind::default(), Mode::Batched);
    let slot = unit.attach(SLOT, "slot").unwrap();
    assert_eq!((slot.unmap(run(0x700, 0x702)), slot.close(0, 2)), (Err(Unconfirmed), Err(Unconfirmed)));
    assert_eq!((slot.tables(), slot.pages()), (1, 0));
}
