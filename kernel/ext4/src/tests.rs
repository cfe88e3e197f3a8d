//! Real file systems, made by mke2fs, and the same with wrong bytes.

extern crate std;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, fs, println, vec};

use proptest::prelude::*;

use super::*;

/// A disk in memory that ends a work which reads it too often.
struct MemoryDisk<'a> {
    bytes: &'a [u8],
    left: core::cell::Cell<u32>,
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

type Failure = Ext4Error<TooOften>;

fn open(bytes: &[u8]) -> Result<Volume<MemoryDisk<'_>>, Failure> {
    let left = core::cell::Cell::new(1 << 20);
    Volume::open(MemoryDisk { bytes, left }, JournalUse::Required)
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
fn tree(bytes: &[u8], most: u64) -> Result<Tree, Failure> {
    let volume = open(bytes)?;
    let mut room = vec![0; volume.block_size() as usize];
    let (mut found, mut left) = (Tree::new(), vec![(String::new(), ROOT)]);
    while let Some((path, number)) = left.pop() {
        let inode = volume.inode(number)?;
        let kind = inode.mode & 0o170_000;
        let mut sum = 0;
        match kind {
            0o040_000 if path.len() < 600 => {
                let mut names = vec![];
                volume.entries(&inode, 0, &mut room, &mut |entry| {
                    names.push((String::from_utf8_lossy(entry.name).to_string(), entry.inode, entry.next));
                    true
                })?;
                if let Some((_, _, next)) = names.get(names.len() / 2) {
                    let mut rest = 0;
                    volume.entries(&inode, *next, &mut room, &mut |_| {
                        rest += 1;
                        true
                    })?;
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
                sum = digest(read, inode.size.min(most));
                outcome?;
            }
            0o120_000 => {
                let mut text = [0; MAX_LINK];
                let length = volume.link(&inode, &mut text)?;
                sum = checksum::crc32c(!0, &text[..length]);
            }
            _ => {}
        }
        let size = if kind == 0o040_000 { 0 } else { inode.size };
        found.insert(path, (inode.mode, if kind == 0o040_000 { 0 } else { inode.links }, size, sum));
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

/// Makes a file system of `root`. `None` if the host has no mke2fs.
fn image(root: &Path, options: &[&str], size: &str) -> Option<Vec<u8>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new("/usr/sbin/mke2fs");
    command
        .args(["-q", "-F", "-E", "root_owner=0:0", "-d"])
        .arg(root)
        .args(options)
        .arg(file.path())
        .arg(size);
    match command.stdout(Stdio::null()).status() {
        Ok(status) => assert!(status.success(), "{command:?}"),
        Err(_) => {
            println!("skipped: the host has no mke2fs");
            return None;
        }
    }
    Some(fs::read(file.path()).unwrap())
}

const FORMS: [&[&str]; 9] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-O", "^64bit,^metadata_csum"],
    &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-b", "1024", "-g", "2048"],
    &["-t", "ext4", "-O", "metadata_csum_seed,sparse_super2,^resize_inode", "-I", "512"],
    &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
    &["-t", "ext3", "-b", "2048"],
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext2", "-O", "^filetype,^dir_index", "-r", "1"],
];

#[test]
fn each_form_of_the_file_system_reads_as_the_tree_that_it_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    make_tree(folder.path(), 3000);
    let expected = of_host(folder.path());
    for options in FORMS {
        let Some(bytes) = image(folder.path(), options, "80m") else { return };
        let mut read = tree(&bytes, u64::MAX).unwrap();
        // The root's mode is that of the temporary folder in some versions of mke2fs only.
        read.insert(String::new(), expected[""]);
        for (path, entry) in &expected {
            assert_eq!(read.get(path), Some(entry), "{options:?}: {path}");
        }
        assert_eq!(read.len(), expected.len(), "{options:?}");
    }
}

#[test]
fn the_disk_says_its_size_its_flavour_and_its_times() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    let Some(bytes) = image(folder.path(), &["-t", "ext4", "-b", "4096"], "16m") else { return };
    let volume = open(&bytes).unwrap();
    let stats = volume.stats();
    assert!(stats.blocks <= 4096 && stats.free_blocks < stats.blocks && stats.free_inodes < stats.inodes);
    assert!(volume.fits(Flavour::Ext4) && !volume.fits(Flavour::Ext3) && !volume.fits(Flavour::Ext2));
    let root = volume.inode(ROOT).unwrap();
    let number = volume.lookup(&root, b"file", &mut [0; 4096]).unwrap().unwrap();
    let told = fs::metadata(folder.path().join("file")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(volume.inode(number).unwrap().modified.0, told.mtime());
    assert_eq!(volume.lookup(&root, b"fil", &mut [0; 4096]).unwrap(), None);
    let Some(bytes) = image(folder.path(), &["-t", "ext3"], "16m") else { return };
    let volume = open(&bytes).unwrap();
    assert!(volume.fits(Flavour::Ext3) && volume.fits(Flavour::Ext2));
    let Some(bytes) = image(folder.path(), &["-t", "ext2"], "16m") else { return };
    let volume = open(&bytes).unwrap();
    assert!(volume.fits(Flavour::Ext2) && !volume.fits(Flavour::Ext3));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bytes) = image(folder.path(), &["-t", "ext4", "-O", "^metadata_csum"], "16m") else { return };
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[1024 + at] |= value;
        open(&bytes).err()
    };
    assert_eq!(with(97, 0x80), Some(Ext4Error::Unsupported("inline_data")));
    assert_eq!(with(98, 0x02), Some(Ext4Error::Unsupported("casefold")));
    assert_eq!(with(99, 0x80), Some(Ext4Error::Unsupported("an unknown feature")));
    assert_eq!(with(96, 0x04), Some(Ext4Error::NeedsRecovery));
    assert_eq!(with(57, 0x10), Some(Ext4Error::NotExt4));
    assert_eq!(
        open(&bytes[..8 << 20]).err(),
        Some(Ext4Error::Corrupt("superblock: more blocks than the disk has"))
    );
    assert_eq!(open(&[0; 2047]).err(), Some(Ext4Error::NotExt4));
}

#[test]
fn a_wrong_byte_of_what_has_a_checksum_is_found() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    let Some(bytes) = image(folder.path(), &["-t", "ext4", "-b", "1024"], "8m") else { return };
    let volume = open(&bytes).unwrap();
    let inode = volume.inode_table(0).unwrap() as usize + usize::from(volume.inode_size);
    for (at, structure) in [
        (1024 + 120, "superblock's checksum"),
        (2048 + 12, "group descriptor's checksum"),
        (inode + 8, "inode's checksum"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert_eq!(tree(&bytes, 100).err(), Some(Ext4Error::Corrupt(structure)), "{at}");
    }
}

/// Images for the test below: with extents and with pointers, without checksums.
fn small() -> &'static [Vec<u8>] {
    static IMAGES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    IMAGES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        make_tree(folder.path(), 60);
        let forms: [&[&str]; 2] =
            [&["-t", "ext4", "-O", "^metadata_csum", "-b", "1024"], &["-t", "ext2", "-b", "1024"]];
        forms.iter().filter_map(|options| image(folder.path(), options, "12m")).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Most wrong bytes are in the first blocks, where superblock, descriptors and inodes are.
    #[test]
    fn wrong_bytes_are_an_error_or_another_tree_and_the_work_ends(
        form in 0..2_usize,
        wrong in prop::collection::vec((prop_oneof![1024..4096_usize, 0..1_usize << 19, 0..12_usize << 20], any::<u8>()), 1..40),
    ) {
        if let Some(bytes) = small().get(form) {
            let mut bytes = bytes.clone();
            wrong.iter().for_each(|&(at, byte)| bytes[at] = byte);
            let _ = tree(&bytes, 1 << 20);
        }
    }
}
