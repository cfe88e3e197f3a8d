//! Starts the command under test, a few at a time.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::DirEntry;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Deadline of a command, longer than any takes on the slowest machine: an experiment runs many
/// VMs.
const DEADLINE: Duration = Duration::from_secs(900);
/// The VM's own deadline. A run takes seconds; only a hanging one reaches it.
pub const TIMEOUT: &str = "300";

static RUNNING: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// A permit to run so many VMs: there are as many permits as cores.
pub struct Permit(usize);

impl Permit {
    /// Waits for a permit to run one VM.
    pub fn take() -> Permit {
        Permit::take_many(1)
    }
    /// Waits for all permits: a VM whose figures depend on the haste of its host runs alone.
    pub fn take_all() -> Permit {
        Permit::take_many(Permit::all())
    }
    fn all() -> usize {
        std::thread::available_parallelism().map_or(1, |n| n.get())
    }
    fn take_many(count: usize) -> Permit {
        let most = Permit::all() - count;
        let running = RUNNING.lock().expect("no holder panics");
        let mut running = FREED.wait_while(running, |running| *running > most).expect("no holder panics");
        *running += count;
        Permit(count)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *RUNNING.lock().expect("no holder panics") -= self.0;
        FREED.notify_all();
    }
}

/// Returns the folder in which the command keeps what it fetched and what it said once.
pub fn cache_folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("freehold"))
}

/// Returns the command under test. Its user has seen the messages that each user gets once, also on
/// a machine that never ran it.
pub fn freehold() -> Command {
    static SEEN: std::sync::Once = std::sync::Once::new();
    SEEN.call_once(|| {
        let folder = cache_folder().expect("HOME is set");
        std::fs::create_dir_all(&folder).expect("mkdir");
        std::fs::write(folder.join("volumes-are-shared"), b"").expect("written");
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_freehold"));
    command.stdin(Stdio::null());
    command
}

/// Returns the kernel that these tests run on.
pub fn kernel() -> String {
    std::env::var("FREEHOLD_TEST_KERNEL").unwrap_or_else(|_| "freehold".into())
}

/// Returns `freehold run` with the kernel under test, emulated, under a deadline.
pub fn run_command() -> Command {
    let mut command = freehold();
    command.args(["run", "--accel", "tcg", "--timeout", TIMEOUT, "--kernel"]).arg(kernel());
    command
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status, or 128+N.
    pub status: i32,
    /// All of stdout.
    pub stdout: Vec<u8>,
    /// All of stderr.
    pub stderr: String,
}

impl Outcome {
    /// Returns stdout as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails the test unless the program ended with `status`; shows its output.
    #[track_caller]
    pub fn expect(self, status: i32) -> Outcome {
        assert_eq!(self.status, status, "stdout: {}\nstderr: {}", self.text(), self.stderr);
        self
    }
}

/// Returns the exit status as a shell gives it.
pub fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Waits for the end; kills and fails after the deadline.
#[track_caller]
pub fn wait(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("waiting works") {
            return status;
        }
        if started.elapsed() > DEADLINE {
            let _ = child.kill();
            panic!("nothing happened for {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program in the VM that talks with the test, line by line.
pub struct Dialogue {
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
    _permit: Permit,
}

impl Dialogue {
    /// Starts the program.
    pub fn begin(options: &[&str], program: &[&str]) -> Dialogue {
        let mut command = run_command();
        command.args(options).arg("--").args(program);
        Dialogue::with(command)
    }
    /// Starts this command.
    pub fn with(mut command: Command) -> Dialogue {
        let _permit = Permit::take();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let say = child.stdin.take().expect("piped");
        let hear = BufReader::new(child.stdout.take().expect("piped"));
        Dialogue { child, say, hear, _permit }
    }
    /// Returns the program's next line.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.hear.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }
    /// Answers with an empty line.
    pub fn go_on(&mut self) {
        self.say.write_all(b"\n").expect("it listens");
    }
    /// Returns how often each thread of the VM's process has slept, by thread.
    pub fn sleeps(&self) -> BTreeMap<OsString, u64> {
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        let status = |folder: &Path| std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let is_ours = |folder: &PathBuf| field(&status(folder), "PPid:") == Some(self.child.id().into());
        let vm = entries(Path::new("/proc")).map(|entry| entry.path()).find(is_ours).expect("a VM");
        let sleeps = |thread: DirEntry| {
            Some((thread.file_name(), field(&status(&thread.path()), "voluntary_ctxt_switches:")?))
        };
        entries(&vm.join("task")).filter_map(sleeps).collect()
    }
    /// Ends the command and with it the VM.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        wait(&mut self.child);
    }
    /// Ends its input; returns the exit status.
    pub fn end(mut self) -> i32 {
        drop(self.say);
        code(wait(&mut self.child))
    }
}

/// Returns how often a test turns a switch: `usual`, or what FREEHOLD_TURNS says.
pub fn turns(usual: usize) -> usize {
    std::env::var("FREEHOLD_TURNS").map_or(usual, |turns| turns.parse().expect("a number"))
}

/// Runs `command` to its end with `input` as its stdin.
#[track_caller]
pub fn finish(mut command: Command, input: &[u8]) -> Outcome {
    let _permit = Permit::take();
    finish_now(&mut command, input)
}

/// Runs a command that starts no VM to its end, as [`finish`] does.
#[track_caller]
pub fn finish_now(command: &mut Command, input: &[u8]) -> Outcome {
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let feeder = child.stdin.take().map(|mut stdin| {
        let input = input.to_vec();
        // A program may end before it has read everything.
        std::thread::spawn(move || drop(stdin.write_all(&input)))
    });
    let mut stdout = child.stdout.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let output = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = wait(&mut child);
    drop(feeder.map(|feeder| feeder.join()));
    let stderr = String::from_utf8_lossy(&errors.join().expect("joins").expect("reads")).into_owned();
    assert!(!stderr.contains("does not balance"), "the frame table at the program's end: {stderr}");
    Outcome { status: code(status), stdout: output.join().expect("joins").expect("reads"), stderr }
}

/// Runs a program in the VM: `options`, then `--`, then `program`.
#[track_caller]
pub fn run(options: &[&str], program: &[&str], input: &[u8]) -> Outcome {
    let mut command = run_command();
    command.args(options).arg("--").args(program);
    finish(command, input)
}

/// Runs a shell command line in the VM.
#[track_caller]
pub fn shell(line: &str) -> Outcome {
    run(&[], &["busybox", "ash", "-c", line], b"")
}

/// Returns the top folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns a guest program that `make guest` built.
#[track_caller]
pub fn guest_program(name: &str) -> PathBuf {
    // target/debug/freehold: the guest programs are in target/guest.
    let target = Path::new(env!("CARGO_BIN_EXE_freehold")).ancestors().nth(2).expect("a target folder");
    let path = target.join("guest").join(name);
    assert!(path.exists(), "{} is not built: make guest", path.display());
    path
}

/// Returns bytes with every value and every pair of neighbours, including all that a line
/// discipline would change.
pub fn all_bytes(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..size)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Makes a file in a temporary folder.
pub fn file_of(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("the temporary folder takes files");
    path
}

/// Returns `text` as an argument.
pub fn text(path: &impl AsRef<OsStr>) -> &str {
    path.as_ref().to_str().expect("temporary paths are UTF-8")
}

/// Runs a program of guest/conformance, the first of `words`, and checks every promise; a stock
/// Linux may break those that `lost_by_linux` names.
#[track_caller]
pub fn promises(mut command: Command, options: &[&str], words: &[&str], lost_by_linux: &[&str]) {
    let program = guest_program(&format!("conformance/{}", words[0]));
    command.args(options).arg("--").arg(&program).args(&words[1..]);
    let outcome = finish(command, b"");
    assert!(!outcome.stderr.contains("does not balance"), "{}", outcome.stderr);
    let said = outcome.text();
    let lost = |line: &str| kernel() == "linux" && lost_by_linux.iter().any(|promise| line.contains(promise));
    let broken: Vec<&str> = said.lines().filter(|line| line.starts_with("not ok") && !lost(line)).collect();
    assert!(broken.is_empty(), "{}\n{}", broken.join("\n"), outcome.stderr);
    let count = said.lines().filter(|line| line.starts_with("ok ") || lost(line)).count();
    assert_eq!(
        said.lines().last(),
        Some(&*format!("1..{count}")),
        "it stopped half-way: {said}\n{}",
        outcome.stderr
    );
}

/// Makes an empty disk in a temporary folder.
pub fn empty_disk(folder: &tempfile::TempDir, bytes: u64) -> PathBuf {
    let file = folder.path().join("disk");
    std::fs::File::create(&file).and_then(|file| file.set_len(bytes)).expect("an empty disk");
    file
}

/// Returns `freehold run` with a QEMU that puts its blkdebug filter with these `rules` before an
/// empty disk; and that disk, which must be the machine's first.
pub fn run_with_failing_disk(folder: &tempfile::TempDir, bytes: u64, rules: &str) -> (Command, PathBuf) {
    let disk = empty_disk(folder, bytes);
    let wrapper = folder.path().join("qemu");
    let plain = format!("if=none,id=disk0,format=raw,file={}", text(&disk));
    let failing = format!(
        "if=none,id=disk0,driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={},file.{rules}",
        text(&disk)
    );
    let qemu = std::env::var("FREEHOLD_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".into());
    let script = format!(
        "#!/bin/sh\nn=$#\nwhile [ $n -gt 0 ]; do a=$1; shift; n=$((n - 1)); \
         [ \"$a\" != '{plain}' ] || a='{failing}'; set -- \"$@\" \"$a\"; done\nexec {qemu} \"$@\"\n"
    );
    std::fs::write(&wrapper, script).expect("a script");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    let mut command = run_command();
    command.env("FREEHOLD_QEMU", &wrapper);
    (command, disk)
}

/// Fails unless the record begins with `schema`, with the value `name`.
#[track_caller]
pub fn has_schema(record: &serde_json::Value, name: &str) {
    let first = record.as_object().and_then(|fields| fields.iter().next());
    let (field, value) = first.expect("an object with fields");
    assert_eq!((field.as_str(), value.as_str()), ("schema", Some(name)));
}

/// Fails unless `record` matches docs/schema/`name`, and has no further field.
#[track_caller]
pub fn validate(record: &Value, name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema").join(name);
    let text = std::fs::read(&file).expect("docs/schema has it");
    let mut schema: Value = serde_json::from_slice(&text).expect("JSON");
    close(&mut schema);
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let wrong: Vec<String> =
        validator.iter_errors(record).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let first = schema["required"][0].as_str().map(str::to_owned);
    assert_eq!(record.as_object().and_then(|fields| fields.keys().next().cloned()), first);
    // A record without a required field is invalid.
    let mut broken = record.clone();
    broken.as_object_mut().expect("an object").remove("schema");
    assert!(!validator.is_valid(&broken));
}

/// Changes the schema so that it allows only the fields that it names.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("properties").is_some_and(Value::is_object)
                && !fields.contains_key("additionalProperties")
            {
                fields.insert("additionalProperties".into(), false.into());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}
