//! Files in memory.
//!
//! A tmpfs keeps its names in B-trees and its bytes in [`FileContent`]s: in the kernel these are
//! page caches, so a file's page is the frame that programs map. The size limit applies to the
//! bytes of all files together (`ENOSPC` beyond it); each growth is reserved before it happens. The
//! first root file system's limit is half of the present memory at any time. Files of the image do
//! not count.
//!
//! Locks: `TmpfsShared::renames` (only for renames between directories, so that the tree does not
//! change while ancestors are searched) > one or two directories, lower inode number first >
//! attributes. The first sleeps, and the others spin; the write lock of a regular file, a sleeping
//! mutex, comes before them and is held over user copies.

pub(crate) mod attributes;
mod directory;
mod handles;
mod huge;
mod node;
mod regular;

use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use freehold_collections::{Arc, reserve};

pub use huge::{mount as mount_huge, unnamed_huge_file};
pub use node::TmpNode;
pub use regular::{F_SEAL_EXEC, Seals};

use super::content::{ContentSource, FileContent};
use super::device::unnamed_device;
use super::mount::{FileHandle, FileSystem, FsStats, HandleTarget};
use super::node::{NewNode, Node, NodeKind, SetMetadata};
use super::path::PathEntry;
use crate::hw::PAGE;
use crate::sync::{Mutex, SpinLock};
use crate::task::userns::IdKind;
use crate::{Errno, Result, task};

const MAGIC: u64 = 0x0102_1994;
/// A limit that nothing reaches. statfs(2) tells 0 for it.
const NO_LIMIT: u64 = u64::MAX / 2;

/// Objects that the kernel's own tmpfs instances share.
struct Common {
    /// The file system of nameless files.
    unnamed: Arc<TmpFs>,
    /// The same for files of huge pages, once there is one.
    huge: Option<Arc<TmpFs>>,
    contents: Arc<dyn ContentSource>,
}

static COMMON: SpinLock<Option<Common>> = SpinLock::new(None);

/// Makes the file system of nameless files. From now on `contents` makes the contents of files.
/// Once, at boot.
pub fn init(contents: Arc<dyn ContentSource>) -> Result<Arc<TmpFs>> {
    let unnamed = TmpFs::new("tmpfs", contents.clone(), 0o777)?;
    unnamed.unlimited();
    *COMMON.lock() = Some(Common { unnamed: unnamed.clone(), huge: None, contents });
    Ok(unnamed)
}

fn with_common<R>(f: impl FnOnce(&mut Common) -> R) -> R {
    f(COMMON.lock().as_mut().expect("tmpfs::init ran at boot"))
}

/// Makes a nameless regular file.
pub fn unnamed_file(mode: u32, uid: u32, gid: u32) -> Result<Arc<TmpNode>> {
    with_common(|common| common.unnamed.clone()).unnamed_file(mode, uid, gid)
}

/// Makes a new, empty tmpfs of the type `name`, with mount(2)'s `options`.
pub fn mount(name: &'static str, options: &[u8], owner: &SetMetadata) -> Result<Arc<dyn FileSystem>> {
    let fs = TmpFs::new(name, with_common(|common| common.contents.clone()), 0o1777)?;
    fs.root.set_metadata(owner)?;
    fs.configure(options)?;
    Ok(fs)
}

/// State that all nodes of one tmpfs share.
struct TmpfsShared {
    device: u64,
    contents: Arc<dyn ContentSource>,
    /// [`ContentSource::unit`].
    unit: u64,
    next_inode: AtomicU64,
    inodes: AtomicU64,
    max_inodes: AtomicU64,
    held: AtomicU64,
    max_held: AtomicU64,
    /// A [`Stage`].
    stage: AtomicU8,
    renames: Mutex<()>,
    handles: handles::Handles,
}

/// State of the limits of a tmpfs.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// The limits are as they were set.
    Fixed,
    /// There are no limits: files that are written now belong to the image and never count.
    Boot,
    /// The limits are those of a new tmpfs, computed from the present memory.
    Following,
}

impl TmpfsShared {
    /// Counts `bytes` more as used: `ENOSPC` beyond the limit.
    fn charge(&self, bytes: u64) -> Result<()> {
        let charge = |limit: u64| {
            self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|&sum| sum <= limit || bytes == 0)
            })
        };
        let outcome = charge(self.max_held.load(Ordering::Relaxed));
        // Memory may have been added since the limit was computed.
        let outcome = outcome.or_else(|held| {
            if self.follow() { charge(self.max_held.load(Ordering::Relaxed)) } else { Err(held) }
        });
        outcome.map(|_| ()).map_err(|_| Errno::ENOSPC)
    }

    /// Like [`TmpfsShared::charge`]. If the limit depends on memory, and memory can grow, it grows
    /// before `ENOSPC` is returned. May sleep.
    fn charge_growing(&self, bytes: u64) -> Result<()> {
        loop {
            match self.charge(bytes) {
                Err(Errno::ENOSPC) if self.is(Stage::Following) => self.contents.grow()?,
                outcome => return outcome,
            }
        }
    }

    fn is(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Relaxed) == stage as u8
    }

    /// Computes the limits again from the present memory, if they depend on it. Returns whether
    /// they do.
    fn follow(&self) -> bool {
        let follows = self.is(Stage::Following);
        if follows {
            self.max_held.store(self.contents.capacity(), Ordering::Relaxed);
        }
        follows
    }

    fn uncharge(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn content(&self) -> Result<Arc<dyn FileContent>> {
        self.contents.empty()
    }

    fn new_inode(&self) -> Result<u64> {
        let limit = self.max_inodes.load(Ordering::Relaxed);
        self.inodes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < limit).then_some(n + 1))
            .map_err(|_| Errno::ENOSPC)?;
        Ok(self.next_inode.fetch_add(1, Ordering::Relaxed))
    }
}

/// A file system in memory.
pub struct TmpFs {
    name: &'static str,
    shared: Arc<TmpfsShared>,
    root: Arc<TmpNode>,
}

impl TmpFs {
    /// Makes an empty file system of type `name`, with a root directory of `mode`. Its limit is the
    /// capacity of `contents`.
    pub fn new(name: &'static str, contents: Arc<dyn ContentSource>, mode: u32) -> Result<Arc<Self>> {
        let limit = contents.capacity();
        let shared = reserve::arc(TmpfsShared {
            device: unnamed_device(),
            unit: contents.unit(),
            contents,
            next_inode: AtomicU64::new(1),
            inodes: AtomicU64::new(0),
            max_inodes: AtomicU64::new(default_inodes(limit)),
            held: AtomicU64::new(0),
            max_held: AtomicU64::new(limit),
            stage: AtomicU8::new(Stage::Fixed as u8),
            renames: Mutex::new(()),
            handles: handles::Handles::new(),
        });
        let new = NewNode { kind: NodeKind::Directory, mode, uid: 0, gid: 0, rdev: 0 };
        let root = TmpNode::new(&shared, &new)?;
        root.become_root();
        Ok(reserve::arc(Self { name, shared, root }))
    }

    /// Removes the limits until [`end_boot`](Self::end_boot), for the first root file system. Bytes
    /// that are written meanwhile never count.
    pub fn begin_boot(&self) {
        self.unlimited();
        self.shared.stage.store(Stage::Boot as u8, Ordering::Relaxed);
    }

    /// Counts written bytes from now on, up to half of the present memory at any time.
    pub fn end_boot(&self) {
        let shared = &self.shared;
        let inodes = shared.inodes.load(Ordering::Relaxed) + default_inodes(shared.contents.capacity());
        shared.max_inodes.store(inodes, Ordering::Relaxed);
        shared.stage.store(Stage::Following as u8, Ordering::Relaxed);
        shared.follow();
    }

    /// Removes the limits, as for nameless files (memfd, shared memory).
    pub fn unlimited(&self) {
        self.shared.max_held.store(NO_LIMIT, Ordering::Relaxed);
        self.shared.max_inodes.store(NO_LIMIT, Ordering::Relaxed);
    }

    /// Makes a nameless regular file (memfd, shared memory).
    pub fn unnamed_file(&self, mode: u32, uid: u32, gid: u32) -> Result<Arc<TmpNode>> {
        TmpNode::new(&self.shared, &NewNode { kind: NodeKind::Regular, mode, uid, gid, rdev: 0 })
    }
}

impl TmpFs {
    /// Takes the options of a mount or a remount, all or none. `EINVAL` if a limit is below what
    /// is in use, or new where there was none.
    fn apply(&self, options: MountOptions) -> Result<()> {
        let shared = &self.shared;
        let too_small = |new: Option<u64>, max: &AtomicU64, used: &AtomicU64| {
            new.is_some_and(|new| {
                let had_none = max.load(Ordering::Relaxed) == NO_LIMIT;
                new != NO_LIMIT && (had_none || new < used.load(Ordering::Relaxed))
            })
        };
        if too_small(options.bytes, &shared.max_held, &shared.held)
            || too_small(options.inodes, &shared.max_inodes, &shared.inodes)
        {
            return Err(Errno::EINVAL);
        }
        let (uid, gid) = (options.uid, options.gid);
        self.root.set_metadata(&SetMetadata { uid, gid, ..SetMetadata::default() })?;
        if let Some(mode) = options.mode {
            self.root.set_mode(mode);
        }
        if let Some(bytes) = options.bytes {
            shared.stage.store(Stage::Fixed as u8, Ordering::Relaxed);
            shared.max_held.store(bytes, Ordering::Relaxed);
        }
        if let Some(inodes) = options.inodes {
            shared.max_inodes.store(inodes, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// MountOptions of a mount, as given: none is `None`.
#[derive(Default)]
struct MountOptions {
    /// Largest size, in bytes, whole pages.
    bytes: Option<u64>,
    inodes: Option<u64>,
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl FileSystem for TmpFs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn device(&self) -> u64 {
        self.shared.device
    }

    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }

    fn stats(&self) -> FsStats {
        let shared = &self.shared;
        shared.follow();
        let capacity = shared.contents.capacity();
        let most = |max: &AtomicU64, all: u64| match max.load(Ordering::Relaxed) {
            NO_LIMIT => 0,
            limit => limit.min(all),
        };
        let limit = most(&shared.max_held, capacity);
        let inodes = match shared.is(Stage::Following) {
            true => shared.max_inodes.load(Ordering::Relaxed),
            false => most(&shared.max_inodes, capacity / PAGE),
        };
        FsStats {
            magic: MAGIC,
            block_size: PAGE,
            blocks: limit / PAGE,
            free_blocks: limit.saturating_sub(shared.held.load(Ordering::Relaxed)) / PAGE,
            inodes,
            free_inodes: inodes.saturating_sub(shared.inodes.load(Ordering::Relaxed)),
        }
    }

    fn show_options(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let shared = &self.shared;
        let capacity = shared.contents.capacity();
        match shared.max_held.load(Ordering::Relaxed) {
            NO_LIMIT => out.write_str(",size=0k")?,
            limit if limit >= capacity => (),
            limit => write!(out, ",size={}k", limit / 1024)?,
        }
        match shared.max_inodes.load(Ordering::Relaxed) {
            NO_LIMIT => out.write_str(",nr_inodes=0"),
            limit if shared.is(Stage::Following) || limit == default_inodes(capacity) => Ok(()),
            limit => write!(out, ",nr_inodes={limit}"),
        }
    }

    /// ramfs has no handles, as on Linux.
    fn handle(&self, node: &Arc<dyn Node>, entry: Option<&PathEntry>) -> Result<FileHandle> {
        let node = TmpNode::of(node).filter(|node| node.is_in(&self.shared) && self.name != "ramfs");
        self.shared.handles.make(node.ok_or(Errno::EOPNOTSUPP)?, entry)
    }

    fn by_handle(&self, _kind: u32, words: &[u32]) -> Result<HandleTarget> {
        self.shared.handles.find(words)
    }

    fn configure(&self, options: &[u8]) -> Result<()> {
        self.apply(MountOptions::parse(options, 2 * self.shared.contents.capacity())?)
    }
}

impl MountOptions {
    /// Parses the options of mount(2). A size in percent is a part of `memory`, in bytes. `EINVAL`
    /// for one that tmpfs does not have (mm/shmem.c shmem_parse_one).
    fn parse(text: &[u8], memory: u64) -> Result<Self> {
        let unless_zero = |limit: u64| Some(if limit == 0 { NO_LIMIT } else { limit.min(NO_LIMIT - 1) });
        let mut options = Self::default();
        for option in text.split(|&b| b == b',').filter(|o| !o.is_empty()) {
            let mut halves = option.splitn(2, |&b| b == b'=');
            let (key, value) = (halves.next().unwrap_or_default(), halves.next());
            match (key, value) {
                (b"size", Some(value)) => {
                    options.bytes =
                        unless_zero(parse_size(value, memory)?.div_ceil(PAGE).saturating_mul(PAGE));
                }
                (b"nr_blocks", Some(value)) => {
                    options.bytes = unless_zero(parse_size(value, 0)?.saturating_mul(PAGE));
                }
                (b"nr_inodes", Some(value)) => options.inodes = unless_zero(parse_size(value, 0)?),
                (b"huge" | b"mpol", Some(_)) | (b"noswap" | b"inode32" | b"inode64", None) => {}
                (key, value) => options.parse_rights(key, value.ok_or(Errno::EINVAL)?)?,
            }
        }
        Ok(options)
    }

    /// Takes an option about the root's owner, group and mode.
    ///
    /// # Errors
    /// `EINVAL` for another one.
    fn parse_rights(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match key {
            b"mode" => {
                let mode = core::str::from_utf8(value).ok().and_then(|v| u32::from_str_radix(v, 8).ok());
                self.mode = Some(mode.ok_or(Errno::EINVAL)? & 0o7777);
            }
            b"uid" => self.uid = Some(task::kernel_id(IdKind::User, parse_id(value)?)?),
            b"gid" => self.gid = Some(task::kernel_id(IdKind::Group, parse_id(value)?)?),
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}

/// Files of a tmpfs that may hold `bytes`, unless mounted otherwise.
fn default_inodes(bytes: u64) -> u64 {
    (bytes / PAGE).max(1024)
}

/// Parses the number of a user or a group.
fn parse_id(text: &[u8]) -> Result<u32> {
    core::str::from_utf8(text).ok().and_then(|digits| digits.parse().ok()).ok_or(Errno::EINVAL)
}

/// Parses "123", "64k", "10M", "1G" or "50%" (of `whole`).
fn parse_size(text: &[u8], whole: u64) -> Result<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let number: u64 =
        core::str::from_utf8(&text[..digits]).ok().and_then(|d| d.parse().ok()).ok_or(Errno::EINVAL)?;
    let factor = match &text[digits..] {
        b"" => 1,
        b"k" | b"K" => 1 << 10,
        b"m" | b"M" => 1 << 20,
        b"g" | b"G" => 1 << 30,
        b"%" => return Ok((whole / 100).saturating_mul(number)),
        _ => return Err(Errno::EINVAL),
    };
    number.checked_mul(factor).ok_or(Errno::EINVAL)
}
