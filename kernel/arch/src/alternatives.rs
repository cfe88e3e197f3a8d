//! Alternatives: instructions in the kernel's text that are chosen once, at start-up, by the CPU's
//! features and needs. A site costs no test when it runs.
//!
//! A *site* is a run of instructions that every CPU takes. A table in read-only data
//! (`alternative.s`) holds its replacement for CPUs that have a [`Feature`]. The replacement is in
//! read-only data, too, where no CPU can run it. It contains no address relative to itself. The
//! rest of a longer site becomes no-ops. Code jumps to a site's beginning only.
//!
//! [`apply`] runs on the first CPU, before a second one does and before text is copied to other
//! nodes: copies contain the chosen code, and their hashes are computed from it. Afterwards text
//! changes by patches only ([`freehold_replica`]).
//!
//! SMAP is not in this list: a CPU without it is refused, so STAC and CLAC always exist. The
//! nearest relative is Linux' arch/x86/kernel/alternative.c.

use freehold_machine::{PAGE_SIZE, VirtAddr};

#[cfg(target_os = "none")]
use crate::linker_table;
use crate::linker_table::absolute;
use crate::memory::{patching, tables};
use crate::registers::cpuid;
use crate::speculation;

/// A property or a need of a CPU. Numbers are those of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Feature {
    /// Repeated moves of bytes are as fast as moves of words (ERMS).
    FastStrings = 0,
    /// Repeated moves of a few bytes are fast, too (FSRM).
    FastShortStrings = 1,
    /// XSAVE can skip state that has not changed (XSAVEOPT).
    SavesChanges = 2,
    /// The CPU's buffers are cleared before a program runs (VERW).
    ClearsBuffers = 3,
}

impl Feature {
    const ALL: [Self; 4] =
        [Self::FastStrings, Self::FastShortStrings, Self::SavesChanges, Self::ClearsBuffers];

    /// The feature's name as in /proc/cpuinfo, if it has one there.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FastStrings => "erms",
            Self::FastShortStrings => "fsrm",
            Self::SavesChanges => "xsaveopt",
            Self::ClearsBuffers => "verw",
        }
    }

    /// Whether the CPU that runs this code has the feature.
    pub fn is_there(self) -> bool {
        match self {
            Self::FastStrings => cpuid(7, 0).ebx & 1 << 9 != 0,
            Self::FastShortStrings => cpuid(7, 0).edx & 1 << 4 != 0,
            Self::SavesChanges => cpuid(0xd, 1).eax & 1 != 0,
            Self::ClearsBuffers => speculation::clears_buffers(),
        }
    }
}

/// Chooses the code of all sites, once: on the first CPU, after [`speculation::start`], before text
/// is copied to other nodes and before another CPU runs. `is_wanted` selects among the CPU's
/// features. `note` is called for each feature with the number of sites that changed.
///
/// # Panics
/// If there is no memory for the patching window.
pub fn apply(is_wanted: impl Fn(Feature) -> bool, note: &mut dyn FnMut(Feature, usize)) {
    for feature in Feature::ALL.into_iter().filter(|&feature| is_wanted(feature)) {
        let sites = || entries().iter().filter(|entry| entry.feature == feature as u16);
        sites().for_each(AlternativeEntry::store);
        note(feature, sites().count());
    }
}

/// An entry of the table, as `alternative.s` writes it. Addresses are relative to the field that
/// contains them.
#[repr(C)]
struct AlternativeEntry {
    site: i32,
    code: i32,
    feature: u16,
    /// Bytes of the site, and of the replacement code.
    site_bytes: u8,
    code_bytes: u8,
}

/// Largest size of a site in bytes.
const LONGEST: usize = 64;

/// The addresses of each site.
pub(crate) fn sites() -> impl Iterator<Item = core::ops::Range<u64>> {
    entries().iter().map(|entry| {
        let start = absolute(&entry.site);
        start..start + u64::from(entry.site_bytes)
    })
}

impl AlternativeEntry {
    fn store(&self) {
        let bytes = usize::from(self.code_bytes);
        // SAFETY: the table says where the code is, in read-only data.
        let code = unsafe { core::slice::from_raw_parts(absolute(&self.code) as *const u8, bytes) };
        let mut whole = [0; LONGEST];
        let whole = &mut whole[..usize::from(self.site_bytes)];
        fill(whole, code);
        assert!(patching::prepare().is_ok(), "too little memory for the patching window");
        let (mut at, mut rest) = (absolute(&self.site), &whole[..]);
        while !rest.is_empty() {
            let offset = at as usize % PAGE_SIZE;
            let (now, later) = rest.split_at(rest.len().min(PAGE_SIZE - offset));
            let frame = tables::frame_at(VirtAddr(at)).expect("text is mapped");
            patching::store(frame, offset, now);
            (at, rest) = (at + now.len() as u64, later);
        }
    }
}

/// No-ops of one byte to nine (Intel SDM volume 2, NOP).
const NO_OPS: [&[u8]; 9] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0],
    &[0x0f, 0x1f, 0x44, 0, 0],
    &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
    &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
];

/// Fills a site with `code` and no-ops.
///
/// # Panics
/// If `code` is longer than the site.
fn fill(site: &mut [u8], code: &[u8]) {
    let (begin, mut rest) = site.split_at_mut(code.len());
    begin.copy_from_slice(code);
    while !rest.is_empty() {
        let no_op = NO_OPS[rest.len().min(NO_OPS.len()) - 1];
        let (now, later) = rest.split_at_mut(no_op.len());
        now.copy_from_slice(no_op);
        rest = later;
    }
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    static __alternatives_start: [AlternativeEntry; 0];
    static __alternatives_end: [AlternativeEntry; 0];
}

/// The table.
#[cfg(target_os = "none")]
fn entries() -> &'static [AlternativeEntry] {
    // SAFETY: the linker script puts the entries, and nothing else, between the two symbols, in
    // read-only data.
    unsafe { linker_table::entries(&raw const __alternatives_start, &raw const __alternatives_end) }
}
/// A host has no sites.
#[cfg(not(target_os = "none"))]
fn entries() -> &'static [AlternativeEntry] {
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_filled_with_the_code_and_few_no_ops() {
        let code = [0x48, 0x89, 0xd1];
        for bytes in code.len()..LONGEST {
            let mut site = [0xcc; LONGEST];
            fill(&mut site[..bytes], &code);
            assert!(site.starts_with(&code) && site[bytes..].iter().all(|&byte| byte == 0xcc));
            let (mut rest, mut no_ops) = (&site[code.len()..bytes], 0);
            while !rest.is_empty() {
                let longest = NO_OPS.iter().rev().find_map(|no_op| rest.strip_prefix(*no_op));
                rest = longest.expect("a no-op");
                no_ops += 1;
            }
            assert_eq!(no_ops, (bytes - code.len()).div_ceil(9));
        }
    }

    #[test]
    fn every_feature_has_its_number_and_a_name() {
        for (number, feature) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, number);
            assert!(feature.name().bytes().all(|byte| byte.is_ascii_lowercase()));
        }
    }
}
