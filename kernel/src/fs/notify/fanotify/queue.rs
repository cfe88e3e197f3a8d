//! The events of a group that wait to be read.
//!
//! An event that equals an earlier one, except for what happened, is merged with it. Events are
//! searched by a hash of the file and the task: each event leads to the previous one of its bucket.
//! An event with a question is never merged. If its task is killed, it is removed.

use core::ops::Bound;
use core::sync::atomic::{AtomicU8, Ordering};

use freehold_collections::{Arc, Map, Vec};

use super::FanMask;
use super::ids::FileIds;
use crate::Result;
use crate::fs::path::Path;
use crate::task::Pid;

/// The answer to a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Verdict {
    /// The operation may go on.
    Allow = 1,
    /// The operation fails with `EPERM`.
    Deny = 2,
}

/// A question that a task waits for the answer of.
#[derive(Debug, Default)]
pub struct Permission(AtomicU8);

impl Permission {
    /// Returns the answer, once there is one.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        match self.0.load(Ordering::Acquire) {
            1 => Some(Verdict::Allow),
            2 => Some(Verdict::Deny),
            _ => None,
        }
    }

    /// Answers, unless there is an answer.
    pub(super) fn answer(&self, verdict: Verdict) {
        let _ = self.0.compare_exchange(0, verdict as u8, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The file of an event.
#[derive(Clone)]
pub enum FanSubject {
    /// A place, of which a reader gets a descriptor.
    Place(Path),
    /// Handles.
    Ids(Arc<FileIds>),
    /// None: events were lost.
    Lost,
}

impl FanSubject {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Place(own), Self::Place(other)) => own.same_place(other),
            (Self::Ids(own), Self::Ids(other)) => own == other,
            _ => false,
        }
    }

    /// Returns a number that is equal for equal files.
    fn hash(&self) -> usize {
        match self {
            Self::Place(path) => path.node.identity().stripe(),
            Self::Ids(ids) => ids.hash(),
            Self::Lost => 0,
        }
    }
}

/// An event.
#[derive(Clone)]
pub struct FanEvent {
    /// The bits of all that happened.
    pub mask: FanMask,
    /// The ID of the process, or of the thread if the group wants it; 0 for lost events.
    pub pid: Pid,
    /// The file.
    pub subject: FanSubject,
    /// The question, if the event is one.
    pub question: Option<Arc<Permission>>,
}

impl FanEvent {
    /// Whether this event only adds to what happened in `other`.
    fn merges_with(&self, other: &Self) -> bool {
        let apart = FanMask::ONDIR | FanMask::RENAME;
        other.question.is_none()
            && self.pid == other.pid
            && self.mask & apart == other.mask & apart
            && self.subject.is_same(&other.subject)
    }
}

struct QueuedEvent {
    event: FanEvent,
    /// The number of the previous event of the bucket.
    previous: u64,
}

/// The result of taking an event.
pub enum TakenEvent {
    /// The first event.
    Event(FanEvent),
    /// It does not fit into the reader's buffer.
    NoRoom,
}

/// The result of adding an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AddedEvent {
    /// It waits with this number.
    Queued(u64),
    /// It was merged with another one, or lost while lost events are already reported.
    Absorbed,
    /// It was lost, and lost events are reported now.
    Lost,
}

const BUCKETS: usize = 64;
/// Number of events of a bucket that are compared.
const MOST_COMPARED: usize = 128;

/// The events of a group.
pub(super) struct FanQueue {
    events: Map<u64, QueuedEvent>,
    /// The number of the next event; the first one is 1.
    next: u64,
    /// The number of the latest event of each bucket.
    latest: [u64; BUCKETS],
    /// The number of the event that reports lost events.
    lost: Option<u64>,
    most: usize,
    /// Questions that were read, by descriptor. They wait for answers.
    asked: Vec<(i32, Arc<Permission>)>,
    is_closed: bool,
}

impl FanQueue {
    /// Makes an empty queue of at most `most` events.
    pub const fn new(most: usize) -> Self {
        Self {
            events: Map::new(),
            next: 1,
            latest: [0; BUCKETS],
            lost: None,
            most,
            asked: Vec::new(),
            is_closed: false,
        }
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Adds an event. The caller drops a refused one without the queue's lock.
    #[cold]
    pub fn add(&mut self, event: &FanEvent) -> AddedEvent {
        if self.is_closed {
            return AddedEvent::Absorbed;
        }
        if self.events.len() >= self.most || matches!(event.subject, FanSubject::Lost) {
            return self.lose(event);
        }
        let bucket = event.subject.hash().wrapping_add(event.pid as usize) % BUCKETS;
        if event.question.is_none() && self.merge(bucket, event) {
            return AddedEvent::Absorbed;
        }
        self.insert(event.clone(), bucket).map_or_else(|| self.lose(event), AddedEvent::Queued)
    }

    #[cold]
    fn merge(&mut self, bucket: usize, event: &FanEvent) -> bool {
        let mut number = self.latest[bucket];
        for _ in 0..MOST_COMPARED {
            // An event behind one that was read was read, too.
            let Some(queued) = self.events.get_mut(&number) else { return false };
            if event.merges_with(&queued.event) {
                queued.event.mask |= event.mask;
                return true;
            }
            number = queued.previous;
        }
        false
    }

    fn insert(&mut self, event: FanEvent, bucket: usize) -> Option<u64> {
        let number = self.next;
        let is_question = event.question.is_some();
        self.events.try_insert(number, QueuedEvent { event, previous: self.latest[bucket] }).ok()?;
        self.next += 1;
        if !is_question {
            self.latest[bucket] = number;
        }
        Some(number)
    }

    /// Reports lost events. A lost question is allowed and not reported.
    #[cold]
    fn lose(&mut self, event: &FanEvent) -> AddedEvent {
        if self.lost.is_some() || event.question.is_some() && self.events.len() < self.most {
            return AddedEvent::Absorbed;
        }
        let lost = FanEvent { mask: FanMask::Q_OVERFLOW, pid: 0, subject: FanSubject::Lost, question: None };
        let number = self.next;
        let queued = QueuedEvent { event: lost, previous: 0 };
        if self.events.try_insert(number, queued).is_err() {
            return AddedEvent::Absorbed;
        }
        self.next += 1;
        self.lost = Some(number);
        AddedEvent::Lost
    }

    /// Takes the first event, if `length` of it is at most `room`.
    #[cold]
    pub fn take(&mut self, room: usize, length: &dyn Fn(&FanEvent) -> usize) -> Option<TakenEvent> {
        let (&number, first) = self.events.first_from(Bound::Unbounded)?;
        if length(&first.event) > room {
            return Some(TakenEvent::NoRoom);
        }
        if self.lost == Some(number) {
            self.lost = None;
        }
        self.remove(number).map(TakenEvent::Event)
    }

    /// Removes an event.
    pub fn remove(&mut self, number: u64) -> Option<FanEvent> {
        self.events.remove(&number).map(|queued| queued.event)
    }

    /// Lets the question of a reader's descriptor be answered.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn ask(&mut self, fd: i32, question: Arc<Permission>) -> Result<()> {
        if self.is_closed {
            question.answer(Verdict::Allow);
            return Ok(());
        }
        Ok(self.asked.try_push((fd, question))?)
    }

    /// Removes the question of a descriptor.
    pub fn asked(&mut self, fd: i32) -> Option<Arc<Permission>> {
        let place = self.asked.iter().position(|(asked, _)| *asked == fd)?;
        Some(self.asked.remove(place).1)
    }

    /// Adds no event from now on. The caller takes the rest.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.asked.iter().for_each(|(_, question)| question.answer(Verdict::Allow));
    }
}
