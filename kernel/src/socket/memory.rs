//! Memory of the messages that wait in sockets, with a limit for the whole machine. These pages
//! belong to no process' memory, so the out-of-memory killer would not find them.
//!
//! Each queue counts its pages beyond the first in one of three accounts. The first page is always
//! granted. So every connection makes progress, and a short exchange does not access a counter that
//! all CPUs share.
//!
//! An account has three limits, like Linux' tcp_mem. The account becomes *tight* when it exceeds
//! the second limit, and stays so until it falls to the first. Then a queue may have few pages, and
//! at the third limit only one. A sender waits for its own queue's reader, even if the account is
//! tight: an empty queue has room. The sum may exceed the third limit by the pages that senders are
//! about to add, one each.
//!
//! If a queue has pages, but fewer than its normal limit, its sender waits for the account as well,
//! because its reader may wait for the sender. All that wait for the account are woken when it is
//! no longer tight, and when the sum falls below the third limit. The tight mark is changed after
//! the sum, and checked again after each change of the mark. So the last task to change the sum or
//! the mark sees both.
//!
//! Source: tcp(7), udp(7), `tcp_init_mem` in net/ipv4/tcp.c, `__sk_mem_raise_allocated` in
//! net/core/sock.c. On Linux, AF_UNIX, netlink and raw sockets have no such limit. Here they have
//! the limit of UDP, without a setting.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_collections::{Arc, reserve};
use freehold_machine::PAGE_SIZE;
use spin::Once;

use crate::sync::{PollWaiter, SpinLock, WaitQueue};
use crate::{Errno, Result};

/// Initial value of SO_SNDBUF and SO_RCVBUF, but for TCP; net.core.wmem_max and rmem_max.
pub const BUFFER_BYTES: usize = 212_992;
/// Number of pages that may wait in one queue, unless a program sets SO_SNDBUF or SO_RCVBUF.
pub const PAGES: usize = BUFFER_BYTES / PAGE_SIZE;
/// Number of pages that a queue may have while its account is tight.
const FEW_PAGES: usize = 4;

/// The end of a queue that a part of its room belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum QueueEnd {
    /// The socket that sends: SO_SNDBUF.
    Sender,
    /// The socket that receives: SO_RCVBUF.
    Receiver,
}

/// Whether a value may exceed net.core.wmem_max and rmem_max.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ceiling {
    /// It is limited (SO_SNDBUF, SO_RCVBUF).
    Usual,
    /// It is not limited (SO_SNDBUFFORCE, SO_RCVBUFFORCE).
    None,
}

/// The smallest values (SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF).
const LEAST: [u32; 2] = [4608, 2304];
/// Largest number of pages of a part, whatever value a privileged program sets.
pub(super) const MOST_PAGES: usize = 4096;

/// Values that a program has set, as getsockopt(2) returns them; 0 for the initial value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct BufferSizes([u32; 2]);

impl BufferSizes {
    /// Whether a program has set a value.
    pub(super) fn are_set(self) -> bool {
        self != Self::default()
    }

    /// Sets the size of the buffer for sending or receiving.
    pub(super) fn set(&mut self, end: QueueEnd, value: i32, ceiling: Ceiling) {
        let value = match ceiling {
            Ceiling::Usual => (value as u32).min(BUFFER_BYTES as u32),
            Ceiling::None => value.max(0) as u32,
        };
        self.0[end as usize] = (value.min(i32::MAX as u32 / 2) * 2).max(LEAST[end as usize]);
    }

    /// Returns the value of an end, in bytes; 0 if no program has set it.
    pub(super) const fn bytes(self, end: QueueEnd) -> u32 {
        self.0[end as usize]
    }

    /// Returns the number of pages that the end of a queue has, of which `initial` are its own at
    /// first. An end that does not count has none.
    pub(super) fn pages(self, end: QueueEnd, initial: usize) -> usize {
        match self.0[end as usize] as usize {
            set if set > 0 && initial > 0 => set.div_ceil(PAGE_SIZE).min(MOST_PAGES),
            _ => initial,
        }
    }
}

/// The sockets whose pages are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketAccount {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// AF_UNIX, netlink and raw sockets.
    Other,
    /// An account for tests, which no socket uses.
    #[cfg(test)]
    Test,
}

struct Sum {
    pages: AtomicUsize,
    limits: [AtomicUsize; 3],
    is_tight: AtomicBool,
    /// Woken when queues may have more pages than before.
    loosened: Once<Arc<WaitQueue>>,
}

impl Sum {
    const fn new() -> Self {
        Self {
            pages: AtomicUsize::new(0),
            limits: [const { AtomicUsize::new(usize::MAX) }; 3],
            is_tight: AtomicBool::new(false),
            loosened: Once::new(),
        }
    }

    fn loosened(&self) -> &Arc<WaitQueue> {
        self.loosened.call_once(|| reserve::arc(WaitQueue::new()))
    }

    fn wake(&self) {
        if let Some(waiting) = self.loosened.get() {
            waiting.wake_all();
        }
    }

    fn limit(&self, at: usize) -> usize {
        self.limits[at].load(Ordering::Relaxed)
    }

    fn pages(&self) -> usize {
        self.pages.load(Ordering::SeqCst)
    }

    fn is_tight(&self) -> bool {
        self.is_tight.load(Ordering::SeqCst)
    }

    fn add(&self, pages: usize) {
        self.pages.fetch_add(pages, Ordering::SeqCst);
        self.judge();
    }

    fn sub(&self, pages: usize) {
        let before = self.pages.fetch_sub(pages, Ordering::SeqCst);
        let highest = self.limit(2);
        if before >= highest && before - pages < highest {
            self.wake();
        }
        self.judge();
    }

    /// Updates the tight mark after a change of the sum or of a limit.
    fn judge(&self) {
        loop {
            let is_tight = self.is_tight();
            let wanted = self.pages() > self.limit(if is_tight { 0 } else { 1 });
            if wanted == is_tight {
                return;
            }
            self.is_tight.store(wanted, Ordering::SeqCst);
            if !wanted {
                self.wake();
            }
        }
    }
}

const ACCOUNTS: usize = if cfg!(test) { 4 } else { 3 };

static SUMS: [Sum; ACCOUNTS] = [const { Sum::new() }; ACCOUNTS];

/// Derives the limits from the machine's number of pages, as Linux does.
pub fn init(pages: usize) {
    let share = |part: usize| (pages / part).max(128);
    let (tcp, udp) = (share(16), share(8));
    SocketAccount::Tcp.set_limits([tcp / 4 * 3, tcp, tcp / 4 * 6]);
    for account in [SocketAccount::Udp, SocketAccount::Other] {
        account.set_limits([udp / 4 * 3, udp, udp / 4 * 6]);
    }
    for sum in &SUMS {
        sum.loosened();
    }
}

impl SocketAccount {
    const fn sum(self) -> &'static Sum {
        &SUMS[self as usize]
    }

    /// Returns the number of pages in the account.
    pub fn pages(self) -> usize {
        self.sum().pages()
    }

    /// Returns the account's limits, in pages (see the module's head).
    pub fn limits(self) -> [usize; 3] {
        [0, 1, 2].map(|at| self.sum().limit(at))
    }

    /// Sets the account's limits.
    pub fn set_limits(self, limits: [usize; 3]) {
        for (limit, pages) in self.sum().limits.iter().zip(limits) {
            limit.store(pages, Ordering::Relaxed);
        }
        self.sum().judge();
        self.sum().wake();
    }

    /// Whether queues may currently have fewer pages than normal.
    #[inline]
    pub(super) fn is_tight(self) -> bool {
        self.sum().is_tight()
    }

    /// Returns the queue that is woken when queues may have more pages than before.
    pub(super) fn loosened(self) -> &'static Arc<WaitQueue> {
        self.sum().loosened()
    }

    /// Returns the largest number of pages that a queue may have now, if it may normally have
    /// `usual`.
    #[inline]
    pub(super) fn most(self, usual: usize) -> usize {
        if self.is_tight() { self.most_when_tight().min(usual) } else { usual }
    }

    #[cold]
    fn most_when_tight(self) -> usize {
        if self.pages() < self.sum().limit(2) { FEW_PAGES } else { 1 }
    }

    /// Checks whether a message of this many pages may be queued. It is sent as a whole or not at
    /// all.
    ///
    /// # Errors
    /// `ENOBUFS`.
    #[inline]
    pub(super) fn admit(self, pages: usize) -> Result<()> {
        let is_full =
            pages > 1 && self.is_tight() && self.pages().saturating_add(pages) > self.sum().limit(2);
        if is_full { Err(Errno::ENOBUFS) } else { Ok(()) }
    }
}

/// Registers a channel to be woken with its account, once the account has stopped a sender.
#[derive(Default)]
pub(super) struct AccountWatch {
    is_set: AtomicBool,
    waiter: SpinLock<Option<PollWaiter>>,
}

impl AccountWatch {
    /// Whether `account` is tight and nothing is registered yet.
    pub fn is_due(&self, account: SocketAccount) -> bool {
        account.is_tight() && !self.is_set.load(Ordering::SeqCst)
    }

    /// If `account` is tight, registers `woken` to be woken when that ends. The caller checks again
    /// afterwards.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn set_if_due(&self, account: SocketAccount, woken: &Arc<WaitQueue>) -> Result<()> {
        if !self.is_due(account) {
            return Ok(());
        }
        let mut waiter = PollWaiter::observer(woken.clone());
        waiter.register(account.loosened());
        let mut place = Some(waiter.complete()?);
        core::mem::swap(&mut *self.waiter.lock(), &mut place);
        self.is_set.store(true, Ordering::SeqCst);
        // If another sender registered first, its entry is dropped without the lock.
        drop(place);
        Ok(())
    }
}

/// The pages of one queue, in its account.
pub(super) struct QueueCharge {
    account: SocketAccount,
    counted: usize,
}

impl QueueCharge {
    /// Makes a charge of zero pages.
    pub const fn new(account: SocketAccount) -> Self {
        Self { account, counted: 0 }
    }

    /// Returns the account that counts the pages.
    pub const fn account(&self) -> SocketAccount {
        self.account
    }

    /// Sets the queue's number of pages.
    #[inline]
    pub fn set(&mut self, pages: usize) {
        let count = pages.saturating_sub(1);
        if count != self.counted {
            self.change(count);
        }
    }

    fn change(&mut self, count: usize) {
        let (sum, before) = (self.account.sum(), self.counted);
        self.counted = count;
        if count > before { sum.add(count - before) } else { sum.sub(before - count) }
    }
}

impl Drop for QueueCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Wake, Woken};

    #[test]
    fn a_value_is_doubled_and_within_its_limits() {
        let set = |end, value, ceiling| {
            let mut buffers = BufferSizes::default();
            buffers.set(end, value, ceiling);
            (buffers.0[end as usize], buffers.pages(end, PAGES), buffers.pages(end, 0))
        };
        let (sender, receiver) = (QueueEnd::Sender, QueueEnd::Receiver);
        assert_eq!(set(sender, 0, Ceiling::Usual), (4608, 2, 0));
        assert_eq!(set(receiver, 0, Ceiling::None), (2304, 1, 0));
        assert_eq!(set(receiver, -1, Ceiling::None), (2304, 1, 0));
        assert_eq!(set(sender, -1, Ceiling::Usual), (425_984, 104, 0));
        assert_eq!(set(sender, 70_000, Ceiling::Usual), (140_000, 35, 0));
        assert_eq!(set(sender, i32::MAX, Ceiling::None), (i32::MAX as u32 - 1, MOST_PAGES, 0));
        assert_eq!(BufferSizes::default().pages(sender, PAGES), PAGES);
    }

    #[test]
    fn a_tight_account_gives_each_queue_less_until_it_is_down_again() {
        let account = SocketAccount::Test;
        account.set_limits([10, 20, 30]);
        let mut charges = [0; 3].map(|_: u8| QueueCharge::new(account));
        assert_eq!((account.most(PAGES), account.admit(50)), (PAGES, Ok(())));
        charges[0].set(22);
        assert_eq!((account.pages(), account.most(PAGES)), (21, FEW_PAGES), "the first page is free");
        assert_eq!((account.admit(9), account.admit(10)), (Ok(()), Err(Errno::ENOBUFS)));
        charges[1].set(10);
        assert_eq!((account.pages(), account.most(PAGES)), (30, 1));
        assert_eq!((account.admit(1), account.admit(2)), (Ok(()), Err(Errno::ENOBUFS)));
        charges[0].set(3);
        assert_eq!((account.pages(), account.most(PAGES)), (11, FEW_PAGES), "it is not down yet");
        charges[2].set(1);
        charges[0].set(1);
        assert_eq!((account.pages(), account.most(PAGES)), (9, PAGES));
        drop(charges);
        assert_eq!(account.pages(), 0);
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(&self) -> Woken {
            self.0.fetch_add(1, Ordering::Relaxed);
            Woken::Nobody
        }
    }

    #[test]
    fn those_that_wait_for_an_account_are_woken_when_it_grants_more() {
        let sum = Sum::new();
        for (limit, pages) in sum.limits.iter().zip([10, 20, 30]) {
            limit.store(pages, Ordering::Relaxed);
        }
        let bell = reserve::arc(Bell::default());
        let mut waiter = PollWaiter::observer(bell.clone());
        waiter.register(sum.loosened());
        let rings = |change: fn(&Sum, usize), pages| {
            change(&sum, pages);
            (bell.0.swap(0, Ordering::Relaxed), sum.is_tight())
        };
        assert_eq!(rings(Sum::add, 20), (0, false));
        assert_eq!(rings(Sum::add, 1), (0, true));
        assert_eq!(rings(Sum::sub, 10), (0, true), "11 pages: a queue may have a few still");
        assert_eq!(rings(Sum::add, 19), (0, true));
        assert_eq!(rings(Sum::sub, 1), (1, true), "a few pages instead of one");
        assert_eq!(rings(Sum::sub, 18), (0, true));
        assert_eq!(rings(Sum::sub, 1), (1, false));
        assert_eq!(rings(Sum::sub, 10), (0, false));
    }
}
