//! Fids: the numbers by which the server knows files.
//!
//! A [`Fid`] owns one number, from before the server is told of it. When it is dropped, the number
//! is *put away*: the channel's task ([`super::channel`]) tells the server, and only then is the
//! number free. If the task does not keep up, tasks that need new numbers tell the server, too
//! ([`Fids::next_in_excess`]). So dropping never sleeps, and a task that is killed half-way leaks
//! nothing. The number of an abandoned request is put away when the server has finished with the
//! request.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::Vec;

use super::channel::Channel;
use crate::sync::SpinLock;
use crate::{Errno, Result, host};

/// Number of fids per channel.
const FIDS: u32 = 1 << 16;
/// This many fids without an open file may be put away before the server is told of any: the server
/// keeps only a path for each.
const LAZY: usize = 64;
/// This many numbers may be put away before tasks that need new ones tell the server themselves.
const EXCESS: usize = 1024;

/// The numbers of a channel.
pub(super) struct Fids(SpinLock<Numbers>);

struct Numbers {
    /// One bit for each number that is used or put away.
    taken: Vec<u64>,
    /// How many numbers are used or put away.
    used: u32,
    /// One bit for each number that is put away.
    away: Vec<u64>,
    /// How many numbers are put away.
    count: usize,
    /// Whether the server must be told of all put-away numbers.
    due: bool,
    /// Index of the word at which the next search starts.
    next: usize,
}

impl Numbers {
    const fn has_free(&self) -> bool {
        self.used < FIDS
    }

    /// Takes a number that is put away, to tell the server of it.
    fn take_away(&mut self) -> Option<u32> {
        let at = self.away.iter().position(|&word| word != 0)?;
        let bit = self.away[at].trailing_zeros();
        self.away[at] &= !(1 << bit);
        self.count -= 1;
        Some(at as u32 * 64 + bit)
    }
}

impl Fids {
    /// Makes the table; all numbers are free.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        let words = (FIDS / 64) as usize;
        let (taken, away) = (Vec::try_filled(0, words)?, Vec::try_filled(0, words)?);
        Ok(Self(SpinLock::new(Numbers { taken, used: 0, away, count: 0, due: false, next: 0 })))
    }

    fn take(&self) -> Result<u32> {
        let mut numbers = self.0.lock();
        let words = numbers.taken.len();
        let start = numbers.next;
        let free = (0..words).map(|step| (start + step) % words).find(|&at| numbers.taken[at] != u64::MAX);
        let Some(at) = free else {
            // The put-away numbers are free soon.
            numbers.due = true;
            drop(numbers);
            host::folders_ended().wake_all();
            return Err(Errno::ENFILE);
        };
        let bit = numbers.taken[at].trailing_ones();
        numbers.taken[at] |= 1 << bit;
        numbers.used += 1;
        numbers.next = at;
        Ok(at as u32 * 64 + bit)
    }

    /// Frees a number that the server does not know, or will soon be told to forget.
    fn free(&self, number: u32) {
        let mut numbers = self.0.lock();
        numbers.taken[(number / 64) as usize] &= !(1 << (number % 64));
        numbers.used -= 1;
    }

    /// Puts a number away: the server must be told that it is not needed any more.
    pub fn put_away(&self, number: u32, haste: Haste) {
        let is_due = {
            let mut numbers = self.0.lock();
            numbers.away[(number / 64) as usize] |= 1 << (number % 64);
            numbers.count += 1;
            numbers.due |= haste == Haste::Now || numbers.count >= LAZY;
            numbers.due
        };
        if is_due {
            host::folders_ended().wake_all();
        }
    }

    /// Takes a number of which the server must be told now. [`Fids::told`] frees it.
    pub fn next_due(&self) -> Option<u32> {
        let mut numbers = self.0.lock();
        if !numbers.due {
            return None;
        }
        let number = numbers.take_away();
        numbers.due = number.is_some();
        number
    }

    /// Takes a number of which the caller must tell the server, if too many numbers are put away or
    /// none is free.
    pub fn next_in_excess(&self) -> Option<u32> {
        let mut numbers = self.0.lock();
        if numbers.count > EXCESS || !numbers.has_free() { numbers.take_away() } else { None }
    }

    /// Whether there is a number for a new file.
    pub fn has_free(&self) -> bool {
        self.0.lock().has_free()
    }

    /// Frees `number`, of which the server was told.
    pub fn told(&self, number: u32) {
        self.free(number);
    }

    /// How many numbers are used or put away.
    #[cfg(test)]
    pub fn taken(&self) -> u32 {
        self.0.lock().taken.iter().map(|word| word.count_ones()).sum()
    }
}

/// The time at which the server is to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Haste {
    /// At once: the fid has a file open.
    Now,
    /// Later, when there are more fids to release.
    None,
}

/// A number that identifies a file to the server.
pub(super) struct Fid {
    channel: &'static Channel,
    number: u32,
    is_open: AtomicBool,
    /// Whether the server knows this number, or may learn it.
    is_known: AtomicBool,
}

impl Fid {
    /// Allocates a number that the server is about to be told of.
    ///
    /// # Errors
    /// `ENFILE`; `EINTR`: the caller is killed.
    pub fn new(channel: &'static Channel) -> Result<Self> {
        channel.relieve()?;
        let number = channel.fids().take()?;
        Ok(Self { channel, number, is_open: AtomicBool::new(false), is_known: AtomicBool::new(true) })
    }
    /// The number.
    pub const fn number(&self) -> u32 {
        self.number
    }
    /// Notes that the server has a file open for this number.
    pub fn set_open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
    /// Frees the number at once: the server refused it.
    pub fn refused(self) {
        self.is_known.store(false, Ordering::Relaxed);
        self.channel.fids().free(self.number);
    }
    /// The request that introduces this number was abandoned. The number is put away when that
    /// request has ended.
    pub fn abandoned(self) {
        self.is_known.store(false, Ordering::Relaxed);
    }
}

impl Drop for Fid {
    fn drop(&mut self) {
        if *self.is_known.get_mut() {
            let haste = if *self.is_open.get_mut() { Haste::Now } else { Haste::None };
            self.channel.fids().put_away(self.number, haste);
        }
    }
}
