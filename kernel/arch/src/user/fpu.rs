//! Floating-point state as bytes: what the CPU would take, and what a program is given.
//!
//! Manual: Intel SDM volume 1, 13.4 (the area), 13.8.1 (what XRSTOR refuses).

pub(super) const LEGACY_BYTES: usize = 512;
/// Where those of its bytes begin that are software's (Intel SDM volume 1, 10.5.1).
pub(super) const SOFTWARE_BYTES: usize = 464;
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const X87: u64 = 1;
pub(super) const SSE: u64 = 1 << 1;
pub(super) const AVX: u64 = 1 << 2;
pub(super) const DEFAULT_CONTROL: u16 = 0x37f;
pub(super) const DEFAULT_MXCSR: u32 = 0x1f80;
/// x87, SSE, AVX, AVX-512: what programs get where the CPU has it.
pub(super) const FEATURES: u64 = 0b1110_0111;

/// A floating-point state that the CPU would refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadFpuState;

/// A floating-point state that [`load_fpu`](super::UserContext::load_fpu) was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FpuImage {
    /// Bytes from the start of the area. 512 (FXSAVE's part alone) or at least 576.
    pub bytes: usize,
    /// The components to take from it, as in XCR0; the others are reset.
    pub components: u64,
}

impl FpuImage {
    /// What FXSAVE saves: x87 and SSE.
    pub const LEGACY: Self = Self { bytes: LEGACY_BYTES, components: X87 | SSE };
    /// None could be read: always refused.
    pub const UNREADABLE: Self = Self { bytes: 0, components: 0 };
}

/// AVX-512 needs all its parts, and AVX.
pub(super) const fn valid_features(features: u64) -> u64 {
    if features & 0b1110_0100 == 0b1110_0100 { features } else { features & 0b111 }
}

/// The MXCSR bits that this CPU has, from a saved area; before the first save, those that all have.
pub(super) fn mxcsr_mask(area: &[u8]) -> u32 {
    let mask = u32::from_le_bytes([area[28], area[29], area[30], area[31]]);
    if mask == 0 { 0xffbf } else { mask }
}

/// The state components that the header of an area names.
pub(super) fn components(header: &[u8]) -> u64 {
    header.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Whether the CPU would take the state: no unknown MXCSR bit, component, or header bit (Intel SDM volume 1, 13.8.1).
pub(super) fn check_fpu(bytes: &[u8], wanted: u64, features: u64, mask: u32) -> Result<(), BadFpuState> {
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mxcsr = word(24).ok_or(BadFpuState)?;
    if bytes.len() < LEGACY_BYTES || wanted & (SSE | AVX) != 0 && mxcsr & !mask != 0 {
        return Err(BadFpuState);
    }
    if let Some(header) = bytes.get(LEGACY_BYTES..LEGACY_BYTES + HEADER_BYTES) {
        // Bytes 8 to 23 say that the form is compacted; those behind them are ignored.
        let form = components(&header[8..]) | components(&header[16..]);
        if components(header) & !features != 0 || form != 0 {
            return Err(BadFpuState);
        }
    }
    Ok(())
}

/// Whether [`load_fpu`](super::UserContext::load_fpu) takes `area`, which is as long as [`xsave_size`](super::xsave_size) says and has the CPU's own MXCSR_MASK.
pub fn is_acceptable_fpu(area: &[u8]) -> bool {
    let features = super::xfeatures();
    let wanted = if features == 0 { X87 | SSE } else { features };
    check_fpu(area, wanted, features, mxcsr_mask(area)).is_ok()
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
    fn avx512_is_all_parts_or_none() {
        assert_eq!(valid_features(0b1110_0111), 0b1110_0111);
        assert_eq!(valid_features(0b0110_0111), 0b111);
        assert_eq!(valid_features(0b11), 0b11);
    }
}
