//! The slots of an area against a naive model: a list of each slot's content.

use std::collections::BTreeMap;
use std::vec::Vec;

use freehold_frame::AccountId;
use freehold_machine::Pfn;
use proptest::prelude::*;

use crate::swap::slots::{CLUSTER, ReadFor, Slots, Wrote};

#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    Enter(usize),
    Leave(usize),
    Wrote(usize, u8),
    Forget(usize),
    Read(usize),
}

#[derive(Clone, Debug, Default)]
struct Naive {
    entries: u64,
    frame: Option<Pfn>,
    writing: bool,
    stored: bool,
    bad: bool,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Take),
        2 => any::<usize>().prop_map(Step::Enter),
        6 => any::<usize>().prop_map(Step::Leave),
        5 => (any::<usize>(), 0..8u8).prop_map(|(n, how)| Step::Wrote(n, how)),
        2 => any::<usize>().prop_map(Step::Forget),
        2 => any::<usize>().prop_map(Step::Read),
    ]
}

proptest! {
    #[test]
    fn slots_agree_with_a_naive_list(
        steps in prop::collection::vec(step(), 1..400),
        end in prop_oneof![2..40u64, CLUSTER - 2..CLUSTER + 20],
        bad in prop::collection::vec(1..60u64, 0..4),
    ) {
        let mut slots = Slots::new(end, &bad, None).unwrap();
        let mut naive: BTreeMap<u64, Naive> = BTreeMap::new();
        let mut retired = 0;
        let usable = (1..end).filter(|slot| !bad.contains(slot)).count() as u64;
        prop_assert_eq!(slots.usable(), usable);
        let mut next_frame = 1;
        for step in steps {
            let pick = |n: usize, fits: &dyn Fn(&Naive) -> bool| {
                let fitting: Vec<u64> = naive.iter().filter(|(_, slot)| fits(slot)).map(|(&at, _)| at).collect();
                (!fitting.is_empty()).then(|| fitting[n % fitting.len()])
            };
            let mut gone = None;
            let mut expected = None;
            match step {
                Step::Take => match slots.take(Some(Pfn(next_frame)), AccountId::ROOT) {
                    Some(slot) => {
                        prop_assert!(slot > 0 && slot < end && !bad.contains(&slot) && !naive.contains_key(&slot));
                        let frame = Some(Pfn(next_frame));
                        naive.insert(slot, Naive { entries: 1, frame, writing: true, ..Naive::default() });
                        next_frame += 1;
                    }
                    None => prop_assert_eq!(naive.len() as u64, usable - retired, "none is free"),
                },
                Step::Enter(n) => if let Some(at) = pick(n, &|slot| slot.entries > 0) {
                    slots.enter(at).unwrap();
                    naive.get_mut(&at).unwrap().entries += 1;
                },
                Step::Leave(n) => if let Some(at) = pick(n, &|slot| slot.entries > 0) {
                    gone = slots.leave(at);
                    let slot = naive.get_mut(&at).unwrap();
                    slot.entries -= 1;
                    if slot.entries == 0 && !slot.writing {
                        expected = slot.frame;
                        retired += u64::from(slot.bad);
                        naive.remove(&at);
                    }
                },
                Step::Wrote(n, how) => if let Some(at) = pick(n, &|slot| slot.writing) {
                    let how = match how {
                        0 => Wrote::Failed,
                        1 => Wrote::Abandoned,
                        _ => Wrote::Stored,
                    };
                    gone = slots.wrote(at, how);
                    let slot = naive.get_mut(&at).unwrap();
                    (slot.writing, slot.stored, slot.bad) = (false, how == Wrote::Stored, how == Wrote::Failed);
                    if slot.entries == 0 {
                        expected = slot.frame;
                        retired += u64::from(slot.bad);
                        naive.remove(&at);
                    }
                },
                Step::Forget(n) => if let Some(at) = pick(n, &|_| true) {
                    gone = slots.forget_frame(at);
                    let slot = naive.get_mut(&at).unwrap();
                    if slot.stored && !slot.writing {
                        expected = slot.frame.take();
                    }
                },
                Step::Read(n) => if let Some(at) = pick(n, &|slot| slot.frame.is_none()) {
                    slots.put(at, Pfn(next_frame), ReadFor::Ahead);
                    naive.get_mut(&at).unwrap().frame = Some(Pfn(next_frame));
                    next_frame += 1;
                    prop_assert!(slots.note_hit(at) && !slots.note_hit(at), "read ahead once");
                },
            }
            prop_assert_eq!(gone, expected);
            prop_assert_eq!(slots.validate(), naive.values().map(|slot| slot.entries).sum::<u64>());
            prop_assert_eq!(slots.free() + naive.len() as u64, slots.usable());
            for (&at, slot) in &naive {
                let word = slots.word(at);
                let seen = (word.entries(), word.frame(), word.is_writing(), word.is_stored());
                prop_assert_eq!(seen, (slot.entries, slot.frame, slot.writing, slot.stored));
            }
        }
    }
}
