//! Kernel threads: a stack each, and switching between them.
//!
//! **Protocol.** `running` is true from before a CPU takes a thread's stack until after it has left it, so a
//! thread is on one CPU at most: [`switch`] claims the next thread (waiting for a CPU that is still on its way out of it), changes
//! stacks, and only then, already on the new stack, releases the one it left. Interrupts are off throughout. The CPU holds a
//! reference to its current thread; it is given back before `running` turns false, and a [`Thread`] is not dropped while
//! `running`, so the last reference is never given back in the middle of a switch.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use freehold_machine::{Cpus, MAX_CPUS};

use crate::X86;
use crate::memory::OutOfMemory;
use crate::sync::SpinLock;
use crate::vmap::Stack;
use crate::{cpu, irq, registers, traps, user};

/// What a thread was made for, as its owner knows it.
pub type Data = Arc<dyn Any + Send + Sync>;
/// What a thread does.
pub type Body = Box<dyn FnOnce() + Send>;

struct Inner {
    running: AtomicBool,
    /// The stack pointer while it does not run; the claim of `running` is the right to it.
    saved: UnsafeCell<u64>,
    body: SpinLock<Option<Body>>,
    data: Data,
    /// Absent for threads that adopted the stack they were found on.
    _stack: Option<Stack>,
}

// SAFETY: `saved` is only accessed by the CPU that claimed `running`, with acquire and release around it.
unsafe impl Sync for Inner {}
// SAFETY: nothing in it belongs to a CPU.
unsafe impl Send for Inner {}

/// A kernel thread. Dropping it, after it was left for good, frees its stack.
pub struct Thread {
    inner: Arc<Inner>,
}

/// Each CPU's current thread, with a reference held; and the one it is leaving. Only their CPU writes them, interrupts off.
static CURRENT: [AtomicPtr<Inner>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
static LEAVING: [AtomicPtr<Inner>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];

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

fn this_cpu() -> usize {
    usize::from(X86.current_cpu().0)
}

impl Thread {
    /// A thread that will run `body` when it is first switched to. `data` is what [`with_current`] shows.
    ///
    /// # Errors
    /// When there is no memory for its stack.
    pub fn new(data: Data, body: Body) -> Result<Self, OutOfMemory> {
        let stack = Stack::new()?;
        // What `thread_switch` pops: six registers and a return address.
        let frame = [0, 0, 0, 0, 0, 0, thread_begin as *const () as u64];
        let saved = stack.top() - size_of_val(&frame) as u64;
        // SAFETY: the stack is new, its topmost bytes are mapped, writable, aligned and nobody else's.
        unsafe { (saved as *mut [u64; 7]).write(frame) };
        let inner = Inner {
            running: AtomicBool::new(false),
            saved: UnsafeCell::new(saved),
            body: SpinLock::new(Some(body)),
            data,
            _stack: Some(stack),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The code that runs now, on the stack that it has, becomes a thread: the first on its CPU.
    ///
    /// # Panics
    /// When this CPU has a current thread already.
    pub fn adopt(data: Data) -> Self {
        let inner = Arc::new(Inner {
            running: AtomicBool::new(true),
            saved: UnsafeCell::new(0),
            body: SpinLock::new(None),
            data,
            _stack: None,
        });
        let reference = Arc::into_raw(inner.clone()).cast_mut();
        let before = CURRENT[this_cpu()].swap(reference, Ordering::Relaxed);
        assert!(before.is_null(), "this CPU has a current thread already");
        Self { inner }
    }

    /// Whether a CPU is on its stack.
    pub fn is_running(&self) -> bool {
        self.inner.running.load(Ordering::Acquire)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let current = CURRENT[this_cpu()].load(Ordering::Relaxed);
        assert!(!core::ptr::eq(current, Arc::as_ptr(&self.inner)), "a thread cannot drop itself");
        // Another CPU may be on its last instructions there.
        while self.is_running() {
            X86.relax();
        }
    }
}

/// Look at what the current thread was made for. `None` before this CPU's first thread.
pub fn with_current<R>(look: impl FnOnce(&Data) -> R) -> Option<R> {
    let current = CURRENT[this_cpu()].load(Ordering::Relaxed);
    if current.is_null() {
        return None;
    }
    // SAFETY: the CPU holds a reference to its current thread, and this thread is current while it runs here.
    Some(look(unsafe { &(*current).data }))
}

/// Leave the current thread for `next`; returns when some CPU switches back.
///
/// # Panics
/// When the caller may not block, or `next` is the current thread.
pub fn switch(next: &Thread) {
    assert!(cpu::preemption_count() == 0, "a switch of threads where the CPU is held");
    let _off = irq::disable();
    let cpu = this_cpu();
    let current = CURRENT[cpu].load(Ordering::Relaxed);
    let target = Arc::as_ptr(&next.inner).cast_mut();
    assert!(!current.is_null() && current != target, "a switch to the thread that runs");
    while next.inner.running.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        X86.relax();
    }
    user::leave_fpu();
    CURRENT[cpu].store(Arc::into_raw(next.inner.clone()).cast_mut(), Ordering::Relaxed);
    LEAVING[cpu].store(current, Ordering::Relaxed);
    // SAFETY: `running` of `next` was claimed above: its saved stack pointer is ours to read.
    let load = unsafe { *next.inner.saved.get() };
    // SAFETY: the current thread stays referenced until `arrive` gives that up on the other stack.
    let save = unsafe { (*current).saved.get() };
    // SAFETY: `load` is what a switch or `Thread::new` left for this; `save` is written before anyone may claim the thread.
    unsafe { thread_switch(save, load) };
    arrive();
}

/// On the new stack: let go of the thread that was left.
fn arrive() {
    let left = LEAVING[this_cpu()].swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: the reference that CURRENT held for it, from `into_raw`, is taken back once. Its Thread still exists, because
    // `running` is still true, so this is not the last.
    let left = unsafe { Arc::from_raw(left) };
    let running = &raw const left.running;
    drop(left);
    // SAFETY: Thread's drop waits for `running` to be false, so the object lives until this store.
    unsafe { (*running).store(false, Ordering::Release) };
}

/// The first function of every thread but adopted ones. Interrupts are off.
extern "C" fn main() -> ! {
    arrive();
    registers::enable_interrupts();
    let current = CURRENT[this_cpu()].load(Ordering::Relaxed);
    // SAFETY: as in `with_current`.
    let body = unsafe { &(*current).body }.lock().take();
    if let Some(body) = body {
        body();
    }
    traps::handlers().thread_finished()
}
