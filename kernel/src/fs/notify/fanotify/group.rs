//! Groups: an instance of fanotify, with its marks and events.
//!
//! **Protocol.** A question is queued, read, and answered. Its task sleeps until there is an
//! answer or the task is killed. Closing the group first refuses new events, then answers every
//! question that waits to be read or answered. So no question is left.
//!
//! **Lock order.** Group's turn (sleeping) > marks; table of watches > marks; queue. Marks and
//! queue are spin locks, under which no reference to an inode is dropped.

use core::ops::Bound;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bitflags::bitflags;
use freehold_collections::{Arc, Map, Receiver, reserve};

use super::super::account::{Charge, MAX_GROUP_EVENTS, Resource};
use super::super::watches::{self, EventTarget, FIRST_MARK, InodeWatch};
use super::ids::FileIds;
use super::mark::{self, Mark, MarkChange, MarkFlags, MarkedObject};
use super::queue::{AddedEvent, FanEvent, FanQueue, FanSubject, Permission, TakenEvent, Verdict};
use super::{FanMask, GroupMarks, Occurrence, mask_of, wanted};
use crate::fs::device::split_device;
use crate::fs::file::Line;
use crate::fs::mount::FileHandle;
use crate::fs::node::{Identity, NodeKind};
use crate::sched::thread::try_current;
use crate::sync::{Mutex, News, SpinLock, WaitQueue};
use crate::{Errno, Result, sched};

bitflags! {
    /// fanotify_init(2)'s flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct GroupSettings: u32 {
        /// Close on execve.
        const CLOEXEC = 0x1;
        /// Do not wait.
        const NONBLOCK = 0x2;
        /// The group is asked for permissions, and needs final contents.
        const CONTENT = 0x4;
        /// The group is asked for permissions, and may change contents.
        const PRE_CONTENT = 0x8;
        /// Any number of events may wait.
        const UNLIMITED_QUEUE = 0x10;
        /// The group may have any number of marks.
        const UNLIMITED_MARKS = 0x20;
        /// Events come with a pidfd.
        const PIDFD = 0x80;
        /// Events come with the thread's number.
        const TID = 0x100;
        /// Events come with the file's handle.
        const FID = 0x200;
        /// Events come with the directory's handle.
        const DIR_FID = 0x400;
        /// Events come with the name in the directory.
        const NAME = 0x800;
        /// Events come with the handle of the file whose name changed.
        const TARGET_FID = 0x1000;
        /// The maker has no CAP_SYS_ADMIN. Programs do not see this bit.
        const UNPRIVILEGED = 1 << 31;

        /// The classes of groups that are asked for permissions.
        const CLASSES = 0xc;
        /// Events come with handles.
        const HANDLES = 0x1e00;
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A group; see the documentation of [`super`].
pub struct FanGroup {
    id: u64,
    settings: GroupSettings,
    queue: SpinLock<FanQueue>,
    /// The queue of readers.
    pub(in crate::fs) changed: Arc<WaitQueue>,
    /// The queue of tasks that wait for an answer.
    answered: WaitQueue,
    /// The marks by number.
    marks: SpinLock<Map<i32, Arc<InodeWatch>>>,
    /// The number of the latest mark. Locked while calls change marks.
    turn: Mutex<i32>,
    user: u32,
    _charge: Charge,
}

impl FanGroup {
    /// Makes a group of `user`.
    ///
    /// # Errors
    /// `EMFILE` if the user has reached the limit; `ENOMEM`.
    pub fn new(user: u32, settings: GroupSettings) -> Result<Arc<Self>> {
        let charge = Charge::new(user, Resource::Group)?;
        let is_unlimited = settings.contains(GroupSettings::UNLIMITED_QUEUE);
        let most = if is_unlimited { usize::MAX } else { MAX_GROUP_EVENTS.get() as usize };
        Ok(reserve::arc(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            settings,
            queue: SpinLock::new(FanQueue::new(most)),
            changed: reserve::arc(WaitQueue::new()),
            answered: WaitQueue::new(),
            marks: SpinLock::new(Map::new()),
            turn: Mutex::new(0),
            user,
            _charge: charge,
        }))
    }

    /// Returns the group's settings.
    pub const fn settings(&self) -> GroupSettings {
        self.settings
    }

    /// The place of the group's marks among those of an object: groups that change contents, those
    /// that look at contents, the others.
    fn key(&self) -> [u64; 2] {
        let order = match self.settings & GroupSettings::CLASSES {
            GroupSettings::PRE_CONTENT => 0,
            GroupSettings::CONTENT => 1,
            _ => 2,
        };
        [FIRST_MARK + order, self.id]
    }

    /// Adds to the mark of `object`, or makes it.
    ///
    /// # Errors
    /// `EEXIST` if the flags contradict those of the mark; `ENOSPC` if the user has reached the
    /// limit; `EOPNOTSUPP` if events need handles and the file has none; `ENOMEM`.
    #[cold]
    pub fn mark(self: &Receiver<Self>, object: &MarkedObject<'_>, change: &MarkChange) -> Result<()> {
        let mut latest = self.turn.lock_killable()?;
        let identity = object.identity();
        let known = watches::find(identity, self.key());
        if let Some(watch) = &known
            && let EventTarget::Mark(mark) = &watch.target
        {
            return mark.add(watch, change);
        }
        let is_unlimited = self.settings.contains(GroupSettings::UNLIMITED_MARKS);
        let charge = (!is_unlimited).then(|| Charge::new(self.user, Resource::Mark)).transpose()?;
        let path = object.path();
        let source = match self.settings.intersects(GroupSettings::HANDLES) {
            true => {
                let fs = path.mount.file_system();
                Some((fs.clone(), fs.handle(&path.node, path.entry.as_deref())?))
            }
            false => None,
        };
        let number = self.free_number(*latest);
        let watch = reserve::arc(InodeWatch {
            key: self.key(),
            target: EventTarget::Mark(Mark::new(self, object, source)),
            number,
            identity,
            mask: AtomicU32::new(0),
            _charge: charge,
        });
        if let EventTarget::Mark(mark) = &watch.target {
            mark.add(&watch, change)?;
        }
        // The mark is entered here first: it may end as soon as it is attached.
        self.marks.lock().try_insert(number, watch.clone())?;
        let attached = match object {
            MarkedObject::Inode(path) => watch.attach(&path.node),
            _ => watch.attach_to_many(),
        };
        *latest = number;
        attached.inspect_err(|_| self.forget(number))
    }

    /// Returns the next free number after `latest`.
    fn free_number(&self, latest: i32) -> i32 {
        let marks = self.marks.lock();
        let following =
            core::iter::successors(Some(latest), |number| Some(number.checked_add(1).unwrap_or(1)));
        following.skip(1).find(|number| !marks.contains_key(number)).unwrap_or(1)
    }

    /// Removes from the mark of `object`. A mark without any bit ends.
    ///
    /// # Errors
    /// `ENOENT` if there is no mark.
    #[cold]
    pub fn reduce(&self, object: &MarkedObject<'_>, change: &MarkChange) -> Result<()> {
        let _turn = self.turn.lock_killable()?;
        let watch = watches::find(object.identity(), self.key()).ok_or(Errno::ENOENT)?;
        let EventTarget::Mark(mark) = &watch.target else { return Err(Errno::ENOENT) };
        if mark.reduce(&watch, change) && watch.detach() {
            watch.end();
        }
        Ok(())
    }

    /// Ends all marks on objects of the kind that `kind` chooses.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed.
    #[cold]
    pub fn flush(&self, kind: MarkFlags) -> Result<()> {
        let _turn = self.turn.lock_killable()?;
        let kind = kind & MarkFlags::KINDS;
        let mut last = 0;
        while let Some(watch) = self.mark_after(last) {
            last = watch.number;
            if mark::kind_of(watch.identity) == kind && watch.detach() {
                watch.end();
            }
            sched::checkpoint()?;
        }
        Ok(())
    }

    fn mark_after(&self, last: i32) -> Option<Arc<InodeWatch>> {
        let marks = self.marks.lock();
        marks.first_from(Bound::Excluded(&last)).map(|(_, watch)| watch.clone())
    }

    /// Forgets a mark that has ended.
    pub(super) fn forget(&self, number: i32) {
        let gone = self.marks.lock().remove(&number);
        drop(gone);
    }

    /// Tells the group of `event`, if its marks request it.
    ///
    /// # Errors
    /// `EPERM` if the group denies a permission; `EINTR` if the caller is killed.
    #[cold]
    pub(super) fn tell(&self, event: &Occurrence<'_>, marks: &GroupMarks<'_>) -> Result<()> {
        let mut mask = wanted(event.mask, marks);
        let by_handle = self.settings.intersects(GroupSettings::HANDLES);
        if mask.difference(FanMask::QUALIFIERS).is_empty() {
            return Ok(());
        }
        let subject = if by_handle {
            let has_directory = event.place.is_some() || mask.contains(FanMask::ONDIR);
            if !self.settings.contains(GroupSettings::FID) && !has_directory {
                return Ok(());
            }
            match FileIds::of(event, mask, self.settings, marks) {
                Ok(ids) => FanSubject::Ids(reserve::arc(ids)),
                Err(_) => FanSubject::Lost,
            }
        } else {
            let opens = |kind| matches!(kind, NodeKind::Regular | NodeKind::Directory);
            let Some(path) = event.path.filter(|path| opens(path.node.kind())) else { return Ok(()) };
            FanSubject::Place(path.clone())
        };
        mask.remove(if by_handle { FanMask::EVENT_ON_CHILD } else { FanMask::QUALIFIERS });
        if mask.intersects(FanMask::PERMISSIONS) {
            self.ask(mask, subject)
        } else {
            self.report(mask, subject)
        }
    }

    /// Tells the group that the inode of `mark` has ended.
    #[cold]
    pub(super) fn tell_end(&self, mask: FanMask, mark: &Mark) {
        if let Some(ids) = FileIds::of_mark(mark) {
            let _ = self.report(mask, FanSubject::Ids(reserve::arc(ids)));
        }
    }

    #[cold]
    fn event(&self, mask: FanMask, subject: FanSubject, question: Option<Arc<Permission>>) -> FanEvent {
        let thread = try_current();
        let pid = thread.map_or(0, |thread| {
            let owner = thread.owner().filter(|_| !self.settings.contains(GroupSettings::TID));
            owner.map_or_else(|| thread.label.pid().0 as u32, |owner| owner.process_id())
        });
        FanEvent { mask, pid, subject, question }
    }

    #[cold]
    fn report(&self, mask: FanMask, subject: FanSubject) -> Result<()> {
        let event = self.event(mask, subject, None);
        let added = self.queue.lock().add(&event);
        if added != AddedEvent::Absorbed {
            self.changed.announce(News::Input);
        }
        Ok(())
    }

    /// Asks the group, and waits for its answer.
    #[cold]
    fn ask(&self, mask: FanMask, subject: FanSubject) -> Result<()> {
        let question = reserve::arc(Permission::default());
        let event = self.event(mask, subject, Some(question.clone()));
        let added = self.queue.lock().add(&event);
        drop(event);
        if added != AddedEvent::Absorbed {
            self.changed.announce(News::Input);
        }
        let AddedEvent::Queued(number) = added else { return Ok(()) };
        match self.answered.wait_killable(|| question.verdict()) {
            Ok(Verdict::Allow) => Ok(()),
            Ok(Verdict::Deny) => Err(Errno::EPERM),
            Err(error) => {
                let unread = self.queue.lock().remove(number);
                drop(unread);
                Err(error)
            }
        }
    }

    /// Takes the first event, if `length` of it is at most `room`.
    pub fn take(&self, room: usize, length: &dyn Fn(&FanEvent) -> usize) -> Option<TakenEvent> {
        self.queue.lock().take(room, length)
    }

    /// Number of events that wait to be read.
    pub fn waiting(&self) -> usize {
        self.queue.lock().len()
    }

    /// Lets the question of a reader's new descriptor be answered.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn expect_answer(&self, fd: i32, question: Arc<Permission>) -> Result<()> {
        let asked = self.queue.lock().ask(fd, question);
        self.answered.wake_all();
        asked
    }

    /// Answers the question of a descriptor.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn answer(&self, fd: i32, verdict: Verdict) -> Result<()> {
        let question = self.queue.lock().asked(fd).ok_or(Errno::ENOENT)?;
        self.decide(&question, verdict);
        Ok(())
    }

    /// Answers a question.
    pub fn decide(&self, question: &Permission, verdict: Verdict) {
        question.answer(verdict);
        self.answered.wake_all();
    }

    /// Ends all marks, and allows what tasks wait for. The file is closed, so no call adds a mark.
    #[cold]
    pub fn close(&self) {
        self.queue.lock().close();
        loop {
            let taken = self.take(usize::MAX, &|_| 0);
            let Some(TakenEvent::Event(event)) = taken else { break };
            if let Some(question) = &event.question {
                question.answer(Verdict::Allow);
            }
            drop(event);
            sched::cond_resched();
        }
        self.answered.wake_all();
        while let Some(watch) = self.mark_after(0) {
            if watch.detach() {
                watch.end();
            }
            self.forget(watch.number);
            sched::cond_resched();
        }
    }

    /// Calls `line` with the description of the first mark behind the number `from`. Returns its
    /// number.
    #[cold]
    pub fn describe_mark(&self, from: u64, line: Line<'_>) -> Option<u64> {
        let watch = self.mark_after(i32::try_from(from).ok()?)?;
        let next = watch.number as u64;
        let EventTarget::Mark(mark) = &watch.target else { return Some(next) };
        let (mask, ignored) = (mask_of(&watch).bits(), mark.ignored().bits());
        let flags = (mark.flags() & MarkFlags::KEPT).bits();
        let masks = format_args!("mflags:{flags:x} mask:{mask:x} ignored_mask:{ignored:x}");
        let Identity { device, inode } = watch.identity;
        let short = |device| {
            let (major, minor) = split_device(device);
            major << 20 | minor
        };
        match mark::kind_of(watch.identity) {
            MarkFlags::MOUNT => line(format_args!("fanotify mnt_id:{inode:x} {masks}")),
            MarkFlags::FILESYSTEM => line(format_args!("fanotify sdev:{:x} {masks}", short(inode))),
            _ => {
                let device = short(device);
                match &mark.source {
                    Some((_, FileHandle { words: [first, second, third], count })) => line(format_args!(
                        "fanotify ino:{inode:x} sdev:{device:x} {masks} fhandle-bytes:{:x} fhandle-type:{:x} \
                         f_handle:{:08x}{:08x}{:08x}",
                        4 * count,
                        FileHandle::TYPE,
                        first.swap_bytes(),
                        second.swap_bytes(),
                        third.swap_bytes()
                    )),
                    None => line(format_args!("fanotify ino:{inode:x} sdev:{device:x} {masks} ")),
                }
            }
        }
        Some(next)
    }
}
