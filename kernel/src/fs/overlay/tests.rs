//! Host tests of overlays, on trees in plain memory.

mod keep;

use std::collections::BTreeMap;
use std::string::String;
use std::vec;
use std::vec::Vec;

use freehold_collections::{TryCollect, inject::each_fails};
use proptest::prelude::*;

use super::{Layers, OverlayFs, UpperTree};
use crate::fs::bytes::SliceSource;
use crate::fs::flags::{OpenFlags, RenameFlags};
use crate::fs::mount::{Mount, MountFlags};
use crate::fs::node::{ModeChange, NodeKind, SetMetadata, XattrSet};
use crate::fs::notify::Events;
use crate::fs::notify::tests::Observer;
use crate::fs::tests::World;
use crate::fs::walk::Final;
use crate::fs::{OpenFile, Path, names};
use crate::{Errno, Result};

const NO_FLAGS: RenameFlags = RenameFlags::empty();

/// Lower trees, the uppermost first; the file system of the upper tree; and the merged tree.
struct Trees {
    lower: Vec<World>,
    upper: World,
    merged: World,
}

fn place(world: &World, path: &[u8]) -> Path {
    world.walk().find(path, Final::Follow).unwrap()
}

/// Merges the trees with these roots.
fn merged(lower: impl IntoIterator<Item = Path>, upper: Option<&World>) -> World {
    let lower = lower.into_iter().try_collect_vec().unwrap();
    let of = |upper| UpperTree { root: place(upper, b"/upper"), work: place(upper, b"/work") };
    let fs = OverlayFs::new(&Layers { lower, upper: upper.map(of) }, b"").unwrap();
    let mount = Mount::new(fs, b"overlay", MountFlags::empty()).unwrap();
    World { fs: World::new().fs, root: Path::root_of(mount) }
}

/// Turns the root of an upper tree into the root of a tree of its own, for use as a lower tree.
fn as_lower(world: World) -> World {
    World { root: place(&world, b"/upper"), ..world }
}

/// An upper tree in which nothing was changed.
fn empty_upper() -> World {
    let upper = World::new();
    upper.make_dir("/upper");
    upper.make_dir("/work");
    upper
}

impl Trees {
    fn over(lower: World) -> Self {
        let (lower, upper) = (vec![lower], empty_upper());
        let merged = merged(lower.iter().map(|tree| tree.root.clone()), Some(&upper));
        Self { lower, upper, merged }
    }

    /// Mounts the same upper tree again, without any cached node.
    fn remount(&mut self) {
        self.merged = merged(self.lower.iter().map(|tree| tree.root.clone()), Some(&self.upper));
    }

    /// Makes the upper tree the uppermost lower tree, below a new upper tree.
    fn stack(&mut self) {
        self.lower.insert(0, as_lower(std::mem::replace(&mut self.upper, empty_upper())));
        self.remount();
    }
}

/// The inode numbers of both trees begin at 1.
#[test]
fn inodes_of_all_trees_are_told_apart_on_one_device() {
    let mut trees = Trees::over(some_lower());
    trees.merged.write("/upper", "");
    trees.merged.make_dir("/d/new");
    trees.stack();
    trees.merged.write("/top", "");
    let mut numbers = BTreeMap::new();
    let paths = ["/", "/d", "/d/e", "/d/e/deep", "/d/one", "/d/new", "/file", "/link", "/upper", "/top"];
    for path in paths {
        let told = trees.merged.walk().find(path.as_bytes(), Final::Stop).unwrap().node.metadata();
        assert_eq!(told.device, trees.merged.root.node.metadata().device, "{path}");
        assert_eq!(numbers.insert(told.inode, path), None, "{path}");
    }
    let of = ["e", "one", "new"].map(|name| (name, inode(&trees.merged, &std::format!("/d/{name}"))));
    let mut listed = 0;
    let file = trees.merged.open("/d", OpenFlags::DIRECTORY).unwrap();
    file.read_dir(&mut |entry| {
        listed += usize::from(of.contains(&(core::str::from_utf8(entry.name).unwrap(), entry.inode)));
        true
    })
    .unwrap();
    assert_eq!(listed, 3, "they are listed with their numbers");
}

#[test]
fn an_opaque_directory_hides_those_below_it_in_a_lower_tree_too() {
    let mut trees = Trees::over(some_lower());
    for step in ["/d/e/deep", "/d/one", "/d/two"] {
        run(&trees.merged, &Step::Remove(step.into())).unwrap();
    }
    for dir in ["/d/e", "/d"] {
        run(&trees.merged, &Step::RemoveDir(dir.into())).unwrap();
    }
    trees.merged.make_dir("/d");
    trees.merged.write("/d/new", "new");
    trees.stack();
    assert_eq!(list(&trees.merged, "/d"), ["new"]);
    assert_eq!(trees.merged.read("/d/one"), Err(Errno::ENOENT));
    append(&trees.merged, "/d/new", "er").unwrap();
    assert_eq!(list(&trees.merged, "/d"), ["new"]);
    assert_eq!(trees.merged.read("/d/new").unwrap(), b"newer");
}

/// Makes directories d and d/e with files in them, a file, and a symbolic link.
fn some_lower() -> World {
    let lower = World::new();
    lower.make_dir("/d");
    lower.make_dir("/d/e");
    lower.write("/d/e/deep", "deep");
    lower.write("/d/one", "one");
    lower.write("/d/two", "two");
    lower.write("/file", "the lower file");
    lower.make_dir("/empty");
    names::symlink(&lower.walk(), b"file", b"/link").unwrap();
    lower
}

fn list(world: &World, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    world
        .open(path, OpenFlags::DIRECTORY)
        .unwrap()
        .read_dir(&mut |entry| {
            all.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
    all.retain(|name| name != "." && name != "..");
    all.sort();
    all
}

fn inode(world: &World, path: &str) -> u64 {
    world.walk().find(path.as_bytes(), Final::Stop).unwrap().node.metadata().inode
}

fn append(world: &World, path: &str, text: &str) -> Result<()> {
    let file = world.open(path, OpenFlags::WRONLY | OpenFlags::APPEND)?;
    file.write(&mut SliceSource::new(text.as_bytes())).map(drop)
}

fn rename(world: &World, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
    let walk = world.walk();
    names::rename(&walk, old.as_bytes(), &walk, new.as_bytes(), flags)
}

/// All that is visible in a tree: each path with kind, mode, bytes or target, an attribute, and the
/// links of files.
type Seen = BTreeMap<String, (NodeKind, u32, Vec<u8>, Option<Vec<u8>>, u32)>;

fn seen(world: &World, dir: &str, all: &mut Seen) {
    for name in list(world, if dir.is_empty() { "/" } else { dir }) {
        let path = std::format!("{dir}/{name}");
        let place = world.walk().find(path.as_bytes(), Final::Stop).unwrap();
        let (node, told) = (&place.node, place.node.metadata());
        assert_eq!(place.display(&world.root).unwrap(), path.as_bytes());
        let text = match told.kind {
            NodeKind::Regular => world.read(&path).unwrap(),
            NodeKind::Symlink => node.read_link().unwrap().to_vec(),
            _ => vec![],
        };
        let attribute = node.xattr(b"user.x").ok().map(|value| value.to_vec());
        let links = if told.kind == NodeKind::Directory { 0 } else { told.links };
        if told.kind == NodeKind::Directory {
            seen(world, &path, all);
        }
        let before = all.insert(path.clone(), (told.kind, told.mode, text, attribute, links));
        assert!(before.is_none(), "{path} is listed once");
    }
}

fn all_of(world: &World) -> Seen {
    let mut all = Seen::new();
    seen(world, "", &mut all);
    all
}

#[test]
fn what_is_changed_goes_to_the_upper_tree_alone() {
    let trees = Trees::over(some_lower());
    let before = all_of(&trees.lower[0]);
    let number = inode(&trees.merged, "/d/e/deep");
    append(&trees.merged, "/d/e/deep", " and more").unwrap();
    assert_eq!(trees.merged.read("/d/e/deep").unwrap(), b"deep and more");
    assert_eq!(trees.upper.read("/upper/d/e/deep").unwrap(), b"deep and more");
    assert_eq!(all_of(&trees.lower[0]), before);
    assert_eq!(inode(&trees.merged, "/d/e/deep"), number, "its number stays");
    assert_eq!(list(&trees.merged, "/d"), ["e", "one", "two"]);
    assert_eq!(list(&trees.upper, "/upper/d"), ["e"]);
    assert_eq!(list(&trees.upper, "/work/work"), [""; 0]);
}

#[test]
fn numbers_stay_over_a_copy_up_and_another_mount() {
    let mut trees = Trees::over(some_lower());
    let paths = ["/d", "/d/e", "/d/e/deep", "/file", "/link"];
    let numbers = paths.map(|path| inode(&trees.merged, path));
    append(&trees.merged, "/d/e/deep", "x").unwrap();
    append(&trees.merged, "/file", "x").unwrap();
    assert_eq!(paths.map(|path| inode(&trees.merged, path)), numbers);
    trees.remount();
    assert_eq!(paths.map(|path| inode(&trees.merged, path)), numbers);
    let mut listed = vec![];
    let dir = trees.merged.open("/d/e", OpenFlags::DIRECTORY).unwrap();
    dir.read_dir(&mut |entry| {
        listed.push((entry.name.to_vec(), entry.inode));
        true
    })
    .unwrap();
    assert_eq!(
        listed,
        [(b".".to_vec(), numbers[1]), (b"..".to_vec(), numbers[0]), (b"deep".to_vec(), numbers[2])]
    );
}

#[test]
fn removed_names_stay_removed() {
    let mut trees = Trees::over(some_lower());
    let walk = trees.merged.walk();
    names::unlink(&walk, b"/d/one").unwrap();
    assert_eq!(names::remove_dir(&walk, b"/d"), Err(Errno::ENOTEMPTY));
    for path in ["/d/two", "/d/e/deep"] {
        names::unlink(&walk, path.as_bytes()).unwrap();
    }
    names::remove_dir(&walk, b"/d/e").unwrap();
    names::remove_dir(&walk, b"/d").unwrap();
    assert_eq!(trees.merged.read("/d/one").err(), Some(Errno::ENOENT));
    trees.remount();
    assert_eq!(list(&trees.merged, "/"), ["empty", "file", "link"]);
    trees.merged.make_dir("/d");
    assert_eq!(list(&trees.merged, "/d"), [""; 0], "nothing comes back");
    trees.remount();
    assert_eq!(list(&trees.merged, "/d"), [""; 0]);
    trees.merged.write("/d/one", "new");
    assert_eq!(trees.merged.read("/d/one").unwrap(), b"new");
    assert_eq!(list(&trees.upper, "/work/work"), [""; 0]);
}

#[test]
fn a_directory_that_comes_from_below_is_not_renamed() {
    let trees = Trees::over(some_lower());
    assert_eq!(rename(&trees.merged, "/d", "/other", NO_FLAGS), Err(Errno::EXDEV));
    assert_eq!(rename(&trees.merged, "/d", "/d/e/below", NO_FLAGS), Err(Errno::EINVAL));
    trees.merged.make_dir("/new");
    assert_eq!(rename(&trees.merged, "/new", "/d", RenameFlags::EXCHANGE), Err(Errno::EXDEV));
    assert_eq!(rename(&trees.merged, "/new", "/d", NO_FLAGS), Err(Errno::ENOTEMPTY));
    rename(&trees.merged, "/new", "/empty", NO_FLAGS).unwrap();
    assert_eq!(rename(&trees.merged, "/empty", "/again", RenameFlags::WHITEOUT), Err(Errno::EINVAL));
    rename(&trees.merged, "/empty", "/again", NO_FLAGS).unwrap();
    assert_eq!(list(&trees.merged, "/"), ["again", "d", "file", "link"]);
}

#[test]
fn who_opened_a_file_for_reading_reads_what_is_written_later() {
    let trees = Trees::over(some_lower());
    let reader = trees.merged.open("/file", OpenFlags::empty()).unwrap();
    let pages = reader.file().content().unwrap();
    append(&trees.merged, "/file", "!").unwrap();
    let mut text = [0; 32];
    let count = reader.read_kernel(0, &mut text).unwrap();
    assert_eq!(&text[..count], b"the lower file!");
    assert_eq!(pages.size(), 14, "what was mapped is the lower tree's");
}

#[test]
fn a_file_that_is_emptied_is_not_copied() {
    let trees = Trees::over(some_lower());
    let before = trees.upper.fs.clone();
    let free = |fs: &dyn crate::fs::FileSystem| fs.stats().free_blocks;
    trees.lower[0].write("/file", &"x".repeat(1 << 20));
    let room = free(&*before);
    trees.merged.open("/file", OpenFlags::WRONLY | OpenFlags::TRUNC).unwrap();
    assert_eq!(free(&*before), room);
    assert_eq!(trees.merged.read("/file").unwrap(), b"");
    assert_eq!(trees.lower[0].read("/file").unwrap().len(), 1 << 20);
}

#[test]
fn a_file_without_a_name_is_copied_up_without_one() {
    let trees = Trees::over(some_lower());
    let file = trees.merged.open("/file", OpenFlags::empty()).unwrap();
    names::unlink(&trees.merged.walk(), b"/file").unwrap();
    file.node()
        .set_metadata(&SetMetadata { mode: Some(ModeChange::To(0o600)), ..SetMetadata::default() })
        .unwrap();
    assert_eq!((file.node().metadata().mode, file.node().metadata().links), (0o600, 0));
    assert_eq!(list(&trees.merged, "/"), ["d", "empty", "link"]);
    let mut text = [0; 14];
    assert_eq!(file.read_kernel(0, &mut text), Ok(14));
}

#[test]
fn holes_and_attributes_are_copied_too() {
    let trees = Trees::over(some_lower());
    let place = |world: &World| world.walk().find(b"/file", Final::Stop).unwrap().node;
    let lower = place(&trees.lower[0]);
    lower
        .set_metadata(&SetMetadata {
            size: Some(64 << 20),
            mode: Some(ModeChange::To(0o4711)),
            uid: Some(7),
            ..SetMetadata::default()
        })
        .unwrap();
    lower.set_xattr(b"user.x", b"value", XattrSet::Any).unwrap();
    let (room, told) = (crate::fs::FileSystem::stats(&*trees.upper.fs).free_blocks, lower.metadata());
    place(&trees.merged).set_xattr(b"user.y", b"", XattrSet::Create).unwrap();
    let copy = trees.upper.walk().find(b"/upper/file", Final::Stop).unwrap().node.metadata();
    assert_eq!((copy.size, copy.mode, copy.uid, copy.gid), (told.size, told.mode, told.uid, told.gid));
    assert_eq!((copy.modified, copy.accessed), (told.modified, told.accessed));
    assert!(room - crate::fs::FileSystem::stats(&*trees.upper.fs).free_blocks < 64, "holes stay holes");
    assert_eq!(place(&trees.merged).xattr(b"user.x").unwrap(), b"value"[..]);
    assert_eq!(place(&trees.merged).list_xattrs().unwrap(), b"user.x\0user.y\0"[..]);
    assert_eq!(place(&trees.merged).xattr(super::ORIGIN).err(), Some(Errno::EOPNOTSUPP));
}

#[test]
fn a_file_with_two_names_below_is_copied_for_one() {
    let lower = some_lower();
    let file = lower.walk().find(b"/file", Final::Stop).unwrap();
    names::link(&file, &lower.walk(), b"/hard").unwrap();
    let trees = Trees::over(lower);
    append(&trees.merged, "/hard", "!").unwrap();
    assert_eq!(trees.merged.read("/hard").unwrap(), b"the lower file!");
    assert_eq!(trees.merged.read("/file").unwrap(), b"the lower file");
}

#[test]
fn a_deep_tree_is_copied_up_and_let_go_of() {
    let lower = World::new();
    let mut dir = lower.root.node.clone();
    let new = crate::fs::node::NewNode { kind: NodeKind::Directory, mode: 0o755, uid: 0, gid: 0, rdev: 0 };
    for _ in 0..5_000 {
        dir = dir.create(b"d", &new).unwrap();
    }
    let trees = Trees::over(lower);
    let mut dir = trees.merged.root.node.clone();
    for _ in 0..5_000 {
        dir = dir.lookup(b"d").unwrap();
    }
    dir.create(b"deepest", &crate::fs::node::NewNode { kind: NodeKind::Regular, ..new }).unwrap();
    drop(dir);
    drop(trees);
}

#[derive(Clone, Debug)]
enum Step {
    MakeDir(String),
    Write(String),
    Append(String),
    Cut(String),
    Mode(String),
    Attribute(String),
    Symlink(String),
    Link(String, String),
    Remove(String),
    RemoveDir(String),
    Rename(String, String),
    Exchange(String, String),
    Remount,
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
        .prop_map(|names| names.iter().map(|name| std::format!("/{name}")).collect())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => path().prop_map(Step::MakeDir),
        3 => path().prop_map(Step::Write),
        2 => path().prop_map(Step::Append),
        1 => path().prop_map(Step::Cut),
        1 => path().prop_map(Step::Mode),
        1 => path().prop_map(Step::Attribute),
        1 => path().prop_map(Step::Symlink),
        1 => (path(), path()).prop_map(|(a, b)| Step::Link(a, b)),
        3 => path().prop_map(Step::Remove),
        3 => path().prop_map(Step::RemoveDir),
        4 => (path(), path()).prop_map(|(a, b)| Step::Rename(a, b)),
        2 => (path(), path()).prop_map(|(a, b)| Step::Exchange(a, b)),
        1 => Just(Step::Remount),
    ]
}

fn run(world: &World, step: &Step) -> Result<()> {
    let walk = world.walk();
    let node = |path: &str| walk.find(path.as_bytes(), Final::Stop);
    let change = |path: &str, change: SetMetadata| node(path)?.node.set_metadata(&change);
    let none = SetMetadata::default();
    match step {
        Step::MakeDir(p) => names::make_dir(&walk, p.as_bytes(), 0o755),
        Step::Write(p) => {
            let flags = OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC | OpenFlags::NOFOLLOW;
            names::open(&walk, p.as_bytes(), flags, 0o644)
                .and_then(|file: std::sync::Arc<OpenFile>| file.write(&mut SliceSource::new(p.as_bytes())))
                .map(drop)
        }
        Step::Append(p) => match node(p)?.node.kind() {
            NodeKind::Symlink => Err(Errno::ELOOP),
            _ => append(world, p, p),
        },
        Step::Cut(p) => change(p, SetMetadata { size: Some(1), ..none }),
        Step::Mode(p) => change(p, SetMetadata { mode: Some(ModeChange::To(0o750)), ..none }),
        Step::Attribute(p) => node(p)?.node.set_xattr(b"user.x", p.as_bytes(), XattrSet::Any),
        Step::Symlink(p) => names::symlink(&walk, b"nowhere", p.as_bytes()),
        Step::Link(a, b) => names::link(&node(a)?, &walk, b.as_bytes()),
        Step::Remove(p) => names::unlink(&walk, p.as_bytes()),
        Step::RemoveDir(p) => names::remove_dir(&walk, p.as_bytes()),
        Step::Rename(a, b) => rename(world, a, b, NO_FLAGS),
        Step::Exchange(a, b) => rename(world, a, b, RenameFlags::EXCHANGE),
        Step::Remount => Ok(()),
    }
}

proptest! {
    /// Any sequence of changes has the same results, and the same resulting tree, as on a plain
    /// tree with the merged content. The lower trees do not change. One of them was an upper tree
    /// before.
    #[test]
    fn a_merged_tree_behaves_as_a_plain_one(
        first in proptest::collection::vec(step(), 0..30),
        second in proptest::collection::vec(step(), 0..30),
        then in proptest::collection::vec(step(), 1..40),
    ) {
        let (lower, plain) = (World::new(), World::new());
        // Each name of a file of a lower tree is copied up separately.
        let is_alone = |step: &&Step| !matches!(step, Step::Link(..));
        for step in first.iter().filter(is_alone) {
            prop_assert_eq!(run(&lower, step), run(&plain, step));
        }
        let mut trees = Trees::over(lower);
        let take = |trees: &mut Trees, step: &Step| {
            if matches!(step, Step::Remount) {
                trees.remount();
            }
            let result = run(&trees.merged, step);
            if result != Err(Errno::EXDEV) {
                prop_assert_eq!(result, run(&plain, step), "{:?}", step);
            }
            Ok(())
        };
        for step in second.iter().filter(is_alone) {
            take(&mut trees, step)?;
        }
        trees.stack();
        prop_assert_eq!(all_of(&trees.merged), all_of(&plain));
        let before: Vec<_> = trees.lower.iter().map(all_of).collect();
        for step in &then {
            take(&mut trees, step)?;
        }
        prop_assert_eq!(all_of(&trees.merged), all_of(&plain));
        trees.remount();
        prop_assert_eq!(all_of(&trees.merged), all_of(&plain));
        prop_assert_eq!(trees.lower.iter().map(all_of).collect::<Vec<_>>(), before);
        prop_assert_eq!(list(&trees.upper, "/work/work"), [""; 0]);
        // With all trees as lower trees, the same files are visible, and nothing can be changed.
        trees.stack();
        let read_only = merged(trees.lower.iter().map(|tree| tree.root.clone()), None);
        prop_assert_eq!(all_of(&read_only), all_of(&plain));
        for step in &then {
            prop_assert!(run(&read_only, step) != Ok(()) || matches!(step, Step::Remount), "{:?}", step);
        }
        prop_assert_eq!(all_of(&read_only), all_of(&plain));
    }
}

/// Memory is short at each allocation of a change in turn: nothing visible changes, and nothing is
/// left in the work directory.
#[test]
fn a_change_without_memory_has_changed_nothing() {
    let two = |a: &str, b: &str| (String::from(a), String::from(b));
    let steps = [
        Step::Append("/d/e/deep".into()),
        Step::Write("/file".into()),
        Step::Cut("/d/two".into()),
        Step::Mode("/d".into()),
        Step::Attribute("/link".into()),
        Step::Link("/d/one".into(), "/d/e/hard".into()),
        Step::Rename("/d/one".into(), "/d/e/moved".into()),
        Step::Exchange("/d/two".into(), "/d/e/deep".into()),
        Step::Rename("/d/e/moved".into(), "/file".into()),
        Step::RemoveDir("/empty".into()),
        Step::MakeDir("/empty".into()),
        Step::Rename("/empty".into(), "/d/one".into()),
        Step::Remove("/d/two".into()),
        Step::Symlink("/d/two".into()),
        Step::Remove("/d/e/deep".into()),
        Step::Remove("/d/e/hard".into()),
        Step::MakeDir("/x".into()),
        {
            let (a, b) = two("/x", "/d/e");
            Step::Rename(a, b)
        },
        Step::RemoveDir("/d/e".into()),
    ];
    let trees = Trees::over(some_lower());
    let mut failures = 0;
    for step in &steps {
        let before = all_of(&trees.merged);
        let (result, failed) = each_fails(|| {
            let result = run(&trees.merged, step);
            if result.is_err() {
                assert_eq!(all_of(&trees.merged), before, "{step:?}");
                assert_eq!(list(&trees.upper, "/work/work"), [""; 0], "{step:?}");
            }
            result
        });
        assert_eq!(result, Ok(()), "{step:?}");
        failures += failed;
    }
    assert!(failures > 100, "{failures}");
}

/// A watch of a file of the lower tree sees it copied up, changed, and removed.
#[test]
fn a_watch_survives_copy_up() {
    let trees = Trees::over(some_lower());
    let (merged, observer) = (&trees.merged, Observer::new());
    observer.watch(merged, "/d", Events::MODIFY | Events::DELETE);
    observer.watch(merged, "/d/one", Events::MODIFY | Events::DELETE_SELF);
    observer.watch(merged, "/file", Events::DELETE_SELF);
    append(merged, "/d/one", "more").unwrap();
    assert_eq!(observer.told(), "1 MODIFY one;2 MODIFY ;");
    append(merged, "/d/one", "more").unwrap();
    assert_eq!(observer.told(), "1 MODIFY one;2 MODIFY ;");
    names::unlink(&merged.walk(), b"/d/one").unwrap();
    assert_eq!(observer.told(), "2 DELETE_SELF ;2 IGNORED ;1 DELETE one;");
    names::unlink(&merged.walk(), b"/file").unwrap();
    assert_eq!(observer.told(), "3 DELETE_SELF ;3 IGNORED ;", "one that was never copied");
}
