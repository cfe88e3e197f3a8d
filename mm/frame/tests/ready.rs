//! A table over memory that was not cleared: reads of it, and the order of its writes.
#![allow(clippy::unwrap_used)]

mod checker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use checker::Loom;
use freehold_frame::ready::{self, Ready};
use freehold_frame::{
    AtomicWord, Beside, FrameRecord, FrameState, FrameTable, Order, Owner, ReverseKey, Tag,
};
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, Pfn, PfnRange};
use loom::thread;

/// Two pageblocks and a half. The memory's old contents say that every frame is owned, and that
/// reverse keys have writers.
fn garbage() -> FrameTable {
    const FRAMES: usize = PAGEBLOCK_FRAMES as usize * 5 / 2;
    let records: Vec<_> = (0..FRAMES).map(|_| FrameRecord::EMPTY).collect();
    let reverse_keys: Vec<_> = (0..FRAMES).map(|_| ReverseKey::EMPTY).collect();
    for (record, reverse_key) in records.iter().zip(&reverse_keys) {
        record.set_state(FrameState::Owned { owner: Owner::Anon, order: Order::FRAME, node: NodeId(0) });
        reverse_key.set(7, 8);
        reverse_key.add_writer();
    }
    let words = (0..ready::words(FRAMES)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    FrameTable::new(records.leak())
        .with(Box::leak(Box::new(Beside::new(reverse_keys.leak()).with_ready(words))))
}

#[test]
fn records_that_were_never_written_are_not_believed_and_preparing_writes_a_pageblock_s_and_no_others() {
    let table = garbage();
    let all = PfnRange::new(Pfn(0), table.end());
    let audit = table.audit([all], |found| panic!("{found:?}"));
    assert_eq!((audit.frames(Owner::Free), audit.total()), (all.len(), all.len()));
    assert_eq!((table.owner(Pfn(600)), table.look(Pfn(600))), (Owner::Free, FrameState::Unowned(None)));

    table.prepare(Pfn(PAGEBLOCK_FRAMES + 5));
    assert_eq!(
        [0, 511, 512, 1023, 1024].map(|frame| table.is_ready(Pfn(frame))),
        [false, false, true, true, false]
    );
    for frame in PfnRange::new(Pfn(512), Pfn(1024)).iter() {
        assert_eq!(table.state(frame), FrameState::Unowned(None));
        let reverse_key = table.reverse_key(frame).unwrap();
        assert_eq!((reverse_key.get(), reverse_key.has_writers()), ((0, 0), false));
    }
    assert_eq!(table.state(Pfn(511)).owner(), Owner::Anon, "its neighbours' memory is as it was");
    assert_eq!(table.state(Pfn(1024)).owner(), Owner::Anon);

    let tag = Tag::new(Owner::Kernel, Order::FRAME, NodeId(0));
    table.get(Pfn(700)).unwrap().hand_out(tag).unwrap();
    table.prepare(Pfn(701));
    assert_eq!(table.owner(Pfn(700)), Owner::Kernel, "once is enough");
    let audit = table.audit([all], |found| panic!("{found:?}"));
    assert_eq!((audit.frames(Owner::Kernel), audit.total()), (1, all.len()));
    // A pageblock that is not whole, and one past the end.
    table.prepare(Pfn(1030));
    assert!(table.is_ready(Pfn(1279)) && !table.is_ready(Pfn(1 << 40)));
}

const NEIGHBOUR: Pfn = Pfn(PAGEBLOCK_FRAMES);

fn word() -> Loom {
    Loom::new(0)
}

/// Two CPUs prepare neighbours, whose bits share a word, by `set`.
fn prepare_neighbours(set: fn(&[Loom], Pfn)) {
    loom::model(move || {
        let words = Arc::new([word()]);
        let other = {
            let words = words.clone();
            thread::spawn(move || set(&words[..], NEIGHBOUR))
        };
        set(&words[..], Pfn(0));
        other.join().unwrap();
        let ready = Ready::new(&words[..]);
        assert!(ready.has(Pfn(0)) && ready.has(NEIGHBOUR), "a bit is lost");
    });
}

#[test]
fn of_two_who_prepare_neighbours_both_are_noted() {
    prepare_neighbours(|words, frame| Ready::new(words).set(frame));
}

#[test]
#[should_panic(expected = "a bit is lost")]
fn a_plain_store_would_lose_a_neighbour() {
    prepare_neighbours(|words, frame| {
        let bit = 1 << (frame.0 / PAGEBLOCK_FRAMES);
        words[0].store(words[0].load(Ordering::Relaxed) | bit, Ordering::Release);
    });
}

/// One CPU prepares a pageblock by `prepare`, which is given its record and the bits; another
/// looks.
fn look_meanwhile(prepare: fn(&Loom, &[Loom])) {
    loom::model(move || {
        let shared = Arc::new((Loom::new(99), [word()]));
        let looker = {
            let shared = shared.clone();
            thread::spawn(move || {
                if Ready::new(&shared.1[..]).has(Pfn(3)) {
                    assert_eq!(shared.0.load(Ordering::Relaxed), 0, "it read what the memory held");
                }
            })
        };
        prepare(&shared.0, &shared.1);
        looker.join().unwrap();
    });
}

#[test]
fn who_finds_a_pageblock_ready_reads_what_was_written() {
    look_meanwhile(|record, words| {
        record.store(0, Ordering::Relaxed);
        Ready::new(words).set(Pfn(3));
    });
}

#[test]
#[should_panic(expected = "it read what the memory held")]
fn the_other_order_would_show_what_the_memory_held() {
    look_meanwhile(|record, words| {
        Ready::new(words).set(Pfn(3));
        record.store(0, Ordering::Relaxed);
    });
}
