//! Reads an ELF object's own description: machine, interpreter, needed libraries and where to look
//! for them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

use crate::Result;
use crate::failure::Failure;

type ElfHeader = elf::FileHeader64<Endianness>;

/// An x86-64 program or library.
#[derive(Debug, Default)]
pub struct Object {
    /// PT_INTERP.
    pub interpreter: Option<PathBuf>,
    /// DT_NEEDED, in order.
    pub needed: Vec<OsString>,
    /// DT_RPATH's folders, $ORIGIN filled in.
    pub rpath: Vec<PathBuf>,
    /// DT_RUNPATH's folders, $ORIGIN filled in.
    pub runpath: Vec<PathBuf>,
}

impl Object {
    /// Reads and checks `path`: an error names the kind of a file that is no x86-64 object.
    pub fn read(path: &Path) -> Result<Object> {
        let data = std::fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
        check_kind(path, &data)?;
        parse(path, &data)
            .map_err(|e| Failure::not_executable(format!("{}: damaged ELF file: {e}", path.display()), ""))
    }

    /// Returns whether `path` is an x86-64 object: the loader skips others in its search.
    pub fn fits(path: &Path) -> bool {
        let mut head = [0; 20];
        // The open of a FIFO would wait for its writer.
        if !std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
            return false;
        }
        std::fs::File::open(path)
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head))
            .is_ok_and(|()| head.starts_with(b"\x7fELF\x02\x01") && head[18..] == [62, 0])
    }
}

fn check_kind(path: &Path, data: &[u8]) -> Result<()> {
    let wrong = |what: &str, hint: &str| {
        let message = format!("{} is {what}, not an x86-64 Linux program", path.display());
        Err(Failure::not_executable(message, hint))
    };
    match data {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] if data.len() >= 64 => {
            let machine = u16::from_le_bytes([data[18], data[19]]);
            match machine {
                62 => Ok(()),
                183 => wrong("a program for arm64", "build it for x86_64"),
                243 => wrong("a program for RISC-V", "build it for x86_64"),
                other => wrong(&format!("a program for ELF machine {other}"), "build it for x86_64"),
            }
        }
        [0x7f, b'E', b'L', b'F', 1, ..] => wrong("a 32-bit program", "build it for x86_64"),
        [0x7f, b'E', b'L', b'F', 2, 2, ..] => wrong("a big-endian program", "build it for x86_64"),
        [b'M', b'Z', ..] => wrong("a Windows or DOS program", ""),
        [] => wrong("an empty file", ""),
        _ => wrong("no ELF file and no #! script", "a script's first line names its interpreter: #!/bin/sh"),
    }
}

fn parse(path: &Path, data: &[u8]) -> std::result::Result<Object, object::read::Error> {
    let header = ElfHeader::parse(data)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    let mut object = Object::default();
    for segment in segments {
        if let Some(name) = segment.interpreter(endian, data)? {
            object.interpreter = Some(OsString::from_vec(name.to_vec()).into());
        }
        let Some(dynamic) = segment.dynamic(endian, data)? else {
            continue;
        };
        let value = |tag: elf::DynamicTag| {
            dynamic.iter().find(|entry| entry.d_tag(endian) == tag).map(|entry| entry.d_val(endian))
        };
        let strings = value(elf::DT_STRTAB)
            .and_then(|address| file_offset(segments, endian, address))
            .and_then(|offset| data.get(offset..))
            .unwrap_or(&[]);
        let string = |offset: u64| {
            let bytes = strings.get(offset as usize..).unwrap_or(&[]);
            bytes.split(|&b| b == 0).next().unwrap_or(&[]).to_vec()
        };
        for entry in dynamic {
            match entry.d_tag(endian) {
                elf::DT_NEEDED => {
                    let name = string(entry.d_val(endian));
                    object.needed.push(OsString::from_vec(name));
                }
                elf::DT_RPATH => object.rpath = folders(path, string(entry.d_val(endian))),
                elf::DT_RUNPATH => {
                    object.runpath = folders(path, string(entry.d_val(endian)));
                }
                _ => {}
            }
        }
    }
    Ok(object)
}

/// Returns the file offset of a virtual address.
fn file_offset(
    segments: &[elf::ProgramHeader64<Endianness>],
    endian: Endianness,
    address: u64,
) -> Option<usize> {
    segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .find_map(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(endian))?;
            (inside < segment.p_filesz(endian)).then(|| segment.p_offset(endian) + inside)
        })
        .and_then(|offset| usize::try_from(offset).ok())
}

/// Splits a search path and fills in $ORIGIN, the folder of the object itself.
fn folders(object: &Path, path: Vec<u8>) -> Vec<PathBuf> {
    let real = std::fs::canonicalize(object).unwrap_or_else(|_| object.to_path_buf());
    let origin = real.parent().unwrap_or(Path::new("/")).to_string_lossy();
    String::from_utf8_lossy(&path)
        .split(':')
        .filter(|part| !part.is_empty())
        .map(|part| part.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into())
        .collect()
}
