//! Threads of the kernel are threads of the host, of which one runs at a time. A thread that
//! switches passes the CPU to another and waits to get it back.

use core::any::{Any, TypeId};
use std::boxed::Box;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::vec::Vec;

pub use freehold_arch::thread::{Body, STACK_PAGES};

use super::memory::OutOfMemory;
use super::panic::MAX_FRAMES;
use super::{std, traps};
use freehold_machine::NodeId;

/// Bytes of a stack. Stacks are large because tests are not optimised.
const STACK_BYTES: usize = 2 << 20;

/// Permission to run.
enum Turn {
    /// Another thread runs.
    Waits,
    /// This thread runs.
    Runs,
    /// This thread never runs again: its stack is freed.
    Ends,
}

struct HostThreadInner {
    turn: Mutex<Turn>,
    changed: Condvar,
    /// The function that the thread will run, until the thread begins.
    body: Mutex<Option<Body>>,
}

/// A kernel thread.
pub struct Thread(Arc<HostThreadInner>);

/// The panic payload that unwinds a thread which never runs again.
struct Ended;

std::thread_local! {
    static CURRENT: RefCell<Option<Arc<HostThreadInner>>> = const { RefCell::new(None) };
    static SHOWN: RefCell<Vec<(TypeId, Rc<dyn Any>)>> = const { RefCell::new(Vec::new()) };
}

impl HostThreadInner {
    fn set(&self, turn: Turn) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
        self.changed.notify_one();
    }
    fn wait(&self) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *turn {
                Turn::Runs => return,
                Turn::Ends => {
                    drop(turn);
                    resume_unwind(Box::new(Ended))
                }
                Turn::Waits => {
                    turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Thread {
    /// Makes a thread that will run `body` when it is first switched to.
    ///
    /// # Errors
    /// None on a host.
    pub fn new(_node: NodeId, body: Body) -> Result<Self, OutOfMemory> {
        let (turn, body) = (Mutex::new(Turn::Waits), Mutex::new(Some(body)));
        Ok(Self(Arc::new(HostThreadInner { turn, changed: Condvar::new(), body })))
    }
    /// Makes the running code a thread: the first on the CPU.
    pub fn adopt() -> Self {
        let (turn, body) = (Mutex::new(Turn::Runs), Mutex::new(None));
        let inner = Arc::new(HostThreadInner { turn, changed: Condvar::new(), body });
        CURRENT.set(Some(inner.clone()));
        Self(inner)
    }
    /// Returns 0: addresses of the host are of no use.
    pub fn backtrace(&self, _into: &mut [u64; MAX_FRAMES]) -> usize {
        0
    }
    /// Whether the CPU uses the thread's stack.
    pub fn is_running(&self) -> bool {
        matches!(*self.0.turn.lock().unwrap_or_else(PoisonError::into_inner), Turn::Runs)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.set(Turn::Ends);
    }
}

/// Lets [`with_current`] find `object` in all code that runs on this thread inside `body`.
pub fn show<T: Clone + 'static, R>(object: &T, body: impl FnOnce() -> R) -> R {
    show_for_ever(object);
    let result = body();
    let shown = SHOWN.with_borrow_mut(Vec::pop);
    drop(shown);
    result
}

/// Like [`show`], until the thread's end.
pub fn show_for_ever<T: Clone + 'static>(object: &T) {
    let shown: Rc<dyn Any> = Rc::new(object.clone());
    SHOWN.with_borrow_mut(|all| all.push((TypeId::of::<T>(), shown)));
}

/// Calls `look` with the innermost `T` that the current thread [shows](show). Returns `None` if
/// there is none.
pub fn with_current<T: 'static, R>(look: impl FnOnce(&T) -> R) -> Option<R> {
    let wanted = TypeId::of::<T>();
    let shown = SHOWN.try_with(|all| {
        all.borrow().iter().rev().find(|(kind, _)| *kind == wanted).map(|(_, object)| object.clone())
    });
    shown.ok().flatten()?.downcast_ref().map(look)
}

/// Switches from the current thread to `next`. Returns when the thread is switched back to.
///
/// # Panics
/// If the caller may not block, or is no thread of the kernel.
pub fn switch(next: &Thread) {
    super::model().assert_may_sleep();
    super::locks::assert_none_held();
    let current = CURRENT.with_borrow(Clone::clone).expect("a thread of the kernel switches");
    assert!(!Arc::ptr_eq(&current, &next.0), "a switch to the thread that runs");
    *current.turn.lock().unwrap_or_else(PoisonError::into_inner) = Turn::Waits;
    next.0.set(Turn::Runs);
    let body = next.0.body.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(body) = body {
        let inner = next.0.clone();
        let begin = move || main(inner, body);
        let started = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(begin);
        drop(started.expect("the host has a thread to spare"));
    }
    current.wait();
}

/// The first function of every thread, except adopted threads. A panic ends the machine.
fn main(inner: Arc<HostThreadInner>, body: Body) {
    CURRENT.set(Some(inner));
    let life = AssertUnwindSafe(|| {
        body();
        if let Some(handlers) = traps::handlers() {
            handlers.thread_finished();
        }
    });
    if let Err(reason) = catch_unwind(life)
        && !reason.is::<Ended>()
    {
        std::process::exit(101);
    }
}
