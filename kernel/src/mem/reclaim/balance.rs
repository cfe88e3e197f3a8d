//! Whether to take pages of disks or anonymous memory, to which shared memory and files in memory
//! count.
//!
//! By what they cost: pages that are brought in from a disk, of either kind, are pages that should
//! have stayed. Each kind is asked for frames in proportion to how much there is of it, the less
//! the more of it came back lately, and by `vm.swappiness` (0: the disks' pages first; 100: both
//! alike; 200: the other way round). The reckoning is Linux' (get_scan_count), from the same two
//! counts.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_charge::{Below, ChargedKind};
use freehold_frame::Owner;
use freehold_vm::Event;

use super::caches;
use crate::mem::{commons, frames, hotplug};
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// As on Linux.
static SWAPPINESS: AtomicU64 = AtomicU64::new(60);
/// Both kinds weigh alike here.
const EVEN: u64 = 100;

/// `vm.swappiness`.
pub fn swappiness() -> u64 {
    SWAPPINESS.load(Ordering::Relaxed)
}

/// Set it.
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

/// Pages that came back lately, anonymous ones and disks'.
struct Costs {
    lately: [u64; 2],
    /// The totals at the last look.
    seen: [u64; 2],
}

static COSTS: SpinLock<Costs> = SpinLock::new(Costs { lately: [0; 2], seen: [0; 2] });

impl Costs {
    /// Adds the pages since the last look. Halves both costs while their sum is more than a quarter
    /// of `pages`, so that old costs fade.
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

/// Pages that are charged to some accounts as a pass begins. To count them is to look at every
/// account, so it is done once for a pass.
#[derive(Clone, Copy)]
pub(super) struct ChargedPages {
    below: Below,
    /// Anonymous memory, and files.
    pages: [u64; 2],
}

impl ChargedPages {
    /// Counts the pages charged to `below`.
    pub(super) fn count(below: Below) -> Self {
        let charged = below.charged_kinds();
        Self { below, pages: [ChargedKind::Anon, ChargedKind::File].map(|kind| charged.of(kind)) }
    }
}

/// How many frames to ask of whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReclaimShare {
    /// Of processes' own memory.
    pub private: u64,
    /// Of shared memory and files in memory.
    pub shared: u64,
    /// Of the disks' pages.
    pub files: u64,
}

impl ReclaimShare {
    /// The shares of `want` frames as things are: of all, or of those that are `charged` to some
    /// accounts.
    pub(super) fn now(want: u64, charged: Option<ChargedPages>) -> Self {
        if let Some(charged) = charged {
            return Self::of_charged(want, charged);
        }
        let files = caches::pages();
        let shared = frames().frames_of(Owner::PageCache).saturating_sub(files);
        let anonymous = frames().frames_of(Owner::Anon) + shared;
        // While the host has memory to give, no program waits for a disk.
        let room = !hotplug::may_grow() && commons().swap().usage().free > 0;
        let given_up = commons().count_of(Event::LazyFree) > 0;
        if !room {
            // Memory that programs have given up can go without any swap.
            return Self { private: if given_up { want } else { 0 }, shared: 0, files: want };
        }
        let totals =
            [commons().count_of(Event::SwapIn), caches::bytes_read() / freehold_machine::PAGE_SIZE as u64];
        let costs = COSTS.lock().update(totals, anonymous + files);
        let [of_anonymous, files] = split(want, [anonymous, files], costs, swappiness());
        let shared = (of_anonymous * shared).div_ceil(anonymous.max(1));
        Self { private: of_anonymous - shared, shared, files }
    }

    /// Splits `want` for an account. An account does not know which of its pages of files are
    /// disks' and which are shared memory: both are asked for the files' part. Pages that came back
    /// lately are not counted by account.
    fn of_charged(want: u64, charged: ChargedPages) -> Self {
        if commons().swap().usage().free == 0 || !charged.below.has_slot_room() {
            let given_up = commons().count_of(Event::LazyFree) > 0;
            return Self { private: if given_up { want } else { 0 }, shared: 0, files: want };
        }
        let [private, files] = split(want, charged.pages, [0; 2], swappiness());
        let files = if charged.pages[1] == 0 { 0 } else { files };
        Self { private, shared: files, files }
    }

    /// Returns the share that asks programs' memory for the files' part, too. Where nothing is
    /// asked of that, the swap has no room, and nothing is asked of any.
    pub(super) const fn without_files(self) -> Self {
        let Self { private, shared, files } = self;
        match (private, shared) {
            (0, 0) => Self { files: 0, ..self },
            (0, shared) => Self { private, shared: shared + files, files: 0 },
            (private, shared) => Self { private: private + files, shared, files: 0 },
        }
    }

    /// Returns the share of the last pass: each kind of anonymous memory is asked for the sum of
    /// both.
    pub(super) const fn of_either_kind(self) -> Self {
        let both = self.private + self.shared;
        // Shared memory cannot be given up: without room in the swap nothing is asked of it.
        if self.shared == 0 { self } else { Self { private: both, shared: both, ..self } }
    }
}

/// How many of `want` frames to ask of anonymous memory, and how many of the disks' pages.
fn split(want: u64, [anonymous, files]: [u64; 2], costs: [u64; 2], swappiness: u64) -> [u64; 2] {
    // Neither cost can make its kind safe: each counts with at least a third of both.
    let sum = costs[0] + costs[1];
    let weight = |pages: u64, preference: u64, cost: u64| {
        u128::from(pages) * u128::from(preference) * u128::from(sum + 1) / u128::from(sum + cost + 1)
    };
    let of_anonymous = weight(anonymous, swappiness, costs[0]);
    let of_files = weight(files, 2 * EVEN - swappiness, costs[1]);
    let both = (of_anonymous + of_files).max(1);
    let part = (u128::from(want) * of_anonymous).div_ceil(both) as u64;
    // Where the disks have next to nothing left, swappiness 0 does not keep the machine from going
    // on.
    let anonymous = if files < super::BATCH { want } else { part };
    [anonymous, if files == 0 { 0 } else { (want - part.min(want)).max(1) }]
}
