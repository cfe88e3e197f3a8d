//! Host tests of saving an upper tree.

use std::string::String;
use std::vec::Vec;

use freehold_collections::inject::each_fails;
use proptest::prelude::*;

use super::{Seen, Step, Trees, all_of, append, empty_upper, place, run, some_lower, step};
use crate::Errno;
use crate::fs::bytes::SliceSource;
use crate::fs::flags::OpenFlags;
use crate::fs::names;
use crate::fs::node::{ModeChange, NodeKind, SetMetadata, XattrSet};
use crate::fs::overlay::keep;
use crate::fs::tests::World;
use crate::fs::walk::Final;

/// Returns the output of `keep`: the lines, and the files.
fn kept(upper: &World, places: &[&str]) -> (Vec<String>, Seen) {
    let into = World::new();
    let list = |place: &&str| freehold_collections::Vec::try_from_slice(place.as_bytes()).unwrap();
    let places: Vec<_> = places.iter().map(list).collect();
    keep(&place(upper, b"/upper").node, &into.root.node, &places).unwrap();
    let text = String::from_utf8(into.read("/changes").unwrap().to_vec()).unwrap();
    let files = World { root: place(&into, b"/files"), ..into };
    (text.lines().map(String::from).collect(), all_of(&files))
}

/// Fills a new upper tree with the saved files, as the image of a later run does.
fn begun_again(lines: &[String], files: &Seen) -> World {
    let upper = empty_upper();
    let root = World { root: place(&upper, b"/upper"), fs: upper.fs.clone() };
    let node = |path: &str| root.walk().find(path.as_bytes(), Final::Stop).unwrap().node;
    for line in &lines[1..lines.len() - 1] {
        let fields: Vec<&str> = line.split('\t').collect();
        let path = fields[fields.len() - 1];
        match fields[0] {
            "directory" if path == "/" => {}
            "directory" => root.make_dir(path),
            "file" => {
                root.write(path, "");
                root.open(path, OpenFlags::WRONLY)
                    .unwrap()
                    .write(&mut SliceSource::new(&files[path].2))
                    .unwrap();
            }
            "symlink" => {
                names::symlink(&root.walk(), &files[path].2, path.as_bytes()).unwrap();
            }
            "name" => names::link(
                &root.walk().find(path.as_bytes(), Final::Stop).unwrap(),
                &root.walk(),
                fields[1].as_bytes(),
            )
            .unwrap(),
            "removed" => {
                names::make_node(&root.walk(), path.as_bytes(), NodeKind::CharDevice, 0, 0).unwrap();
            }
            "attribute" => {
                node(path).set_xattr(fields[1].as_bytes(), fields[2].as_bytes(), XattrSet::Any).unwrap();
            }
            other => panic!("{other}"),
        }
        if matches!(fields[0], "directory" | "file" | "symlink") {
            let mode = u32::from_str_radix(fields[1], 8).unwrap();
            node(path)
                .set_metadata(&SetMetadata { mode: Some(ModeChange::To(mode)), ..SetMetadata::default() })
                .unwrap();
        }
    }
    upper
}

proptest! {
    /// After any changes: the saved tree, over the same lower tree, has the same content.
    #[test]
    fn what_was_kept_is_the_same_in_a_later_run(
        first in proptest::collection::vec(step(), 0..30),
        then in proptest::collection::vec(step(), 1..40),
    ) {
        let lower = World::new();
        for step in first.iter().filter(|step| !matches!(step, Step::Link(..))) {
            let _ = run(&lower, step);
        }
        let mut trees = Trees::over(lower);
        for step in &then {
            let _ = run(&trees.merged, step);
        }
        // Each further name of a symbolic link becomes a separate link.
        let alone = |mut all: Seen| {
            all.values_mut().filter(|(kind, ..)| *kind == NodeKind::Symlink).for_each(|link| link.4 = 1);
            all
        };
        let before = alone(all_of(&trees.merged));
        let (lines, files) = kept(&trees.upper, &[]);
        let count = lines.len() - 2;
        prop_assert_eq!(&lines[0], "freehold changes 1");
        prop_assert_eq!(lines.last().unwrap(), &std::format!("end\t{count}"));
        trees.upper = begun_again(&lines, &files);
        trees.remount();
        prop_assert_eq!(alone(all_of(&trees.merged)), before);
    }
}

#[test]
fn what_is_kept_is_safe_and_complete() {
    let trees = Trees::over(some_lower());
    let walk = trees.merged.walk();
    let node = |path: &str| walk.find(path.as_bytes(), Final::Stop).unwrap().node;
    let owned = |uid, gid, mode| SetMetadata {
        uid: Some(uid),
        gid: Some(gid),
        mode: Some(ModeChange::To(mode)),
        ..SetMetadata::default()
    };
    trees.merged.write("/d/sly\n\t\\'", "x");
    trees.merged.write("/program", "y");
    node("/program").set_metadata(&owned(0, 7, 0o4711)).unwrap();
    node("/program").set_xattr(b"security.capability", b"\x01\0\xff", XattrSet::Any).unwrap();
    trees.merged.make_dir("/closed");
    node("/closed").set_metadata(&owned(1000, 1000, 0o1000)).unwrap();
    names::make_node(&walk, b"/null", NodeKind::CharDevice, 0o666, 0x103).unwrap();
    names::make_node(&walk, b"/pipe", NodeKind::Fifo, 0o600, 0).unwrap();
    names::make_node(&walk, b"/socket", NodeKind::Socket, 0o600, 0).unwrap();
    names::unlink(&walk, b"/d/one").unwrap();
    for dir in ["/mnt", "/full"] {
        trees.merged.make_dir(dir);
    }
    trees.merged.write("/full/file", "");
    let (mut lines, files) = kept(&trees.upper, &["/mnt", "/full"]);
    lines.sort();
    let expected = [
        "attribute\tsecurity.capability\t\\x01\\x00\\xff\t/program",
        "attribute\ttrusted.overlay.opaque\ty\t/closed",
        "attribute\ttrusted.overlay.opaque\ty\t/full",
        "char\t0666\t0:0\t1:3\t/null",
        "directory\t0755\t0:0\t/",
        "directory\t0755\t0:0\t/d",
        "directory\t0755\t0:0\t/full",
        "directory\t1000\t1000:1000\t/closed",
        "end\t13",
        "fifo\t0600\t0:0\t/pipe",
        "file\t0644\t0:0\t/d/sly\\n\\t\\\\\\'",
        "file\t0644\t0:0\t/full/file",
        "file\t4711\t0:7\t/program",
        "freehold changes 1",
        "removed\t/d/one",
    ];
    assert_eq!(lines, expected);
    let modes: Vec<_> = files.iter().map(|(path, (kind, mode, ..))| (path.as_str(), *kind, *mode)).collect();
    let expected = [
        ("/closed", NodeKind::Directory, 0o700),
        ("/d", NodeKind::Directory, 0o755),
        ("/d/sly\n\t\\'", NodeKind::Regular, 0o644),
        ("/full", NodeKind::Directory, 0o755),
        ("/full/file", NodeKind::Regular, 0o644),
        ("/program", NodeKind::Regular, 0o711),
    ];
    assert_eq!(modes, expected);
}

#[test]
fn what_finds_no_room_is_named_and_has_no_last_line() {
    let trees = Trees::over(some_lower());
    trees.merged.write("/d/large", &"x".repeat(100 << 10));
    let into = World::with_capacity(64 << 10);
    let failed = keep(&place(&trees.upper, b"/upper").node, &into.root.node, &[]).unwrap_err();
    assert_eq!((&failed.path[..], failed.error), (&b"/d/large"[..], Errno::ENOSPC));
    assert_eq!(std::format!("{failed}"), "/d/large: ENOSPC");
    assert!(!into.read("/changes").unwrap().windows(4).any(|part| part == b"end\t"));
}

#[test]
fn each_want_of_memory_is_an_error() {
    let trees = Trees::over(some_lower());
    append(&trees.merged, "/d/e/deep", "er").unwrap();
    names::unlink(&trees.merged.walk(), b"/file").unwrap();
    let upper = place(&trees.upper, b"/upper").node;
    // Made in advance, before any allocation fails.
    let mut worlds: Vec<World> = (0..500).map(|_| World::new()).collect();
    let mut last = None;
    let (kept, failed) = each_fails(|| {
        let into = last.insert(worlds.pop().expect("there are fewer allocations"));
        keep(&upper, &into.root.node, &[])
    });
    assert!(kept.is_ok() && failed > 10, "{failed}");
    let lines = last.unwrap().read("/changes").unwrap();
    assert!(lines.windows(4).any(|part| part == b"end\t"));
}
