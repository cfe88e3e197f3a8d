//! Bytes of the program whose address space is loaded: through its tables and the CPU's TLB, as its
//! own accesses.

use freehold_machine::model::AccessFault;
use freehold_machine::{Access, PAGE_SIZE, Pfn, PhysAddr, PhysicalBytes, VirtAddr};

pub use freehold_arch::usercopy::Faults;

use super::machine::{has_spaces, model};
use super::traps;
use super::user::USER_END;

/// Where `addr` leads, faults served as `faults` says.
fn translate(addr: VirtAddr, access: Access, faults: Faults) -> Option<PhysAddr> {
    if addr.0 >= USER_END || !has_spaces() {
        return None;
    }
    // Whether there is a fault or not: it is the program that decides.
    if faults == Faults::Sleep {
        super::locks::assert_none_held();
    }
    loop {
        match model().access(addr, access) {
            Ok(at) => return Some(at),
            Err(AccessFault::NotPresent | AccessFault::Protection) if faults == Faults::Never => return None,
            Err(_) => traps::handlers()?.kernel_page_fault(addr, access).ok()?,
        }
    }
}

/// Runs `f` on each part of a page of `length` bytes from `start` on; how many bytes were reached.
fn each_part(
    (start, length): (VirtAddr, usize),
    access: Access,
    faults: Faults,
    mut f: impl FnMut(usize, &mut [u8]),
) -> usize {
    let mut done = 0;
    while done < length {
        let Some(addr) = start.0.checked_add(done as u64) else { break };
        let Some(at) = translate(VirtAddr(addr), access, faults) else { break };
        let offset = at.0 as usize % PAGE_SIZE;
        let part = (PAGE_SIZE - offset).min(length - done);
        model().with_bytes(Pfn::containing(at), |page| f(done, &mut page[offset..offset + part]));
        done += part;
    }
    done
}

/// Copy from the program's memory; how many bytes were copied.
pub fn read(from: VirtAddr, to: &mut [u8], faults: Faults) -> usize {
    each_part((from, to.len()), Access::Read, faults, |at, part| {
        to[at..at + part.len()].copy_from_slice(part)
    })
}
/// Copy to the program's memory; how many bytes were copied.
pub fn write(to: VirtAddr, from: &[u8], faults: Faults) -> usize {
    each_part((to, from.len()), Access::Write, faults, |at, part| {
        part.copy_from_slice(&from[at..at + part.len()]);
    })
}
/// Fill the program's memory with zeroes; how many bytes were written.
pub fn zero(to: VirtAddr, len: usize, faults: Faults) -> usize {
    each_part((to, len), Access::Write, faults, |_, part| part.fill(0))
}
/// Load a word; `None` if it cannot be read.
pub fn load_u32(from: VirtAddr, faults: Faults) -> Option<u32> {
    let mut word = [0; 4];
    load(from, &mut word, faults)?;
    Some(u32::from_ne_bytes(word))
}
/// Load a value; `None` if not all of it can be read.
pub fn load(from: VirtAddr, value: &mut [u8], faults: Faults) -> Option<()> {
    (read(from, value, faults) == value.len()).then_some(())
}
/// Store a value; `None` if not all of it can be written.
pub fn store(to: VirtAddr, value: &[u8], faults: Faults) -> Option<()> {
    (write(to, value, faults) == value.len()).then_some(())
}
/// Replaces a word if it is `current`. Returns its previous value, or `None` if it cannot be
/// written. One thread runs at a time.
pub fn compare_exchange_u32(at: VirtAddr, current: u32, new: u32, faults: Faults) -> Option<u32> {
    translate(at, Access::Write, faults)?;
    let before = load_u32(at, faults)?;
    if before == current {
        store(at, &new.to_ne_bytes(), faults)?;
    }
    Some(before)
}
/// Bytes before the first NUL, at most `max`; `None` if an unreadable byte comes first.
pub fn strnlen(from: VirtAddr, max: usize, faults: Faults) -> Option<usize> {
    for done in 0..max {
        let mut byte = [0];
        load(VirtAddr(from.0.checked_add(done as u64)?), &mut byte, faults)?;
        if byte[0] == 0 {
            return Some(done);
        }
    }
    Some(max)
}
