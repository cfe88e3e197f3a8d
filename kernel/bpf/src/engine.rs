//! Running a program that was checked.

use crate::{Instruction, WORDS, code};

/// Bytes of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Width {
    Byte = 1,
    Half = 2,
    Word = 4,
}

/// Data that a program loads from.
pub(crate) trait Loads {
    /// Returns the number of bytes.
    fn length(&self) -> u32;
    /// Returns the number at `at`, for a program whose registers are A and X. `None` ends the
    /// program.
    fn load(&self, at: u32, width: Width, registers: (u32, u32)) -> Option<u32>;
}

/// Returns the verdict of `program`; 0 if a load fails.
#[inline]
pub(crate) fn run(program: &[Instruction], data: &impl Loads) -> u32 {
    let (mut a, mut x, mut words) = (0u32, 0u32, [0u32; WORDS]);
    let mut at = 0;
    // No jump leads backwards, so each instruction runs at most once. The checks ensure that the
    // program counter stays in the program.
    while let Some(&Instruction { code, if_true, if_false, constant: k }) = program.get(at) {
        at += 1;
        let word = k as usize % WORDS;
        match code {
            code::LOAD_DATA => match data.load(k, Width::Word, (a, x)) {
                Some(value) => a = value,
                None => return 0,
            },
            code::LOAD_LENGTH => a = data.length(),
            code::LOAD_X_LENGTH => x = data.length(),
            code::LOAD => a = k,
            code::LOAD_X => x = k,
            code::LOAD_WORD => a = words[word],
            code::LOAD_X_WORD => x = words[word],
            code::STORE => words[word] = a,
            code::STORE_X => words[word] = x,
            code::TO_X => x = a,
            code::TO_A => a = x,
            code::RETURN => return k,
            code::RETURN_A => return a,
            code::JUMP => at += k as usize,
            code::NEGATE => a = a.wrapping_neg(),
            _ if code::PACKET_LOADS.contains(&code) => match load(data, code, k, (a, x)) {
                Some(value) if code == code::LOAD_X_HEADER => x = value,
                Some(value) => a = value,
                None => return 0,
            },
            _ => {
                let by = if code & code::BY_X == 0 { k } else { x };
                match code & !code::BY_X {
                    code::ADD => a = a.wrapping_add(by),
                    code::SUBTRACT => a = a.wrapping_sub(by),
                    code::MULTIPLY => a = a.wrapping_mul(by),
                    // A division by zero ends the program with 0.
                    code::DIVIDE | code::REMAINDER if by == 0 => return 0,
                    code::DIVIDE => a /= by,
                    code::REMAINDER => a %= by,
                    code::AND => a &= by,
                    code::OR => a |= by,
                    code::XOR => a ^= by,
                    code::SHIFT_LEFT => a = a.wrapping_shl(by),
                    code::SHIFT_RIGHT => a = a.wrapping_shr(by),
                    comparison => {
                        let holds = compare(comparison, a, by);
                        at += usize::from(if holds { if_true } else { if_false });
                    }
                }
            }
        }
    }
    0
}

#[inline(always)]
const fn compare(comparison: u16, a: u32, by: u32) -> bool {
    match comparison {
        code::IF_EQUAL => a == by,
        code::IF_GREATER => a > by,
        code::IF_AT_LEAST => a >= by,
        _ => a & by != 0,
    }
}

/// Loads that only programs about packets have.
fn load(data: &impl Loads, code: u16, k: u32, (a, x): (u32, u32)) -> Option<u32> {
    let behind = x.wrapping_add(k);
    match code {
        code::LOAD_HALF => data.load(k, Width::Half, (a, x)),
        code::LOAD_BYTE => data.load(k, Width::Byte, (a, x)),
        code::LOAD_DATA_BY_X => data.load(behind, Width::Word, (a, x)),
        code::LOAD_HALF_BY_X => data.load(behind, Width::Half, (a, x)),
        code::LOAD_BYTE_BY_X => data.load(behind, Width::Byte, (a, x)),
        // The length of a header of IPv4, by its first byte.
        _ => data.load(k, Width::Byte, (a, x)).map(|byte| (byte & 0xf) * 4),
    }
}
