//! Replicas on the software machine and the real page allocator.

mod late;
mod patch;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use freehold_buddy::{Buddy, Managed, Options, Pcp};
use freehold_frame::{FrameRecord, FrameSource as _, FrameTable, NodeSet, Owner};
use freehold_machine::model::{Config, Model};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{
    CpuId, DirectMap as _, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange,
    PhysicalBytes as _, Tables as _, Topology, VirtAddr,
};

use crate::tables::{GLOBAL, LARGE, NO_EXECUTE, PRESENT, USER, WRITABLE, frame_of, index_at, leaf};
use crate::{KernelImage, PatchError, Port, ReplicaFault, Replicas, Rest, Setting, dump, nearest, plan};

type Frames = &'static Buddy<Model>;

/// Frames of a node: 8 MiB.
const NODE: u64 = 4 * PAGEBLOCK_FRAMES;
const NODES: usize = 3;
/// The image's tables (root first) and its frames are reserved on node 0, in its first pageblock.
/// Its last pages are data.
const ROOT: u64 = 1;
const FIRST: u64 = 16;
const PAGES: u64 = 20;
const DATA_PAGES: u64 = 4;
/// The last of the image's pages that are not text.
const RODATA_PAGES: u64 = 6;
/// The image is in the last slot, across the end of a table of 2 MiB.
const START: VirtAddr = VirtAddr(0xffff_ffff_803f_a000);

#[derive(Clone, Copy)]
struct Image0(&'static Shared);

struct Shared {
    model: Model,
    rest: Rest,
    first: Pfn,
    roots: [AtomicU64; MAX_NODES],
    /// How often a page of the image was copied.
    reads: AtomicU64,
    /// How often CPUs forgot their translations of the image.
    forgot: AtomicU64,
    /// The image, while a late copy for node 1 is watched.
    late: Mutex<Option<KernelImage>>,
    /// For each call of the port since then, how many pages node 1's tables had on node 1.
    calls: Mutex<Vec<u64>>,
    /// Bytes that CPUs may see of text that is being patched.
    patched: patch::Patched,
    /// The pages' bytes as they were built, where they are known.
    built: Mutex<Vec<Vec<u8>>>,
}

impl Shared {
    fn note_call(&self) {
        let Some(image) = *self.late.lock().unwrap() else { return };
        let root = Pfn(self.roots[1].load(Ordering::Relaxed));
        let is_at_home = |page: &u64| {
            let frame = frame_of(leaf(self.model, root, image.address(*page)));
            self.model.topology().node_of(frame) == Some(NodeId(1))
        };
        self.calls.lock().unwrap().push((0..image.pages).filter(is_at_home).count() as u64);
    }
}

impl Port for Image0 {
    fn copy_image(self, page: u64, frames: PfnRange) {
        assert!(frames.end <= frames.start.pageblock_start().offset(PAGEBLOCK_FRAMES));
        self.0.reads.fetch_add(frames.len(), Ordering::Relaxed);
        let copy = |page, to| {
            self.0.model.read_bytes(self.0.first.offset(page), |from| {
                self.0.model.with_bytes(to, |bytes| bytes.copy_from_slice(from));
            });
        };
        (page..).zip(frames.iter()).for_each(|(page, to)| copy(page, to));
    }
    fn forget_text(self) {
        self.0.forgot.fetch_add(1, Ordering::Relaxed);
        self.0.note_call();
    }
    fn rest(self) -> Rest {
        self.0.rest
    }
    fn is_in_direct_map(self, frames: PfnRange) -> bool {
        self.0.model.is_in_direct_map(frames.start)
    }
    fn leave_direct_map(self, frames: PfnRange) {
        assert!(!self.is_in_direct_map(frames), "the page allocator takes a replica's pageblocks out");
    }
    fn prepare_patching(self) -> Result<(), PatchError> {
        self.0.patched.prepare()
    }
    fn store_text(self, frame: Pfn, offset: usize, bytes: &[u8]) {
        self.0.model.with_bytes(frame, |page| page[offset..][..bytes.len()].copy_from_slice(bytes));
        self.0.patched.look(self.0);
        self.0.note_call();
    }
    fn synchronise(self) {
        self.0.patched.synchronise(self.0);
        self.0.note_call();
    }
    fn is_as_built(self, page: u64, bytes: &[u8; PAGE_SIZE]) -> bool {
        self.0.built.lock().unwrap().get(page as usize).is_none_or(|built| built == bytes)
    }
    fn set_root(self, node: NodeId, root: Pfn) {
        self.0.roots[usize::from(node.0)].store(root.0, Ordering::Relaxed);
    }
}

struct World {
    model: Model,
    frames: Frames,
    port: Image0,
    image: KernelImage,
}

impl World {
    fn new() -> Self {
        Self::with(Rest::Pageblock, PAGES)
    }
    fn with(rest: Rest, pages: u64) -> Self {
        Self::build(rest, (START, Pfn(FIRST), pages), pages - RODATA_PAGES)
    }
    /// Makes an image with a pageblock of text in a large leaf, followed by constants.
    fn large(rest: Rest) -> Self {
        let image = (VirtAddr(0xffff_ffff_8040_0000), Pfn(PAGEBLOCK_FRAMES), PAGEBLOCK_FRAMES + RODATA_PAGES);
        Self::build(rest, image, PAGEBLOCK_FRAMES)
    }
    fn build(rest: Rest, (start, first, pages): (VirtAddr, Pfn, u64), text_pages: u64) -> Self {
        let all = NODE * NODES as u64;
        let model = Model::new(Config { frames: all, nodes: NODES, cpus: 4, ..Config::default() });
        let options = Options::default();
        let records: Vec<_> = (0..all).map(|_| FrameRecord::EMPTY).collect();
        let words = Buddy::<Model>::metadata_words(model.topology(), 4, &options);
        let metadata: Vec<_> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let reserved = [PfnRange::new(Pfn(0), first.offset(pages + DATA_PAGES))];
        let table = FrameTable::new(records.leak());
        let metadata = metadata.leak();
        let pcps = Vec::from_iter((0..4).map(|_| Pcp::new())).leak();
        let managed = Managed { topology: model.topology(), reserved: &reserved, table, metadata, pcps };
        let buddy = Buddy::new(model, managed, options);
        let frames: Frames =
            alloc::boxed::Box::leak(alloc::boxed::Box::new(buddy.expect("a page allocator")));
        let roots = [const { AtomicU64::new(0) }; MAX_NODES];
        let [reads, forgot] = [const { AtomicU64::new(0) }; 2];
        let (patched, built) = (patch::Patched::default(), Mutex::default());
        let (late, calls) = (Mutex::default(), Mutex::default());
        let shared = Shared { model, rest, first, roots, reads, forgot, late, calls, patched, built };
        let port = Image0(alloc::boxed::Box::leak(alloc::boxed::Box::new(shared)));
        let (node, root) = (NodeId(0), Pfn(ROOT));
        let image = KernelImage { start, pages, text_pages, first, node, root };
        let world = Self { model, frames, port, image };
        world.map_image();
        world.litter();
        world
    }
    /// Text and constants read-only, data writable, and another slot of the kernel half.
    fn map_image(&self) {
        let model = self.model;
        (ROOT..FIRST).for_each(|table| model.clear_table(Pfn(table)));
        let link = |table: u64| table << 12 | PRESENT | WRITABLE;
        model.store_entry(Pfn(ROOT), 300, link(7));
        // An entry of the loader in the half of programs: no replica's root may have it.
        model.store_entry(Pfn(ROOT), 0, link(8));
        let start = self.image.start;
        model.store_entry(Pfn(ROOT), index_at(start, 4), link(2));
        model.store_entry(Pfn(2), index_at(start, 3), link(3));
        for page in 0..self.image.pages + DATA_PAGES {
            let (address, frame) = (self.image.address(page), self.image.first.offset(page));
            let rights = if page < self.image.pages { 0 } else { WRITABLE | NO_EXECUTE };
            let entry = frame.0 << 12 | PRESENT | GLOBAL | rights;
            let table = 4 + (index_at(address, 2) - index_at(start, 2)) as u64;
            if self.image.text_pages == PAGEBLOCK_FRAMES && page < PAGEBLOCK_FRAMES {
                let first = self.image.first.0 << 12 | PRESENT | GLOBAL | LARGE;
                model.store_entry(Pfn(3), index_at(address, 2), first);
            } else {
                model.store_entry(Pfn(3), index_at(address, 2), link(table));
                model.store_entry(Pfn(table), index_at(address, 1), entry);
            }
            model.with_bytes(frame, |bytes| {
                bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u64 * 31 + page) as u8);
            });
        }
    }
    /// Fills frames with old contents.
    fn litter(&self) {
        for frame in NODE..NODE * NODES as u64 {
            self.model.with_bytes(Pfn(frame), |bytes| bytes.fill(0xa5));
        }
    }
    fn make(&self, wanted: u16, without: &mut Vec<NodeId>) -> Replicas<Frames, Image0> {
        let mut note = |node| without.push(node);
        let stand = (self.frames, self.port);
        Replicas::new(stand, self.image, NodeSet(wanted), self.model.topology(), &mut note)
    }
    /// Takes all frames of a node.
    fn fill(&self, node: NodeId) -> Vec<Pfn> {
        let policy = freehold_frame::NodePolicy::Bind(NodeSet::single(node));
        let request = freehold_frame::Request::new(Owner::Anon).policy(policy);
        core::iter::from_fn(|| self.frames.allocate(request).ok()).collect()
    }
    fn root_of(&self, node: usize) -> Pfn {
        Pfn(self.port.0.roots[node].load(Ordering::Relaxed))
    }
    fn owned(&self, owner: Owner) -> u64 {
        (0..NODE * NODES as u64).filter(|&frame| self.frames.table().owner(Pfn(frame)) == owner).count()
            as u64
    }
}

fn faults(replicas: &mut Replicas<Frames, Image0>) -> Vec<ReplicaFault> {
    let mut all = Vec::new();
    replicas.validate(&mut |fault| all.push(fault));
    replicas.verify(&mut |fault| all.push(fault));
    all
}

#[test]
fn each_node_maps_its_own_copy_read_only_and_shares_everything_else() {
    // Each case has the numbers of frames and tables of a replica.
    for (rest, pages, frames, tables) in [
        (Rest::Pageblock, PAGES, 512, 5),
        (Rest::Frames, PAGES, PAGES, 5),
        (Rest::Pageblock, 520, 1024, 6),
        (Rest::Frames, 520, 520, 6),
    ] {
        check_copies(&World::with(rest, pages), frames, tables);
    }
    // The root, two tables below it, and one table of small leaves for the constants: 16 KiB.
    check_copies(&World::large(Rest::Frames), PAGEBLOCK_FRAMES + RODATA_PAGES, 4);
    check_copies(&World::large(Rest::Pageblock), 2 * PAGEBLOCK_FRAMES, 4);
}

#[test]
fn a_wrong_leaf_of_2_mib_is_found_and_text_in_one_is_patched() {
    let world = World::large(Rest::Frames);
    let mut replicas = world.make(0b010, &mut Vec::new());
    let table = (3..=4).rev().fold(world.root_of(1), |table, level| {
        frame_of(world.model.load_entry(table, index_at(world.image.start, level)))
    });
    let slot = index_at(world.image.start, 2);
    let entry = world.model.load_entry(table, slot);
    assert!(entry & LARGE != 0 && frame_of(entry).is_aligned(PAGEBLOCK_ORDER), "{entry:#x}");
    let node = NodeId(1);
    let other = world.model.load_entry(Pfn(3), slot);
    for wrong in [0, entry | WRITABLE, entry | NO_EXECUTE, entry & !GLOBAL, other] {
        world.model.store_entry(table, slot, wrong);
        let expected: Vec<_> = (0..PAGEBLOCK_FRAMES)
            .map(|page| ReplicaFault::Leaf { node, address: world.image.address(page) })
            .collect();
        assert_eq!(faults(&mut replicas), expected, "{wrong:#x}");
    }
    world.model.store_entry(table, slot, entry);
    let address = VirtAddr(world.image.start.0 + 300 * PAGE_SIZE as u64 - 2);
    patch::change(&world, &mut replicas, address);
    assert_eq!(faults(&mut replicas), []);
}

fn check_copies(world: &World, frames: u64, tables: u64) {
    let pages = world.image.pages;
    let mut replicas = world.make(0b110, &mut Vec::new());
    assert_eq!(faults(&mut replicas), []);
    assert_eq!(world.root_of(0), Pfn(ROOT));
    for node in [1, 2] {
        let root = world.root_of(node);
        for page in 0..world.image.pages + DATA_PAGES {
            let address = world.image.address(page);
            let [own, original] = [root, Pfn(ROOT)].map(|root| leaf(world.model, root, address));
            let frame = Pfn((own >> 12) & 0xff_ffff_ffff);
            if page >= world.image.pages {
                assert_eq!(own, original, "data has one place");
                continue;
            }
            assert_eq!((own ^ original) & (PRESENT | WRITABLE | GLOBAL | NO_EXECUTE), 0);
            assert_eq!(world.model.topology().node_of(frame), Some(NodeId(node as u8)));
            assert!(!world.model.is_in_direct_map(frame), "{frame:?}");
            let bytes = |frame| world.model.read_bytes(frame, |bytes| *bytes);
            assert!(bytes(frame) == bytes(world.image.first.offset(page)), "page {page}");
        }
        let last = leaf(world.model, root, world.image.address(world.image.pages - 1));
        let last = Pfn((last >> 12) & 0xff_ffff_ffff);
        let padding = PfnRange::new(last.offset(1), last.pageblock_start().offset(PAGEBLOCK_FRAMES));
        for frame in padding.iter().filter(|_| frames > pages) {
            assert!(world.model.read_bytes(frame, |bytes| bytes.iter().all(|&byte| byte == 0)), "{frame:?}");
        }
        assert_eq!(world.model.load_entry(root, 300), world.model.load_entry(Pfn(ROOT), 300));
        assert_eq!(world.model.load_entry(root, 0), 0, "a root has no user entries");
    }
    let figures: Vec<_> = replicas.figures().map(|one| (one.node.0, one.frames, one.tables)).collect();
    assert_eq!(figures, [(1, frames, tables), (2, frames, tables)]);
    assert_eq!(world.owned(Owner::Replica), 2 * frames);
}

#[test]
fn a_flipped_bit_is_found_with_its_node_and_page() {
    let world = World::new();
    let mut replicas = world.make(0b110, &mut Vec::new());
    let (node, page) = replicas.flip().expect("there is one");
    assert_eq!(faults(&mut replicas), [ReplicaFault::Replica { node, page }]);
    replicas.flip();
    assert_eq!(faults(&mut replicas), []);
    // Any bit, in any lane.
    for at in [0, 9, 18, 27, 32, 65, 98, 127, 128, 4088] {
        world.model.with_bytes(Pfn(FIRST + 3), |bytes| bytes[at] ^= 1);
        assert_eq!(faults(&mut replicas), [ReplicaFault::Image { page: 3 }]);
        world.model.with_bytes(Pfn(FIRST + 3), |bytes| bytes[at] ^= 1);
    }
}

#[test]
fn start_up_reads_each_page_once_a_copy_and_the_first_look_believes_most_copies() {
    let change = |world: &World, root: Pfn, page: u64| {
        let frame = frame_of(leaf(world.model, root, world.image.address(page)));
        world.model.with_bytes(frame, |bytes| bytes[100] ^= 1);
    };
    let (image, node) = (Pfn(ROOT), NodeId(1));
    let world = World::new();
    let mut replicas = world.make(0b110, &mut Vec::new());
    assert_eq!(world.port.0.reads.load(Ordering::Relaxed), 2 * PAGES, "a hash would be another look");
    change(&world, image, 3);
    change(&world, world.root_of(1), 4);
    let found = [ReplicaFault::Image { page: 3 }, ReplicaFault::Replica { node, page: 4 }];
    assert_eq!(faults(&mut replicas), found);
    change(&world, image, 3);
    change(&world, world.root_of(1), 4);
    assert_eq!(faults(&mut replicas), []);
    // All copies change in the same way: the older hash shows it.
    [image, world.root_of(1), world.root_of(2)].into_iter().for_each(|root| change(&world, root, 5));
    let page = 5;
    let replica = |node| ReplicaFault::Replica { node: NodeId(node), page };
    assert_eq!(faults(&mut replicas), [ReplicaFault::Image { page }, replica(1), replica(2)]);
    // One of two copies differs, and it is unknown which is right.
    let world = World::new();
    let mut replicas = world.make(0b010, &mut Vec::new());
    change(&world, image, 3);
    assert_eq!(faults(&mut replicas), [ReplicaFault::Replica { node, page: 3 }]);
}

#[test]
fn wrong_tables_owners_and_a_way_through_the_direct_map_are_found() {
    let world = World::new();
    let mut replicas = world.make(0b010, &mut Vec::new());
    let (node, root) = (NodeId(1), world.root_of(1));
    let address = VirtAddr(START.0 + 2 * PAGE_SIZE as u64);
    let table = (2..=4).rev().fold(root, |table, level| {
        Pfn((world.model.load_entry(table, index_at(address, level)) >> 12) & 0xff_ffff_ffff)
    });
    let (slot, entry) = (index_at(address, 1), leaf(world.model, root, address));
    for wrong in
        [0, entry | WRITABLE, entry + 0x1000, leaf(world.model, Pfn(ROOT), address), entry | NO_EXECUTE]
    {
        world.model.store_entry(table, slot, wrong);
        assert_eq!(faults(&mut replicas), [ReplicaFault::Leaf { node, address }], "{wrong:#x}");
    }
    world.model.store_entry(table, slot, entry | 1 << 5);
    assert_eq!(faults(&mut replicas), [], "the accessed bit is the CPU's");
    world.model.store_entry(root, 400, 9 << 12 | PRESENT);
    assert_eq!(faults(&mut replicas), [ReplicaFault::Root { node, slot: 400 }]);
    world.model.store_entry(root, 400, 0);
    let block = Pfn((entry >> 12) & 0xff_ffff_ffff).pageblock_start();
    world.model.enter(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)));
    assert_eq!(faults(&mut replicas), [ReplicaFault::DirectMap { node, block }]);
    world.model.leave(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)));
    assert_eq!(faults(&mut replicas), []);
    // Simulates that other code frees the block.
    world.frames.release(block, freehold_frame::Order::PAGEBLOCK);
    assert!(faults(&mut replicas).contains(&ReplicaFault::Owner { node, block }));
    core::mem::forget(replicas);
}

#[test]
fn a_node_short_of_memory_shares_and_keeps_nothing() {
    let world = World::new();
    world.fill(NodeId(1));
    let before = (world.owned(Owner::Kernel), world.owned(Owner::Replica));
    let mut without = Vec::new();
    let mut replicas = world.make(0b110, &mut without);
    assert_eq!(without, [NodeId(1)]);
    assert_eq!(replicas.waiting().collect::<Vec<_>>(), [(NodeId(1), NodeId(0))], "as near, the lower number");
    for page in 0..PAGES {
        let [own, original] =
            [world.root_of(1), Pfn(ROOT)].map(|root| leaf(world.model, root, world.image.address(page)));
        assert!(own == original && world.root_of(1) != Pfn(ROOT), "page {page}");
    }
    assert_eq!(faults(&mut replicas), []);
    assert_eq!(world.owned(Owner::Replica), before.1 + PAGEBLOCK_FRAMES);
    drop(replicas);
    assert_eq!((world.owned(Owner::Kernel), world.owned(Owner::Replica)), before);
}

#[test]
fn every_failing_allocation_leaves_nothing_behind() {
    for left in 0..6 {
        let world = World::new();
        let on_2 = freehold_frame::NodePolicy::Bind(NodeSet::single(NodeId(2)));
        let request = |owner| freehold_frame::Request::new(owner).policy(on_2);
        // Leaves pageblocks for the replica, and `left` frames for tables.
        let mut tables = Vec::new();
        while let Ok(frame) = world.frames.allocate(request(Owner::Kernel)) {
            tables.push(frame);
        }
        let free: Vec<_> = tables.drain(..left).collect();
        let mut without = Vec::new();
        free.into_iter().for_each(|frame| world.frames.release(frame, freehold_frame::Order::FRAME));
        let mut replicas = world.make(0b100, &mut without);
        assert!(replicas.is_empty() == without.contains(&NodeId(2)));
        assert_eq!(faults(&mut replicas), []);
        if replicas.is_empty() {
            assert_eq!(world.owned(Owner::Replica), 0, "{left}");
            assert_eq!(replicas.waiting().count(), 1, "its tables are on another node");
        }
    }
}

/// Four nodes; CPUs on the first three, memory on all but the third.
fn topology() -> Topology {
    let mut topology = Topology::new(4).expect("four nodes");
    for node in [0u8, 1, 3] {
        let start = u64::from(node) * 4096;
        topology.add_range(PfnRange::new(Pfn(start), Pfn(start + 4096)), NodeId(node)).expect("a range");
    }
    for (cpu, node) in [(0, 0), (1, 1), (2, 2), (3, 1)] {
        topology.set_cpu_node(CpuId(cpu), NodeId(node)).expect("a CPU");
    }
    for (to, distance) in [(0, 30), (1, 20), (3, 15)] {
        topology.set_distance(NodeId(2), NodeId(to), distance).expect("a distance");
    }
    topology
}

#[test]
fn nodes_with_cpus_and_memory_get_replicas_and_the_others_use_the_nearest() {
    let topology = topology();
    let planned = |cpus, image, setting| plan(&topology, cpus, NodeId(image), setting).0;
    assert_eq!(planned(4, 0, Setting::Auto), 0b10);
    assert_eq!(planned(4, 3, Setting::On), 0b11, "the image lies where no CPU is");
    assert_eq!(planned(1, 3, Setting::On), 0b1);
    assert_eq!(planned(1, 3, Setting::Auto), 0, "one node has CPUs");
    assert_eq!(planned(4, 3, Setting::AtMost(1)), 0b1);
    assert_eq!(planned(4, 3, Setting::Off), 0);
    assert_eq!(nearest(&topology, NodeId(2), NodeSet(0b11), NodeId(0)), NodeId(1));
    assert_eq!(nearest(&topology, NodeId(1), NodeSet(0b11), NodeId(0)), NodeId(1));
    assert_eq!(nearest(&topology, NodeId(2), NodeSet(0), NodeId(0)), NodeId(0));
}

#[test]
fn settings_are_read() {
    let read = ["auto", "on", "off", "2", "", "-1", "all"].map(Setting::parse);
    let known = [Setting::Auto, Setting::On, Setting::Off, Setting::AtMost(2)].map(Some);
    assert_eq!(read, [known[0], known[1], known[2], known[3], None, None, None]);
}

fn dumped(world: &World) -> Vec<alloc::string::String> {
    let mut lines = Vec::new();
    dump(world.model, Pfn(ROOT), &mut |run| {
        lines.push(alloc::format!("{run}{}", if run.is_writable_code() { " W+X" } else { "" }));
    });
    lines
}

#[test]
fn a_dump_has_linux_lines() {
    let world = World::new();
    let model = world.model;
    // Nothing is mapped except the image.
    model.store_entry(Pfn(ROOT), 300, 0);
    let expected = [
        "0xffff800000000000-0xffffff8000000000   130560G                               pgd",
        "0xffffff8000000000-0xffffffff80000000         510G                               pud",
        "0xffffffff80000000-0xffffffff80200000           2M                               pmd",
        "0xffffffff80200000-0xffffffff803fa000        2024K                               pte",
        "0xffffffff803fa000-0xffffffff8040e000          80K     ro                 GLB x  pte",
        "0xffffffff8040e000-0xffffffff80412000          16K     RW                 GLB NX pte",
        "0xffffffff80412000-0xffffffff80600000        1976K                               pte",
        "0xffffffff80600000-0xffffffffc0000000        1018M                               pmd",
        "0xffffffffc0000000-0x0000000000000000           1G                               pud",
    ];
    let lines = dumped(&world);
    assert_eq!(
        lines.iter().map(|line| line.split_whitespace().collect()).collect::<Vec<Vec<_>>>(),
        expected.iter().map(|line| line.split_whitespace().collect()).collect::<Vec<Vec<_>>>()
    );
    assert_eq!(lines[4..6], expected[4..6], "to the column");
    // Rights are those that all levels grant; a leaf that is writable and executable is reported.
    let slot = index_at(VirtAddr(0xffff_ffff_8060_0000), 2);
    model.store_entry(Pfn(3), slot, 512 << 12 | PRESENT | WRITABLE | USER | LARGE | 1 << 4);
    let upper = model.load_entry(Pfn(2), index_at(START, 3));
    let told = "0xffffffff80600000-0xffffffff80800000           2M     RW     PCD PSE         x  pmd W+X";
    assert!(dumped(&world).iter().any(|line| line == told), "{:?}", dumped(&world));
    model.store_entry(Pfn(2), index_at(START, 3), upper & !WRITABLE | NO_EXECUTE);
    let told = "0xffffffff80600000-0xffffffff80800000           2M     ro     PCD PSE         NX pmd";
    assert!(dumped(&world).iter().any(|line| line == told), "{:?}", dumped(&world));
}
