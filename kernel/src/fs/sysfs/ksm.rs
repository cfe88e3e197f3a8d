//! /sys/kernel/mm/ksm: merging of equal pages (Documentation/admin-guide/mm/ksm.rst).
//!
//! There are no chains of merged frames with one content, and so no files about them; and no
//! advisor that changes `pages_to_scan`.

use freehold_collections::Arc;

use super::huge::{number, parse};
use crate::Result;
use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::mem::ksm::{self, Knob};

pub(super) fn fill(root: &Arc<PseudoDir>) {
    let dir = root.dirs("kernel/mm/ksm");
    dir.generated("run", 0o644, Setting(None));
    for (name, knob) in Knob::ALL {
        dir.generated(name, 0o644, Setting(Some(knob)));
    }
    let shown: [(_, fn() -> Result<u64>); 9] = [
        ("pages_shared", || Ok(ksm::sums()?.shared)),
        ("pages_sharing", || Ok(ksm::sums()?.sharing)),
        ("pages_unshared", || Ok(ksm::figures().unshared)),
        ("pages_volatile", || Ok(ksm::figures().volatile)),
        ("pages_skipped", || Ok(ksm::figures().skipped)),
        ("pages_scanned", || Ok(ksm::figures().scanned)),
        ("full_scans", || Ok(ksm::figures().passes)),
        ("ksm_zero_pages", || Ok(ksm::pages_of_all()?.zeroes)),
        ("general_profit", ksm::general_profit),
    ];
    for (name, value) in shown {
        dir.file(name, move |out| number(out, value()?));
    }
}

/// A setting; `None` is the state.
struct Setting(Option<Knob>);

impl Generate for Setting {
    fn show(&self, out: &mut Text) -> Result<()> {
        number(out, self.0.map_or_else(ksm::state, Knob::get))
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        let value = parse(bytes)?;
        match self.0 {
            Some(knob) => knob.set(value),
            None => ksm::set_state(value),
        }
    }
}
