//! The protection keys of a program (Linux: `mm_context_t`'s pkey_allocation_map and
//! execute_only_pkey).
//!
//! An address space knows which keys were given out. The key of an area is in the area and in its
//! leaves; the rights to it are each thread's own. Freeing a key changes no area, as on Linux: an
//! area may have a key that is free.

use freehold_machine::{ProtectionKey, VirtAddr};
use freehold_paging::Memory;

use crate::area::Area;
use crate::request::Protection;
use crate::{AddressSpace, VmError};

/// The keys of a program. A child has the same, and a new program has the default one only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySet {
    /// One bit per key that is in use.
    used: u16,
    /// The key of areas that can only be executed. It is in use, but not the program's.
    execute_only: Option<ProtectionKey>,
}

/// The protection key that mprotect gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyChange {
    /// Each area keeps its key. One that could only be executed, and had the key for that, gets the
    /// default key.
    Keep,
    /// This one.
    Set(ProtectionKey),
}

impl KeyChange {
    /// Returns the key that `area` gets; `execute_only` is the key of areas that can only be
    /// executed.
    pub(crate) fn of<S: Memory>(self, area: &Area<S>, execute_only: Option<ProtectionKey>) -> ProtectionKey {
        match self {
            Self::Set(key) => key,
            Self::Keep if area.protection == Protection::EXEC && execute_only == Some(area.key) => {
                ProtectionKey::DEFAULT
            }
            Self::Keep => area.key,
        }
    }
}

const fn bit(key: ProtectionKey) -> u16 {
    1 << key.number()
}

impl KeySet {
    /// The keys of a new program.
    pub const NEW: Self = Self { used: bit(ProtectionKey::DEFAULT), execute_only: None };

    /// Takes the lowest free key; `None` if all are in use.
    pub fn allocate(&mut self) -> Option<ProtectionKey> {
        let key = ProtectionKey::new(self.used.trailing_ones().into())?;
        self.used |= bit(key);
        Some(key)
    }
    /// Whether the program was given `key`, and has not freed it.
    pub fn has(&self, key: ProtectionKey) -> bool {
        self.used & bit(key) != 0 && self.execute_only != Some(key)
    }
    /// Gives `key` back.
    ///
    /// # Errors
    /// [`VmError::Invalid`] if the program does not have it.
    pub fn free(&mut self, key: ProtectionKey) -> Result<(), VmError> {
        if !self.has(key) {
            return Err(VmError::Invalid);
        }
        self.used &= !bit(key);
        Ok(())
    }
    /// Returns the key of areas that can only be executed, if there is one already.
    pub fn execute_only(&self) -> Option<ProtectionKey> {
        self.execute_only
    }
    /// As [`KeySet::execute_only`]; takes a key for it if there is none. `None` if none is free.
    pub fn take_execute_only(&mut self) -> Option<ProtectionKey> {
        if self.execute_only.is_none() {
            self.execute_only = self.allocate();
        }
        self.execute_only
    }
}

impl<S: Memory> AddressSpace<S> {
    /// The program's protection keys.
    pub const fn keys(&mut self) -> &mut KeySet {
        &mut self.keys
    }
    /// Returns the protection key at `addr`; the default one where nothing is mapped.
    pub fn key_at(&self, addr: VirtAddr) -> ProtectionKey {
        self.areas.at_shared(addr).map_or(ProtectionKey::DEFAULT, |area| area.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_keys_are_given_out_and_the_one_for_execution_is_among_them() {
        let mut keys = KeySet::NEW;
        let numbers: std::vec::Vec<u8> =
            core::iter::from_fn(|| keys.allocate()).map(ProtectionKey::number).collect();
        assert_eq!(numbers, (1..16).collect::<std::vec::Vec<u8>>());
        assert_eq!(keys.take_execute_only(), None);
        let seven = ProtectionKey::new(7).unwrap();
        assert_eq!(keys.free(seven), Ok(()));
        assert_eq!((keys.has(seven), keys.free(seven)), (false, Err(VmError::Invalid)));
        assert_eq!(keys.take_execute_only(), Some(seven));
        assert_eq!(keys.take_execute_only(), Some(seven), "it is taken once");
        assert_eq!((keys.has(seven), keys.free(seven)), (false, Err(VmError::Invalid)), "not the program's");
        assert_eq!(keys.allocate(), None);
        assert!(keys.has(ProtectionKey::DEFAULT));
    }
}
