//! Freehold as others use it: as cargo's runner, in pytest, and as a GitHub action.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;

/// The targets that tests can be built for here: musl's where its library is installed.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-musl", "x86_64-unknown-linux-gnu"];

/// Returns the cargo that builds these tests, with `freehold run` and `options` as the runner of
/// `target`.
fn cargo(package: &Path, target: &str, options: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let variable = format!("CARGO_TARGET_{}_RUNNER", target.to_uppercase().replace('-', "_"));
    let runner = format!("{} run --accel tcg {options} --", env!("CARGO_BIN_EXE_freehold"));
    command.current_dir(package).env(variable, runner).env("CARGO_TARGET_DIR", package.join("target"));
    command.args(["test", "--quiet", "--offline", "--target", target]);
    command
}

/// Returns the first of these targets that programs can be built for.
fn target() -> &'static str {
    let is_installed = |target: &&str| {
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir", "--target", target]);
        let said = rustc.output().expect("rustc").stdout;
        Path::new(String::from_utf8_lossy(&said).trim()).exists()
    };
    TARGETS.into_iter().find(is_installed).expect("a target of rustc's")
}

fn package(folder: &tempfile::TempDir) -> PathBuf {
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write("Cargo.toml", "[package]\nname = \"guest\"\nedition = \"2021\"\n[workspace]\n");
    write("data/poem", "one\ntwo\n");
    write(
        "src/lib.rs",
        "#[test] fn reads_a_file_of_the_package() {\n    let poem = std::fs::read_to_string(\"data/poem\").unwrap();\n    \
         assert_eq!(poem.lines().count(), 2);\n}\n\
         #[test] fn is_in_a_vm() {\n    let version = std::fs::read_to_string(\"/proc/version\").unwrap();\n    \
         assert!(version.contains(\"Freehold\") || std::env::var_os(\"NOT_OURS\").is_some(), \"{version}\");\n}\n\
         #[test] fn fails() {\n    panic!(\"on purpose\");\n}\n",
    );
    folder.path().to_owned()
}

#[test]
fn cargo_runs_tests_in_a_vm_with_their_arguments_status_and_files() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (package, target) = (package(&folder), target());
    let with_files = "-v .:/work --cwd /work";
    let mut command = cargo(&package, target, with_files);
    command.args(["--lib", "--", "--skip", "fails"]);
    let good = finish(command, b"").expect(0);
    assert!(
        good.text().contains("2 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out"),
        "{}",
        good.text()
    );
    let mut command = cargo(&package, target, with_files);
    command.args(["--lib", "--", "--exact", "fails"]);
    let bad = finish(command, b"").expect(101);
    assert!(bad.text().contains("on purpose") && bad.text().contains("1 failed"), "{}", bad.text());
    // Without them the package's files are not there, and the test says so.
    let mut command = cargo(&package, target, "");
    command.args(["--lib", "--", "reads_a_file"]);
    let none = finish(command, b"").expect(101);
    assert!(none.text().contains("NotFound"), "{}", none.text());
}

/// Runs the Python tests of a folder of integrations with the command under test on the PATH.
#[track_caller]
fn python_tests(folder: &str, files: &str) {
    let place = tempfile::tempdir().expect("temporary folder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_freehold"), place.path().join("freehold"))
        .expect("a link");
    let path = format!("{}:{}", place.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("python3");
    command.args(["-m", "unittest", "discover", "-p", files]).arg(repository().join(folder));
    command.env("PATH", path).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("FREEHOLD");
    let outcome = finish(command, b"").expect(0);
    assert!(outcome.stderr.contains("\nOK\n"), "{}", outcome.stderr);
}

#[test]
fn python_runs_programs_and_gets_streams_status_and_record() {
    python_tests("integrations/pytest/tests", "test_freehold_run.py");
}

#[test]
fn the_steps_of_the_github_action_run_a_program_and_tell_its_end() {
    python_tests("integrations/github-action", "test_*.py");
}
