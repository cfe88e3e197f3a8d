//! Pseudo-terminals: opening /dev/ptmx makes a master, and /dev/pts/N is its terminal (the slave).
//!
//! A pair lives as long as its master is open or a program has the terminal open. Its number is
//! free again when both are closed. Closing the master hangs the terminal up permanently. When
//! every slave file is closed, the master gets EIO once the output has been read, until a program
//! opens the terminal again.

use freehold_collections::{
    Arc, Vec, Weak, WipedChunk,
    reserve::{self, ArcMethods},
};
use linux_raw_sys::general::TCION;
use linux_raw_sys::ioctl as io;

use super::termios::Termios;
use super::{LineState, Tty, Wire, control, job};
use crate::fs::bytes::send_in_chunks;
use crate::fs::file::{NewsOwner, NewsQueues};
use crate::fs::{Blocking, File, Node, OpenFlags, Ready, SetMetadata, Timestamp};
use crate::sync::{PollWaiter, SpinLock};
use crate::task::registry;
use crate::user::{Sink, Source, UserPtr};
use crate::{Errno, Result, task, time};

/// Major number of the terminals.
pub const SLAVE_MAJOR: u32 = 136;
/// Major and minor of /dev/ptmx.
pub const PTMX: (u32, u32) = (5, 2);
/// Largest number of pairs at one time (/proc/sys/kernel/pty/max).
pub const MOST: usize = 4096;
const CHUNK: usize = 512;

/// Whether the terminal may be opened: the master's program unlocks it after setting it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lock {
    Locked,
    Unlocked,
}

/// State of the master in addition to the terminal.
struct Pair {
    tty: Arc<Tty>,
    state: SpinLock<PairState>,
}

struct PairState {
    lock: Lock,
    /// TIOCPKT.
    packets: bool,
    mode: u32,
    uid: u32,
    gid: u32,
    made: Timestamp,
}

static PAIRS: SpinLock<Vec<Weak<Pair>>> = SpinLock::new(Vec::new());

fn find(number: u32) -> Option<Arc<Pair>> {
    PAIRS.lock().get(number as usize)?.upgrade()
}

/// Makes a pair with the lowest free number.
fn make() -> Result<Arc<Pair>> {
    let mut fresh = Vec::new();
    loop {
        let number = {
            let pairs = PAIRS.lock();
            pairs.iter().position(|pair| pair.strong_count() == 0).unwrap_or(pairs.len())
        };
        if number >= MOST {
            return Err(Errno::ENOSPC);
        }
        let tty = Tty::new(SLAVE_MAJOR, number as u32, Wire::Master, Termios::standard())?;
        // The terminal belongs to the opener, as on Linux (`devpts_pty_new`).
        let uid = task::current().process().credentials().fsuid;
        let state =
            PairState { lock: Lock::Locked, packets: false, mode: 0o620, uid, gid: 5, made: time::wall() };
        let pair = reserve::arc(Pair { tty, state: SpinLock::new(state) });
        fresh.try_reserve(number + 1)?;
        let mut pairs = PAIRS.lock();
        if pairs.len() == number {
            let outdated = pairs.move_to(fresh);
            pairs.push_reserved(pair.downgrade());
            // The old list is freed without the lock.
            drop(pairs);
            drop(outdated);
            return Ok(pair);
        }
        if pairs.get(number).is_some_and(|pair| pair.strong_count() == 0) {
            pairs[number] = pair.downgrade();
            return Ok(pair);
        }
    }
}

/// Opens /dev/ptmx, which makes a new pair's master.
///
/// # Errors
/// `ENOSPC` if there are too many, `ENOMEM`.
pub fn open_master(node: Arc<dyn Node>) -> Result<Arc<dyn File>> {
    Ok(reserve::arc(Master { pair: make()?, node }))
}

/// Opens the terminal `number`.
///
/// # Errors
/// `EIO` if its master was closed or has not unlocked it.
pub fn open_slave(node: Arc<dyn Node>, number: u32, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let pair = find(number).ok_or(Errno::EIO)?;
    if pair.state.lock().lock == Lock::Locked {
        return Err(Errno::EIO);
    }
    let file = pair.tty.open(node, flags)?;
    Ok(reserve::arc(Slave { file, _pair: pair }))
}

/// An open program's side. It keeps the pair's number in use.
struct Slave {
    file: Arc<super::TtyFile>,
    _pair: Arc<Pair>,
}

impl File for Slave {
    fn node(&self) -> Arc<dyn Node> {
        self.file.node()
    }
    fn read_at(&self, offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        self.file.read_at(offset, sink, blocking)
    }
    fn write_at(&self, offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        self.file.write_at(offset, source, blocking)
    }
    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        self.file.poll(waiter)
    }
    fn news(&self) -> Option<NewsQueues<'_>> {
        self.file.news()
    }
    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        self.file.ioctl(request, argument)
    }
}

/// An open master's side.
struct Master {
    pair: Arc<Pair>,
    node: Arc<dyn Node>,
}

impl Master {
    /// Whether programs have opened the terminal, but none has it open now.
    fn is_deserted(&self) -> bool {
        let state = self.pair.tty.state.lock();
        state.opens == 0 && state.opened_ever != 0
    }

    fn has_output(&self) -> bool {
        let packets = self.pair.state.lock().packets;
        let state = self.pair.tty.state.lock();
        !state.discipline.wire().is_empty() || (packets && state.discipline.has_packet())
    }

    /// Takes the output that can be read now. Returns `None` if there is none.
    fn fetch(&self, sink: &mut dyn Sink) -> Result<Option<usize>> {
        let mut chunk = WipedChunk::<CHUNK>::new();
        let mut done = 0;
        if self.pair.state.lock().packets {
            let notices = self.pair.tty.state.lock().discipline.take_packet();
            if notices != 0 {
                return sink.put(&[notices]).map(Some);
            }
            if !self.has_output() {
                return Ok(None);
            }
            done += sink.put(&[linux_raw_sys::general::TIOCPKT_DATA as u8])?;
        }
        while sink.remaining() > 0 {
            let chunk = chunk.part(sink.remaining());
            let count = self.pair.tty.fetch(chunk);
            if count == 0 {
                break;
            }
            done += sink.put(&chunk[..count])?;
        }
        Ok((done > 0).then_some(done))
    }

    fn open_peer(&self, flags: OpenFlags) -> Result<i64> {
        let number = self.pair.tty.minor;
        if self.pair.state.lock().lock == Lock::Locked {
            return Err(Errno::EIO);
        }
        let node: Arc<dyn Node> = super::devpts::slave_node(number);
        let file = self.pair.tty.open(node, flags)?;
        let file: Arc<dyn File> = reserve::arc(Slave { file, _pair: self.pair.clone() });
        crate::task::install(file, flags).map(i64::from)
    }
}

impl File for Master {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        if sink.remaining() == 0 {
            return Ok(0);
        }
        loop {
            let deserted = self.is_deserted();
            if let Some(count) = self.fetch(sink)? {
                return Ok(count);
            }
            if deserted {
                return Err(Errno::EIO);
            }
            if blocking == Blocking::Never {
                return Err(Errno::EAGAIN);
            }
            self.pair
                .tty
                .wire_ready
                .wait_until(|| (self.has_output() || self.is_deserted()).then_some(()))?;
        }
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        let tty = &self.pair.tty;
        let room = || blocking.until(&tty.wire_room, || tty.accepts().then_some(()));
        send_in_chunks(source, room, |bytes| tty.receive(bytes))
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        let tty = &self.pair.tty;
        if let Some(waiter) = waiter {
            waiter.register(&tty.wire_ready);
            waiter.register(&tty.wire_room);
        }
        let mut ready = Ready::empty();
        ready.set(Ready::HUP, self.is_deserted());
        ready.set(Ready::IN, self.has_output());
        ready.set(Ready::OUT, tty.accepts());
        let packets = self.pair.state.lock().packets;
        ready.set(Ready::PRI, packets && tty.state.lock().discipline.has_packet());
        ready
    }

    fn news(&self) -> Option<NewsQueues<'_>> {
        Some(NewsQueues { queues: [Some(&self.pair.tty.wire_ready), None], owner: NewsOwner::Caller })
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        let tty = &self.pair.tty;
        if let Some(answer) = tty.common_control(request, argument) {
            return answer;
        }
        match request {
            io::TIOCGPTN => control::put(argument, || tty.minor as i32),
            io::TIOCSPTLCK => {
                let locked: i32 = UserPtr::new(argument).read()?;
                self.pair.state.lock().lock = if locked != 0 { Lock::Locked } else { Lock::Unlocked };
                Ok(0)
            }
            io::TIOCGPTLCK => {
                control::put(argument, || i32::from(self.pair.state.lock().lock == Lock::Locked))
            }
            io::TIOCGPTPEER => self.open_peer(OpenFlags::from_bits_retain(argument as u32)),
            io::TIOCPKT => {
                let on: i32 = UserPtr::new(argument).read()?;
                tty.state.lock().discipline.take_packet();
                self.pair.state.lock().packets = on != 0;
                Ok(0)
            }
            io::TIOCGPKT => control::put(argument, || i32::from(self.pair.state.lock().packets)),
            io::TIOCSIG => control::signal_by_master(tty, argument),
            io::FIONREAD => control::put(argument, || tty.state.lock().discipline.wire().len() as i32),
            io::TIOCOUTQ => control::put(argument, || 0i32),
            io::TCSETS
            | io::TCSETSW
            | io::TCSETSF
            | io::TCSETS2
            | io::TCSETSW2
            | io::TCSETSF2
            | io::TCSETA
            | io::TCSETAW
            | io::TCSETAF => {
                tty.set_termios(tty.read_settings(request, argument)?);
                Ok(0)
            }
            // The master's writes are processed at once, so there is no output to wait for.
            io::TCSBRK | io::TCSBRKP => Ok(0),
            io::TCXONC if argument > u64::from(TCION) => Err(Errno::EINVAL),
            io::TCXONC => Ok(0),
            io::TIOCSPGRP => job::set_foreground(tty, UserPtr::new(argument).read()?).map(|()| 0),
            io::TCFLSH => tty.flush_queue(argument),
            io::TIOCGPGRP => control::put(argument, || registry::shown(tty.foreground()) as i32),
            io::TIOCGSID => {
                let session = tty.control().0.ok_or(Errno::ENOTTY)?;
                control::put(argument, || registry::shown(session.id) as i32)
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.pair.tty.state.lock().line = LineState::Down;
        self.pair.tty.hang_up();
    }
}

/// Returns owner, group, permissions and creation time of a terminal's node; `None` if its master
/// was closed.
pub(super) fn ownership(number: u32) -> Option<(u32, u32, u32, Timestamp)> {
    let pair = find(number)?;
    let state = pair.state.lock();
    Some((state.uid, state.gid, state.mode, state.made))
}

/// Changes owner, group and permissions.
pub(super) fn set_ownership(number: u32, change: &SetMetadata) -> Result<()> {
    let pair = find(number).ok_or(Errno::ENOENT)?;
    let mut state = pair.state.lock();
    state.mode = change.mode.map_or(state.mode, |change| change.of(state.mode));
    state.uid = change.uid.unwrap_or(state.uid);
    state.gid = change.gid.unwrap_or(state.gid);
    Ok(())
}

/// Whether a terminal has a name, which it has while its master is open.
pub(super) fn is_listed(number: u32) -> bool {
    find(number).is_some_and(|pair| pair.tty.state.lock().line == LineState::Up)
}

/// Returns one more than the highest number in use so far.
pub(super) fn end() -> u32 {
    PAIRS.lock().len() as u32
}

/// Returns the number of pairs in use (/proc/sys/kernel/pty/nr).
pub fn in_use() -> usize {
    PAIRS.lock().iter().filter(|pair| pair.strong_count() > 0).count()
}
