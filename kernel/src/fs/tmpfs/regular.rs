//! Regular files of a tmpfs: bytes, charges, and seals.
//!
//! Limits and seals are checked under the write lock. For an append the end of the file is
//! determined first.
//!
//! The write lock makes a write atomic with regard to other writes, truncations and fallocate. The
//! bytes that a write may need are charged to the file system before it; the unused ones are given
//! back after it.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use freehold_collections::Arc;

use super::{PAGE, Stage, TmpfsShared};
use crate::fs::content::{FileContent, Punch};
use crate::fs::file::Allocate;
use crate::fs::text::TextUse;
use crate::sync::Mutex;
use crate::user::Source;
use crate::{Errno, Result, sched, task};

/// No further seals.
const F_SEAL_SEAL: u32 = 0x1;
const F_SEAL_SHRINK: u32 = 0x2;
const F_SEAL_GROW: u32 = 0x4;
const F_SEAL_WRITE: u32 = 0x8;
const F_SEAL_FUTURE_WRITE: u32 = 0x10;
/// The execute bits of the mode cannot change.
pub const F_SEAL_EXEC: u32 = 0x20;

/// Operations that a file no longer permits (fcntl(2), F_ADD_SEALS).
#[derive(Debug)]
pub struct Seals(AtomicU32);

impl Seals {
    const KNOWN: u32 = 0x3f;

    /// Seals of a file that does not allow sealing: all files except such memfds.
    pub(super) const fn closed() -> Self {
        Self(AtomicU32::new(F_SEAL_SEAL))
    }

    /// F_GET_SEALS' bits.
    pub fn bits(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Allows sealing, with the seals `first` set: only for a new memfd with MFD_ALLOW_SEALING.
    pub fn open(&self, first: u32) {
        self.0.store(first, Ordering::Relaxed);
    }

    /// Checks that a program may change a mode from `old` to `new`; `EPERM` if not.
    pub fn check_mode(&self, old: u32, new: u32) -> Result<()> {
        if (old ^ new) & 0o111 != 0 { self.refuse(F_SEAL_EXEC) } else { Ok(()) }
    }

    /// Whether a file with the seals `bits` may still be written, by write or through a new
    /// writable shared mapping.
    pub const fn allow_write(bits: u32) -> bool {
        bits & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) == 0
    }

    fn refuse(&self, bits: u32) -> Result<()> {
        if self.bits() & bits != 0 { Err(Errno::EPERM) } else { Ok(()) }
    }
}

/// A regular file.
pub(super) struct Regular {
    content: Arc<dyn FileContent>,
    write: Mutex<()>,
    /// Bytes charged to the file system for it.
    charged: AtomicU64,
    /// Bytes that came with the image, which are not charged.
    exempt: AtomicU64,
    seals: Seals,
    text: TextUse,
    /// The file system, to which the charge is returned.
    shared: Arc<TmpfsShared>,
}

impl Regular {
    pub fn new(shared: &Arc<TmpfsShared>) -> Result<Self> {
        Ok(Self {
            content: shared.content()?,
            write: Mutex::new(()),
            charged: AtomicU64::new(0),
            exempt: AtomicU64::new(0),
            seals: Seals::closed(),
            text: TextUse::new(),
            shared: shared.clone(),
        })
    }

    pub fn content(&self) -> &Arc<dyn FileContent> {
        &self.content
    }

    pub fn seals(&self) -> &Seals {
        &self.seals
    }

    /// F_ADD_SEALS of a file with this mode. No write or truncation runs concurrently.
    ///
    /// # Errors
    /// `EINVAL` for unknown bits, `EPERM` if the seals are sealed, `EBUSY` if the content could
    /// still be written in spite of F_SEAL_WRITE.
    pub fn add_seals(&self, bits: u32, mode: u32) -> Result<()> {
        if bits & !Seals::KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        // A sealed executable also gets the seals that keep its bytes unchanged (Linux:
        // `memfd_add_seals`).
        let of_programs = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
        let bits = if bits & F_SEAL_EXEC != 0 && mode & 0o111 != 0 { bits | of_programs } else { bits };
        let _write = self.write.lock_killable()?;
        let old = self.seals.bits();
        if old & F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        if bits & !old & F_SEAL_WRITE != 0 {
            self.content.deny_writers()?;
        }
        self.seals.0.store(old | bits, Ordering::Relaxed);
        Ok(())
    }

    pub fn text_use(&self) -> &TextUse {
        &self.text
    }

    /// Sets the charge to the content's memory; `reserved` bytes were charged beyond `self.charged`
    /// for a change.
    fn settle(&self, shared: &TmpfsShared, reserved: u64) {
        let held = self.content.held();
        if shared.is(Stage::Boot) {
            self.exempt.store(held, Ordering::Relaxed);
        }
        let held = held.saturating_sub(self.exempt.load(Ordering::Relaxed));
        let charged = self.charged.swap(held, Ordering::Relaxed) + reserved;
        if held >= charged {
            // Pages were added through a mapping meanwhile. They count even beyond the limit.
            shared.held.fetch_add(held - charged, Ordering::Relaxed);
        } else {
            shared.uncharge(charged - held);
        }
    }

    /// Writes at `offset`, or at the end for `None`. Returns how many bytes were written, and where
    /// they begin.
    pub fn write(
        &self,
        shared: &TmpfsShared,
        offset: Option<u64>,
        source: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        if shared.unit != PAGE {
            return Err(Errno::EINVAL);
        }
        let _write = self.write.lock_killable()?;
        let size = self.content.size();
        let at = offset.unwrap_or(size);
        let left = source.remaining() as u64;
        if left == 0 {
            return Ok((0, at));
        }
        let len = left.min(task::file_size_left(at)?);
        let seals = self.seals.bits() & !F_SEAL_SEAL;
        if seals != 0 {
            self.seals.refuse(F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)?;
        }
        let mut end = at.checked_add(len).filter(|&end| i64::try_from(end).is_ok()).ok_or(Errno::EFBIG)?;
        if seals != 0 {
            end = self.end_within_seals(at, end, size)?;
        }
        let mut part;
        let source: &mut dyn Source = if end - at < left {
            part = FirstBytes { source, left: (end - at) as usize };
            &mut part
        } else {
            source
        };
        self.write_to(shared, at, end, source)
    }

    /// Returns the end of a write of `at..end`. In a file that may not grow, only pages that lie
    /// completely in the file are written, as Linux writes page by page.
    fn end_within_seals(&self, at: u64, end: u64, size: u64) -> Result<u64> {
        let whole = size / PAGE * PAGE;
        match self.seals.refuse(F_SEAL_GROW) {
            Err(_) if end > size && at < whole => Ok(whole),
            Err(error) if end > size => Err(error),
            _ => Ok(end),
        }
    }

    fn write_to(
        &self,
        shared: &TmpfsShared,
        at: u64,
        end: u64,
        source: &mut dyn Source,
    ) -> Result<(usize, u64)> {
        let reserve = end.next_multiple_of(PAGE) - at / PAGE * PAGE;
        if shared.charge(reserve).is_ok() {
            let result = self.content.write_at(at, source);
            self.settle(shared, reserve);
            return result.map(|n| (n, at));
        }
        self.write_near_limit(shared, at, source).map(|n| (n, at))
    }

    /// Writes as far as the limit permits, page by page. Pages that have memory already
    /// are not charged again.
    fn write_near_limit(&self, shared: &TmpfsShared, at: u64, source: &mut dyn Source) -> Result<usize> {
        let mut done = 0;
        while source.remaining() > 0 && (done == 0 || sched::checkpoint().is_ok()) {
            let here = at + done as u64;
            let page = here / PAGE * PAGE;
            let missing = self.content.seek_data(page).is_none_or(|data| data >= page + PAGE);
            let need = if missing { PAGE } else { 0 };
            let step = shared.charge_growing(need).and_then(|()| {
                let mut part = FirstBytes { source, left: (page + PAGE - here) as usize };
                let result = self.content.write_at(here, &mut part);
                self.settle(shared, need);
                result
            });
            match step {
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// truncate(2).
    pub fn resize(&self, shared: &TmpfsShared, size: u64) -> Result<()> {
        if i64::try_from(size).is_err() {
            return Err(Errno::EFBIG);
        }
        let _write = self.write.lock_killable()?;
        let old = self.content.size();
        if size > old {
            task::check_file_size(size)?;
        }
        if !size.is_multiple_of(shared.unit) && shared.unit != PAGE {
            return Err(Errno::EINVAL);
        }
        if size < old {
            self.seals.refuse(F_SEAL_SHRINK)?;
        } else if size > old {
            self.seals.refuse(F_SEAL_GROW)?;
        } else {
            return Ok(());
        }
        let result = self.content.resize(size);
        self.settle(shared, 0);
        result
    }

    /// fallocate(2).
    pub fn allocate(&self, shared: &TmpfsShared, range: Range<u64>, how: Allocate) -> Result<()> {
        if how == Allocate::ZeroKeepSize && shared.unit != PAGE {
            return Err(Errno::EOPNOTSUPP);
        }
        let _write = self.write.lock_killable()?;
        let size = self.content.size();
        let end = size.next_multiple_of(shared.unit);
        if matches!(how, Allocate::PunchHole | Allocate::ZeroKeepSize) {
            self.seals.refuse(F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)?;
        }
        if how != Allocate::PunchHole && range.end > size {
            // Also with KEEP_SIZE, as on Linux.
            task::check_file_size(range.end)?;
            self.seals.refuse(F_SEAL_GROW)?;
        }
        let result = match how {
            // After the end of the file there is nothing to cut.
            Allocate::PunchHole if range.start >= end => Ok(()),
            Allocate::PunchHole => self.content.punch(range.start..range.end.min(end), Punch::Hole),
            Allocate::ZeroKeepSize => self.content.punch(range, Punch::Zeroes),
            Allocate::Extend | Allocate::KeepSize => {
                let grows = how == Allocate::Extend && range.end > size;
                let reserve = range.end.next_multiple_of(PAGE) - range.start / PAGE * PAGE;
                shared.charge_growing(reserve)?;
                let result = self
                    .content
                    .allocate(range.clone())
                    .and_then(|()| if grows { self.content.resize(range.end) } else { Ok(()) });
                self.settle(shared, reserve);
                return result;
            }
        };
        self.settle(shared, 0);
        result
    }
}

impl Drop for Regular {
    fn drop(&mut self) {
        self.shared.uncharge(*self.charged.get_mut());
    }
}

/// The first `left` bytes of a source.
struct FirstBytes<'a> {
    source: &'a mut dyn Source,
    left: usize,
}

impl Source for FirstBytes<'_> {
    fn remaining(&self) -> usize {
        self.source.remaining().min(self.left)
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let n = bytes.len().min(self.left);
        let taken = self.source.take(&mut bytes[..n])?;
        self.left -= taken;
        Ok(taken)
    }

    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        let n = bytes.len().min(self.left);
        let taken = self.source.take_without_fault(&mut bytes[..n]);
        self.left -= taken;
        taken
    }

    fn fault_in(&mut self) -> Result<()> {
        self.source.fault_in()
    }
}
