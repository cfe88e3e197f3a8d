//! Devices of the software machine, with a check of each access to memory.
//!
//! A [`DeviceView`] is a device behind an IOMMU, and the oracle for its accesses. Every access
//! names its page and direction. An access to memory that the device was not given is a
//! [`DeviceViolation`]. It checks its callers as well, since an IOMMU would not notice these
//! errors. Three calls panic: mapping a page that is mapped already, unmapping one that is not, and
//! closing a window that is not open.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, Pfn, PfnRange, Unconfirmed, WINDOW_PAGES};

/// An access to memory that the device was not given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceViolation {
    /// The page, by the device's addresses.
    pub page: Pfn,
    /// The access that the device tried.
    pub wanted: DeviceAccess,
    /// The frame and access that the device has there.
    pub has: Option<(Pfn, DeviceAccess)>,
}

impl fmt::Display for DeviceViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a device wants to {:?} at {:?}, where it has {:?}", self.wanted, self.page, self.has)
    }
}

#[derive(Debug, Default)]
struct ViewState {
    /// For each page of the device's addresses, its frame and the allowed accesses.
    pages: BTreeMap<u64, (Pfn, DeviceAccess)>,
    is_deaf: bool,
    /// Number of calls that still find memory for tables, and the interval at which a call finds
    /// none; `None`: memory is always found.
    memory: Option<(usize, usize)>,
}

/// A device's view of memory; see the module's head.
#[derive(Debug)]
pub struct DeviceView {
    /// The first page of the windows, by the device's addresses.
    first_window: u64,
    state: Mutex<ViewState>,
}

impl DeviceView {
    /// A device without access to memory. Its windows begin at `first_window`, above all memory.
    pub fn new(first_window: Pfn) -> Self {
        Self { first_window: first_window.0, state: Mutex::default() }
    }

    // The lock may be poisoned: a violation panics in the middle of a test. The state stays valid.
    fn state(&self) -> MutexGuard<'_, ViewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the device stop confirming that pages are unmapped: it still has access to them.
    pub fn go_deaf(&self) {
        self.state().is_deaf = true;
    }
    /// Makes the device confirm again.
    pub fn hear(&self) {
        self.state().is_deaf = false;
    }

    /// From now on every `nth` mapping of pages finds no memory for tables; 0: none fails.
    pub fn fail_every(&self, nth: usize) {
        self.state().memory = nth.checked_sub(1).map(|before| (before, nth));
    }

    /// Returns the frame that the device accesses at `page`.
    ///
    /// # Errors
    /// [`DeviceViolation`]: the device has no such access.
    pub fn reach(&self, page: Pfn, wanted: DeviceAccess) -> Result<Pfn, DeviceViolation> {
        match self.state().pages.get(&page.0).copied() {
            Some((frame, allowed)) if allowed == wanted || allowed == DeviceAccess::ReadWrite => Ok(frame),
            has => Err(DeviceViolation { page, wanted, has }),
        }
    }

    /// Frames that the device can access in any way, each once.
    pub fn frames(&self) -> BTreeSet<Pfn> {
        self.state().pages.values().map(|&(frame, _)| frame).collect()
    }

    /// The first page of a window, by the device's addresses.
    pub const fn window(&self, number: usize) -> Pfn {
        Pfn(self.first_window + (number * WINDOW_PAGES) as u64)
    }

    /// Number of pages in open windows.
    pub fn open_pages(&self) -> usize {
        self.state().pages.range(self.first_window..).count()
    }

    /// Whether the page is one of a window.
    pub const fn is_window(&self, page: Pfn) -> bool {
        page.0 >= self.first_window && page.0 < self.first_window + (MAX_WINDOWS * WINDOW_PAGES) as u64
    }

    /// Whether this call finds memory for tables.
    fn has_memory(state: &mut ViewState) -> bool {
        match &mut state.memory {
            None => true,
            Some((left, nth)) if *left == 0 => {
                *left = *nth - 1;
                false
            }
            Some((left, _)) => {
                *left -= 1;
                true
            }
        }
    }

    fn take(&self, pages: impl Iterator<Item = u64>) -> Result<(), Unconfirmed> {
        let mut state = self.state();
        if state.is_deaf {
            return Err(Unconfirmed);
        }
        for page in pages {
            assert!(state.pages.remove(&page).is_some(), "page {page:#x} is taken from a device without it");
        }
        Ok(())
    }
}

impl DeviceDomain for DeviceView {
    fn map(&self, frames: PfnRange) -> Result<(), NoTables> {
        let mut state = self.state();
        if !Self::has_memory(&mut state) {
            return Err(NoTables);
        }
        for frame in frames.iter() {
            assert!(!self.is_window(frame), "{frame:?} is no memory");
            let before = state.pages.insert(frame.0, (frame, DeviceAccess::ReadWrite));
            assert!(before.is_none(), "{frame:?} is given to a device that has it");
        }
        Ok(())
    }

    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed> {
        self.take(frames.iter().map(|frame| frame.0))
    }

    fn windows(&self) -> usize {
        MAX_WINDOWS
    }

    fn open(
        &self,
        number: usize,
        frames: &mut dyn Iterator<Item = Pfn>,
        access: DeviceAccess,
    ) -> Result<u64, NoTables> {
        assert!(number < MAX_WINDOWS, "no window {number}");
        let first = self.window(number).0;
        let mut state = self.state();
        if state.pages.contains_key(&first) || !Self::has_memory(&mut state) {
            return Err(NoTables);
        }
        state.pages.extend((first..).zip(frames.take(WINDOW_PAGES).map(|frame| (frame, access))));
        Ok(Pfn(first).start().0)
    }

    fn close(&self, number: usize, pages: usize) -> Result<(), Unconfirmed> {
        let first = self.window(number).0;
        self.take(first..first + pages as u64)
    }
}
