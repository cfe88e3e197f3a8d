//! The namespaces in which a process' capabilities are effective, and the IDs that a process sees.

use super::*;
use crate::task::capabilities::Capabilities;

fn root() -> Credentials {
    Credentials::of_user(0, 0)
}

/// Returns the credentials of a process in a namespace that `maker` created.
fn inside(maker: &Credentials) -> Credentials {
    let user_ns = UserNs::new(maker).unwrap();
    Credentials { user_ns, capabilities: Capabilities::WHOLE, ..maker.clone() }
}

fn write(of: &Credentials, kind: IdKind, text: &str, by: &Credentials) -> Result<()> {
    of.user_ns.write_map(kind, text.as_bytes(), by, by)
}

#[test]
fn a_capability_counts_in_its_namespace_and_below() {
    let outer = Credentials::of_user(1000, 1000);
    let inner = inside(&outer);
    for kind in [IdKind::User, IdKind::Group] {
        write(&inner, kind, "0 0 4294967295", &root()).unwrap();
    }
    let innermost = inside(&inner);
    assert!(!inner.may(Capability::SysAdmin), "the initial namespace knows nothing of it");
    assert!(inner.may_in(&inner.user_ns, Capability::SysAdmin));
    assert!(inner.may_in(&innermost.user_ns, Capability::SysAdmin), "below");
    assert!(!innermost.may_in(&inner.user_ns, Capability::SysAdmin), "above");
    assert!(outer.may_in(&inner.user_ns, Capability::SysAdmin), "the owner, from the parent");
    assert!(outer.may_in(&innermost.user_ns, Capability::SysAdmin), "and below what he owns");
    let other = Credentials::of_user(1001, 1001);
    assert!(!other.may_in(&inner.user_ns, Capability::SysAdmin));
    assert!(!inside(&other).may_in(&inner.user_ns, Capability::SysAdmin), "a sibling");
    assert!(root().may_in(&innermost.user_ns, Capability::SysAdmin));
    assert!(!outer.user_ns.contains(&inner.user_ns) || inner.user_ns.contains(&innermost.user_ns));
    assert!(inner.user_ns.contains(&innermost.user_ns) && !innermost.user_ns.contains(&inner.user_ns));
}

#[test]
fn ones_own_id_is_mapped_without_rights_and_nothing_else() {
    let outer = Credentials::of_user(1000, 100);
    let inner = inside(&outer);
    assert_eq!(inner.user_ns.shown_user(1000), OVERFLOW_ID);
    for wrong in ["0 0 1", "0 1001 1", "0 1000 2", "0 1000 1\n1 1001 1"] {
        assert_eq!(write(&inner, IdKind::User, wrong, &inner), Err(Errno::EPERM), "{wrong}");
    }
    write(&inner, IdKind::User, "0 1000 1", &inner).unwrap();
    assert_eq!(write(&inner, IdKind::User, "0 1000 1", &inner), Err(Errno::EPERM), "once");
    assert_eq!(inner.user_ns.shown_user(1000), 0);
    assert_eq!(inner.user_ns.shown_user(0), OVERFLOW_ID);
    assert_eq!((inner.user_ns.root(), inner.user_ns.kernel_id(IdKind::User, 1)), (Some(1000), None));
    assert_eq!(write(&inner, IdKind::Group, "0 100 1", &inner), Err(Errno::EPERM), "setgroups is allowed");
    inner.user_ns.write_set_groups(b"deny\n").unwrap();
    assert_eq!(inner.user_ns.write_set_groups(b"allow"), Err(Errno::EPERM));
    write(&inner, IdKind::Group, "0 100 1", &inner).unwrap();
    assert!(inner.user_ns.maps(1000, 100) && !inner.user_ns.maps(1000, 101));
    assert!(!inner.user_ns.may_set_groups());
    let innermost = UserNs::new(&inner).unwrap();
    assert!(!innermost.allows_set_groups(), "nor below");
}

#[test]
fn root_maps_any_range_and_a_nested_map_is_of_the_parents_ids() {
    let outer = root();
    let inner = inside(&outer);
    let stranger = Credentials::of_user(5, 5);
    assert_eq!(write(&inner, IdKind::User, "0 5 1", &stranger), Err(Errno::EPERM));
    let mixed = inner.user_ns.write_map(IdKind::User, b"0 0 10", &outer, &stranger);
    assert_eq!(mixed, Err(Errno::EPERM), "the opener had no right");
    write(&inner, IdKind::User, "0 100000 1000\n5000 7 1", &outer).unwrap();
    write(&inner, IdKind::Group, "0 0 1", &outer).unwrap();
    let mut inner = inner;
    (inner.uid, inner.euid) = (100_000, 100_000);
    assert!(inner.user_ns.may_set_groups());
    let below = inside(&inner);
    for wrong in ["0 999 2", "0 2000 1", "0 4999 2"] {
        assert_eq!(write(&below, IdKind::User, wrong, &inner), Err(Errno::EPERM), "{wrong}");
    }
    write(&below, IdKind::User, "0 500 500\n700 5000 1", &inner).unwrap();
    assert_eq!(below.user_ns.kernel_id(IdKind::User, 3), Some(100_503));
    assert_eq!(below.user_ns.kernel_id(IdKind::User, 700), Some(7));
    let mut seen = std::vec::Vec::new();
    below.user_ns.each_range(IdKind::User, &below.user_ns, |range| seen.push((range.first, range.outside)));
    below.user_ns.each_range(IdKind::User, &UserNs::INITIAL, |range| seen.push((range.first, range.outside)));
    assert_eq!(seen, [(0, 500), (700, 5000), (0, 100_500), (700, 7)]);
}

#[test]
fn namespaces_are_33_levels_deep_at_most_and_counted() {
    let before = count(NamespaceKind::User);
    let mut chain = std::vec![root()];
    for level in 1..=MOST_LEVELS {
        let maker = chain.last().unwrap();
        let next = inside(maker);
        write(&next, IdKind::User, "0 0 1", maker).unwrap();
        write(&next, IdKind::Group, "0 0 1", maker).unwrap();
        assert_eq!(next.user_ns.level(), level);
        chain.push(next);
    }
    assert_eq!(UserNs::new(chain.last().unwrap()), Err(Errno::ENOSPC));
    assert!(count(NamespaceKind::User) >= before + u64::from(MOST_LEVELS));
    let unmapped = inside(&root());
    assert_eq!(UserNs::new(&unmapped), Err(Errno::EPERM), "ids without a mapping make none");
}

#[test]
fn a_user_with_all_that_it_may_have_leaves_the_others_theirs() {
    let of = |maker: &Credentials| NamespaceHead::new(NamespaceKind::Cgroup, maker);
    let (greedy, other) = (Credentials::of_user(4242, 4242), Credentials::of_user(4243, 4243));
    let below = inside(&greedy);
    let mut heads = std::vec::Vec::new();
    while let Ok(head) = of(&greedy) {
        heads.push(head);
    }
    assert_eq!(heads.len() as u64, limit(NamespaceKind::Cgroup));
    assert_eq!(of(&below).err(), Some(Errno::ENOSPC), "made in a namespace of the same user");
    let others = of(&other).expect("another user has none yet");
    heads.pop();
    heads.push(of(&below).expect("a place that was given back"));
    assert_eq!(of(&greedy).err(), Some(Errno::ENOSPC));
    drop((heads, others));
    of(&greedy).expect("all were given back");
}
