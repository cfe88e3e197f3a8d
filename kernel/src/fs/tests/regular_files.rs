//! Regular files of a tmpfs.

use std::vec;

use super::World;
use crate::Errno;
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::fs::flags::OpenFlags;
use crate::fs::mount::FileSystem;
use crate::fs::open_file::Whence;
use crate::fs::{file::Allocate, names};

const RW: OpenFlags = OpenFlags::RDWR;

/// An append writes at the end whatever the offset is, and moves the offset after the written
/// bytes.
#[test]
fn append_always_goes_to_the_end() {
    let world = World::new();
    world.write("/f", "one");
    let file = world.open("/f", OpenFlags::WRONLY | OpenFlags::APPEND).unwrap();
    file.seek(0, Whence::Set).unwrap();
    file.write(&mut SliceSource::new(b"two")).unwrap();
    assert_eq!(file.position(), Ok(6));
    file.write_at(1, &mut SliceSource::new(b"!")).unwrap();
    assert_eq!(world.read("/f").unwrap(), b"onetwo!");
    assert_eq!(file.read(&mut SliceSink::new(&mut [0; 4])), Err(Errno::EBADF));
}

/// A write past the end leaves a hole of zeroes, which SEEK_DATA and SEEK_HOLE find.
#[test]
fn holes_read_as_zeroes_and_are_found() {
    let world = World::new();
    let file = world.open("/f", RW | OpenFlags::CREAT).unwrap();
    file.write_at(3 * 4096, &mut SliceSource::new(b"end")).unwrap();
    let mut bytes = vec![1; 3 * 4096 + 3];
    assert_eq!(file.read_kernel(0, &mut bytes), Ok(bytes.len()));
    assert!(bytes[..3 * 4096].iter().all(|&b| b == 0));
    assert_eq!(file.seek(0, Whence::Data), Ok(3 * 4096));
    assert_eq!(file.seek(3 * 4096 + 1, Whence::Hole), Ok(3 * 4096 + 3));
    assert_eq!(file.seek(3 * 4096 + 3, Whence::Data), Err(Errno::ENXIO));
    assert_eq!(file.node().metadata().blocks, 8);
    assert_eq!(file.seek(-1, Whence::Set), Err(Errno::EINVAL));
    assert_eq!(file.seek(i64::MAX, Whence::End), Err(Errno::EOVERFLOW));
}

/// A file exists until its last name and its last description are removed. Then its bytes are free
/// again.
#[test]
fn unlinked_files_live_while_open() {
    let world = World::with_capacity(1 << 20);
    let free = || world.fs.stats().free_blocks;
    let before = free();
    let file = world.open("/f", RW | OpenFlags::CREAT).unwrap();
    file.write(&mut SliceSource::new(&[7; 10_000])).unwrap();
    assert_eq!(free(), before - 3);
    names::unlink(&world.walk(), b"/f").unwrap();
    let mut byte = [0];
    assert_eq!(file.read_kernel(9_999, &mut byte), Ok(1));
    assert_eq!(byte, [7]);
    drop(file);
    assert_eq!(free(), before);
}

/// The size limit is exact to the page: a write stops there, and the next is ENOSPC; overwriting
/// needs no room.
#[test]
fn the_size_limit_is_exact() {
    let world = World::with_capacity(1 << 20);
    world.fs.configure(b"size=16k").unwrap();
    let file = world.open("/f", RW | OpenFlags::CREAT).unwrap();
    assert_eq!(file.write(&mut SliceSource::new(&[1; 20_000])), Ok(16_384));
    assert_eq!(file.write(&mut SliceSource::new(&[1; 1])), Err(Errno::ENOSPC));
    assert_eq!(file.write_at(100, &mut SliceSource::new(&[2; 9000])), Ok(9000));
    file.file().allocate(4096..8192, Allocate::PunchHole).unwrap();
    assert_eq!(world.fs.stats().free_blocks, 1);
    assert_eq!(file.write_at(16_384, &mut SliceSource::new(&[3; 5000])), Ok(4096));
    assert_eq!(file.file().allocate(0..32_768, Allocate::Extend), Err(Errno::ENOSPC));
    assert_eq!(world.fs.configure(b"size=oops"), Err(Errno::EINVAL));
    assert_eq!(world.fs.configure(b"colour=red"), Err(Errno::EINVAL));
}

/// Seals refuse the sealed operations. A file that was not made for sealing refuses seals.
#[test]
fn seals_hold() {
    let world = World::new();
    let node = world.fs.unnamed_file(0o600, 0, 0).unwrap();
    let file = crate::fs::OpenFile::new(node.clone(), None, RW).unwrap();
    let seals = |bits| file.file().add_seals(bits);
    assert_eq!(seals(2), Err(Errno::EPERM));
    node.allow_sealing(0);
    file.write(&mut SliceSource::new(b"sealed")).unwrap();
    seals(0x2 | 0x4).unwrap();
    let resize =
        |size| file.node().set_metadata(&crate::fs::SetMetadata { size: Some(size), ..Default::default() });
    assert_eq!(resize(1), Err(Errno::EPERM));
    assert_eq!(resize(100), Err(Errno::EPERM));
    assert_eq!(file.write_at(0, &mut SliceSource::new(b"S")), Ok(1));
    seals(0x8 | 0x1).unwrap();
    assert_eq!(file.write_at(0, &mut SliceSource::new(b"S")), Err(Errno::EPERM));
    assert_eq!(seals(0), Err(Errno::EPERM));
}

/// O_TMPFILE makes a file without a name that link can name later.
#[test]
fn files_without_a_name_can_get_one() {
    let world = World::new();
    let flags = RW | OpenFlags::TMPFILE_BIT | OpenFlags::DIRECTORY;
    let file = world.open("/", flags).unwrap();
    file.write(&mut SliceSource::new(b"now you see me")).unwrap();
    assert_eq!(file.node().metadata().links, 0);
    names::link(file.path().unwrap(), &world.walk(), b"/named").unwrap();
    assert_eq!(world.read("/named").unwrap(), b"now you see me");
}

/// Truncation cuts and lengthens, O_TRUNC empties, and cut bytes do not reappear.
#[test]
fn truncated_bytes_do_not_come_back() {
    let world = World::new();
    world.write("/f", "secret");
    let place = world.walk().find(b"/f", crate::fs::Final::Follow).unwrap();
    names::truncate(&world.walk(), &place, 2).unwrap();
    names::truncate(&world.walk(), &place, 6).unwrap();
    assert_eq!(world.read("/f").unwrap(), b"se\0\0\0\0");
    world.open("/f", OpenFlags::WRONLY | OpenFlags::TRUNC).unwrap();
    assert_eq!(world.read("/f").unwrap(), b"");
}
