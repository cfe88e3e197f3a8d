//! Patches of text: which stores and which instructions are allowed.

use super::half::with_table;
use super::*;
use crate::AtSite;
use crate::guest::WRITABLE;
use crate::patching::Patching;

/// The address of the only site, and its jump.
const SITE: u64 = TEXT + 0x500;
const JUMP: [u8; 5] = [0xe9, 0x2b, 0, 0, 0];
const NO_OP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// Makes a machine whose table of sites says that a no-op at [`SITE`] may become a jump by 48
/// bytes.
fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.kernel(0);
    let relative = |to: u64, field: u64| u64::from((to as i64 - field as i64) as i32 as u32);
    let entry = relative(SITE, SITES) | relative(SITE + 48, SITES + 4) << 32;
    machine.words.store(IMAGE + (SITES - TEXT), entry);
    machine.words.map(ROOT, PATCH_WINDOW, 0x7000, PageSize::Small, 0);
    assert_eq!(machine.publish(&[]), DoorbellRing::Published);
    machine
}

#[test]
fn at_a_patched_place_the_no_op_the_jump_and_int3_are_whole_and_all_else_is_torn() {
    let machine = machine();
    let judge = |pc: u64, bytes: &[u8]| machine.watch.at_site(pc, bytes);
    assert_eq!([judge(SITE, &NO_OP), judge(SITE, &JUMP)], [Some(AtSite::Whole); 2]);
    assert_eq!(judge(SITE, &[0xcc]), Some(AtSite::Breakpoint));
    for torn in [&[0xe9, 0x1f, 0x44, 0, 0][..], &[0x0f, 0x2b, 0], &[0xe9, 0x2c, 0, 0, 0], &[0x90]] {
        assert_eq!(judge(SITE, torn), Some(AtSite::Torn), "{torn:02x?}");
    }
    assert_eq!([judge(SITE + 1, &[0x90]), judge(SITE + 4, &[0xcc])], [Some(AtSite::Torn); 2]);
    assert_eq!([judge(SITE - 1, &[0xcc]), judge(SITE + 5, &[0xcc]), judge(0x500, &[0xcc])], [None; 3]);
}

#[test]
fn int3_is_counted_and_a_torn_instruction_is_a_breach_of_the_cpu_that_ran_it() {
    let mut machine = machine();
    machine.cpus[1].ran_at_site(SITE, AtSite::Breakpoint);
    machine.cpus[1].ran_at_site(SITE, AtSite::Torn);
    machine.cpus[1].ran_at_site(SITE, AtSite::Torn);
    let oracle = machine.results().oracle;
    let [violation] = &oracle.violations[..] else { panic!("{:?}", oracle.violations) };
    assert_eq!((violation.rule, violation.cpu, violation.pc, violation.count), (Rule::Patch, 1, SITE, 2));
    assert_eq!((violation.frame, oracle.checks.breakpoints), (IMAGE >> 12, 1));
}

#[test]
fn only_the_published_code_stores_to_text_and_only_through_the_published_page() {
    let stored = |pc: u64, address: u64| {
        let mut machine = machine();
        machine.cpus[0].access::<Everything>(pc, address, (AccessKind::Write, 1), || Some(IMAGE));
        let oracle = machine.results().oracle;
        (oracle.checks.text_stores, oracle.total)
    };
    assert_eq!(stored(PATCHING + 4, PATCH_WINDOW + 0x500), (1, 0));
    assert_eq!(stored(PATCHING + 0x10, PATCH_WINDOW + 0x500), (0, 1), "other code");
    assert_eq!(stored(PATCHING + 4, PATCH_WINDOW + 0x1000), (0, 1), "another page");
    assert_eq!(stored(PATCHING + 4, DYNAMIC), (0, 1), "another page");
}

#[test]
fn text_is_mapped_for_stores_in_the_patching_window_and_in_no_other() {
    let mut machine = with_table(WINDOWS, &[]);
    machine.map(PATCH_WINDOW, IMAGE | WRITABLE | 1);
    machine.map(PATCH_WINDOW, 0);
    machine.map(PATCH_WINDOW + 0x1000, IMAGE | WRITABLE | 1);
    let violations = machine.results().oracle.violations;
    assert_eq!(
        violations.iter().map(|one| (one.rule, one.address)).collect::<Vec<_>>(),
        [(Rule::WritableImage, PATCH_WINDOW + 0x1000)]
    );
}

#[test]
fn a_table_of_patched_places_that_cannot_be_is_refused() {
    let refused = |sites: u64, bytes: u64| {
        let mut words = [0; doorbell::WORDS];
        words[0] = doorbell::VERSION;
        let mut p = Publication::from_words(&words).unwrap();
        (p.roots[0], p.sites, p.sites_end) = (ROOT, sites, sites.wrapping_add(bytes));
        Patching::read(&Words::default(), &p).err()
    };
    let size = Some("a table of patched places of that size is none");
    assert_eq!([refused(SITES, 7), refused(SITES + 2, SITE_BYTES), refused(SITES, 12 << 20)], [size; 3]);
    assert_eq!(refused(SITES, SITE_BYTES), Some("its table of patched places is not mapped"));
    assert_eq!(refused(0, 0), None, "a kernel that patches nothing");
}
