//! Copies that are made while CPUs run.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use freehold_frame::{Order, Owner};
use freehold_machine::{NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, PhysicalBytes as _, Tables as _, VirtAddr};

use super::{PAGES, ROOT, START, World, faults};
use crate::tables::{frame_of, leaf};
use crate::{INT3, Patch, PatchError, ReplicaFault, Rest};

const NODE: NodeId = NodeId(1);

/// Where a breakpoint is set.
const PROBED: VirtAddr = VirtAddr(START.0 + 0x321);

impl World {
    /// The frame of a page of the image for CPUs of `node`.
    fn frame_on(&self, node: NodeId, page: u64) -> Pfn {
        frame_of(leaf(self.model, self.root_of(node.0.into()), self.image.address(page)))
    }
    fn home_of(&self, page: u64) -> Option<NodeId> {
        self.model.topology().node_of(self.frame_on(NODE, page))
    }
    /// The bytes of every page as CPUs of `node` see them.
    fn seen(&self, node: NodeId) -> Vec<Vec<u8>> {
        let bytes = |page| self.model.read_bytes(self.frame_on(node, page), |bytes| bytes.to_vec());
        (0..self.image.pages).map(bytes).collect()
    }
    fn free(&self, frames: Vec<Pfn>) {
        frames.into_iter().for_each(|frame| self.frames.release(frame, Order::FRAME));
    }
}

/// Patches before a late copy are in it, breakpoints too; patches after it reach it.
#[test]
fn a_late_copy_has_all_patches_before_it_and_gets_all_patches_after_it() {
    for (world, frames) in [
        (World::new(), PAGEBLOCK_FRAMES),
        (World::with(Rest::Frames, PAGES), PAGES),
        (World::large(Rest::Frames), PAGEBLOCK_FRAMES + super::RODATA_PAGES),
        (World::large(Rest::Pageblock), 2 * PAGEBLOCK_FRAMES),
    ] {
        let taken = world.fill(NODE);
        let mut replicas = world.make(0b110, &mut Vec::new());
        let patched = VirtAddr(world.image.start.0 + 0x777);
        let probed = VirtAddr(world.image.start.0 + 0x321);
        let mut was = [0];
        replicas.read_text(probed, &mut was).expect("it is text");
        replicas.store(probed, &was, &[INT3]).expect("nothing is in the way");
        super::patch::change(&world, &mut replicas, patched);
        let root = world.root_of(1);
        assert_eq!(replicas.catch_up(NODE), Err(PatchError::OutOfMemory));
        assert_eq!((faults(&mut replicas), world.home_of(0)), (Vec::new(), Some(NodeId(0))));
        world.free(taken);
        let before = world.seen(NODE);
        assert_eq!(world.port.0.forgot.load(Ordering::Relaxed), 0);
        replicas.catch_up(NODE).expect("there is memory");
        assert_eq!(world.port.0.forgot.load(Ordering::Relaxed), 1, "old translations are forgotten");
        assert!((0..world.image.pages).all(|page| world.home_of(page) == Some(NODE)));
        assert!(world.seen(NODE) == before && world.root_of(1) == root);
        assert_eq!(faults(&mut replicas), []);
        assert_eq!(replicas.waiting().count(), 0);
        assert_eq!(replicas.figures().map(|one| one.frames).collect::<Vec<_>>(), [frames; 2]);
        assert_eq!(world.owned(Owner::Replica), 2 * frames);
        for frame in (world.image.pages..frames).map(|page| replicas.nodes[1].as_ref().unwrap().frame(page)) {
            assert!(world.model.read_bytes(frame, |bytes| bytes.iter().all(|&byte| byte == 0)));
        }
        // Patches reach all three.
        replicas.store(probed, &[INT3], &was).expect("nothing is in the way");
        let to = [0x0f, 0x1f, 0x44, 0, 0];
        let mut from = [0; 5];
        replicas.read_text(patched, &mut from).expect("it is text");
        replicas.patch(&[Patch { address: patched, from, to }]).expect("nothing is in the way");
        let all = [0, 1, 2].map(|node| world.seen(NodeId(node)));
        assert!(all[0] == all[1] && all[1] == all[2] && all[0] != before);
        assert_eq!(&all[1][0][0x777..0x77c], to);
        assert_eq!(faults(&mut replicas), []);
        // A second time there is nothing to do.
        replicas.catch_up(NODE).expect("nothing to do");
        assert_eq!(world.owned(Owner::Replica), 2 * frames);
    }
}

/// While the copy is made no CPU of the node sees other bytes, whichever leaves it uses.
#[test]
fn leaves_change_when_the_new_frames_have_all_bytes_and_before_translations_are_forgotten() {
    let world = World::new();
    let taken = world.fill(NODE);
    let mut replicas = world.make(0b110, &mut Vec::new());
    world.free(taken);
    let shared = world.port.0;
    *shared.late.lock().unwrap() = Some(world.image);
    replicas.catch_up(NODE).expect("there is memory");
    let calls = shared.calls.lock().unwrap();
    let last = calls.len() - 1;
    assert!(calls[..last].iter().all(|&at_home| at_home == 0), "a leaf changed before the bytes: {calls:?}");
    assert!(last as u64 > PAGES && calls[last] == PAGES, "{calls:?}");
}

#[test]
fn nothing_is_copied_from_a_machine_with_a_changed_copy_or_without_the_patching_window() {
    let world = World::new();
    let taken = world.fill(NODE);
    let mut replicas = world.make(0b110, &mut Vec::new());
    world.free(taken);
    let owned = || (world.owned(Owner::Replica), world.owned(Owner::Kernel));
    let before = owned();
    replicas.verify(&mut |fault| panic!("{fault}"));
    let flip = |page: u64| {
        let frame = frame_of(leaf(world.model, Pfn(ROOT), world.image.address(page)));
        world.model.with_bytes(frame, |bytes| bytes[PAGE_SIZE - 1] ^= 1);
    };
    flip(7);
    let changed = PatchError::Changed(ReplicaFault::Image { page: 7 });
    assert_eq!(replicas.catch_up(NODE), Err(changed));
    flip(7);
    world.port.0.patched.refuse(true);
    assert_eq!(replicas.catch_up(NODE), Err(PatchError::OutOfMemory));
    world.port.0.patched.refuse(false);
    assert_eq!((owned(), replicas.waiting().count()), (before, 1));
    assert_eq!(faults(&mut replicas), []);
    // The node's tables are checked while it waits.
    let wrong = leaf(world.model, world.root_of(2), PROBED);
    let table = (2..=4).rev().fold(world.root_of(1), |table, level| {
        frame_of(world.model.load_entry(table, crate::tables::index_at(PROBED, level)))
    });
    world.model.store_entry(table, crate::tables::index_at(PROBED, 1), wrong);
    assert_eq!(
        faults(&mut replicas),
        [ReplicaFault::Leaf { node: NODE, address: VirtAddr(PROBED.0 & !0xfff) }]
    );
}
