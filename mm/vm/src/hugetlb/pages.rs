//! The huge pages of shared memory.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{LargeMapping, NodePolicy};
use freehold_paging::Memory;

use super::{Claim, Reserve};
use crate::{Commons, VmError};

/// The pages of one shared mapping, by index. Each has the hold of this list, and one of each leaf.
pub(crate) struct HugePages<S: Memory> {
    commons: Arc<Commons<S>>,
    pages: spin::Mutex<BTreeMap<u64, LargeMapping<S>>>,
    /// Reserved pages that are not in the list yet.
    reserved: AtomicU64,
}

impl<S: Memory> HugePages<S> {
    pub(super) fn new(commons: &Arc<Commons<S>>) -> Arc<Self> {
        let pages = spin::Mutex::new(BTreeMap::new());
        Arc::new(Self { commons: commons.clone(), pages, reserved: AtomicU64::new(0) })
    }

    /// Reserves `count` pages. Called once, before there are pages.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`].
    pub(super) fn reserve(&self, count: u64) -> Result<(), VmError> {
        self.commons.reserve_huge(count)?;
        self.reserved.store(count, Ordering::Relaxed);
        Ok(())
    }

    /// A further hold of page `index`, which is made if need be; `None` without a free page.
    pub(super) fn page(&self, index: u64, place: NodePolicy) -> Option<LargeMapping<S>> {
        if let Some(page) = self.pages.lock().get(&index) {
            return page.share().ok();
        }
        self.commons.source.ensure_objects().ok()?;
        let is_reserved = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok();
        let claim = if is_reserved { Claim::Reserved } else { Claim::Free };
        let Some(new) = self.commons.new_huge(place, claim) else {
            self.reserved.fetch_add(is_reserved.into(), Ordering::Relaxed);
            return None;
        };
        let mut pages = self.pages.lock();
        if let Some(page) = pages.get(&index) {
            // Another space was faster.
            let hold = page.share().ok();
            drop(pages);
            self.commons.put_huge(new, if is_reserved { Reserve::Own } else { Reserve::None });
            self.reserved.fetch_add(is_reserved.into(), Ordering::Relaxed);
            return hold;
        }
        let hold = new.share().ok();
        pages.insert(index, new);
        hold
    }
}

impl<S: Memory> Drop for HugePages<S> {
    fn drop(&mut self) {
        while let Some((_, page)) = self.pages.get_mut().pop_first() {
            self.commons.put_huge(page, Reserve::None);
        }
        self.commons.unreserve_huge(*self.reserved.get_mut());
    }
}
