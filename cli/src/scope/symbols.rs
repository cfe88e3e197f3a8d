//! Names for the executed code: the kernel's functions, from its ELF file or from /proc/kallsyms,
//! and programs' functions, from the files of the run (`programs`).

mod linux;
mod programs;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use freehold_scope_record::{Half, Results};
use serde::Serialize;
use serde_json::Value;

use crate::Result;
use crate::backtrace::{self, Addresses};
use crate::failure::Failure;
use crate::kernel::{Family, KernelChoice};
use crate::scope::Digest;
use crate::symbol_file::{self, SymbolFile};
pub use programs::Programs;

/// Name of programs' code that is from no known file.
const PROGRAMS: &str = "(programs)";
/// Lowest address of the image: kernel addresses below are modules of a stock Linux.
pub const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// A function and its instructions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hot {
    /// Its name.
    pub name: String,
    /// The half that the function belongs to.
    pub half: Half,
    /// Instructions of the program's time.
    pub instructions: u64,
    /// Share of all instructions of that time.
    pub share: f64,
}

/// Sources of names.
enum Source {
    Elf(Box<backtrace::Symbols>),
    /// Address as linked, name.
    Table(BTreeMap<u64, String>),
}

/// Names of kernel addresses.
pub struct Names {
    source: Source,
    /// Link address of the image's start, if the slide has to be computed from its address in the
    /// run.
    linked: Option<u64>,
    slide: u64,
}

/// Link address of a Linux image's text.
const LINUX_TEXT: u64 = 0xffff_ffff_8100_0000;

/// Fails if `path` has no symbols: otherwise all functions would be nameless after minutes of
/// waiting.
pub fn check(path: &Path) -> Result<()> {
    let bytes =
        SymbolFile::of(path).and_then(|file| file.read()).map_err(|e| Failure::io("read", path, &e))?;
    if symbol_file::has_symbols(&bytes) {
        return Ok(());
    }
    let what = format!("--symbols {}: no ELF file with symbols", path.display());
    Err(Failure::new(what, "a vmlinux, or a kernel as it was built"))
}

impl Names {
    /// Makes an empty set of names: every address stays a number.
    #[cfg(test)]
    pub fn none() -> Names {
        Names { source: Source::Table(BTreeMap::new()), linked: None, slide: 0 }
    }

    /// Reads names from the ELF file that the user gives, else from the kernel itself: a stock
    /// Linux is booted for them, once.
    pub fn prepare(given: Option<&Path>, kernel: &KernelChoice) -> Result<Names> {
        let (source, linked) = match (given, kernel.family) {
            (Some(path), Family::Freehold) => {
                (Source::Elf(Box::new(backtrace::Symbols::of(path, Addresses::Shown))), None)
            }
            (Some(path), Family::Linux) => {
                (Source::Elf(Box::new(backtrace::Symbols::of(path, Addresses::Shown))), Some(LINUX_TEXT))
            }
            (None, Family::Freehold) => {
                (Source::Elf(Box::new(backtrace::Symbols::of(&kernel.path, Addresses::Shown))), None)
            }
            (None, Family::Linux) => {
                let table = linux::functions(kernel)?;
                let linked = table.iter().find(|(_, name)| *name == "_text").map(|(&address, _)| address);
                (Source::Table(table), linked)
            }
        };
        Ok(Names { source, linked, slide: 0 })
    }

    /// Returns the names for the addresses of one run.
    pub fn at(mut self, results: &Results, ready: Option<&Value>) -> Names {
        let hexadecimal = |name: &str| {
            let text = ready?.get(name)?.as_str()?;
            u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        self.slide = match (&results.oracle.layout, self.linked) {
            (Some(layout), _) => layout.slide,
            (None, Some(linked)) => hexadecimal("text").map_or(0, |text| text.wrapping_sub(linked)),
            (None, None) => hexadecimal("slide").unwrap_or(0),
        };
        self
    }

    /// Returns the function at a kernel address.
    pub fn function(&self, address: u64) -> String {
        let name = match &self.source {
            Source::Elf(symbols) => symbols.function(address, self.slide),
            Source::Table(table) => {
                let at = address.wrapping_sub(self.slide);
                table.range(..=at).next_back().map(|(_, name)| name.clone())
            }
        };
        match name {
            Some(name) => without_parameters(&name),
            None if address < IMAGE => "(modules)".into(),
            None => format!("{address:#x}"),
        }
    }
}

/// Shortens a Rust path by removing text inside nested angle brackets: `<A<B> as C>::f::<D>`
/// becomes `<A as C>::f`. Functions that differ only in their parameters are one for a reader.
fn without_parameters(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    let mut depth = 0;
    let mut before = ' ';
    for c in name.chars() {
        match c {
            // The first bracket is `<Type>::` or `<Type as Trait>::`.
            '<' if short.is_empty() => short.push(c),
            '<' => depth += 1,
            // Not the arrow of a function's type.
            '>' if before != '-' && depth > 0 => depth -= 1,
            _ if depth == 0 => short.push(c),
            _ => {}
        }
        before = c;
    }
    short.trim_end_matches("::").replace("::::", "::")
}

/// Returns instructions of the program's time by function, most first.
pub fn hot(results: &Results, names: &Names, programs: &Programs) -> Vec<Hot> {
    let mut counts: HashMap<(String, Half), u64> = HashMap::new();
    for block in results.blocks.iter().filter(|block| block.program > 0) {
        let name = match block.half {
            Half::User => programs.function(block).unwrap_or_else(|| PROGRAMS.to_owned()),
            Half::Kernel => names.function(block.pc),
        };
        *counts.entry((name, block.half)).or_default() += block.program;
    }
    let all: u64 = Digest::of(results).phases().iter().map(|phase| phase.end - phase.start).sum();
    let all = all.max(1) as f64;
    let mut list: Vec<Hot> = counts
        .into_iter()
        .map(|((name, half), instructions)| Hot {
            name,
            half,
            instructions,
            share: instructions as f64 / all,
        })
        .collect();
    list.sort_by(|a, b| b.instructions.cmp(&a.instructions).then(a.name.cmp(&b.name)));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_named_without_the_parameters_of_its_types() {
        for (long, short) in [
            ("<a::Table>::audit::<b::Map<c::Iter<d>>, e>", "<a::Table>::audit"),
            ("<a::Buddy<b::X86> as c::Source>::take", "<a::Buddy as c::Source>::take"),
            ("a::walk::<fn(u8) -> u8>::{closure#0}", "a::walk::{closure#0}"),
            ("do_syscall_64", "do_syscall_64"),
            ("part.0.constprop.0", "part.0.constprop.0"),
        ] {
            assert_eq!(without_parameters(long), short);
        }
    }
}
