//! Files for runners that are not this process. Each of their jobs calls `freehold sweep FILE --out
//! DIR --run N`, which makes run N once, however often it is called. The sweep's file, its folder
//! and this command must be at the same paths where the jobs run.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::folder::SweepFolder;
use super::plan::SweepPlan;
use crate::args::{SweepOptions, SweepRunner};
use crate::failure::Failure;
use crate::{Result, files, session};

/// The most tasks of a job array: Slurm's own limit is 1,001 where nothing else is set
/// (MaxArraySize).
const MOST_TASKS: usize = 1000;
/// The longest name of a Job: pods' names are longer by their index.
const LONGEST_NAME: usize = 52;

/// Writes the runner's files, and submits them where that is possible and wanted. Returns the text
/// for the user.
///
/// # Errors
/// Files cannot be written, or the runner refuses them.
pub fn start(
    options: &SweepOptions,
    (plan, folder): (&SweepPlan, &SweepFolder),
    jobs: usize,
) -> Result<String> {
    let missing: Vec<usize> = folder.missing(plan)?.iter().map(|run| run.number).collect();
    let merge = format!("freehold sweep {} --out {} --merge", quoted(&plan.file), quoted(folder.place()));
    if missing.is_empty() {
        return Ok(format!("freehold: all runs are made; {merge}\n"));
    }
    let (script, start) = match options.runner {
        SweepRunner::Slurm => (write_slurm(plan, folder, (&missing, jobs))?, "sbatch"),
        SweepRunner::Kubernetes => (write_kubernetes(plan, folder, jobs)?, "kubectl create -f"),
        SweepRunner::Ray | SweepRunner::Local => (write_ray(plan, folder, &missing)?, "python3"),
    };
    let then = format!("when its jobs are done: {merge}\n");
    let by_hand = format!("freehold: {start} {} starts {} runs; {then}", quoted(&script), missing.len());
    if options.runner != SweepRunner::Slurm || options.write_only {
        return Ok(by_hand);
    }
    match session::on_path("sbatch") {
        None => Ok(format!("freehold: there is no sbatch here\n{by_hand}")),
        Some(sbatch) => {
            Ok(format!("freehold: job {} has {} runs; {then}", submit(&sbatch, &script)?, missing.len()))
        }
    }
}

/// Submits a script; returns the job's number.
fn submit(sbatch: &Path, script: &Path) -> Result<String> {
    let output = Command::new(sbatch).arg("--parsable").arg(script).output();
    let output = output.map_err(|e| Failure::io("start", sbatch, &e))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(said(&output.stdout))
    } else {
        Err(Failure::new(format!("sbatch refused {}: {}", script.display(), said(&output.stderr)), "")
            .in_one_line())
    }
}

/// Returns a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.chars().all(is_plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Returns the path of this command.
fn own() -> Result<PathBuf> {
    std::env::current_exe()
        .map_err(|e| Failure::new(format!("this command does not know its own path: {e}"), ""))
}

fn write(folder: &SweepFolder, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.place().join(name);
    files::write_whole(&path, text.as_bytes())?;
    Ok(path)
}

/// Writes a job array whose tasks share the missing runs.
fn write_slurm(
    plan: &SweepPlan,
    folder: &SweepFolder,
    (missing, jobs): (&[usize], usize),
) -> Result<PathBuf> {
    let list: String = missing.iter().map(|number| format!("{number}\n")).collect();
    let list = write(folder, "slurm.list", &list)?;
    write(folder, "slurm.sh", &slurm(plan, (folder.place(), &list, &own()?), (missing.len(), jobs)))
}

fn slurm(
    plan: &SweepPlan,
    (place, list, own): (&Path, &Path, &Path),
    (runs, jobs): (usize, usize),
) -> String {
    let tasks = runs.min(MOST_TASKS);
    let options: String = plan.slurm.iter().map(|option| format!("#SBATCH {option}\n")).collect();
    format!(
        "#!/bin/sh\n\
         # Written by freehold sweep: makes the runs of slurm.list that are not made.\n\
         #SBATCH --job-name={name}\n\
         #SBATCH --array=0-{last}%{jobs}\n\
         #SBATCH --output={place}/slurm-%A_%a.log\n\
         #SBATCH --requeue\n\
         {options}\
         failed=0\n\
         for number in $(awk -v task=\"$SLURM_ARRAY_TASK_ID\" '(NR - 1) % {tasks} == task' {list}); do\n\
         \t{own} sweep {file} --out {folder} --run \"$number\" || failed=1\n\
         done\n\
         exit $failed\n",
        name = label(&plan.name),
        last = tasks - 1,
        place = place.display(),
        list = quoted(list),
        own = quoted(own),
        file = quoted(&plan.file),
        folder = quoted(place),
    )
}

/// Writes an indexed Job: the pod with index N makes run N.
fn write_kubernetes(plan: &SweepPlan, folder: &SweepFolder, jobs: usize) -> Result<PathBuf> {
    let job = kubernetes(plan, folder.place(), jobs)?;
    let text =
        serde_json::to_string_pretty(&job).map_err(|e| Failure::new(format!("no manifest: {e}"), ""))?;
    write(folder, "kubernetes.json", &format!("{text}\n"))
}

fn kubernetes(plan: &SweepPlan, place: &Path, jobs: usize) -> Result<Value> {
    let (image, claim) = plan.kubernetes.as_ref().ok_or_else(|| {
        Failure::new(
            "the sweep does not say where its pods run",
            "[kubernetes] image = \"an image with freehold\", claim = \"a PersistentVolumeClaim with the sweep\"",
        )
    })?;
    let mount = plan.file.parent().unwrap_or(Path::new("/"));
    if !place.starts_with(mount) {
        let message = format!("{} is not below {}", place.display(), mount.display());
        return Err(Failure::new(
            message,
            "the claim is mounted where the sweep's file is: --out names a folder below",
        ));
    }
    let line = "exec freehold sweep \"$0\" --out \"$1\" --run \"$JOB_COMPLETION_INDEX\"";
    let name = label(&plan.name);
    Ok(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name, "labels": { "app.kubernetes.io/name": "freehold-sweep" } },
        "spec": {
            "completionMode": "Indexed",
            "completions": plan.runs.len(),
            "parallelism": jobs,
            "backoffLimitPerIndex": 3,
            "maxFailedIndexes": plan.runs.len(),
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{
                        "name": "freehold",
                        "image": image,
                        "command": ["/bin/sh", "-c", line, plan.file, place],
                        "volumeMounts": [{ "name": "sweep", "mountPath": mount }],
                    }],
                    "volumes": [{ "name": "sweep", "persistentVolumeClaim": { "claimName": claim } }],
                },
            },
        },
    }))
}

/// Returns a name as a Job may have it (RFC 1123): small letters, digits and hyphens.
fn label(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    let text: String = letters.take(LONGEST_NAME).collect();
    match text.trim_matches('-') {
        "" => "sweep".into(),
        text => text.to_owned(),
    }
}

/// Writes a driver that makes each missing run in a task of its own.
fn write_ray(plan: &SweepPlan, folder: &SweepFolder, missing: &[usize]) -> Result<PathBuf> {
    write(folder, "ray_driver.py", &ray(plan, (folder.place(), &own()?), missing))
}

fn ray(plan: &SweepPlan, (place, own): (&Path, &Path), missing: &[usize]) -> String {
    // A JSON string of a path is a string of Python, too.
    let text = |path: &Path| json!(path).to_string();
    format!(
        "\"\"\"Written by freehold sweep: makes the runs that are not made, each in a task of Ray.\"\"\"\n\
         import subprocess\n\
         import sys\n\
         \n\
         import ray\n\
         \n\
         SWEEP = [{own}, \"sweep\", {file}, \"--out\", {place}]\n\
         RUNS = {missing}\n\
         \n\
         \n\
         @ray.remote(num_cpus=1, max_retries=3, retry_exceptions=True)\n\
         def make(number):\n\
         \x20   subprocess.run(SWEEP + [\"--run\", str(number)], check=True)\n\
         \n\
         \n\
         ray.init()\n\
         waiting, failed = [make.remote(number) for number in RUNS], 0\n\
         while waiting:\n\
         \x20   done, waiting = ray.wait(waiting)\n\
         \x20   try:\n\
         \x20       ray.get(done)\n\
         \x20   except Exception as error:\n\
         \x20       failed += 1\n\
         \x20       print(error, file=sys.stderr)\n\
         \x20   print(f\"{{len(RUNS) - len(waiting)}} of {{len(RUNS)}} runs are done\", file=sys.stderr)\n\
         sys.exit(1 if failed else 0)\n",
        own = text(own),
        file = text(&plan.file),
        place = text(place),
        missing = json!(missing),
    )
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;

    fn sweep(more: &str) -> SweepPlan {
        plan::parse(&format!("name = \"My sweep's\"\nseeds = [1, 2]\n{more}[programs]\nt = [\"true\"]\n"))
            .expect("a sweep")
    }

    #[test]
    fn names_and_paths_are_safe_where_they_are_written() {
        assert_eq!(label("My sweep's"), "my-sweep-s");
        assert_eq!(label("--"), "sweep");
        assert_eq!(label(&"x".repeat(100)).len(), LONGEST_NAME);
        assert_eq!(quoted(Path::new("/a/b-c.d")), "/a/b-c.d");
        assert_eq!(quoted(Path::new("/it's $HOME")), "'/it'\\''s $HOME'");
    }

    #[test]
    fn an_array_has_no_more_tasks_than_slurm_takes_and_they_share_the_runs() {
        let plan = sweep("[slurm]\noptions = [\"--partition=x\"]\n");
        let places = (Path::new("/out"), Path::new("/out/slurm.list"), Path::new("/bin/freehold"));
        let script = slurm(&plan, places, (2500, 8));
        assert!(
            script.contains("#SBATCH --array=0-999%8\n") && script.contains("(NR - 1) % 1000 == task"),
            "{script}"
        );
        assert!(script.contains("#SBATCH --partition=x\nfailed=0\n"), "{script}");
        assert!(slurm(&plan, places, (2, 8)).contains("#SBATCH --array=0-1%8\n"));
    }

    #[test]
    fn a_job_has_an_index_for_each_run_and_mounts_the_sweep() {
        let plan = sweep("[kubernetes]\nimage = \"registry/freehold:1\"\nclaim = \"sweeps\"\n");
        let job = kubernetes(&plan, Path::new("/sweeps/out"), 4).expect("a manifest");
        assert_eq!((&job["spec"]["completions"], &job["spec"]["parallelism"]), (&json!(2), &json!(4)));
        assert_eq!(job["spec"]["template"]["spec"]["containers"][0]["command"][4], "/sweeps/out");
        let elsewhere =
            kubernetes(&plan, Path::new("/tmp/out"), 4).expect_err("not in the volume").to_string();
        assert!(elsewhere.contains("/tmp/out is not below /sweeps"), "{elsewhere}");
        assert!(
            kubernetes(&sweep(""), Path::new("/sweeps/out"), 4)
                .expect_err("no image")
                .to_string()
                .contains("[kubernetes]")
        );
    }
}
