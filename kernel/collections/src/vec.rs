//! A list that grows fallibly.

use alloc::vec;
use core::borrow::Borrow;
use core::ops::{Deref, DerefMut, RangeBounds};
use core::{fmt, slice};

use crate::AllocError;
use crate::grow::grows_fallibly;

/// A list in one piece of memory. It is a slice in all that does not grow it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vec<T>(vec::Vec<T>);

grows_fallibly!(Vec);

impl<T> Vec<T> {
    /// Creates an empty list, which needs no memory.
    pub const fn new() -> Self {
        Self(vec::Vec::new())
    }
    /// Adds `entry` at the end.
    ///
    /// # Errors
    /// [`AllocError`]; the entry is dropped.
    #[inline]
    pub fn try_push(&mut self, entry: T) -> Result<(), AllocError> {
        self.try_reserve(1)?;
        self.0.push(entry);
        Ok(())
    }
    /// Adds `entry` at the end of a list that was given room before.
    ///
    /// # Panics
    /// Where there is no room.
    #[inline]
    pub fn push_reserved(&mut self, entry: T) {
        assert!(self.0.len() < self.0.capacity(), "no room was reserved");
        self.0.push(entry);
    }
    /// Puts `entry` before the one at `at`.
    ///
    /// # Errors
    /// [`AllocError`]; the entry is dropped.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub fn try_insert(&mut self, at: usize, entry: T) -> Result<(), AllocError> {
        self.try_reserve(1)?;
        self.0.insert(at, entry);
        Ok(())
    }
    /// Puts `entry` before the one at `at` of a list that was given room before.
    ///
    /// # Panics
    /// If there is no room, or `at` is beyond the end.
    pub fn insert_reserved(&mut self, at: usize, entry: T) {
        assert!(self.0.len() < self.0.capacity(), "no room was reserved");
        self.0.insert(at, entry);
    }
    /// Adds what `entries` gives at the end.
    ///
    /// # Errors
    /// [`AllocError`]; the entries added until then stay.
    pub fn try_extend(&mut self, entries: impl IntoIterator<Item = T>) -> Result<(), AllocError> {
        let mut entries = entries.into_iter();
        self.try_reserve(entries.size_hint().0)?;
        entries.try_for_each(|entry| self.try_push(entry))
    }
    /// Adds copies of `entries` at the end.
    ///
    /// # Errors
    /// [`AllocError`].
    #[inline]
    pub fn try_extend_from_slice(&mut self, entries: &[T]) -> Result<(), AllocError>
    where
        T: Clone,
    {
        self.try_reserve(entries.len())?;
        self.0.extend_from_slice(entries);
        Ok(())
    }
    /// Makes the list `count` long, with copies of `entry` where it was shorter.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_resize(&mut self, count: usize, entry: T) -> Result<(), AllocError>
    where
        T: Clone,
    {
        self.try_reserve_exact(count.saturating_sub(self.0.len()))?;
        self.0.resize(count, entry);
        Ok(())
    }
    /// Copies the list. If an entry's own `clone` allocates, that memory comes from the reserve.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_clone(&self) -> Result<Self, AllocError>
    where
        T: Clone,
    {
        Self::try_from_slice(self)
    }
    /// Copies a slice.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_from_slice(entries: &[T]) -> Result<Self, AllocError>
    where
        T: Clone,
    {
        let mut list = Self::try_with_capacity(entries.len())?;
        list.0.extend_from_slice(entries);
        Ok(list)
    }
    /// Creates a list of `count` copies of `entry`.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_filled(entry: T, count: usize) -> Result<Self, AllocError>
    where
        T: Clone,
    {
        let mut list = Self::new();
        list.try_resize(count, entry)?;
        Ok(list)
    }
    /// Moves the entries to `room`'s memory, if that is larger. Returns the memory that is no
    /// longer needed, so that the caller can free it elsewhere. This is for lists that change under
    /// a lock under which nothing is allocated.
    #[must_use]
    pub fn move_to(&mut self, mut room: Self) -> Self {
        if room.0.capacity() > self.0.capacity() {
            room.0.clear();
            room.0.append(&mut self.0);
            core::mem::swap(self, &mut room);
        }
        room
    }
    /// Removes the last entry.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }
    /// Removes the entry at `at`; those after it move up.
    ///
    /// # Panics
    /// When there is none.
    pub fn remove(&mut self, at: usize) -> T {
        self.0.remove(at)
    }
    /// Removes the entry at `at`; the last one takes its place.
    ///
    /// # Panics
    /// When there is none.
    pub fn swap_remove(&mut self, at: usize) -> T {
        self.0.swap_remove(at)
    }
    /// Removes entries that are equal to the one before.
    pub fn dedup(&mut self)
    where
        T: PartialEq,
    {
        self.0.dedup();
    }
    /// Removes a range and gives its entries.
    ///
    /// # Panics
    /// When the range is not inside of the list.
    pub fn drain(&mut self, range: impl RangeBounds<usize>) -> vec::Drain<'_, T> {
        self.0.drain(range)
    }
    /// Removes the entries for which `stays`, which may change them, is false.
    pub fn retain_mut(&mut self, stays: impl FnMut(&mut T) -> bool) {
        self.0.retain_mut(stays);
    }
    /// Removes the entries for which `leaves`, which may change them, is true, and gives them in
    /// their order. Where the iterator is dropped before its end the rest stays.
    pub fn extract(&mut self, leaves: impl FnMut(&mut T) -> bool) -> impl Iterator<Item = T> {
        self.0.extract_if(.., leaves)
    }
    /// All entries.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
    /// All entries, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
    /// The entries for as long as the kernel lives.
    pub fn leak<'a>(self) -> &'a mut [T] {
        self.0.leak()
    }
    /// Takes a list that a crate below the kernel made fallibly.
    pub const fn adopt(list: vec::Vec<T>) -> Self {
        Self(list)
    }
    /// Gives the list to a crate below the kernel.
    pub fn into_inner(self) -> vec::Vec<T> {
        self.0
    }
}

impl<T> Default for Vec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for Vec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Vec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> AsRef<[T]> for Vec<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T> Borrow<[T]> for Vec<T> {
    fn borrow(&self) -> &[T] {
        self
    }
}

impl<T: fmt::Debug> fmt::Debug for Vec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: PartialEq> PartialEq<[T]> for Vec<T> {
    fn eq(&self, other: &[T]) -> bool {
        self.0 == other
    }
}

impl<T: PartialEq> PartialEq<&[T]> for Vec<T> {
    fn eq(&self, other: &&[T]) -> bool {
        self.0 == *other
    }
}

impl<T: PartialEq<U>, U, const N: usize> PartialEq<[U; N]> for Vec<T> {
    fn eq(&self, other: &[U; N]) -> bool {
        self.0 == other
    }
}

impl<T: PartialEq, const N: usize> PartialEq<&[T; N]> for Vec<T> {
    fn eq(&self, other: &&[T; N]) -> bool {
        self.0 == *other
    }
}

impl<T> IntoIterator for Vec<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> vec::IntoIter<T> {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Vec<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> slice::Iter<'a, T> {
        self.0.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Vec<T> {
    type Item = &'a mut T;
    type IntoIter = slice::IterMut<'a, T>;

    fn into_iter(self) -> slice::IterMut<'a, T> {
        self.0.iter_mut()
    }
}

/// Adds formatted text at the end of bytes; an error means lack of memory.
impl fmt::Write for Vec<u8> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.try_extend_from_slice(text.as_bytes()).map_err(|_| fmt::Error)
    }
}

/// `collect` that can fail.
pub trait TryCollect: Iterator + Sized {
    /// Makes a list of all that the iterator gives.
    ///
    /// # Errors
    /// [`AllocError`].
    fn try_collect_vec(self) -> Result<Vec<Self::Item>, AllocError> {
        let mut list = Vec::new();
        list.try_extend(self)?;
        Ok(list)
    }
}

impl<I: Iterator> TryCollect for I {}
