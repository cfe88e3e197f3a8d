//! Addresses of AF_UNIX, and who has which.
//!
//! A socket is found by the inode that it was bound to, or by its abstract name. The maps hold sockets weakly: a name
//! ends with its socket, a path stays behind and refuses.

use freehold_collections::{
    Arc, Map, Vec, Weak,
    reserve::{self, ArcMethods},
    try_format,
};
use linux_raw_sys::net::AF_UNIX;

use super::unix::UnixSocket;
use crate::fs::{self, Final, Identity, NodeKind, Walk};
use crate::sync::SpinLock;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task};

/// Bytes of sun_path.
const PATH_BYTES: usize = 108;
/// Bytes before it.
const FAMILY_BYTES: usize = 2;

/// What a socket can be bound to.
///
/// Its at most 108 bytes are shared: they are copied once, when the address comes from a program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// A path, as the program gave it.
    Path(Arc<[u8]>),
    /// A name without file, as many bytes as given; NULs count.
    Abstract(Arc<[u8]>),
}

static BY_NAME: SpinLock<Map<Arc<[u8]>, Weak<UnixSocket>>> = SpinLock::new(Map::new());
static BY_INODE: SpinLock<Map<Identity, Weak<UnixSocket>>> = SpinLock::new(Map::new());

impl Address {
    /// Read a sockaddr; `None` for one that holds the family only.
    ///
    /// # Errors
    /// `EINVAL` where the length or the family cannot be, `EFAULT`.
    pub fn read(address: u64, length: usize) -> Result<Option<Self>> {
        if !(FAMILY_BYTES..=FAMILY_BYTES + PATH_BYTES).contains(&length) {
            return Err(Errno::EINVAL);
        }
        let bytes = user::read_vec(address, length)?;
        if u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) != AF_UNIX {
            return Err(Errno::EINVAL);
        }
        let path = &bytes[FAMILY_BYTES..];
        Ok(match path.first() {
            None => None,
            Some(0) => Some(Self::Abstract(reserve::slice(&path[1..]))),
            Some(_) => {
                let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
                Some(Self::Path(reserve::slice(&path[..end])))
            }
        })
    }

    /// The sockaddr's bytes of a socket's address; the family alone for one without.
    fn encode(address: Option<&Self>) -> Result<Vec<u8>> {
        let mut bytes = Vec::try_with_capacity(FAMILY_BYTES + PATH_BYTES + 1)?;
        bytes.try_extend_from_slice(&(AF_UNIX as u16).to_le_bytes())?;
        match address {
            None => {}
            Some(Self::Path(path)) => {
                bytes.try_extend_from_slice(path)?;
                bytes.try_push(0)?;
            }
            Some(Self::Abstract(name)) => {
                bytes.try_push(0)?;
                bytes.try_extend_from_slice(name)?;
            }
        }
        Ok(bytes)
    }

    /// Write a sockaddr to `to`, cut to the length that is at `length`, and put its whole length there.
    ///
    /// # Errors
    /// `EINVAL` for a negative length, `EFAULT`, `ENOMEM`.
    pub fn write(address: Option<&Self>, to: u64, length: UserPtr<i32>) -> Result<()> {
        if to == 0 {
            return Ok(());
        }
        let room = usize::try_from(length.read()?).map_err(|_| Errno::EINVAL)?;
        let bytes = Self::encode(address)?;
        user::write_exact(to, &bytes[..room.min(bytes.len())])?;
        length.write(&(bytes.len() as i32))
    }

    /// Write a sockaddr to `to`, cut to `room` bytes; its whole length.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn write_bounded(address: Option<&Self>, to: u64, room: usize) -> Result<u32> {
        let bytes = Self::encode(address)?;
        user::write_exact(to, &bytes[..room.min(bytes.len())])?;
        Ok(bytes.len() as u32)
    }

    /// Bind `socket` to it.
    ///
    /// # Errors
    /// `EADDRINUSE`; what making a file gives.
    pub fn bind(&self, socket: &Arc<UnixSocket>) -> Result<()> {
        match self {
            Self::Abstract(name) => {
                let mut names = BY_NAME.lock();
                if names.get(name).is_some_and(|other| other.strong_count() > 0) {
                    return Err(Errno::EADDRINUSE);
                }
                names.try_insert(name.clone(), socket.downgrade())?;
            }
            Self::Path(path) => {
                let identity = with_walk(|walk, umask| {
                    let mode = 0o777 & !umask;
                    let made = fs::names::make_node(walk, path, NodeKind::Socket, mode, 0);
                    made.map_err(|error| if error == Errno::EEXIST { Errno::EADDRINUSE } else { error })
                })?
                .node
                .identity();
                let mut inodes = BY_INODE.lock();
                inodes.retain(|_, other| other.strong_count() > 0);
                let inserted = inodes.try_insert(identity, socket.downgrade());
                drop(inodes);
                if inserted.is_err() {
                    // Nobody could connect to the file.
                    with_walk(|walk, _| fs::names::unlink(walk, path))?;
                    return Err(Errno::ENOMEM);
                }
            }
        }
        Ok(())
    }

    /// The socket that is bound to it.
    ///
    /// # Errors
    /// `ECONNREFUSED` where none is; what following a path gives.
    pub fn find(&self) -> Result<Arc<UnixSocket>> {
        let found = match self {
            Self::Abstract(name) => BY_NAME.lock().get(name).and_then(|weak| weak.upgrade()),
            Self::Path(path) => {
                let place = with_walk(|walk, _| walk.find(path, Final::Follow))?;
                let caller = task::current().process().credentials();
                caller.caller().may(&place.node.metadata(), fs::Access::WRITE)?;
                if place.node.kind() != NodeKind::Socket {
                    return Err(Errno::ECONNREFUSED);
                }
                BY_INODE.lock().get(&place.node.identity()).and_then(|weak| weak.upgrade())
            }
        };
        found.ok_or(Errno::ECONNREFUSED)
    }

    /// Forget an abstract name; its socket is gone.
    pub fn release(&self) {
        if let Self::Abstract(name) = self {
            let mut names = BY_NAME.lock();
            if names.get(name).is_some_and(|socket| socket.strong_count() == 0) {
                names.remove(name);
            }
        }
    }

    /// Bind `socket` to a free abstract name (a bind without one).
    ///
    /// # Errors
    /// `EADDRINUSE` where all are taken, `ENOMEM`.
    pub fn bind_to_any(socket: &Arc<UnixSocket>) -> Result<Self> {
        for number in 0..0x10_0000u32 {
            let text = try_format!("{number:05x}")?;
            let name = Self::Abstract(reserve::slice(text.as_bytes()));
            match name.bind(socket) {
                Err(Errno::EADDRINUSE) => {}
                bound => return bound.map(|()| name),
            }
        }
        Err(Errno::EADDRINUSE)
    }
}

/// Run `f` with the walk that resolves paths for the caller, and its umask.
fn with_walk<R>(f: impl FnOnce(&Walk<'_>, u32) -> Result<R>) -> Result<R> {
    let process = task::current().process().clone();
    let context = process.fs();
    let credentials = process.credentials();
    let (root, start) = (context.root(), context.cwd());
    f(&Walk::new(&root, &start, &credentials.caller()), context.umask())
}
