//! Files in flight: the open files that a message carries (SCM_RIGHTS), and how many of them a user
//! may have.
//!
//! Files in a queue can be sockets with files in their queues, to any depth. So a message keeps its
//! files in a [`Deferred`] box, made when they are sent: dropping a message never recurses into the
//! files that it carries.
//!
//! A user without CAP_SYS_RESOURCE and CAP_SYS_ADMIN may have RLIMIT_NOFILE files in flight, as on
//! Linux (`too_many_unix_fds`, net/unix/scm.c): the limit of descriptors bounds what a program can
//! hide in queues.

use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::{Arc, Box, Vec};

use crate::fs::OpenFile;
use crate::sync::{Deferred, LetGo, SpinLock, release};
use crate::task::{Capability, Process};
use crate::{Errno, Result};

/// Largest number of files in one message (SCM_MAX_FD).
pub const MOST_FILES: usize = 253;

/// The files of one message, in order.
#[derive(Default)]
pub struct Files(Option<Box<Deferred<Parcel>>>);

#[derive(Default)]
struct Parcel {
    files: Vec<Arc<OpenFile>>,
    /// Present while the files are in a queue.
    charge: Option<Charge>,
}

impl LetGo for Parcel {
    fn let_go(&mut self) {
        self.charge = None;
        self.files = Vec::new();
    }
}

impl Files {
    /// Adds `file`.
    ///
    /// # Errors
    /// `EINVAL` if there are [`MOST_FILES`] already, `ENOMEM`.
    pub fn push(&mut self, file: Arc<OpenFile>) -> Result<()> {
        let files = &mut self.0.get_or_insert_with(|| Deferred::new(Parcel::default())).files;
        if files.len() == MOST_FILES {
            return Err(Errno::EINVAL);
        }
        Ok(files.try_push(file)?)
    }

    /// Charges the files to the real user of `sender`, since they are about to enter a queue.
    ///
    /// # Errors
    /// `ETOOMANYREFS` if the user has too many files in flight, `ENOMEM`.
    pub(super) fn depart(&mut self, sender: Option<&Process>) -> Result<()> {
        let Some(parcel) = self.0.as_deref_mut() else { return Ok(()) };
        parcel.charge = Some(Charge::new(parcel.files.len(), sender)?);
        Ok(())
    }

    /// Ends the flight of the files, because their message left its queue. Returns the files.
    pub(super) fn arrive(&mut self) -> Self {
        let mut arrived = core::mem::take(self);
        if let Some(parcel) = arrived.0.as_deref_mut() {
            parcel.charge = None;
        }
        arrived
    }

    /// Copies the references for a receiver that only peeks. No user is charged for them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn try_clone(&self) -> Result<Self> {
        let Some(parcel) = self.0.as_deref() else { return Ok(Self::default()) };
        Ok(Self(Some(Deferred::new(Parcel { files: parcel.files.try_clone()?, charge: None }))))
    }

    /// Takes the files out, for descriptors.
    pub(super) fn into_vec(mut self) -> Vec<Arc<OpenFile>> {
        self.0.as_deref_mut().map(|parcel| core::mem::take(&mut parcel.files)).unwrap_or_default()
    }
}

impl Deref for Files {
    type Target = [Arc<OpenFile>];
    fn deref(&self) -> &[Arc<OpenFile>] {
        self.0.as_deref().map_or(&[], |parcel| &parcel.files)
    }
}

impl Drop for Files {
    #[inline]
    fn drop(&mut self) {
        if let Some(parcel) = self.0.take() {
            release(parcel);
        }
    }
}

/// Number of files in flight by real user. Users without files in flight have no entry.
static USERS: SpinLock<Vec<(u32, usize)>> = SpinLock::new(Vec::new());
/// Files in flight of all users.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of files in flight of all users.
pub(super) fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// Some of a user's files in flight.
struct Charge {
    user: u32,
    files: usize,
}

impl Charge {
    /// `sender` is absent if the kernel itself sends, in tests.
    fn new(files: usize, sender: Option<&Process>) -> Result<Self> {
        let (user, limit) = sender.map_or((0, usize::MAX), |sender| {
            let own = sender.credentials();
            let unlimited = own.may(Capability::SysResource) || own.may(Capability::SysAdmin);
            (own.uid, if unlimited { usize::MAX } else { sender.descriptor_limit() })
        });
        let mut users = USERS.lock();
        users.try_reserve(1)?;
        let at = users.iter().position(|&(other, _)| other == user).unwrap_or_else(|| {
            users.push_reserved((user, 0));
            users.len() - 1
        });
        if users[at].1 > limit {
            return Err(Errno::ETOOMANYREFS);
        }
        users[at].1 += files;
        TOTAL.fetch_add(files, Ordering::Relaxed);
        Ok(Self { user, files })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        if let Some(at) = users.iter().position(|&(user, _)| user == self.user) {
            users[at].1 -= self.files;
            if users[at].1 == 0 {
                users.swap_remove(at);
            }
        }
        TOTAL.fetch_sub(self.files, Ordering::Relaxed);
    }
}
