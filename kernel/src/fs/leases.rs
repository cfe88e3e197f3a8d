//! Leases (F_SETLEASE): the holder of a file's lease hears of it before another opens or cuts the
//! file, and has time to give way.
//!
//! Linux' relatives are `generic_add_lease`, `__break_lease` and `time_out_leases` (fs/locks.c). A
//! lease belongs to an open file description. A read lease stands in the way of those who open the
//! file for writing or cut it, a write lease in that of all who open it.
//!
//! **Protocol.** An open first counts itself as the file's reader or writer ([`text`]) and then
//! looks whether there is any lease, by one load. A lease is first entered and counted, and then
//! looks at readers and writers. So one of two that come together sees the other: the open breaks
//! the lease, or the lease is refused.
//!
//! **Breaking.** The holder is told once. A lease that is being broken ends, or becomes one for
//! reading, when its holder says so or its time is over. A task that looks for conflicting leases
//! of a file first ends or downgrades those whose time is over. An open that waits has no lock; it
//! looks again after each change of any lease.
//!
//! Lock order: the table (sleeping) > what sending a signal takes. Task context.
//!
//! [`text`]: super::text

#[cfg(test)]
mod model;

use core::ops::Bound;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{Arc, Map};

use super::file::Blocking;
use super::flags::OpenFlags;
use super::node::{Identity, Node};
use super::open_file::OpenFile;
use crate::sync::{Mutex, News, WaitQueue, Wake};
use crate::{Errno, Result, time};

/// Kind of a lease: the uses of the file that the lease keeps from others. Also the kind of an
/// open: the access that the open needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseKind {
    /// No one writes (F_RDLCK).
    Read,
    /// No one else has the file open (F_WRLCK).
    Write,
}

/// The time (nanoseconds of [`time::now`]) at which a lease gives way on its own.
type Deadline = u64;

/// Longest break time that can be set, in seconds.
pub const MOST_BREAK_SECONDS: u64 = u32::MAX as u64 / 1000;

const SECOND: u64 = 1_000_000_000;

struct Lease {
    kind: LeaseKind,
    /// Another wants to read: it is to become a read lease.
    downgrade: Option<Deadline>,
    /// Another wants to write: it is to end.
    unlock: Option<Deadline>,
    /// Is told when it is to give way.
    holder: Arc<dyn Wake>,
}

impl Lease {
    const fn new(kind: LeaseKind, holder: Arc<dyn Wake>) -> Self {
        Self { kind, downgrade: None, unlock: None, holder }
    }

    /// Whether an open that reads or writes has to wait for it.
    fn conflicts(&self, open: LeaseKind) -> bool {
        self.kind == LeaseKind::Write || open == LeaseKind::Write
    }

    /// Returns the kind that the lease is to become; `None` where the lease is to end.
    const fn target(&self) -> Option<LeaseKind> {
        match (self.unlock, self.downgrade) {
            (Some(_), _) => None,
            (None, Some(_)) => Some(LeaseKind::Read),
            (None, None) => Some(self.kind),
        }
    }

    /// Marks it for an open. Returns whether its holder is to be told.
    fn mark(&mut self, open: LeaseKind, deadline: Deadline) -> bool {
        let is_breaking = self.unlock.is_some() || self.downgrade.is_some();
        match open {
            LeaseKind::Write if self.unlock.is_none() => self.unlock = Some(deadline),
            LeaseKind::Read if !is_breaking => self.downgrade = Some(deadline),
            _ => return false,
        }
        true
    }

    /// When it gives way on its own; [`Deadline::MAX`] for never.
    fn deadline(&self) -> Deadline {
        self.unlock.or(self.downgrade).unwrap_or(Deadline::MAX)
    }
}

/// By file and description.
type LeaseKey = (Identity, u64);

/// All leases.
struct Table(Map<LeaseKey, Lease>);

static LEASES: Mutex<Table> = Mutex::new(Table(Map::new()));
/// How many there are; an open looks here first.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Changes of leases so far, and the queue that is woken after each.
static CHANGES: AtomicU64 = AtomicU64::new(0);
static CHANGED: WaitQueue = WaitQueue::new();
/// /proc/sys/fs/leases-enable.
static ENABLED: AtomicBool = AtomicBool::new(true);
/// /proc/sys/fs/lease-break-time, in seconds; 0 for no limit.
static BREAK_SECONDS: AtomicU32 = AtomicU32::new(45);

/// Whether new leases are given: 0 or 1.
pub fn enabled() -> u64 {
    u64::from(ENABLED.load(Ordering::Relaxed))
}

/// Changes [`enabled`]; any number but 0 is yes.
pub fn set_enabled(enabled: u64) {
    ENABLED.store(enabled != 0, Ordering::Relaxed);
}

/// Seconds after which a lease gives way on its own; 0 for never.
pub fn break_seconds() -> u64 {
    u64::from(BREAK_SECONDS.load(Ordering::Relaxed))
}

/// Changes [`break_seconds`] for leases that are broken from now on.
///
/// # Errors
/// `EINVAL` above [`MOST_BREAK_SECONDS`].
pub fn set_break_seconds(seconds: u64) -> Result<()> {
    let seconds = u32::try_from(seconds).ok().filter(|&seconds| u64::from(seconds) <= MOST_BREAK_SECONDS);
    BREAK_SECONDS.store(seconds.ok_or(Errno::EINVAL)?, Ordering::Relaxed);
    Ok(())
}

fn tell_changed() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
    CHANGED.wake_all();
}

impl Table {
    /// The leases of a file from a description on.
    fn of(&self, file: Identity, from: u64) -> impl Iterator<Item = (&LeaseKey, &Lease)> {
        self.0.iter_from(Bound::Included(&(file, from))).take_while(move |((of, _), _)| *of == file)
    }

    /// The key of the first lease of a file, from a description on, for which `is_meant` holds.
    fn first(&self, file: Identity, from: u64, is_meant: impl Fn(&Lease) -> bool) -> Option<LeaseKey> {
        self.of(file, from).find(|(_, lease)| is_meant(lease)).map(|(key, _)| *key)
    }

    /// Ends what gives way on its own by now.
    fn time_out(&mut self, file: Identity) {
        let now = time::now();
        let mut next = 0;
        while let Some(key) = self.first(file, next, |lease| lease.deadline() <= now) {
            next = key.1 + 1;
            let Some(lease) = self.0.get_mut(&key) else { break };
            if lease.unlock.is_none() {
                (lease.kind, lease.downgrade) = (LeaseKind::Read, None);
                tell_changed();
            } else {
                self.remove(&key);
            }
        }
    }

    fn remove(&mut self, key: &LeaseKey) -> bool {
        let removed = self.0.remove(key);
        if removed.is_some() {
            COUNT.fetch_sub(1, Ordering::SeqCst);
            tell_changed();
        }
        removed.is_some()
    }

    /// Marks all leases in the way of an open, and tells their holders. Returns whether there are
    /// any.
    fn break_for(&mut self, file: Identity, open: LeaseKind) -> bool {
        let deadline = match break_seconds() {
            0 => Deadline::MAX,
            seconds => time::now() + seconds * SECOND,
        };
        let (mut next, mut any) = (0, false);
        while let Some(key) = self.first(file, next, |lease| lease.conflicts(open)) {
            (next, any) = (key.1 + 1, true);
            if let Some(lease) = self.0.get_mut(&key)
                && lease.mark(open, deadline)
            {
                lease.holder.announce(News::Message);
            }
        }
        any
    }

    /// The time at which the first lease in the way of an open gives way; `None` if there is none.
    fn obstacle(&mut self, file: Identity, open: LeaseKind) -> Option<Deadline> {
        self.time_out(file);
        let in_the_way = self.of(file, 0).filter(|(_, lease)| lease.conflicts(open));
        in_the_way.map(|(_, lease)| lease.deadline()).min()
    }
}

/// Breaks leases on `node` for one who opens it with `flags` and is counted as its user. The file
/// is opened or cut afterwards.
///
/// # Errors
/// `EAGAIN` where a holder has to give way first and the caller does not wait; `ERESTARTSYS`.
#[inline]
pub fn before_open(node: &dyn Node, flags: OpenFlags) -> Result<()> {
    if are_there() { break_for(node, flags) } else { Ok(()) }
}

/// Whether there is any lease.
#[inline]
pub fn are_there() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}

#[cold]
fn break_for(node: &dyn Node, flags: OpenFlags) -> Result<()> {
    let is_writer = flags.writes() || flags.contains(OpenFlags::TRUNC);
    let blocking = if flags.contains(OpenFlags::NONBLOCK) { Blocking::Never } else { Blocking::Wait };
    wait_for_holders(node.identity(), if is_writer { LeaseKind::Write } else { LeaseKind::Read }, blocking)
}

/// As [`before_open`], for one who cuts the file by its name.
///
/// # Errors
/// `ERESTARTSYS`.
#[inline]
pub fn before_truncate(node: &dyn Node) -> Result<()> {
    before_open(node, OpenFlags::WRONLY)
}

fn wait_for_holders(file: Identity, open: LeaseKind, blocking: Blocking) -> Result<()> {
    let mut table = LEASES.lock_killable()?;
    table.time_out(file);
    if !table.break_for(file, open) {
        return Ok(());
    }
    drop(table);
    if blocking == Blocking::Never {
        return Err(Errno::EAGAIN);
    }
    loop {
        let changes = CHANGES.load(Ordering::SeqCst);
        let Some(deadline) = LEASES.lock_killable()?.obstacle(file, open) else { return Ok(()) };
        let deadline = Some(deadline).filter(|&deadline| deadline != Deadline::MAX);
        let has_changed = || (CHANGES.load(Ordering::SeqCst) != changes).then_some(());
        CHANGED.wait_until_deadline(deadline, has_changed)?;
    }
}

/// Gives `file` a lease, or changes the one that it has. `holder` hears of opens that want it.
///
/// # Errors
/// `EINVAL` for a file that has no leases, and where the system gives none; `EAGAIN` where the file
/// is open otherwise; `ENOMEM`.
pub fn set(file: &OpenFile, kind: LeaseKind, holder: Arc<dyn Wake>) -> Result<()> {
    let node = file.node();
    if !node.may_be_leased() {
        return Err(Errno::EINVAL);
    }
    let key = (node.identity(), file.id());
    let mut table = LEASES.lock_killable()?;
    table.time_out(key.0);
    check_use(file, &*node, kind)?;
    let is_excluded = |lease: &Lease| kind == LeaseKind::Write || lease.unlock.is_some();
    if table.of(key.0, 0).any(|(other, lease)| *other != key && is_excluded(lease)) {
        return Err(Errno::EAGAIN);
    }
    if let Some(own) = table.0.get_mut(&key) {
        own.kind = kind;
        if kind == LeaseKind::Read {
            own.downgrade = None;
        }
        own.holder = holder;
        tell_changed();
        return Ok(());
    }
    if enabled() == 0 {
        return Err(Errno::EINVAL);
    }
    table.0.try_insert(key, Lease::new(kind, holder))?;
    file.note_lease();
    COUNT.fetch_add(1, Ordering::SeqCst);
    if let Err(error) = check_use(file, &*node, kind) {
        table.remove(&key);
        return Err(error);
    }
    Ok(())
}

/// Whether the file is open so that a lease can be had: for one for reading no one writes, for one
/// for writing there is no other description.
fn check_use(file: &OpenFile, node: &dyn Node, kind: LeaseKind) -> Result<()> {
    let text = node.text_use().ok_or(Errno::EINVAL)?;
    let own_writers = i32::from(file.flags().writes());
    let is_free = match kind {
        LeaseKind::Read => text.writers() <= 0,
        LeaseKind::Write => text.writers() == own_writers && text.readers() == 1 - own_writers as u32,
    };
    if is_free { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// F_GETLEASE: what the lease of `file` is, or is to become.
pub fn get(file: &OpenFile) -> Option<LeaseKind> {
    if !are_there() {
        return None;
    }
    let key = (file.node().identity(), file.id());
    let mut table = LEASES.lock();
    table.time_out(key.0);
    table.0.get(&key)?.target()
}

/// Ends the lease of a description.
///
/// # Errors
/// `EAGAIN` where it has none.
pub fn release(file: &OpenFile) -> Result<()> {
    let key = (file.node().identity(), file.id());
    if LEASES.lock().remove(&key) { Ok(()) } else { Err(Errno::EAGAIN) }
}
