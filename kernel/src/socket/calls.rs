//! The socket system calls.

use linux_raw_sys::net as c;

use super::SocketFile;
use super::address::Address;
use super::channel::Received;
use super::endpoint::{Socket, SocketKind};
use super::exchange::{self, ReceivedMessage, SentMessage};
use super::family::Family;
use super::message::MessageHeader;
use super::netlink::Netlink;
use super::packet::PacketKind;
use super::ports::Protocol;
use super::raw::{self, RawKind};
use super::table;
use crate::fs::{OpenFile, OpenFlags};
use crate::mem::OwnMemory;
use crate::syscall::Args;
use crate::task;
use crate::time::{self, TimeSpec};
use crate::user::{Iovecs, UserPtr, UserSlice};
use crate::{Errno, Result};

/// recvmmsg waits for the first message only.
const MSG_WAITFORONE: u32 = 0x10000;
/// Largest number of messages that one sendmmsg or recvmmsg moves.
const MOST_MESSAGES: usize = 1024;
/// `struct mmsghdr`: a header, and a length of 4 bytes, padded to 8.
const MANY_BYTES: u64 = size_of::<MessageHeader>() as u64 + 8;

fn kind_of(family: u32, kind: u32, protocol: i32) -> Result<(Family, SocketKind, OpenFlags)> {
    let flags = OpenFlags::from_bits_retain(kind & !0xf);
    if !(OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(flags) {
        return Err(Errno::EINVAL);
    }
    let family = Family::from_number(family)?;
    if family == Family::Packet {
        return match kind & 0xf {
            c::SOCK_RAW | c::SOCK_DGRAM => Ok((family, SocketKind::Datagram, flags | OpenFlags::RDWR)),
            _ => Err(Errno::ESOCKTNOSUPPORT),
        };
    }
    if family == Family::Netlink {
        // Netlink checks the protocol number itself.
        return match kind & 0xf {
            c::SOCK_RAW | c::SOCK_DGRAM => Ok((family, SocketKind::Datagram, flags | OpenFlags::RDWR)),
            _ => Err(Errno::ESOCKTNOSUPPORT),
        };
    }
    let is_unix = family == Family::Unix;
    let (kind, own) = match kind & 0xf {
        c::SOCK_STREAM => (SocketKind::Stream, if is_unix { c::AF_UNIX } else { c::IPPROTO_TCP as u32 }),
        c::SOCK_DGRAM => (SocketKind::Datagram, if is_unix { c::AF_UNIX } else { c::IPPROTO_UDP as u32 }),
        // As on Linux, SOCK_RAW means datagrams here.
        c::SOCK_RAW if is_unix => (SocketKind::Datagram, c::AF_UNIX),
        c::SOCK_SEQPACKET if is_unix => (SocketKind::Packets, c::AF_UNIX),
        _ => return Err(Errno::ESOCKTNOSUPPORT),
    };
    if protocol != 0 && protocol != own as i32 && !is_lite(family, kind, protocol) {
        return Err(Errno::EPROTONOSUPPORT);
    }
    Ok((family, kind, flags | OpenFlags::RDWR))
}

/// Whether socket(2) requests a socket of UDP-Lite.
fn is_lite(family: Family, kind: SocketKind, protocol: i32) -> bool {
    family.is_ip() && kind == SocketKind::Datagram && protocol == Protocol::UdpLite as i32
}

/// Returns the family, the kind and the flags of a raw or ping socket, if socket(2) requests one.
fn raw_kind_of(family: u32, kind: u32, protocol: i32) -> Option<(Family, RawKind, OpenFlags)> {
    let family = Family::from_number(family).ok().filter(|family| family.is_ip())?;
    let flags = OpenFlags::from_bits_retain(kind & !0xf);
    if !(OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(flags) {
        return None;
    }
    let kind = match kind & 0xf {
        c::SOCK_RAW => RawKind::Raw,
        c::SOCK_DGRAM if raw::pings(family, protocol) => RawKind::Ping,
        _ => return None,
    };
    Some((family, kind, flags | OpenFlags::RDWR))
}

/// Runs `f` on the socket of a descriptor.
fn with_socket<R>(fd: i32, f: impl FnOnce(&OpenFile, &SocketFile) -> Result<R>) -> Result<R> {
    let file = task::with_current(|task| task.process().file(fd))?;
    f(&file, SocketFile::of(&file)?)
}

/// socket(family, type, protocol)
///
/// # Errors
/// As in the manual.
pub fn sys_socket(args: &Args) -> Result<i64> {
    let (domain, wanted, protocol) = (args.uint(0), args.uint(1), args.int(2));
    if let Some((family, kind, flags)) = raw_kind_of(domain, wanted, protocol) {
        let socket = Socket::new_raw(family, kind, protocol)?;
        table::enter(&socket)?;
        return task::install(SocketFile::new(socket), flags).map(i64::from);
    }
    let (family, kind, flags) = kind_of(domain, wanted, protocol)?;
    let socket = match family {
        Family::Netlink => {
            let network = task::current().process().namespaces().network.number();
            Socket::new_netlink(Netlink::new(args.int(2), args.int(1) & 0xf, network)?)
        }
        Family::Packet => {
            let is_raw = wanted & 0xf == c::SOCK_RAW;
            Socket::new_packet(if is_raw { PacketKind::Raw } else { PacketKind::Cooked }, protocol)?
        }
        _ if is_lite(family, kind, protocol) => Socket::new_lite(family),
        _ => Socket::new(family, kind),
    };
    table::enter(&socket)?;
    task::install(SocketFile::new(socket), flags).map(i64::from)
}

/// socketpair(family, type, protocol, fds)
///
/// # Errors
/// As in the manual.
pub fn sys_socketpair(args: &Args) -> Result<i64> {
    let (family, kind, flags) = kind_of(args.uint(0), args.uint(1), args.int(2))?;
    if family != Family::Unix {
        return Err(Errno::EOPNOTSUPP);
    }
    let (one, other) = Socket::pair(kind);
    table::enter(&one)?;
    table::enter(&other)?;
    task::install_pair(UserPtr::new(args[3]), (SocketFile::new(one), flags), (SocketFile::new(other), flags))
}

fn length_at(args: &Args, index: usize) -> Result<usize> {
    usize::try_from(args.int(index)).map_err(|_| Errno::EINVAL)
}

/// bind(fd, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_bind(args: &Args) -> Result<i64> {
    with_socket(args.fd(0), |_, file| {
        let address = Address::read(file.socket.family(), args[1], length_at(args, 2)?)?;
        file.socket.bind(address).map(|()| 0)
    })
}

/// listen(fd, backlog)
///
/// # Errors
/// As in the manual.
pub fn sys_listen(args: &Args) -> Result<i64> {
    let backlog = usize::try_from(args.int(1)).unwrap_or(usize::MAX);
    with_socket(args.fd(0), |_, file| file.socket.listen(backlog).map(|()| 0))
}

/// connect(fd, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_connect(args: &Args) -> Result<i64> {
    with_socket(args.fd(0), |open, file| {
        let peer = exchange::read_peer(file, (args[1], length_at(args, 2)?))?;
        exchange::connect(file, peer.as_ref(), open.blocking()).map(|()| 0)
    })
}

fn accept(args: &Args, flags: OpenFlags) -> Result<i64> {
    with_socket(args.fd(0), |open, file| {
        // As on Linux, the connection is lost if the buffer for the peer's name is invalid.
        let tell = |peer: Option<&Address>, family| match args[1] {
            0 => Ok(()),
            at => Address::write(peer, family, at, UserPtr::new(args[2])),
        };
        exchange::accept(file, flags, open.blocking(), tell).map(i64::from)
    })
}

/// accept(fd, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_accept(args: &Args) -> Result<i64> {
    accept(args, OpenFlags::empty())
}

/// accept4(fd, address, length, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_accept4(args: &Args) -> Result<i64> {
    let flags = OpenFlags::from_bits_retain(args.uint(3));
    if (OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(flags) {
        accept(args, flags)
    } else {
        Err(Errno::EINVAL)
    }
}

/// getsockname(fd, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_getsockname(args: &Args) -> Result<i64> {
    with_socket(args.fd(0), |_, file| {
        let (address, family) = (file.socket.address(), file.socket.family());
        Address::write(address.as_ref(), family, args[1], UserPtr::new(args[2])).map(|()| 0)
    })
}

/// getpeername(fd, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_getpeername(args: &Args) -> Result<i64> {
    with_socket(args.fd(0), |_, file| {
        let (address, family) = (file.socket.peer_address()?, file.socket.family());
        Address::write(address.as_ref(), family, args[1], UserPtr::new(args[2])).map(|()| 0)
    })
}

/// shutdown(fd, how)
///
/// # Errors
/// As in the manual.
pub fn sys_shutdown(args: &Args) -> Result<i64> {
    with_socket(args.fd(0), |_, file| exchange::shutdown(file, args.uint(1)).map(|()| 0))
}

/// setsockopt(fd, level, name, value, length)
///
/// # Errors
/// As in the manual.
pub fn sys_setsockopt(args: &Args) -> Result<i64> {
    with_socket(args.fd(0), |_, file| {
        let length = length_at(args, 4)?;
        if let Some(raw) = &file.socket.raw
            && raw.set_option(args.uint(1), args.uint(2), args[3], length)?
        {
            return Ok(0);
        }
        if let Some(packet) = &file.socket.packet
            && packet.set_option(args.uint(1), args.uint(2), args[3], length)?
        {
            return Ok(0);
        }
        if file.socket.set_udp_option((args.uint(1), args.uint(2)), args[3], length)? {
            return Ok(0);
        }
        file.socket.set_option(args.uint(1), args.uint(2), args[3], length).map(|()| 0)
    })
}

/// getsockopt(fd, level, name, value, length)
///
/// # Errors
/// As in the manual.
pub fn sys_getsockopt(args: &Args) -> Result<i64> {
    with_socket(args.fd(0), |_, file| {
        if let Some(raw) = &file.socket.raw
            && raw.option(args.uint(1), args.uint(2), args[3], UserPtr::new(args[4]))?
        {
            return Ok(0);
        }
        if let Some(packet) = &file.socket.packet
            && packet.option(args.uint(1), args.uint(2), args[3], UserPtr::new(args[4]))?
        {
            return Ok(0);
        }
        file.socket.option(args.uint(1), args.uint(2), args[3], UserPtr::new(args[4])).map(|()| 0)
    })
}

/// sendto(fd, bytes, count, flags, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_sendto(args: &Args) -> Result<i64> {
    let to = (args[4], if args[4] == 0 { 0 } else { length_at(args, 5)? });
    let mut source = UserSlice::new(args[1], args.size(2));
    with_socket(args.fd(0), |open, file| {
        SentMessage::to(file, to, args.uint(3))?.send(file, &mut source, open.blocking())
    })
    .map(|count| count as i64)
}

fn send_message(fd: i32, header: &MessageHeader, flags: u32) -> Result<usize> {
    let mut source = Iovecs::read(header.vectors, header.vector_count as usize)?;
    with_socket(fd, |open, file| {
        SentMessage::read(file, header, flags)?.send(file, &mut source, open.blocking())
    })
}

/// sendmsg(fd, header, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_sendmsg(args: &Args) -> Result<i64> {
    let header = UserPtr::<MessageHeader>::new(args[1]).read()?;
    send_message(args.fd(0), &header, args.uint(2)).map(|count| count as i64)
}

/// recvfrom(fd, bytes, count, flags, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_recvfrom(args: &Args) -> Result<i64> {
    let flags = args.uint(3);
    let mut received = Received::default();
    let family = with_socket(args.fd(0), |open, file| {
        let mut sink = UserSlice::new(args[1], args.size(2));
        exchange::receive(file, &mut sink, (flags, open.blocking()), &mut received)?;
        Ok(file.socket.family())
    })?;
    if args[4] != 0 {
        let length = UserPtr::new(args[5]);
        match &received.from {
            Some(from) => Address::write(Some(from), family, args[4], length)?,
            // A connection's peer needs no name.
            None => length.write(&0)?,
        }
    }
    Ok(exchange::returned(&received, flags) as i64)
}

fn receive_message(fd: i32, at: UserPtr<MessageHeader>, flags: u32) -> Result<usize> {
    let message = ReceivedMessage::read(at, flags)?;
    with_socket(fd, |open, file| {
        let mut sink = message.buffers()?;
        message.receive(file, &mut sink, open.blocking(), &OwnMemory)
    })
}

/// recvmsg(fd, header, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_recvmsg(args: &Args) -> Result<i64> {
    receive_message(args.fd(0), UserPtr::new(args[1]), args.uint(2)).map(|count| count as i64)
}

/// Moves messages one by one until one fails. Returns the number of messages.
fn many(
    list: u64,
    count: usize,
    mut one: impl FnMut(UserPtr<MessageHeader>, usize) -> Result<usize>,
) -> Result<i64> {
    let mut done = 0;
    while done < count.min(MOST_MESSAGES) {
        let at = list.wrapping_add(done as u64 * MANY_BYTES);
        match one(UserPtr::new(at), done) {
            Ok(length) => UserPtr::new(at + size_of::<MessageHeader>() as u64).write(&(length as u32))?,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        done += 1;
    }
    Ok(done as i64)
}

/// sendmmsg(fd, headers, count, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_sendmmsg(args: &Args) -> Result<i64> {
    many(args[1], args.uint(2) as usize, |at, _| send_message(args.fd(0), &at.read()?, args.uint(3)))
}

/// recvmmsg(fd, headers, count, flags, timeout): the timeout is checked between messages.
///
/// # Errors
/// As in the manual.
pub fn sys_recvmmsg(args: &Args) -> Result<i64> {
    let timeout =
        UserPtr::<TimeSpec>::new(args[4]).read_optional()?.map(TimeSpec::nanoseconds).transpose()?;
    let deadline = timeout.map(|timeout| time::now().saturating_add(timeout));
    let flags = args.uint(3);
    many(args[1], args.uint(2) as usize, |at, done| {
        if done > 0 && deadline.is_some_and(|deadline| deadline <= time::now()) {
            return Err(Errno::EAGAIN);
        }
        let later = if done > 0 && flags & MSG_WAITFORONE != 0 { c::MSG_DONTWAIT } else { 0 };
        receive_message(args.fd(0), at, (flags & !MSG_WAITFORONE) | later)
    })
}
