//! The account that a process pays for memory with: that of its control group.
//!
//! Each thread knows it ([`Thread::account`](crate::sched::Thread::account)), so that the page
//! allocator need not ask. The payer depends on the group of a process and on the accounts of
//! groups. Code that changes one of them makes the process [look](Process::look_at_payer)
//! afterwards. So does code that makes a process or a thread, once it can be found. A look stores
//! the payer that it finds, so the last of several looks stores the current one.

use freehold_machine::Cpus as _;

use super::{Process, registry};
use crate::cgroup::{self, Group};
use crate::hw::Hardware;
use crate::sched;

impl Process {
    /// Looks which account it pays with, and has its threads pay with that.
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

/// Has all processes of a group and below look which accounts they pay with.
pub fn look_at_all(group: &Group) {
    for process in registry::processes() {
        if cgroup::is_below(process.cgroup.number(), group) {
            process.look_at_payer();
        }
        sched::rest();
    }
}
