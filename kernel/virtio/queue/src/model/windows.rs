//! A domain whose windows a device's side looks through, in the place of an IOMMU. It believes nobody: a look through a
//! window that is closed, or in a direction that it does not allow, panics.

extern crate std;

use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use freehold_machine::{DeviceAccess, DeviceDomain, NoTables, Pfn, PfnRange, Unconfirmed, WINDOW_PAGES};

/// The first page of all windows: no memory is there.
const FIRST: u64 = 1 << 32;
/// Windows of a domain.
const WINDOWS: usize = 32;

/// Pages of the windows of all domains: frames, and what a device may do with them.
static PAGES: Mutex<BTreeMap<u64, (Pfn, DeviceAccess)>> = Mutex::new(BTreeMap::new());
/// Domains so far: each has pages of its own.
static DOMAINS: Mutex<u64> = Mutex::new(0);

fn pages() -> MutexGuard<'static, BTreeMap<u64, (Pfn, DeviceAccess)>> {
    PAGES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A domain with windows.
#[derive(Debug)]
pub struct WindowDomain {
    first: u64,
    /// Whether it answers when a window closes.
    answers: Mutex<Result<(), Unconfirmed>>,
}

impl WindowDomain {
    /// One for a device.
    ///
    /// # Panics
    /// Where another thread panicked here.
    pub fn leak() -> &'static Self {
        let mut domains = DOMAINS.lock().expect("no holder panics");
        *domains += 1;
        let first = FIRST + (*domains << 16);
        Box::leak(Box::new(Self { first, answers: Mutex::new(Ok(())) }))
    }
    /// It does not confirm that a window is closed from now on.
    ///
    /// # Panics
    /// Where another thread panicked here.
    pub fn go_deaf(&self) {
        *self.answers.lock().expect("no holder panics") = Err(Unconfirmed);
    }
    /// Pages in windows.
    pub fn open_pages(&self) -> usize {
        pages().range(self.first..self.first + (WINDOWS * WINDOW_PAGES) as u64).count()
    }
    fn page(&self, window: usize) -> u64 {
        self.first + (window * WINDOW_PAGES) as u64
    }
}

impl DeviceDomain for WindowDomain {
    fn map(&self, _: PfnRange) -> Result<(), NoTables> {
        Ok(())
    }
    fn unmap(&self, _: PfnRange) -> Result<(), Unconfirmed> {
        Ok(())
    }
    fn windows(&self) -> usize {
        WINDOWS
    }
    fn open(
        &self,
        number: usize,
        frames: &mut dyn Iterator<Item = Pfn>,
        access: DeviceAccess,
    ) -> Result<u64, NoTables> {
        let (mut pages, first) = (pages(), self.page(number));
        assert!(number < WINDOWS);
        if pages.contains_key(&first) {
            return Err(NoTables);
        }
        pages.extend((first..).zip(frames.map(|frame| (frame, access))));
        Ok(first << 12)
    }
    fn close(&self, window: usize, count: usize) -> Result<(), Unconfirmed> {
        (*self.answers.lock().expect("no holder panics"))?;
        let (mut pages, first) = (pages(), self.page(window));
        (first..first + count as u64).for_each(|page| _ = pages.remove(&page).expect("it was open"));
        Ok(())
    }
}

/// The frame that a device reaches at `page`, which may be memory, to do this.
pub(super) fn look(page: Pfn, access: DeviceAccess) -> Pfn {
    if page.0 < FIRST {
        return page;
    }
    match pages().get(&page.0) {
        Some(&(frame, allowed)) if allowed == access || allowed == DeviceAccess::ReadWrite => frame,
        other => panic!("a device wants to {access:?} at {page:?}, where it has {other:?}"),
    }
}
