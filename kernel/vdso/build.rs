//! Builds the image: `image/vdso.rs` with the compiler that builds everything else, for the host's
//! x86-64 (whose `core` every toolchain has), and GNU ld, which links the kernel too. An undefined
//! symbol, a relocation that would be left for run time, and a writable section are errors of the
//! link. It is built twice: for any x86-64, and for CPUs with BMI2.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let sources = ["image/vdso.rs", "image/vdso.ld", "image/vdso.map", "src/page.rs"];
    for source in ["build.rs"].iter().chain(&sources) {
        println!("cargo:rerun-if-changed={source}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    build(&sources, &out.join("vdso.o"), &out.join("vdso.so"), &[]);
    build(&sources, &out.join("vdso-bmi2.o"), &out.join("vdso-bmi2.so"), &["-C", "target-feature=+bmi2"]);
}

/// Compiles the image with `options` more to `object`, and links it to `image`.
fn build(sources: &[&str], object: &Path, image: &Path, options: &[&str]) {
    let mut compile = Command::new(variable("RUSTC"));
    compile.args(["--edition=2024", "--crate-type=lib", "--crate-name=vdso", "--emit=obj", "--target"]);
    compile.arg(variable("HOST"));
    for option in [
        "opt-level=3",
        "panic=abort",
        "codegen-units=1",
        "relocation-model=pic",
        "overflow-checks=off",
        "debug-assertions=off",
        "debuginfo=0",
        // A profiler's signal or a debugger may come upon a program in here.
        "force-unwind-tables=yes",
    ] {
        compile.args(["-C", option]);
    }
    run(compile.args(options).arg("-o").arg(object).arg(sources[0]));

    let mut link = Command::new("ld");
    link.args([
        "-shared",
        "-soname=linux-vdso.so.1",
        "--hash-style=both",
        "--build-id=none",
        "--eh-frame-hdr",
    ]);
    link.args(["-Bsymbolic", "--no-undefined", "-z", "text", "-z", "max-page-size=4096", "-z", "norelro"]);
    link.args(["-z", "noexecstack", "--gc-sections", "--strip-all", "--orphan-handling=error"]);
    link.args(["-T", sources[1], "--version-script", sources[2], "-o"]);
    run(link.arg(image).arg(object));
}

fn variable(name: &str) -> OsString {
    std::env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
