//! TCP_INFO of a connection without packets.
//!
//! The state and a listening socket's queue are real. The other fields have the initial values of a
//! connection over Linux' loopback device. Round trips take no time, and nothing is counted.

use zerocopy::{Immutable, IntoBytes};

use super::endpoint::Socket;
use super::view::TcpState;

/// `struct tcp_info` of Linux 6.1.
#[repr(C)]
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
pub(super) struct TcpInfo {
    state: u8,
    /// State of congestion, retransmissions, probes, back-off.
    troubles: [u8; 4],
    options: u8,
    /// Window scales, for sending and for receiving.
    scales: u8,
    limits: u8,
    /// Microseconds until a segment is retransmitted, and until an acknowledgement is sent.
    retransmission: u32,
    acknowledgement: u32,
    /// Largest segment sizes, for sending and for receiving.
    segments: [u32; 2],
    /// For a listening socket: the connections that wait.
    unacknowledged: u32,
    /// For a listening socket: the largest number of connections that may wait.
    selected: u32,
    /// Counts of lost and retransmitted segments and others; milliseconds since the last send and
    /// the last receive.
    counts: [u32; 7],
    path_mtu: u32,
    receive_threshold: u32,
    round_trip: u32,
    variance: u32,
    send_threshold: u32,
    congestion_window: u32,
    advertised: u32,
    reordering: u32,
    receive_round_trip: u32,
    receive_space: u32,
    all_retransmissions: u32,
    /// Pacing rate and its maximum, in bytes per second.
    pace: [u64; 2],
    counts_before: [u32; 7],
    least_round_trip: u32,
    counts_after: [u32; 19],
    send_window: u32,
}

/// Options: timestamps, selective acknowledgements, window scaling.
const OPTIONS: u8 = 7;
/// The longest segment that fits into a packet of the loopback device.
const SEGMENT: u32 = 65_483;

impl TcpInfo {
    /// Returns the information on a socket in `state` with this backlog.
    fn of(state: TcpState, (waiting, most): (usize, usize)) -> Self {
        let (is_listening, is_new) = (state == TcpState::Listen, state == TcpState::Close);
        let connected = |value| if is_listening || is_new { 0 } else { value };
        let active = |value| if is_listening { 0 } else { value };
        Self {
            state: state as u8,
            troubles: [0; 4],
            options: connected(OPTIONS.into()) as u8,
            scales: connected(0x55) as u8,
            limits: active(1) as u8,
            retransmission: active(if is_new { 1_000_000 } else { 204_000 }),
            acknowledgement: 0,
            segments: [active(if is_new { 536 } else { 32_752 }), connected(536)],
            unacknowledged: waiting as u32,
            selected: most as u32,
            counts: [0; 7],
            path_mtu: connected(65_535),
            receive_threshold: connected(SEGMENT),
            round_trip: connected(1),
            variance: active(if is_new { 250_000 } else { 1 }),
            send_threshold: active(i32::MAX as u32),
            congestion_window: 10,
            advertised: connected(SEGMENT),
            reordering: 3,
            receive_round_trip: 0,
            receive_space: connected(SEGMENT),
            all_retransmissions: 0,
            pace: [u64::MAX; 2],
            counts_before: [0; 7],
            least_round_trip: active(if is_new { u32::MAX } else { 1 }),
            counts_after: [0; 19],
            send_window: connected(65_504),
        }
    }
}

impl Socket {
    /// Returns TCP_INFO of the socket.
    pub(super) fn tcp_info(&self) -> TcpInfo {
        TcpInfo::of(self.tcp_state(), self.backlog().unwrap_or((0, 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with the offsets in linux/tcp.h.
    #[test]
    fn fields_are_where_linux_has_them() {
        assert_eq!(size_of::<TcpInfo>(), 232);
        let info = TcpInfo::of(TcpState::Listen, (2, 7));
        let bytes = info.as_bytes();
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((bytes[0], number(24), number(28)), (10, 2, 7));
        let info = TcpInfo::of(TcpState::Established, (0, 0));
        let bytes = info.as_bytes();
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        // rto, snd_mss, pmtu, rtt, snd_ssthresh, snd_cwnd, rcv_space, min_rtt, snd_wnd
        let places = [8, 16, 60, 68, 76, 80, 96, 148, 228];
        assert_eq!(places.map(number), [204_000, 32_752, 65_535, 1, i32::MAX as u32, 10, SEGMENT, 1, 65_504]);
        assert_eq!(bytes[104..120], [0xff; 16]);
    }
}
