//! Real file systems, made by their tools, and the same with wrong bytes.

extern crate std;

mod erofs;
mod ext4;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, fs, println, vec};

use super::*;

/// A disk in memory that ends a work which reads it too often.
struct MemoryDisk<'a> {
    bytes: &'a [u8],
    left: core::cell::Cell<u32>,
}

impl<'a> MemoryDisk<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, left: core::cell::Cell::new(1 << 20) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TooOften;

impl BlockSource for MemoryDisk<'_> {
    type Error = TooOften;
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), TooOften> {
        self.left.set(self.left.get().checked_sub(1).ok_or(TooOften)?);
        into.copy_from_slice(&self.bytes[at as usize..][..into.len()]);
        Ok(())
    }
}

/// A file of a tree: its kind, its names and a digest of its bytes, by path.
type Tree = BTreeMap<String, (u32, u32, u64, u32)>;

fn digest(mut read: impl FnMut(u64, &mut [u8]), size: u64) -> u32 {
    let mut room = vec![0; 64 << 10];
    let mut sum = !0;
    for at in (0..size).step_by(room.len()) {
        let part = (size - at).min(room.len() as u64) as usize;
        read(at, &mut room[..part]);
        sum = checksum::crc32c(sum, &room[..part]);
    }
    sum
}

/// Reads all that a volume has, down to some depth; `most` bytes of each file.
fn tree<V: Volume>(volume: &V, most: u64) -> Result<Tree, VolumeError<<V::Source as BlockSource>::Error>> {
    let mut room = vec![0; volume.block_size() as usize];
    let (mut found, mut left) = (Tree::new(), vec![(String::new(), volume.root())]);
    while let Some((path, number)) = left.pop() {
        let inode = volume.inode(number)?;
        let facts = *inode.as_ref();
        let kind = facts.mode & 0o170_000;
        let mut sum = 0;
        match kind {
            0o040_000 if path.len() < 600 => {
                let mut names = vec![];
                let mut show = |entry: DiskEntry<'_>| {
                    names.push((String::from_utf8_lossy(entry.name).to_string(), entry.inode, entry.next));
                    true
                };
                volume.entries(&inode, Listing { from: 0, room: &mut room, show: &mut show })?;
                if let Some((_, _, next)) = names.get(names.len() / 2) {
                    let mut rest = 0;
                    let mut show = |_: DiskEntry<'_>| {
                        rest += 1;
                        true
                    };
                    volume.entries(&inode, Listing { from: *next, room: &mut room, show: &mut show })?;
                    assert_eq!(rest, names.len() - names.len() / 2 - 1, "a listing goes on where it was");
                }
                for (name, number, _) in names {
                    if name != "." && name != ".." && name != "lost+found" {
                        left.push((format!("{path}/{name}"), number));
                    }
                }
            }
            0o100_000 => {
                let mut outcome = Ok(());
                let read = |at: u64, into: &mut [u8]| {
                    outcome = outcome.and_then(|()| volume.read_at(&inode, at, into));
                };
                sum = digest(read, facts.size.min(most));
                outcome?;
            }
            0o120_000 => {
                let mut text = [0; MAX_LINK];
                let length = volume.link(&inode, &mut text)?;
                sum = checksum::crc32c(!0, &text[..length]);
            }
            _ => {}
        }
        let size = if kind == 0o040_000 { 0 } else { facts.size };
        found.insert(path, (facts.mode, if kind == 0o040_000 { 0 } else { facts.links }, size, sum));
    }
    Ok(found)
}

/// The same of a tree of the host.
fn of_host(root: &Path) -> Tree {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{FileExt, MetadataExt};
    let (mut found, mut left) = (Tree::new(), vec![(String::new(), root.to_path_buf())]);
    while let Some((name, path)) = left.pop() {
        let told = fs::symlink_metadata(&path).unwrap();
        let mut entry = (told.mode(), told.nlink() as u32, told.size(), 0);
        if told.is_dir() {
            (entry.1, entry.2) = (0, 0);
            for inner in fs::read_dir(&path).unwrap().map(Result::unwrap) {
                left.push((format!("{name}/{}", inner.file_name().to_string_lossy()), inner.path()));
            }
        } else if told.is_file() {
            let file = fs::File::open(&path).unwrap();
            entry.3 = digest(|at, into| file.read_exact_at(into, at).unwrap(), told.size());
        } else {
            entry.3 = checksum::crc32c(!0, fs::read_link(&path).unwrap().as_os_str().as_bytes());
        }
        found.insert(name, entry);
    }
    found
}

/// Makes a tree in `root` with files of all forms.
fn make_tree(root: &Path, names: usize) {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let numbers = (0..5 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8);
    fs::write(root.join("five-mib"), numbers.collect::<Vec<_>>()).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("one"), "1").unwrap();
    fs::hard_link(root.join("one"), root.join("also-one")).unwrap();
    fs::set_permissions(root.join("one"), fs::Permissions::from_mode(0o4711)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    for at in [0, 60 << 10, 300 << 10, 5 << 20, 70 << 20] {
        sparse.write_all_at(b"not a hole", at).unwrap();
    }
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..names {
        fs::write(root.join(format!("many/a name of some length, {number}")), format!("{number}")).unwrap();
    }
    for length in [1, 59, 60, 61, 900] {
        std::os::unix::fs::symlink("x".repeat(length), root.join(format!("a/b/link{length}"))).unwrap();
    }
}

/// Runs a tool that makes an image, and returns the file system's bytes. `None` if the host does
/// not have the tool.
fn made(tool: &str, arguments: impl FnOnce(&mut Command, &Path)) -> Option<Vec<u8>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(tool);
    arguments(&mut command, file.path());
    match command.stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) => assert!(status.success(), "{command:?}"),
        Err(_) => {
            println!("skipped: the host has no {tool}");
            return None;
        }
    }
    Some(fs::read(file.path()).unwrap())
}

/// Compares a tree that was read with that of the host.
fn is_same(read: &Tree, expected: &Tree, options: &[&str]) {
    for (path, entry) in expected {
        assert_eq!(read.get(path), Some(entry), "{options:?}: {path}");
    }
    assert_eq!(read.len(), expected.len(), "{options:?}");
}

/// Finds some of the names that `make_tree` made in a large directory, and none that it did not.
fn finds_names<V: Volume>(volume: &V)
where
    <V::Source as BlockSource>::Error: core::fmt::Debug,
{
    let mut room = vec![0; volume.block_size() as usize];
    let root = volume.inode(volume.root()).unwrap();
    let many = volume.inode(volume.lookup(&root, b"many", &mut room).unwrap().unwrap()).unwrap();
    for number in (0..500).step_by(7) {
        let name = format!("a name of some length, {number}");
        let found = volume.lookup(&many, name.as_bytes(), &mut room).unwrap().unwrap();
        assert_eq!(volume.inode(found).unwrap().as_ref().size, format!("{number}").len() as u64, "{name}");
    }
    for name in ["!", "a name", "a name of some length, 250x", "a name of some length, 77 ", "zzz"] {
        assert_eq!(volume.lookup(&many, name.as_bytes(), &mut room).unwrap(), None, "{name}");
    }
}
