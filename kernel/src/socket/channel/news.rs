//! Events of a channel that are signalled to the owner of a socket (SIGIO).
//!
//! A socket learns of all events through the queue `readable` of the channel from which it
//! receives: bytes, errors, the end of the peer. Room in the channel into which it sends is
//! reported through the same queue, which that channel knows as its sender's. As on Linux
//! (SOCKWQ_ASYNC_NOSPACE), room is reported once after a send or a poll(2) that found none.
//!
//! A sender can be stopped by its account ([`crate::socket::memory`]) and not by its reader, which
//! may have nothing to do in the meantime. Once this has happened to a channel, it is woken with
//! its account from then on. No signal reports that room.

use core::sync::atomic::Ordering;

use super::{Channel, Patience};
use crate::sync::{News, earlier};
use crate::{Errno, Result, time};

/// Nanoseconds that a sender sleeps before it checks again, if there was no memory to register it
/// for a wake-up.
const NAP: u64 = 100_000_000;

impl Channel {
    /// Closes the sending end: receivers reach the end of the stream. `news` are the events, if
    /// any, for the signals of the receiver's socket.
    pub fn close_sender(&self, news: Option<News>) {
        self.no_sender.store(true, Ordering::SeqCst);
        match news {
            // The end is no input that one watcher could take.
            Some(news) => {
                self.readable.wake_all();
                self.readable.tell(news);
            }
            None => self.readable.wake_all(),
        }
        self.writable.wake_all();
    }

    /// Records that only the socket that receives from `own` sends into this channel.
    pub(in crate::socket) fn set_sender(&self, own: &Self) {
        self.sender.call_once(|| own.readable.clone());
    }

    /// Whether only one socket sends into this channel.
    pub(in crate::socket) fn has_one_sender(&self) -> bool {
        self.sender.get().is_some()
    }

    /// Reports room to the sender, if it may have found none before.
    #[cold]
    fn tell_sender(&self) {
        if self.has_room()
            && self.wants_room.swap(false, Ordering::SeqCst)
            && let Some(sender) = self.sender.get()
        {
            sender.announce(News::Room);
        }
    }

    /// Wakes senders, because bytes were removed.
    #[inline(always)]
    pub(in crate::socket) fn made_room(&self) {
        self.writable.wake_all();
        if self.wants_room.load(Ordering::Relaxed) {
            self.tell_sender();
        }
    }

    /// Records that a sender found no room. The caller then checks once more.
    pub(in crate::socket) fn want_room(&self) {
        self.wants_room.store(true, Ordering::SeqCst);
        // If memory is short, the account is not watched: the sender is woken only when this
        // channel's reader makes room.
        let _ = self.watch_account();
    }

    fn watch_account(&self) -> Result<()> {
        self.account_watch.set_if_due(self.account, &self.writable)
    }

    /// Waits until a message of this many pages may be queued.
    ///
    /// # Errors
    /// `ENOBUFS` if the caller does not wait at all, `EAGAIN` at the end of its time,
    /// `ERESTARTSYS`.
    #[inline]
    pub(super) fn wait_for_account(&self, pages: usize, patience: Patience) -> Result<()> {
        match (self.account.admit(pages), patience) {
            (Err(_), Patience::Until(deadline)) => {
                let is_admitted = || self.account.admit(pages).ok();
                self.account.loosened().wait_until_deadline(deadline, is_admitted)?.ok_or(Errno::EAGAIN)
            }
            (admitted, _) => admitted,
        }
    }

    /// Waits until `ready` finds room.
    #[inline(never)]
    pub(super) fn wait_with_patience(
        &self,
        deadline: Option<u64>,
        ready: impl Fn() -> Option<()>,
    ) -> Result<()> {
        loop {
            let is_told = self.watch_account().is_ok();
            let nap = (!is_told).then(|| time::now() + NAP);
            let until = earlier(deadline, nap);
            // The account may become tight while the sender waits for the reader.
            let wakes =
                || (ready().is_some() || is_told && self.account_watch.is_due(self.account)).then_some(());
            self.writable.wait_until_deadline(until, wakes)?;
            if ready().is_some() {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| time::now() >= deadline) {
                return Err(Errno::EAGAIN);
            }
        }
    }
}
