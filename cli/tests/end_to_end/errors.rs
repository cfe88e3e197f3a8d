//! Bad input gets one line that says what is wrong and how to fix it, and status 125 (126 and 127
//! for programs).

use crate::common::*;

/// Runs the command, which fails with status 125, and returns its one line.
#[track_caller]
fn error_line(arguments: &[&str]) -> String {
    failure_line(arguments, 125)
}

/// Runs the command, which fails with `status`, and returns its one line.
#[track_caller]
fn failure_line(arguments: &[&str], status: i32) -> String {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut command = freehold();
    // Errors come before the boot, so a kernel that cannot boot is not noticed.
    command.env("FREEHOLD_KERNEL", fake_kernel(&folder));
    let outcome = finish_now(command.args(arguments), b"").expect(status);
    assert_eq!(outcome.text(), "", "errors go to stderr");
    assert_eq!(outcome.stderr.lines().count(), 1, "one line: {}", outcome.stderr);
    assert!(outcome.stderr.starts_with("freehold: "), "{}", outcome.stderr);
    outcome.stderr
}

/// Checks that the line of `freehold run OPTIONS -- busybox true` holds all of `parts`.
#[track_caller]
fn refused(options: &[&str], parts: &[&str]) {
    let mut arguments = vec!["run", "--accel", "tcg"];
    arguments.extend(options);
    arguments.extend(["--", "busybox", "true"]);
    let line = error_line(&arguments);
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
}

#[test]
fn no_such_program() {
    let line = failure_line(&["run", "--", "no-such-program"], 127);
    assert!(line.contains("no such program: no-such-program") && line.contains("PATH"), "{line}");
    let line = failure_line(&["run", "--", "./no/such/program"], 127);
    assert!(line.contains("no such program: ./no/such/program"), "{line}");
}

#[test]
fn not_an_x86_64_program() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let program = |name: &str, bytes: &[u8]| {
        use std::os::unix::fs::PermissionsExt;
        let path = file_of(&folder, name, bytes);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    };
    let mut arm = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    arm.resize(64, 0);
    arm[18] = 183;
    let mut narrow = arm.clone();
    narrow[4] = 1;
    for (path, part) in [
        (program("arm", &arm), "arm64"),
        (program("narrow", &narrow), "32-bit"),
        (program("words", b"just words\n"), "#!/bin/sh"),
        (program("empty", b""), "empty file"),
        (program("script", b"#!/no/such/interpreter\n"), "/no/such/interpreter"),
        (file_of(&folder, "plain", b"#!/bin/sh\n"), "chmod +x"),
        (folder.path().to_path_buf(), "folder"),
    ] {
        let line = failure_line(&["run", "--", text(&path)], 126);
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
}

#[test]
fn a_missing_library_is_named_with_the_object_that_wants_it() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let source = file_of(&folder, "part.c", b"int part(void) { return 0; }\n");
    let main = file_of(&folder, "main.c", b"int part(void); int main(void) { return part(); }\n");
    let library = folder.path().join("libpart.so");
    let program = folder.path().join("program");
    let compile = |arguments: &[&str]| {
        finish_now(std::process::Command::new("cc").args(arguments), b"").expect(0);
    };
    compile(&["-shared", "-o", text(&library), text(&source)]);
    compile(&["-o", text(&program), text(&main), text(&library), "-Wl,-rpath,$ORIGIN"]);
    // The library is found by its RPATH as long as it exists.
    let mut dry = freehold();
    let kernel_file = fake_kernel(&folder);
    dry.env("FREEHOLD_KERNEL", &kernel_file);
    finish_now(dry.args(["run", "--accel", "tcg", "--dry-run", "--"]).arg(&program), b"").expect(0);
    std::fs::remove_file(&library).expect("remove");
    let line = error_line(&["run", "--", text(&program)]);
    assert!(line.contains("libpart.so is missing"), "{line}");
    assert!(line.contains(text(&program)), "{line}");
}

/// Makes a file that passes for our kernel in tests without a boot.
pub fn fake_kernel(folder: &tempfile::TempDir) -> std::path::PathBuf {
    file_of(folder, "kernel", b"\x7fELF")
}

#[test]
fn sizes_and_numbers() {
    refused(&["-m", "lots"], &["-m lots", "not a size", "512M"]);
    refused(&["-m", "0"], &["-m 0", "not a size"]);
    refused(&["--cpus", "0"], &["--cpus 0", "1 to 16"]);
    refused(&["--cpus", "17"], &["--cpus 17", "1 to 16"]);
    refused(&["--numa", "none"], &["--numa none"]);
    for time in ["soon", "0", "-1", "NaN", "1e300", "0s", "99999999h"] {
        refused(&[&format!("--timeout={time}")], &[&format!("--timeout {time}"), "seconds", "90s"]);
    }
    refused(&["--near-cache", "2G"], &["--near-cache 2G", "256M"]);
    refused(&["--icount", "--cpus", "2"], &["--icount", "--cpus"]);
    refused(&["--icount", "--accel", "kvm"], &["--accel"]);
    refused(&["--icount", "--seed", "dice"], &["--seed dice", "not a seed"]);
    refused(&["--seed", "2"], &["--icount"]);
}

#[test]
fn nodes_and_distances() {
    refused(&["--node", "mem=64M,cpus=0-1"], &["cpus=0-1", "only 1 CPU"]);
    refused(&["--node", "cpus=0"], &["no --node has memory"]);
    refused(&["--node", "mem=64M,speed=3"], &["speed=3", "mem=256M"]);
    refused(&["--numa", "2", "--distance", "0,2,20"], &["--distance 0,2,20", "A,B,D"]);
    refused(&["-m", "1G", "--node", "mem=64M"], &["1G", "64M"]);
}

#[test]
fn memory_that_grows() {
    refused(&["--memory-max", "lots"], &["--memory-max lots", "not a size"]);
    refused(&["-m", "512M", "--memory-max", "256M"], &["256M", "less than the 512M", "-m"]);
    refused(&["-m", "128M", "--memory-max", "131073K"], &["steps of 2M", "--memory-max 128M"]);
    refused(&["--memory-max", "1G", "--node", "mem=64M,max=128M"], &["--memory-max", "max=", "twice"]);
    refused(&["--node", "mem=64M,max=32M"], &["max is less than mem"]);
    refused(&["--node", "max=64M"], &["too little to boot"]);
}

#[test]
fn too_little_memory_says_how_much_is_needed() {
    refused(&["-m", "4M"], &["4M", "too little", "this needs"]);
}

#[test]
fn the_memory_that_is_said_to_be_needed_is_enough_for_many_small_files() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for number in 0..4000 {
        file_of(&folder, &format!("{number}"), b"x");
    }
    let run = |memory: &str| {
        let mut command = run_command();
        command.args(["-m", memory, "-a", text(&folder.path()), "--", "busybox", "true"]);
        finish(command, b"")
    };
    let refusal = run("16M").expect(125).stderr;
    let needed = refusal.split("this needs ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a size");
    run(needed).expect(0);
}

#[test]
fn disks() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let odd = file_of(&folder, "odd.img", &[0; 700]);
    refused(&["--disk", "/no/such/disk"], &["/no/such/disk", "no such file", "truncate"]);
    refused(&["--disk", text(&odd)], &["700 bytes", "512"]);
    refused(&["--disk", text(&folder.path())], &["neither a file nor a block device"]);
    refused(&["--disk", &format!("{},iops=fast", text(&odd))], &["iops"]);
    refused(&["--disk", "null="], &["null=", "no size", "null=64M"]);
    refused(&["--disk", "null=64M,ro"], &["latency=TIME"]);
    refused(&["--disk", "null=64M,latency=slow"], &["no time", "latency=2ms"]);
    refused(&["--disk", "null=64M,latency=11m"], &["10 minutes"]);
}

#[test]
fn files_and_folders() {
    refused(&["-a", "/no/such/file"], &["-a /no/such/file", "no such file"]);
    refused(&["-v", "/etc"], &["-v /etc", "HOST:GUEST"]);
    refused(&["-v", "/no/such/file:/x"], &["/no/such/file"]);
    refused(&["-v", "/etc:etc"], &["absolute"]);
    refused(&["--cwd", "tmp"], &["--cwd tmp", "absolute"]);
    refused(&["--root", "/no/such/folder"], &["--root /no/such/folder", "no such folder"]);
    refused(&["--root", "/etc/passwd"], &["--root /etc/passwd", "it is no folder"]);
    refused(&["-e", "=x"], &["-e =x"]);
}

#[test]
fn unknown_options_and_kernels() {
    let line = error_line(&["run", "--nonsense", "--", "x"]);
    assert!(line.contains("--nonsense") && line.contains("--help"), "{line}");
    let line = error_line(&["run"]);
    assert!(line.contains("PROGRAM"), "{line}");
    refused(&["--kernel", "/no/such/kernel"], &["/no/such/kernel", "freehold, linux"]);
    refused(&["--kernel", "/etc/passwd"], &["/etc/passwd", "no kernel"]);
}

/// A stock Linux without a driver for it would wait for its disks for ever.
#[test]
fn an_iommu_that_a_stock_linux_has_no_driver_for() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let linux = file_of(&folder, "vmlinux", b"\x7fELF, Linux version 6.1");
    for more in [&[][..], &["--dma", "direct"]] {
        let options = [&["--kernel", text(&linux), "--iommu=virtio"][..], more].concat();
        refused(&options, &["--iommu=virtio needs the Freehold kernel", "write --iommu"]);
    }
}

#[test]
fn qemu_missing_or_killed() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = |qemu: &std::path::Path| {
        let mut command = freehold();
        // The named kernel has no symbols for a measurement.
        command.env_remove("FREEHOLD_COVERAGE");
        command.env("FREEHOLD_QEMU", qemu).env("FREEHOLD_KERNEL", fake_kernel(&folder));
        finish_now(command.args(["run", "--accel", "tcg", "--", "busybox", "true"]), b"").expect(125).stderr
    };
    let line = run(std::path::Path::new("/no/such/qemu"));
    assert!(line.contains("/no/such/qemu"), "{line}");
    let script = |name: &str, lines: &str| {
        let file = file_of(&folder, name, format!("#!/bin/sh\n{lines}\n").as_bytes());
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        file
    };
    let line = run(&script("killed", "kill -9 $$"));
    assert!(line.contains("killed by signal 9") && line.lines().count() == 1, "{line}");
    let line = run(&script("aborted", "echo 'qemu.c:7: cpu is not idle' >&2; kill -ABRT $$"));
    assert!(line.contains("killed by signal 6: qemu.c:7: cpu is not idle"), "{line}");
    let line = run(&script("refusing", "echo 'qemu: no room' >&2; exit 1"));
    assert!(line.contains("no room"), "{line}");
}

#[test]
fn an_error_is_in_the_json_file_too() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    error_line(&["run", "--json", text(&file), "-m", "lots", "--", "busybox"]);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    assert_eq!(json["outcome"], "error");
    assert_eq!(json["status"], 125);
    assert!(json["sentence"].as_str().expect("text").contains("not a size"));
}

#[test]
fn a_place_that_cannot_be_written_to_is_refused_before_the_program_runs() {
    refused(
        &["--json", "/nonexistent/out.json"],
        &["/nonexistent/out.json", "/nonexistent must be a folder"],
    );
    refused(&["--json", "/"], &["cannot write /: it is a folder"]);
    let line = error_line(&["scope", "--json", "out", "--html", "./out", "--", "busybox", "true"]);
    assert!(line.contains("./out is named for two outputs"), "{line}");
}

#[test]
fn a_fifo_and_a_loop_of_links_are_no_programs_and_a_device_of_the_host_no_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (fifo, link) = (folder.path().join("fifo"), folder.path().join("link"));
    std::os::unix::fs::symlink(&link, &link).expect("a link");
    let mode = rustix::fs::Mode::from_raw_mode(0o755);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    let line = failure_line(&["run", "--", text(&fifo)], 126);
    assert!(line.contains("is no regular file"), "{line}");
    let line = failure_line(&["run", "--", text(&link)], 126);
    assert!(line.contains("symbolic links"), "{line}");
    refused(&["-v", "/dev/tty:/x"], &["-v /dev/tty", "of the host"]);
    refused(&["-v", "/tmp:/"], &["the guest's root", "--root"]);
    refused(&["-v", "/tmp:/x:foo"], &["-v /tmp:/x:foo", "foo is no mode", "ro, rw or copy"]);
    // A FIFO of the host becomes a FIFO in the image.
    refused(&["-a", text(&fifo), "-m", "1M"], &["too little to boot"]);
}

#[test]
fn a_qemu_that_is_none_is_named() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let plain = file_of(&folder, "plain", b"");
    for (qemu, part) in [
        ("/bin/true", "/bin/true is not QEMU"),
        (text(&plain), "not executable"),
        ("/tmp", "a folder"),
        ("/no/such", "no such file"),
    ] {
        let mut command = freehold();
        command.env("FREEHOLD_KERNEL", fake_kernel(&folder)).env("FREEHOLD_QEMU", qemu);
        let outcome =
            finish_now(command.args(["run", "--accel", "tcg", "--", "busybox", "true"]), b"").expect(125);
        assert!(
            outcome.stderr.contains(part) && outcome.stderr.contains("FREEHOLD_QEMU"),
            "{}",
            outcome.stderr
        );
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn values_that_begin_with_a_dash_are_told_with_their_option() {
    refused(&["-m", "-5M"], &["-m", "-5M"]);
    refused(&["--cpus", "-1"], &["--cpus -1: not a number of CPUs"]);
    refused(&["--timeout", "-1"], &["--timeout -1: not a time"]);
    refused(&["--gdb=0"], &["--gdb", "1 to 65535"]);
    refused(&["--append", &"x".repeat(5000)], &["--append", "4095"]);
    refused(&["--changes", "/no/such/folder"], &["--changes /no/such/folder", "make the folder"]);
}

#[test]
fn a_record_of_coverage_that_cannot_be_written_is_named_before_the_run() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut command = freehold();
    command.env("FREEHOLD_KERNEL", fake_kernel(&folder)).env("FREEHOLD_COVERAGE", "/no/such/file");
    let outcome =
        finish_now(command.args(["run", "--accel", "tcg", "--", "busybox", "true"]), b"").expect(125);
    assert!(outcome.stderr.contains("FREEHOLD_COVERAGE=/no/such/file: cannot write"), "{}", outcome.stderr);
}
