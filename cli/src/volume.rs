//! `-v HOST:GUEST[:ro|rw|copy]`: files and folders of the host at places of the guest.
//!
//! A folder is *shared*: the guest sees its present state at any time, through virtio-9p, and QEMU
//! serves nothing beside it. A file is copied into the image, since QEMU shares folders only. A
//! folder is copied, too, if a run has to repeat, and for a guest without our driver.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::print;
use crate::qemu::share::{FolderShare, ShareAccess, ShareOwners};
use crate::{Result, image, linux};

/// Whether folders can be shared with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderSharing {
    /// Folders can be shared.
    Possible,
    /// Folders are copied; why.
    Copies(&'static str),
}

/// The user's choice for a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The user gave no mode.
    Default,
    ReadOnly,
    ReadWrite,
    Copy,
}

/// A checked volume.
#[derive(Debug)]
pub struct Volume {
    /// Path on the host.
    pub host: PathBuf,
    /// Path in the guest.
    pub guest: PathBuf,
    /// The guest's access to the folder itself; `None`: it has a copy.
    pub shared: Option<ShareAccess>,
}

/// Parses and checks all volumes of a command line.
pub fn parse_all(list: &[OsString], sharing: FolderSharing) -> Result<Vec<Volume>> {
    let volumes = list.iter().map(|text| parse(text, sharing)).collect::<Result<Vec<_>>>()?;
    let mut seen = std::collections::BTreeSet::new();
    if let Some(twice) = volumes.iter().find(|volume| !seen.insert(&volume.guest)) {
        return Err(Failure::new(
            format!(
                "-v {}:{}: another -v has that place in the VM",
                twice.host.display(),
                twice.guest.display()
            ),
            "name another place for one of them",
        ));
    }
    let names_no_mode = |text: &OsString| split_mode(text.as_bytes()).1 == Mode::Default;
    if list.iter().zip(&volumes).any(|(text, volume)| volume.shared.is_some() && names_no_mode(text)) {
        tell_once();
    }
    Ok(volumes)
}

/// Returns the folders that QEMU shares, in their order.
pub fn shares(volumes: &[Volume]) -> Vec<FolderShare> {
    let share = |volume: &Volume| {
        let access = volume.shared?;
        let (host, guest) = (volume.host.clone(), volume.guest.clone());
        Some(FolderShare { host, guest, access, owners: ShareOwners::Host })
    };
    volumes.iter().filter_map(share).collect()
}

fn parse(text: &OsString, sharing: FolderSharing) -> Result<Volume> {
    let (places, mode) = split_mode(text.as_bytes());
    let colon = places.iter().rposition(|&byte| byte == b':');
    let Some(at) = colon.filter(|&at| at > 0 && at + 1 < places.len()) else {
        return Err(Failure::new(format!("-v {}: not HOST:GUEST", text.display()), "-v ./data:/data"));
    };
    let (host, last) = (&places[..at], &places[at + 1..]);
    if !last.contains(&b'/') && host.windows(2).any(|two| two == b":/") {
        return Err(Failure::new(
            format!("-v {}: {} is no mode", text.display(), OsStr::from_bytes(last).display()),
            "ro, rw or copy",
        ));
    }
    let host = PathBuf::from(OsStr::from_bytes(host));
    let guest = crate::run::guest_path("-v", Path::new(OsStr::from_bytes(last)))?;
    let meta = fs::metadata(&host).map_err(|error| {
        let shown = host.display();
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::new(format!("-v {shown}: no such file or folder on the host"), "")
            }
            _ => Failure::new(format!("-v {shown}: {error}"), ""),
        }
    })?;
    if guest == Path::new("/") {
        return Err(Failure::new(
            format!("-v {}: / is the guest's root", text.display()),
            "--root DIR uses a tree of the host as the root",
        ));
    }
    if !image::can_hold(&meta) {
        return Err(Failure::new(
            format!("-v {}: a VM cannot use a socket or a device of the host", host.display()),
            "--disk FILE gives it a disk, -p and --net a network",
        ));
    }
    let shared = shared(&host, meta.is_dir(), mode, sharing)?;
    Ok(Volume { host, guest, shared })
}

/// Splits off the mode after the last colon, where that text is a mode.
fn split_mode(text: &[u8]) -> (&[u8], Mode) {
    let modes = [(&b":ro"[..], Mode::ReadOnly), (b":rw", Mode::ReadWrite), (b":copy", Mode::Copy)];
    for (suffix, mode) in modes {
        if let Some(places) = text.strip_suffix(suffix) {
            return (places, mode);
        }
    }
    (text, Mode::Default)
}

fn shared(host: &Path, is_folder: bool, mode: Mode, sharing: FolderSharing) -> Result<Option<ShareAccess>> {
    let shown = host.display();
    let (access, word) = match mode {
        Mode::Copy => return Ok(None),
        Mode::Default => (ShareAccess::Read, ""),
        Mode::ReadOnly => (ShareAccess::Read, ":ro"),
        Mode::ReadWrite => (ShareAccess::Write, ":rw"),
    };
    if !is_folder && access == ShareAccess::Write {
        return Err(Failure::new(
            format!("-v {shown}:rw: only folders can be written to in their place"),
            "share the folder that has the file",
        ));
    }
    if !is_folder {
        return Ok(None);
    }
    if let FolderSharing::Copies(why) = sharing {
        if mode != Mode::Default {
            return Err(Failure::new(
                format!("-v {shown}: {why} has copies only"),
                format!("leave {word} out"),
            ));
        }
        return Ok(None);
    }
    fs::read_dir(host).map_err(|error| Failure::new(format!("-v {shown}: {error}"), ""))?;
    if access == ShareAccess::Write {
        rustix::fs::access(host, rustix::fs::Access::WRITE_OK).map_err(|error| {
            Failure::new(format!("-v {shown}:rw: {error}"), "leave :rw out to have it read-only")
        })?;
    }
    Ok(Some(access))
}

/// Tells each user once about changed behaviour.
fn tell_once() {
    let Ok(folder) = linux::cache_folder() else { return };
    let mark = folder.join("volumes-are-shared");
    let is_new = fs::create_dir_all(&folder).is_ok()
        && fs::OpenOptions::new().write(true).create_new(true).open(mark).is_ok();
    if is_new {
        print::stderr(
            "freehold: -v HOST:GUEST shows a folder as it is on the host and read-only; it was a copy before, which \
             HOST:GUEST:copy still gives, and HOST:GUEST:rw lets it be written to (said once)\n",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(text: String, sharing: FolderSharing) -> Result<Volume> {
        parse(&text.into(), sharing)
    }

    #[test]
    fn a_folder_is_shared_and_a_file_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (shown, file) = (folder.path().display(), folder.path().join("file"));
        fs::write(&file, b"x").unwrap();
        let shared = |text| volume(text, FolderSharing::Possible).unwrap().shared;
        assert_eq!(shared(format!("{shown}:/x:ro")), Some(ShareAccess::Read));
        assert_eq!(shared(format!("{shown}:/x:rw")), Some(ShareAccess::Write));
        assert_eq!(shared(format!("{shown}:/x:copy")), None);
        assert_eq!(shared(format!("{}:/x", file.display())), None);
        let of_file = volume(format!("{}:/x:rw", file.display()), FolderSharing::Possible).unwrap_err();
        assert!(of_file.to_string().contains("only folders"));
        assert_eq!(volume(format!("{shown}:/x"), FolderSharing::Copies("a test")).unwrap().shared, None);
        for mode in ["ro", "rw"] {
            let failed = volume(format!("{shown}:/x:{mode}"), FolderSharing::Copies("a test")).unwrap_err();
            assert!(failed.to_string().contains("a test has copies only"));
        }
    }

    #[test]
    fn the_mode_is_no_part_of_the_place() {
        let volume = volume("/:/a:b:copy".into(), FolderSharing::Possible);
        assert!(volume.is_err(), "/:/a is no folder");
        let (places, mode) = split_mode(b"/data:/data:copy");
        assert_eq!((places, mode), (&b"/data:/data"[..], Mode::Copy));
        assert_eq!(split_mode(b"/data:/copy"), (&b"/data:/copy"[..], Mode::Default));
    }
}
