//! Deliberate violations of the rules of frames and of SMAP: the checker outside (`freehold scope`)
//! has to find each. The kernel parameter `freehold.plant` selects one; nothing else calls this.
//! Each function undoes its violation before it returns, and changes no byte of another owner.

use core::arch::asm;

use freehold_machine::{
    Cpus as _, DirectMap, Flush, Machine as _, NodeId, PAGEBLOCK_FRAMES, Pfn, PfnRange, Tlb as _, VirtAddr,
};

use crate::memory::{self, OutOfMemory, tables};
use crate::{X86, boot, irq, vmap};

/// The kernel reads a user's frame through the direct map. `user` is a frame that a program owns
/// and does not use.
pub fn direct_map_read(user: Pfn) {
    let first = user.pageblock_start();
    let block = PfnRange::new(first, first.offset(PAGEBLOCK_FRAMES));
    X86.enter(block);
    read_through_direct_map(user);
    X86.leave(block);
}

/// The kernel half maps a user's frame, and no code uses the mapping. `user` is a frame that a
/// program owns.
///
/// # Errors
/// When there is no memory for it.
pub fn unused_mapping(user: Pfn) -> Result<(), OutOfMemory> {
    let address = vmap::map_range(user.start(), 1, tables::READ_ONLY)?;
    vmap::unmap(address, 1);
    Ok(())
}

/// The kernel's text is mapped writable, and no code stores to it.
///
/// # Errors
/// When there is no memory for it.
pub fn writable_text() -> Result<(), OutOfMemory> {
    let address = vmap::map_range(text_frame().start(), 1, tables::DATA)?;
    vmap::unmap(address, 1);
    Ok(())
}

/// A translation is used after its frame was given back.
///
/// # Errors
/// When there is no memory for it.
pub fn stale_entry() -> Result<(), OutOfMemory> {
    let frame = memory::alloc_frames(0).ok_or(OutOfMemory)?;
    let mapped = vmap::map_range(frame.start(), 1, tables::DATA).inspect(|&address| {
        read(address);
    });
    memory::free_frames(frame, 0);
    let address = mapped?;
    use_stale_translation(address);
    vmap::unmap(address, 1);
    Ok(())
}

/// The kernel's text is written through another address, with its present bytes.
///
/// # Errors
/// If there is no memory for it.
pub fn text_alias() -> Result<(), OutOfMemory> {
    let address = vmap::map_range(text_frame().start(), 1, tables::DATA)?;
    write_text_through_alias(address);
    vmap::unmap(address, 1);
    Ok(())
}

/// A CPU loads another node's root and runs that node's text. Returns whether a node with a
/// different root exists.
pub fn wrong_root() -> bool {
    let _off = irq::disable();
    let own = X86.kernel_root(X86.node_of_cpu(X86.current_cpu()));
    let mut roots = (0..X86.node_count() as u8).map(|node| X86.kernel_root(NodeId(node)));
    let Some(other) = roots.find(|&root| root != own) else { return false };
    let before = X86.current_root();
    load_wrong_root(other);
    X86.load_root(before);
    X86.flush_local(Flush::All);
    true
}

/// A user copy is left without its CLAC: the kernel continues with SMAP off. Interrupts stay off
/// until the function has repaired that, so that each violation is in this function.
pub fn smap_open() {
    let _off = irq::disable();
    leave_smap_open();
    // SAFETY: clears RFLAGS.AC, as the kernel runs.
    unsafe { asm!("clac", options(nomem, nostack)) };
}

/// The first frame of the kernel's text.
fn text_frame() -> Pfn {
    tables::frame_at(VirtAddr(boot::read_only_parts().0.start)).expect("text is mapped")
}

fn read(address: VirtAddr) -> u8 {
    // SAFETY: the caller mapped a frame there, and any byte is valid.
    unsafe { (address.0 as *const u8).read_volatile() }
}

#[inline(never)]
fn read_through_direct_map(frame: Pfn) {
    // SAFETY: the caller has put the frame's block into the direct map, and any byte is valid.
    unsafe { tables::frame_ptr(frame).read_volatile() };
}

#[inline(never)]
fn use_stale_translation(address: VirtAddr) {
    read(address);
}

#[inline(never)]
fn write_text_through_alias(address: VirtAddr) {
    let byte = read(address);
    // SAFETY: the caller mapped the frame writable there; the byte written is the present one.
    unsafe { (address.0 as *mut u8).write_volatile(byte) };
}

#[inline(never)]
fn load_wrong_root(root: Pfn) {
    X86.load_root(root);
    // Global entries outlive the root.
    X86.flush_local(Flush::All);
}

#[inline(never)]
fn leave_smap_open() {
    // SAFETY: sets RFLAGS.AC, which only permits accesses that no code here makes.
    unsafe { asm!("stac", "nop", options(nomem, nostack)) };
}
