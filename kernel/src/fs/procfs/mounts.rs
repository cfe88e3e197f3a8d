//! Mounts as /proc/PID/mounts and mountinfo show them.

use freehold_collections::{Arc, Vec, reserve::ArcMethods as _};

use crate::fs::device::split_device;
use crate::fs::generated::{More, PART, Parts, Text};
use crate::fs::mount::{Mount, MountCursor, MountFlags};
use crate::fs::namespace::{self, MountNamespace};
use crate::fs::path::{Path, Reach};
use crate::{Errno, Result, sched};

/// Writes text with blank, tab, line feed and backslash as octal escapes, which getmntent(3)
/// decodes.
fn escape(out: &mut Text, text: &[u8]) {
    let is_special = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\\');
    for run in text.chunk_by(|one, other| !is_special(one) && !is_special(other)) {
        match run {
            &[byte] if is_special(&byte) => write!(out, "\\{byte:03o}"),
            run => out.push(run),
        }
    }
}

fn options(out: &mut Text, flags: MountFlags) {
    out.push(if flags.contains(MountFlags::RDONLY) { b"ro" } else { b"rw" });
    for (flag, name) in [
        (MountFlags::NOSUID, ",nosuid"),
        (MountFlags::NODEV, ",nodev"),
        (MountFlags::NOEXEC, ",noexec"),
        (MountFlags::NOATIME, ",noatime"),
        (MountFlags::NODIRATIME, ",nodiratime"),
    ] {
        if flags.contains(flag) {
            out.push(name.as_bytes());
        }
    }
    if !flags.contains(MountFlags::NOATIME) {
        out.push(b",relatime");
    }
}

/// The form in which mounts are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountForm {
    /// /proc/PID/mounts
    Mounts,
    /// /proc/PID/mountinfo
    Mountinfo,
}

/// The mounts of a namespace that can be reached from `root`, a record for each. A program can have
/// any number of mounts, and any number of open lists.
pub struct MountRecords {
    pub form: MountForm,
    pub namespace: Arc<MountNamespace>,
    pub root: Path,
    pub cursor: MountCursor,
}

impl Parts for MountRecords {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        loop {
            sched::checkpoint()?;
            // While this refers to a mount, an unmount would find it in use.
            let _unchanged = namespace::change()?;
            let Some(mount) = self.cursor.next(&self.namespace.root())? else { return Ok(More::No) };
            let Some(place) = place(&mount, &self.root)? else { continue };
            match self.form {
                MountForm::Mounts => mounts(out, &mount, &place)?,
                MountForm::Mountinfo => mountinfo(out, &mount, &place)?,
            }
            if out.length() >= PART {
                return Ok(More::Yes);
            }
        }
    }
}

/// The path of the place where a mount is, as seen from `root`; `None` for a mount that cannot be
/// reached from there, also because its path is too long.
fn place(mount: &Arc<Mount>, root: &Path) -> Result<Option<Vec<u8>>> {
    if mount.is_same(&root.mount) {
        return if root.is_mount_root() { Ok(Some(Vec::try_from_slice(b"/")?)) } else { Ok(None) };
    }
    let Some(below) = mount.mountpoint() else { return Ok(None) };
    match below.describe(root) {
        Ok(place) => Ok((place.reach == Reach::Inside).then_some(place.text)),
        Err(Errno::ENAMETOOLONG) => Ok(None),
        Err(error) => Err(error),
    }
}

fn mounts(out: &mut Text, mount: &Arc<Mount>, place: &[u8]) -> Result<()> {
    let fs = mount.file_system();
    escape(out, mount.source());
    out.push(b" ");
    escape(out, place);
    write!(out, " {} ", fs.name());
    options(out, mount.flags());
    fs.show_options(out).map_err(|_| Errno::ENOMEM)?;
    out.push(b" 0 0\n");
    Ok(())
}

fn mountinfo(out: &mut Text, mount: &Arc<Mount>, place: &[u8]) -> Result<()> {
    let fs = mount.file_system();
    let parent = mount.mountpoint().map_or(mount.id(), |below| below.mount.id());
    let (major, minor) = split_device(fs.device());
    // For a bind mount, shows a path within its file system.
    let part = Path::root_of(mount.clone()).within_file_system()?;
    write!(out, "{} {parent} {major}:{minor} ", mount.id());
    escape(out, &part);
    out.push(b" ");
    escape(out, place);
    out.push(b" ");
    options(out, mount.flags());
    write!(out, " - {} ", fs.name());
    escape(out, mount.source());
    let access = if mount.flags().contains(MountFlags::RDONLY) { "ro" } else { "rw" };
    write!(out, " {access}");
    fs.show_options(out).map_err(|_| Errno::ENOMEM)?;
    out.push(b"\n");
    Ok(())
}
