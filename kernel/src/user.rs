//! Transfer of bytes to and from a program.
//!
//! A [`Sink`] is where a `read` puts bytes, a [`Source`] where a `write` takes them. Each has two
//! ways to move bytes: one that may fault and therefore sleep, and one that never does. Bytes of a
//! page-cache frame are only visible inside a per-CPU window, where nothing may sleep. So a
//! page-cache copy calls `fault_in` outside the window, then `*_without_fault` inside. It repeats
//! both while the latter moves too few bytes.
//!
//! A [`UserPtr`] is an unchecked address from a program: every access to it may fail.

use core::fmt;
use core::marker::PhantomData;

use freehold_collections::{Arc, Short, Vec};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::hw::{self, Faults};
use crate::sched::thread::{self, Drain, Fill, PinnedPart, ThreadOwner};
use crate::{Errno, Result};

mod string;

pub use string::{bounded_string, string, up_to_nul, visit_string};

/// Length of the longest path that a program may pass, with its NUL (PATH_MAX).
pub const PATH_MAX: usize = 4096;
/// Largest number of buffers that a vectored call may name (IOV_MAX).
pub const IOV_MAX: usize = 1024;
/// Largest number of bytes that one call moves (MAX_RW_COUNT).
pub const MAX_COUNT: usize = 0x7fff_f000;

/// Whether a device can access the memory of a [`Sink`] or a [`Source`] directly, without a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direct {
    /// No: the bytes are not in a program's memory.
    No,
    /// No: the bytes are in a program's memory, but some run does not begin or end on a border.
    Unaligned,
    /// Yes.
    Aligned,
}

impl Direct {
    /// Returns the answer for a program's memory in `runs`. Each run is an address (or an offset in
    /// its page) and a number of bytes; `unit` is the distance of borders.
    pub fn of(runs: impl IntoIterator<Item = (u64, usize)>, unit: usize) -> Self {
        let is_aligned =
            |(start, length): (u64, usize)| start.is_multiple_of(unit as u64) && length.is_multiple_of(unit);
        if runs.into_iter().all(is_aligned) { Self::Aligned } else { Self::Unaligned }
    }
}

/// The target of a read.
pub trait Sink {
    /// Number of bytes that still fit.
    fn remaining(&self) -> usize;
    /// Appends as many of `bytes` as fit; may sleep. `EFAULT` only if no byte could be stored. The
    /// default is [`Sink::put_without_fault`], for sinks whose memory is always present.
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(self.put_without_fault(bytes))
    }
    /// Appends as many of `bytes` as fit without a page fault, possibly none.
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize;
    /// Makes the next byte's page present and writable; may sleep. `EFAULT` if this is impossible.
    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
    /// Whether a device can fill the sink's memory directly, in runs on borders of `unit` bytes.
    fn direct(&self, _unit: usize) -> Direct {
        Direct::No
    }
    /// Lets `transfer` fill the first bytes of the next run, while its pages are pinned. It gets at
    /// most `most` bytes, and a multiple of `unit` if the pinned pages end early. The bytes count
    /// as put unless `transfer` fails. Returns their number. `EINVAL` if the memory is not a
    /// program's.
    fn fill_direct(&mut self, _most: usize, _unit: usize, _transfer: Fill<'_>) -> Result<usize> {
        Err(Errno::EINVAL)
    }
}

/// The origin of the bytes of a write.
pub trait Source {
    /// Number of bytes that are left.
    fn remaining(&self) -> usize;
    /// Takes up to `bytes.len()` bytes; may sleep. `EFAULT` only if no byte could be taken.
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize>;
    /// Takes up to `bytes.len()` bytes without a page fault, possibly none.
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize;
    /// Makes the next byte's page present; may sleep. `EFAULT` if this is impossible.
    fn fault_in(&mut self) -> Result<()>;
    /// Whether a device can read the source's memory directly, in runs on borders of `unit` bytes.
    fn direct(&self, _unit: usize) -> Direct {
        Direct::No
    }
    /// Lets `transfer` take the first bytes of the next run, under the rules of
    /// [`Sink::fill_direct`].
    fn drain_direct(&mut self, _most: usize, _unit: usize, _transfer: Drain<'_>) -> Result<usize> {
        Err(Errno::EINVAL)
    }
}

/// An address in the current program at which the program claims to have a `T`.
pub struct UserPtr<T> {
    address: u64,
    what: PhantomData<fn() -> T>,
}

impl<T> Clone for UserPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for UserPtr<T> {}
impl<T> fmt::Debug for UserPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {:#x}", self.address)
    }
}

impl<T> UserPtr<T> {
    /// Makes a pointer from the `address` that a program passed.
    pub const fn new(address: u64) -> Self {
        Self { address, what: PhantomData }
    }
    /// Returns the address.
    pub const fn address(self) -> u64 {
        self.address
    }
    /// Whether the program passed NULL.
    pub const fn is_null(self) -> bool {
        self.address == 0
    }
    /// The pointer `count` elements after this one.
    #[must_use]
    pub const fn add(self, count: usize) -> Self {
        Self::new(self.address.wrapping_add((count as u64).wrapping_mul(size_of::<T>() as u64)))
    }
    /// The same address as a pointer to another type.
    pub const fn cast<U>(self) -> UserPtr<U> {
        UserPtr::new(self.address)
    }
}

impl<T: FromBytes + IntoBytes> UserPtr<T> {
    /// Reads the value; may sleep. A value of a word's size is loaded in one access.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    pub fn read(self) -> Result<T> {
        let mut value = T::new_zeroed();
        hw::load_user(self.address, value.as_mut_bytes()).ok_or(Errno::EFAULT)?;
        Ok(value)
    }
    /// Reads the value, or returns `None` for NULL; may sleep.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn read_optional(self) -> Result<Option<T>> {
        if self.is_null() { Ok(None) } else { self.read().map(Some) }
    }
    /// Reads `count` consecutive values; may sleep. The caller bounds `count`.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn read_many(self, count: usize) -> Result<Vec<T>>
    where
        T: Clone,
    {
        let mut values = zeroed(count)?;
        read_exact(self.address, values.as_mut_slice().as_mut_bytes())?;
        Ok(values)
    }
    /// Reads `count` consecutive values; may sleep. Up to `N` values need no heap. The caller
    /// bounds `count`.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    #[inline]
    pub fn read_few<const N: usize>(self, count: usize) -> Result<Short<T, N>>
    where
        T: Clone,
    {
        let mut values = Short::try_filled(T::new_zeroed(), count)?;
        self.read_into(&mut values)?;
        Ok(values)
    }
    /// Fills `values` from consecutive values at this address; may sleep.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn read_into(self, values: &mut [T]) -> Result<()> {
        read_exact(self.address, values.as_mut_bytes())
    }
}

impl<T: IntoBytes + Immutable> UserPtr<T> {
    /// Writes `value`; may sleep. A value of the size of a word or half a word is stored in one
    /// access.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    pub fn write(self, value: &T) -> Result<()> {
        hw::store_user(self.address, value.as_bytes()).ok_or(Errno::EFAULT)
    }
    /// Writes `value` unless the pointer is NULL; may sleep.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write_optional(self, value: &T) -> Result<()> {
        if self.is_null() { Ok(()) } else { self.write(value) }
    }
    /// Writes `values` one after the other; may sleep.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write_slice(self, values: &[T]) -> Result<()> {
        write_exact(self.address, values.as_bytes())
    }
}

/// Fills `bytes` from the program's `address`; may sleep.
///
/// # Errors
/// `EFAULT`.
pub fn read_exact(address: u64, bytes: &mut [u8]) -> Result<()> {
    let length = bytes.len();
    if hw::read_user(address, bytes, Faults::Sleep) == length { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Returns the result of a call that met `error` after `done` bytes had moved: `done`, unless that
/// is 0.
///
/// # Errors
/// `error`.
pub fn so_far(done: usize, error: Errno) -> Result<usize> {
    if done > 0 { Ok(done) } else { Err(error) }
}

/// Reads all bytes of `source`. The caller bounds their number.
///
/// # Errors
/// `EFAULT`, `ENOMEM`.
pub fn read_all(source: &mut dyn Source) -> Result<Vec<u8>> {
    let mut bytes: Vec<u8> = zeroed(source.remaining())?;
    fill(source, &mut bytes)?;
    Ok(bytes)
}

/// Fills `room` from `source`.
///
/// # Errors
/// `EFAULT`.
pub fn fill(source: &mut dyn Source, room: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < room.len() {
        match source.take(&mut room[done..])? {
            0 => return Err(Errno::EFAULT),
            count => done += count,
        }
    }
    Ok(())
}

/// Reads and discards `length` bytes. Returns their number.
///
/// # Errors
/// `EFAULT`.
pub fn take_all(source: &mut dyn Source, length: usize) -> Result<usize> {
    let (mut bytes, mut left) = ([0; 256], length);
    while left > 0 {
        let part = left.min(bytes.len());
        fill(source, &mut bytes[..part])?;
        left -= part;
    }
    Ok(length)
}

/// Writes all of `bytes` to the program's `address`; may sleep.
///
/// # Errors
/// `EFAULT`.
pub fn write_exact(address: u64, bytes: &[u8]) -> Result<()> {
    if hw::write_user(address, bytes, Faults::Sleep) == bytes.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Returns a zeroed kernel buffer for `count` values. The caller bounds `count`.
///
/// # Errors
/// `ENOMEM`.
pub fn zeroed<T: FromBytes + Clone>(count: usize) -> Result<Vec<T>> {
    Ok(Vec::try_filled(T::new_zeroed(), count)?)
}

/// Reads `length` bytes from `address` on; may sleep. The caller bounds `length`.
///
/// # Errors
/// `EFAULT`, `ENOMEM`.
pub fn read_vec(address: u64, length: usize) -> Result<Vec<u8>> {
    UserPtr::<u8>::new(address).read_many(length)
}

/// A run of a program's bytes, as a [`Sink`] and a [`Source`]. Its layout is that of the `struct
/// iovec` that describes the run.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes)]
#[repr(C)]
pub struct UserSlice {
    address: u64,
    length: usize,
}

impl UserSlice {
    /// The run of `length` bytes from `address` on. Lengths above [`MAX_COUNT`] are cut, as on
    /// Linux.
    pub fn new(address: u64, length: usize) -> Self {
        Self { address, length: length.min(MAX_COUNT) }
    }

    /// The run's address and length.
    pub const fn place(&self) -> (u64, usize) {
        (self.address, self.length)
    }

    fn advance(&mut self, count: usize) {
        self.address = self.address.wrapping_add(count as u64);
        self.length -= count;
    }

    fn write(&mut self, bytes: &[u8], faults: Faults) -> usize {
        let wanted = bytes.len().min(self.length);
        let count = hw::write_user(self.address, &bytes[..wanted], faults);
        self.advance(count);
        count
    }

    fn read(&mut self, bytes: &mut [u8], faults: Faults) -> usize {
        let wanted = bytes.len().min(self.length);
        let count = hw::read_user(self.address, &mut bytes[..wanted], faults);
        self.advance(count);
        count
    }
}

/// The task that owns the memory.
fn owner() -> Result<Arc<dyn ThreadOwner>> {
    thread::with_current(|thread| thread.owner()).flatten().ok_or(Errno::EFAULT)
}

impl UserSlice {
    fn part(&self, most: usize, unit: usize) -> PinnedPart {
        PinnedPart { address: self.address, length: self.length.min(most), unit }
    }
}

impl Sink for UserSlice {
    fn remaining(&self) -> usize {
        self.length
    }
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let count = self.write(bytes, Faults::Sleep);
        if count == 0 && !bytes.is_empty() && self.length != 0 { Err(Errno::EFAULT) } else { Ok(count) }
    }
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        self.write(bytes, Faults::Never)
    }
    fn fault_in(&mut self) -> Result<()> {
        if self.length == 0 { Ok(()) } else { fault_in_writable(self.address) }
    }
    fn direct(&self, unit: usize) -> Direct {
        Direct::of([self.place()], unit)
    }
    fn fill_direct(&mut self, most: usize, unit: usize, transfer: Fill<'_>) -> Result<usize> {
        let count = owner()?.fill_pinned(self.part(most, unit), transfer)?;
        self.advance(count);
        Ok(count)
    }
}

impl Source for UserSlice {
    fn remaining(&self) -> usize {
        self.length
    }
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let count = self.read(bytes, Faults::Sleep);
        if count == 0 && !bytes.is_empty() && self.length != 0 { Err(Errno::EFAULT) } else { Ok(count) }
    }
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        self.read(bytes, Faults::Never)
    }
    fn fault_in(&mut self) -> Result<()> {
        if self.length == 0 { Ok(()) } else { read_exact(self.address, &mut [0]) }
    }
    fn direct(&self, unit: usize) -> Direct {
        Direct::of([self.place()], unit)
    }
    fn drain_direct(&mut self, most: usize, unit: usize, transfer: Drain<'_>) -> Result<usize> {
        let count = owner()?.take_pinned(self.part(most, unit), transfer)?;
        self.advance(count);
        Ok(count)
    }
}

/// Makes the page of `address` present and writable without changing a byte.
fn fault_in_writable(address: u64) -> Result<()> {
    let mut byte = [0];
    read_exact(address, &mut byte)?;
    // If another thread writes this byte between the read and the write, that write is lost. Such a
    // program races with its own read(2), which overwrites the byte anyway.
    write_exact(address, &byte)
}

/// Several runs of a program's bytes (readv, writev), as one [`Sink`] and [`Source`].
#[derive(Debug)]
pub struct Iovecs {
    slices: Short<UserSlice, 2>,
    /// Index of the first run that is not used up.
    current: usize,
    remaining: usize,
}

impl Iovecs {
    /// Reads the program's `struct iovec[]` of `count` runs at `address`.
    ///
    /// # Errors
    /// `EINVAL` for more than [`IOV_MAX`] runs or a negative length; `EFAULT`, `ENOMEM`.
    #[inline]
    pub fn read(address: u64, count: usize) -> Result<Self> {
        if count != 1 {
            return Self::read_many(address, count);
        }
        let slice = UserPtr::<UserSlice>::new(address).read()?;
        isize::try_from(slice.length).map_err(|_| Errno::EINVAL)?;
        Ok(Self::one(slice.address, slice.length))
    }

    fn read_many(address: u64, count: usize) -> Result<Self> {
        let all = Self::read_remote(address, count)?;
        // The addresses are checked before any byte moves, as on Linux.
        let is_ours = |slice: &UserSlice| {
            slice.address.checked_add(slice.length as u64).is_some_and(|end| end <= hw::user::USER_END)
        };
        if all.slices.iter().all(is_ours) { Ok(all) } else { Err(Errno::EFAULT) }
    }

    /// Like [`read`](Self::read), for runs in the memory of another process: their addresses are
    /// not checked.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_remote(address: u64, count: usize) -> Result<Self> {
        if count > IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let mut slices = UserPtr::<UserSlice>::new(address).read_few(count)?;
        let mut remaining = 0;
        for slice in slices.iter_mut() {
            if isize::try_from(slice.length).is_err() {
                return Err(Errno::EINVAL);
            }
            slice.length = slice.length.min(MAX_COUNT - remaining);
            remaining += slice.length;
        }
        Ok(Self { slices, current: 0, remaining })
    }

    /// One run: `length` bytes from `address` on.
    #[inline]
    pub fn one(address: u64, length: usize) -> Self {
        let slice = UserSlice::new(address, length);
        Self { slices: Short::one(slice), current: 0, remaining: slice.length }
    }

    /// Whether no bytes are left.
    pub const fn is_empty(&self) -> bool {
        self.remaining == 0
    }

    /// Returns the runs that are left.
    pub fn slices(&self) -> &[UserSlice] {
        &self.slices[self.current.min(self.slices.len())..]
    }

    /// Returns the first run with bytes left.
    fn next(&mut self) -> Option<&mut UserSlice> {
        while self.slices.get(self.current).is_some_and(|slice| slice.length == 0) {
            self.current += 1;
        }
        self.slices.get_mut(self.current)
    }

    /// Lets `step` move bytes of the first run that has bytes left.
    fn use_next(&mut self, step: impl FnOnce(&mut UserSlice) -> Result<usize>) -> Result<usize> {
        let Some(slice) = self.next() else { return Ok(0) };
        let count = step(slice)?;
        self.remaining -= count;
        Ok(count)
    }

    /// Lets `step` move bytes of one run after the other, until `wanted` bytes are moved or a run
    /// falls short. `step` gets the number of bytes moved before. An error counts only before the
    /// first byte.
    #[inline]
    fn use_up(
        &mut self,
        wanted: usize,
        mut step: impl FnMut(&mut UserSlice, usize) -> Result<usize>,
    ) -> Result<usize> {
        // Nearly always one run has room for all bytes.
        if let Some(slice) = self.slices.get_mut(self.current).filter(|slice| slice.length >= wanted) {
            let count = step(slice, 0)?;
            self.remaining -= count;
            return Ok(count);
        }
        self.use_up_many(wanted, &mut step)
    }

    /// [`Iovecs::use_up`] with more than one run.
    #[inline(never)]
    fn use_up_many(
        &mut self,
        wanted: usize,
        step: &mut dyn FnMut(&mut UserSlice, usize) -> Result<usize>,
    ) -> Result<usize> {
        let mut done = 0;
        while done < wanted && self.remaining > 0 {
            let expected = self.next().map_or(0, |slice| slice.length.min(wanted - done));
            match self.use_next(|slice| step(slice, done)) {
                Ok(count) if count < expected => return Ok(done + count),
                Ok(count) => done += count,
                Err(error) => return so_far(done, error),
            }
        }
        Ok(done)
    }
}

impl Sink for Iovecs {
    fn remaining(&self) -> usize {
        self.remaining
    }
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        self.use_up(bytes.len(), |slice, done| slice.put(&bytes[done..]))
    }
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        self.use_up(bytes.len(), |slice, done| Ok(slice.put_without_fault(&bytes[done..]))).unwrap_or(0)
    }
    fn fault_in(&mut self) -> Result<()> {
        self.next().map_or(Ok(()), Sink::fault_in)
    }
    fn direct(&self, unit: usize) -> Direct {
        Direct::of(self.slices.iter().map(UserSlice::place), unit)
    }
    fn fill_direct(&mut self, most: usize, unit: usize, transfer: Fill<'_>) -> Result<usize> {
        self.use_next(|slice| slice.fill_direct(most, unit, transfer))
    }
}

impl Source for Iovecs {
    fn remaining(&self) -> usize {
        self.remaining
    }
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        self.use_up(bytes.len(), |slice, done| slice.take(&mut bytes[done..]))
    }
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        self.use_up(bytes.len(), |slice, done| Ok(slice.take_without_fault(&mut bytes[done..]))).unwrap_or(0)
    }
    fn fault_in(&mut self) -> Result<()> {
        self.next().map_or(Ok(()), Source::fault_in)
    }
    fn direct(&self, unit: usize) -> Direct {
        Direct::of(self.slices.iter().map(UserSlice::place), unit)
    }
    fn drain_direct(&mut self, most: usize, unit: usize, transfer: Drain<'_>) -> Result<usize> {
        self.use_next(|slice| slice.drain_direct(most, unit, transfer))
    }
}
