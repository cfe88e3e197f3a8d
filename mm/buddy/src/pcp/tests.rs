extern crate std;
use std::boxed::Box;
use std::vec::Vec;

use freehold_frame::{FrameRecord, FrameTable, Request};
use freehold_machine::model::{Config, Model};

use super::*;
use crate::{Buddy, InitError, Managed, Options};

/// The allocator of two CPUs and four pageblocks over these lists.
fn over(pcps: &'static [Pcp]) -> Result<&'static Buddy<Model>, InitError> {
    let machine = Model::new(Config { cpus: 2, frames: 4 * 512, ..Config::default() });
    let records = Vec::from_iter((0..4 * 512).map(|_| FrameRecord::EMPTY)).leak();
    let words = Buddy::<Model>::metadata_words(machine.topology(), 2, &Options::default());
    let metadata = Vec::from_iter((0..words).map(|_| AtomicU64::new(0))).leak();
    let table = FrameTable::new(records);
    let managed = Managed { topology: machine.topology(), reserved: &[], table, metadata, pcps };
    Ok(Box::leak(Box::new(Buddy::new(machine, managed, Options::default())?)))
}

#[test]
fn an_allocator_over_used_lists_begins_with_empty_ones() {
    let pcps = Vec::from_iter((0..2).map(|_| Pcp::new())).leak();
    let first = over(pcps).unwrap();
    for order in [Order::FRAME, Order::PAGEBLOCK, Order::new(10).unwrap()] {
        let block = first.allocate(Request::new(Owner::Anon).order(order)).unwrap();
        first.release(block, order);
    }
    first.request_drain();
    assert!(first.pcp(CpuId(0)).traffic() != (0, 0) && first.pcp(CpuId(0)).len(2) > 0);
    let second = over(pcps).unwrap();
    for cpu in [0, 1].map(CpuId) {
        let pcp = second.pcp(cpu);
        assert_eq!((pcp.traffic(), pcp.frames(&second.shapes), pcp.refills()), ((0, 0), 0, 0));
        assert_eq!(Owner::ALL.map(|owner| pcp.frames_of(owner, &second.shapes)), [0; Owner::COUNT]);
        assert!(!pcp.drain_requested() && (0..LISTS).all(|list| pcp.batch(list) == 0));
    }
    assert_eq!(second.free_frames(), 4 * 512);
}

#[test]
fn lists_for_fewer_cpus_than_there_are_are_refused() {
    assert_eq!(over(Box::leak(Box::new([Pcp::new()]))).err(), Some(InitError::TooFewPcps(2)));
}
