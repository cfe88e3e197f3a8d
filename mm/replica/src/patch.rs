//! Changing instructions of text in the image and in every replica, while CPUs run them.
//!
//! **The danger.** A CPU may have fetched a part of an instruction before a store to it and the
//! rest after. It may keep the fetched bytes until it executes a serialising instruction (Intel SDM
//! volume 3A, 9.1.3; AMD APM volume 2, 7.6.1). One store is safe at any moment: that of the single
//! byte INT3.
//!
//! **The protocol.** Three phases, each for all places in all copies of text, and after each every
//! CPU executes a serialising instruction ([`Port::synchronise`]):
//! 1. The first byte becomes INT3. A CPU runs the old instruction or the INT3.
//! 2. The bytes after it become the new ones. A CPU runs the INT3, with any combination of old and
//!    new bytes.
//! 3. The first byte becomes the new one. A CPU runs the INT3 or the new instruction.
//!
//! A CPU that runs the INT3 does the same as the new instruction: the port's handler is prepared
//! before the first phase begins. Until the end some CPUs execute the old instruction and others
//! the new one; the caller must tolerate both. After the last phase no CPU has an old byte, on any
//! node.
//!
//! **All or nothing.** Everything that can fail happens before the first store.
//!
//! **Hashes.** A patched page must still have its recorded hash in all copies, otherwise nothing is
//! stored. After the patch its hash is computed anew. So an announced change does not hide an
//! unannounced one.
//!
//! **Single bytes and unused bytes.** A breakpoint is a single byte, so it is stored in one phase.
//! So are bytes that no CPU runs ([`Replicas::store`]).
//!
//! **Callers.** One at a time, and not during a check: `&mut`. Interrupts are on, and no lock is
//! held for which another CPU waits with interrupts off. Code that runs in NMIs, double faults and
//! machine checks is never patched: the return from the INT3 would let these events nest.
//!
//! The nearest relative is Linux' `text_poke_bp_batch` (arch/x86/kernel/alternative.c).

use core::fmt;

use freehold_machine::{NodeId, PAGE_SIZE, Pfn, PhysicalBytes, VirtAddr};

use crate::copy::hash;
use crate::{Port, ReplicaFault, ReplicaMemory, Replicas};

/// Bytes of an instruction that can be patched.
pub const LENGTH: usize = 5;

/// The instruction of one byte that may be stored at any moment.
pub const INT3: u8 = 0xcc;

/// An instruction, whole.
pub type Instruction = [u8; LENGTH];

/// A change of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch {
    /// The instruction's address.
    pub address: VirtAddr,
    /// The present instruction.
    pub from: Instruction,
    /// The instruction that replaces it.
    pub to: Instruction,
}

/// Reasons why nothing was patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PatchError {
    /// There is no memory for the patching window.
    OutOfMemory,
    /// The instruction is not completely in text.
    NotText(VirtAddr),
    /// The address has another instruction than the expected one.
    Differs {
        /// The node whose copy differs.
        node: NodeId,
        /// The address.
        address: VirtAddr,
    },
    /// The page has changed since its hash was taken.
    Changed(ReplicaFault),
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("there is no memory for the patching window"),
            Self::NotText(address) => write!(f, "{:#x} is not in the kernel's text", address.0),
            Self::Differs { node, address } => {
                write!(f, "node {} has another instruction at {:#x} than was expected", node.0, address.0)
            }
            Self::Changed(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for PatchError {}

/// A part of an instruction that is in one page.
struct Part {
    page: u64,
    offset: usize,
    /// The range of the instruction's bytes.
    bytes: core::ops::Range<usize>,
}

impl<S: ReplicaMemory, P: Port> Replicas<S, P> {
    /// Changes all of these instructions, on every node. They do not overlap. See the module's
    /// head.
    ///
    /// # Errors
    /// If one of them cannot be changed; then none is.
    pub fn patch(&mut self, patches: &[Patch]) -> Result<(), PatchError> {
        for patch in patches {
            self.check_bytes(patch.address, &patch.from)?;
        }
        self.port.prepare_patching()?;
        for patch in patches {
            self.store_everywhere(patch.address, 0, &[INT3]);
        }
        self.port.synchronise();
        for patch in patches {
            self.store_everywhere(patch.address, 1, &patch.to[1..]);
        }
        self.port.synchronise();
        for patch in patches {
            self.store_everywhere(patch.address, 0, &patch.to[..1]);
        }
        self.port.synchronise();
        for patch in patches {
            self.renew_hashes(patch.address, LENGTH);
        }
        Ok(())
    }

    /// Changes bytes of text on every node in one phase: a single byte from or to INT3, or bytes
    /// that no CPU runs. When this returns, each CPU has executed a serialising instruction since.
    /// There are as many bytes in `from` as in `to`, and at least one.
    ///
    /// # Errors
    /// If they cannot be changed; then none is.
    pub fn store(&mut self, address: VirtAddr, from: &[u8], to: &[u8]) -> Result<(), PatchError> {
        self.check_bytes(address, from)?;
        self.port.prepare_patching()?;
        self.store_everywhere(address, 0, to);
        self.port.synchronise();
        self.renew_hashes(address, to.len());
        Ok(())
    }

    /// Copies bytes of the image's text to `into`, as they are now.
    ///
    /// # Errors
    /// If they are not all in text.
    pub fn read_text(&self, address: VirtAddr, into: &mut [u8]) -> Result<(), PatchError> {
        self.check_text(address, into.len())?;
        let machine = self.source.machine();
        for part in self.parts(address, 0, into.len()) {
            let into = &mut into[part.bytes.clone()];
            machine.read_bytes(self.image.first.offset(part.page), |page| {
                into.copy_from_slice(&page[part.offset..][..part.bytes.len()]);
            });
        }
        Ok(())
    }

    /// The frames of a page of the image, with the nodes of their copies: the image's first.
    pub(crate) fn copies(&self, page: u64) -> impl Iterator<Item = (NodeId, Pfn)> {
        let image = (self.image.node, self.image.first.offset(page));
        core::iter::once(image).chain(self.each().map(move |(node, replica)| (node, replica.frame(page))))
    }

    /// The bytes from number `first` up to number `end` of the instruction at an address, page by
    /// page.
    fn parts(&self, address: VirtAddr, first: usize, end: usize) -> impl Iterator<Item = Part> + use<S, P> {
        let start = address.0 - self.image.start.0;
        let in_first = PAGE_SIZE - start as usize % PAGE_SIZE;
        let split = in_first.clamp(first, end);
        let part = move |bytes: core::ops::Range<usize>| {
            let at = start + bytes.start as u64;
            Part { page: at / PAGE_SIZE as u64, offset: at as usize % PAGE_SIZE, bytes }
        };
        [first..split, split..end].into_iter().filter(|bytes| !bytes.is_empty()).map(part)
    }

    fn check_text(&self, address: VirtAddr, bytes: usize) -> Result<(), PatchError> {
        let is_text =
            |address: u64| self.image.page_at(address).is_some_and(|page| page < self.image.text_pages);
        let last = address.0.wrapping_add(bytes as u64).wrapping_sub(1);
        if is_text(address.0) && is_text(last) { Ok(()) } else { Err(PatchError::NotText(address)) }
    }

    fn check_bytes(&mut self, address: VirtAddr, from: &[u8]) -> Result<(), PatchError> {
        self.check_text(address, from.len())?;
        let machine = self.source.machine();
        for part in self.parts(address, 0, from.len()) {
            for (node, frame) in self.copies(part.page) {
                let is_expected = machine.read_bytes(frame, |page| {
                    page[part.offset..][..part.bytes.len()] == from[part.bytes.clone()]
                });
                if !is_expected {
                    return Err(PatchError::Differs { node, address });
                }
            }
            let mut fault = None;
            self.verify_page(part.page, &mut |found| {
                fault.get_or_insert(found);
            });
            if let Some(fault) = fault {
                return Err(PatchError::Changed(fault));
            }
        }
        Ok(())
    }

    /// Stores these bytes of the instruction at an address, from number `first` on, in all copies.
    fn store_everywhere(&self, address: VirtAddr, first: usize, bytes: &[u8]) {
        for part in self.parts(address, first, first + bytes.len()) {
            let bytes = &bytes[part.bytes.start - first..part.bytes.end - first];
            for (_, frame) in self.copies(part.page) {
                self.port.store_text(frame, part.offset, bytes);
            }
        }
    }

    /// Computes the hashes of the pages with these bytes anew, and notes that the pages were
    /// patched.
    fn renew_hashes(&mut self, address: VirtAddr, bytes: usize) {
        let machine = self.source.machine();
        for part in self.parts(address, 0, bytes) {
            let frame = self.image.first.offset(part.page);
            if let Some(word) = self.patched.get_mut(part.page as usize / 64) {
                *word |= 1 << (part.page % 64);
            }
            if let Some(known) = self.hashes.get_mut(part.page as usize) {
                *known = Some(machine.read_bytes(frame, hash));
            }
        }
    }
}
