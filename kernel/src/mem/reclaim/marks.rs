//! `vm.min_free_kbytes`: the memory that programs leave free.

use freehold_machine::NodeId;

use crate::mem::frames;
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// KiB of a frame.
const FRAME: u64 = 4;

/// The setting in KiB as it was written; 0 before the first time.
static WRITTEN: SpinLock<u64> = SpinLock::new(0);

/// Returns `vm.min_free_kbytes`.
pub fn min_free_kib() -> u64 {
    // The computed sum grows with memory that is plugged in.
    (*WRITTEN.lock()).max(frames().watermarks().min * FRAME)
}

/// Sets `vm.min_free_kbytes`.
///
/// # Errors
/// `EINVAL` below what is computed from the amount of memory, and above half of memory.
pub fn set_min_free_kib(kib: u64) -> Result<()> {
    {
        let mut written = WRITTEN.lock();
        frames().set_min_free(kib / FRAME).map_err(|possible| {
            log::warn!(
                "vm.min_free_kbytes: {kib} is not from {} to {}",
                possible.start() * FRAME,
                possible.end() * FRAME
            );
            Errno::EINVAL
        })?;
        *written = kib;
    }
    // There may be less free memory than that.
    (0..freehold_machine::topology::MAX_NODES).for_each(|node| super::wake(NodeId(node as u8)));
    Ok(())
}
