//! The task that plugs memory in and unplugs it, as the host's memory devices request
//! ([`Resizer`]).
//!
//! It also asks the host for what the machine needs:
//!
//! - **More**, when [`crate::mem::hotplug`] says so: half of the present memory, at least 64 MiB,
//!   on the node that is short of memory.
//! - **Less**, when a quarter of memory, and at least 64 MiB, has been free at two checks a second
//!   apart. Then the host gets the rest back.
//!
//! Pages of programs and files in a unit are moved out first ([`evacuate`]); the kernel takes its
//! own frames from other memory as long as it can. A unit with a frame that cannot move (a pinned
//! one, the kernel's) is tried again later, and another unit is given back instead.

use core::sync::atomic::Ordering;

use freehold_collections::Vec;
use freehold_frame::{Order, Owner, Request};
use freehold_machine::{PAGE_SHIFT, PAGEBLOCK_FRAMES, Pfn, PfnRange};
use freehold_virtio::mem::resize::Device as _;
use freehold_virtio::mem::{Onliner, ResizeOutcome, Resizer};

use super::{MemoryDevice, memory, want_memory};
use crate::hw::memory::pluggable;
use crate::mem::hotplug::{HOTPLUG, PATIENCE};
use crate::mem::{evacuate, frames, stats};
use crate::{sched, time};

const MIB: u64 = 1 << 20;
/// The smallest request for memory, in bytes, and the free bytes that a shrink leaves.
const LEAST: u64 = 64 * MIB;
/// The largest request for memory, in bytes.
const MOST: u64 = 1024 * MIB;
/// The smallest number of bytes that are given back at a time.
const MIN_SHRINK: u64 = 8 * MIB;
/// Interval between two checks for spare memory.
const SCAN_INTERVAL: u64 = time::SECOND;
/// Interval between two checks for the host's answer: its devices send no interrupts.
const HOST_POLL_INTERVAL: u64 = time::SECOND / 1000;
/// Time after a failure to unplug before the device is tried again.
const RETRY_DELAY: u64 = 10 * time::SECOND;
/// Units that are emptied per walk through all address spaces.
const UNITS_PER_PASS: usize = 32;

/// Starts the task, if there are memory devices.
///
/// # Errors
/// `ENOMEM`.
pub fn start() -> crate::Result<()> {
    let mut devices = Vec::try_with_capacity(memory().len())?;
    for device in memory() {
        let resizer = Resizer::new(device.region()).ok_or(crate::Errno::ENOMEM)?;
        devices.push_reserved(Plugged { device, resizer, asked: 0, asked_at: 0, rests_until: 0, last: None });
    }
    HOTPLUG.peak.store(frames().total_frames(), Ordering::Relaxed);
    let growth: u64 = devices.iter().map(|plugged| plugged.room()).sum();
    HOTPLUG.ceiling.store((frames().total_frames() << PAGE_SHIFT) + growth, Ordering::Relaxed);
    stats::ceiling_changed();
    if !devices.is_empty() {
        HOTPLUG.has_devices.store(true, Ordering::Relaxed);
        log::info!("hotplug: {} MiB can be plugged in", growth / MIB);
        sched::spawn_kernel("hotplug", move || Hotplug { devices, spare: 0 }.run())?;
    }
    Ok(())
}

/// A device and the amount of its memory that is plugged in.
struct Plugged {
    device: &'static MemoryDevice,
    resizer: Resizer,
    /// Bytes that the host was last asked for.
    asked: u64,
    asked_at: u64,
    /// Time before which the host is not asked to unplug.
    rests_until: u64,
    last: Option<ResizeOutcome>,
}

impl Plugged {
    /// Returns how many bytes can still be plugged in.
    fn room(&self) -> u64 {
        (self.resizer.region().frames().len() << PAGE_SHIFT) - self.resizer.plugged()
    }
    fn ask(&mut self, bytes: u64) {
        (self.asked, self.asked_at) = (bytes, time::now());
        want_memory(self.device.number, bytes);
    }
    /// Does what the device requests. Returns `None` if the device has failed.
    fn follow(&mut self) -> Option<()> {
        let before = self.resizer.plugged();
        let mut kernel = HotplugKernel::new(self);
        let outcome = self.resizer.follow(self.device, &mut kernel, || {
            HOTPLUG.grown.wake_all();
            sched::cond_resched();
        });
        drop(kernel);
        let now = self.resizer.plugged();
        if now != before {
            HOTPLUG.is_silent.store(false, Ordering::Release);
            HOTPLUG.peak.fetch_max(frames().total_frames(), Ordering::Relaxed);
            log::info!(
                "hotplug: node {} has {} MiB plugged in, {} before",
                self.device.node.0,
                now / MIB,
                before / MIB
            );
        }
        if self.last != outcome.ok() && outcome == Ok(ResizeOutcome::Refused) {
            log::warn!("hotplug: the device refuses what it asked for");
        }
        self.last = outcome.ok();
        if outcome.is_err() {
            log::error!("hotplug: the memory device of node {} broke the protocol", self.device.node.0);
        }
        outcome.ok().map(|_| ())
    }
}

struct Hotplug {
    devices: Vec<Plugged>,
    /// Spare bytes at the last check.
    spare: u64,
}

impl Hotplug {
    fn run(mut self) {
        self.devices.retain(|plugged| plugged.device.forget_the_past().is_ok());
        HOTPLUG.is_hopeful.store(!self.devices.is_empty(), Ordering::Release);
        let mut looked = time::now();
        loop {
            let event = || HOTPLUG.event.swap(false, Ordering::AcqRel).then_some(());
            let next =
                if self.is_on_its_way() { time::now() + HOST_POLL_INTERVAL } else { looked + SCAN_INTERVAL };
            HOTPLUG.events.wait_uninterruptible_until(next, event);
            let working = HOTPLUG.working.lock();
            self.drain_before_unplugging();
            self.devices.retain_mut(|plugged| plugged.follow().is_some());
            drop(working);
            // Memory that was given back can be plugged in again.
            let has_room = self.devices.iter().any(|plugged| plugged.room() > 0);
            HOTPLUG
                .is_hopeful
                .store(has_room && !HOTPLUG.is_silent.load(Ordering::Acquire), Ordering::Release);
            self.ask_for_more();
            if time::now() >= looked + SCAN_INTERVAL {
                looked = time::now();
                self.offer_what_is_to_spare(looked);
            }
            HOTPLUG.grown.wake_all();
        }
    }

    /// Whether the host was recently asked for memory that is not plugged in yet.
    fn is_on_its_way(&self) -> bool {
        let now = time::now();
        self.devices
            .iter()
            .any(|plugged| plugged.asked > plugged.resizer.plugged() && now < plugged.asked_at + PATIENCE)
    }

    /// A frame in a per-CPU list keeps its pageblock in use: drains the lists before memory is
    /// unplugged.
    fn drain_before_unplugging(&self) {
        let goes = |plugged: &Plugged| {
            plugged.device.sizes().is_ok_and(|sizes| sizes.requested < plugged.resizer.plugged())
        };
        if self.devices.iter().any(goes) {
            evacuate::drain_lists();
        }
    }

    fn ask_for_more(&mut self) {
        let Some(node) = HOTPLUG.wanted.swap(0, Ordering::AcqRel).checked_sub(1) else { return };
        let topology = crate::fs::machine::get().map(|machine| &machine.firmware.topology);
        let node = freehold_machine::NodeId(node as u8);
        let distance =
            |plugged: &&mut Plugged| topology.map_or(0, |all| all.distance(node, plugged.device.node));
        let able = self.devices.iter_mut().filter(|plugged| plugged.room() > 0);
        let Some(plugged) = able.min_by_key(distance) else { return };
        let (now, unit) = (plugged.resizer.plugged(), plugged.resizer.unit_bytes());
        if plugged.asked > now && time::now() < plugged.asked_at + PATIENCE {
            // The memory is on its way.
            return;
        }
        let step = (frames().total_frames() << PAGE_SHIFT >> 1).clamp(LEAST, MOST).min(plugged.room());
        plugged.ask(now + step.next_multiple_of(unit).min(plugged.room()));
    }

    fn offer_what_is_to_spare(&mut self, now: u64) {
        let keep = (frames().total_frames() << PAGE_SHIFT >> 2).max(LEAST);
        let spare = (frames().free_frames() << PAGE_SHIFT).saturating_sub(keep);
        // Memory that a program is about to take again is not spare.
        let mut give = spare.min(core::mem::replace(&mut self.spare, spare));
        for plugged in &mut self.devices {
            let (has, unit) = (plugged.resizer.plugged(), plugged.resizer.unit_bytes());
            if plugged.asked < has && plugged.last == Some(ResizeOutcome::Later) {
                // The memory cannot be unplugged now. The host is told so: otherwise it would still
                // take memory that becomes free later.
                plugged.ask(has);
                plugged.rests_until = now + RETRY_DELAY;
            }
            let part = give.min(has) / unit * unit;
            if part >= MIN_SHRINK.min(has) && part > 0 && plugged.asked == has && now >= plugged.rests_until {
                plugged.ask(has - part);
                give -= part;
            }
        }
    }
}

/// Handler of memory that is plugged in and unplugged.
struct HotplugKernel {
    region: PfnRange,
    /// Frames that are to be unplugged.
    goes: u64,
    /// Isolated and emptied units that are unplugged next: they were emptied together with another
    /// unit. The remaining units are returned to use in the end.
    ahead: Vec<PfnRange>,
}

impl HotplugKernel {
    fn new(plugged: &Plugged) -> Self {
        let requested = plugged.device.sizes().map_or(u64::MAX, |sizes| sizes.requested);
        let goes = plugged.resizer.plugged().saturating_sub(requested) >> PAGE_SHIFT;
        Self { region: plugged.resizer.region().frames(), goes, ahead: Vec::new() }
    }

    /// Empties `unit`, which is isolated, together with the units below it that are also to be
    /// unplugged.
    fn empty(&mut self, unit: PfnRange) {
        let more = (self.goes / unit.len()).saturating_sub(1).min(UNITS_PER_PASS as u64);
        if self.ahead.try_reserve(more as usize + 1).is_ok() {
            let below = (1..)
                .map(|step| step * unit.len())
                .take_while(|&down| unit.start.0 >= down && self.region.contains(Pfn(unit.start.0 - down)));
            for down in below.take(more as usize) {
                let start = Pfn(unit.start.0 - down);
                let next = PfnRange::new(start, start.offset(unit.len()));
                if !frames().is_out(next) && !self.ahead.contains(&next) && frames().unplug(next).is_ok() {
                    self.ahead.push_reserved(next);
                }
            }
            self.ahead.push_reserved(unit);
            self.ahead.sort_unstable_by_key(|unit| unit.start);
            evacuate::empty(&self.ahead, evacuate::node_of(unit));
            self.ahead.retain(|other| *other != unit);
        }
    }
}

impl Drop for HotplugKernel {
    fn drop(&mut self) {
        for unit in &self.ahead {
            frames().plug(*unit).expect("the region is in the topology");
        }
    }
}

fn pageblocks(range: PfnRange) -> impl Iterator<Item = Pfn> {
    (0..range.len() / PAGEBLOCK_FRAMES).map(move |block| range.start.offset(block * PAGEBLOCK_FRAMES))
}

/// Returns frames for the frame records of new memory. The emergency reserve may serve them: new
/// memory ends an emergency.
fn records(order: u32) -> Option<Pfn> {
    frames().allocate(Request::new(Owner::Kernel).order(Order::new(order)?).from_reserve()).ok()
}

impl Onliner for HotplugKernel {
    fn online(&mut self, range: PfnRange) -> bool {
        for block in pageblocks(range) {
            if pluggable::plug(block, &mut records).is_err() {
                pageblocks(range).take_while(|done| *done < block).for_each(pluggable::unplug);
                return false;
            }
        }
        frames().plug(range).expect("the region is in the topology");
        true
    }
    fn offline(&mut self, range: PfnRange) -> bool {
        let was_ahead = self.ahead.contains(&range);
        self.ahead.retain(|unit| *unit != range);
        if !was_ahead {
            match frames().unplug(range) {
                Ok(0) => {}
                Ok(_) => self.empty(range),
                Err(_) => return false,
            }
        }
        if frames().still_used(range) > 0 {
            frames().plug(range).expect("the region is in the topology");
            return false;
        }
        pageblocks(range).for_each(pluggable::unplug);
        self.goes = self.goes.saturating_sub(range.len());
        true
    }
}
