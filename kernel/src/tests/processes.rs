//! Processes, threads, signals, tracers, System V IPC; and calls with random arguments.

use core::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

use syscalls::Sysno;

use super::calls::pause_ns;
use super::elf::ROOM;
use super::machine::{Setup, disk, on_machine};
use super::program::{Program, address_of};

const PAGE: u64 = 4096;

static HANDLED: AtomicU64 = AtomicU64::new(0);

fn handler(p: &mut Program) -> i32 {
    HANDLED.fetch_add(1 << (p.signal() % 64), Ordering::Relaxed);
    0
}

on_machine! {
    /// Processes, threads and signals.
    processes_and_signals, Setup { programs: &[|p| {
        let count = p.load_u64(p.arguments);
        assert_eq!(count, 2);
        assert!(p.read_file("/proc/self/cmdline").unwrap().starts_with(b"one\0two\0"));
        3
    }], ..Setup::default() }, |p| {
        let own = p.must(Sysno::getpid, &[]);
        let action = p.words(&[address_of(handler), 0x0400_0004, super::elf::TEXT, 0]);
        for signal in [10, 12, 14, 17, 23, 34] {
            p.must(Sysno::rt_sigaction, &[signal, action, 0, 8]);
        }
        p.must(Sysno::kill, &[own, 10]);
        p.must(Sysno::tkill, &[own, 12]);
        p.must(Sysno::tgkill, &[own, own, 12]);
        assert_eq!(HANDLED.load(Ordering::Relaxed), (1 << 10) + (2 << 12));
        let set = p.words(&[1 << 9 | 1 << 33]);
        let old = p.room(16);
        p.must(Sysno::rt_sigprocmask, &[0, set, old, 8]);
        p.must(Sysno::kill, &[own, 10]);
        p.must(Sysno::rt_sigpending, &[old, 8]);
        assert_eq!(p.load_u64(old), 1 << 9);
        let info = p.room(128);
        let time = p.words(&[0, 1000]);
        assert_eq!(p.must(Sysno::rt_sigtimedwait, &[set, info, time, 8]), 10);
        let value = p.words(&[34, u64::MAX << 32 | 0xffff_ffff, own << 32]);
        p.call(Sysno::rt_sigqueueinfo, &[own, 34, value]);
        p.call(Sysno::rt_sigtimedwait, &[set, info, time, 8]);
        p.must(Sysno::rt_sigprocmask, &[1, set, 0, 8]);
        let stack = p.map(8 * PAGE);
        let place = p.words(&[stack, 0, 8 * PAGE]);
        p.must(Sysno::sigaltstack, &[place, old]);
        p.must(Sysno::alarm, &[1]);
        assert_eq!(p.call(Sysno::pause, &[]), -4);
        let timer = p.words(&[0, 1000, 0, 1000]);
        p.must(Sysno::setitimer, &[0, timer, 0]);
        assert_eq!(p.call(Sysno::pause, &[]), -4);
        p.must(Sysno::getitimer, &[0, info]);
        let nothing = p.words(&[0, 0, 0, 0]);
        p.must(Sysno::setitimer, &[0, nothing, 0]);
        let id = p.room(8);
        p.must(Sysno::timer_create, &[1, 0, id]);
        let id_value = u64::from(p.load_u32(id));
        p.must(Sysno::timer_settime, &[id_value, 0, timer, 0]);
        p.must(Sysno::timer_gettime, &[id_value, info]);
        p.must(Sysno::timer_getoverrun, &[id_value]);
        p.must(Sysno::timer_delete, &[id_value]);
        for clock in [0, 1, 2, 3, 4, 5, 6, 7, 11] {
            p.call(Sysno::clock_gettime, &[clock, info]);
            p.call(Sysno::clock_getres, &[clock, info]);
        }
        p.must(Sysno::clock_nanosleep, &[1, 0, time, 0]);
        for call in [Sysno::gettimeofday, Sysno::time, Sysno::times, Sysno::uname, Sysno::sysinfo] {
            p.must(call, &[info]);
        }
        for (call, arguments) in [
            (Sysno::getrusage, [0, info, 0, 0]), (Sysno::getrusage, [u64::MAX, info, 0, 0]), (Sysno::getrlimit, [7, info, 0, 0]),
            (Sysno::prlimit64, [0, 3, 0, info]), (Sysno::sched_getaffinity, [0, 8, info, 0]), (Sysno::sched_getscheduler, [0; 4]),
            (Sysno::sched_getparam, [0, info, 0, 0]), (Sysno::sched_getattr, [0, info, 56, 0]), (Sysno::sched_setattr, [0, info, 0, 0]),
            (Sysno::ioprio_set, [1, 0, 2 << 13, 0]), (Sysno::ioprio_get, [1, 0, 0, 0]), (Sysno::getpriority, [0; 4]), (Sysno::setpriority, [0, 0, 5, 0]),
            (Sysno::sched_yield, [0; 4]), (Sysno::getpgid, [0; 4]), (Sysno::getsid, [0; 4]), (Sysno::getppid, [0; 4]),
            (Sysno::gettid, [0; 4]), (Sysno::getuid, [0; 4]), (Sysno::geteuid, [0; 4]), (Sysno::getgid, [0; 4]),
            (Sysno::getegid, [0; 4]), (Sysno::getresuid, [info, info + 8, info + 16, 0]), (Sysno::getresgid, [info, info + 8, info + 16, 0]),
            (Sysno::getrandom, [info, 64, 0, 0]), (Sysno::getcpu, [info, info + 8, 0, 0]), (Sysno::set_tid_address, [info, 0, 0, 0]),
            (Sysno::set_robust_list, [info, 24, 0, 0]), (Sysno::get_robust_list, [0, info, info + 8, 0]),
            (Sysno::membarrier, [0; 4]), (Sysno::personality, [0xffff_ffff, 0, 0, 0]), (Sysno::arch_prctl, [0x1003, info, 0, 0]),
        ] {
            p.must(call, &arguments);
        }
        for option in 1..60 {
            p.call(Sysno::prctl, &[option, 0, 0, 0, 0]);
        }
        let header = p.words(&[0x2008_0522]);
        let capabilities = p.room(24);
        p.must(Sysno::capget, &[header, capabilities]);
        p.must(Sysno::capset, &[header, capabilities]);
        let child = p.fork(|p| {
            let groups = p.words(&[5 << 32 | 4]);
            p.must(Sysno::setgroups, &[2, groups]);
            p.must(Sysno::getgroups, &[2, groups]);
            p.must(Sysno::setresgid, &[7, 7, 7]);
            p.must(Sysno::setfsuid, &[8]);
            p.must(Sysno::setreuid, &[8, 8]);
            assert_eq!(p.call(Sysno::setuid, &[0]), -1);
            assert!(p.write_file("/etc/own", b"x") < 0);
            let host = p.text("name");
            assert_eq!(p.call(Sysno::sethostname, &[host, 4]), -1);
            9
        });
        assert_eq!(p.wait_for(child), 9 << 8);
        let flags = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x20_0000 | 0x100_0000;
        let word = p.put(&[1; 4]);
        let thread = p.copy(|p| {
            HANDLED.store(0, Ordering::Relaxed);
            p.raw(60, &[0]) as i32
        }, &[flags, stack + 8 * PAGE, 0, word, 0]);
        assert!(thread > own);
        while p.load_u32(word) != 0 {
            let now = u64::from(p.load_u32(word));
            p.call(Sysno::futex, &[word, 0, now, 0, 0, 0]);
        }
        assert_eq!(HANDLED.load(Ordering::Relaxed), 0);
        let child = p.fork(|p| {
            let (path, one, two) = (p.text("/bin/1"), p.text("one"), p.text("two"));
            let arguments = p.words(&[one, two, 0]);
            p.raw(59, &[path, arguments, 0]) as i32
        });
        assert_eq!(p.wait_for(child), 3 << 8);
        let child = p.copy(|_| 4, &[17 | 0x4000 | 0x100]);
        let descriptor = p.must(Sysno::pidfd_open, &[child, 0]);
        let status = p.room(128);
        p.must(Sysno::waitid, &[3, descriptor, status, 4, 0]);
        p.call(Sysno::pidfd_send_signal, &[descriptor, 0, 0, 0]);
        0
    }
}

on_machine! {
    /// A tracer sees a child's calls, changes its registers and memory, and detaches.
    a_tracer_sees_and_changes, Setup::default(), |p| {
        let child = p.fork(|p| {
            p.must(Sysno::ptrace, &[0, 0, 0, 0]);
            let own = p.must(Sysno::getpid, &[]);
            p.must(Sysno::kill, &[own, 19]);
            p.store(ROOM, b"traced");
            for _ in 0..10 {
                p.must(Sysno::getppid, &[]);
            }
            5
        });
        assert_eq!(p.wait_for(child) & 0xff, 0x7f);
        p.must(Sysno::ptrace, &[0x4200, child, 0, 0x7f]);
        let registers = p.room(512);
        let vector = p.words(&[registers, 512]);
        let data = p.room(16);
        for _ in 0..8 {
            p.must(Sysno::ptrace, &[24, child, 0, 0]);
            let status = p.wait_for(child);
            assert_eq!(status & 0xff, 0x7f, "{status:x}");
            p.must(Sysno::ptrace, &[12, child, 0, registers]);
            p.must(Sysno::ptrace, &[13, child, 0, registers]);
            p.must(Sysno::ptrace, &[14, child, 0, registers]);
            p.must(Sysno::ptrace, &[15, child, 0, registers]);
            p.must(Sysno::ptrace, &[0x4204, child, 1, vector]);
            p.call(Sysno::ptrace, &[0x420e, child, 88, registers]);
            p.must(Sysno::ptrace, &[1, child, ROOM, data]);
            p.must(Sysno::ptrace, &[4, child, ROOM, 77]);
            p.call(Sysno::ptrace, &[0x4202, child, 0, registers]);
            p.call(Sysno::ptrace, &[3, child, 16, data]);
        }
        p.must(Sysno::ptrace, &[7, child, 0, 0]);
        let mut status = p.wait_for(child);
        while status & 0xff == 0x7f {
            p.must(Sysno::ptrace, &[7, child, 0, 0]);
            status = p.wait_for(child);
        }
        assert_eq!(status, 5 << 8);
        let child = p.fork(|p| {
            loop {
                p.call(Sysno::pause, &[]);
            }
        });
        p.must(Sysno::ptrace, &[0x4206, child, 0, 0]);
        p.must(Sysno::ptrace, &[0x4207, child, 0, 0]);
        assert_eq!(p.wait_for(child) & 0xff, 0x7f);
        p.must(Sysno::ptrace, &[17, child, 0, 0]);
        p.must(Sysno::kill, &[child, 9]);
        assert_eq!(p.wait_for(child), 9);
        0
    }
}

on_machine! {
    /// Shared memory, semaphores and messages of System V IPC.
    system_v, Setup::default(), |p| {
        let id = p.must(Sysno::shmget, &[1, 4 * PAGE, 0o1600]);
        let at = p.must(Sysno::shmat, &[id, 0, 0]);
        p.store(at, b"shared");
        let child = p.fork(|p| {
            let id = p.must(Sysno::shmget, &[1, 0, 0]);
            let at = p.must(Sysno::shmat, &[id, 0, 0o10000]);
            assert_eq!(p.load(at, 6), b"shared");
            0
        });
        assert_eq!(p.wait_for(child), 0);
        let buffer = p.room(256);
        for command in [2, 1, 3, 13, 14, 15, 11, 12] {
            p.call(Sysno::shmctl, &[id, command, buffer]);
        }
        p.must(Sysno::shmdt, &[at]);
        p.must(Sysno::shmctl, &[id, 0, 0]);
        let id = p.must(Sysno::semget, &[1, 4, 0o1600]);
        let values = p.words(&[1 | 2 << 16 | 3 << 32 | 4 << 48]);
        p.must(Sysno::semctl, &[id, 0, 17, values]);
        for command in [2, 11, 12, 13, 14, 15, 3, 19, 18] {
            p.call(Sysno::semctl, &[id, 0, command, buffer]);
        }
        let child = p.fork(|p| {
            let id = p.must(Sysno::semget, &[1, 0, 0]);
            let operation = p.words(&[0x1000_fffe_0000]);
            p.must(Sysno::semop, &[id, operation, 1]);
            0
        });
        pause_ns(p, 1000);
        let operation = p.words(&[0x0003_0000]);
        p.must(Sysno::semop, &[id, operation, 1]);
        assert_eq!(p.wait_for(child), 0);
        let time = p.words(&[0, 1000]);
        let operation = p.words(&[0xff00_0000]);
        p.call(Sysno::semtimedop, &[id, operation, 1, time]);
        p.must(Sysno::semctl, &[id, 0, 0, 0]);
        let id = p.must(Sysno::msgget, &[1, 0o1600]);
        let message = p.words(&[5, 1, 2, 3]);
        p.must(Sysno::msgsnd, &[id, message, 24, 0]);
        for command in [2, 11, 12, 13, 3, 1] {
            p.call(Sysno::msgctl, &[id, command, buffer]);
        }
        p.must(Sysno::msgsnd, &[id, message, 16, 0o4000]);
        assert_eq!(p.must(Sysno::msgrcv, &[id, buffer, 64, 5, 0]), 24);
        assert_eq!(p.must(Sysno::msgrcv, &[id, buffer, 64, (-9i64) as u64, 0]), 16);
        assert_eq!(p.call(Sysno::msgrcv, &[id, buffer, 64, 0, 0o4000]), -42);
        p.must(Sysno::msgctl, &[id, 0, 0]);
        0
    }
}

on_machine! {
    /// Two processes exchange messages through a POSIX queue. One waits for the other, is notified
    /// by a signal, and its end lets others register.
    message_queues_of_posix, Setup::default(), |p| {
        let name = p.text("queue");
        let size = p.words(&[0, 2, 16, 0, 0, 0, 0, 0]);
        let queue = p.must(Sysno::mq_open, &[name, 0o302, 0o600, size]);
        let child = p.fork(|p| {
            let name = p.text("queue");
            let queue = p.must(Sysno::mq_open, &[name, 2, 0, 0]);
            let room = p.room(64);
            assert_eq!(p.must(Sysno::mq_timedreceive, &[queue, room, 16, room + 32, 0]), 5);
            assert_eq!((p.load(room, 5).as_slice(), p.load_u32(room + 32)), (b"hello".as_slice(), 7));
            let event = p.words(&[9, 10, 0, 0, 0, 0, 0, 0]);
            p.must(Sysno::mq_notify, &[queue, event]);
            assert_eq!(p.call(Sysno::mq_notify, &[queue, event]), -16);
            4
        });
        pause_ns(p, 1_000_000);
        let text = p.text("hello");
        p.must(Sysno::mq_timedsend, &[queue, text, 5, 7, 0]);
        assert_eq!(p.wait_for(child), 4 << 8);
        let none = p.words(&[0, 1 << 32, 0, 0, 0, 0, 0, 0]);
        p.must(Sysno::mq_notify, &[queue, none]);
        p.must(Sysno::mq_timedsend, &[queue, text, 5, 1, 0]);
        p.must(Sysno::mq_timedsend, &[queue, text, 4, 2, 0]);
        let past = p.words(&[1, 0]);
        assert_eq!(p.call(Sysno::mq_timedsend, &[queue, text, 4, 2, past]), -110);
        let child = p.fork(|p| {
            let (name, text) = (p.text("queue"), p.text("third"));
            let queue = p.must(Sysno::mq_open, &[name, 1, 0, 0]);
            p.must(Sysno::mq_timedsend, &[queue, text, 5, 3, 0]);
            0
        });
        pause_ns(p, 1_000_000);
        let room = p.room(64);
        assert_eq!(p.must(Sysno::mq_timedreceive, &[queue, room, 16, 0, 0]), 4);
        assert_eq!(p.wait_for(child), 0);
        p.must(Sysno::mq_getsetattr, &[queue, 0, room]);
        assert_eq!(p.load_u64(room + 24), 2);
        assert_eq!(p.must(Sysno::mq_timedreceive, &[queue, room, 16, 0, 0]), 5);
        p.must(Sysno::mq_unlink, &[name]);
        assert_eq!(p.call(Sysno::mq_open, &[name, 2, 0, 0]), -2);
        p.must(Sysno::close, &[queue]);
        0
    }
}

/// Returns an argument of a random call: a small number, an address, a file.
fn random_argument(p: &mut Program, seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let draw = *seed >> 33;
    match draw % 8 {
        0 => 0,
        1 => draw >> 3 & 15,
        2 => draw >> 3 & 0xffff,
        3 => p.words(&[draw & 0xff, draw >> 9 & 0xffff, 0, 1]),
        4 => ROOM + (draw & 0xffff0),
        5 => p.text("/tmp/a"),
        6 => u64::MAX - (draw >> 3 & 3),
        _ => draw << 12,
    }
}

static SEED: AtomicU64 = AtomicU64::new(1);

fn makes_random_calls(p: &mut Program) -> i32 {
    // Calls that would end the machine, the test's own thread or other threads, and calls with
    // separate tests.
    const LEFT_OUT: [u64; 21] =
        [15, 34, 56, 57, 58, 59, 60, 61, 62, 101, 129, 130, 169, 200, 231, 234, 247, 297, 322, 424, 435];
    let mut seed = SEED.fetch_add(1, Ordering::Relaxed);
    for _ in 0..400 {
        let number = random_argument(p, &mut seed) ^ seed >> 40;
        let number = number % 470;
        if LEFT_OUT.contains(&number) {
            continue;
        }
        let arguments = (0..6).map(|_| random_argument(p, &mut seed)).collect::<Vec<_>>();
        p.raw(number, &arguments);
    }
    0
}

on_machine! {
    /// Calls with random arguments do no harm to the kernel or to other processes.
    any_call_may_be_made, Setup { disks: || std::vec![disk(256)], ..Setup::default() }, |p| {
        for _ in 0..60 {
            let child = p.fork(makes_random_calls);
            let status = p.put(&[0; 4]);
            let mut tries = 0;
            while p.must(Sysno::wait4, &[child, status, 1, 0]) == 0 {
                pause_ns(p, 50_000_000);
                tries += 1;
                if tries == 10 {
                    p.call(Sysno::kill, &[child, 9]);
                }
            }
        }
        let memory = p.map(4096);
        p.store(memory, &[1]);
        0
    }
}
