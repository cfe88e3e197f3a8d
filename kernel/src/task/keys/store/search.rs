//! Searches through keyrings in keyrings, breadth first: each is visited once.

use super::super::kind::KeyKind;
use super::{Caller, KeyName, KeyRef, Rights, Serial, Store};
use crate::{Errno, Result, sched};

/// The nesting of keyrings that a search follows, and that a link may make.
const MAX_DEPTH: u32 = 6;

/// The thing that a search looks for.
#[derive(Clone, Copy)]
pub enum KeyTarget<'a> {
    /// A key of this kind with this description.
    Named(&'a KeyName),
    /// This key.
    Key(Serial),
}

/// Keyrings that a search still has to visit.
struct RingQueue {
    mark: u64,
    first: Serial,
    last: Serial,
}

impl Store {
    fn enqueue(&mut self, queue: &mut RingQueue, ring: Serial, depth: u32) {
        let mark = queue.mark;
        let Some(key) = self.keys.get_mut(&ring) else { return };
        if key.kind != KeyKind::Keyring || key.visited.0 == mark || depth > MAX_DEPTH {
            return;
        }
        (key.visited, key.next) = ((mark, depth), 0);
        match self.keys.get_mut(&queue.last) {
            Some(last) => last.next = ring,
            None => queue.first = ring,
        }
        queue.last = ring;
    }

    /// Searches a keyring and those in it for a key that the caller may find, at `now`.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; `EKEYREVOKED`, `EKEYEXPIRED` or `EACCES` if there are only such;
    /// `EINTR` if the caller is killed.
    pub fn search(
        &mut self,
        ring: KeyRef,
        wanted: KeyTarget<'_>,
        caller: &Caller,
        now: i64,
    ) -> Result<KeyRef> {
        self.searches += 1;
        let mut failure = Errno::EAGAIN;
        let mut queue = RingQueue { mark: self.searches, first: 0, last: 0 };
        let possessed = ring.possessed;
        self.enqueue(&mut queue, ring.serial, 0);
        while let Some(ring) = self.keys.get(&queue.first) {
            let (serial, depth) = (queue.first, ring.visited.1);
            let (is_valid, ring) = (self.validate(serial, now), KeyRef { serial, possessed });
            if let Err(error) = is_valid.and_then(|()| self.check(ring, caller, Rights::SEARCH)) {
                if depth == 0 {
                    failure = error;
                }
            } else {
                if matches!(wanted, KeyTarget::Key(key) if key == serial) {
                    return Ok(KeyRef { serial, possessed });
                }
                match self.look_in(serial, wanted, caller, (possessed, now)) {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => {}
                    Err(error) => failure = error,
                }
                self.enqueue_nested(&mut queue, serial, depth + 1)?;
            }
            self.advance(&mut queue);
            sched::rest_killable()?;
        }
        Err(failure)
    }
    /// Looks for a key that one keyring links.
    fn look_in(
        &self,
        ring: Serial,
        wanted: KeyTarget<'_>,
        caller: &Caller,
        (possessed, now): (bool, i64),
    ) -> Result<Option<KeyRef>> {
        let links = self.get(ring)?.payload.links();
        let found = match wanted {
            KeyTarget::Named(name) => links.get(name).copied(),
            KeyTarget::Key(serial) => {
                let key = self.get(serial)?;
                links.get(&key.name()).copied().filter(|&found| found == serial)
            }
        };
        let Some(serial) = found else { return Ok(None) };
        let key = KeyRef { serial, possessed };
        if matches!(wanted, KeyTarget::Named(_)) {
            self.validate(serial, now)?;
            self.check(key, caller, Rights::SEARCH)?;
            if self.get(serial)?.is_negative() {
                return Err(Errno::ENOKEY);
            }
        }
        Ok(Some(key))
    }
    /// Removes the first keyring from the queue.
    fn advance(&self, queue: &mut RingQueue) {
        queue.first = self.keys.get(&queue.first).map_or(0, |ring| ring.next);
        if queue.first == 0 {
            queue.last = 0;
        }
    }
    fn enqueue_nested(&mut self, queue: &mut RingQueue, ring: Serial, depth: u32) -> Result<()> {
        let mut after = None;
        while let Some((name, nested)) = self.link_after(ring, after.as_ref()) {
            // Keyrings are before all other kinds.
            if name.0 != KeyKind::Keyring {
                break;
            }
            self.enqueue(queue, nested, depth);
            after = Some(name);
            sched::rest_killable()?;
        }
        Ok(())
    }

    /// Checks that `ring` is not `nested` or in it.
    pub(super) fn check_nesting(&mut self, ring: Serial, nested: Serial) -> Result<()> {
        self.searches += 1;
        let mut queue = RingQueue { mark: self.searches, first: 0, last: 0 };
        self.enqueue(&mut queue, nested, 0);
        while let Some(key) = self.keys.get(&queue.first) {
            let (serial, depth) = (queue.first, key.visited.1);
            if serial == ring {
                return Err(Errno::EDEADLK);
            }
            if depth == MAX_DEPTH {
                return Err(Errno::ELOOP);
            }
            self.enqueue_nested(&mut queue, serial, depth + 1)?;
            self.advance(&mut queue);
            sched::rest_killable()?;
        }
        Ok(())
    }
}
