//! Pins, write-back, memory that is removed, and huge pages: invariants while they are in use, and
//! while every n-th allocation fails.

use core::sync::atomic::{AtomicU64, Ordering};
use std::format;
use std::string::String;
use std::sync::OnceLock;

use syscalls::Sysno;

use super::disk::MemoryDisk;
use super::machine::{Setup, disk, on_machine};
use super::program::Program;
use super::shortage::{count_all_pages, figure};
use super::waiting::Ring;

const PAGE: u64 = 4096;
const EIO: i64 = -5;

/// The machine's disk, which the test also accesses.
static DISK: OnceLock<&MemoryDisk> = OnceLock::new();

fn with_disk() -> Setup {
    let disks = || std::vec![*DISK.get_or_init(|| disk(64))];
    Setup { disks, ..Setup::default() }
}

on_machine! {
    /// A write error of a disk is reported by the next fsync and by no other; later writes are
    /// stored.
    a_disk_that_refuses_is_told_of_once, with_disk(), |p| {
        let disk = DISK.get().unwrap();
        let file = p.open("/dev/vda", 0o2) as u64;
        let text = p.put(b"lost");
        p.must(Sysno::pwrite64, &[file, text, 4, 0]);
        disk.broken.store(true, Ordering::Relaxed);
        assert_eq!(p.call(Sysno::fsync, &[file]), EIO);
        disk.broken.store(false, Ordering::Relaxed);
        assert_eq!(p.call(Sysno::fsync, &[file]), 0, "it was told");
        assert_eq!(figure(p, "/proc/vmstat", "nr_dirty"), 0, "nobody waits for what cannot be stored");
        let text = p.put(b"kept");
        p.must(Sysno::pwrite64, &[file, text, 4, PAGE]);
        p.must(Sysno::fsync, &[file]);
        assert_eq!(disk.with(|bytes| [bytes[0], bytes[4096]]), [0, b'k']);
        0
    }
}

/// Returns the number of the frame of the page at `address`.
fn frame_of(p: &mut Program, address: u64) -> u64 {
    let file = p.open("/proc/self/pagemap", 0) as u64;
    let word = p.room(8);
    assert_eq!(p.must(Sysno::pread64, &[file, word, 8, address / PAGE * 8]), 8);
    p.must(Sysno::close, &[file]);
    p.load_u64(word) & ((1 << 55) - 1)
}

/// Takes the block of memory with `frame` offline, or back online. Returns the result of the write.
fn set_block(p: &mut Program, frame: u64, state: &str) -> i64 {
    let size = p.read_file("/sys/devices/system/memory/block_size_bytes").unwrap();
    let size = u64::from_str_radix(String::from_utf8(size).unwrap().trim(), 16).unwrap();
    let block = frame * PAGE / size;
    p.write_file(&format!("/sys/devices/system/memory/memory{block}/state"), state.as_bytes())
}

/// Two nodes with a block each. The kernel's memory comes from the first, and a program's from the
/// second if it [requests](use_node_1) that.
fn two_blocks() -> Setup {
    Setup { nodes: &[32 << 10, 32 << 10], ..Setup::default() }
}

/// Requests memory from node 1, or elsewhere if that has none (MPOL_PREFERRED).
fn use_node_1(p: &mut Program) {
    let nodes = p.words(&[1 << 1]);
    p.must(Sysno::set_mempolicy, &[1, nodes, 64]);
}

on_machine! {
    /// A pinned page keeps its block online, because a device may still write to the page. The
    /// block can be taken offline when the pin is released.
    a_pin_keeps_its_block, two_blocks(), |p| {
        let ring = Ring::new(p);
        use_node_1(p);
        let memory = p.map(16 << 20);
        for page in 0..16 << 20 >> 12 {
            p.store(memory + page * PAGE, &page.to_le_bytes());
        }
        let page = memory + 5 * PAGE;
        let buffers = p.words(&[page, PAGE]);
        p.must(Sysno::io_uring_register, &[ring.file(), 0, buffers, 1]);
        let frame = frame_of(p, page);
        assert_eq!(set_block(p, frame, "offline"), -16, "EBUSY: it is pinned");
        assert_eq!(frame_of(p, page), frame);
        p.must(Sysno::io_uring_register, &[ring.file(), 1, 0, 0]);
        assert!(set_block(p, frame, "offline") > 0, "nothing holds it any more");
        assert_ne!(frame_of(p, page), frame);
        for page in 0..16 << 20 >> 12 {
            assert_eq!(p.load_u64(memory + page * PAGE), page);
        }
        0
    }
}

/// Returns a 2 MiB range that begins on a 2 MiB boundary and has small pages.
fn small_pages(p: &mut Program) -> u64 {
    let memory = p.map(4 << 20).next_multiple_of(2 << 20);
    p.must(Sysno::madvise, &[memory, 2 << 20, 15]);
    for page in 0..512 {
        p.store(memory + page * PAGE, &page.to_le_bytes());
    }
    p.must(Sysno::madvise, &[memory, 2 << 20, 14]);
    memory
}

on_machine! {
    /// MADV_COLLAPSE combines 512 pages: afterwards the process has a huge page with the same
    /// bytes.
    pages_are_put_together, Setup::default(), |p| {
        let memory = small_pages(p);
        assert_eq!(figure(p, "/proc/self/smaps_rollup", "AnonHugePages"), 0);
        p.must(Sysno::madvise, &[memory, 2 << 20, 25]);
        assert_eq!(figure(p, "/proc/self/smaps_rollup", "AnonHugePages"), 2048);
        for page in 0..512 {
            assert_eq!(p.load_u64(memory + page * PAGE), page);
        }
        0
    }
}

/// The allocation of the next child that fails. A static, because programs are functions of one
/// host process.
static NTH: AtomicU64 = AtomicU64::new(0);

/// Number of children in which one failed.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Checks that a call succeeded, or failed with one of `errors`. Returns whether it succeeded.
fn is_done(result: i64, done: i64, errors: &[i64]) -> bool {
    assert!(result == done || errors.contains(&result), "{result}");
    result == done
}

fn arm(p: &mut Program) {
    let nth = format!("{}", NTH.load(Ordering::Relaxed));
    p.write_file("/proc/self/fail-nth", nth.as_bytes());
}

/// Counts the child if its allocation was reached, and failed.
fn disarm(p: &mut Program) {
    let left = p.read_file("/proc/self/fail-nth").unwrap();
    REFUSED.fetch_add(u64::from(left == b"0\n" && NTH.load(Ordering::Relaxed) > 0), Ordering::Relaxed);
    p.write_file("/proc/self/fail-nth", b"0");
}

/// Runs a child for each n-th allocation. The child calls [`arm`] and [`disarm`]. At the end memory
/// is as before.
fn refuse_each(p: &mut Program, most: u64, child: fn(&mut Program) -> i32) {
    count_all_pages(p);
    let mut free = 0;
    for nth in 0..most {
        NTH.store(nth, Ordering::Relaxed);
        let child = p.fork(child);
        assert_eq!(p.wait_for(child), 0, "with refusal {nth}");
        if nth == most / 2 {
            free = figure(p, "/proc/meminfo", "MemFree");
        }
    }
    assert!(REFUSED.load(Ordering::Relaxed) > 0, "nothing was refused");
    let lost = free.saturating_sub(figure(p, "/proc/meminfo", "MemFree"));
    assert!(lost < 512, "{lost} KiB were not given back");
}

on_machine! {
    /// If any allocation fails while pages are pinned and unpinned, the call fails, or all pages
    /// are pinned.
    pins_with_refusals, with_disk(), |p| {
        refuse_each(p, 24, |p| {
            let memory = p.map(64 * PAGE);
            p.store(memory, b"pinned");
            let ring = Ring::new(p);
            let buffers = p.words(&[memory, 64 * PAGE]);
            arm(p);
            let registered = p.call(Sysno::io_uring_register, &[ring.file(), 0, buffers, 1]);
            is_done(registered, 0, &[-12, -14]);
            let disk = p.open("/dev/vda", 0o40002);
            if disk >= 0 {
                let written = p.call(Sysno::pwrite64, &[disk as u64, memory, 8 * PAGE, 0]);
                is_done(written, 8 * PAGE as i64, &[-12, -14]);
            }
            disarm(p);
            assert_eq!(p.load(memory, 6), b"pinned");
            0
        });
        0
    }
}

on_machine! {
    /// If any allocation fails while pages are written back, fsync fails, or the disk has the
    /// bytes. A second fsync stores them.
    write_back_with_refusals, with_disk(), |p| {
        refuse_each(p, 24, |p| {
            assert!(p.write_file("/proc/sys/vm/drop_caches", b"1") > 0);
            let file = p.open("/dev/vda", 0o2) as u64;
            let value = NTH.load(Ordering::Relaxed) as u8 + 1;
            let bytes = p.put(&[value; 16]);
            arm(p);
            for page in 0..8 {
                let written = p.call(Sysno::pwrite64, &[file, bytes, 16, page * PAGE]);
                is_done(written, 16, &[-12]);
            }
            let stored = p.call(Sysno::fsync, &[file]);
            is_done(stored, 0, &[-12]);
            disarm(p);
            for page in 0..8 {
                p.must(Sysno::pwrite64, &[file, bytes, 16, page * PAGE]);
            }
            p.must(Sysno::fsync, &[file]);
            let disk = DISK.get().unwrap();
            assert!((0..8).all(|page| disk.with(|bytes| bytes[page * 4096]) == value));
            0
        });
        0
    }
}

on_machine! {
    /// If any allocation fails while a block is emptied, the block as a whole is offline or online,
    /// and pages keep their bytes.
    blocks_that_go_with_refusals, two_blocks(), |p| {
        refuse_each(p, 12, |p| {
            use_node_1(p);
            let memory = p.map(256 * PAGE);
            for page in 0..256 {
                p.store(memory + page * PAGE, &page.to_le_bytes());
            }
            let frame = frame_of(p, memory);
            arm(p);
            let went = set_block(p, frame, "offline");
            let went = is_done(went, 7, &[-16, -12]);
            disarm(p);
            for page in 0..256 {
                assert_eq!(p.load_u64(memory + page * PAGE), page);
            }
            if went {
                assert!(set_block(p, frame, "online") > 0);
            }
            0
        });
        0
    }
}

on_machine! {
    /// If any allocation fails while pages are combined, they are one page, or 512 as before.
    huge_pages_with_refusals, Setup::default(), |p| {
        refuse_each(p, 12, |p| {
            let memory = small_pages(p);
            arm(p);
            let done = p.call(Sysno::madvise, &[memory, 2 << 20, 25]);
            is_done(done, 0, &[-12, -11, -16]);
            disarm(p);
            for page in 0..512 {
                assert_eq!(p.load_u64(memory + page * PAGE), page);
            }
            0
        });
        0
    }
}

/// Makes a list with one control block of io_submit(2). Returns its address.
fn control_block(p: &mut Program, operation: u64, file: u64, place: (u64, u64, u64)) -> u64 {
    let (buffer, length, offset) = place;
    let block = p.words(&[77, 0, operation | file << 32, buffer, length, offset, 0, 0]);
    p.words(&[block])
}

on_machine! {
    /// If any allocation fails in a context of io_setup(2), a call fails without having started
    /// anything, or an event has its result. Bytes that were written are on the disk, and a context
    /// that is left behind ends with its process.
    contexts_with_refusals, with_disk(), |p| {
        refuse_each(p, 32, |p| {
            let [read, write, sync, poll] = [0, 1, 2, 5];
            let memory = p.map(8 * PAGE);
            p.store(memory, b"through a context");
            let (disk, pipe) = (p.open("/dev/vda", 0o40002) as u64, super::calls::pair(p, Sysno::pipe2, &[0]));
            let (place, events) = (p.words(&[0]), p.room(32 * 8));
            arm(p);
            if is_done(p.call(Sysno::io_setup, &[8, place]), 0, &[-12, -14]) {
                let context = p.load_u64(place);
                let mut begun = 0;
                for (operation, file, place) in [
                    (write, disk, (memory, PAGE, 0)),
                    (sync, disk, (0, 0, 0)),
                    (poll, pipe.1, (4, 0, 0)),
                    (read, pipe.0, (memory + PAGE, 16, 0)),
                ] {
                    let list = control_block(p, operation, file, place);
                    let submitted = p.call(Sysno::io_submit, &[context, 1, list]);
                    begun += i64::from(is_done(submitted, 1, &[-12, -11, -14]));
                }
                p.call(Sysno::write, &[pipe.1, memory, 16]);
                disarm(p);
                p.must(Sysno::write, &[pipe.1, memory, 16]);
                assert_eq!(p.must(Sysno::io_getevents, &[context, begun as u64, 8, events, 0]), begun as u64);
                for at in 0..begun as u64 {
                    let result = p.load_u64(events + 32 * at + 16) as i64;
                    assert!([4096, 16, 0, 4, 5, 0x104, -12, -14, -11].contains(&result), "{result}");
                    if result == PAGE as i64 {
                        assert!(DISK.get().unwrap().with(|bytes| bytes.starts_with(b"through a context")));
                    }
                }
            }
            disarm(p);
            0
        });
        assert_eq!(p.read_file("/proc/sys/fs/aio-nr").unwrap(), b"0\n");
        0
    }
}
