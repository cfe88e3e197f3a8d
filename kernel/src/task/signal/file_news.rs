//! Signal-driven I/O (O_ASYNC): the owner of an open file hears of its news by a signal.
//!
//! Linux' relatives are `struct fown_struct`, `struct fasync_struct` and `kill_fasync`. A
//! [`FileSignals`] belongs to an open file description from the first call about it to its end. It
//! has the owner and the signal that a program chose, and, while O_ASYNC is on, an entry of its
//! listener in the wait queues of the file. Code that brings news calls [`WaitQueue::announce`],
//! which does nothing for a queue without entries: files without O_ASYNC cost nothing.
//!
//! **Context.** News are announced in task context without a spin lock: the signal may need memory,
//! and looking for the owner takes the registry's lock. A wake-up without news
//! does nothing.
//!
//! **Owner.** It is named by a [handle](IdHandle), so an ID that is used again gets no signals. Its
//! permission is that of the user who chose it, as on Linux (`sigio_perm`).
//!
//! **End.** Turning it off, and the description's end, first mark the listener and then take it out
//! of the queues. An announcement that has copied the settings before may still come.
//!
//! Lock order: `observing` (sleeping) > settings > what sending a signal takes.

use freehold_collections::{Arc, reserve};

use super::{SigInfo, Signal};
use crate::fs::file::{NewsOwner, POLLRDNORM, POLLWRNORM, Ready};
use crate::fs::leases::{self, LeaseKind};
use crate::fs::{OpenFile, Signalling};
use crate::sync::{Mutex, News, PollWaiter, SpinLock, WaitQueue, Wake, Woken};
use crate::task::process::Process;
use crate::task::registry::{IdHandle, IdRole};
use crate::task::{Credentials, with_current};
use crate::{Errno, Result};

/// POLLWRBAND, which Linux reports beside POLLOUT.
const POLLWRBAND: u32 = 0x200;
/// POLLMSG, which is told of leases alone.
const POLLMSG: u32 = 0x400;

/// The owner of an open file: F_SETOWN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOwner {
    /// The process, thread or group.
    pub handle: IdHandle,
    /// Which of these.
    pub role: IdRole,
}

/// The owner of a file and the users who chose it.
#[derive(Clone, Copy)]
struct Chosen {
    owner: Option<FileOwner>,
    role: IdRole,
    uid: u32,
    euid: u32,
}

impl Chosen {
    /// No owner. F_GETOWN_EX shows a thread.
    const NONE: Self = Self { owner: None, role: IdRole::Thread, uid: 0, euid: 0 };

    /// Whether the users may signal a process with these credentials.
    fn may_signal(&self, target: &Credentials) -> bool {
        self.euid == 0 || [self.uid, self.euid].iter().any(|id| [target.uid, target.suid].contains(id))
    }
}

#[derive(Clone, Copy)]
struct NewsSettings {
    chosen: Chosen,
    /// F_SETSIG; `None` is a plain SIGIO.
    signal: Option<Signal>,
    /// The descriptor by which O_ASYNC was turned on.
    fd: i32,
    signalling: Signalling,
}

/// The entry in wait queues.
struct Listener(SpinLock<NewsSettings>);

/// See the module's head.
pub struct FileSignals {
    listener: Arc<Listener>,
    /// Registrations with the file's queues.
    observing: Mutex<Option<PollWaiter>>,
}

/// Whether a call chooses an owner where there is one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerChoice {
    Any,
    First,
}

impl FileSignals {
    /// The state of `file`, if a program has asked for any.
    pub fn of(file: &OpenFile) -> Option<Arc<Self>> {
        file.signalling::<Self>()
    }

    /// The state of `file`, made if need be.
    pub fn made_for(file: &OpenFile) -> Arc<Self> {
        if let Some(state) = Self::of(file) {
            return state;
        }
        let settings =
            NewsSettings { chosen: Chosen::NONE, signal: None, fd: -1, signalling: Signalling::Off };
        let listener = reserve::arc(Listener(SpinLock::new(settings)));
        let fresh = reserve::arc(Self { listener, observing: Mutex::new(None) });
        file.set_signalling::<Self>(fresh.clone());
        Self::of(file).unwrap_or(fresh)
    }

    fn settings(&self) -> NewsSettings {
        *self.listener.0.lock()
    }

    /// F_SETOWN, F_SETOWN_EX: signals go to `owner`, or to none, with the running process'
    /// permission.
    pub fn set_owner(&self, owner: Option<FileOwner>, role: IdRole) {
        self.choose(owner, role, OwnerChoice::Any);
    }

    /// Returns whether there was no owner.
    fn choose(&self, owner: Option<FileOwner>, role: IdRole, choice: OwnerChoice) -> bool {
        let (uid, euid) = with_current(|task| task.with_credentials(|own| (own.uid, own.euid)));
        let mut settings = self.listener.0.lock();
        let was_free = settings.chosen.owner.is_none();
        if choice == OwnerChoice::Any || was_free {
            settings.chosen = Chosen { owner, role, uid, euid };
        }
        was_free
    }

    /// F_GETOWN: the owner while it is there, and what it was chosen as.
    pub fn owner(&self) -> (Option<FileOwner>, IdRole) {
        let chosen = self.settings().chosen;
        (chosen.owner.filter(|owner| owner.handle.is_in_use(owner.role)), chosen.role)
    }

    /// Real and effective user who chose the owner.
    pub fn choosers(&self) -> (u32, u32) {
        let chosen = self.settings().chosen;
        (chosen.uid, chosen.euid)
    }

    /// F_SETSIG; `None` is a plain SIGIO.
    pub fn set_signal(&self, signal: Option<Signal>) {
        self.listener.0.lock().signal = signal;
    }

    /// F_GETSIG.
    pub fn signal(&self) -> Option<Signal> {
        self.settings().signal
    }

    /// Turns O_ASYNC on or off by the descriptor `fd` of `file`.
    ///
    /// # Errors
    /// `ENOTTY` for a file without signal-driven I/O; `ENOMEM`.
    pub fn set(file: &OpenFile, fd: i32, signalling: Signalling) -> Result<()> {
        let news = file.file().news().ok_or(Errno::ENOTTY)?;
        match signalling {
            Signalling::On => Self::made_for(file).start(file, fd, news.queues, news.owner),
            Signalling::Off => {
                if let Some(state) = Self::of(file) {
                    state.stop(file);
                }
                Ok(())
            }
        }
    }

    fn start(
        &self,
        file: &OpenFile,
        fd: i32,
        queues: [Option<&Arc<WaitQueue>>; 2],
        owner: NewsOwner,
    ) -> Result<()> {
        let mut observing = self.observing.lock();
        if observing.is_none() {
            let mut observer = PollWaiter::listener(self.listener.clone());
            queues.into_iter().flatten().for_each(|queue| observer.register(queue));
            *observing = Some(observer.complete()?);
        }
        {
            let mut settings = self.listener.0.lock();
            (settings.fd, settings.signalling) = (fd, Signalling::On);
        }
        let (id, role) = match owner {
            NewsOwner::None => (None, IdRole::Process),
            NewsOwner::Group(group) => (Some(group), IdRole::Group),
            NewsOwner::Caller => (Some(with_current(|task| task.process().pid)), IdRole::Process),
        };
        if let Some(handle) = id.and_then(IdHandle::of) {
            self.choose(Some(FileOwner { handle, role }), role, OwnerChoice::First);
        }
        file.show_async(Signalling::On);
        Ok(())
    }

    fn stop(&self, file: &OpenFile) {
        let mut observing = self.observing.lock();
        self.listener.0.lock().signalling = Signalling::Off;
        // O_ASYNC of an open(2) is shown for ever: nothing was registered.
        if observing.take().is_some() {
            file.show_async(Signalling::Off);
        }
    }
}

/// The holder of a lease: it is told by the signal and owner of its file, whether or not O_ASYNC is
/// on.
struct LeaseHolder {
    signals: Arc<FileSignals>,
    /// The descriptor by which the lease was set.
    fd: i32,
}

impl Wake for LeaseHolder {
    fn wake(&self) -> Woken {
        Woken::Nobody
    }

    fn announce(&self, news: News) {
        NewsSettings { fd: self.fd, ..self.signals.settings() }.tell(news);
    }
}

impl FileSignals {
    /// Gives `file` a lease by the descriptor `fd`, or changes the one that it has. The running
    /// process becomes the owner of a file without one.
    ///
    /// # Errors
    /// As [`leases::set`].
    pub fn set_lease(file: &OpenFile, fd: i32, kind: LeaseKind) -> Result<()> {
        let signals = Self::made_for(file);
        let own = IdHandle::of(with_current(|task| task.process().pid));
        let owner = own.map(|handle| FileOwner { handle, role: IdRole::Process });
        // Before the lease is there: an open may break it at once.
        let was_free = signals.choose(owner, IdRole::Process, OwnerChoice::First);
        let given = leases::set(file, kind, reserve::arc(LeaseHolder { signals: signals.clone(), fd }));
        if given.is_err() && was_free {
            signals.listener.0.lock().chosen = Chosen::NONE;
        }
        given
    }

    /// Ends the lease of `file`; its owner and signal go with it.
    ///
    /// # Errors
    /// `EAGAIN` where there is none.
    pub fn end_lease(file: &OpenFile) -> Result<()> {
        leases::release(file)?;
        if let Some(signals) = Self::of(file) {
            let mut settings = signals.listener.0.lock();
            (settings.chosen, settings.signal) = (Chosen::NONE, None);
        }
        Ok(())
    }
}

impl Drop for FileSignals {
    fn drop(&mut self) {
        self.listener.0.lock().signalling = Signalling::Off;
    }
}

impl Wake for Listener {
    fn wake(&self) -> Woken {
        Woken::Nobody
    }

    fn announce(&self, news: News) {
        let settings = *self.0.lock();
        if settings.signalling == Signalling::On {
            settings.tell(news);
        }
    }
}

/// The events of poll(2) that news mean (Linux: `band_table`).
const fn band(news: News) -> u64 {
    let bits = match news {
        News::Input => Ready::IN.bits() | POLLRDNORM,
        News::Room => Ready::OUT.bits() | POLLWRNORM | POLLWRBAND,
        News::Message => Ready::IN.bits() | POLLRDNORM | POLLMSG,
        News::Error => Ready::ERR.bits(),
        News::HangUp => Ready::HUP.bits() | Ready::ERR.bits(),
    };
    bits as u64
}

impl NewsSettings {
    /// Sends the signal to the owner, or to each process of the owning group.
    fn tell(&self, news: News) {
        let Some(owner) = self.chosen.owner else { return };
        match owner.role {
            IdRole::Thread => {
                if let Some(task) = owner.handle.task() {
                    let (queue, plain) = (|info| task.queue_signal(info), |info| task.signal(info));
                    self.tell_one(task.process(), news, queue, plain);
                }
            }
            IdRole::Process => {
                if let Some(process) = owner.handle.process() {
                    self.tell_process(&process, news);
                }
            }
            IdRole::Group => {
                for process in owner.handle.members().into_iter().flatten() {
                    self.tell_process(&process, news);
                }
            }
        }
    }

    fn tell_process(&self, process: &Arc<Process>, news: News) {
        self.tell_one(process, news, |info| process.queue_signal(info), |info| process.signal(info));
    }

    /// A signal that cannot be queued becomes SIGIO, which always can.
    fn tell_one(
        &self,
        process: &Process,
        news: News,
        queue: impl FnOnce(SigInfo) -> Result<()>,
        plain: impl FnOnce(SigInfo),
    ) {
        if !process.with_credentials(|own| self.chosen.may_signal(own)) {
            return;
        }
        let is_queued = self
            .signal
            .is_some_and(|signal| queue(SigInfo::of_file(signal, news as i32, band(news), self.fd)).is_ok());
        if !is_queued {
            plain(SigInfo::kernel(Signal::IO));
        }
    }
}
