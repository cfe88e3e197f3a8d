//! Every interleaving of a writer and a reader of `src/ring.rs` within bounds.
//!
//! There are also two variants, one without the writer's fence and one without the reader's second
//! load. The model detects both defects, so it does explore these interleavings.
#![forbid(unsafe_code)]
#![allow(missing_docs, dead_code, unreachable_pub, reason = "a test that includes modules of the crate")]

mod atomic {
    use core::sync::atomic::AtomicBool;
    pub use loom::sync::atomic::{AtomicU64, Ordering};

    /// Leaves the fences of this order out.
    pub static WITHOUT_RELEASE: AtomicBool = AtomicBool::new(false);
    pub static WITHOUT_ACQUIRE: AtomicBool = AtomicBool::new(false);

    pub fn fence(order: Ordering) {
        let left_out = match order {
            Ordering::Release => &WITHOUT_RELEASE,
            _ => &WITHOUT_ACQUIRE,
        };
        if !left_out.load(core::sync::atomic::Ordering::Relaxed) {
            loom::sync::atomic::fence(order);
        }
    }
}

#[path = "../src/field.rs"]
mod field;
#[path = "../src/format.rs"]
mod format;
#[path = "../src/record.rs"]
mod record;
#[path = "../src/ring.rs"]
mod ring;
#[path = "../src/table.rs"]
mod table;
#[path = "../src/template.rs"]
mod template;
pub use record::MOST_PAYLOAD;

use std::panic::{AssertUnwindSafe, catch_unwind};

use atomic::AtomicU64;
use field::Comm;
use loom::sync::Arc;
use loom::thread;
use record::{MOST_WORDS, RecordHead, RecordView};
use ring::{Ends, RingPlace, Words};

/// Two pages for one record of seven words each.
const PAGE: u64 = 8;
const WORDS: u64 = 2 * PAGE;

struct Small(Vec<AtomicU64>);

impl Words for Small {
    const PAGE: u64 = PAGE;
    fn pages(&self) -> u64 {
        WORDS / PAGE
    }
    fn page(&self, position: u64) -> &[AtomicU64] {
        &self.0[(position % WORDS / PAGE * PAGE) as usize..][..PAGE as usize]
    }
}

fn head(time: u64) -> RecordHead {
    RecordHead { time, event: 2, pid: time as i32, comm: Comm([0; 16]) }
}

/// A writer writes records whose words identify them, while a reader reads: each record that it
/// gets is one that was written, numbers go up, and the count of missed records is exact.
fn model() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let ring = Arc::new((Ends::new(), Small((0..WORDS).map(|_| AtomicU64::new(0)).collect())));
        ring.0.write(&ring.1, || head(1), &[100, 200]);
        ring.0.write(&ring.1, || head(2), &[101, 201]);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || ring.0.write(&ring.1, || head(3), &[102, 202]))
        };
        let mut buffer = [0; MOST_WORDS];
        let mut place = RingPlace::default();
        let mut seen = 0;
        while let Some(found) = ring.0.read(&ring.1, place, None, &mut buffer) {
            let number = place.number + found.missed;
            let record = RecordView::parse(&buffer[..found.length]).expect("a whole record");
            assert_eq!(record.number, number);
            assert_eq!(record.head, head(number + 1), "the head is the record's own");
            assert_eq!(record.payload, [100 + number, 200 + number], "so are its fields");
            seen += 1 + found.missed;
            place = found.next;
        }
        writer.join().expect("the writer writes");
        while let Some(found) = ring.0.read(&ring.1, place, None, &mut buffer) {
            seen += 1 + found.missed;
            place = found.next;
        }
        assert_eq!((seen, place.number, ring.0.written()), (3, 3, 3), "read and missed are all");
    });
}

fn fails(left_out: &core::sync::atomic::AtomicBool) -> bool {
    left_out.store(true, core::sync::atomic::Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(model));
    left_out.store(false, core::sync::atomic::Ordering::Relaxed);
    outcome.is_err()
}

/// One test for all variants, because statics choose the variant.
#[test]
fn a_reader_gets_whole_records_and_knows_what_it_missed_whatever_the_writer_does() {
    model();
    assert!(fails(&atomic::WITHOUT_RELEASE), "without the writer's fence a torn record is not noticed");
    assert!(fails(&atomic::WITHOUT_ACQUIRE), "without the reader's fence its second look may come too early");
}
