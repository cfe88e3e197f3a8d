use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::command::{Command, Definition, Location, ParseError};
use super::*;

/// Instructions, with their length and kind.
const INSTRUCTIONS: &[(&[u8], Kind)] = &[
    (&[0x55], Kind::Plain),                                     // push rbp
    (&[0x41, 0x57], Kind::Plain),                               // push r15
    (&[0x48, 0x89, 0xe5], Kind::Plain),                         // mov rbp, rsp
    (&[0x48, 0x81, 0xec, 0, 1, 0, 0], Kind::Plain),             // sub rsp, 256
    (&[0x66, 0xc7, 0x07, 1, 0], Kind::Plain),                   // mov word ptr [rdi], 1
    (&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8], Kind::Plain),       // movabs rax, imm64
    (&[0x48, 0x8b, 0x04, 0x25, 1, 2, 3, 4], Kind::Plain),       // mov rax, [0x4030201]
    (&[0x48, 0x8b, 0x44, 0x24, 0x10], Kind::Plain),             // mov rax, [rsp + 16]
    (&[0x48, 0x8b, 0x84, 0xd8, 1, 0, 0, 0], Kind::Plain),       // mov rax, [rax + 8 * rbx + 1]
    (&[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], Kind::Plain), // mov rax, gs:[0]
    (&[0xf6, 0xc1, 1], Kind::Plain),                            // test cl, 1
    (&[0xf7, 0xd8], Kind::Plain),                               // neg eax
    (&[0xf7, 0xc3, 0, 2, 0, 0], Kind::Plain),                   // test ebx, 0x200
    (&[0xf0, 0x48, 0xff, 0x0f], Kind::Plain),                   // lock dec qword ptr [rdi]
    (&[0xf3, 0x48, 0x0f, 0xb8, 0xc1], Kind::Plain),             // popcnt rax, rcx
    (&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], Kind::Plain),          // nop
    (&[0x0f, 0xba, 0xe0, 5], Kind::Plain),                      // bt eax, 5
    (&[0x0f, 0x38, 0xf1, 0x07], Kind::Plain),                   // movbe [rdi], eax
    (&[0x0f, 0x31], Kind::Plain),                               // rdtsc
    (&[0x48, 0x8d, 0x05, 1, 0, 0, 0], Kind::RipRelative(3)),    // lea rax, [rip + 1]
    (&[0x80, 0x3d, 1, 0, 0, 0, 2], Kind::RipRelative(2)),       // cmp byte ptr [rip + 1], 2
    (&[0x67, 0x8b, 0x05, 1, 0, 0, 0], Kind::Fixed),             // mov eax, [eip + 1]
    (&[0xeb, 0xfe], Kind::Jump(-2)),
    (&[0xe9, 0, 1, 0, 0], Kind::Jump(256)),
    (&[0x74, 5], Kind::Branch(4, 5)),
    (&[0x0f, 0x8f, 0xff, 0xff, 0xff, 0xff], Kind::Branch(15, -1)),
    (&[0xe8, 1, 0, 0, 0], Kind::Call(1)),
    (&[0xff, 0xd0], Kind::Fixed),             // call rax
    (&[0xff, 0x25, 0, 0, 0, 0], Kind::Fixed), // jmp [rip]
    (&[0xc3], Kind::Fixed),
    (&[0x9c], Kind::Fixed),       // pushf
    (&[0xfa], Kind::Fixed),       // cli
    (&[0x0f, 0x0b], Kind::Fixed), // ud2
    (&[0xcc], Kind::Fixed),
    (&[0xf3, 0x48, 0x0f, 0xae, 0xd8], Kind::Fixed), // wrgsbase rax
    (&[0x0f, 0x22, 0xd8], Kind::Fixed),             // mov cr3, rax
];

#[test]
fn instructions_have_the_lengths_and_kinds_of_the_manual() {
    for (bytes, kind) in INSTRUCTIONS {
        let found = decode(bytes).unwrap_or_else(|| panic!("{bytes:02x?}"));
        assert_eq!((found.length, found.kind), (bytes.len(), *kind), "{bytes:02x?}");
        assert_eq!(
            decode(&bytes[..bytes.len() - 1])
                .map(|found| found.length)
                .filter(|&length| length >= bytes.len()),
            None
        );
    }
}

#[test]
fn unknown_and_incomplete_instructions_have_no_length() {
    let unknown: [&[u8]; 8] = [
        &[],
        &[0x06],
        &[0xc5, 0xf8, 0x77],
        &[0x62, 0, 0, 0, 0, 0],
        &[0x66, 0xe9, 0, 0, 0, 0],
        &[0x48, 0x66, 0x90],
        &[0x48],
        &[0xc7, 0xf8, 0, 0, 0, 0],
    ];
    for bytes in unknown {
        assert_eq!(decode(bytes), None, "{bytes:02x?}");
    }
    assert_eq!(decode(&[0x66; 16]), None, "longer than an instruction may be");
}

fn symbol(symbol: &str, offset: u64) -> Location<'_> {
    Location::Symbol(symbol, offset)
}

#[test]
fn lines_are_those_of_linux() {
    let read = |line: &'static str| Command::parse(line.as_bytes());
    let defines = |line: &'static str, group: &str, name: Option<&str>, location: Location<'_>| {
        assert_eq!(read(line), Ok(Some(Command::Define(Definition { group, name, location }))), "{line}");
    };
    defines("p:hits sys_getpid", "kprobes", Some("hits"), symbol("sys_getpid", 0));
    defines("p:mine/hits a::b::<c>::d+0x1f\n", "mine", Some("hits"), symbol("a::b::<c>::d", 31));
    defines("p <A as B>::f+1", "kprobes", None, symbol("<A as B>::f", 1));
    defines(
        "  p:x 0xffffffff80200010 # a comment",
        "kprobes",
        Some("x"),
        Location::Address(0xffff_ffff_8020_0010),
    );
    defines("p:c a::{closure#0}", "kprobes", Some("c"), symbol("a::{closure#0}", 0));
    let removed = Command::Remove { group: "mine", name: "hits" };
    assert_eq!(read("-:mine/hits"), Ok(Some(removed)));
    for empty in ["", "   ", "# p:x y"] {
        assert_eq!(read(empty), Ok(None), "{empty}");
    }
    for wrong in [
        "p",
        "p:",
        "p:1x f",
        "p:a-b f",
        "p:a/b/c f",
        "q:a f",
        "-",
        "-:a b",
        "p:a f+",
        "p:a f +",
        "p:a f+x",
        "p:a 0xg",
        "p:a 12+4",
        "p:a f+18446744073709551616",
    ] {
        assert_eq!(read(wrong), Err(ParseError::Malformed), "{wrong}");
    }
    for more in ["r:a f", "r16:a f", "p:a f %ax", "p:a f x=$retval", "p:a f +4(%di)"] {
        assert_eq!(read(more), Err(ParseError::Unsupported), "{more}");
    }
    assert_eq!(Command::parse(b"p:a \xff"), Err(ParseError::Malformed));
    assert_eq!(Command::parse(std::format!("p:{} f", "a".repeat(64)).as_bytes()), Err(ParseError::Malformed));
}

fn function(offset: u32, size: u32, path: &str, last: &str) -> Function {
    let (path, last) = (name_hash(path.as_bytes()), name_hash(last.as_bytes()));
    Function { offset, size, probing: Probing::Allowed, path, last }
}

fn record(functions: &[Function], pages: &[u64]) -> Vec<u64> {
    let mut words = vec![MAGIC, functions.len() as u64 | (pages.len() as u64) << 32];
    words.extend(functions.iter().flat_map(Function::words));
    words.extend(pages);
    words
}

#[test]
fn a_function_is_found_by_its_path_by_its_last_name_and_by_each_of_its_bytes() {
    let asm = Function { probing: Probing::Refused, ..function(0, 16, "entry", "entry") };
    let all = [asm, function(16, 8, "a::f", "f"), function(32, 8, "b::g", "g"), function(40, 8, "c::g", "g")];
    let words = record(&all, &[7, 0]);
    let known = BuildRecord::read(&words);
    assert_eq!(known.named("a::f"), NameSearch::One(all[1]));
    assert_eq!(known.named("f"), NameSearch::One(all[1]));
    assert_eq!(known.named("g"), NameSearch::Several);
    assert_eq!(known.named("c::g"), NameSearch::One(all[3]));
    assert_eq!(known.named("h"), NameSearch::None);
    assert_eq!(known.at(15), Some(asm));
    assert_eq!(
        [16, 23, 24, 31, 39, 47, 48].map(|at| known.at(at).map(|found| found.offset)),
        [Some(16), Some(16), None, None, Some(32), Some(40), None]
    );
    assert_eq!([0, 1, 2].map(|page| known.page(page).map(|hash| hash.get())), [Some(7), None, None]);
}

#[test]
fn a_record_that_is_not_there_or_is_cut_is_empty() {
    let words = record(&[function(0, 8, "f", "f")], &[1]);
    for words in [&[][..], &[0; 8], &words[..1], &words[..3]] {
        let known = BuildRecord::read(words);
        assert_eq!((known.at(0), known.named("f"), known.page(0)), (None, NameSearch::None, None));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_within_their_length(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
        if let Some(found) = decode(&bytes) {
            prop_assert!((1..=LONGEST.min(bytes.len())).contains(&found.length));
            if let Kind::RipRelative(at) = found.kind {
                prop_assert!(at + 4 <= found.length);
            }
            // The bytes behind an instruction do not matter.
            prop_assert_eq!(decode(&bytes[..found.length]), Some(found));
        }
    }

    #[test]
    fn any_line_is_read(line in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = Command::parse(&line);
    }

    #[test]
    fn a_functions_words_have_all_of_it(offset in 0u32..1 << 31, size: u32, path: u32, last: u32, refused: bool) {
        let probing = if refused { Probing::Refused } else { Probing::Allowed };
        let function = Function { offset, size, probing, path, last };
        let words = record(&[function], &[]);
        let found = BuildRecord::read(&words).at(u64::from(offset));
        prop_assert_eq!(found, (size > 0).then_some(function));
    }
}
