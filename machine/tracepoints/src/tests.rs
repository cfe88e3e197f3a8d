use std::cell::Cell;
use std::collections::VecDeque;
use std::format;
use std::string::String;
use std::vec::Vec;

use proptest::prelude::*;

use super::atomic::AtomicU64;
use super::ring::{Ends, RingPlace, Words};
use super::table::{SchedSwitch, SchedWakeup, SysEnter, SysExit};
use super::*;

struct Memory(Vec<AtomicU64>, Cell<u64>);

impl Memory {
    fn of(count: u64) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect(), Cell::new(0))
    }
}

impl Words for Memory {
    const PAGE: u64 = 256;
    fn pages(&self) -> u64 {
        self.0.len() as u64 / 256
    }
    fn page(&self, position: u64) -> &[AtomicU64] {
        self.1.set(self.1.get() + 1);
        self.0.chunks(256).nth(position as usize / 256 % (self.0.len() / 256)).expect("a page")
    }
}

fn head(event: usize, time: u64) -> RecordHead {
    RecordHead { time, event, pid: 77, comm: Comm::of(b"busy") }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Read,
}

proptest! {
    /// Compares the ring with a queue that keeps everything: the same records in the same order,
    /// and the number of lost records is exactly the reported one.
    #[test]
    fn a_ring_keeps_the_newest_records_and_counts_the_others(
        steps in proptest::collection::vec(
            prop_oneof![3 => (0..MOST_PAYLOAD).prop_map(Step::Write), 2 => Just(Step::Read)], 1..200)
    ) {
        let (ends, memory) = (Ends::new(), Memory::of(3 * 256));
        let mut queue: VecDeque<(u64, Vec<u64>)> = VecDeque::new();
        let (mut page, mut used, mut pages) = (0, 0, VecDeque::new());
        let (mut place, mut written, mut read, mut missed) = (RingPlace::default(), 0, 0, 0);
        let mut buffer = [0; MOST_WORDS];
        for step in steps {
            match step {
                Step::Write(length) => {
                    let payload: Vec<u64> = (0..length as u64).map(|at| written * 1000 + at).collect();
                    ends.write(&memory, || head(0, written), &payload);
                    queue.push_back((written, payload));
                    if used + 5 + length > 256 {
                        page += 1;
                        used = 0;
                    }
                    used += 5 + length;
                    pages.push_back(page);
                    written += 1;
                    while pages.front().is_some_and(|oldest| oldest + 3 <= page) {
                        pages.pop_front();
                        queue.pop_front();
                    }
                }
                Step::Read => match ends.read(&memory, place, None, &mut buffer) {
                    Some(found) => {
                        let record = RecordView::parse(&buffer[..found.length]).expect("a record");
                        let oldest = queue.iter().find(|(number, _)| *number >= place.number).expect("one is there");
                        prop_assert_eq!((record.number, record.payload), (oldest.0, &oldest.1[..]));
                        prop_assert_eq!(record.head.time, oldest.0);
                        missed += found.missed;
                        read += 1;
                        place = found.next;
                        prop_assert_eq!(read + missed, place.number);
                    }
                    None => prop_assert!(queue.iter().all(|(number, _)| *number < place.number)),
                },
            }
            prop_assert_eq!(ends.written(), written);
        }
    }

    #[test]
    fn words_of_any_kind_are_a_record_or_none_and_never_panic(words in proptest::collection::vec(any::<u64>(), 0..20), id in 0u16..64) {
        let mut words = words;
        if words.len() > 2 {
            words[0] = (words.len() as u64) << 56;
            words[2] = words[2] & !0xffff | u64::from(id);
        }
        if let Some(record) = RecordView::parse(&words) {
            let line = format!("{}", Line { record, cpu: 1, time: Stamp(5) });
            prop_assert!(line.ends_with('\n') && line.trim_end_matches('\n').bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        }
    }

    #[test]
    fn any_word_is_read_in_bounded_time(word in "[!*?:a-z_]{0,60}") {
        let _ = parse(word.as_bytes());
    }
}

#[test]
fn a_record_in_a_full_ring_walks_no_old_records() {
    let (ends, memory) = (Ends::new(), Memory::of(1024));
    let words = SysEnter { id: 1, args: [2; 6] }.words();
    (0..200).for_each(|time| ends.write(&memory, || head(1, time), &words));
    memory.1.set(0);
    ends.write(&memory, || head(1, 200), &words);
    assert!(memory.1.get() <= 2, "{} looks at pages", memory.1.get());
}

fn line(event: usize, words: &[u64]) -> String {
    let (ends, memory) = (Ends::new(), Memory::of(512));
    ends.write(&memory, || head(event, 3), words);
    let mut buffer = [0; MOST_WORDS];
    let found = ends.read(&memory, RingPlace::default(), None, &mut buffer).unwrap();
    let record = RecordView::parse(&buffer[..found.length]).unwrap();
    format!("{}", Line { record, cpu: 2, time: Stamp(12_135_758_132_999) })
}

#[test]
fn lines_have_linux_layout() {
    let words = SysEnter { id: 59, args: [0xabc, 1, 2, 3, 4, u64::MAX] }.words();
    assert_eq!(
        line(SysEnter::NUMBER, &words),
        "            busy-77      [002] 12135.758132: sys_enter: NR 59 (abc, 1, 2, 3, 4, ffffffffffffffff)\n"
    );
    let words = SysExit { id: 59, ret: -2 }.words();
    assert!(line(SysExit::NUMBER, &words).ends_with(" sys_exit: NR 59 = -2\n"));
    let comm = Comm::of(b"a\x1b\nb");
    let words = SchedWakeup { comm, pid: Pid(5), prio: 120, target_cpu: 1 }.words();
    assert!(
        line(SchedWakeup::NUMBER, &words)
            .ends_with(" sched_wakeup: comm=a??b pid=5 prio=120 target_cpu=001\n")
    );
    let switch = SchedSwitch {
        prev_comm: Comm::of(b"sh"),
        prev_pid: Pid(3),
        prev_prio: 120,
        prev_state: 1,
        next_comm: Comm::of(b"swapper/0"),
        next_pid: Pid(0),
        next_prio: 120,
    };
    assert!(line(SchedSwitch::NUMBER, &switch.words()).ends_with(
        "sched_switch: prev_comm=sh prev_pid=3 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n"
    ));
}

#[test]
fn formats_have_linux_offsets_and_types() {
    let format = format!("{}", Format(&EVENTS[SchedSwitch::NUMBER]));
    for part in [
        "name: sched_switch\n",
        "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
        "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n",
        "\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n",
        "\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n",
        "\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n",
        "\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n",
        "prev_state=%s ==> next_comm=%s next_pid=%d next_prio=%d\", REC->prev_comm",
        "__print_symbolic(REC->prev_state, { 0, \"R\" }, { 1, \"S\" }",
    ] {
        assert!(format.contains(part), "{part} in {format}");
    }
    let format = format!("{}", Format(&EVENTS[SysEnter::NUMBER]));
    assert!(format.contains("\tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;\n"), "{format}");
    assert!(format.contains("\"NR %ld (%lx, %lx, %lx, %lx, %lx, %lx)\", REC->id, REC->args[0]"), "{format}");
}

#[test]
fn the_table_is_sound() {
    for (at, event) in EVENTS.iter().enumerate() {
        assert!(event.is_sound(), "{}", event.name);
        assert_eq!(event.number(), at);
        let same = EVENTS.iter().filter(|other| {
            other.id() == event.id() || (other.name, other.system) == (event.name, event.system)
        });
        assert_eq!(same.count(), 1, "{}", event.name);
        assert!(event.fields().all(|field| field.offset + field.kind.size <= MOST_PAYLOAD * 8));
    }
}

fn selected(text: &str) -> Vec<&'static str> {
    let selection = parse(text.as_bytes()).unwrap();
    selection.events().map(|event| event.name).collect()
}

#[test]
fn words_select_events_as_on_linux() {
    let sched = selected("sched:*");
    assert!(sched.len() >= 5 && sched.iter().all(|name| name.starts_with("sched_")));
    assert_eq!(selected("sched"), sched);
    assert_eq!(selected("sched:"), sched);
    assert_eq!(selected(":sched_switch"), ["sched_switch"]);
    assert_eq!(selected("sched_switch"), ["sched_switch"]);
    assert_eq!(selected("*:*").len(), COUNT - 2, "all but markers and kprobes");
    assert_eq!(parse(b"!sched:sched_switch").unwrap().action, Action::Disable);
    for wrong in [
        "",
        "!",
        "sched:nothing",
        "print",
        "ftrace:print",
        "sched_switch:",
        "sched:sched_*",
        "sched:sched_switch ",
    ] {
        assert_eq!(parse(wrong.as_bytes()).unwrap_err(), SelectError::NoSuchEvent, "{wrong}");
    }
    assert_eq!(parse(b"\xff").unwrap_err(), SelectError::NotText);
    let words: Vec<_> = selections(b" sched:sched_switch,sys_enter\n!nothing ")
        .map(|(word, found)| (word, found.is_ok()))
        .collect();
    assert_eq!(words, [(&b"sched:sched_switch"[..], true), (b"sys_enter", true), (b"!nothing", false)]);
}
