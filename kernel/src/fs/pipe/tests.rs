use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::fs::bytes::{SliceSink, SliceSource};

fn pair() -> (Arc<PipeEnd>, Arc<PipeEnd>) {
    Pipe::pair(OpenFlags::empty()).unwrap()
}

fn write(end: &PipeEnd, bytes: &[u8]) -> Result<usize> {
    end.write_at(0, &mut SliceSource::new(bytes), Blocking::Never)
}

fn read(end: &PipeEnd, most: usize) -> Result<Vec<u8>> {
    let mut buffer = vec![0; most];
    let count = end.read_at(0, &mut SliceSink::new(&mut buffer), Blocking::Never)?;
    buffer.truncate(count);
    Ok(buffer)
}

#[test]
fn bytes_come_out_in_the_order_they_went_in() {
    let (reader, writer) = pair();
    assert_eq!(read(&reader, 1), Err(Errno::EAGAIN));
    write(&writer, b"one ").unwrap();
    write(&writer, b"two").unwrap();
    assert_eq!(reader.pipe.ring.lock().pages(), 1);
    assert_eq!(reader.pipe().bytes(), Ok(7));
    assert_eq!(read(&reader, 5).unwrap(), b"one t");
    assert_eq!(read(&reader, 5).unwrap(), b"wo");
}

#[test]
fn no_writer_is_the_end_of_the_file_after_the_last_byte() {
    let (reader, writer) = pair();
    write(&writer, b"last").unwrap();
    assert!(!reader.poll(None).contains(Ready::HUP));
    drop(writer);
    assert_eq!(reader.poll(None), Ready::IN | Ready::HUP);
    assert_eq!(read(&reader, 10).unwrap(), b"last");
    assert_eq!(read(&reader, 10).unwrap(), b"");
    assert_eq!(reader.poll(None), Ready::HUP);
}

#[test]
fn no_reader_is_a_broken_pipe() {
    let (reader, writer) = pair();
    drop(reader);
    assert_eq!(writer.poll(None), Ready::OUT | Ready::ERR);
    assert_eq!(write(&writer, b"x"), Err(Errno::EPIPE));
}

#[test]
fn a_full_pipe_takes_no_more_and_says_so() {
    let (reader, writer) = pair();
    let big = vec![7; 2 * DEFAULT_PAGES * PAGE_SIZE];
    assert_eq!(write(&writer, &big).unwrap(), DEFAULT_PAGES * PAGE_SIZE);
    assert_eq!(write(&writer, b"x"), Err(Errno::EAGAIN));
    assert!(!writer.poll(None).contains(Ready::OUT));
    assert_eq!(read(&reader, PAGE_SIZE).unwrap().len(), PAGE_SIZE);
    assert!(writer.poll(None).contains(Ready::OUT));
}

#[test]
fn a_small_write_that_does_not_fit_whole_is_refused_whole() {
    let (_reader, writer) = pair();
    let page = vec![1; PAGE_SIZE];
    for _ in 0..DEFAULT_PAGES - 1 {
        write(&writer, &page).unwrap();
    }
    write(&writer, &page[..PAGE_SIZE - 10]).unwrap();
    assert_eq!(write(&writer, &page[..11]), Err(Errno::EAGAIN));
    assert_eq!(write(&writer, &page[..10]).unwrap(), 10);
}

#[test]
fn packets_stay_apart_and_lose_what_is_not_read() {
    let (reader, writer) = Pipe::pair(OpenFlags::DIRECT).unwrap();
    write(&writer, b"first").unwrap();
    write(&writer, b"second").unwrap();
    assert_eq!(read(&reader, 3).unwrap(), b"fir");
    assert_eq!(read(&reader, 30).unwrap(), b"second");
}

#[test]
fn the_size_is_a_power_of_two_of_pages_and_never_below_the_content() {
    let (_reader, writer) = pair();
    assert_eq!(writer.pipe().capacity(), 65536);
    assert_eq!(writer.pipe().set_capacity(5000).unwrap(), 8192);
    write(&writer, &vec![0; 8192]).unwrap();
    assert_eq!(writer.pipe().set_capacity(4096), Err(Errno::EBUSY));
    assert_eq!(writer.pipe().set_capacity(0), Err(Errno::EBUSY));
    assert_eq!(writer.pipe().set_capacity(1 << 20).unwrap(), 1 << 20);
    assert_eq!(writer.pipe().set_capacity((1 << 31) + 1), Err(Errno::EINVAL));
}

#[test]
fn a_fifo_is_emptied_when_nobody_has_it_open() {
    let pipe = Pipe::new().unwrap();
    let node = AnonymousNode::plain(NodeKind::Fifo, "fifo");
    let both = open_fifo(&pipe, node.clone(), OpenFlags::RDWR).unwrap();
    both.write_at(0, &mut SliceSource::new(b"gone"), Blocking::Never).unwrap();
    drop(both);
    assert_eq!(pipe.bytes(), Ok(0));
    assert_eq!(
        open_fifo(&pipe, node.clone(), OpenFlags::WRONLY | OpenFlags::NONBLOCK).err(),
        Some(Errno::ENXIO)
    );
    let reader = open_fifo(&pipe, node, OpenFlags::NONBLOCK).unwrap();
    assert_eq!(reader.poll(None), Ready::empty());
}

#[test]
fn a_pipe_opened_again_waits_for_nobody() {
    let (reader, writer) = pair();
    write(&writer, b"left behind").unwrap();
    drop(writer);
    let again = reader.node().open(OpenFlags::empty()).unwrap();
    drop(reader);
    let mut buffer = [0; 20];
    let count = again.read_at(0, &mut SliceSink::new(&mut buffer), Blocking::Wait).unwrap();
    assert_eq!(&buffer[..count], b"left behind");
    assert_eq!(again.read_at(0, &mut SliceSink::new(&mut buffer), Blocking::Wait), Ok(0));
}

proptest! {
    #[test]
    fn any_mix_of_reads_and_writes_is_one_stream(steps in prop::collection::vec((any::<bool>(), 1usize..9000), 1..60)) {
        let (reader, writer) = pair();
        let (mut next_in, mut next_out) = (0u8, 0u8);
        for (reads, size) in steps {
            if reads {
                for byte in read(&reader, size).unwrap_or_default() {
                    prop_assert_eq!(byte, next_out);
                    next_out = next_out.wrapping_add(1);
                }
            } else {
                let bytes: Vec<u8> = (0..size).map(|i| next_in.wrapping_add(i as u8)).collect();
                let count = write(&writer, &bytes).unwrap_or(0);
                prop_assert!(count == size || count.is_multiple_of(PAGE_SIZE) || size > PAGE_SIZE);
                next_in = next_in.wrapping_add(count as u8);
            }
            prop_assert!(writer.pipe.ring.lock().pages() <= DEFAULT_PAGES);
        }
    }
}
