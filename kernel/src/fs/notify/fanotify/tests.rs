//! Host tests of groups and marks, on trees in plain memory.

use std::vec::Vec;

use freehold_collections::inject::each_fails;
use freehold_collections::{Arc, reserve};

use super::queue::{AddedEvent, FanQueue};
use super::*;
use crate::Errno;
use crate::fs::bytes::SliceSource;
use crate::fs::flags::OpenFlags;
use crate::fs::names;
use crate::fs::tests::World;
use crate::fs::walk::Final;

/// A user that only these tests use.
const USER: u32 = 91_000;

fn group(settings: GroupSettings) -> Arc<FanGroup> {
    FanGroup::new(USER, settings).unwrap()
}

fn place(world: &World, path: &str) -> Path {
    world.walk().find(path.as_bytes(), Final::Stop).unwrap()
}

fn change(mask: FanMask, flags: MarkFlags) -> MarkChange {
    MarkChange { mask, flags, idle: FanMask::empty() }
}

fn add(mask: FanMask) -> MarkChange {
    change(mask, MarkFlags::ADD)
}

/// Takes all events: their bits.
fn told(group: &FanGroup) -> Vec<FanMask> {
    let take = || match group.take(usize::MAX, &|_| 0) {
        Some(TakenEvent::Event(event)) => Some(event.mask),
        _ => None,
    };
    core::iter::from_fn(take).collect()
}

/// A mark on a directory reports its files only if it requests so; all that happens to one file is
/// one event.
#[test]
fn events_of_a_file_are_merged() {
    let (world, group) = (World::new(), group(GroupSettings::empty()));
    world.write("/f", "x");
    let root = place(&world, "/");
    let wanted = FanMask::OPEN | FanMask::MODIFY | FanMask::CLOSE_WRITE;
    group.mark(&MarkedObject::Inode(&root), &add(wanted)).unwrap();
    let use_file = || {
        let file = world.open("/f", OpenFlags::WRONLY).unwrap();
        file.write(&mut SliceSource::new(b"y")).unwrap();
    };
    use_file();
    assert!(told(&group).is_empty());
    group.mark(&MarkedObject::Inode(&root), &add(FanMask::EVENT_ON_CHILD)).unwrap();
    use_file();
    assert_eq!(told(&group), [wanted]);
    group.close();
    use_file();
    assert!(told(&group).is_empty() && requested(root.node.identity()).is_empty());
}

/// A mark on a file can ignore what a mark on its mount or file system requests, until the file is
/// changed.
#[test]
fn a_mark_ignores_events_of_another_one() {
    for is_mount in [true, false] {
        let (world, group) = (World::new(), group(GroupSettings::empty()));
        world.write("/f", "x");
        let file = place(&world, "/f");
        let object = if is_mount { MarkedObject::Mount(&file) } else { MarkedObject::FileSystem(&file) };
        group.mark(&object, &add(FanMask::OPEN)).unwrap();
        let ignores = MarkFlags::ADD | MarkFlags::IGNORED_MASK;
        group.mark(&MarkedObject::Inode(&file), &change(FanMask::OPEN, ignores)).unwrap();
        drop(world.open("/f", OpenFlags::empty()).unwrap());
        assert!(told(&group).is_empty());
        let writer = world.open("/f", OpenFlags::WRONLY).unwrap();
        writer.write(&mut SliceSource::new(b"y")).unwrap();
        assert!(told(&group).is_empty());
        drop(world.open("/f", OpenFlags::empty()).unwrap());
        assert_eq!(told(&group), [FanMask::OPEN]);
        group.close();
    }
}

/// The end of an inode is told to a group that reports handles, and ends its mark.
#[test]
fn an_ended_inode_has_no_mark() {
    let (world, group) = (World::new(), group(GroupSettings::FID));
    world.write("/f", "x");
    let file = place(&world, "/f");
    let identity = file.node.identity();
    group.mark(&MarkedObject::Inode(&file), &add(FanMask::DELETE_SELF)).unwrap();
    drop(file);
    names::unlink(&world.walk(), b"/f").unwrap();
    assert_eq!(told(&group), [FanMask::DELETE_SELF]);
    assert!(requested(identity).is_empty());
    group.close();
}

/// If memory is short, at each allocation in turn, no mark is made.
#[test]
fn a_mark_without_memory_is_not_there() {
    let (world, group) = (World::new(), group(GroupSettings::empty()));
    world.write("/f", "x");
    let file = place(&world, "/f");
    let object = MarkedObject::Inode(&file);
    let (made, failed) = each_fails(|| {
        group.mark(&object, &add(FanMask::OPEN)).inspect_err(|&error| {
            assert_eq!((error, requested(file.node.identity())), (Errno::ENOMEM, FanMask::empty()));
        })
    });
    assert_eq!((made, failed > 0), (Ok(()), true));
    assert_eq!(group.reduce(&object, &change(FanMask::OPEN, MarkFlags::REMOVE)), Ok(()));
    assert_eq!(group.reduce(&object, &change(FanMask::OPEN, MarkFlags::REMOVE)), Err(Errno::ENOENT));
    group.close();
}

/// Flags that a mark has cannot be taken back by an addition.
#[test]
fn additions_that_contradict_a_mark_are_refused() {
    let (world, group) = (World::new(), group(GroupSettings::empty()));
    let root = place(&world, "/");
    let object = MarkedObject::Inode(&root);
    let survives = MarkFlags::ADD | MarkFlags::IGNORE | MarkFlags::SURVIVES_MODIFY;
    group.mark(&object, &change(FanMask::OPEN, survives)).unwrap();
    for flags in [MarkFlags::IGNORED_MASK, MarkFlags::IGNORE, MarkFlags::EVICTABLE] {
        let refused = group.mark(&object, &change(FanMask::OPEN, MarkFlags::ADD | flags));
        assert_eq!(refused, Err(Errno::EEXIST), "{flags:?}");
    }
    group.close();
}

fn queued(place: &Path, pid: u32, mask: FanMask) -> FanEvent {
    FanEvent { mask, pid, subject: FanSubject::Place(place.clone()), question: None }
}

/// Beyond the limit, events are lost and one event says so. Reading makes room again.
#[test]
fn lost_events_are_one_event() {
    let world = World::new();
    let root = place(&world, "/");
    let mut queue = FanQueue::new(2);
    let mut add = |pid| queue.add(&queued(&root, pid, FanMask::OPEN));
    assert_eq!([1, 2].map(&mut add), [AddedEvent::Queued(1), AddedEvent::Queued(2)]);
    assert_eq!([3, 4].map(&mut add), [AddedEvent::Lost, AddedEvent::Absorbed]);
    let masks = core::iter::from_fn(|| match queue.take(usize::MAX, &|_| 0) {
        Some(TakenEvent::Event(event)) => Some(event.mask),
        _ => None,
    });
    assert_eq!(masks.collect::<Vec<_>>(), [FanMask::OPEN, FanMask::OPEN, FanMask::Q_OVERFLOW]);
    assert_eq!(queue.add(&queued(&root, 5, FanMask::OPEN)), AddedEvent::Queued(4));
}

/// Events are merged if the file, the task and the kind of file are the same, and no question is.
#[test]
fn only_equal_events_are_merged() {
    let world = World::new();
    world.write("/f", "x");
    let [root, file] = ["/", "/f"].map(|path| place(&world, path));
    let mut queue = FanQueue::new(100);
    let all = [
        (queued(&root, 1, FanMask::OPEN), AddedEvent::Queued(1)),
        (queued(&file, 1, FanMask::OPEN), AddedEvent::Queued(2)),
        (queued(&root, 1, FanMask::ACCESS), AddedEvent::Absorbed),
        (queued(&root, 2, FanMask::ACCESS), AddedEvent::Queued(3)),
        (queued(&root, 1, FanMask::ACCESS | FanMask::ONDIR), AddedEvent::Queued(4)),
        (queued(&root, 1, FanMask::MODIFY), AddedEvent::Absorbed),
    ];
    for (event, expected) in &all {
        assert_eq!(queue.add(event), *expected, "{:?}", event.mask);
    }
    let question = Some(reserve::arc(Permission::default()));
    let asked = FanEvent { question, ..queued(&root, 1, FanMask::OPEN_PERM) };
    assert_eq!([0; 2].map(|_| queue.add(&asked)), [AddedEvent::Queued(5), AddedEvent::Queued(6)]);
    queue.close();
    assert_eq!(queue.add(&asked), AddedEvent::Absorbed);
}
