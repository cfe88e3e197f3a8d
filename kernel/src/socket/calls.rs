//! The socket system calls.

use linux_raw_sys::net as c;

use super::SocketFile;
use super::address::Address;
use super::beside::wishes::Follows;
use super::channel::{Ancillary, Manner, Patience, Received, Taking};
use super::endpoint::{SendTarget, Shutdown, Socket, SocketKind};
use super::family::Family;
use super::message::{self, Delivery, MessageHeader, Sent};
use super::netlink::Netlink;
use super::packet::PacketKind;
use super::ports::Protocol;
use super::raw::{self, RawKind};
use super::table;
use crate::fs::{Blocking, OnExec, OpenFile, OpenFlags};
use crate::syscall::Args;
use crate::task;
use crate::time::{self, TimeSpec};
use crate::user::{Iovecs, Sink, Source, UserPtr, UserSlice};
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
    let Some(socket) = file.file().downcast::<SocketFile>() else {
        file.check_not_path()?;
        return Err(Errno::ENOTSOCK);
    };
    f(&file, socket)
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
        let length = length_at(args, 2)?;
        if file.socket.is_unix_datagram() && Address::is_unspecified(args[1], length)? {
            file.socket.leave_peer();
            return Ok(0);
        }
        match Address::read(file.socket.family(), args[1], length)? {
            Some(address) => file.socket.connect(&address, file.send_patience(open.blocking()))?,
            None => file.socket.disconnect()?,
        }
        Ok(0)
    })
}

fn accept(args: &Args, flags: OpenFlags) -> Result<i64> {
    with_socket(args.fd(0), |open, file| {
        // The descriptor is reserved before the connection, because an accepted connection cannot
        // be returned. As on Linux, the connection is lost only if the buffer for the peer's name
        // is invalid.
        let process = task::current().process().clone();
        let files = process.files();
        let descriptor = files.promise(process.descriptor_limit())?;
        let accepted = file.socket.accept(file.receive_patience(open.blocking()))?;
        let (peer, family) = (accepted.peer_address().unwrap_or_default(), accepted.family());
        let accepted = OpenFile::new(SocketFile::new(accepted), None, flags | OpenFlags::RDWR)?;
        if args[1] != 0 {
            Address::write(peer.as_ref(), family, args[1], UserPtr::new(args[2]))?;
        }
        Ok(i64::from(descriptor.keep(accepted, OnExec::asked_by(flags))))
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
    with_socket(args.fd(0), |_, file| {
        let how = match args.uint(1) {
            c::SHUT_RD => Shutdown::Receive,
            c::SHUT_WR => Shutdown::Send,
            c::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::EINVAL),
        };
        file.socket.shutdown(how).map(|()| 0)
    })
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

fn blocking(open: &OpenFile, flags: u32) -> Blocking {
    if flags & c::MSG_DONTWAIT != 0 { Blocking::Never } else { open.blocking() }
}

/// Address and length of a program's sockaddr; address 0 means none.
type NameAt = (u64, usize);

fn send(
    fd: i32,
    source: &mut dyn Source,
    (name, length): NameAt,
    flags: u32,
    beside: impl FnOnce(&Socket) -> Result<Sent>,
) -> Result<usize> {
    with_socket(fd, |open, file| {
        if flags & c::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let patience = file.send_patience(blocking(open, flags));
        let to = if name == 0 { None } else { Address::read(file.socket.family(), name, length)? };
        let (ancillary, mut wishes) = beside(&file.socket)?;
        if flags & c::MSG_MORE != 0 && file.socket.is_udp() {
            wishes.get_or_insert_default().follows = Follows::More;
        }
        let target = SendTarget { address: to.as_ref(), wishes: wishes.as_ref() };
        let sent = file.socket.send(source, ancillary, target, patience);
        if flags & c::MSG_NOSIGNAL == 0 {
            file.signal_broken(&sent);
        }
        sent
    })
}

fn nothing_beside(_: &Socket) -> Result<Sent> {
    Ok((Ancillary::unsigned(), None))
}

/// sendto(fd, bytes, count, flags, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_sendto(args: &Args) -> Result<i64> {
    let to = (args[4], if args[4] == 0 { 0 } else { length_at(args, 5)? });
    let mut source = UserSlice::new(args[1], args.size(2));
    send(args.fd(0), &mut source, to, args.uint(3), nothing_beside).map(|count| count as i64)
}

fn send_message(fd: i32, header: &MessageHeader, flags: u32) -> Result<usize> {
    let to = (header.name, header.name_length as usize);
    let mut source = Iovecs::read(header.vectors, header.vector_count as usize)?;
    send(fd, &mut source, to, flags, |socket| message::read_control(socket, header))
}

/// sendmsg(fd, header, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_sendmsg(args: &Args) -> Result<i64> {
    let header = UserPtr::<MessageHeader>::new(args[1]).read()?;
    send_message(args.fd(0), &header, args.uint(2)).map(|count| count as i64)
}

/// Handles a request for urgent data or for queued errors. There are never any.
///
/// # Errors
/// As on Linux: `EAGAIN` for the errors of IP sockets, which other sockets do not queue; `EINVAL`
/// for a TCP stream's urgent data, `EOPNOTSUPP` for that of other sockets.
#[cold]
fn check_special(file: &SocketFile, flags: u32) -> Result<()> {
    let is_inet = file.socket.family().is_ip();
    if is_inet && flags & c::MSG_ERRQUEUE != 0 {
        return Err(Errno::EAGAIN);
    }
    match flags & c::MSG_OOB != 0 {
        true if is_inet && file.socket.kind() == SocketKind::Stream => Err(Errno::EINVAL),
        true => Err(Errno::EOPNOTSUPP),
        false => Ok(()),
    }
}

/// Receives, and for MSG_WAITALL repeats that until all bytes have arrived. The result goes to
/// `received`, which is empty before.
#[inline]
fn receive(
    open: &OpenFile,
    file: &SocketFile,
    sink: &mut dyn Sink,
    flags: u32,
    received: &mut Received,
) -> Result<()> {
    if flags & (c::MSG_OOB | c::MSG_ERRQUEUE) != 0 {
        check_special(file, flags)?;
    }
    let taking = if flags & c::MSG_PEEK != 0 { Taking::Peek } else { Taking::Take };
    let patience = file.receive_patience(blocking(open, flags));
    let mut nowhere = Discard(sink.remaining());
    let drops = flags & c::MSG_TRUNC != 0 && file.socket.is_tcp();
    let sink = if drops { &mut nowhere } else { sink };
    file.socket.receive(sink, Manner { taking, patience }, received)?;
    if flags & c::MSG_WAITALL != 0 && taking == Taking::Take && file.socket.kind() == SocketKind::Stream {
        receive_rest(file, sink, patience, received);
    }
    Ok(())
}

/// Receives more of a stream, up to files, until the sink is full or the next data cannot be added.
#[cold]
fn receive_rest(file: &SocketFile, sink: &mut dyn Sink, patience: Patience, received: &mut Received) {
    while sink.remaining() > 0 && received.ancillary.files.is_empty() {
        let before = received.count;
        if file.socket.receive(sink, Manner::take(patience), received).is_err() || received.count == before {
            break;
        }
    }
}

/// A sink for bytes that a program drops: MSG_TRUNC of TCP. Its field is the number of bytes that
/// still fit.
struct Discard(usize);

impl Sink for Discard {
    fn remaining(&self) -> usize {
        self.0
    }

    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.0);
        self.0 -= count;
        count
    }
}

/// Returns the return value of a receive: with MSG_TRUNC the message's full length.
fn returned(received: &Received, flags: u32) -> usize {
    if flags & c::MSG_TRUNC != 0 { received.length } else { received.count }
}

/// recvfrom(fd, bytes, count, flags, address, length)
///
/// # Errors
/// As in the manual.
pub fn sys_recvfrom(args: &Args) -> Result<i64> {
    let flags = args.uint(3);
    let mut received = Received::default();
    let family = with_socket(args.fd(0), |open, file| {
        receive(open, file, &mut UserSlice::new(args[1], args.size(2)), flags, &mut received)?;
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
    Ok(returned(&received, flags) as i64)
}

fn receive_message(fd: i32, at: UserPtr<MessageHeader>, flags: u32) -> Result<usize> {
    let mut header = at.read()?;
    let mut received = Received::default();
    let (family, delivery, controls) = with_socket(fd, |open, file| {
        let mut sink = Iovecs::read(header.vectors, header.vector_count as usize)?;
        receive(open, file, &mut sink, flags, &mut received)?;
        let delivery = Delivery {
            credentials: file.socket.channel().names_senders(),
            on_exec: if flags & c::MSG_CMSG_CLOEXEC != 0 { OnExec::Close } else { OnExec::Keep },
        };
        let told = file.socket.told_beside();
        let mut controls = told.controls(received.notes.as_ref());
        told.add_left(&mut controls, || file.socket.channel().left());
        Ok((file.socket.family(), delivery, controls))
    })?;
    let result = returned(&received, flags);
    header.flags = flags & c::MSG_CMSG_CLOEXEC;
    if received.length > received.count {
        header.flags |= c::MSG_TRUNC;
    }
    if header.name != 0 {
        header.name_length = match &received.from {
            Some(from) => {
                Address::write_bounded(Some(from), family, header.name, header.name_length as usize)?
            }
            None => 0,
        };
    }
    let (length, truncated) =
        message::write_control(&header, (received.ancillary, controls.as_ref()), delivery)?;
    header.control_length = length;
    header.flags |= truncated;
    header.write_result(at)?;
    Ok(result)
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
