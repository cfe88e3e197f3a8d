//! The nodes' copies of the kernel's text and read-only data: made at start-up, checked at the end and on request.

use freehold_machine::{Cpus as _, NodeId, Topology};
use freehold_replica::{ReplicaFault, Replicas, Setting, plan};

use super::{Frames, frames};
use crate::hw::memory::replica::{self as image, ImagePort};
use crate::hw::{Hardware, sync::Once};

static REPLICAS: Once<Replicas<Frames, ImagePort>> = Once::new();

/// Makes the replicas that `setting` asks for on a machine of `cpus` CPUs, and goes on in this CPU's. On the first CPU, before an
/// address space exists.
pub(super) fn init(topology: &Topology, cpus: usize, setting: Setting) {
    let image = image::image(topology);
    let wanted = plan(topology, cpus, image.node, setting);
    let mut without = |node: NodeId| {
        log::warn!("numa_replica: node {} shares the kernel's text with another: too little memory", node.0);
    };
    REPLICAS.set(Replicas::new((frames(), ImagePort), image, wanted, topology, &mut without));
    image::load_own(Hardware.current_cpu());
}

/// The replicas; `None` before the page allocator works.
pub fn replicas() -> Option<&'static Replicas<Frames, ImagePort>> {
    REPLICAS.get()
}

/// Looks at the tables and the owners of all replicas, and compares every byte. Returns how many faults there are, and the first; the
/// log names each.
pub fn check_replicas() -> (u64, Option<ReplicaFault>) {
    let Some(replicas) = replicas() else { return (0, None) };
    let (mut count, mut first) = (0, None);
    let mut found = |fault: ReplicaFault| {
        log::error!("{fault}");
        count += 1;
        first.get_or_insert(fault);
    };
    replicas.validate(&mut found);
    replicas.verify(&mut found);
    (count, first)
}
