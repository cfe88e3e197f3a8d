//! Copies to and from the program whose address space is loaded, through its tables and the CPU's
//! TLB, like the program's own accesses.

use freehold_machine::model::AccessFault;
use freehold_machine::{Access, PAGE_SIZE, Pfn, PhysAddr, PhysicalBytes, VirtAddr};

pub use freehold_arch::usercopy::Faults;

use super::machine::{has_spaces, model};
use super::traps;
use super::user::USER_END;

/// Translates `addr`; `faults` says whether faults are served.
fn translate(addr: VirtAddr, access: Access, faults: Faults) -> Option<PhysAddr> {
    if addr.0 >= USER_END || !has_spaces() {
        return None;
    }
    // The call may sleep whether or not there is a fault: that depends on the program.
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

/// Runs `f` on the part in each page of `length` bytes from `start` on. Returns how many bytes
/// could be accessed.
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

/// Copies from the program's memory. Returns how many bytes were copied.
pub fn read(from: VirtAddr, to: &mut [u8], faults: Faults) -> usize {
    each_part((from, to.len()), Access::Read, faults, |at, part| {
        to[at..at + part.len()].copy_from_slice(part)
    })
}
/// Copies to the program's memory. Returns how many bytes were copied.
pub fn write(to: VirtAddr, from: &[u8], faults: Faults) -> usize {
    each_part((to, from.len()), Access::Write, faults, |at, part| {
        part.copy_from_slice(&from[at..at + part.len()]);
    })
}
/// Fills the program's memory with zeroes. Returns how many bytes were written.
pub fn zero(to: VirtAddr, len: usize, faults: Faults) -> usize {
    each_part((to, len), Access::Write, faults, |_, part| part.fill(0))
}
/// Loads a word; `None` if the word cannot be read.
pub fn load_u32(from: VirtAddr, faults: Faults) -> Option<u32> {
    let mut word = [0; 4];
    load(from, &mut word, faults)?;
    Some(u32::from_ne_bytes(word))
}
/// Loads a value; `None` if not all of it can be read.
pub fn load(from: VirtAddr, value: &mut [u8], faults: Faults) -> Option<()> {
    (read(from, value, faults) == value.len()).then_some(())
}
/// Stores a value; `None` if not all of it can be written.
pub fn store(to: VirtAddr, value: &[u8], faults: Faults) -> Option<()> {
    (write(to, value, faults) == value.len()).then_some(())
}
/// Replaces a word if it is `current`. Returns the previous value, or `None` if the word cannot be
/// written. Atomic, since only one thread runs at a time.
pub fn compare_exchange_u32(at: VirtAddr, current: u32, new: u32, faults: Faults) -> Option<u32> {
    translate(at, Access::Write, faults)?;
    let before = load_u32(at, faults)?;
    if before == current {
        store(at, &new.to_ne_bytes(), faults)?;
    }
    Some(before)
}
