//! mmap(2) and its family.
//!
//! Arguments are checked in Linux' order, so that a program that probes for features gets the
//! expected errno.

mod nodes;
mod policy;
mod protect;
mod remote;

pub use nodes::{sys_migrate_pages, sys_move_pages};
pub use policy::{sys_get_mempolicy, sys_mbind, sys_set_mempolicy, sys_set_mempolicy_home_node};
pub use protect::{sys_mprotect, sys_pkey_alloc, sys_pkey_free, sys_pkey_mprotect};
pub use remote::{sys_process_madvise, sys_process_vm_readv, sys_process_vm_writev};

use core::ops::Range;

use bitflags::bitflags;

use freehold_collections::Arc;
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_vm::{
    Advice, AreaFlags, AreaPlace, Backing, FileView, KeyChange, LockAll, LockMode, MapRequest, MappedFile,
    OtherCopies, Populate, Protect, ProtectExtent, Protection, Remap, RemapPlace, RemapSource, SharedWrite,
    SyncCall, SyncMode, VmError,
};

use super::populate::{and_populate, and_populate_if_possible};
use super::space::whole_pages;
use super::{AddressSpace, FileMapping, Frames, ProcessSpace, commons, hugetlb, mirrors};
use crate::fs::mount::MountFlags;
use crate::fs::tmpfs::Seals;
use crate::fs::{MmapContent, OpenFile};
use crate::syscall::Args;
use crate::task::personality;
use crate::user::UserPtr;
use crate::{Errno, Result, sched, task};

bitflags! {
    /// mmap's flags (include/uapi/asm-generic/mman-common.h, mman.h, linux/mman.h).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Map: u32 {
        const FIXED = 0x10;
        const ANONYMOUS = 0x20;
        const LOW_32BIT = 0x40;
        const GROWSDOWN = 0x100;
        const DENYWRITE = 0x800;
        const EXECUTABLE = 0x1000;
        const LOCKED = 0x2000;
        const NORESERVE = 0x4000;
        const POPULATE = 0x8000;
        const NONBLOCK = 0x1_0000;
        const STACK = 0x2_0000;
        const HUGETLB = 0x4_0000;
        const SYNC = 0x8_0000;
        const FIXED_NOREPLACE = 0x10_0000;
    }
}

/// Largest size of a mapping.
const USER_BYTES: u64 = 1 << 47;

/// The low four bits of mmap's flags.
const MAP_TYPE: u64 = 0xf;
const MAP_SHARED: u64 = 1;
const MAP_PRIVATE: u64 = 2;
const MAP_SHARED_VALIDATE: u64 = 3;

/// The bits of mmap's flags with log2 of the size of huge pages.
const MAP_HUGE_SHIFT: u64 = 26;
const MAP_HUGE_MASK: u64 = 0x3f;

/// PROT_GROWSDOWN and PROT_GROWSUP, which only mprotect supports.
const PROT_GROWSDOWN: u64 = 0x0100_0000;
const PROT_GROWSUP: u64 = 0x0200_0000;

/// Whether memory that can be read becomes executable (READ_IMPLIES_EXEC).
fn implies_exec(protection: Protection) -> bool {
    protection.contains(Protection::READ) && personality::has(personality::READ_IMPLIES_EXEC)
}

/// Returns `protection`, or what it implies for an area with these flags.
fn with_implied(protection: Protection, flags: AreaFlags) -> Protection {
    let runs = implies_exec(protection) && !flags.contains(AreaFlags::NEVEREXEC);
    if runs { protection | Protection::EXEC } else { protection }
}

fn protection(bits: u64) -> Result<Protection> {
    Protection::from_bits(bits as u32 & 7).ok_or(Errno::EINVAL)
}

fn current_space() -> Arc<ProcessSpace> {
    task::with_current(|task| task.process().space())
}

/// Calls `look` with the caller's memory, without taking a reference.
#[inline]
fn with_space<R>(look: impl FnOnce(&Arc<ProcessSpace>) -> R) -> R {
    task::with_current(|task| task.with_space(look))
}

/// Returns the size of a mapping of `length` bytes: whole pages of `unit` bytes.
fn mapped_length(length: u64, unit: u64) -> Result<u64> {
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    let length = length.checked_next_multiple_of(unit);
    length.filter(|&length| length <= USER_BYTES).ok_or(Errno::ENOMEM)
}

/// Returns the bytes of the pages that mmap's flags request, or that `file` has.
fn page_unit(raw_flags: u64, file: Option<&OpenFile>) -> Result<u64> {
    let is_asked = raw_flags & u64::from(Map::HUGETLB.bits()) != 0;
    if let Some(file) = file {
        let unit = file.file().unit();
        return if is_asked && unit == PAGE_SIZE as u64 { Err(Errno::EINVAL) } else { Ok(unit) };
    }
    if !is_asked {
        return Ok(PAGE_SIZE as u64);
    }
    hugetlb::check_size(raw_flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK)?;
    Ok(hugetlb::HUGE_PAGE)
}

/// mmap(addr, length, prot, flags, fd, offset)
pub fn sys_mmap(args: &Args) -> Result<i64> {
    let [addr, length, prot, raw_flags, _, offset] = args.all();
    let flags = Map::from_bits_truncate(raw_flags as u32);
    if offset % PAGE_SIZE as u64 != 0 {
        return Err(Errno::EINVAL);
    }
    let file = if flags.contains(Map::ANONYMOUS) {
        None
    } else {
        Some(task::with_current(|task| task.with_files(|files| files.get(args.fd(4))))?)
    };
    let unit = page_unit(raw_flags, file.as_deref())?;
    let length = mapped_length(length, unit)?;
    if offset % unit != 0 || (flags.intersects(Map::FIXED | Map::FIXED_NOREPLACE) && addr % unit != 0) {
        return Err(Errno::EINVAL);
    }
    if flags.contains(Map::FIXED_NOREPLACE) {
        // Checked before any error about the mapped content.
        let end = addr.checked_add(length).ok_or(Errno::ENOMEM)?;
        if current_space().lock().areas_in(VirtAddr(addr), VirtAddr(end)).next().is_some() {
            return Err(Errno::EEXIST);
        }
    }
    if offset.checked_add(length).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    let sharing = MapSharing::of(raw_flags)?;
    let place = match VirtAddr(addr) {
        addr if flags.contains(Map::FIXED_NOREPLACE) => AreaPlace::FixedNoReplace(addr),
        addr if flags.contains(Map::FIXED) => AreaPlace::Fixed(addr),
        addr if flags.contains(Map::LOW_32BIT) => AreaPlace::Low((addr.0 != 0).then_some(addr)),
        VirtAddr(0) => AreaPlace::Anywhere,
        addr => AreaPlace::Hint(addr.page_start()),
    };
    let protection = protection(prot)?;
    let (backing, mut area_flags) = match file {
        None if flags.contains(Map::HUGETLB) => (sharing.huge(offset), AreaFlags::empty()),
        None => (sharing.anonymous(), AreaFlags::empty()),
        Some(file) => file_backing(file, sharing, protection, offset..offset + length)?,
    };
    let protection = with_implied(protection, area_flags);
    if flags.contains(Map::GROWSDOWN) && !matches!(backing, Backing::Anonymous) {
        return Err(Errno::EINVAL);
    }
    area_flags.set(AreaFlags::GROWSDOWN, flags.contains(Map::GROWSDOWN));
    area_flags.set(AreaFlags::LOCKED, flags.contains(Map::LOCKED));
    area_flags.set(AreaFlags::NORESERVE, flags.contains(Map::NORESERVE));
    area_flags.set(AreaFlags::STACK, flags.contains(Map::STACK));
    area_flags.set(AreaFlags::POPULATE, flags.contains(Map::POPULATE) && !flags.contains(Map::NONBLOCK));
    let changed = mirrors::file_to_change(&backing);
    let _change = changed.as_ref().and_then(|file| file.cache().expect_stores());
    map_here(MapRequest { place, len: length, protection, backing, flags: area_flags })
}

/// Makes the mapping in the caller's memory. Returns its address.
fn map_here(request: MapRequest<Frames>) -> Result<i64> {
    let limits = task::with_current(|task| task.process().memory_limits());
    let (protection, length) = (request.protection, request.len);
    let map = |space: &Arc<ProcessSpace>| {
        and_populate_if_possible(space, |areas| {
            let start = areas.map(request, &limits)?;
            if protection == Protection::EXEC {
                protect::make_execute_only(space, areas, start, length);
            }
            Ok(start)
        })
    };
    with_space(map).map(|start| start.0 as i64)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MapSharing {
    Shared,
    Private,
}

impl MapSharing {
    /// Returns the sharing that mmap's flags request.
    fn of(raw_flags: u64) -> Result<Self> {
        let known = || {
            let flags = Map::from_bits(raw_flags as u32 & !MAP_TYPE as u32).filter(|_| raw_flags >> 32 == 0);
            flags.is_some_and(|flags| !flags.intersects(Map::SYNC | Map::FIXED_NOREPLACE))
        };
        match raw_flags & MAP_TYPE {
            MAP_SHARED => Ok(Self::Shared),
            MAP_PRIVATE => Ok(Self::Private),
            // Only a file can determine which flags it supports.
            MAP_SHARED_VALIDATE if raw_flags & u64::from(Map::ANONYMOUS.bits()) != 0 => Err(Errno::EINVAL),
            MAP_SHARED_VALIDATE if known() => Ok(Self::Shared),
            MAP_SHARED_VALIDATE => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    fn anonymous(self) -> Backing<Frames> {
        match self {
            Self::Shared => Backing::SharedAnonymous,
            Self::Private => Backing::Anonymous,
        }
    }

    fn huge(self, offset: u64) -> Backing<Frames> {
        match self {
            Self::Shared => Backing::SharedHuge(offset),
            Self::Private => Backing::Huge(offset),
        }
    }
}

/// Returns the content of a mapping of this part of `file`, in bytes, and the area's flags that
/// follow from the file.
fn file_backing(
    file: Arc<OpenFile>,
    sharing: MapSharing,
    protection: Protection,
    part: Range<u64>,
) -> Result<(Backing<Frames>, AreaFlags)> {
    if !file.flags().reads() {
        file.check_not_path()?;
        return Err(Errno::EACCES);
    }
    let writable = file.flags().writes();
    let stores = sharing == MapSharing::Shared && protection.contains(Protection::WRITE);
    if stores && !writable {
        return Err(Errno::EACCES);
    }
    let mut flags = AreaFlags::empty();
    flags.set(AreaFlags::NEVERWRITE, sharing == MapSharing::Shared && !writable);
    if file.path().is_some_and(|path| path.mount.flags().contains(MountFlags::NOEXEC)) {
        if protection.contains(Protection::EXEC) {
            return Err(Errno::EPERM);
        }
        flags |= AreaFlags::NEVEREXEC;
    }
    file.file().check_mapping(part.start, part.end - part.start)?;
    let (content, storable) = match file.file().mapping()? {
        // A mapping that can never be written need not be shared.
        MmapContent::Zeroes if !writable => return Ok((Backing::Anonymous, flags)),
        MmapContent::Zeroes => return Ok((sharing.anonymous(), flags)),
        MmapContent::Content(content) => (content, true),
        MmapContent::Unstorable(_) if stores => return Err(Errno::EINVAL),
        MmapContent::Unstorable(content) => (content, false),
    };
    let sealed = file.file().seals().is_some_and(|seals| !Seals::allow_write(seals));
    if stores && sealed {
        return Err(Errno::EPERM);
    }
    // A sealed file can be shared for reading, and stays read-only (Linux since 6.7; before, if it
    // is sealed by F_SEAL_FUTURE_WRITE).
    let writable = writable && !sealed && storable;
    let file = FileMapping::new(file, &content)?;
    if file.cache().is_secret() {
        if sharing == MapSharing::Private {
            return Err(Errno::EINVAL);
        }
        flags |= AreaFlags::DONTDUMP;
    }
    let view = FileView { file, offset: part.start };
    let backing = match sharing {
        MapSharing::Private => Backing::PrivateFile(view),
        MapSharing::Shared if writable => Backing::SharedFile(view, SharedWrite::Allowed),
        MapSharing::Shared => Backing::SharedFile(view, SharedWrite::Denied),
    };
    Ok((backing, flags))
}

/// munmap(addr, length)
pub fn sys_munmap(args: &Args) -> Result<i64> {
    with_space(|space| space.unmap(VirtAddr(args[0]), args[1])).map(|()| 0)
}

/// mremap(old, old_size, new_size, flags, new)
pub fn sys_mremap(args: &Args) -> Result<i64> {
    const MAYMOVE: u64 = 1;
    const FIXED: u64 = 2;
    const DONTUNMAP: u64 = 4;
    let [old, old_len, new_len, flags, new, _] = args.all();
    let place = match flags & (MAYMOVE | FIXED) {
        0 => RemapPlace::InPlace,
        MAYMOVE => RemapPlace::MayMove,
        FIXED => return Err(Errno::EINVAL),
        _ => RemapPlace::Fixed(VirtAddr(new)),
    };
    if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0 || (flags & DONTUNMAP != 0 && flags & MAYMOVE == 0) {
        return Err(Errno::EINVAL);
    }
    let source = if flags & DONTUNMAP != 0 { RemapSource::Keep } else { RemapSource::Unmap };
    let limits = task::with_current(|task| task.process().memory_limits());
    let space = current_space();
    let request = Remap { old: VirtAddr(old), old_len, new_len, place, source };
    let mut pause = || sched::checkpoint().map_err(|_| VmError::Interrupted);
    let start = and_populate_if_possible(&space, |areas| Ok(areas.remap(request, &limits, &mut pause)?))?;
    Ok(start.0 as i64)
}

/// brk(addr): returns the break after the call; the old one if it could not move.
pub fn sys_brk(args: &Args) -> Result<i64> {
    let limits = task::with_current(|task| task.process().memory_limits());
    let protection = Protection::READ | Protection::WRITE;
    let implies_exec = implies_exec(protection);
    let change = |areas: &mut AddressSpace| {
        let before = if implies_exec { areas.brk(VirtAddr(0), &limits).0 } else { u64::MAX };
        let end = areas.brk(VirtAddr(args[0]), &limits);
        let start = before.checked_next_multiple_of(PAGE_SIZE as u64).map_or(end, VirtAddr);
        if start < end {
            let (len, protection) = (end.0 - start.0, protection | Protection::EXEC);
            let (extent, key) = (ProtectExtent::Exact, KeyChange::Keep);
            let wish = Protect { start, len, protection, extent, key };
            // The break has moved. Without memory for the change, the heap stays as usual.
            let _ = areas.protect(wish, || u64::MAX);
        }
        Ok(end.0 as i64)
    };
    with_space(|space| and_populate_if_possible(space, change))
}

/// remap_file_pages(address, length, protection, page, flags): maps other pages of the shared
/// memory that is mapped there. As Linux since 4.0, this makes a new mapping.
pub fn sys_remap_file_pages(args: &Args) -> Result<i64> {
    const PAGE: u64 = PAGE_SIZE as u64;
    let [address, length, protection, page, flags, _] = args.all();
    let (start, len) = (address / PAGE * PAGE, length / PAGE * PAGE);
    let is_valid = protection == 0
        && len != 0
        && start.checked_add(len).is_some_and(|end| end <= USER_BYTES)
        && page.checked_add(len / PAGE).is_some();
    if !is_valid {
        return Err(Errno::EINVAL);
    }
    let offset = page.checked_mul(PAGE).ok_or(Errno::EOVERFLOW)?;
    let is_nonblocking = flags & u64::from(Map::NONBLOCK.bits()) != 0;
    let flags = if is_nonblocking { AreaFlags::empty() } else { AreaFlags::POPULATE };
    and_populate_if_possible(&current_space(), |areas| {
        Ok(areas.show_pages(VirtAddr(start), len, offset, flags)?)
    })?;
    Ok(0)
}

/// madvise(addr, length, advice)
pub fn sys_madvise(args: &Args) -> Result<i64> {
    with_space(|space| take_advice(space, args[0], args[1], args.int(2))).map(|()| 0)
}

/// Applies the advice with this MADV_* number to `start..start + len` of `space`.
fn take_advice(space: &Arc<ProcessSpace>, start: u64, len: u64, number: i32) -> Result<()> {
    const REMOVE: i32 = 9;
    if number == REMOVE {
        return super::remove::remove(space, start, len);
    }
    let advice = Advice::from_linux(number).ok_or(Errno::EINVAL)?;
    in_steps(advice, start, len, |start, len| advise(space, start, len, advice))
}

/// Size of the address range that is processed at a time, for advice whose work grows with the
/// range: whole 2 MiB pages.
const ADVICE_STEP: u64 = 16 << 20;

/// Applies `advice` to `start..start + len`, in steps if that may take long. A hole is reported at
/// the end, and so is the last large page that could not be made (madvise(2)). Other errors end the
/// call.
fn in_steps(
    advice: Advice,
    start: u64,
    len: u64,
    mut step: impl FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let is_long = matches!(
        advice,
        Advice::WillNeed
            | Advice::DontNeed
            | Advice::DontNeedLocked
            | Advice::Free
            | Advice::Cold
            | Advice::PageOut
            | Advice::Collapse
            | Advice::Unmergeable
    );
    let end = whole_pages(start, len).map(|range| range.end.0);
    let Some(end) = end.filter(|&end| {
        is_long
            && len > ADVICE_STEP
            && end <= USER_BYTES - PAGE_SIZE as u64
            && start.is_multiple_of(PAGE_SIZE as u64)
    }) else {
        return step(start, len);
    };
    let (mut from, mut outcome) = (start, Ok(()));
    while from < end {
        let to = ((from / ADVICE_STEP + 1) * ADVICE_STEP).min(end);
        match step(from, to - from) {
            Ok(()) => {}
            Err(error @ Errno::ENOMEM) if advice != Advice::Collapse => outcome = Err(error),
            Err(error @ (Errno::EINVAL | Errno::EAGAIN)) if advice == Advice::Collapse => {
                outcome = Err(error)
            }
            Err(error) => return Err(error),
        }
        sched::checkpoint()?;
        from = to;
    }
    outcome
}

fn advise(space: &Arc<ProcessSpace>, start: u64, len: u64, advice: Advice) -> Result<()> {
    let how = match advice {
        Advice::PopulateWrite => Populate::Write,
        Advice::Unmergeable => Populate::Unmerge,
        _ => Populate::Read,
    };
    let outcome = match advice {
        Advice::PopulateRead | Advice::PopulateWrite | Advice::Unmergeable => {
            and_populate(space, how, |areas| Ok(areas.advise(VirtAddr(start), len, advice)?))
        }
        _ => space.lock().advise(VirtAddr(start), len, advice).map_err(Errno::from),
    };
    // A hole is reported, but the memory around it is processed.
    if advice == Advice::PageOut && matches!(outcome, Ok(()) | Err(Errno::ENOMEM)) {
        let range = whole_pages(start, len).ok_or(Errno::EINVAL)?;
        commons().page_out(&**space, range);
        super::reclaim::note_swapped_pages();
    }
    outcome
}

/// mincore(addr, length, vec)
pub fn sys_mincore(args: &Args) -> Result<i64> {
    if !args[0].is_multiple_of(PAGE_SIZE as u64) {
        return Err(Errno::EINVAL);
    }
    let is_user = |start: u64, len| start.checked_add(len).is_some_and(|end| end <= USER_BYTES);
    if !is_user(args[0], args[1]) {
        return Err(Errno::ENOMEM);
    }
    let pages = args[1].div_ceil(PAGE_SIZE as u64);
    if !is_user(args[2], pages) {
        return Err(Errno::EFAULT);
    }
    let out = UserPtr::<bool>::new(args[2]);
    let space = current_space();
    // One area at a time, so that pages before a hole are reported. The steps fit into a kernel
    // stack, because user memory cannot be written under the space's lock.
    let mut resident = [false; 512];
    let mut done = 0;
    while done < pages {
        let step = resident.len().min((pages - done) as usize);
        let count =
            space.lock().residency(VirtAddr(args[0] + done * PAGE_SIZE as u64), &mut resident[..step])?;
        // mincore's result has bytes of 0 and 1, like these.
        out.add(done as usize).write_slice(&resident[..count])?;
        done += count as u64;
        sched::checkpoint()?;
    }
    Ok(0)
}

/// msync(addr, length, flags)
pub fn sys_msync(args: &Args) -> Result<i64> {
    const ASYNC: u64 = 1;
    const INVALIDATE: u64 = 2;
    const SYNC: u64 = 4;
    let flags = args[2];
    if flags & !(ASYNC | INVALIDATE | SYNC) != 0 || flags & (ASYNC | SYNC) == ASYNC | SYNC {
        return Err(Errno::EINVAL);
    }
    let mode = match flags & (ASYNC | SYNC) {
        SYNC => SyncMode::Wait,
        ASYNC => SyncMode::Start,
        _ => SyncMode::Check,
    };
    let others = if flags & INVALIDATE == 0 { OtherCopies::Good } else { OtherCopies::Invalid };
    let mut call = SyncCall::new(VirtAddr(args[0]), args[1], mode, others)?;
    let space = current_space();
    loop {
        let Some(file) = space.lock().next_to_sync(&mut call)? else { return Ok(0) };
        // As fsync of the mapped file. Lost writes are reported to the caller and not again.
        FileMapping::behind(&*file).ok_or(Errno::EINVAL)?.file().file().sync()?;
        sched::checkpoint()?;
    }
}

fn lock_range(start: u64, len: u64, mode: LockMode) -> Result<i64> {
    let limits = task::with_current(|task| task.process().memory_limits());
    let space = current_space();
    // As on Linux, every page that cannot be made present counts as a lack of memory. Errors of the
    // areas have lower priority.
    let locked = and_populate(&space, Populate::AsAllowed, |areas| {
        Ok(areas.lock(VirtAddr(start), len, mode, &limits))
    });
    locked.map_err(|_| Errno::ENOMEM)??;
    Ok(0)
}

/// mlock(addr, length)
pub fn sys_mlock(args: &Args) -> Result<i64> {
    lock_range(args[0], args[1], LockMode::Now)
}

/// mlock2(addr, length, flags)
pub fn sys_mlock2(args: &Args) -> Result<i64> {
    match args[2] {
        0 => lock_range(args[0], args[1], LockMode::Now),
        1 => lock_range(args[0], args[1], LockMode::OnFault),
        _ => Err(Errno::EINVAL),
    }
}

/// munlock(addr, length)
pub fn sys_munlock(args: &Args) -> Result<i64> {
    current_space().lock().unlock(VirtAddr(args[0]), args[1])?;
    Ok(0)
}

/// mlockall(flags)
pub fn sys_mlockall(args: &Args) -> Result<i64> {
    const CURRENT: u64 = 1;
    const FUTURE: u64 = 2;
    const ONFAULT: u64 = 4;
    let flags = args[0];
    if flags & !(CURRENT | FUTURE | ONFAULT) != 0 || flags & (CURRENT | FUTURE) == 0 {
        return Err(Errno::EINVAL);
    }
    let mut what = LockAll::empty();
    what.set(LockAll::CURRENT, flags & CURRENT != 0);
    what.set(LockAll::FUTURE, flags & FUTURE != 0);
    what.set(LockAll::ON_FAULT, flags & ONFAULT != 0);
    let limits = task::with_current(|task| task.process().memory_limits());
    let space = current_space();
    and_populate_if_possible(&space, |areas| Ok(areas.lock_all(what, &limits)?))?;
    Ok(0)
}

/// munlockall()
pub fn sys_munlockall(_args: &Args) -> Result<i64> {
    current_space().lock().unlock_all();
    Ok(0)
}
