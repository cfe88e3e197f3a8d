//! The calls that wait for a set of semaphores.

use core::ops::Bound;
use core::sync::atomic::AtomicUsize;

use freehold_collections::{Arc, Map};

use super::SemOperations;
use crate::Result;
use crate::ipc::sleeper::Sleeper;

/// A call that waits.
pub(super) struct Waiter {
    pub request: SemOperations,
    /// The operation that blocks.
    pub blocking: AtomicUsize,
    pub sleeper: Sleeper<Result<()>>,
}

/// The event that a call of one operation waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    Zero,
    More,
}

/// A waiting call of one operation: its semaphore, its wish and its ticket.
pub(super) type SingleKey = (u16, Wanted, u64);

/// Calls that wait.
#[derive(Default)]
pub(super) struct Waiting {
    /// All of them, in the order of their arrival.
    pub all: Map<u64, Arc<Waiter>>,
    /// Calls with a single operation. They are in `all` as well.
    pub single: Map<SingleKey, Arc<Waiter>>,
    next_ticket: u64,
}

impl Waiting {
    /// The key of a call among those of one operation.
    fn key(request: &SemOperations, ticket: u64) -> Option<SingleKey> {
        let [operation] = request.operations[..] else { return None };
        let wanted = if operation.change == 0 { Wanted::Zero } else { Wanted::More };
        Some((operation.number, wanted, ticket))
    }

    /// Adds a call that blocks. Returns its ticket.
    ///
    /// # Errors
    /// `ENOMEM`; no call is added.
    pub fn add(&mut self, waiter: &Arc<Waiter>) -> Result<u64> {
        let ticket = self.next_ticket;
        self.all.try_insert(ticket, waiter.clone())?;
        if let Some(key) = Self::key(&waiter.request, ticket)
            && let Err(error) = self.single.try_insert(key, waiter.clone())
        {
            self.all.remove(&ticket);
            return Err(error.into());
        }
        self.next_ticket += 1;
        Ok(ticket)
    }

    pub fn remove(&mut self, ticket: u64) {
        if let Some(waiter) = self.all.remove(&ticket)
            && let Some(key) = Self::key(&waiter.request, ticket)
        {
            self.single.remove(&key);
        }
    }

    /// Whether one of the calls has several operations.
    pub fn has_several(&self) -> bool {
        self.all.len() > self.single.len()
    }

    /// The first call that came with the ticket `from` or later.
    pub fn next(&self, from: u64) -> Option<(u64, Arc<Waiter>)> {
        let found = self.all.first_from(Bound::Included(&from));
        found.map(|(&ticket, waiter)| (ticket, waiter.clone()))
    }

    /// The first call of one operation behind this key that waits for the same event.
    pub fn next_single(&self, (number, wanted, from): SingleKey) -> Option<(u64, Arc<Waiter>)> {
        let found = self.single.first_from(Bound::Included(&(number, wanted, from)));
        let (&(at, waits_for, ticket), waiter) = found?;
        ((at, waits_for) == (number, wanted)).then(|| (ticket, waiter.clone()))
    }
}
