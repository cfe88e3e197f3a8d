//! The network device that a socket is bound to (SO_BINDTODEVICE, SO_BINDTOIFINDEX).
//!
//! A bound socket receives packets only from its device, and sends only through it. Packets between
//! sockets of this machine use `lo`, those of other machines `eth0`. Sending to an address that the
//! device cannot reach is `ENETUNREACH`. Linux sends such a packet, and it gets lost.

use core::sync::atomic::Ordering;

use linux_raw_sys::net as c;

use super::endpoint::Socket;
use super::{interface, ports};
use crate::task::{self, Capability};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Bytes of an interface's name, with the NUL (IFNAMSIZ).
const NAME_BYTES: usize = 16;

impl Socket {
    /// The number of the device, 0 for any.
    #[inline]
    pub(super) fn device(&self) -> u32 {
        self.device.load(Ordering::Relaxed)
    }

    /// Sets one of the two options. Returns whether `name` was one of them.
    ///
    /// # Errors
    /// `ENODEV` for a name that no device has, `EPERM` if the socket is bound already and the
    /// caller has no CAP_NET_RAW, `EINVAL`, `EFAULT`, `ENOMEM`.
    pub(super) fn set_device_option(&self, name: u32, value: u64, length: usize) -> Result<bool> {
        let device = match name {
            c::SO_BINDTODEVICE => self.device_named(value, length)?,
            c::SO_BINDTOIFINDEX => {
                let number = super::beside::number(c::SOL_SOCKET, value, length)?;
                u32::try_from(number).map_err(|_| Errno::EINVAL)?
            }
            _ => return Ok(false),
        };
        let owner = self.network().head().owner();
        if self.device() != 0 && !task::may_in(owner, Capability::NetRaw) {
            return Err(Errno::EPERM);
        }
        self.bind_to_device(device)?;
        Ok(true)
    }

    fn device_named(&self, value: u64, length: usize) -> Result<u32> {
        let mut bytes = [0; NAME_BYTES - 1];
        let length = length.min(bytes.len());
        user::read_exact(value, &mut bytes[..length])?;
        let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        if name.is_empty() {
            return Ok(0);
        }
        let named = interface::all(self.network()).find(|device| device.name.as_bytes() == name);
        named.map(|device| device.index).ok_or(Errno::ENODEV)
    }

    /// Binds the socket to the device with this number; 0 for none.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn bind_to_device(&self, device: u32) -> Result<()> {
        let port = self.state.lock().port;
        port.map_or(Ok(()), |key| ports::set_device(&key, device))?;
        self.device.store(device, Ordering::Relaxed);
        if let Some(raw) = &self.raw {
            raw.bind_to_device(device);
        }
        Ok(())
    }

    /// Writes SO_BINDTODEVICE: the device's name with a NUL, or nothing.
    ///
    /// # Errors
    /// `EINVAL` where there is no room for a name, `ENODEV`, `EFAULT`.
    pub(super) fn write_device_name(&self, value: u64, length: UserPtr<i32>) -> Result<()> {
        let device = self.device();
        if device == 0 {
            return length.write(&0);
        }
        if usize::try_from(length.read()?).unwrap_or(0) < NAME_BYTES {
            return Err(Errno::EINVAL);
        }
        let named = interface::all(self.network()).find(|entry| entry.index == device);
        let name = named.ok_or(Errno::ENODEV)?.name;
        user::write_exact(value, name.as_bytes())?;
        user::write_exact(value + name.len() as u64, b"\0")?;
        length.write(&(name.len() as i32 + 1))
    }
}
