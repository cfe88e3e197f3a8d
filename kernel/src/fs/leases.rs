//! Leases (F_SETLEASE): the holder of a lease is notified before another task opens or truncates
//! the file, and has time to give the lease up.
//!
//! Linux' relatives are `generic_add_lease`, `__break_lease` and `time_out_leases` (fs/locks.c). A
//! lease belongs to an open file description. A read lease conflicts with opening the file for
//! writing and with truncating it. A write lease conflicts with every open.
//!
//! **Protocol.** An open first counts itself as the file's reader or writer ([`text`]) and then
//! checks by one load whether there is any lease. F_SETLEASE first enters and counts the lease, and
//! then checks readers and writers. So of two concurrent calls one sees the other: the open breaks
//! the lease, or the lease is refused.
//!
//! **Breaking.** The holder is notified once. A lease that is being broken ends, or becomes a read
//! lease, when its holder requests that or its break time has expired. A task that looks for
//! conflicting leases of a file first ends or downgrades the expired ones. An open that waits holds
//! no lock; it checks again after each change of any lease.
//!
//! Lock order: the table (sleeping) > the locks that sending a signal takes. Task context.
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

/// Kind of a lease: the uses of the file that the lease excludes. Also the kind of an open: the
/// access that the open requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseKind {
    /// No other process writes the file (F_RDLCK).
    Read,
    /// No other process has the file open (F_WRLCK).
    Write,
}

/// The time (nanoseconds of [`time::now`]) at which a lease that is being broken expires.
type Deadline = u64;

/// Longest break time that can be set, in seconds.
pub const MOST_BREAK_SECONDS: u64 = u32::MAX as u64 / 1000;

const SECOND: u64 = 1_000_000_000;

struct Lease {
    kind: LeaseKind,
    /// A reader waits: the lease must become a read lease by this time.
    downgrade: Option<Deadline>,
    /// A writer waits: the lease must end by this time.
    unlock: Option<Deadline>,
    /// Notified when the lease is broken.
    holder: Arc<dyn Wake>,
}

impl Lease {
    const fn new(kind: LeaseKind, holder: Arc<dyn Wake>) -> Self {
        Self { kind, downgrade: None, unlock: None, holder }
    }

    /// Whether an open that reads or writes has to wait for the lease.
    fn conflicts(&self, open: LeaseKind) -> bool {
        self.kind == LeaseKind::Write || open == LeaseKind::Write
    }

    /// Returns the kind that the lease must become; `None` if the lease must end.
    const fn target(&self) -> Option<LeaseKind> {
        match (self.unlock, self.downgrade) {
            (Some(_), _) => None,
            (None, Some(_)) => Some(LeaseKind::Read),
            (None, None) => Some(self.kind),
        }
    }

    /// Marks the lease as broken by an open. Returns whether its holder must be notified.
    fn mark(&mut self, open: LeaseKind, deadline: Deadline) -> bool {
        let is_breaking = self.unlock.is_some() || self.downgrade.is_some();
        match open {
            LeaseKind::Write if self.unlock.is_none() => self.unlock = Some(deadline),
            LeaseKind::Read if !is_breaking => self.downgrade = Some(deadline),
            _ => return false,
        }
        true
    }

    /// The time at which the lease expires; [`Deadline::MAX`] for never.
    fn deadline(&self) -> Deadline {
        self.unlock.or(self.downgrade).unwrap_or(Deadline::MAX)
    }
}

/// File and description.
type LeaseKey = (Identity, u64);

/// All leases.
struct Table(Map<LeaseKey, Lease>);

static LEASES: Mutex<Table> = Mutex::new(Table(Map::new()));
/// Number of leases; an open checks this first.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The number of changes of leases so far, and the queue that is woken after each.
static CHANGES: AtomicU64 = AtomicU64::new(0);
static CHANGED: WaitQueue = WaitQueue::new();
/// /proc/sys/fs/leases-enable.
static ENABLED: AtomicBool = AtomicBool::new(true);
/// /proc/sys/fs/lease-break-time, in seconds; 0 for no limit.
static BREAK_SECONDS: AtomicU32 = AtomicU32::new(45);

/// Whether new leases are granted: 0 or 1.
pub fn enabled() -> u64 {
    u64::from(ENABLED.load(Ordering::Relaxed))
}

/// Sets [`enabled`]: 0 is no, any other number yes.
pub fn set_enabled(enabled: u64) {
    ENABLED.store(enabled != 0, Ordering::Relaxed);
}

/// Seconds after which a broken lease expires; 0 for never.
pub fn break_seconds() -> u64 {
    u64::from(BREAK_SECONDS.load(Ordering::Relaxed))
}

/// Sets [`break_seconds`] for leases that are broken from now on.
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
    /// The leases of a file, beginning with those of description `from`.
    fn of(&self, file: Identity, from: u64) -> impl Iterator<Item = (&LeaseKey, &Lease)> {
        self.0.iter_from(Bound::Included(&(file, from))).take_while(move |((of, _), _)| *of == file)
    }

    /// The key of the first lease of a file, from description `from` on, for which `is_meant`
    /// holds.
    fn first(&self, file: Identity, from: u64, is_meant: impl Fn(&Lease) -> bool) -> Option<LeaseKey> {
        self.of(file, from).find(|(_, lease)| is_meant(lease)).map(|(key, _)| *key)
    }

    /// Ends or downgrades the file's expired leases.
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

    /// Marks all leases that conflict with an open, and notifies their holders. Returns whether
    /// there are any.
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

    /// The time at which the first conflicting lease expires; `None` if there is none.
    fn obstacle(&mut self, file: Identity, open: LeaseKind) -> Option<Deadline> {
        self.time_out(file);
        let in_the_way = self.of(file, 0).filter(|(_, lease)| lease.conflicts(open));
        in_the_way.map(|(_, lease)| lease.deadline()).min()
    }
}

/// Breaks leases on `node` for a caller that opens it with `flags`. The caller is already counted
/// as a user of the file, and opens or truncates it afterwards.
///
/// # Errors
/// `EAGAIN` if a holder has to give its lease up first and the caller does not wait; `ERESTARTSYS`.
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

/// Like [`before_open`], for a caller that truncates the file by its name.
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

/// Gives `file` a lease, or changes its present one. `holder` is notified of conflicting opens.
///
/// # Errors
/// `EINVAL` for a file that has no leases, and if leases are disabled; `EAGAIN` if the file has
/// conflicting users; `ENOMEM`.
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

/// Checks that the file's users permit the lease. A read lease requires that no process writes. A
/// write lease requires that there is no other description.
fn check_use(file: &OpenFile, node: &dyn Node, kind: LeaseKind) -> Result<()> {
    let text = node.text_use().ok_or(Errno::EINVAL)?;
    let own_writers = i32::from(file.flags().writes());
    let is_free = match kind {
        LeaseKind::Read => text.writers() <= 0,
        LeaseKind::Write => text.writers() == own_writers && text.readers() == 1 - own_writers as u32,
    };
    if is_free { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// F_GETLEASE: the kind that the lease of `file` has, or must become.
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
/// `EAGAIN` if it has none.
pub fn release(file: &OpenFile) -> Result<()> {
    let key = (file.node().identity(), file.id());
    if LEASES.lock().remove(&key) { Ok(()) } else { Err(Errno::EAGAIN) }
}
