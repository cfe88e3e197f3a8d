//! The device addresses of IP addresses on this network, and frames that wait until one is known
//! (RFC 826).
//!
//! This machine asks for an address only when it has something to send there. It learns addresses
//! from machines that it asked, and from machines that ask for it. So other machines cannot fill
//! the list beyond [`MOST`], and neighbours in use are dropped last.

use core::net::Ipv4Addr;

use freehold_collections::Vec;
use smoltcp::wire::EthernetAddress;

use crate::table::Ends;

/// The most neighbours that are remembered.
const MOST: usize = 64;
/// The most frames that wait for one neighbour.
const WAITING: usize = 16;
/// Nanoseconds between two questions, and the number of questions before the neighbour is given up
/// (Linux: retrans_time_ms, mcast_solicit).
const ASK_AGAIN: u64 = 1_000_000_000;
const QUESTIONS: u8 = 3;
/// Nanoseconds for which an answer is valid.
const LIFE: u64 = 60_000_000_000;

/// A frame that waits, and its connection.
struct Waiting {
    bytes: Vec<u8>,
    ends: Option<Ends>,
}

enum Knowledge {
    /// Not answered yet: the number of questions, and the time of the next.
    Asked(u8, u64),
    /// The neighbour's address, valid until this time.
    Known(EthernetAddress, u64),
}

struct Neighbour {
    ip: Ipv4Addr,
    used: u64,
    knowledge: Knowledge,
    waiting: Vec<Waiting>,
}

/// See the module's head.
pub struct Neighbours {
    list: Vec<Neighbour>,
}

/// Next step for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Send it to this device address.
    To(EthernetAddress),
    /// The frame waits: send a question.
    Ask,
    /// The frame waits, or was dropped for want of room.
    Wait,
}

impl Neighbours {
    /// Makes an empty list.
    pub const fn new() -> Self {
        Self { list: Vec::new() }
    }

    /// Where a frame for `ip` goes; it is kept until that is known.
    pub fn route(&mut self, ip: Ipv4Addr, frame: &[u8], ends: Option<Ends>, now: u64) -> Route {
        let known = self.list.iter_mut().find(|neighbour| neighbour.ip == ip);
        let neighbour = match known {
            Some(neighbour) => neighbour,
            None => match self.enter(ip, now) {
                Some(neighbour) => neighbour,
                None => return Route::Wait,
            },
        };
        neighbour.used = now;
        let asks = match neighbour.knowledge {
            Knowledge::Known(hardware, until) if now < until => return Route::To(hardware),
            Knowledge::Known(..) => {
                neighbour.knowledge = Knowledge::Asked(1, now + ASK_AGAIN);
                Route::Ask
            }
            Knowledge::Asked(0, _) => {
                neighbour.knowledge = Knowledge::Asked(1, now + ASK_AGAIN);
                Route::Ask
            }
            Knowledge::Asked(..) => Route::Wait,
        };
        if neighbour.waiting.len() < WAITING
            && let Ok(bytes) = Vec::try_from_slice(frame)
        {
            // Without memory it is lost on its way.
            let _ = neighbour.waiting.try_push(Waiting { bytes, ends });
        }
        asks
    }

    fn enter(&mut self, ip: Ipv4Addr, now: u64) -> Option<&mut Neighbour> {
        let knowledge = Knowledge::Asked(0, u64::MAX);
        let entry = Neighbour { ip, used: now, knowledge, waiting: Vec::new() };
        if self.list.len() < MOST {
            self.list.try_push(entry).ok()?;
            return self.list.last_mut();
        }
        let oldest = self.list.iter_mut().min_by_key(|neighbour| neighbour.used)?;
        *oldest = entry;
        Some(oldest)
    }

    /// `ip`, which asks for this machine, will be answered: it is remembered.
    pub fn welcome(&mut self, ip: Ipv4Addr, now: u64) {
        if self.list.iter().all(|neighbour| neighbour.ip != ip) {
            let _ = self.enter(ip, now);
        }
    }

    /// `ip` has this address, which is of interest where it was asked for. `send` gets what waits
    /// for it.
    pub fn learn(&mut self, ip: Ipv4Addr, hardware: EthernetAddress, now: u64, mut send: impl FnMut(&[u8])) {
        let Some(neighbour) = self.list.iter_mut().find(|neighbour| neighbour.ip == ip) else { return };
        neighbour.knowledge = Knowledge::Known(hardware, now + LIFE);
        for frame in core::mem::take(&mut neighbour.waiting).iter() {
            send(&frame.bytes);
        }
    }

    /// When [`expire`](Self::expire) is to be called, if at all.
    pub fn deadline(&self) -> Option<u64> {
        let at = |neighbour: &Neighbour| match neighbour.knowledge {
            Knowledge::Asked(count, at) if count > 0 => Some(at),
            _ => None,
        };
        self.list.iter().filter_map(at).min()
    }

    /// `ask` gets the addresses to ask for again. Returns the connections whose peers, or the way
    /// to them, do not answer.
    pub fn expire(&mut self, now: u64, mut ask: impl FnMut(Ipv4Addr)) -> Vec<Option<Ends>> {
        let mut lost = Vec::new();
        for neighbour in self.list.iter_mut() {
            let Knowledge::Asked(count @ 1.., at) = neighbour.knowledge else { continue };
            if at > now {
                continue;
            }
            if count < QUESTIONS {
                neighbour.knowledge = Knowledge::Asked(count + 1, now + ASK_AGAIN);
                ask(neighbour.ip);
                continue;
            }
            neighbour.knowledge = Knowledge::Asked(0, u64::MAX);
            let waiting = core::mem::take(&mut neighbour.waiting);
            // Without memory they find out by themselves, later.
            let _ = lost.try_extend(waiting.iter().map(|frame| frame.ends));
        }
        lost
    }
}
