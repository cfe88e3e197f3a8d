//! Builds the image: `image/vdso.rs` with the compiler that builds everything else, for the host's x86-64 (whose `core` every
//! toolchain has), and GNU ld, which links the kernel too. An undefined symbol, a relocation that would be left for run
//! time, and a writable section are errors of the link.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let sources = ["image/vdso.rs", "image/vdso.ld", "image/vdso.map", "src/page.rs"];
    for source in ["build.rs"].iter().chain(&sources) {
        println!("cargo:rerun-if-changed={source}");
    }
    let variable = |name: &str| std::env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let (object, image) = (out.join("vdso.o"), out.join("vdso.so"));

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
    run(compile.arg("-o").arg(&object).arg(sources[0]));

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
    run(link.arg(&image).arg(&object));
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
