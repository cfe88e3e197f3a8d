//! The source of an image: a folder, or an archive whose members are read in any order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use super::stream;
use crate::Result;
use crate::failure::{self, Failure};

/// The longest JSON file of an image that is read.
const MAX_DOCUMENT: u64 = 16 << 20;
/// Archives of `docker save` have links to layers, one deep.
const MAX_LINKS: usize = 8;

/// A place that holds the files of an image.
#[derive(Debug)]
pub enum ImageSource {
    /// A folder.
    Folder(PathBuf),
    /// An archive, not compressed.
    Archive(ArchiveIndex),
}

/// An archive and the places of its members.
#[derive(Debug)]
pub struct ArchiveIndex {
    file: File,
    members: BTreeMap<String, ArchiveMember>,
}

#[derive(Debug)]
enum ArchiveMember {
    Bytes { at: u64, size: u64 },
    Link(String),
}

impl ImageSource {
    /// Opens an archive, compressed or not, or a folder.
    ///
    /// # Errors
    /// The path does not exist, or cannot be read.
    pub fn open(path: &Path) -> Result<ImageSource> {
        let failed = |error: &io::Error| match error.kind() {
            io::ErrorKind::NotFound => Failure::new(
                format!("--image {}: no such file", path.display()),
                "an archive of docker save or podman save; images are not fetched",
            ),
            _ => Failure::new(format!("--image {}: {}", path.display(), failure::words(error)), ""),
        };
        let meta = std::fs::metadata(path).map_err(|e| failed(&e))?;
        if meta.is_dir() {
            return Ok(ImageSource::Folder(path.to_path_buf()));
        }
        let file = File::open(path).map_err(|e| failed(&e))?;
        let file = plain(file).map_err(|failure| failure.at(path))?;
        // The original reason would quote the file's bytes.
        let index = ArchiveIndex::of(file).map_err(|_| {
            Failure::new(
                format!("{} is no archive of an image", path.display()),
                "docker save and podman save make one",
            )
        })?;
        Ok(ImageSource::Archive(index))
    }

    /// Returns whether the image has a file of this name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            ImageSource::Folder(folder) => folder.join(name).is_file(),
            ImageSource::Archive(index) => index.find(name).is_some(),
        }
    }

    /// Opens a file of the image.
    ///
    /// # Errors
    /// The file does not exist, or the archive ends before it does.
    pub fn reader(&self, name: &str) -> Result<Box<dyn Read + '_>> {
        let missing = || Failure::new(format!("{name} is missing in it"), "");
        match self {
            ImageSource::Folder(folder) => {
                let is_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
                if !is_inside {
                    return Err(Failure::new(format!("{name} is no name of a file in it"), ""));
                }
                let file = File::open(folder.join(name)).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => missing(),
                    _ => Failure::io("read", &folder.join(name), &error),
                })?;
                Ok(Box::new(file))
            }
            ImageSource::Archive(index) => {
                let (at, size) = index.find(name).ok_or_else(missing)?;
                let length = index.file.metadata().map_or(0, |meta| meta.len());
                if at.checked_add(size).is_none_or(|end| end > length) {
                    return Err(Failure::new(format!("the archive ends in the middle of {name}"), ""));
                }
                Ok(Box::new(MemberReader { file: &index.file, at, end: at + size }))
            }
        }
    }

    /// Reads a whole file of the image, a short one.
    ///
    /// # Errors
    /// The file does not exist, or is longer than a document of an image can be.
    pub fn document(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut reader = self.reader(name)?.take(MAX_DOCUMENT + 1);
        reader.read_to_end(&mut bytes).map_err(|error| Failure::io("read", Path::new(name), &error))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(Failure::new(format!("{name} is too long"), "at most 16M"));
        }
        Ok(bytes)
    }
}

/// Returns the archive itself or, if it is compressed, its unpacked contents: a temporary file
/// without a name.
fn plain(mut file: File) -> Result<File> {
    let unreadable =
        |error: &io::Error| Failure::new(format!("cannot read it: {}", failure::words(error)), "");
    let is_compressed = stream::is_compressed(&mut file).map_err(|e| unreadable(&e))?;
    file.seek(SeekFrom::Start(0)).map_err(|e| unreadable(&e))?;
    if !is_compressed {
        return Ok(file);
    }
    let no_room = |error: &io::Error| {
        Failure::new(
            format!("cannot unpack it into a temporary file: {}", failure::words(error)),
            "TMPDIR names another folder",
        )
    };
    let mut whole = tempfile::tempfile().map_err(|e| no_room(&e))?;
    let mut bytes = stream::unpacked(&mut file).map_err(|e| unreadable(&e))?;
    let mut room = vec![0; 1 << 20];
    loop {
        let count = bytes.read(&mut room).map_err(|e| unreadable(&e))?;
        if count == 0 {
            break;
        }
        io::Write::write_all(&mut whole, &room[..count]).map_err(|e| no_room(&e))?;
    }
    whole.seek(SeekFrom::Start(0)).map_err(|e| no_room(&e))?;
    Ok(whole)
}

impl ArchiveIndex {
    fn of(file: File) -> io::Result<ArchiveIndex> {
        let mut members = BTreeMap::new();
        let mut archive = tar::Archive::new(&file);
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            let Ok(name) = String::from_utf8(entry.path_bytes().into_owned()) else { continue };
            let link = entry.link_name_bytes().and_then(|link| String::from_utf8(link.into_owned()).ok());
            let kind = entry.header().entry_type();
            let member = match (kind, link) {
                (tar::EntryType::Regular | tar::EntryType::Continuous, _) => {
                    ArchiveMember::Bytes { at: entry.raw_file_position(), size: entry.size() }
                }
                (tar::EntryType::Link, Some(link)) => ArchiveMember::Link(clean("", &link)),
                (tar::EntryType::Symlink, Some(link)) => {
                    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                    ArchiveMember::Link(clean(folder, &link))
                }
                _ => continue,
            };
            members.insert(clean("", &name), member);
        }
        Ok(ArchiveIndex { file, members })
    }

    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut name = name;
        for _ in 0..MAX_LINKS {
            match self.members.get(name)? {
                ArchiveMember::Bytes { at, size } => return Some((*at, *size)),
                ArchiveMember::Link(target) => name = target,
            }
        }
        None
    }
}

/// Resolves the link `name` of a member in `folder` to a member's name.
fn clean(folder: &str, name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A part of a file that is read by offset: several readers of one file do not disturb each other.
struct MemberReader<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for MemberReader<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let want = room.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut room[..want], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
