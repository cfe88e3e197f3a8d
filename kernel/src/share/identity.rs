//! The identity of a node's file, and the node's place: see the module [`super`] on identity and
//! places.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use freehold_collections::Arc;
use freehold_collections::reserve::{self, ArcMethods};
use freehold_ninep::Attributes;

use super::NodeKey;
use super::fids::Fid;
use super::node::{Body, ShareNode};
use crate::fs::node::NodeKind;
use crate::sync::{Deferred, LetGo, release};
use crate::{Errno, Result, sched};

/// The file's state that the server reported last.
pub(super) struct Known {
    pub fid: Arc<Fid>,
    pub told: Attributes,
    /// The name by which `fid` was found, and the number of the directory in which it was found.
    pub name: Option<(u64, Arc<[u8]>)>,
}

impl Known {
    /// Takes over attributes from the server. A generation that the server reported once is kept.
    pub fn learn(&mut self, told: &Attributes) {
        let generation = told.generation.or(self.told.generation);
        self.told = Attributes { generation, ..*told };
    }

    fn is_named(&self, (dir, name): (&Arc<ShareNode>, &[u8])) -> bool {
        self.name.as_ref().is_some_and(|(number, known)| *number == dir.path && **known == *name)
    }
}

/// Relation of a node to the server's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Standing {
    /// The node's fid leads to its file, as far as the server has reported.
    Named,
    /// One of several names was removed here, and it may be the fid's name. The next name that is
    /// found is taken for the node's own.
    Loose,
    /// The file's last name was removed here.
    Removed,
    /// The server has another file with this number, or none.
    Stale,
}

/// A [`Standing`] that can be changed atomically.
#[derive(Default)]
pub(super) struct AtomicStanding(AtomicU8);

impl AtomicStanding {
    pub fn get(&self) -> Standing {
        match self.0.load(Ordering::Acquire) {
            0 => Standing::Named,
            1 => Standing::Loose,
            2 => Standing::Removed,
            _ => Standing::Stale,
        }
    }
    pub fn set(&self, standing: Standing) {
        self.0.store(standing as u8, Ordering::Release);
    }
    /// Notes that a name leads to the file again.
    fn found(&self) {
        let (before, now) = (Standing::Loose as u8, Standing::Named as u8);
        let _ = self.0.compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The place where a directory was found. A directory keeps its parent alive, to any depth.
/// Dropping such a chain does not recurse.
pub(super) struct Whereabouts {
    pub place: Option<(Arc<ShareNode>, Arc<[u8]>)>,
}

impl LetGo for Whereabouts {
    fn let_go(&mut self) {
        drop(self.place.take());
    }
}

/// Returns the serial of a new node.
pub(super) fn next_serial() -> u64 {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

impl ShareNode {
    /// The node's key among the share's nodes. Of the nodes with one number, the latest is first.
    pub fn key(&self) -> NodeKey {
        (self.path, !self.serial)
    }

    /// Whether `told` has this node's number, its kind of file and no other generation.
    pub(super) fn is_told_of(&self, told: &Attributes) -> bool {
        let known = self.known.lock().told.generation;
        told.qid.path == self.path
            && NodeKind::from_mode(told.mode) == Some(self.kind)
            && known.zip(told.generation).is_none_or(|(known, told)| known == told)
    }

    /// Whether the file that was just `found` under the node's number is the node's own file. If
    /// not, and the node's name does not lead to the node's file either, the node becomes stale.
    ///
    /// # Errors
    /// `ENOMEM`, `EINTR`, `EIO`: the server could not be asked.
    pub fn is_still(&self, told: &Attributes, found: Option<(&Arc<Self>, &[u8])>) -> Result<bool> {
        let standing = self.standing.get();
        if matches!(standing, Standing::Removed | Standing::Stale) {
            return Ok(false);
        }
        if self.is_told_of(told) {
            let known = self.known.lock();
            let has_generation = known.told.generation.and(told.generation).is_some();
            let has_name = found.is_some_and(|found| known.is_named(found));
            if has_generation || has_name || standing == Standing::Loose {
                return Ok(true);
            }
        }
        match self.ask_attributes() {
            Ok(_) => Ok(self.is_told_of(told)),
            Err(error @ (Errno::ENOMEM | Errno::EINTR | Errno::EIO)) => Err(error),
            Err(error) => {
                if matches!(error, Errno::ENOENT | Errno::ENOTDIR) {
                    self.standing.set(Standing::Stale);
                }
                Ok(false)
            }
        }
    }

    /// Updates the node when the server has found it once more.
    ///
    /// # Errors
    /// `ELOOP` for a directory that was found below itself; `EINTR`.
    pub fn found_again(
        &self,
        fid: Arc<Fid>,
        told: &Attributes,
        found: Option<(&Arc<Self>, &[u8])>,
    ) -> Result<()> {
        self.used.store(true, Ordering::Relaxed);
        self.move_to(found)?;
        let is_named = found.is_some_and(|found| self.known.lock().is_named(found));
        let name = found.filter(|_| !is_named).map(|(dir, name)| (dir.path, reserve::slice(name)));
        let before = {
            let mut known = self.known.lock();
            known.learn(told);
            let name = name.and_then(|name| known.name.replace(name));
            (core::mem::replace(&mut known.fid, fid), name)
        };
        drop(before);
        self.standing.found();
        Ok(())
    }

    /// Remembers where a directory was found, unless that is known.
    fn move_to(&self, found: Option<(&Arc<Self>, &[u8])>) -> Result<()> {
        let (Body::Directory(place), Some((dir, name))) = (&self.body, found) else { return Ok(()) };
        let is_known = place
            .lock()
            .as_ref()
            .and_then(|known| known.place.as_ref())
            .is_some_and(|(before, known)| before.is_same(dir) && **known == *name);
        if is_known {
            return Ok(());
        }
        let _moves = self.share.moves.lock_killable()?;
        let mut above = Some(dir.clone());
        while let Some(here) = above {
            if here.serial == self.serial {
                return Err(Errno::ELOOP);
            }
            sched::checkpoint()?;
            above = here.found_in();
        }
        self.set_place(found);
        Ok(())
    }

    /// Returns the directory in which this directory was found.
    fn found_in(&self) -> Option<Arc<Self>> {
        let Body::Directory(place) = &self.body else { return None };
        let place = place.lock();
        place.as_ref()?.place.as_ref().map(|(dir, _)| dir.clone())
    }

    /// Sets a directory's place. The directory is new, or the caller holds the share's `moves` and
    /// has checked that it is not above `found`.
    pub(super) fn set_place(&self, found: Option<(&Arc<Self>, &[u8])>) {
        let (Body::Directory(place), Some((dir, name))) = (&self.body, found) else { return };
        let now = Deferred::new(Whereabouts { place: Some((dir.clone(), reserve::slice(name))) });
        let before = place.lock().replace(now);
        if let Some(before) = before {
            release(before);
        }
    }

    /// Notes that one of the file's names was removed. The server is not asked how many names are
    /// left: it may not know.
    pub fn lost_a_name(&self) {
        let left = {
            let told = &mut self.known.lock().told;
            told.links = if self.kind == NodeKind::Directory { 0 } else { told.links.saturating_sub(1) };
            told.links
        };
        self.standing.set(if left == 0 { Standing::Removed } else { Standing::Loose });
    }
    /// Returns the number by which the server knows the file.
    ///
    /// # Errors
    /// `ENOENT` for a file that was removed here; `ESTALE` for a file that the host removed and
    /// whose number another file has.
    pub fn fid(&self) -> Result<Arc<Fid>> {
        match self.standing.get() {
            Standing::Named | Standing::Loose => Ok(self.known.lock().fid.clone()),
            Standing::Removed => Err(Errno::ENOENT),
            Standing::Stale => Err(Errno::ESTALE),
        }
    }
}
