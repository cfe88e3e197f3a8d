//! The nodes' copies of the kernel's text and read-only data: made at start-up, or later on nodes
//! that had too little memory; checked at the end and on request, patched when a static key is
//! turned. One lock orders checks, patches and late copies.

use freehold_collections::Vec;
use freehold_machine::{Cpus as _, NodeId, Topology};
use freehold_replica::{PatchError, ReplicaFault, Replicas, Setting, plan};

use super::hotplug::HOTPLUG;
use super::{Frames, frames};
use crate::hw::memory::replica::{self as image, ImagePort};
use crate::hw::static_keys::{self, KeyState, StaticKey};
use crate::hw::{Hardware, sync::Once};
use crate::sync::Mutex;
use crate::{Errno, Result, sched, time};

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

/// How long a node without a copy waits for memory before it tries again: at first, and at most.
/// Each failure doubles the time, and memory that is plugged in ends it.
const RETRY_DELAYS: [u64; 2] = [time::SECOND, 64 * time::SECOND];

/// Starts the task that makes copies on nodes that had too little memory for them, if there are
/// such nodes. It ends when each has one.
///
/// # Errors
/// `ENOMEM`.
pub fn start_late_copies() -> Result<()> {
    if next_waiting(0).is_some() {
        sched::spawn_kernel("replica", make_late_copies)?;
    }
    Ok(())
}

/// Returns the first node from number `first` on that waits for memory.
fn next_waiting(first: u8) -> Option<NodeId> {
    let replicas = REPLICAS.get()?.lock();
    replicas.waiting().map(|(node, _)| node).find(|node| node.0 >= first)
}

fn make_late_copies() {
    let mut delay = RETRY_DELAYS[0];
    while next_waiting(0).is_some() {
        let before = frames().total_frames();
        let has_grown = || (frames().total_frames() > before).then_some(());
        let grown = HOTPLUG.grown.wait_uninterruptible_until(time::now() + delay, has_grown);
        delay = if grown.is_some() { RETRY_DELAYS[0] } else { RETRY_DELAYS[1].min(2 * delay) };
        let mut next = 0;
        while let Some(node) = next_waiting(next) {
            next = node.0 + 1;
            if !catch_up(node) {
                return;
            }
        }
    }
}

/// Makes a node's copy if the node has memory for it, and as much again as its watermarks ask for.
/// Returns whether later attempts may succeed.
fn catch_up(node: NodeId) -> bool {
    let Some(mut replicas) = REPLICAS.get().map(Mutex::lock) else { return false };
    let needed = replicas.image().pages;
    if frames().level(node).is_none_or(|(free, marks)| free < needed + marks.high) {
        return true;
    }
    match replicas.catch_up(node) {
        Ok(()) => log::info!("numa_replica: node {} has got its copy of the kernel's text", node.0),
        Err(PatchError::OutOfMemory) => {}
        Err(error) => {
            log::error!("numa_replica: node {} gets no copy of the kernel's text: {error}", node.0);
            return false;
        }
    }
    true
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
