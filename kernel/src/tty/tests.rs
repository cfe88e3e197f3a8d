use core::sync::atomic::{AtomicUsize, Ordering};
use std::vec;
use std::vec::Vec;

use linux_raw_sys::general as c;

use super::*;
use crate::fs::anonymous::AnonymousNode;
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::fs::{Blocking, File, NodeKind, OpenFlags, Ready};
use crate::sync::{PollWaiter, Wake, Woken};

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(&self) -> Woken {
        self.0.fetch_add(1, Ordering::SeqCst);
        Woken::Nobody
    }
}

fn raw(change: impl FnOnce(&mut Termios)) -> (Arc<Tty>, Arc<TtyFile>) {
    let mut termios = Termios::standard();
    termios.lflag = 0;
    change(&mut termios);
    let tty = Tty::new(136, 0, Wire::Master, termios).unwrap();
    let node = AnonymousNode::plain(NodeKind::CharDevice, "tty");
    let file = tty.open(node, OpenFlags::RDWR | OpenFlags::NOCTTY).unwrap();
    (tty, file)
}

fn read(file: &TtyFile, most: usize) -> Result<Vec<u8>> {
    let mut buffer = vec![0; most];
    let count = file.read_at(0, &mut SliceSink::new(&mut buffer), Blocking::Never)?;
    buffer.truncate(count);
    Ok(buffer)
}

#[test]
fn every_byte_wakes_a_reader_that_has_taken_some_of_what_it_waits_for() {
    let (tty, file) = raw(|termios| termios.cc[c::VMIN as usize] = 3);
    let bell = reserve::arc(Bell::default());
    let mut waiter = PollWaiter::observer(bell.clone());
    file.poll(Some(&mut waiter));
    tty.receive(b"1");
    assert_eq!(read(&file, 3).unwrap(), b"1");
    let before = bell.0.load(Ordering::SeqCst);
    tty.receive(b"2");
    assert!(bell.0.load(Ordering::SeqCst) > before);
}

#[test]
fn a_read_longer_than_a_chunk_takes_all_there_is() {
    let (tty, file) = raw(|_| {});
    let typed = vec![b'x'; 3000];
    assert_eq!(tty.receive(&typed), 3000);
    assert_eq!(read(&file, 5000).unwrap(), typed);
    assert_eq!(read(&file, 1), Err(Errno::EAGAIN));
}

#[test]
fn a_long_line_is_read_whole_through_many_chunks() {
    let (tty, file) = raw(|termios| termios.lflag = c::ICANON);
    let mut typed = vec![b'x'; 2000];
    typed.push(b'\n');
    tty.receive(&typed);
    tty.receive(b"next\n");
    assert_eq!(read(&file, 4096).unwrap(), typed);
    assert_eq!(read(&file, 4096).unwrap(), b"next\n");
}

#[test]
fn polling_reads_without_waiting_are_empty_not_refused() {
    let (_tty, file) = raw(|termios| termios.cc[c::VMIN as usize] = 0);
    assert_eq!(read(&file, 10).unwrap(), b"");
}

#[test]
fn a_hang_up_ends_reading_breaks_writing_and_shows_in_poll() {
    let (tty, file) = raw(|_| {});
    assert_eq!(file.poll(None), Ready::OUT);
    tty.hang_up();
    assert_eq!(read(&file, 10).unwrap(), b"");
    let written = file.write_at(0, &mut SliceSource::new(b"x"), Blocking::Never);
    assert_eq!(written, Err(Errno::EIO));
    assert!(file.poll(None).contains(Ready::HUP | Ready::ERR));
    let node = AnonymousNode::plain(NodeKind::CharDevice, "tty");
    let again = tty.open(node, OpenFlags::RDWR | OpenFlags::NOCTTY).unwrap();
    assert_eq!(read(&again, 10), Err(Errno::EAGAIN));
}

#[test]
fn a_writer_stops_at_a_full_wire_and_goes_on_when_it_drains() {
    let (tty, file) = raw(|termios| termios.oflag = 0);
    let big = vec![b'x'; 10_000];
    let first = file.write_at(0, &mut SliceSource::new(&big), Blocking::Never).unwrap();
    assert!(first < big.len());
    assert!(!file.poll(None).contains(Ready::OUT));
    let mut fetched = vec![0; 10_000];
    assert_eq!(tty.fetch(&mut fetched), first);
    assert!(file.poll(None).contains(Ready::OUT));
}
