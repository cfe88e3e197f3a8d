//! Wait queues.

/// Tasks that sleep until something changes.
#[derive(Debug, Default)]
pub struct WaitQueue {}

/// One task that waits on several queues at once (poll, select, epoll).
#[derive(Debug)]
pub struct PollWaiter {}
