//! A small machine made by hand: every instruction that it runs is known, so every count is, too.

mod exposure;
mod half;
mod kinds;
mod patching;
mod runs;
mod sharing;
mod smap;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use freehold_scope_doorbell::{
    self as doorbell, MAX_NODES, MAX_OWNERS, NAME_BYTES, Policy, Publication, Records, SITE_BYTES,
};
use freehold_scope_model::{AccessKind, PageSize};
use freehold_scope_record::{
    CacheModel, CacheShape, Counting, Emulator, Heat, HwAddress, MemoryBackends, Models, NearShape, Results,
    Rule, Settings, TlbShape,
};

use crate::frames::Suspect;
use crate::guest::tests::Words;
use crate::{
    Board, Choice, CodePlace, Cpu, DoorbellRing, Due, Flags, Flush, Step, Watch, board_words, finish,
};

const MIB: u64 = 1 << 20;
const NODE: u64 = 64 * MIB;
const TEXT: u64 = 0xffff_ffff_8020_0000;
const DIRECT: u64 = 0xffff_c000_0000_0000;
const TABLE: u64 = 0xffff_e000_0000_0000;
const WINDOWS: u64 = 0xffff_d000_0000_0000;
const DYNAMIC: u64 = 0xffff_f000_0000_0000;
const ROOT: u64 = 0x10_0000;
/// Physical addresses of the image and of the frame table.
const IMAGE: u64 = 0x20_0000;
/// Physical address of the interrupt table, which is in the page after the text.
const GATES: u64 = 0x21_0000;
/// Handlers of 16 bytes by vector.
const HANDLERS: u64 = TEXT + 0x200;
const USER_COPIES: u64 = TEXT + 0x700;
const PATCHING: u64 = TEXT + 0x600;
const PATCH_WINDOW: u64 = WINDOWS + 0x3000;
/// The table of patched places: one entry.
const SITES: u64 = TEXT + 0x900;
/// Physical address of the counts of loads of shared roots, which are in the page after that table.
const SHARED_LOADS: u64 = 0x22_0000;
const RECORDS: u64 = 0x40_0000;
const ANON: u64 = 6;
const BOUNCE: u64 = 4;
const KERNEL_OWNER: u64 = 2;
/// By the kernel.
const GIVEN_BACK: u64 = KERNEL_OWNER << 4;
const PTE_GLOBAL: u64 = 1 << 8;

const EMULATOR: Emulator = Emulator { cpu_seconds: 1.0, interface: 1, counting: Counting::Calls };

struct Everything;
impl Choice for Everything {
    const CACHE: bool = true;
    const TLB: bool = true;
    const STORES: bool = true;
}

fn board(watch: &Watch) -> Board {
    (0..board_words(watch.settings())).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak()
}

struct Machine {
    words: Arc<Words>,
    watch: Arc<Watch>,
    cpus: Vec<Cpu>,
    /// Owners that have to stay outside, as a mask.
    outside: u64,
    /// The second node's root; 0: it uses the first node's.
    second_root: u64,
}

impl Machine {
    /// Makes two nodes with a CPU each and small caches.
    fn new() -> Self {
        Self::with(false)
    }
    fn with(follows_stores: bool) -> Self {
        let memory = MemoryBackends::q35(&[NODE, NODE], HwAddress::GuestPhysical);
        let mut settings = Settings::new("unused".into(), memory, vec![0, 1]);
        settings.models = Models {
            cache: Some(CacheModel {
                line: 64,
                first: CacheShape { size: 1024, ways: 1 },
                last: CacheShape { size: 4096, ways: 2 },
                near: Some(NearShape { size: MIB }),
            }),
            tlb: TlbShape::preset("skylake-sp"),
            heat: Some(Heat { regions: 128 }),
            residue: follows_stores,
            sharing: follows_stores,
        };
        let words = Arc::new(Words::default());
        let watch = Arc::new(Watch::new(settings, Box::new(Arc::clone(&words))).unwrap());
        let cpus =
            (0..2).map(|number| Cpu::new(Arc::clone(&watch), number, board(&watch)).unwrap()).collect();
        Self { words, watch, cpus, outside: 0b1100_0000, second_root: 0 }
    }

    /// Runs a block of `instructions` instructions at `pc`, whose bytes are at `physical`.
    fn run(&mut self, cpu: usize, pc: u64, physical: u64, instructions: u64) {
        let place =
            CodePlace { pc, physical: Some(physical), bytes: 4 * instructions, further: None, instructions };
        let block = self.watch.block(place);
        self.cpus[cpu].block::<Everything>(block);
    }
    fn kernel(&mut self, cpu: usize) {
        self.run(cpu, TEXT, IMAGE, 10);
    }
    fn access(&mut self, cpu: usize, address: u64, physical: u64, access: AccessKind) {
        self.cpus[cpu].access::<Everything>(TEXT + 4, address, (access, 8), || Some(physical));
    }

    /// Publishes a kernel whose direct map and frame table are mapped, with frame `n` owned as
    /// `owners` says.
    fn publish(&mut self, owners: &[(u64, u64)]) -> DoorbellRing {
        // Those above are the blocks of programs.
        for block in (0..32 * MIB).step_by(2 * MIB as usize) {
            self.words.map(ROOT, DIRECT + block, block, PageSize::Large, PTE_GLOBAL);
        }
        self.words.map(ROOT, TEXT, IMAGE, PageSize::Small, PTE_GLOBAL);
        self.words.map(ROOT, TEXT + 0x1000, GATES, PageSize::Small, PTE_GLOBAL);
        self.words.map(ROOT, TEXT + 0x2000, SHARED_LOADS, PageSize::Small, PTE_GLOBAL);
        for vector in 0..16 {
            let handler = HANDLERS + 16 * vector;
            self.words
                .store(GATES + 16 * vector, handler & 0xffff | 0x8e << 40 | (handler >> 16 & 0xffff) << 48);
            self.words.store(GATES + 16 * vector + 8, handler >> 32);
        }
        let frames = (2 * NODE) >> 12;
        for page in (0..frames * 32).step_by(4096) {
            self.words.map(ROOT, TABLE + page, RECORDS + page, PageSize::Small, PTE_GLOBAL);
        }
        for &(frame, state) in owners {
            self.words.store(RECORDS + frame * 32, state);
        }
        let mut names = [[0; NAME_BYTES]; MAX_OWNERS];
        for (name, text) in names.iter_mut().zip([
            "free",
            "reserved",
            "kernel",
            "pagetable",
            "bounce",
            "replica",
            "anon",
            "cache",
        ]) {
            *name = Publication::name(text);
        }
        let mut roots = [0; MAX_NODES];
        (roots[0], roots[1]) = (ROOT, self.second_root);
        let publication = Publication {
            roots,
            policy: Policy::Lap,
            direct_map: DIRECT,
            direct_span: 2 * NODE,
            windows: WINDOWS,
            windows_span: 16 * MIB,
            frame_table: TABLE,
            frames,
            records: Records {
                bytes: 32,
                state_offset: 0,
                owner_mask: 15,
                order_shift: 4,
                order_mask: 31,
                user_owners: 0b1100_0000,
                replica_owners: 0b10_0000,
                stack_owners: 0b100_0000_0000,
                transfer_owners: 1 << BOUNCE,
                outside_owners: self.outside,
            },
            text: TEXT,
            text_end: TEXT + 0x800,
            rodata: TEXT + 0x800,
            rodata_end: TEXT + 0x1000,
            slide: 0,
            interrupts: TEXT + 0x1000,
            user_copies: USER_COPIES,
            user_copies_end: USER_COPIES + 0x40,
            wiping: 0,
            wiping_end: 0,
            shared_loads: TEXT + 0x2000,
            patching: PATCHING,
            patching_end: PATCHING + 0x10,
            patch_window: PATCH_WINDOW,
            sites: SITES,
            sites_end: SITES + SITE_BYTES,
            owners: names,
        };
        let words = publication.words();
        let message = 0x30_0000;
        self.words.store(message, doorbell::head(doorbell::KERNEL, 8 * words.len() as u32));
        for (index, word) in words.into_iter().enumerate() {
            self.words.store(message + 8 + 8 * index as u64, word);
        }
        self.cpus[0].ring(TEXT, Some(message))
    }

    /// Stores a frame's state from the kernel on CPU 0.
    fn set_state(&mut self, frame: u64, state: u64) {
        self.words.store(RECORDS + frame * 32, state);
        self.access(0, TABLE + frame * 32, RECORDS + frame * 32, AccessKind::Write);
    }
    fn results(mut self) -> Results {
        finish(&self.watch, &mut self.cpus.iter_mut().collect::<Vec<_>>(), EMULATOR)
    }
}

#[test]
fn instructions_and_accesses_are_counted_by_mode_and_node() {
    let mut machine = Machine::new();
    machine.kernel(1);
    machine.kernel(1);
    machine.run(1, 0x40_0000, NODE + 0x1000, 7);
    machine.access(1, 0x7000, 0x7000, AccessKind::Read);
    machine.access(1, 0x7008, 0x7008, AccessKind::Write);
    machine.access(1, 0x9000, NODE, AccessKind::Read);
    machine.cpus[1].access::<Everything>(0x40_0000, 0xfee0_0000, (AccessKind::Write, 4), || None);
    let results = machine.results();
    let [firmware, boot] = &results.phases[..] else { panic!("{:?}", results.phases) };
    assert_eq!((firmware.name.as_str(), boot.name.as_str()), ("firmware", "boot"));
    let (kernel, user) = (&boot.cpus[1].modes.kernel, &boot.cpus[1].modes.user);
    assert_eq!((kernel.fetches.clone(), user.fetches.clone()), (vec![20, 0], vec![0, 7]));
    assert_eq!((kernel.loads, kernel.stores, kernel.data.clone()), (2, 1, vec![2, 1]));
    assert_eq!((user.stores, user.stored_bytes, user.elsewhere), (1, 4, 1));
    assert_eq!((results.instructions, boot.end), (27, 27));
    let locality = results.slices[0].cpus[1];
    assert_eq!(
        (locality.kernel.fetch_remote, locality.kernel.data_remote, locality.kernel.data_local),
        (20, 2, 1)
    );
    assert_eq!(locality.user.fetch_local, 7);
    let heat: u64 = results.slices[0].heat.iter().map(|&(_, count)| count).sum();
    assert_eq!(heat, 3);
    assert!(results.slices[0].heat.iter().any(|&(region, _)| results.regions[region].node == 1));
    assert_eq!((results.blocks[0].pc, results.blocks[0].runs, results.blocks[0].instructions), (TEXT, 2, 20));
}

#[test]
fn a_ring_begins_a_phase_and_counts_go_to_the_right_one() {
    let mut machine = Machine::new();
    machine.kernel(0);
    let message: [u64; 2] = doorbell::phase("warm");
    machine.words.store(0x5000, message[0]);
    machine.words.store(0x5008, message[1]);
    assert_eq!(machine.cpus[0].ring(0x40_0000, Some(0x5000)), DoorbellRing::Phase);
    machine.kernel(0);
    machine.kernel(1);
    assert!(
        matches!(machine.cpus[0].ring(0x40_0000, Some(0x5ff8)), DoorbellRing::Refused(_)),
        "no message there"
    );
    machine.words.store(0x5000, doorbell::head(doorbell::KERNEL, 8));
    assert!(
        matches!(machine.cpus[0].ring(0x40_0000, Some(0x5000)), DoorbellRing::Refused(_)),
        "a program is no kernel"
    );
    let results = machine.results();
    let counts = |phase: usize, cpu: usize| results.phases[phase].cpus[cpu].modes.kernel.instructions;
    assert_eq!(
        results.phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(),
        ["firmware", "boot", "warm"]
    );
    assert_eq!((counts(1, 0), counts(2, 0), counts(2, 1)), (10, 10, 10));
    assert_eq!((results.phases[2].start, results.phases[2].end), (10, 30));
}

#[test]
fn a_translation_is_asked_for_once_until_a_flush() {
    let mut machine = Machine::new();
    machine.kernel(0);
    let asked = core::cell::Cell::new(0);
    let load = |machine: &mut Machine| {
        machine.cpus[0].access::<Everything>(TEXT, 0x7000, (AccessKind::Read, 8), || {
            asked.set(asked.get() + 1);
            Some(0x7000)
        });
        asked.get()
    };
    assert_eq!((load(&mut machine), load(&mut machine)), (1, 1));
    // More flushes than there are generations.
    for flush in 0..5000 {
        machine.cpus[0].flush(Flush::Space(None));
        assert_eq!((load(&mut machine), load(&mut machine)), (flush + 2, flush + 2));
    }
    let results = machine.results();
    assert_eq!(results.phases[1].cpus[0].space_flushes, 5000);
    assert_eq!(results.phases[1].cpus[0].modes.kernel.loads, 10_002, "none is lost with its page");
    let user = results.tlb.unwrap().groups.into_iter().find(|group| group.fills == 5001).unwrap();
    assert_eq!(user.deaths[2].lived.iter().sum::<u64>(), 5000);
}

#[test]
fn lines_that_collide_in_the_near_cache_name_their_owners() {
    let mut machine = Machine::new();
    machine.kernel(0);
    assert_eq!(machine.publish(&[(0x1000, ANON), (0x1100, KERNEL_OWNER)]), DoorbellRing::Published);
    // These lines are one near cache apart; so many lines are between them that the last level
    // cannot hold them.
    for _ in 0..4 {
        for frame in [0x1000u64, 0x1100] {
            for line in 0..64 {
                let offset = (frame << 12) | (line * 64);
                machine.access(0, DYNAMIC + offset, offset, AccessKind::Write);
            }
        }
    }
    let results = machine.results();
    let near = &results.near[0];
    assert!(near.collisions[6][2] >= 64 && near.collisions[2][6] >= 64, "{:?}", near.collisions);
    assert_eq!(&results.classes[..3], ["free", "reserved", "kernel"]);
    let pair = near.pairs[0];
    assert_eq!([pair.evicted.min(pair.arrived), pair.evicted.max(pair.arrived)], [0x1000, 0x1100]);
    let counts = results.phases.last().unwrap().near[0];
    assert_eq!(counts.accesses, counts.hits + counts.cold + counts.capacity + counts.conflict);
}

#[test]
fn a_direct_map_access_is_judged_by_the_owner_at_that_time() {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.publish(&[(0x2000, KERNEL_OWNER)]);
    let frame = 0x2000;
    let touch =
        |machine: &mut Machine| machine.access(0, DIRECT + (frame << 12), frame << 12, AccessKind::Read);
    touch(&mut machine);
    machine.set_state(frame, GIVEN_BACK);
    touch(&mut machine);
    machine.set_state(frame, ANON);
    touch(&mut machine);
    touch(&mut machine);
    // This rule does not cover accesses through another address.
    machine.access(0, DYNAMIC, frame << 12, AccessKind::Read);
    let oracle = machine.results().oracle;
    let [violation] = &oracle.violations[..] else { panic!("{:?}", oracle.violations) };
    assert_eq!(
        (violation.rule, violation.frame, violation.count, oracle.total),
        (Rule::DirectMap, frame, 2, 2)
    );
    assert_eq!((violation.owner.as_str(), violation.pc), ("anon", TEXT + 4));
    assert_eq!((oracle.checks.direct_map, oracle.checks.changes), (4, 2));
}

#[test]
fn a_translation_that_outlives_its_frames_owner_is_found_on_either_way() {
    // Without a flush the CPU itself keeps the translation. After a flush of another page only the
    // modelled TLB keeps it.
    for flush in [None, Some(Flush::Page(Some(0x1234_5000)))] {
        let mut machine = Machine::new();
        machine.kernel(0);
        machine.publish(&[(0x3000, KERNEL_OWNER)]);
        machine.access(1, DYNAMIC, 0x3000 << 12, AccessKind::Read);
        machine.set_state(0x3000, GIVEN_BACK);
        machine.set_state(0x3000, KERNEL_OWNER);
        machine.kernel(0);
        if let Some(flush) = flush {
            machine.cpus[1].flush(flush);
        }
        machine.access(1, DYNAMIC + 8, (0x3000 << 12) + 8, AccessKind::Read);
        machine.access(1, DYNAMIC + 8, (0x3000 << 12) + 8, AccessKind::Read);
        let oracle = machine.results().oracle;
        let [violation] = &oracle.violations[..] else { panic!("{flush:?}: {:?}", oracle.violations) };
        assert_eq!((violation.rule, violation.cpu, violation.count), (Rule::Stale, 1, 1), "{flush:?}");
        assert_eq!(violation.stale.as_ref().unwrap().owner, "kernel");
        assert_eq!(oracle.stale_windows.iter().sum::<u64>(), 1);
    }
}

#[test]
fn a_translation_that_was_flushed_in_time_is_no_violation() {
    let all = [Flush::All, Flush::Page(Some(DYNAMIC)), Flush::Space(None)];
    for (flush, address) in all.into_iter().zip([DYNAMIC, DYNAMIC, 0x40_0000]) {
        let mut machine = Machine::new();
        machine.kernel(0);
        machine.publish(&[(0x3000, ANON)]);
        machine.access(1, address, 0x3000 << 12, AccessKind::Read);
        machine.cpus[1].flush(flush);
        machine.set_state(0x3000, GIVEN_BACK);
        machine.set_state(0x3000, ANON);
        machine.access(1, address, 0x3000 << 12, AccessKind::Read);
        assert_eq!(machine.results().oracle.total, 0, "{flush:?}");
    }
}

#[test]
fn no_store_reaches_text_or_a_replica_through_any_alias() {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.publish(&[(0x4000, 5)]);
    machine.access(0, DYNAMIC, IMAGE, AccessKind::Read);
    machine.access(0, 0x40_0000, 0x4000 << 12, AccessKind::Read);
    assert_eq!(
        machine.watch.frames.results(Default::default(), Default::default()).total,
        0,
        "loads are allowed"
    );
    machine.access(0, DYNAMIC, IMAGE, AccessKind::Write);
    machine.access(0, 0x40_0000, 0x4000 << 12, AccessKind::Write);
    let oracle = machine.results().oracle;
    assert_eq!((oracle.total, oracle.violations[0].rule, oracle.violations[0].count), (2, Rule::Text, 2));
}

#[test]
fn frames_that_become_one_block_and_their_holders_change_no_hands() {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.publish(&[(0x5000, ANON), (0x5001, ANON)]);
    machine.access(1, 0x40_0000, 0x5001 << 12, AccessKind::Read);
    machine.set_state(0x5001, ANON | 1 << 13);
    machine.set_state(0x5001, 0);
    machine.set_state(0x5000, ANON | 1 << 4 | 1 << 13);
    machine.access(1, 0x40_0000, 0x5001 << 12, AccessKind::Read);
    assert_eq!(machine.watch.frames.mark(0x5001).unwrap().generation(), 0);
    machine.set_state(0x5000, ANON << 4);
    let mark = machine.watch.frames.mark(0x5001).unwrap();
    assert_eq!((mark.owner(), mark.generation()), (0, 1), "it was given back with the block");
    let oracle = machine.results().oracle;
    assert_eq!((oracle.total, oracle.checks.changes), (0, 2));
}

#[test]
fn a_block_changes_hands_as_a_whole() {
    let mut machine = Machine::new();
    machine.kernel(0);
    let order_9 = 9 << 4;
    machine.publish(&[(0x5000, KERNEL_OWNER | order_9)]);
    assert_eq!(machine.watch.frames.mark(0x51ff).unwrap().owner(), KERNEL_OWNER as usize);
    assert_eq!(machine.watch.frames.mark(0x5200).unwrap().owner(), 0);
    // The record of a freed block keeps the former owner and order, and has no owner.
    machine.set_state(0x5000, KERNEL_OWNER << 4 | 9 << 8);
    assert_eq!(machine.watch.frames.mark(0x51ff).unwrap().owner(), 0);
    assert_eq!(machine.watch.frames.mark(0x51ff).unwrap().generation(), 1);
}

#[test]
fn a_publication_of_what_is_not_there_is_refused() {
    let mut machine = Machine::new();
    machine.kernel(0);
    assert_eq!(machine.publish(&[]), DoorbellRing::Published);
    assert!(matches!(machine.publish(&[]), DoorbellRing::Refused(_)), "once is enough");
    let mut empty = Machine::new();
    empty.kernel(0);
    empty.words.store(0x30_0000, doorbell::head(doorbell::KERNEL, 8));
    assert!(matches!(empty.cpus[0].ring(TEXT, Some(0x30_0000)), DoorbellRing::Refused(_)));
}

#[test]
fn physical_addresses_that_the_tables_contradict_are_called_doubtful() {
    for (offset, doubtful) in [(0, false), (NODE, true)] {
        let mut machine = Machine::new();
        machine.kernel(0);
        machine.publish(&[]);
        for page in 0..100 {
            machine.access(0, DIRECT + (page << 12), (page << 12) + offset, AccessKind::Read);
        }
        let remarks = machine.results().remarks;
        assert_eq!(
            remarks.iter().any(|remark| remark.contains("100 of 100 differ")),
            doubtful,
            "{remarks:?}"
        );
    }
}

#[test]
fn steps_that_are_taken_without_a_call_count_what_calls_count() {
    // Two machines run the same random code: one by calls, one by steps, as an emulator's own code
    // takes them.
    let (mut calls, mut steps) = (Machine::new(), Machine::new());
    for machine in [&mut calls, &mut steps] {
        assert_eq!(machine.publish(&[]), DoorbellRing::Published);
    }
    let runs = Arc::new(Counts(std::sync::Mutex::new(vec![Vec::new(); 2])));
    steps.watch.set_counted(Arc::<Counts>::clone(&runs));
    let mut state = 7u64;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let draw = |bits: u32, shift: u32| state >> shift & ((1 << bits) - 1);
        let (cpu, page, offset) = (draw(1, 20) as usize, draw(5, 24), draw(6, 30) * 64);
        let pc = if draw(1, 40) == 0 { 0x40_0000 } else { TEXT } + (page << 12) + offset;
        let further = (draw(3, 41) == 0).then_some((NODE + (page << 12), 8));
        let instructions = 1 + draw(6, 44);
        let physical = (draw(4, 50) != 0).then_some(IMAGE + (page << 13) + offset);
        let place = CodePlace { pc, physical, bytes: instructions * 3, further, instructions };
        calls.cpus[cpu].block::<Everything>(calls.watch.block(place));
        let block = steps.watch.block(place);
        take(&mut steps, cpu, block, &runs);
        for machine in [&mut calls, &mut steps] {
            machine.access(cpu, DYNAMIC + (page << 12), 0x40_0000 + (page << 12), AccessKind::Write);
            if draw(6, 55) == 0 {
                machine.cpus[cpu].flush(Flush::Space(None));
            }
            if draw(3, 56) == 0 {
                machine.cpus[cpu].flags(if draw(1, 59) == 0 { Flags::Set } else { Flags::Clear });
            }
            if draw(9, 54) == 0 {
                let message: [u64; 2] = match draw(3, 60) {
                    0 => doorbell::phase("closing"),
                    1 => doorbell::phase("program"),
                    _ => doorbell::phase("next"),
                };
                machine.words.store(0x5000, message[0]);
                machine.words.store(0x5008, message[1]);
                machine.cpus[cpu].ring(0x40_0000, Some(0x5000));
            }
        }
    }
    let (calls, steps) = (calls.results(), steps.results());
    assert!(
        calls.phases.len() > 10
            && calls.phases.iter().any(|phase| {
                phase.cpus[0].modes.kernel.first_fetch_misses > 0
                    && phase.cpus[1].modes.user.tlb_fetch_misses > 0
            })
    );
    assert!(calls.blocks == steps.blocks && calls.blocks.iter().any(|block| block.program > 0));
    for (phase, other) in calls.phases.iter().zip(&steps.phases) {
        assert!(phase == other, "{} from {}", phase.name, phase.start);
    }
    assert!(calls.oracle.smap.outside > 1000 && calls.oracle == steps.oracle);
    assert!(calls.slices == steps.slices && calls.near == steps.near && calls.tlb == steps.tlb);
}

/// Takes a block's steps on a CPU's board.
fn take(machine: &mut Machine, cpu: usize, block: &'static crate::WatchedBlock, runs: &Counts) {
    let board = *machine.watch.boards[cpu].get().unwrap();
    for step in machine.watch.steps(block) {
        let due = match step {
            Step::Add { word, amount } => {
                board[word].fetch_add(amount, Ordering::Relaxed);
                None
            }
            Step::Unless { word, equals, due } => {
                (board[word].load(Ordering::Relaxed) != equals).then_some(due)
            }
            Step::From { word, least, due } => (board[word].load(Ordering::Relaxed) >= least).then_some(due),
        };
        let cpu = &mut machine.cpus[cpu];
        match due {
            Some(Due::Page) => cpu.page::<Everything>(block),
            Some(Due::Look) => cpu.look(),
            Some(Due::Line { line, mode }) => cpu.line(line, mode),
            Some(Due::Smap) => cpu.smap(block),
            None => {}
        }
    }
    let own = &mut runs.0.lock().unwrap()[cpu];
    own.resize(own.len().max(block.number() + 1), 0);
    own[block.number()] += 1;
}

/// Runs of blocks by CPU, counted beside the boards.
struct Counts(std::sync::Mutex<Vec<Vec<u64>>>);

impl crate::Counted for Counts {
    fn take(&self, cpu: usize, add: &mut dyn FnMut(usize, &[u64])) {
        add(0, &core::mem::take(&mut self.0.lock().unwrap()[cpu]));
    }
}

/// Guest memory with one very slow load, during which other CPUs run.
struct Slow<'a> {
    words: &'a Words,
    meanwhile: std::sync::Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>,
}

impl crate::guest::GuestMemory for Slow<'_> {
    fn load(&self, address: u64) -> Option<u64> {
        let word = self.words.load(address);
        let meanwhile = self.meanwhile.lock().unwrap().take();
        meanwhile.into_iter().for_each(|happens| happens());
        word
    }
}

/// Returns the store of CPU 0 that has reached an address.
fn by(address: u64) -> Suspect {
    Suspect { time: 0, cpu: 0, pc: TEXT, address, frame: 0 }
}

#[test]
fn a_holder_that_looks_late_marks_nothing_as_it_was() {
    use crate::guest::GuestMemory;
    let mut machine = Machine::new();
    machine.kernel(0);
    // A block of 512 that two spaces map.
    machine.publish(&[(0x5000, ANON | 9 << 4 | 2 << 13)]);
    let (words, frames) = (Arc::clone(&machine.words), &machine.watch.frames);
    let store = |frame: u64, state: u64| {
        words.store(RECORDS + frame * 32, state);
        frames.table_store(&*words, RECORDS + frame * 32, by(TABLE + frame * 32));
    };
    // CPU 1 drops its mapping, and its read of the word takes long. Meanwhile CPU 0 drops the last
    // mapping, frees the block, and its pieces become the kernel's.
    words.store(RECORDS + 0x5000 * 32, ANON | 9 << 4 | 1 << 13);
    let meanwhile = || {
        store(0x5000, ANON | 9 << 4);
        store(0x5000, ANON << 4 | 9 << 8);
        (0x5000..0x5200).for_each(|frame| store(frame, KERNEL_OWNER));
    };
    let slow = Slow { words: &words, meanwhile: std::sync::Mutex::new(Some(Box::new(meanwhile))) };
    frames.table_store(&slow, RECORDS + 0x5000 * 32, by(TABLE + 0x5000 * 32));
    assert!(slow.load(RECORDS).is_some());
    let wrong = (0x5000..0x5200).filter(|&frame| frames.mark(frame).unwrap().owner() as u64 != KERNEL_OWNER);
    assert_eq!(wrong.count(), 0, "frames of the kernel that the oracle takes for a program's");
}
