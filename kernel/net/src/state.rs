//! Types of a connection of TCP: its states, its failures, the effects of a segment.

use crate::seq::Seq;
use crate::wire::TcpSegment;

/// Segment size of a peer that names none (RFC 9293, section 3.7.1), and the least that is
/// believed.
const DEFAULT_MSS: u16 = 536;
const LEAST_MSS: u16 = 64;

/// RFC 9293, section 3.3.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// A SYN is sent.
    SynSent,
    /// One came, and its answer is sent.
    SynReceived,
    /// Bytes go both ways.
    Established,
    /// The program has ended its stream.
    FinWait1,
    /// And the peer knows.
    FinWait2,
    /// The peer has ended its stream; the program has not.
    CloseWait,
    /// Both have ended their streams; the peer does not know yet.
    Closing,
    /// The peer has ended its stream, and then the program.
    LastAck,
    /// Both ends know of the end; old segments may still come.
    TimeWait,
    /// The connection is over.
    Closed,
}

/// When an acknowledgement is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// No acknowledgement of its own. Segments that are sent for other reasons carry one.
    None,
    /// At this time.
    At(u64),
    /// With the next segment, which is to be sent.
    Now,
}

/// Why a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No listener is there.
    Refused,
    /// The peer broke it off.
    Reset,
    /// The peer does not answer.
    TimedOut,
    /// No way leads there.
    Unreachable,
}

/// Effects of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arrival {
    /// Bytes can go both ways from now on.
    pub established: bool,
    /// The connection failed, for this reason.
    pub failed: Option<Failure>,
    /// The segment belongs to no connection: a reset with this sequence number is to answer it.
    pub reset: Option<Seq>,
}

/// Terms in the first segment of a stream for those that follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its sequence number.
    pub seq: Seq,
    /// The longest segment that the peer takes (bytes).
    pub mss: u16,
    /// How far its windows are shifted, if they are.
    pub scale: Option<u8>,
    /// Its window, not shifted.
    pub window: u16,
}

impl Offer {
    /// That of a SYN, for a machine whose segments have `most` bytes at most.
    pub fn of(segment: &TcpSegment<'_>, most: u16) -> Self {
        let mss = segment.mss.unwrap_or(DEFAULT_MSS).clamp(LEAST_MSS, most);
        Self { seq: segment.seq, mss, scale: segment.scale, window: segment.window }
    }
}
