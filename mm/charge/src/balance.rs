//! One account's word, and charges that climb the tree.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::AtomicWord;

/// The state of an account and the frames that are charged to it, in one word.
#[derive(Debug)]
pub struct Balance<W = AtomicU64>(W);

/// Reasons why a charge failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BalanceError {
    /// The charge would exceed the limit.
    Over,
    /// The account does not exist any more.
    Gone,
}

/// The lowest bit of the state in a balance's word; the number of frames is in the bits below.
const STATE: u32 = 62;
const FRAMES: u64 = (1 << STATE) - 1;
const FREE: u64 = 0;
const OPEN: u64 = 1;
const CLOSED: u64 = 2;

const fn word(state: u64, frames: u64) -> u64 {
    state << STATE | frames
}

impl Balance {
    /// The balance of a free entry.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const FREE: Self = Self(AtomicU64::new(0));
}

impl<W: AtomicWord> Balance<W> {
    /// Returns a balance in `word`; 0 means that it belongs to no account.
    pub const fn with_word(word: W) -> Self {
        Self(word)
    }
    fn update(&self, change: impl Fn(u64, u64) -> Result<u64, BalanceError>) -> Result<u64, BalanceError> {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            let new = change(now >> STATE, now & FRAMES)?;
            match self.0.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(new & FRAMES),
                Err(other) => now = other,
            }
            self.0.relax();
        }
    }
    /// Charges `frames` more, if the sum is then at most `limit`. Returns the sum.
    ///
    /// # Errors
    /// [`BalanceError`]; nothing is charged.
    pub fn charge(&self, frames: u64, limit: u64) -> Result<u64, BalanceError> {
        self.update(|state, charged| match charged.checked_add(frames).filter(|sum| *sum <= FRAMES) {
            _ if state == FREE => Err(BalanceError::Gone),
            Some(sum) if sum <= limit => Ok(word(state, sum)),
            _ => Err(BalanceError::Over),
        })
    }
    /// Removes a charge of `frames`.
    ///
    /// # Panics
    /// If less was charged: a frame's account is wrong.
    pub fn uncharge(&self, frames: u64) {
        let change = |state, charged: u64| {
            Ok(word(state, charged.checked_sub(frames).expect("no more is given back than was charged")))
        };
        let _ = self.update(change);
    }
    /// Opens the balance for an account. The caller holds the tree's lock. Returns whether the
    /// balance was free.
    pub fn open(&self) -> bool {
        self.update(|state, _| if state == FREE { Ok(word(OPEN, 0)) } else { Err(BalanceError::Gone) })
            .is_ok()
    }
    /// Closes the balance. No more charges are expected, but concurrent ones still succeed.
    pub fn close(&self) {
        let _ = self.update(|state, charged| match state {
            OPEN => Ok(word(CLOSED, charged)),
            _ => Err(BalanceError::Gone),
        });
    }
    /// Frees the balance if it is closed and nothing is charged. Returns whether it is free now.
    /// The caller holds the tree's lock, and there is no account below.
    pub fn retire(&self) -> bool {
        self.update(|state, charged| match (state, charged) {
            (CLOSED, 0) => Ok(word(FREE, 0)),
            _ => Err(BalanceError::Over),
        })
        .is_ok()
    }
    /// Whether the balance belongs to an account, closed or not.
    pub fn is_used(&self) -> bool {
        self.0.load(Ordering::Acquire) >> STATE != FREE
    }
    /// Whether the balance belongs to an account that is not closed.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) >> STATE == OPEN
    }
    /// Frames that are charged.
    pub fn charged(&self) -> u64 {
        self.0.load(Ordering::Acquire) & FRAMES
    }
}

/// Charges `frames` to `levels`: the balances, with limits, of an account and of those above it.
/// Each level is read after the one below has been charged. `seen` gets each level's number and its
/// new sum.
///
/// # Errors
/// The level that refused, and why; nothing is charged.
pub fn charge_upwards<'a, W: AtomicWord + 'a>(
    levels: impl Iterator<Item = (&'a Balance<W>, u64)> + Clone,
    frames: u64,
    mut seen: impl FnMut(usize, u64),
) -> Result<(), (usize, BalanceError)> {
    for (level, (balance, limit)) in levels.clone().enumerate() {
        match balance.charge(frames, limit) {
            Ok(charged) => seen(level, charged),
            Err(why) => {
                uncharge_upwards(levels.map(|(balance, _)| balance).take(level), frames);
                return Err((level, why));
            }
        }
    }
    Ok(())
}

/// Removes a charge of these accounts. The lowest account is last: while it is charged, the
/// accounts above it stay the same.
pub fn uncharge_upwards<'a, W: AtomicWord + 'a>(
    mut levels: impl Iterator<Item = &'a Balance<W>>,
    frames: u64,
) {
    let Some(lowest) = levels.next() else { return };
    levels.for_each(|balance| balance.uncharge(frames));
    lowest.uncharge(frames);
}
