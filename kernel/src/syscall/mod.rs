//! Dispatch of system calls.
//!
//! A handler gets the argument registers and returns a value or an error number; pointers among the
//! arguments are [`UserPtr`](crate::user::UserPtr)s. If the static key `syscall_counts` is on,
//! calls are counted per CPU and number. A number without a handler returns `ENOSYS`, and is logged
//! once.

mod args;
pub mod failures;
mod names;
mod table;
mod texts;
pub mod user_loop;

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::Tally;

pub use args::Args;
pub use names::name;

use crate::hw::static_keys::{self, KeyState, StaticKey};
use crate::{Errno, Result};

/// System call numbers are below this.
pub const COUNT: usize = 470;

/// Handler of a system call.
#[derive(Clone, Copy)]
pub enum Handler {
    /// A handler that needs the arguments only.
    Plain(fn(&Args) -> Result<i64>),
    /// A handler that reads or changes the program's registers.
    Context(fn(&mut crate::hw::user::UserContext, &Args) -> Result<i64>),
}

static TABLE: [Option<Handler>; COUNT] = {
    let mut table = [None; COUNT];
    let mut at = 0;
    while at < table::ENTRIES.len() {
        let (number, handler) = table::ENTRIES[at];
        assert!(at == 0 || table::ENTRIES[at - 1].0 < number, "the table is sorted, each number once");
        table[number as usize] = Some(handler);
        at += 1;
    }
    table
};

/// Number of calls, by system call number.
static COUNTS: Tally<COUNT> = Tally::new();
/// Numbers without a handler that were logged already.
static NAMED: [AtomicU64; COUNT.div_ceil(64)] = [const { AtomicU64::new(0) }; COUNT.div_ceil(64)];

/// Returns the handler of `number`. Counts the call if calls are counted.
pub fn enter(number: u64) -> Option<Handler> {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    let handler = TABLE.get(index)?;
    if static_keys::is_on::<{ StaticKey::SYSCALL_COUNTS }>() {
        count(index);
    }
    *handler
}

#[cold]
fn count(index: usize) {
    COUNTS.add(crate::hw::current_cpu(), index, 1);
}

/// Returns the error of a call without a handler.
pub fn unknown(number: u64) -> Errno {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(word) = NAMED.get(index / 64) {
        let bit = 1 << (index % 64);
        if word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            let by = crate::task::try_current().map_or([0; 16], |task| task.name());
            let by = core::str::from_utf8(&by).unwrap_or("?").trim_end_matches('\0');
            log::warn!(
                "{by}: system call {number} ({}) is not implemented",
                name(number).unwrap_or("unknown")
            );
        }
    }
    Errno::ENOSYS
}

/// Returns the numbers that were called, with the number of calls and whether there is a handler.
/// `None` if calls are not counted.
pub fn counts() -> Option<impl Iterator<Item = (u64, u64, Implemented)>> {
    let counts = (0..COUNT).filter_map(|number| {
        let calls = COUNTS.sum(number);
        let implemented = if TABLE[number].is_some() { Implemented::Yes } else { Implemented::No };
        (calls > 0).then_some((number as u64, calls, implemented))
    });
    (static_keys::state(StaticKey::COUNTS_SYSCALLS) == KeyState::On).then_some(counts)
}

/// Whether a call has a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Implemented {
    /// The call has a handler.
    Yes,
    /// The call has no handler: ENOSYS.
    No,
}

/// Handles one system call.
pub fn dispatch(context: &mut crate::hw::user::UserContext) -> Result<i64> {
    let number = context.syscall_number();
    match enter(number) {
        Some(Handler::Plain(handler)) => handler(&Args::new(number, context.syscall_args())),
        Some(Handler::Context(handler)) => {
            let args = Args::new(number, context.syscall_args());
            handler(context, &args)
        }
        None => Err(unknown(number)),
    }
}
