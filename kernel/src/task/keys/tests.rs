//! Random operations, after each of which all counts are checked, and long chains of keyrings.

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Vec, reserve};
use proptest::prelude::*;

use super::kind::{Description, KeyKind, Payload};
use super::store::{ALL_RIGHTS, Caller, CollectPlace, KeyRef, KeyTarget, NewKey, Quota, Serial, Store};
use crate::Errno;
use crate::task::credentials::Groups;

static NEXT: AtomicU32 = AtomicU32::new(100);

fn numbers() -> u32 {
    NEXT.fetch_add(2, Ordering::Relaxed)
}

fn new_key(kind: KeyKind, name: usize, uid: u32) -> NewKey {
    let payload = match kind {
        KeyKind::Keyring => Payload::no_links(),
        // A key without bytes would be a negative one.
        _ => Payload::Bytes(Vec::try_from_slice(b"1").unwrap()),
    };
    let description = described(&std::format!("key {name}"));
    NewKey { kind, description, uid, gid: 0, permissions: ALL_RIGHTS, payload }
}

fn described(text: &str) -> Description {
    reserve::arc(Vec::try_from_slice(text.as_bytes()).unwrap())
}

fn anyone() -> Caller {
    Caller { uid: 7, gid: 7, groups: Groups::default(), rings: [None; 3] }
}

extern crate std;

/// A store with one keyring that a handle holds.
fn store() -> (Store, Serial) {
    let mut store = Store::new();
    let root = store.create(new_key(KeyKind::Keyring, 0, 1), Quota::Exceeded, numbers).unwrap();
    (store, root)
}

#[test]
fn a_chain_of_a_hundred_thousand_keyrings_ends_without_a_deep_stack() {
    let (mut store, root) = store();
    let mut last = root;
    for name in 0..100_000 {
        let ring = store.create(new_key(KeyKind::Keyring, name, 0), Quota::Exceeded, numbers).unwrap();
        store.link(last, ring).unwrap();
        store.release(ring);
        last = ring;
    }
    store.release(root);
    while store.reap(1000) {}
    assert!(store.first_from(0).is_none() && store.first_user_from(0).is_none());
}

/// A keyring of 1,000 keys is cleared, released and freed of invalidated keys in steps. Other
/// operations may come between two steps.
#[test]
fn work_on_many_keys_goes_in_steps() {
    let (mut store, root) = store();
    let fill = |store: &mut Store, ring: Serial| {
        let keys = (0..1000).map(|name| {
            let key = store.create(new_key(KeyKind::User, name, 3), Quota::Exceeded, numbers).unwrap();
            store.link(ring, key).unwrap();
            store.release(key);
            key
        });
        keys.collect::<std::vec::Vec<Serial>>()
    };
    let charged = |store: &Store| store.first_user_from(3).map_or(0, |(_, keys)| keys.keys);
    fill(&mut store, root);
    store.clear_some(root, 64).unwrap();
    assert_eq!((store.count(root), charged(&store)), (Ok(936), 936));

    let ring = store.create(new_key(KeyKind::Keyring, 1, 1), Quota::Exceeded, numbers).unwrap();
    let keys = fill(&mut store, ring);
    store.release(ring);
    assert!(store.get(ring).is_err() && store.get(keys[999]).is_ok(), "some keys end later");
    assert!(charged(&store) > 1900 && store.reap(64) && charged(&store) > 1850);
    // A search between two steps uses the same list.
    let name = (KeyKind::User, described("key 999"));
    let search = KeyRef { serial: root, possessed: true };
    assert!(store.search(search, KeyTarget::Named(&name), &anyone(), 0).is_ok());
    while store.reap(64) {}
    assert!(keys.iter().all(|&key| store.get(key).is_err()));
    assert_eq!(charged(&store), 936);

    let (mut place, mut steps) = (CollectPlace::default(), 0);
    let linked = store.list(root).unwrap();
    linked.iter().take(500).for_each(|&key| store.invalidate(key).unwrap());
    while store.collect_some(&mut place, 10) {
        steps += 1;
        store.clear_some(root, usize::from(steps == 20)).unwrap();
        store.check_counts(&[root]);
    }
    assert!(steps > 80 && store.list(root).unwrap().iter().all(|&key| !store.get(key).unwrap().is_invalid()));
    assert_eq!(store.count(root), Ok(436));
}

/// Seven layers of 30 keyrings, each of which links all of the next layer: 30^6 paths.
#[test]
fn a_search_visits_each_keyring_once() {
    let (mut store, root) = store();
    let mut above = std::vec![root];
    for layer in 0..6 {
        let mut rings = std::vec::Vec::new();
        for name in 0..30 {
            let new = new_key(KeyKind::Keyring, layer * 30 + name, 0);
            let ring = store.create(new, Quota::Exceeded, numbers).unwrap();
            for &upper in &above {
                store.link(upper, ring).unwrap();
            }
            store.release(ring);
            rings.push(ring);
        }
        above = rings;
    }
    store.check_counts(&[root]);
    let name = (KeyKind::User, described("nothing"));
    let ring = KeyRef { serial: root, possessed: true };
    assert_eq!(store.search(ring, KeyTarget::Named(&name), &anyone(), 0), Err(Errno::EAGAIN));
    let key = store.create(new_key(KeyKind::User, 1, 0), Quota::Exceeded, numbers).unwrap();
    store.link(above[29], key).unwrap();
    store.release(key);
    let found = store.search(ring, KeyTarget::Key(key), &anyone(), 0);
    assert_eq!(found, Ok(KeyRef { serial: key, possessed: true }));
    store.release(root);
    while store.reap(1000) {}
    assert!(store.first_from(0).is_none());
}

proptest! {
    #[test]
    fn counts_stay_exact(steps in prop::collection::vec((0..9u8, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..6usize), 1..120)) {
        let (mut store, root) = store();
        let mut handles = std::vec![root];
        let mut rings = std::vec![root];
        let mut all = std::vec![root];
        for (step, one, other, name) in steps {
            let (ring, key) = (*one.get(&rings), *other.get(&all));
            let kind = if name < 3 { KeyKind::Keyring } else { KeyKind::User };
            // Each step may be refused; whatever it does, the counts are right.
            let _ = match step {
                0 | 1 => store.create(new_key(kind, name, 1 + name as u32 % 2), Quota::Kept, numbers).map(|made| {
                    all.push(made);
                    if kind == KeyKind::Keyring {
                        rings.push(made);
                    }
                    let _ = store.link(ring, made);
                    store.release(made);
                }),
                2 | 3 => store.link(ring, key),
                4 => store.unlink(ring, key),
                5 => store.clear_some(ring, usize::MAX),
                6 => store.invalidate(key).map(|()| _ = store.collect_some(&mut CollectPlace::default(), usize::MAX)),
                7 => store.give(key, (1 + name as u32 % 2, 0)),
                _ => {
                    match handles.iter().position(|&held| held == key) {
                        Some(at) => {
                            handles.swap_remove(at);
                            store.release(key);
                            Ok(())
                        }
                        None => store.hold(key).map(|()| handles.push(key)),
                    }
                }
            };
            while store.reap(1000) {}
            store.check_counts(&handles);
        }
        for held in handles {
            store.release(held);
        }
        while store.reap(1000) {}
        prop_assert!(store.first_from(0).is_none() && store.first_user_from(0).is_none());
    }
}
