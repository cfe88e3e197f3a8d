//! Protection keys of areas and leaves.

use freehold_machine::VirtAddr;

use super::world::*;
use crate::*;

fn key(number: u64) -> ProtectionKey {
    ProtectionKey::new(number).unwrap()
}

fn give(p: &Process, at: u64, pages: u64, protection: Protection, key: KeyChange) {
    let (start, len, extent) = (VirtAddr(at), pages * PAGE, ProtectExtent::Exact);
    let wish = Protect { start, len, protection, extent, key };
    p.run(|| p.space().protect(wish, || u64::MAX)).unwrap();
}

/// The keys of the area and of the leaf at `at`.
fn keys(p: &Process, at: u64) -> [u8; 2] {
    let space = p.space();
    let leaf = space.resident.tables.entry(VirtAddr(at));
    [space.key_at(VirtAddr(at)).number(), leaf.key().number()]
}

fn area_count(p: &Process) -> usize {
    p.space().areas.iter().count()
}

#[test]
fn areas_split_and_join_by_their_keys_and_leaves_follow_at_once() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(4);
    let before = area_count(&p);
    [a, a + PAGE, a + 2 * PAGE].iter().for_each(|&at| p.store(at, 1).unwrap());
    give(&p, a + PAGE, 2, RW, KeyChange::Set(key(3)));
    assert_eq!(area_count(&p), before + 2);
    assert_eq!([0, 1, 2].map(|page| keys(&p, a + page * PAGE)), [[0, 0], [3, 3], [3, 3]]);
    // The machine knows translations with another key, and stops the test.
    assert_eq!((p.load(a + PAGE), p.load(a)), (Ok(1), Ok(1)));
    world.model().assert_coherent();
    give(&p, a, 4, Protection::READ, KeyChange::Keep);
    assert_eq!([0, 1, 3].map(|page| keys(&p, a + page * PAGE)[0]), [0, 3, 0], "mprotect keeps keys");
    give(&p, a, 4, RW, KeyChange::Keep);
    p.store(a + 2 * PAGE, 2).unwrap();
    assert_eq!(keys(&p, a + 2 * PAGE), [3, 3]);
    give(&p, a, 4, RW, KeyChange::Set(key(3)));
    assert_eq!(area_count(&p), before, "equal keys join");
    p.store(a + 3 * PAGE, 1).unwrap();
    assert_eq!(keys(&p, a + 3 * PAGE), [3, 3], "a new leaf has its area's");
    give(&p, a, 4, Protection::NONE, KeyChange::Keep);
    assert_eq!(keys(&p, a), [3, 0], "a leaf that grants nothing has none");
    drop(p);
    world.end();
}

#[test]
fn a_child_has_the_areas_keys_and_those_that_were_given_out() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(2);
    p.store(a, 1).unwrap();
    assert_eq!(p.space().keys().allocate(), Some(key(1)));
    give(&p, a, 1, RW, KeyChange::Set(key(1)));
    let child = p.fork(1);
    assert_eq!(child.space().keys().allocate(), Some(key(2)));
    assert_eq!(p.space().keys().allocate(), Some(key(2)), "the parent's are its own");
    assert_eq!(keys(&child, a), [1, 1]);
    child.store(a, 2).unwrap();
    assert_eq!((keys(&child, a), keys(&p, a), p.load(a)), ([1, 1], [1, 1], Ok(1)), "a copy has it");
    drop((p, child));
    world.end();
}

#[test]
fn memory_that_is_no_longer_only_executed_loses_the_key_for_that() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(2);
    let taken = p.space().keys().take_execute_only().unwrap();
    give(&p, a, 1, Protection::EXEC, KeyChange::Set(taken));
    give(&p, a + PAGE, 1, RW, KeyChange::Set(taken));
    assert_eq!(keys(&p, a)[0], taken.number());
    give(&p, a, 2, Protection::READ, KeyChange::Keep);
    assert_eq!([keys(&p, a)[0], keys(&p, a + PAGE)[0]], [0, taken.number()]);
    drop(p);
    world.end();
}
