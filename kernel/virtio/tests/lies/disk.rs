//! The column of disks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use freehold_bounce::{Original, OriginalMut};
use freehold_virtio::block::VirtioBlock;
use freehold_virtio::platform::{Lines, Notify};
use freehold_virtio::{BlockDevice, BlockError, SECTOR_SIZE, SetupError, Sleep};
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Fake, HostMemory};

use super::table::{End, Lie, Moment};
use super::{Step, misreport, tell};

pub type Disk = VirtioBlock<HostMemory, Fake>;

/// VIRTIO_BLK_F_FLUSH.
pub const FEATURES: u64 = 1 << 9;
pub const SECTORS: u64 = 64;

/// Bytes as an original that can be a trait object.
pub struct Bytes(pub Vec<u8>);

impl Original for Bytes {
    fn length(&self) -> usize {
        self.0.len()
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.0.as_slice().copy_to(offset, to);
    }
}

impl OriginalMut for Bytes {
    fn copy_from(&mut self, offset: usize, from: &[u8]) {
        self.0.as_mut_slice().copy_from(offset, from);
    }
}

/// A disk whose tasks all sleep on `step`.
pub fn start(fake: &Fake, step: &'static Step) -> Result<Disk, SetupError> {
    Disk::new(fake.clone(), model::device(), Lines { answers: step, turns: step })
}

/// Returns the bytes of sector `sector`.
fn content(sector: u64) -> Vec<u8> {
    vec![sector as u8 ^ 0xa5; SECTOR_SIZE]
}

/// `struct virtio_blk_config` up to `blk_size`.
pub fn config(sectors: u64, size_max: u32, seg_max: u32, block_size: u32) -> Vec<u8> {
    let mut bytes = sectors.to_le_bytes().to_vec();
    bytes.extend(size_max.to_le_bytes());
    bytes.extend(seg_max.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(block_size.to_le_bytes());
    bytes
}

/// Serves the next request, but does not give it back. Returns its head, and how much was written.
pub fn serve(fake: &Fake) -> Option<(u32, u32)> {
    let (head, parts) = fake.take(0)?;
    let mut header = [0; 16];
    model::read(parts[0].address, &mut header);
    let sector = u64::from_le_bytes(header[8..].try_into().unwrap());
    let mut written = 1;
    if header[0] == 0 {
        model::write(parts[1].address, &content(sector));
        written += parts[1].length;
    }
    model::write(parts.last().unwrap().address, &[0]);
    Some((head.into(), written))
}

fn read(disk: &Disk, sector: u64) -> Result<(), BlockError> {
    let mut bytes = Bytes(vec![0; SECTOR_SIZE]);
    let result = disk.read(sector, &mut bytes, Sleep::Uninterruptible);
    assert!(result.is_err() || bytes.0 == content(sector), "wrong bytes and no error");
    result
}

/// A device that breaks the protocol once when told to, and is correct otherwise.
struct Liar {
    fake: Fake,
    lie: Lie,
    armed: AtomicBool,
    mute: AtomicBool,
    last: Mutex<Option<(u32, u32)>>,
}

impl Liar {
    fn work(&self) {
        if self.mute.load(Ordering::Relaxed) {
            return;
        }
        while let Some((head, written)) = serve(&self.fake) {
            if self.armed.swap(false, Ordering::Relaxed) {
                if self.lie == Lie::DoubleAnswer {
                    let (last, length) = self.last.lock().unwrap().take().unwrap_or((head, written));
                    self.fake.give(0, head, written);
                    self.fake.give(0, last, length);
                    continue;
                }
                if self.fake.with_ring(0, |ring| tell(ring, self.lie, head, written)) {
                    continue;
                }
            }
            self.fake.give(0, head, written);
            *self.last.lock().unwrap() = Some((head, written));
        }
    }
}

pub fn cell(lie: Lie, moment: Moment) -> End {
    let fake = Fake::new(FEATURES);
    fake.set_config(&config(SECTORS, 1 << 20, 8, 512));
    let liar = Arc::new(Liar {
        fake: fake.clone(),
        lie,
        armed: AtomicBool::new(false),
        mute: AtomicBool::new(false),
        last: Mutex::new(None),
    });
    let step = Step::leak({
        let liar = liar.clone();
        move || liar.work()
    });
    if moment == Moment::Attach {
        begin(&liar, step);
        let early = lie;
        fake.on_queue(move |ring| {
            _ = tell(ring, early, 0, 513) || early == Lie::DoubleAnswer && tell(ring, Lie::IdTwice, 0, 513)
        });
    }
    let before = model::device().held();
    let disk = match start(&fake, step) {
        Ok(disk) => disk,
        Err(_) => return End::Refused,
    };
    if moment != Moment::Attach {
        assert_eq!(read(&disk, 1), Ok(()));
    }
    match moment {
        Moment::Attach => {}
        Moment::Load => {
            begin(&liar, step);
            liar.armed.store(true, Ordering::Relaxed);
        }
        Moment::Detach => {
            // A request is in flight that nothing waits for.
            liar.mute.store(true, Ordering::Relaxed);
            assert_eq!(read(&disk, 2), Err(BlockError::TimedOut));
            begin(&liar, step);
            fake.with_ring(0, |ring| tell(ring, lie, 0, 513));
            drop(disk);
            let refused = lie == Lie::ResetRefused;
            assert_eq!(refused, fake.has_queue(0), "the device was reset");
            return if refused { End::Lost } else { End::Back };
        }
    }
    let first = read(&disk, 3);
    let second = read(&disk, 4);
    match (first, second) {
        (Ok(()), Ok(())) => {
            assert_eq!(disk.sectors(), SECTORS.max(disk.sectors()));
            End::Fine
        }
        (Err(BlockError::Io), Ok(())) => End::OneError,
        (Err(BlockError::TimedOut), Err(BlockError::TimedOut)) => {
            liar.mute.store(false, Ordering::Relaxed);
            liar.work();
            assert_eq!((read(&disk, 5), read(&disk, 6)), (Ok(()), Ok(())), "it works again");
            End::Late
        }
        (Err(BlockError::Failed), Err(BlockError::Failed)) => {
            assert!(fake.status().contains(DeviceStatus::FAILED));
            assert_eq!(disk.flush(Sleep::Uninterruptible), Err(BlockError::Failed));
            if fake.has_queue(0) {
                return End::Lost;
            }
            assert_eq!(model::device().held(), before, "all is back while the driver lives");
            End::Dead
        }
        other => panic!("{lie:?} {moment:?}: {other:?}"),
    }
}

/// The lie begins.
fn begin(liar: &Liar, line: &Step) {
    let fake = &liar.fake;
    match liar.lie {
        Lie::ConfigImpossible => fake.set_config(&config(u64::MAX / 512, 0, 0, 512)),
        Lie::ConfigNonsense => fake.set_config(&config(SECTORS + 1, 0, 0, 3)),
        Lie::SpuriousInterrupts => (0..1000).for_each(|_| line.notify()),
        Lie::NoAnswer | Lie::LateAnswer => liar.mute.store(true, Ordering::Relaxed),
        Lie::ResetRefused => {
            misreport(fake, Lie::ResetRefused);
            // A used element that makes the driver want a reset.
            if fake.has_queue(0) {
                fake.give(0, 63, 0);
            }
        }
        lie => _ = misreport(fake, lie),
    }
}
