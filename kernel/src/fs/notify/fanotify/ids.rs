//! Events with handles of files (FAN_REPORT_FID and its relatives).
//!
//! A handle is made when the event occurs, so an event needs no reference to the inode. Linux'
//! relatives are `fanotify_alloc_event` and `copy_info_records_to_user`.

use freehold_collections::{Arc, Vec};

use super::super::watches::InodeWatch;
use super::{FanMask, GroupMarks, Mark, NamePlace, Occurrence, Relation};
use crate::fs::mount::{FileHandle, FileSystem};
use crate::fs::node::NodeKind;
use crate::fs::notify::fanotify::group::GroupSettings;
use crate::{Errno, Result};

/// A directory and a name in it.
#[derive(PartialEq, Eq, Debug)]
struct NamedHandle {
    dir: FileHandle,
    /// Empty if the name is not reported.
    name: Vec<u8>,
}

/// The files of an event, by handle.
#[derive(PartialEq, Eq, Debug)]
pub struct FileIds {
    device: u64,
    place: Option<NamedHandle>,
    new_place: Option<NamedHandle>,
    object: Option<FileHandle>,
}

/// A record behind an event: its type, a handle, and a name.
#[derive(Clone, Copy, Debug)]
pub struct InfoRecord<'a> {
    /// FAN_EVENT_INFO_TYPE_*.
    pub kind: u8,
    /// The device number of the file system.
    pub device: u64,
    /// The handle.
    pub handle: FileHandle,
    /// The name; `None` for a record without one.
    pub name: Option<&'a [u8]>,
}

/// FAN_EVENT_INFO_TYPE_FID, _DFID_NAME, _DFID, _OLD_DFID_NAME, _NEW_DFID_NAME
const OF_OBJECT: u8 = 1;
const OF_NAME: u8 = 2;
const OF_DIRECTORY: u8 = 3;
const OF_OLD_NAME: u8 = 10;
const OF_NEW_NAME: u8 = 12;

impl InfoRecord<'_> {
    /// Bytes of a record before the handle's words: its header, the file system's ID, the handle's
    /// length and type.
    const HEAD: usize = 20;

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        let name = self.name.map_or(0, |name| name.len() + 1);
        (Self::HEAD + 4 * self.handle.count + name).next_multiple_of(4)
    }

    /// Passes the bytes to `put`, as a program reads them.
    ///
    /// # Errors
    /// Those of `put`.
    #[cold]
    pub fn write(&self, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut head = [0; Self::HEAD];
        head[0] = self.kind;
        head[2..4].copy_from_slice(&(self.length() as u16).to_le_bytes());
        head[4..12].copy_from_slice(&self.device.to_le_bytes());
        head[12..16].copy_from_slice(&(4 * self.handle.count as u32).to_le_bytes());
        head[16..20].copy_from_slice(&FileHandle::TYPE.to_le_bytes());
        put(&head)?;
        for word in &self.handle.words[..self.handle.count] {
            put(&word.to_le_bytes())?;
        }
        let written = Self::HEAD + 4 * self.handle.count + self.name.map_or(0, <[u8]>::len);
        if let Some(name) = self.name {
            put(name)?;
        }
        put(&[0; 4][..self.length() - written])
    }
}

impl FileIds {
    /// Returns the records that a group with `settings` reports for an event `mask`.
    #[cold]
    pub fn records(&self, settings: GroupSettings, mask: FanMask) -> [Option<InfoRecord<'_>>; 3] {
        let device = self.device;
        let record = |kind, handle, name| InfoRecord { kind, device, handle, name };
        let named = |place: &'_ NamedHandle, kind| {
            let name = (!place.name.is_empty()).then_some(());
            (place.dir, if name.is_some() { kind } else { OF_DIRECTORY })
        };
        let first = self.place.as_ref().map(|place| {
            let kind = if mask.contains(FanMask::RENAME) { OF_OLD_NAME } else { OF_NAME };
            let (dir, kind) = named(place, kind);
            record(kind, dir, (!place.name.is_empty()).then_some(&*place.name))
        });
        let second = self.new_place.as_ref().map(|place| record(OF_NEW_NAME, place.dir, Some(&*place.name)));
        let third = self.object.map(|object| {
            let is_second = first.is_some() || second.is_some();
            if is_second || !settings.contains(GroupSettings::DIR_FID) {
                return record(OF_OBJECT, object, None);
            }
            if settings.contains(GroupSettings::NAME) && mask.contains(FanMask::ONDIR) {
                return record(OF_NAME, object, Some(b"."));
            }
            let is_directory = mask.intersects(FanMask::NAMES | FanMask::ONDIR);
            record(if is_directory { OF_DIRECTORY } else { OF_OBJECT }, object, None)
        });
        [first, second, third]
    }

    /// Returns a number that is equal for equal files.
    pub(super) fn hash(&self) -> usize {
        let word = |handle: Option<&FileHandle>| handle.map_or(0, |handle| handle.words[1] as usize);
        let named = self.place.as_ref();
        let name = named.map_or(0, |place| {
            place.name.iter().fold(0, |sum: usize, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
        });
        word(self.object.as_ref()).wrapping_mul(7) ^ word(named.map(|place| &place.dir)) ^ name
    }

    /// The files of the end of the inode that `mark` is on.
    pub(super) fn of_mark(mark: &Mark) -> Option<Self> {
        let (fs, handle) = mark.source.as_ref()?;
        Some(Self { device: fs.device(), place: None, new_place: None, object: Some(*handle) })
    }

    /// The files of `event`, of which the group requests `mask`.
    ///
    /// # Errors
    /// `ENOMEM`; `EOPNOTSUPP` if a file has no handle.
    #[cold]
    pub(super) fn of(
        event: &Occurrence<'_>,
        mask: FanMask,
        settings: GroupSettings,
        marks: &GroupMarks<'_>,
    ) -> Result<Self> {
        let sources = marks.iter().flatten().filter_map(|(_, _, mark)| mark.source.as_ref());
        let fs = sources.map(|(fs, _)| fs).next().ok_or(Errno::EOPNOTSUPP)?;
        let reports = |what| settings.contains(what);
        let is_names = mask.intersects(FanMask::NAMES);
        let is_directory = mask.contains(FanMask::ONDIR);
        let mut ids = Self { device: fs.device(), place: None, new_place: None, object: None };
        let object = |fs: &Arc<dyn FileSystem>| match event.node {
            Some(node) => fs.handle(node, event.entry).map(Some),
            None => Ok(None),
        };
        let own_directory = event.node.filter(|node| !is_names && node.kind() == NodeKind::Directory);
        let dir = own_directory.or(event.place.map(|place| place.dir));
        let Some(dir) = dir.filter(|_| reports(GroupSettings::DIR_FID)) else {
            // Without the target, the object of a change of names is the directory.
            let names_dir = event.place.filter(|_| is_names && !reports(GroupSettings::TARGET_FID));
            ids.object = match names_dir {
                Some(place) => Some(fs.handle(place.dir, None)?),
                None => object(fs)?,
            };
            return Ok(ids);
        };
        let reports_child = match is_names {
            true => reports(GroupSettings::TARGET_FID),
            false => reports(GroupSettings::FID) && !is_directory,
        };
        let child = if reports_child && own_directory.is_none() { object(fs)? } else { None };
        let with_name = reports(GroupSettings::NAME) && (is_names || !is_directory);
        if !with_name && child.is_none() {
            ids.object = Some(fs.handle(dir, None)?);
            return Ok(ids);
        }
        let named = |place: NamePlace<'_>| -> Result<NamedHandle> {
            let name = if with_name { Vec::try_from_slice(place.name)? } else { Vec::new() };
            Ok(NamedHandle { dir: fs.handle(place.dir, None)?, name })
        };
        let [with_old, with_new] = sides(mask, marks);
        ids.place = event.place.filter(|_| with_old).map(named).transpose()?;
        ids.new_place = event.new_place.filter(|_| with_new).map(named).transpose()?;
        ids.object = child;
        Ok(ids)
    }
}

/// Whether an event tells the old and the new name. A rename tells the name in each directory that
/// is marked, and both if the file system is.
#[cold]
fn sides(mask: FanMask, marks: &GroupMarks<'_>) -> [bool; 2] {
    if !mask.contains(FanMask::RENAME) {
        return [true, false];
    }
    let is_marked = |wanted: Relation| {
        let matches = |(relation, watch, _): &(Relation, &InodeWatch, &Mark)| {
            *relation == wanted && super::mask_of(watch).contains(FanMask::RENAME)
        };
        marks.iter().flatten().any(matches)
    };
    let all = is_marked(Relation::FileSystem);
    [all || is_marked(Relation::Inode), all || is_marked(Relation::NewDirectory)]
}
