//! Reads from the store that are under way, and those of their pages that may be older than the
//! store.
//!
//! **Protocol.** A fill is entered, under the cache's lock, before the store is asked. Each step
//! that takes pages out which may differ from the store's bytes, or that announces a change of the
//! store, marks these pages stale in all fills, under the lock. A page that was read comes into the
//! cache under the lock too, and only if it is not stale in its fill. Pages of the same file that
//! others write meanwhile do not matter: a reader beside a writer reads each page once.

use alloc::vec::Vec;
use core::ops::Range;

use freehold_paging::Memory;

use super::{CacheInner, MAX_RUN, PageCache};
use crate::error::VmError;

struct Fill {
    number: u64,
    first: u64,
    /// A bit for each of its pages.
    stale: u32,
}

const _: () = assert!(MAX_RUN <= u32::BITS as usize);

/// All fills of a cache.
#[derive(Default)]
pub(super) struct Fills {
    under_way: Vec<Fill>,
    next: u64,
}

impl Fills {
    /// Enters a fill of up to [`MAX_RUN`] pages from `first` on; its number.
    fn enter(&mut self, first: u64) -> Result<u64, VmError> {
        self.under_way.try_reserve(1).map_err(|_| VmError::NoMemory)?;
        let number = self.next;
        self.next += 1;
        self.under_way.push(Fill { number, first, stale: 0 });
        Ok(number)
    }

    fn leave(&mut self, number: u64) {
        self.under_way.retain(|fill| fill.number != number);
        if self.under_way.is_empty() {
            // Files that nobody reads need no memory for this.
            self.under_way = Vec::new();
        }
    }

    /// The store's bytes of `pages` may have changed since they were read.
    pub(super) fn spoil(&mut self, pages: Range<u64>) {
        let most = MAX_RUN as u64;
        for fill in &mut self.under_way {
            let start = pages.start.saturating_sub(fill.first).min(most);
            let end = pages.end.saturating_sub(fill.first).min(most);
            fill.stale |= ((1_u64 << end) - (1 << start.min(end))) as u32;
        }
    }

    /// Whether a page that a fill has read may be older than the store.
    pub(super) fn is_stale(&self, number: u64, page: u64) -> bool {
        let fill = self.under_way.iter().find(|fill| fill.number == number);
        fill.is_none_or(|fill| fill.stale >> (page - fill.first) & 1 != 0)
    }
}

/// A fill that is under way. It ends when this is dropped.
pub(super) struct FillGuard<'a, S: Memory> {
    cache: &'a PageCache<S>,
    number: u64,
}

impl<'a, S: Memory> FillGuard<'a, S> {
    /// Enters a fill of up to [`MAX_RUN`] pages from `first` on. `inner` is the cache's.
    ///
    /// # Errors
    /// [`VmError::NoMemory`].
    pub fn new(cache: &'a PageCache<S>, inner: &mut CacheInner<S>, first: u64) -> Result<Self, VmError> {
        Ok(Self { cache, number: inner.fills.enter(first)? })
    }
    pub const fn number(&self) -> u64 {
        self.number
    }
}

impl<S: Memory> Drop for FillGuard<'_, S> {
    fn drop(&mut self) {
        self.cache.inner.lock().fills.leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the set of pages that were spoilt since each fill began.
        #[test]
        fn pages_are_stale_in_fills_that_began_before(
            steps in prop::collection::vec((0..3_u8, 0..100_u64, 0..120_u64), 1..60)
        ) {
            let mut fills = Fills::default();
            let mut model: Vec<(u64, u64, BTreeSet<u64>)> = Vec::new();
            for (kind, first, length) in steps {
                match kind {
                    0 => model.push((fills.enter(first).unwrap(), first, BTreeSet::new())),
                    1 => {
                        let end = if length > 100 { u64::MAX } else { first + length };
                        fills.spoil(first..end);
                        for (_, start, stale) in &mut model {
                            stale.extend((*start..*start + MAX_RUN as u64).filter(|page| (first..end).contains(page)));
                        }
                    }
                    _ if model.is_empty() => {}
                    _ => fills.leave(model.swap_remove(first as usize % model.len()).0),
                }
                for (number, first, stale) in &model {
                    for page in *first..first + MAX_RUN as u64 {
                        prop_assert_eq!(fills.is_stale(*number, page), stale.contains(&page));
                    }
                }
                prop_assert_eq!(fills.under_way.len(), model.len());
            }
        }
    }
}
