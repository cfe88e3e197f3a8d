//! Secret memory: the file that memfd_secret(2) makes.
//!
//! Only the programs that map the file can access its bytes. The file has no read and no write, and
//! its pages are never pinned, moved, copied or swapped out. So no window of the kernel shows a
//! page after it was zeroed ([`freehold_vm::PageCache::secret`]). The kernel copies to and from it
//! as to any memory of a program, through the program's own addresses. Operations that
//! mm/secretmem.c refuses are refused here, with the same errors. As in Linux, the size is set
//! once, and the file's pages are charged to the maker of the file. The limit is the RLIMIT_MEMLOCK
//! of the program that touches a page first. Beyond it that program gets SIGBUS.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, Map, reserve};
use freehold_machine::PAGE_SIZE;
use freehold_vm::PageAccount;

use super::file::Allocate;
use super::node::NewNode;
use super::tmpfs::attributes::Attributes;
use super::{
    File, FileContent, Identity, Metadata, MmapContent, Node, NodeKind, OnExec, OpenFile, OpenFlags,
    SetMetadata, root,
};
use crate::mem::{CacheContent, PageCache, frames};
use crate::sync::SpinLock;
use crate::syscall::Args;
use crate::task::Resource;
use crate::{Errno, Result, task};

/// The file system number that all secret files share.
const DEVICE: u64 = super::device::make_device(0, 16);

/// Use per user: the number of open files, and their pages.
static USERS: SpinLock<Map<u32, Charged>> = SpinLock::new(Map::new());

#[derive(Clone, Copy, Default)]
struct Charged {
    files: u64,
    pages: u64,
}

/// A file's share in its user's account.
struct Account {
    uid: u32,
}

impl Account {
    /// Makes the account of a new file of `uid`. `ENOMEM`.
    fn new(uid: u32) -> Result<Arc<Self>> {
        let mut users = USERS.lock();
        let mut charged = users.get(&uid).copied().unwrap_or_default();
        charged.files += 1;
        users.try_insert(uid, charged)?;
        Ok(reserve::arc(Self { uid }))
    }
    fn with<R>(&self, f: impl FnOnce(&mut Charged) -> R) -> R {
        f(USERS.lock().get_mut(&self.uid).expect("an account with a file stays"))
    }
}

impl PageAccount for Account {
    fn charge(&self) -> bool {
        let limit =
            task::with_current(|task| task.process().soft_limit(Resource::Memlock)) / PAGE_SIZE as u64;
        self.with(|charged| {
            let may = charged.pages < limit;
            charged.pages += u64::from(may);
            may
        })
    }
    fn give_back(&self, pages: u64) {
        self.with(|charged| charged.pages -= pages);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        let is_last = users.get_mut(&self.uid).is_some_and(|charged| {
            charged.files -= 1;
            charged.files == 0
        });
        if is_last {
            users.remove(&self.uid);
        }
    }
}

static NEXT_INODE: AtomicU64 = AtomicU64::new(1);

/// The node of a secret file.
pub struct SecretNode {
    inode: u64,
    content: Arc<CacheContent>,
    attributes: SpinLock<Attributes>,
}

impl SecretNode {
    /// Makes an empty file with an owner and a group; its pages are charged to the user `payer`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new((uid, gid): (u32, u32), payer: u32) -> Result<Arc<Self>> {
        let cache = PageCache::secret(frames(), Account::new(payer)?);
        let new = NewNode { kind: NodeKind::Regular, mode: 0o600, uid, gid, rdev: 0 };
        Ok(reserve::arc(Self {
            inode: NEXT_INODE.fetch_add(1, Ordering::Relaxed),
            content: reserve::arc(CacheContent::new(cache)),
            attributes: SpinLock::new(Attributes::new(&new, 1)),
        }))
    }
}

impl Node for SecretNode {
    fn identity(&self) -> Identity {
        Identity { device: DEVICE, inode: self.inode }
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }
    fn metadata(&self) -> Metadata {
        let told = self.attributes.lock().metadata(self.identity(), self.kind());
        Metadata { size: self.content.size(), ..told }
    }
    /// The size can be set only once: cutting would require to wipe a part of a page.
    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        if let Some(size) = change.size {
            task::check_file_size(size)?;
        }
        let mut attributes = self.attributes.lock();
        if let Some(size) = change.size {
            if self.content.size() > 0 {
                return Err(Errno::EINVAL);
            }
            self.content.cache().set_size_grow(size);
        }
        attributes.change(change);
        Ok(())
    }
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(reserve::arc(SecretFile(self)))
    }
}

/// An open secret file.
struct SecretFile(Arc<SecretNode>);

impl File for SecretFile {
    fn node(&self) -> Arc<dyn Node> {
        self.0.clone()
    }
    fn mapping(&self) -> Result<MmapContent> {
        Ok(MmapContent::Content(self.0.content.clone()))
    }
    fn allocate(&self, _: Range<u64>, _: Allocate) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// memfd_secret(flags)
pub fn sys_memfd_secret(args: &Args) -> Result<i64> {
    let flags = OpenFlags::from_bits_retain(args.uint(0));
    if !OpenFlags::CLOEXEC.contains(flags) {
        return Err(Errno::EINVAL);
    }
    let process = task::current().process().clone();
    let credentials = process.credentials();
    let node = SecretNode::new((credentials.fsuid, credentials.fsgid), credentials.uid)?;
    let place = root::inert_place_named(node.clone(), b"secretmem")?;
    let open_flags = OpenFlags::RDWR | OpenFlags::LARGEFILE;
    let file = OpenFile::new(node.open(open_flags)?, Some(place), open_flags)?;
    process.files().insert(file, OnExec::asked_by(flags), process.descriptor_limit()).map(i64::from)
}
