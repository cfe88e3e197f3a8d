//! Sessions: process groups that share a controlling terminal.

use core::any::Any;

use freehold_collections::Arc;

use super::Pid;
use crate::sync::SpinLock;

/// A session. Its members hold references; it ends with the last.
pub struct Session {
    /// The process that made it by setsid. It may have ended.
    pub id: Pid,
    /// The controlling terminal. Only the terminals' code knows its type, sets it and removes it.
    pub controlling: SpinLock<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Session {
    /// Makes a session without a terminal, led by `id`.
    pub const fn new(id: Pid) -> Self {
        Self { id, controlling: SpinLock::new(None) }
    }
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "session {}", self.id)
    }
}
