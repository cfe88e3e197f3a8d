//! Names of programs' functions.
//!
//! Programs share addresses, and each process has its libraries elsewhere. So code is recognised by
//! the contents of its page: the plugin tells the fingerprint of the page of each block, and a page
//! with it is searched in the files of the run. That holds on every kernel and for static programs,
//! position-independent ones and libraries. It names nothing where a page is in no file that the
//! run copies: code that a program makes itself, the vDSO, files of a tree of the user.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use freehold_scope_record::{BlockRecord, CODE_PAGE, Half, Results, fingerprint};
use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind, elf::PF_X};

use super::without_parameters;
use crate::image::Image;

/// The programs and libraries whose code ran.
#[derive(Default)]
pub struct Programs {
    /// By fingerprint: the files with such a page, and its link address in each.
    pages: HashMap<u64, Vec<(usize, u64)>>,
    files: Vec<ProgramFile>,
}

struct ProgramFile {
    /// The last part of its path.
    name: String,
    /// Start and end as linked, name; by start.
    functions: Vec<(u64, u64, String)>,
}

impl Programs {
    /// Finds the files of `image` whose code ran.
    pub fn of(image: &Image, results: &Results) -> Programs {
        let of_programs = results.blocks.iter().filter(|block| block.half == Half::User);
        let wanted: HashSet<u64> =
            of_programs.map(|block| block.contents).filter(|contents| *contents != 0).collect();
        let mut programs = Programs::default();
        for (path, bytes) in image.elf_files() {
            programs.add(path, &bytes, &wanted);
        }
        programs
    }

    /// Adds the pages of a file that are among the `wanted` ones. A file that is not understood has
    /// none.
    fn add(&mut self, path: &Path, bytes: &[u8], wanted: &HashSet<u64>) {
        let Ok(elf) = object::File::parse(bytes) else { return };
        let number = self.files.len();
        let mut found = false;
        for segment in elf.segments() {
            if !matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0) {
                continue;
            }
            let (offset, size) = segment.file_range();
            let within = offset % CODE_PAGE as u64;
            let Some(end) = offset.checked_add(size).filter(|end| *end <= bytes.len() as u64) else {
                continue;
            };
            let address = segment.address().wrapping_sub(within);
            // The kernel maps whole pages of the file, with zeroes behind its end.
            let pages = (offset - within..end).step_by(CODE_PAGE);
            for (page, link) in pages.zip((0..).step_by(CODE_PAGE).map(|at| address.wrapping_add(at))) {
                let contents = contents(&bytes[page as usize..]);
                if wanted.contains(&contents) {
                    self.pages.entry(contents).or_default().push((number, link));
                    found = true;
                }
            }
        }
        if found {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.files.push(ProgramFile { name, functions: functions(&elf) });
        }
    }

    /// Returns the function of a block with its file, or the file alone if it has no symbol there.
    /// `None` if no file has the block's page, or several files name it differently.
    pub fn function(&self, block: &BlockRecord) -> Option<String> {
        let mut names =
            self.pages.get(&block.contents)?.iter().map(|(file, page)| {
                self.files[*file].function(page.wrapping_add(block.pc % CODE_PAGE as u64))
            });
        let first = names.next()?;
        names.all(|name| name == first).then_some(first)
    }
}

impl ProgramFile {
    fn function(&self, address: u64) -> String {
        let after = self.functions.partition_point(|(start, ..)| *start <= address);
        match self.functions[..after].last() {
            Some((_, end, name)) if address < *end => format!("{name} ({})", self.name),
            _ => format!("({})", self.name),
        }
    }
}

/// Returns the fingerprint of the page at the beginning of `bytes`, filled up with zeroes.
fn contents(bytes: &[u8]) -> u64 {
    let mut page = [0; CODE_PAGE];
    let length = bytes.len().min(CODE_PAGE);
    page[..length].copy_from_slice(&bytes[..length]);
    fingerprint(page.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)))
}

/// Returns the functions of a file whose size is known, by address: otherwise code without a symbol
/// would have the name of the function before it. Of several names the one with fewest underscores
/// in front is taken.
fn functions(elf: &object::File<'_>) -> Vec<(u64, u64, String)> {
    let symbols = elf.symbols().chain(elf.dynamic_symbols());
    let functions = symbols
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0);
    let mut list: Vec<(u64, u64, String)> = functions
        .filter_map(|symbol| {
            let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
            let start = symbol.address();
            Some((start, start.saturating_add(symbol.size()), without_parameters(&name)))
        })
        .collect();
    let underscores = |name: &str| name.bytes().take_while(|byte| *byte == b'_').count();
    list.sort_by(|a, b| {
        (a.0, underscores(&a.2), Reverse(a.1), &a.2).cmp(&(b.0, underscores(&b.2), Reverse(b.1), &b.2))
    });
    list.dedup_by_key(|(start, ..)| *start);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageNode;
    use crate::scope::tests::sample;
    use crate::user::User;

    /// Returns the names of a block at an address of this test program, under several names of its
    /// file.
    fn names(files: &[&str], pc: u64, contents: u64) -> Option<String> {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let mut image = Image::empty();
        for file in files {
            image.put_owned(Path::new(file), ImageNode::Bytes(own.clone()), (0o755, User::ROOT), 0);
        }
        let mut results = sample();
        let block = BlockRecord { pc, half: Half::User, runs: 1, instructions: 1, program: 1, contents };
        results.blocks = vec![block];
        Programs::of(&image, &results).function(&block)
    }

    #[test]
    fn a_function_is_named_by_the_contents_of_its_page_wherever_it_is_mapped() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let elf = object::File::parse(&*own).expect("an ELF file");
        let main = elf.symbols().find(|symbol| symbol.name() == Ok("main")).expect("this function");
        let segment = elf
            .segments()
            .find(|segment| (segment.address()..segment.address() + segment.size()).contains(&main.address()))
            .expect("its segment");
        let offset = main.address() - segment.address() + segment.file_range().0;
        let page = contents(&own[(offset & !0xfff) as usize..]);
        let pc = 0x7f00_0000_0000 + (main.address() & 0xfff);
        assert_eq!(names(&["/bin/test"], pc, page), Some("main (test)".into()));
        assert_eq!(names(&["/bin/test"], pc, page + 1), None, "a page of no file");
        assert_eq!(names(&["/bin/a", "/bin/b"], pc, page), None, "two files claim it");
        assert_eq!(names(&["/bin/a", "/lib/a"], pc, page), Some("main (a)".into()));
        assert_eq!(names(&["/bin/test"], pc, 0), None);
    }
}
