//! The end of a run: everything that was counted becomes results.

use core::sync::atomic::Ordering;

use freehold_scope_model::{Death as Cause_, PageSize, Slices};
use freehold_scope_record::{
    BlockRecord as BlockResult, Cause, Checks, Cost, CpuPhase, Death, Emulator, Half, LifetimeGroup, Page,
    Phase, Results, Sharing, Slice, SmapChecks, TlbResult, VERSION, log2_bucket,
};

use crate::cpu::{Cpu, Finished, sum};
use crate::sharing::join;
use crate::tally::SliceTally;
use crate::watch::Watch;

/// Turns all counts into results. The CPUs have stopped.
pub fn finish(watch: &Watch, cpus: &mut [&mut Cpu], emulator: Emulator) -> Results {
    let mut finished: Vec<Finished> = cpus.iter_mut().map(|cpu| cpu.finish()).collect();
    let settings = watch.settings();
    let count = settings.cpus.len();
    let mut phases = Vec::new();
    let mut at = 0;
    for (number, (name, near)) in watch.end_phases().into_iter().enumerate() {
        let mut own = vec![CpuPhase::default(); count];
        for cpu in &mut finished {
            if let Some(phase) = cpu.phases.get_mut(number) {
                own[cpu.number] = core::mem::take(phase);
            }
        }
        let instructions: u64 =
            own.iter().map(|cpu| cpu.modes.user.instructions + cpu.modes.kernel.instructions).sum();
        phases.push(Phase { name, start: at, end: at + instructions, cpus: own, near });
        at += instructions;
    }
    let checks = finished.iter().fold(Checks::default(), |sum, cpu| Checks {
        direct_map: sum.direct_map + cpu.checks.direct_map,
        translations: sum.translations + cpu.checks.translations,
        stores: sum.stores + cpu.checks.stores,
        text_stores: sum.text_stores + cpu.checks.text_stores,
        breakpoints: sum.breakpoints + cpu.checks.breakpoints,
        ..sum
    });
    let smap = cpus.iter().fold(SmapChecks::default(), |sum, cpu| sum.plus(cpu.smap.checks));
    let clocks: Vec<(usize, u64)> = finished.iter().map(|cpu| (cpu.number, cpu.clock)).collect();
    let accesses = |phase: &Phase| -> u64 {
        let modes = phase.cpus.iter().flat_map(|cpu| [&cpu.modes.user, &cpu.modes.kernel]);
        modes.map(|counts| counts.loads + counts.stores).sum()
    };
    let cost = Cost {
        emulator,
        blocks: cpus.iter().map(|cpu| cpu.runs.sum()).sum(),
        accesses: phases.iter().map(accesses).sum(),
        translations: cpus.iter().map(|cpu| cpu.fills).sum(),
        translated: watch.translated.load(Ordering::Relaxed),
    };
    let near = watch.near.results(watch.frames.classes().len());
    Results {
        version: VERSION,
        settings: settings.clone(),
        instructions: at,
        owners: watch.owners(&near),
        near,
        classes: watch.frames.classes(),
        tlb: settings.models.tlb.as_ref().map(|_| lifetimes(watch, cpus, &clocks)),
        exposure: settings.models.tlb.as_ref().map(|_| sum(cpus.iter_mut().map(|cpu| cpu.exposure()))),
        residue: watch.end_samples(),
        sharing: sharing(watch, cpus, phases.len()),
        slices: slices(watch, finished.into_iter().map(|cpu| cpu.slices), at),
        regions: if settings.models.heat.is_some() { watch.regions() } else { Vec::new() },
        blocks: blocks(watch, cpus),
        oracle: watch.frames.results(checks, smap),
        cost,
        remarks: remarks(watch, cpus, &phases),
        phases,
    }
}

fn sharing(watch: &Watch, cpus: &[&mut Cpu], phases: usize) -> Option<Sharing> {
    let visits: Vec<_> = cpus.iter().filter_map(|cpu| cpu.visits.as_ref()).collect();
    watch.settings().models.sharing.then(|| join(&visits, watch.program_time(), phases))
}

fn lifetimes(watch: &Watch, cpus: &[&mut Cpu], clocks: &[(usize, u64)]) -> TlbResult {
    let mut groups = Vec::new();
    for (cpu, &(number, clock)) in cpus.iter().zip(clocks) {
        for (upper, size, dead) in cpu.tlb.lifetimes() {
            if dead.fills == 0 {
                continue;
            }
            let mut alive = vec![0; 64];
            for (_, _, born) in cpu.tlb.entries().filter(|&(half, other, _)| (half, other) == (upper, size)) {
                alive[log2_bucket(clock.saturating_sub(born))] += 1;
            }
            let death = |cause: Cause_| Death {
                cause: match cause {
                    Cause_::Capacity => Cause::Capacity,
                    Cause_::Page => Cause::Page,
                    Cause_::Space => Cause::Space,
                    Cause_::All => Cause::All,
                },
                lived: dead.dead[cause as usize].to_vec(),
            };
            groups.push(LifetimeGroup {
                cpu: number,
                half: if upper { Half::Kernel } else { Half::User },
                page: match size {
                    PageSize::Small => Page::Small,
                    PageSize::Large => Page::Large,
                    PageSize::Giant => Page::Giant,
                },
                fills: dead.fills,
                deaths: Cause_::ALL.into_iter().map(death).collect(),
                alive,
            });
        }
    }
    TlbResult {
        groups,
        page_sizes: if watch.frames.published().is_some() { "tables" } else { "assumed" }.into(),
        unknown_page_flushes: cpus.iter().map(|cpu| cpu.unknown_flushes).sum(),
    }
}

fn slices(watch: &Watch, all: impl Iterator<Item = Slices<SliceTally>>, end: u64) -> Vec<Slice> {
    let empty = || SliceTally::new(watch.settings().cpus.len(), watch.region_count());
    let Some(joined) = all.reduce(|mut one, other| {
        one.join(other, empty);
        one
    }) else {
        return Vec::new();
    };
    let length = joined.length();
    let slice = |(number, tally): (usize, SliceTally)| {
        let start = number as u64 * length;
        let heat = tally.heat.into_iter().enumerate().filter(|&(_, count)| count > 0).collect();
        Slice { start, end: (start + length).min(end.max(start)), cpus: tally.cpus, heat }
    };
    joined.into_slices().into_iter().enumerate().map(slice).collect()
}

fn blocks(watch: &Watch, cpus: &[&mut Cpu]) -> Vec<BlockResult> {
    // Several entries may have one address and half: code of several programs, or code that was
    // translated in several lengths.
    let time = watch.program_time();
    let mut all: Vec<BlockResult> = watch
        .all_blocks()
        .into_iter()
        .filter_map(|block| {
            let own = cpus.iter().map(|cpu| cpu.runs.of(block.number, time));
            let (runs, program) = own.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
            let half = if block.mode == crate::tally::KERNEL { Half::Kernel } else { Half::User };
            (runs > 0).then_some(BlockResult {
                pc: block.pc,
                half,
                runs,
                instructions: runs * block.instructions,
                program: program * block.instructions,
                contents: block.contents.load(Ordering::Relaxed),
            })
        })
        .collect();
    all.sort_unstable_by_key(|block| {
        (core::cmp::Reverse((block.program, block.instructions)), block.pc, block.runs, block.contents)
    });
    all.truncate(watch.settings().blocks);
    all
}

/// If more than one address in this many is misread, that is no coincidence: a page is being
/// remapped meanwhile.
const MISREAD: u64 = 50;
/// Without tables to compare with: more than one access in so many to an address without memory.
/// Devices are polled, too.
const ELSEWHERE: u64 = 5;

fn remarks(watch: &Watch, cpus: &[&mut Cpu], phases: &[Phase]) -> Vec<String> {
    let settings = watch.settings();
    let models = &settings.models;
    if models.cache.is_some() {
        watch.remark(
            "Each CPU's last-level cache is its own, its share of what hardware shares; devices' accesses are not seen.".into(),
        );
    }
    if models.tlb.is_some() && watch.frames.published().is_none() {
        watch.remark(
            "Sizes of pages are assumed: 2 MiB where kernel addresses agree with their frames modulo that, else 4 KiB; \
             entries of INVLPGs die when the changed translation is seen."
                .into(),
        );
    }
    if models.cache.is_some_and(|cache| cache.near.is_some()) && !settings.memory.growth.is_empty() {
        watch
            .remark("Memory that is plugged in while the machine runs has no memory-side cache here.".into());
    }
    let compared: u64 = cpus.iter().map(|cpu| cpu.compared).sum();
    let differed: u64 = cpus.iter().map(|cpu| cpu.differed).sum();
    // Firmware probes for devices that do not exist.
    let modes = phases
        .iter()
        .skip(1)
        .flat_map(|phase| &phase.cpus)
        .flat_map(|cpu| [&cpu.modes.user, &cpu.modes.kernel]);
    let (accesses, elsewhere) =
        modes.fold((0, 0), |(all, out), counts| (all + counts.loads + counts.stores, out + counts.elsewhere));
    if differed > compared / MISREAD || (compared == 0 && elsewhere > accesses / ELSEWHERE) {
        watch.remark(format!(
            "Physical addresses are doubtful: {differed} of {compared} differ from the guest's tables, {elsewhere} of {accesses} \
             accesses reach no memory. This QEMU may count them in another way than its version says."
        ));
    }
    watch.take_remarks()
}
