//! Mounts as /proc/PID/mounts and mountinfo show them.

use freehold_collections::{Arc, Map, Vec, reserve::ArcMethods};

use crate::fs::device::split_device;
use crate::fs::generated::Text;
use crate::fs::mount::{Mount, MountFlags};
use crate::fs::path::{Description, Path, Reach};
use crate::fs::walk::PATH_MAX;
use crate::task::Process;
use crate::{Errno, Result};

/// Writes text with blank, tab, line feed and backslash as octal escapes, which getmntent(3)
/// decodes.
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

/// Every mount of the process' namespace that is reachable from its root, with the path of its
/// mount point from there.
fn visible(process: &Process) -> Result<Vec<(Arc<Mount>, Vec<u8>)>> {
    let (mut found, root) = (Vec::new(), &process.fs().root());
    // The indexes in `found`, by the mounts' numbers. A mount comes after its parent.
    let mut places = Map::new();
    for mount in process.namespaces().mount.root().tree()? {
        let text = match mount.mountpoint() {
            _ if mount.is_same(&root.mount) => root.is_mount_root().then(|| joined(b"/", b"/")),
            None => None,
            Some(below) if below.mount.is_same(&root.mount) => {
                let place = described(&below, root)?;
                place.filter(|place| place.reach == Reach::Inside).map(|place| Ok(place.text))
            }
            Some(below) => {
                let place = described(&below, &Path::root_of(below.mount.clone()))?;
                let place = place.filter(|place| place.reach == Reach::Inside);
                place.zip(places.get(&below.mount.id())).map(|(place, &at): (_, &usize)| {
                    let (_, above): &(_, Vec<u8>) = &found[at];
                    joined(above, &place.text)
                })
            }
        };
        // A mount whose path is too long is not reachable.
        if let Some(text) = text.filter(|text| text.as_ref().map_or(true, |text| text.len() < PATH_MAX)) {
            places.try_insert(mount.id(), found.len())?;
            found.try_push((mount, text?))?;
        }
    }
    Ok(found)
}

/// Describes a place; `None` if its path is too long.
fn described(place: &Path, root: &Path) -> Result<Option<Description>> {
    match place.describe(root) {
        Err(Errno::ENAMETOOLONG) => Ok(None),
        described => described.map(Some),
    }
}

/// Joins the path `text` to the path `above` of the tree in which it begins.
fn joined(above: &[u8], text: &[u8]) -> Result<Vec<u8>> {
    let mut whole = Vec::try_from_slice(if above == b"/" || text == b"/" { b"" } else { above })?;
    whole.try_extend_from_slice(if text == b"/" { above } else { text })?;
    Ok(whole)
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
        // For a bind mount, shows a path within its file system.
        let part = Path::root_of(mount.clone()).within_file_system()?;
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
