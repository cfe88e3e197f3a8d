//! /proc/keys: the keys that the reader may see, and /proc/key-users: the users' quotas, which
//! /proc/sys/kernel/keys limits. Both are written in parts.

use core::marker::PhantomData;

use freehold_collections::{Arc, Box, reserve};

use super::settings::parse_number;
use crate::Result;
use crate::fs::generated::{Generate, More, PART, Parts, Text};
use crate::fs::pseudo::PseudoDir;
use crate::task::keys::call::{Call, shown_owner};
use crate::task::keys::kind::{KeyKind, Payload};
use crate::task::keys::limits::{self, KeyQuota};
use crate::task::keys::store::{Key, KeyRef, KeyTarget, Rights, Serial};
use crate::task::shown_ids;

/// Adds both, and the limits, to `root`.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    root.generated("keys", 0o444, KeyFile::<KeyLines>(PhantomData));
    root.generated("key-users", 0o444, KeyFile::<UserLines>(PhantomData));
    let settings = root.dirs("sys/kernel/keys");
    let all = [
        ("maxkeys", &limits::MAX_KEYS),
        ("maxbytes", &limits::MAX_BYTES),
        ("root_maxkeys", &limits::ROOT_MAX_KEYS),
        ("root_maxbytes", &limits::ROOT_MAX_BYTES),
    ];
    for (name, quota) in all {
        settings.generated(name, 0o644, quota);
    }
}

impl Generate for &'static KeyQuota {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", self.get());
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        self.set(parse_number(bytes)?);
        Ok(())
    }
}

struct KeyFile<T>(PhantomData<fn() -> T>);

impl<T: Parts + Default + 'static> Generate for KeyFile<T> {
    fn show(&self, _text: &mut Text) -> Result<()> {
        Ok(())
    }
    fn parts(&self) -> Option<Box<dyn Parts>> {
        Some(reserve::boxed(T::default()))
    }
}

/// The lines of /proc/keys from a key on.
#[derive(Default)]
struct KeyLines(Serial);

impl Parts for KeyLines {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        let mut call = Call::begin()?;
        while out.length() < PART {
            let Some((serial, _)) = call.keys.first_from(self.0) else { return Ok(More::No) };
            self.0 = serial + 1;
            let possessed = call.search_own(KeyTarget::Key(serial)).is_ok();
            let key = KeyRef { serial, possessed };
            if call.keys.check(key, &call.caller, Rights::VIEW).is_ok() {
                line(out, serial, call.keys.get(serial)?, call.now);
            }
        }
        Ok(More::Yes)
    }
}

fn line(out: &mut Text, serial: Serial, key: &Key, now: i64) {
    let flag = |is_set, letter| if is_set { letter } else { '-' };
    write!(out, "{serial:08x} I{}-Q--{} ", flag(key.revoked, 'R'), flag(key.is_invalid(), 'i'));
    write!(out, "{:5} ", key.holders());
    match key.expiry {
        None => write!(out, "perm "),
        Some(end) if end <= now => write!(out, "expd "),
        Some(end) => {
            let left = (end - now) as u64;
            let units = [(60, 1, 's'), (3600, 60, 'm'), (86_400, 3600, 'h'), (604_800, 86_400, 'd')];
            let (_, length, unit) =
                units.into_iter().find(|&(most, ..)| left < most).unwrap_or((0, 604_800, 'w'));
            write!(out, "{:3}{unit} ", left / length);
        }
    }
    let (uid, gid) = shown_owner(key);
    write!(out, "{:08x} {:5} {:5} {:<9} ", key.permissions, uid as i32, gid as i32, key.kind.name());
    out.push(&key.description);
    match &key.payload {
        Payload::Links(links) if links.is_empty() => write!(out, ": empty"),
        Payload::Links(links) => write!(out, ": {}", links.len()),
        Payload::Bytes(_) if key.kind == KeyKind::Logon => {}
        Payload::Bytes(bytes) => write!(out, ": {}", bytes.len()),
    }
    writeln!(out);
}

/// The lines of /proc/key-users from a user on.
#[derive(Default)]
struct UserLines(u64);

impl Parts for UserLines {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        let call = Call::begin()?;
        while out.length() < PART {
            let from = u32::try_from(self.0).ok();
            let Some((user, own)) = from.and_then(|from| call.keys.first_user_from(from)) else {
                return Ok(More::No);
            };
            self.0 = u64::from(user) + 1;
            let (most_keys, most_bytes) = limits::of(user);
            let (shown, count, bytes) = (shown_ids(user, 0).0, own.keys, own.bytes);
            writeln!(out, "{shown:5}: {count:5} {count}/{count} {count}/{most_keys} {bytes}/{most_bytes}");
        }
        Ok(More::Yes)
    }
}
