//! A bounded number of slices of time, whatever the length of the run.
//!
//! A run's length is not known before its end. Slices begin short; when there would be too many,
//! neighbours are joined two by two and the next ones are twice as long. So there are always
//! between half of the bound and the bound.

/// Counts of a slice.
pub trait Join {
    /// Adds the counts of `later`.
    fn join(&mut self, later: Self);
}

/// Slices of equal length, the first from time 0 on.
#[derive(Debug)]
pub struct Slices<T> {
    length: u64,
    bound: usize,
    slices: Vec<T>,
}

impl<T: Join> Slices<T> {
    /// Makes no slice yet; slices are `length` long at first, and there are at most `bound`.
    ///
    /// # Panics
    /// If the length is 0 or the bound is below 2.
    pub fn new(length: u64, bound: usize) -> Self {
        assert!(length > 0 && bound > 1, "{bound} slices of {length}");
        Self { length, bound, slices: Vec::new() }
    }
    /// Returns the slice of `time`; `empty` makes the missing ones before it.
    pub fn at(&mut self, time: u64, empty: impl Fn() -> T) -> &mut T {
        while time / self.length >= self.bound as u64 {
            self.halve();
        }
        let index = (time / self.length) as usize;
        while self.slices.len() <= index {
            self.slices.push(empty());
        }
        &mut self.slices[index]
    }
    /// Returns the end of the slice of `time`.
    pub const fn end_of(&self, time: u64) -> u64 {
        (time / self.length + 1) * self.length
    }
    fn halve(&mut self) {
        let mut halves = core::mem::take(&mut self.slices).into_iter();
        while let Some(mut slice) = halves.next() {
            if let Some(later) = halves.next() {
                slice.join(later);
            }
            self.slices.push(slice);
        }
        self.length *= 2;
    }
    /// Joins the slices of another clock of the same rate; all then have the longer length of both.
    pub fn join(&mut self, mut other: Self, empty: impl Fn() -> T) {
        while self.length < other.length {
            self.halve();
        }
        while other.length < self.length {
            other.halve();
        }
        while self.slices.len() < other.slices.len() {
            self.slices.push(empty());
        }
        for (slice, later) in self.slices.iter_mut().zip(other.slices) {
            slice.join(later);
        }
    }
    /// Returns the length of a slice.
    pub const fn length(&self) -> u64 {
        self.length
    }
    /// Returns all slices, in order.
    pub fn into_slices(self) -> Vec<T> {
        self.slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Join for u64 {
        fn join(&mut self, later: Self) {
            *self += later;
        }
    }

    #[test]
    fn neighbours_are_joined_when_there_are_too_many() {
        let mut slices = Slices::new(10, 4);
        for (time, count) in [(0, 1), (9, 1), (10, 5), (35, 7), (45, 2)] {
            *slices.at(time, || 0) += count;
        }
        assert_eq!((slices.length(), slices.end_of(45)), (20, 60));
        assert_eq!(slices.into_slices(), [7, 7, 2]);
    }

    #[test]
    fn slices_of_two_clocks_join_at_the_longer_length() {
        let (mut one, mut two) = (Slices::new(10, 4), Slices::new(10, 4));
        *one.at(15, || 0) += 1;
        *two.at(70, || 0) += 2;
        one.join(two, || 0);
        assert_eq!((one.length(), one.into_slices()), (20, vec![1, 0, 0, 2]));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_bound_is_kept(steps in prop::collection::vec(0u64..10_000, 1..60)) {
            let mut slices = Slices::new(3, 8);
            for &time in &steps {
                *slices.at(time, || 0) += 1;
            }
            let last = *steps.iter().max().unwrap();
            prop_assert!(last / slices.length() < 8);
            prop_assert!(slices.length() == 3 || last / slices.length() >= 3, "no longer than needed");
            prop_assert_eq!(slices.into_slices().iter().sum::<u64>(), steps.len() as u64);
        }
    }
}
