//! The collections against the standard library's, with each allocation failing once.
//!
//! The tests' allocator is the system's, but the n-th allocation from [`fail_at`] on that is made
//! [`fallibly`](crate::heap_use::fallibly) gives nothing.

#![allow(unsafe_code)]

use core::cell::Cell;
use core::ops::Bound;
use std::alloc::{GlobalAlloc, Layout, System};
use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque as Deque};
use std::vec::Vec as List;
use std::{ptr, thread_local};

use proptest::prelude::*;

use crate::*;

thread_local! {
    static USE: Cell<u8> = const { Cell::new(0) };
    static FAIL_IN: Cell<u64> = const { Cell::new(0) };
    static MADE: Cell<u64> = const { Cell::new(0) };
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// A byte that is looked for in memory that is given back, where the test asks for it.
const MARK: u8 = 0x5c;
/// [`LEFT`] outside of [`left_behind`].
const UNWATCHED: u64 = 0;

/// How many objects with a [`MARK`] in them `body` gives back.
fn left_behind(body: impl FnOnce()) -> u64 {
    LEFT.set(UNWATCHED + 1);
    body();
    LEFT.replace(UNWATCHED) - 1
}

pub fn freehold_heap_use(purpose: u8) -> u8 {
    USE.replace(purpose)
}

/// Lets the `nth` fallible allocation of this thread from now on fail; 0 lets none.
fn fail_at(nth: u64) {
    FAIL_IN.set(nth);
}

fn fails() -> bool {
    if USE.get() == 0 {
        return false;
    }
    MADE.set(MADE.get() + 1);
    let left = FAIL_IN.get();
    FAIL_IN.set(left.saturating_sub(1));
    left == 1
}

struct Failing;

// SAFETY: its memory is the system allocator's, or none.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the system allocator's.
        if fails() { ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        if LEFT.get() != UNWATCHED {
            let bytes = 0..layout.size();
            // SAFETY: the object has so many bytes.
            let mut places = bytes.map(|at| unsafe { object.add(at) });
            // SAFETY: each is read as it is, initialised or not.
            let marked = places.by_ref().filter(|&place| unsafe { place.read_volatile() } == MARK).count();
            LEFT.set(LEFT.get() + u64::from(marked > 0));
        }
        // SAFETY: the object is the system allocator's.
        unsafe { System.dealloc(object, layout) }
    }
    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the object is the system allocator's.
        if fails() { ptr::null_mut() } else { unsafe { System.realloc(object, layout, size) } }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// A key or value whose loss or doubling shows: an allocation of its own.
fn owned(number: u16) -> Box<u16> {
    Box::new(number)
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u16),
    Remove(u16),
    PopFirst,
    PopLast,
    Fail(u8),
    Range(u16, u16),
}

fn steps() -> impl Strategy<Value = List<Step>> {
    let key = || 0..600u16;
    let step = prop_oneof![
        8 => (key(), any::<u16>()).prop_map(|(key, value)| Step::Insert(key, value)),
        5 => key().prop_map(Step::Remove),
        1 => Just(Step::PopFirst),
        1 => Just(Step::PopLast),
        2 => (1..4u8).prop_map(Step::Fail),
        1 => (key(), key()).prop_map(|(first, end)| Step::Range(first, end)),
    ];
    proptest::collection::vec(step, 1..800)
}

fn same(map: &Map<Box<u16>, Box<u16>>, naive: &BTreeMap<Box<u16>, Box<u16>>) {
    map.validate();
    assert!(map.iter().eq(naive.iter()) && map.len() == naive.len());
    assert!(map.keys().eq(naive.keys()) && map.values().eq(naive.values()));
}

fn same_range(map: &Map<Box<u16>, Box<u16>>, naive: &BTreeMap<Box<u16>, Box<u16>>, from: u16, to: u16) {
    let (first, end) = (from.min(to), from.max(to));
    for low in [Bound::Included(&first), Bound::Excluded(&first), Bound::Unbounded] {
        for high in [Bound::Included(&end), Bound::Excluded(&end), Bound::Unbounded] {
            if first == end && matches!((low, high), (Bound::Excluded(_), Bound::Excluded(_))) {
                continue;
            }
            let range = || naive.range::<u16, _>((low, high));
            assert!(map.range(low, high).eq(range()));
            assert!(map.range(low, high).rev().eq(range().rev()));
            assert!(map.iter_from(low).eq(naive.range::<u16, _>((low, Bound::Unbounded))));
            assert_eq!(map.first_from(low), naive.range::<u16, _>((low, Bound::Unbounded)).next());
            assert_eq!(map.last_until(high), naive.range::<u16, _>((Bound::Unbounded, high)).next_back());
            let (mut mine, mut theirs) = (map.range(low, high), range());
            while let Some(next) = theirs.next() {
                assert_eq!(mine.next(), Some(next));
                assert_eq!(mine.next_back(), theirs.next_back());
            }
            assert_eq!((mine.next(), mine.next_back()), (None, None));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The map is the standard library's in all that it does, and as it was where memory lacks.
    #[test]
    fn a_map_is_an_ordered_map_also_when_allocations_fail(steps in steps()) {
        let mut map = Map::new();
        let mut naive = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(key, value) => match map.try_insert(owned(key), owned(value)) {
                    Ok(old) => prop_assert_eq!(old, naive.insert(owned(key), owned(value))),
                    Err(AllocError) => same(&map, &naive),
                },
                Step::Remove(key) => prop_assert_eq!(map.remove(&key), naive.remove(&key)),
                Step::PopFirst => prop_assert_eq!(map.pop_first(), naive.pop_first()),
                Step::PopLast => prop_assert_eq!(map.pop_last(), naive.pop_last()),
                Step::Fail(nth) => fail_at(nth.into()),
                Step::Range(from, to) => same_range(&map, &naive, from, to),
            }
            if let Some(key) = naive.keys().next().cloned() {
                prop_assert_eq!(map.get(&*key), naive.get(&key));
                prop_assert_eq!(map.get_mut(&*key), naive.get_mut(&key));
            }
        }
        fail_at(0);
        same(&map, &naive);
    }

    /// Keys that are numbers are searched in another way than names.
    #[test]
    fn a_map_of_numbers_is_an_ordered_map(steps in proptest::collection::vec((0..300u16, any::<bool>()), 0..2000)) {
        let (mut map, mut naive) = (Map::new(), BTreeMap::new());
        for (key, inserts) in steps {
            if inserts {
                prop_assert_eq!(map.try_insert(key, key), Ok(naive.insert(key, key)));
            } else {
                prop_assert_eq!(map.remove(&key), naive.remove(&key));
            }
            prop_assert_eq!(map.get(&(key / 2)), naive.get(&(key / 2)));
        }
        map.validate();
        prop_assert!(map.iter().eq(naive.iter()));
    }

    /// The queue moves to a larger piece of memory with its entries in order.
    #[test]
    fn a_queue_keeps_its_order(pushes in proptest::collection::vec(any::<Option<u8>>(), 0..100)) {
        let (mut queue, mut naive) = (VecDeque::new(), Deque::new());
        for push in pushes {
            match push {
                Some(value) if value % 16 == 0 => {
                    let room = VecDeque::try_with_capacity(usize::from(value)).unwrap();
                    let larger = room.capacity().max(queue.capacity());
                    prop_assert!(queue.move_to(room).is_empty());
                    prop_assert_eq!(queue.capacity(), larger);
                }
                Some(value) => {
                    queue.try_push_back(value).unwrap();
                    naive.push_back(value);
                }
                None => prop_assert_eq!(queue.pop_front(), naive.pop_front()),
            }
            prop_assert!(queue.iter().eq(naive.iter()));
        }
    }
}

/// Runs `attempt` with each of its allocations failing in turn, until none fails. Returns how many
/// did.
fn each_fails(mut attempt: impl FnMut() -> Result<(), AllocError>) -> u64 {
    (1..)
        .find(|&nth| {
            fail_at(nth);
            let result = attempt();
            let all_done = FAIL_IN.get() > 0;
            fail_at(0);
            assert_eq!(result.is_ok(), all_done, "a failed allocation is an error");
            all_done
        })
        .unwrap()
        - 1
}

/// Each allocation of an insertion into full nodes can fail; the next attempt finds the map whole.
#[test]
fn an_insertion_changes_nothing_where_any_of_its_allocations_fails() {
    let mut failures = 0;
    let mut map = Map::new();
    for key in 0..5000u32 {
        failures += each_fails(|| {
            let before = map.len();
            let result = map.try_insert(key, key).map(drop);
            assert_eq!(map.len(), before + usize::from(result.is_ok()));
            map.validate();
            result
        });
    }
    assert!(map.keys().copied().eq(0..5000));
    assert!(failures > 500, "{failures}");
    // Ascending keys fill the nodes: each split leaves nine of them behind, and one goes up.
    assert!(failures < 700, "{failures}");
}

/// Reserved nodes are there, for any keys, with removals in between, and not one too few.
#[test]
fn insertions_with_room_reserved_do_not_allocate() {
    let mut map = Map::new();
    let mut draw = 1u32;
    for round in 0..2000u32 {
        each_fails(|| map.try_reserve(3));
        fail_at(1);
        let made = MADE.get();
        for number in 0..3 {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = if round % 2 == 0 { round * 3 + number } else { draw >> 8 };
            map.insert_reserved(key, ());
            if round % 5 == 0 {
                map.pop_first();
            }
        }
        assert_eq!(MADE.get(), made, "nothing was allocated");
        fail_at(0);
        map.validate();
    }
    let before: List<u32> = map.keys().copied().collect();
    map.retain(|key, ()| key % 3 == 0);
    map.validate();
    assert!(map.keys().copied().eq(before.into_iter().filter(|key| key % 3 == 0)));
}

/// A small map needs no nodes of its own for the entries that are reserved. A cleared map is empty,
/// and what was reserved before is still there.
#[test]
fn a_small_map_reserves_little_and_a_cleared_one_keeps_it() {
    /// Entries of a node.
    const NODE: u32 = 15;
    let mut map = Map::new();
    let made = MADE.get();
    for number in 0..NODE {
        map.try_reserve(1).unwrap();
        map.insert_reserved(number, ());
    }
    assert_eq!(MADE.get() - made, 2, "the first room, and all of a node's room");
    for size in [0, 3, NODE, 1000] {
        (0..size).for_each(|number| _ = map.try_insert(number, ()).unwrap());
        map.try_reserve(3).unwrap();
        map.clear();
        map.validate();
        assert!(map.is_empty() && map.iter().next().is_none());
        fail_at(1);
        (7..10).for_each(|number| _ = map.insert_reserved(number, ()));
        fail_at(0);
        assert!(map.keys().eq(&[7, 8, 9]));
        map.clear();
    }
}

/// Lists, queues and texts are as they were where memory lacks.
#[test]
fn what_cannot_grow_is_as_it_was() {
    let (mut list, mut queue, mut text) = (Vec::new(), VecDeque::new(), String::new());
    for number in 0..200u32 {
        each_fails(|| {
            let before = list.len();
            list.try_push(number).inspect_err(|_| assert_eq!(list.len(), before))
        });
        each_fails(|| {
            let before = queue.len();
            queue.try_push_back(number).inspect_err(|_| assert_eq!(queue.len(), before))
        });
        each_fails(|| {
            let before = text.len();
            text.try_push_str("ab").inspect_err(|_| assert_eq!(text.len(), before))
        });
    }
    assert!(list.iter().copied().eq(0..200) && queue.iter().copied().eq(0..200));
    assert_eq!(text, "ab".repeat(200).as_str());
    let mut copies = 0;
    copies += each_fails(|| list.try_clone().map(|copy| assert_eq!(copy, list)));
    copies += each_fails(|| list.iter().try_collect_vec().map(|copy| assert_eq!(copy.len(), 200)));
    copies += each_fails(|| Vec::try_filled(1u8, 9).map(|copy| assert_eq!(copy, [1; 9])));
    copies += each_fails(|| try_format!("{}-{:02}", 1, 2).map(|text| assert_eq!(text, "1-02")));
    copies +=
        each_fails(|| String::try_from_utf8_lossy(b"a\xffb").map(|text| assert_eq!(text, "a\u{fffd}b")));
    assert!(copies >= 5);
    assert_eq!(Vec::<u64>::try_with_capacity(usize::MAX / 2).err(), Some(AllocError));
    assert!(list.try_reserve(usize::MAX / 8).is_err() && list.len() == 200);
}

/// Entries go where they should, in room that was reserved; each is dropped once.
#[test]
fn a_list_with_room_reserved_does_not_allocate() {
    let dropped = std::rc::Rc::new(());
    let mut list = Vec::new();
    each_fails(|| list.try_reserve_exact(3));
    fail_at(1);
    let made = MADE.get();
    list.push_reserved((1, dropped.clone()));
    list.insert_reserved(0, (0, dropped.clone()));
    list.insert_reserved(2, (2, dropped.clone()));
    assert_eq!(MADE.get(), made, "nothing was allocated");
    fail_at(0);
    assert!(list.iter().map(|(number, _)| *number).eq(0..3));
    let mut larger = Vec::try_with_capacity(4).unwrap();
    larger.push_reserved((9, dropped.clone()));
    let outdated = list.move_to(larger);
    assert!(outdated.is_empty() && list.len() == 3 && list.capacity() >= 4);
    assert_eq!(std::rc::Rc::strong_count(&dropped), 4, "what was in the larger one is dropped");
    drop((list, outdated));
    assert_eq!(std::rc::Rc::strong_count(&dropped), 1);
}

/// Where no room was reserved, an insertion says so before anything is moved.
#[test]
#[should_panic(expected = "no room was reserved")]
fn an_insertion_without_room_panics() {
    Vec::new().insert_reserved(0, 1);
}

/// Objects from the reserve are not among the fallible allocations.
#[test]
fn objects_of_the_reserve_do_not_fail_by_request() {
    fail_at(1);
    let made = MADE.get();
    let object: Arc<dyn fmt::Debug> = reserve::arc(1);
    let name = reserve::slice(b"name");
    let own: crate::Box<dyn fmt::Debug> = reserve::boxed(2);
    assert_eq!((std::format!("{object:?}{own:?}").as_str(), &*name), ("12", &b"name"[..]));
    assert_eq!(MADE.get(), made);
    fail_at(0);
}

#[test]
fn no_byte_of_a_program_is_left_in_memory_that_is_given_back() {
    let fill = |bytes: &mut WipedBytes| {
        for length in [1, 300, 3, 2000] {
            each_fails(|| bytes.try_extend(&[MARK; 2000][..length]));
        }
        assert_eq!((bytes.len(), bytes.iter().all(|&byte| byte == MARK)), (2304, true));
    };
    assert_eq!(left_behind(|| fill(&mut WipedBytes::new())), 0);
    assert_eq!(left_behind(|| drop(WipedBytes::try_from_slice(&[MARK; 77]))), 0);
    // Bytes that the list was cut by count, too.
    let mut cut = Vec::try_filled(MARK, 100).unwrap();
    cut.truncate(1);
    assert_eq!(left_behind(|| drop(WipedBytes::from(cut))), 0);
    // The control.
    assert_eq!(left_behind(|| drop(std::vec![MARK; 77])), 1);
}

/// Up to so many entries need no memory, more are one allocation, which may fail.
#[test]
fn a_short_list_allocates_for_many_entries_only() {
    let made = MADE.get();
    fail_at(1);
    let mut few = Short::<std::rc::Rc<u32>, 3>::try_with_capacity(3).unwrap();
    (0..3).for_each(|number| few.push_reserved(std::rc::Rc::new(number)));
    assert!(few.iter().map(|number| **number).eq(0..3));
    assert_eq!(&*Short::<u8, 2>::one(7), [7]);
    assert_eq!(&*Short::<u8, 2>::try_filled(7, 2).unwrap(), [7, 7]);
    assert_eq!(MADE.get(), made, "nothing was allocated");
    assert!(Short::<u8, 2>::try_filled(7, 3).is_err());
    fail_at(1);
    assert!(Short::<u8, 2>::try_with_capacity(3).is_err());
    fail_at(0);
    let kept = few[1].clone();
    few[0] = kept.clone();
    drop(few);
    assert_eq!(std::rc::Rc::strong_count(&kept), 1);
    let mut many = Short::<u8, 2>::try_with_capacity(5).unwrap();
    (0..5).for_each(|number| many.push_reserved(number));
    assert_eq!(&*many, [0, 1, 2, 3, 4]);
}

/// A list that is full says so.
#[test]
#[should_panic]
fn a_short_list_without_room_panics() {
    Short::<u8, 1>::one(1).push_reserved(2);
}
