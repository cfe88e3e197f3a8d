//! Sockets that only messages on their way to such sockets refer to: nobody can ever receive those, and what they carry (a pipe with
//! pinned pages) would stay for ever.
//!
//! A channel with files in flight is entered in [`CARRIERS`]. It is garbage where the socket that receives from it is open in no other way than by
//! messages in garbage channels. That is judged with the queues of all carriers locked: a file whose references are all counted there
//! cannot be had by anybody meanwhile. Whatever else refers to a file (a descriptor, a call under way, a ring's request, a queue
//! entered too late) makes it one that is in use: an error is always towards keeping.
//!
//! **Locks.** [`CARRIERS`]' lock, then the queues in its order. Nobody else holds two queues, or takes [`CARRIERS`] with one. What is
//! garbage is dropped with none held.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::channel::Channel;
use crate::fs::OpenFile;
use crate::sync::Roll;
use crate::{Errno, Result};

/// Channels that files were sent into.
static CARRIERS: Roll<Channel> = Roll::new();

/// Files are about to be in flight to `channel`, for the first time.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn enter(channel: &Arc<Channel>) -> Result<()> {
    CARRIERS.enter(channel)
}

/// Close what can be received by nobody. May sleep; to be called with no lock held, after the references whose end may have left some were let
/// go: of two who let go at once, the later finds the other's channel entered. Without memory for it nothing is closed this time.
pub fn collect() {
    while collect_some() == Ok(Found::Garbage) {}
}

#[derive(PartialEq, Eq)]
enum Found {
    /// Some, by whose end there may be more.
    Garbage,
    Nothing,
}

fn gather<T>(from: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for one in from {
        all.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        all.push(one);
    }
    Ok(all)
}

fn collect_some() -> Result<Found> {
    let Some(carriers) = CARRIERS.entries() else { return Ok(Found::Nothing) };
    let mut channels = gather(carriers.iter().filter_map(Weak::upgrade))?;
    channels.sort_unstable_by_key(Arc::as_ptr);
    let mut queues = gather(channels.iter().map(|channel| channel.waiting()))?;
    let mut flying = gather(queues.iter().flat_map(|queue| queue.files()).map(Arc::as_ptr))?;
    flying.sort_unstable();
    let is_only_flying = |file: &Arc<OpenFile>| {
        let at = Arc::as_ptr(file);
        let flights =
            flying.partition_point(|&other| other <= at) - flying.partition_point(|&other| other < at);
        Arc::strong_count(file) == flights
    };
    // Which queue is received from by a file.
    let queue_of = |file: &Arc<OpenFile>| {
        let channel = Arc::as_ptr(file.file().socket()?.channel());
        channels.binary_search_by_key(&channel, Arc::as_ptr).ok()
    };
    let mut is_garbage = gather(channels.iter().map(|_| false))?;
    for file in queues.iter().flat_map(|queue| queue.files()) {
        if let Some(at) = queue_of(file) {
            is_garbage[at] = is_only_flying(file);
        }
    }
    // Not so what can be received by those who are in use, or by what can be received so.
    let mut reached = gather((0..channels.len()).filter(|&at| !is_garbage[at]))?;
    reached.try_reserve(channels.len()).map_err(|_| Errno::ENOMEM)?;
    while let Some(at) = reached.pop() {
        for next in queues[at].files().filter_map(queue_of) {
            if core::mem::replace(&mut is_garbage[next], false) {
                reached.push(next);
            }
        }
    }
    let garbage = queues.iter_mut().zip(&is_garbage).filter(|&(_, &garbage)| garbage);
    let garbage = gather(garbage.flat_map(|(queue, _)| queue.take_files()))?;
    drop(queues);
    drop(carriers);
    Ok(if garbage.is_empty() { Found::Nothing } else { Found::Garbage })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::SocketFile;
    use super::super::channel::{Ancillary, Patience};
    use super::super::options::Credentials;
    use super::super::unix::{Kind, UnixSocket};
    use super::*;
    use crate::fs::OpenFlags;
    use crate::fs::bytes::SliceSource;

    fn open(socket: &Arc<UnixSocket>) -> Arc<OpenFile> {
        OpenFile::new(SocketFile::new(socket.clone()), None, OpenFlags::RDWR).unwrap()
    }

    fn send(from: &UnixSocket, files: Vec<Arc<OpenFile>>) {
        let ancillary = Ancillary { files, credentials: Credentials::NOBODY };
        from.send(&mut SliceSource::new(b"x"), ancillary, None, Patience::Never).unwrap();
    }

    #[test]
    fn what_nobody_can_receive_is_closed_and_nothing_else() {
        // A socket in its own queue; and two in each other's, one of which carries a third.
        let (one, other) = UnixSocket::pair(Kind::Datagram);
        let (left, right) = UnixSocket::pair(Kind::Stream);
        let (_far, third) = UnixSocket::pair(Kind::Stream);
        let (own, mutual) = (open(&other), [open(&left), open(&right), open(&third)]);
        send(&one, vec![own.clone()]);
        send(&left, vec![mutual[0].clone(), mutual[2].clone()]);
        send(&right, vec![mutual[1].clone()]);
        let sockets = [other, left, right, third].map(|socket| Arc::downgrade(&socket));
        let [first, second, third] = mutual;
        collect();
        assert!(sockets.iter().all(|socket| socket.strong_count() > 0), "all are open");
        drop((own, first, third));
        collect();
        assert_eq!(sockets.each_ref().map(Weak::strong_count), [0, 1, 1, 1], "one of the two is still open");
        drop(second);
        assert!(sockets[1].strong_count() > 0, "they hold each other");
        collect();
        assert!(sockets.iter().all(|socket| socket.strong_count() == 0));
    }
}
