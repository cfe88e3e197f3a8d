//! Capabilities: what a process may do beside what its user may (capabilities(7)).
//!
//! Three sets, changed in three ways: by capset, which only takes away or brings back what is
//! permitted; by a change of user, where who stops being user 0 loses them, or keeps what is
//! permitted (PR_SET_KEEPCAPS); by execve, where user 0 gets all. There are no ambient ones, none
//! in files, no bounding set that shrinks, and no securebits.

use super::credentials::Credentials;
use crate::{Errno, Result};

/// One capability, by Linux' number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Capability {
    /// File permissions do not bind.
    DacOverride = 1,
    /// Signals to anybody.
    Kill = 5,
    /// Any group.
    SetGid = 6,
    /// Any user.
    SetUid = 7,
    /// Ports below 1024.
    NetBindService = 10,
    /// Network devices, addresses and routes set.
    NetAdmin = 12,
    /// Locked memory without limit.
    IpcLock = 14,
    /// System V objects of anybody.
    IpcOwner = 15,
    /// Another root directory.
    SysChroot = 18,
    /// A look into any process.
    SysPtrace = 19,
    /// All that has no capability of its own.
    SysAdmin = 21,
    /// Any priority, and pages of others moved.
    SysNice = 23,
    /// Limits raised.
    SysResource = 24,
    /// The clock set.
    SysTime = 25,
    /// Terminals hung up.
    SysTtyConfig = 26,
    /// Capabilities of files set.
    SetFcap = 31,
    /// The kernel's log read.
    Syslog = 34,
    /// IDs of processes chosen.
    CheckpointRestore = 40,
}

/// Every capability that there is (CAP_LAST_CAP is 40).
pub const ALL: u64 = (1 << 41) - 1;
/// Those about files, which follow the file system user: chown, the two DAC ones, fowner, fsetid,
/// immutable, mknod, MAC override.
const OF_FILES: u64 = 0b1_1111 | 1 << 9 | 1 << 27 | 1 << 32;

/// The sets of a process, a bit for each capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// What counts.
    pub effective: u64,
    /// What may become effective again.
    pub permitted: u64,
    /// What execve may keep.
    pub inheritable: u64,
}

impl Default for Capabilities {
    /// User 0's.
    fn default() -> Self {
        Self { effective: ALL, permitted: ALL, inheritable: 0 }
    }
}

impl Capabilities {
    /// Whether it is effective.
    pub const fn has(self, capability: Capability) -> bool {
        self.effective & 1 << capability as u8 != 0
    }

    /// Whether it may become effective.
    pub const fn permits(self, capability: Capability) -> bool {
        self.permitted & 1 << capability as u8 != 0
    }

    /// What is left of `old`'s after its identities became those of `new`.
    pub(super) fn after_ids(old: &Credentials, new: &Credentials) -> Self {
        let mut sets = new.capabilities;
        // User 0 is that of their namespace, which no id is where it has no mapping.
        let root = new.user_ns.root();
        let is_root = |id: u32| root == Some(id);
        let was_root = [old.uid, old.euid, old.suid].into_iter().any(is_root);
        if was_root && !old.keeps_capabilities && ![new.uid, new.euid, new.suid].into_iter().any(is_root) {
            (sets.permitted, sets.effective) = (0, 0);
        }
        match (is_root(old.euid), is_root(new.euid)) {
            (true, false) => sets.effective = 0,
            (false, true) => sets.effective = sets.permitted,
            _ => match (is_root(old.fsuid), is_root(new.fsuid)) {
                (true, false) => sets.effective &= !OF_FILES,
                (false, true) => sets.effective |= sets.permitted & OF_FILES,
                _ => {}
            },
        }
        sets
    }

    /// What a program begins with that `credentials` run.
    pub(super) fn after_exec(credentials: &Credentials) -> Self {
        let user = credentials.user_ns.root();
        let root = |id: u32| if user == Some(id) { ALL } else { 0 };
        let permitted = root(credentials.uid) | root(credentials.euid);
        Self {
            effective: root(credentials.euid),
            permitted,
            inheritable: credentials.capabilities.inheritable,
        }
    }

    /// The sets that a program asked for.
    ///
    /// # Errors
    /// `EPERM` for what was not permitted before.
    pub fn ask(self, new: Self) -> Result<Self> {
        let gained = new.permitted & !self.permitted | new.effective & !new.permitted;
        let inherited = new.inheritable & !(self.inheritable | self.permitted);
        if gained | inherited != 0 { Err(Errno::EPERM) } else { Ok(new) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(uid: u32, euid: u32, suid: u32) -> Credentials {
        Credentials { uid, euid, suid, fsuid: euid, ..Credentials::default() }
    }

    /// A change from `old` to `new`.
    fn change(old: &Credentials, new: Credentials) -> Credentials {
        let mut new = Credentials { capabilities: old.capabilities, ..new };
        new.capabilities = Capabilities::after_ids(old, &new);
        new
    }

    /// Who is user 0 in no way any more has none, for good; who is for a while another gets them
    /// back.
    #[test]
    fn who_stops_being_user_0_loses_them() {
        let root = ids(0, 0, 0);
        let for_good = change(&root, ids(1000, 1000, 1000));
        assert_eq!((for_good.capabilities.effective, for_good.capabilities.permitted), (0, 0));
        let aside = change(&root, ids(0, 1000, 0));
        assert_eq!((aside.capabilities.effective, aside.capabilities.permitted), (0, ALL));
        assert_eq!(change(&aside, ids(0, 0, 0)).capabilities, root.capabilities);
        let files = change(&root, Credentials { fsuid: 1000, ..ids(0, 0, 0) });
        assert!(!files.capabilities.has(Capability::DacOverride) && files.capabilities.has(Capability::Kill));
    }

    /// What was dropped cannot be had again but by execve as user 0.
    #[test]
    fn dropped_ones_stay_dropped() {
        let lock = 1u64 << Capability::IpcLock as u8;
        let all = Capabilities::default();
        let less = all.ask(Capabilities { effective: ALL & !lock, permitted: ALL & !lock, inheritable: 0 });
        let less = less.unwrap();
        assert!(!less.has(Capability::IpcLock) && less.has(Capability::SysAdmin));
        assert_eq!(less.ask(all), Err(Errno::EPERM));
        let asleep = all.ask(Capabilities { effective: 0, ..all }).unwrap();
        assert_eq!(asleep.ask(all), Ok(all), "what is permitted comes back");
        assert_eq!(
            all.ask(Capabilities { permitted: 0, ..all }),
            Err(Errno::EPERM),
            "effective but not permitted"
        );
        let mut root = ids(0, 0, 0);
        root.capabilities = less;
        assert_eq!(Capabilities::after_exec(&root), all);
        assert_eq!(Capabilities::after_exec(&ids(1000, 1000, 1000)).permitted, 0);
    }
}
