//! QEMU's plugin interface as all its versions have it (include/qemu/qemu-plugin.h): declarations,
//! and calls with QEMU's pointers turned into values. `later` has the additions of newer versions.
//!
//! QEMU's handles are valid during the callback that got them. The types here wrap them and borrow
//! for that long.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crate::later::{later, symbol};

/// The accesses that a callback is for: loads and stores.
const READ_AND_WRITE: c_int = 3;
/// A callback that does not read registers.
pub const NO_REGISTERS: c_int = 0;

/// Called when a block runs, or before an instruction: (CPU, what was registered).
pub type ExecCallback = extern "C" fn(c_uint, *mut c_void);
/// Called after an access: (CPU, the kind of access, the address, what was registered).
pub type MemCallback = extern "C" fn(c_uint, u32, u64, *mut c_void);

#[repr(C)]
pub struct Info {
    target_name: *const c_char,
    version_min: c_int,
    version_cur: c_int,
    system_emulation: bool,
    smp_vcpus: c_int,
    max_vcpus: c_int,
}

#[repr(C)]
pub struct RawBlock {
    _private: [u8; 0],
}
#[repr(C)]
pub struct RawInstruction {
    _private: [u8; 0],
}
#[repr(C)]
struct RawHwAddress {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, callback: extern "C" fn(u64, *mut c_void));
    fn qemu_plugin_register_atexit_cb(id: u64, callback: extern "C" fn(u64, *mut c_void), data: *mut c_void);
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut RawBlock,
        callback: ExecCallback,
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut RawInstruction,
        callback: ExecCallback,
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut RawInstruction,
        callback: MemCallback,
        flags: c_int,
        which: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const RawBlock) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const RawBlock, index: usize) -> *mut RawInstruction;
    fn qemu_plugin_insn_data(instruction: *const RawInstruction) -> *const u8;
    fn qemu_plugin_insn_size(instruction: *const RawInstruction) -> usize;
    fn qemu_plugin_insn_vaddr(instruction: *const RawInstruction) -> u64;
    fn qemu_plugin_insn_haddr(instruction: *const RawInstruction) -> *const c_void;
    safe fn qemu_plugin_mem_is_store(info: u32) -> bool;
    safe fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    fn qemu_plugin_get_hwaddr(info: u32, address: u64) -> *mut RawHwAddress;
    fn qemu_plugin_hwaddr_is_io(address: *const RawHwAddress) -> bool;
    fn qemu_plugin_hwaddr_phys_addr(address: *const RawHwAddress) -> u64;
}

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const INLINE_ADD: c_int = 0;

type EarlyInline = unsafe extern "C" fn(*mut RawBlock, c_int, *mut c_void, u64);

/// Returns a function that versions 1 and 2 have and version 3 no longer has: an addition to a word
/// that all CPUs share.
fn early_inline() -> Option<EarlyInline> {
    static FOUND: OnceLock<Option<EarlyInline>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = symbol(c"qemu_plugin_register_vcpu_tb_exec_inline")?;
        // SAFETY: QEMU's function of that name has this type.
        Some(unsafe { core::mem::transmute::<*mut c_void, EarlyInline>(found) })
    })
}

/// The machine, as QEMU describes it at the start.
pub struct GuestMachine {
    /// CPUs.
    pub cpus: usize,
    /// Whether it is a whole x86-64 machine.
    pub is_x86_system: bool,
    /// The version of the interface.
    pub interface: u32,
}

/// Reads the arguments that QEMU passes to `qemu_plugin_install`.
///
/// # Safety
/// `info` and `argv` are what QEMU passed to `qemu_plugin_install`, with `argc`, and it has not
/// returned.
pub unsafe fn install_arguments(
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> (GuestMachine, Vec<String>) {
    // SAFETY: QEMU passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: its name is a C string.
    let name = unsafe { core::ffi::CStr::from_ptr(info.target_name) };
    let machine = GuestMachine {
        cpus: usize::try_from(info.smp_vcpus).unwrap_or(0),
        is_x86_system: info.system_emulation && name.to_bytes() == b"x86_64",
        interface: u32::try_from(info.version_cur).unwrap_or(0),
    };
    let argument = |index: usize| {
        let place = argv.wrapping_add(index);
        // SAFETY: `argv` has `argc` pointers.
        let text = unsafe { *place };
        // SAFETY: each is a C string.
        let text = unsafe { core::ffi::CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    };
    (machine, (0..usize::try_from(argc).unwrap_or(0)).map(argument).collect())
}

/// A block that is being translated.
pub struct TranslationBlock<'a>(*mut RawBlock, PhantomData<&'a ()>);

/// An instruction of a block.
pub struct Instruction<'a>(*mut RawInstruction, PhantomData<&'a ()>);

/// Largest number of bytes of an instruction, plus one (Intel SDM, volume 2, 2.3.11).
const MOST_BYTES: usize = 16;

/// An instruction's bytes.
#[derive(Clone, Copy)]
pub struct Bytes {
    all: [u8; MOST_BYTES],
    length: usize,
}

impl core::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.all[..self.length]
    }
}

impl TranslationBlock<'_> {
    /// Wraps the block that a translation callback got.
    ///
    /// # Safety
    /// `raw` is the callback's argument, and the callback does not return before the value is gone.
    pub unsafe fn new(raw: *mut c_void) -> Self {
        Self(raw.cast(), PhantomData)
    }
    /// Returns QEMU's own handle.
    pub const fn raw(&self) -> *mut RawBlock {
        self.0
    }
    /// Returns the instructions; a block has at least one.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = Instruction<'_>> {
        // SAFETY: the block is valid during the callback.
        let count = unsafe { qemu_plugin_tb_n_insns(self.0) };
        (0..count).map(|index| {
            // SAFETY: as above, and `index` is below the count.
            Instruction(unsafe { qemu_plugin_tb_get_insn(self.0, index) }, PhantomData)
        })
    }
    /// Adds 1 to `count` whenever the block runs, without a call; returns false if this QEMU
    /// cannot.
    pub fn count_runs(&self, count: &'static AtomicU64) -> bool {
        let Some(inline) = early_inline() else { return false };
        let place = count.as_ptr().cast();
        // SAFETY: the block is valid during the callback, and the word lives for ever. QEMU's code
        // changes it by whole loads and stores of an aligned word. Two CPUs may lose an increment
        // of each other; only the question whether the word is 0 matters.
        unsafe { inline(self.0, INLINE_ADD, place, 1) };
        true
    }
    /// Makes the block call `callback` whenever it runs.
    pub fn on_run(&self, callback: ExecCallback, data: *mut c_void) {
        // SAFETY: as above; QEMU hands `data` through.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(self.0, callback, NO_REGISTERS, data) };
    }
}

impl Instruction<'_> {
    /// Returns the instruction's address.
    pub fn address(&self) -> u64 {
        // SAFETY: the instruction is valid during the callback.
        unsafe { qemu_plugin_insn_vaddr(self.0) }
    }
    /// Returns the place of the instruction's bytes in QEMU's own memory; 0 outside it.
    pub fn host_address(&self) -> usize {
        // SAFETY: as above.
        unsafe { qemu_plugin_insn_haddr(self.0) as usize }
    }
    /// Returns the instruction's bytes.
    pub fn bytes(&self) -> Bytes {
        let mut bytes = Bytes { all: [0; MOST_BYTES], length: 0 };
        if let Some(later) = later() {
            // SAFETY: as above.
            bytes.length = unsafe { later.copy(self.0, &mut bytes.all) }.min(MOST_BYTES);
            return bytes;
        }
        // SAFETY: as above.
        let size = unsafe { qemu_plugin_insn_size(self.0) };
        // SAFETY: as above.
        let data = unsafe { qemu_plugin_insn_data(self.0) };
        if !data.is_null() {
            // SAFETY: before version 3 QEMU returns where the instruction's bytes are, and keeps
            // them until the callback returns.
            let own = unsafe { core::slice::from_raw_parts(data, size.min(MOST_BYTES)) };
            bytes.all[..own.len()].copy_from_slice(own);
            bytes.length = own.len();
        }
        bytes
    }
    /// Calls `callback` before the instruction runs.
    pub fn before(&self, callback: ExecCallback, data: *mut c_void) {
        // SAFETY: as above; QEMU hands `data` through.
        unsafe { qemu_plugin_register_vcpu_insn_exec_cb(self.0, callback, NO_REGISTERS, data) };
    }
    /// Calls `callback` after each access of the instruction.
    pub fn on_access(&self, callback: MemCallback, data: *mut c_void) {
        // SAFETY: as above.
        unsafe { qemu_plugin_register_vcpu_mem_cb(self.0, callback, NO_REGISTERS, READ_AND_WRITE, data) };
    }
}

/// Registers `translated` for each block that is translated, and `exit` for QEMU's end.
///
/// # Safety
/// `id` is what QEMU passed to `qemu_plugin_install`.
pub unsafe fn register(
    id: u64,
    translated: extern "C" fn(u64, *mut c_void),
    exit: extern "C" fn(u64, *mut c_void),
) {
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, translated) };
    // SAFETY: the caller's promise.
    unsafe { qemu_plugin_register_atexit_cb(id, exit, core::ptr::null_mut()) };
}

/// Returns the place of the size in an access's kind: the first bit, and the largest value of the
/// field, which is log2 of the bytes. QEMU is asked once, as for [`store_bit`].
pub fn size_field() -> Option<(u32, u32)> {
    let says = |kind: u32, shift: u32| qemu_plugin_mem_size_shift(kind) == shift;
    let at = (0..29).find(|&at| (0..4).all(|shift| says(shift << at, shift)))?;
    Some((at, if says(4 << at, 4) { 7 } else { 3 }))
}

/// Returns the bit of an access's kind that marks a store. QEMU is asked once: a call for each
/// access would cost more than the rest of its path when everything hits.
pub fn store_bit() -> Option<u32> {
    (0..32).map(|bit| 1 << bit).find(|&bit| qemu_plugin_mem_is_store(bit) && !qemu_plugin_mem_is_store(!bit))
}

/// Returns the physical address of an access, according to QEMU; `None` outside memory.
///
/// # Safety
/// Called in the access's callback, with its own arguments.
pub unsafe fn hw_address(info: u32, address: u64) -> Option<u64> {
    // SAFETY: the caller's promise.
    let found = unsafe { qemu_plugin_get_hwaddr(info, address) };
    if found.is_null() {
        return None;
    }
    // SAFETY: QEMU keeps its answer until the next question of this thread.
    if unsafe { qemu_plugin_hwaddr_is_io(found) } {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { qemu_plugin_hwaddr_phys_addr(found) })
}
