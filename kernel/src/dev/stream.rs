//! Byte streams to and from the host, for tasks that wait.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, reserve};

use crate::Result;
use crate::sync::WaitQueue;

pub use freehold_virtio::ByteStream;

/// A host stream and the queue that its interrupts wake.
pub struct HostStream {
    bytes: Arc<dyn ByteStream>,
    changed: Arc<WaitQueue>,
    /// The stream has no reader on the host any more.
    deserted: AtomicBool,
}

impl HostStream {
    /// `changed` is woken whenever bytes may have come or room may have been made.
    pub fn new(bytes: Arc<dyn ByteStream>, changed: Arc<WaitQueue>) -> Arc<Self> {
        reserve::arc(Self { bytes, changed, deserted: AtomicBool::new(false) })
    }

    /// Woken whenever a look may be worthwhile.
    pub fn changed(&self) -> &Arc<WaitQueue> {
        &self.changed
    }

    /// Notes that the stream has no reader on the host any more: writing breaks the pipe.
    pub fn desert(&self) {
        self.deserted.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Whether the host still reads it.
    pub fn has_reader(&self) -> bool {
        !self.deserted.load(Ordering::SeqCst)
    }

    /// Bytes that have come; 0 where none have. From a device that failed none ever come.
    pub fn try_read(&self, bytes: &mut [u8]) -> usize {
        self.bytes.try_read(bytes).unwrap_or(0)
    }

    /// Writes to the host; returns how many of `bytes` it takes now. A device that failed swallows
    /// all of them: it has no reader.
    pub fn try_write(&self, bytes: &[u8]) -> usize {
        self.bytes.try_write(bytes).unwrap_or(bytes.len())
    }

    /// Whether a read would find bytes.
    pub fn is_readable(&self) -> bool {
        self.bytes.is_readable()
    }

    /// Whether a write would find room.
    pub fn is_writable(&self) -> bool {
        self.bytes.is_writable()
    }

    /// Wait until the host has taken all that was written.
    ///
    /// # Errors
    /// `ERESTARTSYS` on a signal.
    pub fn drain(&self) -> Result<()> {
        // The device interrupts for room, not for emptiness: look now and then.
        const LOOK_NS: u64 = 200_000;
        while !self.bytes.is_drained() {
            let deadline = crate::time::now() + LOOK_NS;
            self.changed.wait_until_deadline(Some(deadline), || self.bytes.is_drained().then_some(()))?;
        }
        Ok(())
    }
}
