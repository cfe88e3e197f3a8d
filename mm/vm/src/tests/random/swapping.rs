//! Steps that evict pages, with disks that are full, fail and are removed.

use core::ops::ControlFlow;

use freehold_machine::{CpuId, VirtAddr};
use proptest::prelude::*;

use super::{AREAS, Bytes, Disk, Health, Run, Step, address, each, slots};
use crate::*;

impl Run {
    pub(super) fn add_disks(&mut self) {
        for slots in [0, 1].map(slots) {
            let disk = Disk::new(self.world.model());
            let priority = -(self.disks.len() as i32);
            let area = self.world.commons.swap().add(disk.clone(), slots + 1, &[], priority).unwrap();
            self.disks.push(disk);
            self.swap_areas.push(area);
        }
    }

    /// Whether an access may have failed, or shown zero, for reasons that the model does not know.
    pub(super) fn is_excused(&mut self, p: usize, page: u64, got: Result<u8, FaultError>) -> bool {
        let swapped = self.processes[p].space_entry(page).swap_place().or_else(|| {
            let space = self.processes[p].space();
            let (cache, index) = space.areas.at(address(page))?.cache_page(address(page))?;
            cache.swap_place(index)
        });
        let lazy = self.pages[p].get_mut(&page).filter(|page| page.lazy);
        match (got, lazy) {
            (Err(FaultError::OutOfMemory), _) => true,
            (Err(FaultError::Bus), _) => {
                swapped.is_some_and(|place| self.disks[usize::from(place.area)].fails_reads())
            }
            (Ok(0), Some(page)) => {
                // It is zero from now on.
                page.lazy = false;
                page.bytes = Bytes::Private(0);
                true
            }
            _ => false,
        }
    }

    /// Marks of stores to shared memory go with its leaves
    /// (Documentation/admin-guide/mm/pagemap.rst, "Exceptions for Shared Memory").
    fn forget_stores_to_shared(&mut self) {
        for p in 0..self.processes.len() {
            let gone = |at| self.processes[p].space_entry(at).is_empty();
            let pages = self.pages[p].iter().filter(|(_, page)| matches!(page.bytes, Bytes::Shared(..)));
            let gone: std::vec::Vec<u64> = pages.map(|(&at, _)| at).filter(|&at| gone(at)).collect();
            for at in gone {
                self.pages[p].get_mut(&at).unwrap().written = false;
            }
        }
    }

    pub(super) fn apply_swap(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let outcome = self.apply_swap_step(step);
        self.forget_stores_to_shared();
        outcome
    }

    fn apply_swap_step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let commons = self.world.commons.clone();
        match *step {
            Step::PageOut(p, at, count) => {
                let p = usize::from(p);
                let end = address(u64::from(at) + u64::from(count));
                let handle = self.processes[p].locked.clone();
                self.on_cpu_of(p, || commons.page_out(&*handle, address(at.into())..end));
            }
            Step::Evict(pages, any) => {
                let age = if any { Age::Ignore } else { Age::Respect };
                let wish = EvictWish { pages: u64::from(pages), age, frames: FrameChoice::ALL, effort: 0 };
                self.on_cpu_of(usize::from(pages) % 3, || {
                    commons.evict(&wish);
                    commons.evict_shared(&wish);
                });
            }
            Step::GiveUp(p, at, count) => {
                let (p, range) = (usize::from(p), u64::from(at)..u64::from(at) + u64::from(count));
                let anonymous = |page: &u64| {
                    self.pages[p].get(page).is_some_and(|page| matches!(page.bytes, Bytes::Private(_)))
                };
                if !range.clone().all(|page| anonymous(&page)) {
                    return Ok(());
                }
                let len = u64::from(count) * each();
                let outcome = self.on(p, |space, _| space.advise(address(range.start), len, Advice::Free));
                if self.may_not_split(outcome) {
                    return Ok(());
                }
                prop_assert_eq!(outcome, Ok(()));
                for (_, page) in self.pages[p].range_mut(range) {
                    (page.written, page.lazy) = (false, true);
                }
            }
            Step::SwapOff(n) => {
                let n = usize::from(n) % AREAS;
                self.disks[n].set_health(Health::Sound);
                let area = self.swap_areas[n];
                let mut rounds = 0;
                let outcome = self.on_cpu_of(0, || {
                    commons.swap_off(
                        area,
                        &mut || {
                            rounds += 1;
                            if rounds < 10_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                        },
                        &mut || ControlFlow::Break(()),
                    )
                });
                match outcome {
                    Ok(()) => {
                        let priority = -(n as i32);
                        let area = commons.swap().add(self.disks[n].clone(), slots(n) + 1, &[], priority);
                        self.swap_areas[n] = area.unwrap();
                    }
                    Err(error) => prop_assert!(self.failing && error == VmError::NoMemory, "{error:?}"),
                }
            }
            Step::Disks(health) => self.disks.iter().for_each(|disk| disk.set_health(health)),
            _ => {}
        }
        Ok(())
    }

    fn on_cpu_of<R>(&mut self, p: usize, f: impl FnOnce() -> R) -> R {
        self.load_root(2 * p);
        self.lazy[2 * p] = false;
        self.world.model().on_cpu(CpuId(2 * p as u16), f)
    }

    /// Slots and entries agree.
    pub(super) fn check_slots(&self) -> Result<(), TestCaseError> {
        let mut entries = 0;
        for process in &self.processes {
            let space = process.space();
            let mut swapped = 0;
            space.resident.tables.visit_all(VirtAddr(0)..VirtAddr(u64::MAX), |_, _, entry, _| {
                swapped += u64::from(entry.swap_place().is_some());
            });
            prop_assert_eq!(space.usage().swapped, swapped);
            entries += swapped;
        }
        self.world.commons.for_each_cache(|cache| {
            cache.validate();
            entries += cache.slots();
        });
        prop_assert_eq!(self.world.commons.swap().validate(), entries);
        prop_assert_eq!(self.world.commons.count_of(Event::CowUnneeded), 0);
        Ok(())
    }
}
