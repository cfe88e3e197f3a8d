//! One account's word, and charges that climb the tree.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::AtomicWord;

/// The state of an account and the frames that are charged to it, in one word.
#[derive(Debug)]
pub struct Balance<W = AtomicU64>(W);

/// Why a balance took no charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BalanceError {
    /// There would be more than the limit.
    Over,
    /// There is no such account.
    Gone,
}

/// Where in a balance's word the state is; the frames are below.
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
    /// A balance in `word`, which is 0 for that of no account.
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
    /// FrameCharge `frames` more, if there are no more than `limit` then. How many there are.
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
    /// Give back `frames` that were charged.
    ///
    /// # Panics
    /// Where less was charged: a frame's account is wrong.
    pub fn uncharge(&self, frames: u64) {
        let change = |state, charged: u64| {
            Ok(word(state, charged.checked_sub(frames).expect("no more is given back than was charged")))
        };
        let _ = self.update(change);
    }
    /// Opens it as an account's. The caller has the tree's lock. Returns whether it was free.
    pub fn open(&self) -> bool {
        self.update(|state, _| if state == FREE { Ok(word(OPEN, 0)) } else { Err(BalanceError::Gone) })
            .is_ok()
    }
    /// No more charges are expected; those on their way are still taken.
    pub fn close(&self) {
        let _ = self.update(|state, charged| match state {
            OPEN => Ok(word(CLOSED, charged)),
            _ => Err(BalanceError::Gone),
        });
    }
    /// Frees it if it is closed and nothing is charged. Returns whether it is free now. The caller
    /// has the tree's lock and knows of no account below.
    pub fn retire(&self) -> bool {
        self.update(|state, charged| match (state, charged) {
            (CLOSED, 0) => Ok(word(FREE, 0)),
            _ => Err(BalanceError::Over),
        })
        .is_ok()
    }
    /// Whether it is an account's, closed or not.
    pub fn is_used(&self) -> bool {
        self.0.load(Ordering::Acquire) >> STATE != FREE
    }
    /// Whether it is an account's that was not closed.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) >> STATE == OPEN
    }
    /// Frames that are charged.
    pub fn charged(&self) -> u64 {
        self.0.load(Ordering::Acquire) & FRAMES
    }
}

/// Charge `frames` to `levels`, an account's balance with its limit and those above it in turn,
/// each asked for when the one below has been charged. `seen` is told each level's number and what
/// is charged there now.
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

/// Gives back a charge of these accounts. The lowest comes last: while it is charged, the accounts
/// above it stay the same.
pub fn uncharge_upwards<'a, W: AtomicWord + 'a>(
    mut levels: impl Iterator<Item = &'a Balance<W>>,
    frames: u64,
) {
    let Some(lowest) = levels.next() else { return };
    levels.for_each(|balance| balance.uncharge(frames));
    lowest.uncharge(frames);
}
