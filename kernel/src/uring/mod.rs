//! io_uring: system calls as entries of a ring in shared memory; and its predecessor io_submit(2).
//!
//! | module | concept |
//! |---|---|
//! | [`memory`] | the rings that program and kernel share |
//! | [`request`] | the request of an entry, checked, with its file and its buffers held |
//! | [`sockets`] | requests on sockets |
//! | [`pins`] | the pages that requests hold while they wait |
//! | [`work`] | requests that cannot end at once: those that wait for files and clocks, and for disks |
//! | [`watcher`] | the task that attends to requests which wait for files and clocks |
//! | [`context`] | the contexts of io_setup(2), whose requests wait like a ring's |
//! | [`calls`] | the system calls |
//!
//! **A request's life.** io_uring_enter takes entries in order and starts each. A request that can
//! end at once uses the program's addresses directly. Any other request first pins its buffers, so
//! it no longer needs an address space, and neither fork nor exit removes its frames. Then a kernel
//! task finishes it. In both cases one completion is posted. If the ring is full, it waits in a
//! backlog that the next io_uring_enter empties.
//!
//! **Locks.** `IoRing::submit` (one task consumes entries at a time) > `IoRing::waiting` > files'
//! own locks; `IoRing::posted` is taken last. All are sleeping locks of task context.
//!
//! **The end.** A process' waiting requests end with the process, because they may keep the ring
//! alive through a reference cycle of files. When the last descriptor is closed, waiting requests
//! are dropped, and closing waits for requests at disks. Afterwards the ring has no pinned pages.

pub mod calls;
pub mod context;
mod memory;
mod pins;
mod request;
mod sockets;
mod watcher;
mod work;

pub use memory::show_through_rings;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use freehold_collections::{Arc, Vec, VecDeque, reserve};
use freehold_vm::ReadWrite;

use crate::Result;
use crate::fs::anonymous::AnonymousNode;
use crate::fs::{File, MmapContent, Node, NodeKind, OpenFile, Ready};
use crate::mem::PinnedRun;
use crate::sync::{Mutex, PollWaiter, WaitQueue, WeakRegistry};
use crate::task::{self, Pid};
use memory::{Backlog, Completion, Put, SharedRings};
use work::{Asker, Work};

/// Number of completions that may wait for room, per entry of the completion ring.
const BACKLOG: usize = 4;

/// All rings.
static RINGS: WeakRegistry<IoRing> = WeakRegistry::new();

/// Cancels the waiting requests of the calling process, which ends or executes another program, and
/// ends its contexts. May sleep.
pub fn leave(process: Pid) {
    context::leave(process);
    if task::current().process().asked_rings.swap(false, Ordering::Relaxed) {
        leave_rings(process);
        watcher::forget(process);
    }
}

fn leave_rings(process: Pid) {
    loop {
        // The ends of other processes wait for the list, so a ring's own lock is taken after it is
        // released.
        let mut asked = Vec::new();
        let Some(rings) = RINGS.entries() else { return };
        for ring in rings.iter().filter_map(|weak| weak.upgrade()) {
            if ring.work.has_asked(process) && asked.try_push(ring).is_err() {
                break;
            }
        }
        drop(rings);
        if asked.is_empty() {
            return;
        }
        asked.into_iter().for_each(|ring| ring.abandon(process));
    }
}

/// An io_uring instance.
pub struct IoRing {
    rings: SharedRings,
    node: Arc<dyn Node>,
    /// Position up to which entries were taken.
    submit: Mutex<u32>,
    /// Completions that wait for room. Only the holder of this lock posts completions.
    posted: Mutex<VecDeque<Completion>>,
    /// Whether any completion waits; changed under `posted`.
    has_backlog: AtomicBool,
    /// The kernel's position in the completion ring, changed under `posted`.
    tail: AtomicU32,
    /// Number of all completions, for timeouts that count them.
    count: AtomicU64,
    /// Woken when completions are added.
    arrived: Arc<WaitQueue>,
    work: Work<IoRing>,
    /// Registered buffers, which stay pinned.
    buffers: Mutex<Vec<Arc<PinnedRun<ReadWrite>>>>,
}

impl IoRing {
    fn make(rings: SharedRings) -> Result<Arc<Self>> {
        let ring = reserve::arc(Self {
            rings,
            node: AnonymousNode::plain(NodeKind::Regular, "anon_inode:[io_uring]"),
            submit: Mutex::new(0),
            posted: Mutex::new(VecDeque::new()),
            has_backlog: AtomicBool::new(false),
            tail: AtomicU32::new(0),
            count: AtomicU64::new(0),
            arrived: reserve::arc(WaitQueue::new()),
            work: Work::new(),
            buffers: Mutex::new(Vec::new()),
        });
        RINGS.enter(&ring)?;
        Ok(ring)
    }

    /// Posts completions to the program, in this order. Returns how many the ring contains then, as
    /// far as the kernel saw.
    fn post_all(&self, completions: &[Completion]) -> u32 {
        if completions.is_empty() {
            return 0;
        }
        let mut backlog = self.posted.lock();
        let put = if backlog.is_empty() { self.put(completions) } else { Put::default() };
        for &completion in &completions[put.count as usize..] {
            let room = backlog.len() < BACKLOG * self.rings.completions() as usize;
            if room && backlog.try_push_back(completion).is_ok() {
                self.has_backlog.store(true, Ordering::Relaxed);
                self.rings.show_backlog(Backlog::Waits);
            } else {
                self.rings.count_overflow();
            }
        }
        let more = completions.len() as u64;
        let count = self.count.fetch_add(more, Ordering::SeqCst) + more;
        drop(backlog);
        self.arrived.wake_all();
        self.work.note_completions(count);
        put.available
    }

    /// Puts as many completions into the ring as there is room for. The caller holds `posted`.
    fn put(&self, completions: &[Completion]) -> Put {
        let tail = self.tail.load(Ordering::Relaxed);
        let put = self.rings.put_completions(tail, completions);
        self.tail.store(tail.wrapping_add(put.count), Ordering::Relaxed);
        put
    }

    /// Moves waiting completions into the ring.
    fn flush_backlog(&self) {
        if !self.has_backlog.load(Ordering::Relaxed) {
            return;
        }
        let mut backlog = self.posted.lock();
        while let Some(&completion) = backlog.front()
            && self.put(&[completion]).count == 1
        {
            backlog.pop_front();
            if backlog.is_empty() {
                self.has_backlog.store(false, Ordering::Relaxed);
                self.rings.show_backlog(Backlog::Empty);
            }
        }
    }

    /// Returns the number of completions that the program has not taken. Takes no sleeping lock.
    fn available(&self) -> u32 {
        let tail = self.tail.load(Ordering::Relaxed);
        tail.wrapping_sub(self.rings.completion_head()).min(self.rings.completions())
    }

    /// Drops waiting requests, waits for requests at disks, and releases the buffers. The caller
    /// may be a kernel task of this ring that has dropped the last file referring to the ring. Then
    /// the last of these tasks releases the buffers, with the ring.
    fn close(&self) {
        if self.close_work() {
            let buffers = core::mem::take(&mut *self.buffers.lock());
            drop(buffers);
        }
    }
}

impl Asker for IoRing {
    type Tag = u64;
    fn work(&self) -> &Work<Self> {
        &self.work
    }
    fn post(&self, user_data: u64, result: i32) {
        self.post_all(&[Completion { user_data, result, flags: 0 }]);
    }
    fn completed(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

/// The open file of a ring.
struct RingFile(Arc<IoRing>);

impl RingFile {
    /// Returns the ring of `file`, if it is one.
    fn ring_of(file: &OpenFile) -> Option<&Arc<IoRing>> {
        file.file().downcast::<Self>().map(|file| &file.0)
    }
}

impl File for RingFile {
    fn node(&self) -> Arc<dyn Node> {
        self.0.node.clone()
    }
    /// A request that waits in a ring may refer to the socket that would carry the ring.
    fn may_travel(&self) -> bool {
        false
    }
    fn shares_pages_with_kernel(&self) -> bool {
        true
    }
    fn mapping(&self) -> Result<MmapContent> {
        Ok(MmapContent::Content(self.0.rings.content().clone()))
    }
    fn check_mapping(&self, offset: u64, length: u64) -> Result<()> {
        self.0.rings.check_mapping(offset, length)
    }
    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.0.arrived);
        }
        if self.0.available() > 0 { Ready::IN | Ready::OUT } else { Ready::OUT }
    }
    fn release(&self) {
        self.0.close();
    }
}
