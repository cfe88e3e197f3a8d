//! The functions of a kernel's executable sections, from its symbols.
//!
//! A function with a size in its symbol goes from its first byte to its last; the padding that a
//! compiler puts after it is outside. Labels of assembly code have no size: such a function ends at
//! the next symbol, without the no-ops that align that symbol. Code that the compiler inlined
//! counts in the caller.

use std::collections::BTreeMap;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

use super::record::{Code, Function};
use crate::Result;
use crate::failure::Failure;
use crate::symbol_file::SymbolFile;

/// Returns the functions in the executable sections of the kernel at `path`.
///
/// # Errors
/// The kernel cannot be read, or has no symbols.
pub fn functions(path: &Path) -> Result<Code> {
    let unread = |e| Failure::io("read", path, &e);
    let bytes = std::fs::read(path).map_err(unread)?;
    let names = SymbolFile::of(path).and_then(|file| file.read()).map_err(unread)?;
    let without =
        || Failure::new(format!("{}: no ELF file with symbols", path.display()), "a kernel as it was built");
    let file = object::File::parse(&*bytes).map_err(|_| without())?;
    let names = object::File::parse(&*names).map_err(|_| without())?;
    let mut functions = Vec::new();
    let mut sum = Hash::new();
    let mut entry = None;
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let data = section.data().map_err(|_| without())?;
        sum.add(data);
        let (start, end) = (section.address(), section.address() + data.len() as u64);
        let mut starts: BTreeMap<u64, (u64, &str)> = BTreeMap::new();
        for symbol in names.symbols().filter(|symbol| symbol.section_index() == Some(section.index())) {
            let is_code = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown);
            let (Ok(name), true, true) = (symbol.name(), is_code, (start..end).contains(&symbol.address()))
            else {
                continue;
            };
            let found = starts.entry(symbol.address()).or_insert((symbol.size(), name));
            // One function may have several names: a name with a size is preferred, and the
            // linker's own names (`__text_start`) come last.
            if symbol.size() > found.0 || found.1.starts_with("__") && symbol.size() == found.0 {
                *found = (symbol.size(), name);
            }
        }
        let ends: Vec<u64> = starts.keys().copied().skip(1).chain([end]).collect();
        for ((address, (size, name)), next) in starts.into_iter().zip(ends) {
            let longest = &data[(address - start) as usize..(next - start) as usize];
            let bytes = if size > 0 { size.min(next - address) } else { without_padding(longest) as u64 };
            if bytes > 0 {
                let name = format!("{:#}", rustc_demangle::demangle(name));
                functions.push(Function { module: module(&name), name, address, bytes, ran: 0 });
            }
        }
        entry = entry.or(Some(start));
    }
    if functions.is_empty() {
        return Err(without());
    }
    let base = entry.unwrap_or(0) & !0x7fff_ffff;
    Ok(Code { sum: sum.text(), base, functions })
}

/// No-ops of several bytes, which assemblers use for alignment (Intel SDM, volume 2, NOP).
const NOPS: [&[u8]; 8] = [
    &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x44, 0, 0],
    &[0x0f, 0x1f, 0x40, 0],
    &[0x0f, 0x1f, 0],
    &[0x66, 0x90],
    &[0x90],
    &[0xcc],
];

/// Returns the length of `code` without the no-ops at its end.
fn without_padding(code: &[u8]) -> usize {
    let mut left = code;
    while let Some(shorter) = NOPS.iter().find_map(|nop| left.strip_suffix(*nop)) {
        // Long no-ops begin with prefixes.
        let prefixes = shorter.iter().rev().take_while(|byte| matches!(byte, 0x66 | 0x2e)).count();
        left = &shorter[..shorter.len() - prefixes];
    }
    left.len()
}

/// Returns the crate and the module of a function from its name: `kernel::fs` for
/// `<kernel::fs::open::File as …>::read`.
fn module(name: &str) -> String {
    let path = name.trim_start_matches(['<', '&', '*', '(', '[']);
    let path =
        ["mut ", "const ", "dyn "].iter().fold(path, |path, word| path.strip_prefix(word).unwrap_or(path));
    let path: &str =
        path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').next().unwrap_or("");
    let mut parts = path.split("::").filter(|part| !part.is_empty());
    match (parts.next(), parts.next(), parts.next()) {
        (Some(top), Some(module), Some(_)) if module.starts_with(|c: char| c.is_ascii_lowercase()) => {
            format!("{top}::{module}")
        }
        (Some(top), Some(_), _) => top.into(),
        _ => "assembly".into(),
    }
}

/// FNV-1a, to tell kernels apart.
struct Hash(u64);

impl Hash {
    fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
    fn add(&mut self, bytes: &[u8]) {
        self.0 =
            bytes.iter().fold(self.0, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    }
    fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_behind_a_label_is_no_code() {
        let ret = [0x31, 0xc0, 0xc3];
        for padding in [
            &[][..],
            &[0x90],
            &[0xcc, 0xcc],
            &[0x66, 0x90],
            &[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0],
        ] {
            assert_eq!(without_padding(&[&ret, padding].concat()), ret.len(), "{padding:02x?}");
        }
    }

    #[test]
    fn a_function_belongs_to_the_module_of_what_it_is_a_method_of() {
        for (name, expected) in [
            ("freehold_kernel::fs::open::path", "freehold_kernel::fs"),
            ("<freehold_vm::cache::Cache<T> as core::ops::Drop>::drop", "freehold_vm::cache"),
            ("<&mut freehold_buddy::zone::Zone as core::fmt::Debug>::fmt", "freehold_buddy::zone"),
            ("<freehold_buddy::Buddy<freehold_arch::X86>>::take", "freehold_buddy"),
            ("freehold_kernel_main", "assembly"),
            ("core::ptr::drop_in_place::<freehold_kernel::fs::File>", "core::ptr"),
        ] {
            assert_eq!(module(name), expected, "{name}");
        }
    }

    #[test]
    fn a_file_without_symbols_is_refused() {
        let refused = functions(Path::new("/proc/self/cmdline")).expect_err("no ELF");
        assert!(refused.to_string().contains("no ELF file with symbols"), "{refused}");
    }
}
