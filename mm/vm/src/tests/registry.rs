//! The list of all address spaces.

use std::vec::Vec;

use super::world::*;
use crate::*;

fn numbers(world: &World) -> Vec<u64> {
    let mut seen = Vec::new();
    world.commons.for_each_space(&mut |space| seen.push(space.id()));
    seen
}

#[test]
fn every_space_is_visited_once_from_its_birth_to_its_end() {
    let world = World::new();
    let first = world.process(0);
    let second = world.process(1);
    let child = first.fork(2);
    let ids = [&first, &second, &child].map(|process| process.space().id());
    assert_eq!(numbers(&world), ids);
    drop(second);
    assert_eq!(numbers(&world), [ids[0], ids[2]]);
    drop((first, child));
    assert_eq!(numbers(&world), []);
    world.end();
}

#[test]
fn a_walk_meets_the_children_that_are_born_while_it_is_under_way() {
    let world = World::new();
    let parent = world.process(0);
    let (id, _) = world.commons.next_space(0).unwrap();
    let child = parent.fork(1);
    assert_eq!(world.commons.next_space(id).map(|(id, _)| id), Some(child.space().id()));
    drop((parent, child));
    world.end();
}

#[test]
fn a_walker_that_may_not_wait_passes_a_locked_space_by() {
    let world = World::new();
    let process = world.process(0);
    let (_, handle) = world.commons.next_space(0).unwrap();
    let locked = process.space();
    assert_eq!(handle.with(Locking::Try, &mut |_| panic!("it is locked")), Visited::Busy);
    drop(locked);
    let mut seen = 0;
    assert_eq!(handle.with(Locking::Try, &mut |_| seen += 1), Visited::Done);
    assert_eq!(seen, 1);
    drop((process, handle));
    world.end();
}
