//! Folders of the host: the file system 9p, whose server is the host's QEMU.
//!
//! | module | concept |
//! |---|---|
//! | [`channel`] | a device, and the requests that are sent through it |
//! | [`fids`] | the numbers by which the server knows files |
//! | [`node`], [`file`] | inodes, open files |
//! | [`identity`] | which file a node is, and where |
//! | [`store`] | the server as the store of a page cache |
//!
//! **Trust.** A server is hostile input: the crate `freehold-ninep` reads its messages, each value
//! once. At worst, wrong names, kinds, sizes and times lead to wrong files in this mount.
//!
//! **Identity.** A file is identified by its number (`qid.path`) and, if the host's file system has
//! generations, by its generation: a number is reused once its file is removed. Without
//! generations, a node is the file that its latest name leads to. The server is asked for it when
//! the number turns up under another name. A node whose file is removed becomes *stale* and leads
//! nowhere (`ESTALE`). So a working directory, a bind mount's root or an open directory never
//! becomes the next file with that number.
//!
//! **Freshness.** Each step of a path asks the server, so names and attributes are never old. A
//! file's bytes are in the page cache, one for each inode that the server numbers (`qid.path`).
//! Opening asks for size and times again, and drops the pages if any of them changed since the last
//! request (close-to-open). A read does the same if it finds the end of the file, or finds that the
//! host has cut the file.
//!
//! **Places.** A directory remembers the directory in which it was found. The host may move
//! directories meanwhile. A lookup that would close a cycle of remembered places fails with
//! `ELOOP`, as on Linux, so that each walk upwards ends. Changes of places have one mutex for the
//! share (`moves`).
//!
//! **Locks.** `turn` of a file (a mutex: it serialises requests for the file's attributes) > page
//! cache. `moves` (a mutex) is taken with no other lock held. The table of nodes, the list of
//! recent ones, a node's attributes and place, and the fids have a spin lock each, under which
//! nothing sleeps, no such object is dropped, and no other of these locks is taken.
//!
//! **Writing** is write-through: when a call returns, the server has the bytes, and the changed
//! pages are dropped. So no page is ever dirty, and a mapping that stores is refused (`EINVAL`, as
//! Linux does without a cache). The server decides what may be written; a folder that it shows
//! read-only says `EROFS` whatever the mount says.
//!
//! Locks of files (flock, fcntl) are kept in this kernel: they apply among its programs, not to the
//! host.

mod channel;
mod fids;
mod file;
mod identity;
mod node;
mod store;

use core::fmt;
use core::ops::Bound;

use channel::Channel;
use fids::Fid;
use freehold_collections::{Arc, reserve};
use freehold_ninep::Attributes;
use node::ShareNode;

use crate::fs::device::unnamed_device;
use crate::fs::mount::MountFlags;
use crate::fs::{FileSystem, FsStats, Node, root};
use crate::host::spec::{ShareMode, ShareSpec as Wanted};
use crate::mem::reclaim;
use crate::stored::NodeTable;
use crate::sync::Mutex;
use crate::{Errno, Result};

/// The magic number of statfs(2) (linux/magic.h).
const MAGIC: u64 = 0x0102_1997;

/// Registers the host's folders by their tags. Called once, after the devices were started.
///
/// # Errors
/// `ENOMEM`.
pub fn init() -> Result<()> {
    if channel::init()? { reclaim::start() } else { Ok(()) }
}

/// Mounts the host's folders at their paths in the guest, except those that lie below the image.
///
/// # Errors
/// The error of mounting.
pub fn mount_all(wanted: &[Wanted]) -> Result<()> {
    for share in wanted {
        let flags = match share.mode {
            ShareMode::ReadOnly => MountFlags::RDONLY | MountFlags::NODEV,
            ShareMode::ReadWrite => MountFlags::NODEV,
            ShareMode::Below | ShareMode::Changes => continue,
        };
        root::mount_at(mount(&share.tag, b"")?, &share.tag, &share.path, flags)?;
    }
    Ok(())
}

/// Opens the folder of the host with this `tag`, with mount(2)'s `options`.
///
/// # Errors
/// `ENOENT`: there is no such folder; `EBUSY`: it is mounted; `EINVAL` for invalid options; the
/// server's error.
pub fn mount(tag: &[u8], options: &[u8]) -> Result<Arc<dyn FileSystem>> {
    check_options(options)?;
    let channel = Channel::named(tag).ok_or(Errno::ENOENT)?;
    let share = reserve::arc(Share {
        session: channel.begin()?,
        device: unnamed_device(),
        nodes: NodeTable::new()?,
        moves: Mutex::new(()),
    });
    let fid = channel.attach()?;
    let told = channel.attributes(&fid)?;
    let root = share.node(fid, &told, None)?;
    Ok(reserve::arc(ShareFs { share, root }))
}

/// Accepts options of Linux' 9p that have no effect here, or that have the only supported value.
fn check_options(options: &[u8]) -> Result<()> {
    for option in options.split(|&byte| byte == b',').filter(|option| !option.is_empty()) {
        let (key, value) = match option.iter().position(|&byte| byte == b'=') {
            Some(at) => (&option[..at], &option[at + 1..]),
            None => (option, &b""[..]),
        };
        let is_known = match key {
            b"trans" => value == b"virtio",
            b"version" => value == b"9p2000.L",
            b"msize" => value.iter().all(u8::is_ascii_digit) && !value.is_empty(),
            b"cache" => matches!(value, b"none" | b"readahead" | b"mmap" | b"loose"),
            b"access" => matches!(value, b"client" | b"any"),
            _ => false,
        };
        if !is_known {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

/// A node's number at the server, and the complement of its [`ShareNode::serial`].
type NodeKey = (u64, u64);

/// A session with a server, and the inodes that were found in it.
pub(super) struct Share {
    session: ChannelUse,
    device: u64,
    /// The nodes by number. Of the nodes with one number, the latest is first.
    nodes: Arc<NodeTable<NodeKey, ShareNode>>,
    /// Held while a directory's remembered place changes.
    moves: Mutex<()>,
}

/// The use of a channel. It ends when this is dropped.
pub(super) struct ChannelUse(&'static Channel);

impl Drop for ChannelUse {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Share {
    fn channel(&self) -> &'static Channel {
        self.session.0
    }

    /// Returns the inode for `fid`, with the attributes that the server has `told`; it was found in
    /// a directory by a name.
    ///
    /// # Errors
    /// `ENOMEM`; `EIO` for an unknown kind of file; `ELOOP` for a directory that is found below
    /// itself; `EINTR`.
    fn node(
        self: &Arc<Self>,
        fid: Fid,
        told: &Attributes,
        found: Option<(&Arc<ShareNode>, &[u8])>,
    ) -> Result<Arc<ShareNode>> {
        let fid = reserve::arc(fid);
        if let Some(node) = self.known(told.qid.path) {
            if node.is_still(told, found)? {
                node.found_again(fid, told, found)?;
                return Ok(node);
            }
            self.nodes.let_go_of(&node);
        }
        let node = ShareNode::new(self, fid, told, found)?;
        // If two tasks find a file at once, the later one's node is known from then on. Each node
        // has its own cache until it is released.
        self.nodes.add(node.key(), &node)?;
        self.nodes.keep(&node);
        Ok(node)
    }

    /// The latest node with a number.
    fn known(&self, path: u64) -> Option<Arc<ShareNode>> {
        self.nodes.next(Bound::Included(&(path, 0))).filter(|(key, _)| key.0 == path)?.1
    }

    /// Notes that a name of this inode was removed. The node is no longer kept for its pages: the
    /// server keeps a removed file's bytes as long as the file is open.
    fn lost_a_name(&self, path: u64) {
        let Some(node) = self.known(path) else { return };
        node.lost_a_name();
        self.nodes.let_go_of(&node);
    }
}

/// A mounted folder.
struct ShareFs {
    share: Arc<Share>,
    root: Arc<ShareNode>,
}

impl Drop for ShareFs {
    fn drop(&mut self) {
        self.share.nodes.close();
    }
}

impl FileSystem for ShareFs {
    fn name(&self) -> &'static str {
        "9p"
    }
    fn device(&self) -> u64 {
        self.share.device
    }
    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }
    fn stats(&self) -> FsStats {
        let told = self.root.fid().and_then(|fid| self.share.channel().stats(&fid));
        told.map_or(FsStats { magic: MAGIC, block_size: 4096, ..FsStats::default() }, |told| FsStats {
            magic: MAGIC,
            block_size: told.block_size.max(1).into(),
            blocks: told.blocks,
            free_blocks: told.free,
            inodes: told.files,
            free_inodes: told.free_files,
        })
    }
    fn show_options(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(",trans=virtio,version=9p2000.L")
    }
    fn configure(&self, options: &[u8]) -> Result<()> {
        check_options(options)
    }
}
