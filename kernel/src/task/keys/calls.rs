//! add_key(2), request_key(2), keyctl(2).

use core::fmt::Write as _;

use arrayvec::ArrayString;
use freehold_collections::{Vec, reserve};

use super::call::{Call, Make, random, shown_owner};
use super::held;
use super::kind::{Description, KeyKind, KeyName, Payload};
use super::store::{ALL_RIGHTS, KeyRef, KeyTarget, NewKey, OWNER, POSSESSOR, Quota, Rights, Serial};
use crate::hw::PAGE;
use crate::syscall::Args;
use crate::task::userns::IdKind;
use crate::task::{self, Capability};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// The longest name of a kind, and the longest description, with the final NUL.
const MAX_KIND: usize = 32;
const MAX_DESCRIPTION: usize = 4096;
/// The longest payload.
const MAX_PAYLOAD: usize = (1 << 20) - 1;

/// Reads the name of a kind. Those that begin with a full stop are the kernel's own.
fn read_kind(address: u64) -> Result<Vec<u8>> {
    let name = user::bounded_string(address, MAX_KIND, Errno::EINVAL)?;
    match name.first() {
        None => Err(Errno::EINVAL),
        Some(b'.') => Err(Errno::EPERM),
        Some(_) => Ok(name),
    }
}
fn read_description(address: u64) -> Result<Description> {
    Ok(reserve::arc(user::bounded_string(address, MAX_DESCRIPTION, Errno::EINVAL)?))
}
fn read_payload(address: u64, length: usize) -> Result<Vec<u8>> {
    if length == 0 { Ok(Vec::new()) } else { user::read_vec(address, length) }
}

/// add_key(kind, description, payload, length, keyring)
///
/// # Errors
/// As in the manual.
pub fn sys_add_key(args: &Args) -> Result<i64> {
    let (length, ring) = (args.size(3), args.int(4));
    if length > MAX_PAYLOAD {
        return Err(Errno::EINVAL);
    }
    let kind = read_kind(args[0])?;
    let description = match args[1] {
        0 => reserve::arc(Vec::new()),
        address => read_description(address)?,
    };
    if description.first() == Some(&b'.') && kind.starts_with(b"keyring") {
        return Err(Errno::EPERM);
    }
    let payload = read_payload(args[2], length)?;
    let mut call = Call::begin()?;
    let ring = call.usable(ring, Make::Yes, Rights::WRITE)?;
    let kind = KeyKind::by_name(&kind)?;
    if call.keys.get(ring.serial)?.kind != KeyKind::Keyring {
        return Err(Errno::ENOTDIR);
    }
    if description.is_empty() {
        return Err(Errno::EINVAL);
    }
    kind.check(&description, &payload)?;
    add(&mut call, ring, (kind, description), payload).map(i64::from)
}

/// Adds a key to a keyring, or replaces the payload of the one of this name in it.
fn add(call: &mut Call, ring: KeyRef, name: KeyName, payload: Vec<u8>) -> Result<Serial> {
    let kind = name.0;
    let before = call.keys.find_in(ring.serial, &name)?.filter(|_| kind.is_updatable());
    let is_usable = |serial: Serial| {
        !matches!(call.keys.validate(serial, call.now), Err(Errno::EKEYREVOKED | Errno::ENOKEY))
    };
    if let Some(serial) = before.filter(|&serial| is_usable(serial)) {
        call.keys.check(KeyRef { serial, ..ring }, &call.caller, Rights::WRITE)?;
        call.keys.update(serial, Payload::Bytes(payload))?;
        return Ok(serial);
    }
    let mut possessor = Rights::VIEW | Rights::SEARCH | Rights::LINK | Rights::SETATTR;
    possessor.set(Rights::READ, kind.is_readable());
    possessor.set(Rights::WRITE, kind == KeyKind::Keyring || kind.is_updatable());
    let new = NewKey {
        kind,
        description: name.1,
        uid: call.caller.uid,
        gid: call.caller.gid,
        permissions: possessor.bits() << POSSESSOR | Rights::VIEW.bits() << OWNER,
        payload: if kind == KeyKind::Keyring { Payload::no_links() } else { Payload::Bytes(payload) },
    };
    let serial = call.keys.create(new, Quota::Kept, random)?;
    let linked = call.keys.link(ring.serial, serial);
    // The keyring holds it now.
    call.keys.release(serial);
    linked.map(|()| serial)
}

/// Seconds for which a key that could not be made is remembered (Linux: `key_negative_timeout`).
const NEGATIVE_LIFE: i64 = 60;

/// Returns the keyring for a key that request_key makes and whose keyring is not named (Linux:
/// `construct_get_dest_keyring`).
fn own_destination(call: &mut Call) -> Result<KeyRef> {
    let ring = match call.task.keyrings.destination() {
        0 => (1..=3).find_map(|number| call.resolve(-number, Make::No).ok()).ok_or(Errno::ENOKEY)?,
        number => call.resolve(-number, Make::No)?,
    };
    call.keys.check(ring, &call.caller, Rights::WRITE)?;
    Ok(ring)
}

/// Makes a key that says, for a minute, that there is none: no program makes keys on request, as on
/// a Linux without /sbin/request-key. Returns the error of the request.
fn remember_none(call: &mut Call, ring: Option<KeyRef>, name: KeyName) -> Result<Errno> {
    let ring = match ring {
        Some(ring) => ring,
        None => own_destination(call)?,
    };
    let serial = add(call, ring, name, Vec::new())?;
    call.keys.set_expiry(serial, Some(call.now + NEGATIVE_LIFE))?;
    Ok(Errno::ENOENT)
}

/// request_key(kind, description, information, keyring): no program makes keys, so the information
/// for it is not used.
///
/// # Errors
/// As in the manual. `ENOENT` where Linux would start a program that makes the key.
pub fn sys_request_key(args: &Args) -> Result<i64> {
    let kind = read_kind(args[0])?;
    let description = read_description(args[1])?;
    if args[2] != 0 {
        user::bounded_string(args[2], PAGE as usize, Errno::EINVAL)?;
    }
    let mut call = Call::begin()?;
    let ring = match args.int(3) {
        0 => None,
        ring => Some(call.usable(ring, Make::Yes, Rights::WRITE)?),
    };
    let name = (KeyKind::by_name(&kind).map_err(|_| Errno::ENOKEY)?, description);
    let found = match call.search_own(KeyTarget::Named(&name)) {
        Err(Errno::EAGAIN) if args[2] != 0 && name.0 != KeyKind::Keyring => {
            return Err(remember_none(&mut call, ring, name)?);
        }
        Err(Errno::EAGAIN | Errno::EKEYEXPIRED) => return Err(Errno::ENOKEY),
        found => found?,
    };
    if let Some(ring) = ring {
        call.keys.check(found, &call.caller, Rights::LINK)?;
        call.keys.link(ring.serial, found.serial)?;
    }
    Ok(found.serial.into())
}

/// keyctl(operation, …)
///
/// # Errors
/// As in the manual; `EOPNOTSUPP` for what needs a program that makes keys, cryptography, a
/// persistent keyring or another process' session.
#[cold]
pub fn sys_keyctl(args: &Args) -> Result<i64> {
    let id = args.int(1);
    match args.int(0) {
        0 => get_keyring(id, args.int(2)),
        1 => join_session(args[1]),
        2 => update(id, args[2], args.size(3)),
        3 => revoke(id),
        4 => give(id, args.uint(2), args.uint(3)),
        5 => set_permissions(id, args.uint(2)),
        6 => describe(id, args[2], args.size(3)),
        7 => clear(id),
        8 => link(id, args.int(2)),
        9 => unlink(id, args.int(2)),
        10 => search(id, args[2], args[3], args.int(4)),
        11 => read(id, args[2], args.size(3)),
        // INSTANTIATE, NEGATE, REJECT, INSTANTIATE_IOV: only such a program has the authority.
        12 | 13 | 19 | 20 => Err(Errno::EPERM),
        14 => set_destination(id),
        15 => set_timeout(id, args.uint(2)),
        16 => assume_authority(id),
        17 => security(id, args[2], args.size(3)),
        21 => invalidate(id),
        30 => change_ring(id, (args.int(2), args.int(3)), args.uint(4)),
        31 => capabilities(args[1], args.size(2)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn get_keyring(id: i32, make: i32) -> Result<i64> {
    let make = if make != 0 { Make::Yes } else { Make::No };
    let mut call = Call::begin()?;
    Ok(call.usable(id, make, Rights::SEARCH)?.serial.into())
}

fn join_session(name: u64) -> Result<i64> {
    let name = match name {
        0 => None,
        address => Some(read_description(address)?),
    };
    if name.as_ref().is_some_and(|name| name.first() == Some(&b'.')) {
        return Err(Errno::EPERM);
    }
    if name.as_ref().is_some_and(|name| name.is_empty()) {
        return Err(Errno::EINVAL);
    }
    Ok(Call::begin()?.join(name.as_ref())?.into())
}

fn update(id: i32, payload: u64, length: usize) -> Result<i64> {
    if length > PAGE as usize {
        return Err(Errno::EINVAL);
    }
    let payload = read_payload(payload, length)?;
    let mut call = Call::begin()?;
    let serial = call.usable(id, Make::No, Rights::WRITE)?.serial;
    let key = call.keys.get(serial)?;
    if !key.kind.is_updatable() {
        return Err(Errno::EOPNOTSUPP);
    }
    key.kind.check(&key.description, &payload)?;
    call.keys.update(serial, Payload::Bytes(payload))?;
    Ok(0)
}

fn revoke(id: i32) -> Result<i64> {
    let mut call = Call::begin()?;
    let key = match call.usable(id, Make::No, Rights::WRITE) {
        Err(Errno::EACCES) => call.usable(id, Make::No, Rights::SETATTR),
        found => found,
    }?;
    call.keys.revoke(key.serial)?;
    if call.keys.get(key.serial)?.kind == KeyKind::Keyring {
        return clear_ring(call, key);
    }
    Ok(0)
}

fn give(id: i32, uid: u32, gid: u32) -> Result<i64> {
    let asked = |kind, id| if id == u32::MAX { Ok(None) } else { task::kernel_id(kind, id).map(Some) };
    let (uid, gid) = (asked(IdKind::User, uid)?, asked(IdKind::Group, gid)?);
    if uid.is_none() && gid.is_none() {
        return Ok(0);
    }
    let is_admin = task::may(Capability::SysAdmin);
    let mut call = Call::begin()?;
    let serial = call.usable(id, Make::Yes, Rights::SETATTR)?.serial;
    let key = call.keys.get(serial)?;
    let is_allowed = is_admin
        || uid.is_none_or(|uid| uid == key.uid)
            && gid.is_none_or(|gid| gid == key.gid || call.caller.is_in(gid));
    if !is_allowed {
        return Err(Errno::EACCES);
    }
    let owner = (uid.unwrap_or(key.uid), gid.unwrap_or(key.gid));
    call.keys.give(serial, owner)?;
    Ok(0)
}

fn set_permissions(id: i32, permissions: u32) -> Result<i64> {
    if permissions & !ALL_RIGHTS != 0 {
        return Err(Errno::EINVAL);
    }
    let is_admin = task::may(Capability::SysAdmin);
    let mut call = Call::begin()?;
    let serial = call.usable(id, Make::Yes, Rights::SETATTR)?.serial;
    if !is_admin && call.keys.get(serial)?.uid != call.caller.uid {
        return Err(Errno::EACCES);
    }
    call.keys.set_permissions(serial, permissions)?;
    Ok(0)
}

/// Writes `bytes` to a program's buffer if all fit. Returns their number.
fn answer(bytes: &[u8], buffer: u64, length: usize) -> Result<i64> {
    if buffer != 0 && bytes.len() <= length {
        user::write_exact(buffer, bytes)?;
    }
    Ok(bytes.len() as i64)
}

fn describe(id: i32, buffer: u64, length: usize) -> Result<i64> {
    let mut text = Vec::new();
    {
        let mut call = Call::begin()?;
        let serial = call.usable(id, Make::No, Rights::VIEW)?.serial;
        let key = call.keys.get(serial)?;
        let (uid, gid) = shown_owner(key);
        let mut attributes = ArrayString::<64>::new();
        // A kind's name and three numbers fit.
        let _ = write!(attributes, "{};{uid};{gid};{:08x};", key.kind.name(), key.permissions);
        text.try_extend_from_slice(attributes.as_bytes())?;
        text.try_extend_from_slice(&key.description)?;
        text.try_push(0)?;
    }
    answer(&text, buffer, length)
}

fn clear(id: i32) -> Result<i64> {
    let mut call = Call::begin()?;
    let ring = call.usable(id, Make::Yes, Rights::WRITE)?;
    clear_ring(call, ring)
}

/// Removes all keys from a keyring.
#[cold]
fn clear_ring(mut call: Call, ring: KeyRef) -> Result<i64> {
    call.keys.hold(ring.serial)?;
    drop(call);
    held::clear(ring.serial).map(|()| 0)
}

fn link(id: i32, ring: i32) -> Result<i64> {
    let mut call = Call::begin()?;
    let ring = call.usable(ring, Make::Yes, Rights::WRITE)?;
    let key = call.usable(id, Make::Yes, Rights::LINK)?;
    call.keys.link(ring.serial, key.serial)?;
    Ok(0)
}

fn unlink(id: i32, ring: i32) -> Result<i64> {
    let mut call = Call::begin()?;
    let ring = call.usable(ring, Make::No, Rights::WRITE)?;
    let key = call.resolve(id, Make::No)?;
    call.keys.unlink(ring.serial, key.serial)?;
    Ok(0)
}

fn search(ring: i32, kind: u64, description: u64, to: i32) -> Result<i64> {
    let kind = read_kind(kind)?;
    let description = read_description(description)?;
    let mut call = Call::begin()?;
    let ring = call.usable(ring, Make::No, Rights::SEARCH)?;
    let to = match to {
        0 => None,
        to => Some(call.usable(to, Make::Yes, Rights::WRITE)?),
    };
    let name = (KeyKind::by_name(&kind).map_err(|_| Errno::ENOKEY)?, description);
    if call.keys.get(ring.serial)?.kind != KeyKind::Keyring {
        return Err(Errno::ENOTDIR);
    }
    let found = call.search_in(ring, KeyTarget::Named(&name));
    let found = found.map_err(|error| if error == Errno::EAGAIN { Errno::ENOKEY } else { error })?;
    if let Some(to) = to {
        call.keys.check(found, &call.caller, Rights::LINK)?;
        call.keys.link(to.serial, found.serial)?;
    }
    Ok(found.serial.into())
}

fn read(id: i32, buffer: u64, length: usize) -> Result<i64> {
    let bytes = {
        let mut call = Call::begin()?;
        let key = call.resolve(id, Make::No)?;
        call.keys.validate(key.serial, call.now)?;
        if call.keys.get(key.serial)?.is_negative() {
            return Err(Errno::ENOKEY);
        }
        // A key that the caller possesses can be read, also without the right to read it.
        if !key.possessed {
            call.keys.check(key, &call.caller, Rights::READ)?;
        }
        let content = call.keys.get(key.serial)?;
        if !content.kind.is_readable() {
            return Err(Errno::EOPNOTSUPP);
        }
        match &content.payload {
            Payload::Bytes(bytes) => bytes.try_clone()?,
            Payload::Links(_) => {
                let mut all = Vec::new();
                for serial in call.keys.list(key.serial)?.iter() {
                    all.try_extend_from_slice(&serial.to_ne_bytes())?;
                }
                all
            }
        }
    };
    answer(&bytes, buffer, length)
}

/// KEYCTL_SET_REQKEY_KEYRING: -1 changes nothing; 0 is the default, 1 to 5 the keyring of the
/// thread, the process, the session, the user, and the user's session.
fn set_destination(number: i32) -> Result<i64> {
    let mut call = Call::begin()?;
    match number {
        -1 => return Ok(call.task.keyrings.destination().into()),
        1 | 2 => drop(call.resolve(-number, Make::Yes)?),
        0 | 3..=5 => {}
        _ => return Err(Errno::EINVAL),
    }
    Ok(call.task.keyrings.set_destination(number).into())
}

fn set_timeout(id: i32, seconds: u32) -> Result<i64> {
    let mut call = Call::begin()?;
    let serial = call.usable(id, Make::Yes, Rights::SETATTR)?.serial;
    let expiry = (seconds > 0).then(|| call.now + i64::from(seconds));
    call.keys.set_expiry(serial, expiry)?;
    Ok(0)
}

/// There is no authority to assume; 0 lets it go.
fn assume_authority(id: i32) -> Result<i64> {
    match id {
        0 => Ok(0),
        ..0 => Err(Errno::EINVAL),
        _ => Err(Errno::ENOKEY),
    }
}

/// No security module labels keys: the label is empty.
fn security(id: i32, buffer: u64, length: usize) -> Result<i64> {
    Call::begin()?.usable(id, Make::No, Rights::VIEW)?;
    answer(b"\0", buffer, length)
}

fn invalidate(id: i32) -> Result<i64> {
    let mut call = Call::begin()?;
    let key = call.usable(id, Make::No, Rights::SEARCH)?;
    call.keys.invalidate(key.serial)?;
    drop(call);
    held::collect().map(|()| 0)
}

/// KEYCTL_MOVE, whose only flag is that a key of the same name must not be replaced.
fn change_ring(id: i32, (from, to): (i32, i32), flags: u32) -> Result<i64> {
    if flags > 1 {
        return Err(Errno::EINVAL);
    }
    let mut call = Call::begin()?;
    let key = call.usable(id, Make::Yes, Rights::LINK)?;
    let from = call.usable(from, Make::No, Rights::WRITE)?;
    let to = call.usable(to, Make::Yes, Rights::WRITE)?;
    if from.serial == to.serial {
        return Ok(0);
    }
    let content = call.keys.get(key.serial)?;
    let name = content.name();
    if !call.keys.is_linked(from.serial, key.serial) {
        return Err(Errno::ENOENT);
    }
    let replaced = call.keys.find_in(to.serial, &name)?;
    if flags == 1 && replaced.is_some() {
        return Err(Errno::EEXIST);
    }
    call.keys.link(to.serial, key.serial)?;
    call.keys.unlink(from.serial, key.serial)?;
    Ok(0)
}

/// KEYCTL_CAPABILITIES: this operation, big keys, invalidation, moves.
fn capabilities(buffer: u64, length: usize) -> Result<i64> {
    const BITS: [u8; 2] = [0x01 | 0x10 | 0x20 | 0x80, 0];
    if length > 0 {
        let known = BITS.len().min(length);
        user::write_exact(buffer, &BITS[..known])?;
        let zeroes = [0u8; 64];
        let mut at = known;
        while at < length {
            let count = (length - at).min(zeroes.len());
            UserPtr::<u8>::new(buffer).add(at).write_slice(&zeroes[..count])?;
            at += count;
        }
    }
    Ok(BITS.len() as i64)
}
