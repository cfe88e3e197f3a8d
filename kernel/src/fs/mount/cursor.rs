//! A walk over a tree of mounts that rests between two steps, while the tree may change.

use arrayvec::ArrayVec;
use freehold_collections::{Arc, Receiver, Weak, reserve::ArcMethods as _};

use super::Mount;
use crate::Result;
use crate::fs::path::WalkSteps;

/// Places above the present one from which the walk can go on if the mounts below are gone.
const KNOWN: usize = 8;

/// The place in a walk over all mounts of a tree, parents before the mounts in them. It holds no
/// mount: what is unmounted goes at once. A walk goes on where it was unless the mount shown last
/// and the [`KNOWN`] above it were all unmounted since; then it ends.
pub struct MountCursor {
    shown: Option<Weak<Mount>>,
    /// The mounts above the one shown last, the nearest first, each with the number of the child
    /// that the walk went into.
    above: ArrayVec<(Weak<Mount>, u64), KNOWN>,
}

impl MountCursor {
    /// Makes a cursor before the first mount.
    pub const fn new() -> Self {
        Self { shown: None, above: ArrayVec::new_const() }
    }

    /// Moves on to the next mount of the tree below `root`, `root` itself at first. Returns `None`
    /// behind the last.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    pub fn next(&mut self, root: &Arc<Mount>) -> Result<Option<Arc<Mount>>> {
        let next = match &self.shown {
            None => Some(root.clone()),
            Some(shown) => match attached(shown, root)? {
                Some(shown) => match shown.child_from(0) {
                    Some(child) => Some(child),
                    None => shown.sibling(root)?,
                },
                None => self.behind_lost(root)?,
            },
        };
        self.above.clear();
        let mut here = next.clone();
        while let Some((mount, order)) = here.take().and_then(|mount| mount.hangs_at()) {
            if self.above.try_push((mount.downgrade(), order)).is_err() {
                break;
            }
            here = Some(mount);
        }
        self.shown = Some(next.as_ref().map_or_else(<Weak<Mount>>::new, |mount| mount.downgrade()));
        Ok(next)
    }

    /// The mount that follows the one shown last, which was unmounted.
    fn behind_lost(&self, root: &Arc<Mount>) -> Result<Option<Arc<Mount>>> {
        for (mount, order) in &self.above {
            if let Some(mount) = attached(mount, root)? {
                return match mount.child_from(order + 1) {
                    Some(child) => Ok(Some(child)),
                    None => mount.sibling(root),
                };
            }
        }
        Ok(None)
    }
}

/// The mount, if it is still in the tree below `root`.
fn attached(mount: &Weak<Mount>, root: &Arc<Mount>) -> Result<Option<Arc<Mount>>> {
    let Some(mount) = mount.upgrade() else { return Ok(None) };
    Ok(if mount.hangs_in(root)? { Some(mount) } else { None })
}

impl Mount {
    /// The first mount that hangs in this one and came as number `order` or later.
    fn child_from(&self, order: u64) -> Option<Arc<Mount>> {
        self.children.lock().as_ref().and_then(|list| list.next(order)).map(|(_, child)| child)
    }

    /// The mount that this one hangs in, and its number there.
    fn hangs_at(&self) -> Option<(Arc<Mount>, u64)> {
        self.covers.lock().as_ref().map(|covered| (covered.place.mount.arc(), covered.key.1))
    }

    /// The mount that follows this one, and all in it, in the tree below `root`.
    fn sibling(self: &Receiver<Self>, root: &Arc<Mount>) -> Result<Option<Arc<Mount>>> {
        let (mut here, mut steps) = (self.clone(), WalkSteps::default());
        while !here.is_same(root) {
            let Some((above, order)) = here.hangs_at() else { break };
            if let Some(next) = above.child_from(order + 1) {
                return Ok(Some(next));
            }
            steps.advance()?;
            here = above;
        }
        Ok(None)
    }
}
