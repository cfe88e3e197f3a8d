//! Groups without real processes.

use freehold_collections::Arc;
use freehold_collections::inject::each_fails;
use std::string::String;
use std::sync::{Mutex, MutexGuard};

use freehold_charge::{AccountLimit, Accounts, Resource, Urgency};
use freehold_frame::{AccountId, Owner};

use super::control::store_subtree;
use super::member::{EndedThread, FrozenChange};
use super::memory::{Charging, open_account};
use super::tree::{self, Freeze};
use super::*;
use crate::{Errno, Result};

/// Serialises the tests, which share one tree.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|broken| broken.into_inner())
}

fn path(group: &Group, from: &Group) -> String {
    let mut text = String::new();
    group.write_path(from, |part| text.push_str(core::str::from_utf8(part).unwrap()));
    text
}

fn file(name: &str) -> &'static ControlFile {
    let own = files::FILES.iter();
    let all = own.chain(CONTROLLERS.iter().flat_map(|controller| controller.files()));
    all.into_iter().find(|file| file.name == name).unwrap()
}

fn says(group: &Group, name: &str) -> String {
    let mut text = String::new();
    (file(name).show)(group, &mut text).unwrap();
    text
}

fn store(group: &Group, name: &str, text: &str) -> Result<()> {
    (file(name).store.unwrap())(group, text.as_bytes())
}

fn ends(member: &CgroupMember) {
    member.thread_ended(EndedThread::Last);
    member.reaped(CpuTime::default);
}

#[test]
fn paths_are_seen_from_a_namespace() {
    let _alone = alone();
    let [a, other] = [b"a", b"b"].map(|name| make(root(), name).unwrap());
    let below = make(&a, b"c").unwrap();
    let seen = [(&below, root(), "/a/c"), (&below, &a, "/c"), (&a, &a, "/"), (&other, &below, "/../../b")];
    for (group, from, text) in seen {
        assert_eq!(path(group, from), text);
    }
    assert_eq!((path(root(), root()).as_str(), path(root(), &a).as_str()), ("/", "/.."));
    assert_eq!(remove(&a), Err(Errno::EBUSY));
    [&below, &a, &other].into_iter().for_each(|group| remove(group).unwrap());
    assert_eq!((remove(&a), make(&a, b"d").err()), (Err(Errno::ENODEV), Some(Errno::ENODEV)));
}

#[test]
fn a_group_without_memory_is_not_there() {
    let _alone = alone();
    let before = tree::count();
    for _ in 0..40 {
        let (made, _) = each_fails(|| {
            let made = make(root(), b"x");
            assert_eq!(tree::count(), before + usize::from(made.is_ok()));
            made
        });
        remove(&made.unwrap()).unwrap();
    }
    assert_eq!(tree::count(), before);
}

#[test]
fn a_number_is_given_again_when_the_last_member_was_waited_for() {
    let _alone = alone();
    let before = tree::count();
    let group = make(root(), b"x").unwrap();
    let member = Fork::into(&group).unwrap();
    let place = member.place();
    member.keep();
    assert_eq!(remove(&group), Err(Errno::EBUSY));
    place.thread_ended(EndedThread::Last);
    remove(&group).unwrap();
    assert_eq!((place.group().id(), tree::count()), (group.id(), before + 1));
    assert_eq!(says(root(), "cgroup.stat").lines().last(), Some("nr_dying_descendants 1"));
    group.hold();
    place.reaped(CpuTime::default);
    assert_eq!(tree::count(), before + 1, "a charge holds the number");
    group.release();
    assert_eq!(tree::count(), before);
    assert_eq!(says(root(), "cgroup.stat").lines().last(), Some("nr_dying_descendants 0"));
}

#[test]
fn tasks_are_limited_at_every_level_and_moves_are_not() {
    let _alone = alone();
    let a = make(root(), b"a").unwrap();
    let b = make(&a, b"b").unwrap();
    store_subtree(root(), b"+pids").unwrap();
    assert_eq!(store(&b, "cgroup.subtree_control", "+pids"), Err(Errno::ENOENT));
    store_subtree(&a, b"+pids").unwrap();
    assert_eq!(store_subtree(root(), b"-pids"), Err(Errno::EBUSY));
    store(&a, "pids.max", "3").unwrap();
    let first = Fork::into(&b).unwrap();
    let member = first.place();
    first.keep();
    let second = member.fork().unwrap();
    member.fork_thread().unwrap().keep();
    assert_eq!((member.fork().err(), member.fork_thread().err()), (Some(Errno::EAGAIN), Some(Errno::EAGAIN)));
    assert_eq!((says(&b, "pids.current"), says(&a, "pids.current")), ("3\n".into(), "3\n".into()));
    assert_eq!((says(&a, "pids.events"), says(&b, "pids.events")), ("max 2\n".into(), "max 0\n".into()));
    drop(second);
    member.fork().unwrap();
    // The first thread has ended and keeps the ID: two tasks, until a program replaces them.
    member.thread_ended(EndedThread::Leader);
    assert_eq!(says(&b, "pids.current"), "2\n");
    member.executed();
    assert_eq!(says(&b, "pids.current"), "1\n");
    store(&b, "pids.max", "0").unwrap();
    let outside = Fork::ROOT.place();
    outside.move_to(&b, CpuTime::default()).unwrap();
    assert_eq!((says(&b, "pids.current"), says(&b, "pids.peak")), ("2\n".into(), "3\n".into()));
    assert_eq!(outside.move_to(&a, CpuTime::default()).err(), Some(Errno::EBUSY));
    outside.move_to(root(), CpuTime::default()).unwrap();
    ends(&member);
    assert_eq!(says(&a, "pids.current"), "0\n");
    store_subtree(&a, b"-pids").unwrap();
    store_subtree(root(), b"-pids").unwrap();
    [&b, &a].into_iter().for_each(|group| remove(group).unwrap());
}

#[test]
fn a_group_is_frozen_when_all_in_it_and_below_stand_still() {
    let _alone = alone();
    let a = make(root(), b"a").unwrap();
    let b = make(&a, b"b").unwrap();
    let member = Fork::ROOT.place();
    member.move_to(&b, CpuTime::default()).unwrap();
    a.set_freezes(Freeze::Yes).unwrap();
    assert!(member.is_freezing() && !a.is_frozen() && a.is_populated());
    let told = a.changes(Notice::Events);
    member.count_frozen(FrozenChange::Stands);
    assert!(a.is_frozen() && b.is_frozen() && a.changes(Notice::Events) == told + 1);
    let child = member.fork().unwrap();
    assert!(!a.is_frozen());
    drop(child);
    assert!(a.is_frozen());
    member.move_to(&a, CpuTime::default()).unwrap();
    assert!(a.is_frozen() && b.is_frozen() && !b.is_populated());
    member.count_frozen(FrozenChange::GoesOn);
    ends(&member);
    [&b, &a].into_iter().for_each(|group| remove(group).unwrap());
}

#[test]
fn cpu_time_stays_where_it_was_used() {
    let _alone = alone();
    let a = make(root(), b"a").unwrap();
    let b = make(&a, b"b").unwrap();
    let used = |user| CpuTime { user, system: 0 };
    let member = Fork::ROOT.place();
    member.move_to(&b, used(100)).unwrap();
    assert_eq!(b.usage(|| used(150).since(member.came_with())), used(50));
    member.move_to(&a, used(200)).unwrap();
    assert_eq!((b.usage(CpuTime::default), a.usage(CpuTime::default)), (used(100), used(100)));
    member.thread_ended(EndedThread::Last);
    member.reaped(|| used(270));
    assert_eq!((b.usage(CpuTime::default), a.usage(CpuTime::default)), (used(100), used(170)));
    [&b, &a].into_iter().for_each(|group| remove(group).unwrap());
}

#[test]
fn a_fork_takes_notice_of_a_kill() {
    let _alone = alone();
    let a: Arc<Group> = make(root(), b"a").unwrap();
    let b = make(&a, b"b").unwrap();
    let [one, two] = [(); 2].map(|()| Fork::into(&b).unwrap());
    let places = [one.place(), two.place()];
    assert!(!one.keep().was_killed);
    a.begin_kill();
    assert!(two.keep().was_killed);
    places.iter().for_each(ends);
    [&b, &a].into_iter().for_each(|group| remove(group).unwrap());
}

/// Accounts whose page caches can be dropped.
struct Droppable(&'static Accounts);

impl Charging for Droppable {
    fn begin(&self) -> Result<()> {
        Ok(())
    }
    fn enforce(&self, _account: AccountId, _limit: AccountLimit) -> Result<()> {
        Ok(())
    }
    fn take_back(&self, account: AccountId, _frames: u64) -> Result<u64> {
        let files = self.0.charged_kinds(account).of(freehold_charge::ChargedKind::File);
        self.0.uncharge(account, Owner::PageCache, files);
        Ok(files)
    }
}

#[test]
fn removed_groups_page_caches_go_where_no_account_is_left() {
    let accounts: &'static Accounts = std::boxed::Box::leak(std::boxed::Box::new(Accounts::new()));
    let charging = Droppable(accounts);
    let open = || open_account(accounts, &charging, AccountId::ROOT);
    let charge = |account, owner| accounts.charge(account, owner, 1, Urgency::Limited).unwrap();
    for n in 0..AccountId::LAST {
        let account = open().unwrap();
        charge(account, if n == 5000 { Owner::PageCache } else { Owner::Anon });
        if n == 7000 {
            // This account also has anonymous memory: dropping its files would not suffice.
            charge(account, Owner::PageCache);
        }
        if n < 8000 {
            accounts.close(account);
        }
    }
    let again = open().unwrap();
    assert_eq!(accounts.charged(again, Resource::Memory), 0);
    assert_eq!(open(), Err(Errno::ENOSPC), "what is left is no file's");
}
