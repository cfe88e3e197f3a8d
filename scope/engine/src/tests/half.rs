//! The oracle by mapping: all mappings of the kernel half are judged, used or not.

use super::*;
use crate::guest::{FRAME, WRITABLE, walk};

/// A frame of a block that the direct map holds.
const INSIDE: u64 = 0x1000;
const OUTSIDE: u64 = 0x3000;

impl Machine {
    /// Stores an entry of a 4 KiB page from the kernel on CPU 0, in an existing table.
    pub fn map(&mut self, address: u64, entry: u64) {
        self.map_below(ROOT, address, entry);
    }
    fn map_below(&mut self, root: u64, address: u64, entry: u64) {
        let place = (1..=3).rev().fold(root, |table, level| {
            let slot = table + (address >> (12 + 9 * level) & 511) * 8;
            self.words.0.lock().unwrap().get(&slot).copied().unwrap() & FRAME
        }) + (address >> 12 & 511) * 8;
        self.words.store(place, entry);
        self.access(0, DIRECT + place, place, AccessKind::Write);
    }
    fn broken(self) -> Vec<(Rule, u64, u64)> {
        let oracle = self.results().oracle;
        oracle.violations.iter().map(|one| (one.rule, one.address, one.count)).collect()
    }
}

/// Makes a machine with a table for small pages at `address`.
pub fn with_table(address: u64, owners: &[(u64, u64)]) -> Machine {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.words.map(ROOT, address, 0x7000, PageSize::Small, 0);
    assert_eq!(machine.publish(owners), DoorbellRing::Published);
    machine
}

#[test]
fn a_programs_frame_that_is_mapped_is_found_though_nobody_uses_it() {
    let mut machine = with_table(DYNAMIC, &[(OUTSIDE, ANON)]);
    machine.map(DYNAMIC + 0x1000, INSIDE << 12 | 1);
    machine.map(DYNAMIC + 0x2000, OUTSIDE << 12 | 1);
    machine.map(DYNAMIC + 0x2000, 0);
    assert_eq!(machine.broken(), [(Rule::Mapped, DYNAMIC + 0x2000, 1)]);
}

#[test]
fn a_frame_that_becomes_a_programs_while_it_is_mapped_is_found() {
    let mut machine = with_table(DYNAMIC, &[(INSIDE, KERNEL_OWNER)]);
    machine.set_state(INSIDE, GIVEN_BACK);
    machine.set_state(INSIDE, ANON);
    assert_eq!(machine.broken(), [(Rule::Mapped, DIRECT + (INSIDE << 12), 1)]);
}

#[test]
fn windows_map_programs_frames_and_nothing_that_must_not_be_written() {
    let mut machine = with_table(WINDOWS, &[(OUTSIDE, ANON)]);
    machine.map(WINDOWS, OUTSIDE << 12 | WRITABLE | 1);
    machine.map(WINDOWS, 0);
    machine.set_state(OUTSIDE, ANON << 4);
    machine.set_state(OUTSIDE, ANON);
    machine.map(WINDOWS + 0x1000, IMAGE | 1);
    machine.map(WINDOWS + 0x1000, IMAGE | WRITABLE | 1);
    assert_eq!(machine.broken(), [(Rule::WritableImage, WINDOWS + 0x1000, 1)]);
}

#[test]
fn what_is_mapped_at_the_publication_is_judged_too() {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.words.map(ROOT, DYNAMIC, IMAGE, PageSize::Small, WRITABLE);
    machine.publish(&[(INSIDE, ANON)]);
    assert_eq!(
        machine.broken(),
        [(Rule::Mapped, DIRECT + (INSIDE << 12), 1), (Rule::WritableImage, DYNAMIC, 1)]
    );
}

#[test]
fn a_page_becomes_a_table_after_it_was_used_as_memory_and_its_stores_are_seen() {
    let mut machine = with_table(DYNAMIC, &[(OUTSIDE, ANON)]);
    // A fresh table is cleared through the direct map, then linked.
    let (fresh, far) = (INSIDE << 12, DYNAMIC + (2 << 20));
    machine.access(0, DIRECT + fresh, fresh, AccessKind::Write);
    let link = walk(&machine.words, ROOT, DYNAMIC).unwrap();
    assert_eq!(link.page, 0x7000);
    let second = [39, 30].into_iter().fold(ROOT, |table, shift| {
        machine.words.0.lock().unwrap().get(&(table + (DYNAMIC >> shift & 511) * 8)).copied().unwrap() & FRAME
    }) + (far >> 21 & 511) * 8;
    machine.words.store(second, fresh | WRITABLE | 1);
    machine.access(0, DIRECT + second, second, AccessKind::Write);
    machine.words.store(fresh, OUTSIDE << 12 | 1);
    machine.access(0, DIRECT + fresh, fresh, AccessKind::Write);
    assert_eq!(machine.broken(), [(Rule::Mapped, far, 1)]);
}

#[test]
fn under_a_policy_that_leaves_everything_inside_only_the_image_is_judged() {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.words.map(ROOT, DYNAMIC, IMAGE, PageSize::Small, WRITABLE);
    machine.outside = 0;
    machine.publish(&[(INSIDE, ANON)]);
    machine.access(0, DIRECT + (INSIDE << 12), INSIDE << 12, AccessKind::Read);
    assert_eq!(machine.broken(), [(Rule::WritableImage, DYNAMIC, 1)]);
}

#[test]
fn a_replica_is_mapped_where_the_image_is_and_nowhere_else() {
    const REPLICA: u64 = 5;
    let mut machine = with_table(DYNAMIC, &[(OUTSIDE, REPLICA)]);
    machine.map(TEXT, OUTSIDE << 12 | 1);
    machine.map(DYNAMIC + 0x1000, OUTSIDE << 12 | 1);
    machine.map(TEXT, OUTSIDE << 12 | WRITABLE | 1);
    assert_eq!(machine.broken(), [(Rule::Mapped, DYNAMIC + 0x1000, 1), (Rule::WritableImage, TEXT, 1)]);
}

#[test]
fn a_kernel_stack_is_mapped_outside_the_direct_map_alone() {
    const STACK: u64 = 10;
    let mut machine = Machine::new();
    machine.outside |= 1 << STACK;
    machine.kernel(0);
    machine.words.map(ROOT, DYNAMIC, OUTSIDE << 12, PageSize::Small, WRITABLE);
    machine.publish(&[(OUTSIDE, STACK), (INSIDE, STACK)]);
    assert_eq!(machine.broken(), [(Rule::Mapped, DIRECT + (INSIDE << 12), 1)]);
}

/// Node 1 uses node 0's text at first. Then the leaf of its own table leads to a copy.
#[test]
fn a_cpu_may_fetch_old_text_after_a_late_copy_until_it_flushes_all_translations() {
    const REPLICA: u64 = NODE + IMAGE;
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.second_root = ROOT + 0x8_0000;
    let own = machine.second_root;
    machine.words.map(own, TEXT, IMAGE, PageSize::Small, PTE_GLOBAL);
    assert_eq!(machine.publish(&[(REPLICA >> 12, 5)]), DoorbellRing::Published);
    machine.cpus[1].loads_root(TEXT + 8, own);
    machine.cpus[1].flush(Flush::Space(Some(own)));
    machine.cpus[1].flush(Flush::All);
    let fetch = |machine: &mut Machine, cpu: usize, frame| {
        machine.cpus[cpu].flush(Flush::Space(Some(own)));
        machine.run(cpu, TEXT, frame, 10);
    };
    fetch(&mut machine, 1, IMAGE);
    machine.kernel(0);
    machine.map_below(own, TEXT, REPLICA | PTE_GLOBAL | 1);
    fetch(&mut machine, 1, REPLICA);
    fetch(&mut machine, 1, IMAGE);
    machine.cpus[1].flush(Flush::All);
    fetch(&mut machine, 1, REPLICA);
    fetch(&mut machine, 1, IMAGE);
    assert_eq!(machine.broken(), [(Rule::RemoteText, TEXT, 1)]);
}

#[test]
fn text_and_roots_of_another_node_are_found_once_a_cpu_is_at_home() {
    const REPLICA: u64 = NODE + IMAGE;
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.second_root = ROOT + 0x8_0000;
    let own = machine.second_root;
    machine.words.map(own, TEXT, REPLICA, PageSize::Small, PTE_GLOBAL);
    assert_eq!(machine.publish(&[(REPLICA >> 12, 5)]), DoorbellRing::Published);
    let load = |machine: &mut Machine, root| {
        machine.cpus[1].loads_root(TEXT + 8, root);
        machine.cpus[1].flush(Flush::Space(Some(root)));
        machine.cpus[1].flush(Flush::All);
    };
    // CPU 1 starts on the first node's root.
    machine.kernel(1);
    load(&mut machine, ROOT);
    machine.kernel(1);
    load(&mut machine, own);
    machine.run(1, TEXT, REPLICA, 10);
    // The kernel announced that there is no memory for a root of its own: the CPU may load
    // another's until it has loaded its own root again.
    machine.words.store(SHARED_LOADS + 8, 1);
    load(&mut machine, ROOT);
    machine.kernel(1);
    machine.words.store(SHARED_LOADS + 8, 2);
    load(&mut machine, ROOT);
    machine.kernel(1);
    load(&mut machine, own);
    machine.run(1, TEXT, REPLICA, 10);
    // The same page from elsewhere; another CPU's announcement is no excuse.
    machine.cpus[1].flush(Flush::All);
    machine.kernel(1);
    machine.words.store(SHARED_LOADS, 1);
    load(&mut machine, ROOT);
    assert_eq!(machine.broken(), [(Rule::RemoteText, TEXT, 1), (Rule::Root, TEXT + 8, 1)]);
}
