//! The disk driver of `virtio-drivers`, which knows nothing of the DMA API, on bounce memory.
#![allow(unsafe_code, clippy::unwrap_used)]

mod world;

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::OnceLock;

use freehold_bounce::{Direction, DmaSource};
use freehold_bounce_hal::{BounceHal, LONGEST, Lent, Patience, Place};
use freehold_machine::{PAGE_SIZE, Pfn};
use proptest::prelude::*;
use virtio_drivers::Error;
use virtio_drivers::device::blk::VirtIOBlk;
use world::{Disk, Manner, SECTOR, Source, device, memory};

thread_local! {
    /// Function that a driver calls when it waits for memory. Each test runs in a thread of its
    /// own.
    static WAIT: Cell<fn(usize) -> Patience> = const { Cell::new(|_| Patience::GiveUp) };
}

/// Defines a separate environment for each test: memory, a DMA API that starts with `slabs` slots,
/// a device with `quota`.
macro_rules! place {
    ($name:ident, $slabs:expr, $quota:expr) => {
        struct $name;

        impl $name {
            fn source() -> Source {
                static SOURCE: OnceLock<Source> = OnceLock::new();
                *SOURCE.get_or_init(memory)
            }
        }

        // SAFETY: memory that is never freed, and one page allocator over it.
        unsafe impl Place for $name {
            type Source = Source;
            fn lent() -> &'static Lent<Source> {
                static LENT: OnceLock<Lent<Source>> = OnceLock::new();
                LENT.get_or_init(|| Lent::new(device(Self::source(), $slabs, $quota)))
            }
            fn pointer(frame: Pfn) -> NonNull<u8> {
                Self::source().pointer(frame)
            }
            fn wait(tries: usize) -> Patience {
                WAIT.get()(tries)
            }
        }
    };
}

const SECTORS: usize = 2048;

fn contents() -> Vec<u8> {
    (0..SECTORS * SECTOR).map(|at| (at / SECTOR * 31 + at % 251) as u8).collect()
}

fn driver<P: Place<Source = Source>>(source: Source) -> (VirtIOBlk<BounceHal<P>, Disk>, Disk) {
    let disk = Disk::new(source, P::lent().device(), contents());
    (VirtIOBlk::new(disk.clone()).unwrap(), disk)
}

fn held<S: DmaSource>(lent: &Lent<S>) -> usize {
    lent.device().held()
}

/// The disk checks each address that it gets: see `Disk::judge`.
#[test]
fn the_crates_driver_reads_writes_and_flushes_over_bounce_memory_and_leaves_none_behind() {
    place!(Plain, 128, usize::MAX);
    {
        let (mut driver, disk) = driver::<Plain>(Plain::source());
        assert_eq!(driver.capacity(), SECTORS as u64);
        let rings = held(Plain::lent());
        assert!(rings > 0);
        for (first, count) in [(0, 1), (7, 8), (100, 64), (3, 511)] {
            let mut bytes = vec![0; count * SECTOR];
            driver.read_blocks(first, &mut bytes).unwrap();
            assert!(bytes == contents()[first * SECTOR..][..count * SECTOR]);
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            let second = first + SECTORS / 2;
            driver.write_blocks(second, &bytes).unwrap();
            assert!(disk.state.lock().unwrap().contents[second * SECTOR..][..count * SECTOR] == bytes);
        }
        driver.flush().unwrap();
        assert_eq!(held(Plain::lent()), rings, "what was shared came back");
    }
    assert_eq!(held(Plain::lent()), 0);
    assert_eq!(Plain::lent().device().lost(), 0);
}

#[test]
fn a_device_that_writes_less_than_it_says_leaves_the_drivers_own_bytes() {
    place!(Short, 128, usize::MAX);
    let (mut driver, disk) = driver::<Short>(Short::source());
    // A secret of an earlier transfer lies where the next one is bounced.
    driver.write_blocks(0, &[0x5e; 4096]).unwrap();
    disk.state.lock().unwrap().manner = Manner::Short(100);
    let mut bytes = [7; 4096];
    driver.read_blocks(1024, &mut bytes).unwrap();
    assert_eq!(bytes[..100], contents()[1024 * SECTOR..][..100]);
    assert!(bytes[100..].iter().all(|&byte| byte == 7));
}

#[test]
fn a_device_that_writes_after_it_has_answered_changes_nothing_of_the_drivers() {
    place!(Late, 128, usize::MAX);
    let (mut driver, disk) = driver::<Late>(Late::source());
    disk.state.lock().unwrap().manner = Manner::Late;
    let (mut first, mut second) = ([0; 4096], [0; 512]);
    driver.read_blocks(8, &mut first).unwrap();
    driver.read_blocks(64, &mut second).unwrap();
    assert!(first[..] == contents()[8 * SECTOR..][..4096]);
    assert!(second[..] == contents()[64 * SECTOR..][..512]);
}

#[test]
fn a_buffer_is_in_one_piece_however_fragmented_memory_is() {
    place!(Pieces, 0, usize::MAX);
    let device = Pieces::lent().device();
    let (mut driver, disk) = driver::<Pieces>(Pieces::source());
    // Every other page of the memory stays taken.
    let pages: Vec<_> = (0..256).map(|_| device.buffer(PAGE_SIZE, Direction::ToDevice).unwrap()).collect();
    let kept: Vec<_> = pages.into_iter().step_by(2).collect();
    let scattered = device.buffer(2 * PAGE_SIZE, Direction::ToDevice).unwrap();
    assert!(scattered.one_piece(0..2 * PAGE_SIZE).is_none(), "memory is in pieces");
    drop(scattered);
    for length in [2 * PAGE_SIZE, 3 * PAGE_SIZE, LONGEST / 2 + SECTOR, LONGEST] {
        let mut bytes = vec![0; length];
        driver.read_blocks(1, &mut bytes).unwrap();
        assert!(bytes == contents()[SECTOR..][..length]);
        assert_eq!(disk.state.lock().unwrap().seen.last().unwrap().1, length);
    }
    drop(kept);
}

#[test]
fn a_share_waits_while_memory_is_short_and_goes_on_when_some_comes_back() {
    place!(Tight, 0, usize::MAX);
    let (mut driver, _) = driver::<Tight>(Tight::source());
    // Nothing is idle in the pool, and the page allocator has nothing.
    Tight::lent().device().dma().shrink();
    thread_local!(static OCCUPIED: Cell<Vec<usize>> = const { Cell::new(Vec::new()) });
    OCCUPIED.set(Tight::source().occupy(usize::MAX));
    WAIT.set(|tries| {
        if tries == 3 {
            Tight::source().vacate(&OCCUPIED.take());
        }
        assert!(tries <= 3, "there is memory");
        Patience::Again
    });
    let mut bytes = [0; 4096];
    driver.read_blocks(8, &mut bytes).unwrap();
    assert!(bytes[..] == contents()[8 * SECTOR..][..4096]);
    assert!(OCCUPIED.take().is_empty(), "it waited");
}

#[test]
fn what_cannot_be_had_is_an_error_of_the_device_and_touches_nobodys_bytes() {
    // The quota has room for the rings and 16 KiB.
    place!(Small, 128, 24 << 10);
    let (mut driver, disk) = driver::<Small>(Small::source());
    let rings = held(Small::lent());
    WAIT.set(|tries| if tries < 5 { Patience::Again } else { Patience::GiveUp });
    for length in [32 << 10, 1 << 20] {
        let mut bytes = vec![9; length];
        assert_eq!(driver.read_blocks(0, &mut bytes), Err(Error::IoError));
        assert!(bytes.iter().all(|&byte| byte == 9));
        assert_eq!(driver.write_blocks(0, &bytes), Err(Error::IoError));
    }
    assert!(disk.state.lock().unwrap().contents == contents());
    let mut bytes = [0; 4096];
    driver.read_blocks(0, &mut bytes).unwrap();
    assert!(bytes[..] == contents()[..4096]);
    assert_eq!(held(Small::lent()), rings);
}

#[test]
fn rings_that_cannot_be_had_are_an_error_of_the_driver() {
    place!(NoRings, 128, 4096);
    let disk = Disk::new(NoRings::source(), NoRings::lent().device(), contents());
    assert_eq!(VirtIOBlk::<BounceHal<NoRings>, _>::new(disk).err(), Some(Error::DmaError));
    assert_eq!(held(NoRings::lent()), 0);
}

#[test]
fn what_a_device_has_that_does_not_let_go_is_lost_and_counted() {
    place!(Lost, 128, usize::MAX);
    let (driver, disk) = driver::<Lost>(Lost::source());
    std::mem::forget(driver);
    let held = held(Lost::lent());
    assert_eq!(Lost::lent().lose(), held);
    assert_eq!((Lost::lent().device().lost(), Lost::lent().lose()), (held, 0));
    drop(disk);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The disk contains the bytes that were written last, after any sequence of reads and writes.
    #[test]
    fn a_disk_is_what_was_written(
        steps in proptest::collection::vec((any::<bool>(), 0usize..1500, 1usize..80, any::<u8>()), 1..30),
    ) {
        place!(Any, 32, usize::MAX);
        let (mut driver, disk) = driver::<Any>(Any::source());
        let (mut expected, rings) = (contents(), held(Any::lent()));
        for (writes, first, count, byte) in steps {
            let range = first * SECTOR..(first + count) * SECTOR;
            let mut bytes = vec![byte; range.len()];
            if writes {
                driver.write_blocks(first, &bytes).unwrap();
                expected[range].copy_from_slice(&bytes);
            } else {
                driver.read_blocks(first, &mut bytes).unwrap();
                prop_assert!(bytes == expected[range]);
            }
            prop_assert_eq!(held(Any::lent()), rings);
        }
        prop_assert!(disk.state.lock().unwrap().contents == expected);
    }
}
