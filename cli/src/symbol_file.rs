//! Where the symbols of a kernel file are: in it, or packed beside it.
//!
//! A package has a kernel without symbols: most runs need none, and they are a seventh of it.
//! `KERNEL.symbols.gz`, beside it, is an ELF file with the same sections, of which only the symbol
//! table has content, compressed with gzip.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol};
use rustix::fs::MemfdFlags;

/// A file with the symbols of a kernel.
pub struct SymbolFile {
    path: PathBuf,
    /// The unpacked file, which `path` names while it is open.
    _unpacked: Option<File>,
}

impl SymbolFile {
    /// Finds the symbols of `kernel`, and unpacks them where they are packed. A kernel without any
    /// is its own file.
    ///
    /// # Errors
    /// The packed file is broken, or the kernel cannot be read.
    pub fn of(kernel: &Path) -> io::Result<SymbolFile> {
        let own = SymbolFile { path: kernel.to_owned(), _unpacked: None };
        let mut name = kernel.as_os_str().to_owned();
        name.push(".symbols.gz");
        let Ok(packed) = File::open(name) else { return Ok(own) };
        // A kernel with symbols is another build than the one whose symbols were packed.
        if has_symbols(&std::fs::read(kernel)?) {
            return Ok(own);
        }
        let mut unpacked = File::from(rustix::fs::memfd_create("freehold-symbols", MemfdFlags::CLOEXEC)?);
        io::copy(&mut flate2::read::MultiGzDecoder::new(packed), &mut unpacked)?;
        Ok(SymbolFile {
            path: format!("/proc/self/fd/{}", unpacked.as_raw_fd()).into(),
            _unpacked: Some(unpacked),
        })
    }

    /// Returns the path of an ELF file with the symbols, for as long as this value lives.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of that file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(&self.path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Whether `bytes` are an ELF file that defines symbols.
pub fn has_symbols(bytes: &[u8]) -> bool {
    object::File::parse(bytes).is_ok_and(|file| file.symbols().any(|symbol| symbol.is_definition()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// This program has symbols; the same without its table of sections has none.
    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().expect("it runs")).expect("it can be read")
    }

    fn without_sections() -> Vec<u8> {
        let mut bytes = own();
        // e_shoff, and e_shnum with e_shstrndx.
        bytes[40..48].fill(0);
        bytes[60..64].fill(0);
        bytes
    }

    fn pack(path: &Path, bytes: &[u8]) {
        let file = File::create(path).expect("a file");
        let mut packer = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        packer.write_all(bytes).expect("it is packed");
        packer.finish().expect("it ends");
    }

    #[test]
    fn a_stripped_kernel_has_its_symbols_beside_it_and_another_one_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let (kernel, packed) = (folder.path().join("kernel"), folder.path().join("kernel.symbols.gz"));
        std::fs::write(&kernel, without_sections()).expect("a kernel");
        assert!(!has_symbols(&SymbolFile::of(&kernel).unwrap().read().unwrap()), "nobody has any");
        pack(&packed, &own());
        let file = SymbolFile::of(&kernel).unwrap();
        assert!(has_symbols(&file.read().unwrap()) && file.path() != kernel);
        assert!(has_symbols(&std::fs::read(file.path()).unwrap()), "its path can be opened");
        std::fs::write(&packed, b"not packed").expect("a broken file");
        assert!(SymbolFile::of(&kernel).is_err(), "a broken file is no kernel without symbols");
        std::fs::write(&kernel, own()).expect("another kernel");
        assert_eq!(SymbolFile::of(&kernel).unwrap().path(), kernel);
    }
}
