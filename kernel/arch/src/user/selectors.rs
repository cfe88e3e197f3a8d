//! The selectors of a program's data segments, for a tracer to read and change, and the bases of FS
//! and GS.

use core::sync::atomic::Ordering;

use super::{NotUserAddress, USER_DATA, USER_END, UserContext};

const FS_SELECTOR: u64 = 0xffff << 32;
const GS_SELECTOR: u64 = 0xffff << 48;

impl UserContext {
    /// Where FS points: any canonical address.
    pub fn fs_base(&self) -> u64 {
        self.save_if_live();
        self.resident().fs_base.load(Ordering::Relaxed)
    }
    /// Where GS points: any canonical address.
    pub fn gs_base(&self) -> u64 {
        self.save_if_live();
        self.resident().gs_base.load(Ordering::Relaxed)
    }
    /// Point FS elsewhere; its selector becomes null.
    ///
    /// # Errors
    /// When that is not a user address.
    pub fn set_fs_base(&mut self, base: u64) -> Result<(), NotUserAddress> {
        if base >= USER_END {
            return Err(NotUserAddress);
        }
        self.save_if_live();
        self.resident().fs_base.store(base, Ordering::Relaxed);
        self.resident().selectors.fetch_and(!FS_SELECTOR, Ordering::Relaxed);
        Ok(())
    }
    /// Point GS elsewhere; its selector becomes null.
    ///
    /// # Errors
    /// When that is not a user address.
    pub fn set_gs_base(&mut self, base: u64) -> Result<(), NotUserAddress> {
        if base >= USER_END {
            return Err(NotUserAddress);
        }
        self.save_if_live();
        self.resident().gs_base.store(base, Ordering::Relaxed);
        self.resident().selectors.fetch_and(!GS_SELECTOR, Ordering::Relaxed);
        Ok(())
    }
    /// The selectors of DS, ES, FS and GS.
    pub fn data_selectors(&self) -> [u16; 4] {
        self.save_if_live();
        let packed = self.resident().selectors.load(Ordering::Relaxed);
        [0, 16, 32, 48].map(|shift| (packed >> shift) as u16)
    }
    /// Changes the selectors of DS, ES, FS and GS to null or [`USER_DATA`]. The bases of FS and GS
    /// stay.
    ///
    /// # Panics
    /// For any other selector, which the CPU might refuse.
    pub fn set_data_selectors(&mut self, selectors: [u16; 4]) {
        assert!(
            selectors.iter().all(|&one| one == 0 || u64::from(one) == USER_DATA),
            "a selector of programs"
        );
        self.save_if_live();
        let packed = selectors.iter().rev().fold(0, |packed, &one| packed << 16 | u64::from(one));
        self.resident().selectors.store(packed, Ordering::Relaxed);
    }
}
