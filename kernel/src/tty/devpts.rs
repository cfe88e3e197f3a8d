//! devpts: the directory of the pseudo-terminals, /dev/pts.
//!
//! No state is stored here: the names exist as long as the pairs of [`super::pty`].

use super::pty;
use crate::fs::device::make_device;
use crate::fs::{
    DirEntry, File, FileSystem, FsStats, Identity, Metadata, Node, NodeKind, OpenFlags, Seekable, SetMetadata,
};
use crate::{Errno, Result, time};
use core::fmt;
use freehold_collections::{Arc, Receiver, reserve, try_format};

/// The file system's device number.
const DEVICE: u64 = make_device(0, 22);
/// DEVPTS_SUPER_MAGIC.
const MAGIC: u64 = 0x1cd1;

/// The file system.
pub struct DevPts {
    root: Arc<dyn Node>,
}

impl DevPts {
    /// Returns the only instance; every mount shows the same pairs.
    pub fn file_system() -> Arc<dyn FileSystem> {
        reserve::arc(Self { root: reserve::arc(PtsDirectory) })
    }
}

impl FileSystem for DevPts {
    fn name(&self) -> &'static str {
        "devpts"
    }
    fn device(&self) -> u64 {
        DEVICE
    }
    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }
    fn stats(&self) -> FsStats {
        FsStats { magic: MAGIC, block_size: 4096, blocks: 0, free_blocks: 0, inodes: 0, free_inodes: 0 }
    }
    fn show_options(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(",gid=5,mode=620,ptmxmode=666")
    }
}

/// Returns the node of terminal `number`.
pub(super) fn slave_node(number: u32) -> Arc<dyn Node> {
    reserve::arc(SlaveNode { number })
}

/// The file system's root directory.
struct PtsDirectory;

/// /dev/pts/N.
struct SlaveNode {
    number: u32,
}

/// Inode numbers as on Linux: 1 is the directory, 2 is ptmx, N + 3 is terminal N.
const ROOT_INODE: u64 = 1;
const PTMX_INODE: u64 = 2;
const FIRST_INODE: u64 = 3;

fn metadata(inode: u64, kind: NodeKind, mode: u32, rdev: u64) -> Metadata {
    Metadata {
        device: DEVICE,
        inode,
        kind,
        mode,
        links: if kind == NodeKind::Directory { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev,
        size: 0,
        block_size: 1024,
        blocks: 0,
        accessed: time::wall(),
        modified: time::wall(),
        changed: time::wall(),
        born: None,
    }
}

impl Node for SlaveNode {
    fn identity(&self) -> Identity {
        Identity { device: DEVICE, inode: FIRST_INODE + u64::from(self.number) }
    }
    fn kind(&self) -> NodeKind {
        NodeKind::CharDevice
    }
    fn metadata(&self) -> Metadata {
        let mut answer = metadata(
            self.identity().inode,
            NodeKind::CharDevice,
            0,
            make_device(pty::SLAVE_MAJOR, self.number),
        );
        if let Some((uid, gid, mode, made)) = pty::ownership(self.number) {
            (answer.uid, answer.gid, answer.mode) = (uid, gid, mode);
            (answer.accessed, answer.modified, answer.changed) = (made, made, made);
        }
        answer
    }
    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        pty::set_ownership(self.number, change)
    }
    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let number = self.number;
        pty::open_slave(self, number, flags)
    }
}

/// /dev/pts/ptmx.
struct PtmxNode;

impl Node for PtmxNode {
    fn identity(&self) -> Identity {
        Identity { device: DEVICE, inode: PTMX_INODE }
    }
    fn kind(&self) -> NodeKind {
        NodeKind::CharDevice
    }
    fn metadata(&self) -> Metadata {
        metadata(PTMX_INODE, NodeKind::CharDevice, 0o666, make_device(pty::PTMX.0, pty::PTMX.1))
    }
    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        pty::open_master(self)
    }
}

impl Node for PtsDirectory {
    fn identity(&self) -> Identity {
        Identity { device: DEVICE, inode: ROOT_INODE }
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Directory
    }
    fn metadata(&self) -> Metadata {
        metadata(ROOT_INODE, NodeKind::Directory, 0o755, 0)
    }
    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(reserve::arc(OpenPtsDirectory(self)))
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        if name == b"ptmx" {
            return Ok(reserve::arc(PtmxNode));
        }
        let text = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let number: u32 = text.parse().map_err(|_| Errno::ENOENT)?;
        // Only one spelling is valid: no sign, no leading zero.
        if (text.starts_with('0') && text != "0") || text.starts_with('+') || !pty::is_listed(number) {
            return Err(Errno::ENOENT);
        }
        Ok(reserve::arc(SlaveNode { number }))
    }
}

struct OpenPtsDirectory(Arc<PtsDirectory>);

impl File for OpenPtsDirectory {
    fn node(&self) -> Arc<dyn Node> {
        self.0.clone()
    }
    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }
    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let kind = NodeKind::CharDevice.dirent_kind();
        let directory = NodeKind::Directory.dirent_kind();
        let fixed: [(&[u8], u64, u8); 3] =
            [(b".", ROOT_INODE, directory), (b"..", ROOT_INODE, directory), (b"ptmx", PTMX_INODE, kind)];
        for (at, (name, inode, kind)) in fixed.into_iter().enumerate().skip(from as usize) {
            if !emit(DirEntry { name, inode, kind, next: at as u64 + 1 }) {
                return Ok(());
            }
        }
        let count = pty::end();
        for number in (from.saturating_sub(3) as u32)..count {
            let entry = try_format!("{number}")?;
            let inode = FIRST_INODE + u64::from(number);
            let next = u64::from(number) + 4;
            if pty::is_listed(number) && !emit(DirEntry { name: entry.as_bytes(), inode, kind, next }) {
                return Ok(());
            }
        }
        Ok(())
    }
}
