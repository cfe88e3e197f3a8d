//! Path resolution: from a path's text to a place (path_resolution(7)).
//!
//! No lock is held between components: each step is one lookup in one directory. With a concurrent
//! rename, each step sees the old or the new tree, as on Linux' slow path. Symbolic links are
//! spliced into the remaining text, at most 40 of them.

use core::ops::Deref;

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
};

use super::caller::{Access, Caller};
use super::flags::ResolveFlags;
use super::learned;
use super::mount::{Mount, MountRef};
use super::node::{LinkTarget, Node, NodeKind};
use super::path::{Path, PathEntry, WalkSteps};
use crate::task::Capability;
use crate::{Errno, Result};

/// Longest name of one component.
pub const NAME_MAX: usize = 255;
pub use crate::user::PATH_MAX;
const MAX_LINKS: u32 = 40;

/// Treatment of a symbolic link as the last component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Final {
    /// Follow it.
    Follow,
    /// Stop at it.
    Stop,
}

/// The last component of a path whose directory was found.
#[derive(PartialEq, Eq, Debug)]
pub enum Last {
    /// A name, to be looked up or created in the directory.
    Name(Vec<u8>),
    /// "." (or nothing): the directory itself.
    Dot,
    /// "..".
    DotDot,
    /// The path was "/" (or slashes only).
    Root,
}

impl Last {
    fn of(name: &[u8]) -> Result<Self> {
        Ok(match name {
            b"." => Self::Dot,
            b".." => Self::DotDot,
            name => Self::Name(Vec::try_from_slice(name)?),
        })
    }
}

/// A component of a path's text.
struct Component<'a> {
    name: &'a [u8],
    /// End of the component in the text.
    end: usize,
    is_last: bool,
    trailing: Trailing,
}

impl<'a> Component<'a> {
    /// Returns the first component from `at` on; `None` if only slashes are left.
    fn after(text: &'a [u8], at: usize) -> Option<Self> {
        let at = at + text[at..].iter().take_while(|&&byte| byte == b'/').count();
        if at == text.len() {
            return None;
        }
        let end = at + text[at..].iter().take_while(|&&byte| byte != b'/').count();
        let is_last = text[end..].iter().all(|&byte| byte == b'/');
        let trailing = if end < text.len() { Trailing::Slash } else { Trailing::Nothing };
        Some(Self { name: &text[at..end], end, is_last, trailing })
    }
}

/// Result of [`PathWalk::parent`].
pub struct Parent {
    /// The directory.
    pub dir: Path,
    /// The last component.
    pub last: Last,
    /// Whether slashes follow the last component, so that it must be a directory.
    pub trailing: Trailing,
}

/// Whether slashes follow the last component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trailing {
    /// No slash.
    Nothing,
    /// One or more.
    Slash,
}

/// One path resolution: its start, its root, and its caller.
#[derive(Clone, Copy)]
pub struct PathWalk<'a> {
    /// The directory of "/", above which ".." does not lead.
    pub root: &'a Path,
    /// The place where a relative path begins.
    pub start: &'a Path,
    /// The caller.
    pub caller: &'a Caller<'a>,
    /// openat2's restrictions.
    pub resolve: ResolveFlags,
}

/// The goal of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    Whole(Final),
    Parent,
}

/// The place that a walk has reached. References to it are lent or moved if possible: all tasks
/// that use a directory share the cache line of its reference count.
enum Here<'a> {
    Lent(&'a Path),
    Own(Path),
}

impl Here<'_> {
    fn into_own(self) -> Path {
        match self {
            Self::Lent(place) => place.clone(),
            Self::Own(place) => place,
        }
    }
    fn into_mount(self) -> MountRef {
        match self {
            Self::Lent(place) => place.mount.clone(),
            Self::Own(place) => place.mount,
        }
    }
}

impl Deref for Here<'_> {
    type Target = Path;
    fn deref(&self) -> &Path {
        match self {
            Self::Lent(place) => place,
            Self::Own(place) => place,
        }
    }
}

impl<'a> PathWalk<'a> {
    /// Makes a walk without restrictions.
    pub fn new(root: &'a Path, start: &'a Path, caller: &'a Caller<'a>) -> Self {
        Self { root, start, caller, resolve: ResolveFlags::empty() }
    }

    /// Returns the place of `text`: `ENOENT` for an empty path or a missing name.
    pub fn find(&self, text: &[u8], last: Final) -> Result<Path> {
        self.run(Here::Lent(self.start), text, Goal::Whole(last), &mut 0).map(|found| found.dir)
    }

    /// Returns the directory of the last component of `text`, and that component, not looked up
    /// yet.
    pub fn parent(&self, text: &[u8]) -> Result<Parent> {
        self.run(Here::Lent(self.start), text, Goal::Parent, &mut 0)
    }

    /// Like [`PathWalk::parent`], for the text of a symbolic link in `dir`; `links` counts the
    /// links that were followed.
    pub fn parent_from(&self, dir: Path, text: &[u8], links: &mut u32) -> Result<Parent> {
        self.run(Here::Own(dir), text, Goal::Parent, links)
    }

    /// Returns the place of `name` in `dir`. Enters mounts over it, but does not follow links.
    pub fn child(&self, dir: &Path, name: &[u8]) -> Result<Path> {
        let node = self.look_up(dir, name)?;
        let covering = dir.mount.covering(&node);
        self.enter(Here::Lent(dir), node, covering, name)
    }

    fn look_up(&self, dir: &Path, name: &[u8]) -> Result<Arc<dyn Node>> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let node = dir.node.lookup(name)?;
        learned::note(dir, name);
        Ok(node)
    }

    /// Reads the link `node` to follow it; `ELOOP` if too many links were followed. A magic link
    /// gives a place at once; the caller resolves a text.
    pub fn read_for_follow(&self, node: &Arc<dyn Node>, links: &mut u32) -> Result<LinkTarget> {
        if self.resolve.contains(ResolveFlags::NO_SYMLINKS) || *links == MAX_LINKS {
            return Err(Errno::ELOOP);
        }
        *links += 1;
        let target = node.follow()?;
        match &target {
            LinkTarget::Text(text) if text.is_empty() => return Err(Errno::ENOENT),
            LinkTarget::Jump(_) if self.resolve.contains(ResolveFlags::NO_MAGICLINKS) => {
                return Err(Errno::ELOOP);
            }
            LinkTarget::Jump(_) if self.resolve.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT) => {
                return Err(Errno::EXDEV);
            }
            _ => {}
        }
        Ok(target)
    }

    fn run(&self, start: Here<'_>, text: &[u8], goal: Goal, links: &mut u32) -> Result<Parent> {
        if text.is_empty() {
            return Err(Errno::ENOENT);
        }
        if text.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut here = if text[0] == b'/' { self.root_start()? } else { start };
        // The remaining text, after a symbolic link was followed.
        let mut spliced: Vec<u8>;
        let mut rest = text;
        let mut at = 0;
        let mut steps = WalkSteps::default();
        loop {
            steps.advance()?;
            let Some(Component { name, end, is_last, trailing }) = Component::after(rest, at) else {
                return Ok(Parent { dir: here.into_own(), last: Last::Root, trailing: Trailing::Slash });
            };
            self.check_searchable(&here)?;
            if is_last && goal == Goal::Parent {
                return Ok(Parent { dir: here.into_own(), last: Last::of(name)?, trailing });
            }
            match name {
                b"." => {}
                b".." => here = Here::Own(self.up(here.into_own())?),
                name => {
                    let node = self.look_up(&here, name)?;
                    let covering = here.mount.covering(&node);
                    let follow =
                        !is_last || goal == Goal::Whole(Final::Follow) || trailing == Trailing::Slash;
                    if follow && covering.is_none() && node.kind() == NodeKind::Symlink {
                        match self.read_for_follow(&node, links)? {
                            LinkTarget::Text(mut target) => {
                                if target[0] == b'/' {
                                    here = self.root_start()?;
                                }
                                target.try_extend_from_slice(&rest[end..])?;
                                spliced = target;
                                rest = &spliced;
                                at = 0;
                                continue;
                            }
                            LinkTarget::Jump(place) => here = Here::Own(place),
                        }
                    } else {
                        here = Here::Own(self.enter(here, node, covering, name)?);
                    }
                    if trailing == Trailing::Slash && here.node.kind() != NodeKind::Directory {
                        return Err(Errno::ENOTDIR);
                    }
                }
            }
            if is_last {
                return Ok(Parent { dir: here.into_own(), last: Last::Dot, trailing });
            }
            at = end;
        }
    }

    /// Returns the place at which an absolute path begins.
    fn root_start(&self) -> Result<Here<'a>> {
        if self.resolve.contains(ResolveFlags::IN_ROOT) {
            return Ok(Here::Lent(self.start));
        }
        if self.resolve.contains(ResolveFlags::BENEATH) {
            return Err(Errno::EXDEV);
        }
        self.check_mount(self.root)?;
        Ok(Here::Lent(self.root))
    }

    fn check_mount(&self, place: &Path) -> Result<()> {
        let crossed = !place.mount.is_same(&self.start.mount);
        if crossed && self.resolve.contains(ResolveFlags::NO_XDEV) { Err(Errno::EXDEV) } else { Ok(()) }
    }

    fn check_searchable(&self, dir: &Path) -> Result<()> {
        if dir.node.kind() != NodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if self.caller.may_for_all(Capability::DacOverride) {
            return Ok(());
        }
        self.caller.may_use(&*dir.node, Access::EXECUTE)
    }

    /// Returns the place of `node`, which was just looked up in `dir` as `name`, or the place of
    /// the mount over it.
    fn enter(
        &self,
        dir: Here<'_>,
        node: Arc<dyn Node>,
        covering: Option<Arc<Mount>>,
        name: &[u8],
    ) -> Result<Path> {
        let Some(mut covering) = covering else {
            if node.kind() == NodeKind::Directory {
                return Ok(Path { mount: dir.into_mount(), node, entry: None });
            }
            let name = Vec::try_from_slice(name)?;
            let Path { mount, node: dir, .. } = dir.into_own();
            return Ok(Path { mount, node, entry: Some(reserve::arc(PathEntry::new(dir, name))) });
        };
        let mut steps = WalkSteps::default();
        while let Some(upper) = covering.covering(covering.root()) {
            steps.advance()?;
            covering = upper;
        }
        let place = Path::root_of(covering);
        self.check_mount(&place)?;
        Ok(place)
    }

    fn up(&self, mut here: Path) -> Result<Path> {
        let scoped = self.resolve.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT);
        let mut steps = WalkSteps::default();
        loop {
            steps.advance()?;
            if scoped && here.same_place(self.start) {
                return if self.resolve.contains(ResolveFlags::BENEATH) {
                    Err(Errno::EXDEV)
                } else {
                    Ok(here)
                };
            }
            if here.same_place(self.root) {
                return Ok(here);
            }
            if !here.is_mount_root() {
                break;
            }
            match here.mount.mountpoint() {
                Some(below) => here = below,
                None => return Ok(here),
            }
        }
        self.check_mount(&here)?;
        let Some(dir) = here.node.parent_dir() else { return Ok(here) };
        here = Path { mount: here.mount, node: dir, entry: None };
        // Linux: `path_connected` in fs/namei.c.
        if !here.is_below_mount_root()? {
            return Err(Errno::ENOENT);
        }
        // A directory of the path was moved: only a new walk can determine the result.
        if scoped && !here.is_below(self.start)? {
            return Err(Errno::EAGAIN);
        }
        here.topmost()
    }
}
