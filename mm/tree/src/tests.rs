extern crate std;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::vec::Vec;

use proptest::prelude::*;

use crate::{SPARE, Summary, Tree};

/// The smallest and the largest key, and the largest value.
#[derive(Clone, PartialEq, Debug)]
struct Largest {
    keys: (u16, u16),
    value: u32,
}

impl Summary<u16, u32> for Largest {
    fn of(key: &u16, value: &u32) -> Self {
        Self { keys: (*key, *key), value: *value }
    }
    fn join(&self, next: &Self) -> Self {
        assert!(self.keys.1 < next.keys.0, "summaries are joined in order");
        Self { keys: (self.keys.0, next.keys.1), value: self.value.max(next.value) }
    }
}

type Summed = Tree<u16, u32, Largest>;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u32),
    Remove(u16),
    Update(u16, u32),
    InPlace(u16, u32),
    UpdateRange(u16, u16, u32),
    PopFirst,
    Rekey(u16, u16),
    Search(u16, u32),
    SumSome(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..400u16;
    let step = prop_oneof![
        4 => (key.clone(), 0..1000u32).prop_map(|(key, value)| Step::Insert(key, value)),
        3 => key.clone().prop_map(Step::Remove),
        1 => (key.clone(), 0..1000u32).prop_map(|(key, value)| Step::Update(key, value)),
        1 => (key.clone(), 0..1000u32).prop_map(|(key, value)| Step::InPlace(key, value)),
        1 => (key.clone(), key.clone(), 0..1000u32).prop_map(|(a, b, value)| Step::UpdateRange(a, b, value)),
        1 => Just(Step::PopFirst),
        1 => (key.clone(), key.clone()).prop_map(|(key, new)| Step::Rekey(key, new)),
        1 => (key.clone(), 0..1000u32).prop_map(|(key, limit)| Step::Search(key, limit)),
        1 => (0..40usize).prop_map(Step::SumSome),
    ];
    proptest::collection::vec(step, 0..600)
}

fn check(tree: &Summed, model: &BTreeMap<u16, u32>) {
    tree.validate();
    assert!(tree.iter().eq(model.iter()));
    assert!(tree.iter().rev().eq(model.iter().rev()));
}

/// Both searches find the same entry as a walk; afterwards all sums are right.
fn search(tree: &mut Summed, model: &BTreeMap<u16, u32>, from: u16, limit: u32) {
    tree.validate();
    let above = |key: &u16, value: &u32| (*value > limit).then_some(*key);
    let up = tree.find_up(&from, |all| all.value <= limit, above);
    assert_eq!(up, model.range(from..).find(|(_, value)| **value > limit).map(|(key, _)| *key));
    let down = tree.find_down(&from, |all| all.value <= limit, above);
    assert_eq!(down, model.range(..from).rev().find(|(_, value)| **value > limit).map(|(key, _)| *key));
    assert!(!tree.is_due(tree.root));
    tree.validate();
}

fn apply(step: &Step, tree: &mut Summed, model: &mut BTreeMap<u16, u32>) {
    match *step {
        Step::Insert(key, value) => assert_eq!(tree.insert(key, value), Ok(model.insert(key, value))),
        Step::Remove(key) => assert_eq!(tree.remove(&key), model.remove(&key)),
        Step::Update(key, value) => {
            let old = tree.update(&key, |at| core::mem::replace(at, value));
            assert_eq!(old, model.get_mut(&key).map(|at| core::mem::replace(at, value)));
        }
        Step::InPlace(key, value) => {
            let slot = tree.find(&key);
            if let Some(at) = tree.at_slot_mut(slot) {
                *at = value;
                model.insert(key, value);
            }
            tree.summary_changed(&key);
        }
        Step::UpdateRange(a, b, value) if a <= b => {
            tree.update_range(a..b, |_, at| *at = value);
            model.range_mut(a..b).for_each(|(_, at)| *at = value);
        }
        Step::UpdateRange(..) => {}
        Step::Search(from, limit) => search(tree, model, from, limit),
        Step::SumSome(steps) => {
            let all = tree.sum_up_some(steps);
            assert_eq!(all, !tree.is_due(tree.root));
            tree.validate();
        }
        Step::PopFirst => assert_eq!(tree.pop_first(), model.pop_first()),
        Step::Rekey(key, new) => {
            let (low, high) = (key.min(new), key.max(new));
            let is_alone = model.range(low..=high).all(|(&there, _)| there == key);
            if let Some(value) = model.remove(&key).filter(|_| is_alone) {
                tree.rekey(&key, new, |value| *value += 1);
                model.insert(new, value + 1);
            } else {
                tree.remove(&key);
            }
        }
    }
}

proptest! {
    #[test]
    fn it_does_what_an_ordered_map_does(steps in steps(), from in 0..400u16, to in 0..400u16, limit in 0..1000u32) {
        let (mut tree, mut model) = (Summed::new(), BTreeMap::new());
        for step in steps {
            apply(&step, &mut tree, &mut model);
        }
        check(&tree, &model);
        let pair = |(_, key, value): (crate::Slot, &u16, &u32)| (*key, *value);
        let two = |(key, value): (&u16, &u32)| (*key, *value);
        assert_eq!(tree.floor(&from).map(pair), model.range(..=from).next_back().map(two));
        assert_eq!(tree.ceiling(&from).map(pair), model.range(from..).next().map(two));
        assert_eq!(tree.after(&from).map(pair), model.range(from + 1..).next().map(two));
        let floor = tree.find(model.range(..=from).next_back().map_or(&u16::MAX, |(key, _)| key));
        for near in 0..tree.len() as u32 + 4 {
            assert_eq!(tree.floor_near(crate::Slot(near), &from), floor, "wherever the search begins");
        }
        let following = tree.at_slot(tree.slot_following(floor));
        assert_eq!(following, model.range(from + 1..).next().map(|(_, value)| value));
        assert_eq!(tree.at_slot(tree.slot_before(floor)), model.range(..=from).rev().nth(1).map(|(_, value)| value));
        let slot = tree.find(&from);
        assert_eq!(tree.is_at(slot, &from), model.contains_key(&from));
        let here = model.contains_key(&from).then_some(from..);
        assert!(tree.from_slot(slot).eq(here.into_iter().flat_map(|all| model.range(all))));
        let after = tree.at_slot(tree.slot_after(slot));
        let next = model.contains_key(&from).then(|| model.range(from + 1..).next()).flatten();
        assert_eq!(after, next.map(|(_, value)| value));
        if from <= to {
            assert!(tree.range(from..to).eq(model.range(from..to)));
            assert!(tree.range(from..=to).rev().eq(model.range(from..=to).rev()));
        }
        search(&mut tree, &model, from, limit);
        if let Entry::Vacant(place) = model.entry(from) {
            let slot = tree.add(from, 7);
            assert_eq!(slot, Ok(tree.find(&from)));
            place.insert(7);
            check(&tree, &model);
        }
    }
}

proptest! {
    #[test]
    fn a_tree_of_what_is_sorted_is_as_if_it_was_inserted(
        entries in proptest::collection::btree_map(0..400u16, 0..1000u32, 0..300),
        stop in proptest::option::of(0..300usize),
        room in 0..300usize,
        steps in steps(),
    ) {
        /// Reasons why there is no tree.
        #[derive(PartialEq, Debug)]
        enum Failure { NoMemory, Stopped }
        impl From<crate::NoMemory> for Failure {
            fn from(_: crate::NoMemory) -> Self {
                Self::NoMemory
            }
        }
        let sorted = entries.iter().enumerate().map(|(at, (&key, &value))| {
            if Some(at) == stop { Err(Failure::Stopped) } else { Ok((key, value)) }
        });
        match Summed::try_from_sorted(room, sorted) {
            Ok(mut tree) => {
                prop_assert!(stop.is_none_or(|stop| stop >= entries.len()));
                check(&tree, &entries);
                let mut model = entries;
                steps.iter().for_each(|step| apply(step, &mut tree, &mut model));
                check(&tree, &model);
            }
            Err(failure) => {
                prop_assert_eq!(failure, Failure::Stopped);
                prop_assert!(stop.is_some_and(|stop| stop < entries.len()));
            }
        }
    }
}

#[test]
fn a_search_visits_the_height_of_the_tree_and_not_its_entries() {
    let mut tree = Summed::new();
    for key in 0..60_000 {
        tree.insert(key, u32::from(key == 59_999)).unwrap();
    }
    tree.validate();
    let mut asked = 0;
    let found = tree.find_up(
        &1,
        |all| {
            asked += 1;
            all.value == 0
        },
        |key, value| (*value == 1).then_some(*key),
    );
    assert_eq!(found, Some(59_999));
    assert!(asked < 64, "{asked} subtrees were looked at");
}

#[test]
fn summing_up_comes_to_an_end_in_bounded_steps() {
    let sorted = (0..10_000).map(|key| Ok::<_, crate::NoMemory>((key, u32::from(key))));
    let mut tree = Summed::try_from_sorted(10_000, sorted).unwrap();
    let mut times = 0;
    while !tree.sum_up_some(100) {
        tree.validate();
        times += 1;
    }
    // Each node is visited once on the way down and once on the way up; each call begins at the
    // root.
    assert!((100..300).contains(&times), "{times} times");
    assert!(tree.sum_up_some(0));
}

#[test]
fn what_was_reserved_is_there_and_what_is_gone_is_given_back() {
    let mut tree = Summed::new();
    tree.reserve(1000).unwrap();
    for key in 0..1000 {
        tree.insert(key, 1).unwrap();
    }
    for key in 0..990 {
        assert_eq!(tree.remove(&key), Some(1));
        tree.validate();
    }
    assert_eq!(tree.len(), 10);
    for key in 990..1000 {
        assert_eq!(tree.remove(&key), Some(1));
    }
    assert!(tree.is_empty() && tree.iter().next().is_none());
    assert!(tree.arena.room() <= 8 * SPARE, "{} slots of an empty tree", tree.arena.room());
}

#[test]
fn what_was_reserved_survives_removals() {
    let mut tree = Summed::new();
    (0..1000).for_each(|key| assert_eq!(tree.insert(key, 1), Ok(None)));
    tree.reserve(SPARE).unwrap();
    (0..1000).for_each(|key| assert_eq!(tree.remove(&key), Some(1)));
    let room = tree.arena.room() - tree.len();
    assert!(room >= SPARE, "room for {room}");
}
