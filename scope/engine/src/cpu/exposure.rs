//! Measures how long this CPU holds translations of programs' frames that the kernel could use:
//! windows, open and closed, and the direct map's.
//!
//! The modelled TLB reports the end of such a translation. A window closes with the store that
//! empties its entry; the window's own CPU makes that store. In the direct map a translation
//! becomes an *alias* of a program's frame when the program first uses the frame after the kernel
//! did. From then on the kernel has no use for it.

use std::collections::HashMap;
use std::sync::Arc;

use freehold_scope_model::{Ended, PageSize, Scope, TlbKey};
use freehold_scope_record::{Exposure, Lives, log2_bucket};

use super::Cpu;
use crate::frames::User;

/// Exposure that one CPU has seen.
#[derive(Default)]
pub struct Exposed {
    seen: Exposure,
    /// Closing times of windows whose translations are still cached.
    closed: HashMap<TlbKey, Closed>,
    /// Times when frames became aliases, by the cached translation that leads to them.
    aliases: HashMap<TlbKey, Vec<u64>>,
    /// Aliases since the last write to CR3.
    fresh: Vec<(TlbKey, u64)>,
}

/// When a window closed.
#[derive(Clone, Copy)]
struct Closed {
    /// On the CPU's clock.
    own: u64,
    /// On the machine's clock.
    machine: u64,
}

fn count(lives: &mut Vec<u64>, lived: u64) {
    lives.resize(64, 0);
    lives[log2_bucket(lived)] += 1;
}

impl Exposed {
    /// Notes a write to CR3.
    pub fn switched(&mut self, now: u64) {
        for (_, since) in self.fresh.drain(..) {
            count(&mut self.seen.alias_until_switch, now - since);
        }
    }

    /// Notes the end of a window's translation; `machine` is the machine's clock.
    fn window_ended(&mut self, ended: Ended, machine: u64) {
        let Ended { key, cached, now } = ended;
        let closed = self.closed.remove(&key);
        let open_until = closed.map_or(now, |closed| closed.own).max(cached.born);
        self.seen.open += open_until - cached.born;
        self.seen.closed += now - open_until;
        if let Some(closed) = closed {
            count(&mut self.seen.lives.ended, now - closed.own);
            self.lasted(closed, now, machine);
        }
    }

    /// Notes that a closed window's translation lasts until now, on this CPU's clock and on the
    /// machine's.
    fn lasted(&mut self, closed: Closed, own: u64, machine: u64) {
        let seen = &mut self.seen;
        seen.longest_closed = seen.longest_closed.max(machine.saturating_sub(closed.machine));
        seen.longest_closed_own = seen.longest_closed_own.max(own - closed.own);
    }

    /// Notes the end of a translation of the direct map, of which `frames` are programs'.
    fn direct_ended(&mut self, ended: Ended, frames: u64) {
        let Ended { key, cached, now } = ended;
        self.seen.direct += frames * (now - cached.born);
        for since in self.aliases.remove(&key).unwrap_or_default() {
            count(&mut self.seen.alias_lives.ended, now - since);
        }
        let seen = &mut self.seen.alias_until_switch;
        self.fresh.retain(|&(other, since)| {
            if other == key {
                count(seen, now - since);
            }
            other != key
        });
    }
}

/// Returns the sum over CPUs.
pub fn sum(all: impl Iterator<Item = Exposure>) -> Exposure {
    fn join(sum: &mut Vec<u64>, more: &[u64]) {
        sum.resize(64, 0);
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    fn join_lives(sum: &mut Lives, more: &Lives) {
        join(&mut sum.ended, &more.ended);
        join(&mut sum.alive, &more.alive);
    }
    all.fold(Exposure::default(), |mut sum, more| {
        sum.windows += more.windows;
        sum.closed_cached += more.closed_cached;
        sum.longest_closed = sum.longest_closed.max(more.longest_closed);
        sum.longest_closed_own = sum.longest_closed_own.max(more.longest_closed_own);
        sum.halts += more.halts;
        sum.closed_at_halts += more.closed_at_halts;
        sum.open += more.open;
        sum.closed += more.closed;
        sum.direct += more.direct;
        sum.aliases += more.aliases;
        join_lives(&mut sum.lives, &more.lives);
        join_lives(&mut sum.alias_lives, &more.alias_lives);
        join_lives(&mut sum.other_alias_lives, &more.other_alias_lives);
        join(&mut sum.alias_until_switch, &more.alias_until_switch);
        sum
    })
}

impl Cpu {
    /// Notes the translations that have ended.
    pub(super) fn settle_exposure(&mut self) {
        if !self.tlb.has_told() {
            return;
        }
        for ended in self.tlb.take_told() {
            self.translation_ended(ended);
        }
    }

    fn translation_ended(&mut self, ended: Ended) {
        if self.watch.frames.is_window(ended.key.address()) {
            let machine = self.now();
            self.exposed.window_ended(ended, machine);
        } else {
            let others = self.lives_after_others(&ended);
            others.for_each(|lived| count(&mut self.exposed.seen.other_alias_lives.ended, lived));
            let programs = self.programs_of(&ended);
            self.exposed.direct_ended(ended, programs);
        }
    }

    /// Returns the frames of a translation of the direct map.
    fn frames_of(ended: &Ended) -> core::ops::Range<u64> {
        let size = 1u64 << (ended.key.size().shift() - 12);
        let first = ended.cached.frame & !(size - 1);
        first..first + size
    }

    /// Returns the number of programs' frames in the translation.
    fn programs_of(&self, ended: &Ended) -> u64 {
        let frames = &self.watch.frames;
        Self::frames_of(ended).filter(|&frame| frames.is_programs(frame)).count() as u64
    }

    /// Returns for how long this translation of the direct map has lived after programs on other
    /// CPUs took its frames.
    fn lives_after_others(&self, ended: &Ended) -> impl Iterator<Item = u64> + use<> {
        let (watch, number, now, filled) =
            (Arc::clone(&self.watch), self.number, self.now(), ended.cached.moment);
        Self::frames_of(ended).filter_map(move |frame| {
            let (since, cpu) = watch.frames.uses.aliased(frame)?;
            (cpu != number && since > filled).then_some(now.saturating_sub(since))
        })
    }

    /// Notes windows that a store of this CPU opened or closed.
    pub(super) fn windows_changed(&mut self, opened: u64, closed: &[u64]) {
        self.exposed.seen.windows += opened;
        let now = Closed { own: self.clock(), machine: self.now() };
        for &address in closed {
            let cached = TlbKey::all_of(address).find(|&key| self.tlb.peek(key).is_some());
            if let Some(key) = cached {
                self.exposed.seen.closed_cached += 1;
                self.exposed.closed.insert(key, now);
            }
        }
    }

    /// Notes that the kernel is about to halt this CPU.
    pub fn halt(&mut self) {
        self.exposed.seen.halts += 1;
        self.exposed.seen.closed_at_halts += self.exposed.closed.len() as u64;
    }

    /// Checks a page of memory that is used at `address`: it may now be a program's, while this CPU
    /// holds the kernel's translation of it.
    pub(super) fn watch_alias(&mut self, address: u64, base: u64) {
        let user = if address >> 63 != 0 { User::Kernel } else { User::Program };
        let direct = self.watch.frames.direct_address(base);
        if user == User::Kernel && address != direct {
            return;
        }
        let before = self.watch.frames.uses.touched(base >> 12, user, (self.now(), self.number));
        if before != User::Kernel as u8 || user == User::Kernel {
            return;
        }
        self.exposed.seen.aliases += 1;
        let now = self.clock();
        let keys = PageSize::ALL.map(|size| TlbKey::new(direct, size, Scope::Global));
        if let Some(key) = keys.into_iter().find(|&key| self.tlb.peek(key).is_some()) {
            self.exposed.aliases.entry(key).or_default().push(now);
            self.exposed.fresh.push((key, now));
        }
    }

    /// Ends the run; returns this CPU's exposure, with the translations that it still holds.
    pub(crate) fn exposure(&mut self) -> Exposure {
        self.settle_exposure();
        let (now, machine) = (self.clock(), self.now());
        for (key, closed) in std::mem::take(&mut self.exposed.closed) {
            count(&mut self.exposed.seen.lives.alive, now - closed.own);
            self.exposed.lasted(closed, now, machine);
            if let Some(cached) = self.tlb.peek(key) {
                self.exposed.seen.open += closed.own.saturating_sub(cached.born);
            }
            self.exposed.seen.closed += now - closed.own;
        }
        for since in std::mem::take(&mut self.exposed.aliases).into_values().flatten() {
            count(&mut self.exposed.seen.alias_lives.alive, now - since);
        }
        // Cached translations still count until now, without an end.
        let rest: Vec<Ended> = self.tlb.to_tell().map(|(key, cached)| Ended { key, cached, now }).collect();
        for ended in rest {
            if !self.watch.frames.is_window(ended.key.address()) {
                let others = self.lives_after_others(&ended);
                others.for_each(|lived| count(&mut self.exposed.seen.other_alias_lives.alive, lived));
                let programs = self.programs_of(&ended);
                self.exposed.direct_ended(ended, programs);
            }
        }
        std::mem::take(&mut self.exposed.seen)
    }
}
