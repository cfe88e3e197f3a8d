//! mq_notify: one process is notified, once, when a message arrives at an empty queue for which no
//! thread waits.
//!
//! A registration ends when its process closes any descriptor of the queue, so it ends with the
//! process at the latest. It holds a weak reference to the process. Only the program that
//! registered gets a signal: a program that the process has executed since does not.
//!
//! Code under a queue's lock may inspect the process but must not hold a reference: dropping the
//! last one would end the process there.

use freehold_collections::{Arc, Weak, reserve::ArcMethods};

use crate::socket::netlink::CookieReceiver;
use crate::task::signal::{Pid, SigInfo, Signal, code};
use crate::task::{Process, current};

/// Size of the message to a C library's helper thread, in bytes.
pub const COOKIE_BYTES: usize = 32;
/// The last byte gives the reason: a message arrived, or the registration was removed.
const WOKEN: u8 = 1;
const REMOVED: u8 = 2;

/// The numbers of SIGEV_*.
const SIGEV_SIGNAL: i32 = 0;
const SIGEV_NONE: i32 = 1;
const SIGEV_THREAD: i32 = 2;

/// How a process is notified.
pub enum Notice {
    /// Not at all. The registration only prevents others (SIGEV_NONE).
    None,
    /// By a signal with a value (SIGEV_SIGNAL). For signal number 0 no signal is sent.
    Signal(Option<Signal>, u64),
    /// By a message to an AF_NETLINK socket, for which a thread of the C library waits
    /// (SIGEV_THREAD).
    Thread(CookieReceiver, [u8; COOKIE_BYTES]),
}

/// A process that is to be notified.
pub struct Registration {
    owner: Weak<Process>,
    pid: Pid,
    /// The memory of the program that registered.
    space: u64,
    notice: Notice,
}

impl Registration {
    /// Makes a registration of the calling process.
    pub fn new(notice: Notice) -> Self {
        let process = current().process().clone();
        Self { owner: process.downgrade(), pid: process.pid, space: process.space().id(), notice }
    }

    /// Whether the registered process still exists.
    fn is_live(&self) -> bool {
        self.owner.strong_count() > 0
    }

    /// Whether `process` is the registered one. Its address is not reused while the weak reference
    /// exists.
    fn is_of(&self, process: &Arc<Process>) -> bool {
        core::ptr::eq(self.owner.as_ptr(), process.address())
    }

    /// Notifies the process that a message arrived. The calling process sent it.
    pub fn tell(self) {
        match &self.notice {
            Notice::None | Notice::Signal(None, _) => {}
            Notice::Signal(Some(signal), value) => {
                let owner = self.owner.upgrade().filter(|owner| owner.space().id() == self.space);
                let Some(owner) = owner else { return };
                let sender = current().process().clone();
                let mut info = SigInfo::user(*signal, code::MESGQ, sender.number_for(&owner), sender.uid());
                info.fields[1] = *value;
                owner.signal(info);
            }
            Notice::Thread(receiver, cookie) => receiver.send(&marked(*cookie, WOKEN)),
        }
    }

    /// Tells the process' helper thread that no notice will come.
    pub fn tell_removed(self) {
        if let Notice::Thread(receiver, cookie) = &self.notice {
            receiver.send(&marked(*cookie, REMOVED));
        }
    }
}

fn marked(mut cookie: [u8; COOKIE_BYTES], why: u8) -> [u8; COOKIE_BYTES] {
    cookie[COOKIE_BYTES - 1] = why;
    cookie
}

/// The registration of a queue, if there is one.
#[derive(Default)]
pub struct Registrations(Option<Registration>);

impl Registrations {
    /// Registers a process, unless another living one is registered. Returns the previous
    /// registration.
    ///
    /// # Errors
    /// `new`, if another one is registered.
    pub fn register(
        &mut self,
        new: Registration,
    ) -> core::result::Result<Option<Registration>, Registration> {
        if self.0.as_ref().is_some_and(Registration::is_live) {
            return Err(new);
        }
        Ok(self.0.replace(new))
    }

    /// Takes the registration, because its process is to be notified now.
    pub fn take_due(&mut self) -> Option<Registration> {
        self.0.take()
    }

    /// Takes the registration if it belongs to `process`.
    pub fn take_of(&mut self, process: &Arc<Process>) -> Option<Registration> {
        self.0.take_if(|registration| registration.is_of(process))
    }

    /// Returns SIGEV_*, signal and process; 0 without a registration.
    pub fn told(&self) -> (i32, i32, u32) {
        let Some(registration) = self.0.as_ref().filter(|registration| registration.is_live()) else {
            return (0, 0, 0);
        };
        let (how, signal) = match &registration.notice {
            Notice::None => (SIGEV_NONE, 0),
            Notice::Signal(signal, _) => (SIGEV_SIGNAL, signal.map_or(0, |signal| signal.number().into())),
            Notice::Thread(..) => (SIGEV_THREAD, 0),
        };
        (how, signal, registration.pid)
    }
}
