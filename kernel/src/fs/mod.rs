//! Files and names.
//!
//! A [`node::Node`] is the identity of a file (an inode); a [`file::File`] has the operations of an
//! open file description. Everything else is built on these two traits only:
//!
//! | module | concept |
//! |---|---|
//! | [`flags`] | O_* and friends |
//! | [`content`] | the bytes of a regular file, wherever they are kept |
//! | [`path`], [`walk`] | a place in the tree of names, and path resolution |
//! | [`mount`], [`namespace`] | mounts of file systems, and mount namespaces |
//! | [`names`] | operations on names: open, make, remove, rename, link |
//! | [`context`] | root, working directory and umask of a process |
//! | [`open_file`], [`table`] | open file descriptions and descriptors |
//! | [`device`] | drivers by device number |
//! | [`locks`], [`leases`] | flock and record locks; leases |
//! | [`overlay`] | one tree over another: changes go to the upper one |
//! | [`notify`], [`fanotify`] | inotify and fanotify: events on files |
//! | [`tmpfs`] | files in memory: the root, /dev, /tmp, memfd |
//! | [`generated`], [`pseudo`] | files whose content is written when they are read, and trees of them |
//! | [`procfs`], [`sysfs`] | /proc and /sys |
//! | [`cgroupfs`] | control groups as directories |
//! | [`root`] | the root of the tree of names |
//! | [`initramfs`], [`boot`] | the image unpacked, the first mounts |
//! | [`changes`] | changes that programs made, kept in a folder of the host |
//! | [`calls`] | the system calls on all of this |
//!
//! Lock order: mount table > directory of a file system > inode > content. All of these are spin
//! locks that are never held across a user copy or a sleep, except the write lock of an inode, a
//! sleeping mutex that is taken before all of them.

pub mod anonymous;
pub mod boot;
pub mod bytes;
pub mod caller;
pub mod calls;
pub mod cgroupfs;
pub mod changes;
pub mod clock;
pub mod content;
pub mod context;
pub mod device;
pub mod epoll;
pub mod eventfd;
pub mod fanotify;
pub mod file;
pub mod flags;
pub mod generated;
pub mod initramfs;
pub mod learned;
pub mod leases;
pub mod locks;
pub mod machine;
pub mod masks;
pub mod metadata;
pub mod missing;
pub mod mount;
pub mod names;
pub mod namespace;
pub mod node;
pub mod notify;
pub mod open_file;
pub mod overlay;
pub mod path;
mod path_file;
pub mod pipe;
pub mod poll;
pub mod procfs;
pub mod pseudo;
pub mod requests;
pub mod rights;
pub mod root;
pub mod secret;
pub mod signalfd;
pub mod sysfs;
pub mod table;
pub mod text;
pub mod timerfd;
pub mod tmpfs;
pub mod tracefs;
pub mod userfault;
pub mod walk;

pub use caller::{Access, Caller};
pub use content::{ContentSource, FileContent, Punch};
pub use context::{FsContext, FsMember, Places};
pub use file::{Blocking, DirEntry, File, MmapContent, Ready, Seekable};
pub use flags::{OpenFlags, RenameFlags, ResolveFlags};
pub use mount::{FileSystem, FsStats, Mount};
pub use node::{Identity, LinkTarget, Metadata, Node, NodeKind, SetMetadata, Timestamp};
pub use open_file::{OpenFile, Signalling, Watcher};
pub use path::Path;
pub use table::{FileTable, OnExec};
pub use walk::{Final, Last, PathWalk};

#[cfg(test)]
mod tests;
