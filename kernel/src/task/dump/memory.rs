//! The memory of a core file: which areas are in it (core(5), /proc/PID/coredump_filter; Linux:
//! `vma_dump_size`), and their bytes.
//!
//! Bytes are read as a tracer reads them. An anonymous page that was never accessed, or that is the
//! shared zero page, becomes a hole and is not accessed. A page that can no longer be read becomes
//! a hole, too.

use freehold_collections::Vec;
use freehold_machine::VirtAddr;
use freehold_vm::{AreaFlags, AreaName, AreaView, PageAt, Protection, Rule, Sharing, VdsoPart};
use zerocopy::IntoBytes;

use super::output::{CoreOutput, Written};
use crate::fs::Path;
use crate::fs::bytes::SliceSink;
use crate::hw::PAGE;
use crate::mem::{self, AddressSpace, FileMapping, Frames, ProcessSpace};
use crate::{Errno, Result, sched};

/// Bits of /proc/PID/coredump_filter.
const ANONYMOUS_PRIVATE: u32 = 1;
const ANONYMOUS_SHARED: u32 = 1 << 1;
const MAPPED_PRIVATE: u32 = 1 << 2;
const MAPPED_SHARED: u32 = 1 << 3;
const ELF_HEADERS: u32 = 1 << 4;
const HUGE_PRIVATE: u32 = 1 << 5;
const HUGE_SHARED: u32 = 1 << 6;

/// Size of the address range whose pages are looked up at once.
const WINDOW: u64 = 64 << 20;
/// Number of bytes that are read at once.
const CHUNK: u64 = 64 << 10;
/// Largest size of the note about files (Linux: MAX_FILE_NOTE_SIZE).
const FILES_MOST: usize = 4 << 20;

/// The part of an area that is in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    Nothing,
    /// The first page, if an ELF header begins there.
    Head,
    /// The whole area.
    Whole,
}

/// An area as recorded in a core file.
pub struct CoreSegment {
    /// The first address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Number of bytes in the file.
    pub bytes: u64,
    /// PF_R, PF_W, PF_X.
    pub flags: u32,
    /// Whether pages exist only after their first access.
    is_anonymous: bool,
    extent: Extent,
}

/// The process' mappings: the areas, and the content of the note about files.
pub struct Areas {
    /// All areas, in ascending order.
    pub segments: Vec<CoreSegment>,
    /// The content of the note: the number of files, the page size, for each file its addresses and
    /// its offset in pages, then the names.
    pub files: Vec<u8>,
}

type UserArea<'a> = AreaView<'a, Frames>;

fn extent(space: &AddressSpace, area: &UserArea<'_>, filter: u32) -> Extent {
    let asks = |bit| filter & bit != 0;
    let whole = |is| if is { Extent::Whole } else { Extent::Nothing };
    if matches!(area.name, AreaName::Vdso(VdsoPart::Image)) {
        return Extent::Whole;
    }
    if area.flags.contains(AreaFlags::DONTDUMP) {
        return Extent::Nothing;
    }
    if area.unit > PAGE {
        return whole(asks(if area.sharing == Sharing::Shared { HUGE_SHARED } else { HUGE_PRIVATE }));
    }
    let file = FileMapping::of(area.name);
    if area.sharing == Sharing::Shared {
        let is_named = file.is_some_and(|file| file.file().node().metadata().links > 0);
        return whole(asks(if is_named { MAPPED_SHARED } else { ANONYMOUS_SHARED }));
    }
    if asks(ANONYMOUS_PRIVATE) {
        let counts = space.smaps(area);
        if counts.anonymous > 0 || counts.swap > 0 {
            return Extent::Whole;
        }
    }
    if file.is_none() || asks(MAPPED_PRIVATE) {
        return whole(file.is_some());
    }
    let is_head = asks(ELF_HEADERS) && area.offset == 0 && area.protection.contains(Protection::READ);
    if is_head { Extent::Head } else { Extent::Nothing }
}

fn flags(protection: Protection) -> u32 {
    let bit = |what, bit| if protection.contains(what) { bit } else { 0 };
    bit(Protection::EXEC, 1) | bit(Protection::WRITE, 2) | bit(Protection::READ, 4)
}

impl Areas {
    /// Returns the mappings of `space`. Names of files are relative to `root`.
    ///
    /// # Errors
    /// `ENOMEM`; `EINTR` if the thread is being killed.
    #[cold]
    pub fn of(space: &ProcessSpace, root: &Path) -> Result<Self> {
        let filter = space.dump_filter();
        let (mut segments, mut places, mut names) = (Vec::new(), Vec::new(), Vec::new());
        {
            let areas = space.lock();
            for area in areas.areas() {
                sched::checkpoint()?;
                let (start, end) = (area.start.0, area.end.0);
                segments.try_push(CoreSegment {
                    start,
                    end,
                    bytes: 0,
                    flags: flags(area.protection),
                    is_anonymous: matches!(
                        area.name,
                        AreaName::Anonymous | AreaName::Heap | AreaName::Stack | AreaName::Huge
                    ),
                    extent: extent(&areas, &area, filter),
                })?;
                if places.len() * 24 + names.len() < FILES_MOST && put_name(&mut names, &area, root)? {
                    places.try_push([start, end, area.offset / PAGE])?;
                }
            }
        }
        for segment in segments.as_mut_slice() {
            segment.bytes = match segment.extent {
                Extent::Whole => segment.end - segment.start,
                Extent::Head if is_elf(space, segment.start) => PAGE,
                Extent::Head | Extent::Nothing => 0,
            };
        }
        let mut files = Vec::new();
        if !places.is_empty() {
            files.try_extend_from_slice([places.len() as u64, PAGE].as_bytes())?;
            files.try_extend_from_slice(places.as_slice().as_bytes())?;
            files.try_extend_from_slice(&names)?;
        }
        Ok(Self { segments, files })
    }
}

/// Adds the name of the file that an area maps. Returns whether it maps one.
fn put_name(names: &mut Vec<u8>, area: &UserArea<'_>, root: &Path) -> Result<bool> {
    match (FileMapping::of(area.name).map(|mapping| mapping.file().path()), area.name) {
        (Some(Some(path)), _) => names.try_extend_from_slice(&path.display_short(root)?)?,
        (None, AreaName::SharedAnonymous) => names.try_extend_from_slice(b"/dev/zero (deleted)")?,
        _ => return Ok(false),
    }
    names.try_push(0)?;
    Ok(true)
}

fn is_elf(space: &ProcessSpace, at: u64) -> bool {
    let mut magic = [0; 4];
    let read = mem::read_space(space, VirtAddr(at), 4, Rule::Forced, &mut SliceSink::new(&mut magic));
    read == Ok(4) && magic == *b"\x7fELF"
}

/// The pages of a window that have content to write.
struct Present {
    bits: Vec<u64>,
    at: u64,
}

impl Present {
    fn new() -> Result<Self> {
        Ok(Self { bits: Vec::try_filled(0, (WINDOW / PAGE / 64) as usize)?, at: 0 })
    }

    /// Finds the pages in `start..end`, at most one window.
    fn look(&mut self, space: &ProcessSpace, start: u64, end: u64) {
        self.at = start;
        self.bits.as_mut_slice().fill(0);
        let bits = self.bits.as_mut_slice();
        space.lock().pages(VirtAddr(start), VirtAddr(end), |page| {
            // The zero page has no mappings.
            if page.mappings > 0 || matches!(page.at, PageAt::Swapped(_)) {
                let index = (page.addr.0 - start) / PAGE;
                bits[(index / 64) as usize] |= 1 << (index % 64);
            }
        });
    }

    fn has(&self, address: u64) -> bool {
        let index = (address - self.at) / PAGE;
        self.bits[(index / 64) as usize] & 1 << (index % 64) != 0
    }

    /// Returns the end of the run of pages from `from` on that are all present or all absent.
    fn run(&self, from: u64, end: u64) -> u64 {
        let is_there = self.has(from);
        let mut to = from + PAGE;
        while to < end && self.has(to) == is_there {
            to += PAGE;
        }
        to
    }
}

/// Writes the bytes of all segments.
///
/// # Errors
/// Those of `out`; `ENOMEM`; `EINTR` if the thread is being killed.
pub fn put(out: &mut CoreOutput, space: &ProcessSpace, segments: &[CoreSegment]) -> Written {
    let mut present = Present::new()?;
    let mut buffer = Vec::try_filled(0, CHUNK as usize).map_err(Errno::from)?;
    for segment in segments {
        let last = segment.start + segment.bytes;
        let mut at = segment.start;
        while at < last {
            sched::checkpoint()?;
            let end = last.min(at + WINDOW);
            if !segment.is_anonymous {
                put_pages(out, space, at..end, &mut buffer)?;
                at = end;
                continue;
            }
            present.look(space, at, end);
            while at < end {
                let to = present.run(at, end);
                if present.has(at) {
                    put_pages(out, space, at..to, &mut buffer)?;
                } else {
                    out.skip(to - at);
                }
                at = to;
            }
        }
    }
    Ok(())
}

/// Writes pages. A page that cannot be read becomes a hole.
fn put_pages(
    out: &mut CoreOutput,
    space: &ProcessSpace,
    range: core::ops::Range<u64>,
    buffer: &mut Vec<u8>,
) -> Written {
    let mut at = range.start;
    while at < range.end {
        sched::checkpoint()?;
        let wanted = CHUNK.min(range.end - at) as usize;
        let mut sink = SliceSink::new(&mut buffer.as_mut_slice()[..wanted]);
        let read = mem::read_space(space, VirtAddr(at), wanted, Rule::Forced, &mut sink).unwrap_or(0);
        let whole = read as u64 & !(PAGE - 1);
        if whole > 0 {
            out.put(&buffer[..whole as usize])?;
        } else {
            out.skip(PAGE);
        }
        at += whole.max(PAGE);
    }
    Ok(())
}
