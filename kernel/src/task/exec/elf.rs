//! Load plan of an ELF file.
//!
//! The file is hostile input. Every number is checked before it is used, so the resulting plan can
//! be mapped without further checks.

use core::ops::Range;

use freehold_collections::Vec;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::hw::PAGE;
use crate::{Errno, Result};

/// Largest number of program headers (as on Linux: a table of at most 64 KiB).
const MAX_HEADERS: usize = 65_536 / size_of::<elf::ProgramHeader64<LE>>();
/// One past the last address that a program may use.
const END: u64 = 0x7fff_ffff_f000;

/// Whether the file's addresses are fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ElfKind {
    /// The addresses are fixed (ET_EXEC).
    Fixed,
    /// The addresses are relative to the place where the file is loaded (ET_DYN).
    Relocatable,
}

/// A piece of the file that becomes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The first address. It has the same offset in its page as `offset`.
    pub address: u64,
    /// Offset of the segment's bytes in the file.
    pub offset: u64,
    /// Bytes from the file.
    pub file_size: u64,
    /// Number of bytes in memory; the bytes after the file's are zero.
    pub memory_size: u64,
    /// PF_R 4, [`WRITABLE`], [`EXECUTABLE`].
    pub flags: u32,
}

/// PF_W.
pub const WRITABLE: u32 = 2;
/// PF_X.
pub const EXECUTABLE: u32 = 1;

/// All information that loading needs.
#[derive(PartialEq, Eq, Debug)]
pub struct Plan {
    /// Whether the addresses are fixed.
    pub kind: ElfKind,
    /// The entry point.
    pub entry: u64,
    /// The segments, in ascending order and without overlaps.
    pub segments: Vec<Segment>,
    /// The interpreter's name, as an offset and a length in the file.
    pub interpreter: Option<(u64, usize)>,
    /// The address of the program headers in memory, if a segment has them.
    pub headers: u64,
    /// The number of program headers.
    pub header_count: u64,
    /// Whether the stack is to be executable.
    pub stack: StackRights,
    /// The largest alignment that a segment requests; a power of two, at least a page.
    pub alignment: u64,
}

impl Plan {
    /// Returns the addresses of the first segment with this flag, in a program that is loaded
    /// `bias` above its own addresses.
    pub fn first_with(&self, flag: u32, bias: u64) -> Range<u64> {
        self.segments.iter().find(|segment| segment.flags & flag != 0).map_or(0..0, |segment| {
            let start = segment.address.wrapping_add(bias);
            start..start + segment.file_size
        })
    }
}

/// The stack permissions that PT_GNU_STACK requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackRights {
    /// Read and write.
    Data,
    /// Read, write and execute.
    Executable,
}

/// Returns offset and size of the program headers, from the file's first 64 bytes.
pub fn header_table(first: &[u8]) -> Result<(u64, usize)> {
    let header = elf::FileHeader64::<LE>::parse(first).map_err(|_| Errno::ENOEXEC)?;
    header.endian().map_err(|_| Errno::ENOEXEC)?;
    let count = usize::from(header.e_phnum.get(LE));
    let size = size_of::<elf::ProgramHeader64<LE>>();
    let machine = header.e_machine.get(LE);
    if machine != elf::EM_X86_64
        || usize::from(header.e_phentsize.get(LE)) != size
        || count == 0
        || count > MAX_HEADERS
    {
        return Err(Errno::ENOEXEC);
    }
    Ok((header.e_phoff.get(LE), count * size))
}

/// Returns the load plan of a file: `first` is the file's beginning, `table` its program headers.
///
/// # Errors
/// `ENOEXEC`, `EINVAL`, `ENOMEM` as Linux' loader gives them.
pub fn plan(first: &[u8], table: &[u8]) -> Result<Plan> {
    let header = elf::FileHeader64::<LE>::parse(first).map_err(|_| Errno::ENOEXEC)?;
    let kind = match header.e_type.get(LE) {
        elf::ET_EXEC => ElfKind::Fixed,
        elf::ET_DYN => ElfKind::Relocatable,
        _ => return Err(Errno::ENOEXEC),
    };
    let count = table.len() / size_of::<elf::ProgramHeader64<LE>>();
    let (headers, _) =
        object::slice_from_bytes::<elf::ProgramHeader64<LE>>(table, count).map_err(|()| Errno::ENOEXEC)?;
    let mut plan = Plan {
        kind,
        entry: header.e_entry.get(LE),
        segments: Vec::new(),
        interpreter: None,
        headers: 0,
        header_count: count as u64,
        stack: StackRights::Data,
        alignment: PAGE,
    };
    plan.segments.try_reserve_exact(count)?;
    let table_offset = header.e_phoff.get(LE);
    for program in headers {
        match program.p_type(LE) {
            elf::PT_LOAD => add_segment(&mut plan, program, table_offset)?,
            elf::PT_INTERP if plan.interpreter.is_none() => {
                let length = usize::try_from(program.p_filesz(LE)).map_err(|_| Errno::ENOEXEC)?;
                if !(2..=4096).contains(&length) {
                    return Err(Errno::ENOEXEC);
                }
                plan.interpreter = Some((program.p_offset(LE), length));
            }
            elf::PT_GNU_STACK if program.p_flags(LE).0 & elf::PF_X.0 != 0 => {
                plan.stack = StackRights::Executable
            }
            _ => {}
        }
    }
    if plan.segments.is_empty() { Err(Errno::ENOEXEC) } else { Ok(plan) }
}

fn add_segment(plan: &mut Plan, program: &elf::ProgramHeader64<LE>, table_offset: u64) -> Result<()> {
    let segment = Segment {
        address: program.p_vaddr(LE),
        offset: program.p_offset(LE),
        file_size: program.p_filesz(LE),
        memory_size: program.p_memsz(LE),
        flags: program.p_flags(LE).0 & 7,
    };
    if segment.memory_size == 0 {
        return Ok(());
    }
    let end = segment.address.checked_add(segment.memory_size).ok_or(Errno::EINVAL)?;
    let file_end = segment.offset.checked_add(segment.file_size).ok_or(Errno::EINVAL)?;
    if segment.file_size > segment.memory_size
        || end > END
        || file_end > i64::MAX as u64
        || segment.address % PAGE != segment.offset % PAGE
    {
        return Err(Errno::EINVAL);
    }
    if plan.segments.last().is_some_and(|last| last.address + last.memory_size > segment.address) {
        return Err(Errno::EINVAL);
    }
    let alignment = program.p_align(LE);
    if alignment.is_power_of_two() && alignment <= 1 << 30 {
        plan.alignment = plan.alignment.max(alignment);
    }
    if plan.headers == 0 && segment.offset <= table_offset && table_offset < file_end {
        plan.headers = segment.address + (table_offset - segment.offset);
    }
    plan.segments.try_push(segment)?;
    Ok(())
}

impl Plan {
    /// Returns the page range from the first to the last segment.
    pub fn span(&self) -> (u64, u64) {
        let start = self.segments.first().map_or(0, |first| first.address & !(PAGE - 1));
        let end = self.segments.last().map_or(0, |last| last.address + last.memory_size);
        (start, end.next_multiple_of(PAGE))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A file header and two program headers, as a linker writes them.
    fn sample() -> (Vec<u8>, Vec<u8>) {
        let mut first = std::vec![0u8; 64];
        first[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
        first[16..20].copy_from_slice(&[3, 0, 62, 0]);
        first[20] = 1;
        first[24..32].copy_from_slice(&0x1040u64.to_le_bytes());
        first[32..40].copy_from_slice(&64u64.to_le_bytes());
        first[52..54].copy_from_slice(&64u16.to_le_bytes());
        first[54..56].copy_from_slice(&56u16.to_le_bytes());
        first[56..58].copy_from_slice(&2u16.to_le_bytes());
        let mut table = Vec::new();
        for (flags, offset, address, file, memory) in
            [(5u32, 0u64, 0u64, 0x1800u64, 0x1800u64), (6, 0x1800, 0x2800, 0x100, 0x900)]
        {
            table.extend_from_slice(&1u32.to_le_bytes());
            table.extend_from_slice(&flags.to_le_bytes());
            for word in [offset, address, address, file, memory, 0x1000] {
                table.extend_from_slice(&word.to_le_bytes());
            }
        }
        (first, table)
    }

    #[test]
    fn a_linkers_output_is_understood() {
        let (first, table) = sample();
        assert_eq!(header_table(&first), Ok((64, 112)));
        let plan = plan(&first, &table).unwrap();
        assert_eq!((plan.kind, plan.entry, plan.headers), (ElfKind::Relocatable, 0x1040, 64));
        assert_eq!(plan.segments.len(), 2);
        assert_eq!(plan.span(), (0, 0x4000));
    }

    #[test]
    fn segments_that_overlap_or_leave_the_address_space_are_refused() {
        let (first, table) = sample();
        let mut overlapping = table.clone();
        overlapping[56 + 16..56 + 24].copy_from_slice(&0x800u64.to_le_bytes());
        assert_eq!(plan(&first, &overlapping), Err(Errno::EINVAL));
        let mut far = table.clone();
        far[56 + 16..56 + 24].copy_from_slice(&0xffff_ffff_ffff_f800u64.to_le_bytes());
        assert_eq!(plan(&first, &far), Err(Errno::EINVAL));
    }

    proptest! {
        /// For any bytes, the segments of the plan can be mapped: in order, without overlaps and
        /// inside the address space.
        #[test]
        fn a_hostile_file_gives_a_sound_plan_or_an_error(
            changes in prop::collection::vec((0usize..176, any::<u8>()), 0..12),
        ) {
            let (mut first, mut table) = sample();
            for (at, byte) in changes {
                if at < 64 { first[at] = byte } else { table[at - 64] = byte }
            }
            if header_table(&first).is_err() {
                return Ok(());
            }
            if let Ok(plan) = plan(&first, &table) {
                let mut end = 0;
                for segment in &plan.segments {
                    prop_assert!(segment.address >= end);
                    prop_assert!(segment.file_size <= segment.memory_size);
                    prop_assert_eq!(segment.address % PAGE, segment.offset % PAGE);
                    end = segment.address + segment.memory_size;
                    prop_assert!(end <= END);
                }
                prop_assert!(plan.alignment.is_power_of_two());
            }
        }
    }
}
