//! A pool of fixed size: buffers as long as the longest transfer, in a list under a lock. The
//! buffer that was freed last is taken first. (Linux' mempool and drivers with persistent buffers
//! do the same.) Nothing is searched, and even a transfer of 1 byte takes 256 KiB.

use spin::Mutex;

use crate::{Allocator, SEGMENT};

/// See the module's head.
pub struct Fixed(Mutex<Vec<usize>>);

impl Fixed {
    pub fn new(buffers: usize) -> Self {
        Self(Mutex::new((0..buffers).rev().collect()))
    }
}

impl Allocator for Fixed {
    type Held = usize;

    fn take(&self, _: usize, bytes: usize) -> Option<usize> {
        if bytes > SEGMENT { None } else { self.0.lock().pop() }
    }
    fn give(&self, held: usize) {
        self.0.lock().push(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_buffer_is_taken_once_and_the_last_one_given_goes_first() {
        let pool = Fixed::new(3);
        let mut held: Vec<_> = (0..3).map_while(|_| pool.take(0, SEGMENT)).collect();
        assert_eq!((&held[..], pool.take(0, 1)), (&[0, 1, 2][..], None));
        pool.give(held.remove(1));
        assert_eq!((pool.take(0, SEGMENT + 1), pool.take(0, 1)), (None, Some(1)));
    }
}
