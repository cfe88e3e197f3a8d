//! The files about a process' memory.
//!
//! The space's lock is held while its areas are walked. Names of mapped files are made from paths,
//! which takes locks of directories under the space's lock. Nothing here accesses user addresses
//! meanwhile.

use core::ops::Range;

use freehold_collections::{Arc, Box, Vec, Weak, reserve, reserve::ArcMethods as _};
use freehold_machine::VirtAddr;
use freehold_vm::{
    AreaFlags, AreaName, AreaView, OfFile, PageAt, Protection, RemoteAccess, Rule, Sharing, Smaps, VdsoPart,
    Watching, Written,
};
use zerocopy::IntoBytes as _;

use super::frames::put_in_steps;
use super::processes::{FileKind, Subject, nameless};
use super::scan;
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::fs::device::split_device;
use crate::fs::file::{Blocking, File, Seekable};
use crate::fs::generated::{More, PART, Parts, ShortLine, Text};
use crate::fs::node::Node;
use crate::fs::{Path, root};
pub(super) use crate::hw::PAGE;
use crate::hw::user::has_protection_keys;
use crate::mem::{self, AddressSpace, FileMapping, ForeignWindows, Frames, ProcessSpace, Program};
use crate::task::{self, Process, registry};
use crate::user::{self, Sink, Source};
use crate::{Errno, Result};

pub type UserArea<'a> = AreaView<'a, Frames>;

/// Writes the content of a file about `space`, which is or was the memory of `process`. Writes
/// nothing for a space that has ended.
pub(super) fn show(out: &mut Text, process: &Process, space: &ProcessSpace, kind: FileKind) -> Result<()> {
    if process.exit_status().is_some() {
        return Ok(());
    }
    let program = space.program();
    match kind {
        FileKind::Auxv => {
            for (key, value) in program.auxiliary.iter().flat_map(|vector| vector.iter()) {
                out.push(&key.to_ne_bytes());
                out.push(&value.to_ne_bytes());
            }
            Ok(())
        }
        FileKind::SmapsRollup => {
            let areas = space.lock();
            let mut sum = Smaps::default();
            for area in areas.areas() {
                crate::sched::checkpoint()?;
                add(&mut sum, &areas.smaps(&area));
            }
            let first = areas.areas().next().map_or(0, |area| area.start.0);
            let last = areas.areas().next_back().map_or(0, |area| area.end.0);
            writeln!(out, "{first:08x}-{last:08x} ---p 00000000 00:00 0{:28}[rollup]", "");
            counts(out, &sum, Rows::OfAll);
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The record that a file has for each area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AreaRecord {
    /// /proc/PID/maps
    Line,
    /// /proc/PID/smaps
    Counts,
    /// /proc/PID/numa_maps
    Nodes,
}

/// The records of all areas. A program can have any number of areas. So each read makes its own
/// records, whole ones, from the last shown address on (Linux: `m_start`, fs/proc/task_mmu.c).
pub(super) struct AreaRecords {
    pub subject: Subject,
    /// The space that the opener was allowed to inspect. The process may have another one by now.
    pub space: Weak<ProcessSpace>,
    pub record: AreaRecord,
    /// The end of the last area that was shown.
    pub next: VirtAddr,
}

impl Parts for AreaRecords {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        let process = match self.subject.process() {
            Ok(process) => process,
            Err(error) if self.next == VirtAddr(0) => return Err(error),
            Err(_) => return Ok(More::No),
        };
        let Some(space) = self.space.upgrade().filter(|_| process.exit_status().is_none()) else {
            return Ok(More::No);
        };
        let root = process.fs().root();
        let areas = space.lock();
        for area in areas.areas_in(self.next, VirtAddr(u64::MAX)) {
            crate::sched::checkpoint()?;
            match self.record {
                AreaRecord::Line => line(out, &area, &root)?,
                AreaRecord::Counts => smaps_record(out, &areas, &area, &root)?,
                AreaRecord::Nodes => super::numa_maps::line(out, &areas, &area, &root)?,
            }
            self.next = area.end;
            if out.length() >= PART {
                return Ok(More::Yes);
            }
        }
        Ok(More::No)
    }
}

fn smaps_record(out: &mut Text, areas: &AddressSpace, area: &UserArea<'_>, root: &Path) -> Result<()> {
    line(out, area, root)?;
    out.kib("Size:", (area.end.0 - area.start.0) / 1024);
    let page_kib = page_bytes(area) / 1024;
    out.kib("KernelPageSize:", page_kib);
    out.kib("MMUPageSize:", page_kib);
    counts(out, &areas.smaps(area), Rows::OfOne);
    let eligible = u8::from(areas.is_huge_eligible(area));
    write!(out, "THPeligible:{eligible:>12}\n");
    if has_protection_keys() {
        write!(out, "ProtectionKey:  {:>8}\n", area.key.number());
    }
    write!(out, "VmFlags: ");
    vm_flags(out, area);
    out.push(b"\n");
    Ok(())
}

/// A list of strings that a program was started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strings {
    /// /proc/PID/cmdline
    Arguments,
    /// /proc/PID/environ
    Environment,
}

/// A program's strings, as they are in its memory when they are read.
pub(super) struct StringParts {
    process: Weak<Process>,
    space: Option<Weak<ProcessSpace>>,
    strings: Strings,
    /// The addresses that were not read yet; `None` at the beginning.
    rest: Option<Range<u64>>,
}

impl StringParts {
    /// Makes a reader of the strings in `space`, or in the memory that the process has when the
    /// first are read.
    pub fn boxed(
        process: Weak<Process>,
        space: Option<Weak<ProcessSpace>>,
        strings: Strings,
    ) -> Box<dyn Parts> {
        reserve::boxed(Self { process, space, strings, rest: None })
    }
}

impl Parts for StringParts {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        let process = self
            .process
            .upgrade()
            .filter(|process| registry::find(process.pid).is_some_and(|known| known.is_same(process)));
        let process = match (process, &self.rest) {
            (Some(process), _) => process,
            (None, None) => return Err(Errno::ESRCH),
            (None, Some(_)) => return Ok(More::No),
        };
        let space = self.space.get_or_insert_with(|| process.space().downgrade()).upgrade();
        let Some(space) = space.filter(|_| process.exit_status().is_none()) else { return Ok(More::No) };
        let program = space.program();
        let _foreign = ForeignWindows::begin();
        let mut areas = space.lock();
        let range = self.rest.take().unwrap_or_else(|| match self.strings {
            Strings::Environment => program.environment,
            Strings::Arguments => arguments(&mut areas, &program),
        });
        let len = range.end.saturating_sub(range.start).min(PART as u64) as usize;
        let read = areas.access_remote(VirtAddr(range.start), len, RemoteAccess::Read, |bytes| {
            out.push(bytes);
            bytes.len()
        });
        // The content ends where the program has unmapped its memory.
        let read = read.unwrap_or(0);
        self.rest = Some(range.start + read as u64..range.end);
        Ok(if read == len && len == PART { More::Yes } else { More::No })
    }
}

/// Returns the addresses of the arguments. A program that wrote another byte over the zero at their
/// end has given itself a title, which may go on over the environment and ends with a zero (Linux:
/// `get_mm_cmdline`, fs/proc/base.c).
fn arguments(areas: &mut AddressSpace, program: &Program) -> Range<u64> {
    let Range { start, end } = program.arguments;
    let mut last = [0];
    if end <= start
        || program.environment.start != end
        || areas.read_remote(VirtAddr(end - 1), &mut last).is_err()
        || last == [0]
    {
        return program.arguments.clone();
    }
    let most = (PAGE as u64).min(program.environment.end.max(end) - start);
    let mut length = 0;
    // A title in memory that cannot be read has no bytes.
    let _ = areas.access_remote(VirtAddr(start), most as usize, RemoteAccess::Read, |bytes| {
        let zero = bytes.iter().position(|&byte| byte == 0);
        length += zero.map_or(bytes.len(), |at| at + 1);
        zero.map_or(bytes.len(), |_| 0)
    });
    start..start + length as u64
}

/// Returns the bytes of the area's name, with line feeds escaped.
///
/// # Errors
/// `ENOMEM`; `EINTR`.
pub fn name(area: &UserArea<'_>, root: &Path) -> Result<Vec<u8>> {
    Ok(match area.name {
        AreaName::Heap => Vec::try_from_slice(b"[heap]")?,
        AreaName::Stack => Vec::try_from_slice(b"[stack]")?,
        AreaName::Vdso(VdsoPart::Image) => Vec::try_from_slice(b"[vdso]")?,
        AreaName::Vdso(VdsoPart::Time) => Vec::try_from_slice(b"[vvar]")?,
        AreaName::SharedAnonymous => Vec::try_from_slice(b"/dev/zero (deleted)")?,
        AreaName::Huge => Vec::try_from_slice(b"/anon_hugepage (deleted)")?,
        AreaName::File(_) => match FileMapping::of(area.name) {
            Some(mapping) => match mapping.file().path() {
                Some(path) => path.display_short(root)?,
                None => nameless(mapping.file())?,
            },
            None => Vec::new(),
        },
        _ => Vec::new(),
    })
}

/// Device and inode number of the mapped file.
fn identity(area: &UserArea<'_>) -> (u64, u64) {
    if let Some(mapping) = FileMapping::of(area.name) {
        let identity = mapping.file().node().identity();
        return (identity.device, identity.inode);
    }
    match area.name {
        AreaName::SharedAnonymous | AreaName::Huge => {
            (root::unnamed_mount().file_system().device(), area.object)
        }
        _ => (0, 0),
    }
}

fn line(out: &mut Text, area: &UserArea<'_>, root: &Path) -> Result<()> {
    let may = |what, letter| if area.protection.contains(what) { letter } else { b'-' };
    let (r, w) = (may(Protection::READ, b'r'), may(Protection::WRITE, b'w'));
    let x = may(Protection::EXEC, b'x');
    let sharing = if area.sharing == Sharing::Shared { b's' } else { b'p' };
    let (device, inode) = identity(area);
    let (major, minor) = split_device(device);
    let mut head = ShortLine::new();
    head.hex(area.start.0, 8);
    head.push(b"-");
    head.hex(area.end.0, 8);
    head.push(&[b' ', r, w, x, sharing, b' ']);
    head.hex(area.offset, 8);
    head.push(b" ");
    head.hex(u64::from(major), 2);
    head.push(b":");
    head.hex(u64::from(minor), 2);
    head.push(b" ");
    head.decimal(inode, 0);
    let name = name(area, root)?;
    if name.is_empty() {
        head.push(b" \n");
        out.push(head.bytes());
        return Ok(());
    }
    head.pad(72);
    head.push(b" ");
    out.push(head.bytes());
    for &byte in &name {
        if byte == b'\n' { out.push(b"\\012") } else { out.push(&[byte]) }
    }
    out.push(b"\n");
    Ok(())
}

/// The subject of the figures: one area, or all areas together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    OfOne,
    OfAll,
}

fn counts(out: &mut Text, smaps: &Smaps, rows: Rows) {
    let mut row = |name: &str, bytes: u64| out.kib(name, bytes / 1024);
    row("Rss:", smaps.rss);
    row("Pss:", smaps.pss);
    row("Pss_Dirty:", smaps.pss_dirty);
    if rows == Rows::OfAll {
        row("Pss_Anon:", smaps.pss_anon);
        row("Pss_File:", smaps.pss_file);
        row("Pss_Shmem:", smaps.pss_shmem);
    }
    row("Shared_Clean:", smaps.shared_clean);
    row("Shared_Dirty:", smaps.shared_dirty);
    row("Private_Clean:", smaps.private_clean);
    row("Private_Dirty:", smaps.private_dirty);
    row("Referenced:", smaps.referenced);
    row("Anonymous:", smaps.anonymous);
    row("KSM:", smaps.ksm);
    row("LazyFree:", smaps.lazy_free);
    row("AnonHugePages:", smaps.huge);
    row("ShmemPmdMapped:", 0);
    row("FilePmdMapped:", 0);
    row("Shared_Hugetlb:", smaps.shared_huge);
    row("Private_Hugetlb:", smaps.private_huge);
    row("Swap:", smaps.swap);
    row("SwapPss:", smaps.swap_pss);
    row("Locked:", smaps.locked);
}

fn add(sum: &mut Smaps, one: &Smaps) {
    sum.rss += one.rss;
    sum.pss += one.pss;
    sum.pss_dirty += one.pss_dirty;
    sum.pss_anon += one.pss_anon;
    sum.pss_file += one.pss_file;
    sum.pss_shmem += one.pss_shmem;
    sum.shared_clean += one.shared_clean;
    sum.shared_dirty += one.shared_dirty;
    sum.private_clean += one.private_clean;
    sum.private_dirty += one.private_dirty;
    sum.referenced += one.referenced;
    sum.anonymous += one.anonymous;
    sum.lazy_free += one.lazy_free;
    sum.ksm += one.ksm;
    sum.huge += one.huge;
    sum.shared_huge += one.shared_huge;
    sum.private_huge += one.private_huge;
    sum.swap += one.swap;
    sum.swap_pss += one.swap_pss;
    sum.locked += one.locked;
}

/// Properties of an area and Linux' two-letter codes, in Linux' order.
const AREA_FLAGS: [(AreaFlags, &str); 16] = [
    (AreaFlags::GROWSDOWN, "gd "),
    (AreaFlags::LOCKED, "lo "),
    (AreaFlags::SEQUENTIAL, "sr "),
    (AreaFlags::RANDOM, "rr "),
    (AreaFlags::DONTFORK, "dc "),
    (AreaFlags::ACCOUNT, "ac "),
    (AreaFlags::NORESERVE, "nr "),
    (AreaFlags::WIPEONFORK, "wf "),
    (AreaFlags::DONTDUMP, "dd "),
    (AreaFlags::SOFTDIRTY, "sd "),
    (AreaFlags::HUGEPAGE, "hg "),
    (AreaFlags::NOHUGEPAGE, "nh "),
    (AreaFlags::MERGEABLE, "mg "),
    (AreaFlags::MONITOR_MISSING, "um "),
    (AreaFlags::MONITOR_STORES, "uw "),
    (AreaFlags::MONITOR_MINOR, "ui "),
];

/// Returns the bytes of the area's pages.
pub fn page_bytes(area: &UserArea<'_>) -> u64 {
    area.unit
}

/// Writes the two-letter flags of an area that this kernel has.
fn vm_flags(out: &mut Text, area: &UserArea<'_>) {
    for (what, code) in [(Protection::READ, "rd "), (Protection::WRITE, "wr "), (Protection::EXEC, "ex ")] {
        if area.protection.contains(what) {
            out.push(code.as_bytes());
        }
    }
    let is_shared = area.sharing == Sharing::Shared;
    let never = |flag| area.flags.contains(flag);
    // A shared mapping that can never be written has only VM_MAYSHARE.
    for (is_so, code) in [
        (is_shared && !never(AreaFlags::NEVERWRITE), "sh "),
        (true, "mr "),
        (!never(AreaFlags::NEVERWRITE), "mw "),
        (!never(AreaFlags::NEVEREXEC), "me "),
        (is_shared, "ms "),
    ] {
        if is_so {
            out.push(code.as_bytes());
        }
    }
    let is_huge = area.unit > PAGE;
    for (flag, code) in AREA_FLAGS {
        if flag == AreaFlags::SOFTDIRTY && is_huge {
            // Linux does not merge such areas, and does not let them grow.
            out.push(b"ht ");
        }
        if flag == AreaFlags::ACCOUNT && is_huge {
            out.push(b"de ");
        }
        if area.flags.contains(flag) {
            out.push(code.as_bytes());
        }
    }
}

/// Bits of a pagemap entry, by Linux' names.
const ENTRY: u64 = 8;
const PM_PFRAME: u64 = (1 << 55) - 1;
const PM_SOFT_DIRTY: u64 = 1 << 55;
const PM_MMAP_EXCLUSIVE: u64 = 1 << 56;
const PM_UFFD_WP: u64 = 1 << 57;
const PM_FILE: u64 = 1 << 61;
const PM_SWAP: u64 = 1 << 62;
const PM_PRESENT: u64 = 1 << 63;

/// Whether a reader of pagemap sees frame numbers: only if it opened the file with all
/// capabilities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameNumbers {
    Told,
    Hidden,
}

/// /proc/PID/mem and pagemap. As on Linux, the space is that of the time of opening. It is freed
/// with its last process, even while the file is open, and the file is then empty. Otherwise memory
/// that can be mapped into itself through a ring would never be freed.
pub(super) struct SpaceFile {
    node: Arc<dyn Node>,
    space: Weak<ProcessSpace>,
    kind: FileKind,
    frames: FrameNumbers,
}

impl SpaceFile {
    pub fn open(node: Arc<dyn Node>, space: Weak<ProcessSpace>, kind: FileKind) -> Arc<dyn File> {
        let privileged = task::current().process().credentials().is_privileged();
        let frames = if privileged { FrameNumbers::Told } else { FrameNumbers::Hidden };
        reserve::arc(Self { node, space, kind, frames })
    }

    /// Writes one 64-bit word per page: frame number, whether it has a single mapping, whether it
    /// is a file's page, present (Documentation/admin-guide/mm/pagemap.rst).
    fn pagemap(&self, space: &ProcessSpace, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        const STEP: u64 = 512;
        let end = (1 << 47) / PAGE;
        let first = (offset / ENTRY).min(end);
        let count = (sink.remaining() as u64 / ENTRY).min(STEP).min(end - first);
        let mut words = user::zeroed::<u64>(count as usize)?;
        // A page that is not mapped has no entry. Its word stays zero, or has only the bit for a
        // new area.
        let (from, to) = (VirtAddr(first * PAGE), VirtAddr((first + count) * PAGE));
        let space = space.lock();
        for area in space.areas_in(from, to).filter(|area| area.flags.contains(AreaFlags::SOFTDIRTY)) {
            let index = |addr: VirtAddr| ((addr.max(from).min(to).0 - from.0) / PAGE) as usize;
            words[index(area.start)..index(area.end)].fill(PM_SOFT_DIRTY);
        }
        space.pages(from, to, |page| {
            let Some(word) = words.get_mut(((page.addr.0 - from.0) / PAGE) as usize) else { return };
            let written = if page.written == Written::Since { PM_SOFT_DIRTY } else { 0 };
            let watched = if page.watched == Watching::On { PM_UFFD_WP } else { 0 };
            let file = if page.of_file == OfFile::Yes { PM_FILE } else { 0 };
            let exclusive = if page.mappings == 1 { PM_MMAP_EXCLUSIVE } else { 0 };
            // For a swapped page, five bits for the swap area and fifty for the slot replace the
            // frame number.
            let (state, place) = match page.at {
                PageAt::Frame(frame) => (PM_PRESENT, frame.0),
                PageAt::Swapped(place) => (PM_SWAP, place.slot << 5 | u64::from(place.area)),
            };
            let place = if self.frames == FrameNumbers::Told { place & PM_PFRAME } else { 0 };
            *word |= state | written | watched | file | exclusive | place;
        });
        drop(space);
        sink.put(words.as_bytes())
    }
}

/// Checks that a step moved bytes.
const fn some(count: usize) -> Result<usize> {
    if count == 0 { Err(Errno::EFAULT) } else { Ok(count) }
}

impl File for SpaceFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        if self.kind == FileKind::Pagemap {
            if !offset.is_multiple_of(ENTRY) || !(sink.remaining() as u64).is_multiple_of(ENTRY) {
                return Err(Errno::EINVAL);
            }
            let Some(space) = self.space.upgrade() else { return Ok(0) };
            return put_in_steps(sink, |told, sink| self.pagemap(&space, offset + told as u64, sink));
        }
        let Some(space) = self.space.upgrade() else { return Ok(0) };
        let mut page = user::zeroed(PAGE as usize)?;
        let mut done = 0;
        while sink.remaining() > 0 {
            if let Err(error) = crate::sched::checkpoint() {
                return user::so_far(done, error);
            }
            let step = page.len().min(sink.remaining());
            let at = VirtAddr(offset.saturating_add(done as u64));
            let mut room = SliceSink::new(&mut page[..step]);
            let Ok(read @ 1..) = mem::read_space(&space, at, step, Rule::Forced, &mut room) else {
                break;
            };
            // If the reader's buffer cannot be written, the reader gets the error, even after
            // earlier bytes.
            let mut told = 0;
            while told < read {
                told += some(sink.put(&page[told..read])?)?;
            }
            done += read;
        }
        if done == 0 && sink.remaining() > 0 { Err(Errno::EIO) } else { Ok(done) }
    }

    fn write_at(&self, offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        if self.kind == FileKind::Pagemap {
            return Err(Errno::EINVAL);
        }
        let Some(space) = self.space.upgrade() else { return Ok(0) };
        let mut page = user::zeroed(PAGE as usize)?;
        let mut done = 0;
        while source.remaining() > 0 {
            let step = page.len().min(source.remaining());
            if let Err(error) = crate::sched::checkpoint() {
                return user::so_far(done, error);
            }
            // The source is read first, so its error precedes an error of the target.
            let mut given = 0;
            while given < step {
                given += some(source.take(&mut page[given..step])?)?;
            }
            let at = VirtAddr(offset.saturating_add(done as u64));
            let mut bytes = SliceSource::new(&page[..step]);
            let written = mem::write_space(&space, at, step, Rule::Forced, &mut bytes).unwrap_or(0);
            done += written;
            if done == 0 {
                return Err(Errno::EIO);
            }
            if written < step {
                break;
            }
        }
        Ok(done)
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn end(&self) -> Result<u64> {
        Err(Errno::EINVAL)
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        match (self.kind, request) {
            (FileKind::Pagemap, scan::PAGEMAP_SCAN) => {
                scan::scan(&self.space.upgrade().ok_or(Errno::ESRCH)?, argument)
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}
