//! Memory, files and disks: programs make usual calls, and get the results that Linux gives.

use syscalls::Sysno;

use super::elf::ROOM;
use super::machine::{Setup, disk, on_machine};
use super::program::Program;

const PAGE: u64 = 4096;
const AT_FDCWD: u64 = -100i64 as u64;

/// Makes a call that returns two descriptors.
pub fn pair(p: &mut Program, call: Sysno, arguments: &[u64]) -> (u64, u64) {
    let at = p.room(8);
    let mut all = arguments.to_vec();
    all.insert(if call == Sysno::pipe2 { 0 } else { 3 }, at);
    p.must(call, &all);
    (u64::from(p.load_u32(at)), u64::from(p.load_u32(at + 4)))
}

/// Sleeps for a while.
pub fn pause_ns(p: &mut Program, nanoseconds: u64) {
    let time = p.words(&[0, nanoseconds]);
    p.call(Sysno::nanosleep, &[time, 0]);
}

on_machine! {
    /// Areas are made, changed, moved, advised and unmapped.
    memory_is_mapped_in_every_way, Setup { nodes: &[16 << 10, 16 << 10], ..Setup::default() }, |p| {
        let memory = p.map(64 * PAGE);
        for page in 0..64 {
            p.store(memory + page * PAGE, &[page as u8]);
        }
        p.must(Sysno::mprotect, &[memory, PAGE, 1]);
        p.must(Sysno::mprotect, &[memory, PAGE, 3]);
        let moved = p.must(Sysno::mremap, &[memory, 64 * PAGE, 256 * PAGE, 1, 0]);
        assert_eq!(p.load(moved + 63 * PAGE, 1), [63]);
        for advice in [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 100, 101] {
            p.call(Sysno::madvise, &[moved + 128 * PAGE, 32 * PAGE, advice]);
        }
        let residents = p.room(256);
        p.must(Sysno::mincore, &[moved, 256 * PAGE, residents]);
        assert_eq!(p.load(residents, 1), [1]);
        p.must(Sysno::mlock, &[moved, 4 * PAGE]);
        p.must(Sysno::munlock, &[moved, 4 * PAGE]);
        p.must(Sysno::mlock2, &[moved, 4 * PAGE, 1]);
        p.must(Sysno::mlockall, &[1]);
        p.must(Sysno::munlockall, &[]);
        p.must(Sysno::msync, &[moved, 64 * PAGE, 4]);
        let start = p.must(Sysno::brk, &[0]);
        assert_eq!(p.must(Sysno::brk, &[start + 8 * PAGE]), start + 8 * PAGE);
        p.store(start, b"the break");
        p.must(Sysno::brk, &[start]);
        let name = p.text("name");
        let file = p.must(Sysno::memfd_create, &[name, 2]);
        p.must(Sysno::ftruncate, &[file, 16 * PAGE]);
        let shared = p.must(Sysno::mmap, &[0, 16 * PAGE, 3, 1, file, 0]);
        let private = p.must(Sysno::mmap, &[0, 16 * PAGE, 3, 2, file, 0]);
        p.store(shared, b"one");
        assert_eq!(p.load(private, 3), b"one");
        p.store(private, b"two");
        assert_eq!(p.load(shared, 3), b"one");
        p.must(Sysno::fallocate, &[file, 3, 0, PAGE]);
        assert_eq!(p.load(shared, 3), [0; 3]);
        assert_eq!(p.load(private, 3), b"two");
        for (mode, nodes) in [(0, 0u64), (1, 1), (2, 3), (3, 3), (4, 0), (5, 1)] {
            let mask = p.words(&[nodes]);
            p.call(Sysno::mbind, &[moved, 32 * PAGE, mode, mask, 8, 2]);
            p.call(Sysno::set_mempolicy, &[mode, mask, 8]);
        }
        let mode = p.room(16);
        p.must(Sysno::get_mempolicy, &[mode, mode + 8, 8, 0, 0]);
        p.must(Sysno::set_mempolicy, &[0, 0, 0]);
        let pages = p.words(&[moved, moved + PAGE, moved + 2 * PAGE]);
        let nodes = p.words(&[1 << 32 | 1, 1]);
        let status = p.room(16);
        p.must(Sysno::move_pages, &[0, 3, pages, nodes, status, 2]);
        assert_eq!(p.load_u32(status), 1, "the page is on the other node");
        assert_eq!(p.load(moved + PAGE, 1), [1]);
        let (from, to) = (p.words(&[2]), p.words(&[1]));
        p.must(Sysno::migrate_pages, &[0, 8, from, to]);
        p.must(Sysno::move_pages, &[0, 3, pages, 0, status, 0]);
        assert_eq!(p.load_u32(status), 0, "and back");
        let own = p.must(Sysno::getpid, &[]);
        let (here, there) = (p.words(&[moved, 64]), p.words(&[shared, 64]));
        assert_eq!(p.must(Sysno::process_vm_readv, &[own, there, 1, here, 1, 0]), 64);
        assert_eq!(p.must(Sysno::process_vm_writev, &[own, there, 1, here, 1, 0]), 64);
        let secret = p.call(Sysno::memfd_secret, &[0]);
        if secret >= 0 {
            p.must(Sysno::ftruncate, &[secret as u64, 4 * PAGE]);
            let hidden = p.must(Sysno::mmap, &[0, 4 * PAGE, 3, 1, secret as u64, 0]);
            p.store(hidden, b"hidden");
            assert_eq!(p.load(hidden, 6), b"hidden");
        }
        let child = p.fork(|p| {
            p.store(ROOM, b"written in the child");
            0
        });
        assert_eq!(p.wait_for(child), 0);
        p.must(Sysno::munmap, &[moved, 256 * PAGE]);
        assert_eq!(p.call(Sysno::mincore, &[moved, PAGE, residents]), -12);
        let child = p.fork(|p| {
            p.load(16 << 30, 1);
            0
        });
        assert_eq!(p.wait_for(child), 11, "SIGSEGV");
        0
    }
}

on_machine! {
    /// Huge pages: allocated at once, split, and collapsed by khugepaged.
    huge_pages_come_and_go,
    Setup { nodes: &[32 << 10], command_line: "transparent_hugepage=always", ..Setup::default() }, |p| {
        let block = 512 * PAGE;
        let memory = p.map(8 * block).next_multiple_of(block);
        p.store(memory, &[1]);
        let smaps = std::string::String::from_utf8(p.read_file("/proc/self/smaps").unwrap()).unwrap();
        assert!(smaps.contains("AnonHugePages:      2048 kB"), "{smaps}");
        p.must(Sysno::mprotect, &[memory + PAGE, PAGE, 1]);
        p.must(Sysno::madvise, &[memory + 8 * PAGE, PAGE, 4]);
        assert_eq!(p.load(memory, 1), [1]);
        p.must(Sysno::madvise, &[memory + 2 * block, block, 15]);
        for page in 0..512 {
            p.store(memory + 2 * block + page * PAGE, &[page as u8]);
        }
        p.must(Sysno::madvise, &[memory + 2 * block, block, 14]);
        p.must(Sysno::madvise, &[memory + 2 * block, block, 25]);
        for page in 0..512 {
            assert_eq!(p.load(memory + 2 * block + page * PAGE, 1), [page as u8]);
        }
        p.must(Sysno::madvise, &[memory + 4 * block, block, 15]);
        for page in 0..512 {
            p.store(memory + 4 * block + page * PAGE, &[page as u8]);
        }
        p.must(Sysno::madvise, &[memory + 4 * block, block, 14]);
        for _ in 0..100 {
            pause_ns(p, 999_999_999);
        }
        for page in 0..512 {
            assert_eq!(p.load(memory + 4 * block + page * PAGE, 1), [page as u8]);
        }
        p.write_file("/proc/sys/vm/compact_memory", b"1");
        let child = p.fork(|p| {
            p.store(ROOM, &[1]);
            0
        });
        p.wait_for(child);
        0
    }
}

on_machine! {
    /// Files and directories are created, linked, renamed, locked, watched, mounted and removed.
    files_are_used_in_every_way, Setup { disks: || std::vec![disk(1024)], ..Setup::default() }, |p| {
        let (a, b, directory) = (p.text("/tmp/a"), p.text("/tmp/b"), p.text("/tmp/d"));
        let file = p.must(Sysno::openat, &[AT_FDCWD, a, 0o102, 0o644]);
        let text = p.put(b"0123456789abcdef");
        let vector = p.words(&[text, 16, text, 8]);
        assert_eq!(p.must(Sysno::writev, &[file, vector, 2]), 24);
        assert_eq!(p.must(Sysno::pwrite64, &[file, text, 16, 100]), 16);
        assert_eq!(p.must(Sysno::pwritev2, &[file, vector, 2, 200, 0, 0]), 24);
        assert_eq!(p.must(Sysno::lseek, &[file, 0, 3]), 0);
        p.must(Sysno::lseek, &[file, 0, 0]);
        assert_eq!(p.must(Sysno::preadv, &[file, vector, 2, 0]), 24);
        p.must(Sysno::ftruncate, &[file, 50]);
        p.must(Sysno::truncate, &[a, 60]);
        for (mode, from, length) in [(0, 0, 8192), (1, 8192, 100), (3, 0, 4096), (16, 0, 4096), (8, 0, 4096), (32, 0, 4096)] {
            p.call(Sysno::fallocate, &[file, mode, from, length]);
        }
        for call in [Sysno::fsync, Sysno::fdatasync, Sysno::syncfs] {
            p.must(call, &[file]);
        }
        p.must(Sysno::sync_file_range, &[file, 0, 100, 7]);
        p.must(Sysno::fadvise64, &[file, 0, 0, 4]);
        p.must(Sysno::readahead, &[file, 0, 100]);
        let status = p.room(256);
        p.must(Sysno::fstat, &[file, status]);
        p.must(Sysno::stat, &[a, status]);
        p.must(Sysno::lstat, &[a, status]);
        p.must(Sysno::newfstatat, &[AT_FDCWD, a, status, 0]);
        p.must(Sysno::statx, &[AT_FDCWD, a, 0, 0xfff, status]);
        p.must(Sysno::statfs, &[a, status]);
        p.must(Sysno::fstatfs, &[file, status]);
        p.must(Sysno::access, &[a, 4]);
        p.must(Sysno::faccessat, &[AT_FDCWD, a, 4]);
        p.call(Sysno::faccessat2, &[AT_FDCWD, a, 4, 0x200]);
        p.must(Sysno::link, &[a, b]);
        p.must(Sysno::rename, &[b, directory]);
        p.must(Sysno::renameat2, &[AT_FDCWD, directory, AT_FDCWD, a, 2]);
        p.must(Sysno::unlink, &[directory]);
        p.must(Sysno::mkdir, &[directory, 0o755]);
        p.must(Sysno::symlink, &[a, b]);
        assert_eq!(p.must(Sysno::readlink, &[b, status, 100]), 6);
        p.must(Sysno::readlinkat, &[AT_FDCWD, b, status, 100]);
        p.must(Sysno::chmod, &[a, 0o600]);
        p.must(Sysno::fchmod, &[file, 0o640]);
        p.must(Sysno::fchmodat, &[AT_FDCWD, a, 0o644]);
        p.must(Sysno::chown, &[a, 1, 2]);
        p.must(Sysno::fchown, &[file, 0, 0]);
        p.must(Sysno::lchown, &[b, 3, 4]);
        p.must(Sysno::fchownat, &[AT_FDCWD, a, 0, 0, 0]);
        let times = p.words(&[1, 2, 3, 4]);
        p.must(Sysno::utimensat, &[AT_FDCWD, a, times, 0]);
        p.must(Sysno::utimes, &[a, times]);
        p.must(Sysno::utime, &[a, times]);
        p.must(Sysno::futimesat, &[AT_FDCWD, a, times]);
        p.must(Sysno::flock, &[file, 2]);
        p.must(Sysno::flock, &[file, 8]);
        let lock = p.words(&[1, 0, 10, 0]);
        for command in [5, 6, 7, 36, 37, 38] {
            p.call(Sysno::fcntl, &[file, command, lock]);
        }
        let copy = p.must(Sysno::dup, &[file]);
        p.must(Sysno::dup2, &[file, 40]);
        p.must(Sysno::dup3, &[file, 41, 0o2000000]);
        for (command, argument) in [(1, 0), (2, 1), (3, 0), (4, 0o2000), (0, 50), (1030, 50), (1024, 0), (1032, 0), (8, 1), (9, 0), (10, 10), (11, 0), (1033, 2), (1034, 0)] {
            p.call(Sysno::fcntl, &[copy, command, argument]);
        }
        p.must(Sysno::close_range, &[40, 60, 0]);
        p.must(Sysno::chdir, &[directory]);
        p.must(Sysno::getcwd, &[status, 100]);
        let here = p.must(Sysno::open, &[directory, 0o200000, 0]);
        p.must(Sysno::fchdir, &[here]);
        let name = p.text("inner");
        p.must(Sysno::mkdirat, &[here, name, 0o755]);
        p.must(Sysno::getdents, &[here, status, 256]);
        p.must(Sysno::unlinkat, &[here, name, 0x200]);
        p.must(Sysno::mknodat, &[here, name, 0o010644, 0]);
        p.must(Sysno::unlinkat, &[here, name, 0]);
        p.must(Sysno::linkat, &[AT_FDCWD, a, here, name, 0]);
        let link = p.text("link");
        p.must(Sysno::symlinkat, &[a, here, link]);
        let other = p.text("other");
        p.must(Sysno::renameat, &[here, name, here, other]);
        p.must(Sysno::umask, &[0o22]);
        let how = p.words(&[0o2, 0, 8]);
        p.call(Sysno::openat2, &[AT_FDCWD, a, how, 24]);
        for call in [Sysno::getxattr, Sysno::setxattr] {
            p.call(call, &[a, name, text, 8, 0]);
        }
        p.call(Sysno::listxattr, &[a, status, 100]);
        let (kind, mount) = (p.text("tmpfs"), p.text("/mnt"));
        let options = p.text("size=1m,mode=700");
        p.must(Sysno::mount, &[kind, mount, kind, 6, options]);
        p.must(Sysno::mount, &[kind, mount, 0, 0x20 | 1, 0]);
        p.must(Sysno::mount, &[directory, mount, 0, 0x1000, 0]);
        p.must(Sysno::umount2, &[mount, 0]);
        p.must(Sysno::umount2, &[mount, 2]);
        p.must(Sysno::sync, &[]);
        let path = p.text("/tmp/copy");
        let target = p.must(Sysno::open, &[path, 0o102, 0o644]);
        p.must(Sysno::copy_file_range, &[file, 0, target, 0, 16, 0]);
        let (read, write) = pair(p, Sysno::pipe2, &[0]);
        p.must(Sysno::lseek, &[file, 0, 0]);
        p.must(Sysno::sendfile, &[write, file, 0, 16]);
        p.must(Sysno::splice, &[file, 0, write, 0, 16, 0]);
        let (second_read, second_write) = pair(p, Sysno::pipe2, &[0o4000]);
        p.must(Sysno::tee, &[read, second_write, 16, 0]);
        p.must(Sysno::splice, &[read, 0, second_write, 0, 16, 0]);
        let vector = p.words(&[text, 16]);
        p.must(Sysno::vmsplice, &[write, vector, 1, 8]);
        let memory = p.map(4 * PAGE);
        p.store(memory, &[9; 64]);
        let whole = p.words(&[memory, 4 * PAGE]);
        p.must(Sysno::vmsplice, &[write, whole, 1, 8]);
        for end in [read, second_read] {
            p.must(Sysno::read, &[end, memory, 4 * PAGE]);
            p.must(Sysno::ioctl, &[end, 0x541b, status]);
        }
        let chroot = p.fork(|p| {
            let root = p.text("/tmp");
            p.must(Sysno::chroot, &[root]);
            assert!(p.open("/a", 0) >= 0);
            0
        });
        assert_eq!(p.wait_for(chroot), 0);
        0
    }
}

on_machine! {
    /// A disk is read and written through its cache and directly. All written data is on the disk.
    a_disk_keeps_what_is_written, Setup { disks: || std::vec![disk(1024)], ..Setup::default() }, |p| {
        let buffered = p.open("/dev/vda", 0o2) as u64;
        let direct = p.open("/dev/vda", 0o40002) as u64;
        let memory = p.map(64 * PAGE);
        for page in 0..64 {
            p.store(memory + page * PAGE, &[page as u8 + 1; 16]);
        }
        assert_eq!(p.must(Sysno::write, &[buffered, memory, 64 * PAGE]), 64 * PAGE);
        p.must(Sysno::fsync, &[buffered]);
        p.must(Sysno::mprotect, &[memory, PAGE, 3]);
        assert_eq!(p.must(Sysno::pread64, &[direct, memory + 32 * PAGE, 8 * PAGE, 0]), 8 * PAGE);
        assert_eq!(p.load(memory + 33 * PAGE, 1), [2]);
        assert_eq!(p.must(Sysno::pwrite64, &[direct, memory, 8 * PAGE, 100 * PAGE]), 8 * PAGE);
        assert_eq!(p.call(Sysno::pwrite64, &[direct, memory + 1, 8 * PAGE, 100 * PAGE]), -22);
        assert_eq!(p.must(Sysno::pread64, &[buffered, memory + 40 * PAGE, PAGE, 101 * PAGE]), PAGE);
        assert_eq!(p.load(memory + 40 * PAGE, 1), [2]);
        let view = p.must(Sysno::mmap, &[0, 64 * PAGE, 3, 1, buffered, 0]);
        p.store(view + 5 * PAGE, b"mapped");
        p.must(Sysno::msync, &[view, 64 * PAGE, 4]);
        assert_eq!(p.must(Sysno::pread64, &[direct, memory, PAGE, 5 * PAGE]), PAGE);
        assert_eq!(p.load(memory, 6), b"mapped");
        p.store(view + 6 * PAGE, b"later");
        for _ in 0..40 {
            pause_ns(p, 999_999_999);
        }
        p.must(Sysno::munmap, &[view, 64 * PAGE]);
        let size = p.room(8);
        for request in [0x1260, 0x1268, 0x127b, 0x8008_1270, 0x8008_1272, 0x125e, 0x1261] {
            p.call(Sysno::ioctl, &[buffered, request, size]);
        }
        assert_eq!(p.call(Sysno::pwrite64, &[buffered, memory, PAGE, 1024 * PAGE]), -28);
        p.must(Sysno::sync, &[]);
        p.write_file("/proc/sys/vm/drop_caches", b"3");
        assert_eq!(p.must(Sysno::pread64, &[buffered, memory, PAGE, 6 * PAGE]), PAGE);
        assert_eq!(p.load(memory, 5), b"later");
        0
    }
}
