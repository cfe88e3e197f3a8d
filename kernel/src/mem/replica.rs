//! The nodes' copies of the kernel's text and read-only data: made at start-up, checked at the end
//! and on request, patched when a static key is turned. One lock orders checks and patches.

use freehold_collections::Vec;
use freehold_machine::{Cpus as _, NodeId, Topology};
use freehold_replica::{PatchError, ReplicaFault, Replicas, Setting, plan};

use super::{Frames, frames};
use crate::hw::memory::replica::{self as image, ImagePort};
use crate::hw::static_keys::{self, KeyState, StaticKey};
use crate::hw::{Hardware, sync::Once};
use crate::sync::Mutex;
use crate::{Errno, Result};

static REPLICAS: Once<Mutex<Replicas<Frames, ImagePort>>> = Once::new();

/// Makes the replicas that `setting` requests on a machine with `cpus` CPUs, and continues in this
/// CPU's replica. On the first CPU, before an address space exists.
pub(super) fn init(topology: &Topology, cpus: usize, setting: Setting) {
    let image = image::image(topology);
    let wanted = plan(topology, cpus, image.node, setting);
    let mut without = |node: NodeId| {
        log::warn!("numa_replica: node {} shares the kernel's text with another: too little memory", node.0);
    };
    let replicas = Replicas::new((frames(), ImagePort), image, wanted, topology, &mut without);
    REPLICAS.set(Mutex::new(replicas));
    image::load_own(Hardware.current_cpu());
}

/// Returns the replicas; `None` before the page allocator works. No CPU patches text while their
/// lock is held.
pub fn replicas() -> Option<&'static Mutex<Replicas<Frames, ImagePort>>> {
    REPLICAS.get()
}

/// The bytes that a check compares on a machine whose nodes have no replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checks {
    /// Nothing.
    Replicas,
    /// The image with the build's record.
    Image,
}

/// Checks the tables and the owners of all replicas, and compares every byte. Returns the number of
/// faults, and the first one; the log has all of them.
pub fn check_replicas(without: Checks) -> (u64, Option<ReplicaFault>) {
    let Some(mut replicas) = replicas().map(Mutex::lock) else { return (0, None) };
    let (mut count, mut first) = (0, None);
    let mut found = |fault: ReplicaFault| {
        log::error!("{fault}");
        count += 1;
        first.get_or_insert(fault);
    };
    replicas.validate(&mut found);
    if without == Checks::Image || !replicas.is_empty() {
        replicas.verify(&mut found);
    }
    (count, first)
}

/// Turns a static key. When this returns, every CPU uses its new state.
///
/// # Errors
/// `ENOMEM` without memory for patching; `EIO` if the text differs from the expected one, which is
/// logged. Then the key is unchanged.
pub fn turn_key(key: StaticKey, to: KeyState) -> Result<()> {
    let mut replicas = replicas().ok_or(Errno::ENODEV)?.lock();
    let before = static_keys::state(key);
    if before == to {
        return Ok(());
    }
    let mut patches = Vec::new();
    for patch in static_keys::patches(key, to) {
        patches.try_push(patch)?;
    }
    // The key is turned first: from the first patched byte on, INT3 acts by the key's new state.
    static_keys::turn(key, to);
    replicas.patch(&patches).map_err(|error| {
        static_keys::turn(key, before);
        if error == PatchError::OutOfMemory {
            return Errno::ENOMEM;
        }
        log::error!("{} stays as it is: {error}", key.name());
        Errno::EIO
    })
}
