//! Services that a [`Stack`](crate::Stack) needs of its machine.

use crate::state::Failure;
use crate::table::{Ends, Id};
use crate::wire::Marks;

/// The reason why a listener takes no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its queue is full, or memory is short: the peer asks again.
    Later,
    /// The listener has closed.
    Gone,
}

/// Services that a stack needs of its machine.
pub trait Host {
    /// Socket of a connection; dropped when the connection is over.
    type Socket;
    /// Sends a frame; a frame without room is lost.
    fn transmit(&mut self, frame: &[u8]);
    /// Whether a listener for a call exists.
    fn listens(&mut self, ends: Ends) -> bool;
    /// Returns a socket for a completed call. An ended connection may have had the same number.
    ///
    /// # Errors
    /// [`Refusal`].
    fn accept(&mut self, ends: Ends, id: Id) -> Result<Self::Socket, Refusal>;
    /// The call of this socket was answered.
    fn connected(&mut self, socket: &Self::Socket);
    /// Whether the socket has something to send.
    fn has_bytes(&mut self, socket: &Self::Socket) -> bool;
    /// Fills `room` from its front with bytes that the socket sends. Returns their number.
    fn fetch(&mut self, socket: &Self::Socket, room: &mut [u8]) -> usize;
    /// Whether the socket will send no more bytes than were fetched.
    fn has_ended(&mut self, socket: &Self::Socket) -> bool;
    /// Gives the socket received bytes. Returns how many it took.
    fn deliver(&mut self, socket: &Self::Socket, bytes: &[u8]) -> usize;
    /// Returns the owner of the socket.
    fn owner(&mut self, socket: &Self::Socket) -> Owner;
    /// The peer has ended its stream, all of which was delivered.
    fn ended(&mut self, socket: &Self::Socket);
    /// The connection is over.
    fn failed(&mut self, socket: &Self::Socket, failure: Failure);
    /// A datagram arrived. Returns whether its port has a socket.
    fn datagram(&mut self, ends: Ends, marks: Marks, payload: &[u8]) -> bool;
    /// Whether packets are to be shown.
    fn hears_packets(&self) -> bool {
        false
    }
    /// A packet for this machine came, from its header on.
    fn packet(&mut self, _packet: &[u8]) {}
    /// One of many connections is handled: the host may let other tasks run.
    fn rest(&mut self) {}
    /// No socket was at the port of a datagram that was sent.
    fn refused(&mut self, ends: Ends);
}

/// Owner of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A program that may receive.
    Program,
    /// The owner receives no more: bytes that arrive reset the connection. A call is given up.
    Deaf,
    /// No owner: the connection is reset at once.
    Reset,
}
