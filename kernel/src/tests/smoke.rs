//! A program runs, and its calls have the same results as on Linux.

use std::string::String;

use syscalls::Sysno;

use super::machine::{Setup, on_machine};
use super::program::{Program, address_of};

on_machine! {
    /// A program uses memory, files, children and signals.
    a_program_runs, Setup::default(), |p| {
        let own = p.must(Sysno::getpid, &[]);
        assert!(own > 1);
        let memory = p.map(1 << 20);
        p.store(memory + 4090, b"across a page's end");
        assert_eq!(p.load(memory + 4090, 19), b"across a page's end");
        assert_eq!(p.write_file("/tmp/file", b"content"), 7);
        assert_eq!(p.read_file("/tmp/file").unwrap(), b"content");
        let child = p.fork(|p| {
            p.store(super::elf::ROOM, b"child");
            7
        });
        assert_eq!(p.wait_for(child), 7 << 8);
        let handler = address_of(|p: &mut Program| {
            let signal = p.signal() as u8;
            p.store(super::elf::ROOM + super::elf::ROOM_BYTES - 16, &[signal]);
            0
        });
        let action = p.words(&[handler, 0x0400_0000, super::elf::TEXT, 0]);
        p.must(Sysno::rt_sigaction, &[10, action, 0, 8]);
        p.must(Sysno::kill, &[own, 10]);
        assert_eq!(p.load(super::elf::ROOM + super::elf::ROOM_BYTES - 16, 1), [10]);
        let status = String::from_utf8(p.read_file("/proc/self/status").unwrap()).unwrap();
        assert!(status.contains("VmRSS"), "{status}");
        0
    }
}
