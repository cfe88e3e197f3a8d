//! Protection keys (Intel SDM volume 3A, 4.6.2): each user page has one of sixteen keys, and each
//! thread has rights to the pages of each key, in its register PKRU.

use crate::Access;

/// A protection key: a number below 16 in the leaves of a user page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProtectionKey(u8);

impl ProtectionKey {
    /// The key of a page that was given none.
    pub const DEFAULT: Self = Self(0);
    /// Number of keys.
    pub const COUNT: u8 = 16;

    /// Returns the key with this number, if there is one.
    pub const fn new(number: u64) -> Option<Self> {
        if number < Self::COUNT as u64 { Some(Self(number as u8)) } else { None }
    }
    /// Returns the key's number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The rights of a thread to pages by their keys: the value of PKRU. They restrict loads and
/// stores, of the program and of the kernel at the program's addresses. They do not restrict the
/// fetch of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRights(u32);

impl KeyRights {
    /// The rights that a program begins with: pages of the default key only (Linux: `init_pkru`).
    pub const INITIAL: Self = Self(0x5555_5554);
    /// In a denial: neither loads nor stores (PKEY_DISABLE_ACCESS).
    pub const DENY_ACCESS: u32 = 1;
    /// In a denial: no stores (PKEY_DISABLE_WRITE).
    pub const DENY_WRITE: u32 = 2;

    /// Returns the rights that are stored as `bits` in PKRU.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
    /// Returns the value of PKRU.
    pub const fn bits(self) -> u32 {
        self.0
    }
    /// Returns the denial for `key`: [`DENY_ACCESS`](Self::DENY_ACCESS) and
    /// [`DENY_WRITE`](Self::DENY_WRITE).
    pub const fn denial(self, key: ProtectionKey) -> u32 {
        self.0 >> (2 * key.0) & 3
    }
    /// Returns these rights with another denial for `key`.
    #[must_use]
    pub const fn with_denial(self, key: ProtectionKey, denial: u32) -> Self {
        Self(self.0 & !(3 << (2 * key.0)) | (denial & 3) << (2 * key.0))
    }
    /// Whether `access` to a page of `key` is denied.
    pub const fn denies(self, key: ProtectionKey, access: Access) -> bool {
        match access {
            Access::Read => self.denial(key) & Self::DENY_ACCESS != 0,
            Access::Write => self.denial(key) != 0,
            Access::Execute => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_one_key_each() {
        assert_eq!(ProtectionKey::new(16), None);
        let keys = || (0..16).map(|number| ProtectionKey::new(number).unwrap());
        for key in keys() {
            let first = KeyRights::INITIAL.denies(key, Access::Read);
            assert_eq!(first, key != ProtectionKey::DEFAULT);
            for denial in 0..4 {
                let rights = KeyRights::from_bits(0).with_denial(key, denial);
                assert_eq!(rights.denial(key), denial);
                assert_eq!(rights.denies(key, Access::Read), denial & 1 != 0);
                assert_eq!(rights.denies(key, Access::Write), denial != 0);
                assert!(!rights.denies(key, Access::Execute));
                assert!(keys().all(|other| other == key || rights.denial(other) == 0));
                assert_eq!(rights.with_denial(key, 0), KeyRights::from_bits(0));
            }
        }
    }
}
