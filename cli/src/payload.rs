//! Kernel, microscope and guest programs inside the command, as a crate for `cargo install` has
//! them (`tools/crate`). They are unpacked into the cache folder when the first is needed.
//!
//! A command that is built in the repository contains none: its files are beside it.

use std::path::{Path, PathBuf};

use ruzstd::decoding::StreamingDecoder;

use crate::failure::Failure;
use crate::{Result, linux};

/// A tar archive, compressed by zstd, and its checksum.
#[cfg(payload)]
const PAYLOAD: Option<(&[u8], &str)> =
    Some((include_bytes!("../payload.tar.zst"), include_str!("../payload.sum")));
#[cfg(not(payload))]
const PAYLOAD: Option<(&[u8], &str)> = None;

/// Returns the folder with this command's own files; `None` if the command contains none.
///
/// # Errors
/// The cache folder cannot be written to.
pub fn folder() -> Result<Option<PathBuf>> {
    let Some((archive, sum)) = PAYLOAD else { return Ok(None) };
    let parent = linux::cache_folder()?.join("installed");
    let folder = parent.join(sum.trim());
    if !folder.is_dir() {
        unpack(archive, &parent, &folder)?;
    }
    Ok(Some(folder))
}

/// Unpacks `archive` as `folder` in `parent`: the folder is there once it is complete. Commands
/// that do so at the same time do not disturb each other.
fn unpack(archive: &[u8], parent: &Path, folder: &Path) -> Result<()> {
    let failed = |e: std::io::Error| Failure::io("unpack the kernel into", folder, &e);
    std::fs::create_dir_all(parent).map_err(failed)?;
    let unfinished = tempfile::tempdir_in(parent).map_err(failed)?;
    let decoder = StreamingDecoder::new(archive).map_err(|e| failed(std::io::Error::other(e.to_string())))?;
    tar::Archive::new(decoder).unpack(unfinished.path()).map_err(failed)?;
    match std::fs::rename(unfinished.path(), folder) {
        Err(error) if !folder.is_dir() => Err(failed(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_unpacked_whole_by_two_at_once() {
        let parent = tempfile::tempdir().expect("temporary folder");
        let folder = parent.path().join("sum");
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(6);
        header.set_mode(0o755);
        tar.append_data(&mut header, "guest/init", &b"kernel"[..]).expect("an entry");
        let archive = ruzstd::encoding::compress_to_vec(
            &tar.into_inner().expect("an archive")[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        for _ in 0..2 {
            unpack(&archive, parent.path(), &folder).expect("unpacked");
            assert_eq!(std::fs::read(folder.join("guest/init")).expect("a file"), b"kernel");
            assert_eq!(std::fs::read_dir(parent.path()).expect("a folder").count(), 1, "nothing is left");
        }
        assert!(unpack(b"no archive", parent.path(), &parent.path().join("other")).is_err());
    }

    #[test]
    fn a_command_of_the_repository_contains_no_files() {
        assert!(folder().expect("none is unpacked").is_none());
    }
}
