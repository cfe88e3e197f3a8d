//! Garbage collection of sockets that only messages in flight to such sockets refer to.
//!
//! Such a message can never be received, and its content (such as a pipe with pinned pages) would
//! stay for ever.
//!
//! A channel with files in flight is entered in [`CARRIERS`]. The socket file that leads to a
//! channel is the one that receives from it, or the listener in whose backlog the receiving socket
//! waits. A channel is garbage if only messages in garbage channels refer to that file. The check
//! runs with the queues of all carriers locked: no task can reach a file whose references are all
//! counted there. Any other reference to a file (a descriptor, a call under way, a ring's request,
//! a queue entered too late) marks the file as used. An error always keeps a file.
//!
//! **Cost.** One collection visits each reference in flight and each channel once, and sorts them:
//! O(n log n), with no recursion. It runs before a send once twice as many files are in flight as
//! the last one left ([`collect_if_much`]), so that its cost is a constant number of visits per
//! file sent. It also runs when a process ends, if few files are in flight or the process had a
//! socket ([`is_due_at_exit`]): else each end in the system would pay for all. Once in [`PAUSE`] it
//! also runs at the end of any process, before a send is refused for too many files in flight, and
//! before a process is killed for want of memory ([`collect_if_rested`]). So no user can hide
//! files, or memory, behind earlier files in flight.
//!
//! **Locks.** [`CARRIERS`]' lock, then the queues in its order, then a socket's state. No other
//! code holds two queues, or takes [`CARRIERS`] with one. Garbage is dropped with none held.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{Arc, Vec, reserve::ArcMethods};

use super::channel::Channel;
use super::{SocketFile, flight};
use crate::fs::{FileTable, OpenFile};
use crate::sync::WeakRegistry;
use crate::{Result, sched, time};

/// Channels that files were sent into.
static CARRIERS: WeakRegistry<Channel> = WeakRegistry::new();
/// Files in flight that the last collection left.
static LEFT: AtomicUsize = AtomicUsize::new(0);
/// So many files in flight are no reason to collect.
const FEW: usize = 1024;
/// When the last collection ended.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds from the end of a collection until others than senders and owners of sockets pay for
/// one.
const PAUSE: u64 = 20_000_000;

/// Files are about to be in flight to `channel`, for the first time.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn enter(channel: &Arc<Channel>) -> Result<()> {
    CARRIERS.enter(channel)
}

/// Whether the end of the process with these files, still open, calls for a collection. It may
/// leave garbage if one of them is a socket; where few files are in flight, looking for more is
/// cheap.
pub fn is_due_at_exit(files: &FileTable) -> bool {
    match flight::total() {
        0 => false,
        1..=FEW => true,
        _ => files.receives_files() || has_rested(),
    }
}

fn has_rested() -> bool {
    time::now() >= ENDED.load(Ordering::Relaxed) + PAUSE
}

/// Collects if anything is in flight and the last collection was a while ago. Returns whether
/// files were closed. May sleep; the caller holds no lock.
pub fn collect_if_rested() -> bool {
    let before = flight::total();
    if before == 0 || !has_rested() {
        return false;
    }
    collect();
    flight::total() < before
}

/// Collects if the number of files in flight has doubled since the last time. May sleep; the caller
/// holds no lock.
pub(super) fn collect_if_much() {
    let total = flight::total();
    // Files that have arrived since then must not raise the threshold.
    let left = LEFT.fetch_min(total, Ordering::Relaxed).min(total);
    if total > FEW + 2 * left {
        collect();
    }
}

/// Closes files that no process can receive. May sleep. The caller holds no lock, and has let go of
/// the references whose end may have left such files. If two tasks let go at once, the later finds
/// the other's channel entered. Without memory for it nothing is closed this time.
pub fn collect() {
    while collect_some() == Ok(GarbageFound::Garbage) {}
    LEFT.store(flight::total(), Ordering::Relaxed);
    ENDED.store(time::now(), Ordering::Relaxed);
}

#[derive(PartialEq, Eq)]
enum GarbageFound {
    /// Some, by whose end there may be more.
    Garbage,
    Nothing,
}

fn gather<T>(from: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for one in from {
        // Sleeping locks are all that is held.
        sched::cond_resched();
        all.try_push(one)?;
    }
    Ok(all)
}

/// The references in flight, sorted by the file that they refer to.
struct Flying {
    files: Vec<*const OpenFile>,
    /// The first reference to a file stands for the file: whether it was visited.
    visited: Vec<bool>,
}

impl Flying {
    fn new(mut files: Vec<*const OpenFile>) -> Result<Self> {
        files.sort_unstable();
        let visited = gather(files.iter().map(|_| false))?;
        Ok(Self { files, visited })
    }

    /// Where the references to `file` begin.
    fn first(&self, file: &Arc<OpenFile>) -> usize {
        self.files.partition_point(|&other| other < file.address())
    }

    /// Whether nothing else refers to `file`.
    fn are_all_of(&self, file: &Arc<OpenFile>) -> bool {
        let end = self.files.partition_point(|&other| other <= file.address());
        file.references() == end - self.first(file)
    }

    /// Whether `file` is seen for the first time since the last [`forget`](Self::forget).
    fn visit(&mut self, file: &Arc<OpenFile>) -> bool {
        let first = self.first(file);
        !core::mem::replace(&mut self.visited[first], true)
    }

    fn forget(&mut self) {
        self.visited.fill(false);
    }
}

fn collect_some() -> Result<GarbageFound> {
    let Some(carriers) = CARRIERS.entries() else { return Ok(GarbageFound::Nothing) };
    let mut channels = gather(carriers.iter().filter_map(|weak| weak.upgrade()))?;
    channels.sort_unstable_by_key(|channel| channel.address());
    let mut queues = gather(channels.iter().map(|channel| channel.waiting()))?;
    let mut flying =
        Flying::new(gather(queues.iter().flat_map(|queue| queue.files()).map(|file| file.address()))?)?;
    // The carriers that `file` leads to.
    let for_each_carrier = |file: &Arc<OpenFile>, f: &mut dyn FnMut(usize)| {
        if let Some(socket) = file.file().downcast::<SocketFile>() {
            socket.unix().for_each_channel(|channel| {
                let at = channels.binary_search_by_key(&channel.address(), |known| known.address());
                at.into_iter().for_each(&mut *f);
            });
        }
    };
    let mut is_garbage = gather(channels.iter().map(|_| false))?;
    for file in queues.iter().flat_map(|queue| queue.files()) {
        sched::cond_resched();
        if flying.visit(file) {
            let only_flying = flying.are_all_of(file);
            for_each_carrier(file, &mut |at| is_garbage[at] = only_flying);
        }
    }
    // A channel is no garbage if a socket in use can receive it, directly or through other
    // channels. Each channel is pushed once.
    let mut reached = gather((0..channels.len()).filter(|&at| !is_garbage[at]))?;
    reached.try_reserve(channels.len() - reached.len())?;
    flying.forget();
    while let Some(at) = reached.pop() {
        for file in queues[at].files() {
            sched::cond_resched();
            if flying.visit(file) {
                for_each_carrier(file, &mut |next| {
                    if core::mem::replace(&mut is_garbage[next], false) {
                        reached.push_reserved(next);
                    }
                });
            }
        }
    }
    let garbage = queues.iter_mut().zip(&is_garbage).filter(|&(_, &garbage)| garbage);
    let garbage =
        gather(garbage.flat_map(|(queue, _)| queue.take_files()).filter(|files| !files.is_empty()))?;
    drop(queues);
    drop(carriers);
    Ok(if garbage.is_empty() { GarbageFound::Nothing } else { GarbageFound::Garbage })
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::super::SocketFile;
    use super::super::channel::{Ancillary, Patience};
    use super::super::endpoint::{SendTarget, Socket, SocketKind};
    use super::super::options::Credentials;
    use super::*;
    use crate::fs::OpenFlags;
    use crate::fs::bytes::SliceSource;

    fn open(socket: &Arc<Socket>) -> Arc<OpenFile> {
        OpenFile::new(SocketFile::new(socket.clone()), None, OpenFlags::RDWR).unwrap()
    }

    fn send(from: &Arc<Socket>, carried: Vec<Arc<OpenFile>>) {
        let mut files = flight::Files::default();
        carried.into_iter().for_each(|file| files.push(file).unwrap());
        let ancillary = Ancillary { files, credentials: Credentials::NOBODY };
        from.send(&mut SliceSource::new(b"x"), ancillary, SendTarget::default(), Patience::Never).unwrap();
    }

    #[test]
    fn what_nobody_can_receive_is_closed_and_nothing_else() {
        // A socket in its own queue; and two in each other's, one of which carries a third.
        let (one, other) = Socket::pair(SocketKind::Datagram);
        let (left, right) = Socket::pair(SocketKind::Stream);
        let (_far, third) = Socket::pair(SocketKind::Stream);
        let (own, mutual) = (open(&other), [open(&left), open(&right), open(&third)]);
        send(&one, vec![own.clone()]);
        send(&left, vec![mutual[0].clone(), mutual[2].clone()]);
        send(&right, vec![mutual[1].clone()]);
        let sockets = [other, left, right, third].map(|socket: Arc<Socket>| socket.downgrade());
        let [first, second, third] = mutual;
        collect();
        assert!(sockets.iter().all(|socket| socket.strong_count() > 0), "all are open");
        drop((own, first, third));
        collect();
        assert_eq!(
            sockets.each_ref().map(|socket| socket.strong_count()),
            [0, 1, 1, 1],
            "one of the two is still open"
        );
        drop(second);
        assert!(sockets[1].strong_count() > 0, "they hold each other");
        collect();
        assert!(sockets.iter().all(|socket| socket.strong_count() == 0));
    }
}
