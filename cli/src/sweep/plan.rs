//! The sweep's file, and the runs that it means.

use std::path::Path;

use serde::Serialize;
use toml::{Table, Value};

use crate::args::RunOptions;
use crate::failure::Failure;
use crate::{Result, args, kernel};

/// The most runs of a sweep.
const MOST: usize = 1_000_000;
/// The name where a dimension is not varied.
const ONLY: &str = "-";
/// All keys of a sweep's file.
const KEYS: [&str; 9] =
    ["name", "options", "kernels", "parameters", "programs", "machines", "seeds", "slurm", "kubernetes"];

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SweepRun {
    /// From 0, in the order of the file.
    pub number: usize,
    /// The name of its kernel.
    pub kernel: String,
    /// Of its kernel parameters.
    pub parameters: String,
    /// Of its program.
    pub program: String,
    /// Of its machine.
    pub machine: String,
    /// Of its random numbers, if instructions are counted.
    pub seed: Option<u64>,
    /// The options and the program, as `freehold run` takes them.
    pub words: Vec<String>,
}

impl SweepRun {
    /// Returns a failure with the name of the run that it is about.
    fn at(&self, failure: &Failure) -> Failure {
        Failure::new(format!("run {} ({}): {failure}", self.number, self.name()), "")
    }

    /// Returns the names that tell this run from the others.
    pub fn name(&self) -> String {
        let names = [&self.kernel, &self.parameters, &self.program, &self.machine];
        let varied = names.into_iter().filter(|name| *name != ONLY).cloned();
        let seed = self.seed.map(|seed| format!("seed {seed}"));
        varied.chain(seed).collect::<Vec<_>>().join(", ")
    }
}

/// A sweep.
#[derive(Debug)]
pub struct SweepPlan {
    /// The file, as an absolute path.
    pub file: std::path::PathBuf,
    /// Its name: of jobs and of the report.
    pub name: String,
    /// All runs.
    pub runs: Vec<SweepRun>,
    /// Lines for Slurm's script: `#SBATCH OPTION`.
    pub slurm: Vec<String>,
    /// The container image of Kubernetes' pods, and the claim of the volume that has the sweep.
    pub kubernetes: Option<(String, String)>,
}

impl SweepPlan {
    /// Reads a sweep.
    ///
    /// # Errors
    /// The file cannot be read, or it is no sweep: the error names the place.
    pub fn read(path: &Path) -> Result<SweepPlan> {
        let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
        let file = path.canonicalize().map_err(|e| Failure::io("find", path, &e))?;
        let stem =
            path.file_stem().map_or_else(|| "sweep".into(), |stem| stem.to_string_lossy().into_owned());
        let plan = SweepPlan::parse(&text, &stem, file).map_err(|failure| failure.at(path))?;
        check_kernels(&plan.runs).map_err(|failure| failure.at(path))?;
        Ok(plan)
    }

    fn parse(text: &str, stem: &str, file: std::path::PathBuf) -> Result<SweepPlan> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            Failure::new(format!("line {line}: {}", error.message().replace('\n', " ")), "")
        })?;
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(Failure::new(
                format!("{unknown}: no such key"),
                format!("one of: {}", KEYS.join(", ")),
            ));
        }
        let options = words(table.get("options"), "options")?;
        let kernels =
            dimension(&table, "kernels", |value, at| Ok(vec!["--kernel".into(), text_of(value, at)?]))?;
        let parameters = dimension(&table, "parameters", |value, at| match text_of(value, at)? {
            none if none.is_empty() => Ok(Vec::new()),
            some => Ok(vec!["--append".into(), some]),
        })?;
        let machines = dimension(&table, "machines", |value, at| words(Some(value), at))?;
        let programs = dimension(&table, "programs", |value, at| match words(Some(value), at)? {
            none if none.is_empty() => {
                Err(Failure::new(format!("{at}: no program"), "[\"busybox\", \"true\"]"))
            }
            program => Ok(program),
        })?;
        if !table.contains_key("programs") {
            return Err(Failure::new("programs: missing", "[programs] name = [\"PROGRAM\", \"ARGUMENT\"]"));
        }
        let seeds = seeds(&table)?;
        let count = [kernels.len(), parameters.len(), programs.len(), machines.len(), seeds.len()];
        let count = count.iter().try_fold(1_usize, |all, &of| all.checked_mul(of)).filter(|&all| all <= MOST);
        count.ok_or_else(|| Failure::new("too many runs", format!("at most {MOST}")))?;
        let mut runs = Vec::new();
        for kernel in &kernels {
            for parameters in &parameters {
                for program in &programs {
                    for machine in &machines {
                        for &seed in &seeds {
                            let parts = [kernel, parameters, program, machine];
                            runs.push(run(runs.len(), parts, seed, &options));
                        }
                    }
                }
            }
        }
        check(&runs)?;
        let section = |name: &str| table.get(name).and_then(Value::as_table);
        let slurm = section("slurm").and_then(|slurm| slurm.get("options"));
        let kubernetes = section("kubernetes").map(|of| {
            let field = |name: &str| {
                text_of(of.get(name).unwrap_or(&Value::Integer(0)), &format!("kubernetes.{name}"))
            };
            Ok((field("image")?, field("claim")?))
        });
        let name = table.get("name").map_or_else(|| Ok(stem.to_owned()), |name| text_of(name, "name"))?;
        let slurm = words(slurm, "slurm.options")?;
        Ok(SweepPlan { file, name, runs, slurm, kubernetes: kubernetes.transpose()? })
    }

    /// Returns a line for each run.
    pub fn listing(&self) -> String {
        let line = |run: &SweepRun| {
            format!("{:>6}  {}\n        freehold run {}\n", run.number, run.name(), run.words.join(" "))
        };
        self.runs.iter().map(line).collect()
    }
}

/// A choice of a dimension: its name, and its words on the command line.
type SweepChoice = (String, Vec<String>);

fn run(
    number: usize,
    [kernel, parameters, program, machine]: [&SweepChoice; 4],
    seed: Option<u64>,
    options: &[String],
) -> SweepRun {
    let mut words = [options, &kernel.1, &parameters.1, &machine.1].concat();
    words.extend(seed.iter().flat_map(|seed| ["--icount".into(), "--seed".into(), seed.to_string()]));
    words.push("--".into());
    words.extend(program.1.iter().cloned());
    let [kernel, parameters, program, machine] =
        [kernel, parameters, program, machine].map(|(name, _)| name.clone());
    SweepRun { number, kernel, parameters, program, machine, seed, words }
}

/// Checks each command line before the first run takes its time.
fn check(runs: &[SweepRun]) -> Result<()> {
    for run in runs {
        let options = options_of(run)?;
        if options.json.is_some() || options.json_lines.is_some() {
            return Err(run.at(&Failure::new("--json: the sweep keeps each run's record itself", "")));
        }
    }
    Ok(())
}

/// Checks that each kernel exists.
fn check_kernels(runs: &[SweepRun]) -> Result<()> {
    let mut seen: Vec<&str> = Vec::new();
    for run in runs {
        if !seen.contains(&run.kernel.as_str()) {
            seen.push(&run.kernel);
            kernel::select("--kernel", &options_of(run)?.kernel).map_err(|failure| run.at(&failure))?;
        }
    }
    Ok(())
}

fn options_of(run: &SweepRun) -> Result<RunOptions> {
    let words: Vec<std::ffi::OsString> = run.words.iter().map(Into::into).collect();
    args::run_options(&words).map_err(|failure| run.at(&failure))
}

/// Returns a dimension's choices, in the file's order; one without words if it is not varied.
fn dimension(
    table: &Table,
    name: &str,
    words: impl Fn(&Value, &str) -> Result<Vec<String>>,
) -> Result<Vec<SweepChoice>> {
    let Some(value) = table.get(name) else { return Ok(vec![(ONLY.into(), Vec::new())]) };
    let choices = value.as_table().filter(|choices| !choices.is_empty());
    let choices =
        choices.ok_or_else(|| Failure::new(format!("{name}: not a table of names"), format!("[{name}]")))?;
    choices.iter().map(|(key, value)| Ok((key.clone(), words(value, &format!("{name}.{key}"))?))).collect()
}

fn seeds(table: &Table) -> Result<Vec<Option<u64>>> {
    let Some(value) = table.get("seeds") else { return Ok(vec![None]) };
    let wrong = || Failure::new("seeds: not a list of numbers", "seeds = [1, 2, 3]");
    let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(wrong)?;
    let seed = |value: &Value| value.as_integer().and_then(|seed| u64::try_from(seed).ok()).ok_or_else(wrong);
    list.iter().map(|value| seed(value).map(Some)).collect()
}

fn text_of(value: &Value, at: &str) -> Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| Failure::new(format!("{at}: not text"), "in quotes"))
}

/// Returns a list of words; none for nothing.
fn words(value: Option<&Value>, at: &str) -> Result<Vec<String>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let list = value
        .as_array()
        .ok_or_else(|| Failure::new(format!("{at}: not a list of words"), "[\"-m\", \"1G\"]"))?;
    list.iter().map(|value| text_of(value, at)).collect()
}

/// A plan for tests of what follows from it.
#[cfg(test)]
pub fn parse(text: &str) -> Result<SweepPlan> {
    SweepPlan::parse(text, "test", "/sweeps/test.toml".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_product_in_the_order_of_the_file() {
        let plan = parse(
            "options = [\"--report\", \"never\"]\nseeds = [7, 8]\n\
             [programs]\nz = [\"busybox\", \"true\"]\na = [\"busybox\", \"false\"]\n\
             [machines]\nsmall = [\"-m\", \"64M\"]\n[parameters]\nplain = \"\"\nother = \"x=1 y=2\"\n",
        )
        .expect("a sweep");
        let names: Vec<String> = plan.runs.iter().map(SweepRun::name).collect();
        assert_eq!(names.len(), 2 * 2 * 2);
        assert_eq!(names[0], "plain, z, small, seed 7");
        assert_eq!(names[3], "plain, a, small, seed 8");
        assert_eq!(
            plan.runs[7].words.join(" "),
            "--report never --append x=1 y=2 -m 64M --icount --seed 8 -- busybox false"
        );
        assert!(plan.runs.iter().enumerate().all(|(at, run)| run.number == at));
    }

    #[test]
    fn what_is_no_sweep_is_refused_with_its_place() {
        let program = "[programs]\np = [\"busybox\"]\n";
        for (text, part) in [
            ("name = ", "line 1"),
            ("programs = 5", "programs: not a table"),
            ("seeds = [1]", "programs: missing"),
            ("[programs]\np = []", "programs.p: no program"),
            ("[programs]\np = \"busybox true\"", "programs.p: not a list of words"),
            ("program = 1", "program: no such key (one of: name"),
            (&format!("seeds = [-1]\n{program}"), "seeds"),
            (&format!("options = [\"--jsn\"]\n{program}"), "run 0 (p)"),
            (&format!("options = [\"--json\", \"x\"]\n{program}"), "the sweep keeps"),
            (&format!("{program}[kubernetes]\nimage = \"x\""), "kubernetes.claim"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part) && error.lines().count() == 1, "{text}: {error}");
        }
    }
}
