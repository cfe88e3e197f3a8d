//! /proc/sysvipc: the objects of System V IPC, one per line. There may be many, so they are written
//! in parts. /proc/sys/kernel/{shm,sem,msg}_next_id: the IDs of the next objects.

use super::settings::parse_number;
use crate::fs::generated::{Generate, More, PART, Parts, Text};
use crate::fs::pseudo::PseudoDir;
use crate::hw::PAGE;
use crate::ipc::ids::{IpcIds, Object};
use crate::ipc::msg::MessageQueue;
use crate::ipc::objects::{IpcObjects, of_caller};
use crate::ipc::permission::Permission;
use crate::ipc::sem::Set;
use crate::ipc::shm::Segment;
use crate::task::registry::shown;
use crate::task::{self, Capability, shown_ids};
use crate::{Errno, Result};
use freehold_collections::{Arc, Box, reserve};

/// Adds /proc/sysvipc to `root`.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    let folder = root.dirs("sysvipc");
    folder.generated(
        "shm",
        0o444,
        IpcTable { ids: |all| &all.segments, title: SEGMENT_TITLE, row: show_segment },
    );
    folder.generated("sem", 0o444, IpcTable { ids: |all| &all.sets, title: SET_TITLE, row: show_set });
    folder.generated("msg", 0o444, IpcTable { ids: |all| &all.queues, title: QUEUE_TITLE, row: show_queue });
}

/// Adds the IDs of the next objects to /proc/sys/kernel.
pub(super) fn fill_next_ids(kernel: &Arc<PseudoDir>) {
    // As with kernel.ns_last_pid, the namespace's rights decide.
    kernel.generated("shm_next_id", 0o666, NextId(|all, new| all.segments.next_id(new)));
    kernel.generated("sem_next_id", 0o666, NextId(|all, new| all.sets.next_id(new)));
    kernel.generated("msg_next_id", 0o666, NextId(|all, new| all.queues.next_id(new)));
}

/// The ID of the next object of one kind, or -1; see [`IpcIds::next_id`].
struct NextId(fn(&IpcObjects, Option<i32>) -> Result<i32>);

impl Generate for NextId {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", (self.0)(&of_caller(), None)?);
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        let objects = of_caller();
        let may = |capability| task::may_in(objects.owner(), capability);
        if !may(Capability::CheckpointRestore) && !may(Capability::SysAdmin) {
            return Err(Errno::EPERM);
        }
        let id = i32::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?;
        (self.0)(&objects, Some(id)).map(drop)
    }
}

/// One kind of object.
struct IpcTable<T: 'static> {
    ids: fn(&IpcObjects) -> &IpcIds<T>,
    title: &'static [u8],
    row: fn(&mut Text, &T),
}

impl<T: Object + Send + Sync> Generate for IpcTable<T> {
    fn show(&self, _text: &mut Text) -> Result<()> {
        Ok(())
    }
    fn parts(&self) -> Option<Box<dyn Parts>> {
        let &Self { ids, title, row } = self;
        Some(reserve::boxed(Rows { objects: of_caller(), table: IpcTable { ids, title, row }, next: None }))
    }
}

struct Rows<T: 'static> {
    /// The namespace of the reader.
    objects: Arc<IpcObjects>,
    table: IpcTable<T>,
    /// Index of the next object; `None` before the title.
    next: Option<usize>,
}

impl<T: Object + Send + Sync> Parts for Rows<T> {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        let mut next = self.next.unwrap_or_else(|| {
            out.push(self.table.title);
            0
        });
        while out.length() < PART {
            let Some((place, object)) = (self.table.ids)(&self.objects).next(next) else {
                return Ok(More::No);
            };
            (self.table.row)(out, &object);
            next = place + 1;
        }
        self.next = Some(next);
        Ok(More::Yes)
    }
}

fn show_owner(out: &mut Text, owner: &Permission) {
    let ((uid, gid), (cuid, cgid)) = (shown_ids(owner.uid, owner.gid), shown_ids(owner.cuid, owner.cgid));
    write!(out, "{uid:5} {gid:5} {cuid:5} {cgid:5} ");
}

const SEGMENT_TITLE: &[u8] =
    b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
    atime      dtime      ctime                   rss                  swap\n";

fn show_segment(out: &mut Text, segment: &Segment) {
    let (head, times) = (segment.head(), segment.times());
    let owner = head.permission();
    let (resident, swapped) = segment.resident();
    write!(out, "{:10} {:10}  {:4o} {:21} ", head.key(), head.id(), owner.mode, segment.size);
    let (creator, last) = (shown(segment.creator_pid), shown(times.last_pid));
    write!(out, "{creator:5} {last:5}  {:5} ", segment.attachments());
    show_owner(out, &owner);
    write!(out, "{:10} {:10} {:10} ", times.attached, times.detached, times.changed);
    writeln!(out, "{:21} {:21}", resident * PAGE, swapped * PAGE);
}

const SET_TITLE: &[u8] =
    b"       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";

fn show_set(out: &mut Text, set: &Set) {
    let (head, (operated, changed)) = (set.head(), set.times());
    let owner = head.permission();
    write!(out, "{:10} {:10}  {:4o} {:10} ", head.key(), head.id(), owner.mode, set.count);
    show_owner(out, &owner);
    writeln!(out, "{operated:10} {changed:10}");
}

const QUEUE_TITLE: &[u8] =
    b"       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      \
    stime      rtime      ctime\n";

fn show_queue(out: &mut Text, queue: &MessageQueue) {
    let (head, figures) = (queue.head(), queue.figures());
    let owner = head.permission();
    write!(
        out,
        "{:10} {:10}  {:4o}  {:10} {:10} ",
        head.key(),
        head.id(),
        owner.mode,
        figures.bytes,
        figures.count
    );
    write!(out, "{:5} {:5} ", shown(figures.sender_pid), shown(figures.receiver_pid));
    show_owner(out, &owner);
    writeln!(out, "{:10} {:10} {:10}", figures.sent, figures.received, figures.changed);
}
