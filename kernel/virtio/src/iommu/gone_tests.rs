//! Devices that go while others take their pages, behind an IOMMU in software.

extern crate std;

use core::fmt;
use std::boxed::Box;
use std::sync::Mutex;

use freehold_bounce::{DetachError, DeviceRules, Direction, Dma, DmaAddr, Limits};
use freehold_iommu::Mode;
use freehold_machine::{DeviceDomain, NoTables, PfnRange, Unconfirmed};
use freehold_virtqueue::model::{self, Fake, HostMemory};

use super::tests::{NET, WRITE_FLAG, start};
use super::*;

const SLOT: (u16, u32) = (0x100, 0x900);

/// A deed beside a call.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A domain, and what happens at the beginning of the next call that takes frames away.
struct Beside {
    domain: &'static MappedDomain<HostMemory, Fake>,
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

type Attached = freehold_bounce::Device<HostMemory>;

fn attach(dma: &'static Dma<HostMemory>, name: &'static str, domain: &'static dyn DeviceDomain) -> Attached {
    let (reach, quota) = (DmaAddr(u64::MAX), usize::MAX);
    dma.attach(DeviceRules { name, reach, quota, domain: Some(domain) }).unwrap()
}

/// A slot's device, its domain, and another device.
fn devices(mode: Mode) -> (Attached, &'static Beside, Attached, super::tests::Hardware) {
    model::device();
    let (unit, hardware, _) = start(mode);
    let slot = unit.attach(SLOT, "slot", Occupied::Now).unwrap();
    let net = unit.attach(NET, "net", Occupied::Now).unwrap();
    let dma: &'static Dma<HostMemory> = Box::leak(Box::new(Dma::new()));
    dma.start(HostMemory, Limits { slabs: 0, ..Limits::default() });
    let beside: &'static Beside = Box::leak(Box::new(Beside { domain: slot, meanwhile: Mutex::new(None) }));
    (attach(dma, "slot", beside), beside, attach(dma, "net", net), hardware)
}

#[test]
fn a_domain_stays_while_another_device_or_reclaim_takes_pages_from_it() {
    for (mode, is_reclaim) in [(Mode::Batched, false), (Mode::Strict, false), (Mode::Batched, true)] {
        let (device, beside, other, hardware) = devices(mode);
        let dma = device.dma();
        let buffer = device.buffer(5 * 4096, Direction::Bidirectional).unwrap();
        let address = buffer.address().0;
        drop(buffer);
        assert!(hardware.access(SLOT, address, WRITE_FLAG).is_some());
        let detaches = hardware.count(2);
        let still = hardware.clone();
        *beside.meanwhile.lock().unwrap() = Some(Box::new(move || {
            assert_eq!(device.detach(), Err(DetachError::Held(5 * 4096)));
            assert_eq!((still.count(2), beside.domain.pages()), (detaches, 5));
        }));
        if is_reclaim {
            assert_eq!(dma.shrink(), 256 << 10);
        } else {
            let taken = other.buffer(5 * 4096, Direction::Bidirectional).unwrap();
            assert_eq!(taken.address().0, address, "the same pages");
            assert!(hardware.access(NET, address, WRITE_FLAG).is_some());
        }
        assert!(hardware.access(SLOT, address, WRITE_FLAG).is_none());
        device.detach().unwrap();
        assert_eq!((hardware.count(2), beside.domain.pages()), (detaches + 1, 0));
        assert_eq!(dma.statistics().lost, 0);
        device.reattach().unwrap();
        drop(device.buffer(5 * 4096, Direction::Bidirectional).unwrap());
        assert_eq!(beside.domain.pages(), 5);
        device.detach().unwrap();
        assert_eq!((beside.domain.pages(), dma.statistics().lost), (0, 0));
    }
}

/// The IOMMU refuses to take pages away, and takes the whole domain: the pages are lost, and the
/// place can be used.
#[test]
fn pages_that_are_refused_are_lost_and_the_next_device_has_others() {
    let (device, beside, other, hardware) = devices(Mode::Batched);
    drop(device.buffer(2 * 4096, Direction::Bidirectional).unwrap());
    hardware.known().refuses = Some((4, 0));
    device.detach().unwrap();
    hardware.known().refuses = None;
    assert_eq!((device.dma().statistics().lost, beside.domain.pages()), (2 * 4096, 0));
    device.reattach().unwrap();
    let taken = [device, other].map(|device| device.buffer(31 * 4096, Direction::ToDevice).unwrap());
    assert_eq!((beside.domain.pages(), device.dma().statistics().lost), (31, 2 * 4096));
    drop(taken);
    device.detach().unwrap();
}
