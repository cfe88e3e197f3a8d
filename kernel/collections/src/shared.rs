//! Shared and boxed objects: `alloc`'s types without their constructors.

use alloc::{boxed, sync};

/// Names of `alloc`'s shared and boxed types of a value, without their constructors.
///
/// `Arc::new(value)` on an alias of `alloc::sync::Arc` would compile. On a projection it does not:
/// the compiler can compute `Arc<T>` from `T`, but not `T` from `Arc<T>`.
pub trait Shared {
    /// `alloc::sync::Arc<Self>`.
    type Arc;
    /// `alloc::sync::Weak<Self>`.
    type Weak;
    /// `alloc::boxed::Box<Self>`.
    type Box;
}

impl<T: ?Sized> Shared for T {
    type Arc = sync::Arc<T>;
    type Weak = sync::Weak<T>;
    type Box = boxed::Box<T>;
}

/// A shared object; made by [`crate::reserve`].
pub type Arc<T> = <T as Shared>::Arc;
/// A reference that does not keep the object.
pub type Weak<T> = <T as Shared>::Weak;
/// An object of its own on the heap; made by [`crate::reserve`].
pub type Box<T> = <T as Shared>::Box;

/// [`Arc`] as the receiver of a trait's method (`self: Receiver<Self>`) and as the parameter of a
/// generic function, where a projection is not allowed or not inferred. `tools/check-house` rejects
/// paths through it.
pub type Receiver<T> = sync::Arc<T>;
