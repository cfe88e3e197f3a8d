//! The kernel addresses that each CPU can translate: the direct map and windows, with every
//! translation that the CPU may still have cached.
//!
//! A CPU may cache an entry of its tables at any moment, whether it uses it or not (Intel SDM
//! volume 3A, 4.10.2). This model takes the worst case: a CPU has every translation from the moment
//! when the entry is stored until the CPU flushes it. So [`Model::peek`] is an attacker who may
//! read any kernel address at any step of a test.
//!
//! Each CPU has [`SLOTS`] windows, which are used in ascending order, lap by lap. At the end of a
//! lap the CPU flushes its closed windows. A window that was open at that moment is not used in the
//! next lap. Opening a window panics if its slot may still translate to another frame.

use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::vec::Vec;

use super::Model;
use crate::{CpuId, CpuSet, Cpus, Flush, PAGEBLOCK_FRAMES, Pfn, PfnRange};

/// Windows of one CPU.
pub const SLOTS: usize = 64;

/// An address of the kernel half: the frame's own in the direct map, or a slot of the CPU's
/// windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelAddress {
    /// In the direct map.
    Direct(Pfn),
    /// The slot of this number, below [`SLOTS`].
    Window(usize),
}

/// How a CPU can access a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// By the tables: the direct map, or a window that is open.
    Tables,
    /// By a translation that the CPU has not flushed: the pageblock has left the map, or the window
    /// was closed.
    Stale,
}

/// Answer of [`Model::peek`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peeked {
    /// The frame at the address.
    pub frame: Pfn,
    /// How the CPU accesses the frame.
    pub reach: Reach,
    /// The frame's first eight bytes.
    pub word: u64,
}

/// When a CPU flushes a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Forgetting {
    /// At the end of a lap, and with every flush of non-global translations.
    #[default]
    InLaps,
    /// As the window closes.
    AtClose,
}

/// A step that a broken machine leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// Only the present CPU flushes a pageblock that leaves the direct map.
    LeavesUnflushed,
    /// Pageblocks are not wiped.
    Unwiped,
    /// Nothing is flushed between two laps.
    LapUnflushed,
    /// A slot that was open over the end of a lap is used in the next.
    HeldOverReused,
    /// In the mode that flushes each window as it closes, the flush is missing.
    CloseUnflushed,
    /// The end of the closed windows' time has no effect.
    DeadlineIgnored,
}

#[derive(Clone, Copy, Default)]
struct WindowSlot {
    /// The frame to which the slot may translate.
    cached: Option<Pfn>,
    is_open: bool,
}

/// One CPU's translations of the kernel half.
pub(super) struct Reachable {
    /// For each pageblock, whether it has left the direct map and the CPU may still have its
    /// translation.
    left: Box<[bool]>,
    slots: [WindowSlot; SLOTS],
    /// The next slot of the lap, and the slots that are not used in this lap.
    next: usize,
    held: [bool; SLOTS],
}

impl Reachable {
    pub(super) fn new(blocks: u64) -> Self {
        Self {
            left: (0..blocks).map(|_| false).collect::<Vec<_>>().into(),
            slots: [WindowSlot::default(); SLOTS],
            next: 0,
            held: [false; SLOTS],
        }
    }

    fn open(&mut self, frame: Pfn, defect: Option<Defect>) -> usize {
        let is_free = |this: &Self, slot: usize| !this.held[slot] && !this.slots[slot].is_open;
        let slot = (self.next..SLOTS).find(|&slot| is_free(self, slot)).unwrap_or_else(|| {
            self.held = self.slots.map(|slot| slot.is_open && defect != Some(Defect::HeldOverReused));
            if defect != Some(Defect::LapUnflushed) {
                self.forget_closed();
            }
            (0..SLOTS).find(|&slot| is_free(self, slot)).expect("all windows of this CPU are in use")
        });
        self.next = slot + 1;
        let before = self.slots[slot].cached.replace(frame);
        assert!(before.is_none_or(|other| other == frame), "the window of {frame:?} shows {before:?}");
        self.slots[slot].is_open = true;
        slot
    }

    fn close(&mut self, slot: usize, is_forgotten: bool) {
        self.slots[slot].is_open = false;
        if is_forgotten {
            self.slots[slot].cached = None;
        }
    }

    fn forget_closed(&mut self) {
        self.slots.iter_mut().filter(|slot| !slot.is_open).for_each(|slot| slot.cached = None);
    }

    pub(super) fn flush(&mut self, what: Flush) {
        match what {
            Flush::Range { .. } | Flush::Blocks { .. } => {}
            Flush::NonGlobal => self.forget_closed(),
            Flush::All => {
                self.forget_closed();
                self.left.fill(false);
            }
        }
    }
}

/// A window that is open.
pub(super) struct OpenWindow {
    model: Model,
    cpu: CpuId,
    slot: usize,
}

impl Drop for OpenWindow {
    fn drop(&mut self) {
        let at_close = *self.model.0.forgetting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_forgotten =
            at_close == Forgetting::AtClose && self.model.defect() != Some(Defect::CloseUnflushed);
        self.model.reachable(self.cpu).close(self.slot, is_forgotten);
        if !std::thread::panicking() {
            self.model.spied();
        }
    }
}

impl Model {
    pub(super) fn reachable(self, cpu: CpuId) -> MutexGuard<'static, Reachable> {
        // The lock may be poisoned by a test that has failed already.
        self.0.reachable[usize::from(cpu.0)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on windows are flushed in this way.
    pub fn forget_windows(self, forgetting: Forgetting) {
        *self.0.forgetting.lock().unwrap_or_else(PoisonError::into_inner) = forgetting;
    }

    /// From now on the machine has this defect.
    pub fn break_with(self, defect: Defect) {
        *self.0.defect.lock().unwrap_or_else(PoisonError::into_inner) = Some(defect);
    }
    pub(super) fn defect(self) -> Option<Defect> {
        *self.0.defect.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `spy` is called after each change of the kernel addresses' translations. It may
    /// [`peek`](Model::peek).
    pub fn spy(self, spy: impl Fn() + Send + Sync + 'static) {
        *self.0.spy.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(spy));
    }
    pub(super) fn spied(self) {
        let spy = self.0.spy.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(spy) = spy {
            spy();
        }
    }

    /// The time of the closed windows of `cpu` is over: the CPU flushes them.
    pub fn end_of_time(self, cpu: CpuId) {
        if self.defect() != Some(Defect::DeadlineIgnored) {
            self.reachable(cpu).forget_closed();
        }
        self.spied();
    }

    /// Returns what an attacker reads at a kernel address on `cpu`, at this moment; `None` if the
    /// access must fault.
    pub fn peek(self, cpu: CpuId, address: KernelAddress) -> Option<Peeked> {
        let (frame, reach) = match address {
            KernelAddress::Direct(frame) if self.is_in_direct_map(frame) => (frame, Reach::Tables),
            KernelAddress::Direct(frame) => {
                let block = (frame.0 / PAGEBLOCK_FRAMES) as usize;
                let is_stale = self.reachable(cpu).left.get(block).copied().unwrap_or(false);
                is_stale.then_some((frame, Reach::Stale))?
            }
            KernelAddress::Window(slot) => {
                let slot = self.reachable(cpu).slots[slot];
                (slot.cached?, if slot.is_open { Reach::Tables } else { Reach::Stale })
            }
        };
        let word = self.0.memory.word(frame, 0).load(Ordering::Relaxed);
        Some(Peeked { frame, reach, word })
    }

    /// Opens a window on a frame that is not in the direct map.
    pub(super) fn open_window(self, frame: Pfn) -> Option<OpenWindow> {
        if self.is_in_direct_map(frame) {
            return None;
        }
        let cpu = self.current_cpu();
        let slot = self.reachable(cpu).open(frame, self.defect());
        self.spied();
        Some(OpenWindow { model: self, cpu, slot })
    }

    /// These pageblocks have left the direct map: all CPUs flush them.
    pub(super) fn forget_blocks(self, blocks: PfnRange) {
        let defect = self.defect();
        for cpu in CpuSet::first(self.0.cpus).iter() {
            let is_stale = defect == Some(Defect::LeavesUnflushed) && cpu != self.current_cpu();
            let (first, end) = (blocks.start.0 / PAGEBLOCK_FRAMES, blocks.end.0.div_ceil(PAGEBLOCK_FRAMES));
            self.reachable(cpu).left[first as usize..end as usize].fill(is_stale);
        }
    }
}
