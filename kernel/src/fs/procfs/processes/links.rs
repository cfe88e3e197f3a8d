//! The links of a process or a thread: its open files, its program, its directories and its
//! namespaces.

use freehold_collections::{Arc, Receiver, Vec, reserve, try_format};

use super::{Subject, check_inspection, metadata};
use crate::fs::file::File;
use crate::fs::flags::OpenFlags;
use crate::fs::node::{Identity, LinkTarget, Metadata, Node, NodeKind};
use crate::fs::open_file::OpenFile;
use crate::fs::path::Path;
use crate::fs::{anonymous::AnonymousNode, root};
use crate::task::namespaces::file::{NamespaceFile, NamespaceNode, NamespaceRef};
use crate::task::userns::NamespaceKind;
use crate::task::{self, inspect::Mode};
use crate::{Errno, Result};

/// The kind of a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkKind {
    Executable,
    WorkingDirectory,
    Root,
    Descriptor(i32),
    Namespace(NamespaceKind),
    /// The PID or time namespace for its children.
    OfChildren(NamespaceKind),
}

/// A link to a file, directory or namespace of a subject.
pub(super) struct Link {
    pub identity: Identity,
    pub subject: Subject,
    pub kind: LinkKind,
}

/// Target of a link.
enum Target {
    DirectoryPlace(Path),
    Nameless(Arc<OpenFile>),
    Namespace(NamespaceRef),
}

impl Link {
    fn target(&self) -> Result<Target> {
        let process = check_inspection(self.subject, Mode::READ_FS)?;
        Ok(match self.kind {
            LinkKind::WorkingDirectory => Target::DirectoryPlace(process.fs().cwd()),
            LinkKind::Root => Target::DirectoryPlace(process.fs().root()),
            LinkKind::Executable => {
                let executable = process.space().program().executable.ok_or(Errno::ENOENT)?;
                Target::DirectoryPlace(executable.path().cloned().ok_or(Errno::ENOENT)?)
            }
            LinkKind::Namespace(kind) => {
                if process.exit_status().is_some() {
                    return Err(Errno::ENOENT);
                }
                Target::Namespace(NamespaceRef::of(&process, kind))
            }
            LinkKind::OfChildren(kind) => {
                Target::Namespace(NamespaceRef::of_children(&process, kind).ok_or(Errno::ENOENT)?)
            }
            LinkKind::Descriptor(fd) => {
                let file = process.files().get(fd).map_err(|_| Errno::ENOENT)?;
                if let Some(file) = file.file().downcast::<NamespaceFile>() {
                    return Ok(Target::Namespace(file.namespace().clone()));
                }
                match file.path() {
                    Some(path) => Target::DirectoryPlace(path.clone()),
                    None => Target::Nameless(file),
                }
            }
        })
    }
}

/// Returns the text that /proc/PID/fd shows for a file without a path, such as "pipe:[7]",
/// "socket:[8]", "anon_inode:[eventfd]".
pub(in crate::fs::procfs) fn nameless(file: &OpenFile) -> Result<Vec<u8>> {
    let node = file.node();
    let any: &dyn core::any::Any = &*node;
    let label = any.downcast_ref::<AnonymousNode>().map_or("file", AnonymousNode::label);
    if label.contains(':') {
        return Ok(Vec::try_from_slice(label.as_bytes())?);
    }
    Ok(try_format!("{label}:[{}]", node.identity().inode)?.into_bytes())
}

impl Node for Link {
    fn identity(&self) -> Identity {
        self.identity
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Symlink
    }
    fn metadata(&self) -> Metadata {
        let mut mode = 0o777;
        if let LinkKind::Descriptor(fd) = self.kind
            && let Ok(file) = self.subject.process().and_then(|process| process.files().get(fd))
        {
            let flags = file.flags();
            mode = 0o100 | if flags.reads() { 0o400 } else { 0 } | if flags.writes() { 0o200 } else { 0 };
        }
        let mut meta = metadata(self.subject, self.identity, NodeKind::Symlink, mode);
        meta.size = 64;
        meta
    }
    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Err(Errno::ELOOP)
    }
    fn read_link(&self) -> Result<Vec<u8>> {
        match self.target()? {
            Target::DirectoryPlace(path) => path.display(&task::current().process().fs().root()),
            Target::Nameless(file) => nameless(&file),
            Target::Namespace(namespace) => Ok(namespace.text()?.into_bytes()),
        }
    }
    fn follow(&self) -> Result<LinkTarget> {
        Ok(LinkTarget::Jump(match self.target()? {
            Target::DirectoryPlace(path) => path,
            Target::Nameless(file) => root::unnamed_place(file.node()),
            Target::Namespace(namespace) => root::unnamed_place(reserve::arc(NamespaceNode(namespace))),
        }))
    }
}
