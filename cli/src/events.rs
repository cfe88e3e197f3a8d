//! `--events`: the selection of events, and the file for their records.
//!
//! The file is JSON in the form of Chrome's Trace Event Format, which Perfetto's UI opens. A system
//! call is a slice of its thread, a task on a CPU is a slice of the CPU, every other event is an
//! instant with its fields. Records come from the guest: they are read as hostile input.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::path::Path;

use freehold_tracepoints::table::TraceEvent as _;
use freehold_tracepoints::{EVENTS, EventDescription, RecordView, selections, table};
use serde_json::{Map, Value, json};

use crate::args::{EventOptions, RunOptions};
use crate::failure::Failure;
use crate::kernel::Family;
use crate::session::Ended;
use crate::{Result, files, print, report, strace};

/// Largest number of words of a record.
const MOST_WORDS: usize = freehold_tracepoints::MOST_WORDS;
/// The process for CPUs in the file, and the process for threads.
const CPUS: u32 = 0;
const THREADS: u32 = 1;

/// Rejects senseless options before the VM starts.
pub fn check_options(options: &EventOptions) -> Result<()> {
    if options.events_out.as_deref().is_some_and(files::is_stdout) {
        return Err(Failure::new("--events-out -: the program's output goes to stdout", "name a file"));
    }
    options.events.as_deref().map_or(Ok(()), check)
}

/// Rejects a kernel that does not send events.
pub fn check_family(options: &EventOptions, family: Family) -> Result<()> {
    if options.events.is_some() && family == Family::Linux {
        let hint = "a stock Linux has trace-cmd and perf for that";
        return Err(Failure::new("--events: only freehold's own kernel sends its events", hint));
    }
    strace::check_family(options, family)
}

/// Returns the events that the kernel shall send: the user's, those that `--strace` needs, or the
/// system calls' where `--syscalls` tells their times, which mean something in counted runs only. A
/// stock Linux sends none.
pub fn wanted(options: &RunOptions, family: Family) -> Option<String> {
    let is_timed = options.syscalls && options.icount && family == Family::Freehold;
    match &options.events.strace {
        Some(_) => Some(strace::EVENTS.to_owned()),
        None => options.events.events.clone().or_else(|| is_timed.then(|| CALLS.to_owned())),
    }
}

/// Writes the recorded events, and prints their number.
pub fn conclude(options: &EventOptions, ended: &mut Ended) -> Result<()> {
    let Some(file) = &options.events_out else { return Ok(()) };
    write(ended.events.as_mut(), file)?;
    print::stderr(report::events(ended));
    Ok(())
}

/// Rejects a word that selects no event; names the nearest event.
fn check(selection: &str) -> Result<()> {
    let mut words = 0;
    for (word, found) in selections(selection.as_bytes()) {
        words += 1;
        if found.is_err() {
            let word = String::from_utf8_lossy(word).into_owned();
            let EventDescription { system, name, .. } = nearest(&word);
            return Err(Failure::new(
                format!("--events: no event is named {word}"),
                format!("the nearest is {system}:{name}; /sys/kernel/tracing/available_events names all"),
            ));
        }
    }
    if words == 0 {
        return Err(Failure::new("--events: names no event", "for example --events 'sched:*'"));
    }
    Ok(())
}

/// Returns the event whose name is nearest to `word`, by the number of letters to change.
fn nearest(word: &str) -> &'static EventDescription {
    let word = word.trim_start_matches('!');
    let (system, name) = word.split_once(':').unwrap_or(("", word));
    let distance = |event: &&EventDescription| {
        let own = strsim::levenshtein(name, event.name);
        if system.is_empty() {
            own.min(strsim::levenshtein(name, event.system))
        } else {
            own + strsim::levenshtein(system, event.system)
        }
    };
    let switched = EVENTS.iter().filter(|event| event.has_switch());
    switched.min_by_key(distance).unwrap_or(&EVENTS[0])
}

/// Writes the records in `spool` to `path`.
fn write(spool: Option<&mut File>, path: &Path) -> Result<()> {
    files::write_pieces(path, |out| {
        let mut trace = Trace::new(out);
        trace.begin()?;
        if let Some(spool) = spool {
            spool.rewind()?;
            trace.convert(&mut BufReader::new(spool))?;
        }
        trace.end()
    })
}

/// Reads entries of a CPU's number, a length in words, and that many words; visits the records.
pub fn each_record(
    from: &mut impl Read,
    mut visit: impl FnMut(u16, &RecordView<'_>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    loop {
        let mut head = [0; 4];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let cpu = u16::from_le_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if length > MOST_WORDS {
            return Err(std::io::Error::new(ErrorKind::InvalidData, "the guest's records make no sense"));
        }
        let mut bytes = [0; MOST_WORDS * 8];
        from.read_exact(&mut bytes[..length * 8])?;
        let mut words = [0; MOST_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)).take(length) {
            *word = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        if let Some(record) = RecordView::parse(&words[..length]) {
            visit(cpu, &record)?;
        }
    }
}

/// A trace that is being written.
struct Trace<W: Write> {
    out: BufWriter<W>,
    /// The task on each CPU, and the time when it began to run.
    running: HashMap<u16, (String, u64)>,
    /// The system calls in progress, by thread.
    inside: HashMap<i32, u64>,
    /// Threads that have their names in the file.
    named: HashMap<i32, String>,
    count: u64,
}

impl<W: Write> Trace<W> {
    fn new(out: W) -> Self {
        let (running, inside, named) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { out: BufWriter::new(out), running, inside, named, count: 0 }
    }

    fn begin(&mut self) -> std::io::Result<()> {
        self.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        for (process, name) in [(CPUS, "CPUs"), (THREADS, "threads")] {
            self.put(json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}))?;
        }
        Ok(())
    }

    fn put(&mut self, event: Value) -> std::io::Result<()> {
        self.out.write_all(if self.count == 0 { b"\n" } else { b",\n" })?;
        self.count += 1;
        serde_json::to_writer(&mut self.out, &event)?;
        Ok(())
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }

    /// Adds all records of `from`.
    fn convert(&mut self, from: &mut impl Read) -> std::io::Result<()> {
        each_record(from, |cpu, record| self.add(cpu, record))
    }

    fn add(&mut self, cpu: u16, record: &RecordView<'_>) -> std::io::Result<()> {
        let (pid, time) = (record.head.pid, record.head.time);
        self.name_thread(pid, &name_of(&record.head.comm.0))?;
        let number = |name: &str| record.value(name).unwrap_or_default();
        let ts = micros(time);
        match record.head.event {
            table::SysEnter::NUMBER => {
                let name = call_name(number("id") as u64);
                self.inside.insert(pid, time);
                let args = fields(record);
                self.put(json!({"ph": "B", "name": name, "cat": "raw_syscalls", "pid": THREADS, "tid": pid, "ts": ts, "args": args}))
            }
            table::SysExit::NUMBER if self.inside.remove(&pid).is_some() => self.put(
                json!({"ph": "E", "pid": THREADS, "tid": pid, "ts": ts, "args": {"ret": number("ret")}}),
            ),
            table::SchedSwitch::NUMBER => {
                let next = text_of(record, "next_comm");
                let label = format!("{next} {}", number("next_pid"));
                self.switch(cpu, (label, time), fields(record))
            }
            _ => self.put(json!({
                "ph": "i", "s": "t", "name": record.event().name, "cat": record.event().system,
                "pid": THREADS, "tid": pid, "ts": ts, "args": fields(record),
            })),
        }
    }

    /// Notes that `cpu` switches to another thread: the time of the former thread is a slice.
    fn switch(&mut self, cpu: u16, next: (String, u64), args: Map<String, Value>) -> std::io::Result<()> {
        let end = next.1;
        let Some((name, start)) = self.running.insert(cpu, next) else { return Ok(()) };
        if name.starts_with("swapper/") {
            return Ok(());
        }
        let length = micros(end.saturating_sub(start));
        self.put(json!({
            "ph": "X", "name": name, "cat": "sched", "pid": CPUS, "tid": cpu, "ts": micros(start), "dur": length, "args": args,
        }))
    }

    fn name_thread(&mut self, pid: i32, name: &str) -> std::io::Result<()> {
        if pid == 0 || self.named.get(&pid).is_some_and(|known| known == name) {
            return Ok(());
        }
        self.named.insert(pid, name.to_owned());
        self.put(
            json!({"ph": "M", "name": "thread_name", "pid": THREADS, "tid": pid, "args": {"name": name}}),
        )
    }
}

/// The events whose records tell how long calls take.
const CALLS: &str = "raw_syscalls:sys_enter,raw_syscalls:sys_exit";

/// Returns the time in each system call, in nanoseconds and by the call's number, waits included.
///
/// # Errors
/// The records cannot be read.
pub fn times_of_calls(ended: &mut Ended) -> Result<HashMap<u64, u64>> {
    let (mut inside, mut times) = (HashMap::new(), HashMap::new());
    let Some(spool) = &mut ended.events else { return Ok(times) };
    let read = spool.rewind().and_then(|()| {
        each_record(&mut BufReader::new(spool), |_, record| {
            let (pid, time) = (record.head.pid, record.head.time);
            let number = record.value("id").unwrap_or_default() as u64;
            match record.head.event {
                table::SysEnter::NUMBER => drop(inside.insert(pid, (number, time))),
                table::SysExit::NUMBER => {
                    if let Some((number, since)) = inside.remove(&pid) {
                        *times.entry(number).or_default() += time.saturating_sub(since);
                    }
                }
                _ => {}
            }
            Ok(())
        })
    });
    read.map_err(|e| Failure::new(format!("cannot read the events: {e}"), ""))?;
    Ok(times)
}

/// Returns microseconds, the unit of the form, with the fraction.
fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

fn name_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn call_name(number: u64) -> String {
    let call = usize::try_from(number).ok().and_then(syscalls::x86_64::Sysno::new);
    call.map_or_else(|| format!("call {number}"), |call| call.name().to_owned())
}

/// Returns a field that is text, or the numbers of an array with commas between them.
fn text_of(record: &RecordView<'_>, name: &str) -> String {
    record.shown(name).map(|shown| shown.to_string()).unwrap_or_default()
}

/// Returns a record's fields by name.
fn fields(record: &RecordView<'_>) -> Map<String, Value> {
    let event = record.event();
    let of = |name: &'static str| {
        let Some(value) = record.value(name) else { return Some(Value::from(text_of(record, name))) };
        let word = event.names_of(name).find(|&(known, _)| known == value);
        Some(word.map_or_else(|| Value::from(value), |(_, word)| Value::from(word)))
    };
    event.fields().filter_map(|field| Some((field.name.to_owned(), of(field.name)?))).collect()
}

#[cfg(test)]
mod tests {
    use freehold_tracepoints::table::{FrameOwner, SchedSwitch, SysEnter, SysExit};
    use std::sync::atomic::AtomicU64;

    use freehold_tracepoints::ring::{Ends, RingPlace, Words};
    use freehold_tracepoints::{Comm, Pid, RecordHead};
    use proptest::prelude::*;

    use super::*;

    fn converted(bytes: &[u8]) -> Value {
        let mut spool = tempfile::tempfile().expect("a file");
        spool.write_all(bytes).expect("written");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        write(Some(&mut spool), &path).expect("it is written");
        serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON")
    }

    fn record(cpu: u16, (event, time, pid): (usize, u64, i32), fields: &[u64]) -> Vec<u8> {
        let head = RecordHead { time, event, pid, comm: Comm::of(b"sh \"x\"") };
        let (ends, memory) = (Ends::new(), Memory((0..512).map(|_| AtomicU64::new(0)).collect()));
        ends.write(&memory, || head, fields);
        let mut words = [0; MOST_WORDS];
        let found = ends.read(&memory, RingPlace::default(), None, &mut words).expect("it was written");
        let mut bytes = cpu.to_le_bytes().to_vec();
        bytes.extend((found.length as u16).to_le_bytes());
        bytes.extend(words[..found.length].iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    struct Memory(Vec<AtomicU64>);

    impl Words for Memory {
        const PAGE: u64 = 256;
        fn pages(&self) -> u64 {
            self.0.len() as u64 / Self::PAGE
        }
        fn page(&self, position: u64) -> &[AtomicU64] {
            &self.0[position as usize % self.0.len() / 256 * 256..][..256]
        }
    }

    #[test]
    fn calls_are_slices_of_threads_and_what_runs_is_a_slice_of_a_cpu() {
        let switch = |next: &[u8], pid| SchedSwitch {
            prev_comm: Comm::of(b"a"),
            prev_pid: Pid(1),
            prev_prio: 120,
            prev_state: 1,
            next_comm: Comm::of(next),
            next_pid: Pid(pid),
            next_prio: 120,
        };
        let owner = FrameOwner { pfn: 5, order: 0, from: 0, to: 6 };
        let bytes = [
            record(0, (SysEnter::NUMBER, 1000, 7), &SysEnter { id: 39, args: [1; 6] }.words()),
            record(0, (SysExit::NUMBER, 2500, 7), &SysExit { id: 39, ret: -14 }.words()),
            record(0, (SysExit::NUMBER, 2600, 8), &SysExit { id: 39, ret: 0 }.words()),
            record(1, (SchedSwitch::NUMBER, 3000, 0), &switch(b"sh", 7).words()),
            record(1, (SchedSwitch::NUMBER, 5000, 7), &switch(b"swapper/1", 0).words()),
            record(1, (SchedSwitch::NUMBER, 9000, 0), &switch(b"sh", 7).words()),
            record(1, (FrameOwner::NUMBER, 9500, 7), &owner.words()),
        ];
        let trace = converted(&bytes.concat());
        let events = trace["traceEvents"].as_array().expect("a list");
        let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
        let begins = of("B");
        assert_eq!(
            (&begins[0]["name"], &begins[0]["ts"], &begins[0]["tid"]),
            (&json!("getpid"), &json!(1.0), &json!(7))
        );
        let ends = of("E");
        assert_eq!((ends.len(), &ends[0]["ts"], &ends[0]["args"]["ret"]), (1, &json!(2.5), &json!(-14)));
        let slices = of("X");
        assert_eq!(slices.len(), 1, "idle time is none: {slices:?}");
        assert_eq!(
            (&slices[0]["name"], &slices[0]["dur"], &slices[0]["tid"]),
            (&json!("sh 7"), &json!(2.0), &json!(1))
        );
        let instants = of("i");
        let owner = instants.iter().find(|event| event["name"] == "frame_owner").expect("it is there");
        assert_eq!(owner["args"], json!({"pfn": 5, "order": 0, "from": "Free", "to": "Anon"}));
        let names = of("M").iter().filter(|event| event["args"]["name"] == "sh \"x\"").count();
        assert_eq!(names, 2, "each thread once");
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_guest_make_anything_but_json_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut out = Vec::new();
            let mut trace = Trace::new(&mut out);
            trace.begin().expect("memory");
            if trace.convert(&mut &bytes[..]).is_ok() {
                trace.end().expect("memory");
                drop(trace);
                prop_assert!(serde_json::from_slice::<Value>(&out).is_ok());
            }
        }
    }

    #[test]
    fn an_unknown_event_is_told_with_the_nearest() {
        assert_eq!(nearest("sched:sched_swich").name, "sched_switch");
        assert_eq!(nearest("sys_entr").name, "sys_enter");
        assert_eq!(nearest("raw_syscall:sys_exit").name, "sys_exit");
        assert!(nearest(&"x".repeat(5000)).has_switch());
        assert!(check("sched:*,raw_syscalls:sys_enter").is_ok());
        let told = check("sched:*,sched:sched_swich").expect_err("there is none").to_string();
        assert!(told.contains("no event is named sched:sched_swich"), "{told}");
        assert!(check(" , ").is_err());
    }
}
