//! Parses the guest's output: samples, notes, failures (guest/bench/README.md describes the lines).
//!
//! An incomplete row is not believed: a row without all of its samples has failed.

use std::collections::{BTreeMap, VecDeque};

use freehold_scope_record::Results;

/// A row in one form: its name, and how many workers performed it.
pub type RowKey = (String, u32);

/// Instructions in the phases that the microscope saw, by name, first to last.
#[derive(Debug, Default)]
pub struct Phases(BTreeMap<String, VecDeque<u64>>);

impl Phases {
    /// Takes them from the microscope's results.
    pub fn of(results: &Results) -> Phases {
        let mut phases = Phases::default();
        for phase in &results.phases {
            let instructions =
                phase.cpus.iter().map(|cpu| cpu.modes.user.instructions + cpu.modes.kernel.instructions);
            phases.0.entry(phase.name.clone()).or_default().push_back(instructions.sum());
        }
        phases
    }

    /// Removes and returns the first phase of this name.
    fn next(&mut self, name: &str) -> Option<u64> {
        self.0.get_mut(name)?.pop_front()
    }
}

/// Results of one row in one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParsedRow {
    /// Clock units per operation, one value per sample.
    pub samples: Vec<f64>,
    /// The samples as the guest gave them: operations, clock units in all. Equal values mean equal
    /// runs.
    pub raw: Vec<(u64, u64)>,
    /// A note that the reader has to know.
    pub note: Option<String>,
    /// The reason why the row cannot be believed.
    pub failure: Option<String>,
}

/// Parsed output of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// By row.
    pub rows: BTreeMap<RowKey, ParsedRow>,
    /// The row that was begun last.
    pub last: Option<RowKey>,
    /// Lines that are not the harness' own, and all of stderr.
    pub other: String,
}

impl Output {
    /// Parses stdout and stderr of a run that was to take `samples` of each of `expected`. `phases`
    /// are the microscope's.
    pub fn parse(
        stdout: &[u8],
        stderr: &[u8],
        mut phases: Phases,
        expected: &[RowKey],
        samples: usize,
    ) -> Output {
        let mut output = Output::default();
        let mut complete = false;
        for line in String::from_utf8_lossy(stdout).lines() {
            match output.line(line, &mut phases) {
                Some(OutputLine::Done) => complete = true,
                Some(OutputLine::Row) => {}
                None => {
                    output.other.push_str(line);
                    output.other.push('\n');
                }
            }
        }
        output.other.push_str(&String::from_utf8_lossy(stderr));
        for key in expected {
            let found = output.rows.entry(key.clone()).or_default();
            if found.failure.is_none() && found.raw.len() != samples {
                let had = found.raw.len();
                let end = if complete { "" } else { " before the programs ended early" };
                found.failure = Some(format!("{had} of {samples} samples came{end}"));
            }
        }
        output.rows.retain(|key, _| expected.contains(key));
        output
    }

    /// Keeps only the rows that have all `samples`, for a run that was ended early.
    pub fn keep_whole(&mut self, samples: usize) {
        self.rows.retain(|_, row| row.raw.len() == samples);
    }

    /// Adds the rows of another run of the same side.
    pub fn append(&mut self, mut other: Output) {
        self.rows.append(&mut other.rows);
        self.last = other.last.or(self.last.take());
        self.other.push_str(&other.other);
    }

    /// Takes one line; `None` when it is not the harness'.
    fn line(&mut self, line: &str, phases: &mut Phases) -> Option<OutputLine> {
        let mut words = line.splitn(4, ' ');
        let kind = words.next()?;
        if kind == "done" {
            words.next()?.parse::<u32>().ok()?;
            return words.next().is_none().then_some(OutputLine::Done);
        }
        let key = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let rest = words.next().unwrap_or_default();
        match kind {
            "begin" => self.last = Some(key),
            "sample" => {
                let (operations, elapsed) = rest.split_once(' ')?;
                self.sample(key, operations.parse().ok()?, elapsed.parse().ok()?)?;
            }
            "watched" => {
                let operations = rest.parse().ok()?;
                let seen = phases.next(&format!("{} {}", key.0, key.1))?;
                self.sample(key, operations, seen)?;
            }
            "note" => self.rows.entry(key).or_default().note = Some(rest.to_owned()),
            "fail" => self.rows.entry(key).or_default().fail(rest),
            _ => return None,
        }
        Some(OutputLine::Row)
    }

    /// Adds a sample: `elapsed` clock units for so many operations; `None` for 0 operations.
    fn sample(&mut self, key: RowKey, operations: u64, elapsed: u64) -> Option<()> {
        if operations == 0 {
            return None;
        }
        let found = self.rows.entry(key).or_default();
        found.raw.push((operations, elapsed));
        found.samples.push(elapsed as f64 / operations as f64);
        if elapsed == 0 {
            found.fail("it took no time at all: the guest's clock stands still");
        }
        Some(())
    }
}

enum OutputLine {
    Row,
    Done,
}

impl ParsedRow {
    /// Notes a failure. The first reason is the cause; later ones follow from it.
    fn fail(&mut self, why: &str) {
        self.failure.get_or_insert_with(|| why.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> RowKey {
        (name.to_owned(), 1)
    }

    fn parse(text: &str, expected: &[&str], samples: usize) -> Output {
        let expected: Vec<RowKey> = expected.iter().map(|name| key(name)).collect();
        Output::parse(text.as_bytes(), b"", Phases::default(), &expected, samples)
    }

    #[test]
    fn whole_rows_are_taken_with_their_notes() {
        let text =
            "begin a 1\nnote a 1 no huge page: 512 faults\nsample a 1 10 50\nsample a 1 10 70\ndone 1\n";
        let output = parse(text, &["a"], 2);
        let found = &output.rows[&key("a")];
        assert_eq!(found.samples, [5.0, 7.0]);
        assert_eq!(found.raw, [(10, 50), (10, 70)]);
        assert_eq!(found.note.as_deref(), Some("no huge page: 512 faults"));
        assert_eq!(found.failure, None);
        assert_eq!(output.other, "");
    }

    #[test]
    fn the_first_cause_of_a_failure_stands_and_stray_words_are_kept() {
        let text =
            "begin a 1\nfail a 1 fork: Out of memory\nfail a 1 killed by signal 9\nlibc said so\ndone 1\n";
        let output = parse(text, &["a"], 2);
        assert_eq!(output.rows[&key("a")].failure.as_deref(), Some("fork: Out of memory"));
        assert_eq!(output.other, "libc said so\n");
    }

    #[test]
    fn a_watched_sample_is_the_next_phase_of_its_row_and_none_without_one() {
        let phases =
            || Phases([("a 1".to_owned(), [500, 700].into()), ("a 2".to_owned(), [9].into())].into());
        let parse = |text: &str| Output::parse(text.as_bytes(), b"", phases(), &[key("a")], 2);
        let whole = parse("watched a 1 10\nwatched a 1 10\ndone 1\n");
        assert_eq!(whole.rows[&key("a")].samples, [50.0, 70.0]);
        assert_eq!(whole.rows[&key("a")].failure, None);
        // A third phase was not seen; no operations are no sample.
        for text in ["watched a 1 10\nwatched a 1 10\nwatched a 1 10\n", "watched a 1 0\n"] {
            let output = parse(text);
            assert!(output.rows[&key("a")].samples.len() <= 2 && output.other.lines().count() == 1, "{text}");
        }
    }

    #[test]
    fn two_runs_of_one_side_are_put_together() {
        let mut first = parse("begin a 1\nsample a 1 10 50\nfirst\ndone 1\n", &["a"], 1);
        first.append(parse("begin b 1\nsample b 1 10 70\nsecond\ndone 1\n", &["b"], 1));
        assert_eq!(first.rows.values().flat_map(|row| row.samples.clone()).collect::<Vec<_>>(), [5.0, 7.0]);
        assert_eq!((first.last, first.other.as_str()), (Some(key("b")), "first\nsecond\n"));
    }

    #[test]
    fn nonsense_is_never_a_sample() {
        for line in [
            "sample a 1 10",
            "sample a 1 0 50",
            "sample a 1 ten 50",
            "sample a 1 10 -50",
            "sample a 1 10 50 60",
            "sample a one 10 50",
            "sample a 1 10 99999999999999999999999",
            "sampled a 1 10 50",
            "sample",
            "\u{fffd}\0sample a 1 10 50",
        ] {
            let output = parse(&format!("{line}\ndone 1\n"), &["a"], 1);
            let found = &output.rows[&key("a")];
            assert!(found.samples.is_empty(), "{line}");
            assert_eq!(found.failure.as_deref(), Some("0 of 1 samples came"), "{line}");
            assert!(!output.other.is_empty(), "{line}");
        }
    }

    #[test]
    fn a_row_that_is_cut_short_or_missing_has_failed() {
        let output = parse("begin a 1\nsample a 1 10 50\n", &["a", "b"], 2);
        let failure = |name| output.rows[&key(name)].failure.clone().expect("a failure");
        assert!(failure("a").starts_with("1 of 2 samples came before"), "{}", failure("a"));
        assert!(failure("b").starts_with("0 of 2 samples came"), "{}", failure("b"));
        assert_eq!(output.last, Some(key("a")));
    }

    #[test]
    fn of_a_run_that_was_ended_early_only_whole_rows_are_kept() {
        let text = "sample a 1 10 50\nsample a 1 10 60\nbegin b 1\nsample b 1 10 50\n";
        let mut output = parse(text, &["a", "b", "c"], 2);
        output.keep_whole(2);
        assert_eq!(output.rows.keys().cloned().collect::<Vec<_>>(), [key("a")]);
    }

    #[test]
    fn a_clock_that_stands_still_is_a_failure_and_unasked_rows_are_dropped() {
        let output = parse("sample a 1 10 0\nsample z 1 10 5\ndone 1\n", &["a"], 1);
        assert!(output.rows[&key("a")].failure.as_deref().is_some_and(|why| why.contains("clock")));
        assert_eq!(output.rows.len(), 1);
    }
}
