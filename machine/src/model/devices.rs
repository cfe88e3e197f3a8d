//! Devices of the software machine: what each may see of memory, judged.
//!
//! A [`DeviceView`] is a device behind an IOMMU, and the oracle over its accesses: every access
//! names its page and direction, and an access to memory that the device was not given is a
//! [`DeviceViolation`]. It judges its callers as well. Mapping a page that the device reaches
//! already, taking one that it does not reach, and closing a window that is not open panic: an
//! IOMMU would not notice.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, Pfn, PfnRange, Unconfirmed, WINDOW_PAGES};

/// An access to memory that the device was not given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceViolation {
    /// The page, as the device counts.
    pub page: Pfn,
    /// The access that the device wanted.
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
    /// By the device's page: the frame, and the accesses that are allowed.
    pages: BTreeMap<u64, (Pfn, DeviceAccess)>,
    is_deaf: bool,
    /// How many times there is memory before there is none, and which time that is again and again;
    /// `None`: there always is.
    memory: Option<(usize, usize)>,
}

/// A device's view of memory; see the module's head.
#[derive(Debug)]
pub struct DeviceView {
    /// The first page of the windows, as the device counts.
    first_window: u64,
    state: Mutex<ViewState>,
}

impl DeviceView {
    /// A device that reaches nothing. Its windows begin at `first_window`, above all memory.
    pub fn new(first_window: Pfn) -> Self {
        Self { first_window: first_window.0, state: Mutex::default() }
    }

    // A violation is a panic in the middle of a test; the state stays valid.
    fn state(&self) -> MutexGuard<'_, ViewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the device stop confirming that pages are taken from it: it still reaches them.
    pub fn go_deaf(&self) {
        self.state().is_deaf = true;
    }
    /// Makes the device confirm again.
    pub fn hear(&self) {
        self.state().is_deaf = false;
    }

    /// From now on every `nth` time that it is to be given pages there is no memory for its tables;
    /// 0: no time.
    pub fn fail_every(&self, nth: usize) {
        self.state().memory = nth.checked_sub(1).map(|before| (before, nth));
    }

    /// The frame that the device reaches at `page` to do this.
    ///
    /// # Errors
    /// [`DeviceViolation`]: none.
    pub fn reach(&self, page: Pfn, wanted: DeviceAccess) -> Result<Pfn, DeviceViolation> {
        match self.state().pages.get(&page.0).copied() {
            Some((frame, allowed)) if allowed == wanted || allowed == DeviceAccess::ReadWrite => Ok(frame),
            has => Err(DeviceViolation { page, wanted, has }),
        }
    }

    /// Frames that the device reaches in any way, each once.
    pub fn frames(&self) -> BTreeSet<Pfn> {
        self.state().pages.values().map(|&(frame, _)| frame).collect()
    }

    /// The first page of a window, as the device counts.
    pub const fn window(&self, number: usize) -> Pfn {
        Pfn(self.first_window + (number * WINDOW_PAGES) as u64)
    }

    /// Pages of open windows.
    pub fn open_pages(&self) -> usize {
        self.state().pages.range(self.first_window..).count()
    }

    /// Whether the page is one of a window.
    pub const fn is_window(&self, page: Pfn) -> bool {
        page.0 >= self.first_window && page.0 < self.first_window + (MAX_WINDOWS * WINDOW_PAGES) as u64
    }

    /// Whether there is memory for tables this time.
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
