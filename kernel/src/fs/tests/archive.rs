//! The initramfs parser on valid and hostile archives.

use std::format;
use std::vec::Vec;

use proptest::prelude::*;

use super::World;
use crate::Errno;
use crate::fs::initramfs::{Error, Members, unpack};
use crate::fs::node::NodeKind;
use crate::fs::walk::Final;

/// Makes a "newc" member.
fn member(name: &str, inode: u32, mode: u32, links: u32, data: &[u8]) -> Vec<u8> {
    let fields = [inode, mode, 0, 0, links, 1000, data.len() as u32, 8, 1, 5, 1, name.len() as u32 + 1, 0];
    let mut bytes = Vec::from(b"070701".as_slice());
    for field in fields {
        bytes.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut all = members.concat();
    all.extend(member("TRAILER!!!", 0, 0, 1, b""));
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

/// Files, directories, links, devices and hard links are unpacked as they were packed. Several
/// archives may follow one another.
#[test]
fn archives_unpack() {
    let world = World::new();
    let mut bytes = archive(&[
        member(".", 1, 0o040_755, 2, b""),
        member("./bin", 2, 0o040_700, 2, b""),
        member("bin/tool", 3, 0o100_755, 2, b""),
        member("bin/alias", 3, 0o100_755, 2, b"#!/bin/sh\n"),
        member("/lib/deep/er/file", 4, 0o100_644, 1, &[9; 5000]),
        member("link", 5, 0o120_777, 1, b"bin/tool"),
        member("tty", 6, 0o020_620, 1, b""),
    ]);
    bytes.extend(archive(&[member("link", 7, 0o100_600, 1, b"replaced")]));
    let summary = unpack(&bytes, &world.root).unwrap();
    assert_eq!((summary.members, summary.bytes), (8, 10 + 5000 + 8));
    assert_eq!(world.read("/bin/tool").unwrap(), b"#!/bin/sh\n");
    assert_eq!(world.read("/lib/deep/er/file").unwrap(), [9; 5000]);
    assert_eq!(world.read("/link").unwrap(), b"replaced");
    let find = |path: &str| world.walk().find(path.as_bytes(), Final::Stop).unwrap().node.metadata();
    assert_eq!(find("/bin/alias").inode, find("/bin/tool").inode);
    assert_eq!(find("/bin/alias").links, 2);
    assert_eq!(find("/bin").mode, 0o700);
    assert_eq!(find("/bin/tool").modified.seconds, 1000);
    let tty = find("/tty");
    assert_eq!((tty.kind, tty.rdev, tty.mode), (NodeKind::CharDevice, 0x501, 0o620));
}

/// A name cannot lead out of the root, be too long, or pass through a file.
#[test]
fn names_stay_inside() {
    for (name, error) in
        [("../escape", Errno::EINVAL), ("a/../../escape", Errno::EINVAL), ("f/x", Errno::ENOTDIR)]
    {
        let world = World::new();
        let bytes = archive(&[member("f", 1, 0o100_644, 1, b"x"), member(name, 2, 0o100_644, 1, b"y")]);
        let at = member("f", 1, 0o100_644, 1, b"x").len();
        assert_eq!(unpack(&bytes, &world.root), Err(Error::Make { at, error }), "{name}");
    }
    let world = World::new();
    let bytes =
        archive(&[member("out", 1, 0o120_777, 1, b"/../../.."), member("out/inside", 2, 0o100_644, 1, b"y")]);
    unpack(&bytes, &world.root).unwrap();
    assert_eq!(world.read("/inside").unwrap(), b"y", "links lead to this root at most");
}

/// A truncated or garbled archive is an error that has the offset.
#[test]
fn broken_archives_say_where() {
    let good = archive(&[member("f", 1, 0o100_644, 1, b"content")]);
    let first_end = member("f", 1, 0o100_644, 1, b"content").len();
    let members = |bytes: &[u8]| Members::new(bytes).collect::<Result<Vec<_>, _>>().map(|m| m.len());
    assert_eq!(members(&good), Ok(1));
    assert_eq!(members(&good[..first_end - 2]), Err(Error::Short { at: 0 }));
    assert_eq!(members(&good[..50]), Err(Error::Short { at: 0 }));
    let mut garbled = good.clone();
    garbled[first_end] = b'x';
    assert_eq!(members(&garbled), Err(Error::Magic { at: first_end }));
    let mut garbled = good.clone();
    garbled[8] = b'!';
    assert_eq!(members(&garbled), Err(Error::Malformed { at: 0 }));
    let mut garbled = good;
    garbled[6 + 8 * 6..][..8].copy_from_slice(b"ffffffff");
    assert_eq!(members(&garbled), Err(Error::Short { at: 0 }));
}

proptest! {
    /// No bytes make the unpacker panic or run forever.
    #[test]
    fn hostile_bytes_are_refused(
        noise in proptest::collection::vec(any::<u8>(), 0..600),
        places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
    ) {
        let world = World::new();
        let _ = unpack(&noise, &world.root);
        let mut bytes = archive(&[
            member("d", 1, 0o040_755, 2, b""),
            member("d/f", 2, 0o100_644, 2, b"content"),
            member("d/g", 2, 0o100_644, 2, b""),
            member("l", 3, 0o120_777, 1, b"d"),
        ]);
        for (place, byte) in places {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = unpack(&bytes, &world.root);
    }
}
