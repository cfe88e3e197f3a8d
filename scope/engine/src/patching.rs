//! Judges how a kernel changes instructions of its own text.
//!
//! The kernel publishes the one page through which it stores to text, the code that does so, and a
//! table of the places (*sites*) where it changes instructions: each is five bytes, a no-op or a
//! jump. Every store to text by other code or to another page breaks
//! [`Rule::Text`](freehold_scope_record::Rule), and an instruction that a CPU runs at a site and
//! that is neither the no-op, nor the jump, nor INT3 breaks `Rule::Patch`, as does one that begins
//! in the middle of a site. An emulator reads an instruction when it translates it, and translates
//! it anew after a store: so each that it runs is judged as the CPU got it.

use std::collections::BTreeMap;

use freehold_scope_doorbell::{Publication, SITE_BYTES};

use crate::frames::load_u32;
use crate::guest::{GuestMemory, walk};

const LENGTH: u64 = 5;
const INT3: [u8; 1] = [0xcc];
const NO_OP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
/// The most sites.
const MOST: u64 = 1 << 16;

/// What an instruction at a site is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtSite {
    /// The old one or the new one.
    Whole,
    /// The INT3 that is there meanwhile.
    Breakpoint,
    /// Anything else.
    Torn,
}

/// What a kernel published of its patches.
#[derive(Debug)]
pub struct Patching {
    window: u64,
    storing: core::ops::Range<u64>,
    /// The jump of each site, by the site's address.
    jumps: BTreeMap<u64, [u8; 5]>,
}

impl Patching {
    /// Reads the table of sites that a kernel published.
    ///
    /// # Errors
    /// What it describes and is not there.
    pub fn read(memory: &dyn GuestMemory, p: &Publication) -> Result<Self, &'static str> {
        let bytes = p.sites_end.wrapping_sub(p.sites);
        if bytes / SITE_BYTES > MOST || !bytes.is_multiple_of(SITE_BYTES) || !p.sites.is_multiple_of(4) {
            return Err("a table of patched places of that size is none");
        }
        let field = |at: u64| {
            let leaf = walk(memory, p.root(0), at)?;
            load_u32(memory, leaf.page | at & 0xfff)
        };
        let relative = |at: u64| Some(at.wrapping_add_signed(i64::from(field(at)? as i32)));
        let site = |at: u64| {
            let (address, target) = (relative(at)?, relative(at + 4)?);
            let [a, b, c, d] = (target.wrapping_sub(address + LENGTH) as u32).to_le_bytes();
            Some((address, [0xe9, a, b, c, d]))
        };
        let jumps: Option<_> = (p.sites..p.sites_end).step_by(SITE_BYTES as usize).map(site).collect();
        let jumps = jumps.ok_or("its table of patched places is not mapped")?;
        Ok(Self { window: p.patch_window, storing: p.patching..p.patching_end, jumps })
    }

    /// Whether text may be mapped for stores at this address.
    pub fn is_window(&self, address: u64) -> bool {
        self.window != 0 && address >> 12 == self.window >> 12
    }
    /// Whether the instruction at `pc` may store to text at this address.
    pub fn may_store(&self, pc: u64, address: u64) -> bool {
        self.is_window(address) && self.storing.contains(&pc)
    }
    /// What the instruction of these bytes is; `None` where no site is.
    pub fn judge(&self, pc: u64, bytes: &[u8]) -> Option<AtSite> {
        let (&site, jump) = self.jumps.range(..=pc).next_back()?;
        match pc - site {
            0 if bytes == NO_OP || bytes == jump => Some(AtSite::Whole),
            0 if bytes == INT3 => Some(AtSite::Breakpoint),
            offset if offset < LENGTH => Some(AtSite::Torn),
            _ => None,
        }
    }
}
