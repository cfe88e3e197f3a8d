//! `freehold-seal IMAGE`: writes the build's record into a linked kernel, in place: its functions
//! and a hash of each page of text and read-only data (`freehold_probes::BuildRecord`). The linker
//! script reserves the room, the section `.build_record`.
//!
//! `freehold-seal --decode IMAGE` prints the offset of each instruction in functions that may be
//! probed, for a comparison with a disassembler.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use freehold_machine::PAGE_SIZE;
use freehold_probes::{Function, MAGIC, Probing, decode, name_hash};
use freehold_replica::page_hash;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind, elf};

type Sealing<T> = std::result::Result<T, Box<dyn Error>>;

/// Crates and modules that a probe's handler runs, or that the CPU runs before the kernel is ready
/// for an exception: paths that contain one of these are not probed.
const NOT_PROBED: [&str; 19] = [
    "freehold_arch::apic",
    "freehold_arch::boot",
    "freehold_arch::cpu",
    "freehold_arch::irq",
    "freehold_arch::memory",
    "freehold_arch::panic",
    "freehold_arch::probes",
    "freehold_arch::provoke",
    "freehold_arch::registers",
    "freehold_arch::serial",
    "freehold_arch::static_keys",
    "freehold_arch::thread",
    "freehold_arch::time",
    "freehold_arch::traps",
    "freehold_arch::user",
    "freehold_kernel::boot::KernelAbove",
    "freehold_kernel::tracing",
    "freehold_replica",
    "freehold_tracepoints",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [image] => seal(image),
        [option, image] if option == "--decode" => print_instructions(image),
        _ => Err("usage: freehold-seal [--decode] IMAGE".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("freehold-seal: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A linked kernel.
struct Image {
    bytes: Vec<u8>,
    text: u64,
    text_end: u64,
    rodata_end: u64,
    /// Functions' names by address.
    names: Vec<(u64, String)>,
    /// Where the record goes: address, offset in the file, bytes.
    room: (u64, u64, u64),
    /// Addends by the address that a relocation writes.
    relocations: BTreeMap<u64, u64>,
}

impl Image {
    fn read(path: &str) -> Sealing<Self> {
        let bytes = std::fs::read(path)?;
        let file = ElfFile64::<object::Endianness>::parse(&*bytes)?;
        let symbol = |name: &str| {
            let found = file.symbols().find(|symbol| symbol.name() == Ok(name));
            found.map(|symbol| symbol.address()).ok_or_else(|| format!("the image has no symbol {name}"))
        };
        let (text, text_end) = (symbol("__text_start")?, symbol("__text_end")?);
        let rodata_end = symbol("__rodata_end")?;
        let room = file.section_by_name(".build_record").ok_or("the image has no section .build_record")?;
        let (offset, length) = room.file_range().ok_or("the section .build_record is not in the file")?;
        let room = (room.address(), offset, length);
        let mut names: Vec<(u64, String)> = file
            .symbols()
            .filter(|symbol| {
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown)
            })
            .filter(|symbol| (text..text_end).contains(&symbol.address()))
            .map(|symbol| Ok((symbol.address(), format!("{:#}", rustc_demangle::demangle(symbol.name()?)))))
            .collect::<Sealing<_>>()?;
        names.sort();
        names.dedup();
        let relocations = relocations(&file)?;
        Ok(Self { names, text, text_end, rodata_end, room, relocations, bytes: bytes.clone() })
    }

    /// The bytes of the file for an address of text or read-only data.
    fn offset_of(&self, address: u64) -> Sealing<usize> {
        let header = elf::FileHeader64::<object::Endianness>::parse(&*self.bytes)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, &*self.bytes)?;
        let inside = segments.iter().find(|segment| {
            let start = segment.p_vaddr.get(endian);
            segment.p_type.get(endian) == elf::PT_LOAD
                && (start..start + segment.p_filesz.get(endian)).contains(&address)
        });
        let segment = inside.ok_or_else(|| format!("{address:#x} is in no segment"))?;
        Ok((address - segment.p_vaddr.get(endian) + segment.p_offset.get(endian)) as usize)
    }

    /// The functions, by address.
    fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for (at, (address, name)) in self.names.iter().enumerate() {
            let next = self.names[at..].iter().map(|(next, _)| *next).find(|next| next > address);
            // Assembly has names without a path.
            let is_ours = name.contains("freehold_") && name.contains("::");
            let is_refused = !is_ours || NOT_PROBED.iter().any(|part| name.contains(part));
            functions.push(Function {
                offset: (address - self.text) as u32,
                size: (next.unwrap_or(self.text_end) - address) as u32,
                probing: if is_refused { Probing::Refused } else { Probing::Allowed },
                path: name_hash(name.as_bytes()),
                last: name_hash(last_of(name).as_bytes()),
            });
        }
        functions
    }

    /// The hash of a page as it is before a slide: relocated words are their addends.
    fn hash_of(&self, address: u64) -> Sealing<u64> {
        let start = self.offset_of(address)?;
        let mut page = [0; PAGE_SIZE];
        page.copy_from_slice(&self.bytes[start..start + PAGE_SIZE]);
        for (at, addend) in self.relocations.range(address..address + PAGE_SIZE as u64) {
            let at = (at - address) as usize;
            let place = page.get_mut(at..at + 8).ok_or("a relocated word crosses the border of two pages")?;
            place.copy_from_slice(&addend.to_le_bytes());
        }
        let words = page.as_chunks::<8>().0;
        Ok(page_hash(|nth| u64::from_le_bytes(words[nth])).get())
    }
}

fn relocations(file: &ElfFile64<'_>) -> Sealing<BTreeMap<u64, u64>> {
    let endian = file.endian();
    let mut all = BTreeMap::new();
    for section in file.elf_section_table().iter() {
        if let Some((entries, _)) = section.rela(endian, file.data())? {
            let known = entries.iter().filter(|entry| entry.r_type(endian, false) == elf::R_X86_64_RELATIVE);
            let places = known.map(|entry| (entry.r_offset.get(endian), entry.r_addend.get(endian) as u64));
            let places: Vec<_> = places.collect();
            if !places.is_sorted() || places.iter().any(|(at, _)| at % 8 != 0) {
                return Err("the relocations are not in order, or a word is not aligned".into());
            }
            all.extend(places);
        }
    }
    Ok(all)
}

/// The last name of a path: what follows the last `::` outside of angle brackets.
fn last_of(path: &str) -> &str {
    let (mut depth, mut start) = (0, 0);
    let bytes = path.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] != b'-' => depth -= 1,
            // Generic arguments follow in `::<`.
            b':' if depth == 0 && bytes[at..].starts_with(b"::") && bytes.get(at + 2) != Some(&b'<') => {
                start = at + 2;
            }
            _ => {}
        }
    }
    let last = &path[start..];
    last.split_once("::<").map_or(last, |(name, _)| name)
}

/// Fails where two different names have one hash: a definition of a probe could mean either.
fn check_hashes(image: &Image) -> Sealing<()> {
    let mut by_hash: BTreeMap<u32, &str> = BTreeMap::new();
    for name in image.names.iter().flat_map(|(_, path)| [path.as_str(), last_of(path)]) {
        let known = by_hash.insert(name_hash(name.as_bytes()), name);
        if let Some(other) = known.filter(|other| *other != name) {
            return Err(format!("{name} and {other} have the same hash: rename one").into());
        }
    }
    Ok(())
}

fn seal(path: &str) -> Sealing<()> {
    let image = Image::read(path)?;
    check_hashes(&image)?;
    let functions = image.functions();
    let (start, offset, bytes) = image.room;
    let pages = (start - image.text) / PAGE_SIZE as u64;
    let after = (start + bytes).next_multiple_of(PAGE_SIZE as u64);
    let mut words = vec![MAGIC, 0];
    words.extend(functions.iter().flat_map(Function::words));
    for page in 0..(image.rodata_end - image.text).div_ceil(PAGE_SIZE as u64) {
        let address = image.text + page * PAGE_SIZE as u64;
        // The record's own pages have no hash: 0.
        let is_own = page >= pages && address < after;
        words.push(if is_own { 0 } else { image.hash_of(address)? });
    }
    let hashes = words.len() - 2 - 2 * functions.len();
    words[1] = functions.len() as u64 | (hashes as u64) << 32;
    if words.len() as u64 * 8 > bytes {
        return Err(format!(
            "the record has {} bytes and its section {bytes}: let kernel.ld's record_room grow",
            words.len() * 8
        )
        .into());
    }
    let mut sealed = image.bytes;
    for (place, word) in sealed[offset as usize..].chunks_exact_mut(8).zip(&words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(std::fs::write(path, sealed)?)
}

fn print_instructions(path: &str) -> Sealing<()> {
    let image = Image::read(path)?;
    let mut out = String::new();
    for function in image.functions().iter().filter(|function| function.probing == Probing::Allowed) {
        let address = image.text + u64::from(function.offset);
        let start = image.offset_of(address)?;
        let code = &image.bytes[start..start + function.size as usize];
        let mut at = 0;
        while let Some(next) = decode(&code[at..]) {
            writeln!(out, "{:x}", address + at as u64)?;
            at += next.length;
        }
        if at < code.len() {
            writeln!(out, "{:x} unknown {:02x?}", address + at as u64, &code[at..code.len().min(at + 15)])?;
        }
    }
    print!("{out}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_of_a_path_is_outside_of_its_types() {
        for (path, last) in [
            ("freehold_kernel::task::ids::sys_getpid", "sys_getpid"),
            ("<a::B as c::D>::record_event", "record_event"),
            ("<a::B<c::D>>::with::<e::F, g::h::{closure#0}>", "with"),
            ("a::b::<fn(c::D) -> e::F>::{closure#1}", "{closure#1}"),
            ("memcpy", "memcpy"),
        ] {
            assert_eq!(last_of(path), last, "{path}");
        }
    }
}
