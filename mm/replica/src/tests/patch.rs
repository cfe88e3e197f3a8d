//! Patches, and a model of the instructions that CPUs may run meanwhile.
//!
//! For each byte, a CPU of the model may have any value that the byte had in its node's copy since
//! the CPU last executed a serialising instruction: the manuals promise no more. Values of
//! different bytes combine freely. So the set of instructions that it may run is known exactly at
//! every moment between two stores, and no schedule is left out.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use freehold_machine::{CpuId, NodeId, PAGE_SIZE, Pfn, PhysicalBytes as _, VirtAddr};

use super::{Image0, PAGES, RODATA_PAGES, ROOT, START, Shared, World, faults};
use crate::tables::{frame_of, leaf};
use crate::{Instruction, LENGTH, Patch, PatchError, ReplicaFault, Replicas};

const INT3: u8 = 0xcc;
const CPUS: u16 = 4;

type Made = Replicas<super::Frames, Image0>;

/// The bytes that one CPU may have for each byte of one instruction.
type View = [BTreeSet<u8>; LENGTH];

/// The CPUs while instructions are patched.
#[derive(Default)]
pub(super) struct Patched {
    places: Mutex<Vec<(Patch, Vec<View>)>>,
    has_no_memory: AtomicBool,
}

impl Patched {
    pub(super) fn prepare(&self) -> Result<(), PatchError> {
        if self.has_no_memory.load(Ordering::Relaxed) { Err(PatchError::OutOfMemory) } else { Ok(()) }
    }
    /// From now on the patching window cannot be made, or can.
    pub(super) fn refuse(&self, refuse: bool) {
        self.has_no_memory.store(refuse, Ordering::Relaxed);
    }
    fn places(&self) -> MutexGuard<'_, Vec<(Patch, Vec<View>)>> {
        self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
    /// Notes the instructions that CPUs will run while they are patched.
    fn watch(&self, shared: &Shared, patches: &[Patch]) {
        let cpus = || (0..CPUS).map(|_| View::default()).collect();
        *self.places() = patches.iter().map(|&patch| (patch, cpus())).collect();
        self.synchronise(shared);
    }
    /// Called after a byte has changed somewhere. Each CPU may only run the old instruction, INT3,
    /// or the new one.
    pub(super) fn look(&self, shared: &Shared) {
        for (patch, views) in self.places().iter_mut() {
            for (cpu, view) in (0..CPUS).zip(views) {
                let bytes = fetch(shared, CpuId(cpu), patch.address);
                view.iter_mut().zip(bytes).for_each(|(seen, byte)| _ = seen.insert(byte));
                for run in instructions(view).filter(|run| run[0] != INT3) {
                    assert!(
                        run == patch.from || run == patch.to,
                        "CPU {cpu} may run {run:02x?} while {:02x?} becomes {:02x?}",
                        patch.from,
                        patch.to
                    );
                }
            }
        }
    }
    pub(super) fn synchronise(&self, shared: &Shared) {
        for (_, views) in self.places().iter_mut() {
            views.iter_mut().for_each(|view| view.iter_mut().for_each(BTreeSet::clear));
        }
        self.look(shared);
    }
    /// Returns the instructions that each CPU may run now at the first place.
    fn runs(&self) -> Vec<BTreeSet<Instruction>> {
        self.places()[0].1.iter().map(|view| instructions(view).collect()).collect()
    }
}

/// All instructions that a CPU may run: all combinations of the bytes that it may have.
fn instructions(view: &View) -> impl Iterator<Item = Instruction> + use<> {
    let mut all = alloc::vec![[0; LENGTH]];
    for (at, seen) in view.iter().enumerate() {
        let with = |run: &Instruction| {
            let run = *run;
            seen.iter().map(move |&byte| core::array::from_fn(|n| if n == at { byte } else { run[n] }))
        };
        all = all.iter().flat_map(with).collect();
    }
    all.into_iter()
}

/// Reads the instruction at an address through the root of the CPU's node.
fn fetch(shared: &Shared, cpu: CpuId, address: VirtAddr) -> Instruction {
    let node = shared.model.topology().node_of_cpu(cpu);
    let root = Pfn(shared.roots[usize::from(node.0)].load(Ordering::Relaxed));
    core::array::from_fn(|n| {
        let at = address.0 + n as u64;
        let frame = frame_of(leaf(shared.model, root, VirtAddr(at)));
        shared.model.read_bytes(frame, |page| page[at as usize % PAGE_SIZE])
    })
}

/// Patches the instruction at an address to another one: every CPU fetches that one.
pub(super) fn change(world: &World, replicas: &mut Made, address: VirtAddr) {
    let shared = world.port.0;
    let from = fetch(shared, CpuId(0), address);
    replicas.patch(&[Patch { address, from, to: JUMP }]).expect("nothing is in the way");
    assert!((0..CPUS).all(|cpu| fetch(shared, CpuId(cpu), address) == JUMP));
}

const NO_OP: Instruction = [0x0f, 0x1f, 0x44, 0, 0];
const JUMP: Instruction = [0xe9, 0x10, 0x32, 0x54, 0x76];

/// In the first page, and across the border of two.
const PLACES: [u64; 2] = [START.0 + 0x123, START.0 + 3 * PAGE_SIZE as u64 - 2];

/// A machine whose text has no-ops at [`PLACES`], with replicas on two further nodes.
fn patchable() -> (World, Made, Vec<Patch>) {
    let world = World::new();
    for place in PLACES {
        for (n, byte) in (0..).zip(NO_OP) {
            let at = place + n;
            let frame = frame_of(leaf(world.model, Pfn(ROOT), VirtAddr(at)));
            world.model.with_bytes(frame, |page| page[at as usize % PAGE_SIZE] = byte);
        }
    }
    let replicas = world.make(0b110, &mut Vec::new());
    let patches = PLACES.map(|at| Patch { address: VirtAddr(at), from: NO_OP, to: JUMP }).to_vec();
    (world, replicas, patches)
}

fn back(patches: &[Patch]) -> Vec<Patch> {
    patches.iter().map(|patch| Patch { from: patch.to, to: patch.from, ..*patch }).collect()
}

#[test]
fn every_cpu_runs_the_old_instruction_or_int3_or_the_new_one_and_in_the_end_the_new_one() {
    let (world, mut replicas, patches) = patchable();
    let shared = world.port.0;
    for patches in [patches.clone(), back(&patches), patches] {
        shared.patched.watch(shared, &patches);
        replicas.patch(&patches).expect("nothing is in the way");
        let only = BTreeSet::from([patches[0].to]);
        assert_eq!(shared.patched.runs(), [&only, &only, &only, &only].map(Clone::clone), "on all nodes");
        assert_eq!(faults(&mut replicas), [], "the hashes are those of the new bytes");
    }
}

#[test]
fn a_change_that_nobody_announced_is_found_after_a_patch_too() {
    let (world, mut replicas, patches) = patchable();
    replicas.patch(&patches).expect("nothing is in the way");
    let frame = frame_of(leaf(world.model, world.root_of(1), VirtAddr(PLACES[0])));
    world.model.with_bytes(frame, |page| page[0x123] ^= 1);
    assert_eq!(faults(&mut replicas), [ReplicaFault::Replica { node: NodeId(1), page: 0 }]);
}

#[test]
fn what_cannot_be_patched_wholly_is_not_patched_at_all() {
    let (world, mut replicas, patches) = patchable();
    let shared = world.port.0;
    let all = || -> Vec<Instruction> {
        let places = PLACES.into_iter().chain([START.0 + 0x800]);
        places.flat_map(|at| (0..CPUS).map(move |cpu| fetch(shared, CpuId(cpu), VirtAddr(at)))).collect()
    };
    let before = all();
    let mut refused = |patch: Patch| {
        let error = replicas.patch(&[patches[0], patch]).expect_err("it cannot be");
        assert_eq!(all(), before, "{error}");
        error
    };
    let at = |address: u64| Patch { address: VirtAddr(address), ..patches[0] };
    let text_end = START.0 + (PAGES - RODATA_PAGES) * PAGE_SIZE as u64;
    for address in [0, START.0 - 1, text_end - 4, text_end, START.0 + PAGES * PAGE_SIZE as u64, u64::MAX] {
        assert_eq!(refused(at(address)), PatchError::NotText(VirtAddr(address)), "{address:#x}");
    }
    let other = VirtAddr(START.0 + 0x800);
    assert_eq!(refused(at(other.0)), PatchError::Differs { node: NodeId(0), address: other });
    // One node's copy is changed: at the instruction, and next to it.
    let frame = frame_of(leaf(world.model, world.root_of(2), VirtAddr(PLACES[1])));
    let flip = |offset: usize| world.model.with_bytes(frame, |page| page[offset] ^= 1);
    flip(PAGE_SIZE - 1);
    let differs = PatchError::Differs { node: NodeId(2), address: patches[1].address };
    assert_eq!(replicas.patch(&patches), Err(differs));
    flip(PAGE_SIZE - 1);
    flip(7);
    let changed = PatchError::Changed(ReplicaFault::Replica { node: NodeId(2), page: 2 });
    assert_eq!(replicas.patch(&patches), Err(changed));
    flip(7);
    shared.patched.refuse(true);
    assert_eq!(replicas.patch(&patches), Err(PatchError::OutOfMemory));
    assert_eq!((all(), faults(&mut replicas)), (before, Vec::new()));
}

#[test]
fn an_image_without_replicas_is_patched_alone() {
    let (world, _, patches) = patchable();
    let shared = world.port.0;
    let mut alone = world.make(0, &mut Vec::new());
    (0..super::NODES).for_each(|node| shared.roots[node].store(ROOT, Ordering::Relaxed));
    shared.patched.watch(shared, &patches);
    alone.patch(&patches).expect("nothing is in the way");
    assert_eq!(fetch(shared, CpuId(1), patches[1].address), JUMP);
}

#[test]
fn a_breakpoint_is_stored_in_one_phase_on_all_nodes_and_taken_back() {
    let (world, mut replicas, patches) = patchable();
    let shared = world.port.0;
    let at = patches[1].address;
    let with = |first: u8| core::array::from_fn(|n| if n == 0 { first } else { NO_OP[n] });
    let all = || -> Vec<Instruction> { (0..CPUS).map(|cpu| fetch(shared, CpuId(cpu), at)).collect() };
    for (from, to) in [(NO_OP[0], INT3), (INT3, NO_OP[0])] {
        shared.patched.watch(shared, &[Patch { address: at, from: with(from), to: with(to) }]);
        replicas.store(at, &[from], &[to]).expect("nothing is in the way");
        assert_eq!(all(), [with(to); CPUS as usize]);
        let only = BTreeSet::from([with(to)]);
        assert_eq!(shared.patched.runs(), [&only, &only, &only, &only].map(Clone::clone), "on all nodes");
        assert_eq!(faults(&mut replicas), [], "the hash is that of the new byte");
    }
    let before = all();
    assert_eq!(replicas.store(at, &[INT3], &[1]), Err(PatchError::Differs { node: NodeId(0), address: at }));
    let text_end = VirtAddr(START.0 + (PAGES - RODATA_PAGES) * PAGE_SIZE as u64);
    assert_eq!(replicas.store(text_end, &[0], &[1]), Err(PatchError::NotText(text_end)));
    let mut bytes = [0; LENGTH];
    replicas.read_text(at, &mut bytes).expect("it is text");
    assert_eq!((all(), bytes), (before, NO_OP));
    assert_eq!(
        replicas.read_text(VirtAddr(text_end.0 - 1), &mut bytes),
        Err(PatchError::NotText(VirtAddr(text_end.0 - 1)))
    );
}

/// The pages of the image, as they are now.
fn pages_of(world: &World) -> Vec<Vec<u8>> {
    let frames = (0..PAGES).map(|page| world.image.first.offset(page));
    frames.map(|frame| world.model.read_bytes(frame, |bytes| bytes.to_vec())).collect()
}

#[test]
fn a_bit_that_was_flipped_before_the_copies_were_made_is_found_unless_its_page_is_patched() {
    for nodes in [0b110, 0] {
        let (world, _, patches) = patchable();
        *world.port.0.built.lock().unwrap() = pages_of(&world);
        let flip = |page: u64| {
            world.model.with_bytes(world.image.first.offset(page), |bytes| bytes[77] ^= 4);
        };
        [0, 5].into_iter().for_each(flip);
        let mut replicas = world.make(nodes, &mut Vec::new());
        let found = |page: u64| ReplicaFault::Build { page };
        assert_eq!(faults(&mut replicas), [found(0), found(5)]);
        assert_eq!(replicas.patch(&patches[..1]), Err(PatchError::Changed(found(0))));
        // A page that was patched is not compared any more: its hash is renewed by patches.
        flip(0);
        let mut replicas = world.make(nodes, &mut Vec::new());
        replicas.patch(&patches[..1]).expect("nothing is in the way");
        assert_eq!(faults(&mut replicas), [found(5)]);
        let page = replicas.flip_everywhere().expect("nothing is in the way");
        assert!(faults(&mut replicas).contains(&found(page)));
    }
}

#[test]
fn errors_are_sentences() {
    let address = VirtAddr(0xffff_ffff_8020_0000);
    let texts = [
        PatchError::OutOfMemory,
        PatchError::NotText(address),
        PatchError::Differs { node: NodeId(1), address },
        PatchError::Changed(ReplicaFault::Image { page: 3 }),
    ]
    .map(|error| alloc::format!("{error}"));
    assert_eq!(
        texts,
        [
            "there is no memory for the patching window",
            "0xffffffff80200000 is not in the kernel's text",
            "node 1 has another instruction at 0xffffffff80200000 than was expected",
            "page 3 of the image has changed",
        ]
    );
}
