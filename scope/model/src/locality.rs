//! Which node's memory each CPU uses.

/// Sort of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Instruction fetch.
    Fetch,
    /// Load or store.
    Data,
}

/// Who made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// A program.
    User,
    /// The kernel.
    Kernel,
}

/// Accesses by node, for one CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Locality {
    home: usize,
    counts: Vec<[[u64; 2]; 2]>,
}

impl Locality {
    /// Nothing counted yet, for a CPU of node `home` among `nodes`.
    pub fn new(home: usize, nodes: usize) -> Self {
        Self { home, counts: vec![[[0; 2]; 2]; nodes.max(home + 1)] }
    }
    /// Count `accesses` to memory of `node`.
    pub fn count(&mut self, node: usize, kind: Kind, mode: Mode, accesses: u64) {
        if node >= self.counts.len() {
            self.counts.resize(node + 1, [[0; 2]; 2]);
        }
        self.counts[node][kind as usize][mode as usize] += accesses;
    }
    /// Accesses to `node`.
    pub fn accesses(&self, node: usize, kind: Kind, mode: Mode) -> u64 {
        self.counts.get(node).map_or(0, |counts| counts[kind as usize][mode as usize])
    }
    /// The share of accesses that went to another node, 0..=1; `None` where there was no access.
    pub fn remote_share(&self, kind: Kind, mode: Mode) -> Option<f64> {
        let total: u64 = (0..self.counts.len()).map(|node| self.accesses(node, kind, mode)).sum();
        (total > 0).then(|| 1.0 - self.accesses(self.home, kind, mode) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_by_kind_and_mode() {
        let mut locality = Locality::new(1, 2);
        locality.count(0, Kind::Fetch, Mode::Kernel, 100);
        locality.count(1, Kind::Fetch, Mode::User, 30);
        locality.count(0, Kind::Fetch, Mode::User, 10);
        assert_eq!(locality.remote_share(Kind::Fetch, Mode::Kernel), Some(1.0));
        assert_eq!(locality.remote_share(Kind::Fetch, Mode::User), Some(0.25));
        assert_eq!(locality.remote_share(Kind::Data, Mode::User), None);
    }
}
