//! Memory runs out: the order of reclaim, the victims, and the calls that do not fail.

use core::sync::atomic::{AtomicU64, Ordering};
use std::format;
use std::string::String;

use syscalls::Sysno;

use super::machine::{Setup, disk, on_machine};
use super::program::Program;

const PAGE: u64 = 4096;

pub(super) fn figure(p: &mut Program, file: &str, name: &str) -> u64 {
    let text = String::from_utf8(p.read_file(file).unwrap()).unwrap();
    let line = text.lines().find(|line| line.split([' ', ':']).next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in {file}:\n{text}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Makes a disk of `pages` pages with a swap area's header (mkswap(8)) at its beginning.
fn swap_disk(pages: usize) -> &'static super::disk::MemoryDisk {
    let disk = disk(pages);
    disk.with(|bytes| {
        bytes[1024..1028].copy_from_slice(&1u32.to_le_bytes());
        bytes[1028..1032].copy_from_slice(&(pages as u32 - 1).to_le_bytes());
        bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
    });
    disk
}

/// 32 MiB of memory and 64 MiB of swap.
fn with_swap() -> Setup {
    Setup {
        nodes: &[8 << 10],
        disks: || std::vec![swap_disk(16 << 10), disk(4096)],
        swap: Some("/dev/vda"),
        command_line: "",
        ..Setup::default()
    }
}

on_machine! {
    /// A program uses more memory than the machine has: every page is read back from the disk as it
    /// was written, and recently used pages stay in memory.
    more_memory_than_there_is, with_swap(), |p| {
        let pages = 12 << 10;
        let memory = p.map(pages * PAGE);
        for page in 0..pages {
            p.store(memory + page * PAGE, &page.to_le_bytes());
        }
        assert!(figure(p, "/proc/vmstat", "pswpout") > pages / 4, "pages went out");
        let before = figure(p, "/proc/vmstat", "pswpin");
        for page in pages - 256..pages {
            assert_eq!(p.load_u64(memory + page * PAGE), page);
        }
        assert!(figure(p, "/proc/vmstat", "pswpin") - before < 128, "what was used last stayed");
        for page in 0..pages {
            assert_eq!(p.load_u64(memory + page * PAGE), page, "page {page}");
        }
        p.must(Sysno::munmap, &[memory, pages * PAGE]);
        let device = p.text("/dev/vda");
        p.must(Sysno::swapoff, &[device]);
        0
    }
}

on_machine! {
    /// Clean pages of a disk are evicted before a program's memory is swapped out, and are read
    /// back unchanged.
    clean_pages_go_first, with_swap(), |p| {
        let file = p.open("/dev/vdb", 0o2) as u64;
        let buffer = p.room(4096);
        let pattern = std::vec![0x5a; 4096];
        p.store(buffer, &pattern);
        for _ in 0..4096 {
            assert_eq!(p.must(Sysno::write, &[file, buffer, PAGE]), PAGE);
        }
        p.must(Sysno::fsync, &[file]);
        let pages = 3 << 10;
        let memory = p.map(pages * PAGE);
        for page in 0..pages {
            p.store(memory + page * PAGE, &page.to_le_bytes());
        }
        let out = figure(p, "/proc/vmstat", "pswpout");
        assert!(out < pages / 8, "{out} pages of the program went out while the disk's were clean");
        p.must(Sysno::lseek, &[file, 0, 0]);
        for _ in 0..4096 {
            assert_eq!(p.must(Sysno::read, &[file, buffer, PAGE]), PAGE);
            assert_eq!(p.load(buffer, 8), [0x5a; 8]);
        }
        for page in 0..pages {
            assert_eq!(p.load_u64(memory + page * PAGE), page);
        }
        0
    }
}

/// Uses more and more memory until it is killed.
fn takes_all(p: &mut Program) -> i32 {
    loop {
        let memory = p.map(8 << 20);
        for page in 0..2 << 10 {
            p.store(memory + page * PAGE, &[7]);
        }
    }
}

on_machine! {
    /// If no memory can be reclaimed, the largest process is killed, and no other.
    the_largest_is_killed_alone, Setup { nodes: &[8 << 10], ..Setup::default() }, |p| {
        let small = p.fork(|p| {
            let memory = p.map(64 * PAGE);
            for page in 0..64 {
                p.store(memory + page * PAGE, &[7]);
            }
            p.call(Sysno::pause, &[]);
            1
        });
        let large = p.fork(takes_all);
        assert_eq!(p.wait_for(large), 9, "the one that wants all is killed");
        assert_eq!(figure(p, "/proc/vmstat", "oom_kill"), 1);
        p.must(Sysno::kill, &[small, 15]);
        assert_eq!(p.wait_for(small), 15, "the other lived until now");
        0
    }
}

on_machine! {
    /// oom_score_adj determines which process is killed: a small process with a high value is
    /// killed before a large one.
    who_offers_itself_goes_first, Setup { nodes: &[8 << 10], ..Setup::default() }, |p| {
        let volunteer = p.fork(|p| {
            assert!(p.write_file("/proc/self/oom_score_adj", b"1000") > 0);
            let memory = p.map(32 * PAGE);
            for page in 0..32 {
                p.store(memory + page * PAGE, &[7]);
            }
            p.call(Sysno::pause, &[]);
            1
        });
        let pause = p.words(&[0, 1_000_000]);
        p.must(Sysno::nanosleep, &[pause, 0]);
        let large = p.fork(|p| {
            assert!(p.write_file("/proc/self/oom_score_adj", b"-900") > 0);
            takes_all(p)
        });
        assert_eq!(p.wait_for(volunteer), 9);
        assert_eq!(p.wait_for(large), 9);
        assert_eq!(figure(p, "/proc/vmstat", "oom_kill"), 2);
        0
    }
}

/// Makes /proc/self/fail-nth count each page that is allocated.
pub(super) fn count_all_pages(p: &mut Program) {
    let debug = "/sys/kernel/debug/fail_page_alloc";
    for (name, value) in [("ignore-gfp-highmem", "N"), ("min-order", "0"), ("verbose", "0")] {
        assert!(p.write_file(&format!("{debug}/{name}"), value.as_bytes()) > 0);
    }
}

/// The allocation of the next child that fails. A static, because programs are functions of one
/// host process.
static NTH: AtomicU64 = AtomicU64::new(0);

/// Does typical work of a program in a separate child. Returns the child's status.
fn chores(p: &mut Program) -> i32 {
    let memory = p.call(Sysno::mmap, &[0, 64 * PAGE, 3, 0x22, u64::MAX, 0]);
    if memory < 0 {
        return 1;
    }
    for page in 0..64 {
        p.store(memory as u64 + page * PAGE, &[1]);
    }
    p.write_file("/tmp/chore", b"content");
    p.read_file("/proc/self/maps").ok();
    let pair = p.room(8);
    if p.call(Sysno::pipe2, &[pair, 0]) == 0 {
        let ends = p.load_u64(pair);
        p.call(Sysno::write, &[ends >> 32, pair, 8]);
        p.call(Sysno::read, &[ends & 0xffff_ffff, pair, 8]);
    }
    if p.call(Sysno::socketpair, &[1, 1, 0, pair]) == 0 {
        let ends = p.load_u64(pair);
        p.call(Sysno::write, &[ends >> 32, pair, 8]);
        p.call(Sysno::read, &[ends & 0xffff_ffff, pair, 8]);
    }
    let id = p.call(Sysno::shmget, &[0, 4 * PAGE, 0o1600]);
    if id >= 0 {
        let at = p.call(Sysno::shmat, &[id as u64, 0, 0]);
        if at > 0 {
            p.store(at as u64, &[1]);
            p.call(Sysno::shmdt, &[at as u64]);
        }
        p.call(Sysno::shmctl, &[id as u64, 0, 0]);
    }
    p.call(Sysno::mprotect, &[memory as u64, 8 * PAGE, 1]);
    p.call(Sysno::mremap, &[memory as u64 + 32 * PAGE, 32 * PAGE, 128 * PAGE, 1]);
    p.call(Sysno::madvise, &[memory as u64, 8 * PAGE, 4]);
    p.call(Sysno::munmap, &[memory as u64, 64 * PAGE]);
    0
}

on_machine! {
    /// Each page allocation in turn fails in a program. The kernel continues, and the program's
    /// resources are freed.
    every_nth_page_may_be_refused, Setup::default(), |p| {
        let child = p.fork(chores);
        p.wait_for(child);
        count_all_pages(p);
        let mut free = 0;
        for nth in 1..40 {
            NTH.store(nth, Ordering::Relaxed);
            let child = p.fork(|p| {
                let nth = format!("{}", NTH.load(Ordering::Relaxed));
                p.write_file("/proc/self/fail-nth", nth.as_bytes());
                chores(p)
            });
            p.wait_for(child);
            if nth == 20 {
                free = figure(p, "/proc/meminfo", "MemFree");
            }
        }
        let lost = free.saturating_sub(figure(p, "/proc/meminfo", "MemFree"));
        assert!(lost < 512, "{lost} KiB were not given back");
        0
    }
}

on_machine! {
    /// With 2,048 processes and no free frame, the process that uses most is killed, and no other.
    the_largest_of_2048_is_killed_alone, Setup { nodes: &[96 << 10], ..Setup::default() }, |p| {
        let first = p.fork_idle();
        let others = (1..2048).map(|_| p.fork_idle()).collect::<std::vec::Vec<_>>();
        let large = p.fork(takes_all);
        assert_eq!(p.wait_for(large), 9);
        assert_eq!(figure(p, "/proc/vmstat", "oom_kill"), 1);
        for &other in others.iter().chain([&first]) {
            assert_eq!(p.call(Sysno::kill, &[other, 0]), 0);
        }
        for other in others.into_iter().chain([first]) {
            p.must(Sysno::kill, &[other, 9]);
            assert_eq!(p.wait_for(other), 9);
        }
        0
    }
}

on_machine! {
    /// A block of memory that is taken offline is emptied first: pages move, and keep their bytes;
    /// pinned pages stay.
    memory_is_emptied_before_it_goes, Setup::default(), |p| {
        let pages = 4 << 10;
        let memory = p.map(pages * PAGE);
        for page in 0..pages {
            p.store(memory + page * PAGE, &page.to_le_bytes());
        }
        let before = figure(p, "/proc/meminfo", "MemTotal");
        let mut gone = 0;
        for (name, is_directory) in super::views::list(p, "/sys/devices/system/memory") {
            if is_directory && name.starts_with("memory") {
                let state = format!("/sys/devices/system/memory/{name}/state");
                gone += u64::from(p.write_file(&state, b"offline") > 0);
            }
        }
        let after = figure(p, "/proc/meminfo", "MemTotal");
        assert!(gone == 0 || after < before, "{gone} blocks went: {before} to {after} KiB");
        for page in 0..pages {
            assert_eq!(p.load_u64(memory + page * PAGE), page);
        }
        for (name, is_directory) in super::views::list(p, "/sys/devices/system/memory") {
            if is_directory && name.starts_with("memory") {
                p.write_file(&format!("/sys/devices/system/memory/{name}/state"), b"online");
            }
        }
        assert_eq!(figure(p, "/proc/meminfo", "MemTotal"), before);
        0
    }
}
