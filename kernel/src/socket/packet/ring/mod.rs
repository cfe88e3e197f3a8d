//! Rings of frames in memory that a packet socket shares with its program (PACKET_RX_RING,
//! PACKET_TX_RING).
//!
//! A ring of the versions 1 and 2 has slots of one size ([`slots`]). In version 3 received frames
//! of any size fill blocks, and a program gets whole blocks ([`blocks`]); a block that is not full
//! is handed over after a while ([`handover`]). Both rings of a socket are one file: what is
//! received, then what is sent.
//!
//! The kernel and the program own a slot or block in turn. Its status word tells whose turn it is;
//! the owner changes that word last. Positions, sizes and how full a block is are kept in the
//! kernel, because a program may write anything at any time.
//!
//! **Locks.** [`PacketRings::setting`] is a sleeping lock: rings are made, replaced and sent from
//! under it, and the settings on which a new ring relies change under it, one at a time.
//! [`PacketRings::state`] is a spin lock inside it. Frames are copied under it, and programs are
//! woken after it.
//!
//! Source: `packet_set_ring`, `tpacket_rcv` and `prb_*` of net/packet/af_packet.c;
//! Documentation/networking/packet_mmap.rst.

mod blocks;
pub(super) mod handover;
#[cfg(test)]
mod handover_model;
mod header;
mod layout;
mod send;
mod slots;

use core::sync::atomic::AtomicBool;

use freehold_collections::Arc;

use self::blocks::BlockRing;
use self::header::place_of;
pub(super) use self::header::{Shown, Version};
use self::layout::Layout;
pub(super) use self::layout::Request;
use self::slots::SlotRing;
use super::PacketKind;
use super::offload::OFFLOAD_BYTES;
use crate::mem::{CacheContent, HeldRegion};
use crate::sync::{Mutex, SpinLock};
use crate::{Errno, Result};

/// Status of a slot or block: the kernel's turn, or the program's (TP_STATUS_KERNEL, _USER).
const KERNEL: u32 = 0;
const USER: u32 = 1;
/// TP_STATUS_COPY: the whole frame is in the socket's queue, too.
const COPY: u32 = 1 << 1;
/// TP_STATUS_LOSING: frames were lost since the statistics were last read.
pub(super) const LOSING: u32 = 1 << 2;

/// The two rings of a packet socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// Frames that arrive.
    Receive,
    /// Frames that the program sends.
    Send,
}

/// A ring of frames that arrive.
enum Receiving {
    Slots(SlotRing),
    Blocks(BlockRing),
}

/// The outcome of a frame for a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    /// It is in the ring. `ready`: the program has something new to read.
    Stored { ready: bool },
    /// It is cut in the ring; the caller puts the whole frame into the queue.
    Cut,
    /// It is lost: the program still has the next place.
    Full { ready: bool },
}

/// Settings that programs change while there is no ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingSettings {
    pub version: Version,
    /// PACKET_RESERVE: bytes before each frame's header, for the program.
    pub reserve: u32,
    /// PACKET_COPY_THRESH: unless it is 0, frames that a slot has no room for are also queued.
    pub copy_threshold: u32,
    /// PACKET_VNET_HDR: a header of virtio_net precedes each frame, in rings and elsewhere.
    pub has_offload_header: bool,
    /// PACKET_LOSS: frames that cannot be sent are skipped.
    pub skips_wrong: bool,
    /// PACKET_TX_HAS_OFF: the program's headers tell where its frames begin.
    pub has_offsets: bool,
}

#[derive(Default)]
pub(super) struct RingState {
    pub settings: RingSettings,
    content: Option<Arc<CacheContent>>,
    receiving: Option<Receiving>,
    sending: Option<SlotRing>,
}

/// The rings of a packet socket; see the module's head.
#[derive(Default)]
pub(super) struct PacketRings {
    pub state: SpinLock<RingState>,
    pub setting: Mutex<()>,
    /// Whether the task that hands blocks over knows the socket.
    is_listed: AtomicBool,
}

impl RingState {
    /// Whether there is a ring.
    pub fn is_used(&self) -> bool {
        self.receiving.is_some() || self.sending.is_some()
    }

    /// Returns the bytes of both rings.
    fn bytes(&self) -> u64 {
        let receiving = self.receiving.as_ref().map(|ring| ring.layout().bytes());
        receiving.unwrap_or(0) + self.sending.as_ref().map_or(0, |ring| ring.layout.bytes())
    }

    /// Puts a frame into the ring of received frames at `now` (since boot). `None` without a ring.
    pub fn put(&mut self, shown: &Shown<'_>, kind: PacketKind, now: u64) -> Option<Put> {
        let RingSettings { version, reserve, copy_threshold, has_offload_header, .. } = self.settings;
        let ring = self.receiving.as_mut()?;
        let before = if has_offload_header { OFFLOAD_BYTES } else { 0 };
        let Some(place) = place_of(version, kind, shown.link_bytes, (before, reserve)) else {
            return Some(Put::Full { ready: false });
        };
        Some(match ring {
            Receiving::Slots(slots) => {
                let copies = shown.has_room && copy_threshold != 0;
                slots.put(version, shown, place, if copies { COPY } else { 0 })
            }
            Receiving::Blocks(blocks) => blocks.put(shown, place, now),
        })
    }

    /// Returns when a block that is not full is handed over, in nanoseconds since boot.
    pub fn due(&self) -> Option<u64> {
        match &self.receiving {
            Some(Receiving::Blocks(blocks)) => blocks.due(),
            _ => None,
        }
    }

    /// Whether the program has frames to read, as poll(2) reports it.
    pub fn is_readable(&self) -> bool {
        match &self.receiving {
            None => false,
            Some(Receiving::Slots(slots)) => slots.is_readable(self.settings.version),
            Some(Receiving::Blocks(blocks)) => blocks.is_readable(),
        }
    }

    /// Returns how often all blocks were the program's, and begins to count anew.
    pub fn take_freezes(&mut self) -> u32 {
        match &mut self.receiving {
            Some(Receiving::Blocks(blocks)) => core::mem::take(&mut blocks.freezes),
            _ => 0,
        }
    }
}

impl Receiving {
    fn layout(&self) -> &Layout {
        match self {
            Self::Slots(slots) => &slots.layout,
            Self::Blocks(blocks) => &blocks.layout,
        }
    }
}

impl PacketRings {
    /// Makes or removes a ring; `request` is that of a version. `has_blocks` is called before
    /// there is a ring whose blocks are handed over after a while.
    ///
    /// # Errors
    /// `EBUSY` while a program has rings mapped, and for a ring in place of another; `EINVAL` for
    /// impossible sizes; `ENOMEM`, `EINTR`; those of `request` and `has_blocks`.
    #[cold]
    pub fn set(
        &self,
        direction: Direction,
        request: impl FnOnce(Version) -> Result<Request>,
        has_blocks: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _one_at_a_time = self.setting.lock();
        let (settings, content, before) = {
            let state = self.state.lock();
            let before = match direction {
                Direction::Receive => state.receiving.is_some(),
                Direction::Send => state.sending.is_some(),
            };
            (state.settings, state.content.clone(), before)
        };
        let request = request(settings.version)?;
        if content.as_ref().is_some_and(|content| content.cache().mapped_areas() > 0) {
            return Err(Errno::EBUSY);
        }
        if before && request.has_blocks() {
            return Err(Errno::EBUSY);
        }
        let layout = request.layout(settings.version, direction, settings.reserve)?;
        match direction {
            Direction::Receive => {
                if layout.is_some() && settings.version == Version::V3 {
                    has_blocks()?;
                }
                self.replace_receiving(layout, settings.version)
            }
            Direction::Send => self.replace_sending(layout, content),
        }
    }

    /// The ring of sent frames moves behind the new one. It is empty then: no program can have
    /// mapped and filled it.
    fn replace_receiving(&self, layout: Option<Layout>, version: Version) -> Result<()> {
        let content = HeldRegion::file();
        let end = layout.as_ref().map_or(0, Layout::bytes);
        let receiving = match layout {
            None => None,
            Some(layout) => {
                let region = HeldRegion::make(&content, 0..end)?;
                Some(match version {
                    Version::V3 => Receiving::Blocks(BlockRing::new(region, layout)),
                    _ => Receiving::Slots(SlotRing::new(region, layout)),
                })
            }
        };
        let sending = self.state.lock().sending.as_ref().map(|ring| ring.layout);
        let sending = match sending {
            None => None,
            Some(layout) => {
                Some(SlotRing::new(HeldRegion::make(&content, end..end + layout.bytes())?, layout))
            }
        };
        let new = (Some(content), receiving, sending);
        let mut state = self.state.lock();
        let before = core::mem::replace(&mut state.receiving, new.1);
        let before = (before, core::mem::replace(&mut state.sending, new.2));
        let before = (before, core::mem::replace(&mut state.content, new.0));
        drop(state);
        drop(before);
        Ok(())
    }

    fn replace_sending(&self, layout: Option<Layout>, content: Option<Arc<CacheContent>>) -> Result<()> {
        let start = match &self.state.lock().receiving {
            Some(ring) => ring.layout().bytes(),
            None => 0,
        };
        let content = content.filter(|_| start > 0).unwrap_or_else(HeldRegion::file);
        let sending = match layout {
            None => None,
            Some(layout) => {
                Some(SlotRing::new(HeldRegion::make(&content, start..start + layout.bytes())?, layout))
            }
        };
        let mut state = self.state.lock();
        let before = core::mem::replace(&mut state.sending, sending);
        let before = (before, state.content.replace(content));
        drop(state);
        drop(before);
        Ok(())
    }

    /// Returns the file of the rings, for mmap(2).
    ///
    /// # Errors
    /// `EINVAL` without a ring.
    pub fn content(&self) -> Result<Arc<CacheContent>> {
        let state = self.state.lock();
        state.content.clone().filter(|_| state.is_used()).ok_or(Errno::EINVAL)
    }

    /// Checks that a mapping shows both rings, whole.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check_mapping(&self, offset: u64, length: u64) -> Result<()> {
        let bytes = self.state.lock().bytes();
        if offset == 0 && bytes > 0 && length == bytes { Ok(()) } else { Err(Errno::EINVAL) }
    }
}
