//! A list that is short nearly always, and then needs no memory of the heap.

use core::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

use crate::{AllocError, Vec};

/// A list with up to `N` entries inside of itself, for the arguments of a system call: there are
/// nearly always few, but a program may pass many. Its capacity is set when it is made.
#[derive(Debug)]
pub struct Short<T, const N: usize>(Entries<T, N>);

#[derive(Debug)]
enum Entries<T, const N: usize> {
    Few(ArrayVec<T, N>),
    Many(Vec<T>),
}

impl<T, const N: usize> Short<T, N> {
    /// Creates a list of one entry, which needs no memory.
    #[inline]
    pub fn one(entry: T) -> Self {
        const { assert!(N > 0, "there is room for one") };
        Self(Entries::Few(core::iter::once(entry).collect()))
    }
    /// Creates an empty list with room for `count` entries.
    ///
    /// # Errors
    /// [`AllocError`], never for up to `N` entries.
    #[inline]
    pub fn try_with_capacity(count: usize) -> Result<Self, AllocError> {
        Ok(Self(if count <= N {
            Entries::Few(ArrayVec::new())
        } else {
            Entries::Many(Vec::try_with_capacity(count)?)
        }))
    }
    /// Creates a list of `count` copies of `entry`.
    ///
    /// # Errors
    /// [`AllocError`], never for up to `N` entries.
    #[inline]
    pub fn try_filled(entry: T, count: usize) -> Result<Self, AllocError>
    where
        T: Clone,
    {
        Ok(Self(if count <= N {
            Entries::Few(core::iter::repeat_n(entry, count).collect())
        } else {
            Entries::Many(Vec::try_filled(entry, count)?)
        }))
    }
    /// Adds `entry` at the end.
    ///
    /// # Panics
    /// Where there is no room.
    #[inline]
    pub fn push_reserved(&mut self, entry: T) {
        match &mut self.0 {
            Entries::Few(few) => few.push(entry),
            Entries::Many(many) => many.push_reserved(entry),
        }
    }
    /// Adds the entries of `entries` at the end.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn extend_reserved(&mut self, entries: impl IntoIterator<Item = T>) {
        match &mut self.0 {
            Entries::Few(few) => few.extend(entries),
            Entries::Many(many) => entries.into_iter().for_each(|entry| many.push_reserved(entry)),
        }
    }
}

/// The entries of a [`Short`], one after the other.
#[derive(Debug)]
pub enum IntoIter<T, const N: usize> {
    /// The entries of a list that held them inside.
    Few(arrayvec::IntoIter<T, N>),
    /// The entries of a list that held them on the heap.
    Many(alloc::vec::IntoIter<T>),
}

impl<T, const N: usize> Iterator for IntoIter<T, N> {
    type Item = T;
    #[inline]
    fn next(&mut self) -> Option<T> {
        match self {
            Self::Few(few) => few.next(),
            Self::Many(many) => many.next(),
        }
    }
}

impl<T, const N: usize> IntoIterator for Short<T, N> {
    type Item = T;
    type IntoIter = IntoIter<T, N>;
    #[inline]
    fn into_iter(self) -> IntoIter<T, N> {
        match self.0 {
            Entries::Few(few) => IntoIter::Few(few.into_iter()),
            Entries::Many(many) => IntoIter::Many(many.into_iter()),
        }
    }
}

impl<T, const N: usize> Deref for Short<T, N> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Entries::Few(few) => few,
            Entries::Many(many) => many,
        }
    }
}

impl<T, const N: usize> DerefMut for Short<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Entries::Few(few) => few,
            Entries::Many(many) => many,
        }
    }
}
