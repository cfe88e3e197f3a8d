//! The build's record of the image, and the comparison of pages with it.
//!
//! `tools/seal` writes the record into the linked image. Its hashes are of pages as linked.
//! Start-up relocates words of read-only data, so the slide is subtracted from these. Pages that
//! start-up changes otherwise are not compared: those with alternatives, with words that are set
//! once, and with `boot.s`, which stores to its own data.

use core::num::NonZeroU64;
use core::ops::Range;

use freehold_machine::PAGE_SIZE;
use freehold_probes::BuildRecord;
use freehold_replica::page_hash;

use crate::{alternatives, boot};

/// An entry of `.rela.dyn`; start-up applies them all (`boot.s`). They are in the order of their
/// offsets, which `tools/seal` checks.
#[repr(C)]
struct Relocation {
    /// The linked address of the word.
    offset: u64,
    info: u64,
    addend: u64,
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    static __build_record_start: [u64; 0];
    static __build_record_end: [u64; 0];
    static __rela_start: [Relocation; 0];
    static __rela_end: [Relocation; 0];
    static __boot_words_start: u8;
    static __boot_words_end: u8;
    static __boot_text_end: u8;
}

/// Returns the build's record; an empty one where the image was not finished.
#[cfg(target_os = "none")]
pub fn record() -> BuildRecord<'static> {
    // SAFETY: the linker script reserves whole words between the two symbols, in read-only data.
    let words = unsafe {
        crate::linker_table::entries(&raw const __build_record_start, &raw const __build_record_end)
    };
    BuildRecord::read(words)
}
/// On a host there is no image.
#[cfg(not(target_os = "none"))]
pub fn record() -> BuildRecord<'static> {
    BuildRecord::EMPTY
}

#[cfg(target_os = "none")]
fn relocations() -> &'static [Relocation] {
    // SAFETY: the linker puts the entries, and nothing else, between the two symbols, in read-only
    // data.
    unsafe { crate::linker_table::entries(&raw const __rela_start, &raw const __rela_end) }
}
#[cfg(not(target_os = "none"))]
fn relocations() -> &'static [Relocation] {
    &[]
}

/// The addresses of words that are set once, and of the code that runs before the image is mapped.
#[cfg(target_os = "none")]
fn changed_by_start_up() -> [Range<u64>; 2] {
    let text = boot::read_only_parts().0;
    [
        &raw const __boot_words_start as u64..&raw const __boot_words_end as u64,
        text.start..&raw const __boot_text_end as u64,
    ]
}
#[cfg(not(target_os = "none"))]
fn changed_by_start_up() -> [Range<u64>; 2] {
    [0..0, 0..0]
}

/// The hash of a page whose word number `n`, at `address(n)` as linked, is `word(n)`, with the
/// words at the places of `relocated` as they were before the slide.
fn unslid_hash(
    word: impl Fn(usize) -> u64,
    address: impl Fn(usize) -> u64,
    relocated: &[Relocation],
    slide: u64,
) -> NonZeroU64 {
    page_hash(|nth| {
        let is_relocated = relocated.binary_search_by_key(&address(nth), |entry| entry.offset).is_ok();
        if is_relocated { word(nth).wrapping_sub(slide) } else { word(nth) }
    })
}

/// Whether page number `page` of text and read-only data, which has these bytes and was never
/// patched, is as it was built. True for pages that are not compared.
pub(crate) fn is_page_as_built(page: u64, bytes: &[u8; PAGE_SIZE]) -> bool {
    let Some(built) = record().page(page) else { return true };
    let start = boot::read_only_parts().0.start + page * PAGE_SIZE as u64;
    let here = start..start + PAGE_SIZE as u64;
    let touches = |other: Range<u64>| other.start < here.end && here.start < other.end;
    if changed_by_start_up().into_iter().chain(alternatives::sites()).any(touches) {
        return true;
    }
    let slide = boot::slide();
    let linked = start - slide;
    let all = relocations();
    let first = all.partition_point(|entry| entry.offset < linked);
    let end = all.partition_point(|entry| entry.offset < linked + PAGE_SIZE as u64);
    let words = bytes.as_chunks::<8>().0;
    let word = |nth: usize| u64::from_le_bytes(words[nth]);
    unslid_hash(word, |nth| linked + 8 * nth as u64, &all[first..end], slide) == built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slide_does_not_change_a_hash_and_a_flipped_bit_does() {
        let linked = 0xffff_ffff_8064_3000;
        let relocated = [1, 7, 511].map(|nth| Relocation { offset: linked + 8 * nth, info: 8, addend: nth });
        let page = |slide: u64| {
            let mut words = [5u64; 512];
            relocated
                .iter()
                .for_each(|entry| words[((entry.offset - linked) / 8) as usize] = entry.addend + slide);
            words
        };
        let hash = |words: [u64; 512], slide: u64| {
            unslid_hash(|nth| words[nth], |nth| linked + 8 * nth as u64, &relocated, slide)
        };
        let built = hash(page(0), 0);
        assert_eq!(hash(page(0x1a00_0000), 0x1a00_0000), built);
        for nth in 0..512 {
            let mut words = page(0x1a00_0000);
            words[nth] ^= 1 << (nth % 64);
            assert_ne!(hash(words, 0x1a00_0000), built, "word {nth}");
        }
    }
}
