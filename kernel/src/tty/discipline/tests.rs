use std::vec::Vec;

use proptest::prelude::*;

use super::output::TAB;
use super::*;

fn terminal() -> Discipline {
    Discipline::new(Termios::standard()).unwrap()
}

fn with(change: impl FnOnce(&mut Termios)) -> Discipline {
    let mut termios = Termios::standard();
    change(&mut termios);
    Discipline::new(termios).unwrap()
}

fn typed(discipline: &mut Discipline, bytes: &[u8]) -> Vec<KeySignal> {
    bytes.iter().filter_map(|&byte| discipline.receive(byte)).collect()
}

fn wire(discipline: &mut Discipline) -> Vec<u8> {
    let mut all = Vec::new();
    while !discipline.wire().is_empty() {
        all.extend_from_slice(discipline.wire());
        discipline.sent(discipline.wire().len());
    }
    all
}

fn line(discipline: &mut Discipline) -> Option<Vec<u8>> {
    let mut buffer = [0; INPUT_LIMIT];
    match discipline.read(&mut buffer) {
        Read::Done(count) | Read::Part(count) => Some(buffer[..count].to_vec()),
        Read::Empty => None,
    }
}

#[test]
fn a_line_is_readable_when_its_end_is_typed_and_is_echoed() {
    let mut tty = terminal();
    typed(&mut tty, b"ls -l");
    assert!(!tty.readable());
    assert_eq!(line(&mut tty), None);
    typed(&mut tty, b"\recho");
    assert!(tty.readable());
    assert_eq!(tty.readable_bytes(), 6);
    assert_eq!(line(&mut tty).unwrap(), b"ls -l\n");
    assert_eq!(line(&mut tty), None);
    assert_eq!(wire(&mut tty), b"ls -l\r\necho");
}

#[test]
fn a_short_read_leaves_the_rest_of_the_line() {
    let mut tty = terminal();
    typed(&mut tty, b"abcdef\n");
    let mut buffer = [0; 4];
    assert_eq!(tty.read(&mut buffer), Read::Part(4));
    assert_eq!(&buffer, b"abcd");
    assert_eq!(tty.read(&mut buffer), Read::Done(3));
    assert_eq!(&buffer[..3], b"ef\n");
}

#[test]
fn end_of_file_key_pushes_what_is_typed_and_is_the_end_on_an_empty_line() {
    let mut tty = terminal();
    typed(&mut tty, b"abc\x04");
    let mut buffer = [0; 3];
    assert_eq!(tty.read(&mut buffer), Read::Part(3));
    tty.skip_end_of_file();
    assert_eq!(tty.read(&mut buffer), Read::Empty);
    typed(&mut tty, b"\x04");
    assert_eq!(tty.read(&mut buffer), Read::Done(0));
    assert_eq!(tty.read(&mut buffer), Read::Empty);
}

#[test]
fn erase_takes_a_character_off_line_and_screen() {
    let mut tty = terminal();
    typed(&mut tty, b"ab\x7fc\n");
    assert_eq!(line(&mut tty).unwrap(), b"ac\n");
    assert_eq!(wire(&mut tty), b"ab\x08 \x08c\r\n");
}

#[test]
fn erase_takes_a_whole_utf8_character() {
    let mut tty = with(|t| t.iflag |= c::IUTF8);
    typed(&mut tty, "x→".as_bytes());
    wire(&mut tty);
    typed(&mut tty, b"\x7f\n");
    assert_eq!(wire(&mut tty), b"\x08 \x08\r\n");
    assert_eq!(line(&mut tty).unwrap(), b"x\n");
}

#[test]
fn erase_never_reaches_a_finished_line() {
    let mut tty = terminal();
    typed(&mut tty, b"a\n\x7f\x7f\x15\x17b\n");
    assert_eq!(line(&mut tty).unwrap(), b"a\n");
    assert_eq!(line(&mut tty).unwrap(), b"b\n");
}

#[test]
fn erasing_a_control_character_takes_both_its_columns() {
    let mut tty = terminal();
    typed(&mut tty, b"\x16\x03");
    assert_eq!(wire(&mut tty), b"^\x08^C");
    typed(&mut tty, b"\x7f");
    assert_eq!(wire(&mut tty), b"\x08 \x08\x08 \x08");
}

#[test]
fn erasing_a_tab_goes_back_to_where_it_began() {
    let mut tty = terminal();
    tty.write(b"$ ");
    typed(&mut tty, b"abc\t");
    wire(&mut tty);
    typed(&mut tty, b"\x7f");
    assert_eq!(wire(&mut tty), b"\x08\x08\x08");
}

#[test]
fn word_erase_takes_the_word_and_the_blanks_after_it() {
    let mut tty = terminal();
    typed(&mut tty, b"cp one-two  \x17\n");
    assert_eq!(line(&mut tty).unwrap(), b"cp one-\n");
}

#[test]
fn kill_clears_the_line_and_each_way_to_show_it() {
    let mut tty = terminal();
    typed(&mut tty, b"abc\x15d\n");
    assert_eq!(line(&mut tty).unwrap(), b"d\n");
    assert_eq!(wire(&mut tty), b"abc\x08 \x08\x08 \x08\x08 \x08d\r\n");
    let mut tty = with(|t| t.lflag &= !c::ECHOKE);
    typed(&mut tty, b"abc\x15d\n");
    assert_eq!(wire(&mut tty), b"abc^U\r\nd\r\n");
}

#[test]
fn hardcopy_erase_brackets_what_was_erased() {
    let mut tty = with(|t| t.lflag |= c::ECHOPRT);
    typed(&mut tty, b"ab\x7f\x7fc\n");
    assert_eq!(line(&mut tty).unwrap(), b"c\n");
    assert_eq!(wire(&mut tty), b"ab\\ba/c\r\n");
}

#[test]
fn reprint_shows_the_line_again() {
    let mut tty = terminal();
    typed(&mut tty, b"ab\x12c\n");
    assert_eq!(wire(&mut tty), b"ab^R\r\nabc\r\n");
    assert_eq!(line(&mut tty).unwrap(), b"abc\n");
}

#[test]
fn signal_keys_ask_for_their_signal_and_flush() {
    let mut tty = terminal();
    tty.write(b"lost");
    assert_eq!(typed(&mut tty, b"ab\x03"), [KeySignal::Interrupt]);
    assert_eq!(wire(&mut tty), b"^C");
    assert_eq!(typed(&mut tty, b"\x1c\x1a"), [KeySignal::Quit, KeySignal::Suspend]);
    typed(&mut tty, b"\n");
    assert_eq!(line(&mut tty).unwrap(), b"\n");
    let mut tty = with(|t| t.lflag |= c::NOFLSH);
    typed(&mut tty, b"ab\x03c\n");
    assert_eq!(line(&mut tty).unwrap(), b"abc\n");
    let mut tty = with(|t| t.lflag &= !c::ISIG);
    assert_eq!(typed(&mut tty, b"\x03\n"), []);
    assert_eq!(line(&mut tty).unwrap(), b"\x03\n");
}

#[test]
fn stop_and_start_hold_output_and_let_it_go() {
    let mut tty = terminal();
    typed(&mut tty, b"\x13");
    tty.write(b"held");
    assert_eq!(wire(&mut tty), b"");
    typed(&mut tty, b"\x11");
    assert_eq!(wire(&mut tty), b"held");
    tty.suspend_output();
    typed(&mut tty, b"\x11");
    tty.write(b"x");
    assert_eq!(wire(&mut tty), b"");
    tty.resume_output();
    assert_eq!(wire(&mut tty), b"x");
    let mut tty = with(|t| t.iflag |= c::IXANY);
    typed(&mut tty, b"\x13a");
    assert_eq!(wire(&mut tty), b"a");
}

#[test]
fn an_overlong_line_loses_its_surplus_and_still_ends() {
    let mut tty = terminal();
    for _ in 0..2 * INPUT_LIMIT {
        assert!(tty.accepts());
        tty.receive(b'x');
    }
    typed(&mut tty, b"\n");
    let got = line(&mut tty).unwrap();
    assert_eq!(got.len(), INPUT_LIMIT);
    assert_eq!(got.last(), Some(&b'\n'));
}

#[test]
fn raw_input_waits_on_the_wire_when_full() {
    let mut tty = with(|t| t.lflag &= !(c::ICANON | c::ECHO));
    let mut count = 0;
    while tty.accepts() {
        tty.receive(b'x');
        count += 1;
    }
    assert!(count >= INPUT_LIMIT - 2);
    assert_eq!(line(&mut tty).unwrap().len(), count);
    assert!(tty.accepts());
}

#[test]
fn input_translation_follows_the_input_modes() {
    let mut tty = with(|t| t.iflag = c::IGNCR);
    typed(&mut tty, b"a\r\n");
    assert_eq!(line(&mut tty).unwrap(), b"a\n");
    let mut tty = with(|t| {
        t.iflag = c::INLCR | c::ISTRIP;
        t.lflag = 0;
    });
    typed(&mut tty, b"\n\xe1");
    assert_eq!(line(&mut tty).unwrap(), b"\ra");
    let mut tty = with(|t| {
        t.iflag = c::PARMRK;
        t.lflag = 0;
    });
    typed(&mut tty, b"\xff");
    assert_eq!(line(&mut tty).unwrap(), b"\xff\xff");
}

#[test]
fn output_translation_follows_the_output_modes() {
    let mut tty = with(|t| t.oflag = c::OPOST | c::XTABS | c::OCRNL);
    assert_eq!(tty.write(b"ab\tc\rd"), 6);
    assert_eq!(wire(&mut tty), b"ab      c\nd");
    let mut tty = with(|t| t.oflag = c::OPOST | c::ONOCR | c::OLCUC);
    tty.write(b"\rab\r\r");
    assert_eq!(wire(&mut tty), b"AB\r");
    let mut tty = with(|t| t.oflag = c::ONLCR);
    tty.write(b"\n");
    assert_eq!(wire(&mut tty), b"\n");
}

#[test]
fn writers_wait_when_the_wire_does_not_drain_and_echo_has_a_reserve() {
    let mut tty = terminal();
    let big = [b'x'; 2 * OUTPUT_LIMIT];
    let taken = tty.write(&big);
    assert!(taken < big.len() && !tty.writable());
    typed(&mut tty, b"e");
    assert_eq!(wire(&mut tty).last(), Some(&b'e'));
    assert!(tty.writable());
}

#[test]
fn switching_canonical_mode_keeps_what_was_typed() {
    let mut tty = terminal();
    typed(&mut tty, b"half");
    let mut raw = Termios::standard();
    raw.lflag &= !c::ICANON;
    tty.set_termios(raw);
    assert!(tty.readable());
    tty.set_termios(Termios::standard());
    assert_eq!(line(&mut tty).unwrap(), b"half");
}

#[test]
fn poll_waits_for_vmin_bytes_unless_vtime_is_set() {
    let mut tty = with(|t| {
        t.lflag = 0;
        t.cc[c::VMIN as usize] = 3;
    });
    typed(&mut tty, b"ab");
    assert!(!tty.readable());
    typed(&mut tty, b"c");
    assert!(tty.readable());
}

#[test]
fn packet_mode_hears_of_flushes_and_flow() {
    let mut tty = terminal();
    typed(&mut tty, b"\x13");
    assert_eq!(u32::from(tty.take_packet()), c::TIOCPKT_STOP);
    typed(&mut tty, b"\x11");
    assert_eq!(u32::from(tty.take_packet()), c::TIOCPKT_START);
    tty.flush(FlushQueue::Input);
    assert_eq!(u32::from(tty.take_packet()), c::TIOCPKT_FLUSHREAD);
    let mut raw = Termios::standard();
    raw.iflag &= !c::IXON;
    tty.set_termios(raw);
    assert_eq!(u32::from(tty.take_packet()), c::TIOCPKT_NOSTOP);
}

/// The simplest editor: a list of finished lines and a line being typed, without echo.
#[derive(Default)]
struct Naive {
    lines: Vec<Vec<u8>>,
    typing: Vec<u8>,
}

impl Naive {
    fn key(&mut self, byte: u8) {
        match byte {
            0x7f => drop(self.typing.pop()),
            0x15 => self.typing.clear(),
            0x17 => {
                let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
                while self.typing.last().is_some_and(|b| !word(b)) {
                    self.typing.pop();
                }
                while self.typing.last().is_some_and(word) {
                    self.typing.pop();
                }
            }
            4 => self.lines.push(core::mem::take(&mut self.typing)),
            b'\r' | b'\n' => {
                self.typing.push(b'\n');
                self.lines.push(core::mem::take(&mut self.typing));
            }
            3 => {
                self.lines.clear();
                self.typing.clear();
            }
            other => self.typing.push(other),
        }
    }
}

fn key() -> impl Strategy<Value = u8> {
    prop_oneof![
        6 => prop::sample::select(b"ab_ -\t".to_vec()),
        1 => Just(0x7f), 1 => Just(0x15), 1 => Just(0x17), 1 => Just(4u8), 1 => Just(b'\r'), 1 => Just(3u8),
    ]
}

/// Returns the last line that a terminal's screen shows after these bytes.
fn screen(bytes: &[u8]) -> Vec<u8> {
    let (mut cells, mut at) = (Vec::new(), 0usize);
    for &byte in bytes {
        match byte {
            b'\r' => at = 0,
            b'\n' => cells.clear(),
            0x08 => at = at.saturating_sub(1),
            b'\t' => at += TAB - at % TAB,
            _ => {
                cells.resize(cells.len().max(at + 1), b' ');
                cells[at] = byte;
                at += 1;
            }
        }
    }
    cells.resize(cells.len().max(at), b' ');
    cells.truncate(at);
    cells
}

proptest! {
    #[test]
    fn editing_agrees_with_the_obvious_editor(keys in prop::collection::vec(key(), 0..200)) {
        let (mut tty, mut naive) = (terminal(), Naive::default());
        for &byte in &keys {
            tty.receive(byte);
            naive.key(byte);
        }
        for expected in naive.lines {
            prop_assert_eq!(line(&mut tty), Some(expected));
        }
        prop_assert_eq!(line(&mut tty), None);
    }

    #[test]
    fn the_screen_shows_the_line_that_is_typed(keys in prop::collection::vec(key(), 0..100)) {
        let keys: Vec<u8> = keys.into_iter().filter(|&byte| byte != 3 && byte != 4).collect();
        let (mut tty, mut naive) = (terminal(), Naive::default());
        for &byte in &keys {
            tty.receive(byte);
            naive.key(byte);
        }
        prop_assert_eq!(screen(&wire(&mut tty)), screen(&naive.typing));
    }

    #[test]
    fn nothing_that_is_typed_or_set_breaks_the_bounds(
        modes in any::<[u32; 3]>(), bytes in prop::collection::vec(any::<u8>(), 0..3000), reads in any::<u8>(),
    ) {
        let mut tty = with(|t| (t.iflag, t.oflag, t.lflag) = (modes[0], modes[1], modes[2]));
        for (index, &byte) in bytes.iter().enumerate() {
            if tty.accepts() {
                tty.receive(byte);
            }
            tty.write(&[byte]);
            if index % 64 == usize::from(reads) {
                line(&mut tty);
                let mut termios = *tty.termios();
                termios.lflag ^= c::ICANON;
                tty.set_termios(termios);
            }
            prop_assert!(tty.input.len() <= INPUT_LIMIT && tty.complete <= tty.input.len());
            prop_assert!(tty.output.len() <= OUTPUT_LIMIT + ECHO_RESERVE);
        }
    }
}
