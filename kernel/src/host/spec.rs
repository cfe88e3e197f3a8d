//! `/.freehold/spec`: which program to run, and how. NUL-terminated records `key=value`, written by
//! the host.

use core::net::Ipv4Addr;

use freehold_collections::Vec;

use super::frame::OwnerQuestion;
use crate::{Errno, Result};

/// Where the file is in the image.
pub const PATH: &[u8] = b"/.freehold/spec";

/// Kind of a stream of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stream {
    /// The terminal.
    Terminal,
    /// Bare bytes.
    #[default]
    Pipe,
}

/// Whether the host requests the closing tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClosingTables {
    /// The host requests them.
    Wanted,
    /// The host does not request them.
    #[default]
    Unwanted,
}

/// Whether the host requests the names of the files that programs find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Learning {
    /// The host requests them.
    Wanted,
    /// The host does not request them.
    #[default]
    Unwanted,
}

/// A folder of the host that is mounted for the program.
#[derive(PartialEq, Eq, Debug)]
pub struct ShareSpec {
    /// The device's name for it.
    pub tag: Vec<u8>,
    /// The folder's path in the guest.
    pub path: Vec<u8>,
    /// Access of programs to the folder.
    pub mode: ShareMode,
}

/// Access of programs to a folder of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareMode {
    /// Programs read the folder.
    ReadOnly,
    /// Programs read and write the folder.
    ReadWrite,
    /// Programs see the folder below the image's files and below their own changes.
    Below,
    /// None: the changes that programs made elsewhere are written to this folder when the program
    /// has ended.
    Changes,
}

/// The program, its arguments and its environment.
#[derive(PartialEq, Eq, Debug)]
pub struct Spec {
    /// Path of the program.
    pub exec: Vec<u8>,
    /// argv, the program's name included.
    pub arguments: Vec<Vec<u8>>,
    /// The environment, one `K=V` per element.
    pub environment: Vec<Vec<u8>>,
    /// Working directory.
    pub cwd: Vec<u8>,
    /// User and group that the program runs as.
    pub user: (u32, u32),
    /// stdin, stdout, stderr.
    pub streams: [Stream; 3],
    /// Rows of the terminal.
    pub rows: u16,
    /// Columns of the terminal.
    pub columns: u16,
    /// Whether to send a report.
    pub report: ClosingTables,
    /// The device to swap to.
    pub swap: Option<Vec<u8>>,
    /// Folders of the host, in the order in which they are mounted.
    pub shares: Vec<ShareSpec>,
    /// The events that are recorded while the program runs.
    pub events: Option<Vec<u8>>,
    /// Whether the host requests the names of the files that programs find.
    pub learning: Learning,
    /// Questions that the kernel answers at the program's end.
    pub owners: Vec<OwnerQuestion>,
    /// Whether the host requests the areas of all processes at the end.
    pub tells_areas: bool,
    /// Settings of the machine's network, if there is one.
    pub net: Option<NetSpec>,
}

/// The settings of the network device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetSpec {
    /// The machine's address.
    pub address: [u8; 4],
    /// Number of the address' bits that name the network, 1..=31.
    pub prefix: u8,
    /// The router to all other networks.
    pub gateway: [u8; 4],
}

impl Spec {
    /// Parses the file's bytes. Unknown keys are skipped.
    ///
    /// # Errors
    /// `EINVAL` if a record has no `=`, a value makes no sense, or no program is named; `ENOMEM`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut spec = Self {
            exec: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            cwd: Vec::try_from_slice(b"/")?,
            user: (0, 0),
            streams: [Stream::default(); 3],
            rows: 24,
            columns: 80,
            report: ClosingTables::default(),
            swap: None,
            shares: Vec::new(),
            events: None,
            learning: Learning::default(),
            owners: Vec::new(),
            tells_areas: false,
            net: None,
        };
        for record in bytes.split(|&byte| byte == 0).filter(|record| !record.is_empty()) {
            let at = record.iter().position(|&byte| byte == b'=').ok_or(Errno::EINVAL)?;
            let (key, value) = (&record[..at], &record[at + 1..]);
            match key {
                b"exec" => spec.exec = Vec::try_from_slice(value)?,
                b"arg" => spec.arguments.try_push(Vec::try_from_slice(value)?)?,
                b"env" => spec.environment.try_push(Vec::try_from_slice(value)?)?,
                b"cwd" => spec.cwd = Vec::try_from_slice(value)?,
                b"user" => spec.user = user(value)?,
                b"stdin" => spec.streams[0] = stream(value)?,
                b"stdout" => spec.streams[1] = stream(value)?,
                b"stderr" => spec.streams[2] = stream(value)?,
                b"rows" => spec.rows = number(value)?,
                b"cols" => spec.columns = number(value)?,
                b"swap" => spec.swap = Some(Vec::try_from_slice(value)?),
                b"share" => spec.shares.try_push(share(value)?)?,
                b"events" => spec.events = Some(Vec::try_from_slice(value)?),
                b"net" => spec.net = Some(net(value)?),
                b"owns" => spec.owners.try_push(OwnerQuestion::parse(value).ok_or(Errno::EINVAL)?)?,
                b"learn" if value == b"1" => spec.learning = Learning::Wanted,
                b"areas" => spec.tells_areas = value == b"1",
                b"report" if value == b"1" => spec.report = ClosingTables::Wanted,
                _ => {}
            }
        }
        if spec.exec.is_empty() { Err(Errno::EINVAL) } else { Ok(spec) }
    }
}

/// Parses a tag, a mode and a path.
fn share(value: &[u8]) -> Result<ShareSpec> {
    let mut parts = value.splitn(3, |&byte| byte == b':');
    let (Some(tag), Some(mode), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(Errno::EINVAL);
    };
    let mode = match mode {
        b"ro" => ShareMode::ReadOnly,
        b"rw" => ShareMode::ReadWrite,
        b"below" => ShareMode::Below,
        b"changes" => ShareMode::Changes,
        _ => return Err(Errno::EINVAL),
    };
    if tag.is_empty() || !path.starts_with(b"/") {
        return Err(Errno::EINVAL);
    }
    Ok(ShareSpec { tag: Vec::try_from_slice(tag)?, path: Vec::try_from_slice(path)?, mode })
}

/// Parses `ADDRESS/BITS,GATEWAY`.
fn net(value: &[u8]) -> Result<NetSpec> {
    let text = core::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
    let (own, gateway) = text.split_once(',').ok_or(Errno::EINVAL)?;
    let (address, prefix) = own.split_once('/').ok_or(Errno::EINVAL)?;
    let octets = |text: &str| text.parse().map(|ip: Ipv4Addr| ip.octets()).map_err(|_| Errno::EINVAL);
    let prefix = number(prefix.as_bytes())?;
    if !(1..=31).contains(&prefix) {
        return Err(Errno::EINVAL);
    }
    Ok(NetSpec { address: octets(address)?, prefix, gateway: octets(gateway)? })
}

fn stream(value: &[u8]) -> Result<Stream> {
    match value {
        b"tty" => Ok(Stream::Terminal),
        b"pipe" => Ok(Stream::Pipe),
        _ => Err(Errno::EINVAL),
    }
}

/// Parses `UID:GID`.
fn user(value: &[u8]) -> Result<(u32, u32)> {
    let colon = value.iter().position(|&byte| byte == b':').ok_or(Errno::EINVAL)?;
    Ok((number(&value[..colon])?, number(&value[colon + 1..])?))
}

fn number<T: core::str::FromStr>(value: &[u8]) -> Result<T> {
    core::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_arrives_and_order_is_kept() {
        let bytes =
            b"exec=/bin/busybox\0arg=sh\0arg=-c\0arg=echo a=b\0env=A=1\0env=B=\0cwd=/tmp\0stdin=tty\0\
            stdout=tty\0stderr=pipe\0rows=50\0cols=132\0report=1\0swap=/dev/vdb\0share=share0:below:/\0share=x:rw:/a:b\0share=c:changes:/\0user=7:8\0learn=1\0areas=1\0events=sched:*\0\
            net=10.0.2.15/24,10.0.2.2\0later=7\0";
        let spec = Spec::parse(bytes).unwrap();
        assert_eq!(spec.exec, b"/bin/busybox");
        assert_eq!(spec.arguments, [&b"sh"[..], b"-c", b"echo a=b"]);
        assert_eq!(spec.environment, [&b"A=1"[..], b"B="]);
        assert_eq!(spec.cwd, b"/tmp");
        assert_eq!(spec.streams, [Stream::Terminal, Stream::Terminal, Stream::Pipe]);
        assert_eq!((spec.rows, spec.columns, spec.report), (50, 132, ClosingTables::Wanted));
        assert_eq!(spec.swap.as_deref(), Some(&b"/dev/vdb"[..]));
        let shares: std::vec::Vec<_> =
            spec.shares.iter().map(|share| (&share.tag[..], share.mode, &share.path[..])).collect();
        assert_eq!(
            shares,
            [
                (&b"share0"[..], ShareMode::Below, &b"/"[..]),
                (b"x", ShareMode::ReadWrite, b"/a:b"),
                (b"c", ShareMode::Changes, b"/"),
            ]
        );
        assert_eq!((spec.user, spec.learning, spec.tells_areas), ((7, 8), Learning::Wanted, true));
        assert_eq!(spec.events.as_deref(), Some(&b"sched:*"[..]));
        let net = NetSpec { address: [10, 0, 2, 15], prefix: 24, gateway: [10, 0, 2, 2] };
        assert_eq!(spec.net, Some(net));
    }

    #[test]
    fn questions_for_the_end_are_processes_addresses_and_frames() {
        let spec = Spec::parse(b"exec=/x\0owns=2\0owns=frame:499\0owns=2:4096\0").unwrap();
        let asked = [OwnerQuestion::Process(2), OwnerQuestion::Frame(499), OwnerQuestion::Address(2, 4096)];
        assert_eq!(spec.owners[..], asked);
        for wrong in [&b"exec=/x\0owns=\0"[..], b"exec=/x\0owns=frame:\0", b"exec=/x\0owns=0x2\0"] {
            assert_eq!(Spec::parse(wrong).map(|_| ()), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn an_empty_argument_is_an_argument() {
        assert_eq!(Spec::parse(b"exec=/x\0arg=\0").unwrap().arguments, [b"".as_slice()]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bytes in [
            &b"arg=x\0"[..],
            b"exec=/x\0nonsense\0",
            b"exec=/x\0rows=many\0",
            b"exec=/x\0stdin=disk\0",
            b"exec=/x\0user=7\0",
            b"exec=/x\0user=root:0\0",
            b"exec=/x\0share=share0:above:/\0",
            b"exec=/x\0net=10.0.2.15,10.0.2.2\0",
            b"exec=/x\0net=10.0.2.15/32,10.0.2.2\0",
            b"exec=/x\0net=10.0.2.15/24,gateway\0",
        ] {
            assert_eq!(Spec::parse(bytes), Err(Errno::EINVAL));
        }
    }
}
