//! Capabilities: rights of a process in addition to those of its user (capabilities(7)).
//!
//! Four calls change the five sets. capset removes capabilities, or makes permitted ones effective
//! again. A change of user removes them from a process that stops being user 0, unless it keeps its
//! permitted set (PR_SET_KEEPCAPS). execve gives user 0 all that the bounding set allows, and keeps
//! the ambient set of others. prctl removes from the bounding set, changes the ambient set, and
//! sets the bits for the special rights of user 0. Files have no capabilities. Linux' nearest
//! relative is security/commoncap.c.

use super::credentials::Credentials;
use crate::{Errno, Result};

/// One capability, by Linux' number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Capability {
    /// Give files to any user and group.
    Chown = 0,
    /// Bypass file permissions.
    DacOverride = 1,
    /// Search directories despite their permissions, and open files by handle.
    DacReadSearch = 2,
    /// Act as the owner of any file.
    FOwner = 3,
    /// Change a file's bytes without clearing its set-user-ID and set-group-ID bits, and set the
    /// set-group-ID bit for a group of others.
    FSetId = 4,
    /// Send signals to any process.
    Kill = 5,
    /// Adopt any group.
    SetGid = 6,
    /// Adopt any user.
    SetUid = 7,
    /// Change the bounding set and the secure bits.
    SetPcap = 8,
    /// Bind to ports below 1024.
    NetBindService = 10,
    /// Set network devices, addresses and routes.
    NetAdmin = 12,
    /// Use raw sockets.
    NetRaw = 13,
    /// Lock memory without limit.
    IpcLock = 14,
    /// Use System V objects of any user.
    IpcOwner = 15,
    /// Change the root directory.
    SysChroot = 18,
    /// Inspect any process.
    SysPtrace = 19,
    /// All operations that have no separate capability.
    SysAdmin = 21,
    /// End the machine, and the first process of a PID namespace, by reboot(2).
    SysBoot = 22,
    /// Set any priority, and move pages of other processes.
    SysNice = 23,
    /// Raise limits.
    SysResource = 24,
    /// Set the clock.
    SysTime = 25,
    /// Hang up terminals.
    SysTtyConfig = 26,
    /// Make nodes of devices.
    MkNod = 27,
    /// Take leases on files of any user.
    Lease = 28,
    /// Change the login user of a process that is already logged in.
    AuditControl = 30,
    /// Set capabilities of files.
    SetFcap = 31,
    /// Read the kernel's log.
    Syslog = 34,
    /// Choose IDs of processes.
    CheckpointRestore = 40,
}

/// Every capability that there is (CAP_LAST_CAP is 40).
pub const ALL: u64 = (1 << 41) - 1;
/// Capabilities about files. They follow the file system user: chown, DAC override and DAC read
/// search, fowner, fsetid, immutable, mknod, MAC override.
const OF_FILES: u64 = 0b1_1111 | 1 << 9 | 1 << 27 | 1 << 32;

/// The capability sets of a process, with one bit per capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The capabilities that permit an operation now.
    pub effective: u64,
    /// The capabilities that may become effective again.
    pub permitted: u64,
    /// The capabilities that execve may keep.
    pub inheritable: u64,
    /// The capabilities that execve may give to user 0, and that may become inheritable. This set
    /// only shrinks.
    pub bounding: u64,
    /// The permitted and inheritable capabilities that execve keeps for a program without special
    /// rights.
    pub ambient: u64,
    /// The special rights of user 0.
    pub secure: SecureBits,
}

/// Bits that decide whether user 0 has capabilities, and whether these follow the user
/// (PR_SET_SECUREBITS). The bit above each of them locks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SecureBits(pub u32);

impl SecureBits {
    /// User 0 gets nothing by execve.
    pub const NO_ROOT: Self = Self(1);
    /// A change of user changes no set.
    pub const NO_SETUID_FIXUP: Self = Self(1 << 2);
    /// A process that stops being user 0 keeps its permitted set, until execve.
    pub const KEEP_CAPS: Self = Self(1 << 4);
    /// No capability becomes ambient.
    pub const NO_AMBIENT_RAISE: Self = Self(1 << 6);
    /// The lock bits of all bits.
    pub const LOCKS: Self = Self(0xaa);

    /// Whether all of `bits` are set.
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Whether the bits of `bits` are locked.
    pub const fn locks(self, bits: Self) -> bool {
        self.0 & Self::LOCKS.0 & bits.0 << 1 != 0
    }

    /// Returns the value with `bits` set or cleared, by `there`.
    pub const fn with(self, bits: Self, there: Presence) -> Self {
        match there {
            Presence::Set => Self(self.0 | bits.0),
            Presence::Clear => Self(self.0 & !bits.0),
        }
    }

    /// Returns `new`, if the bits may change to it.
    ///
    /// # Errors
    /// `EPERM` for bits that do not exist, for clearing a lock, or for changing a locked bit.
    pub fn change(self, new: Self) -> Result<Self> {
        let locks = self.0 & Self::LOCKS.0;
        let changed = (self.0 ^ new.0) & locks >> 1;
        if new.0 & !0xff != 0 || locks & !new.0 != 0 || changed != 0 { Err(Errno::EPERM) } else { Ok(new) }
    }
}

/// Whether a bit is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The bit is set.
    Set,
    /// The bit is clear.
    Clear,
}

/// Whether execve may give capabilities that were not permitted before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gains {
    /// execve may give new capabilities.
    Allowed,
    /// execve may not: the process has no_new_privs or a tracer.
    Refused,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl Capabilities {
    /// All capabilities: those of user 0, and of a process that enters a user namespace.
    pub const WHOLE: Self = Self { effective: ALL, permitted: ALL, ..Self::NONE };
    /// No effective capability, and none that can become effective except by execve.
    pub const NONE: Self =
        Self { effective: 0, permitted: 0, inheritable: 0, bounding: ALL, ambient: 0, secure: SecureBits(0) };

    /// Whether a capability is effective.
    pub const fn has(self, capability: Capability) -> bool {
        self.effective & 1 << capability as u8 != 0
    }

    /// Whether a capability may become effective.
    pub const fn permits(self, capability: Capability) -> bool {
        self.permitted & 1 << capability as u8 != 0
    }

    /// Returns the sets that remain of `old` after its identities became those of `new`.
    pub(super) fn after_ids(old: &Credentials, new: &Credentials) -> Self {
        let mut sets = new.capabilities;
        // User 0 of the user namespace. Without a mapping, no ID is its user 0.
        let root = new.user_ns.root();
        let is_root = |id: u32| root == Some(id);
        if sets.secure.has(SecureBits::NO_SETUID_FIXUP) {
            return sets;
        }
        let was_root = [old.uid, old.euid, old.suid].into_iter().any(is_root);
        if was_root && ![new.uid, new.euid, new.suid].into_iter().any(is_root) {
            sets.ambient = 0;
            if !sets.secure.has(SecureBits::KEEP_CAPS) {
                (sets.permitted, sets.effective) = (0, 0);
            }
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

    /// Returns the sets that a program begins with, given the sets that `credentials` had before
    /// (Linux: `cap_bprm_creds_from_file`).
    pub(super) fn after_exec(credentials: &Credentials, gains: Gains) -> Self {
        let mut sets = credentials.capabilities;
        let user = credentials.user_ns.root();
        let root = |id: u32| user == Some(id) && !sets.secure.has(SecureBits::NO_ROOT);
        let all = sets.bounding | sets.inheritable;
        let mut permitted = if root(credentials.uid) || root(credentials.euid) { all } else { 0 };
        let is_effective = root(credentials.euid);
        if gains == Gains::Refused {
            permitted &= sets.permitted;
        }
        if credentials.uid != credentials.euid || credentials.gid != credentials.egid {
            sets.ambient = 0;
        }
        sets.permitted = permitted | sets.ambient;
        sets.effective = if is_effective { sets.permitted } else { sets.ambient };
        sets.secure = sets.secure.with(SecureBits::KEEP_CAPS, Presence::Clear);
        sets
    }

    /// Returns the sets after a program requested the effective, permitted and inheritable sets of
    /// `new`.
    ///
    /// # Errors
    /// `EPERM` for a capability that was not permitted before, or that could not become
    /// inheritable. With CAP_SETPCAP all capabilities of the bounding set can.
    pub fn ask(self, new: Self) -> Result<Self> {
        let gained = new.permitted & !self.permitted | new.effective & !new.permitted;
        let capped = if self.has(Capability::SetPcap) { ALL } else { self.inheritable | self.permitted };
        let inherited = new.inheritable & !(capped & (self.inheritable | self.bounding));
        if gained | inherited != 0 {
            return Err(Errno::EPERM);
        }
        let ambient = self.ambient & new.permitted & new.inheritable;
        Ok(Self { bounding: self.bounding, secure: self.secure, ambient, ..new })
    }

    /// Makes capability `number` ambient.
    ///
    /// # Errors
    /// `EPERM` if it is not both permitted and inheritable, or if no capability may become ambient.
    pub fn raise_ambient(self, number: u32) -> Result<Self> {
        let bit = 1 << number;
        let refused = self.secure.has(SecureBits::NO_AMBIENT_RAISE);
        if refused || self.permitted & self.inheritable & bit == 0 {
            return Err(Errno::EPERM);
        }
        Ok(Self { ambient: self.ambient | bit, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(uid: u32, euid: u32, suid: u32) -> Credentials {
        Credentials { uid, euid, suid, fsuid: euid, ..Credentials::default() }
    }

    /// Applies a change from `old` to `new`.
    fn change(old: &Credentials, new: Credentials) -> Credentials {
        let mut new = Credentials { capabilities: old.capabilities, ..new };
        new.capabilities = Capabilities::after_ids(old, &new);
        new
    }

    /// A process whose IDs are no longer 0 at all loses its capabilities permanently. One that
    /// changes only its effective user gets them back.
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

    /// Only execve as user 0 restores a capability that was dropped.
    #[test]
    fn dropped_ones_stay_dropped() {
        let lock = 1u64 << Capability::IpcLock as u8;
        let all = Capabilities::default();
        let less = all.ask(Capabilities { effective: ALL & !lock, permitted: ALL & !lock, ..all });
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
        assert_eq!(Capabilities::after_exec(&root, Gains::Allowed), all);
        assert_eq!(Capabilities::after_exec(&root, Gains::Refused), less);
        assert_eq!(Capabilities::after_exec(&ids(1000, 1000, 1000), Gains::Allowed).permitted, 0);
    }

    /// execve restores no capability that was removed from the bounding set, unless it is
    /// inheritable.
    #[test]
    fn the_bounding_set_bounds() {
        let lock = 1u64 << Capability::IpcLock as u8;
        let mut root = ids(0, 0, 0);
        root.capabilities.bounding &= !lock;
        assert_eq!(Capabilities::after_exec(&root, Gains::Allowed).effective, ALL & !lock);
        let inherits = Capabilities { inheritable: lock, ..root.capabilities };
        assert_eq!(root.capabilities.ask(inherits), Err(Errno::EPERM));
        root.capabilities.inheritable = lock;
        assert_eq!(Capabilities::after_exec(&root, Gains::Allowed).effective, ALL);
    }

    /// An ambient capability survives execve by a user. It is removed with the sets that it depends
    /// on, and when user 0 becomes another user.
    #[test]
    fn ambient_ones_are_kept() {
        let lock = 1u64 << Capability::IpcLock as u8;
        let mut user = ids(1000, 1000, 1000);
        let held = Capabilities { permitted: lock, inheritable: lock, ..Capabilities::NONE };
        user.capabilities = held.raise_ambient(Capability::IpcLock as u32).unwrap();
        assert_eq!(held.raise_ambient(Capability::Kill as u32), Err(Errno::EPERM));
        let after = Capabilities::after_exec(&user, Gains::Refused);
        assert_eq!((after.effective, after.permitted, after.ambient), (lock, lock, lock));
        let set_id = Credentials { euid: 1001, ..user.clone() };
        assert_eq!(Capabilities::after_exec(&set_id, Gains::Allowed).permitted, 0);
        let nothing = Capabilities { inheritable: 0, ..user.capabilities };
        assert_eq!(user.capabilities.ask(nothing).unwrap().ambient, 0);
        let mut root = ids(0, 0, 0);
        root.capabilities.ambient = lock;
        root.capabilities.secure = SecureBits::KEEP_CAPS;
        let kept = change(&root, ids(1000, 1000, 1000)).capabilities;
        assert_eq!((kept.permitted, kept.ambient), (ALL, 0));
    }

    /// A locked bit does not change, and neither does its lock.
    #[test]
    fn locked_secure_bits_stay() {
        let locked = SecureBits::default().change(SecureBits(0b11)).unwrap();
        for bad in [SecureBits(0b10), SecureBits(0b01), SecureBits(0), SecureBits(0x100)] {
            assert_eq!(locked.change(bad), Err(Errno::EPERM));
        }
        assert_eq!(locked.change(SecureBits(0b111)), Ok(SecureBits(0b111)));
        assert!(locked.locks(SecureBits::NO_ROOT) && !locked.locks(SecureBits::KEEP_CAPS));
        let mut root = ids(0, 0, 0);
        root.capabilities.secure = SecureBits::NO_ROOT;
        assert_eq!(Capabilities::after_exec(&root, Gains::Allowed).permitted, 0);
        root.capabilities.secure = SecureBits::NO_SETUID_FIXUP;
        assert_eq!(change(&root, ids(1000, 1000, 1000)).capabilities.effective, ALL);
    }
}
