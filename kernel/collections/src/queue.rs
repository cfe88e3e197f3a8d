//! A queue that grows fallibly.

use alloc::collections::vec_deque;
use core::fmt;
use core::ops::{Index, IndexMut, RangeBounds};

use crate::AllocError;
use crate::grow::grows_fallibly;

/// A queue with two ends.
#[derive(PartialEq, Eq)]
pub struct VecDeque<T>(vec_deque::VecDeque<T>);

grows_fallibly!(VecDeque);

impl<T> VecDeque<T> {
    /// Creates an empty queue, which needs no memory.
    pub const fn new() -> Self {
        Self(vec_deque::VecDeque::new())
    }
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Adds `entry` at the end.
    ///
    /// # Errors
    /// [`AllocError`]; the entry is dropped.
    #[inline]
    pub fn try_push_back(&mut self, entry: T) -> Result<(), AllocError> {
        self.try_reserve(1)?;
        self.0.push_back(entry);
        Ok(())
    }
    /// Adds `entry` at the front.
    ///
    /// # Errors
    /// [`AllocError`]; the entry is dropped.
    #[inline]
    pub fn try_push_front(&mut self, entry: T) -> Result<(), AllocError> {
        self.try_reserve(1)?;
        self.0.push_front(entry);
        Ok(())
    }
    /// Adds `entry` at the end of a queue that was given room before.
    ///
    /// # Panics
    /// Where there is no room.
    #[inline]
    pub fn push_back_reserved(&mut self, entry: T) {
        assert!(self.0.len() < self.0.capacity(), "no room was reserved");
        self.0.push_back(entry);
    }
    /// Puts `entry` before the one at `at` in a queue that was given room before.
    ///
    /// # Panics
    /// If there is no room, or `at` is beyond the end.
    pub fn insert_reserved(&mut self, at: usize, entry: T) {
        assert!(self.0.len() < self.0.capacity(), "no room was reserved");
        self.0.insert(at, entry);
    }
    /// Moves the entries to `room`'s memory, if that is larger. Returns the memory that is no
    /// longer needed, so that the caller can free it elsewhere. This is for queues that change
    /// under a lock under which nothing is allocated.
    #[must_use]
    pub fn move_to(&mut self, mut room: Self) -> Self {
        if room.capacity() > self.capacity() {
            room.0.clear();
            room.0.append(&mut self.0);
            core::mem::swap(self, &mut room);
        }
        room
    }
    /// Removes the first entry.
    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        self.0.pop_front()
    }
    /// Removes the last entry.
    #[inline]
    pub fn pop_back(&mut self) -> Option<T> {
        self.0.pop_back()
    }
    /// The first entry.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.0.front()
    }
    /// The first entry, to be changed.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut T> {
        self.0.front_mut()
    }
    /// The last entry.
    #[inline]
    pub fn back(&self) -> Option<&T> {
        self.0.back()
    }
    /// The last entry, to be changed.
    #[inline]
    pub fn back_mut(&mut self) -> Option<&mut T> {
        self.0.back_mut()
    }
    /// The entry with this number from the front.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at)
    }
    /// The entry with this number from the front, to be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)
    }
    /// Removes the entry with this number from the front.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        self.0.remove(at)
    }
    /// Removes a range and gives its entries.
    ///
    /// # Panics
    /// When the range is not inside of the queue.
    pub fn drain(&mut self, range: impl RangeBounds<usize>) -> vec_deque::Drain<'_, T> {
        self.0.drain(range)
    }
    /// Visits all entries from the front.
    pub fn iter(&self) -> vec_deque::Iter<'_, T> {
        self.0.iter()
    }
    /// Visits the entries from the one with this number on.
    ///
    /// # Panics
    /// When the number is larger than that of entries.
    pub fn iter_from(&self, at: usize) -> vec_deque::Iter<'_, T> {
        self.0.range(at..)
    }
    /// Returns the number of the first entry for which `is_before` is false. `is_before` must be
    /// true for all entries before it and false for all after it.
    pub fn partition_point(&self, is_before: impl FnMut(&T) -> bool) -> usize {
        self.0.partition_point(is_before)
    }
    /// Visits all entries from the front, to change them.
    pub fn iter_mut(&mut self) -> vec_deque::IterMut<'_, T> {
        self.0.iter_mut()
    }
    /// The entries as two slices, one behind the other.
    pub fn as_slices(&self) -> (&[T], &[T]) {
        self.0.as_slices()
    }
}

impl<T> Default for VecDeque<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for VecDeque<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Index<usize> for VecDeque<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.0[at]
    }
}

impl<T> IndexMut<usize> for VecDeque<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.0[at]
    }
}

impl<T> IntoIterator for VecDeque<T> {
    type Item = T;
    type IntoIter = vec_deque::IntoIter<T>;

    fn into_iter(self) -> vec_deque::IntoIter<T> {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a VecDeque<T> {
    type Item = &'a T;
    type IntoIter = vec_deque::Iter<'a, T>;

    fn into_iter(self) -> vec_deque::Iter<'a, T> {
        self.0.iter()
    }
}
