//! The few instructions that matter, recognised by their bytes (Intel SDM, volume 2; 64-bit mode).

use freehold_scope_doorbell::MARKER;

/// An instruction that the engine has to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// `mov cr3`, from this register.
    Root(u8),
    /// `invlpg`; the register with the address, if it is the whole operand.
    Page(Option<u8>),
    /// An instruction that empties all translation caches: `mov cr0`, `mov cr4`, `invpcid`,
    /// `invlpgb`.
    Everything,
    /// `hlt`.
    Halt,
    /// The doorbell's marker.
    Marker,
    /// A 64-bit store of this register to memory, which may tell the next instruction's operand.
    Store(u8),
    /// An instruction that changes or shows RFLAGS.AC, or may be a trap handler's first.
    Flags(Flags),
}

/// The effect of an instruction on RFLAGS.AC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flags {
    /// STAC sets it.
    Set,
    /// CLAC clears it. SYSCALL counts as clearing it, too: PUSHF and trap frames show later whether
    /// its mask does.
    Clear,
    /// SYSRET leaves kernel mode; in programs AC is not judged.
    Leave,
    /// POPF takes it from the stack.
    Pop,
    /// PUSHF shows it on the stack.
    Push,
    /// IRET takes it from the trap frame.
    Return,
    /// `push` of a constant: a trap handler may begin so.
    Constant,
}

/// Classifies the bytes of one instruction; `None` for an ordinary one.
pub fn special(bytes: &[u8]) -> Option<Special> {
    if bytes == MARKER {
        return Some(Special::Marker);
    }
    let prefixes = bytes.iter().take_while(|byte| matches!(byte, 0x66 | 0xf2 | 0xf3)).count();
    let operand_size = bytes[..prefixes].contains(&0x66);
    let (rex, code) = match bytes[prefixes..] {
        [rex @ 0x40..=0x4f, ref code @ ..] => (rex, code),
        ref code => (0, code),
    };
    let base = |modrm: u8| modrm & 7 | (rex & 1) << 3;
    let register = |modrm: u8| modrm >> 3 & 7 | (rex & 4) << 1;
    match *code {
        [0x0f, 0x22, modrm, ..] => match register(modrm) {
            3 => Some(Special::Root(base(modrm))),
            0 | 4 => Some(Special::Everything),
            _ => None,
        },
        [0x0f, 0x01, 0xfe, ..] => Some(Special::Everything),
        [0x0f, 0x01, 0xca, ..] => Some(Special::Flags(Flags::Clear)),
        [0x0f, 0x01, 0xcb, ..] => Some(Special::Flags(Flags::Set)),
        [0x0f, 0x05, ..] => Some(Special::Flags(Flags::Clear)),
        [0x0f, 0x07, ..] => Some(Special::Flags(Flags::Leave)),
        // 16 bits of flags hold no AC; in 64-bit mode the operand has 16 or 64 bits.
        [0x9c, ..] if !operand_size => Some(Special::Flags(Flags::Push)),
        [0x9d, ..] if !operand_size => Some(Special::Flags(Flags::Pop)),
        [0xf4] => Some(Special::Halt),
        [0xcf, ..] if rex & 8 != 0 => Some(Special::Flags(Flags::Return)),
        [0x68 | 0x6a, ..] => Some(Special::Flags(Flags::Constant)),
        [0x0f, 0x01, modrm, ref rest @ ..] if modrm >> 3 & 7 == 7 && modrm < 0xc0 => {
            let plain = match (modrm >> 6, modrm & 7) {
                (_, 4) | (0, 5) => false,
                (0, _) => true,
                (1, _) => rest.first() == Some(&0),
                _ => false,
            };
            Some(Special::Page(plain.then(|| base(modrm))))
        }
        [0x0f, 0x38, 0x82, ..] if operand_size => Some(Special::Everything),
        [0x89, modrm, ..] if rex & 8 != 0 && modrm < 0xc0 => Some(Special::Store(register(modrm))),
        _ => None,
    }
}

/// Returns whether the store `before` tells the operand of `special`.
pub const fn tells(before: Special, special: Special) -> bool {
    match (before, special) {
        (Special::Store(told), Special::Root(wanted) | Special::Page(Some(wanted))) => told == wanted,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translation_instructions_are_known_by_their_bytes() {
        let cases: [(&[u8], Option<Special>); 30] = [
            (&[0x0f, 0x22, 0xd8], Some(Special::Root(0))), // mov cr3, rax
            (&[0x41, 0x0f, 0x22, 0xdc], Some(Special::Root(12))), // mov cr3, r12
            (&[0x0f, 0x22, 0xe7], Some(Special::Everything)), // mov cr4, rdi
            (&[0x0f, 0x22, 0xc0], Some(Special::Everything)), // mov cr0, rax
            (&[0x44, 0x0f, 0x22, 0xc0], None),             // mov cr8, rax
            (&[0x0f, 0x22, 0xd0], None),                   // mov cr2, rax
            (&[0x0f, 0x20, 0xd8], None),                   // mov rax, cr3
            (&[0x0f, 0x01, 0x38], Some(Special::Page(Some(0)))), // invlpg [rax]
            (&[0x41, 0x0f, 0x01, 0x7d, 0x00], Some(Special::Page(Some(13)))), // invlpg [r13]
            (&[0x0f, 0x01, 0x7f, 0x08], Some(Special::Page(None))), // invlpg [rdi + 8]
            (&[0x41, 0x0f, 0x01, 0x3c, 0x24], Some(Special::Page(None))), // invlpg [r12]: a SIB byte
            (&[0x0f, 0x01, 0xf8], None),                   // swapgs
            (&[0x66, 0x0f, 0x38, 0x82, 0x08], Some(Special::Everything)), // invpcid rcx, [rax]
            (&[0x0f, 0x01, 0xfe], Some(Special::Everything)), // invlpgb
            (&[0x48, 0x89, 0x01], Some(Special::Store(0))), // mov [rcx], rax
            (&[0x4c, 0x89, 0x64, 0x24, 0x08], Some(Special::Store(12))), // mov [rsp + 8], r12
            (&[0x48, 0x89, 0xc1], None),                   // mov rcx, rax
            (&[0x0f, 0x01, 0xcb], Some(Special::Flags(Flags::Set))), // stac
            (&[0x0f, 0x01, 0xca], Some(Special::Flags(Flags::Clear))), // clac
            (&[0x0f, 0x05], Some(Special::Flags(Flags::Clear))), // syscall
            (&[0x48, 0x0f, 0x07], Some(Special::Flags(Flags::Leave))), // sysretq
            (&[0x9c], Some(Special::Flags(Flags::Push))),  // pushfq
            (&[0x9d], Some(Special::Flags(Flags::Pop))),   // popfq
            (&[0x66, 0x9d], None),                         // popfw
            (&[0x48, 0xcf], Some(Special::Flags(Flags::Return))), // iretq
            (&[0xcf], None),                               // iretd: no frame of a 64-bit kernel
            (&[0x6a, 0x00], Some(Special::Flags(Flags::Constant))), // push 0
            (&[0x68, 14, 0, 0, 0], Some(Special::Flags(Flags::Constant))), // push 14
            (&[0x0f, 0x01, 0xf9], None),                   // rdtscp
            (&[0xf4], Some(Special::Halt)),                // hlt
        ];
        for (bytes, expected) in cases {
            assert_eq!(special(bytes), expected, "{bytes:02x?}");
        }
        assert_eq!(special(&MARKER), Some(Special::Marker));
        assert_eq!(special(&[0x0f, 0x1f, 0x80, 0, 0, 0, 0]), None, "a plain long nop");
    }

    #[test]
    fn a_store_tells_the_operand_of_its_own_register_only() {
        assert!(tells(Special::Store(3), Special::Root(3)));
        assert!(tells(Special::Store(3), Special::Page(Some(3))));
        assert!(!tells(Special::Store(2), Special::Root(3)));
        assert!(!tells(Special::Store(3), Special::Page(None)));
        assert!(!tells(Special::Store(3), Special::Everything));
    }
}
