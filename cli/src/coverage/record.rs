//! The record: the code of one kernel, and the parts that ran in all added runs. Several runs may
//! add to it at the same time.

use std::fs::File;
use std::path::Path;

use freehold_scope_record::Ranges;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::{Result, files, schema};

/// The form of the file.
const VERSION: u32 = 1;

/// A function in an executable section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Crate and module.
    pub module: String,
    /// Address of its first byte, as linked.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes that ran.
    pub ran: u64,
}

/// A kernel's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// A hash of its executable sections.
    pub sum: String,
    /// Link address for physical address 0.
    pub base: u64,
    /// By address.
    pub functions: Vec<Function>,
}

/// The record that `--coverage FILE` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageRecord {
    /// Name and version of the form. Records that were written before it was a field lack it.
    #[serde(default = "schema_name")]
    schema: String,
    version: u32,
    /// The kernel's code: a hash of its executable sections.
    kernel: String,
    base: u64,
    /// Number of runs in the record.
    pub runs: u64,
    /// Number of runs without results.
    pub lost: u64,
    /// Bytes of all functions.
    pub bytes: u64,
    /// Bytes that ran.
    pub ran: u64,
    /// Addresses that ran, as linked, from the first function to the last.
    executed: Ranges,
    /// By address.
    pub functions: Vec<Function>,
}

fn schema_name() -> String {
    schema::COVERAGE.to_owned()
}

impl CoverageRecord {
    /// Makes a record without any run.
    pub fn new(code: Code) -> CoverageRecord {
        let Code { sum, base, functions } = code;
        let bytes = functions.iter().map(|function| function.bytes).sum();
        CoverageRecord {
            schema: schema_name(),
            version: VERSION,
            kernel: sum,
            base,
            runs: 0,
            lost: 0,
            bytes,
            ran: 0,
            executed: Ranges::default(),
            functions,
        }
    }

    /// Adds a run: `kernel` at the addresses of an image that was moved by `slide`, `early` at
    /// physical addresses.
    pub fn ran(&mut self, kernel: &Ranges, early: &Ranges, slide: u64) {
        self.runs += 1;
        let entry = early.moved_down(0u64.wrapping_sub(self.base));
        // `early` also has firmware's addresses.
        let (first, end) = self
            .functions
            .first()
            .zip(self.functions.last())
            .map_or((0, 0), |(first, last)| (first.address, last.address + last.bytes));
        let inside = |&(start, last): &(u64, u64)| first <= start && last <= end;
        let own = kernel.moved_down(slide).union(&entry);
        self.take(&own.iter().filter(inside).collect());
    }

    fn take(&mut self, executed: &Ranges) {
        self.executed = self.executed.union(executed);
        for function in &mut self.functions {
            function.ran = self.executed.bytes_in(function.address, function.address + function.bytes);
        }
        self.ran = self.functions.iter().map(|function| function.ran).sum();
    }

    /// Joins two records.
    ///
    /// # Errors
    /// The records are of two kernels.
    pub fn with(mut self, other: &CoverageRecord) -> Result<CoverageRecord> {
        if (&self.kernel, &self.functions.len()) != (&other.kernel, &other.functions.len()) {
            return Err(Failure::new(
                "the record is of another kernel than the run",
                "name a new file: records of several builds cannot be joined",
            ));
        }
        self.runs += other.runs;
        self.lost += other.lost;
        self.take(&other.executed);
        Ok(self)
    }

    /// Returns the share of the code that ran, in percent.
    pub fn percent(&self) -> f64 {
        100.0 * self.ran as f64 / self.bytes.max(1) as f64
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The file is no record.
    pub fn read(path: &Path) -> Result<CoverageRecord> {
        let text = std::fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
        let wrong =
            || Failure::new(format!("{}: no record of freehold scope --coverage", path.display()), "");
        let record: CoverageRecord = serde_json::from_slice(&text).map_err(|_| wrong())?;
        if record.version == VERSION { Ok(record) } else { Err(wrong()) }
    }
}

/// Adds `own` to the record at `path`, or creates the record; returns the whole.
///
/// # Errors
/// The record cannot be read or written, or is of another kernel.
pub fn add(path: &Path, own: &CoverageRecord) -> Result<CoverageRecord> {
    // The file is replaced, not changed, so a lock on the file would not help: the writer locks its
    // folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |e: std::io::Error| Failure::io("lock", folder, &e);
    let held = File::open(folder).map_err(failed)?;
    rustix::fs::flock(&held, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
    let whole = match path.exists() {
        true => CoverageRecord::read(path)?.with(own).map_err(|failure| failure.at(path))?,
        false => own.clone(),
    };
    let text = serde_json::to_vec(&whole).map_err(|e| Failure::io("write", path, &e.into()))?;
    files::write_whole(path, &text)?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_ffff_8000_0000;

    fn record(sum: &str) -> CoverageRecord {
        let function = |number: u64| Function {
            name: format!("f{number}"),
            module: "m".into(),
            address: BASE + 0x20_0000 + 0x100 * number,
            bytes: 0x80,
            ran: 0,
        };
        CoverageRecord::new(Code { sum: sum.into(), base: BASE, functions: (0..4).map(function).collect() })
    }

    fn one(start: u64, end: u64) -> Ranges {
        [(start, end)].into_iter().collect()
    }

    #[test]
    fn runs_with_different_slides_add_up() {
        let mut first = record("a");
        // The entry runs at its load address, the rest at the moved image.
        let early = one(0x20_0000, 0x20_0010).union(&one(0xf_0000, 0xf_1000));
        first.ran(&one(BASE + 0x60_0100, BASE + 0x60_0110), &early, 0x40_0000);
        assert_eq!(first.executed.bytes(), 0x20, "firmware is left out");
        assert_eq!((first.ran, first.bytes), (0x20, 0x200));
        let mut second = record("a");
        second.ran(&one(BASE + 0x20_0108, BASE + 0x20_0220), &Ranges::default(), 0);
        let whole = first.with(&second).expect("one kernel");
        let ran: Vec<u64> = whole.functions.iter().map(|function| function.ran).collect();
        assert_eq!((whole.runs, ran), (2, vec![0x10, 0x80, 0x20, 0]));
        assert!((whole.percent() - 100.0 * 176.0 / 512.0).abs() < 1e-9);
    }

    #[test]
    fn records_of_two_kernels_do_not_mix() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("r.json");
        for runs in 1..=3 {
            let mut own = record("a");
            own.ran(&one(BASE + 0x20_0000, BASE + 0x20_0080), &Ranges::default(), 0);
            let whole = add(&path, &own).expect("it is added");
            assert_eq!((whole.runs, whole.ran), (runs, 0x80));
        }
        let failure = add(&path, &record("b")).expect_err("another kernel");
        assert!(failure.to_string().contains("another kernel"), "{failure}");
        assert_eq!(CoverageRecord::read(&path).expect("it is whole").runs, 3);
    }
}
