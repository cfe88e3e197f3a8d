//! /sys/kernel/debug/gup_test: pins memory of the calling program in each possible way, for tests
//! and measurements.
//!
//! Numbers and structures are Linux' (CONFIG_GUP_TEST, mm/gup_test.c), so its self-tests run. "GUP"
//! and "PIN" are the same here: each short access holds the frame. The whole system has one long
//! session at a time; closing any descriptor of the file ends it.

use freehold_bounce::Original;
use freehold_collections::{Arc, Receiver, Vec, WipedChunk, reserve};
use freehold_machine::PAGE_SIZE;
use freehold_vm::{LongTerm, Purpose, ReadOnly, ReadWrite, Rule, Term, Transient};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fs::clock;
use crate::fs::file::File;
use crate::fs::flags::OpenFlags;
use crate::fs::node::{Identity, Metadata, Node, NodeKind, SetMetadata, Timestamp};
use crate::fs::pseudo::{PseudoDir, metadata, new_inode, set_metadata};
use crate::mem::{PinWay, PinnedRun, ProcessSpace};
use crate::sync::Mutex;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task, time};

/// Requests.
mod request {
    pub const GUP_FAST: u32 = 0xc050_6701;
    pub const PIN_FAST: u32 = 0xc050_6702;
    pub const PIN_LONG_TERM: u32 = 0xc050_6703;
    // 4 and 5, GUP_BASIC_TEST and PIN_BASIC_TEST: with the lock.
    pub const DUMP: u32 = 0xc050_6706;
    pub const START: u32 = 0x4018_6707;
    pub const STOP: u32 = 0x6708;
    pub const READ: u32 = 0x4008_6709;
}

/// `FOLL_WRITE`; other flags have no effect here.
const WRITE: u32 = 1;
/// Flags of a long session.
mod start {
    pub const WRITE: u32 = 1;
    pub const FAST: u32 = 2;
}

/// `struct gup_test`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Measurement {
    get_microseconds: u64,
    put_microseconds: u64,
    address: u64,
    size: u64,
    pages_per_call: u32,
    gup_flags: u32,
    test_flags: u32,
    /// Numbers of pages to report, from 1 on; 0 is none.
    which_pages: [u32; 8],
    padding: u32,
}

/// `struct pin_longterm_test`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Start {
    address: u64,
    size: u64,
    flags: u32,
    padding: u32,
}

const _: () = assert!(size_of::<Measurement>() == 0x50 && size_of::<Start>() == 0x18);

/// Pages that a long session has pinned.
enum LongPin {
    Reads(PinnedRun<ReadOnly>),
    Writes(PinnedRun<ReadWrite>),
}

impl LongPin {
    fn start(space: &ProcessSpace, start: &Start) -> Result<Self> {
        let (address, size) = (start.address, start.size);
        let page = PAGE_SIZE as u64;
        let whole = address.is_multiple_of(page) && size.is_multiple_of(page);
        if start.flags & !(start::WRITE | start::FAST) != 0 || !whole || size == 0 {
            return Err(Errno::EINVAL);
        }
        let way = if start.flags & start::FAST != 0 { PinWay::FastFirst } else { PinWay::Locked };
        Ok(match start.flags & start::WRITE {
            0 => Self::Reads(pin_all(space, address, size, way)?),
            _ => Self::Writes(pin_all(space, address, size, way)?),
        })
    }

    /// Copies the content of the pinned frames to the program.
    fn read(&self, to: u64) -> Result<()> {
        let length = match self {
            Self::Reads(run) => run.len(),
            Self::Writes(run) => run.len(),
        };
        let mut buffer = WipedChunk::<512>::new();
        let buffer = buffer.part(512);
        for offset in (0..length).step_by(buffer.len()) {
            match self {
                Self::Reads(run) => run.bytes(offset, buffer.len()).copy_to(0, buffer),
                Self::Writes(run) => run.bytes(offset, buffer.len()).copy_to(0, buffer),
            }
            user::write_exact(to.wrapping_add(offset as u64), buffer)?;
        }
        Ok(())
    }
}

fn pin_all<P: Purpose>(space: &ProcessSpace, address: u64, size: u64, way: PinWay) -> Result<PinnedRun<P>> {
    let length = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    let run = PinnedRun::by::<LongTerm>(space, address, length, Rule::Asked, way)?;
    if run.len() < length { Err(Errno::EFAULT) } else { Ok(run) }
}

/// Pins as `wish` says, and unpins. Returns how long each took, and how many bytes were pinned.
fn measure<T: Term, P: Purpose>(wish: &mut Measurement, way: PinWay) -> Result<()> {
    let space = task::current().process().space();
    let per_call = (wish.pages_per_call as usize).checked_mul(PAGE_SIZE).filter(|&bytes| bytes > 0);
    let per_call = per_call.ok_or(Errno::EINVAL)? as u64;
    let end = wish.address.checked_add(wish.size).ok_or(Errno::EINVAL)?;
    let mut runs: Vec<PinnedRun<P>> = Vec::new();
    runs.try_reserve_exact(wish.size.div_ceil(per_call) as usize)?;
    let begun = time::now();
    let mut at = wish.address;
    while at < end {
        let length = per_call.min(end - at);
        let Ok(run) = PinnedRun::by::<T>(&space, at, length as usize, Rule::Asked, way) else { break };
        let pinned = run.len() as u64;
        runs.push_reserved(run);
        at += pinned;
        if pinned < length {
            break;
        }
    }
    wish.get_microseconds = (time::now() - begun) / 1000;
    wish.size = at - wish.address;
    tell(wish, &runs);
    let begun = time::now();
    drop(runs);
    wish.put_microseconds = (time::now() - begun) / 1000;
    Ok(())
}

/// Writes the requested pages to the kernel's log.
fn tell<P: Purpose>(wish: &Measurement, runs: &[PinnedRun<P>]) {
    for number in wish.which_pages.iter().filter(|&&number| number > 0) {
        let index = *number as usize - 1;
        match runs.iter().flat_map(PinnedRun::places).nth(index) {
            Some(frame) => {
                let record = freehold_frame::FrameSource::table(crate::mem::frames()).get(frame);
                let holders = record.map(|record| record.counts().load());
                log::info!("gup_test: page {index} is {frame:?}, held by {holders:?}");
            }
            None => log::info!("gup_test: page {index} is none of those that were pinned"),
        }
    }
}

/// The file.
struct GupTest {
    identity: Identity,
    made: Timestamp,
    session: Mutex<Option<LongPin>>,
}

/// Adds the file to `dir`.
pub(super) fn fill(dir: &Arc<PseudoDir>) {
    let identity = Identity { device: dir.identity().device, inode: new_inode() };
    dir.add("gup_test", reserve::arc(GupTest { identity, made: clock::now(), session: Mutex::new(None) }));
}

impl Node for GupTest {
    fn identity(&self) -> Identity {
        self.identity
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }
    fn metadata(&self) -> Metadata {
        metadata(self.identity, NodeKind::Regular, 0o600, self.made)
    }
    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        set_metadata(change)
    }
    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(reserve::arc(OpenGupTest { node: self }))
    }
}

struct OpenGupTest {
    node: Arc<GupTest>,
}

impl Drop for OpenGupTest {
    fn drop(&mut self) {
        let session = self.node.session.lock().take();
        drop(session);
    }
}

impl File for OpenGupTest {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        match request {
            request::START => {
                let start = UserPtr::<Start>::new(argument).read()?;
                let mut session = self.node.session.lock();
                if session.is_some() {
                    return Err(Errno::EINVAL);
                }
                *session = Some(LongPin::start(&task::current().process().space(), &start)?);
            }
            request::STOP => drop(self.node.session.lock().take()),
            request::READ => {
                let to = UserPtr::<u64>::new(argument).read()?;
                self.node.session.lock().as_ref().ok_or(Errno::EINVAL)?.read(to)?;
            }
            request::GUP_FAST..=request::DUMP => {
                let pointer = UserPtr::<Measurement>::new(argument);
                let mut wish = pointer.read()?;
                let writes = wish.gup_flags & WRITE != 0;
                let (fast, locked) = (PinWay::FastFirst, PinWay::Locked);
                match (request, writes) {
                    (request::GUP_FAST | request::PIN_FAST, false) => {
                        measure::<Transient, ReadOnly>(&mut wish, fast)
                    }
                    (request::GUP_FAST | request::PIN_FAST, true) => {
                        measure::<Transient, ReadWrite>(&mut wish, fast)
                    }
                    (request::PIN_LONG_TERM, false) => measure::<LongTerm, ReadOnly>(&mut wish, locked),
                    (request::PIN_LONG_TERM, true) => measure::<LongTerm, ReadWrite>(&mut wish, locked),
                    (_, false) => measure::<Transient, ReadOnly>(&mut wish, locked),
                    (_, true) => measure::<Transient, ReadWrite>(&mut wish, locked),
                }?;
                pointer.write(&wish)?;
            }
            // Linux' file returns this error.
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}
