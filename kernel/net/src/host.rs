//! Services that a [`Stack`](crate::Stack) needs of its machine.

use crate::state::Failure;
use crate::table::{Ends, Id};
use crate::wire::Marks;

/// Why a listener takes no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its queue is full, or memory is short: the peer asks again.
    Later,
    /// It listens no more.
    Gone,
}

/// Services that a stack needs of its machine.
pub trait Host {
    /// Socket of a connection; dropped when the connection is over.
    type Socket;
    /// Send a frame; one that finds no room is lost.
    fn transmit(&mut self, frame: &[u8]);
    /// Whether a listener is there for a call.
    fn listens(&mut self, ends: Ends) -> bool;
    /// A call is complete: its socket. One whose connection is over may have had the same number.
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
    /// Whether the socket will send no more than was fetched.
    fn has_ended(&mut self, socket: &Self::Socket) -> bool;
    /// Take bytes that came for the socket; how many.
    fn deliver(&mut self, socket: &Self::Socket, bytes: &[u8]) -> usize;
    /// Returns the owner of the socket.
    fn owner(&mut self, socket: &Self::Socket) -> Owner;
    /// The peer has ended its stream, all of which was delivered.
    fn ended(&mut self, socket: &Self::Socket);
    /// The connection is no more.
    fn failed(&mut self, socket: &Self::Socket, failure: Failure);
    /// A datagram came. Returns whether its port has a socket.
    fn datagram(&mut self, ends: Ends, marks: Marks, payload: &[u8]) -> bool;
    /// Whether packets are to be shown.
    fn hears_packets(&self) -> bool {
        false
    }
    /// A packet for this machine came, from its header on.
    fn packet(&mut self, _packet: &[u8]) {}
    /// One of many connections is done with: the host may let others run.
    fn rest(&mut self) {}
    /// A datagram that was sent found no socket at its port.
    fn refused(&mut self, ends: Ends);
}

/// Owner of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A program that may receive.
    Program,
    /// The owner receives no more: bytes that come break the connection off. A call is given up.
    Deaf,
    /// No owner: the connection is broken off at once.
    Reset,
}
