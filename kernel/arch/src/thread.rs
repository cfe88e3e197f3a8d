//! Kernel threads: a stack each, and switching between them.
//!
//! **Protocol.** `running` is true from before a CPU takes a thread's stack until after it has left
//! it, so a thread is on one CPU at most. [`switch`] claims the next thread (waiting for a CPU that
//! is still leaving it), changes stacks, and only then, already on the new stack, releases the
//! thread that it left. Interrupts are off throughout. The CPU holds a reference to its current
//! thread; it is given back before `running` turns false, and a [`Thread`] is not dropped while
//! `running`, so the last reference is never given back in the middle of a switch.
//!
//! A function that runs on a thread may [show] an object: [`with_current`] finds it from any
//! function that is called below, at the cost of some loads. Shown objects nest: of each type the
//! innermost is found, and the innermost of all is found fastest.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::TypeId;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use freehold_machine::{Cpus, NodeId};

use crate::X86;
use crate::memory::OutOfMemory;
use crate::sync::SpinLock;
use crate::vmap::Stack;
pub use crate::vmap::{MOST_IDLE_STACKS, STACK_PAGES};
use crate::{cpu, irq, panic, registers, traps, user};

/// Body of a thread.
pub type Body = Box<dyn FnOnce() + Send>;

pub(crate) struct ThreadInner {
    running: AtomicBool,
    /// The stack pointer while the thread does not run; the claim of `running` is the right to it.
    saved: UnsafeCell<u64>,
    body: SpinLock<Option<Body>>,
    /// Rights to protection keys while the thread does not run.
    key_rights: user::SavedRights,
    /// Innermost object that the thread shows, on its own stack or for ever; null for none. Only
    /// the thread itself writes this field.
    shown: AtomicPtr<Shown>,
    /// Absent for threads that adopted the stack that they started on.
    _stack: Option<Stack>,
}

// SAFETY: `saved` is only accessed by the CPU that claimed `running`, with acquire and release
// around it.
unsafe impl Sync for ThreadInner {}
// SAFETY: no part of it belongs to a particular CPU.
unsafe impl Send for ThreadInner {}

/// A kernel thread. Dropping it, after it was left for good, frees its stack.
pub struct Thread {
    inner: Arc<ThreadInner>,
}

/// An object that a thread shows.
struct Shown {
    kind: TypeId,
    object: *const (),
    /// The next outer object that the thread shows, or null.
    outer: *const Shown,
}

/// A CPU's current thread, with a reference held; and the one it is leaving. Only their CPU writes
/// them, interrupts off.
pub(crate) struct Threads {
    current: AtomicPtr<ThreadInner>,
    leaving: AtomicPtr<ThreadInner>,
}

impl Threads {
    pub(crate) const fn new() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()), leaving: AtomicPtr::new(ptr::null_mut()) }
    }
}

#[cfg(target_os = "none")]
core::arch::global_asm!(include_str!("thread.s"), main = sym main);

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn thread_switch(save: *mut u64, load: u64);
    fn thread_begin();
}

#[cfg(not(target_os = "none"))]
unsafe fn thread_switch(_save: *mut u64, _load: u64) {
    unreachable!("threads are switched on the machine only")
}
#[cfg(not(target_os = "none"))]
fn thread_begin() {}

fn this_cpu() -> &'static Threads {
    &cpu::this().threads
}

impl Thread {
    /// Makes a thread that will run `body` when it is first switched to, on a stack of `node`'s
    /// memory if the node has some.
    ///
    /// # Errors
    /// If there is no memory for its stack.
    pub fn new(node: NodeId, body: Body) -> Result<Self, OutOfMemory> {
        let stack = Stack::new(node)?;
        // Frame that `thread_switch` pops: six registers and a return address.
        let frame = [0, 0, 0, 0, 0, 0, thread_begin as *const () as u64];
        let saved = stack.start() - size_of_val(&frame) as u64;
        // SAFETY: the stack is new, the bytes below its start are mapped, writable, aligned and
        // without another user.
        unsafe { (saved as *mut [u64; 7]).write(frame) };
        let inner = ThreadInner {
            running: AtomicBool::new(false),
            saved: UnsafeCell::new(saved),
            body: SpinLock::new(Some(body)),
            key_rights: user::SavedRights::new(),
            shown: AtomicPtr::new(ptr::null_mut()),
            _stack: Some(stack),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes a thread of the running code, on its present stack: the first thread on its CPU.
    ///
    /// # Panics
    /// If this CPU has a current thread already.
    pub fn adopt() -> Self {
        let inner = Arc::new(ThreadInner {
            running: AtomicBool::new(true),
            saved: UnsafeCell::new(0),
            body: SpinLock::new(None),
            key_rights: user::SavedRights::new(),
            shown: AtomicPtr::new(ptr::null_mut()),
            _stack: None,
        });
        let reference = Arc::into_raw(inner.clone()).cast_mut();
        let before = this_cpu().current.swap(reference, Ordering::Relaxed);
        assert!(before.is_null(), "this CPU has a current thread already");
        Self { inner }
    }

    /// Returns where the thread continues when it next runs, and its return addresses: addresses in
    /// the slid image, innermost first. Returns how many; 0 if a CPU is on its stack. No CPU can
    /// switch to it meanwhile.
    pub fn backtrace(&self, into: &mut [u64; panic::MAX_FRAMES]) -> usize {
        let _off = irq::disable();
        let running = &self.inner.running;
        if running.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return 0;
        }
        // SAFETY: `running` was claimed: until it is given back no other CPU changes it.
        let saved = unsafe { *self.inner.saved.get() } as *const [u64; 7];
        // SAFETY: the stack is as `thread_switch` or `Thread::new` left it: six registers, the last
        // of them rbp, and a return address.
        let [.., rbp, rip] = unsafe { *saved };
        let count = panic::backtrace(&traps::Registers { rip, rbp, ..Default::default() }, into);
        running.store(false, Ordering::Release);
        count
    }

    /// Whether a CPU is on its stack.
    pub fn is_running(&self) -> bool {
        self.inner.running.load(Ordering::Acquire)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let current = this_cpu().current.load(Ordering::Relaxed);
        assert!(!core::ptr::eq(current, Arc::as_ptr(&self.inner)), "a thread cannot drop itself");
        // Another CPU may still run its last instructions there.
        while self.is_running() {
            X86.relax();
        }
    }
}

/// Returns the thread that runs this code; `None` before this CPU's first thread.
fn current<'a>() -> Option<&'a ThreadInner> {
    let current = this_cpu().current.load(Ordering::Relaxed);
    // SAFETY: null, or a thread that the CPU holds a reference to; the caller runs on it, so it
    // outlives the call that uses it.
    unsafe { current.as_ref() }
}

/// Lets [`with_current`] show `object` to all code that runs on this thread inside `body`.
pub fn show<T: Sync + 'static, R>(object: &T, body: impl FnOnce() -> R) -> R {
    let slot = current().map(|thread| &thread.shown);
    let outer = slot.map_or(ptr::null_mut(), |slot| slot.load(Ordering::Relaxed));
    let shown = Shown { kind: TypeId::of::<T>(), object: ptr::from_ref(object).cast(), outer };
    if let Some(slot) = slot {
        slot.store((&raw const shown).cast_mut(), Ordering::Relaxed);
    }
    let result = body();
    // There is no unwinding, so `shown` is always reset.
    if let Some(slot) = slot {
        slot.store(outer, Ordering::Relaxed);
    }
    result
}

/// As [`show`], until the thread's end.
pub fn show_for_ever<T: Sync>(object: &'static T) {
    if let Some(thread) = current() {
        let outer = thread.shown.load(Ordering::Relaxed);
        let shown = Shown { kind: TypeId::of::<T>(), object: ptr::from_ref(object).cast(), outer };
        thread.shown.store(Box::leak(Box::new(shown)), Ordering::Relaxed);
    }
}

/// Calls `look` with the innermost `T` that the current thread [shows](show). `None` if there is
/// none.
#[inline]
pub fn with_current<T: Sync + 'static, R>(look: impl FnOnce(&T) -> R) -> Option<R> {
    let mut next = current()?.shown.load(Ordering::Relaxed).cast_const();
    let shown = loop {
        // SAFETY: null; or lent by a call of `show` that is still running on this thread; or
        // leaked. Its `outer` object was shown before by the same rule, and lives at least as long.
        let shown = unsafe { next.as_ref() }?;
        if shown.kind == TypeId::of::<T>() {
            break shown;
        }
        next = shown.outer;
    };
    // SAFETY: the type is right, and the object is borrowed by that same call, or static.
    Some(look(unsafe { &*shown.object.cast::<T>() }))
}

/// Leaves the current thread for `next`; returns when some CPU switches back.
///
/// # Panics
/// If the caller may not block, or `next` is the current thread.
pub fn switch(next: &Thread) {
    assert!(cpu::preemption_count() == 0, "a switch of threads where the CPU is held");
    let _off = irq::disable();
    traps::entry_state(traps::CheckPoint::Switch);
    let cpu = this_cpu();
    let current = cpu.current.load(Ordering::Relaxed);
    let target = Arc::as_ptr(&next.inner).cast_mut();
    assert!(!current.is_null() && current != target, "a switch to the thread that runs");
    while next.inner.running.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        X86.relax();
    }
    user::leave_fpu();
    // SAFETY: the CPU holds a reference to its current thread, which is this one.
    user::switch_key_rights(unsafe { &(*current).key_rights }, &next.inner.key_rights);
    cpu.current.store(Arc::into_raw(next.inner.clone()).cast_mut(), Ordering::Relaxed);
    cpu.leaving.store(current, Ordering::Relaxed);
    // SAFETY: `running` of `next` was claimed above: its saved stack pointer is ours to read.
    let load = unsafe { *next.inner.saved.get() };
    // SAFETY: the current thread stays referenced until `arrive` gives that up on the other stack.
    let save = unsafe { (*current).saved.get() };
    // SAFETY: a switch or `Thread::new` left `load` for this; `save` is written before another CPU
    // may claim the thread.
    unsafe { thread_switch(save, load) };
    arrive();
}

/// Runs on the new stack: releases the thread that was left.
fn arrive() {
    let left = this_cpu().leaving.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: the reference that `current` held for it, from `into_raw`, is taken back once. Its
    // Thread still exists, because `running` is still true, so this is not the last.
    let left = unsafe { Arc::from_raw(left) };
    let running = &raw const left.running;
    drop(left);
    // SAFETY: Thread's drop waits for `running` to be false, so the object lives until this store.
    unsafe { (*running).store(false, Ordering::Release) };
}

/// The first function of every thread except adopted ones. Interrupts are off.
extern "C" fn main() -> ! {
    arrive();
    registers::enable_interrupts();
    let current = this_cpu().current.load(Ordering::Relaxed);
    // SAFETY: the CPU holds a reference to its current thread, which is this one.
    let body = unsafe { &(*current).body }.lock().take();
    if let Some(body) = body {
        body();
    }
    traps::handlers().thread_finished()
}
