//! Making, removing and moving names of a merged tree.
//!
//! Each change is prepared in the work directory and becomes visible in one step, a rename in the
//! upper tree. It looks up all trees again under `names`, so that its decisions stay valid.

use freehold_collections::{Arc, Vec};

use super::listing::Listing;
use super::node::{Entry, OverlayNode};
use super::{OPAQUE, OverlayShared, is_within, remove_whiteouts};
use crate::fs::flags::RenameFlags;
use crate::fs::node::{NewNode, Node, NodeKind, XattrSet};
use crate::{Errno, Result};

/// Makes a node of the upper tree in a directory, under a name.
type Make<'a> = &'a dyn Fn(&Arc<dyn Node>, &[u8]) -> Result<Arc<dyn Node>>;

impl OverlayNode {
    /// Makes a new node named `name`; `EEXIST` if the name is visible.
    pub fn make(&self, name: &[u8], kind: NodeKind, make: Make<'_>) -> Result<Arc<OverlayNode>> {
        let dir = self.copy_up(u64::MAX)?;
        let _names = self.shared.names.lock_killable()?;
        if self.is_removed() {
            return Err(Errno::ENOENT);
        }
        let entry = self.entry(name)?;
        if !entry.is_free() {
            return Err(Errno::EEXIST);
        }
        let covers = if entry.upper.is_some() { WhiteoutThere::Yes } else { WhiteoutThere::No };
        let temporary = self.shared.temporary_name()?;
        let made = make(self.shared.work()?, &temporary)?;
        let named = self.name_made(&dir, name, (&temporary, &made), covers);
        if named.is_err() {
            self.shared.remove_from_work(&temporary, kind)?;
        }
        named
    }

    /// Gives a node that was made in the work directory its name, once its overlay node is known. A
    /// whiteout at that name is replaced.
    fn name_made(
        &self,
        dir: &Arc<dyn Node>,
        name: &[u8],
        (temporary, made): (&[u8], &Arc<dyn Node>),
        covers: WhiteoutThere,
    ) -> Result<Arc<OverlayNode>> {
        let work = self.shared.work()?;
        let node = self.node_at(Entry { upper: Some(made.clone()), lower: Vec::new() }, name)?;
        if !node.is_directory() {
            work.rename(temporary, dir, name, RenameFlags::empty())?;
            return Ok(node);
        }
        node.hide_lower_in(self)?;
        match covers {
            WhiteoutThere::No => work.rename(temporary, dir, name, RenameFlags::NOREPLACE)?,
            // A directory cannot replace the whiteout by a rename, so both are exchanged.
            WhiteoutThere::Yes => {
                work.rename(temporary, dir, name, RenameFlags::EXCHANGE)?;
                work.unlink(temporary)?;
            }
        }
        Ok(node)
    }

    /// unlink(2).
    pub fn remove_file(&self, name: &[u8]) -> Result<()> {
        self.remove(name, |gone| if gone.is_directory() { Err(Errno::EISDIR) } else { Ok(()) })
    }

    /// rmdir(2).
    pub fn remove_directory(&self, name: &[u8]) -> Result<()> {
        self.remove(name, Self::check_empty)
    }

    /// Removes the name of a node, if `check` permits it.
    fn remove(&self, name: &[u8], check: fn(&Self) -> Result<()>) -> Result<()> {
        // Checked first: a refused removal copies nothing up.
        check(&*self.child(name)?)?;
        let dir = self.copy_up(u64::MAX)?;
        let _names = self.shared.names.lock_killable()?;
        let entry = self.entry(name)?;
        let has_lower = !entry.lower.is_empty();
        let gone = self.node_at(entry, name)?;
        check(&gone)?;
        match (gone.upper().filter(|_| gone.is_directory()), has_lower) {
            (Some(upper), _) => {
                gone.empty_for_good(&upper)?;
                if has_lower { self.shared.cover_directory(&dir, name)? } else { dir.remove_dir(name)? }
            }
            (None, true) => self.shared.cover(&dir, name)?,
            (None, false) => dir.unlink(name)?,
        }
        gone.lost_its_name();
        Ok(())
    }

    /// `ENOTDIR` or `ENOTEMPTY` unless the node is a directory without visible entries.
    fn check_empty(&self) -> Result<()> {
        if !self.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        if Listing::of_merged(self)?.is_empty() { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }

    /// Removes the whiteouts from a directory without visible entries, and makes the directory
    /// opaque, so that the covered files stay hidden.
    fn empty_for_good(&self, upper: &Arc<dyn Node>) -> Result<()> {
        if self.lower().is_some() {
            upper.set_xattr(OPAQUE, b"y", XattrSet::Any)?;
            self.set_opaque();
        }
        remove_whiteouts(upper)
    }

    /// renameat2(2) to `new_name` in `to`.
    pub fn move_name(&self, name: &[u8], to: &Arc<Self>, new_name: &[u8], flags: RenameFlags) -> Result<()> {
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        loop {
            let (moving, victim) = (self.child(name)?, existing(to.child(new_name))?);
            if self.check_move(to, &moving, victim.as_ref(), flags)? == Move::Nothing {
                return Ok(());
            }
            moving.copy_up(u64::MAX)?;
            if let Some(victim) = victim.as_ref().filter(|_| exchanges) {
                victim.copy_up(u64::MAX)?;
            }
            let (from_dir, to_dir) = (self.copy_up(u64::MAX)?, to.copy_up(u64::MAX)?);
            let _names = self.shared.names.lock_killable()?;
            let (here, there) = (self.entry(name)?, to.entry(new_name)?);
            let stays = !here.lower.is_empty();
            let (moving, victim) = (self.node_at(here, name)?, existing(to.child(new_name))?);
            if self.check_move(to, &moving, victim.as_ref(), flags)? == Move::Nothing {
                return Ok(());
            }
            let is_above = |node: &&Arc<Self>| node.upper().is_some();
            let Some(upper) = moving.upper() else { continue };
            if exchanges {
                let Some(victim) = victim.as_ref().filter(is_above) else { continue };
                moving.hide_lower_in(to)?;
                victim.hide_lower_in(self)?;
                from_dir.rename(name, &to_dir, new_name, flags)?;
                victim.moved_to(&self.me(), name);
            } else {
                moving.hide_lower_in(to)?;
                if let Some(replaced) =
                    victim.as_ref().filter(|node| node.is_directory()).and_then(|n| n.upper())
                {
                    victim.as_ref().map_or(Ok(()), |victim| victim.empty_for_good(&replaced))?;
                }
                let leaves = if stays { RenameFlags::WHITEOUT } else { RenameFlags::empty() };
                if there.is_whiteout() && upper.kind() == NodeKind::Directory {
                    // A directory cannot replace a whiteout, so both are exchanged: the whiteout
                    // gets the old name.
                    from_dir.rename(name, &to_dir, new_name, RenameFlags::EXCHANGE)?;
                    if !stays {
                        from_dir.unlink(name)?;
                    }
                } else {
                    from_dir.rename(name, &to_dir, new_name, leaves)?;
                }
                if let Some(victim) = victim {
                    victim.lost_its_name();
                }
            }
            moving.moved_to(to, new_name);
            return Ok(());
        }
    }

    /// Notes the new place of a moved node. Only directories know their places.
    fn moved_to(&self, dir: &Arc<Self>, name: &[u8]) {
        if self.is_directory() {
            self.set_place(dir, name);
        }
    }

    /// Makes a moved directory opaque if lower trees have names at its new place, so that it is not
    /// merged with them.
    fn hide_lower_in(&self, dir: &Self) -> Result<()> {
        match self.upper().filter(|_| self.is_directory() && dir.lower().is_some()) {
            Some(upper) => upper.set_xattr(OPAQUE, b"y", XattrSet::Any),
            None => Ok(()),
        }
    }

    /// Checks that a rename is permitted, and whether it changes anything.
    fn check_move(
        &self,
        to: &Arc<Self>,
        moving: &Arc<Self>,
        victim: Option<&Arc<Self>>,
        flags: RenameFlags,
    ) -> Result<Move> {
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        let is_in = |dir: Arc<dyn Node>, node: &Arc<Self>| {
            let node: Arc<dyn Node> = node.clone();
            is_within(&dir, &node)
        };
        if self.is_removed() || to.is_removed() || (exchanges && victim.is_none()) {
            return Err(Errno::ENOENT);
        }
        if victim.is_some() && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::FREE) {
            return Err(Errno::EEXIST);
        }
        if moving.is_directory() && is_in(to.clone(), moving) {
            return Err(Errno::EINVAL);
        }
        if let Some(victim) = victim {
            if victim.is_directory() && is_in(self.me(), victim) {
                return Err(if exchanges { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            if victim.identity() == moving.identity() {
                return Ok(Move::Nothing);
            }
            match (victim.is_directory(), moving.is_directory()) {
                _ if exchanges => {}
                (true, false) => return Err(Errno::EISDIR),
                (false, true) => return Err(Errno::ENOTDIR),
                _ => {}
            }
        }
        // The directory's part in a lower tree cannot be moved.
        let stays = |node: &Arc<Self>| node.is_directory() && node.lower().is_some();
        if stays(moving) || (exchanges && victim.is_some_and(stays)) {
            return Err(Errno::EXDEV);
        }
        if let Some(victim) = victim.filter(|victim| victim.is_directory() && !exchanges) {
            victim.check_empty()?;
        }
        Ok(Move::Something)
    }
}

/// Whether a free name has a whiteout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhiteoutThere {
    Yes,
    No,
}

/// Whether a rename changes anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    /// The rename changes names.
    Something,
    /// Both names are names of one file.
    Nothing,
}

fn existing(found: Result<Arc<OverlayNode>>) -> Result<Option<Arc<OverlayNode>>> {
    match found {
        Ok(node) => Ok(Some(node)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

impl OverlayShared {
    /// Makes a whiteout in the work directory.
    fn new_whiteout(&self) -> Result<Vec<u8>> {
        let name = self.temporary_name()?;
        self.work()?.create(&name, &NewNode::WHITEOUT)?;
        Ok(name)
    }

    /// Replaces `name`, which is no directory of the upper tree, by a whiteout.
    fn cover(&self, dir: &Arc<dyn Node>, name: &[u8]) -> Result<()> {
        let (work, whiteout) = (self.work()?, self.new_whiteout()?);
        let covered = work.rename(&whiteout, dir, name, RenameFlags::empty());
        if covered.is_err() {
            work.unlink(&whiteout)?;
        }
        covered
    }

    /// Replaces `name`, an empty directory of the upper tree, by a whiteout.
    fn cover_directory(&self, dir: &Arc<dyn Node>, name: &[u8]) -> Result<()> {
        let (work, whiteout) = (self.work()?, self.new_whiteout()?);
        let covered = work.rename(&whiteout, dir, name, RenameFlags::EXCHANGE);
        if covered.is_err() {
            work.unlink(&whiteout)?;
        }
        covered?;
        work.remove_dir(&whiteout)
    }
}
