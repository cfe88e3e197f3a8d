//! The notes of a core file, about the process and each thread (elf(5); Linux: `fs/binfmt_elf.c`,
//! `include/linux/elfcore.h`).

use freehold_collections::Vec;
use zerocopy::{Immutable, IntoBytes};

use super::meeting::DumpedThread;
use super::output::{CoreOutput, Written};
use crate::task::trace::UserRegisters;

const NT_PRSTATUS: u32 = 1;
const NT_PRFPREG: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_X86_XSTATE: u32 = 0x202;
const NT_SIGINFO: u32 = 0x5349_4749;
const NT_FILE: u32 = 0x4649_4c45;
const CORE: &[u8] = b"CORE\0";
const LINUX: &[u8] = b"LINUX\0";
/// Bytes of the vector state that every CPU has (the legacy region).
const LEGACY: usize = 512;

/// `struct elf_prstatus`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Status {
    info: [i32; 3],
    signal: i16,
    pad: [u8; 2],
    pending: u64,
    blocked: u64,
    /// The numbers of the thread, its parent, group and session.
    ids: [u32; 4],
    /// Times in user mode and in the kernel, of the thread and of the process' children.
    times: [[u64; 2]; 4],
    registers: UserRegisters,
    has_vectors: u32,
    end: [u8; 4],
}

/// `struct elf_prpsinfo`.
#[derive(Clone, IntoBytes, Immutable)]
#[repr(C)]
pub struct ProcessInfo {
    /// The state as a number (0) and as a letter (`R`), whether the process is a zombie, the nice
    /// value.
    pub state: [i8; 4],
    /// Padding.
    pub pad: u32,
    /// PF_*: none.
    pub flags: u64,
    /// The real user and group.
    pub ids: [u32; 2],
    /// The numbers of the process, its parent, group and session.
    pub numbers: [u32; 4],
    /// The name.
    pub name: [u8; 16],
    /// The arguments, separated by blanks.
    pub arguments: [u8; 80],
}

/// The content of the notes.
pub struct Notes {
    /// The signal.
    pub signal: u8,
    /// The process.
    pub process: ProcessInfo,
    /// `siginfo_t`, 128 bytes.
    pub info: [u8; 128],
    /// The auxiliary vector.
    pub auxiliary: Vec<u8>,
    /// The mapped files: see [`super::memory::Files`].
    pub files: Vec<u8>,
    /// The threads; the one that received the signal is first.
    pub threads: Vec<DumpedThread>,
    /// Microseconds of children in user mode and in the kernel.
    pub children: [u64; 2],
}

const fn padded(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}

const fn size(name: &[u8], content: usize) -> u64 {
    12 + padded(name.len()) + padded(content)
}

fn put(out: &mut CoreOutput, name: &[u8], kind: u32, content: &[u8]) -> Written {
    let head = [name.len() as u32, content.len() as u32, kind];
    out.put(head.as_bytes())?;
    for part in [name, content] {
        out.put(part)?;
        out.put(&[0; 4][..part.len().next_multiple_of(4) - part.len()])?;
    }
    Ok(())
}

impl Notes {
    /// Returns the number of bytes of all notes.
    pub fn size(&self) -> u64 {
        let own = [size_of::<ProcessInfo>(), self.info.len(), self.auxiliary.len(), self.files.len()];
        let own: u64 = own.iter().filter(|&&bytes| bytes > 0).map(|&bytes| size(CORE, bytes)).sum();
        let of_thread = |thread: &DumpedThread| {
            let vectors = match thread.vectors.len() {
                0 => 0,
                LEGACY => size(CORE, LEGACY),
                all => size(CORE, LEGACY) + size(LINUX, all),
            };
            size(CORE, size_of::<Status>()) + vectors
        };
        own + self.threads.iter().map(of_thread).sum::<u64>()
    }

    /// Writes the notes, in Linux' order.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn put(&self, out: &mut CoreOutput) -> Written {
        for (index, thread) in self.threads.iter().enumerate() {
            put(out, CORE, NT_PRSTATUS, self.status(thread).as_bytes())?;
            if index == 0 {
                put(out, CORE, NT_PRPSINFO, self.process.as_bytes())?;
                put(out, CORE, NT_SIGINFO, &self.info)?;
                for (kind, content) in [(NT_AUXV, &self.auxiliary), (NT_FILE, &self.files)] {
                    if !content.is_empty() {
                        put(out, CORE, kind, content)?;
                    }
                }
            }
            if thread.vectors.len() >= LEGACY {
                put(out, CORE, NT_PRFPREG, &thread.vectors[..LEGACY])?;
            }
            if thread.vectors.len() > LEGACY {
                put(out, LINUX, NT_X86_XSTATE, &thread.vectors)?;
            }
        }
        Ok(())
    }

    fn status(&self, thread: &DumpedThread) -> Status {
        const SECOND: u64 = 1_000_000;
        let time = |microseconds: u64| [microseconds / SECOND, microseconds % SECOND];
        let [blocked, pending] = thread.signals;
        let [_, parent, group, session] = self.process.numbers;
        Status {
            info: [self.signal.into(), 0, 0],
            signal: self.signal.into(),
            pad: [0; 2],
            pending,
            blocked,
            ids: [thread.tid, parent, group, session],
            times: [thread.times[0], thread.times[1], self.children[0], self.children[1]].map(time),
            registers: thread.registers,
            has_vectors: u32::from(!thread.vectors.is_empty()),
            end: [0; 4],
        }
    }
}

const _: () = assert!(size_of::<Status>() == 336 && size_of::<ProcessInfo>() == 136);
