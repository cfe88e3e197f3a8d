//! The login user of a process, and the number of its login (session). Programs that log users in
//! set them, and tools report them. There is no audit log.
//!
//! Source: `audit_set_loginuid` in kernel/auditsc.c.

use core::sync::atomic::{AtomicU32, Ordering};

/// The value of both numbers before a login.
pub const UNSET: u32 = u32::MAX;

/// The number of the last login.
static LOGINS: AtomicU32 = AtomicU32::new(0);

/// Login user and session of a process. Its children inherit them.
#[derive(Debug)]
pub struct AuditIds {
    user: AtomicU32,
    session: AtomicU32,
}

impl Default for AuditIds {
    fn default() -> Self {
        Self { user: AtomicU32::new(UNSET), session: AtomicU32::new(UNSET) }
    }
}

impl AuditIds {
    /// Returns the user's ID, or [`UNSET`].
    pub fn user(&self) -> u32 {
        self.user.load(Ordering::Relaxed)
    }

    /// Returns the session number of the login, or [`UNSET`].
    pub fn session(&self) -> u32 {
        self.session.load(Ordering::Relaxed)
    }

    /// Copies both numbers from `other`.
    pub fn copy(&self, other: &Self) {
        self.user.store(other.user(), Ordering::Relaxed);
        self.session.store(other.session(), Ordering::Relaxed);
    }

    /// Logs the process in as `user`; [`UNSET`] logs it out.
    pub fn log_in(&self, user: u32) {
        let session = if user == UNSET { UNSET } else { LOGINS.fetch_add(1, Ordering::Relaxed) + 1 };
        self.user.store(user, Ordering::Relaxed);
        self.session.store(session, Ordering::Relaxed);
    }
}
