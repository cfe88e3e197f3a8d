//! Tracepoints on the software machine: events that a program turns on are recorded, and read once
//! or often.
//! often.

use std::string::String;

use freehold_frame::Owner;
use freehold_tracepoints::table::OWNERS;
use syscalls::Sysno;

use super::machine::{Setup, on_machine};
use super::program::Program;

const ROOT: &str = "/sys/kernel/tracing";

fn get(p: &mut Program, file: &str) -> String {
    String::from_utf8(p.read_file(&std::format!("{ROOT}/{file}")).unwrap()).unwrap()
}

fn put(p: &mut Program, file: &str, what: &str) -> i64 {
    let opened = p.open(&std::format!("{ROOT}/{file}"), 0o1);
    assert!(opened >= 0, "{file}: {opened}");
    let buffer = p.room(what.len());
    p.store(buffer, what.as_bytes());
    let written = p.call(Sysno::write, &[opened as u64, buffer, what.len() as u64]);
    p.must(Sysno::close, &[opened as u64]);
    written
}

#[test]
fn owners_have_the_words_of_the_frame_table() {
    for owner in Owner::ALL {
        let word = OWNERS.iter().find(|(number, _)| *number == owner as i64).map(|(_, word)| *word);
        assert_eq!(word, Some(&*std::format!("{owner:?}")));
    }
    assert_eq!(OWNERS.len(), Owner::COUNT);
}

on_machine! {
    /// Enabled events are recorded with their fields. trace can show them repeatedly, trace_pipe
    /// once.
    what_is_turned_on_is_recorded, Setup::default(), |p| {
        assert_eq!(put(p, "buffer_size_kb", "16"), 2);
        assert_eq!(get(p, "buffer_size_kb"), "0 (expanded: 16)\n", "there is no ring before an event is on");
        assert_eq!(put(p, "set_event", "raw_syscalls:* signal:signal_generate"), 37);
        assert_eq!(get(p, "buffer_size_kb"), "16\n");
        let own = p.must(Sysno::getpid, &[]);
        p.must(Sysno::kill, &[own, 18]);
        assert_eq!(put(p, "events/enable", "0"), 1);
        for _ in 0..2 {
            let trace = get(p, "trace");
            assert!(trace.contains("sys_enter: NR 39 ("), "{trace}");
            assert!(trace.contains(&*std::format!("sys_exit: NR 39 = {own}\n")), "{trace}");
            assert!(trace.contains("signal_generate: sig=18 errno=0 code=0 comm="), "{trace}");
        }
        let pipe = p.open(&std::format!("{ROOT}/trace_pipe"), 0o4000) as u64;
        let buffer = p.room(16384);
        let mut read = 0;
        loop {
            match p.call(Sysno::read, &[pipe, buffer, 16384]) {
                -11 => break,
                count => read += count,
            }
        }
        assert!(read > 500);
        assert!(!get(p, "trace").contains("NR 39"), "trace_pipe has consumed them");
        let stats = get(p, "per_cpu/cpu0/stats");
        assert!(stats.starts_with("entries: 0\noverrun: 0\n"), "{stats}");
        0
    }
}
