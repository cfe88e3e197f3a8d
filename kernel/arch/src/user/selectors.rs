//! The selectors of a program's data segments, for a tracer to read and change.

use core::sync::atomic::Ordering;

use super::{USER_DATA, UserContext};

impl UserContext {
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
