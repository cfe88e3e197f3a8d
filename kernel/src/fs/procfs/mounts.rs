//! Mounts as /proc/PID/mounts and mountinfo show them.

use freehold_collections::{Arc, Vec};

use crate::fs::device::split_device;
use crate::fs::generated::Text;
use crate::fs::mount::{Mount, MountFlags};
use crate::fs::path::{Path, Reach};
use crate::task::Process;
use crate::{Errno, Result};

/// Writes blank, tab, line feed and backslash as octal escapes, which getmntent(3) undoes.
fn escape(out: &mut Text, text: &[u8]) {
    for &byte in text {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => write!(out, "\\{byte:03o}"),
            byte => out.push(&[byte]),
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

/// Every mount of the process' namespace that can be reached from its root, with the path of its
/// mount point there.
fn visible(process: &Process) -> Result<Vec<(Arc<Mount>, Vec<u8>)>> {
    let (mut found, root) = (Vec::new(), &process.fs().root());
    for mount in process.namespaces().mount.root().tree()? {
        let place = Path::root_of(mount.clone()).describe(root)?;
        if place.reach == Reach::Inside {
            found.try_push((mount, place.text))?;
        }
    }
    Ok(found)
}

/// /proc/PID/mounts.
pub fn mounts(out: &mut Text, process: &Process) -> Result<()> {
    for (mount, place) in visible(process)? {
        let fs = mount.file_system();
        escape(out, mount.source());
        out.push(b" ");
        escape(out, &place);
        write!(out, " {} ", fs.name());
        options(out, mount.flags());
        fs.show_options(out).map_err(|_| Errno::ENOMEM)?;
        out.push(b" 0 0\n");
    }
    Ok(())
}

/// /proc/PID/mountinfo.
pub fn mountinfo(out: &mut Text, process: &Process) -> Result<()> {
    for (mount, place) in visible(process)? {
        let fs = mount.file_system();
        let parent = mount.mountpoint().map_or(mount.id(), |below| below.mount.id());
        let (major, minor) = split_device(fs.device());
        // A bind mount shows a path within its file system.
        let whole = Path { mount: mount.clone(), node: fs.root(), entry: None };
        let part = Path::root_of(mount.clone()).describe(&whole)?;
        let part = if part.reach == Reach::Inside { part.text } else { Vec::try_from_slice(b"/")? };
        write!(out, "{} {parent} {major}:{minor} ", mount.id());
        escape(out, &part);
        out.push(b" ");
        escape(out, &place);
        out.push(b" ");
        options(out, mount.flags());
        write!(out, " - {} ", fs.name());
        escape(out, mount.source());
        let access = if mount.flags().contains(MountFlags::RDONLY) { "ro" } else { "rw" };
        write!(out, " {access}");
        fs.show_options(out).map_err(|_| Errno::ENOMEM)?;
        out.push(b"\n");
    }
    Ok(())
}
