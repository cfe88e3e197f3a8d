//! Removal of devices, as `gone.rs` promises.

extern crate std;

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::boxed::Box;
use std::sync::Mutex;
use std::vec;
use std::vec::Vec;

use freehold_machine::{DeviceDomain, NoTables, PfnRange, Unconfirmed};

use crate::tests::{ANY, LIMITS, SEGMENT, Source, as_device, device_writes, dma, limited, source};
use crate::*;

/// An action that runs during a call.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A domain that knows its frames, and whether its device is attached. It checks the trait's rules:
/// it is called only for frames that it has, and neither while it is detached nor after that.
#[derive(Default)]
struct Reached {
    frames: Mutex<Vec<u64>>,
    is_away: Mutex<bool>,
    is_deaf: AtomicBool,
    /// Calls under way.
    calls: AtomicUsize,
    /// Runs at the beginning of the next call that removes frames.
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reached")
    }
}

impl Reached {
    fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::SeqCst)
    }
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.calls.fetch_add(1, Ordering::SeqCst);
        assert!(!*self.is_away.lock().unwrap(), "a call of a domain that is gone");
        let result = call();
        self.calls.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

impl DeviceDomain for Reached {
    fn map(&self, frames: PfnRange) -> Result<(), NoTables> {
        self.call(|| self.frames.lock().unwrap().extend(frames.iter().map(|frame| frame.0)));
        Ok(())
    }
    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed> {
        self.call(|| {
            let meanwhile = self.meanwhile.lock().unwrap().take();
            meanwhile.into_iter().for_each(|happens| happens());
            std::thread::yield_now();
            let mut mine = self.frames.lock().unwrap();
            let before = mine.len();
            mine.retain(|&frame| !frames.iter().any(|gone| gone.0 == frame));
            assert_eq!(before - mine.len(), frames.len() as usize, "frames that it does not have");
        });
        if self.is_deaf() { Err(Unconfirmed) } else { Ok(()) }
    }
    fn detach(&self) -> Result<(), Unconfirmed> {
        assert_eq!(self.calls.load(Ordering::SeqCst), 0, "it goes while it is called");
        if self.is_deaf() {
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

fn slot(name: &'static str) -> (DeviceRules, &'static Reached) {
    let domain: &'static Reached = Box::leak(Box::default());
    (DeviceRules { name, domain: Some(domain), ..ANY }, domain)
}

#[test]
fn a_device_that_went_has_no_account_no_page_and_no_domain_and_so_forty_times() {
    let source = source(512);
    let dma = dma(source);
    let other = dma.attach(ANY).unwrap();
    let stays = other.buffer(SEGMENT / 2, Direction::Bidirectional).unwrap();
    let (rules, domain) = slot("slot0");
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

/// The IOMMU confirms nothing: the pages stay the device's, and no other device gets them. Others
/// take other pages, and no take fails because of the missing answer.
#[test]
fn a_device_whose_domain_does_not_go_keeps_its_pages() {
    let dma = dma(source(512));
    let (rules, domain) = slot("slot0");
    let (device, other) = (dma.attach(rules).unwrap(), dma.attach(ANY).unwrap());
    let buffer = device.buffer(PAGE_SIZE, Direction::Bidirectional).unwrap();
    let at = at_of(&buffer.pieces(0..1).next().unwrap());
    drop(buffer);
    domain.is_deaf.store(true, Ordering::SeqCst);
    assert_eq!(device.detach(), Err(DetachError::Unconfirmed));
    assert_eq!((device.is_detached(), dma.owner(at)), (false, Some("slot0")));
    let rest = other.buffer(SEGMENT - PAGE_SIZE, Direction::Bidirectional).unwrap();
    assert!(
        rest.pieces(0..rest.len()).all(
            |piece| !(at_of(&piece).0..).contains(&at.0) || at_of(&piece).0 + piece.length as u64 <= at.0
        )
    );
    assert_eq!((dma.statistics().lost, dma.statistics().grows), (PAGE_SIZE, 1));
}

/// Of the taken pages, only those that the IOMMU does not confirm are lost.
#[test]
fn a_take_loses_the_pages_that_are_not_confirmed_only() {
    let dma = dma(source(512));
    let ((rules, domain), (others, _)) = (slot("slot0"), slot("net"));
    let (device, other) = (dma.attach(rules).unwrap(), dma.attach(others).unwrap());
    let take = |device: Device<Source>, pages| device.buffer(pages * PAGE_SIZE, Direction::ToDevice);
    let (first, second) = (take(other, 3).unwrap(), take(device, 2).unwrap());
    drop((first, second));
    domain.is_deaf.store(true, Ordering::SeqCst);
    assert_eq!(take(other, 8).err(), Some(DmaError::OutOfMemory));
    assert_eq!((dma.statistics().lost, dma.statistics().used), (2 * PAGE_SIZE, 0));
    drop(take(other, 61).unwrap());
    assert_eq!(dma.statistics().lost, 2 * PAGE_SIZE);
    // The domain of the device that took them is not called for the lost pages.
    domain.is_deaf.store(false, Ordering::SeqCst);
    assert_eq!((other.detach(), device.detach()), (Ok(()), Ok(())));
}

/// The device is removed while reclaim, or a take of another device, removes pages from its domain.
#[test]
fn a_domain_stays_until_all_that_is_under_way_in_it_is_over() {
    for is_reclaim in [false, true] {
        let source = source(512);
        let dma = dma(source);
        let ((rules, domain), (others, _)) = (slot("slot0"), slot("net"));
        let (device, other) = (dma.attach(rules).unwrap(), dma.attach(others).unwrap());
        drop(device.buffer(5 * PAGE_SIZE, Direction::Bidirectional).unwrap());
        *domain.meanwhile.lock().unwrap() = Some(Box::new(move || {
            assert_eq!(device.detach(), Err(DetachError::Held(5 * PAGE_SIZE)));
            assert!(!device.is_detached());
        }));
        if is_reclaim {
            assert_eq!(dma.shrink(), SEGMENT);
            assert_eq!(source.taken(), 0);
        } else {
            let buffer = other.buffer(5 * PAGE_SIZE, Direction::Bidirectional).unwrap();
            let whose = |piece: Piece| dma.owner(at_of(&piece));
            assert!(buffer.pieces(0..buffer.len()).all(|piece| whose(piece) == Some("net")));
        }
        assert!(domain.meanwhile.lock().unwrap().is_none(), "the domain was called");
        device.detach().unwrap();
        assert_eq!((device.is_detached(), dma.statistics().lost), (true, 0));
    }
}

/// While one call frees a segment, another does not count it as present. So the memory requested at
/// start-up stays.
#[test]
fn two_that_give_memory_back_at_once_leave_the_base() {
    let source = source(512);
    let dma = limited(source, Limits { slabs: 128, ..LIMITS });
    let (rules, domain) = slot("slot0");
    let device = dma.attach(rules).unwrap();
    drop(device.buffer(2 * SEGMENT, Direction::ToDevice).unwrap());
    assert_eq!(dma.statistics().nslabs, 256);
    *domain.meanwhile.lock().unwrap() = Some(Box::new(move || assert_eq!(dma.shrink(), 0)));
    assert_eq!(dma.shrink(), SEGMENT);
    assert!(domain.meanwhile.lock().unwrap().is_none(), "the domain was called");
    assert_eq!((dma.statistics().nslabs, source.taken()), (128, SEGMENT / PAGE_SIZE));
}

/// The owner of an address is in its frame's record. This holds for a page, a cell, a ring, and
/// restricted memory. Frames that are returned to the page allocator name no device.
#[test]
fn each_address_that_a_device_reaches_names_it_and_no_other_does() {
    let source = source(512);
    let dma = dma(source);
    let own = DeviceRules { name: "alone", ..ANY };
    let devices = [dma.attach(ANY).unwrap(), dma.attach_restricted(own, 64 << 10).unwrap()];
    for device in devices {
        let name = Some(device.rules().name);
        let ring = device.coherent(2 * PAGE_SIZE).unwrap();
        let [pages, cell] =
            [5 * PAGE_SIZE, 512].map(|bytes| device.buffer(bytes, Direction::ToDevice).unwrap());
        let last = DmaAddr(ring.address().0 + PAGE_SIZE as u64);
        let addresses = [ring.address(), last, cell.address()];
        assert!(
            addresses
                .into_iter()
                .chain(pages.pieces(0..pages.len()).map(|piece| at_of(&piece)))
                .all(|at| dma.owner(at) == name)
        );
        drop((ring, pages, cell));
        assert_eq!(dma.owner(last), None);
        assert_eq!(dma.owner(addresses[2]), name, "it had the page last");
    }
    dma.shrink();
    let alone = (0..1024u64).filter(|page| dma.owner(DmaAddr(page * PAGE_SIZE as u64)).is_some()).count();
    assert!((1..=16).contains(&alone), "{alone} pages of memory that does not go");
    assert_eq!(dma.owner(DmaAddr(u64::MAX)), None);
}

/// A ring that its driver drops counts as held until it has left the domain.
#[test]
fn a_ring_is_held_until_it_has_left_its_domain() {
    let dma = dma(source(512));
    let (rules, domain) = slot("slot0");
    let device = dma.attach(rules).unwrap();
    let ring = device.coherent(PAGE_SIZE).unwrap();
    *domain.meanwhile.lock().unwrap() = Some(Box::new(move || {
        assert_eq!(device.detach(), Err(DetachError::Held(PAGE_SIZE)));
    }));
    drop(ring);
    assert!(domain.meanwhile.lock().unwrap().is_none());
    device.detach().unwrap();
}

/// Another device takes and frees pages all the while, and reclaim removes them from both devices.
/// No page is lost, no two devices see one page, no take fails, and no domain is called after its
/// end.
#[test]
fn pages_that_another_device_takes_meanwhile_are_its_own() {
    let source = source(512);
    let dma = dma(source);
    let ((rules, _), (others, _)) = (slot("slot0"), slot("disk"));
    let (device, other) = (dma.attach(rules).unwrap(), dma.attach(others).unwrap());
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            for _ in 0..2000 {
                let buffer = other.buffer(5 * PAGE_SIZE, Direction::Bidirectional).unwrap();
                for piece in buffer.pieces(0..buffer.len()) {
                    assert_eq!(dma.owner(at_of(&piece)), Some("disk"));
                }
            }
        });
        let reclaim = scope.spawn(|| {
            for _ in 0..500 {
                dma.shrink();
                std::thread::yield_now();
            }
        });
        for _ in 0..200 {
            drop(device.buffer(SEGMENT, Direction::Bidirectional).unwrap());
            while let Err(error) = device.detach() {
                assert!(matches!(error, DetachError::Held(_)));
                std::thread::yield_now();
            }
            device.reattach().unwrap();
        }
        taker.join().unwrap();
        reclaim.join().unwrap();
    });
    assert_eq!((other.held(), device.held()), (0, 0));
    assert_eq!((dma.statistics().used, dma.statistics().lost), (0, 0));
}
