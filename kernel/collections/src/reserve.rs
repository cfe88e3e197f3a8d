//! Objects of a fixed size whose allocation cannot fail, because the reserve has memory for them in
//! the worst case.
//!
//! Only for objects that are made while a system call or a kernel task has a reserve
//! (`heap::ensure`), and at boot. An object larger than the reserve's promise is a kernel bug:
//! [`SLICE_MOST`] limits slices, which have no fixed size. With `entry-checks` the kernel sums the
//! bytes for each system call and asserts that they do not exceed the reserve.

use alloc::{boxed, sync};
use core::any::Any;

use crate::Receiver;

/// The largest slice, in bytes: a name in a directory has 255.
pub const SLICE_MOST: usize = 256;

/// Makes a shared object.
#[inline]
pub fn arc<T>(value: T) -> sync::Arc<T> {
    sync::Arc::new(value)
}

/// Makes a shared object that holds a weak reference to itself, as `alloc::sync::Arc::new_cyclic`
/// does.
#[inline]
pub fn cyclic<T>(make: impl FnOnce(&sync::Weak<T>) -> T) -> sync::Arc<T> {
    sync::Arc::new_cyclic(make)
}

/// Makes a shared copy of a short slice.
///
/// # Panics
/// For more than [`SLICE_MOST`] bytes.
#[inline]
pub fn slice<T: Copy>(entries: &[T]) -> sync::Arc<[T]> {
    assert!(size_of_val(entries) <= SLICE_MOST, "a slice from the reserve is short");
    sync::Arc::from(entries)
}

/// Makes an object with one owner.
#[inline]
pub fn boxed<T>(value: T) -> boxed::Box<T> {
    boxed::Box::new(value)
}

/// Makes an object that lives as long as the kernel.
pub fn leaked<T>(value: T) -> &'static mut T {
    boxed::Box::leak(boxed::Box::new(value))
}

/// A reference to no object. Allocates nothing.
pub const fn no_weak<T>() -> sync::Weak<T> {
    sync::Weak::new()
}

/// Methods for the functions of `alloc::sync::Arc` and the methods of [`Receiver`], since a path
/// through [`crate::Arc`] does not compile. No method allocates.
pub trait ArcMethods<T: ?Sized> {
    /// A reference that does not keep the object.
    fn downgrade(&self) -> sync::Weak<T>;
    /// Whether both are the same object.
    fn is_same(&self, other: &Receiver<T>) -> bool;
    /// Returns the address of the object.
    fn address(&self) -> *const T;
    /// Returns how many references keep the object.
    fn references(&self) -> usize;
    /// Returns the object, if this is the last reference that keeps it.
    fn into_last(self) -> Option<T>
    where
        T: Sized;
}

/// Returns the object as its type `T`.
///
/// # Errors
/// If it has another type; returns the object unchanged.
#[inline]
pub fn downcast<T: Any + Send + Sync>(
    object: Receiver<dyn Any + Send + Sync>,
) -> Result<Receiver<T>, Receiver<dyn Any + Send + Sync>> {
    sync::Arc::downcast(object)
}

impl<T: ?Sized> ArcMethods<T> for Receiver<T> {
    #[inline]
    fn downgrade(&self) -> sync::Weak<T> {
        sync::Arc::downgrade(self)
    }
    #[inline]
    fn is_same(&self, other: &Receiver<T>) -> bool {
        sync::Arc::ptr_eq(self, other)
    }
    #[inline]
    fn address(&self) -> *const T {
        sync::Arc::as_ptr(self)
    }
    #[inline]
    fn references(&self) -> usize {
        sync::Arc::strong_count(self)
    }
    #[inline]
    fn into_last(self) -> Option<T>
    where
        T: Sized,
    {
        sync::Arc::into_inner(self)
    }
}
