//! The kernel's collections: an operation that may need memory says so in its name and can fail.
//!
//! Code in `kernel/` that uses these types instead of `alloc`'s cannot grow anything infallibly:
//! [`Vec`], [`Short`], [`VecDeque`], [`String`] and [`Map`] have no `push`, `insert`, `extend`,
//! `collect`, `clone` or `from` that allocates. The compiler rejects such a call. A method that may
//! allocate begins with `try_` and returns [`AllocError`], which the kernel turns into `ENOMEM`.
//! After a failure the collection is as it was.
//!
//! **Fixed-size objects** ([`Arc`], [`Box`]) come from [`reserve`]: a system call reserves bytes of
//! the heap when it begins, and its small objects come from that reserve in the worst case. Both
//! types are `alloc`'s, because only those can become a `dyn` type and be a method's receiver in
//! stable Rust. They are named through a projection ([`Shared::Arc`]), so that `Arc::new(value)`
//! does not compile: the compiler knows no type to look `new` up in.
//!
//! **Limits of the compiler.** As long as any crate of the program links `alloc`, slices and
//! strings have its methods (`to_vec`, `sort`, `join` and others), and `alloc`'s `Arc<T>`
//! implements `From<T>`. `tools/check-house` looks for those.
//!
//! **Injected failures** are seen inside of this crate's operations, of any size: each tells the
//! heap that it handles a failure (`freehold_heap_use`). On the host failures are injected only in
//! tests, where each allocation fails once: in this crate's, and with the feature `inject` in those
//! of the kernel.
//!
//! May use `unsafe`: for the declaration of the one function that the heap defines. The crate has
//! no other `unsafe`.

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "inject"))]
extern crate std;

use core::fmt;

mod grow;
mod heap_use;
#[cfg(feature = "inject")]
pub mod inject;
mod map;
mod queue;
pub mod reserve;
mod shared;
mod short;
mod string;
#[cfg(test)]
mod tests;
mod vec;
mod wiped;

pub use map::{Iter, Keys, Map, Range, Values};
pub use queue::VecDeque;
pub use shared::{Arc, Box, Receiver, Shared, Weak};
pub use short::Short;
pub use string::{String, try_format};
pub use vec::{TryCollect, Vec};
pub use wiped::{WipedBytes, WipedChunk};

/// Error of an allocation that found no memory. The collection that was to grow is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocError;

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for AllocError {}

/// Formats into a new [`String`], as `format!` does.
///
/// # Errors
/// [`AllocError`].
#[macro_export]
macro_rules! try_format {
    ($($part:tt)*) => { $crate::try_format(::core::format_args!($($part)*)) };
}
