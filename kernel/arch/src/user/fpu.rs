//! Floating-point state as bytes: the CPU's own format, and the format for programs.
//!
//! Manual: Intel SDM volume 1, 13.4 (the area), 13.8.1 (what XRSTOR refuses).

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use freehold_machine::KeyRights;

use super::key_rights::{self, has_protection_keys, key_rights, set_key_rights};
use super::{UserContext, xfeatures, xsave_size};
#[cfg(target_os = "none")]
use crate::alternatives::Feature;
use crate::registers::cpuid;

pub(super) const LEGACY_BYTES: usize = 512;
/// Where the area's bytes for software begin (Intel SDM volume 1, 10.5.1).
pub(super) const SOFTWARE_BYTES: usize = 464;
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const X87: u64 = 1;
pub(super) const SSE: u64 = 1 << 1;
pub(super) const AVX: u64 = 1 << 2;
pub(super) const DEFAULT_CONTROL: u16 = 0x37f;
pub(super) const DEFAULT_MXCSR: u32 = 0x1f80;
/// x87, SSE, AVX, AVX-512, rights to protection keys: the components that programs get if the CPU
/// has them.
pub(super) const FEATURES: u64 = 0b1110_0111 | key_rights::FEATURE;

/// A floating-point state that the CPU would refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadFpuState;

/// A floating-point state that was given to [`load_fpu`](super::UserContext::load_fpu).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FpuImage {
    /// Bytes from the start of the area. 512 (FXSAVE's part alone) or at least 576.
    pub bytes: usize,
    /// The components to take from it, as in XCR0; the others are reset.
    pub components: u64,
}

impl FpuImage {
    /// The state that FXSAVE saves: x87 and SSE.
    pub const LEGACY: Self = Self { bytes: LEGACY_BYTES, components: X87 | SSE };
    /// No component could be read: always refused.
    pub const UNREADABLE: Self = Self { bytes: 0, components: 0 };
}

/// AVX-512 needs all its parts, and AVX.
pub(super) const fn valid_features(features: u64) -> u64 {
    if features & 0b1110_0100 == 0b1110_0100 { features } else { features & (0b111 | key_rights::FEATURE) }
}

/// The MXCSR bits that this CPU has, from a saved area; before the first save, those that all CPUs
/// have.
pub(super) fn mxcsr_mask(area: &[u8]) -> u32 {
    let mask = u32::from_le_bytes([area[28], area[29], area[30], area[31]]);
    if mask == 0 { 0xffbf } else { mask }
}

/// The state components that the header of an area names.
pub(super) fn components(header: &[u8]) -> u64 {
    header.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// By number: first byte and length, in an area, of the components after the header; 0 and 0 for
/// those that the CPU does not have.
static PLACES: [[AtomicU32; 2]; COMPONENTS] = [const { [const { AtomicU32::new(0) }; 2] }; COMPONENTS];
const COMPONENTS: usize = key_rights::COMPONENT + 1;

/// The part of a state that XSAVE and XRSTOR switch.
static SWITCHED_BYTES: AtomicUsize = AtomicUsize::new(LEGACY_BYTES);

/// The parts of such a state that can differ from zero. Between them, components are missing.
pub fn state_parts() -> [Range<usize>; 2] {
    let switched = SWITCHED_BYTES.load(Ordering::Relaxed);
    let rights = if has_protection_keys() { place_of(key_rights::COMPONENT) } else { switched..switched };
    [0..switched, rights]
}

/// Enables these components on this CPU, which has XSAVE. Returns the size of a state.
pub(super) fn enable(features: u64) -> usize {
    // The size that CPUID tells is that of the enabled components.
    let enable = |enabled: u64| {
        // SAFETY: CR4.OSXSAVE is on (the caller); the bits are a subset of what CPUID offers, x87
        // among them. AVX-512 is all three parts or none.
        unsafe { asm!("xsetbv", in("ecx") 0, in("eax") enabled as u32, in("edx") 0, options(nostack)) };
        cpuid(0xd, 0).ebx as usize
    };
    SWITCHED_BYTES.store(enable(features & !key_rights::FEATURE), Ordering::Relaxed);
    enable(features)
}

/// Asks the CPU where components are (Intel SDM volume 1, 13.2).
pub(super) fn find_components() {
    for (number, [first, bytes]) in (0..).zip(&PLACES).skip(2) {
        let leaf = cpuid(0xd, number);
        first.store(leaf.ebx, Ordering::Relaxed);
        bytes.store(leaf.eax, Ordering::Relaxed);
    }
}

/// Fills in components that are `absent`: the area's header says that they are in their initial
/// state, but their bytes may be older. `place` tells where the components after the header are.
/// MXCSR is always saved.
fn fill_absent(area: &mut [u8], absent: u64, place: impl Fn(usize) -> Range<usize>) {
    if absent & X87 != 0 {
        area[..2].copy_from_slice(&DEFAULT_CONTROL.to_le_bytes());
        area[2..24].fill(0);
        area[32..160].fill(0);
    }
    if absent & SSE != 0 {
        area[160..LEGACY_BYTES].fill(0);
    }
    for number in (2..COMPONENTS).filter(|number| absent >> number & 1 != 0) {
        if let Some(bytes) = area.get_mut(place(number)) {
            bytes.fill(0);
        }
    }
}

/// [`fill_absent`] on this CPU.
#[cold]
#[inline(never)]
fn settle_absent(area: &mut [u8], absent: u64) {
    fill_absent(area, absent, place_of);
}

/// Returns the place of a component in an area of this CPU.
fn place_of(number: usize) -> Range<usize> {
    let [first, bytes] = PLACES[number].each_ref().map(|n| n.load(Ordering::Relaxed) as usize);
    first..first + bytes
}

/// Stores `rights` as a component of an area that is for a program to see.
fn show_rights(area: &mut [u8], rights: KeyRights, place: Range<usize>) {
    let mut bits = components(&area[LEGACY_BYTES..]) & !key_rights::FEATURE;
    if rights.bits() != 0 {
        bits |= key_rights::FEATURE;
    }
    area[LEGACY_BYTES..LEGACY_BYTES + 8].copy_from_slice(&bits.to_le_bytes());
    area[place.clone()].fill(0);
    area[place.start..place.start + 4].copy_from_slice(&rights.bits().to_le_bytes());
}

/// Returns the rights in an area that a program gave. A component that is absent has the value
/// zero, as for XRSTOR.
fn rights_in(area: &[u8], place: Range<usize>) -> KeyRights {
    let bits =
        if components(&area[LEGACY_BYTES..]) & key_rights::FEATURE == 0 { None } else { area.get(place) };
    let bits = bits.and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes));
    KeyRights::from_bits(bits)
}

/// Saves the CPU's floating-point state. With [`Feature::SavesChanges`] two kinds of components are
/// skipped: those in their initial state ([`fill_absent`]), and those unchanged since XRSTOR read
/// them from `area`.
///
/// # Safety
/// The area is as long as CPUID says and aligned, and was not written to since XRSTOR read it.
#[inline(always)]
#[cfg(target_os = "none")]
pub(super) unsafe fn save(area: *mut u8, features: u32) {
    // SAFETY: the caller's promise. The two instructions have the same operands and length.
    unsafe {
        asm!(
            "2: xsave64 [{area}]",
            "3:",
            ".pushsection .alternatives, \"a\"",
            ".balign 4",
            ".long 2b - .",
            ".long 4f - .",
            ".2byte {feature}",
            ".byte 3b - 2b",
            ".byte 5f - 4f",
            ".popsection",
            ".pushsection .alternative_code, \"a\"",
            "4: xsaveopt64 [{area}]",
            "5:",
            ".popsection",
            area = in(reg) area, feature = const Feature::SavesChanges as u16,
            in("eax") features, in("edx") 0, options(nostack))
    };
}
#[cfg(not(target_os = "none"))]
pub(super) unsafe fn save(_area: *mut u8, _features: u32) {
    unreachable!("programs run on the machine only")
}

/// Whether the CPU would accept the state: no unknown MXCSR bit, component, or header bit (Intel
/// SDM volume 1, 13.8.1).
pub(super) fn check_fpu(bytes: &[u8], wanted: u64, features: u64, mask: u32) -> Result<(), BadFpuState> {
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mxcsr = word(24).ok_or(BadFpuState)?;
    if bytes.len() < LEGACY_BYTES || wanted & (SSE | AVX) != 0 && mxcsr & !mask != 0 {
        return Err(BadFpuState);
    }
    if let Some(header) = bytes.get(LEGACY_BYTES..LEGACY_BYTES + HEADER_BYTES) {
        // Bytes 8 to 23 say whether the form is compacted; the bytes after them are ignored.
        let form = components(&header[8..]) | components(&header[16..]);
        if components(header) & !features != 0 || form != 0 {
            return Err(BadFpuState);
        }
    }
    Ok(())
}

/// Whether [`load_fpu`](super::UserContext::load_fpu) accepts `area`, which is as long as
/// [`xsave_size`](super::xsave_size) says and has the CPU's own MXCSR_MASK.
pub fn is_acceptable_fpu(area: &[u8]) -> bool {
    let features = xfeatures();
    let wanted = if features == 0 { X87 | SSE } else { features };
    check_fpu(area, wanted, features, mxcsr_mask(area)).is_ok()
}

impl UserContext {
    /// The floating-point state: an XSAVE area in standard form (or FXSAVE's 512 bytes).
    pub fn fpu(&mut self) -> &[u8] {
        self.settle();
        self.fpu_bytes()
    }
    /// Returns the same with `note`, and zeroes after it, in the bytes for software: 464 to 511,
    /// which the CPU neither loads nor saves (Intel SDM volume 1, 10.5.1 and 13.4.1). At most 48
    /// bytes.
    ///
    /// # Panics
    /// For a longer note.
    #[inline]
    pub fn noted_fpu(&mut self, note: &[u8]) -> &[u8] {
        self.settle();
        let (noted, rest) = self.fpu_bytes_mut()[SOFTWARE_BYTES..LEGACY_BYTES].split_at_mut(note.len());
        noted.copy_from_slice(note);
        rest.fill(0);
        self.fpu_bytes()
    }
    /// Clears the summary of x87 errors, for a state that has no unmasked error: bits ES and B of
    /// the status word, which CPUs derive from flags and masks (Intel SDM volume 1, 8.1.3.3).
    /// QEMU's TCG keeps the bits that a program loads, and would raise #MF for ever.
    pub fn clear_x87_summary(&mut self) {
        self.settle();
        let status = &mut self.fpu_bytes_mut()[2..4];
        status.iter_mut().for_each(|byte| *byte &= !0x80);
    }
    fn fpu_bytes(&self) -> &[u8] {
        let bytes = xsave_size().min(size_of_val(&*self.fpu));
        // SAFETY: lines are bytes without padding, and borrowed for as long as the slice.
        unsafe { core::slice::from_raw_parts(self.fpu.as_ptr().cast(), bytes) }
    }
    fn fpu_bytes_mut(&mut self) -> &mut [u8] {
        let bytes = xsave_size().min(size_of_val(&*self.fpu));
        // SAFETY: as above; any byte is valid in a line.
        unsafe { core::slice::from_raw_parts_mut(self.fpu.as_mut_ptr().cast(), bytes) }
    }
    /// Replaces the floating-point state by the bytes that `give` writes, and the running thread's
    /// rights to protection keys by those among them. It may sleep.
    ///
    /// # Errors
    /// If the state is shorter than 512 bytes, or the CPU would refuse it; the state is then a new
    /// program's.
    pub fn load_fpu(&mut self, give: impl FnOnce(&mut [u8]) -> FpuImage) -> Result<(), BadFpuState> {
        self.settle();
        let features = xfeatures();
        let mask = mxcsr_mask(self.fpu_bytes());
        let area = self.fpu_bytes_mut();
        let image = give(area);
        let len = image.bytes.min(area.len());
        if let Err(refused) = check_fpu(&area[..len], image.components, features, mask) {
            self.reset_fpu();
            return Err(refused);
        }
        area[len..].fill(0);
        if let Some(header) = area.get_mut(LEGACY_BYTES..LEGACY_BYTES + HEADER_BYTES) {
            let saved = if len == LEGACY_BYTES { X87 | SSE } else { components(header) };
            header.fill(0);
            header[..8].copy_from_slice(&(saved & image.components).to_le_bytes());
        }
        if image.components & (SSE | AVX) == 0 {
            area[24..28].copy_from_slice(&DEFAULT_MXCSR.to_le_bytes());
        }
        if has_protection_keys() {
            set_key_rights(rights_in(area, place_of(key_rights::COMPONENT)));
        }
        Ok(())
    }
    /// Puts the floating-point state, and the running thread's rights to protection keys, back to
    /// those of a new program.
    pub fn reset_fpu(&mut self) {
        set_key_rights(KeyRights::INITIAL);
        self.clear_fpu();
    }
    /// Puts the floating-point state back to that of a new program.
    pub(super) fn clear_fpu(&mut self) {
        self.save_if_live();
        let area = self.fpu_bytes_mut();
        match area.get_mut(LEGACY_BYTES..LEGACY_BYTES + HEADER_BYTES) {
            // The CPU does not look at components whose bit in the header is clear; `settle` clears
            // them for others.
            Some(header) => header.fill(0),
            None => area.fill(0),
        }
        area[0..2].copy_from_slice(&DEFAULT_CONTROL.to_le_bytes());
        area[24..28].copy_from_slice(&DEFAULT_MXCSR.to_le_bytes());
    }
    /// Fills in the bytes of components that are in their initial state: the state was reset and no
    /// CPU has saved it since, or the CPU left them out. The caller does this before it reads them.
    fn settle(&mut self) {
        self.save_if_live();
        let area = self.fpu_bytes_mut();
        if has_protection_keys() {
            show_rights(area, key_rights(), place_of(key_rights::COMPONENT));
        }
        let Some(header) = area.get(LEGACY_BYTES..LEGACY_BYTES + HEADER_BYTES) else { return };
        let absent = xfeatures() & !components(header);
        if absent != 0 {
            settle_absent(area, absent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_with_unknown_bits_is_refused() {
        let mut area = [0u8; 832];
        let check = |area: &[u8]| check_fpu(area, 7, 7, 0xffff);
        assert_eq!(check(&area), Ok(()));
        assert_eq!(check(&area[..511]), Err(BadFpuState));
        area[26] = 1;
        assert_eq!(check(&area), Err(BadFpuState), "MXCSR bit 16");
        assert_eq!(check_fpu(&area, 1, 7, 0xffff), Ok(()), "MXCSR is not loaded");
        area[26] = 0;
        area[512] = 8;
        assert_eq!(check(&area), Err(BadFpuState), "a component that is not enabled");
        area[512] = 7;
        area[520] = 1;
        assert_eq!(check(&area), Err(BadFpuState), "compacted form");
        area[520] = 0;
        area[512 + 24] = 1;
        assert_eq!(check(&area), Ok(()), "bytes that the CPU ignores");
    }

    #[test]
    fn what_a_cpu_left_out_has_the_bytes_of_its_first_state_and_the_rest_stays() {
        let place = |number: usize| if number == 2 { 576..832 } else { 0..0 };
        let filled = |absent: u64| {
            let mut area = [0xa5u8; 832];
            fill_absent(&mut area, absent, place);
            area
        };
        assert_eq!(filled(0), [0xa5; 832]);
        for (absent, gone) in [(X87, 0..160), (SSE, 160..512), (AVX, 576..832), (1 << 5, 0..0)] {
            for (at, byte) in filled(absent).into_iter().enumerate() {
                let is_kept = !gone.contains(&at) || absent == X87 && (24..32).contains(&at);
                let control = if at < 2 { DEFAULT_CONTROL.to_le_bytes()[at] } else { 0 };
                assert_eq!(byte, if is_kept { 0xa5 } else { control }, "{absent}: byte {at}");
            }
        }
    }

    #[test]
    fn rights_to_protection_keys_are_read_back_as_they_were_shown() {
        let place = || 2688..2696;
        for bits in [0, 0x5555_5554, u32::MAX] {
            let mut area = [0xa5u8; 2696];
            area[512..520].copy_from_slice(&7u64.to_le_bytes());
            show_rights(&mut area, KeyRights::from_bits(bits), place());
            assert_eq!(components(&area[512..]), if bits == 0 { 7 } else { 7 | 1 << 9 });
            assert_eq!(rights_in(&area, place()).bits(), bits);
            assert_eq!(area[2692..], [0; 4]);
            assert!(area[520..2688].iter().all(|&byte| byte == 0xa5));
            // A state without the component has no rights denied, as for XRSTOR.
            area[512..520].copy_from_slice(&7u64.to_le_bytes());
            assert_eq!(rights_in(&area, place()).bits(), 0);
        }
    }

    #[test]
    fn avx512_is_all_parts_or_none() {
        assert_eq!(valid_features(0b1110_0111), 0b1110_0111);
        assert_eq!(valid_features(0b0110_0111), 0b111);
        assert_eq!(valid_features(0b11), 0b11);
        assert_eq!(valid_features(0b10_0110_0111), 0b10_0000_0111, "protection keys do not depend on it");
    }
}
