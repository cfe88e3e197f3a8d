//! Functions that came with version 3 of QEMU's plugin interface (QEMU 9.1;
//! include/qemu/qemu-plugin.h): *scoreboards* and conditional calls. Scoreboards are words for each
//! CPU that the code which QEMU makes for a block changes itself. A conditional call is made only
//! where such a word says so.
//!
//! All functions are looked up when the plugin is loaded, so that it loads into a QEMU without
//! them.

use core::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crate::qemu::{ExecCallback, NO_REGISTERS, RawBlock, RawInstruction, TranslationBlock};

/// CPUs for which QEMU makes a scoreboard's words at first. With more CPUs, it moves the words.
const UNMOVED: usize = 16;

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_int = 0;
/// `QEMU_PLUGIN_COND_NE` and `_GE`; comparisons are of unsigned numbers.
const IS_NOT: c_int = 3;
const IS_AT_LEAST: c_int = 7;

#[repr(C)]
struct RawBoard {
    _private: [u8; 0],
}

/// A word of a scoreboard, at the same offset in each CPU's part.
#[repr(C)]
#[derive(Clone, Copy)]
struct ScoreboardWord {
    board: *mut RawBoard,
    offset: usize,
}

type New = unsafe extern "C" fn(usize) -> *mut RawBoard;
type Find = unsafe extern "C" fn(*mut RawBoard, u32) -> *mut c_void;
type Inline = unsafe extern "C" fn(*mut RawBlock, c_int, ScoreboardWord, u64);
type Conditional =
    unsafe extern "C" fn(*mut RawBlock, ExecCallback, c_int, c_int, ScoreboardWord, u64, *mut c_void);
type Copy_ = unsafe extern "C" fn(*const RawInstruction, *mut c_void, usize) -> usize;

/// QEMU's functions.
pub struct Later {
    new: New,
    find: Find,
    inline: Inline,
    conditional: Conditional,
    copy: Copy_,
}

/// Returns the address that QEMU exports under a name.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name, and the handle that stands for everything that is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns whether QEMU exports scoreboards, which came with version 2 (QEMU 9.0).
pub fn has_scoreboards() -> bool {
    symbol(c"qemu_plugin_scoreboard_new").is_some()
}

/// Returns the functions of this QEMU: all or none.
pub fn later() -> Option<&'static Later> {
    static LATER: OnceLock<Option<Later>> = OnceLock::new();
    LATER.get_or_init(Later::look_up).as_ref()
}

impl Later {
    fn look_up() -> Option<Self> {
        let new = symbol(c"qemu_plugin_scoreboard_new")?;
        let find = symbol(c"qemu_plugin_scoreboard_find")?;
        let inline = symbol(c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu")?;
        let conditional = symbol(c"qemu_plugin_register_vcpu_tb_exec_cond_cb")?;
        let copy = symbol(c"qemu_plugin_insn_data")?;
        Some(Self {
            // SAFETY: QEMU's function of that name has this type.
            new: unsafe { core::mem::transmute::<*mut c_void, New>(new) },
            // SAFETY: as above.
            find: unsafe { core::mem::transmute::<*mut c_void, Find>(find) },
            // SAFETY: as above.
            inline: unsafe { core::mem::transmute::<*mut c_void, Inline>(inline) },
            // SAFETY: as above.
            conditional: unsafe { core::mem::transmute::<*mut c_void, Conditional>(conditional) },
            // SAFETY: as above: if there are conditional calls, this function exists and copies
            // (version 3 added both).
            copy: unsafe { core::mem::transmute::<*mut c_void, Copy_>(copy) },
        })
    }

    /// Copies an instruction's bytes; returns their number.
    ///
    /// # Safety
    /// The instruction is valid.
    pub unsafe fn copy(&self, instruction: *const RawInstruction, to: &mut [u8]) -> usize {
        // SAFETY: the caller's promise; QEMU writes no more than the length it is told.
        unsafe { (self.copy)(instruction, to.as_mut_ptr().cast(), to.len()) }
    }
}

/// Words for each CPU, initially zero. They are never freed, and do not move, since there are at
/// most [`UNMOVED`] CPUs.
#[derive(Clone, Copy)]
pub struct Scoreboard {
    later: &'static Later,
    raw: *mut RawBoard,
    words: usize,
}

// SAFETY: QEMU's own functions, which may be called from any thread, use the handle; nothing here
// reads through it.
unsafe impl Send for Scoreboard {}
// SAFETY: as above.
unsafe impl Sync for Scoreboard {}

impl Scoreboard {
    /// Makes a scoreboard. `None` if this QEMU has none, or moves them on a machine with so many
    /// CPUs.
    pub fn new(words: usize, cpus: usize) -> Option<Self> {
        let later = later().filter(|_| cpus <= UNMOVED)?;
        // SAFETY: QEMU makes room for `words` words for each CPU.
        let raw = unsafe { (later.new)(words * size_of::<u64>()) };
        Some(Self { later, raw, words })
    }

    /// Returns a CPU's words.
    ///
    /// # Safety
    /// The CPU has begun to run.
    pub unsafe fn of(&self, cpu: usize) -> &'static [AtomicU64] {
        // SAFETY: the caller's promise; the handle is QEMU's own.
        let first = unsafe { (self.later.find)(self.raw, cpu as u32) };
        // SAFETY: so many aligned words are there, for ever and in one place (see above); all
        // writers, QEMU's code for blocks among them, use whole stores of aligned words.
        unsafe { core::slice::from_raw_parts(first.cast(), self.words) }
    }

    fn word(&self, index: usize) -> ScoreboardWord {
        debug_assert!(index < self.words);
        ScoreboardWord { board: self.raw, offset: index * size_of::<u64>() }
    }

    /// Makes the block add to a word of its CPU whenever it runs.
    pub fn add(&self, block: &TranslationBlock<'_>, word: usize, amount: u64) {
        // SAFETY: the block is valid, and the word is one of the board's.
        unsafe { (self.later.inline)(block.raw(), ADD, self.word(word), amount) };
    }
    /// Makes the block call `callback` whenever it runs and a word of its CPU is not `equals`.
    pub fn call_unless(
        &self,
        block: &TranslationBlock<'_>,
        (word, equals): (usize, u64),
        (callback, data): (ExecCallback, *mut c_void),
    ) {
        let word = self.word(word);
        // SAFETY: as above; QEMU hands `data` through.
        unsafe { (self.later.conditional)(block.raw(), callback, NO_REGISTERS, IS_NOT, word, equals, data) };
    }
    /// Makes the block call `callback` whenever it runs and a word of its CPU is `least` or more.
    pub fn call_from(
        &self,
        block: &TranslationBlock<'_>,
        (word, least): (usize, u64),
        (callback, data): (ExecCallback, *mut c_void),
    ) {
        let word = self.word(word);
        // SAFETY: as above.
        unsafe {
            (self.later.conditional)(block.raw(), callback, NO_REGISTERS, IS_AT_LEAST, word, least, data)
        };
    }
}
