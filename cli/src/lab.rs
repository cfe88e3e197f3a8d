//! `freehold lab`: experiments that can be repeated with one command, each the answer to one
//! question.
//!
//! An experiment is one file under lab/ that ends in a constant, and a line in [`EXPERIMENTS`].

mod bounce;
mod costs;
mod cow;
mod growth;
mod near_cache;
mod replica;
mod scaling;
mod slowdown;
mod xpfo;

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;

use crate::args::{self, LabOptions};
use crate::failure::Failure;
use crate::html::Page;
use crate::progress::{partial_sentence, status_of};
use crate::qemu::Engine;
use crate::run::Prepared;
use crate::{Result, diff, files, print};

/// All experiments, in the order in which they are listed.
const EXPERIMENTS: &[Experiment] = &[
    bounce::EXPERIMENT,
    costs::EXPERIMENT,
    cow::EXPERIMENT,
    growth::EXPERIMENT,
    near_cache::EXPERIMENT,
    replica::EXPERIMENT,
    scaling::EXPERIMENT,
    slowdown::EXPERIMENT,
    xpfo::EXPERIMENT,
];

/// Exit status where a figure misses its goal.
const MISSED: u8 = 1;

/// One experiment.
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Carries the experiment out, prints the results, writes the files that the settings name;
    /// returns the exit status.
    pub run: fn(&Settings) -> Result<u8>,
}

/// A side of an experiment: a kernel with parameters.
struct KernelSide {
    /// Its name in the results.
    name: &'static str,
    /// As `--kernel` takes it.
    kernel: &'static str,
    /// As `--append` takes it.
    append: &'static str,
}

/// Extent of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The extent that its answer needs.
    Full,
    /// The extent that shows that it works: under a minute.
    Quick,
}

/// Settings of an experiment. The paths are known to be writable.
#[derive(Debug)]
pub struct Settings {
    /// The experiment's name.
    pub name: &'static str,
    /// The extent of the measurement.
    pub extent: Extent,
    /// Number of boots for quantities that differ from boot to boot, where the user gives it.
    pub boots: Option<u32>,
    /// Path of the report for people.
    pub html: Option<PathBuf>,
    /// Path of the record for machines.
    pub json: Option<PathBuf>,
    /// Path of the sheet.
    pub csv: Option<PathBuf>,
}

impl Settings {
    /// Writes the record for machines and the sheet of its figures, where they are wanted.
    fn write_record(&self, record: &impl Serialize) -> Result<()> {
        if let Some(path) = &self.json {
            files::write_json(path, record)?;
        }
        if let Some(path) = &self.csv {
            diff::sheet_of_figures(record)?.write(path)?;
        }
        Ok(())
    }

    /// Returns the command line of this experiment.
    fn again(&self) -> String {
        let quick = if self.extent == Extent::Quick { " --quick" } else { "" };
        let boots = self.boots.map(|boots| format!(" --boots {boots}")).unwrap_or_default();
        format!("freehold lab {}{quick}{boots}", self.name)
    }

    /// Writes the report for people, if it is wanted. It is marked where a signal ended the
    /// experiment.
    fn write_page(&self, page: impl FnOnce() -> Page, ended_by: Option<u8>) -> Result<()> {
        let Some(path) = &self.html else { return Ok(()) };
        let mut page = page();
        page.next("The same experiment again", &self.again());
        ended_by.map(partial_sentence).iter().for_each(|partial| page.warn(partial));
        page.write(path)
    }

    /// Prints the summary, after the files are written; returns the exit status: `status`, or that
    /// of the signal that ended the experiment.
    fn conclude(&self, text: &str, ended_by: Option<u8>, status: u8) -> Result<u8> {
        let partial = ended_by.map(|signal| format!("\n{}\n", partial_sentence(signal)));
        let text = format!("{text}{}", partial.unwrap_or_default());
        files::print_beside(&text, [&self.json, &self.html, &self.csv])?;
        Ok(ended_by.map_or(status, status_of))
    }
}

/// Lists the experiments, or carries one out; returns the exit status of this command.
pub fn lab(options: &LabOptions) -> Result<u8> {
    let Some(name) = &options.name else {
        let files = [&options.html, &options.json, &options.csv];
        if files.iter().any(|file| file.is_some()) || options.quick || options.boots.is_some() {
            return Err(Failure::new("which experiment?", one_of()));
        }
        print::stdout(list())?;
        return Ok(0);
    };
    let experiment = EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == name)
        .ok_or_else(|| Failure::new(format!("no experiment is named {name}"), one_of()))?;
    let boots = match &options.boots {
        Some(text) => Some(
            text.parse()
                .ok()
                .filter(|boots| (1..=1000).contains(boots))
                .ok_or_else(|| Failure::new(format!("--boots {text}: not a number of boots"), "1 to 1000"))?,
        ),
        None => None,
    };
    files::check_writable([&options.json, &options.html, &options.csv])?;
    (experiment.run)(&Settings {
        name: experiment.name,
        extent: if options.quick { Extent::Quick } else { Extent::Full },
        boots,
        html: options.html.clone(),
        json: options.json.clone(),
        csv: options.csv.clone(),
    })
}

/// Runs a measurement and returns its output.
fn output_of(words: &[OsString]) -> Result<String> {
    let output = Prepared::measurement(&args::run_options(words)?)?.run(Engine::Tcg)?.into_output()?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Returns the names of all experiments.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPERIMENTS.iter().map(|experiment| experiment.name)
}

fn one_of() -> String {
    format!("one of: {}", names().collect::<Vec<_>>().join(", "))
}

fn list() -> String {
    let width = EXPERIMENTS.iter().map(|experiment| experiment.name.len()).max().unwrap_or(0);
    let line = |experiment: &Experiment| format!("{:width$}  {}\n", experiment.name, experiment.question);
    EXPERIMENTS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_experiments_have_one_name_and_each_asks_a_question() {
        for (at, experiment) in EXPERIMENTS.iter().enumerate() {
            assert!(
                EXPERIMENTS[..at].iter().all(|other| other.name != experiment.name),
                "{}",
                experiment.name
            );
            assert!(experiment.question.ends_with('?'), "{}", experiment.question);
        }
    }
}
