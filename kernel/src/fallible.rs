//! Allocation that fails with a value: the one place where lists grow by as much as a program says.
//!
//! A list whose size or number of entries a program chooses grows through these functions, which
//! give `ENOMEM`. Small objects of fixed size inside of a system call (`Arc::new`, a node of a map)
//! may use the heap's reserve instead; see "Running out of memory" in ARCHITECTURE.md. Failures
//! that are [injected](crate::fault_inject) are seen here, whatever the size.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::{Errno, Result};

/// A list that grows, or says that it cannot.
pub trait Grow {
    /// Makes room for `more` entries, and for about as many again as there are.
    ///
    /// # Errors
    /// `ENOMEM`; the list is as it was.
    fn make_room(&mut self, more: usize) -> Result<()>;
    /// Makes room for `more` entries in a list that will not grow further.
    ///
    /// # Errors
    /// `ENOMEM`; the list is as it was.
    fn make_exact_room(&mut self, more: usize) -> Result<()>;
}

macro_rules! grow {
    ([$($parameter:tt)*] $list:ty) => {
        impl<$($parameter)*> Grow for $list {
            #[inline]
            fn make_room(&mut self, more: usize) -> Result<()> {
                if self.capacity() - self.len() >= more {
                    return Ok(());
                }
                fallibly(|| self.try_reserve(more)).map_err(|_| Errno::ENOMEM)
            }
            #[inline]
            fn make_exact_room(&mut self, more: usize) -> Result<()> {
                if self.capacity() - self.len() >= more {
                    return Ok(());
                }
                fallibly(|| self.try_reserve_exact(more)).map_err(|_| Errno::ENOMEM)
            }
        }
    };
}

grow!([T] Vec<T>);
grow!([T] VecDeque<T>);
grow!([] String);

#[cfg(target_os = "none")]
use freehold_arch::heap::fallibly;
/// On the host nothing fails by request.
#[cfg(not(target_os = "none"))]
fn fallibly<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// An empty list with room for `count` entries.
///
/// # Errors
/// `ENOMEM`.
pub fn with_room<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.make_exact_room(count)?;
    Ok(list)
}

/// Adds `entry` at the end.
///
/// # Errors
/// `ENOMEM`; the entry is dropped.
#[inline]
pub fn push<T>(list: &mut Vec<T>, entry: T) -> Result<()> {
    list.make_room(1)?;
    list.push(entry);
    Ok(())
}

/// Adds copies of `entries` at the end.
///
/// # Errors
/// `ENOMEM`; the list is as it was.
pub fn extend<T: Clone>(list: &mut Vec<T>, entries: &[T]) -> Result<()> {
    list.make_room(entries.len())?;
    list.extend_from_slice(entries);
    Ok(())
}

/// A list of copies of `entries`.
///
/// # Errors
/// `ENOMEM`.
pub fn to_vec<T: Clone>(entries: &[T]) -> Result<Vec<T>> {
    let mut list = with_room(entries.len())?;
    list.extend_from_slice(entries);
    Ok(list)
}

/// A list of what `entries` gives.
///
/// # Errors
/// `ENOMEM`.
pub fn collect<T>(entries: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let entries = entries.into_iter();
    let mut list = with_room(entries.size_hint().0)?;
    for entry in entries {
        push(&mut list, entry)?;
    }
    Ok(list)
}

/// As [`collect`], of what may itself fail.
///
/// # Errors
/// The first entry's, `ENOMEM`.
pub fn try_collect<T>(entries: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let mut list = Vec::new();
    for entry in entries {
        push(&mut list, entry?)?;
    }
    Ok(list)
}

/// The bytes of a formatted text.
///
/// # Errors
/// `ENOMEM`.
pub fn format(arguments: fmt::Arguments<'_>) -> Result<Vec<u8>> {
    struct Bytes(Vec<u8>);
    impl fmt::Write for Bytes {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            extend(&mut self.0, text.as_bytes()).map_err(|_| fmt::Error)
        }
    }
    let mut bytes = Bytes(Vec::new());
    fmt::Write::write_fmt(&mut bytes, arguments).map_err(|_| Errno::ENOMEM)?;
    Ok(bytes.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size that no machine has is an error, not the end of the kernel.
    #[test]
    fn sizes_that_cannot_be_had_are_errors() {
        let mut list = alloc::vec![1u64];
        assert_eq!(list.make_room(usize::MAX / 8), Err(Errno::ENOMEM));
        assert_eq!(with_room::<u64>(usize::MAX / 2).err(), Some(Errno::ENOMEM));
        assert_eq!(list, [1]);
        push(&mut list, 2).unwrap();
        assert_eq!(collect(list.iter().map(|n| n * 2)), Ok(alloc::vec![2, 4]));
        assert_eq!(to_vec(b"abc").as_deref(), Ok(&b"abc"[..]));
        assert_eq!(format(format_args!("{}-{:02}", 1, 2)).as_deref(), Ok(&b"1-02"[..]));
    }
}
