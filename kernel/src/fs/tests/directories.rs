//! Directories of a tmpfs.

use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::String;
use std::vec::Vec;

use proptest::prelude::*;

use super::World;
use crate::Errno;
use crate::fs::flags::{OpenFlags, RenameFlags};
use crate::fs::names;
use crate::fs::open_file::OpenFile;
use crate::fs::walk::Final;

fn list(dir: &OpenFile, at_most: usize) -> Vec<String> {
    let mut found = Vec::new();
    dir.read_dir(&mut |entry| {
        if found.len() == at_most {
            return false;
        }
        found.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    found
}

fn links(world: &World, path: &str) -> u32 {
    world.walk().find(path.as_bytes(), Final::Stop).unwrap().node.metadata().links
}

/// A name that stays in a directory while the directory is listed in pieces is seen exactly once,
/// even if others are added and removed.
#[test]
fn listing_is_stable_under_change() {
    let world = World::new();
    world.make_dir("/d");
    for n in 0..100 {
        world.write(&format!("/d/stay{n}"), "");
        world.write(&format!("/d/go{n}"), "");
    }
    let dir = world.open("/d", OpenFlags::DIRECTORY).unwrap();
    let mut seen = Vec::new();
    let mut round = 0;
    loop {
        let part = list(&dir, 7);
        if part.is_empty() {
            break;
        }
        seen.extend(part);
        if round < 100 {
            names::unlink(&world.walk(), format!("/d/go{round}").as_bytes()).unwrap();
            world.write(&format!("/d/new{round}"), "");
            round += 1;
        }
    }
    let unique: BTreeSet<_> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "no name twice");
    for n in 0..100 {
        assert!(unique.contains(&format!("stay{n}")));
    }
    assert!(unique.contains(&String::from(".")) && unique.contains(&String::from("..")));
}

/// rename replaces, exchanges and refuses as described in renameat2(2), and never makes a directory
/// its own ancestor.
#[test]
fn rename_keeps_the_tree_a_tree() {
    let world = World::new();
    let walk = world.walk();
    let rename =
        |old: &str, new: &str, flags| names::rename(&walk, old.as_bytes(), &walk, new.as_bytes(), flags);
    let plain = RenameFlags::empty();
    for dir in ["/a", "/a/b", "/e", "/full"] {
        world.make_dir(dir);
    }
    world.write("/f", "f");
    world.write("/g", "g");
    world.write("/full/x", "");
    assert_eq!(rename("/a", "/a/b/c", plain), Err(Errno::EINVAL));
    assert_eq!(rename("/a", "/full", plain), Err(Errno::ENOTEMPTY));
    assert_eq!(rename("/a", "/f", plain), Err(Errno::ENOTDIR));
    assert_eq!(rename("/f", "/e", plain), Err(Errno::EISDIR));
    assert_eq!(rename("/f", "/g", RenameFlags::NOREPLACE), Err(Errno::EEXIST));
    assert_eq!(rename("/f", "/nothing", RenameFlags::EXCHANGE), Err(Errno::ENOENT));
    assert_eq!(rename("/a/b", "/a", RenameFlags::EXCHANGE), Err(Errno::EINVAL));
    assert_eq!(rename("/a/b", "/a", plain), Err(Errno::ENOTEMPTY));
    assert_eq!(rename("/none", "/g", plain), Err(Errno::ENOENT));
    rename("/f", "/a/b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(world.read("/a/b").unwrap(), b"f");
    assert_eq!((links(&world, "/a"), links(&world, "/f")), (2, 2));
    rename("/a/b", "/g", plain).unwrap();
    assert_eq!(world.read("/g").unwrap(), b"f");
    rename("/a", "/e", plain).unwrap();
    assert_eq!(links(&world, "/"), 2 + 3, "/e, /full and /f are left");
    let shown = walk.find(b"/e/..", Final::Follow).unwrap();
    assert!(shown.same_place(&world.root));
    names::link(&walk.find(b"/g", Final::Stop).unwrap(), &walk, b"/h").unwrap();
    rename("/g", "/h", plain).unwrap();
    assert_eq!(links(&world, "/g"), 2, "two names of one file: rename does nothing");
}

/// A removed directory takes no new names, and is empty for programs that have it open.
#[test]
fn removed_directories_take_no_names() {
    let world = World::new();
    world.make_dir("/d");
    let dir = world.open("/d", OpenFlags::DIRECTORY).unwrap();
    let node = dir.node();
    names::remove_dir(&world.walk(), b"/d").unwrap();
    let place = dir.path().unwrap().clone();
    let caller = crate::fs::Caller::ROOT;
    let inside = crate::fs::PathWalk::new(&world.root, &place, &caller);
    let create = OpenFlags::CREAT | OpenFlags::WRONLY;
    assert_eq!(names::open(&inside, b"x", create, 0o600).err(), Some(Errno::ENOENT));
    assert_eq!(names::make_dir(&inside, b"y", 0o700).err(), Some(Errno::ENOENT));
    assert_eq!(node.metadata().links, 0);
    assert_eq!(place.display(&world.root).unwrap(), b"/d (deleted)");
    assert!(inside.find(b"..", Final::Follow).unwrap().same_place(&world.root));
}

#[derive(Clone, Debug)]
enum Step {
    MakeDir(Vec<u8>),
    MakeFile(Vec<u8>),
    Remove(Vec<u8>),
    RemoveDir(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>),
    Exchange(Vec<u8>, Vec<u8>),
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just("/a"), Just("/b"), Just("/c")], 1..4)
        .prop_map(|parts| parts.concat().into_bytes())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => path().prop_map(Step::MakeDir),
        2 => path().prop_map(Step::MakeFile),
        1 => path().prop_map(Step::Remove),
        1 => path().prop_map(Step::RemoveDir),
        3 => (path(), path()).prop_map(|(a, b)| Step::Rename(a, b)),
        2 => (path(), path()).prop_map(|(a, b)| Step::Exchange(a, b)),
    ]
}

/// A naive file system: every path that exists, and whether it is a directory.
#[derive(Default)]
struct Naive(BTreeMap<Vec<u8>, bool>);

impl Naive {
    fn is_dir(&self, path: &[u8]) -> bool {
        path.is_empty() || self.0.get(path) == Some(&true)
    }
    fn parent_ok(&self, path: &[u8]) -> bool {
        let end = path.iter().rposition(|&b| b == b'/').unwrap();
        self.is_dir(&path[..end])
    }
    fn below(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let mut prefix = path.to_vec();
        prefix.push(b'/');
        self.0.keys().filter(|p| p.starts_with(&prefix)).cloned().collect()
    }
    fn is_empty(&self, path: &[u8]) -> bool {
        self.below(path).is_empty()
    }
    fn take_tree(&mut self, path: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let mut all = self.below(path);
        all.push(path.to_vec());
        all.into_iter().map(|p| (p[path.len()..].to_vec(), self.0.remove(&p).unwrap())).collect()
    }
    fn put_tree(&mut self, path: &[u8], tree: Vec<(Vec<u8>, bool)>) {
        for (rest, dir) in tree {
            self.0.insert([path, &rest].concat(), dir);
        }
    }
    fn apply(&mut self, step: &Step) -> bool {
        match step {
            Step::MakeDir(p) | Step::MakeFile(p) => {
                let ok = self.parent_ok(p) && !self.0.contains_key(p);
                if ok {
                    self.0.insert(p.clone(), matches!(step, Step::MakeDir(_)));
                }
                ok
            }
            Step::Remove(p) => {
                let ok = self.0.get(p) == Some(&false);
                if ok {
                    self.0.remove(p);
                }
                ok
            }
            Step::RemoveDir(p) => {
                let ok = self.0.get(p) == Some(&true) && self.is_empty(p);
                if ok {
                    self.0.remove(p);
                }
                ok
            }
            Step::Rename(a, b) => {
                let below = |outer: &[u8], inner: &[u8]| inner.starts_with(&[outer, b"/"].concat());
                let Some(&dir) = self.0.get(a) else { return false };
                if !self.parent_ok(b) || below(a, b) {
                    return false;
                }
                match self.0.get(b) {
                    _ if a == b => return true,
                    Some(&other) if other != dir || (other && !self.is_empty(b)) => return false,
                    _ => {}
                }
                self.0.remove(b);
                let tree = self.take_tree(a);
                self.put_tree(b, tree);
                true
            }
            Step::Exchange(a, b) => {
                let below = |outer: &[u8], inner: &[u8]| inner.starts_with(&[outer, b"/"].concat());
                if !self.0.contains_key(a) || !self.0.contains_key(b) || below(a, b) || below(b, a) {
                    return false;
                }
                if a != b {
                    let (ta, tb) = (self.take_tree(a), self.take_tree(b));
                    self.put_tree(b, ta);
                    self.put_tree(a, tb);
                }
                true
            }
        }
    }
}

fn run(world: &World, step: &Step) -> bool {
    let walk = world.walk();
    match step {
        Step::MakeDir(p) => names::make_dir(&walk, p, 0o755).is_ok(),
        Step::MakeFile(p) => {
            let flags = OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::WRONLY;
            names::open(&walk, p, flags, 0o644).is_ok()
        }
        Step::Remove(p) => names::unlink(&walk, p).is_ok(),
        Step::RemoveDir(p) => names::remove_dir(&walk, p).is_ok(),
        Step::Rename(a, b) => names::rename(&walk, a, &walk, b, RenameFlags::empty()).is_ok(),
        Step::Exchange(a, b) => names::rename(&walk, a, &walk, b, RenameFlags::EXCHANGE).is_ok(),
    }
}

/// Collects every path with its kind and, for directories, the number of links: 2, plus one for
/// each directory in it.
fn dump(world: &World, dir: &str, all: &mut BTreeMap<Vec<u8>, bool>) {
    let open = world.open(if dir.is_empty() { "/" } else { dir }, OpenFlags::DIRECTORY).unwrap();
    let mut subdirs = 0;
    for name in list(&open, usize::MAX) {
        if name == "." || name == ".." {
            continue;
        }
        let path = format!("{dir}/{name}");
        let place = world.walk().find(path.as_bytes(), Final::Stop).unwrap();
        let is_dir = place.node.kind() == crate::fs::NodeKind::Directory;
        assert_eq!(place.display(&world.root).unwrap(), path.as_bytes());
        all.insert(path.clone().into_bytes(), is_dir);
        if is_dir {
            subdirs += 1;
            dump(world, &path, all);
        }
    }
    assert_eq!(open.node().metadata().links, 2 + subdirs);
}

proptest! {
    /// After any sequence of changes the tree equals that of a naive model, with right link counts
    /// and paths.
    #[test]
    fn the_tree_is_what_a_naive_model_says(steps in proptest::collection::vec(step(), 1..60)) {
        let world = World::new();
        let mut naive = Naive::default();
        for step in &steps {
            let expected = naive.apply(step);
            prop_assert_eq!(run(&world, step), expected, "{:?}", step);
        }
        let mut all = BTreeMap::new();
        dump(&world, "", &mut all);
        prop_assert_eq!(all, naive.0);
    }
}
