//! Writing /proc/PID/{uid_map,gid_map,setgroups}: the rules of user_namespaces(7).
//!
//! Two parties need the right, the task that opened the file and the caller that writes. Otherwise
//! a task could trick a program with more rights into writing to an open file. One writer claims a
//! map and then publishes it as a whole: readers see none or all of it.
//!
//! Callers: the files in /proc, task context.

use core::sync::atomic::Ordering;

use super::id_map::{self, IdMap};
use super::{IdKind, IdRange, UserNs};
use crate::task::capabilities::Capability;
use crate::task::credentials::Credentials;
use crate::{Errno, Result};

impl UserNs {
    /// Sets a map from the text that `writer` writes to a file that `opener` opened.
    ///
    /// # Errors
    /// `EPERM` if the map has been set, or if the two lack the right; `EINVAL`, `ENOMEM`.
    pub fn write_map(
        &self,
        kind: IdKind,
        text: &[u8],
        writer: &Credentials,
        opener: &Credentials,
    ) -> Result<()> {
        let (Some(written), Some(parent)) = (self.map(kind), self.parent()) else { return Err(Errno::EPERM) };
        if opener.user_ns != *self && opener.user_ns != *parent {
            return Err(Errno::EPERM);
        }
        if written.map.is_completed() || !opener.may_in(self, Capability::SysAdmin) {
            return Err(Errno::EPERM);
        }
        let mut ranges = id_map::parse(text)?;
        // Overlaps are detected in the IDs that the program wrote.
        IdMap::new(&ranges)?;
        if !self.may_map(parent, kind, &ranges, [writer, opener]) {
            return Err(Errno::EPERM);
        }
        for range in ranges.iter_mut() {
            let outside = match parent.map(kind) {
                None => Some(range.outside),
                Some(above) => above.map.get().and_then(|map| map.outside_of_all(range.outside, range.count)),
            };
            range.outside = outside.ok_or(Errno::EPERM)?;
        }
        let map = IdMap::new(&ranges)?;
        if written.is_claimed.swap(true, Ordering::AcqRel) {
            return Err(Errno::EPERM);
        }
        written.map.call_once(|| map);
        Ok(())
    }

    /// Whether the writer and the opener may set this map (Linux: `new_idmap_permitted` and
    /// `verify_root_map`, kernel/user_namespace.c).
    fn may_map(
        &self,
        parent: &UserNs,
        kind: IdKind,
        ranges: &[IdRange],
        [writer, opener]: [&Credentials; 2],
    ) -> bool {
        let maps_root = ranges.iter().any(|range| range.outside == 0);
        if kind == IdKind::User && maps_root {
            let allowed = if opener.user_ns == *self {
                self.0.as_ref().is_some_and(|nested| nested.maker_set_file_capabilities)
            } else {
                opener.may_in(parent, Capability::SetFcap)
            };
            if !allowed {
                return false;
            }
        }
        // A process may map its own ID without any right. For a group this holds only if membership
        // cannot be dropped.
        if let [IdRange { outside, count: 1, .. }] = *ranges
            && self.owner() == opener.euid
        {
            let own = match kind {
                IdKind::User => opener.euid,
                IdKind::Group => opener.egid,
            };
            let gives_up = kind == IdKind::Group && self.allows_set_groups();
            if parent.kernel_id(kind, outside) == Some(own) && !gives_up {
                return true;
            }
        }
        let capability = if kind == IdKind::User { Capability::SetUid } else { Capability::SetGid };
        writer.may_in(parent, capability) && opener.may_in(parent, capability)
    }

    /// Sets /proc/PID/setgroups to "allow" or "deny".
    ///
    /// # Errors
    /// `EPERM` if it was denied before, or if groups have a map already; `EINVAL`.
    pub fn write_set_groups(&self, text: &[u8]) -> Result<()> {
        let allow = match text.trim_ascii_end() {
            _ if text.len() >= 8 => return Err(Errno::EINVAL),
            b"allow" => true,
            b"deny" => false,
            _ => return Err(Errno::EINVAL),
        };
        let Some(nested) = &self.0 else { return if allow { Ok(()) } else { Err(Errno::EPERM) } };
        if allow {
            return if self.allows_set_groups() { Ok(()) } else { Err(Errno::EPERM) };
        }
        if nested.groups.map.is_completed() {
            return Err(Errno::EPERM);
        }
        nested.may_set_groups.store(false, Ordering::Relaxed);
        Ok(())
    }
}
