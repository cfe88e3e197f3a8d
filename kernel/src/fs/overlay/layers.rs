//! The lower trees of an overlay.
//!
//! The inode numbers of all trees are shown as numbers on one device. A number of the upper tree
//! has the highest bit set. In a number of a lower tree, the six bits below it are the index of the
//! tree's device. A number that uses these bits itself is shown on a second, otherwise unused
//! device.

use freehold_collections::{Arc, Vec};

use crate::Result;
use crate::fs::device::unnamed_device;
use crate::fs::mount::FileSystem;
use crate::fs::node::{Identity, Node};
use crate::fs::path::Path;

/// Distinguishes the upper tree's inode numbers from the lower trees'.
pub(super) const UPPER_BIT: u64 = 1 << 63;
/// Lowest of the bits that are the index of a lower tree's device.
const DEVICE_SHIFT: u32 = 57;
const DEVICES: usize = 1 << (63 - DEVICE_SHIFT);

/// An inode of a lower tree.
#[derive(Clone)]
pub(super) struct Below {
    /// The tree's number, from the top.
    pub tree: usize,
    /// The inode.
    pub node: Arc<dyn Node>,
}

/// A device that lower trees are on.
struct LowerDevice {
    device: u64,
    /// The second device, for inodes whose numbers use the index' bits themselves.
    far: u64,
}

/// The lower trees.
pub(super) struct LowerTrees {
    /// The devices, in the order of the first tree on each.
    devices: Vec<LowerDevice>,
    /// For each tree, the index of its device.
    device_of: Vec<usize>,
    /// Kept as long as their nodes are in use.
    _file_systems: Vec<Arc<dyn FileSystem>>,
}

impl LowerTrees {
    /// Makes the list of lower trees from their roots, the uppermost first.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(roots: &[Path]) -> Result<Self> {
        let mut devices: Vec<LowerDevice> = Vec::new();
        let mut device_of = Vec::try_with_capacity(roots.len())?;
        let mut file_systems = Vec::try_with_capacity(roots.len())?;
        for root in roots {
            let device = root.node.identity().device;
            let place = match devices.iter().position(|known| known.device == device) {
                Some(place) => place,
                None => {
                    devices.try_push(LowerDevice { device, far: unnamed_device() })?;
                    devices.len() - 1
                }
            };
            device_of.try_push(place)?;
            file_systems.try_push(root.mount.file_system().clone())?;
        }
        Ok(Self { devices, device_of, _file_systems: file_systems })
    }

    /// The number of lower trees.
    pub fn count(&self) -> usize {
        self.device_of.len()
    }

    /// The first tree that is on `device`.
    pub fn on(&self, device: u64) -> Option<usize> {
        let place = self.devices.iter().position(|known| known.device == device)?;
        self.device_of.iter().position(|&of| of == place)
    }

    /// Returns the identity that inode number `inode` of `tree` has in a merged tree of `device`.
    pub fn shown(&self, tree: usize, inode: u64, device: u64) -> Identity {
        let place = self.device_of.get(tree).copied().unwrap_or(0);
        if inode >> DEVICE_SHIFT == 0 && place < DEVICES {
            return Identity { device, inode: inode | (place as u64) << DEVICE_SHIFT };
        }
        Identity { device: self.devices.get(place).map_or(device, |known| known.far), inode }
    }
}
