//! The owners of AF_UNIX addresses.
//!
//! A socket is found by the inode that it was bound to, or by its abstract name. The maps hold weak
//! references to sockets. An abstract name ends with its socket. A path stays, and connections to
//! it are refused.

use freehold_collections::{
    Arc, Map, Weak,
    reserve::{self, ArcMethods},
    try_format,
};

use super::address::{Address, PATH_BYTES};
use super::endpoint::Socket;
use crate::fs::{self, Final, Identity, NodeKind, PathWalk};
use crate::sync::{SpinLock, WeakMap};
use crate::task::namespaces::network::NetworkNamespace;
use crate::{Errno, Result, task};

/// Sockets by the number of their network namespace, in eight bytes, followed by the name.
static BY_NAME: SpinLock<Map<Arc<[u8]>, Weak<Socket>>> = SpinLock::new(Map::new());
static BY_INODE: SpinLock<WeakMap<Identity, Socket>> = SpinLock::new(WeakMap::new());

/// A key of [`BY_NAME`] that needs no allocation, for use when a socket ends.
struct KeyBytes([u8; 8 + PATH_BYTES], usize);

impl KeyBytes {
    fn of(network: &NetworkNamespace, name: &[u8]) -> Self {
        let mut bytes = [0; 8 + PATH_BYTES];
        bytes[..8].copy_from_slice(&network.number().to_ne_bytes());
        bytes[8..8 + name.len()].copy_from_slice(name);
        Self(bytes, 8 + name.len())
    }
    fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

fn key_of(network: &NetworkNamespace, name: &[u8]) -> Arc<[u8]> {
    reserve::slice(KeyBytes::of(network, name).bytes())
}

impl Address {
    /// Binds `socket` to this address.
    ///
    /// # Errors
    /// `EADDRINUSE`; the errors of creating a file.
    pub fn bind(&self, socket: &Arc<Socket>) -> Result<()> {
        match self {
            Self::Abstract(name) => {
                let key = key_of(socket.network(), name);
                let mut names = BY_NAME.lock();
                if names.get(&key[..]).is_some_and(|other| other.strong_count() > 0) {
                    return Err(Errno::EADDRINUSE);
                }
                names.try_insert(key, socket.downgrade())?;
            }
            // These are bound by what their sockets receive.
            Self::Inet(_) | Self::Netlink(_) | Self::Link(_) => return Err(Errno::EINVAL),
            Self::Path(path) => {
                let identity = with_walk(|walk, umask| {
                    let mode = 0o777 & !umask;
                    let made = fs::names::make_node(walk, path, NodeKind::Socket, mode, 0);
                    made.map_err(|error| if error == Errno::EEXIST { Errno::EADDRINUSE } else { error })
                })?
                .node
                .identity();
                if BY_INODE.lock().try_insert(identity, socket).is_err() {
                    // Remove the file, since no task could connect to it. Another file may have its
                    // name by now.
                    let found = with_walk(|walk, _| walk.find(path, Final::Stop))?;
                    if found.node.identity() == identity {
                        with_walk(|walk, _| fs::names::unlink(walk, path))?;
                    }
                    return Err(Errno::ENOMEM);
                }
            }
        }
        Ok(())
    }

    /// Returns the socket that is bound to this address, for a socket of `network`.
    ///
    /// # Errors
    /// `ECONNREFUSED` if there is none; the errors of following a path.
    pub fn find(&self, network: &NetworkNamespace) -> Result<Arc<Socket>> {
        let found = match self {
            Self::Inet(_) | Self::Netlink(_) | Self::Link(_) => None,
            Self::Abstract(name) => {
                let key = KeyBytes::of(network, name);
                BY_NAME.lock().get(key.bytes()).and_then(|weak| weak.upgrade())
            }
            Self::Path(path) => {
                let place = with_walk(|walk, _| walk.find(path, Final::Follow))?;
                let caller = task::current().process().credentials();
                caller.caller().may(&place.node.metadata(), fs::Access::WRITE)?;
                if place.node.kind() != NodeKind::Socket {
                    return Err(Errno::ECONNREFUSED);
                }
                BY_INODE.lock().get(&place.node.identity())
            }
        };
        found.ok_or(Errno::ECONNREFUSED)
    }

    /// Removes an abstract name. Its socket, which was in `network`, has ended.
    pub fn release(&self, network: &NetworkNamespace) {
        if let Self::Abstract(name) = self {
            let key = KeyBytes::of(network, name);
            let mut names = BY_NAME.lock();
            if names.get(key.bytes()).is_some_and(|socket| socket.strong_count() == 0) {
                names.remove(key.bytes());
            }
        }
    }

    /// Binds `socket` to a free abstract name (for a bind without a name).
    ///
    /// # Errors
    /// `EADDRINUSE` if all names are taken, `ENOMEM`.
    pub fn bind_to_any(socket: &Arc<Socket>) -> Result<Self> {
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

/// Runs `f` with the walk that resolves paths for the caller, and its umask.
fn with_walk<R>(f: impl FnOnce(&PathWalk<'_>, u32) -> Result<R>) -> Result<R> {
    let process = task::current().process().clone();
    let context = process.fs();
    let credentials = process.credentials();
    let (root, start) = (context.root(), context.cwd());
    f(&PathWalk::new(&root, &start, &credentials.caller()), context.umask())
}
