//! Secret memory: no operation lets the kernel look at its bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::NodePolicy;
use freehold_machine::{PfnRange, VirtAddr};

use super::world::*;
use crate::*;

const PAGES: u64 = 3;

/// Two pages at most.
#[derive(Default)]
struct Account(AtomicU64);

impl PageAccount for Account {
    fn charge(&self) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pages| (pages < 2).then_some(pages + 1))
            .is_ok()
    }
    fn give_back(&self, pages: u64) {
        assert!(self.0.fetch_sub(pages, Ordering::Relaxed) >= pages);
    }
}

/// A process that has stored 7 to the first page of a secret file, whose frame the kernel may not
/// read from then on.
fn world() -> (World, Arc<Cache>, Process, u64) {
    let world = World::new();
    let cache = Cache::secret(world.frames, Arc::new(Account::default()));
    world.commons.list(&cache);
    cache.set_size_grow(PAGES * PAGE);
    let p = world.process(0);
    let at = map(&p, &cache);
    assert_eq!(p.load(at), Ok(0));
    p.store(at, 7).unwrap();
    world.model().withhold(p.frame(at));
    (world, cache, p, at)
}

fn map(p: &Process, cache: &Arc<Cache>) -> u64 {
    let file: File = Arc::new(TestFile(cache.clone()));
    let backing = Backing::SharedFile(FileView { file, offset: 0 }, SharedWrite::Allowed);
    p.map(AreaPlace::Anywhere, PAGES, RW, backing).unwrap()
}

#[test]
fn programs_share_it_and_nobody_pins_it() {
    let (world, cache, p, at) = world();
    let child = p.fork(1);
    let other = world.process(2);
    let there = map(&other, &cache);
    assert_eq!((child.load(at), other.load(there)), (Ok(7), Ok(7)));
    child.store(at, 8).unwrap();
    assert_eq!((p.load(at), other.load(there)), (Ok(8), Ok(8)));
    for process in [&p, &child] {
        let addr = VirtAddr(at);
        assert!(process.run(|| pin_fast::<_, ReadOnly>(&process.roots, addr)).is_none());
        assert!(process.run(|| pin_fast::<_, ReadWrite>(&process.roots, addr)).is_none());
        for rule in [Rule::Asked, Rule::Stated, Rule::Forced] {
            let refused = process.space().pin::<Transient, ReadOnly>(addr, rule);
            assert!(matches!(refused, Err(ACCERR)), "{rule:?}");
            let refused = process.space().pin::<LongTerm, ReadWrite>(addr, rule);
            assert!(matches!(refused, Err(ACCERR)), "{rule:?}");
        }
        let mut byte = [0];
        assert_eq!(process.space().read_remote(addr, &mut byte), Err(VmError::Fault));
        assert_eq!(process.space().write_remote(addr, &byte), Err(VmError::Fault));
    }
    assert_eq!(p.load(at), Ok(8));
    drop((p, child, other, cache));
    world.end();
}

#[test]
fn leaves_stay_secret_when_they_change_or_move() {
    let (world, cache, p, at) = world();
    p.protect(at, 1, Protection::READ).unwrap();
    p.protect(at, 1, RW).unwrap();
    p.store(at, 9).unwrap();
    let request = Remap {
        old: VirtAddr(at),
        old_len: PAGE,
        new_len: PAGE,
        place: RemapPlace::MayMove,
        source: RemapSource::Keep,
    };
    let moved = p.run(|| p.space().remap(request, &p.limits, &mut || Ok(()))).unwrap();
    assert_eq!(p.load(moved.0), Ok(9));
    assert!(p.run(|| pin_fast::<_, ReadWrite>(&p.roots, moved)).is_none());
    drop((p, cache));
    world.end();
}

#[test]
fn its_pages_stay_where_they_are() {
    let (world, cache, p, at) = world();
    let frame = p.frame(at);
    let all = PfnRange::new(frame, frame.offset(1));
    let done = world.commons.evacuate_caches(all, NodePolicy::Local);
    assert_eq!((done.moved, done.left), (0, 1));
    assert_eq!((p.frame(at), p.load(at)), (frame, Ok(7)));
    drop(p);
    // The cache has no mapping now.
    let done = world.commons.evacuate_caches(all, NodePolicy::Local);
    assert_eq!((done.moved, done.left), (0, 1));
    drop(cache);
    world.end();
}

#[test]
fn each_page_is_charged_once_and_given_back_with_the_file() {
    let world = World::new();
    let account = Arc::new(Account::default());
    let files: [_; 2] = core::array::from_fn(|_| {
        let cache = Cache::secret(world.frames, account.clone());
        cache.set_size_grow(PAGES * PAGE);
        cache
    });
    let p = world.process(0);
    let [first, second] = [0, 1].map(|number| map(&p, &files[number]));
    let charged = || account.0.load(Ordering::Relaxed);
    p.store(first, 1).unwrap();
    p.store(first, 1).unwrap();
    assert_eq!((p.load(second), charged()), (Ok(0), 2));
    assert_eq!((p.store(second + PAGE, 1), charged()), (Err(FaultError::Bus), 2));
    let [one, other] = files;
    p.unmap(first, PAGES).unwrap();
    assert_eq!(charged(), 2, "the file keeps it");
    drop(one);
    assert_eq!(charged(), 1);
    world.frames.fail_after(0);
    assert_eq!((p.store(second + PAGE, 1), charged()), (Err(FaultError::OutOfMemory), 1));
    world.frames.fail_never();
    p.store(second + PAGE, 1).unwrap();
    assert_eq!(charged(), 2);
    drop((p, other));
    assert_eq!(charged(), 0);
    world.end();
}

#[test]
fn its_lock_is_for_ever() {
    let (world, cache, p, _) = world();
    let locked = MapRequest {
        place: AreaPlace::Anywhere,
        len: PAGE,
        protection: RW,
        backing: Backing::SharedFile(
            FileView { file: Arc::new(TestFile(cache.clone())), offset: 0 },
            SharedWrite::Allowed,
        ),
        flags: AreaFlags::LOCKED | AreaFlags::LOCK_ON_FAULT,
    };
    let at = p.run(|| p.space().map(locked, &p.limits)).unwrap();
    assert_eq!(p.space().locked_pages(), 1);
    p.space().unlock(at, PAGE).unwrap();
    p.space().unlock_all();
    assert_eq!(p.space().locked_pages(), 1);
    drop((p, cache));
    world.end();
}
