//! ext2, ext3 and ext4, made by mke2fs.

use proptest::prelude::*;

use super::*;

type Failure = VolumeError<TooOften>;

fn open(bytes: &[u8]) -> Result<Ext4<MemoryDisk<'_>>, Failure> {
    Ext4::open(MemoryDisk::new(bytes), JournalUse::Required)
}

/// Reads all that an image has.
fn read_all(bytes: &[u8], most: u64) -> Result<Tree, Failure> {
    tree(&open(bytes)?, most)
}

/// Makes a file system of `root`. `None` if the host has no mke2fs.
fn image(root: &Path, options: &[&str], size: &str) -> Option<Vec<u8>> {
    made("/usr/sbin/mke2fs", |command, file| {
        command.args(["-q", "-F", "-E", "root_owner=0:0", "-d"]).arg(root).args(options).arg(file).arg(size);
    })
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
        let volume = open(&bytes).unwrap();
        finds_names(&volume);
        let mut read = tree(&volume, u64::MAX).unwrap();
        // The root's mode is that of the temporary folder in some versions of mke2fs only.
        read.insert(String::new(), expected[""]);
        is_same(&read, &expected, options);
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
    let root = volume.inode(volume.root()).unwrap();
    let number = volume.lookup(&root, b"file", &mut [0; 4096]).unwrap().unwrap();
    let told = fs::metadata(folder.path().join("file")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(volume.inode(number).unwrap().as_ref().modified.0, told.mtime());
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
    assert_eq!(with(97, 0x80), Some(VolumeError::Unsupported("inline_data")));
    assert_eq!(with(98, 0x02), Some(VolumeError::Unsupported("casefold")));
    assert_eq!(with(99, 0x80), Some(VolumeError::Unsupported("an unknown feature")));
    assert_eq!(with(96, 0x04), Some(VolumeError::NeedsRecovery));
    assert_eq!(with(57, 0x10), Some(VolumeError::Other));
    assert_eq!(
        open(&bytes[..8 << 20]).err(),
        Some(VolumeError::Corrupt("superblock: more blocks than the disk has"))
    );
    assert_eq!(open(&[0; 2047]).err(), Some(VolumeError::Other));
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
        assert_eq!(read_all(&bytes, 100).err(), Some(VolumeError::Corrupt(structure)), "{at}");
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
            let _ = read_all(&bytes, 1 << 20);
        }
    }
}
