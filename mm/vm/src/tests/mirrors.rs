//! Mirrors of files' pages: who gets one, and that no change of a file leaves one behind.
//!
//! CPUs with even numbers are on node 0, the others on node 1. A process loads what it may execute
//! through its CPU's TLB, so a leaf or TLB entry of a mirror that should have fallen shows old
//! bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use std::vec::Vec;

use freehold_frame::{NodePolicy, NodeSet};
use freehold_machine::model::Config;
use freehold_machine::{NodeId, Pfn, PfnRange, VirtAddr};

use super::stored::disk;
use super::world::*;
use crate::cache::MirrorDefect;
use crate::*;

const RX: Protection = Protection::READ.union(Protection::EXEC);

fn world() -> World {
    let world = World::with(Config { cpus: 8, nodes: 2, frames: 4096, seed: 5 });
    world.model().mirror_text();
    world
}

/// A listed file in memory: page `n` is full of `n + 1`. Its pages are on both nodes.
fn text(world: &World, pages: u8) -> File {
    let cache = Cache::new(world.frames);
    cache.set_size_grow(u64::from(pages) * PAGE);
    for page in 0..pages {
        let place = NodePolicy::Bind(NodeSet::single(NodeId(page / 2 % 2)));
        drop(cache.get_or_fill(u64::from(page), place).unwrap());
        write(&cache, u64::from(page) * PAGE, &[page + 1; PAGE as usize]);
    }
    world.commons.list(&cache);
    Arc::new(TestFile(cache))
}

fn node_of(world: &World, frame: Pfn) -> NodeId {
    world.commons.node_of(frame)
}

fn frame_of(file: &File, page: u64) -> Pfn {
    file.cache().get(page).unwrap().unwrap().pfn()
}

/// A page of `file` on `node`.
fn page_on(world: &World, file: &File, node: u8) -> u64 {
    let is_there = |&page: &u64| node_of(world, frame_of(file, page)) == NodeId(node);
    (0..file.cache().pages()).find(is_there).expect("the allocator gives frames of all nodes")
}

fn map_text(p: &Process, file: &File) -> u64 {
    let pages = file.cache().size().div_ceil(PAGE).max(1);
    p.map(AreaPlace::Anywhere, pages, RX, Backing::PrivateFile(view(file, 0))).unwrap()
}

#[test]
fn the_second_leaf_on_another_node_gets_a_copy_there_and_a_write_reaches_every_node() {
    let world = world();
    let file = text(&world, 40);
    let page = page_on(&world, &file, 0);
    let home = frame_of(&file, page);
    let others: Vec<_> = [0, 1, 3].map(|cpu| world.process(cpu)).into();
    let at: Vec<_> = others.iter().map(|p| map_text(p, &file) + page * PAGE).collect();
    for (p, &at) in others.iter().zip(&at) {
        p.execute(at).unwrap();
        assert_eq!(p.load(at), Ok(page as u8 + 1));
    }
    let frames: Vec<_> = others.iter().zip(&at).map(|(p, &at)| p.frame(at)).collect();
    assert_eq!(frames[..2], [home, home], "the page's own node, and the first leaf elsewhere");
    assert_eq!(node_of(&world, frames[2]), NodeId(1));
    let copies = world.commons.mirror_pages();
    assert!(copies > 1, "neighbours that were mapped together, too");
    assert_eq!(world.commons.mirrors_made(), copies);
    write(file.cache(), page * PAGE, &[99]);
    assert_eq!(world.commons.mirror_pages(), copies - 1, "only the page's own copy has fallen");
    let now: Vec<_> = others.iter().zip(&at).map(|(p, &at)| p.load(at)).collect();
    assert_eq!(now, [Ok(99); 3]);
    // A node that executes it again and again gets a copy again.
    for _ in 0..2 {
        others[1].advise(at[1], 1, Advice::DontNeed).unwrap();
        assert_eq!(others[1].load(at[1]), Ok(99));
    }
    assert_eq!(node_of(&world, others[1].frame(at[1])), NodeId(1));
    drop((others, file));
    assert_eq!(world.commons.mirror_pages(), 0);
    world.end();
}

/// Maps `file` on both CPUs of node 1, and executes it there: all its far pages have copies.
fn mirrored(world: &World, file: &File) -> Vec<(Process, u64)> {
    [1, 3]
        .map(|cpu| world.process(cpu))
        .map(|p| {
            let at = map_text(&p, file);
            (0..file.cache().size().div_ceil(PAGE)).for_each(|page| p.execute(at + page * PAGE).unwrap());
            (p, at)
        })
        .into()
}

#[test]
fn each_way_to_change_or_remove_a_page_is_seen_on_all_nodes() {
    type Change = fn(&World, &File, u64) -> u8;
    let store: Change = |world, file, page| {
        let p = world.process(0);
        let at = p.map(AreaPlace::Anywhere, 40, RW, shared(file.cache())).unwrap();
        p.store(at + page * PAGE, 77).unwrap();
        77
    };
    let pinned: Change = |world, file, page| {
        let p = world.process(0);
        let at = p.map(AreaPlace::Anywhere, 40, RW, shared(file.cache())).unwrap();
        let pin = p.run(|| p.space().pin::<LongTerm, ReadWrite>(VirtAddr(at + page * PAGE), Rule::Forced));
        let pin = pin.unwrap();
        p.unmap(at, 40).unwrap();
        freehold_xpfo::Windows::with_bytes(world.model(), &pin.held(), |bytes| bytes[0] = 78);
        78
    };
    let changes: [(&str, Change); 9] = [
        ("write", |_, file, page| {
            write(file.cache(), page * PAGE, &[71]);
            71
        }),
        ("a whole page", |_, file, page| {
            write(file.cache(), page * PAGE, &[72; PAGE as usize]);
            72
        }),
        ("hole", |_, file, page| {
            file.cache().punch_hole(page * PAGE..(page + 1) * PAGE).unwrap();
            0
        }),
        ("part of a page", |_, file, page| {
            file.cache().punch_hole(page * PAGE..page * PAGE + 5).unwrap();
            0
        }),
        ("truncation", |_, file, page| {
            file.cache().truncate(page * PAGE).unwrap();
            file.cache().truncate(40 * PAGE).unwrap();
            0
        }),
        ("truncation within the page", |_, file, page| {
            file.cache().truncate(page * PAGE + 1).unwrap();
            write(file.cache(), page * PAGE, &[73]);
            file.cache().truncate(40 * PAGE).unwrap();
            73
        }),
        ("shared store", store),
        ("pin", pinned),
        ("move", |world, file, page| {
            let frame = frame_of(file, page);
            let moved =
                world.commons.evacuate_caches(PfnRange::new(frame, frame.offset(1)), NodePolicy::Local);
            assert_eq!(moved.left, 0);
            page as u8 + 1
        }),
    ];
    for (name, change) in changes {
        let world = world();
        let file = text(&world, 40);
        let page = page_on(&world, &file, 0);
        let runs = mirrored(&world, &file);
        let copy = runs[1].0.frame(runs[1].1 + page * PAGE);
        assert_eq!(node_of(&world, copy), NodeId(1), "{name}");
        // A child that nobody can visit yet has the copy, too.
        let child = runs[1].0.run(|| runs[1].0.space().fork().unwrap());
        let byte = change(&world, &file, page);
        let child = Process::around(world.model(), child, 3);
        for (p, at) in &runs {
            assert_eq!(p.load(at + page * PAGE), Ok(byte), "{name}");
        }
        assert_eq!(child.load(runs[1].1 + page * PAGE), Ok(byte), "{name}: in the child");
        file.cache().validate();
        drop((runs, child, file));
        assert_eq!(world.commons.mirror_pages(), 0, "{name}");
        world.end();
    }
}

#[test]
fn direct_writes_to_the_store_are_seen_on_all_nodes() {
    let world = world();
    // The allocator has frames of both nodes at hand.
    let both = text(&world, 4);
    let (_disk, cache) = disk(&world, 40);
    let file: File = Arc::new(TestFile(cache.clone()));
    world.commons.list(&cache);
    let runs = mirrored(&world, &file);
    let page = page_on(&world, &file, 0);
    assert_ne!(runs[1].0.frame(runs[1].1 + page * PAGE), frame_of(&file, page));
    let copies = world.commons.mirror_pages();
    assert_eq!(cache.forget(page * PAGE..(page + 1) * PAGE), Ok(true));
    assert_eq!(world.commons.mirror_pages(), copies - 1);
    assert_eq!(runs[1].0.space().node_at(VirtAddr(runs[1].1 + page * PAGE)), PageNode::Absent);
    drop((runs, file, cache, both));
    world.end();
}

#[test]
fn memory_that_is_short_takes_copies_first_and_a_failed_one_is_no_error() {
    let world = world();
    let file = text(&world, 40);
    let page = page_on(&world, &file, 0);
    let (first, second) = (world.process(1), world.process(3));
    let (at, again) = (map_text(&first, &file), map_text(&second, &file));
    // The first leaf makes the tables, too.
    (0..40).for_each(|page| first.execute(at + page * PAGE).unwrap());
    // Not among the neighbours of that page.
    second.execute(again + 39 * PAGE).unwrap();
    second.advise(again, 40, Advice::DontNeed).unwrap();
    let before = world.commons.mirrors_made();
    world.frames.fail_after(0);
    assert_eq!(second.load(again + page * PAGE), Ok(page as u8 + 1));
    world.frames.fail_never();
    assert_eq!(world.commons.mirrors_made(), before);
    assert_eq!(second.frame(again + page * PAGE), frame_of(&file, page));
    second.advise(again, 40, Advice::DontNeed).unwrap();
    (0..40).for_each(|page| second.execute(again + page * PAGE).unwrap());
    let copies = world.commons.mirror_pages();
    assert!(copies > 5 && copies < 40, "pages of node 0: {copies}");
    let on = |node| FrameChoice::on(NodeSet::single(NodeId(node)));
    assert_eq!(world.commons.shed_mirrors(5, on(0)), 0, "node 0 has none");
    let free = world.frames.free();
    // A space that another task has locked keeps its leaves, and so its copies.
    let locked = second.space();
    assert_eq!(world.commons.shed_mirrors(u64::MAX, on(1)), 0);
    drop(locked);
    assert_eq!(second.run(|| world.commons.shed_mirrors(u64::MAX, on(1))), copies);
    assert_eq!((world.frames.free(), world.commons.mirror_pages()), (free + copies as usize, 0));
    assert_eq!(second.load(again + page * PAGE), Ok(page as u8 + 1));
    drop((first, second, file));
    world.end();
}

#[test]
fn copies_have_a_share_of_a_nodes_free_memory_and_none_when_switched_off() {
    let world = world();
    world.commons.limit_mirrors(|_| 48);
    let file = text(&world, 40);
    let runs = mirrored(&world, &file);
    assert_eq!(world.commons.mirror_pages(), 3, "a sixteenth of 48");
    let copy = (0..40).map(|page| runs[1].0.frame(runs[1].1 + page * PAGE));
    let copy = copy.zip(0..40).find(|&(frame, page)| frame != frame_of(&file, page)).unwrap().0;
    // A copy leaves memory that is to be emptied, and its page stays.
    let emptied = world.commons.evacuate_caches(PfnRange::new(copy, copy.offset(1)), NodePolicy::Local);
    assert_eq!((emptied, world.commons.mirror_pages()), (Evacuated { moved: 1, left: 0 }, 2));
    assert_eq!(world.commons.mirror_text(), MirrorText::On);
    world.commons.set_mirror_text(MirrorText::Off);
    assert_eq!((world.commons.mirror_text(), world.commons.mirror_pages()), (MirrorText::Off, 0));
    let made = world.commons.mirrors_made();
    drop(runs);
    let runs = mirrored(&world, &file);
    assert_eq!(world.commons.mirrors_made(), made);
    drop((runs, file));
    world.end();
}

#[test]
fn a_pin_for_reading_holds_the_files_page_and_a_pinned_page_gets_no_copy() {
    let world = world();
    let file = text(&world, 40);
    let page = page_on(&world, &file, 0);
    let offset = page * PAGE;
    let runs = mirrored(&world, &file);
    let (p, at) = &runs[1];
    assert_ne!(p.frame(at + offset), frame_of(&file, page));
    let pin = p.run(|| p.space().pin::<Transient, ReadOnly>(VirtAddr(at + offset), Rule::Asked)).unwrap();
    assert_eq!(pin.pfn(), frame_of(&file, page));
    // A debugger's store gives the process a page of its own, and nobody else.
    let own = p.run(|| p.space().pin::<Transient, ReadWrite>(VirtAddr(at + offset), Rule::Forced)).unwrap();
    freehold_xpfo::Windows::with_bytes(world.model(), &own.held(), |bytes| bytes[0] = 0xcc);
    assert_eq!((p.load(at + offset), runs[0].0.load(runs[0].1 + offset)), (Ok(0xcc), Ok(page as u8 + 1)));
    drop((pin, own, runs));
    // A device writes the page, though its mapping is gone.
    let q = world.process(0);
    let shared_at = q.map(AreaPlace::Anywhere, 40, RW, shared(file.cache())).unwrap();
    let direct = q.map(AreaPlace::Anywhere, 40, RX, Backing::PrivateFile(view(&file, 0))).unwrap();
    q.execute(direct).unwrap();
    assert_eq!(world.commons.mirror_pages(), 0, "no page of a file that may be stored to has a copy");
    let long =
        q.run(|| q.space().pin::<LongTerm, ReadWrite>(VirtAddr(shared_at + offset), Rule::Asked)).unwrap();
    q.unmap(shared_at, 40).unwrap();
    let runs = mirrored(&world, &file);
    assert!(world.commons.mirror_pages() > 0);
    assert_eq!(runs[1].0.frame(runs[1].1 + offset), frame_of(&file, page));
    drop((long, runs, q, file));
    world.end();
}

#[test]
fn a_mapping_that_may_store_is_refused_while_there_are_copies() {
    let world = world();
    let file = text(&world, 40);
    let runs = mirrored(&world, &file);
    let p = world.process(0);
    let request = || MapRequest {
        place: AreaPlace::Anywhere,
        len: PAGE,
        protection: RW,
        backing: shared(file.cache()),
        flags: AreaFlags::empty(),
    };
    assert_eq!(p.space().map(request(), &p.limits), Err(VmError::Busy));
    let change = file.cache().expect_stores();
    assert_eq!(world.commons.mirror_pages(), 0);
    let at = p.space().map(request(), &p.limits).unwrap();
    drop(change);
    p.store(at.0, 9).unwrap();
    assert_eq!(runs[1].0.load(runs[1].1), Ok(9));
    drop((runs, p, file));
    world.end();
}

/// During a write, both CPUs of node 1 execute the page. Returns whether both see the write.
fn written_meanwhile(defect: Option<MirrorDefect>) -> bool {
    let world = world();
    let file = text(&world, 40);
    defect.into_iter().for_each(|defect| file.cache().break_mirrors(defect));
    let page = page_on(&world, &file, 0);
    let runs: Vec<_> = [1, 3].map(|cpu| world.process(cpu)).map(|p| (map_text(&p, &file), p)).into();
    let written = file.cache().write_at(page * PAGE, 1, |to| {
        runs.iter().for_each(|(at, p)| p.execute(at + page * PAGE).unwrap());
        to[0] = 200;
        1
    });
    assert_eq!(written, Ok(1));
    let is_seen = runs.iter().all(|(at, p)| p.load(at + page * PAGE) == Ok(200));
    drop((runs, file));
    world.end();
    is_seen
}

/// While one write's mirror falls, and before any CPU has flushed, another write of the page
/// begins. Returns whether a CPU sees the second one when it has ended.
fn written_twice(defect: Option<MirrorDefect>) -> bool {
    let world = world();
    let file = text(&world, 40);
    defect.into_iter().for_each(|defect| file.cache().break_mirrors(defect));
    let page = page_on(&world, &file, 0);
    let runs = mirrored(&world, &file);
    let (model, at) = (world.model(), VirtAddr(runs[1].1 + page * PAGE));
    assert_eq!(runs[1].0.load(at.0), Ok(page as u8 + 1), "the TLB has it");
    let (has_ended, is_stale) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let second = {
        let (file, has_ended, is_stale) = (file.clone(), has_ended.clone(), is_stale.clone());
        let other = std::sync::Mutex::new(None);
        let other = Arc::new(other);
        let mine = other.clone();
        model.before_flush(move || {
            let ended = has_ended.clone();
            *mine.lock().unwrap() = Some(std::thread::spawn(move || {
                write(file.cache(), page * PAGE, &[201]);
                ended.store(true, Ordering::SeqCst);
            }));
            let began = Instant::now();
            while !has_ended.load(Ordering::SeqCst) && began.elapsed() < Duration::from_millis(200) {
                std::thread::yield_now();
            }
            if has_ended.load(Ordering::SeqCst) {
                let seen = model.on_cpu(freehold_machine::CpuId(3), || model.load(at));
                is_stale.store(seen.is_ok_and(|byte| byte != 201), Ordering::SeqCst);
            }
        });
        other
    };
    // Not the byte that the second write changes.
    write(file.cache(), page * PAGE + 1, &[202]);
    second.lock().unwrap().take().expect("a flush").join().unwrap();
    // The software machine copies a page in and out, so one of two writers may lose its byte.
    let last = runs[1].0.load(at.0);
    assert!([Ok(201), Ok(page as u8 + 1)].contains(&last), "{last:?}");
    drop((runs, file));
    world.end();
    !is_stale.load(Ordering::SeqCst)
}

#[test]
fn a_write_is_seen_whatever_runs_beside_it_and_each_left_out_step_is_noticed() {
    assert!(written_meanwhile(None) && written_twice(None));
    assert!(!written_meanwhile(Some(MirrorDefect::MadeMeanwhile)));
    assert!(!written_twice(Some(MirrorDefect::NotBesideOthers)));
}

/// Random numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

const PAGES: u64 = 24;

/// Random steps of four CPUs against an array of bytes, one per page; each step is followed by a
/// look from every CPU. Allocations fail now and then.
fn random_steps(seed: u64, defect: Option<MirrorDefect>) -> u64 {
    let world = world();
    let file = text(&world, PAGES as u8);
    let cache = file.cache().clone();
    defect.into_iter().for_each(|defect| cache.break_mirrors(defect));
    let mut bytes: Vec<u8> = (1..=PAGES as u8).collect();
    let mut dice = Dice(seed);
    let mut runs: Vec<_> = (0..4).map(|cpu| world.process(cpu)).map(|p| (map_text(&p, &file), p)).collect();
    let mut stores: Option<(u64, Process)> = None;
    for _ in 0..120 {
        let (page, who) = (dice.next(PAGES), dice.next(4) as usize);
        if dice.next(4) == 0 {
            world.frames.fail_after(dice.next(3));
        }
        match dice.next(12) {
            0 | 1 => {
                let value = dice.next(255) as u8 + 1;
                if cache.write_at(page * PAGE, 1, |to| {
                    to[0] = value;
                    1
                }) == Ok(1)
                {
                    bytes[page as usize] = value;
                }
            }
            2 => {
                if cache.truncate(page * PAGE).is_ok() {
                    bytes[page as usize..].fill(0);
                }
                // A size within the last page.
                world.frames.fail_never();
                cache.truncate(PAGES * PAGE - 7).unwrap();
            }
            3 => {
                if cache.punch_hole(page * PAGE..(page + 1) * PAGE).is_ok() {
                    bytes[page as usize] = 0;
                }
            }
            4 => {
                world.frames.fail_never();
                let (at, p) = stores.get_or_insert_with(|| {
                    let p = world.process(4 + who as u16);
                    (p.map(AreaPlace::Anywhere, PAGES, RW, shared(&cache)).unwrap(), p)
                });
                let value = dice.next(255) as u8 + 1;
                p.store(*at + page * PAGE, value).unwrap();
                bytes[page as usize] = value;
            }
            5 | 6 => stores = None,
            7 => {
                let (at, p) = &runs[who];
                p.advise(*at, PAGES, Advice::DontNeed).unwrap();
            }
            8 => {
                world.frames.fail_never();
                let (at, child) = (runs[who].0, runs[who].1.fork(who as u16));
                runs[who] = (at, child);
            }
            9 => {
                world.commons.shed_mirrors(dice.next(8), FrameChoice::ALL);
            }
            10 => {
                if let Ok(Some(frame)) = cache.get(page) {
                    let frame = frame.pfn();
                    let one = PfnRange::new(frame, frame.offset(1));
                    world.commons.evacuate_caches(one, NodePolicy::Local);
                }
            }
            _ => {
                let wish = EvictWish { pages: 4, age: Age::Ignore, frames: FrameChoice::ALL, effort: 0 };
                world.commons.evict_shared(&wish);
            }
        }
        for (at, p) in &runs {
            let page = dice.next(PAGES);
            match p.load(at + page * PAGE) {
                Ok(byte) => assert_eq!(byte, bytes[page as usize], "page {page}"),
                Err(FaultError::OutOfMemory) => {}
                Err(error) => panic!("{error:?} at page {page}"),
            }
        }
        world.frames.fail_never();
        // No step may leave an old entry in a TLB.
        for page in 0..PAGES {
            let seen = runs.iter().map(|(at, p)| p.load(at + page * PAGE));
            assert!(seen.eq([Ok(bytes[page as usize]); 4]), "page {page}: {:?}", bytes[page as usize]);
        }
        cache.validate();
    }
    let made = world.commons.mirrors_made();
    drop((runs, stores, file, cache));
    assert_eq!(world.commons.mirror_pages(), 0);
    world.end();
    made
}

#[test]
fn random_changes_are_seen_by_every_cpu_at_once() {
    let made: u64 = (0..12).map(|seed| random_steps(seed, None)).sum();
    assert!(made > 250, "{made}");
    let told = catch_unwind(AssertUnwindSafe(|| random_steps(1, Some(MirrorDefect::NoFall))));
    assert!(told.is_err(), "a mirror that stays is noticed");
}

#[test]
fn threads_never_see_less_than_what_was_written_before_they_looked() {
    let world = world();
    world.model().shake();
    let file = text(&world, 4);
    let cache = file.cache().clone();
    let published: Arc<[AtomicU8; 2]> = Arc::new([const { AtomicU8::new(0) }; 2]);
    write(&cache, 0, &[0; 3 * PAGE as usize]);
    let is_over = AtomicBool::new(false);
    let mut runs: Vec<_> = (0..4).map(|cpu| world.process(cpu)).map(|p| (map_text(&p, &file), p)).collect();
    runs.iter_mut().for_each(|(_, p)| p.judge = Judge::AtTheEnd);
    std::thread::scope(|scope| {
        for (at, p) in &runs {
            let (published, is_over) = (&published, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    for byte in 0..2 {
                        let least = published[byte].load(Ordering::SeqCst);
                        let seen = p.load(at + (byte as u64 + 1) * PAGE).unwrap();
                        assert!(seen >= least, "page {byte}: {seen} after {least}");
                    }
                    p.advise(*at, 4, Advice::DontNeed).unwrap();
                }
            });
        }
        let writers: Vec<_> = (0..2_usize)
            .map(|byte| {
                let (cache, published) = (&cache, &published);
                scope.spawn(move || {
                    for value in 1..=120 {
                        write(cache, (byte as u64 + 1) * PAGE, &[value]);
                        published[byte].store(value, Ordering::SeqCst);
                        if value % 8 == 0 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::SeqCst);
    });
    assert!(world.commons.mirrors_made() > 0);
    drop((runs, file, cache));
    world.end();
}
