//! The ends of a channel: the sender's, the receiver's, and errors that end a connection.
//!
//! A receiver ends in two steps. shutdown(2) ends reading: bytes that wait stay, and after them is
//! the end of the stream. Senders are refused from then on, except those of UDP and of a TCP
//! connection whose receiver still sends: as on Linux, their bytes arrive and may be read. When the
//! socket ends, the bytes are dropped, and nothing is accepted.

use core::sync::atomic::Ordering;

use super::{Channel, MutexGuard, Queue};
use crate::Errno;
use crate::sync::News;

impl Channel {
    /// Closes the receiving end: senders fail, and waiting messages are dropped.
    pub fn close_receiver(&self) {
        self.refuse();
        self.reading_ended.store(false, Ordering::SeqCst);
        self.forget(Some(self.queue.lock()));
    }

    /// As [`close_receiver`](Self::close_receiver), without waiting. If another task holds the
    /// queue, its messages stay until the channel is dropped.
    pub(in crate::socket) fn abandon_receiver(&self) {
        self.refuse();
        self.reading_ended.store(false, Ordering::SeqCst);
        self.forget(self.try_waiting());
    }

    /// Drops the messages in `queue`, the channel's own, if the caller could lock it. Wakes all
    /// waiters.
    fn forget(&self, queue: Option<MutexGuard<'_, Queue>>) {
        let forgotten = queue.map(|mut queue| {
            let all = core::mem::replace(&mut *queue, Queue::new(self.account));
            self.publish(&queue);
            all
        });
        self.wake_all();
        // Files in flight are closed with no lock held.
        drop(forgotten);
    }

    /// Closes the sending end because of `error`. The caller wakes waiters.
    pub(in crate::socket) fn end_by(&self, error: Errno) {
        self.note_error(error);
        self.no_sender.store(true, Ordering::SeqCst);
    }

    /// Ends reading (SHUT_RD). Bytes that wait stay.
    pub(in crate::socket) fn end_reading(&self) {
        self.reading_ended.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    /// Refuses senders from now on. The caller wakes waiters.
    pub(in crate::socket) fn refuse(&self) {
        self.no_receiver.store(true, Ordering::SeqCst);
    }

    /// Whether the receiver exists and has not shut down reading.
    pub fn has_reader(&self) -> bool {
        self.has_receiver() && !self.is_unread()
    }

    /// Whether the receiver has shut down reading, and still exists.
    pub(in crate::socket) fn is_unread(&self) -> bool {
        self.reading_ended.load(Ordering::SeqCst)
    }

    /// Returns the error of a message to a receiver that takes none.
    pub(super) fn refusal(&self) -> Errno {
        if self.is_unread() { Errno::EPIPE } else { Errno::ECONNREFUSED }
    }

    /// Records an error that the next call on the receiver's socket returns.
    pub fn fail(&self, error: Errno) {
        self.note_error(error);
        self.readable.announce(News::Error);
        self.writable.wake_all();
    }

    /// As [`fail`](Self::fail), for a caller that closes the channel next.
    pub(in crate::socket) fn note_error(&self, error: Errno) {
        self.failed.store(true, Ordering::Relaxed);
        self.error.store(error as i32, Ordering::SeqCst);
    }

    /// Whether there was any error so far, reported or not (a connection was reset).
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether there is an error to report.
    pub fn has_error(&self) -> bool {
        self.error.load(Ordering::SeqCst) != 0
    }

    /// Takes the error, so that one call reports it.
    #[inline]
    pub fn take_error(&self) -> Option<Errno> {
        if !self.has_error() {
            return None;
        }
        Errno::from_number(self.error.swap(0, Ordering::SeqCst) as u32)
    }

    /// Returns whether the channel still has a receiver.
    pub fn has_receiver(&self) -> bool {
        !self.no_receiver.load(Ordering::SeqCst)
    }

    /// Returns whether the channel still has a sender.
    pub fn has_sender(&self) -> bool {
        !self.no_sender.load(Ordering::SeqCst)
    }

    /// As [`take_error`](Self::take_error), for a receive from a stream. `EPIPE` is for senders:
    /// the stream had ended before the connection was reset.
    #[inline]
    pub(super) fn take_receive_error(&self) -> Option<Errno> {
        let is_for_senders = self.error.load(Ordering::SeqCst) == Errno::EPIPE as i32;
        if is_for_senders { None } else { self.take_error() }
    }
}
