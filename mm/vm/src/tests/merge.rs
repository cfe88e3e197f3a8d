//! Pages with equal bytes that get one frame.

use freehold_machine::model::Config;
use freehold_machine::{CpuId, PAGE_SIZE, PhysicalBytes, VirtAddr};
use freehold_paging::model::ModelFrames;

use super::swap::{Disk, find_none};
use super::world::*;
use crate::*;

pub const WISH: MergeWish = MergeWish { pages: 32, sharing: 256, rules: MergeRules::empty() };

/// Lets the scan pass over all spaces `count` times.
pub fn pass(commons: &Commons<ModelFrames>, scan: &mut MergeScan, wish: &MergeWish, count: u32) {
    for _ in 0..count {
        while commons.merge_step(scan, wish).is_some() {}
    }
}

struct Merging {
    world: World,
    scan: MergeScan,
    wish: MergeWish,
}

impl Merging {
    fn new() -> Self {
        Self { world: World::new(), scan: MergeScan::new(), wish: WISH }
    }
    /// A process with a large page at the address, 512 pages that begin with [`byte_of`] their
    /// number; without a mark.
    fn of_large_page() -> (Self, Process, u64) {
        let mut merging = Self::new();
        merging.world = World::with(Config { cpus: 3, nodes: 1, frames: 8 * 512, seed: 3 });
        merging.world.commons.set_huge_mode(HugeMode::Always);
        let (p, at) = (merging.world.process(0), 0x4000_0000);
        p.map(AreaPlace::Fixed(VirtAddr(at)), 512, RW, Backing::Anonymous).unwrap();
        (0..512).for_each(|page| p.store(at + page * PAGE, byte_of(page)).unwrap());
        (merging, p, at)
    }
    /// A process with as many pages as `bytes`, each filled with one of them.
    fn process(&self, cpu: u16, bytes: &[u8]) -> (Process, u64) {
        let p = self.world.process(cpu);
        let at = p.anonymous(bytes.len() as u64);
        p.advise(at, bytes.len() as u64, Advice::Mergeable).unwrap();
        for (page, &byte) in bytes.iter().enumerate() {
            fill(&p, at + page as u64 * PAGE, byte);
        }
        (p, at)
    }
    fn pass(&mut self, count: u32) {
        self.world.model().on_cpu(CpuId(2), || pass(&self.world.commons, &mut self.scan, &self.wish, count));
    }
    /// Merged frames, and their mappings but the first.
    fn sums(&self) -> (u64, u64) {
        let (mut cursor, mut sums) = (MergeCursor::default(), MergeSums::default());
        while self.scan.sum_up(&self.world.commons, &mut cursor, &mut sums) {}
        (sums.shared, sums.sharing)
    }
    fn count(&self, event: Event) -> u64 {
        self.world.commons.count_of(event)
    }
    fn end(mut self) {
        self.pass(2);
        assert_eq!(self.sums(), (0, 0), "no process is left");
        self.world.end();
    }
}

/// The first byte of a page of [`Merging::of_large_page`].
fn byte_of(page: u64) -> u8 {
    (page % 100) as u8
}

/// Stores to both ends of a page, so that pages differ in their last byte only, or nowhere.
fn fill(p: &Process, at: u64, byte: u8) {
    p.store(at, 1).unwrap();
    p.store(at + PAGE - 1, byte).unwrap();
}

fn unmerge(p: &Process, at: u64, pages: u64) -> Result<(), VmError> {
    p.run(|| {
        let mut space = p.space();
        space.advise(VirtAddr(at), pages * PAGE, Advice::Unmergeable)?;
        populate_due(&mut space, Populate::Unmerge)
    })
}

#[test]
fn equal_pages_of_two_processes_become_one_frame_and_each_store_copies_it() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7, 8, 7]);
    let (b, bt) = m.process(1, &[7, 9, 8]);
    m.pass(1);
    assert_eq!((m.sums(), m.scan.figures().volatile), ((0, 0), 6), "a page is first looked at twice");
    m.pass(2);
    assert_eq!((m.sums(), m.scan.figures().unshared), ((2, 3), 1));
    assert_eq!((a.frame(at), a.frame(at + PAGE)), (a.frame(at + 2 * PAGE), b.frame(bt + 2 * PAGE)));
    assert_eq!(a.frame(at), b.frame(bt));
    assert_eq!(a.usage().rss_anon, 3);
    b.store(bt, 2).unwrap();
    a.store(at + 2 * PAGE, 3).unwrap();
    assert_eq!((a.load(at), b.load(bt), a.load(at + 2 * PAGE)), (Ok(1), Ok(2), Ok(3)));
    assert_eq!((m.sums(), m.count(Event::CowKsm)), ((2, 1), 2));
    // Its last user copies it, too.
    let frame = a.frame(at);
    a.store(at, 4).unwrap();
    assert!(a.frame(at) != frame && a.load(at + PAGE - 1) == Ok(7));
    assert_eq!((m.sums(), m.count(Event::CowKsm), m.count(Event::CowUnneeded)), ((1, 1), 3, 0));
    drop((a, b));
    m.end();
}

/// Lets the CPU store to the page at `at`, by a translation that it still has, once the scan has
/// read the page and before the next flush.
fn store_before_flush(m: &Merging, cpu: u16, at: u64) {
    let model = m.world.model();
    model.let_flushes_be_late();
    let before = model.counts().late;
    model.before_flush(move || {
        // The thread ends once its CPU is flushed.
        std::thread::spawn(move || model.on_cpu(CpuId(cpu), || model.store(VirtAddr(at), 2)));
        while model.counts().late == before {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_page_that_changes_before_its_flush_is_not_merged() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7, 7]);
    m.pass(3);
    let (b, bt) = m.process(1, &[7]);
    store_before_flush(&m, 1, bt);
    m.pass(1);
    assert_eq!((m.sums(), a.load(at), b.load(bt)), ((1, 1), Ok(1), Ok(2)));
    drop(b);
    // The same for the page of zeroes.
    m.wish.rules = MergeRules::ZEROES;
    let c = m.world.process(1);
    let ct = c.anonymous(1);
    c.advise(ct, 1, Advice::Mergeable).unwrap();
    c.store(ct, 0).unwrap();
    store_before_flush(&m, 1, ct);
    m.pass(1);
    assert_eq!(c.load(ct), Ok(2));
    drop((a, c));
    m.end();
}

#[test]
fn a_page_whose_equal_changes_meanwhile_has_its_frame_alone() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7]);
    let (b, bt) = m.process(1, &[7]);
    m.pass(1);
    let (model, before) = (m.world.model(), a.frame(at));
    // The first page is on its way to be merged, the second one's turn comes.
    model.before_flush(move || model.on_cpu(CpuId(1), || model.store(VirtAddr(bt), 2)).unwrap());
    m.pass(1);
    assert_eq!((m.sums(), b.load(bt)), ((0, 0), Ok(2)));
    a.store(at, 3).unwrap();
    assert_eq!((a.frame(at), a.load(at), m.count(Event::CowKsm)), (before, Ok(3), 0));
    drop((a, b));
    m.end();
}

#[test]
fn a_page_without_a_mark_is_not_merged() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7, 7]);
    m.pass(3);
    assert_eq!(m.sums(), (1, 1));
    let (b, bt) = m.process(1, &[7]);
    unmerge(&b, bt, 1).unwrap();
    let before = b.frame(bt);
    m.pass(3);
    assert_eq!((m.sums(), b.frame(bt)), ((1, 1), before));
    assert_ne!(a.frame(at), before);
    drop((a, b));
    m.end();
}

#[test]
fn a_page_whose_mark_went_is_not_merged_with_a_later_one() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7]);
    let (b, bt) = m.process(1, &[7]);
    m.pass(1);
    // The first space's page is noted.
    let step = || m.world.commons.merge_step(&mut m.scan, &m.wish);
    assert_eq!(m.world.model().on_cpu(CpuId(2), step), Some(1));
    unmerge(&a, at, 1).unwrap();
    let before = (a.frame(at), b.frame(bt));
    m.pass(3);
    assert_eq!((m.sums(), a.frame(at), b.frame(bt)), ((0, 0), before.0, before.1));
    drop((a, b));
    m.end();
}

#[test]
fn a_merged_frame_is_free_with_its_last_user_and_not_later() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7, 7]);
    m.pass(3);
    assert_eq!(m.sums(), (1, 1));
    a.unmap(at, 2).unwrap();
    assert_eq!(m.sums(), (0, 0));
    drop(a);
    let Merging { world, scan, .. } = m;
    world.end();
    drop(scan);
}

#[test]
fn pages_that_change_between_passes_or_that_a_fork_shares_stay_as_they_are() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7, 7]);
    for byte in 0..4 {
        m.pass(1);
        (0..2).for_each(|page| fill(&a, at + page * PAGE, byte));
    }
    assert_eq!(m.sums(), (0, 0));
    a.unmap(at + PAGE, 1).unwrap();
    let b = a.fork(1);
    m.pass(4);
    assert_eq!((m.sums(), a.frame(at)), ((0, 0), b.frame(at)), "it is one frame already");
    drop((a, b));
    m.end();
}

#[test]
fn a_pinned_page_is_not_merged_and_a_merged_page_is_not_pinned() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7, 7, 7]);
    let pin = a.run(|| a.space().pin::<Transient, ReadWrite>(VirtAddr(at), Rule::Asked)).unwrap();
    m.pass(4);
    assert_eq!((m.sums(), a.frame(at)), ((1, 1), pin.pfn()));
    let merged = a.frame(at + PAGE);
    let read = a.run(|| a.space().pin::<LongTerm, ReadOnly>(VirtAddr(at + PAGE), Rule::Asked)).unwrap();
    assert!(read.pfn() == a.frame(at + PAGE) && read.pfn() != merged);
    assert!(a.run(|| pin_fast::<_, ReadOnly>(&a.roots, VirtAddr(at + 2 * PAGE))).is_none());
    a.store(at + PAGE, 5).unwrap();
    let seen = m.world.model().with_bytes(read.pfn(), |bytes| bytes[0]);
    assert_eq!((seen, a.load(at + 2 * PAGE)), (5, Ok(1)));
    drop((pin, read));
    m.pass(2);
    assert_eq!(m.sums(), (1, 1), "the first page joins the third");
    drop(a);
    m.end();
}

#[test]
fn pages_of_zeroes_get_the_page_of_zeroes_and_frames_again() {
    let mut m = Merging::new();
    m.wish.rules = MergeRules::ZEROES;
    let a = m.world.process(0);
    let at = a.anonymous(4);
    a.advise(at, 4, Advice::Mergeable).unwrap();
    (0..4).for_each(|page| a.store(at + page * PAGE, 0).unwrap());
    m.pass(1);
    let counted = |p: &Process| {
        let mut sum = MergedPages::default();
        let space = p.space();
        let mut next = VirtAddr(0);
        while next < layout().end {
            next = space.count_merged(next..layout().end, &mut sum);
        }
        (sum.merged, sum.zeroes)
    };
    assert_eq!((counted(&a), a.usage().rss_anon), ((0, 4), 0));
    let b = a.fork(1);
    unmerge(&a, at, 2).unwrap();
    assert_eq!((counted(&a), a.usage().rss_anon), ((0, 2), 2));
    a.store(at + 2 * PAGE, 9).unwrap();
    assert_eq!((a.load(at), a.load(at + 2 * PAGE), b.load(at + 2 * PAGE)), (Ok(0), Ok(9), Ok(0)));
    drop((a, b));
    m.end();
}

#[test]
fn a_private_page_of_a_file_keeps_its_frame_when_it_becomes_zeroes() {
    let mut m = Merging::new();
    m.wish.rules = MergeRules::ZEROES;
    let file = m.world.file(&[b'a'; PAGE_SIZE]);
    let p = m.world.process(0);
    let at = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    (at..at + PAGE).for_each(|byte| p.store(byte, 0).unwrap());
    p.advise(at, 1, Advice::Mergeable).unwrap();
    let before = p.frame(at);
    m.pass(3);
    assert_eq!((p.frame(at), p.load(at), p.fork(1).load(at)), (before, Ok(0), Ok(0)));
    drop((p, file));
    m.end();
}

#[test]
fn unmerging_without_memory_fails_and_loses_nothing() {
    let mut m = Merging::new();
    let (a, at) = m.process(0, &[7; 6]);
    m.pass(3);
    assert_eq!(m.sums(), (1, 5));
    m.world.frames.fail_after(2);
    assert_eq!(unmerge(&a, at, 6), Err(VmError::NoMemory));
    m.world.frames.fail_never();
    assert_eq!(m.sums(), (1, 3));
    assert!((0..6).all(|page| a.load(at + page * PAGE + PAGE - 1) == Ok(7)));
    assert_eq!(unmerge(&a, at, 6), Ok(()));
    m.pass(3);
    assert_eq!(m.sums(), (0, 0), "without the mark no page is merged");
    drop(a);
    m.end();
}

#[test]
fn a_merged_frame_has_no_more_mappings_than_asked() {
    let mut m = Merging::new();
    m.wish.sharing = 2;
    let (a, at) = m.process(0, &[7; 5]);
    m.pass(4);
    assert_eq!((m.sums(), m.scan.figures().unshared), ((2, 2), 1));
    let b = a.fork(1);
    assert_eq!(m.sums(), (2, 6), "a fork shares as always");
    b.store(at, 3).unwrap();
    assert_eq!((a.load(at), b.load(at)), (Ok(1), Ok(3)));
    drop((a, b));
    m.end();
}

#[test]
fn merged_pages_go_to_swap_and_come_back() {
    let mut m = Merging::new();
    let disk = Disk::new(m.world.model());
    let area = m.world.commons.swap().add(disk, 64, &[], 1).unwrap();
    let (a, at) = m.process(0, &[7, 7]);
    let (b, bt) = m.process(1, &[7]);
    m.pass(3);
    assert_eq!(m.sums(), (1, 2));
    let wish = EvictWish { pages: 8, age: Age::Ignore, frames: FrameChoice::ALL, effort: 0 };
    m.world.model().on_cpu(CpuId(2), || m.world.commons.evict(&wish));
    assert_eq!((m.sums(), a.usage().swapped, b.usage().swapped), ((0, 0), 2, 1));
    a.store(at, 2).unwrap();
    assert_eq!((a.load(at), a.load(at + PAGE), b.load(bt)), (Ok(2), Ok(1), Ok(1)));
    b.store(bt, 3).unwrap();
    assert_eq!((a.load(at + PAGE), b.load(bt + PAGE - 1)), (Ok(1), Ok(7)));
    let go_on = &mut || core::ops::ControlFlow::Continue(());
    m.world.commons.swap_off(area, go_on, &mut find_none).unwrap();
    drop((a, b));
    m.end();
}

#[test]
fn pieces_of_large_pages_are_merged_and_the_rest_stays() {
    let (mut m, a, at) = Merging::of_large_page();
    a.advise(at, 512, Advice::Mergeable).unwrap();
    assert_eq!(m.world.commons.huge_pages(), 512);
    m.pass(4);
    assert_eq!((m.sums(), m.world.commons.huge_pages()), ((100, 412), 0));
    assert!((0..512).all(|page| a.load(at + page * PAGE) == Ok(byte_of(page))));
    let b = a.fork(1);
    b.store(at + PAGE, 99).unwrap();
    assert_eq!((a.load(at + PAGE), b.load(at + PAGE)), (Ok(1), Ok(99)));
    drop((a, b));
    m.end();
}

/// A piece of a large page becomes a merged frame in one space, while another space still has the
/// whole page.
#[test]
fn pieces_of_a_large_page_that_a_fork_shares_are_merged_once() {
    for first in 0..2 {
        let (mut m, a, at) = Merging::of_large_page();
        a.advise(at, 512, Advice::Mergeable).unwrap();
        let b = a.fork(1);
        // The scan passes over one of both at first.
        let of = [&a, &b];
        unmerge(of[1 - first], at, 512).unwrap();
        m.pass(4);
        assert_eq!(m.sums().0, 100);
        of[1 - first].advise(at, 512, Advice::Mergeable).unwrap();
        m.pass(4);
        assert_eq!((m.sums().0, m.world.commons.huge_pages()), (100, 0));
        for (p, new) in [(&a, 201), (&b, 202)] {
            p.store(at + 7 * PAGE, new).unwrap();
        }
        assert_eq!((a.load(at + 7 * PAGE), b.load(at + 7 * PAGE)), (Ok(201), Ok(202)));
        let others = (0..512).filter(|&page| page != 7);
        assert!(
            others
                .into_iter()
                .all(|page| [&a, &b].iter().all(|p| p.load(at + page * PAGE) == Ok(byte_of(page))))
        );
        drop((a, b));
        m.end();
    }
}

/// The other space stores to its large page, of which some pieces are merged elsewhere.
#[test]
fn a_large_page_with_merged_pieces_is_copied_before_a_store() {
    let (mut m, a, at) = Merging::of_large_page();
    let b = a.fork(1);
    b.advise(at, 512, Advice::Mergeable).unwrap();
    m.pass(4);
    assert_eq!(m.sums().0, 100);
    for page in 0..512 {
        a.store(at + page * PAGE, 255).unwrap();
        assert_eq!(b.load(at + page * PAGE), Ok(byte_of(page)));
    }
    b.unmap(at, 512).unwrap();
    a.store(at, 254).unwrap();
    assert!((1..512).all(|page| a.load(at + page * PAGE) == Ok(255)) && a.load(at) == Ok(254));
    drop((a, b));
    m.end();
}

#[test]
fn marks_are_kept_by_fork_and_other_areas_pass_over_them() {
    let m = Merging::new();
    let (a, at) = m.process(0, &[1, 2, 3]);
    let is_marked =
        |p: &Process, at: u64| p.space().area_at(VirtAddr(at)).unwrap().flags.contains(AreaFlags::MERGEABLE);
    let shared = a.map(AreaPlace::Anywhere, 1, RW, Backing::SharedAnonymous).unwrap();
    a.advise(shared, 1, Advice::Mergeable).unwrap();
    a.protect(at, 1, Protection::READ).unwrap();
    let b = a.fork(1);
    assert_eq!(b.space().fork().map(|c| c.merges_all()), Ok(false));
    assert!(is_marked(&a, at) && is_marked(&b, at + PAGE) && !is_marked(&a, shared));
    a.space().merge_all();
    let new = a.anonymous(1);
    assert!(is_marked(&a, new) && !is_marked(&a, shared));
    assert_eq!(a.space().fork().map(|c| c.merges_all()), Ok(true));
    a.space().merge_none();
    assert!(!is_marked(&a, new) && !is_marked(&a, at));
    drop((a, b));
    m.end();
}
