//! From records of events to the lines of `--strace`.
//!
//! A call is a line when it has ended. A call that lasts longer than [`SHORT`] while others have
//! lines to print is printed in two parts, `<unfinished ...>` and `<... resumed>`, so that the
//! order of lines shows the order of events. Records come from the guest: any sequence makes lines.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use freehold_tracepoints::table::{
    SchedExec, SchedFork, SignalDeliver, SysEnter, SysExit, SyscallText, ThreadEnd,
};
use freehold_tracepoints::{RecordView, TraceEvent};

use super::arguments::{ArgumentText, Call, name, quoted};
use super::names;

/// The events that lines are made of.
pub const EVENTS: &str = "raw_syscalls,signal:signal_deliver,sched:sched_process_exec,sched:sched_process_fork,\
                          freehold:syscall_text,freehold:thread_end";
/// The time (nanoseconds) after which an unfinished call is printed in part before lines of others.
const SHORT: u64 = 1_000_000;
/// The column of results.
const RESULT_COLUMN: usize = 39;
/// Largest number of texts that are kept per call: more than any call has.
const MOST_TEXTS: usize = 128;

/// The program that the run starts: no call of its own executes it.
#[derive(Debug, Clone, Default)]
pub struct FirstProgram {
    /// Path in the guest.
    pub path: Vec<u8>,
    /// Its arguments.
    pub arguments: Vec<Vec<u8>>,
    /// How many variables its environment has.
    pub variables: usize,
}

/// Whether a line begins with the number of its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadNumbers {
    /// Always: `7 `.
    Always,
    /// While there are several threads: `[pid 7] `.
    OfSeveral,
}

/// A call that has not ended.
#[derive(Debug)]
struct OpenCall {
    call: Call,
    began: u64,
    /// Whether its first part is printed.
    announced: bool,
}

/// Makes lines of records.
#[derive(Debug)]
pub struct Lines {
    first: Option<FirstProgram>,
    numbers: ThreadNumbers,
    /// The threads that live, with the calls that they are in.
    threads: BTreeMap<i32, Option<OpenCall>>,
    /// The number of the next record, by CPU.
    next: HashMap<u16, u64>,
    /// Lines that the caller has not taken yet.
    text: String,
    /// Calls that were printed.
    pub calls: u64,
    /// Records that were overwritten before they were sent.
    pub lost: u64,
}

impl Lines {
    /// Makes the state at the program's start.
    pub fn new(first: FirstProgram, numbers: ThreadNumbers) -> Lines {
        let (threads, next) = (BTreeMap::new(), HashMap::new());
        Lines { first: Some(first), numbers, threads, next, text: String::new(), calls: 0, lost: 0 }
    }

    /// Returns the lines since the last time.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Adds a record of `cpu`.
    pub fn add(&mut self, cpu: u16, record: &RecordView<'_>) {
        self.count(cpu, record.number);
        let (pid, time) = (record.head.pid, record.head.time);
        let value = |name: &str| record.value(name).unwrap_or_default();
        match record.head.event {
            SysEnter::NUMBER => self.enter(pid, time, record),
            SyscallText::NUMBER => self.text_of(pid, record),
            SysExit::NUMBER => self.exit(pid, time, value("id") as u64, value("ret")),
            SignalDeliver::NUMBER => {
                let signal = value("sig") as u32;
                let (name, code) = (names::signal(signal), names::signal_code(signal, value("code")));
                self.line(pid, time, &format!("--- {name} {{si_signo={name}, si_code={code}}} ---"));
            }
            SchedFork::NUMBER => {
                self.threads.entry(value("child_pid") as i32).or_default();
            }
            SchedExec::NUMBER => self.executed(time, (value("pid") as i32, value("old_pid") as i32)),
            ThreadEnd::NUMBER => self.ended(pid, time, value("status") as u32),
            _ => {}
        }
    }

    /// Prints the calls that have not ended, at the end of the run.
    pub fn finish(&mut self) {
        let open: Vec<i32> = self.threads.keys().copied().collect();
        for pid in open {
            self.announce(pid);
        }
    }

    /// Notes a record's number: those that are missing before it are lost.
    fn count(&mut self, cpu: u16, number: u64) {
        let expected = self.next.insert(cpu, number.wrapping_add(1)).unwrap_or(0);
        if number > expected {
            let lost = number - expected;
            self.lost = self.lost.saturating_add(lost);
            // Ends of these calls may be among them.
            self.finish();
            self.threads.values_mut().for_each(|open| *open = None);
            let _ = writeln!(self.text, "--- {lost} records of CPU {cpu} lost ---");
        }
    }

    fn enter(&mut self, pid: i32, time: u64, record: &RecordView<'_>) {
        // The record of the end of an earlier call was lost.
        self.announce(pid);
        let mut values = [0; 6];
        // Its fields are the number and the arguments.
        for (value, word) in values.iter_mut().zip(record.payload.iter().skip(1)) {
            *value = *word;
        }
        let number = record.value("id").unwrap_or_default() as u64;
        let call = Call { number, values, texts: Vec::new() };
        self.threads.insert(pid, Some(OpenCall { call, began: time, announced: false }));
    }

    fn text_of(&mut self, pid: i32, record: &RecordView<'_>) {
        let Some(Some(open)) = self.threads.get_mut(&pid) else { return };
        let value = |name: &str| record.value(name).unwrap_or_default() as usize;
        if open.call.texts.len() >= MOST_TEXTS {
            return;
        }
        // The text begins after four numbers of 32 bits.
        let bytes = record.payload.iter().skip(2).flat_map(|word| word.to_le_bytes());
        open.call.texts.push(ArgumentText {
            argument: value("arg"),
            bytes: bytes.take(value("taken")).collect(),
            more: value("more") != 0,
        });
    }

    fn exit(&mut self, pid: i32, time: u64, number: u64, result: i64) {
        let Some(open) = self.threads.entry(pid).or_default().take() else {
            // The record of its beginning was lost, or the call began before the events.
            let nobody = Call { number, values: [0; 6], texts: Vec::new() };
            let text = format!("<... {} resumed>) = {}", name(number), nobody.result(result));
            return self.call_line(pid, time, &text);
        };
        let head = if open.announced {
            format!("<... {} resumed>{})", open.call.name(), open.call.behind())
        } else {
            format!("{}({}{})", open.call.name(), open.call.before().0, open.call.behind())
        };
        self.result_line(pid, time, &head, &open.call.result(result));
    }

    /// A process runs another program: `pid` is its only thread, which was `former`.
    fn executed(&mut self, time: u64, (pid, former): (i32, i32)) {
        let first = self.first.take();
        if former != pid {
            self.line(former, time, &format!("+++ superseded by execve in pid {pid} +++"));
            let moved = self.threads.remove(&former).flatten();
            self.threads.insert(pid, moved);
        } else if let Some(first) = first.filter(|_| !matches!(self.threads.get(&pid), Some(Some(_)))) {
            self.threads.entry(pid).or_default();
            let words: Vec<String> = first.arguments.iter().map(|word| quoted(word)).collect();
            let head = format!(
                "execve({}, [{}], /* {} vars */)",
                quoted(&first.path),
                words.join(", "),
                first.variables
            );
            self.result_line(pid, time, &head, "0");
        }
    }

    fn ended(&mut self, pid: i32, time: u64, status: u32) {
        if let Some(Some(open)) = self.threads.get_mut(&pid).map(Option::take) {
            let head = if open.announced {
                format!("<... {} resumed> <unfinished ...>)", open.call.name())
            } else {
                format!("{}({} <unfinished ...>)", open.call.name(), open.call.before().0)
            };
            self.result_line(pid, time, &head, "?");
        }
        let how = match (status & 0x7f, status & 0x80) {
            (0, _) => format!("exited with {}", status >> 8 & 0xff),
            (signal, 0) => format!("killed by {}", names::signal(signal)),
            (signal, _) => format!("killed by {} (core dumped)", names::signal(signal)),
        };
        self.line(pid, time, &format!("+++ {how} +++"));
        self.threads.remove(&pid);
    }

    /// Prints a call of `pid` with its result.
    fn result_line(&mut self, pid: i32, time: u64, head: &str, result: &str) {
        let width = RESULT_COLUMN.saturating_sub(self.prefix(pid).chars().count());
        self.call_line(pid, time, &format!("{head:<width$} = {result}"));
    }

    fn call_line(&mut self, pid: i32, time: u64, text: &str) {
        self.calls += 1;
        self.line(pid, time, text);
    }

    /// Prints a line of `pid`, after the calls of others that began long before it.
    fn line(&mut self, pid: i32, time: u64, text: &str) {
        let is_long = |open: &OpenCall| !open.announced && open.began.saturating_add(SHORT) < time;
        let mut long: Vec<(u64, i32)> = Vec::new();
        for (&other, open) in self.threads.iter().filter(|(other, _)| **other != pid) {
            long.extend(open.as_ref().filter(|open| is_long(open)).map(|open| (open.began, other)));
        }
        long.sort_unstable();
        for (_, other) in long {
            self.announce(other);
        }
        let prefix = self.prefix(pid);
        let _ = writeln!(self.text, "{prefix}{text}");
    }

    /// Prints the first part of the call that `pid` is in, if it is in one.
    fn announce(&mut self, pid: i32) {
        let prefix = self.prefix(pid);
        let Some(Some(open)) = self.threads.get_mut(&pid) else { return };
        if !open.announced {
            open.announced = true;
            let (name, arguments) = (open.call.name(), open.call.before().0);
            let _ = writeln!(self.text, "{prefix}{name}({arguments} <unfinished ...>");
        }
    }

    fn prefix(&self, pid: i32) -> String {
        match self.numbers {
            ThreadNumbers::Always => format!("{pid} "),
            ThreadNumbers::OfSeveral if self.threads.len() > 1 => format!("[pid {pid:>5}] "),
            ThreadNumbers::OfSeveral => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use freehold_tracepoints::{Comm, Pid, RecordHead};
    use proptest::prelude::*;

    use super::*;

    /// Times are in microseconds.
    fn feed(lines: &mut Lines, number: u64, (event, time, pid): (usize, u64, i32), payload: &[u64]) {
        let head = RecordHead { time: time * 1000, event, pid, comm: Comm::of(b"x") };
        lines.add(0, &RecordView { head, number, payload });
    }

    fn enter(number: i64, args: [u64; 6]) -> Vec<u64> {
        SysEnter { id: number, args }.words().to_vec()
    }

    fn leave(id: i64, ret: i64) -> Vec<u64> {
        SysExit { id, ret }.words().to_vec()
    }

    fn text(arg: u32, bytes: &[u8]) -> Vec<u64> {
        let event = SyscallText { arg, part: 0, taken: bytes.len() as u32, more: 0, buf: () };
        let mut words = event.words().to_vec();
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            words.push(u64::from_le_bytes(word));
        }
        words
    }

    fn program() -> Lines {
        let first = FirstProgram { path: b"/bin/x".to_vec(), arguments: vec![b"x".to_vec()], variables: 2 };
        Lines::new(first, ThreadNumbers::OfSeveral)
    }

    #[test]
    fn calls_signals_and_ends_are_lines() {
        let mut lines = program();
        let exec = SchedExec { comm: Comm::of(b"x"), pid: Pid(2), old_pid: Pid(2) }.words();
        feed(&mut lines, 0, (SchedExec::NUMBER, 1, 2), &exec);
        feed(&mut lines, 1, (SysEnter::NUMBER, 2, 2), &enter(80, [4096, 0, 0, 0, 0, 0]));
        feed(&mut lines, 2, (SyscallText::NUMBER, 3, 2), &text(0, b"/nowhere"));
        feed(&mut lines, 3, (SysExit::NUMBER, 4, 2), &leave(80, -2));
        let signal = SignalDeliver { sig: 11, errno: 0, code: 1, sa_handler: 0, sa_flags: 0 }.words();
        feed(&mut lines, 4, (SignalDeliver::NUMBER, 5, 2), &signal);
        feed(&mut lines, 5, (ThreadEnd::NUMBER, 6, 2), &ThreadEnd { tgid: Pid(2), status: 0x8b }.words());
        assert_eq!(
            lines.take(),
            "execve(\"/bin/x\", [\"x\"], /* 2 vars */)   = 0\n\
             chdir(\"/nowhere\")                       = -1 ENOENT (No such file or directory)\n\
             --- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR} ---\n\
             +++ killed by SIGSEGV (core dumped) +++\n"
        );
        assert_eq!((lines.calls, lines.lost), (2, 0));
    }

    #[test]
    fn a_long_call_gives_way_to_lines_of_others_and_a_short_one_does_not() {
        let mut lines = program();
        feed(&mut lines, 0, (SysEnter::NUMBER, 0, 2), &enter(0, [3, 4096, 9, 0, 0, 0]));
        feed(&mut lines, 1, (SysEnter::NUMBER, 900, 3), &enter(39, [0; 6]));
        feed(&mut lines, 2, (SysExit::NUMBER, 950, 3), &leave(39, 3));
        feed(&mut lines, 3, (SysEnter::NUMBER, 1900, 3), &enter(186, [0; 6]));
        feed(&mut lines, 4, (SysExit::NUMBER, 1950, 3), &leave(186, 3));
        feed(&mut lines, 5, (SyscallText::NUMBER, 1960, 2), &text(1, b"hi"));
        feed(&mut lines, 6, (SysExit::NUMBER, 1970, 2), &leave(0, 2));
        feed(&mut lines, 7, (SysEnter::NUMBER, 1980, 2), &enter(34, [0; 6]));
        lines.finish();
        assert_eq!(
            lines.take(),
            "[pid     3] getpid()                    = 3\n\
             [pid     2] read(3,  <unfinished ...>\n\
             [pid     3] gettid()                    = 3\n\
             [pid     2] <... read resumed>\"hi\", 9)  = 2\n\
             [pid     2] pause( <unfinished ...>\n"
        );
    }

    #[test]
    fn lost_records_are_told_where_they_are_missing() {
        let mut lines = program();
        feed(&mut lines, 0, (SysEnter::NUMBER, 0, 2), &enter(39, [0; 6]));
        feed(&mut lines, 7, (SysExit::NUMBER, 1, 2), &leave(3, 0));
        // Another ring begins at 0.
        feed(&mut lines, 0, (SysExit::NUMBER, 2, 2), &leave(3, 0));
        let said = lines.take();
        assert!(said.starts_with("getpid( <unfinished ...>\n--- 6 records of CPU 0 lost ---\n"), "{said}");
        assert!(said.ends_with("<... close resumed>) = 0\n"), "{said}");
        assert_eq!(lines.lost, 6);
    }

    proptest! {
        #[test]
        fn any_records_make_whole_lines(
            all in proptest::collection::vec((0..freehold_tracepoints::COUNT, any::<u64>(), 0..4i32, proptest::collection::vec(any::<u64>(), 8..12)), 0..40)
        ) {
            let mut lines = program();
            for (number, (event, time, pid, payload)) in all.iter().enumerate() {
                let head = RecordHead { time: *time, event: *event, pid: *pid, comm: Comm::of(b"x") };
                lines.add(0, &RecordView { head, number: number as u64, payload });
            }
            lines.finish();
            let said = lines.take();
            prop_assert!(said.is_empty() || said.ends_with('\n'));
            prop_assert!(said.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)));
        }
    }
}
