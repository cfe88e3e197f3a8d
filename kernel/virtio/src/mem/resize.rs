//! From the plugged size to the one that the host wants.
//!
//! **Invariant.** The kernel uses a unit ([`Onliner::online`]) only while the device has
//! acknowledged it as plugged in, and the device is asked to unplug only units that the kernel has
//! released ([`Onliner::offline`]). A unit whose unplugging the device refuses comes back to the
//! kernel.
//!
//! One task runs a [`Resizer`]; nothing here is shared.

use alloc::vec::Vec;

use freehold_machine::{PAGE_SHIFT, PfnRange};

use super::{Answer, Region, Sizes};
use crate::Failed;

/// Largest number of passes over all units in one call. If the host changes the size more often
/// than that, or the device returns another size each time, the rest is done later: the caller
/// holds a lock meanwhile.
const PASSES: usize = 8;

/// Interface of the kernel that takes and gives back units.
pub trait Onliner {
    /// These frames are memory now. `false`: the kernel has no memory to manage them, and has not
    /// touched them.
    fn online(&mut self, frames: PfnRange) -> bool;
    /// Release these frames. `false`: they are in use, and stay.
    fn offline(&mut self, frames: PfnRange) -> bool;
}

/// The device's side: [`Mem`](super::Mem), or a model.
pub trait Device {
    /// The region, always the same.
    fn region(&self) -> Region;
    /// See [`Mem::sizes`](super::Mem::sizes).
    ///
    /// # Errors
    /// [`Failed`].
    fn sizes(&self) -> Result<Sizes, Failed>;
    /// See [`Mem::plug`](super::Mem::plug).
    ///
    /// # Errors
    /// [`Failed`].
    fn plug(&self, frames: PfnRange) -> Result<Answer, Failed>;
    /// See [`Mem::unplug`](super::Mem::unplug).
    ///
    /// # Errors
    /// [`Failed`].
    fn unplug(&self, frames: PfnRange) -> Result<Answer, Failed>;
}

impl<S, T> Device for super::Mem<S, T>
where
    S: freehold_bounce::DmaSource,
    T: freehold_virtqueue::Transport,
{
    fn region(&self) -> Region {
        *self.region()
    }
    fn sizes(&self) -> Result<Sizes, Failed> {
        self.sizes()
    }
    fn plug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        self.plug(frames)
    }
    fn unplug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        self.unplug(frames)
    }
}

/// Result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResizeOutcome {
    /// The plugged size is the requested one.
    Reached,
    /// A temporary obstacle: the device is busy, memory is in use, or the kernel has no memory to
    /// manage more. Try again later.
    Later,
    /// The device refuses its own request. Another try has no use until the requested size changes.
    Refused,
}

/// Result for one unit.
enum Step {
    Moved,
    Stuck,
    Busy,
    Refused,
}

/// Knows which units are plugged in.
pub struct Resizer {
    region: Region,
    /// A bit for each unit that is plugged in and that the kernel uses.
    online: Vec<u64>,
    count: u64,
}

impl Resizer {
    /// Makes one without plugged units. `None` if there is no memory for one bit per unit.
    pub fn new(region: Region) -> Option<Self> {
        let words = usize::try_from(region.units().div_ceil(64)).ok()?;
        let mut online = Vec::new();
        online.try_reserve_exact(words).ok()?;
        online.resize(words, 0);
        Some(Self { region, online, count: 0 })
    }
    /// Bytes that are plugged in and that the kernel uses.
    pub fn plugged(&self) -> u64 {
        self.count * self.unit_bytes()
    }
    /// The region.
    pub const fn region(&self) -> &Region {
        &self.region
    }
    /// Bytes of a unit.
    pub fn unit_bytes(&self) -> u64 {
        self.region.unit() << PAGE_SHIFT
    }
    /// Whether a unit is plugged in.
    pub fn is_online(&self, unit: u64) -> bool {
        self.online[(unit / 64) as usize] & 1 << (unit % 64) != 0
    }
    fn mark(&mut self, unit: u64) {
        self.online[(unit / 64) as usize] ^= 1 << (unit % 64);
    }

    /// Plugs in or unplugs until the plugged size is the requested one, or no more can be done now.
    /// `pause` is called between units.
    ///
    /// # Errors
    /// [`Failed`]; plugged units stay in use.
    pub fn follow(
        &mut self,
        device: &impl Device,
        memory: &mut impl Onliner,
        mut pause: impl FnMut(),
    ) -> Result<ResizeOutcome, Failed> {
        // Each pass goes over every unit once; a host that changes its mind meanwhile starts
        // another.
        for _ in 0..PASSES {
            let sizes = device.sizes()?;
            let target = sizes.requested / self.unit_bytes();
            let outcome = if self.count < target {
                self.grow(sizes, device, memory, &mut pause)?
            } else {
                self.shrink(target, device, memory, &mut pause)?
            };
            if device.sizes()?.requested == sizes.requested {
                return Ok(outcome);
            }
        }
        Ok(ResizeOutcome::Later)
    }

    fn grow(
        &mut self,
        sizes: Sizes,
        device: &impl Device,
        memory: &mut impl Onliner,
        pause: &mut impl FnMut(),
    ) -> Result<ResizeOutcome, Failed> {
        // Upwards, so that the host's part is in one piece.
        let [target, usable] = [sizes.requested, sizes.usable].map(|bytes| bytes / self.unit_bytes());
        for unit in 0..self.region.units().min(usable) {
            if self.count >= target {
                return Ok(ResizeOutcome::Reached);
            }
            if self.is_online(unit) {
                continue;
            }
            match self.plug(unit, device, memory)? {
                Step::Moved => {}
                Step::Refused => return Ok(ResizeOutcome::Refused),
                Step::Stuck | Step::Busy => return Ok(ResizeOutcome::Later),
            }
            pause();
        }
        Ok(if self.count >= target { ResizeOutcome::Reached } else { ResizeOutcome::Refused })
    }

    fn plug(&mut self, unit: u64, device: &impl Device, memory: &mut impl Onliner) -> Result<Step, Failed> {
        let frames = self.region.frames_of(unit);
        match device.plug(frames)? {
            Answer::Done => {}
            Answer::Busy => return Ok(Step::Busy),
            Answer::Refused | Answer::Error => return Ok(Step::Refused),
        }
        if !memory.online(frames) {
            // The host may have the unit back; if it does not take it, the memory stays unused.
            device.unplug(frames)?;
            return Ok(Step::Stuck);
        }
        self.mark(unit);
        self.count += 1;
        Ok(Step::Moved)
    }

    fn shrink(
        &mut self,
        target: u64,
        device: &impl Device,
        memory: &mut impl Onliner,
        pause: &mut impl FnMut(),
    ) -> Result<ResizeOutcome, Failed> {
        for unit in (0..self.region.units()).rev() {
            if self.count <= target {
                break;
            }
            if !self.is_online(unit) {
                continue;
            }
            match self.unplug(unit, device, memory)? {
                Step::Moved | Step::Stuck => {}
                Step::Refused => return Ok(ResizeOutcome::Refused),
                Step::Busy => return Ok(ResizeOutcome::Later),
            }
            pause();
        }
        Ok(if self.count <= target { ResizeOutcome::Reached } else { ResizeOutcome::Later })
    }

    fn unplug(&mut self, unit: u64, device: &impl Device, memory: &mut impl Onliner) -> Result<Step, Failed> {
        let frames = self.region.frames_of(unit);
        if !memory.offline(frames) {
            return Ok(Step::Stuck);
        }
        self.mark(unit);
        self.count -= 1;
        let refusal = match device.unplug(frames)? {
            Answer::Done => return Ok(Step::Moved),
            Answer::Busy => Step::Busy,
            Answer::Refused | Answer::Error => Step::Refused,
        };
        // The unit is still plugged in, so it is still memory.
        if memory.online(frames) {
            self.mark(unit);
            self.count += 1;
        }
        Ok(refusal)
    }
}
