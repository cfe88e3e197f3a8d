use std::vec;

use proptest::prelude::*;

use super::*;

fn instruction(code: u16, if_true: u8, if_false: u8, constant: u32) -> Instruction {
    Instruction { code, if_true, if_false, constant }
}

fn filter(program: &[Instruction]) -> Result<Filter, Refusal> {
    Filter::new(Vec::try_from_slice(program).unwrap())
}

const CALL: CallData = CallData::new(39, 0xc000_003e, 0x1122_3344_5566_7788, [1, 2 << 32, 3, 4, 5, u64::MAX]);

/// Returns the result of `program` for [`CALL`], followed by `return A`.
fn result(program: &[Instruction]) -> u32 {
    filter(&[program, &[instruction(code::RETURN_A, 0, 0, 0)]].concat()).unwrap().run(&CALL)
}

#[test]
fn a_call_is_read_by_words() {
    let word = |at| result(&[instruction(code::LOAD_DATA, 0, 0, at)]);
    assert_eq!(
        [0, 4, 8, 12, 16, 28, 60].map(word),
        [39, 0xc000_003e, 0x5566_7788, 0x1122_3344, 1, 2, u32::MAX]
    );
    assert_eq!(result(&[instruction(code::LOAD_LENGTH, 0, 0, 0)]), 64);
}

#[test]
fn arithmetic_wraps_and_a_division_by_zero_ends_with_zero() {
    let by = |code, left, right| {
        let load = [instruction(code::LOAD, 0, 0, left), instruction(code::LOAD_X, 0, 0, right)];
        result(&[&load[..], &[instruction(code | code::BY_X, 0, 0, 0)]].concat())
    };
    assert_eq!(by(code::ADD, u32::MAX, 2), 1);
    assert_eq!(by(code::SUBTRACT, 1, 2), u32::MAX);
    assert_eq!(by(code::MULTIPLY, 1 << 31, 3), 1 << 31);
    assert_eq!((by(code::DIVIDE, 7, 2), by(code::DIVIDE, 7, 0)), (3, 0));
    assert_eq!((by(code::SHIFT_LEFT, 1, 33), by(code::SHIFT_RIGHT, 4, 33)), (2, 2));
    assert_eq!((by(code::AND, 6, 3), by(code::OR, 6, 3), by(code::XOR, 6, 3)), (2, 7, 5));
    assert_eq!(
        result(&[instruction(code::LOAD, 0, 0, 5), instruction(code::NEGATE, 0, 0, 0)]),
        5u32.wrapping_neg()
    );
}

#[test]
fn comparisons_choose_the_way() {
    let chosen = |code, by| {
        let program = [
            instruction(code::LOAD_DATA, 0, 0, 0),
            instruction(code, 1, 0, by),
            instruction(code::RETURN, 0, 0, 0),
            instruction(code::RETURN, 0, 0, 1),
        ];
        filter(&program).unwrap().run(&CALL)
    };
    assert_eq!([38, 39, 40].map(|by| chosen(code::IF_EQUAL, by)), [0, 1, 0]);
    assert_eq!([38, 39, 40].map(|by| chosen(code::IF_GREATER, by)), [1, 0, 0]);
    assert_eq!([38, 39, 40].map(|by| chosen(code::IF_AT_LEAST, by)), [1, 1, 0]);
    assert_eq!([1, 8, 32].map(|by| chosen(code::IF_ANY_BIT, by)), [1, 0, 1]);
    let jump = [
        instruction(code::JUMP, 0, 0, 1),
        instruction(code::RETURN, 0, 0, 7),
        instruction(code::LOAD, 0, 0, 3),
    ];
    assert_eq!(result(&jump), 3);
}

#[test]
fn a_verdict_holds_for_all_calls_of_a_number_only_where_no_argument_was_read() {
    // Allows 1; looks at an argument of 2; refuses all others.
    let program = [
        instruction(code::LOAD_DATA, 0, 0, 4),
        instruction(code::IF_EQUAL, 0, 6, 9),
        instruction(code::LOAD_DATA, 0, 0, 0),
        instruction(code::IF_EQUAL, 3, 0, 1),
        instruction(code::IF_EQUAL, 0, 3, 2),
        instruction(code::LOAD_DATA, 0, 0, 16),
        instruction(code::IF_EQUAL, 0, 1, 7),
        instruction(code::RETURN, 0, 0, 0x7fff_0000),
        instruction(code::RETURN, 0, 0, 5),
    ];
    let filter = filter(&program).unwrap();
    let run = |number, argument| filter.run(&CallData::new(number, 9, 0, [argument; 6]));
    assert_eq!(
        [run(1, 7), run(1, 8), run(2, 7), run(2, 8), run(3, 7)],
        [0x7fff_0000, 0x7fff_0000, 0x7fff_0000, 5, 5]
    );
    assert_eq!([1, 2, 3].map(|number| filter.run_for_all(number, 9)), [0x7fff_0000, 0, 5]);
    assert_eq!(filter.run_for_all(1, 8), 5);
}

#[test]
fn what_makes_no_sense_is_refused_where_it_stands() {
    let end = instruction(code::RETURN, 0, 0, 0);
    let refused = |bad: Instruction| filter(&[bad, end]).err();
    for bad in [
        instruction(code::LOAD_DATA, 0, 0, 64),
        instruction(code::LOAD_DATA, 0, 0, 2),
        instruction(0x28, 0, 0, 0), // half a word
        instruction(0x40, 0, 0, 0), // indirect
        instruction(0x94, 0, 0, 1), // remainder
        instruction(code::DIVIDE, 0, 0, 0),
        instruction(code::SHIFT_LEFT, 0, 0, 32),
        instruction(code::STORE, 0, 0, 16),
        instruction(code::LOAD_WORD, 0, 0, 0),
        instruction(code::LOAD_X_WORD, 0, 0, 15),
        instruction(code::JUMP, 0, 0, 1),
        instruction(code::JUMP, 0, 0, u32::MAX),
        instruction(code::IF_EQUAL, 1, 0, 0),
        instruction(code::IF_EQUAL, 0, 1, 0),
        instruction(code::JUMP | code::BY_X, 0, 0, 0),
        instruction(code::NEGATE | code::BY_X, 0, 0, 0),
        instruction(u16::MAX, 0, 0, 0),
    ] {
        assert_eq!(refused(bad), Some(Refusal::Instruction(0)), "{bad:?}");
    }
    assert_eq!(filter(&[]).err(), Some(Refusal::Length));
    assert_eq!(filter(&vec![end; MOST + 1]).err(), Some(Refusal::Length));
    assert!(filter(&vec![end; MOST]).is_ok());
    assert_eq!(filter(&[end, instruction(code::TO_X, 0, 0, 0)]).err(), Some(Refusal::Instruction(1)));
}

#[test]
fn a_word_is_read_only_where_every_way_has_stored_it() {
    let program = |stores_on_both: bool| {
        [
            instruction(code::LOAD_DATA, 0, 0, 0),
            instruction(code::IF_EQUAL, 0, 2, 39),
            instruction(code::STORE, 0, 0, 3),
            instruction(code::JUMP, 0, 0, 1),
            instruction(code::STORE, 0, 0, if stores_on_both { 3 } else { 4 }),
            instruction(code::LOAD_WORD, 0, 0, 3),
            instruction(code::RETURN_A, 0, 0, 0),
        ]
    };
    assert_eq!(filter(&program(true)).unwrap().run(&CALL), 39);
    assert_eq!(filter(&program(false)).err(), Some(Refusal::Instruction(5)));
}

/// Instructions that are mostly possible, so that whole programs pass now and then.
fn any_instruction() -> impl Strategy<Value = Instruction> {
    let known = (0usize..28).prop_map(|at| {
        let all = [
            &code::ARITHMETIC[..],
            &code::COMPARISONS,
            &[
                code::LOAD,
                code::LOAD_DATA,
                code::LOAD_WORD,
                code::LOAD_X,
                code::STORE,
                code::JUMP,
                code::NEGATE,
            ],
            &[
                code::LOAD_X_WORD,
                code::LOAD_LENGTH,
                code::STORE_X,
                code::TO_X,
                code::TO_A,
                code::RETURN,
                code::RETURN_A,
            ],
        ];
        let all = all.concat();
        all[at % all.len()]
    });
    let codes = prop_oneof![8 => known, 1 => any::<u16>()];
    let constants = prop_oneof![8 => 0u32..16, 1 => any::<u32>()];
    (codes, any::<bool>(), 0u8..4, 0u8..4, constants).prop_map(|(code, by_x, if_true, if_false, constant)| {
        instruction(if by_x { code | code::BY_X } else { code }, if_true, if_false, constant)
    })
}

/// A machine that does everything by name and stops at any step that must not happen.
fn naive(program: &[Instruction]) -> u32 {
    let (mut a, mut x, mut words, mut at) = (0u32, 0u32, [None; WORDS], 0usize);
    for _ in 0..=program.len() {
        let Instruction { code, if_true, if_false, constant: k } = program[at];
        at += 1;
        let by = if code & 8 != 0 { x } else { k };
        match (code & 7, code) {
            (0, 0x00) => a = k,
            (0, 0x20) => a = CALL.0[k as usize / 4],
            (0, 0x60) => a = words[k as usize].expect("stored"),
            (0, _) => a = 64,
            (1, 0x01) => x = k,
            (1, 0x61) => x = words[k as usize].expect("stored"),
            (1, _) => x = 64,
            (2, _) => words[k as usize] = Some(a),
            (3, _) => words[k as usize] = Some(x),
            (4, _) => {
                a = match code >> 4 {
                    0 => a.wrapping_add(by),
                    1 => a.wrapping_sub(by),
                    2 => a.wrapping_mul(by),
                    3 => match a.checked_div(by) {
                        Some(quotient) => quotient,
                        None => return 0,
                    },
                    4 => a | by,
                    5 => a & by,
                    6 => a << (by & 31),
                    7 => a >> (by & 31),
                    8 => 0u32.wrapping_sub(a),
                    _ => a ^ by,
                }
            }
            (5, 0x05) => at += k as usize,
            (5, _) => {
                let holds = match code >> 4 {
                    1 => a == by,
                    2 => a > by,
                    3 => a >= by,
                    _ => a & by != 0,
                };
                at += usize::from(if holds { if_true } else { if_false });
            }
            (6, 0x06) => return k,
            (6, _) => return a,
            (_, 0x07) => x = a,
            _ => a = x,
        }
    }
    panic!("it does not end");
}

proptest! {
    #[test]
    fn programs_that_pass_end_and_mean_what_a_naive_machine_says(
        program in prop::collection::vec(any_instruction(), 1..12),
    ) {
        let program = [&program[..], &[instruction(code::RETURN_A, 0, 0, 0)]].concat();
        if let Ok(checked) = filter(&program) {
            prop_assert_eq!(checked.run(&CALL), naive(&program));
            let for_all = checked.run_for_all(39, 0xc000_003e);
            prop_assert!(for_all == 0 || for_all == checked.run(&CALL));
        }
    }
}

fn packet(bytes: &[u8]) -> PacketData<'_> {
    PacketData {
        bytes,
        network: bytes.get(2..).unwrap_or_default(),
        payload_at: 6,
        has_link: HasLink::Yes,
        protocol: 0x800,
        kind: 4,
        interface: 7,
        hardware: 772,
        random: 99,
    }
}

/// The result of `program` and `return A` for the packet of these bytes.
fn of_packet(program: &[Instruction], bytes: &[u8]) -> u32 {
    let program = [program, &[instruction(code::RETURN_A, 0, 0, 0)]].concat();
    PacketFilter::new(Vec::try_from_slice(&program).unwrap()).unwrap().run(&packet(bytes))
}

const BYTES: [u8; 8] = [0x11, 0x22, 0x45, 0x44, 0x55, 0x66, 0x77, 0x88];

#[test]
fn a_packet_is_read_at_any_place_in_the_order_of_the_network() {
    let at = |code, place| of_packet(&[instruction(code, 0, 0, place)], &BYTES);
    assert_eq!([0, 4, 5].map(|place| at(code::LOAD_DATA, place)), [0x1122_4544, 0x5566_7788, 0]);
    assert_eq!([1, 6, 7].map(|place| at(code::LOAD_HALF, place)), [0x2245, 0x7788, 0]);
    assert_eq!([7, 8].map(|place| at(code::LOAD_BYTE, place)), [0x88, 0]);
    assert_eq!(at(code::LOAD_LENGTH, 0), 8);
    // SKF_NET_OFF, SKF_LL_OFF.
    assert_eq!([0xfff0_0001, 0xffe0_0001].map(|place| at(code::LOAD_BYTE, place)), [0x44, 0x22]);
    let by_x = |code, x| of_packet(&[instruction(code::LOAD_X, 0, 0, x), instruction(code, 0, 0, 2)], &BYTES);
    assert_eq!(by_x(code::LOAD_BYTE_BY_X, 1), 0x44);
    assert_eq!(by_x(code::LOAD_HALF_BY_X, u32::MAX), 0x2245);
    assert_eq!(
        [by_x(code::LOAD_DATA_BY_X, 2), by_x(code::LOAD_DATA_BY_X, u32::MAX - 1)],
        [0x5566_7788, 0x1122_4544]
    );
    let header = [instruction(code::LOAD_X_HEADER, 0, 0, 2), instruction(code::TO_A, 0, 0, 0)];
    assert_eq!(of_packet(&header, &BYTES), 20);
}

#[test]
fn facts_about_a_packet_are_known() {
    let fact = |fact: u32| of_packet(&[instruction(code::LOAD_DATA, 0, 0, 0xffff_f000 + fact)], &BYTES);
    assert_eq!([0, 4, 8, 28, 52, 56, 20, 60].map(fact), [0x800, 4, 7, 772, 6, 99, 0, 0]);
    let program = [
        instruction(code::LOAD, 0, 0, 6),
        instruction(code::LOAD_X, 0, 0, 3),
        instruction(code::LOAD_DATA, 0, 0, 0xffff_f028),
    ];
    assert_eq!(of_packet(&program, &BYTES), 5);
    // An attribute of kind 9 behind one of kind 1, in one of kind 2.
    let attributes = [[16, 0, 2, 0], [5, 0, 1, 0], [0; 4], [4, 0, 9, 0]].concat();
    let find = |fact: u32, a, x| {
        let load = [instruction(code::LOAD, 0, 0, a), instruction(code::LOAD_X, 0, 0, x)];
        of_packet(
            &[&load[..], &[instruction(code::LOAD_DATA, 0, 0, 0xffff_f000 + fact)]].concat(),
            &attributes,
        )
    };
    assert_eq!(
        [find(12, 4, 9), find(12, 4, 8), find(16, 0, 9), find(16, 4, 9), find(16, 99, 9)],
        [12, 0, 12, 0, 0]
    );
    // A length of 0 leads nowhere.
    let load = [instruction(code::LOAD_X, 0, 0, 9), instruction(code::LOAD_DATA, 0, 0, 0xffff_f00c)];
    assert_eq!(of_packet(&load, &[0, 0, 1, 0, 4, 0, 9, 0]), 0);
}

#[test]
fn programs_about_packets_may_do_more_and_nothing_senseless() {
    let end = instruction(code::RETURN, 0, 0, 0);
    let passes = |one| PacketFilter::new(Vec::try_from_slice(&[one, end]).unwrap()).is_ok();
    for good in [
        instruction(code::LOAD_HALF, 0, 0, 3),
        instruction(code::LOAD_DATA, 0, 0, 0xffff_efff),
        instruction(code::REMAINDER, 0, 0, 3),
        instruction(code::REMAINDER | code::BY_X, 0, 0, 0),
        instruction(code::LOAD_X_HEADER, 0, 0, 0),
    ] {
        assert!(passes(good) && filter(&[good, end]).is_err(), "{good:?}");
    }
    for bad in [
        instruction(code::LOAD_DATA, 0, 0, 0xffff_f001),
        instruction(code::LOAD_BYTE, 0, 0, 0xffff_f040),
        instruction(code::REMAINDER, 0, 0, 0),
        instruction(0x70, 0, 0, 0),
    ] {
        assert!(!passes(bad), "{bad:?}");
    }
}

proptest! {
    /// Any program that passes ends with a verdict on any packet.
    #[test]
    fn any_program_about_packets_ends(
        program in prop::collection::vec((any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>()), 1..20),
        narrow: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let codes = [0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x80, 0x60, 0x02, 0x94, 0x9c, 0x15, 0x05, 0x04, 0x07];
        let mut program: std::vec::Vec<Instruction> = program
            .iter()
            .map(|&(code, yes, no, k)| {
                let code = if narrow { codes[usize::from(code) % codes.len()] } else { code };
                let k = if narrow && k % 3 == 0 { 0xffff_f000 + k % 64 } else if k % 3 == 1 { k % 16 } else { k };
                instruction(code, yes % 4, no % 4, k)
            })
            .collect();
        program.push(instruction(code::RETURN_A, 0, 0, 0));
        if let Ok(filter) = PacketFilter::new(Vec::try_from_slice(&program).unwrap()) {
            filter.run(&packet(&bytes));
        }
    }
}
