//! An attacker reads kernel addresses at every step, on every CPU: the attacker may only find
//! memory of the kernel, memory in a currently open window, and memory in the stated set of stale
//! translations.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use common::model;
use freehold_buddy::{Buddy, Options};
use freehold_frame::{FrameSource, FrameState, Order, Owner, Request};
use freehold_machine::model::{Config, Defect, Forgetting, KernelAddress, Model, Reach, SLOTS};
use freehold_machine::{CpuId, Entropy, PAGEBLOCK_FRAMES, Pfn, PfnRange, PhysicalBytes};

const CPUS: u16 = 2;
const FRAMES: u64 = 4096;
/// The bytes of programs.
const SECRET: u8 = 0xee;
const SECRET_WORD: u64 = u64::from_le_bytes([SECRET; 8]);

/// For each CPU, frames whose closed windows may still be cached.
type Allowed = Arc<Mutex<[BTreeSet<Pfn>; CPUS as usize]>>;

fn order(log2: u32) -> Order {
    Order::new(log2).unwrap()
}

/// Reads every kernel address on every CPU.
fn look_everywhere(source: &'static Buddy<Model>, allowed: &Allowed) {
    let machine = source.machine();
    for cpu in (0..CPUS).map(CpuId) {
        for block in (0..FRAMES).step_by(PAGEBLOCK_FRAMES as usize).map(Pfn) {
            if machine.peek(cpu, KernelAddress::Direct(block)).is_none() {
                continue;
            }
            for frame in PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)).iter() {
                let found = machine.peek(cpu, KernelAddress::Direct(frame)).unwrap();
                assert_eq!(found.reach, Reach::Tables, "{cpu:?} has {frame:?} of a pageblock that left");
                assert_ne!(found.word, SECRET_WORD, "a program's bytes in {frame:?} are in the map");
                if let FrameState::Owned { owner, .. } = source.table().state(frame) {
                    assert!(!owner.is_outside(), "{frame:?} of {} is in the map", owner.name());
                }
            }
        }
        let allowed = &allowed.lock().unwrap()[usize::from(cpu.0)];
        let windows = (0..SLOTS).filter_map(|slot| machine.peek(cpu, KernelAddress::Window(slot)));
        for found in windows.filter(|found| found.reach == Reach::Stale) {
            assert!(allowed.contains(&found.frame), "a closed window of {cpu:?} shows {:?}", found.frame);
        }
    }
}

/// Makes a machine with an attacker who looks at every step.
fn watched(forgetting: Forgetting, defect: Option<Defect>) -> (&'static Buddy<Model>, Allowed) {
    let config = Config { cpus: usize::from(CPUS), frames: FRAMES, ..Config::default() };
    let source = model(config, &[PfnRange::new(Pfn(0), Pfn(300))], Options::default());
    let machine = source.machine();
    machine.forget_windows(forgetting);
    if let Some(defect) = defect {
        machine.break_with(defect);
    }
    let allowed = Allowed::default();
    let spied = Arc::clone(&allowed);
    machine.spy(move || look_everywhere(source, &spied));
    (source, allowed)
}

/// Programs and the kernel take and free blocks in turn. Programs' bytes are stored through nested
/// windows. Now and then the time of a CPU's closed windows ends.
fn live(source: &'static Buddy<Model>, forgetting: Forgetting, allowed: &Allowed, steps: u64) {
    let machine = source.machine();
    let mut blocks: Vec<(Pfn, u32, Owner)> = Vec::new();
    let below = |end: u64| machine.random_u64() % end;
    for step in 0..steps {
        let favoured = if step * 4 / steps % 2 == 0 { Owner::Anon } else { Owner::Kernel };
        let cpu = CpuId(below(u64::from(CPUS)) as u16);
        machine.on_cpu(cpu, || match below(8) {
            0..3 => {
                let log2 = if below(2) == 0 { 9 } else { below(4) as u32 };
                if let Ok(first) = source.allocate(Request::new(favoured).order(order(log2))) {
                    blocks.push((first, log2, favoured));
                }
            }
            3..5 => {
                if let Some(at) = blocks.iter().position(|(_, _, owner)| *owner != favoured) {
                    let (first, log2, _) = blocks.swap_remove(at);
                    source.release(first, order(log2));
                    source.drain_local();
                }
            }
            5..7 => store(source, &blocks, forgetting, (allowed, cpu)),
            _ => {
                allowed.lock().unwrap()[usize::from(cpu.0)].clear();
                machine.end_of_time(cpu);
            }
        });
    }
}

/// Stores a program's bytes to its frames: 70 windows, some inside another.
fn store(
    source: &'static Buddy<Model>,
    blocks: &[(Pfn, u32, Owner)],
    forgetting: Forgetting,
    (allowed, cpu): (&Allowed, CpuId),
) {
    let machine = source.machine();
    let programs: Vec<_> = blocks.iter().filter(|(_, _, owner)| *owner == Owner::Anon).collect();
    if programs.is_empty() {
        return;
    }
    let any = || {
        let (first, log2, _) = programs[(machine.random_u64() % programs.len() as u64) as usize];
        first.offset(machine.random_u64() % (1 << log2))
    };
    let may_stay = |frame| {
        if forgetting == Forgetting::InLaps {
            allowed.lock().unwrap()[usize::from(cpu.0)].insert(frame);
        }
    };
    for _ in 0..10 {
        let outer = any();
        may_stay(outer);
        machine.with_bytes(outer, |bytes| {
            bytes.fill(SECRET);
            for _ in 0..6 {
                let inner = any();
                if inner != outer {
                    may_stay(inner);
                    machine.with_bytes(inner, |bytes| bytes.fill(SECRET));
                }
            }
        });
    }
}

#[test]
fn an_attacker_finds_what_the_kernel_owns_what_is_open_and_what_may_be_stale() {
    for forgetting in [Forgetting::InLaps, Forgetting::AtClose] {
        let (source, allowed) = watched(forgetting, None);
        live(source, forgetting, &allowed, 300);
        assert!(source.wiped_pageblocks() > 0, "no pageblock of programs became the kernel's");
    }
}

#[test]
fn an_attacker_finds_what_a_broken_machine_leaves_out() {
    for (defect, forgetting) in [
        (Defect::LeavesUnflushed, Forgetting::InLaps),
        (Defect::Unwiped, Forgetting::InLaps),
        (Defect::LapUnflushed, Forgetting::InLaps),
        (Defect::HeldOverReused, Forgetting::InLaps),
        (Defect::DeadlineIgnored, Forgetting::InLaps),
        (Defect::CloseUnflushed, Forgetting::AtClose),
    ] {
        let (source, allowed) = watched(forgetting, Some(defect));
        let lived = catch_unwind(AssertUnwindSafe(|| live(source, forgetting, &allowed, 300)));
        assert!(lived.is_err(), "{defect:?}");
    }
}
