//! Pages that waiting requests pin, with a limit per user. The list of the pages is kernel memory,
//! a thousandth of their size, and it may contain the zero page any number of times.

use freehold_machine::PAGE_SIZE;

use crate::sync::{UserCharge, UserCounts};
use crate::user::Iovecs;
use crate::{Errno, Result, task};

/// Largest number of bytes of one request on a stream: more than any stream takes at once.
pub const MOST_BYTES: usize = 1 << 20;
/// Largest number of pages per user: 1 GiB, with lists of some 6 MiB.
const MOST_PAGES: u64 = 1 << 18;

static PAGES: UserCounts = UserCounts::new();

/// Charges the pages of the first `most` bytes of `memory` to the calling program's user.
///
/// # Errors
/// `EAGAIN` if the user has too many, `ENOMEM`.
pub fn charge(memory: &Iovecs, most: usize) -> Result<UserCharge> {
    let mut left = most;
    let mut pages = 0;
    for (_, length) in memory.slices().iter().map(|slice| slice.place()) {
        let length = length.min(left);
        left -= length;
        pages += if length == 0 { 0 } else { length.div_ceil(PAGE_SIZE) + 1 };
    }
    PAGES.charge(task::current().process().uid(), pages as u64, MOST_PAGES, Errno::EAGAIN)
}
