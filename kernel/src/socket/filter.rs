//! Classic BPF programs that select the packets of a raw or packet socket (SO_ATTACH_FILTER).
//!
//! A filter can be replaced and removed until it is locked. So a program that opens a socket for
//! another program can restrict which packets that one receives.

use freehold_bpf::{PacketData, PacketFilter, Refusal};
use freehold_collections::{Arc, reserve};
use linux_raw_sys::net as c;

use super::beside::OptionRoom;
use crate::sync::SpinLock;
use crate::task::seccomp::read_instructions;
use crate::user::UserPtr;
use crate::{Errno, Result, hw};

#[derive(Default)]
struct Attached {
    filter: Option<Arc<PacketFilter>>,
    lock: FilterLock,
}

/// SO_LOCK_FILTER.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum FilterLock {
    #[default]
    Open,
    Locked,
}

/// The filter of a socket.
#[derive(Default)]
pub(super) struct SocketFilter(SpinLock<Attached>);

impl SocketFilter {
    /// setsockopt(2) of the filter options of SOL_SOCKET. Returns whether `name` is one of them.
    ///
    /// # Errors
    /// `EPERM` if the filter is locked, `EINVAL` for an invalid program, `ENOENT` if there is no
    /// filter to remove, `EFAULT`, `ENOMEM`.
    pub(super) fn set_option(&self, name: u32, value: u64, length: usize) -> Result<bool> {
        match name {
            c::SO_ATTACH_FILTER => self.attach(value, length)?,
            c::SO_DETACH_FILTER => self.detach()?,
            c::SO_LOCK_FILTER => self.lock(value, length)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn attach(&self, value: u64, length: usize) -> Result<()> {
        // struct sock_fprog: the number of instructions, and their address.
        if length != size_of::<[u64; 2]>() {
            return Err(Errno::EINVAL);
        }
        let [count, at] = UserPtr::<[u64; 2]>::new(value).read()?;
        if self.0.lock().lock == FilterLock::Locked {
            return Err(Errno::EPERM);
        }
        let program = read_instructions(at, usize::from(count as u16))?;
        let filter = PacketFilter::new(program).map_err(|refusal| match refusal {
            Refusal::NoMemory => Errno::ENOMEM,
            Refusal::Length | Refusal::Instruction(_) => Errno::EINVAL,
        })?;
        self.replace(Some(reserve::arc(filter))).map(drop)
    }

    fn detach(&self) -> Result<()> {
        self.replace(None)?.map(drop).ok_or(Errno::ENOENT)
    }

    /// Replaces the filter. The old one is returned, to be dropped with no lock held.
    fn replace(&self, filter: Option<Arc<PacketFilter>>) -> Result<Option<Arc<PacketFilter>>> {
        let mut attached = self.0.lock();
        if attached.lock == FilterLock::Locked {
            return Err(Errno::EPERM);
        }
        Ok(core::mem::replace(&mut attached.filter, filter))
    }

    fn lock(&self, value: u64, length: usize) -> Result<()> {
        if length < size_of::<i32>() {
            return Err(Errno::EINVAL);
        }
        let wanted = UserPtr::<i32>::new(value).read()?;
        let mut attached = self.0.lock();
        match (attached.lock, wanted) {
            (FilterLock::Locked, 0) => Err(Errno::EPERM),
            (FilterLock::Open, 0) => Ok(()),
            _ => {
                attached.lock = FilterLock::Locked;
                Ok(())
            }
        }
    }

    /// Returns the value of SO_LOCK_FILTER.
    fn is_locked(&self) -> bool {
        self.0.lock().lock == FilterLock::Locked
    }

    /// Writes SO_LOCK_FILTER, cut to the number of bytes that `length` points to.
    ///
    /// # Errors
    /// `EINVAL` for a negative length, `EFAULT`.
    pub(super) fn write_lock(&self, value: u64, length: UserPtr<i32>) -> Result<()> {
        OptionRoom::read(value, length)?.put(&i32::from(self.is_locked()).to_ne_bytes())
    }

    /// Returns how many bytes of a packet pass the filter: 0 for none. `facts` returns the packet
    /// for the filter; its random number is set here.
    pub(super) fn part<'a>(&self, facts: impl FnOnce() -> PacketData<'a>) -> usize {
        let Some(filter) = self.0.lock().filter.clone() else { return usize::MAX };
        let mut random = [0; 4];
        hw::fill_random(&mut random);
        filter.run(&PacketData { random: u32::from_ne_bytes(random), ..facts() }) as usize
    }
}
