//! EROFS, made by mkfs.erofs.

use proptest::prelude::*;

use super::*;

type Failure = VolumeError<TooOften>;

fn open(bytes: &[u8]) -> Result<Erofs<MemoryDisk<'_>>, Failure> {
    Erofs::open(MemoryDisk::new(bytes))
}

/// Makes an image of `root`. `None` if the host has no mkfs.erofs.
fn image(root: &Path, options: &[&str]) -> Option<Vec<u8>> {
    made("/usr/bin/mkfs.erofs", |command, file| _ = command.args(options).arg(file).arg(root))
}

const FORMS: [&[&str]; 6] = [
    &[],
    &["-Eforce-inode-compact", "-T1000000000"],
    &["-Eforce-inode-extended"],
    &["-Enoinline_data"],
    &["--chunksize=4096"],
    &["--chunksize=65536", "-Eforce-chunk-indexes"],
];

#[test]
fn each_form_reads_as_the_tree_that_it_was_made_of() {
    let folder = tempfile::tempdir().unwrap();
    make_tree(folder.path(), 3000);
    let expected = of_host(folder.path());
    for options in FORMS {
        let Some(bytes) = image(folder.path(), options) else { return };
        let volume = open(&bytes).unwrap();
        finds_names(&volume);
        let read = tree(&volume, u64::MAX).unwrap();
        is_same(&read, &expected, options);
    }
}

#[test]
fn bytes_of_a_compressed_file_are_not_supported_but_its_name_and_size_are_known() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text"), "the same words again. ".repeat(10_000)).unwrap();
    let Some(bytes) = image(folder.path(), &["-zlz4"]) else { return };
    let volume = open(&bytes).unwrap();
    let root = volume.inode(volume.root()).unwrap();
    let number = volume.lookup(&root, b"text", &mut [0; 4096]).unwrap().unwrap();
    let inode = volume.inode(number).unwrap();
    assert_eq!(inode.as_ref().size, 220_000);
    let refused = volume.read_at(&inode, 0, &mut [0; 16]);
    assert_eq!(refused, Err(VolumeError::Unsupported("a compressed file; make the image without -z")));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    let Some(bytes) = image(folder.path(), &[]) else { return };
    assert_eq!(open(&bytes).unwrap().stats().blocks, bytes.len() as u64 / 4096);
    // Without a checksum, so that each value is judged by itself.
    let with = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[1024 + 8] &= !1;
        bytes[1024 + at..][..value.len()].copy_from_slice(value);
        open(&bytes).err()
    };
    assert_eq!(with(0, &[0]), Some(VolumeError::Other));
    assert_eq!(with(12, &[31]), Some(VolumeError::Corrupt("superblock: block size")));
    assert_eq!(with(81, &[1]), Some(VolumeError::Unsupported("an unknown feature")));
    assert_eq!(with(86, &[1]), Some(VolumeError::Unsupported("more than one device")));
    assert_eq!(with(39, &[1]), Some(VolumeError::Corrupt("superblock: more blocks than the disk has")));
    let mut wrong = bytes.clone();
    wrong[1024 + 64] ^= 1;
    assert_eq!(open(&wrong).err(), Some(VolumeError::Corrupt("superblock's checksum")));
    assert_eq!(open(&[0; 1100]).err(), Some(VolumeError::Other));
}

/// Images for the test below: with parts beside inodes, and with chunks.
fn small() -> &'static [Vec<u8>] {
    static IMAGES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    IMAGES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        make_tree(folder.path(), 60);
        fs::remove_file(folder.path().join("sparse")).unwrap();
        let forms: [&[&str]; 2] = [&[], &["--chunksize=4096"]];
        let mut images: Vec<_> = forms.iter().filter_map(|options| image(folder.path(), options)).collect();
        images.iter_mut().for_each(|bytes| bytes[1024 + 8] &= !1);
        images
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn wrong_bytes_are_an_error_or_another_tree_and_the_work_ends(
        form in 0..2_usize,
        wrong in prop::collection::vec((0..1_usize << 30, any::<bool>(), any::<u8>()), 1..40),
    ) {
        if let Some(bytes) = small().get(form) {
            let mut bytes = bytes.clone();
            for (at, is_early, byte) in wrong {
                let room = bytes.len().min(if is_early { 32 << 10 } else { usize::MAX });
                bytes[1024 + at % (room - 1024)] = byte;
            }
            let _ = open(&bytes).and_then(|volume| tree(&volume, 1 << 20));
        }
    }
}
