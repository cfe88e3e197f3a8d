//! Judges changes of instructions in the kernel's own text.
//!
//! The kernel publishes the one page through which it stores to text, the code that makes these
//! stores, and a table of the places (*sites*) where it changes instructions. Each site has five
//! bytes, a no-op or a jump. A store to text by other code or through another page breaks
//! [`Rule::Text`](freehold_scope_record::Rule). A CPU that runs another instruction at a site than
//! the no-op, the jump or INT3 breaks `Rule::Patch`, and so does one that begins in the middle of a
//! site. An emulator reads an instruction when it translates it, and translates it anew after a
//! store. So each instruction is judged with the bytes that the CPU ran.

use std::collections::BTreeMap;

use freehold_scope_doorbell::{Publication, SITE_BYTES};

use crate::frames::load_u32;
use crate::guest::{GuestMemory, walk};

const LENGTH: u64 = 5;
const INT3: [u8; 1] = [0xcc];
const NO_OP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
/// Largest number of sites.
const MOST: u64 = 1 << 16;

/// The kind of an instruction at a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtSite {
    /// The old instruction or the new one.
    Whole,
    /// The INT3 between both.
    Breakpoint,
    /// Anything else.
    Torn,
}

/// The patches that a kernel published.
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
    /// The publication describes something that is not in memory; the text names it.
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

    /// Returns whether text may be mapped for stores at this address.
    pub fn is_window(&self, address: u64) -> bool {
        self.window != 0 && address >> 12 == self.window >> 12
    }
    /// Returns whether the instruction at `pc` may store to text at this address.
    pub fn may_store(&self, pc: u64, address: u64) -> bool {
        self.is_window(address) && self.storing.contains(&pc)
    }
    /// Returns the kind of the instruction with these bytes; `None` if there is no site.
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
