//! The first bytes on a new program's stack: argument and environment strings, the auxiliary
//! vector, and the pointers to them (System V ABI, AMD64 supplement, 3.4.1).

use core::ops::Range;

use freehold_collections::{Vec, WipedBytes};

use super::strings::Strings;
use crate::{Errno, Result};

/// Auxiliary vector types.
#[allow(missing_docs)]
pub mod aux {
    pub const NULL: u64 = 0;
    pub const PHDR: u64 = 3;
    pub const PHENT: u64 = 4;
    pub const PHNUM: u64 = 5;
    pub const PAGESZ: u64 = 6;
    pub const BASE: u64 = 7;
    pub const FLAGS: u64 = 8;
    pub const ENTRY: u64 = 9;
    pub const UID: u64 = 11;
    pub const EUID: u64 = 12;
    pub const GID: u64 = 13;
    pub const EGID: u64 = 14;
    pub const PLATFORM: u64 = 15;
    pub const HWCAP: u64 = 16;
    pub const CLKTCK: u64 = 17;
    pub const SECURE: u64 = 23;
    pub const RANDOM: u64 = 25;
    pub const HWCAP2: u64 = 26;
    pub const RSEQ_FEATURE_SIZE: u64 = 27;
    pub const RSEQ_ALIGN: u64 = 28;
    pub const EXECFN: u64 = 31;
    pub const MINSIGSTKSZ: u64 = 51;
}

/// Contents of the initial stack.
pub struct Contents<'a> {
    /// argv.
    pub arguments: &'a Strings,
    /// envp.
    pub environment: &'a Strings,
    /// The executable's name, for AT_EXECFN.
    pub name: &'a [u8],
    /// Random bytes for AT_RANDOM.
    pub random: [u8; 16],
    /// The rest of the auxiliary vector.
    pub auxiliary: &'a [(u64, u64)],
}

/// The initial bytes of the stack, and the positions of their parts.
pub struct StackImage {
    /// The bytes from `sp` up to the top.
    pub bytes: WipedBytes,
    /// The stack pointer.
    pub sp: u64,
    /// The addresses of argv's strings.
    pub arguments: Range<u64>,
    /// The addresses of envp's strings.
    pub environment: Range<u64>,
    /// The whole auxiliary vector.
    pub auxiliary: Vec<(u64, u64)>,
    /// The address of the auxiliary vector.
    pub auxiliary_at: u64,
}

const PLATFORM: &[u8] = b"x86_64\0";

/// Lays out `contents` below `top`, which is 16-byte aligned.
///
/// # Errors
/// `ENOMEM`; `E2BIG` if it does not fit below `top`.
pub fn build(top: u64, contents: &Contents<'_>) -> Result<StackImage> {
    let (arguments, environment) = (contents.arguments, contents.environment);
    // From the top downwards: an empty word, the name, environment, arguments; then the platform
    // and the random bytes.
    let name = top - 8 - (contents.name.len() as u64 + 1);
    let environment_start = name - environment.bytes().len() as u64;
    let arguments_start = environment_start - arguments.bytes().len() as u64;
    let platform = arguments_start - PLATFORM.len() as u64;
    let random = (platform - 16) & !15;
    let last = [(aux::RANDOM, random), (aux::EXECFN, name), (aux::PLATFORM, platform), (aux::NULL, 0)];
    let mut auxiliary = Vec::try_with_capacity(contents.auxiliary.len() + last.len())?;
    auxiliary.try_extend_from_slice(contents.auxiliary)?;
    auxiliary.try_extend_from_slice(&last)?;
    let strings = 1 + arguments.len() + 1 + environment.len() + 1;
    let words = strings + 2 * auxiliary.len();
    let sp = random.checked_sub(8 * words as u64).ok_or(Errno::E2BIG)? & !15;
    let length = usize::try_from(top - sp).map_err(|_| Errno::E2BIG)?;
    let mut bytes = Vec::try_with_capacity(length)?;
    let mut word = |value: u64| bytes.try_extend_from_slice(&value.to_le_bytes());
    word(arguments.len() as u64)?;
    for (strings, start) in [(arguments, arguments_start), (environment, environment_start)] {
        for offset in strings.offsets() {
            crate::sched::rest();
            word(start + offset as u64)?;
        }
        word(0)?;
    }
    for &(kind, value) in &auxiliary {
        word(kind)?;
        word(value)?;
    }
    bytes.try_resize((random - sp) as usize, 0)?;
    bytes.try_extend_from_slice(&contents.random)?;
    bytes.try_resize((platform - sp) as usize, 0)?;
    for part in [PLATFORM, arguments.bytes(), environment.bytes(), contents.name] {
        bytes.try_extend_from_slice(part)?;
    }
    bytes.try_resize(length, 0)?;
    Ok(StackImage {
        bytes: bytes.into(),
        sp,
        arguments: arguments_start..environment_start,
        environment: environment_start..name,
        auxiliary,
        auxiliary_at: sp + 8 * strings as u64,
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_program_finds_its_arguments_environment_and_auxiliary_vector() {
        let (mut arguments, mut environment) = (Strings::new(), Strings::new());
        for text in ["echo", "", "hello"] {
            arguments.push(text.as_bytes()).unwrap();
        }
        environment.push(b"A=1").unwrap();
        let contents = Contents {
            arguments: &arguments,
            environment: &environment,
            name: b"/bin/echo",
            random: [7; 16],
            auxiliary: &[(aux::PAGESZ, 4096)],
        };
        let top = 0x7fff_0000;
        let image = build(top, &contents).unwrap();
        assert_eq!(image.sp % 16, 0);
        assert_eq!(image.sp + image.bytes.len() as u64, top);
        let at = |address: u64| (address - image.sp) as usize;
        let word =
            |index: usize| u64::from_le_bytes(image.bytes[8 * index..8 * index + 8].try_into().unwrap());
        let text = |address: u64| {
            let rest = &image.bytes[at(address)..];
            &rest[..rest.iter().position(|&byte| byte == 0).unwrap()]
        };
        assert_eq!(word(0), 3);
        assert_eq!(
            (text(word(1)), text(word(2)), text(word(3)), word(4)),
            (&b"echo"[..], &b""[..], &b"hello"[..], 0)
        );
        assert_eq!((text(word(5)), word(6)), (&b"A=1"[..], 0));
        let vector: Vec<_> =
            (7..).step_by(2).map(|i| (word(i), word(i + 1))).take_while(|pair| pair.0 != 0).collect();
        let find = |kind| vector.iter().find(|pair| pair.0 == kind).unwrap().1;
        assert_eq!(find(aux::PAGESZ), 4096);
        assert_eq!(text(find(aux::EXECFN)), b"/bin/echo");
        assert_eq!(text(find(aux::PLATFORM)), b"x86_64");
        assert_eq!(image.bytes[at(find(aux::RANDOM))..][..16], [7; 16]);
        assert_eq!(text(image.arguments.start), b"echo");
        assert_eq!(text(image.environment.start), b"A=1");
    }
}
