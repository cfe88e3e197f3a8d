//! How much a connection keeps, how long it waits, and how often it tries.

/// In nanoseconds, as all times here.
pub const MILLISECOND: u64 = 1_000_000;
/// Bytes that wait in one direction at most, and while memory is tight.
pub const BUFFER: usize = 256 << 10;
pub const TIGHT_BUFFER: usize = 16 << 10;
/// Windows are shifted by so much.
pub const SCALE: u8 = 3;
/// How long an acknowledgement may wait for company (Linux: TCP_DELACK_MIN).
pub const ACK_DELAY: u64 = 40 * MILLISECOND;
/// Bytes of another segment of the same connection may come so much later (Linux: TCP_TIMEWAIT_LEN,
/// tcp_fin_timeout).
pub const TIME_WAIT: u64 = 60_000 * MILLISECOND;
/// Between two answers to segments that make no sense (Linux: tcp_invalid_ratelimit).
pub const CHALLENGES: u64 = 500 * MILLISECOND;
/// Time-outs in a row after which a peer is gone: while it is called, while it calls, later, and
/// once no program is there any more (Linux: tcp_syn_retries, tcp_synack_retries, tcp_retries2,
/// TCP_ORPHAN_RETRIES).
pub const CALLS: u8 = 6;
pub const ANSWERS: u8 = 5;
pub const RETRIES: u8 = 15;
pub const ORPHAN_RETRIES: u8 = 8;
