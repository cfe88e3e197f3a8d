//! Byte streams to and from the host, for tasks that wait.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, reserve};

use crate::Result;
use crate::sync::WaitQueue;

pub use freehold_virtio::ByteStream;

/// A host stream, and the queue that its interrupts wake.
pub struct HostStream {
    bytes: Arc<dyn ByteStream>,
    changed: Arc<WaitQueue>,
    /// Whether the stream has no reader on the host any more.
    deserted: AtomicBool,
}

impl HostStream {
    /// Makes a stream. `changed` is woken whenever bytes may have arrived or room may have become
    /// free.
    pub fn new(bytes: Arc<dyn ByteStream>, changed: Arc<WaitQueue>) -> Arc<Self> {
        reserve::arc(Self { bytes, changed, deserted: AtomicBool::new(false) })
    }

    /// Returns the queue that is woken whenever a check may be worthwhile.
    pub fn changed(&self) -> &Arc<WaitQueue> {
        &self.changed
    }

    /// Records that the stream has no reader on the host any more: writing fails with a broken
    /// pipe.
    pub fn desert(&self) {
        self.deserted.store(true, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// Whether the host still reads the stream.
    pub fn has_reader(&self) -> bool {
        !self.deserted.load(Ordering::SeqCst)
    }

    /// Reads bytes that have arrived. Returns their number, 0 if there are none. A failed device
    /// never has any.
    pub fn try_read(&self, bytes: &mut [u8]) -> usize {
        self.bytes.try_read(bytes).unwrap_or(0)
    }

    /// Writes to the host. Returns how many of `bytes` it accepts now. A failed device discards all
    /// of them: it has no reader.
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

    /// Waits until the host has taken all that was written.
    ///
    /// # Errors
    /// `ERESTARTSYS` on a signal.
    pub fn drain(&self) -> Result<()> {
        // The device interrupts when there is room, not when it is empty: so this polls.
        const LOOK_NS: u64 = 200_000;
        while !self.bytes.is_drained() {
            let deadline = crate::time::now() + LOOK_NS;
            self.changed.wait_until_deadline(Some(deadline), || self.bytes.is_drained().then_some(()))?;
        }
        Ok(())
    }
}
