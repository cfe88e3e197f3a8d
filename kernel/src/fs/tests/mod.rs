//! Host tests of files and names, on contents in plain memory.

mod archive;
mod descriptors;
mod directories;
mod plain;
mod regular_files;
mod walking;

use std::sync::Arc;
use std::vec::Vec;

pub(super) use plain::PlainSource;

use super::caller::Caller;
use super::flags::OpenFlags;
use super::mount::{Mount, MountFlags};
use super::names;
use super::open_file::OpenFile;
use super::path::Path;
use super::tmpfs::TmpFs;
use super::walk::PathWalk;
use crate::Result;

/// A root with a tmpfs of `capacity` bytes.
pub(in crate::fs) struct World {
    pub fs: Arc<TmpFs>,
    pub root: Path,
}

pub(super) const USER: Caller<'static> =
    Caller { capabilities: 0, uid: 1000, gid: 1000, groups: &[7], ..Caller::ROOT };

impl World {
    pub fn new() -> Self {
        Self::with_capacity(1 << 40)
    }

    pub fn with_capacity(capacity: u64) -> Self {
        let fs = TmpFs::new("tmpfs", PlainSource::new(capacity), 0o755).unwrap();
        let mount = Mount::new(fs.clone(), b"test", MountFlags::empty()).unwrap();
        Self { fs, root: Path::root_of(mount) }
    }

    pub fn walk(&self) -> PathWalk<'_> {
        PathWalk::new(&self.root, &self.root, &Caller::ROOT)
    }

    pub fn as_user(&self) -> PathWalk<'_> {
        PathWalk::new(&self.root, &self.root, &USER)
    }

    pub fn open(&self, path: &str, flags: OpenFlags) -> Result<Arc<OpenFile>> {
        names::open(&self.walk(), path.as_bytes(), flags, 0o644)
    }

    /// Makes a file with this text.
    pub fn write(&self, path: &str, text: &str) {
        let file = self.open(path, OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC).unwrap();
        let n = file.write(&mut super::bytes::SliceSource::new(text.as_bytes())).unwrap();
        assert_eq!(n, text.len());
    }

    /// Returns the whole text of a file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.open(path, OpenFlags::empty())?;
        let mut bytes = vec![0; file.node().metadata().size as usize];
        let n = file.read_kernel(0, &mut bytes)?;
        assert_eq!(n, bytes.len());
        Ok(bytes)
    }

    pub fn make_dir(&self, path: &str) {
        names::make_dir(&self.walk(), path.as_bytes(), 0o755).unwrap();
    }
}

use std::vec;
