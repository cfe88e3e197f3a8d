//! Pages that get other frames, and the placement of frames.

use std::sync::Arc;
use std::vec::Vec;

use freehold_frame::{NodePolicy, NodeSet};
use freehold_machine::model::Config;
use freehold_machine::{NodeId, VirtAddr};
use freehold_paging::USER_END;
use freehold_paging::model::ModelFrames;

use super::world::*;
use crate::*;

const ALL: core::ops::Range<VirtAddr> = VirtAddr(0)..USER_END;

/// Move all that `p` maps; returns the result for each page, by address.
fn move_all(p: &Process, migration: &mut Migration<ModelFrames>) -> Vec<(u64, MigrateOutcome<ModelFrames>)> {
    let mut told = Vec::new();
    let wish = |_, _| Some(NodePolicy::Local);
    p.run(|| p.space().migrate(ALL, migration, wish, |addr, outcome| told.push((addr.0, outcome))));
    told
}

#[test]
fn what_two_spaces_share_is_one_frame_again_after_both_were_visited() {
    let world = World::new();
    let parent = world.process(0);
    let at = parent.anonymous(2);
    parent.store(at, 1).unwrap();
    let child = parent.fork(1);
    let old = parent.frame(at);
    let mut migration = Migration::new(SharedPages::Stay);
    assert!(matches!(move_all(&parent, &mut migration)[..], [(_, MigrateOutcome::Shared)]));
    assert!(!migration.has_forwards());
    let mut migration = Migration::new(SharedPages::Move);
    assert!(matches!(move_all(&parent, &mut migration)[..], [(_, MigrateOutcome::Moved)]));
    let new = parent.frame(at);
    assert!(new != old && child.frame(at) == old && migration.has_forwards());
    child.run(|| child.space().migrate(ALL, &mut migration, |_, _| None, |_, _| {}));
    assert_eq!((child.frame(at), parent.frame(at)), (new, new));
    drop(migration);
    child.store(at, 2).unwrap();
    assert_eq!((parent.load(at), child.load(at)), (Ok(1), Ok(2)));
    parent.store(at, 3).unwrap();
    assert_eq!(parent.frame(at), new, "left alone, the parent keeps the frame");
    drop((parent, child));
    world.end();
}

#[test]
fn a_frame_on_its_way_belongs_to_nobody_alone() {
    let world = World::new();
    let parent = world.process(0);
    let at = parent.anonymous(1);
    parent.store(at, 1).unwrap();
    let child = parent.fork(1);
    let mut migration = Migration::new(SharedPages::Move);
    move_all(&parent, &mut migration);
    let old = child.frame(at);
    // The child is the only one that maps the old frame, which the parent's new one was copied
    // from.
    child.store(at, 2).unwrap();
    assert_ne!(child.frame(at), old);
    drop(migration);
    assert_eq!((parent.load(at), child.load(at)), (Ok(1), Ok(2)));
    drop((parent, child));
    world.end();
}

#[test]
fn a_pinned_page_stays_and_its_neighbours_move() {
    let world = World::new();
    let p = world.process(0);
    let at = p.anonymous(3);
    (0..3).for_each(|page| p.store(at + page * PAGE, page as u8 + 1).unwrap());
    let before = [0, 1, 2].map(|page| p.frame(at + page * PAGE));
    let pin = p.run(|| p.space().pin::<LongTerm, ReadOnly>(VirtAddr(at + PAGE), Rule::Asked)).unwrap();
    let told = move_all(&p, &mut Migration::new(SharedPages::Move));
    let busy: Vec<u64> =
        told.iter().filter(|(_, what)| matches!(what, MigrateOutcome::Busy)).map(|(addr, _)| *addr).collect();
    assert_eq!((busy, told.len()), ([at + PAGE].to_vec(), 3));
    let after = [0, 1, 2].map(|page| p.frame(at + page * PAGE));
    assert_eq!([0, 1, 2].map(|page| before[page] == after[page]), [false, true, false]);
    assert_eq!([0, 1, 2].map(|page| p.load(at + page * PAGE)), [Ok(1), Ok(2), Ok(3)]);
    drop(pin);
    assert!(
        move_all(&p, &mut Migration::new(SharedPages::Stay))
            .iter()
            .all(|(_, o)| matches!(o, MigrateOutcome::Moved))
    );
    assert_eq!(world.commons.count_of(Event::MigrateSuccess), 5);
    assert_eq!(world.commons.count_of(Event::MigrateFail), 1);
    drop(p);
    world.end();
}

#[test]
fn a_page_of_2_mib_moves_as_one_or_in_pieces() {
    const BLOCK: u64 = 512 * PAGE;
    const AT: u64 = 0x4000_0000;
    let world = World::with(Config { cpus: 3, nodes: 1, frames: 6 * 512, seed: 3 });
    world.commons.set_huge_mode(HugeMode::Always);
    let p = world.process(0);
    p.map(AreaPlace::Fixed(VirtAddr(AT)), 512, RW, Backing::Anonymous).unwrap();
    (0..512).for_each(|page| p.store(AT + page * PAGE, page as u8).unwrap());
    let bytes_are_right = || (0..512).all(|page| p.load(AT + page * PAGE) == Ok(page as u8));
    let (old, mut migration) = (p.frame(AT), Migration::new(SharedPages::Stay));
    assert!(matches!(move_all(&p, &mut migration)[..], [(AT, MigrateOutcome::Moved)]));
    assert_ne!(p.frame(AT), old);
    assert_eq!(world.commons.huge_pages(), 512);
    assert!(bytes_are_right());
    // No other pageblock is whole.
    let rest = p.anonymous(512);
    (0..2).for_each(|_| {
        while world.frames.free_blocks() > 0 {
            let more = p.map(AreaPlace::Anywhere, 1, RW, Backing::SharedAnonymous).unwrap();
            p.store(more, 1).unwrap();
        }
    });
    let told = p.run(|| {
        let mut told = Vec::new();
        let wish = |_, _| Some(NodePolicy::Local);
        let range = VirtAddr(AT)..VirtAddr(AT + BLOCK);
        p.space().migrate(range, &mut migration, wish, |_, outcome| told.push(outcome));
        told
    });
    assert!(told.len() == 512 && told.iter().any(|outcome| matches!(outcome, MigrateOutcome::Moved)));
    assert_eq!((world.commons.huge_pages(), world.commons.count_of(Event::HugeMigrateSplit)), (0, 1));
    assert!(bytes_are_right());
    p.unmap(rest, 512).unwrap();
    drop(p);
    world.end();
}

#[test]
fn a_page_that_the_kernel_holds_stays_in_its_frame_and_is_the_programs_page() {
    let world = World::new();
    let file = world.file(&[7; 3 * 4096]);
    world.commons.list(file.cache());
    let p = world.process(0);
    let at =
        p.map(AreaPlace::Anywhere, 3, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)).unwrap();
    p.store(at + PAGE, 9).unwrap();
    let frame = p.frame(at + PAGE);
    let one = freehold_machine::PfnRange::new(frame, frame.offset(1));
    let held = file.cache().hold(1).unwrap();
    assert_eq!(held.read_bytes(|bytes| (bytes[0], bytes[1])), (9, 7));
    held.with_bytes(|bytes| bytes[0] = 5);
    assert_eq!(p.load(at + PAGE), Ok(5));
    let moved = || p.run(|| world.commons.evacuate_caches(one, NodePolicy::Local));
    assert_eq!(moved(), Evacuated { moved: 0, left: 1 });
    drop(held);
    assert_eq!(moved(), Evacuated { moved: 1, left: 0 });
    // A hole gets a frame.
    let sparse = Cache::new(world.commons.source);
    sparse.set_size_grow(3 * PAGE);
    let held = sparse.hold(2).unwrap();
    assert!(held.read_bytes(|bytes| bytes.iter().all(|&byte| byte == 0)) && sparse.is_resident(2));
    drop((held, sparse, p, file));
    world.end();
}

#[test]
fn a_files_page_is_found_by_its_frame_and_keeps_its_bytes_and_marks() {
    let world = World::new();
    let file = world.file(&[7; 3 * 4096]);
    world.commons.list(file.cache());
    let p = world.process(0);
    let at =
        p.map(AreaPlace::Anywhere, 3, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)).unwrap();
    p.store(at + PAGE, 9).unwrap();
    let frame = p.frame(at + PAGE);
    let one = freehold_machine::PfnRange::new(frame, frame.offset(1));
    let place = NodePolicy::Local;
    let reference = file.cache().get(1).unwrap();
    assert_eq!(world.commons.evacuate_caches(one, place), Evacuated { moved: 0, left: 1 });
    drop(reference);
    assert_eq!(p.run(|| world.commons.evacuate_caches(one, place)), Evacuated { moved: 1, left: 0 });
    assert_eq!(p.space().node_at(VirtAddr(at + PAGE)), PageNode::Absent);
    assert_eq!((p.load(at + PAGE), read(file.cache(), PAGE, 1)), (Ok(9), [9].to_vec()));
    assert_ne!(p.frame(at + PAGE), frame);
    let cache: Arc<Cache> = file.cache().clone();
    let id = cache.id();
    drop((p, file));
    assert!(world.commons.caches.find(id).is_some());
    drop(cache);
    assert!(world.commons.caches.find(id).is_none(), "a cache is listed for as long as it lives");
    world.end();
}

/// The model's allocator knows no policy but bound nodes, so this test queries them directly.
#[test]
fn areas_go_before_tasks_and_take_turns_by_address() {
    let world = World::new();
    let p = world.process(0);
    let at = p.anonymous(8);
    let both = NodeSet(3);
    let policy = |mode, nodes| Policy { mode, nodes, home: None, label: 0 };
    let place = |p: &Process, page: u64| {
        let space = p.space();
        let addr = VirtAddr(at + page * PAGE);
        space.resident.place(space.areas.at(addr).unwrap(), addr)
    };
    assert_eq!(place(&p, 0), NodePolicy::Local);
    let task = Arc::new(TaskPolicy::new(policy(PolicyMode::Interleave, both)));
    p.space().act_for(Some(task.clone()));
    assert_eq!(task.next_in_turn(), Some(NodeId(0)));
    assert_eq!(
        (place(&p, 0), place(&p, 0)),
        (NodePolicy::Interleave(both, 0), NodePolicy::Interleave(both, 1))
    );
    let bound = policy(PolicyMode::Bind, NodeSet(2));
    p.space().set_policy(VirtAddr(at), 4 * PAGE, Some(bound)).unwrap();
    assert_eq!(place(&p, 1), NodePolicy::Bind(NodeSet(2)));
    assert_eq!(place(&p, 4), NodePolicy::Interleave(both, 2));
    assert_eq!(p.space().areas().count(), 2, "areas with different policies stay apart");
    let child = p.fork(1);
    assert_eq!(place(&child, 1), NodePolicy::Bind(NodeSet(2)));
    assert_eq!(place(&child, 4), NodePolicy::Local, "the task's policy is not the address space's");
    p.space().set_policy(VirtAddr(at), 8 * PAGE, Some(policy(PolicyMode::Interleave, both))).unwrap();
    let turn = |page| match place(&p, page) {
        NodePolicy::Interleave(_, turn) => turn % 2,
        other => panic!("{other:?}"),
    };
    assert_ne!(turn(0), turn(1));
    assert_eq!(turn(0), turn(2));
    p.space().set_policy(VirtAddr(at), 8 * PAGE, None).unwrap();
    assert_eq!(p.space().areas().count(), 1);
    p.unmap(at + 4 * PAGE, 1).unwrap();
    assert_eq!(p.space().set_policy(VirtAddr(at), 8 * PAGE, Some(bound)), Err(VmError::Fault));
    assert_eq!(p.space().policy_at(VirtAddr(at)), Ok(None), "a hole: nothing has changed");
    p.space().act_for(None);
    drop((p, child));
    world.end();
}
