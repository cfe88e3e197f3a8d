//! The user that a process is logged in as, and its login's number: programs that log users in set
//! them, and tools name processes by them. There is no audit log.
//!
//! Source: `audit_set_loginuid` in kernel/auditsc.c.

use core::sync::atomic::{AtomicU32, Ordering};

/// The number before a login.
pub const UNSET: u32 = u32::MAX;

/// The last login's number.
static LOGINS: AtomicU32 = AtomicU32::new(0);

/// The two of a process, which its children have, too.
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
    /// The user's ID, or [`UNSET`].
    pub fn user(&self) -> u32 {
        self.user.load(Ordering::Relaxed)
    }

    /// The login's number, or [`UNSET`].
    pub fn session(&self) -> u32 {
        self.session.load(Ordering::Relaxed)
    }

    /// Has those of `other`.
    pub fn copy(&self, other: &Self) {
        self.user.store(other.user(), Ordering::Relaxed);
        self.session.store(other.session(), Ordering::Relaxed);
    }

    /// The process logs in as `user`, or out with [`UNSET`].
    pub fn log_in(&self, user: u32) {
        let session = if user == UNSET { UNSET } else { LOGINS.fetch_add(1, Ordering::Relaxed) + 1 };
        self.user.store(user, Ordering::Relaxed);
        self.session.store(session, Ordering::Relaxed);
    }
}
