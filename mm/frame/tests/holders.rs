//! Random histories of holders against a model that counts them in plain lists.
#![allow(clippy::unwrap_used)]

mod common;

use common::Source;
use freehold_frame::{
    Anon, Contradiction, CountError, Frame, FrameSource, FrameState, Kernel, LeafMapping, Order, Owner,
    PageCache, Pin, User,
};
use freehold_machine::{NodeId, Pfn};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    New,
    Reference(usize),
    Map(usize),
    Share(usize),
    Reuse(usize),
    Pin(usize),
    Look(usize),
    DropFrame(usize),
    DropMapping(usize),
    DropPin(usize),
}

fn step() -> impl Strategy<Value = Step> {
    (0..10usize, any::<usize>()).prop_map(|(kind, n)| match kind {
        0 => Step::New,
        1 => Step::Reference(n),
        2 => Step::Map(n),
        3 => Step::Share(n),
        4 => Step::Reuse(n),
        5 => Step::Pin(n),
        6 => Step::Look(n),
        7 => Step::DropFrame(n),
        8 => Step::DropMapping(n),
        _ => Step::DropPin(n),
    })
}

/// Returns an element of `list`; `None` if the list is empty.
fn pick<T>(list: &[T], n: usize) -> Option<usize> {
    (!list.is_empty()).then(|| n % list.len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn counts_are_exact_and_a_pinned_frame_is_exclusive(steps in prop::collection::vec(step(), 1..200)) {
        let source = Source::new(16);
        let mut frames: Vec<Frame<Anon, Source>> = Vec::new();
        let mut mappings: Vec<LeafMapping<Anon, Source>> = Vec::new();
        let mut pins: Vec<Pin<Anon, Source>> = Vec::new();
        for step in steps {
            match step {
                Step::New => match Frame::allocate(source) {
                    Ok(frame) => frames.push(frame),
                    Err(_) => prop_assert_eq!(source.free_frames(), 0),
                },
                Step::Reference(n) => if let Some(i) = pick(&mappings, n) { frames.push(mappings[i].reference().unwrap()) },
                Step::Map(n) => if let Some(i) = pick(&frames, n) {
                    match frames.swap_remove(i).into_mapping() {
                        Ok(mapping) => mappings.push(mapping),
                        Err((frame, error)) => {
                            prop_assert_eq!(error, CountError::Pinned);
                            prop_assert!(pins.iter().any(|p| p.pfn() == frame.pfn()));
                            frames.push(frame);
                        }
                    }
                },
                Step::Share(n) => if let Some(i) = pick(&mappings, n) {
                    let pinned = pins.iter().any(|p| p.pfn() == mappings[i].pfn());
                    match mappings[i].share() {
                        Ok(second) => { prop_assert!(!pinned); mappings.push(second) }
                        Err(error) => { prop_assert!(pinned); prop_assert_eq!(error.why(), CountError::Pinned) }
                    }
                },
                Step::Reuse(n) => if let Some(i) = pick(&mappings, n) {
                    let was = mappings[i].is_exclusive();
                    let pfn = mappings[i].pfn();
                    let alone = mappings.iter().filter(|m| m.pfn() == pfn).count() == 1 && frames.iter().all(|f| f.pfn() != pfn) && pins.iter().all(|p| p.pfn() != pfn);
                    prop_assert_eq!(mappings[i].reuse().is_ok(), was || alone);
                },
                Step::Pin(n) => if let Some(i) = pick(&mappings, n) {
                    match mappings[i].pin() {
                        Ok(pin) => pins.push(pin),
                        Err(error) => { prop_assert!(!mappings[i].is_exclusive()); prop_assert_eq!(error, CountError::NotExclusive) }
                    }
                },
                Step::Look(n) => if let Some(i) = pick(&mappings, n) {
                    let leaf = mappings.swap_remove(i).into_leaf();
                    prop_assert_eq!(LeafMapping::<User, _>::borrow_leaf(source, leaf).unwrap().pfn(), leaf);
                    mappings.push(LeafMapping::from_leaf(source, leaf).unwrap());
                },
                Step::DropFrame(n) => if let Some(i) = pick(&frames, n) { drop(frames.swap_remove(i)); },
                Step::DropMapping(n) => if let Some(i) = pick(&mappings, n) { drop(mappings.swap_remove(i)); },
                Step::DropPin(n) => if let Some(i) = pick(&pins, n) { drop(pins.swap_remove(i)); },
            }
            for pin in &pins {
                prop_assert!(pin.record().counts().load().is_exclusive());
            }
            let mut held: Vec<Pfn> = frames.iter().map(|frame| frame.pfn()).chain(mappings.iter().map(|frame| frame.pfn())).chain(pins.iter().map(|frame| frame.pfn())).collect();
            held.sort();
            held.dedup();
            let mut found = Vec::new();
            let audit = source.table().audit([source.memory()], |c| found.push(c));
            prop_assert!(found.is_empty(), "{found:?}");
            prop_assert_eq!(audit.frames(Owner::Anon), held.len() as u64);
            prop_assert_eq!((audit.mappings, audit.references, audit.pins), (mappings.len() as u64, frames.len() as u64, pins.len() as u64));
            prop_assert_eq!(source.free_frames() as u64, audit.frames(Owner::Free));
        }
        drop((frames, mappings, pins));
        prop_assert_eq!(source.free_frames(), 16);
    }
}

#[test]
fn a_frame_taken_for_another_kind_is_refused() {
    let source = Source::new(2);
    let kernel: Frame<Kernel, _> = Frame::allocate(source).unwrap();
    let pfn = kernel.into_raw();
    let wrong = Frame::<PageCache, _>::from_raw(source, pfn).unwrap_err();
    assert_eq!((wrong.found, wrong.expected), (Owner::Kernel, Owner::PageCache));
    assert!(LeafMapping::<User, _>::from_leaf(source, pfn).is_err());
    assert!(Frame::<Kernel, _>::from_raw(source, Pfn(99)).is_err(), "outside memory");
    drop(Frame::<Kernel, _>::from_raw(source, pfn).unwrap());
    assert_eq!(source.free_frames(), 2);
}

#[test]
fn page_cache_frames_are_pinned_and_mapped_without_being_exclusive() {
    let source = Source::new(1);
    let cached: Frame<PageCache, _> = Frame::allocate(source).unwrap();
    let pin = cached.pin().unwrap();
    let mapping = cached.map().unwrap();
    let second = mapping.share().unwrap();
    let holders = cached.record().counts().load();
    assert_eq!(
        (holders.mappings, holders.references, holders.pins, holders.is_exclusive()),
        (2, 1, 1, false)
    );
    drop((cached, mapping, second));
    assert_eq!(source.free_frames(), 0, "the pin still holds it");
    drop(pin);
    assert_eq!(source.free_frames(), 1);
}

#[test]
fn the_audit_names_every_contradiction() {
    let source = Source::new(64);
    let table = source.table();
    let set = |n: u64, owner, log2| {
        let state = FrameState::Owned { owner, order: Order::new(log2).unwrap(), node: NodeId(0) };
        table.get(Pfn(n)).unwrap().set_state(state);
    };
    set(0, Owner::Anon, 0); // no holder
    set(4, Owner::Kernel, 2);
    set(6, Owner::PageTable, 0); // inside frame 4's block
    set(9, Owner::Kernel, 1); // not aligned
    table.get(Pfn(20)).unwrap().counts().reference().unwrap(); // held, but free
    set(24, Owner::Kernel, 0);
    table.get(Pfn(24)).unwrap().counts().reference().unwrap();
    let mut found = Vec::new();
    let audit = table.audit([source.memory()], |c| found.push(c));
    assert_eq!(audit.contradictions as usize, found.len());
    assert!(
        matches!(
            found[..],
            [
                Contradiction::Leaked(Pfn(0), Owner::Anon),
                Contradiction::OwnedTwice(Pfn(6), Owner::Kernel, Owner::PageTable),
                Contradiction::BadBlock(Pfn(9), _),
                Contradiction::FreeButHeld(Pfn(20)),
                Contradiction::KernelButCounted(Pfn(24), _),
            ]
        ),
        "{found:?}"
    );
    assert_eq!(audit.total(), 64);
    assert_eq!(table.block_of(Pfn(7)).unwrap().0, Pfn(4));
}

#[test]
#[should_panic(expected = "nobody has")]
fn a_mapping_let_go_of_twice_is_noticed_whoever_freed_the_frame() {
    use freehold_frame::FrameRecord;
    use freehold_machine::CpuId;
    let record = FrameRecord::EMPTY;
    let tag = freehold_frame::Tag::new(Owner::Anon, Order::FRAME, NodeId(0));
    record.hand_out(tag).unwrap();
    record.counts().start_mapped();
    assert!(record.counts().unmap());
    record.take_back(tag.trace(CpuId(4)));
    let _ = record.counts().unmap();
}
