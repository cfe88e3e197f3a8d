//! The column of devices that plug memory in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use freehold_virtio::Failed;
use freehold_virtio::mem::region::CONFIG_BYTES;
use freehold_virtio::mem::{Answer, Domain, Mem, Region};
use freehold_virtio::platform::Notify;
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Fake, HostMemory};

use super::table::{End, Lie, Moment};
use super::{Step, misreport, tell};

pub type Memory = Mem<HostMemory, Fake>;

const MIB: u64 = 1 << 20;

/// `struct virtio_mem_config`: 64 MiB at 4 GiB.
pub fn config(block: u64, usable: u64, plugged: u64, requested: u64) -> [u8; CONFIG_BYTES] {
    let mut bytes = [0; CONFIG_BYTES];
    let words = [(0, block), (16, 4096 * MIB), (24, 64 * MIB), (32, usable), (40, plugged), (48, requested)];
    for (at, word) in words {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

pub fn honest() -> [u8; CONFIG_BYTES] {
    config(2 * MIB, 64 * MIB, 0, 8 * MIB)
}

struct Liar {
    fake: Fake,
    lie: Lie,
    armed: AtomicBool,
    mute: AtomicBool,
}

/// Acknowledges the next request, but for giving it back.
pub fn serve(fake: &Fake) -> Option<u32> {
    let (head, parts) = fake.take(0)?;
    model::write(parts[1].address, &[0; 10]);
    Some(head.into())
}

impl Liar {
    fn work(&self) {
        if self.mute.load(Ordering::Relaxed) {
            return;
        }
        while let Some(head) = serve(&self.fake) {
            if self.armed.swap(false, Ordering::Relaxed) {
                if self.lie == Lie::DoubleAnswer {
                    self.fake.give(0, head, 10);
                    self.fake.give(0, head, 10);
                    continue;
                }
                if self.fake.with_ring(0, |ring| tell(ring, self.lie, head, 10)) {
                    continue;
                }
            }
            self.fake.give(0, head, 10);
        }
    }
}

pub fn cell(lie: Lie, moment: Moment) -> End {
    let fake = Fake::new(0);
    fake.set_config(&honest());
    let liar = Arc::new(Liar {
        fake: fake.clone(),
        lie,
        armed: AtomicBool::new(false),
        mute: AtomicBool::new(false),
    });
    let step = Step::leak({
        let liar = liar.clone();
        move || liar.work()
    });
    // At start-up the kernel looked at the same features.
    let lied = lie == Lie::FeaturesOfAllOnes && moment == Moment::Attach;
    let domain = if lied { Domain::Said } else { Domain::Unsaid };
    let found = Region::check(&honest(), domain).unwrap();
    if moment == Moment::Attach {
        begin(&liar, step);
        fake.on_queue(move |ring| {
            _ = tell(ring, lie, 0, 10) || lie == Lie::DoubleAnswer && tell(ring, Lie::IdTwice, 0, 10)
        });
    }
    let Ok(memory) = Memory::new(fake.clone(), model::device(), step, found) else { return End::Refused };
    let unit = memory.region().frames_of(1);
    if moment != Moment::Attach {
        assert_eq!(memory.plug(unit), Ok(Answer::Done));
        begin(&liar, step);
        liar.armed.store(true, Ordering::Relaxed);
    }
    if moment == Moment::Detach {
        fake.with_ring(0, |ring| tell(ring, lie, 0, 10));
        drop(memory);
        let refused = lie == Lie::ResetRefused;
        assert_eq!(refused, fake.has_queue(0), "the device was reset");
        return if refused { End::Lost } else { End::Back };
    }
    let held = model::device().held();
    let sizes = memory.sizes();
    let answers = [memory.unplug(unit), memory.plug(unit), memory.unplug_all()];
    if let Ok(sizes) = sizes
        && answers == [Ok(Answer::Done); 3]
    {
        assert!(sizes.requested <= sizes.usable && sizes.usable <= 64 * MIB && sizes.plugged <= 64 * MIB);
        return End::Fine;
    }
    assert_eq!(answers, [Err(Failed); 3], "{lie:?} {moment:?}");
    assert_eq!(memory.sizes(), Err(Failed));
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

/// The lie begins.
fn begin(liar: &Liar, line: &Step) {
    let fake = &liar.fake;
    match liar.lie {
        Lie::ConfigImpossible => fake.set_config(&config(0, 64 * MIB, 0, 0)),
        Lie::ConfigNonsense => fake.set_config(&config(2 * MIB, u64::MAX, u64::MAX - 5, u64::MAX)),
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
