//! Replies of a server.

use crate::{HEADER, MAX_LINK, RLERROR};

/// The server's reply is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Result in a reply's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request succeeded; bytes of the message.
    Done(usize),
    /// The request failed: an error number of Linux, or a number that a server uses as one.
    Error(u32),
}

/// Checks the first bytes of a reply: [`crate::DATA_HEADER`] bytes, or all if there are fewer. The
/// server says that it wrote `written` bytes in all. `kind` and `tag` are the request's.
///
/// # Errors
/// [`Malformed`]: it is no answer to that request, or its length is wrong.
pub fn check(bytes: &[u8], written: usize, kind: u8, tag: u16) -> Result<Outcome, Malformed> {
    let mut header = Reader(bytes);
    let (Some(size), Some(said), Some(answered)) = (header.u32(), header.u8(), header.u16()) else {
        return Err(Malformed);
    };
    let size = size as usize;
    if !(HEADER..=written).contains(&size) || answered != tag {
        return Err(Malformed);
    }
    if said == RLERROR {
        return header.u32().filter(|_| size >= HEADER + 4).map(Outcome::Error).ok_or(Malformed);
    }
    if kind.checked_add(1) == Some(said) { Ok(Outcome::Done(size)) } else { Err(Malformed) }
}

/// Identity of a file: the file that was opened or found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Qid {
    /// Kind, in Plan 9's bits.
    pub kind: u8,
    /// Changes with its content.
    pub version: u32,
    /// Its number in the server's tree.
    pub path: u64,
}

impl Qid {
    /// The kind, as in getdents(2), as far as a qid tells it: 0 is any that is neither a directory
    /// nor a symbolic link.
    const fn directory_kind(self) -> u8 {
        const DIRECTORY: u8 = 0x80;
        const SYMLINK: u8 = 0x02;
        if self.kind & DIRECTORY != 0 {
            4
        } else if self.kind & SYMLINK != 0 {
            10
        } else {
            0
        }
    }
}

/// Bit of Tgetattr and Rgetattr for the generation (P9_GETATTR_GEN).
pub(crate) const GENERATION: u64 = 0x1000;

/// Attributes of a file in Rgetattr.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The file's identity.
    pub qid: Qid,
    /// st_mode, with its kind.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u64,
    /// Device number of a device node.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Preferred I/O size.
    pub block_size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last access: seconds and nanoseconds.
    pub accessed: (u64, u64),
    /// Last change of content.
    pub modified: (u64, u64),
    /// Last change of anything.
    pub changed: (u64, u64),
    /// Differs among files that have had the same number one after the other; `None` if the server
    /// cannot tell (its file system has none, or the file is neither regular nor a directory).
    pub generation: Option<u64>,
}

impl Attributes {
    /// Reads the body of an Rgetattr.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut body = Reader(body);
        let valid = body.u64()?;
        let mut told = Self {
            qid: body.qid()?,
            mode: body.u32()?,
            uid: body.u32()?,
            gid: body.u32()?,
            links: body.u64()?,
            rdev: body.u64()?,
            size: body.u64()?,
            block_size: body.u64()?,
            blocks: body.u64()?,
            accessed: (body.u64()?, body.u64()?),
            modified: (body.u64()?, body.u64()?),
            changed: (body.u64()?, body.u64()?),
            generation: None,
        };
        if valid & GENERATION != 0 {
            let _birth = (body.u64()?, body.u64()?);
            told.generation = Some(body.u64()?);
        }
        // Offsets are signed numbers.
        (i64::try_from(told.size).is_ok()).then_some(told)
    }
}

/// Body of Rstatfs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSystemStats {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks not in use.
    pub free: u64,
    /// Inodes in all.
    pub files: u64,
    /// Inodes not in use.
    pub free_files: u64,
}

impl FileSystemStats {
    /// Reads the body of an Rstatfs.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut body = Reader(body);
        let _kind = body.u32()?;
        let block_size = body.u32()?;
        let (blocks, _free, free) = (body.u64()?, body.u64()?, body.u64()?);
        Some(Self { block_size, blocks, free, files: body.u64()?, free_files: body.u64()? })
    }
}

/// Reads the longest message and the version from the body of an Rversion.
pub fn version(body: &[u8]) -> Option<(u32, &[u8])> {
    let mut body = Reader(body);
    Some((body.u32()?, body.text()?))
}

/// Reads the body of a reply that is a qid.
pub fn qid(body: &[u8]) -> Option<Qid> {
    Reader(body).qid()
}

/// Returns the file that a walk of one name found, from the body of an Rwalk. `None` also where no
/// file has that name.
pub fn walked(body: &[u8]) -> Option<Qid> {
    let mut body = Reader(body);
    if body.u16()? == 1 { body.qid() } else { None }
}

/// Returns the opened file and the most bytes of one transfer (0: any), from the body of an Rlopen.
pub fn opened(body: &[u8]) -> Option<(Qid, u32)> {
    let mut body = Reader(body);
    Some((body.qid()?, body.u32()?))
}

/// The body of a reply that is a count.
pub fn count(body: &[u8]) -> Option<u32> {
    Reader(body).u32()
}

/// Where a symbolic link leads, of the body of an Rreadlink: not empty, no NUL in it.
pub fn link_target(body: &[u8]) -> Option<&[u8]> {
    let text = Reader(body).text()?;
    (1..=MAX_LINK).contains(&text.len()).then_some(text).filter(|text| !text.contains(&0))
}

/// An entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryEntry<'a> {
    /// Which file it leads to.
    pub qid: Qid,
    /// The position to go on from after it.
    pub next: u64,
    /// Its kind, as in getdents(2).
    pub kind: u8,
    /// Its name: 1 to 255 bytes, neither NUL nor slash among them.
    pub name: &'a [u8],
}

/// The entries in the data of an Rreaddir. Ends at the first that is none.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a>(Reader<'a>);

impl<'a> Entries<'a> {
    /// Of these bytes.
    pub const fn new(data: &'a [u8]) -> Self {
        Self(Reader(data))
    }
    /// Whether bytes are left that are no entry.
    pub const fn is_at_end(&self) -> bool {
        self.0.0.is_empty()
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = DirectoryEntry<'a>;
    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.0;
        let entry =
            DirectoryEntry { qid: rest.qid()?, next: rest.u64()?, kind: rest.u8()?, name: rest.text()? };
        let is_name = (1..=255).contains(&entry.name.len())
            && !entry.name.iter().any(|&byte| byte == 0 || byte == b'/');
        if !is_name {
            return None;
        }
        self.0 = rest;
        // A server that maps kinds tells them in the qid only.
        Some(if entry.kind == 0 {
            DirectoryEntry { kind: entry.qid.directory_kind(), ..entry }
        } else {
            entry
        })
    }
}

/// Bytes that are still to be read.
#[derive(Clone, Copy, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
    fn qid(&mut self) -> Option<Qid> {
        Some(Qid { kind: self.u8()?, version: self.u32()?, path: self.u64()? })
    }
}
