//! Memory of the messages that wait in sockets, bounded for the machine: no process' memory has
//! these pages, and the out-of-memory killer would look for them elsewhere.
//!
//! Each queue counts its pages beyond the first in one of three accounts. The first is always
//! granted: so every connection moves on, and a short exchange touches no number of all CPUs.
//!
//! An account has three limits, as Linux' tcp_mem. It is *tight* from the time at which it passes
//! the second until it is down to the first: queues take few pages then, and only one when it
//! reaches the third. A sender waits for its own queue's reader, in tight times too: an empty queue
//! has room. The sum may pass the third limit by the pages that senders have in hand, one each.
//!
//! The mark of tightness is changed after the sum, by each that changes that: of two at once the
//! mark may be the earlier one's until the next change.
//!
//! Source: tcp(7), udp(7), `tcp_init_mem` in net/ipv4/tcp.c, `__sk_mem_raise_allocated` in
//! net/core/sock.c. AF_UNIX, netlink and raw sockets have no such limit on Linux; here they have
//! that of UDP, and no setting.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_machine::PAGE_SIZE;

use crate::{Errno, Result};

/// Value of SO_SNDBUF and SO_RCVBUF.
pub const BUFFER_BYTES: usize = 212_992;
/// The most pages that wait in one queue: Linux' default send buffer.
pub const PAGES: usize = BUFFER_BYTES / PAGE_SIZE;
/// Pages that a queue may have while its account is tight.
const FEW_PAGES: usize = 4;

/// The sockets whose pages are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketAccount {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// AF_UNIX, netlink and raw sockets.
    Other,
    /// No socket's.
    #[cfg(test)]
    Test,
}

struct Sum {
    pages: AtomicUsize,
    limits: [AtomicUsize; 3],
    is_tight: AtomicBool,
}

impl Sum {
    const fn new() -> Self {
        Self {
            pages: AtomicUsize::new(0),
            limits: [const { AtomicUsize::new(usize::MAX) }; 3],
            is_tight: AtomicBool::new(false),
        }
    }

    fn limit(&self, at: usize) -> usize {
        self.limits[at].load(Ordering::Relaxed)
    }

    /// There are so many pages now.
    fn judge(&self, pages: usize) {
        if self.is_tight.load(Ordering::Relaxed) {
            if pages <= self.limit(0) {
                self.is_tight.store(false, Ordering::Relaxed);
            }
        } else if pages > self.limit(1) {
            self.is_tight.store(true, Ordering::Relaxed);
        }
    }
}

const ACCOUNTS: usize = if cfg!(test) { 4 } else { 3 };

static SUMS: [Sum; ACCOUNTS] = [const { Sum::new() }; ACCOUNTS];

/// Sets the limits by the pages that the machine has, as Linux does.
pub fn init(pages: usize) {
    let share = |part: usize| (pages / part).max(128);
    let (tcp, udp) = (share(16), share(8));
    SocketAccount::Tcp.set_limits([tcp / 4 * 3, tcp, tcp / 4 * 6]);
    for account in [SocketAccount::Udp, SocketAccount::Other] {
        account.set_limits([udp / 4 * 3, udp, udp / 4 * 6]);
    }
}

impl SocketAccount {
    const fn sum(self) -> &'static Sum {
        &SUMS[self as usize]
    }

    /// Pages in it.
    pub fn pages(self) -> usize {
        self.sum().pages.load(Ordering::Relaxed)
    }

    /// Its limits, in pages: see the module's head.
    pub fn limits(self) -> [usize; 3] {
        [0, 1, 2].map(|at| self.sum().limit(at))
    }

    /// Changes them.
    pub fn set_limits(self, limits: [usize; 3]) {
        for (limit, pages) in self.sum().limits.iter().zip(limits) {
            limit.store(pages, Ordering::Relaxed);
        }
        self.sum().judge(self.pages());
    }

    /// The most pages that a queue may have now.
    #[inline]
    pub(super) fn most(self) -> usize {
        if self.sum().is_tight.load(Ordering::Relaxed) { self.most_when_tight() } else { PAGES }
    }

    #[cold]
    fn most_when_tight(self) -> usize {
        if self.pages() < self.sum().limit(2) { FEW_PAGES } else { 1 }
    }

    /// Whether a message of so many pages may wait, which comes whole or not at all.
    ///
    /// # Errors
    /// `ENOBUFS`.
    #[inline]
    pub(super) fn admit(self, pages: usize) -> Result<()> {
        let is_full = pages > 1
            && self.sum().is_tight.load(Ordering::Relaxed)
            && self.pages().saturating_add(pages) > self.sum().limit(2);
        if is_full { Err(Errno::ENOBUFS) } else { Ok(()) }
    }
}

/// The pages of one queue, in its account.
pub(super) struct QueueCharge {
    account: SocketAccount,
    counted: usize,
}

impl QueueCharge {
    /// None.
    pub const fn new(account: SocketAccount) -> Self {
        Self { account, counted: 0 }
    }

    /// The account that the pages are in.
    pub const fn account(&self) -> SocketAccount {
        self.account
    }

    /// The queue has so many pages now.
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
        let pages = if count > before {
            sum.pages.fetch_add(count - before, Ordering::Relaxed) + (count - before)
        } else {
            sum.pages.fetch_sub(before - count, Ordering::Relaxed) - (before - count)
        };
        sum.judge(pages);
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

    #[test]
    fn a_tight_account_gives_each_queue_less_until_it_is_down_again() {
        let account = SocketAccount::Test;
        account.set_limits([10, 20, 30]);
        let mut charges = [0; 3].map(|_: u8| QueueCharge::new(account));
        assert_eq!((account.most(), account.admit(50)), (PAGES, Ok(())));
        charges[0].set(22);
        assert_eq!((account.pages(), account.most()), (21, FEW_PAGES), "the first page is free");
        assert_eq!((account.admit(9), account.admit(10)), (Ok(()), Err(Errno::ENOBUFS)));
        charges[1].set(10);
        assert_eq!((account.pages(), account.most()), (30, 1));
        assert_eq!((account.admit(1), account.admit(2)), (Ok(()), Err(Errno::ENOBUFS)));
        charges[0].set(3);
        assert_eq!((account.pages(), account.most()), (11, FEW_PAGES), "it is not down yet");
        charges[2].set(1);
        charges[0].set(1);
        assert_eq!((account.pages(), account.most()), (9, PAGES));
        drop(charges);
        assert_eq!(account.pages(), 0);
    }
}
