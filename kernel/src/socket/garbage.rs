//! Garbage collection of sockets to which only messages in flight refer, where these messages wait
//! in such sockets, too.
//!
//! Such a message can never be received, and its content (for example a pipe with pinned pages)
//! would stay forever.
//!
//! A channel with files in flight is entered in [`CARRIERS`]. The socket file of a channel is the
//! file of the socket that receives from it, or of the listener in whose backlog that socket waits.
//! A channel is garbage if only messages in garbage channels refer to that file. The check runs
//! with the queues of all carriers locked: no task can get a file whose references are all counted
//! there. Any other reference to a file (a descriptor, a call under way, a ring's request, a queue
//! entered too late) marks the file as used. An error always keeps a file.
//!
//! **Cost.** One collection visits each reference in flight and each channel once, and sorts them:
//! O(n log n), with no recursion. It runs before a send if twice as many files are in flight as the
//! last collection left ([`collect_if_much`]). So its cost is a constant number of visits per file
//! sent. It also runs when a process ends, if few files are in flight or the process had a socket
//! ([`is_due_at_exit`]). Otherwise each process end in the system would pay for all. Three more
//! events start a collection, at most once per [`PAUSE`] ([`collect_if_rested`]): the end of any
//! process, a send that would be refused for too many files in flight, and an imminent
//! out-of-memory kill. So no user can hide files, or memory, behind earlier files in flight.
//!
//! **Locks.** [`CARRIERS`]' lock, then the queues in its order, then a socket's state. No other
//! code holds two queues, or takes [`CARRIERS`] while it holds a queue. Garbage is dropped with no
//! lock held.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{Arc, Vec, reserve::ArcMethods};

use super::channel::Channel;
use super::{SocketFile, flight};
use crate::fs::{FileTable, OpenFile};
use crate::sync::WeakRegistry;
use crate::{Result, sched, time};

/// Channels that files were sent into.
static CARRIERS: WeakRegistry<Channel> = WeakRegistry::new();
/// Number of files in flight that the last collection left.
static LEFT: AtomicUsize = AtomicUsize::new(0);
/// Up to this many files in flight do not start a collection.
const FEW: usize = 1024;
/// When the last collection ended.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Minimum time in nanoseconds between two collections that are not due to senders or owners of
/// sockets.
const PAUSE: u64 = 20_000_000;

/// Records that files are about to be sent into `channel`, for the first time.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn enter(channel: &Arc<Channel>) -> Result<()> {
    CARRIERS.enter(channel)
}

/// Whether the end of a process with these open files requires a collection. If one of them is a
/// socket, its end may leave garbage. If few files are in flight, a collection is cheap.
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

/// Collects if any file is in flight and [`PAUSE`] is over. Returns whether files were closed. May
/// sleep; the caller holds no lock.
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
    // Files that have been sent since then must not raise the threshold.
    let left = LEFT.fetch_min(total, Ordering::Relaxed).min(total);
    if total > FEW + 2 * left {
        collect();
    }
}

/// Closes files that no process can receive. May sleep. The caller holds no lock, and has dropped
/// the references whose end may have left such files. If two tasks drop theirs at the same time,
/// the later one finds the other's channel entered. Without memory, this collection closes nothing.
pub fn collect() {
    while collect_some() == Ok(GarbageFound::Garbage) {}
    LEFT.store(flight::total(), Ordering::Relaxed);
    ENDED.store(time::now(), Ordering::Relaxed);
}

#[derive(PartialEq, Eq)]
enum GarbageFound {
    /// Some files. Their end may produce more garbage.
    Garbage,
    Nothing,
}

fn gather<T>(from: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for one in from {
        // Only sleeping locks are held.
        sched::cond_resched();
        all.try_push(one)?;
    }
    Ok(all)
}

/// The references in flight, sorted by the file that they refer to.
struct Flying {
    files: Vec<*const OpenFile>,
    /// Whether a file was visited, at the index of the first reference to it.
    visited: Vec<bool>,
}

impl Flying {
    fn new(mut files: Vec<*const OpenFile>) -> Result<Self> {
        files.sort_unstable();
        let visited = gather(files.iter().map(|_| false))?;
        Ok(Self { files, visited })
    }

    /// Returns the index of the first reference to `file`.
    fn first(&self, file: &Arc<OpenFile>) -> usize {
        self.files.partition_point(|&other| other < file.address())
    }

    /// Whether all references to `file` are in flight.
    fn are_all_of(&self, file: &Arc<OpenFile>) -> bool {
        let end = self.files.partition_point(|&other| other <= file.address());
        file.references() == end - self.first(file)
    }

    /// Whether `file` is visited for the first time since the last [`forget`](Self::forget).
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
    // Visits the carriers that can be received from through `file`.
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
        // A socket in its own queue; and two sockets in each other's queues, one of which carries a
        // third.
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
