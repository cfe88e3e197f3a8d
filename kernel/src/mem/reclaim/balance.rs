//! The choice between pages of disks and anonymous memory. Shared memory and files in memory count
//! as anonymous.
//!
//! The choice follows the costs: a page of either kind that is read back from a disk should not
//! have been evicted. Each kind gets a share of the requested frames in proportion to its size. The
//! share is smaller if more pages of this kind were read back recently. It also depends on
//! `vm.swappiness` (0: the disks' pages first; 100: both equally; 200: anonymous memory first). The
//! formula is that of Linux (get_scan_count), with the same two counts.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_charge::{Below, ChargedKind};
use freehold_frame::Owner;
use freehold_vm::Event;

use super::caches;
use crate::mem::{commons, frames, hotplug};
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// Linux' default.
static SWAPPINESS: AtomicU64 = AtomicU64::new(60);
/// With this value both kinds have the same weight.
const EVEN: u64 = 100;

/// Returns `vm.swappiness`.
pub fn swappiness() -> u64 {
    SWAPPINESS.load(Ordering::Relaxed)
}

/// Sets `vm.swappiness`.
///
/// # Errors
/// `EINVAL` above 200.
pub fn set_swappiness(value: u64) -> Result<()> {
    if value > 2 * EVEN {
        return Err(Errno::EINVAL);
    }
    SWAPPINESS.store(value, Ordering::Relaxed);
    Ok(())
}

/// Numbers of pages that were read back recently, anonymous ones and disks'.
struct Costs {
    lately: [u64; 2],
    /// The totals at the last update.
    seen: [u64; 2],
}

static COSTS: SpinLock<Costs> = SpinLock::new(Costs { lately: [0; 2], seen: [0; 2] });

impl Costs {
    /// Adds the pages since the last update. Halves both costs while their sum is more than a
    /// quarter of `pages`, so that old costs fade.
    fn update(&mut self, totals: [u64; 2], pages: u64) -> [u64; 2] {
        for (lately, (seen, total)) in self.lately.iter_mut().zip(self.seen.iter_mut().zip(totals)) {
            *lately += total - core::mem::replace(seen, total);
        }
        while self.lately[0] + self.lately[1] > pages / 4 + 1 {
            self.lately = self.lately.map(|cost| cost / 2);
        }
        self.lately
    }
}

/// Pages that are charged to some accounts at the beginning of a pass. Counting them means visiting
/// every account, so it is done once per pass.
#[derive(Clone, Copy)]
pub(super) struct ChargedPages {
    below: Below,
    /// Numbers of pages of anonymous memory, and of files.
    pages: [u64; 2],
}

impl ChargedPages {
    /// Counts the pages charged to `below`.
    pub(super) fn count(below: Below) -> Self {
        let charged = below.charged_kinds();
        Self { below, pages: [ChargedKind::Anon, ChargedKind::File].map(|kind| charged.of(kind)) }
    }
}

/// Numbers of frames to request from each kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReclaimShare {
    /// From processes' own memory.
    pub private: u64,
    /// From shared memory and files in memory.
    pub shared: u64,
    /// From the disks' pages.
    pub files: u64,
}

impl ReclaimShare {
    /// Splits `want` frames into shares by present usage: of all pages, or of the pages that are
    /// `charged` to some accounts.
    pub(super) fn now(want: u64, charged: Option<ChargedPages>) -> Self {
        if let Some(charged) = charged {
            return Self::of_charged(want, charged);
        }
        let files = caches::pages();
        let shared = frames().frames_of(Owner::PageCache).saturating_sub(files);
        let anonymous = frames().frames_of(Owner::Anon) + shared;
        // While the host can add memory, no program waits for a disk.
        let room = !hotplug::may_grow() && commons().swap().usage().free > 0;
        let given_up = commons().count_of(Event::LazyFree) > 0;
        if !room {
            // Memory that programs have discarded can be freed without any swap.
            return Self { private: if given_up { want } else { 0 }, shared: 0, files: want };
        }
        let totals =
            [commons().count_of(Event::SwapIn), caches::bytes_read() / freehold_machine::PAGE_SIZE as u64];
        let costs = COSTS.lock().update(totals, anonymous + files);
        let [of_anonymous, files] = split(want, [anonymous, files], costs, swappiness());
        let shared = (of_anonymous * shared).div_ceil(anonymous.max(1));
        Self { private: of_anonymous - shared, shared, files }
    }

    /// Splits `want` for an account. An account does not know which of its file pages are disks'
    /// and which are shared memory: both are asked for the files' part. Pages that were read back
    /// recently are not counted per account.
    fn of_charged(want: u64, charged: ChargedPages) -> Self {
        if commons().swap().usage().free == 0 || !charged.below.has_slot_room() {
            let given_up = commons().count_of(Event::LazyFree) > 0;
            return Self { private: if given_up { want } else { 0 }, shared: 0, files: want };
        }
        let [private, files] = split(want, charged.pages, [0; 2], swappiness());
        let files = if charged.pages[1] == 0 { 0 } else { files };
        Self { private, shared: files, files }
    }

    /// Returns the share that also requests the files' part from programs' memory. If nothing is
    /// requested from that, the swap has no room, and the result is zero.
    pub(super) const fn without_files(self) -> Self {
        let Self { private, shared, files } = self;
        match (private, shared) {
            (0, 0) => Self { files: 0, ..self },
            (0, shared) => Self { private, shared: shared + files, files: 0 },
            (private, shared) => Self { private: private + files, shared, files: 0 },
        }
    }

    /// Returns the share of the last pass: the sum of both is requested from each kind of anonymous
    /// memory.
    pub(super) const fn of_either_kind(self) -> Self {
        let both = self.private + self.shared;
        // Shared memory cannot be discarded: without room in the swap nothing is requested from it.
        if self.shared == 0 { self } else { Self { private: both, shared: both, ..self } }
    }
}

/// Splits `want` frames into those for anonymous memory, and those for the disks' pages.
fn split(want: u64, [anonymous, files]: [u64; 2], costs: [u64; 2], swappiness: u64) -> [u64; 2] {
    // High costs cannot exempt a kind completely: each cost counts at least a third of their sum.
    let sum = costs[0] + costs[1];
    let weight = |pages: u64, preference: u64, cost: u64| {
        u128::from(pages) * u128::from(preference) * u128::from(sum + 1) / u128::from(sum + cost + 1)
    };
    let of_anonymous = weight(anonymous, swappiness, costs[0]);
    let of_files = weight(files, 2 * EVEN - swappiness, costs[1]);
    let both = (of_anonymous + of_files).max(1);
    let part = (u128::from(want) * of_anonymous).div_ceil(both) as u64;
    // If the disks have hardly any pages left, swappiness 0 must not stop the machine.
    let anonymous = if files < super::BATCH { want } else { part };
    [anonymous, if files == 0 { 0 } else { (want - part.min(want)).max(1) }]
}
