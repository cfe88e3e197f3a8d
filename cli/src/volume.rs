//! `-v HOST:GUEST[:ro|rw|copy]`: files and folders of the host at places of the guest.
//!
//! A folder is *shared*: the guest sees it as it is at any time, through virtio-9p, and QEMU serves nothing beside it.
//! A file is copied into the image, since QEMU shares folders only; so is a folder where a run is to repeat, and for a
//! guest that has no driver of ours.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::print;
use crate::qemu::share::FolderShare;
use crate::{Result, linux};

/// Whether folders can be shared with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderSharing {
    /// They can.
    Possible,
    /// They are copied; why.
    Copies(&'static str),
}

/// What the user wants of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nothing was said.
    Default,
    ReadOnly,
    ReadWrite,
    Copy,
}

/// A checked volume.
#[derive(Debug)]
pub struct Volume {
    /// Where it is on the host.
    pub host: PathBuf,
    /// Where it is in the guest.
    pub guest: PathBuf,
    /// Whether the guest sees the folder itself.
    pub is_shared: bool,
}

/// Parses and checks all volumes of a command line.
pub fn parse_all(list: &[OsString], sharing: FolderSharing) -> Result<Vec<Volume>> {
    list.iter().map(|text| parse(text, sharing)).collect()
}

/// The folders that QEMU shares, in their order.
pub fn shares(volumes: &[Volume]) -> Vec<FolderShare> {
    let shared = volumes.iter().filter(|volume| volume.is_shared);
    shared.map(|volume| FolderShare { host: volume.host.clone(), guest: volume.guest.clone() }).collect()
}

fn parse(text: &OsString, sharing: FolderSharing) -> Result<Volume> {
    let (places, mode) = split_mode(text.as_bytes());
    let colon = places.iter().rposition(|&byte| byte == b':');
    let Some(at) = colon.filter(|&at| at > 0 && at + 1 < places.len()) else {
        return Err(Failure::new(format!("-v {}: not HOST:GUEST", text.display()), "-v ./data:/data"));
    };
    let host = PathBuf::from(OsStr::from_bytes(&places[..at]));
    let guest = crate::run::guest_path("-v", Path::new(OsStr::from_bytes(&places[at + 1..])))?;
    let meta = fs::metadata(&host).map_err(|error| {
        let shown = host.display();
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::new(format!("-v {shown}: no such file or folder on the host"), "")
            }
            _ => Failure::new(format!("-v {shown}: {error}"), ""),
        }
    })?;
    let is_shared = is_shared(&host, meta.is_dir(), mode, sharing)?;
    Ok(Volume { host, guest, is_shared })
}

/// What stands behind the last colon, where it is no path.
fn split_mode(text: &[u8]) -> (&[u8], Mode) {
    let modes = [(&b":ro"[..], Mode::ReadOnly), (b":rw", Mode::ReadWrite), (b":copy", Mode::Copy)];
    for (suffix, mode) in modes {
        if let Some(places) = text.strip_suffix(suffix) {
            return (places, mode);
        }
    }
    (text, Mode::Default)
}

fn is_shared(host: &Path, is_folder: bool, mode: Mode, sharing: FolderSharing) -> Result<bool> {
    let shown = host.display();
    if mode == Mode::ReadWrite {
        return Err(Failure::new(
            format!("-v {shown}: a shared folder cannot be written to yet"),
            "HOST:GUEST:copy gives the guest a copy of its own to write to",
        ));
    }
    if mode == Mode::Copy || !is_folder {
        return Ok(false);
    }
    if let FolderSharing::Copies(why) = sharing {
        if mode == Mode::ReadOnly {
            return Err(Failure::new(format!("-v {shown}: {why} has copies only"), "leave :ro out"));
        }
        return Ok(false);
    }
    fs::read_dir(host).map_err(|error| Failure::new(format!("-v {shown}: {error}"), ""))?;
    if mode == Mode::Default {
        tell_once();
    }
    Ok(true)
}

/// Says once to each user what is not as it was.
fn tell_once() {
    let Ok(folder) = linux::cache_folder() else { return };
    let mark = folder.join("volumes-are-shared");
    let is_new = fs::create_dir_all(&folder).is_ok()
        && fs::OpenOptions::new().write(true).create_new(true).open(mark).is_ok();
    if is_new {
        print::stderr(
            "freehold: -v HOST:GUEST shows a folder as it is on the host and read-only; it was a copy before, which \
             HOST:GUEST:copy still gives (said once)\n"
                .to_owned(),
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
        let shared = |text| volume(text, FolderSharing::Possible).unwrap().is_shared;
        assert!(shared(format!("{shown}:/x:ro")));
        assert!(!shared(format!("{shown}:/x:copy")));
        assert!(!shared(format!("{}:/x", file.display())));
        assert!(!volume(format!("{shown}:/x"), FolderSharing::Copies("a test")).unwrap().is_shared);
        let failed = volume(format!("{shown}:/x:ro"), FolderSharing::Copies("a test")).unwrap_err();
        assert!(failed.to_string().contains("a test has copies only"));
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
