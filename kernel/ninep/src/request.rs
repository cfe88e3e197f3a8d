//! Requests of a client.

use crate::{HEADER, TFLUSH, TVERSION};

/// Largest number of bytes of a request without data: two names, or one and a symbolic link's text.
pub const MAX_REQUEST: usize = 4864;

/// A request. Those with data (read, write, list) have its length as their last four bytes, and the
/// data behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NinepRequest<'a> {
    /// Begin a session: the longest message, the version.
    Version(u32, &'a [u8]),
    /// Give up the request of this tag.
    Flush(u16),
    /// Have this fid stand for the tree that the server shows.
    Attach(u32),
    /// Have the second fid stand for the file that the name leads to from the first, or for the
    /// same file where there is no name.
    Walk(u32, u32, Option<&'a [u8]>),
    /// Return the attributes of a file.
    GetAttributes(u32),
    /// Open it with these flags of open(2).
    Open(u32, u32),
    /// Create a file of this name in the fid's directory; the fid then names the open file. Flags
    /// of open(2), mode, group.
    Create(u32, &'a [u8], u32, u32, u32),
    /// Make a symbolic link: directory, name, where it leads, group.
    Symlink(u32, &'a [u8], &'a [u8], u32),
    /// Make a FIFO, a socket or a device: directory, name, st_mode, major and minor number, group.
    MakeNode(u32, &'a [u8], u32, (u32, u32), u32),
    /// Make a directory: where, name, mode, group.
    MakeDirectory(u32, &'a [u8], u32, u32),
    /// Give a file another name: directory, file, name.
    Link(u32, u32, &'a [u8]),
    /// Move a name: directory and name before, directory and name after.
    Rename(u32, &'a [u8], u32, &'a [u8]),
    /// Remove a name, with flags of unlinkat(2).
    Unlink(u32, &'a [u8], u32),
    /// Change a file's attributes.
    SetAttributes(u32, NewAttributes),
    /// Have written bytes stored on the server's disk.
    Sync(u32),
    /// Write at an offset, so many bytes.
    Write(u32, u64, u32),
    /// Read from an offset, so many bytes.
    Read(u32, u64, u32),
    /// Entries of a directory from a position on, so many bytes.
    ReadDirectory(u32, u64, u32),
    /// Where a symbolic link leads.
    ReadLink(u32),
    /// How much there is in all, and how much is left.
    Stats(u32),
    /// The fid stands for nothing any more.
    Clunk(u32),
}

/// Changes of a file's attributes; absent ones stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NewAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access: seconds and nanoseconds.
    pub accessed: Option<(u64, u64)>,
    /// Last change of content.
    pub modified: Option<(u64, u64)>,
}

impl NewAttributes {
    /// Which there are (P9_SETATTR_*): a time is one that the client says.
    fn valid(&self) -> u32 {
        let bits = [
            (self.mode.is_some(), 0x1),
            (self.uid.is_some(), 0x2),
            (self.gid.is_some(), 0x4),
            (self.size.is_some(), 0x8),
            (self.accessed.is_some(), 0x10 | 0x80),
            (self.modified.is_some(), 0x20 | 0x100),
        ];
        bits.iter().filter(|(is_there, _)| *is_there).map(|(_, bits)| bits).sum()
    }
}

impl NinepRequest<'_> {
    /// Its number.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Stats(_) => 8,
            Self::Open(..) => 12,
            Self::Create(..) => 14,
            Self::Symlink(..) => 16,
            Self::MakeNode(..) => 18,
            Self::ReadLink(_) => 22,
            Self::GetAttributes(_) => 24,
            Self::SetAttributes(..) => 26,
            Self::ReadDirectory(..) => 40,
            Self::Sync(_) => 50,
            Self::Link(..) => 70,
            Self::MakeDirectory(..) => 72,
            Self::Rename(..) => 74,
            Self::Unlink(..) => 76,
            Self::Version(..) => TVERSION,
            Self::Attach(_) => 104,
            Self::Flush(_) => TFLUSH,
            Self::Walk(..) => 110,
            Self::Read(..) => 116,
            Self::Write(..) => 118,
            Self::Clunk(_) => 120,
        }
    }

    /// Writes the message, with tag 0. Returns its bytes; `None` where `room` is too small for it.
    pub fn encode<'b>(&self, room: &'b mut [u8]) -> Option<&'b mut [u8]> {
        /// "No fid": the client does not authenticate.
        const NO_FID: u32 = u32::MAX;
        /// All that getattr can tell of, without times of birth (P9_GETATTR_BASIC), and the
        /// generation (P9_GETATTR_GEN).
        const WANTED: u64 = 0x7ff | crate::reply::GENERATION;
        let mut out = Writer { room, at: HEADER };
        match *self {
            Self::Version(most, version) => out.u32(most)?.text(version)?,
            Self::Flush(tag) => out.bytes(&tag.to_le_bytes())?,
            Self::Attach(fid) => out.u32(fid)?.u32(NO_FID)?.text(b"root")?.text(b"")?.u32(0)?,
            Self::Walk(fid, new, None) => out.u32(fid)?.u32(new)?.bytes(&[0, 0])?,
            Self::Walk(fid, new, Some(name)) => out.u32(fid)?.u32(new)?.bytes(&[1, 0])?.text(name)?,
            Self::GetAttributes(fid) => out.u32(fid)?.u64(WANTED)?,
            Self::Open(fid, flags) => out.u32(fid)?.u32(flags)?,
            Self::Create(fid, name, flags, mode, gid) => {
                out.u32(fid)?.text(name)?.u32(flags)?.u32(mode)?.u32(gid)?
            }
            Self::Symlink(dir, name, target, gid) => out.u32(dir)?.text(name)?.text(target)?.u32(gid)?,
            Self::MakeNode(dir, name, mode, (major, minor), gid) => {
                out.u32(dir)?.text(name)?.u32(mode)?.u32(major)?.u32(minor)?.u32(gid)?
            }
            Self::MakeDirectory(dir, name, mode, gid) => out.u32(dir)?.text(name)?.u32(mode)?.u32(gid)?,
            Self::Link(dir, fid, name) => out.u32(dir)?.u32(fid)?.text(name)?,
            Self::Rename(dir, name, new_dir, new_name) => {
                out.u32(dir)?.text(name)?.u32(new_dir)?.text(new_name)?
            }
            Self::Unlink(dir, name, flags) => out.u32(dir)?.text(name)?.u32(flags)?,
            Self::SetAttributes(fid, new) => {
                out.u32(fid)?.u32(new.valid())?;
                out.u32(new.mode.unwrap_or(0))?.u32(new.uid.unwrap_or(0))?.u32(new.gid.unwrap_or(0))?;
                let (accessed, modified) = (new.accessed.unwrap_or((0, 0)), new.modified.unwrap_or((0, 0)));
                out.u64(new.size.unwrap_or(0))?.u64(accessed.0)?.u64(accessed.1)?;
                out.u64(modified.0)?.u64(modified.1)?
            }
            // All of it, not only the data.
            Self::Sync(fid) => out.u32(fid)?.u32(0)?,
            Self::Read(fid, at, count)
            | Self::ReadDirectory(fid, at, count)
            | Self::Write(fid, at, count) => out.u32(fid)?.u64(at)?.u32(count)?,
            Self::ReadLink(fid) | Self::Stats(fid) | Self::Clunk(fid) => out.u32(fid)?,
        };
        let (size, kind) = (out.at, self.kind());
        let message = out.room.get_mut(..size)?;
        message[..4].copy_from_slice(&(size as u32).to_le_bytes());
        message[4] = kind;
        message[5..HEADER].fill(0);
        Some(message)
    }
}

/// A message in the making.
struct Writer<'b> {
    room: &'b mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Option<&mut Self> {
        let end = self.at.checked_add(bytes.len())?;
        self.room.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(self)
    }
    fn u32(&mut self, value: u32) -> Option<&mut Self> {
        self.bytes(&value.to_le_bytes())
    }
    fn u64(&mut self, value: u64) -> Option<&mut Self> {
        self.bytes(&value.to_le_bytes())
    }
    fn text(&mut self, text: &[u8]) -> Option<&mut Self> {
        let length = u16::try_from(text.len()).ok()?;
        self.bytes(&length.to_le_bytes())?.bytes(text)
    }
}
