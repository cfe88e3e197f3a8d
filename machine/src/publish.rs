//! Memory that a confidential guest, whose memory is private, shares with the host.

use core::fmt;

use crate::PfnRange;

/// The host did not make the memory visible. The memory stays private.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotPublished;

/// The host does not confirm that the memory is private again. The memory must stay out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotWithdrawn;

/// How a confidential guest shows memory to the host, and so to the host's devices (Linux:
/// `set_memory_decrypted`, `set_memory_encrypted`). A guest whose memory the host sees anyway has
/// no implementation.
///
/// Tasks and start-up call this, with interrupts on. Frames in the arguments are the caller's; no
/// two calls at a time name the same frame. The frames' contents after a call that succeeds are
/// undefined.
pub trait Publish: fmt::Debug + Send + Sync {
    /// Makes `frames`, which are private, visible.
    ///
    /// # Errors
    /// [`NotPublished`]; all of them are private.
    fn publish(&self, frames: PfnRange) -> Result<(), NotPublished>;
    /// Makes `frames`, which are visible, private.
    ///
    /// # Errors
    /// [`NotWithdrawn`]; the host may see any of them for ever.
    fn withdraw(&self, frames: PfnRange) -> Result<(), NotWithdrawn>;
}
