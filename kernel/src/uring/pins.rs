//! Pages that requests hold while they wait, which each user may have so many of: the list of them
//! is the kernel's own memory, a thousandth of what it holds, and the page of zeroes may be in it
//! any number of times.

use freehold_machine::PAGE_SIZE;

use crate::sync::{UserCharge, UserCounts};
use crate::user::Iovecs;
use crate::{Errno, Result, task};

/// The most bytes of one request of a stream: more than any stream takes at once.
pub const MOST_BYTES: usize = 1 << 20;
/// The most pages of a user: 1 GiB, with lists of some 6 MiB.
const MOST_PAGES: u64 = 1 << 18;

static PAGES: UserCounts = UserCounts::new();

/// Counts the pages of the first `most` bytes of `memory`, for the calling program's user.
///
/// # Errors
/// `EAGAIN` where the user has too many, `ENOMEM`.
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
