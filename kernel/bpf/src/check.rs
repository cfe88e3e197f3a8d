//! Checks that a program must pass before it may run.

use freehold_collections::Vec;

use super::packet::{ANCILLARY, is_fact};
use super::{DATA, Instruction, MOST, Refusal, WORDS, code};

/// All words of memory.
const ALL: u16 = u16::MAX;

/// Kind of a program, which decides its allowed instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// The program is about system calls.
    Call,
    /// The program is about packets.
    Packet,
}

pub fn check(program: &[Instruction], rules: Rules) -> Result<(), Refusal> {
    if !(1..=MOST).contains(&program.len()) {
        return Err(Refusal::Length);
    }
    for (at, instruction) in program.iter().enumerate() {
        if !is_possible(instruction, program.len() - at - 1, rules) {
            return Err(Refusal::Instruction(at));
        }
    }
    match program.last() {
        Some(Instruction { code: code::RETURN | code::RETURN_A, .. }) => check_memory(program),
        _ => Err(Refusal::Instruction(program.len() - 1)),
    }
}

/// Whether an instruction, followed by `behind` others, exists, and its operand is valid.
fn is_possible(instruction: &Instruction, behind: usize, rules: Rules) -> bool {
    let &Instruction { code, if_true, if_false, constant } = instruction;
    let is_packet = rules == Rules::Packet;
    let place = constant;
    let constant = constant as usize;
    match code {
        code::LOAD_DATA | code::LOAD_HALF | code::LOAD_BYTE if is_packet => {
            place < ANCILLARY || is_fact(place)
        }
        _ if is_packet && code::PACKET_LOADS.contains(&code) => true,
        code::REMAINDER => is_packet && constant != 0,
        _ if code == code::REMAINDER | code::BY_X => is_packet,
        code::LOAD_DATA => constant < DATA && constant.is_multiple_of(4),
        code::LOAD_WORD | code::LOAD_X_WORD | code::STORE | code::STORE_X => constant < WORDS,
        code::DIVIDE => constant != 0,
        code::SHIFT_LEFT | code::SHIFT_RIGHT => constant < 32,
        code::JUMP => constant < behind,
        code::LOAD | code::LOAD_X | code::LOAD_LENGTH | code::LOAD_X_LENGTH => true,
        code::RETURN | code::RETURN_A | code::TO_X | code::TO_A | code::NEGATE => true,
        _ => {
            let operation = code & !code::BY_X;
            let is_comparison = code::COMPARISONS.contains(&operation);
            let stays = usize::from(if_true) < behind && usize::from(if_false) < behind;
            code::ARITHMETIC.contains(&operation) || is_comparison && stays
        }
    }
}

/// Whether each word of memory that is read was stored on every path to the read. For each
/// instruction it keeps the words that all jumps to it have stored.
fn check_memory(program: &[Instruction]) -> Result<(), Refusal> {
    let mut stored_at = Vec::try_filled(ALL, program.len())?;
    let mut stored = 0;
    for (at, &Instruction { code, if_true, if_false, constant }) in program.iter().enumerate() {
        stored &= stored_at[at];
        let mut jump = |distance: usize, stored: u16| {
            if let Some(there) = stored_at.get_mut(at + 1 + distance) {
                *there &= stored;
            }
        };
        match code {
            code::STORE | code::STORE_X => stored |= 1 << constant,
            code::LOAD_WORD | code::LOAD_X_WORD if stored & 1 << constant == 0 => {
                return Err(Refusal::Instruction(at));
            }
            code::JUMP => {
                jump(constant as usize, stored);
                stored = ALL;
            }
            _ if code::COMPARISONS.contains(&(code & !code::BY_X)) => {
                jump(usize::from(if_true), stored);
                jump(usize::from(if_false), stored);
                stored = ALL;
            }
            _ => {}
        }
    }
    Ok(())
}
