//! Signal-driven I/O (O_ASYNC): the owner of an open file is notified of its events by a signal.
//!
//! Linux' relatives are `struct fown_struct`, `struct fasync_struct` and `kill_fasync`. A
//! [`FileSignals`] belongs to an open file description from the first call about it to its end. It
//! has the owner and the signal that a program chose. While O_ASYNC is on, it also has an entry of
//! its listener in the wait queues of the file. Code that causes an event calls
//! [`WaitQueue::announce`], which does nothing for a queue without entries. So files without
//! O_ASYNC cost nothing.
//!
//! **Context.** Events are announced in task context without a spin lock: the signal may need
//! memory, and the search for the owner takes the registry's lock. A wake-up without an event does
//! nothing.
//!
//! **Owner.** A [handle](IdHandle) names the owner, so an ID that is used again gets no signals.
//! The permission to signal it is that of the user who chose it, as on Linux (`sigio_perm`).
//!
//! **End.** When O_ASYNC is turned off, or the description ends, the listener is first marked and
//! then removed from the queues. An announcement that has copied the settings before may still send
//! a signal.
//!
//! Lock order: `observing` (sleeping) > settings > what sending a signal takes.

use freehold_collections::{Arc, reserve};

use super::{SigInfo, Signal};
use crate::fs::file::{NewsOwner, POLLRDNORM, POLLWRNORM, Ready};
use crate::fs::leases::{self, LeaseKind};
use crate::fs::notify::{Events, dnotify};
use crate::fs::{OpenFile, Signalling};
use crate::sync::{Mutex, News, PollWaiter, SpinLock, WaitQueue, Wake, Woken};
use crate::task::process::Process;
use crate::task::registry::{IdHandle, IdRole};
use crate::task::{Credentials, with_current};
use crate::{Errno, Result};

/// POLLWRBAND, which Linux reports together with POLLOUT.
const POLLWRBAND: u32 = 0x200;
/// POLLMSG, which only lease breaks and F_NOTIFY report.
const POLLMSG: u32 = 0x400;

/// The owner of an open file: F_SETOWN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOwner {
    /// The process, thread or group.
    pub handle: IdHandle,
    /// The kind of object.
    pub role: IdRole,
}

/// The owner of a file, and the real and effective user who chose it.
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

    /// Returns whether the user who chose the owner may signal a process with these credentials.
    fn may_signal(&self, target: &Credentials) -> bool {
        self.euid == 0 || [self.uid, self.euid].iter().any(|id| [target.uid, target.suid].contains(id))
    }
}

#[derive(Clone, Copy)]
struct NewsSettings {
    chosen: Chosen,
    /// F_SETSIG; `None` is a plain SIGIO.
    signal: Option<Signal>,
    /// The descriptor through which O_ASYNC was turned on.
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

/// Whether a call replaces an existing owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerChoice {
    Any,
    First,
}

impl FileSignals {
    /// Returns the state of `file`, if any program has requested it.
    pub fn of(file: &OpenFile) -> Option<Arc<Self>> {
        file.signalling::<Self>()
    }

    /// Returns the state of `file`, which is made if necessary.
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

    /// F_SETOWN, F_SETOWN_EX: sends signals to `owner`, or to none, with the running process'
    /// permission.
    pub fn set_owner(&self, owner: Option<FileOwner>, role: IdRole) {
        self.choose(owner, role, OwnerChoice::Any);
    }

    /// Sets the owner. Returns whether there was none.
    fn choose(&self, owner: Option<FileOwner>, role: IdRole, choice: OwnerChoice) -> bool {
        let (uid, euid) = with_current(|task| task.with_credentials(|own| (own.uid, own.euid)));
        let mut settings = self.listener.0.lock();
        let was_free = settings.chosen.owner.is_none();
        if choice == OwnerChoice::Any || was_free {
            settings.chosen = Chosen { owner, role, uid, euid };
        }
        was_free
    }

    /// F_GETOWN: returns the owner while it exists, and the kind that was chosen.
    pub fn owner(&self) -> (Option<FileOwner>, IdRole) {
        let chosen = self.settings().chosen;
        (chosen.owner.filter(|owner| owner.handle.is_in_use(owner.role)), chosen.role)
    }

    /// Returns the real and effective user who chose the owner.
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

    /// Turns O_ASYNC on or off through the descriptor `fd` of `file`.
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
        // For O_ASYNC of an open(2) nothing was registered; the flag stays visible.
        if observing.take().is_some() {
            file.show_async(Signalling::Off);
        }
    }
}

/// The holder of a lease, or of a watch of a directory (F_NOTIFY). It is notified by the signal and
/// owner of its file, whether or not O_ASYNC is on.
struct FileHolder {
    signals: Arc<FileSignals>,
    /// The descriptor through which the lease or the watch was set.
    fd: i32,
}

impl Wake for FileHolder {
    fn wake(&self) -> Woken {
        Woken::Nobody
    }

    fn announce(&self, news: News) {
        NewsSettings { fd: self.fd, ..self.signals.settings() }.tell(news);
    }
}

impl FileSignals {
    /// Makes the running process the owner if there is none. Returns whether there was none.
    fn choose_caller(&self) -> bool {
        let own = IdHandle::of(with_current(|task| task.process().pid));
        let owner = own.map(|handle| FileOwner { handle, role: IdRole::Process });
        self.choose(owner, IdRole::Process, OwnerChoice::First)
    }

    /// F_NOTIFY: tells the owner of events in the directory `file`, through the descriptor `fd` of
    /// the table with this number. If the file has no owner, the running process becomes its owner.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch_directory(file: &OpenFile, fd: i32, table: u64, mask: Events) -> Result<()> {
        let signals = Self::made_for(file);
        signals.choose_caller();
        dnotify::watch(file, table, mask, reserve::arc(FileHolder { signals, fd }))
    }

    /// Gives `file` a lease through the descriptor `fd`, or changes its lease. If the file has no
    /// owner, the running process becomes its owner.
    ///
    /// # Errors
    /// As [`leases::set`].
    pub fn set_lease(file: &OpenFile, fd: i32, kind: LeaseKind) -> Result<()> {
        let signals = Self::made_for(file);
        // Before the lease is set: an open may break it at once.
        let was_free = signals.choose_caller();
        let given = leases::set(file, kind, reserve::arc(FileHolder { signals: signals.clone(), fd }));
        if given.is_err() && was_free {
            signals.listener.0.lock().chosen = Chosen::NONE;
        }
        given
    }

    /// Ends the lease of `file`, and removes the owner and the signal with it.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
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

/// Returns the events of poll(2) for an event (Linux: `band_table`).
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

    /// A signal that cannot be queued is replaced by SIGIO, which is never refused.
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
