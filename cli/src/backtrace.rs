//! Addresses of the guest kernel as function, file and line.
//!
//! A report names functions and offsets. The addresses of one boot reveal the place of its kernel,
//! and reports are copied and published. So addresses are in a report only if the user asked for
//! them ([`Addresses::Shown`]).

use std::path::Path;

use crate::symbol_file::SymbolFile;

/// The first address of the kernel half.
const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;
/// The image is in the top 2 GiB: only addresses there have symbols.
const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// The text shown instead of an address without a symbol.
const HIDDEN: &str = "(address)";

/// Whether texts for people and machines name addresses of the guest's kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addresses {
    /// As they are: `--verbose`.
    Shown,
    /// As symbol and offset, or not at all.
    Hidden,
}

/// The symbols of a kernel file; empty when it has none.
pub struct Symbols {
    loader: Option<addr2line::Loader>,
    addresses: Addresses,
}

impl Symbols {
    /// Reads the symbols of `kernel`. A file without symbols is no error: addresses then stay
    /// numbers, or are hidden.
    pub fn of(kernel: &Path, addresses: Addresses) -> Symbols {
        let file = SymbolFile::of(kernel).ok();
        Symbols { loader: file.and_then(|file| addr2line::Loader::new(file.path()).ok()), addresses }
    }

    /// Returns the choice whether its texts name addresses.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Returns the symbol at an address and the offset in it.
    pub fn place(&self, address: u64, slide: u64) -> Option<String> {
        if address < IMAGE {
            return None;
        }
        let linked = address.wrapping_sub(slide);
        let symbol = self.loader.as_ref()?.find_symbol_info(linked)?;
        let name = rustc_demangle::demangle(symbol.name());
        Some(format!("{name:#}+{:#x}", linked.wrapping_sub(symbol.address())))
    }

    /// Returns `text` for publication: if addresses are hidden, each one of the kernel half becomes
    /// symbol and offset.
    pub fn without_addresses(&self, text: &str, slide: u64) -> String {
        if self.addresses == Addresses::Shown {
            return text.to_owned();
        }
        let mut public = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let is_word = rest.starts_with(|c: char| c.is_ascii_alphanumeric());
            let end = rest.find(|c: char| c.is_ascii_alphanumeric() != is_word).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            match number(word).filter(|&number| number >= KERNEL_HALF || slide != 0 && number == slide) {
                Some(address) => {
                    public.push_str(&self.place(address, slide).unwrap_or_else(|| HIDDEN.to_owned()));
                }
                None => public.push_str(word),
            }
            rest = after;
        }
        public
    }

    /// Returns the lines that describe one frame: the function, and those inlined there, innermost
    /// first. All frames but the first hold return addresses, which belong to the instruction
    /// before them.
    pub fn describe(&self, address: u64, slide: u64, depth: usize) -> Vec<String> {
        let linked = address.wrapping_sub(slide).wrapping_sub(u64::from(depth > 0));
        let mut lines = Vec::new();
        if let Some(loader) = &self.loader
            && let Ok(mut frames) = loader.find_frames(linked)
        {
            while let Ok(Some(frame)) = frames.next() {
                let name =
                    frame.function.as_ref().and_then(|f| f.demangle().ok().map(|name| name.into_owned()));
                let place = frame.location.as_ref().and_then(|location| {
                    let file = location.file?;
                    Some(format!(" at {}:{}", shorten(file), location.line.unwrap_or(0)))
                });
                lines.push(format!("{}{}", name.as_deref().unwrap_or("?"), place.unwrap_or_default()));
            }
            if lines.is_empty()
                && let Some(symbol) = loader.find_symbol(linked)
            {
                lines.push(rustc_demangle::demangle(symbol).to_string());
            }
        }
        if self.addresses == Addresses::Hidden {
            let place = self.place(address.wrapping_sub(u64::from(depth > 0)), slide);
            let offset = place.as_deref().and_then(|place| Some(place.rsplit_once('+')?.1));
            match (lines.last_mut(), offset) {
                (Some(last), Some(offset)) => *last = format!("{last} (+{offset})"),
                (Some(_), None) => {}
                (None, _) => lines.push(HIDDEN.to_owned()),
            }
            return lines;
        }
        match lines.first_mut() {
            Some(first) => *first = format!("{address:#x} {first}"),
            None => lines.push(format!("{address:#x}")),
        }
        lines
    }

    /// Returns the function at `address`, without its hash.
    pub fn function(&self, address: u64, slide: u64) -> Option<String> {
        let symbol = self.loader.as_ref()?.find_symbol(address.wrapping_sub(slide))?;
        Some(format!("{:#}", rustc_demangle::demangle(symbol)))
    }

    /// Returns a log line with the function's name after each address of the kernel's image, or in
    /// its place.
    pub fn annotate(&self, line: &str, slide: u64) -> String {
        if self.addresses == Addresses::Hidden {
            return self.without_addresses(line, slide);
        }
        let mut text = line.to_owned();
        for word in line.split(|c: char| !c.is_ascii_alphanumeric()) {
            let Some(address) =
                word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok())
            else {
                continue;
            };
            if address >= IMAGE
                && let Some(loader) = &self.loader
                && let Some(symbol) = loader.find_symbol(address.wrapping_sub(slide))
            {
                text = format!("{text} [{}]", rustc_demangle::demangle(symbol));
            }
        }
        text
    }
}

/// Parses a word as a number, hexadecimal with `0x` or with 16 digits, or decimal.
fn number(word: &str) -> Option<u64> {
    let hexadecimal = |digits| u64::from_str_radix(digits, 16).ok();
    match word.strip_prefix("0x") {
        Some(digits) => hexadecimal(digits),
        None if word.len() == 16 => hexadecimal(word),
        None => word.parse().ok(),
    }
}

/// Shortens a source path to the part below the repository or the library, if that part can be
/// found.
fn shorten(file: &str) -> &str {
    for top in ["/kernel/", "/mm/", "/machine/", "/library/"] {
        if let Some(at) = file.rfind(top) {
            return &file[at + 1..];
        }
    }
    let mut cuts = file.rmatch_indices('/').skip(3);
    cuts.next().map_or(file, |(at, _)| &file[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_addresses_are_in_no_text() {
        let symbols = Symbols { loader: None, addresses: Addresses::Hidden };
        for (text, public) in [
            ("address 0xffffffff9a123456, rip 0xffff888000001000", "address (address), rip (address)"),
            ("rax ffffffff9a123456", "rax (address)"),
            ("image slide 0x1a123000", "image slide (address)"),
            ("Some(18446744073709551615)", "Some((address))"),
            ("pfn 0x1234, 17 pages at virt 0x7fff0000", "pfn 0x1234, 17 pages at virt 0x7fff0000"),
        ] {
            assert_eq!(symbols.without_addresses(text, 0x1a12_3000), public);
        }
        assert_eq!(symbols.describe(0xffff_ffff_9a12_3456, 0x1a12_3000, 1), [HIDDEN]);
    }

    #[test]
    fn source_paths_start_at_the_repository() {
        assert_eq!(shorten("/home/me/freehold/kernel/src/fs/open.rs"), "kernel/src/fs/open.rs");
        assert_eq!(shorten("/rust/deps/library/core/src/ptr/mod.rs"), "library/core/src/ptr/mod.rs");
        assert_eq!(shorten("/a/b/c/d/e.rs"), "b/c/d/e.rs");
    }
}
