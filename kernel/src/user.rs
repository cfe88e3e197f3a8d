//! Bytes on their way to and from a program.
//!
//! A [`Sink`] is where a `read` puts bytes, a [`Source`] where a `write` takes them. Each has two ways to
//! move bytes: one that may fault and therefore sleep, and one that never does. Bytes of a page-cache frame
//! are only visible inside a per-CPU window, where nothing may sleep; so page-cache copies go
//! `fault_in` (outside), then `*_without_fault` (inside), and again while the latter falls short.

use crate::Result;

/// Where a read puts its bytes.
pub trait Sink {
    /// Bytes that still fit.
    fn remaining(&self) -> usize;
    /// Append as many of `bytes` as fit; may sleep. `EFAULT` only if not one byte could be placed.
    fn put(&mut self, bytes: &[u8]) -> Result<usize>;
    /// Append as many of `bytes` as fit without a page fault; maybe none.
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize;
    /// Make the next byte's page present and writable; may sleep. `EFAULT` if that cannot be.
    fn fault_in(&mut self) -> Result<()>;
}

/// Where a write takes its bytes from.
pub trait Source {
    /// Bytes that are left.
    fn remaining(&self) -> usize;
    /// Take up to `bytes.len()` bytes; may sleep. `EFAULT` only if not one byte could be taken.
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize>;
    /// Take up to `bytes.len()` bytes without a page fault; maybe none.
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize;
    /// Make the next byte's page present; may sleep. `EFAULT` if that cannot be.
    fn fault_in(&mut self) -> Result<()>;
}
