//! The codes of instructions (linux/bpf_common.h): class, size or operation, and where the operand
//! is.

/// The operand is X, not the constant.
pub const BY_X: u16 = 0x08;

pub const LOAD: u16 = 0x00;
pub const LOAD_DATA: u16 = 0x20;
pub const LOAD_HALF: u16 = 0x28;
pub const LOAD_BYTE: u16 = 0x30;
pub const LOAD_DATA_BY_X: u16 = 0x40;
pub const LOAD_HALF_BY_X: u16 = 0x48;
pub const LOAD_BYTE_BY_X: u16 = 0x50;
/// X is four times the low half of a byte.
pub const LOAD_X_HEADER: u16 = 0xb1;
pub const LOAD_WORD: u16 = 0x60;
pub const LOAD_LENGTH: u16 = 0x80;
pub const LOAD_X: u16 = 0x01;
pub const LOAD_X_WORD: u16 = 0x61;
pub const LOAD_X_LENGTH: u16 = 0x81;
pub const STORE: u16 = 0x02;
pub const STORE_X: u16 = 0x03;
pub const ADD: u16 = 0x04;
pub const SUBTRACT: u16 = 0x14;
pub const MULTIPLY: u16 = 0x24;
pub const DIVIDE: u16 = 0x34;
pub const OR: u16 = 0x44;
pub const AND: u16 = 0x54;
pub const SHIFT_LEFT: u16 = 0x64;
pub const SHIFT_RIGHT: u16 = 0x74;
pub const NEGATE: u16 = 0x84;
pub const REMAINDER: u16 = 0x94;
pub const XOR: u16 = 0xa4;
pub const JUMP: u16 = 0x05;
pub const IF_EQUAL: u16 = 0x15;
pub const IF_GREATER: u16 = 0x25;
pub const IF_AT_LEAST: u16 = 0x35;
pub const IF_ANY_BIT: u16 = 0x45;
pub const RETURN: u16 = 0x06;
pub const RETURN_A: u16 = 0x16;
pub const TO_X: u16 = 0x07;
pub const TO_A: u16 = 0x87;

/// Loads of packets alone.
pub const PACKET_LOADS: [u16; 6] =
    [LOAD_HALF, LOAD_BYTE, LOAD_DATA_BY_X, LOAD_HALF_BY_X, LOAD_BYTE_BY_X, LOAD_X_HEADER];
/// Arithmetic with an operand.
pub const ARITHMETIC: [u16; 9] = [ADD, SUBTRACT, MULTIPLY, DIVIDE, OR, AND, SHIFT_LEFT, SHIFT_RIGHT, XOR];
/// Comparisons.
pub const COMPARISONS: [u16; 4] = [IF_EQUAL, IF_GREATER, IF_AT_LEAST, IF_ANY_BIT];
