//! Access in place behind faulty IOMMUs, as `in_place.rs` promises.

extern crate std;

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use freehold_frame::{Anon, Frame, Held, HeldFrame};
use freehold_machine::{DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, Pfn, PfnRange, Unconfirmed};

use crate::tests::{ANY, Source, dma, source};
use crate::*;

/// A domain that lets any window be opened at any time, and confirms nothing unless the test allows
/// it.
#[derive(Debug, Default)]
struct Liar {
    is_honest: AtomicBool,
}

impl DeviceDomain for Liar {
    fn map(&self, _: PfnRange) -> Result<(), NoTables> {
        Ok(())
    }
    fn unmap(&self, _: PfnRange) -> Result<(), Unconfirmed> {
        Ok(())
    }
    fn detach(&self) -> Result<(), Unconfirmed> {
        Ok(())
    }
    fn windows(&self) -> usize {
        MAX_WINDOWS
    }
    fn open(
        &self,
        window: usize,
        frames: &mut dyn Iterator<Item = Pfn>,
        _: DeviceAccess,
    ) -> Result<u64, NoTables> {
        assert!(frames.count() > 0);
        Ok((window as u64) << 32)
    }
    fn close(&self, _: usize, _: usize) -> Result<(), Unconfirmed> {
        if self.is_honest.load(Ordering::Relaxed) { Ok(()) } else { Err(Unconfirmed) }
    }
}

/// A holder of one frame twice, and the number of dropped holders.
struct Holder(HeldFrame<'static>, Arc<AtomicUsize>);

impl Holder {
    fn new(gone: &Arc<AtomicUsize>) -> Arc<dyn HeldFrames> {
        let frame = Box::leak(Box::new(Frame::<Anon, _>::allocate(source(1)).unwrap()));
        Arc::new(Self(frame.held(), gone.clone()))
    }
}

impl FrameList for Holder {
    fn count(&self) -> usize {
        2
    }
    fn frame(&self, _: usize) -> HeldFrame<'_> {
        self.0
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn device() -> (Device<Source>, &'static Liar) {
    let domain: &'static Liar = Box::leak(Box::default());
    (dma(source(64)).attach(DeviceRules { domain: Some(domain), ..ANY }).unwrap(), domain)
}

#[test]
fn frames_that_an_iommu_does_not_confirm_stay_with_their_holder_however_often_it_lies() {
    let (device, _) = device();
    let gone = Arc::new(AtomicUsize::new(0));
    for round in 1..=2 * MAX_WINDOWS {
        let holder = Holder::new(&gone);
        drop(device.in_place(3, holder, 0..2, Direction::FromDevice).unwrap());
        let bytes = round * 2 * PAGE_SIZE;
        assert_eq!((gone.load(Ordering::Relaxed), device.lost(), device.held()), (0, bytes, bytes));
        assert_eq!(device.dma().kept().count(), round.min(MAX_WINDOWS));
    }
    // Each holder is shown once.
    let shown: Vec<_> = device.dma().kept().map(Arc::as_ptr).collect();
    let is_new = |at: usize| shown[..at].iter().all(|&other| !core::ptr::addr_eq(other, shown[at]));
    assert!((0..shown.len()).all(is_new));
    assert_eq!(device.detach(), Err(DetachError::Held(device.lost())));
}

#[test]
fn frames_in_their_places_are_held_and_use_no_quota() {
    let (device, domain) = device();
    domain.is_honest.store(true, Ordering::Relaxed);
    let gone = Arc::new(AtomicUsize::new(0));
    let holder = Holder::new(&gone);
    let in_place = device.in_place(0, holder, 0..2, Direction::ToDevice).unwrap();
    let usage = device.dma().usage().next().unwrap();
    assert_eq!(
        (device.held(), usage.held, device.dma().statistics().used),
        (2 * PAGE_SIZE, 2 * PAGE_SIZE, 0)
    );
    assert_eq!(device.detach(), Err(DetachError::Held(2 * PAGE_SIZE)));
    let quota = DeviceRules { quota: PAGE_SIZE, domain: Some(domain), ..ANY };
    let small = device.dma().attach(quota).unwrap();
    let holder = Holder::new(&gone);
    let other = small.in_place(0, holder, 0..2, Direction::ToDevice).unwrap();
    assert!(small.buffer(PAGE_SIZE, Direction::ToDevice).is_ok());
    drop((in_place, other));
    assert_eq!((device.held(), small.held(), gone.load(Ordering::Relaxed)), (0, 0, 2));
    device.detach().unwrap();
}
