//! Disks that never release the memory of a request, and the closing audit's report about them.

use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::sync::OnceLock;

use freehold_bounce::{DeviceRules, DmaAddr, Limits};
use freehold_machine::Pfn;
use freehold_machine::model::DeviceView;
use syscalls::Sysno;

use super::disk::MemoryDisk;
use super::machine::{Setup, disk, on_machine};
use crate::{host, mem};

const PAGE: u64 = 4096;
const O_DIRECT: u64 = 0o40_000;
const EIO: i64 = -5;

fn the_disk() -> &'static MemoryDisk {
    static DISK: OnceLock<&'static MemoryDisk> = OnceLock::new();
    DISK.get_or_init(|| disk(64))
}

fn with_disk(audit: &'static str) -> Setup {
    Setup { disks: || std::vec![the_disk()], audit: Some(audit), ..Setup::default() }
}

/// Makes the disk keep the memory of requests from now on.
fn lose_the_disk() {
    host::dma().start(mem::frames(), Limits::default());
    mem::offer_frames();
    let view: &'static DeviceView = Box::leak(Box::new(DeviceView::new(Pfn(1 << 32))));
    let rules = DeviceRules { name: "vda", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: Some(view) };
    assert!(the_disk().keeps.set(host::dma().attach(rules).unwrap()).is_ok());
}

on_machine! {
    /// A program's pinned pages, checked and written, shared and private, and a file's pages.
    what_a_lost_disk_keeps_is_no_defect, with_disk("ok"), |p| {
        let disk = p.open("/dev/vda", 2 | O_DIRECT) as u64;
        let (own, shared) = (p.map(8 * PAGE), p.must(Sysno::mmap, &[0, 4 * PAGE, 3, 0x21, u64::MAX, 0]));
        p.store(own, &[1; 8 * PAGE as usize]);
        p.store(shared, &[2; 4 * PAGE as usize]);
        assert_eq!(p.must(Sysno::pread64, &[disk, own, 8 * PAGE, 0]), 8 * PAGE);
        lose_the_disk();
        assert_eq!(p.call(Sysno::pread64, &[disk, own, 4 * PAGE, 0]), EIO);
        // Once more, next to memory that was never written.
        assert_eq!(p.call(Sysno::pread64, &[disk, own + 2 * PAGE, 4 * PAGE, 0]), EIO);
        assert_eq!(p.call(Sysno::pwrite64, &[disk, shared, 4 * PAGE, 0]), EIO);
        let untouched = p.map(2 * PAGE);
        assert_eq!(p.call(Sysno::pwrite64, &[disk, untouched, 2 * PAGE, 0]), EIO);
        // Through the cache.
        let cached = p.open("/dev/vda", 0) as u64;
        assert_eq!(p.call(Sysno::pread64, &[cached, own + 7 * PAGE, 100, 32 * PAGE]), EIO);
        assert!(host::dma().kept().count() >= 5);
        0
    }
}

on_machine! {
    /// A different leak is found in addition to the lost disk.
    a_pin_that_leaks_is_found_beside_a_lost_disk, with_disk(
        "anonymous frames without a process: 1; pins without a holder: 1"
    ), |p| {
        let disk = p.open("/dev/vda", 2 | O_DIRECT) as u64;
        let own = p.map(2 * PAGE);
        p.store(own, &[1; 2 * PAGE as usize]);
        lose_the_disk();
        // The disk keeps the first page twice: a page with two holds counts once.
        (0..2).for_each(|_| assert_eq!(p.call(Sysno::pread64, &[disk, own, PAGE, 0]), EIO));
        the_disk().leaks.store(true, Ordering::Relaxed);
        assert_eq!(p.call(Sysno::pread64, &[disk, own + PAGE, PAGE, 0]), EIO);
        0
    }
}
