//! Limits of a connection: its buffers, its waits, and its attempts.

/// Nanoseconds in a millisecond; all times here are in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// Largest number of bytes that wait in one direction: normally, and while memory is tight.
pub const BUFFER: usize = 256 << 10;
pub const TIGHT_BUFFER: usize = 16 << 10;
/// The shift of window sizes (RFC 7323).
pub const SCALE: u8 = 3;
/// The longest delay of an acknowledgement, which may leave with a later segment (Linux:
/// TCP_DELACK_MIN).
pub const ACK_DELAY: u64 = 40 * MILLISECOND;
/// How long an ended connection is remembered, since late segments of it may still arrive (Linux:
/// TCP_TIMEWAIT_LEN, tcp_fin_timeout).
pub const TIME_WAIT: u64 = 60_000 * MILLISECOND;
/// Shortest time between two answers to invalid segments (Linux: tcp_invalid_ratelimit).
pub const CHALLENGES: u64 = 500 * MILLISECOND;
/// Time-outs in a row after which a peer is given up: while this machine connects, while the peer
/// connects, on an open connection, and on one without a program (Linux: tcp_syn_retries,
/// tcp_synack_retries, tcp_retries2, TCP_ORPHAN_RETRIES).
pub const CALLS: u8 = 6;
pub const ANSWERS: u8 = 5;
pub const RETRIES: u8 = 15;
pub const ORPHAN_RETRIES: u8 = 8;
