use super::*;
use crate::fs::Ready;
use crate::fs::bytes::{SliceSink, SliceSource};
use std::vec::Vec;

fn send(socket: &Arc<Socket>, bytes: &[u8]) -> Result<usize> {
    socket.send(&mut SliceSource::new(bytes), Ancillary::default(), SendTarget::default(), Patience::Never)
}

fn receive(socket: &Socket) -> Result<Vec<u8>> {
    let mut buffer = [0; 64];
    let (sink, mut received) = (&mut SliceSink::new(&mut buffer), Received::default());
    socket.receive(sink, Manner::take(Patience::Never), &mut received)?;
    Ok(buffer[..received.count].to_vec())
}

fn name(text: &[u8]) -> Address {
    Address::Abstract(freehold_collections::reserve::slice(text))
}

#[test]
fn a_pair_talks_both_ways_and_hears_the_other_go() {
    let (one, other) = Socket::pair(SocketKind::Stream);
    send(&one, b"ping").unwrap();
    send(&other, b"pong").unwrap();
    assert_eq!(one.poll(None), Ready::IN | Ready::OUT | Ready::WRBAND);
    assert_eq!((receive(&other).unwrap(), receive(&one).unwrap()), (b"ping".to_vec(), b"pong".to_vec()));
    assert_eq!(receive(&one), Err(Errno::EAGAIN));
    drop(other);
    assert_eq!(receive(&one).unwrap(), b"");
    assert_eq!(send(&one, b"x"), Err(Errno::EPIPE));
    assert!(one.poll(None).contains(Ready::HUP | Ready::RDHUP | Ready::IN));
}

#[test]
fn half_a_connection_can_be_shut_down() {
    let (one, other) = Socket::pair(SocketKind::Stream);
    one.shutdown(Shutdown::Send).unwrap();
    assert_eq!(receive(&other).unwrap(), b"");
    assert_eq!(send(&one, b"x"), Err(Errno::EPIPE));
    send(&other, b"still").unwrap();
    assert_eq!(receive(&one).unwrap(), b"still");
}

#[test]
fn a_listener_hands_out_connections_in_their_order() {
    let listener = Socket::new(Family::Unix, SocketKind::Stream);
    assert_eq!(listener.listen(1), Err(Errno::EINVAL));
    listener.bind(Some(name(b"in order"))).unwrap();
    let clients: Vec<_> = (0..3).map(|_| Socket::new(Family::Unix, SocketKind::Stream)).collect();
    let refused = clients[0].connect(&name(b"in order"), Patience::Never);
    assert_eq!(refused, Err(Errno::ECONNREFUSED));
    listener.listen(1).unwrap();
    clients[0].connect(&name(b"in order"), Patience::Never).unwrap();
    clients[1].connect(&name(b"in order"), Patience::Never).unwrap();
    assert_eq!(clients[2].connect(&name(b"in order"), Patience::Never), Err(Errno::EAGAIN));
    assert_eq!(clients[0].connect(&name(b"in order"), Patience::Never), Err(Errno::EAGAIN));
    assert_eq!(listener.poll(None), Ready::IN);
    send(&clients[0], b"first").unwrap();
    let served = listener.accept(Patience::Never).unwrap();
    assert_eq!(receive(&served).unwrap(), b"first");
    assert_eq!(clients[0].peer_address().unwrap(), Some(name(b"in order")));
    listener.accept(Patience::Never).unwrap();
    assert!(matches!(listener.accept(Patience::Never), Err(Errno::EAGAIN)));
}

#[test]
fn a_listener_that_goes_takes_its_waiting_connections_along() {
    let listener = Socket::new(Family::Unix, SocketKind::Packets);
    listener.bind(Some(name(b"short-lived"))).unwrap();
    listener.listen(5).unwrap();
    let client = Socket::new(Family::Unix, SocketKind::Packets);
    client.connect(&name(b"short-lived"), Patience::Never).unwrap();
    drop(listener);
    assert_eq!(receive(&client), Err(Errno::ECONNRESET));
    assert_eq!(receive(&client).unwrap(), b"");
    assert_eq!(send(&client, b"x"), Err(Errno::EPIPE));
    let again = Socket::new(Family::Unix, SocketKind::Packets);
    again.bind(Some(name(b"short-lived"))).unwrap();
}

#[test]
fn datagrams_find_their_way_by_name_and_say_who_sent_them() {
    let (server, client) =
        (Socket::new(Family::Unix, SocketKind::Datagram), Socket::new(Family::Unix, SocketKind::Datagram));
    server.bind(Some(name(b"server"))).unwrap();
    client.bind(None).unwrap();
    let to = name(b"server");
    let source = &mut SliceSource::new(b"hello");
    let target = SendTarget { address: Some(&to), ..SendTarget::default() };
    client.send(source, Ancillary::default(), target, Patience::Never).unwrap();
    let mut buffer = [0; 16];
    let (sink, mut received) = (&mut SliceSink::new(&mut buffer), Received::default());
    server.receive(sink, Manner::take(Patience::Never), &mut received).unwrap();
    assert_eq!(received.from, client.address());
    assert_eq!(send(&client, b"x"), Err(Errno::ENOTCONN));
    client.connect(&to, Patience::Never).unwrap();
    send(&client, b"x").unwrap();
    drop(server);
    assert_eq!(send(&client, b"x"), Err(Errno::ECONNREFUSED));
}
