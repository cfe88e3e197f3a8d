//! The account to which a process' memory is charged: that of its control group.
//!
//! Each thread stores it ([`Thread::account`](crate::sched::Thread::account)), so that the page
//! allocator need not search. The payer depends on the group of a process and on the accounts of
//! groups. Code that changes one of them calls [`Process::look_at_payer`] afterwards. So does code
//! that makes a process or a thread, once it can be found. The call stores the payer that it finds,
//! so the last of several calls stores the current one.

use freehold_machine::Cpus as _;

use super::Process;
use super::cgroup_members::for_each_member;
use crate::cgroup::Group;
use crate::hw::Hardware;

impl Process {
    /// Finds the account of the process, and charges its threads' memory to it from now on.
    pub fn look_at_payer(&self) {
        if !Hardware.charges_frames() {
            return;
        }
        loop {
            let account = self.cgroup.group().payer();
            self.space().set_account(account);
            for thread in &self.signals.lock().threads {
                thread.thread().set_account(account);
            }
            if self.cgroup.group().payer() == account {
                return;
            }
        }
    }
}

/// Makes all processes of a group and below find their accounts.
pub fn look_at_all(group: &Group) {
    for_each_member(group, |process| process.look_at_payer());
}
