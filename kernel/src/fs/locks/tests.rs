use super::*;
use freehold_collections::inject::{each_fails, fail_nth};
use freehold_collections::reserve::ArcMethods;
use std::vec::Vec;

fn lock(owner: u64, start: u64, end: u64, sharing: LockSharing) -> Lock {
    Lock { space: LockSpace::Record, start, end, sharing, owner: Owner::Process(owner), pid: 0 }
}

fn file(inode: u64) -> Identity {
    Identity { device: 0xf11e, inode }
}

/// The locks of a file as /proc/locks lists them.
fn listed(file: Identity) -> Vec<Lock> {
    let mut cursor = Cursor::default();
    let all = core::iter::from_fn(|| cursor.advance().unwrap());
    all.filter(|(identity, _)| *identity == file).map(|(_, lock)| lock).collect()
}

/// Returns a generator of numbers below its argument, the same ones for the same seed.
fn numbers_from(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// A record lock excludes other owners from its range, until its owner releases it.
#[test]
fn record_locks_exclude_by_range() {
    let file = file(1);
    try_set(file, &lock(1, 0, 100, LockSharing::Exclusive)).unwrap();
    assert_eq!(try_set(file, &lock(2, 50, 60, LockSharing::Shared)), Err(Errno::EAGAIN));
    assert_eq!(try_set(file, &lock(2, 100, 110, LockSharing::Exclusive)), Ok(()));
    unset(file, LockSpace::Record, Owner::Process(1), 40, 60).unwrap();
    assert_eq!(try_set(file, &lock(2, 50, 60, LockSharing::Shared)), Ok(()));
    assert_eq!(try_set(file, &lock(2, 30, 41, LockSharing::Shared)), Err(Errno::EAGAIN));
    assert_eq!(try_set(file, &lock(2, 60, 61, LockSharing::Shared)), Err(Errno::EAGAIN));
    release(file, Owner::Process(1));
    release(file, Owner::Process(2));
    assert_eq!(conflict(file, &lock(3, 0, u64::MAX, LockSharing::Exclusive)), Ok(None));
}

/// A wait that would close a cycle of waits, even through other waiters, is refused. A wait is
/// forgotten when it ends.
#[test]
fn a_wait_that_would_not_end_is_refused() {
    let (one, other, third) = (file(5), file(6), file(7));
    for (at, owner) in [(one, 301), (other, 302), (third, 303)] {
        try_set(at, &lock(owner, 0, 10, LockSharing::Exclusive)).unwrap();
    }
    let wait = |at, owner| LockWait::new(at, &lock(owner, 0, 10, LockSharing::Shared));
    let first = wait(other, 301).unwrap();
    let second = wait(third, 302).unwrap();
    assert_eq!(wait(one, 302).err(), Some(Errno::EDEADLK));
    assert_eq!(wait(one, 303).err(), Some(Errno::EDEADLK));
    drop(second);
    let last = wait(one, 303).unwrap();
    drop((first, last));
    assert!(wait(one, 302).is_ok());
    for owner in 301..=303 {
        release_all(Owner::Process(owner));
    }
}

/// Readers share. An owner's own lock never conflicts: it is replaced.
#[test]
fn own_locks_are_replaced() {
    let file = file(2);
    try_set(file, &lock(1, 0, 10, LockSharing::Shared)).unwrap();
    try_set(file, &lock(2, 0, 10, LockSharing::Shared)).unwrap();
    assert_eq!(try_set(file, &lock(1, 0, 10, LockSharing::Exclusive)), Err(Errno::EAGAIN));
    release(file, Owner::Process(2));
    try_set(file, &lock(1, 5, 10, LockSharing::Exclusive)).unwrap();
    assert_eq!(
        conflict(file, &lock(2, 0, 5, LockSharing::Exclusive)).unwrap().map(|l| l.sharing),
        Some(LockSharing::Shared)
    );
    assert_eq!(
        conflict(file, &lock(2, 5, 6, LockSharing::Shared)).unwrap().map(|l| l.sharing),
        Some(LockSharing::Exclusive)
    );
    release_all(Owner::Process(1));
    assert!(listed(file).is_empty());
}

/// Memory is short at each allocation of a change in turn: no lock is changed. Then the change
/// succeeds.
#[test]
fn a_change_without_memory_changes_nothing() {
    // Tests run in parallel: no other test uses this owner.
    const ME: u64 = 77;
    let file = file(77);
    let mut failures = 0;
    for n in 0..200u64 {
        // Each lock splits the previous one, so the table grows.
        let (start, end) = (n, 1000 - n);
        let before = listed(file);
        let sharing = if n % 2 == 0 { LockSharing::Shared } else { LockSharing::Exclusive };
        let set = each_fails(|| {
            let result = try_set(file, &lock(ME, start, end, sharing));
            assert!(result.is_ok() || listed(file) == before);
            result
        });
        assert_eq!(set.0, Ok(()));
        let before = listed(file);
        let unset = each_fails(|| {
            let result = unset(file, LockSpace::Record, Owner::Process(ME), start + 400, start + 401);
            assert!(result.is_ok() || listed(file) == before);
            result
        });
        assert_eq!(unset.0, Ok(()));
        failures += set.1 + unset.1;
    }
    assert!(failures > 20, "{failures}");
    fail_nth(1);
    release_all(Owner::Process(ME));
    fail_nth(0);
    assert!(listed(file).is_empty());
}

/// If memory is short, a record lock reports that there are no more locks, as on Linux; flock
/// reports that there is no memory.
#[test]
fn want_of_memory_has_linux_names() {
    let (file, owner) = (file(4), Owner::Process(200));
    let failing = |wanted: Result<()>, attempt: &dyn Fn() -> Result<()>| {
        fail_nth(1);
        assert_eq!(attempt(), wanted);
        fail_nth(0);
        assert_eq!(attempt(), Ok(()));
    };
    let record = lock(200, 0, 100, LockSharing::Exclusive);
    failing(Err(Errno::ENOLCK), &|| try_set(file, &record));
    failing(Err(Errno::ENOLCK), &|| unset(file, LockSpace::Record, owner, 40, 60));
    let whole = Lock { space: LockSpace::Flock, end: u64::MAX, ..record };
    failing(Err(Errno::ENOMEM), &|| try_set(file, &whole));
    release_all(owner);
}

/// Locks of two owners on random ranges agree with a model that has one entry per byte.
#[test]
fn ranges_are_the_bytes_that_were_set() {
    const BYTES: u64 = 24;
    // Tests run in parallel, and the end of an owner releases its locks on all files.
    const FIRST: u64 = 100;
    let file = file(3);
    let mut held = [[None; BYTES as usize]; 2];
    let mut draw = numbers_from(1);
    for _ in 0..20_000 {
        let me = draw(2) as usize;
        let start = draw(BYTES - 1);
        let end = start + 1 + draw(BYTES - start);
        let sharing = [None, Some(LockSharing::Shared), Some(LockSharing::Exclusive)][draw(3) as usize];
        let range = start as usize..(end as usize).min(BYTES as usize);
        match sharing {
            None => unset(file, LockSpace::Record, Owner::Process(FIRST + me as u64), start, end).unwrap(),
            Some(sharing) => {
                let bars = |other: &Option<LockSharing>| {
                    other.is_some_and(|other| [other, sharing].contains(&LockSharing::Exclusive))
                };
                let refused = held[1 - me][range.clone()].iter().any(bars);
                let outcome = try_set(file, &lock(FIRST + me as u64, start, end, sharing));
                assert_eq!(outcome.is_err(), refused);
                if refused {
                    continue;
                }
            }
        }
        held[me][range].fill(sharing);
        let mut shown = [[None; BYTES as usize]; 2];
        let mut last: Option<Lock> = None;
        for lock in listed(file) {
            let Owner::Process(owner) = lock.owner else { unreachable!() };
            let end = lock.end.min(BYTES);
            shown[(owner - FIRST) as usize][lock.start as usize..end as usize].fill(Some(lock.sharing));
            let alike = |last: &Lock| last.owner == lock.owner && last.sharing == lock.sharing;
            assert!(last.filter(alike).is_none_or(|last| last.end < lock.start), "neighbours are melted");
            last = Some(lock);
        }
        assert_eq!(shown, held);
    }
    release(file, Owner::Process(FIRST));
    release_all(Owner::Process(FIRST + 1));
    assert!(listed(file).is_empty());
}

/// A file's locks are set, found and released while another file's table is locked.
#[test]
fn files_do_not_wait_for_each_other() {
    let stripe = |inode: u64| file(inode).stripe();
    // Files of one stripe share most.
    let other = (81..).find(|&inode| stripe(inode) == stripe(80)).unwrap();
    let (busy, other) = (file(80), file(other));
    try_set(busy, &lock(600, 0, 10, LockSharing::Exclusive)).unwrap();
    let table = files::find(busy).unwrap();
    let held = table.lock();
    try_set(other, &lock(601, 0, 10, LockSharing::Exclusive)).unwrap();
    assert_eq!(try_set(other, &lock(602, 0, 10, LockSharing::Shared)), Err(Errno::EAGAIN));
    let wait = LockWait::new(other, &lock(602, 0, 10, LockSharing::Shared)).unwrap();
    unset(other, LockSpace::Record, Owner::Process(601), 5, 6).unwrap();
    drop(wait);
    release(other, Owner::Process(601));
    assert!(files::find(other).is_none());
    drop(held);
    release(busy, Owner::Process(600));
    assert!(files::find(busy).is_none());
}

/// A table outlasts its locks until an owner's use of the file ends. A removed table is not used
/// again.
#[test]
fn a_table_ends_with_the_last_use_of_its_file() {
    let file = file(90);
    let one = lock(610, 0, 10, LockSharing::Exclusive);
    try_set(file, &one).unwrap();
    let table = files::find(file).unwrap();
    unset(file, LockSpace::Record, one.owner, 0, u64::MAX).unwrap();
    assert!(files::find(file).unwrap().is_same(&table), "locking again makes no table");
    release(file, one.owner);
    assert!(files::find(file).is_none());
    try_set(file, &one).unwrap();
    assert!(!files::find(file).unwrap().is_same(&table));
    // A late release of the old table does not remove the new one.
    files::remove_if_empty(file, &mut table.lock());
    assert_eq!(listed(file), [one]);
    release(file, one.owner);
}

/// The conflict that is reported is the first one in the order of the list, with few and with many
/// locks per owner, whole owners gone and all locks shared.
#[test]
fn a_conflict_is_the_first_of_the_first_owner() {
    let file = file(91);
    let mut draw = numbers_from(7);
    let (mut found, mut free) = (0, 0);
    for step in 0..20_000 {
        let sharing = [LockSharing::Shared, LockSharing::Exclusive][usize::from(draw(8) == 0)];
        let (owner, start) = (620 + draw(5), draw(200));
        let wanted = lock(owner, start, start + 1 + draw(3), sharing);
        let naive = listed(file).into_iter().find(|held| held.conflicts(&wanted));
        assert_eq!(conflict(file, &wanted), Ok(naive));
        assert_eq!(try_set(file, &wanted).is_err(), naive.is_some());
        if naive.is_some() {
            found += 1
        } else {
            free += 1
        }
        if step % 50 == 0 {
            release(file, wanted.owner);
        } else if step % 2 == 0 {
            unset(file, LockSpace::Record, wanted.owner, start, start + 2).unwrap();
        }
    }
    assert!(found > 2000 && free > 2000, "{found} {free}");
    (620..625).for_each(|owner| release(file, Owner::Process(owner)));
    assert!(files::find(file).is_none());
}
