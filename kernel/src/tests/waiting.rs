//! Sockets, terminals, rings, and the tasks that wait for them.

use syscalls::Sysno;

use super::calls::{pair, pause_ns};
use super::machine::{Setup, disk, on_machine};
use super::program::Program;

const PAGE: u64 = 4096;

on_machine! {
    /// Sockets, and all ways of waiting for files.
    sockets_and_waiting, Setup::default(), |p| {
        for kind in [1, 2, 5] {
            let (a, b) = pair(p, Sysno::socketpair, &[1, kind, 0]);
            let text = p.put(b"through a socket");
            let vector = p.words(&[text, 16]);
            let passed = p.words(&[20, 1 << 32 | 1, a]);
            let message = p.words(&[0, 0, vector, 1, passed, 20, 0]);
            p.must(Sysno::sendmsg, &[a, message, 0]);
            let (room, control) = (p.room(64), p.room(64));
            let vector = p.words(&[room, 64]);
            let message = p.words(&[0, 0, vector, 1, control, 64, 0]);
            assert_eq!(p.must(Sysno::recvmsg, &[b, message, 0]), 16);
            assert_eq!(p.load(room, 16), b"through a socket");
            p.must(Sysno::sendto, &[a, text, 16, 0, 0, 0]);
            p.must(Sysno::recvfrom, &[b, room, 64, 0, 0, 0]);
            for name in [3, 4, 7, 8, 16, 17, 20, 38, 39] {
                let length = p.words(&[64]);
                p.call(Sysno::getsockopt, &[a, 1, name, room, length]);
                p.call(Sysno::setsockopt, &[a, 1, name, room, 4]);
            }
            p.must(Sysno::shutdown, &[a, 1]);
            p.call(Sysno::recvfrom, &[b, room, 64, 0x40, 0, 0]);
        }
        let address = p.put(b"\x01\x00/tmp/socket\0");
        let listener = p.must(Sysno::socket, &[1, 1, 0]);
        p.must(Sysno::bind, &[listener, address, 13]);
        p.must(Sysno::listen, &[listener, 5]);
        let child = p.fork(|p| {
            let socket = p.must(Sysno::socket, &[1, 1, 0]);
            let address = p.put(b"\x01\x00/tmp/socket\0");
            p.must(Sysno::connect, &[socket, address, 13]);
            let text = p.put(b"hello");
            p.must(Sysno::write, &[socket, text, 5]);
            p.must(Sysno::read, &[socket, text, 5]);
            0
        });
        let (room, length) = (p.room(128), p.words(&[128]));
        let socket = p.must(Sysno::accept4, &[listener, room, length, 0]);
        p.must(Sysno::getsockname, &[socket, room, length]);
        p.must(Sysno::getpeername, &[socket, room, length]);
        p.must(Sysno::read, &[socket, room, 5]);
        p.must(Sysno::write, &[socket, room, 5]);
        assert_eq!(p.wait_for(child), 0);
        for (family, kind) in [(2, 1), (2, 2), (10, 1), (16, 3)] {
            p.call(Sysno::socket, &[family, kind, 0]);
        }
        let (read, write) = pair(p, Sysno::pipe2, &[0]);
        let event = p.must(Sysno::eventfd2, &[3, 0]);
        let timer = p.must(Sysno::timerfd_create, &[1, 0]);
        let when = p.words(&[0, 0, 0, 1000]);
        p.must(Sysno::timerfd_settime, &[timer, 0, when, 0]);
        p.must(Sysno::timerfd_gettime, &[timer, room]);
        let mask = p.words(&[1 << 9]);
        let signals = p.must(Sysno::signalfd4, &[u64::MAX, mask, 8, 0o4000]);
        let epoll = p.must(Sysno::epoll_create1, &[0]);
        for (file, events) in [(read, 1u64), (event, 1 | 1 << 31), (timer, 1 | 1 << 30), (signals, 1), (socket, 5)] {
            let entry = p.words(&[events | file << 32, 0]);
            p.must(Sysno::epoll_ctl, &[epoll, 1, file, entry]);
            p.must(Sysno::epoll_ctl, &[epoll, 3, file, entry]);
        }
        let watcher = p.must(Sysno::inotify_init1, &[0o4000]);
        let place = p.put(b"/tmp\0");
        let number = p.must(Sysno::inotify_add_watch, &[watcher, place, 0xfff]);
        p.open("/tmp/watched", 0o102);
        assert!(p.must(Sysno::read, &[watcher, room, 64]) >= 32);
        p.must(Sysno::ioctl, &[watcher, 0x541b, room]);
        p.must(Sysno::inotify_rm_watch, &[watcher, number]);
        let plain = p.must(Sysno::inotify_init, &[]);
        p.must(Sysno::close, &[plain]);
        pause_ns(p, 2000);
        let found = p.room(256);
        assert!(p.must(Sysno::epoll_wait, &[epoll, found, 10, 0]) >= 2);
        p.must(Sysno::epoll_pwait, &[epoll, found, 10, 1, 0, 8]);
        let entry = p.words(&[0, 0]);
        p.must(Sysno::epoll_ctl, &[epoll, 2, socket, entry]);
        p.must(Sysno::read, &[event, room, 8]);
        p.must(Sysno::read, &[timer, room, 8]);
        p.must(Sysno::write, &[write, room, 8]);
        let files = p.words(&[read | 1 << 32, write | 4 << 32, event | 1 << 32]);
        assert_eq!(p.must(Sysno::poll, &[files, 3, 100]), 2);
        let time = p.words(&[0, 1000]);
        p.must(Sysno::ppoll, &[files, 3, time, 0, 8]);
        let set = p.words(&[1 << read | 1 << event, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(p.must(Sysno::select, &[64, set, 0, 0, time]), 1);
        p.must(Sysno::pselect6, &[64, set, 0, 0, time, 0]);
        let child = p.fork(|p| {
            let files = p.words(&[3 | 1 << 32]);
            p.call(Sysno::poll, &[files, 1, 5]);
            0
        });
        assert_eq!(p.wait_for(child), 0);
        0
    }
}

on_machine! {
    /// Pseudo-terminals: bytes are transferred, lines are edited, signals are sent.
    terminals, Setup::default(), |p| {
        let master = p.open("/dev/ptmx", 0o402) as u64;
        let word = p.room(64);
        p.must(Sysno::ioctl, &[master, 0x8004_5430, word]);
        let number = p.load_u32(word);
        let zero = p.words(&[0]);
        p.must(Sysno::ioctl, &[master, 0x4004_5431, zero]);
        let slave = p.open(&std::format!("/dev/pts/{number}"), 0o402) as u64;
        for request in [0x5401, 0x5402, 0x5403, 0x5413, 0x5414, 0x541b, 0x5411, 0x540f, 0x5429] {
            p.call(Sysno::ioctl, &[slave, request, word]);
        }
        let text = p.put(b"line x\x7f\n");
        let setting = p.room(64);
        p.must(Sysno::ioctl, &[slave, 0x5401, setting]);
        p.must(Sysno::write, &[master, text, 8]);
        let room = p.room(64);
        let read = p.call(Sysno::read, &[slave, room, 64]);
        assert!(read > 0, "{read}");
        p.must(Sysno::write, &[slave, text, 5]);
        assert!(p.must(Sysno::read, &[master, room, 64]) > 0);
        let child = p.fork(|p| {
            p.must(Sysno::setsid, &[]);
            let path = p.text("/dev/pts/0");
            let terminal = p.must(Sysno::open, &[path, 2, 0]);
            p.call(Sysno::ioctl, &[terminal, 0x540e, 0]);
            let room = p.room(8);
            p.call(Sysno::read, &[terminal, room, 8]);
            0
        });
        pause_ns(p, 1000);
        let interrupt = p.put(&[3]);
        p.must(Sysno::write, &[master, interrupt, 1]);
        assert_eq!(p.wait_for(child) & 0x7f, 2, "SIGINT");
        p.must(Sysno::close, &[slave]);
        p.must(Sysno::close, &[master]);
        0
    }
}

/// A ring of 16 entries.
pub(super) struct Ring {
    file: u64,
    submitted: u64,
    completed: u64,
    entries: u64,
    offsets: [u64; 18],
}

impl Ring {
    /// Returns its descriptor.
    pub(super) const fn file(&self) -> u64 {
        self.file
    }
    pub(super) fn new(p: &mut Program) -> Self {
        let parameters = p.put(&[0; 120]);
        let file = p.must(Sysno::io_uring_setup, &[16, parameters]);
        let offsets = core::array::from_fn(|index| u64::from(p.load_u32(parameters + 40 + 4 * index as u64)));
        let view = |p: &mut Program, offset: u64| p.must(Sysno::mmap, &[0, PAGE, 3, 0x8001, file, offset]);
        let (submitted, completed) = (view(p, 0), view(p, 0x800_0000));
        Self { file, submitted, completed, entries: view(p, 0x1000_0000), offsets }
    }
    /// Runs one operation. Returns its result.
    fn run(
        &self,
        p: &mut Program,
        operation: u8,
        file: u64,
        (address, length, offset): (u64, u64, u64),
    ) -> i32 {
        let tail = p.load_u32(self.submitted + self.offsets[1]);
        let slot = u64::from(tail & 15);
        let mut entry = [0u8; 64];
        entry[0] = operation;
        entry[4..8].copy_from_slice(&(file as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&offset.to_le_bytes());
        entry[16..24].copy_from_slice(&address.to_le_bytes());
        entry[24..28].copy_from_slice(&(length as u32).to_le_bytes());
        p.store(self.entries + 64 * slot, &entry);
        p.store(self.submitted + self.offsets[6] + 4 * slot, &(slot as u32).to_le_bytes());
        p.store(self.submitted + self.offsets[1], &(tail + 1).to_le_bytes());
        assert_eq!(p.must(Sysno::io_uring_enter, &[self.file, 1, 1, 1, 0, 0]), 1);
        let head = p.load_u32(self.completed + self.offsets[10]);
        let mask = p.load_u32(self.completed + self.offsets[12]);
        let result = p.load(self.completed + self.offsets[15] + 16 * u64::from(head & mask) + 8, 4);
        p.store(self.completed + self.offsets[10], &(head + 1).to_le_bytes());
        i32::from_le_bytes(result.try_into().unwrap())
    }
}

on_machine! {
    /// Operations through a ring have the same effects as the calls with the same names.
    rings_do_what_calls_do, Setup { disks: || std::vec![disk(256)], ..Setup::default() }, |p| {
        let ring = Ring::new(p);
        assert_eq!(ring.run(p, 0, 0, (0, 0, 0)), 0, "NOP");
        let file = p.open("/tmp/ring", 0o102) as u64;
        let memory = p.map(8 * PAGE);
        p.store(memory, b"through the ring");
        let vector = p.words(&[memory, 16]);
        assert_eq!(ring.run(p, 2, file, (vector, 1, 0)), 16, "WRITEV");
        let target = p.words(&[memory + PAGE, 16]);
        assert_eq!(ring.run(p, 1, file, (target, 1, 0)), 16, "READV");
        assert_eq!(p.load(memory + PAGE, 16), b"through the ring");
        assert_eq!(ring.run(p, 23, file, (memory, 16, 16)), 16, "WRITE");
        assert_eq!(ring.run(p, 22, file, (memory + 2 * PAGE, 16, 16)), 16, "READ");
        assert_eq!(ring.run(p, 3, file, (0, 0, 0)), 0, "FSYNC");
        let registered = p.words(&[memory, 8 * PAGE]);
        p.must(Sysno::io_uring_register, &[ring.file, 0, registered, 1]);
        assert_eq!(ring.run(p, 5, file, (memory, 16, 0)), 16, "WRITE_FIXED");
        assert_eq!(ring.run(p, 4, file, (memory + 3 * PAGE, 16, 0)), 16, "READ_FIXED");
        let disk = p.open("/dev/vda", 0o40002) as u64;
        assert_eq!(ring.run(p, 5, disk, (memory, PAGE, 0)), 4096, "to a disk past its cache");
        assert_eq!(ring.run(p, 4, disk, (memory + 4 * PAGE, PAGE, 0)), 4096);
        assert_eq!(p.load(memory + 4 * PAGE, 16), b"through the ring");
        p.must(Sysno::io_uring_register, &[ring.file, 1, 0, 0]);
        let (read, write) = pair(p, Sysno::pipe2, &[0]);
        ring.run(p, 23, write, (memory, 16, u64::MAX));
        assert_eq!(ring.run(p, 22, read, (memory, 16, u64::MAX)), 16, "from a pipe");
        let time = p.words(&[0, 1000]);
        assert_eq!(ring.run(p, 11, 0, (time, 1, 0)), -62, "TIMEOUT");
        for operation in 6..64 {
            if ![6, 11, 13].contains(&operation) {
                ring.run(p, operation, file, (memory, 1, 0));
            }
        }
        p.must(Sysno::close, &[ring.file]);
        0
    }
}
