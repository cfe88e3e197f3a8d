//! The device addresses of IP addresses on this network, and frames that wait until one is known
//! (RFC 826).
//!
//! This machine asks for an address only when it has something to send there. It learns addresses
//! from machines that it asked, and from machines that ask for it. The list has at most [`MOST`]
//! entries. A new neighbour replaces one of the least [`Precedence`]: a program that sends to many
//! addresses where no machine is replaces its own questions and no neighbour that has answered, and
//! the gateway always stays.

use core::net::Ipv4Addr;

use freehold_collections::Vec;
use smoltcp::wire::EthernetAddress;

use crate::table::Ends;

/// Largest number of neighbours that are remembered.
const MOST: usize = 64;
/// Largest number of frames that wait for one neighbour.
const WAITING: usize = 16;
/// Nanoseconds between two questions, and the number of questions before the neighbour is given up
/// (Linux: retrans_time_ms, mcast_solicit).
const ASK_AGAIN: u64 = 1_000_000_000;
const QUESTIONS: u8 = 3;
/// Nanoseconds for which an answer is valid.
const LIFE: u64 = 60_000_000_000;

/// A frame that waits, and its connection.
struct WaitingFrame {
    bytes: Vec<u8>,
    ends: Option<Ends>,
}

enum Knowledge {
    /// Not answered yet: the number of questions, and the time of the next.
    Asked(u8, u64),
    /// The neighbour's address, valid until this time.
    Known(EthernetAddress, u64),
}

/// How much it matters that an entry stays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Precedence {
    /// Nothing was sent there, or its address is not known and nothing waits for it.
    Unused,
    /// Frames wait for its answer.
    Asked,
    /// Its address is valid and was used.
    Known,
    /// The way to all other networks.
    Gateway,
}

struct Neighbour {
    ip: Ipv4Addr,
    /// Time of the last frame to it; 0 if there was none.
    used: u64,
    knowledge: Knowledge,
    waiting: Vec<WaitingFrame>,
}

/// See the module's head.
pub struct Neighbours {
    list: Vec<Neighbour>,
    gateway: Ipv4Addr,
}

/// Next step for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Send it to this device address.
    To(EthernetAddress),
    /// The frame waits: send a question.
    Ask,
    /// The frame waits, or was dropped for lack of room.
    Wait,
}

impl Neighbour {
    fn precedence(&self, gateway: Ipv4Addr, now: u64) -> Precedence {
        let is_valid = matches!(self.knowledge, Knowledge::Known(_, until) if now < until);
        match self.used {
            _ if self.ip == gateway => Precedence::Gateway,
            1.. if is_valid => Precedence::Known,
            1.. if !self.waiting.is_empty() => Precedence::Asked,
            _ => Precedence::Unused,
        }
    }
}

impl Neighbours {
    /// Makes an empty list, in which `gateway` keeps its entry.
    pub const fn new(gateway: Ipv4Addr) -> Self {
        Self { list: Vec::new(), gateway }
    }

    /// Where a frame for `ip` goes; it is kept until that is known.
    pub fn route(&mut self, ip: Ipv4Addr, frame: &[u8], ends: Option<Ends>, now: u64) -> Route {
        let known = self.list.iter_mut().find(|neighbour| neighbour.ip == ip);
        let neighbour = match known {
            Some(neighbour) => neighbour,
            None => match self.enter(ip, Precedence::Known, now) {
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
            // Without memory the frame counts as lost on its way.
            let _ = neighbour.waiting.try_push(WaitingFrame { bytes, ends });
        }
        asks
    }

    /// Adds an entry, or replaces one whose precedence is at most `most`.
    fn enter(&mut self, ip: Ipv4Addr, most: Precedence, now: u64) -> Option<&mut Neighbour> {
        let knowledge = Knowledge::Asked(0, u64::MAX);
        let entry = Neighbour { ip, used: 0, knowledge, waiting: Vec::new() };
        if self.list.len() < MOST {
            self.list.try_push(entry).ok()?;
            return self.list.last_mut();
        }
        let gateway = self.gateway;
        let precedence = |neighbour: &Neighbour| (neighbour.precedence(gateway, now), neighbour.used);
        let least = self.list.iter_mut().min_by_key(|neighbour| precedence(neighbour))?;
        if least.precedence(gateway, now) > most {
            return None;
        }
        *least = entry;
        Some(least)
    }

    /// `ip`, which asks for this machine, will be answered: it is remembered if there is room.
    pub fn welcome(&mut self, ip: Ipv4Addr, now: u64) {
        if self.list.iter().all(|neighbour| neighbour.ip != ip) {
            let _ = self.enter(ip, Precedence::Unused, now);
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

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
    const HARDWARE: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);

    fn host(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 2, number)
    }

    /// A list where the gateway has been asked and host 3 has answered.
    fn in_use() -> Neighbours {
        let mut neighbours = Neighbours::new(GATEWAY);
        assert_eq!(neighbours.route(GATEWAY, b"g", None, 1), Route::Ask);
        assert_eq!(neighbours.route(host(3), b"3", None, 1), Route::Ask);
        neighbours.learn(host(3), HARDWARE, 2, |_| {});
        neighbours
    }

    fn frames_for_gateway(neighbours: &mut Neighbours, now: u64) -> usize {
        let mut sent = 0;
        neighbours.learn(GATEWAY, HARDWARE, now, |_| sent += 1);
        sent
    }

    #[test]
    fn frames_to_many_absent_neighbours_replace_their_own_questions_alone() {
        let mut neighbours = in_use();
        for now in 3..1000 {
            let absent = host(10 + (now % 200) as u8);
            neighbours.route(absent, b"x", None, now);
        }
        assert_eq!(neighbours.list.len(), MOST);
        assert_eq!(neighbours.route(host(4), b"4", None, 1000), Route::Ask);
        assert_eq!(neighbours.route(host(3), b"3", None, 1000), Route::To(HARDWARE));
        assert_eq!(frames_for_gateway(&mut neighbours, 1000), 1);
        assert_eq!(neighbours.route(GATEWAY, b"g", None, 1001), Route::To(HARDWARE));
    }

    #[test]
    fn machines_that_ask_for_this_one_replace_no_neighbour_that_is_used() {
        let mut neighbours = in_use();
        for now in 3..1000 {
            neighbours.welcome(host(10 + (now % 200) as u8), now);
            neighbours.learn(host(10 + (now % 200) as u8), HARDWARE, now, |_| {});
        }
        assert_eq!(neighbours.route(host(3), b"3", None, 1000), Route::To(HARDWARE));
        assert_eq!(frames_for_gateway(&mut neighbours, 1000), 1);
        // A new one finds room among those that were never used.
        assert_eq!(neighbours.route(host(4), b"4", None, 1000), Route::Ask);
    }

    #[test]
    fn the_longest_unused_of_known_neighbours_is_replaced() {
        let mut neighbours = Neighbours::new(GATEWAY);
        for number in 0..MOST as u8 {
            neighbours.route(host(100 + number), b"x", None, 1 + u64::from(number));
            neighbours.learn(host(100 + number), HARDWARE, 1 + u64::from(number), |_| {});
        }
        assert_eq!(neighbours.route(host(100), b"x", None, 500), Route::To(HARDWARE));
        assert_eq!(neighbours.route(host(1), b"x", None, 501), Route::Ask);
        assert_eq!(neighbours.route(host(100), b"x", None, 502), Route::To(HARDWARE));
        assert_eq!(neighbours.route(host(101), b"x", None, 503), Route::Ask);
    }
}
