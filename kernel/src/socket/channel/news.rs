//! News of a channel that signals tell the owner of a socket (SIGIO).
//!
//! A socket hears of all news by the queue `readable` of the channel that it receives from: of
//! bytes, of errors, of the peer's end. The socket hears by the same queue of room in the channel
//! that it sends into, and that channel knows the queue as its sender's. As on Linux
//! (SOCKWQ_ASYNC_NOSPACE) the socket hears of room once after a send or a poll(2) that found none.
//!
//! A sender can be stopped by its account ([`crate::socket::memory`]) and not by its reader, which
//! may have nothing to do meanwhile. A channel where this was so once is woken with its account
//! from then on. No signal tells of that room.

use core::sync::atomic::Ordering;

use super::{Channel, Patience};
use crate::sync::{News, earlier};
use crate::{Errno, Result, time};

/// How long a sender sleeps before it looks again, where there was no memory to have it woken
/// (nanoseconds).
const NAP: u64 = 100_000_000;

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

    /// Notes that a sender found no room. The caller looks once more.
    pub(in crate::socket) fn want_room(&self) {
        self.wants_room.store(true, Ordering::SeqCst);
        // Without memory the sender hears of the room that its reader makes.
        let _ = self.watch_account();
    }

    fn watch_account(&self) -> Result<()> {
        self.account_watch.set_if_due(self.account, &self.writable)
    }

    /// Waits until a message of so many pages may wait.
    ///
    /// # Errors
    /// `ENOBUFS` without patience, `EAGAIN` after it, `ERESTARTSYS`.
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

    /// Waits until there is room, as `ready` has it.
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
            // The account may become tight while it waits for the reader.
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
