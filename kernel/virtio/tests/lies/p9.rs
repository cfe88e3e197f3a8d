//! The column of devices of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_ninep::{DATA_HEADER, HEADER, MAX_REQUEST, NinepRequest, TAG_AT};
use freehold_virtio::p9::{DEPTH, Messages};
use freehold_virtio::platform::{Lines, Notify, Sleep};
use freehold_virtio::{Data, Exchange, MessageDevice, MessageError};
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Descriptor, Fake, HostMemory};

use super::disk::Bytes;
use super::table::{End, Lie, Moment};
use super::{Step, misreport, tell, turn};

pub type Folder = Messages<HostMemory, Fake>;

/// VIRTIO_9P_MOUNT_TAG.
pub const FEATURES: u64 = 1;
/// A tag of five bytes.
pub const CONFIG: [u8; 7] = *b"\x05\0share";
/// Bytes of data that a read asks for: more than a page.
pub const DATA: usize = 9000;

/// Writes an answer to the message in `parts`: its own kind plus one, its tag, and as much data as
/// there is room for. Returns its bytes.
pub fn answer(parts: &[Descriptor]) -> u32 {
    let mut message = [0; HEADER];
    model::read(parts[0].address, &mut message);
    let room: Vec<Descriptor> = parts.iter().copied().filter(|part| part.writable).collect();
    let Some(first) = room.first() else { return 0 };
    let is_read = message[TAG_AT - 1] == 116;
    let data: u32 = if is_read { room[1..].iter().map(|part| part.length).sum() } else { 0 };
    let size = if is_read { DATA_HEADER as u32 + data } else { HEADER as u32 };
    let mut bytes = [0; DATA_HEADER];
    bytes[..4].copy_from_slice(&size.to_le_bytes());
    bytes[4] = message[4].wrapping_add(1);
    bytes[5..7].copy_from_slice(&message[5..7]);
    bytes[7..].copy_from_slice(&data.to_le_bytes());
    model::write(first.address, &bytes[..(size as usize).min(DATA_HEADER).min(first.length as usize)]);
    for part in &room[1..] {
        model::write(part.address, &vec![0x5a; part.length as usize]);
    }
    size
}

/// Sends a message that asks for data, and checks the answer.
pub fn read(folder: &Folder) -> Result<usize, MessageError> {
    let (data, count) = read_any(folder)?;
    assert!(data[..count].iter().all(|&byte| byte == 0x5a));
    Ok(count)
}

/// Sends a message that asks for data.
pub fn read_any(folder: &Folder) -> Result<(Vec<u8>, usize), MessageError> {
    read_noted(folder, 7)
}

/// The same, with a note for the case that the task abandons it.
fn read_noted(folder: &Folder, note: u32) -> Result<(Vec<u8>, usize), MessageError> {
    let (mut room, mut reply, mut data) = ([0; MAX_REQUEST], [0; DATA_HEADER], Bytes(vec![0; DATA]));
    let request = NinepRequest::Read(1, 0, 0).encode(&mut room).unwrap();
    let (data_of, reply) = (Data::Received(&mut data), &mut reply[..]);
    let count = folder
        .exchange(&mut Exchange { request, reply, data: data_of, left: Some(note) }, Sleep::Killable)?;
    Ok((data.0, count))
}

/// Sends a message that is answered by nothing but that it is done.
pub fn clunk(folder: &Folder) -> Result<usize, MessageError> {
    let (mut room, mut reply) = ([0; MAX_REQUEST], [0; DATA_HEADER]);
    let request = NinepRequest::Clunk(1).encode(&mut room).unwrap();
    folder
        .exchange(&mut Exchange { request, reply: &mut reply, data: Data::None, left: None }, Sleep::Killable)
}

struct Liar {
    fake: Fake,
    lie: Lie,
    armed: AtomicBool,
    mute: AtomicBool,
}

impl Liar {
    fn work(&self) {
        if self.mute.load(Ordering::Relaxed) {
            return;
        }
        while let Some((head, parts)) = self.fake.take(0) {
            let size = answer(&parts);
            if self.armed.swap(false, Ordering::Relaxed) {
                if self.lie == Lie::DoubleAnswer {
                    self.fake.give(0, head.into(), size);
                    self.fake.give(0, head.into(), size);
                    continue;
                }
                if self.fake.with_ring(0, |ring| tell(ring, self.lie, head.into(), size)) {
                    continue;
                }
            }
            self.fake.give(0, head.into(), size);
        }
    }
}

pub fn cell(lie: Lie, moment: Moment) -> End {
    let fake = Fake::new(FEATURES);
    fake.set_config(&CONFIG);
    let liar = Arc::new(Liar {
        fake: fake.clone(),
        lie,
        armed: AtomicBool::new(false),
        mute: AtomicBool::new(false),
    });
    let step = Step::leak_killed({
        let liar = liar.clone();
        move || liar.work()
    });
    if moment == Moment::Attach {
        begin(&liar, step);
        fake.on_queue(move |ring| {
            _ = tell(ring, lie, 0, 10) || lie == Lie::DoubleAnswer && tell(ring, Lie::IdTwice, 0, 10)
        });
    }
    let Ok(folder) = Folder::new(fake.clone(), model::device(), Lines { answers: step, turns: step }, step)
    else {
        return End::Refused;
    };
    if moment != Moment::Attach {
        assert_eq!((read(&folder), clunk(&folder)), (Ok(DATA), Ok(HEADER)));
        begin(&liar, step);
        liar.armed.store(true, Ordering::Relaxed);
    }
    if moment == Moment::Detach {
        fake.with_ring(0, |ring| tell(ring, lie, 0, 10));
        drop(folder);
        let refused = lie == Lie::ResetRefused;
        assert_eq!(refused, fake.has_queue(0), "the device was reset");
        return if refused { End::Lost } else { End::Back };
    }
    let held = model::device().held();
    let answers = [read(&folder), clunk(&folder), read(&folder)];
    if answers == [Ok(DATA), Ok(HEADER), Ok(DATA)] {
        return End::Fine;
    }
    if matches!(lie, Lie::NoAnswer | Lie::LateAnswer) {
        assert_eq!(answers, [Err(MessageError::Abandoned); 3]);
        assert_eq!(folder.take_ended(), None, "the device has them");
        liar.mute.store(false, Ordering::Relaxed);
        assert_eq!(clunk(&folder), Ok(HEADER), "the device answers again");
        assert_eq!((folder.take_ended(), folder.take_ended(), folder.take_ended()), (Some(7), Some(7), None));
        return End::Waits;
    }
    assert_eq!(answers[2], Err(MessageError::Failed), "{lie:?} {moment:?}: {answers:?}");
    assert!(fake.status().contains(DeviceStatus::FAILED));
    // An answer that comes now finds no queue.
    liar.mute.store(false, Ordering::Relaxed);
    liar.work();
    if fake.has_queue(0) {
        return End::Lost;
    }
    assert!(model::device().held() < held, "the ring is back while the driver lives");
    End::Dead
}

/// Counts how often it is told.
#[derive(Default)]
struct Told(AtomicUsize);

impl Notify for Told {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A place is used again only once the note on its abandoned request was taken.
#[test]
fn each_note_on_an_abandoned_request_is_handed_out_once() {
    let _turn = turn();
    let fake = Fake::new(FEATURES);
    fake.set_config(&CONFIG);
    let (armed, mute) = (AtomicBool::new(false), AtomicBool::new(false));
    let liar = Arc::new(Liar { fake: fake.clone(), lie: Lie::LateAnswer, armed, mute });
    let step = Step::leak_killed({
        let liar = liar.clone();
        move || liar.work()
    });
    let told: &'static Told = Box::leak(Box::default());
    let folder = Folder::new(fake, model::device(), Lines { answers: step, turns: step }, told).unwrap();
    for note in 0..DEPTH as u32 {
        liar.mute.store(true, Ordering::Relaxed);
        assert_eq!(read_noted(&folder, note), Err(MessageError::Abandoned));
        liar.mute.store(false, Ordering::Relaxed);
        liar.work();
    }
    // Each place waits for its note to be taken.
    assert_eq!(clunk(&folder), Err(MessageError::Killed));
    assert_eq!(told.0.load(Ordering::Relaxed), DEPTH);
    let mut notes: Vec<u32> = core::iter::from_fn(|| folder.take_ended()).collect();
    notes.sort_unstable();
    assert!(notes.iter().copied().eq(0..DEPTH as u32), "{notes:?}");
    assert_eq!((clunk(&folder), read(&folder)), (Ok(HEADER), Ok(DATA)));
}

/// The lie begins.
fn begin(liar: &Liar, line: &Step) {
    let fake = &liar.fake;
    match liar.lie {
        Lie::ConfigImpossible => fake.set_config(&[0; 7]),
        Lie::ConfigNonsense => fake.set_config(&[0xff; 400]),
        Lie::SpuriousInterrupts => (0..1000).for_each(|_| line.notify()),
        Lie::NoAnswer | Lie::LateAnswer => liar.mute.store(true, Ordering::Relaxed),
        Lie::ResetRefused => {
            misreport(fake, Lie::ResetRefused);
            // A used element that makes the driver want a reset.
            if fake.has_queue(0) {
                fake.give(0, 3, 0);
            }
        }
        lie => _ = misreport(fake, lie),
    }
}
