//! The folder of a sweep's results. `runs/N.json` is there once run N is made: it appears as a
//! whole, so a process that is killed leaves either a result or none. `runs/N.lock` is locked while
//! a process makes the run; the system drops the lock of a process that ends, however it ends.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::plan::{SweepPlan, SweepRun};
use crate::failure::Failure;
use crate::{Result, files, schema};

/// A line of `results.jsonl`, and a file of `runs`.
#[derive(Debug, Serialize)]
pub struct SweepLine<'a> {
    /// Name and version of this form.
    pub schema: &'static str,
    /// The run.
    #[serde(flatten)]
    pub run: &'a SweepRun,
    /// As `freehold run` writes it.
    pub outcome: &'a Value,
    /// The first part of the program's stdout.
    pub stdout: String,
    /// The last part of stderr.
    pub stderr: String,
}

/// The folder of a sweep.
#[derive(Debug)]
pub struct SweepFolder {
    place: PathBuf,
}

impl SweepFolder {
    /// Opens or makes the folder.
    ///
    /// # Errors
    /// It cannot be made, or it has the results of another sweep.
    pub fn open(place: &Path, plan: &SweepPlan) -> Result<SweepFolder> {
        let runs = place.join("runs");
        std::fs::create_dir_all(&runs).map_err(|e| Failure::io("make", &runs, &e))?;
        let place = place.canonicalize().map_err(|e| Failure::io("find", place, &e))?;
        let folder = SweepFolder { place };
        for run in &plan.runs {
            if let Some(line) = folder.result(run.number)? {
                let made = line.get("words").cloned().unwrap_or_default();
                if made != Value::from(run.words.clone()) {
                    let message =
                        format!("{}: run {} is of another sweep: {made}", folder.place.display(), run.number);
                    return Err(Failure::new(message, "--out names another folder for a sweep that changed"));
                }
            }
        }
        Ok(folder)
    }

    /// Returns the path of the folder.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Returns the path of the merged results.
    pub fn lines(&self) -> PathBuf {
        self.place.join("results.jsonl")
    }

    fn file(&self, number: usize, kind: &str) -> PathBuf {
        self.place.join(format!("runs/{number}.{kind}"))
    }

    /// Returns the result of a run, if it is made.
    ///
    /// # Errors
    /// It cannot be read, or it is damaged.
    pub fn result(&self, number: usize) -> Result<Option<Value>> {
        let path = self.file(number, "json");
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
                Failure::new(
                    format!("{}: damaged: {error}", path.display()),
                    "without the file the run is made again",
                )
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::io("read", &path, &error)),
        }
    }

    /// Claims a run for this process, once no other process makes it.
    ///
    /// # Errors
    /// The lock cannot be made.
    pub fn wait_for_claim(&self, number: usize) -> Result<File> {
        let (path, file) = self.lock_file(number)?;
        file.lock().map_err(|e| Failure::io("lock", &path, &e))?;
        Ok(file)
    }

    fn lock_file(&self, number: usize) -> Result<(PathBuf, File)> {
        let path = self.file(number, "lock");
        let opened = File::options().append(true).create(true).open(&path);
        opened.map_err(|e| Failure::io("open", &path, &e)).map(|file| (path, file))
    }

    /// Claims a run for this process. `None` if another process makes it.
    ///
    /// # Errors
    /// The lock cannot be made.
    pub fn claim(&self, number: usize) -> Result<Option<File>> {
        let (path, file) = self.lock_file(number)?;
        let failed = |e: std::io::Error| Failure::io("lock", &path, &e);
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, line: &SweepLine<'_>) -> Result<()> {
        files::write_json(&self.file(line.run.number, "json"), line)
    }

    /// Returns all results by number, and writes them to `results.jsonl`, a line for each.
    ///
    /// # Errors
    /// A result cannot be read or written.
    pub fn merge(&self, plan: &SweepPlan) -> Result<BTreeMap<usize, Value>> {
        let mut results = BTreeMap::new();
        for run in &plan.runs {
            if let Some(line) = self.result(run.number)? {
                results.insert(run.number, line);
            }
        }
        let lines = results.values().map(|line| format!("{line}\n")).collect::<String>();
        files::write_whole(&self.lines(), lines.as_bytes())?;
        Ok(results)
    }

    /// Returns the runs that are not made.
    ///
    /// # Errors
    /// A result cannot be read.
    pub fn missing<'a>(&self, plan: &'a SweepPlan) -> Result<Vec<&'a SweepRun>> {
        let mut missing = Vec::new();
        for run in &plan.runs {
            if self.result(run.number)?.is_none() {
                missing.push(run);
            }
        }
        Ok(missing)
    }
}

impl<'a> SweepLine<'a> {
    /// Makes the line of a run.
    pub fn new(run: &'a SweepRun, outcome: &'a Value, stdout: String, stderr: String) -> SweepLine<'a> {
        SweepLine { schema: schema::SWEEP, run, outcome, stdout, stderr }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(words: &[&str]) -> SweepPlan {
        let run = |number| SweepRun {
            number,
            kernel: "-".into(),
            parameters: "-".into(),
            program: "p".into(),
            machine: "-".into(),
            seed: None,
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        };
        SweepPlan {
            file: "x.toml".into(),
            name: "x".into(),
            runs: vec![run(0), run(1)],
            slurm: Vec::new(),
            kubernetes: None,
        }
    }

    #[test]
    fn a_run_is_made_once_and_another_sweep_is_refused() {
        let place = tempfile::tempdir().expect("a folder");
        let plan_a = plan(&["--", "true"]);
        let folder = SweepFolder::open(place.path(), &plan_a).expect("a folder");
        assert_eq!(folder.missing(&plan_a).expect("readable").len(), 2);
        let claim = folder.claim(0).expect("a lock").expect("free");
        assert!(folder.claim(0).expect("a lock").is_none(), "another process makes it");
        let outcome = json!({"outcome": "exit"});
        folder.keep(&SweepLine::new(&plan_a.runs[0], &outcome, "out".into(), String::new())).expect("kept");
        drop(claim);
        assert!(folder.claim(0).expect("a lock").is_some(), "the lock ends with its holder");
        let missing: Vec<usize> =
            folder.missing(&plan_a).expect("readable").iter().map(|run| run.number).collect();
        assert_eq!(missing, [1]);
        assert_eq!(folder.merge(&plan_a).expect("merged")[&0]["stdout"], "out");
        let lines = std::fs::read_to_string(folder.lines()).expect("written");
        assert_eq!(lines.lines().count(), 1);
        let error =
            SweepFolder::open(place.path(), &plan(&["--", "false"])).expect_err("another").to_string();
        assert!(error.contains("another sweep"), "{error}");
        std::fs::write(place.path().join("runs/1.json"), "{\"cut").expect("written");
        assert!(folder.merge(&plan_a).expect_err("damaged").to_string().contains("damaged"));
    }
}
