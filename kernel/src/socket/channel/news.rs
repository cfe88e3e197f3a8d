//! News of a channel that signals tell the owner of a socket (SIGIO).
//!
//! A socket hears of all news by the queue `readable` of the channel that it receives from: of
//! bytes, of errors, of the peer's end. The socket hears by the same queue of room in the channel
//! that it sends into, and that channel knows the queue as its sender's. As on Linux
//! (SOCKWQ_ASYNC_NOSPACE) the socket hears of room once after a send or a poll(2) that found none.

use core::sync::atomic::Ordering;

use super::Channel;
use crate::sync::News;

impl Channel {
    /// Closes the sending end: receivers reach the end of the stream. `news` are for the signals of
    /// the receiver's socket, where there are any.
    pub fn close_sender(&self, news: Option<News>) {
        self.no_sender.store(true, Ordering::SeqCst);
        match news {
            Some(news) => self.readable.announce(news),
            None => self.readable.wake_all(),
        }
        self.writable.wake_all();
    }

    /// The socket that receives from `own` alone sends into it from now on.
    pub(in crate::socket) fn set_sender(&self, own: &Self) {
        self.sender.call_once(|| own.readable.clone());
    }

    /// There is room, where a sender may have found none.
    #[cold]
    fn tell_sender(&self) {
        if self.has_room()
            && self.wants_room.swap(false, Ordering::SeqCst)
            && let Some(sender) = self.sender.get()
        {
            sender.announce(News::Room);
        }
    }

    /// Bytes were taken out: wakes senders.
    #[inline(always)]
    pub(in crate::socket) fn made_room(&self) {
        self.writable.wake_all();
        if self.wants_room.load(Ordering::Relaxed) {
            self.tell_sender();
        }
    }

    /// Notes that a sender found no room.
    pub(in crate::socket) fn want_room(&self) {
        self.wants_room.store(true, Ordering::SeqCst);
    }
}
