use std::vec;
use std::vec::Vec;

use freehold_collections::inject::each_fails;

use super::*;
use crate::Errno;
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::fs::pipe::{Pipe, PipeEnd};
use crate::fs::{Blocking, OpenFlags};

struct Fixture {
    epoll: Arc<Epoll>,
    reader: Arc<OpenFile>,
    writer: Arc<PipeEnd>,
}

const IN: u32 = Ready::IN.bits();

fn fixture(events: u32) -> Fixture {
    let (reader, writer) = Pipe::pair(OpenFlags::empty()).unwrap();
    let reader = OpenFile::new(reader, None, OpenFlags::empty()).unwrap();
    let epoll = Epoll::new(0).unwrap();
    epoll.add(3, &reader, Interest { events, data: 77 }).unwrap();
    Fixture { epoll, reader, writer }
}

fn write(writer: &PipeEnd) {
    writer.write_at(0, &mut SliceSource::new(b"x"), Blocking::Never).unwrap();
}

fn read(file: &OpenFile) {
    let mut byte = [0; 1];
    file.file().read_at(0, &mut SliceSink::new(&mut byte), Blocking::Never).unwrap();
}

fn events(epoll: &Epoll) -> Vec<u32> {
    let mut all = vec![];
    epoll.harvest(8, |event| {
        assert_eq!(event.data, 77);
        all.push(event.events);
    });
    all
}

#[test]
fn a_level_is_reported_for_as_long_as_it_lasts() {
    let f = fixture(IN);
    assert_eq!(events(&f.epoll), []);
    write(&f.writer);
    assert_eq!(events(&f.epoll), [IN]);
    assert_eq!(events(&f.epoll), [IN]);
    read(&f.reader);
    assert_eq!(events(&f.epoll), []);
    assert!(!f.epoll.may_have_ready());
}

#[test]
fn an_edge_is_reported_once_and_again_with_the_next_bytes() {
    let f = fixture(IN | Trigger::EDGE.bits());
    write(&f.writer);
    assert_eq!(events(&f.epoll), [IN]);
    assert_eq!(events(&f.epoll), []);
    write(&f.writer);
    assert_eq!(events(&f.epoll), [IN]);
}

#[test]
fn a_one_shot_item_sleeps_until_it_is_changed() {
    let f = fixture(IN | Trigger::ONESHOT.bits());
    write(&f.writer);
    assert_eq!(events(&f.epoll), [IN]);
    write(&f.writer);
    assert_eq!(events(&f.epoll), []);
    f.epoll.modify(3, &f.reader, Interest { events: IN, data: 77 }).unwrap();
    assert_eq!(events(&f.epoll), [IN]);
}

#[test]
fn hanging_up_is_reported_unasked() {
    let f = fixture(0x2000);
    drop(f.writer);
    assert_eq!(events(&f.epoll), [Ready::HUP.bits()]);
}

#[test]
fn a_file_is_watched_once_and_can_be_let_go() {
    let f = fixture(IN);
    let interest = Interest { events: IN, data: 77 };
    assert_eq!(f.epoll.add(3, &f.reader, interest), Err(Errno::EEXIST));
    write(&f.writer);
    f.epoll.remove(3, &f.reader).unwrap();
    assert_eq!(events(&f.epoll), []);
    assert_eq!(f.epoll.remove(3, &f.reader), Err(Errno::ENOENT));
    f.epoll.add(3, &f.reader, interest).unwrap();
    assert_eq!(events(&f.epoll), [IN]);
}

#[test]
fn closing_the_file_ends_the_watch() {
    let f = fixture(IN);
    write(&f.writer);
    drop(f.reader);
    assert_eq!(f.epoll.items.lock().iter().count(), 0, "at once, and not when somebody waits");
    assert_eq!(events(&f.epoll), []);
}

#[test]
fn a_watch_whose_file_is_closed_while_the_items_are_locked_ends_with_the_next_wait() {
    let f = fixture(IN);
    let items = f.epoll.items.lock();
    drop(f.reader);
    assert_eq!(items.iter().count(), 1);
    drop(items);
    assert_eq!(events(&f.epoll), []);
    assert_eq!(f.epoll.items.lock().iter().count(), 0);
}

#[test]
fn ten_thousand_files_are_watched_changed_and_forgotten_and_none_is_left() {
    let epoll = Epoll::new(0).unwrap();
    let pairs: Vec<_> = (0..10_000).map(|_| fixture(IN)).collect();
    let (all, quiet) = (Interest { events: IN, data: 1 }, Interest { events: 0, data: 1 });
    pairs.iter().for_each(|pair| epoll.add(5, &pair.reader, all).unwrap());
    pairs.iter().rev().for_each(|pair| epoll.modify(5, &pair.reader, quiet).unwrap());
    pairs.iter().step_by(2).for_each(|pair| epoll.remove(5, &pair.reader).unwrap());
    pairs.iter().skip(1).step_by(2).for_each(|pair| epoll.modify(5, &pair.reader, all).unwrap());
    pairs.iter().for_each(|pair| write(&pair.writer));
    let mut count = 0;
    assert_eq!(epoll.harvest(usize::MAX, |_| count += 1), 5_000);
    drop(pairs);
    assert_eq!((count, epoll.items.lock().iter().count()), (5_000, 0));
}

#[test]
fn instances_may_watch_each_other_but_not_in_a_circle() {
    let f = fixture(IN);
    let inner = OpenFile::new(reserve::arc(EpollFile(f.epoll.clone())), None, OpenFlags::RDWR).unwrap();
    let outer = Epoll::new(0).unwrap();
    let interest = Interest { events: IN, data: 77 };
    outer.add(9, &inner, interest).unwrap();
    assert_eq!(events(&outer), []);
    write(&f.writer);
    assert_eq!(events(&outer), [IN]);
    let outer_file = OpenFile::new(reserve::arc(EpollFile(outer.clone())), None, OpenFlags::RDWR).unwrap();
    assert_eq!(f.epoll.add(10, &outer_file, interest), Err(Errno::ELOOP));
    assert_eq!(outer.add(10, &outer_file, interest), Err(Errno::ELOOP));
}

fn opened(epoll: &Arc<Epoll>) -> Arc<OpenFile> {
    OpenFile::new(reserve::arc(EpollFile(epoll.clone())), None, OpenFlags::RDWR).unwrap()
}

const QUIET: Interest = Interest { events: IN, data: 0 };

#[test]
fn a_chain_of_instances_is_bounded_whichever_end_it_is_built_from() {
    for upwards in [true, false] {
        let chain: Vec<_> = (0..8).map(|_| Epoll::new(0).unwrap()).collect();
        let files: Vec<_> = chain.iter().map(opened).collect();
        let watch = |inner: usize| chain[inner + 1].add(3, &files[inner], QUIET);
        let outcomes: Vec<_> =
            if upwards { (0..7).map(watch).collect() } else { (0..7).rev().map(watch).collect() };
        assert_eq!(outcomes[..4], [Ok(()); 4]);
        assert_eq!(outcomes[4], Err(Errno::ELOOP), "built upwards: {upwards}");
    }
}

#[test]
fn a_chain_that_is_let_go_leaves_room_for_another() {
    let chain: Vec<_> = (0..6).map(|_| Epoll::new(0).unwrap()).collect();
    let files: Vec<_> = chain.iter().map(opened).collect();
    for inner in 0..4 {
        chain[inner + 1].add(3, &files[inner], QUIET).unwrap();
    }
    assert_eq!(chain[5].add(3, &files[4], QUIET), Err(Errno::ELOOP));
    assert_eq!(chain[0].add(3, &files[4], QUIET), Err(Errno::ELOOP), "a circle");
    chain[1].remove(3, &files[0]).unwrap();
    assert_eq!(chain[5].add(3, &files[4], QUIET), Ok(()));
}

#[test]
fn the_paths_that_a_wake_up_takes_are_bounded() {
    let bottom = Epoll::new(0).unwrap();
    let file = opened(&bottom);
    let watchers: Vec<_> = (0..501).map(|_| Epoll::new(0).unwrap()).collect();
    let outcomes: Vec<_> = watchers.iter().map(|watcher| watcher.add(3, &file, QUIET)).collect();
    assert_eq!(outcomes[499], Ok(()));
    assert_eq!(outcomes[500], Err(Errno::EINVAL));
    // If each instance of a level watches each of the next, there are few edges and many paths.
    // Each instance is visited once.
    let levels: Vec<Vec<_>> = (0..3).map(|_| (0..8).map(|_| Epoll::new(0).unwrap()).collect()).collect();
    let mut outcome = Ok(());
    let files: Vec<Vec<_>> = levels.iter().map(|level| level.iter().map(opened).collect()).collect();
    for (below, level) in files.iter().zip(&levels[1..]) {
        for (inner, outer) in below.iter().flat_map(|inner| level.iter().map(move |outer| (inner, outer))) {
            outcome = outcome.and(outer.add(3, inner, QUIET));
        }
    }
    assert_eq!(outcome, Ok(()));
}

#[test]
fn the_list_is_shared_fairly() {
    let epoll = Epoll::new(0).unwrap();
    let mut files = vec![];
    for fd in 0..10 {
        let (reader, writer) = Pipe::pair(OpenFlags::empty()).unwrap();
        let reader = OpenFile::new(reader, None, OpenFlags::empty()).unwrap();
        epoll.add(fd, &reader, Interest { events: IN, data: fd as u64 }).unwrap();
        write(&writer);
        files.push((reader, writer));
    }
    let mut seen = vec![];
    for _ in 0..5 {
        epoll.harvest(2, |event| seen.push(event.data));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
}

/// A watch that does not get wake-ups would never report anything.
#[test]
fn a_watch_for_which_there_is_no_memory_is_refused_and_leaves_nothing() {
    // The second watcher of a file needs another kind of list, the fifth a longer queue.
    for others in [1, 4] {
        let f = fixture(IN);
        let more: Vec<_> = (1..others).map(|_| Epoll::new(0).unwrap()).collect();
        more.iter().for_each(|other| other.add(3, &f.reader, QUIET).unwrap());
        let epoll = Epoll::new(0).unwrap();
        let (outcome, failures) = each_fails(|| {
            let outcome = epoll.add(3, &f.reader, Interest { events: IN, data: 77 });
            if outcome.is_err() {
                assert_eq!(outcome, Err(Errno::ENOMEM));
                write(&f.writer);
                assert_eq!((events(&epoll), epoll.items.lock().iter().count()), (vec![], 0));
                assert_eq!(events(&f.epoll), [IN]);
                read(&f.reader);
            }
            outcome
        });
        assert_eq!(outcome, Ok(()));
        assert!(failures >= 3, "{failures} allocations");
        write(&f.writer);
        assert_eq!(events(&epoll), [IN]);
        assert_eq!(epoll.add(3, &f.reader, QUIET), Err(Errno::EEXIST));
        assert_eq!(events(&epoll), [IN], "the watch is as it was");
        drop(f.reader);
        assert_eq!(epoll.items.lock().iter().count(), 0);
    }
}

/// A file whose last reference may be the one that a poll holds. Like an io_uring instance it needs
/// `items` unlocked to end.
struct Closing {
    node: Arc<dyn Node>,
    epoll: Arc<Epoll>,
    own: Arc<SpinLock<Option<Arc<OpenFile>>>>,
    ended: Arc<SpinLock<Option<bool>>>,
}

impl File for Closing {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }
    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if waiter.is_none() {
            let own = self.own.lock().take();
            drop(own);
        }
        Ready::IN
    }
    fn release(&self) {
        *self.ended.lock() = Some(self.epoll.items.try_lock().is_some());
    }
}

#[test]
fn a_file_that_ends_during_a_look_at_it_ends_with_the_items_open() {
    for way in 0..3 {
        let epoll = Epoll::new(0).unwrap();
        let (own, ended) = (reserve::arc(SpinLock::new(None)), reserve::arc(SpinLock::new(None)));
        let node = AnonymousNode::plain(NodeKind::Fifo, "pipe");
        let closing = Closing { node, epoll: epoll.clone(), own: own.clone(), ended: ended.clone() };
        let file = OpenFile::new(reserve::arc(closing), None, OpenFlags::empty()).unwrap();
        epoll.add(3, &file, Interest { events: IN, data: 77 }).unwrap();
        *own.lock() = Some(file);
        match way {
            0 => assert_eq!(events(&epoll), [IN]),
            1 => assert!(epoll.has_ready()),
            _ => {
                own.lock().take();
            }
        }
        assert_eq!(*ended.lock(), Some(true));
        assert_eq!(events(&epoll), [], "its watch is over");
        assert_eq!(epoll.items.lock().iter().count(), 0);
    }
}

/// A task that sleeps in a wait for an instance.
struct Sleeper(core::sync::atomic::AtomicUsize);

impl Wake for Sleeper {
    fn wake(&self) -> Woken {
        self.0.fetch_add(1, Ordering::Relaxed);
        Woken::Sleeper
    }
}

#[test]
fn of_exclusive_watchers_new_input_reaches_one_with_a_sleeper_and_the_end_all() {
    let Fixture { epoll, reader, writer } = fixture(IN | EPOLLEXCLUSIVE);
    let sleepers: [_; 2] = core::array::from_fn(|_| reserve::arc(Sleeper(0.into())));
    let woken = || sleepers.each_ref().map(|sleeper| sleeper.0.load(Ordering::Relaxed));
    let others = sleepers.each_ref().map(|sleeper| {
        let other = Epoll::new(0).unwrap();
        other.add(3, &reader, Interest { events: IN | EPOLLEXCLUSIVE, data: 77 }).unwrap();
        let mut waiter = PollWaiter::observer(sleeper.clone());
        waiter.register(&other.shared.waiters);
        (other, waiter)
    });
    write(&writer);
    assert_eq!(woken(), [1, 0]);
    assert!(epoll.may_have_ready(), "an instance without sleepers takes no input");
    assert!(others[0].0.may_have_ready() && !others[1].0.may_have_ready());
    drop(writer);
    assert!(woken().iter().all(|&count| count > 0) && others[1].0.may_have_ready());
}
