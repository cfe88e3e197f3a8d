//! `trace_pipe`: records as text, each given to one reader once. A CPU's records have one reader
//! at a time.
//!
//! A reader waits while there is no record. Records wake no task (see [`crate::tracing`]). So a
//! waiting read checks every [`INTERVAL`]. For poll(2) a timer of the open file checks, as long as
//! the file's queue has a waiter.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_collections::{Arc, Receiver, Vec, reserve};

use super::buffers::write_line;
use crate::fs::generated::{PART, Text};
use crate::fs::node::{Identity, Metadata, Node, NodeKind, SetMetadata, Timestamp};
use crate::fs::pseudo::{self, PseudoDir};
use crate::fs::{Blocking, File, OpenFlags, Ready, clock};
use crate::sync::{Mutex, PollWaiter, WaitQueue};
use crate::time::{self, Deadline, Expire, TimerSlot};
use crate::tracing::{self, Switch, Taken, Which};
use crate::user::Sink;
use crate::{Errno, Result};

/// Time between two checks of a waiting reader (nanoseconds).
const INTERVAL: u64 = 10_000_000;

/// Adds the file to a directory.
pub(super) fn add(dir: &Arc<PseudoDir>, which: Which) {
    let identity = Identity { device: dir.identity().device, inode: pseudo::new_inode() };
    dir.add("trace_pipe", reserve::arc(PipeNode { identity, made: clock::now(), which }));
}

struct PipeNode {
    identity: Identity,
    made: Timestamp,
    which: Which,
}

impl Node for PipeNode {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }

    fn metadata(&self) -> Metadata {
        pseudo::metadata(self.identity, NodeKind::Regular, super::READABLE, self.made)
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        pseudo::set_metadata(change)
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        let right = TraceReader::of(self.which)?;
        let watcher = reserve::arc(Watcher {
            slot: TimerSlot::new(),
            which: self.which,
            changed: reserve::arc(WaitQueue::new()),
        });
        let left = Mutex::new(Vec::new());
        Ok(reserve::arc(TracePipe {
            _right: right,
            node: self,
            watcher,
            has_read: AtomicBool::new(false),
            left,
            has_left: AtomicBool::new(false),
        }))
    }
}

/// The CPUs whose records an open `trace_pipe` takes.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The exclusive right to take the records of CPUs.
pub struct TraceReader(u64);

impl TraceReader {
    /// Takes the right for these CPUs.
    ///
    /// # Errors
    /// `EBUSY` if it is taken, as on Linux.
    pub fn of(which: Which) -> Result<Self> {
        let wanted = match which {
            Which::All => u64::MAX,
            Which::Cpu(cpu) => 1 << cpu,
        };
        let free = |taken: u64| (taken & wanted == 0).then_some(taken | wanted);
        match TAKEN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free) {
            Ok(_) => Ok(Self(wanted)),
            Err(_) => Err(Errno::EBUSY),
        }
    }
}

impl Drop for TraceReader {
    fn drop(&mut self) {
        TAKEN.fetch_and(!self.0, Ordering::Release);
    }
}

/// Timer that wakes waiting readers when it finds records.
struct Watcher {
    slot: TimerSlot,
    which: Which,
    changed: Arc<WaitQueue>,
}

impl Expire for Watcher {
    fn slot(&self) -> &TimerSlot {
        &self.slot
    }
    fn expire(&self, now: u64) -> Option<Deadline> {
        if tracing::has_records(self.which) {
            self.changed.wake_all();
        }
        (!self.changed.is_empty()).then(|| (now + INTERVAL).into())
    }
}

/// A description of `trace_pipe`.
struct TracePipe {
    _right: TraceReader,
    node: Arc<PipeNode>,
    watcher: Arc<Watcher>,
    /// Whether records were read: then the file ends while tracing is off, as on Linux.
    has_read: AtomicBool,
    /// Text of consumed records that was not read yet.
    left: Mutex<Vec<u8>>,
    /// Whether `left` has text: poll(2) must not sleep for the lock of `left`.
    has_left: AtomicBool,
}

impl TracePipe {
    /// Consumes records and returns their text; empty if there are none.
    fn more(&self) -> Result<Vec<u8>> {
        let mut text = Text::new();
        tracing::consume(self.watcher.which, |line| {
            write_line(&mut text, line);
            if text.length() >= PART { Taken::Last } else { Taken::More }
        })?;
        text.finish()
    }

    fn ends(&self) -> bool {
        self.has_read.load(Ordering::Relaxed) && tracing::switch() == Switch::Off
    }
}

impl File for TracePipe {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        loop {
            let mut left = self.left.lock_killable()?;
            if left.is_empty() {
                *left = self.more()?;
            }
            if !left.is_empty() {
                let count = sink.put(&left)?;
                left.drain(..count);
                self.has_left.store(!left.is_empty(), Ordering::Relaxed);
                self.has_read.store(true, Ordering::Relaxed);
                return Ok(count);
            }
            drop(left);
            if self.ends() {
                return Ok(0);
            }
            if blocking == Blocking::Never {
                return Err(Errno::EAGAIN);
            }
            let deadline = Some(time::now() + INTERVAL);
            let which = self.watcher.which;
            let seen = || tracing::has_records(which).then_some(());
            self.watcher.changed.wait_until_deadline(deadline, seen)?;
        }
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.watcher.changed);
            let timer: Arc<dyn Expire> = self.watcher.clone();
            time::arm(&timer, time::now() + INTERVAL);
        }
        let is_ready = tracing::has_records(self.watcher.which) || self.has_left.load(Ordering::Relaxed);
        if is_ready { Ready::IN } else { Ready::empty() }
    }

    fn changes_readiness(&self) -> bool {
        true
    }
}

impl Drop for TracePipe {
    fn drop(&mut self) {
        let timer: Arc<dyn Expire> = self.watcher.clone();
        time::cancel(&timer);
    }
}
