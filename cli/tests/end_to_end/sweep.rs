//! `freehold sweep`: every run is made once, by whichever runner, whoever is killed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::browser::clean_report;
use crate::common::*;

/// A sweep of six runs of a program that says which run it is, and takes a moment.
struct Sweep {
    folder: tempfile::TempDir,
}

impl Sweep {
    fn new(more: &str) -> Sweep {
        let folder = tempfile::tempdir().expect("temporary folder");
        let text = format!(
            "options = [\"--report\", \"never\", \"-m\", \"64M\"]\nseeds = [1, 2, 3]\n{more}\n\
             [programs]\nok = [\"busybox\", \"echo\", \"hello\"]\nbad = [\"busybox\", \"ash\", \"-c\", \"exit 3\"]\n"
        );
        std::fs::write(folder.path().join("s.toml"), text).expect("written");
        Sweep { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = freehold();
        command.arg("sweep").arg(self.path("s.toml")).args(more);
        command
    }

    /// Returns the files of the runs that are made.
    fn made(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("s/runs")).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        let mut made: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
        made.sort();
        made
    }

    /// Returns the lines of the merged results, which match their schema.
    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("s/results.jsonl")).expect("merged");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        for line in &lines {
            validate(line, "sweep.json");
            validate(&line["outcome"], "run.json");
        }
        lines
    }

    /// Checks that each of the six runs has its result, once.
    #[track_caller]
    fn is_whole(&self) {
        let numbers: Vec<u64> = self.lines().iter().filter_map(|line| line["number"].as_u64()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    }

    fn program(&self, name: &str, text: &str) {
        let path = file_of(&self.folder, name, text.as_bytes());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    /// Returns PATH with this sweep's own programs before the others.
    fn search_path(&self) -> String {
        format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap_or_default())
    }
}

fn modified(path: &Path) -> std::time::SystemTime {
    std::fs::metadata(path).and_then(|found| found.modified()).expect("it is there")
}

#[test]
fn a_sweep_that_is_killed_goes_on_and_makes_no_run_twice() {
    let sweep = Sweep::new("");
    let _permit = Permit::take();
    let mut child =
        sweep.command(&["--jobs", "1"]).stderr(std::process::Stdio::null()).spawn().expect("it starts");
    while sweep.made().len() < 2 {
        assert!(child.try_wait().expect("waiting works").is_none(), "it ended early");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().expect("it lives");
    wait(&mut child);
    let before: Vec<_> = sweep.made().into_iter().map(|path| (modified(&path), path)).collect();
    assert!((2..6).contains(&before.len()), "{before:?}");
    let (html, csv) = (sweep.path("s.html"), sweep.path("s.csv"));
    let outcome =
        finish_now(&mut sweep.command(&["--html", text(&html), "--csv", text(&csv)]), b"").expect(0);
    let told = format!("{} of 6 runs were made before", before.len());
    assert!(outcome.stderr.contains(&told), "{}", outcome.stderr);
    for (when, path) in &before {
        assert_eq!(modified(path), *when, "{}", path.display());
    }
    sweep.is_whole();
    let lines = sweep.lines();
    assert_eq!((&lines[0]["stdout"], &lines[5]["outcome"]["exit"]), (&"hello\n".into(), &3.into()));
    assert!(outcome.text().contains("3/3  exit 3 ×3"), "{}", outcome.text());
    assert!(clean_report(&html).contains("6 of 6"));
    assert_eq!(std::fs::read_to_string(csv).expect("a sheet").lines().count(), 7);
    // Seeds are of counted runs, and these repeat.
    assert_eq!(lines[0]["outcome"]["machine"]["seed"], 1);
    std::fs::write(sweep.path("k.toml"), "[kernels]\nk = \"/no/kernel\"\n[programs]\nx = [\"true\"]\n")
        .expect("written");
    let outcome = finish_now(freehold().arg("sweep").arg(sweep.path("k.toml")), b"").expect(125);
    assert!(outcome.stderr.contains("run 0 (k, x): --kernel /no/kernel"), "{}", outcome.stderr);
    // The folder takes no other sweep.
    std::fs::write(sweep.path("s.toml"), "[programs]\nx = [\"busybox\", \"true\"]\n").expect("written");
    let outcome = finish_now(&mut sweep.command(&[]), b"").expect(125);
    assert!(outcome.stderr.contains("is of another sweep"), "{}", outcome.stderr);
}

#[test]
fn a_run_that_the_host_ended_has_no_result_and_is_made_again() {
    let sweep = Sweep::new("");
    sweep.program(
        "qemu",
        "#!/bin/sh\ncase $* in *--version*) exec qemu-system-x86_64 --version;; esac\nkill -9 $$\n",
    );
    let mut command = sweep.command(&["--run", "0"]);
    command.env("FREEHOLD_QEMU", sweep.path("qemu"));
    let outcome = finish(command, b"").expect(1);
    assert!(outcome.stderr.contains("run 0: ") && outcome.stderr.contains("signal 9"), "{}", outcome.stderr);
    assert_eq!(sweep.made().len(), 0);
    finish(sweep.command(&["--run", "0"]), b"").expect(0);
    let when = modified(&sweep.made()[0]);
    finish(sweep.command(&["--run", "0"]), b"").expect(0);
    assert_eq!(modified(&sweep.made()[0]), when, "it is made once");
    let outcome = finish(sweep.command(&["--merge"]), b"").expect(1);
    assert!(outcome.text().contains("1 of 6 runs are made"), "{}", outcome.text());
}

/// A stand-in for sbatch runs the tasks one after the other, and is killed in the first one's
/// middle.
#[test]
fn the_tasks_of_a_job_array_make_all_runs() {
    let sweep = Sweep::new("[slurm]\noptions = [\"--partition=p\"]");
    let outcome = finish(sweep.command(&["--runner", "slurm", "--jobs", "2", "--write-only"]), b"").expect(0);
    assert!(outcome.stderr.contains("slurm.sh starts 6 runs"), "{}", outcome.stderr);
    let script = std::fs::read_to_string(sweep.path("s/slurm.sh")).expect("written");
    assert!(
        script.contains("#SBATCH --array=0-5%2\n") && script.contains("#SBATCH --partition=p\n"),
        "{script}"
    );
    sweep.program(
        "sbatch",
        "#!/bin/sh\nfor task in 0 1 2 3 4 5; do SLURM_ARRAY_TASK_ID=$task sh \"$2\" || exit 1; done\necho 77\n",
    );
    let mut command = sweep.command(&["--runner", "slurm"]);
    command.env("PATH", sweep.search_path());
    let outcome = finish(command, b"").expect(0);
    assert!(outcome.stderr.contains("job 77 has 6 runs; when its jobs are done"), "{}", outcome.stderr);
    finish(sweep.command(&["--merge"]), b"").expect(0);
    sweep.is_whole();
    let mut command = sweep.command(&["--runner", "slurm"]);
    let outcome = finish_now(&mut command, b"").expect(0);
    assert!(outcome.stderr.contains("all runs are made"), "{}", outcome.stderr);
}

/// The fields of a Job that the manifest uses, with their types, as the Kubernetes API reference
/// for batch/v1 has them. Any other field is a mistake: the server would refuse or drop it.
fn job_schema() -> Value {
    let object = |properties: Value| json!({"type": "object", "additionalProperties": false, "properties": properties});
    let label = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    let number = json!({"type": "integer", "minimum": 1, "maximum": 100_000});
    let mount =
        object(json!({"name": {"pattern": label}, "mountPath": {"type": "string", "pattern": "^/[^:]*$"}}));
    let container = object(json!({
        "name": {"pattern": label}, "image": {"type": "string", "minLength": 1},
        "command": {"type": "array", "items": {"type": "string"}}, "volumeMounts": {"type": "array", "items": mount},
    }));
    let claim = object(json!({"claimName": {"type": "string"}}));
    let volume = object(json!({"name": {"pattern": label}, "persistentVolumeClaim": claim}));
    let pod = object(json!({
        "restartPolicy": {"enum": ["Never"]}, "containers": {"type": "array", "items": container, "minItems": 1},
        "volumes": {"type": "array", "items": volume},
    }));
    let spec = object(json!({
        "completionMode": {"const": "Indexed"}, "completions": number, "parallelism": number,
        "backoffLimitPerIndex": {"type": "integer", "minimum": 0}, "maxFailedIndexes": number,
        "template": object(json!({"spec": pod})),
    }));
    let labels = json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}});
    object(json!({
        "apiVersion": {"const": "batch/v1"}, "kind": {"const": "Job"}, "spec": spec,
        "metadata": object(json!({"name": {"pattern": label, "maxLength": 63}, "labels": labels})),
    }))
}

#[test]
fn a_job_of_kubernetes_has_an_index_for_each_run() {
    let sweep = Sweep::new("[kubernetes]\nimage = \"registry.example/freehold:1\"\nclaim = \"sweeps\"");
    let outcome = finish(sweep.command(&["--runner", "kubernetes"]), b"").expect(0);
    assert!(outcome.stderr.contains("kubectl create -f"), "{}", outcome.stderr);
    let job: Value =
        serde_json::from_slice(&std::fs::read(sweep.path("s/kubernetes.json")).expect("written"))
            .expect("JSON");
    let validator = jsonschema::validator_for(&job_schema()).expect("a schema");
    let wrong: Vec<String> = validator.iter_errors(&job).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(job["spec"]["completions"], 6);
    // The command of a pod makes its run.
    let command: Vec<&str> = job["spec"]["template"]["spec"]["containers"][0]["command"]
        .as_array()
        .expect("words")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let mut pod = Command::new(command[0]);
    sweep.program("freehold", &format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_freehold")));
    pod.args(&command[1..]).env("JOB_COMPLETION_INDEX", "4").env("PATH", sweep.search_path());
    finish(pod, b"").expect(0);
    assert!(sweep.path("s/runs/4.json").exists());
}

/// A stand-in for the package ray calls each task at once.
#[test]
fn the_driver_of_ray_makes_all_runs() {
    let sweep = Sweep::new("");
    finish(sweep.command(&["--runner", "ray"]), b"").expect(0);
    sweep.program(
        "ray.py",
        "def init(): pass\ndef remote(**options):\n    class Task:\n        def __init__(self, f): self.remote = f\n    return Task\n\
         def wait(tasks): return tasks[:1], tasks[1:]\ndef get(results): return results\n",
    );
    let mut driver = Command::new("python3");
    driver.arg(sweep.path("s/ray_driver.py")).env("PYTHONPATH", sweep.folder.path());
    let outcome = finish(driver, b"").expect(0);
    assert!(outcome.stderr.contains("6 of 6 runs are done"), "{}", outcome.stderr);
    finish(sweep.command(&["--merge"]), b"").expect(0);
    sweep.is_whole();
}
