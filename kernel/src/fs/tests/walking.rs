//! Path resolution.

use std::sync::Arc;

use super::World;
use crate::Errno;
use crate::fs::caller::Caller;
use crate::fs::flags::{OpenFlags, ResolveFlags};
use crate::fs::mount::{FileSystem, Mount, MountFlags};
use crate::fs::node::Node;
use crate::fs::walk::{Final, PathWalk};
use crate::fs::{metadata, names};

fn text(world: &World, path: &str) -> Result<String, Errno> {
    let place = world.walk().find(path.as_bytes(), Final::Follow)?;
    Ok(String::from_utf8(place.display(&world.root).unwrap().to_vec()).unwrap())
}

use std::format;
use std::string::String;

/// Dots, slashes and the root's parent are resolved as in POSIX.
#[test]
fn dots_and_slashes_are_resolved() {
    let world = World::new();
    world.make_dir("/a");
    world.make_dir("/a/b");
    world.write("/a/b/f", "x");
    for (path, there) in [
        ("/", "/"),
        ("//", "/"),
        ("/..", "/"),
        ("/../../a", "/a"),
        ("a//b/", "/a/b"),
        ("/a/./b/../b/f", "/a/b/f"),
        ("a/b/..", "/a"),
        (".", "/"),
    ] {
        assert_eq!(text(&world, path).as_deref(), Ok(there), "{path}");
    }
    assert_eq!(text(&world, ""), Err(Errno::ENOENT));
    assert_eq!(text(&world, "/a/b/f/"), Err(Errno::ENOTDIR));
    assert_eq!(text(&world, "/a/b/f/.."), Err(Errno::ENOTDIR));
    assert_eq!(text(&world, "/a/none/.."), Err(Errno::ENOENT));
    assert_eq!(text(&world, &"x".repeat(256)), Err(Errno::ENAMETOOLONG));
    assert_eq!(text(&world, &"a/".repeat(2048)), Err(Errno::ENAMETOOLONG));
}

/// Links are followed up to 40 deep; the last component only if requested.
#[test]
fn links_are_followed_up_to_the_limit() {
    let world = World::new();
    world.write("/file", "x");
    let walk = world.walk();
    names::symlink(&walk, b"file", b"/l1").unwrap();
    for n in 2..=41 {
        names::symlink(&walk, format!("l{}", n - 1).as_bytes(), format!("/l{n}").as_bytes()).unwrap();
    }
    assert_eq!(text(&world, "/l40").as_deref(), Ok("/file"));
    assert_eq!(text(&world, "/l41"), Err(Errno::ELOOP));
    names::symlink(&walk, b"loop", b"/loop").unwrap();
    assert_eq!(text(&world, "/loop"), Err(Errno::ELOOP));
    assert!(walk.find(b"/loop", Final::Stop).is_ok());
    world.make_dir("/d");
    names::symlink(&walk, b"/d/", b"/to-d").unwrap();
    assert_eq!(text(&world, "/to-d/..").as_deref(), Ok("/"));
    assert_eq!(walk.find(b"/to-d/", Final::Stop).unwrap().display(&world.root).unwrap(), b"/d");
}

/// open with O_CREAT makes the target of a dangling link, but not with O_EXCL or O_NOFOLLOW.
#[test]
fn creating_through_a_dangling_link() {
    let world = World::new();
    world.make_dir("/d");
    names::symlink(&world.walk(), b"d/new", b"/link").unwrap();
    let create = OpenFlags::CREAT | OpenFlags::WRONLY;
    assert_eq!(world.open("/link", create | OpenFlags::EXCL).err(), Some(Errno::EEXIST));
    assert_eq!(world.open("/link", create | OpenFlags::NOFOLLOW).err(), Some(Errno::ELOOP));
    assert!(world.open("/link", create).is_ok());
    assert_eq!(text(&world, "/d/new").as_deref(), Ok("/d/new"));
    assert_eq!(world.open("/d/", create).err(), Some(Errno::EISDIR));
    assert_eq!(world.open("/d/x/", create).err(), Some(Errno::EISDIR));
    assert_eq!(world.open("/d", OpenFlags::WRONLY).err(), Some(Errno::EISDIR));
    assert_eq!(world.open("/d/new", OpenFlags::DIRECTORY).err(), Some(Errno::ENOTDIR));
}

/// A mount covers its directory until it is unmounted, and ".." leads out of it.
#[test]
fn mounts_cover_and_uncover() {
    let world = World::new();
    world.make_dir("/mnt");
    world.write("/mnt/below", "");
    let other = World::new();
    let fs: Arc<dyn FileSystem> = other.fs.clone();
    let mount = Mount::new(fs, b"other", MountFlags::empty()).unwrap();
    let place = world.walk().find(b"/mnt", Final::Follow).unwrap();
    place.mount.clone().attach(&mount, place).unwrap();
    assert_eq!(text(&world, "/mnt/below"), Err(Errno::ENOENT));
    world.make_dir("/mnt/top");
    assert_eq!(text(&world, "/mnt/top").as_deref(), Ok("/mnt/top"));
    assert_eq!(text(&world, "/mnt/top/../..").as_deref(), Ok("/"));
    assert_eq!(names::remove_dir(&world.walk(), b"/mnt"), Err(Errno::EBUSY));
    mount.set_flags(MountFlags::RDONLY).unwrap();
    assert_eq!(names::make_dir(&world.walk(), b"/mnt/x", 0o755), Err(Errno::EROFS));
    let below = mount.mountpoint().unwrap();
    below.mount.detach(&mount).unwrap();
    assert_eq!(text(&world, "/mnt/below").as_deref(), Ok("/mnt/below"));
}

/// Resolving a path needs search permission, and changing a directory needs write permission. The
/// sticky bit restricts removal.
#[test]
fn permissions_bind_ordinary_users() {
    let world = World::new();
    world.make_dir("/closed");
    world.write("/closed/f", "x");
    let root = world.walk();
    let closed = root.find(b"/closed", Final::Follow).unwrap();
    let user = world.as_user();
    assert!(user.find(b"/closed/f", Final::Follow).is_ok());
    assert_eq!(names::make_dir(&user, b"/closed/d", 0o755), Err(Errno::EACCES));
    assert_eq!(names::unlink(&user, b"/closed/f"), Err(Errno::EACCES));
    metadata::change_mode(&root, &closed, 0o1777).unwrap();
    assert_eq!(names::unlink(&user, b"/closed/f"), Err(Errno::EPERM));
    names::make_dir(&user, b"/closed/mine", 0o700).unwrap();
    metadata::change_mode(&root, &closed, 0o700).unwrap();
    assert_eq!(user.find(b"/closed/f", Final::Follow).err(), Some(Errno::EACCES));
    assert_eq!(metadata::change_mode(&user, &closed, 0o777), Err(Errno::EPERM));
    let file = root.find(b"/closed/f", Final::Follow).unwrap();
    assert_eq!(metadata::change_owner(&user, &file, Some(1000), None), Err(Errno::EPERM));
    metadata::change_owner(&root, &file, Some(1000), None).unwrap();
    assert_eq!(metadata::change_owner(&user, &file, None, Some(7)), Ok(()));
    assert_eq!(metadata::change_owner(&user, &file, None, Some(8)), Err(Errno::EPERM));
}

/// openat2's BENEATH and IN_ROOT keep a walk below its start.
#[test]
fn scoped_walks_stay_below_their_start() {
    let world = World::new();
    world.make_dir("/jail");
    world.make_dir("/jail/in");
    world.write("/secret", "");
    names::symlink(&world.walk(), b"/secret", b"/jail/out").unwrap();
    names::symlink(&world.walk(), b"../../secret", b"/jail/in/up").unwrap();
    let start = world.walk().find(b"/jail", Final::Follow).unwrap();
    let scoped = |resolve| PathWalk { root: &world.root, start: &start, caller: &Caller::ROOT, resolve };
    for path in ["/secret", "out", "in/up", "../secret", "in/../../secret"] {
        let beneath = scoped(ResolveFlags::BENEATH).find(path.as_bytes(), Final::Follow);
        assert_eq!(beneath.err(), Some(Errno::EXDEV), "{path}");
        let rooted = scoped(ResolveFlags::IN_ROOT).find(path.as_bytes(), Final::Follow);
        assert_eq!(rooted.err(), Some(Errno::ENOENT), "{path}");
    }
    assert!(scoped(ResolveFlags::BENEATH).find(b"in/../in", Final::Follow).is_ok());
    assert_eq!(scoped(ResolveFlags::NO_SYMLINKS).find(b"out", Final::Follow).err(), Some(Errno::ELOOP));
}

/// A path shows renames of directories and files, and removal.
#[test]
fn displayed_paths_follow_renames() {
    let world = World::new();
    world.make_dir("/a");
    world.make_dir("/a/b");
    world.write("/a/b/f", "x");
    let file = world.open("/a/b/f", OpenFlags::empty()).unwrap();
    let show = || String::from_utf8(file.path().unwrap().display(&world.root).unwrap().to_vec()).unwrap();
    let walk = world.walk();
    names::rename(&walk, b"/a", &walk, b"/c", Default::default()).unwrap();
    assert_eq!(show(), "/c/b/f");
    names::rename(&walk, b"/c/b/f", &walk, b"/c/b/g", Default::default()).unwrap();
    assert_eq!(show(), "/c/b/g");
    names::unlink(&walk, b"/c/b/g").unwrap();
    assert_eq!(show(), "/c/b/f (deleted)");
    assert_eq!(file.node().metadata().links, 0);
}
