//! Devices that go, as `gone.rs` promises.

extern crate std;

use std::boxed::Box;
use std::sync::Mutex;
use std::vec;
use std::vec::Vec;

use freehold_machine::{DeviceDomain, NoTables, PfnRange, Unconfirmed};

use crate::tests::{ANY, SEGMENT, as_device, device_writes, dma, source};
use crate::*;

/// A domain that knows its frames, and whether its device is there.
#[derive(Debug, Default)]
struct Reached {
    frames: Mutex<Vec<u64>>,
    is_away: Mutex<bool>,
    is_deaf: bool,
}

impl DeviceDomain for Reached {
    fn map(&self, frames: PfnRange) -> Result<(), NoTables> {
        if *self.is_away.lock().unwrap() {
            return Err(NoTables);
        }
        self.frames.lock().unwrap().extend(frames.iter().map(|frame| frame.0));
        Ok(())
    }
    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed> {
        self.frames.lock().unwrap().retain(|&frame| !frames.iter().any(|gone| gone.0 == frame));
        Ok(())
    }
    fn detach(&self) -> Result<(), Unconfirmed> {
        if self.is_deaf {
            return Err(Unconfirmed);
        }
        *self.is_away.lock().unwrap() = true;
        self.frames.lock().unwrap().clear();
        Ok(())
    }
    fn reattach(&self) -> Result<(), NoTables> {
        *self.is_away.lock().unwrap() = false;
        Ok(())
    }
}

fn at_of(piece: &Piece) -> DmaAddr {
    DmaAddr(piece.frame.start().0 + piece.offset as u64)
}

fn slot(is_deaf: bool) -> (DeviceRules, &'static Reached) {
    let domain: &'static Reached = Box::leak(Box::new(Reached { is_deaf, ..Reached::default() }));
    (DeviceRules { name: "slot0", domain: Some(domain), ..ANY }, domain)
}

#[test]
fn a_device_that_went_has_no_account_no_page_and_no_domain_and_so_forty_times() {
    let source = source(512);
    let dma = dma(source);
    let other = dma.attach(ANY).unwrap();
    let stays = other.buffer(SEGMENT / 2, Direction::Bidirectional).unwrap();
    let (rules, domain) = slot(false);
    let device = dma.attach(rules).unwrap();
    for round in 0..40 {
        let ring = device.coherent(PAGE_SIZE).unwrap();
        let big = device.buffer(3 * SEGMENT, Direction::Bidirectional).unwrap();
        let cells = [64, 500, 2048].map(|length| device.buffer(length, Direction::ToDevice).unwrap());
        let secret: Vec<_> = big.pieces(0..big.len()).map(|piece| (at_of(&piece), piece.length)).collect();
        for &(at, length) in &secret {
            assert!(as_device(source, at, length).iter().all(|&byte| byte == 0), "round {round}");
            device_writes(source, at, &vec![0x5a; length]);
        }
        assert_eq!(device.detach(), Err(DetachError::Held(device.held())));
        assert!(dma.usage().any(|usage| usage.name == "slot0"));
        drop((ring, big, cells));
        device.detach().unwrap();
        device.detach().unwrap();
        assert!(domain.frames.lock().unwrap().is_empty());
        assert!(dma.usage().all(|usage| usage.name != "slot0"));
        assert!(dma.device(device.number()).is_none());
        assert!(secret.iter().all(|&(at, _)| dma.owner(at).is_none()));
        // Bytes that the device left are not shown to other devices, nor to the next one.
        let next = other.buffer(SEGMENT, Direction::Bidirectional).unwrap();
        for piece in next.pieces(0..next.len()) {
            assert!(as_device(source, at_of(&piece), piece.length).iter().all(|&byte| byte == 0));
        }
        drop(next);
        dma.shrink();
        assert_eq!(source.taken(), SEGMENT / PAGE_SIZE, "what the other device holds");
        device.reattach().unwrap();
        assert_eq!(device.held(), 0);
    }
    drop(stays);
}

#[test]
fn a_device_whose_domain_does_not_go_keeps_its_pages() {
    let dma = dma(source(512));
    let (rules, _) = slot(true);
    let device = dma.attach(rules).unwrap();
    let at = device
        .buffer(PAGE_SIZE, Direction::Bidirectional)
        .unwrap()
        .pieces(0..1)
        .next()
        .map(|piece| at_of(&piece))
        .unwrap();
    assert_eq!(device.detach(), Err(DetachError::Unconfirmed));
    assert_eq!((device.is_detached(), dma.owner(at)), (false, Some("slot0")));
}

/// Another device takes and gives pages all the while: none is lost, and none is seen by two.
#[test]
fn pages_that_another_device_takes_meanwhile_are_its_own() {
    let source = source(512);
    let dma = dma(source);
    let (rules, _) = slot(false);
    let (device, other) = (dma.attach(rules).unwrap(), dma.attach(ANY).unwrap());
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            for _ in 0..2000 {
                let Ok(buffer) = other.buffer(5 * PAGE_SIZE, Direction::Bidirectional) else { continue };
                for piece in buffer.pieces(0..buffer.len()) {
                    assert_eq!(dma.owner(at_of(&piece)), Some("disk"));
                }
            }
        });
        for _ in 0..200 {
            drop(device.buffer(SEGMENT, Direction::Bidirectional));
            device.detach().unwrap();
            device.reattach().unwrap();
        }
        taker.join().unwrap();
    });
    assert_eq!((other.held(), device.held()), (0, 0));
    assert_eq!(dma.statistics().used, 0);
}
