use super::*;
use proptest::prelude::*;

const fn level(entries: usize, ways: usize) -> LevelShape {
    LevelShape { entries, ways }
}
const TINY: TlbShape =
    TlbShape { data: level(2, 2), fetch: level(2, 1), second: level(4, 4), replacement: Replacement::Lru };
const SPACE: Scope = Scope::Space(0);

fn walked(frame: u64, note: u32) -> Walked {
    Walked { frame, note, moment: 9 }
}
/// Uses an address as the engine does; returns the look-up's result.
fn access(tlb: &mut Tlb, address: u64, scope: Scope, now: u64) -> Option<Missed> {
    let key = TlbKey::new(address, PageSize::Small, scope);
    let mut hint = Hint::default();
    if tlb.touch(FirstLevel::Data, key, hint) {
        return None;
    }
    tlb.look_up(FirstLevel::Data, key, &mut hint, now, || walked(address >> 12, 0))
}
fn deaths(tlb: &Tlb, death: Death) -> u64 {
    tlb.lifetimes().map(|(_, _, lifetimes)| lifetimes.deaths(death)).sum()
}
fn holds(tlb: &Tlb, address: u64, scope: Scope) -> bool {
    tlb.peek(TlbKey::new(address, PageSize::Small, scope)).is_some()
}

#[test]
fn a_change_of_space_keeps_global_entries_only() {
    let mut tlb = Tlb::new(TINY);
    access(&mut tlb, 0x1000, SPACE, 0);
    access(&mut tlb, 0x2000, Scope::Global, 0);
    tlb.flush_non_global(10);
    assert_eq!((holds(&tlb, 0x1000, SPACE), holds(&tlb, 0x2000, Scope::Global)), (false, true));
    assert_eq!(deaths(&tlb, Death::Space), 1);
    tlb.flush_all(11);
    assert_eq!((tlb.entries().count(), deaths(&tlb, Death::All)), (0, 1));
}

#[test]
fn spaces_do_not_see_each_others_entries() {
    let mut tlb = Tlb::new(TINY);
    access(&mut tlb, 0x1000, Scope::Space(1), 0);
    assert_eq!(access(&mut tlb, 0x1000, Scope::Space(2), 1), Some(Missed::Both));
    tlb.flush_page(0x1000, 2, 2);
    assert!(holds(&tlb, 0x1000, Scope::Space(1)), "a flush in another space leaves it");
    tlb.flush_space(1, 3);
    assert_eq!(tlb.entries().count(), 0);
}

#[test]
fn a_large_page_is_flushed_by_any_of_its_addresses() {
    let mut tlb = Tlb::new(TINY);
    let key = |address| TlbKey::new(address, PageSize::Large, SPACE);
    assert_eq!(key(0x20_1234), key(0x3f_ffff));
    assert_ne!(key(0x20_0000), TlbKey::new(0x20_0000, PageSize::Small, SPACE));
    tlb.look_up(FirstLevel::Data, key(0x20_1234), &mut Hint::default(), 5, || walked(0x200, 7));
    assert_eq!(tlb.peek(key(0x3f_ffff)), Some(&Cached { frame: 0x200, note: 7, born: 5, moment: 9 }));
    tlb.flush_page(0x3f_f000, 0, 7);
    assert_eq!(tlb.peek(key(0x20_0000)), None);
}

#[test]
fn halves_and_sizes_are_told_apart() {
    let mut tlb = Tlb::new(TINY);
    let upper = 0xffff_ffff_8020_0000;
    let mut fill = |address, size| {
        tlb.look_up(
            FirstLevel::Fetch,
            TlbKey::new(address, size, Scope::Global),
            &mut Hint::default(),
            0,
            || walked(0, 0),
        );
    };
    fill(upper, PageSize::Large);
    fill(upper, PageSize::Giant);
    fill(0x7fff_ffff_f000, PageSize::Small);
    let mut kinds: Vec<_> = tlb.entries().map(|(upper, size, _)| (upper, size)).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [(false, PageSize::Small), (true, PageSize::Large), (true, PageSize::Giant)]);
}

#[test]
fn lifetimes_fall_into_powers_of_two_by_cause() {
    let mut tlb = Tlb::new(TINY);
    for (page, death) in [(0x1000, 1), (0x2000, 4), (0x3000, 7), (0x4000, 1000)] {
        access(&mut tlb, page, SPACE, 0);
        tlb.flush_page(page, 0, death);
    }
    let (_, _, lifetimes) = tlb.lifetimes().next().unwrap();
    let lived = &lifetimes.dead[Death::Page as usize];
    assert_eq!((lived[0], lived[2], lived[9], lifetimes.fills), (1, 2, 1, 4));
}

#[test]
fn the_end_of_an_entry_that_was_asked_for_is_told_once() {
    let mut tlb = Tlb::new(TINY);
    let key = TlbKey::new(0xffff_d000_0000_1000, PageSize::Small, SPACE);
    let fill = |tlb: &mut Tlb, key, note| {
        tlb.look_up(FirstLevel::Data, key, &mut Hint::default(), 5, || walked(1, note));
    };
    fill(&mut tlb, key, TOLD | 3);
    fill(&mut tlb, TlbKey::new(0x2000, PageSize::Small, SPACE), 3);
    tlb.note(key, 4);
    assert_eq!(
        tlb.to_tell().map(|(key, cached)| (key.address(), cached.note)).collect::<Vec<_>>(),
        [(0xffff_d000_0000_1000, TOLD | 4)]
    );
    assert!(!tlb.has_told());
    tlb.flush_non_global(9);
    let [ended] = tlb.take_told()[..] else { panic!("one end") };
    assert_eq!((ended.key, ended.cached.born, ended.now), (key, 5, 9));
    assert!(!tlb.has_told());
}

#[test]
fn pseudo_lru_keeps_what_was_used_last_and_drives_out_what_lru_would_keep() {
    // 1, 2, 3 are used, then 1 again. Bits: all but the fourth are set when 4 comes, which clears
    // the others; 5 takes the place of 1.
    let left = |replacement| {
        let mut tlb = Tlb::new(TlbShape { data: level(1, 1), replacement, ..TINY });
        for page in [1u64, 2, 3, 1, 4, 5] {
            access(&mut tlb, page << 12, SPACE, 0);
        }
        (1u64..=5).filter(|page| holds(&tlb, page << 12, SPACE)).collect::<Vec<_>>()
    };
    assert_eq!(left(Replacement::Lru), [1, 3, 4, 5]);
    assert_eq!(left(Replacement::PseudoLru), [2, 3, 4, 5]);
}

#[test]
fn the_first_level_is_smaller_and_costs_no_walk() {
    let mut tlb = Tlb::new(TINY);
    let touch = |tlb: &mut Tlb| (1..=3).map(|page| access(tlb, page << 12, SPACE, 0)).collect::<Vec<_>>();
    assert_eq!(touch(&mut tlb), [Some(Missed::Both); 3]);
    assert!(touch(&mut tlb).iter().all(|met| matches!(met, Some(Missed::First(_)))));
}

#[test]
fn what_leaves_the_second_level_leaves_the_first_too() {
    let mut tlb = Tlb::new(TINY);
    let kept = TlbKey::new(0x1000, PageSize::Small, SPACE);
    let mut hint = Hint::NONE;
    tlb.look_up(FirstLevel::Data, kept, &mut hint, 0, || walked(1, 0));
    for page in 2..=5 {
        assert!(tlb.touch(FirstLevel::Data, kept, hint), "hits in the first level do not reach the second");
        access(&mut tlb, page << 12, SPACE, 0);
    }
    assert!(!tlb.touch(FirstLevel::Data, kept, hint) && !holds(&tlb, 0x1000, SPACE));
    assert_eq!(deaths(&tlb, Death::Capacity), 1);
}

#[test]
fn a_hint_is_never_believed_blindly() {
    let mut tlb = Tlb::new(TINY);
    let (one, two) =
        (TlbKey::new(0x1000, PageSize::Small, SPACE), TlbKey::new(0x2000, PageSize::Small, SPACE));
    let mut hint = Hint::default();
    tlb.look_up(FirstLevel::Data, one, &mut hint, 0, || walked(1, 0));
    assert!(tlb.touch(FirstLevel::Data, one, hint));
    assert!(!tlb.touch(FirstLevel::Data, two, hint));
    assert!(!tlb.touch(FirstLevel::Data, one, Hint(999)));
    tlb.flush_page(0x1000, 0, 1);
    assert!(!tlb.touch(FirstLevel::Data, one, hint));
}

proptest! {
    /// A fully associative second level against a list by use.
    #[test]
    fn it_behaves_as_a_list_by_use(steps in prop::collection::vec((0u64..8, 0u8..10), 1..200)) {
        let shape = TlbShape { data: level(1, 1), fetch: level(1, 1), ..TINY };
        let mut tlb = Tlb::new(shape);
        let mut list: Vec<u64> = Vec::new();
        let mut last = None;
        for (now, (page, what)) in steps.into_iter().enumerate() {
            let address = page << 12;
            if what == 0 {
                tlb.flush_page(address, 0, now as u64);
                list.retain(|&other| other != page);
                last = last.filter(|&other| other != page);
            } else {
                let met = access(&mut tlb, address, SPACE, now as u64);
                prop_assert_eq!(met.is_none(), last == Some(page));
                prop_assert_eq!(met == Some(Missed::Both), !list.contains(&page));
                // The second level sees what the first misses.
                if met.is_some() {
                    list.retain(|&other| other != page);
                    list.insert(0, page);
                    list.truncate(4);
                }
                last = Some(page);
            }
            for page in 0..8 {
                prop_assert_eq!(holds(&tlb, page << 12, SPACE), list.contains(&page));
            }
        }
    }
}
