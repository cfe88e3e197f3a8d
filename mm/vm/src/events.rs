//! Events since boot, counted for /proc/vmstat.

/// An event that is counted, by the name of Linux' counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// `pgreuse`: a write fault kept the frame.
    Reuse,
    /// `thp_fault_alloc`: a fault was served with a large page.
    HugeFaultAlloc,
    /// `thp_fault_fallback`: a fault was not served with a large page, because no pageblock was
    /// free.
    HugeFaultFallback,
    /// `thp_collapse_alloc`: small pages became a large one.
    HugeCollapseAlloc,
    /// `thp_collapse_alloc_failed`: small pages did not become a large one, because no pageblock
    /// was free.
    HugeCollapseFailed,
    /// `thp_split_page`: the frames of a block are counted one by one.
    HugeSplitPage,
    /// `thp_split_pmd`: a large leaf became small ones.
    HugeSplitLeaf,
    /// `thp_zero_page_alloc`: the block of zeroes was made.
    HugeZeroAlloc,
    /// `thp_zero_page_alloc_failed`: the block of zeroes could not be made, because no pageblock
    /// was free.
    HugeZeroFailed,
    /// `thp_split_page_failed`: a large leaf could not become small ones, because there was no
    /// memory for a table.
    HugeSplitFailed,
    /// `thp_swpout_fallback`: a large page was split in order to be swapped out.
    HugeSwapFallback,
    /// `pswpin`: a page was read from a swap area.
    SwapIn,
    /// `pswpout`: a page was written to a swap area.
    SwapOut,
    /// `swap_ra`: a page was read ahead.
    SwapAhead,
    /// `swap_ra_hit`: a page that was read ahead was used.
    SwapAheadHit,
    /// `pglazyfree`: a page was marked as discardable (MADV_FREE).
    LazyFree,
    /// `pglazyfreed`: the frame of such a page was freed.
    LazyFreed,
    /// Ours, `cow_unneeded`: a write fault copied a frame that had no other mapping, holder or swap
    /// entry at the time of the decision.
    CowUnneeded,
    /// `cow_ksm`: a store, or a call, copied a merged page.
    CowKsm,
    /// `pgmigrate_success`: a page got another frame.
    MigrateSuccess,
    /// `pgmigrate_fail`: a page did not get another frame.
    MigrateFail,
    /// `thp_migration_success`: a large page moved as one.
    HugeMigrateSuccess,
    /// `thp_migration_fail`: a large page did not move.
    HugeMigrateFail,
    /// `thp_migration_split`: a large page was split in order to move.
    HugeMigrateSplit,
    /// `thp_scan_exceed_none_pte`: small pages stayed small since too many were empty.
    HugeScanNone,
    /// `thp_scan_exceed_swap_pte`: small pages stayed small since too many were in swap.
    HugeScanSwapped,
    /// `thp_scan_exceed_share_pte`: small pages stayed small since too many were shared.
    HugeScanShared,
}

/// The number of events.
pub(crate) const EVENTS: usize = Event::HugeScanShared as usize + 1;

/// Result of a store to a page that may be shared, by its tracepoint's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CowDecision {
    /// The frame is the space's own.
    Reused = 0,
    /// A copy takes its place.
    Copied = 1,
}
