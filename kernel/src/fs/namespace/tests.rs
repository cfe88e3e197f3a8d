//! Copies of trees of mounts: their mounts, their locked properties, and that a copy is freed
//! completely.

use std::string::String;
use std::sync::{Arc, Weak};

use super::*;
use crate::fs::mount::{FileSystem, MountCursor, MountFlags};
use crate::fs::tests::World;
use crate::fs::walk::{Final, PathWalk};
use crate::task::Credentials;

/// Mounts another file system at `path`.
fn mount(world: &World, path: &str, flags: MountFlags) -> Arc<Mount> {
    let fs: Arc<dyn FileSystem> = World::new().fs.clone();
    let mount = Mount::new(fs, path.as_bytes(), flags).unwrap();
    let place = world.walk().find(path.as_bytes(), Final::Follow).unwrap();
    place.mount.clone().attach(&mount, place).unwrap();
    mount
}

fn names(root: &Arc<Mount>) -> std::vec::Vec<String> {
    let whole = Path::root_of(root.clone());
    let tree = root.tree().unwrap();
    let texts = tree.iter().map(|mount| Path::root_of(mount.clone()).display(&whole).unwrap());
    texts.map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
}

/// /a, /a/b and /c, each a mount in the previous file system; the second is read-only.
fn world() -> World {
    let world = World::new();
    for path in ["/a", "/c", "/d"] {
        world.make_dir(path);
    }
    mount(&world, "/a", MountFlags::empty());
    world.make_dir("/a/b");
    mount(&world, "/a/b", MountFlags::RDONLY);
    mount(&world, "/c", MountFlags::NOSUID);
    world
}

fn inside() -> Credentials {
    let maker = Credentials::of_user(0, 0);
    Credentials { user_ns: crate::task::userns::UserNs::new(&maker).unwrap(), ..maker }
}

#[test]
fn a_copy_is_a_tree_of_its_own_and_goes_whole() {
    let world = world();
    let namespace = MountNamespace::initial(world.root.mount.arc());
    let deep = world.walk().find(b"/a/b", Final::Follow).unwrap();
    let context = FsContext::new(world.root.clone());
    context.set_cwd(deep.clone());
    let copy = namespace.copy(&Credentials::of_user(0, 0), &context).unwrap();
    assert_eq!(names(&copy.root()), ["/", "/a", "/c", "/a/b"]);
    assert!(context.root().mount.is_same(&copy.root()));
    assert!(!context.cwd().mount.is_same(&deep.mount), "the working directory moves to the copy");
    assert_eq!(&context.cwd().display(&context.root()).unwrap()[..], b"/a/b");
    assert!(
        copy.contains(&context.cwd().mount).unwrap() && !namespace.contains(&context.cwd().mount).unwrap()
    );
    // Changes in one namespace are not seen in the other.
    mount(&world, "/d", MountFlags::empty());
    assert_eq!(names(&namespace.root()).len(), 5);
    assert_eq!(names(&copy.root()).len(), 4);
    let tree = copy.root().tree().unwrap();
    let all: std::vec::Vec<Weak<Mount>> = tree.iter().map(|mount| mount.downgrade()).collect();
    assert!(tree.iter().all(|mount| !mount.is_locked()), "as many rights as before");
    drop((tree, copy));
    let left = context.cwd();
    assert!(all.iter().filter(|mount| mount.upgrade().is_some()).count() >= 2, "the context's places stay");
    assert_eq!(left.mount.mountpoint().map(|below| below.mount.id()), None, "but lead nowhere");
    drop((left, context));
    assert!(all.iter().all(|mount| mount.upgrade().is_none()), "nothing is left");
}

#[test]
fn a_copy_for_fewer_rights_keeps_restrictions_and_covers() {
    let world = world();
    let namespace = MountNamespace::initial(world.root.mount.arc());
    let context = FsContext::new(world.root.clone());
    let copy = namespace.copy(&inside(), &context).unwrap();
    let tree = copy.root().tree().unwrap();
    assert_eq!(tree.iter().filter(|mount| mount.is_locked()).count(), 3, "all but the root");
    let read_only = tree.iter().find(|mount| mount.source() == b"/a/b").unwrap();
    assert_eq!(read_only.check_flags(MountFlags::NOSUID), Err(Errno::EPERM));
    assert_eq!(read_only.check_flags(MountFlags::RDONLY | MountFlags::NOSUID), Ok(()), "more is no danger");
    assert_eq!(read_only.check_flags(MountFlags::RDONLY | MountFlags::NOATIME), Err(Errno::EPERM));
    // A part cannot be copied if the copy would reveal covered files.
    assert_eq!(has_locked_below(&Path::root_of(copy.root())), Ok(true));
    let root = context.root();
    let place = PathWalk::new(&root, &root, &crate::fs::Caller::ROOT).find(b"/a", Final::Follow).unwrap();
    assert_eq!(has_locked_below(&place), Ok(true));
    let part = copy_tree(&place, CopyDepth::All, &mut |_, _| {}).unwrap();
    let parts = part.tree().unwrap();
    assert_eq!(parts.len(), 2);
    assert!(!parts[0].is_locked() && parts[1].is_locked(), "its top may be taken away, with all below");
    drop(parts);
    part.cut_off();
}

#[test]
fn what_is_cut_off_stays_covered() {
    let world = world();
    let a = world.walk().find(b"/a", Final::Follow).unwrap();
    let covered = a.mount.root().lookup(b"b").unwrap();
    let below = a.mount.mountpoint().unwrap();
    below.mount.detach(&a.mount).unwrap_err();
    below.mount.detach_tree(&a.mount).unwrap();
    assert_eq!(names(&world.root.mount), ["/", "/c"]);
    let upper = a.mount.covering(&covered).expect("an open directory shows no more than before");
    assert!(upper.mountpoint().is_none());
    let left = [a.mount.downgrade(), upper.downgrade()];
    drop((a, below, upper));
    assert!(left.iter().all(|mount| mount.upgrade().is_none()));
}

#[test]
fn trees_of_any_depth_go_in_a_loop() {
    let world = World::new();
    world.make_dir("/a");
    let namespace = MountNamespace::initial(world.root.mount.arc());
    let mut place = world.walk().find(b"/a", Final::Follow).unwrap();
    for _ in 0..20_000 {
        let upper = place.mount.copy(place.node.clone()).unwrap();
        place.mount.clone().attach(&upper, place).unwrap();
        place = Path::root_of(upper);
    }
    let top = place.mount.downgrade();
    drop((place, namespace, world));
    assert!(top.upgrade().is_none());
}

#[test]
fn a_part_has_only_what_hangs_in_it() {
    let world = world();
    world.make_dir("/d/e");
    let place = world.walk().find(b"/d", Final::Follow).unwrap();
    let part = copy_tree(&place, CopyDepth::All, &mut |_, _| {}).unwrap();
    assert_eq!(part.tree().unwrap().len(), 1);
    mount(&world, "/d/e", MountFlags::empty());
    let part = copy_tree(&place, CopyDepth::All, &mut |_, _| {}).unwrap();
    assert_eq!(part.tree().unwrap().len(), 2);
    part.cut_off();
    let part = copy_tree(&place, CopyDepth::One, &mut |_, _| {}).unwrap();
    assert_eq!(part.tree().unwrap().len(), 1);
    assert!(is_below(&place, &world.root).unwrap() && !is_below(&world.root, &place).unwrap());
}

/// Each mount once, parents first, also while mounts come and go between two steps.
#[test]
fn a_walk_over_the_mounts_goes_on_behind_what_is_unmounted() {
    let world = world();
    let root = world.root.mount.clone();
    let place = |path: &str| {
        let place = world.walk().find(path.as_bytes(), Final::Follow).unwrap();
        place.mount.clone()
    };
    let (a, b, c) = (place("/a"), place("/a/b"), place("/c"));
    let mut cursor = MountCursor::new();
    let mut next = || cursor.next(&root).unwrap().map(|mount| mount.id());
    assert_eq!([next(), next()], [Some(root.id()), Some(a.id())]);
    let d = mount(&world, "/d", MountFlags::empty());
    assert_eq!([next(), next(), next(), next()], [Some(b.id()), Some(c.id()), Some(d.id()), None]);
    assert_eq!(next(), None, "the end is the end");

    // The mount shown last is unmounted: alone, and with the mount that it was in.
    let mut cursor = MountCursor::new();
    while cursor.next(&root).unwrap().unwrap().id() != b.id() {}
    a.detach(&b).unwrap();
    assert_eq!(cursor.next(&root).unwrap().map(|mount| mount.id()), Some(c.id()));
    drop(b);
    world.make_dir("/a/e");
    let e = mount(&world, "/a/e", MountFlags::empty());
    let mut cursor = MountCursor::new();
    while cursor.next(&root).unwrap().unwrap().id() != e.id() {}
    root.detach_tree(&a).unwrap();
    drop(e);
    assert_eq!(cursor.next(&root).unwrap().map(|mount| mount.id()), Some(c.id()));
    let shown = Arc::downgrade(&c);
    root.detach(&c).unwrap();
    drop((a, c));
    assert!(shown.upgrade().is_none(), "a walk keeps no mount");
    assert_eq!(cursor.next(&root).unwrap().map(|mount| mount.id()), Some(d.id()));
    assert!(cursor.next(&root).unwrap().is_none());
}
