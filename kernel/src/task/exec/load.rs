//! Loading an ELF file into an address space.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::Arc;
use freehold_machine::{Entropy, PAGE_SIZE, VirtAddr};
use freehold_vm::{AreaFlags, AreaPlace, Backing, FileView, Limits, MapRequest, Protection};

use super::elf::{self, ElfKind, Plan, Segment};
use crate::fs::{MmapContent, OpenFile};
use crate::hw::PAGE;
use crate::mem::{FileMapping, Frames, ProcessSpace};
use crate::{Errno, Result, user};

/// The base of relocatable programs: at two thirds of the address space, so that heap and mappings
/// both have room (ELF_ET_DYN_BASE).
const RELOCATABLE_BASE: u64 = 0x5555_5555_4000;
/// Pages of randomness in the base of a relocatable program: 2^28.
const PLACE_PAGES: u64 = 1 << 28;

/// An open executable and its load plan.
pub struct Executable {
    /// The file.
    pub file: Arc<OpenFile>,
    /// The load plan.
    pub plan: Plan,
    mapping: Arc<FileMapping>,
}

/// A loaded file.
pub struct LoadedFile {
    /// Offset of the load addresses from the file's addresses.
    pub bias: u64,
    /// One past its last byte of memory.
    pub end: u64,
}

impl Executable {
    /// Reads the headers of `file`. `head` is its beginning.
    ///
    /// # Errors
    /// `ENOEXEC`, `EINVAL`, `ENOMEM`, `EIO`.
    pub fn open(file: Arc<OpenFile>, head: &[u8]) -> Result<Self> {
        let (offset, length) = elf::header_table(head)?;
        let mut table = user::zeroed(length)?;
        if file.read_kernel(offset, &mut table)? != length {
            return Err(Errno::ENOEXEC);
        }
        let plan = elf::plan(head, &table)?;
        let content = match file.file().mapping()? {
            MmapContent::Content(content) | MmapContent::Unstorable(content) => content,
            MmapContent::Zeroes => return Err(Errno::ENOEXEC),
        };
        let mapping = FileMapping::new(file.clone(), &content)?;
        Ok(Self { file, plan, mapping })
    }

    /// Maps the file. A relocatable program gets a random place, its interpreter a place among the
    /// mappings.
    ///
    /// # Errors
    /// `ENOMEM`, `EINVAL`.
    pub fn map(&self, space: &ProcessSpace, role: Role, limits: &Limits) -> Result<LoadedFile> {
        let (start, end) = self.plan.span();
        let bias = match (self.plan.kind, role) {
            (ElfKind::Fixed, _) => 0,
            (ElfKind::Relocatable, Role::Program(places)) => {
                let random = places.draw() % PLACE_PAGES * PAGE;
                ((RELOCATABLE_BASE + random) & !(self.plan.alignment - 1)).wrapping_sub(start)
            }
            (ElfKind::Relocatable, Role::Interpreter) => {
                // Find a hole for the whole file. The segments are then mapped inside it.
                let request = MapRequest {
                    place: AreaPlace::Anywhere,
                    len: end - start,
                    protection: Protection::NONE,
                    backing: Backing::Anonymous,
                    flags: AreaFlags::NORESERVE,
                };
                let mut areas = space.lock();
                let hole = areas.map(request, limits)?;
                areas.unmap(hole, end - start)?;
                hole.0.wrapping_sub(start)
            }
        };
        for segment in &self.plan.segments {
            self.map_segment(space, segment, bias, limits)?;
        }
        let last = self.plan.segments.last().map_or(0, |last| last.address + last.memory_size);
        Ok(LoadedFile { bias, end: last.wrapping_add(bias) })
    }

    fn map_segment(&self, space: &ProcessSpace, segment: &Segment, bias: u64, limits: &Limits) -> Result<()> {
        let mut protection = Protection::NONE;
        protection.set(Protection::READ, segment.flags & 4 != 0);
        protection.set(Protection::WRITE, segment.flags & 2 != 0);
        protection.set(Protection::EXEC, segment.flags & 1 != 0);
        let address = segment.address.wrapping_add(bias);
        let start = address & !(PAGE - 1);
        let file_end = address + segment.file_size;
        let end = (address + segment.memory_size).next_multiple_of(PAGE);
        let mut zero_from = start;
        if segment.file_size > 0 {
            let offset = segment.offset & !(PAGE - 1);
            let view = FileView { file: self.mapping.clone(), offset };
            zero_from = file_end.next_multiple_of(PAGE);
            map(space, start..zero_from, protection, Backing::PrivateFile(view), limits)?;
        }
        if zero_from < end {
            map(space, zero_from..end, protection, Backing::Anonymous, limits)?;
        }
        // The rest of the last page from the file has the next bytes of the file, but the program
        // expects zeros.
        if segment.memory_size > segment.file_size
            && file_end < zero_from
            && segment.file_size > 0
            && protection.contains(Protection::WRITE)
        {
            const ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
            let length = (zero_from - file_end) as usize;
            space.lock().write_remote(VirtAddr(file_end), &ZEROES[..length])?;
        }
        Ok(())
    }
}

/// How much is random: kernel.randomize_va_space.
static RANDOMNESS: AtomicU64 = AtomicU64::new(RANDOM_HEAP);

/// Bytes of randomness between a program's data and its heap.
const BREAK_RANDOM: u64 = 32 << 20;
/// All addresses are random, those of heaps too.
const RANDOM_HEAP: u64 = 2;

/// Returns how much of programs' addresses is random: 0: nothing; 1: all but heaps, which begin
/// behind their programs; 2: heaps too.
pub fn randomness() -> u64 {
    RANDOMNESS.load(Ordering::Relaxed)
}

/// Sets [`randomness`] for programs that are started from now on.
///
/// # Errors
/// EINVAL: not 0, 1 or 2.
pub fn set_randomness(level: u64) -> Result<()> {
    if level > RANDOM_HEAP {
        return Err(Errno::EINVAL);
    }
    RANDOMNESS.store(level, Ordering::Relaxed);
    Ok(())
}

/// How the addresses of a program's parts are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadPlaces {
    /// At random addresses.
    Random,
    /// At the same addresses each time (ADDR_NO_RANDOMIZE).
    Fixed,
}

impl LoadPlaces {
    /// Returns the bytes between a program and its heap, a multiple of the page size.
    pub fn draw_heap_gap(self) -> u64 {
        if randomness() == RANDOM_HEAP { self.draw() % BREAK_RANDOM & !(PAGE - 1) } else { 0 }
    }

    /// Returns random bits; 0 for fixed addresses.
    pub fn draw(self) -> u64 {
        match self {
            Self::Random => crate::hw::Hardware.random_u64(),
            Self::Fixed => 0,
        }
    }
}

/// The role of a file in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The program itself.
    Program(LoadPlaces),
    /// The program's dynamic linker.
    Interpreter,
}

fn map(
    space: &ProcessSpace,
    range: Range<u64>,
    protection: Protection,
    backing: Backing<Frames>,
    limits: &Limits,
) -> Result<()> {
    let request = MapRequest {
        place: AreaPlace::FixedNoReplace(VirtAddr(range.start)),
        len: range.end - range.start,
        protection,
        backing,
        flags: AreaFlags::empty(),
    };
    match space.lock().map(request, limits) {
        Ok(_) => Ok(()),
        // Two segments share a page: no linker does that with writable segments.
        Err(freehold_vm::VmError::Exists) => Err(Errno::EINVAL),
        Err(error) => Err(error.into()),
    }
}
