//! The model of [`Roots::alone`](crate::Roots::alone): every interleaving of a CPU that shows a
//! page before it is zeroed, and of one that loads the roots and reads it. Steps are sequentially
//! consistent, as in the code.

use std::collections::BTreeSet;
use std::vec::Vec;

/// Error of a broken kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    None,
    /// The filling CPU reads the set of CPUs before it announces its fill.
    LooksFirst,
    /// The loading CPU waits before it enters the set.
    WaitsFirst,
    /// The loading CPU does not wait.
    NoWait,
    /// The filling CPU reports the end as soon as the leaf is set.
    EndsEarly,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct World {
    filler: u8,
    loader: u8,
    filling: bool,
    entered: bool,
    leaf: bool,
    zeroed: bool,
    seen_alone: bool,
}

impl World {
    fn fill(mut self, mutant: Mutant) -> Option<Self> {
        let say = |world: &mut Self| world.filling = true;
        let look = |world: &mut Self| world.seen_alone = !world.entered;
        let looks_first = mutant == Mutant::LooksFirst;
        match self.filler {
            0 | 1 if (self.filler == 1) != looks_first => look(&mut self),
            0 | 1 => say(&mut self),
            // Not alone: the page is zeroed through a window, before the leaf is set.
            2 if !self.seen_alone => (self.zeroed, self.leaf) = (true, true),
            2 => {
                self.leaf = true;
                self.filling &= mutant != Mutant::EndsEarly;
            }
            3 => self.zeroed = true,
            4 => self.filling = false,
            _ => return None,
        }
        self.filler += 1;
        Some(self)
    }

    fn load(mut self, mutant: Mutant) -> Option<Self> {
        let is_entering = (self.loader == 0) != (mutant == Mutant::WaitsFirst);
        match self.loader {
            0 | 1 if is_entering => self.entered = true,
            0 | 1 if self.filling && mutant != Mutant::NoWait => return None,
            0 | 1 => {}
            _ => return None,
        }
        self.loader += 1;
        Some(self)
    }

    /// Whether a CPU that has loaded the roots can read the leaf's page before it is zeroed.
    fn shows_residue(self) -> bool {
        self.loader == 2 && self.leaf && !self.zeroed
    }
}

/// Whether any interleaving shows another CPU a page that is not zeroed.
fn leaks(mutant: Mutant) -> bool {
    let mut seen = BTreeSet::new();
    let mut next = Vec::from([World::default()]);
    let mut ends = 0;
    while let Some(world) = next.pop() {
        if world.shows_residue() {
            return true;
        }
        ends += u32::from(world.filler == 5 && world.loader == 2);
        let steps = [world.fill(mutant), world.load(mutant)];
        next.extend(steps.into_iter().flatten().filter(|&world| seen.insert(world)));
    }
    assert!(ends > 0, "nobody waits for ever");
    false
}

#[test]
fn no_cpu_reads_a_page_before_it_is_zeroed() {
    assert!(!leaks(Mutant::None));
}

#[test]
fn what_a_broken_kernel_does_is_found() {
    for mutant in [Mutant::LooksFirst, Mutant::WaitsFirst, Mutant::NoWait, Mutant::EndsEarly] {
        assert!(leaks(mutant), "{mutant:?}");
    }
}
