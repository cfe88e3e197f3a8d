//! Shared memory of System V: segments.
//!
//! A segment is a file in memory without a name, so its frames are page cache, and attaching maps
//! the file. The areas of one shmat share one [`Hold`]; fork and splits of areas share it too. When
//! the last of these areas is removed, the hold is dropped. A segment that was marked for removal
//! (IPC_RMID) leaves the table with its last hold.
//!
//! shmat, shmdt and the end of a hold change the times and the process of IPC_STAT.

use core::any::Any;
use core::sync::atomic::Ordering;
use freehold_collections::{Arc, reserve, try_format};

use super::ids::{Head, Object, WantedObject};
use super::limits::{HUGE_GROUP, SHMALL, SHMMAX, SHMMNI};
use super::{caller_pid, seconds};
use crate::fs::tmpfs::{self, TmpNode};
use crate::fs::{File, FileContent, MmapContent, OpenFile, OpenFlags, root};
use crate::mem::hugetlb::{self, HUGE_FRAMES};
use crate::mem::{FileMapping, PageCache, cache_of};
use crate::sync::{Mutex, SpinLock, UserCharge, UserCounts};
use crate::task::{Capability, Credentials};
use crate::{Errno, Result, hw, mem};

/// The segment is freed with its last hold.
pub const REMOVED: u32 = 0o1000;
/// The segment's pages stay in memory.
pub const LOCKED: u32 = 0o2000;
/// The available memory is not checked.
const NORESERVE: u32 = 0o10000;
/// The segment consists of huge pages.
const HUGETLB: u32 = 0o4000;
/// The bits with log2 of the size of huge pages.
const HUGE_SHIFT: u32 = 26;
const HUGE_MASK: u32 = 0x3f;

/// Pages of locked segments, by the (real) user who locked them.
static LOCKED_PAGES: UserCounts = UserCounts::new();

/// Times and processes of a segment's last changes.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The time of the last shmat, or 0.
    pub attached: i64,
    /// The time of the last detachment, or 0.
    pub detached: i64,
    /// The time of the last change by shmctl, or of the creation.
    pub changed: i64,
    /// The process that last attached or detached the segment, or 0.
    pub last_pid: u32,
}

struct SegmentState {
    times: Times,
    holds: usize,
    /// Whether the segment has been removed from all tables.
    is_gone: bool,
}

/// A segment.
pub struct Segment {
    head: Head,
    /// The size in bytes, as requested.
    pub size: u64,
    /// The process that created the segment.
    pub creator_pid: u32,
    node: Arc<TmpNode>,
    content: Arc<dyn FileContent>,
    key: i32,
    state: SpinLock<SegmentState>,
    /// The account of the user who locked the pages; `None` if they are not locked. Held while this
    /// changes.
    locked: Mutex<Option<UserCharge>>,
}

impl Object for Segment {
    fn head(&self) -> &Head {
        &self.head
    }
}

/// Hold on a segment that the areas of one shmat share.
pub struct Hold(Arc<Segment>);

impl Hold {
    /// Returns the segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.note_detached();
        let holds = {
            let mut state = self.0.state.lock();
            state.holds -= 1;
            state.holds
        };
        if holds == 0 {
            self.0.leave_if_due();
        }
    }
}

/// shmget: returns the ID of a segment of `size` bytes.
///
/// # Errors
/// As in the manual.
pub fn get(wanted: &WantedObject<'_>, size: u64) -> Result<i32> {
    let suits = |segment: &Segment| if segment.size < size { Err(Errno::EINVAL) } else { Ok(()) };
    wanted.home.segments.get(wanted, SHMMNI.get() as usize, suits, || Segment::make(wanted, size))
}

impl Segment {
    fn make(wanted: &WantedObject<'_>, size: u64) -> Result<Arc<Self>> {
        if size == 0 || size > SHMMAX.get() {
            return Err(Errno::EINVAL);
        }
        let pages = size.div_ceil(hw::PAGE);
        let total = pages.checked_add(wanted.home.pages.load(Ordering::Relaxed));
        if size > i64::MAX as u64 || total.is_none_or(|total| total > SHMALL.get()) {
            return Err(Errno::ENOSPC);
        }
        let (node, content) = Self::memory(wanted, size)?;
        wanted.home.pages.fetch_add(pages, Ordering::Relaxed);
        let times = Times { attached: 0, detached: 0, changed: seconds(), last_pid: 0 };
        Ok(reserve::arc(Self {
            head: Head::new(wanted),
            size,
            creator_pid: caller_pid(),
            node,
            content,
            key: wanted.key,
            state: SpinLock::new(SegmentState { times, holds: 0, is_gone: false }),
            locked: Mutex::new(None),
        }))
    }

    /// Makes the file of a new segment. Pages of the usual size are promised, huge ones reserved.
    fn memory(wanted: &WantedObject<'_>, size: u64) -> Result<(Arc<TmpNode>, Arc<dyn FileContent>)> {
        let (caller, is_huge) = (wanted.caller, wanted.flags & HUGETLB != 0);
        let node = if is_huge {
            hugetlb::check_size((wanted.flags >> HUGE_SHIFT & HUGE_MASK).into())?;
            if !caller.may(Capability::IpcLock) && !caller.is_in_group(HUGE_GROUP.get() as u32) {
                return Err(Errno::EPERM);
            }
            tmpfs::unnamed_huge_file(0o777, caller.fsuid, caller.fsgid)?
        } else {
            tmpfs::unnamed_file(0o777, caller.fsuid, caller.fsgid)?
        };
        let MmapContent::Content(content) = node.mapping()? else { return Err(Errno::ENODEV) };
        content.resize(size.checked_next_multiple_of(content.unit()).ok_or(Errno::ENOMEM)?)?;
        if wanted.flags & NORESERVE == 0 || (!is_huge && mem::commons().has_promise_limit()) {
            content.promise_size()?;
        }
        Ok((node, content))
    }

    /// Returns the segment's pages as a mappable file, for one shmat. `flags` determine whether the
    /// file can be written.
    ///
    /// # Errors
    /// `EIDRM` once the segment is removed.
    pub fn hold(segment: &Arc<Self>, flags: OpenFlags) -> Result<Arc<FileMapping>> {
        let name = try_format!("{:08x}", segment.key)?;
        let place = root::unnamed_place_named(segment.node.clone(), b"SYSV", name.as_bytes())?;
        let file = OpenFile::new(segment.node.clone(), Some(place), flags)?;
        {
            let mut state = segment.state.lock();
            if state.is_gone {
                return Err(Errno::EIDRM);
            }
            state.holds += 1;
        }
        let hold: Arc<dyn Any + Send + Sync> = reserve::arc(Hold(segment.clone()));
        FileMapping::held(file, &segment.content, hold)
    }

    /// Records that shmat succeeded.
    pub fn note_attached(&self) {
        let mut state = self.state.lock();
        (state.times.attached, state.times.last_pid) = (seconds(), caller_pid());
    }

    /// Records that some of the segment's areas were removed.
    pub fn note_detached(&self) {
        let mut state = self.state.lock();
        (state.times.detached, state.times.last_pid) = (seconds(), caller_pid());
    }

    /// Records a change by IPC_SET.
    pub fn note_changed(&self) {
        self.state.lock().times.changed = seconds();
    }

    /// Returns the times that IPC_STAT shows in addition to the head.
    pub fn times(&self) -> Times {
        self.state.lock().times
    }

    /// Returns how many areas of all processes map the segment (`shm_nattch`).
    pub fn attachments(&self) -> u64 {
        self.cache().map_or(0, |cache| cache.mapped_areas())
    }

    /// Returns the segment's numbers of pages in memory and in the swap.
    pub fn resident(&self) -> (u64, u64) {
        let huge = |cache: &PageCache| cache.huge_count() * HUGE_FRAMES;
        self.cache().map_or((0, 0), |cache| (cache.pages() + huge(cache), cache.swapped_pages()))
    }

    fn cache(&self) -> Option<&Arc<PageCache>> {
        cache_of(&*self.content)
    }

    /// IPC_RMID: the segment loses its key, and it is freed with its last hold.
    pub fn remove(&self) {
        self.head.change(|permission| permission.mode |= REMOVED);
        if let Some(home) = self.head.home() {
            home.segments.hide(self);
        }
        self.leave_if_due();
    }

    /// Removes the segment from the table, if it is marked for removal and attached nowhere.
    fn leave_if_due(&self) {
        if self.head.permission().mode & REMOVED == 0 {
            return;
        }
        let Some(home) = self.head.home() else { return };
        home.segments.remove_if(self, || {
            let mut state = self.state.lock();
            state.is_gone = state.holds == 0;
            state.is_gone
        });
    }

    /// Keeps the segment's pages in memory (SHM_LOCK), on the account of `user`, who may lock
    /// `most` pages of segments.
    ///
    /// # Errors
    /// `ENOMEM` for more pages, or without memory; `EINTR` if the caller is killed.
    fn lock_pages(&self, user: u32, most: u64) -> Result<()> {
        let mut locked = self.locked.lock_killable()?;
        if locked.is_none() {
            let pages = self.size.div_ceil(hw::PAGE);
            *locked = Some(LOCKED_PAGES.charge(user, pages, most, Errno::ENOMEM)?);
            self.head.change(|permission| permission.mode |= LOCKED);
            self.cache().into_iter().for_each(|cache| cache.keep_in_memory());
        }
        Ok(())
    }

    /// Lets the segment's pages go to the swap again (SHM_UNLOCK).
    fn unlock_pages(&self) -> Result<()> {
        let mut locked = self.locked.lock_killable()?;
        if locked.take().is_some() {
            self.head.change(|permission| permission.mode &= !LOCKED);
            self.cache().into_iter().for_each(|cache| cache.release_to_swap());
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(home) = self.head.home() {
            home.pages.fetch_sub(self.size.div_ceil(hw::PAGE), Ordering::Relaxed);
        }
    }
}

/// Whether a segment's pages are locked in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locked {
    /// The pages stay in memory.
    Yes,
    /// The pages may be moved to the swap.
    No,
}

/// SHM_LOCK and SHM_UNLOCK by `caller`, whose limit for locked memory is `limit` bytes
/// (RLIMIT_MEMLOCK). The limit holds for all segments that the caller's user locked.
///
/// # Errors
/// `EPERM` for a segment of another user, or if the limit is 0; `ENOMEM` beyond the limit; `EINTR`.
pub fn set_locked(segment: &Segment, caller: &Credentials, locked: Locked, limit: u64) -> Result<()> {
    let is_exempt = caller.may(Capability::IpcLock);
    let may_lock = locked == Locked::No || limit != 0;
    if !is_exempt && !(segment.head.permission().is_of(caller) && may_lock) {
        return Err(Errno::EPERM);
    }
    match locked {
        // Huge pages are never swapped out, and the segment is not marked.
        _ if segment.content.unit() != hw::PAGE => Ok(()),
        Locked::No => segment.unlock_pages(),
        Locked::Yes if is_exempt => segment.lock_pages(caller.uid, u64::MAX),
        Locked::Yes => segment.lock_pages(caller.uid, limit / hw::PAGE),
    }
}
