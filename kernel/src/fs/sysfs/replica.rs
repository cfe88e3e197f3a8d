//! /sys/kernel/debug/replica: the nodes that have a copy of the kernel's text and read-only data.
//! Writing 1 compares every byte.

use crate::fs::generated::{Generate, Text};
use crate::mem::Checks;
use crate::sync::Mutex;
use crate::{Errno, Result, hw, mem, sched};

/// The file.
pub(super) struct Replica;

impl Generate for Replica {
    /// A line for the image, one for each node with a replica or one that waits for it, and one for
    /// roots.
    fn show(&self, out: &mut Text) -> Result<()> {
        let Some(replicas) = mem::replicas().map(Mutex::lock) else { return Ok(()) };
        let image = replicas.image();
        writeln!(out, "image: node {}, {} pages", image.node.0, image.pages);
        for figures in replicas.figures() {
            writeln!(out, "node {}: {} frames, {} tables", figures.node.0, figures.frames, figures.tables);
        }
        for (node, place) in replicas.waiting() {
            writeln!(out, "node {} waits for memory and shares node {}'s", node.0, place.0);
        }
        let (spare, missed) = (sched::spare_roots(), sched::spares_missed());
        let shared = hw::replicas::shared_load_count();
        writeln!(out, "roots: {spare} spare, {missed} not made, {shared} loads of another node's");
        Ok(())
    }

    /// Handles `1`: compares all bytes, tables and owners, and pages without patches with the
    /// build's. `EIO` if there is a difference, which is logged.
    fn store(&self, bytes: &[u8]) -> Result<()> {
        if bytes.trim_ascii() != b"1" {
            return Err(Errno::EINVAL);
        }
        if mem::check_replicas(Checks::Image).0 == 0 { Ok(()) } else { Err(Errno::EIO) }
    }
}
