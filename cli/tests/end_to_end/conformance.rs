//! The C programs of guest/conformance: each prints one line per promise (`ok …`, `not ok …`) and a
//! closing plan.

use crate::common::*;

/// Runs one program in the VM and checks every line.
#[track_caller]
pub fn conforms(name: &str) {
    conforms_with(name, &[], &[], &[]);
}

/// The same with more options, and arguments for the program. A stock Linux may break the promises
/// `lost_by_linux`.
#[track_caller]
pub fn conforms_with(name: &str, options: &[&str], arguments: &[&str], lost_by_linux: &[&str]) {
    let program = guest_program(&format!("conformance/{name}"));
    let cpus: &[&str] = if options.contains(&"--cpus") { &[] } else { &["--cpus", "2"] };
    let options = [cpus, options].concat();
    let outcome = run(&options, &[&[text(&program)], arguments].concat(), b"");
    let said = outcome.text();
    let lost = |line: &str| kernel() == "linux" && lost_by_linux.iter().any(|promise| line.contains(promise));
    let broken: Vec<&str> = said.lines().filter(|line| line.starts_with("not ok") && !lost(line)).collect();
    assert!(broken.is_empty(), "{}\n{}", broken.join("\n"), outcome.stderr);
    let promises = said.lines().filter(|line| line.starts_with("ok ") || lost(line)).count();
    assert_eq!(
        said.lines().last(),
        Some(&*format!("1..{promises}")),
        "it stopped half-way: {said}\n{}",
        outcome.stderr
    );
    assert!(outcome.status == 0 || said.lines().any(lost), "{}", outcome.stderr);
}

#[test]
fn memory() {
    conforms("memory");
}

#[test]
fn messages() {
    conforms("messages");
}

#[test]
fn mqueue() {
    conforms("mqueue");
}

#[test]
fn inet() {
    conforms("inet");
}

#[test]
fn ends() {
    conforms("ends");
}

#[test]
fn corks() {
    conforms("corks");
}

#[test]
fn sockmem() {
    conforms_with("sockmem", &["-m", "512M"], &[], &[]);
    conforms_with("sockmem", &["-m", "512M"], &["crowd"], &[]);
}

#[test]
fn network() {
    conforms("network");
}

#[test]
fn rawsockets() {
    conforms("rawsockets");
    conforms_with("rawsockets", &["--cpus", "1"], &[], &[]);
}

#[test]
fn beside() {
    conforms("beside");
}

#[test]
fn buffers() {
    conforms_with("buffers", &["-m", "512M"], &[], &[]);
}

#[test]
fn sockopts() {
    conforms("sockopts");
}

#[test]
fn socketfilters() {
    conforms("socketfilters");
}

#[test]
fn netlink() {
    conforms("netlink");
}

#[test]
fn processes() {
    conforms("processes");
}

#[test]
fn signals() {
    conforms("signals");
}

#[test]
fn pipes() {
    conforms("pipes");
}

#[test]
fn files() {
    conforms("files");
}

/// A stock Linux has its overlay in a module, and shows numbers of the trees below when it lists a
/// directory of two file systems.
#[test]
fn overlay() {
    let Some(module) = linux_module("kernel/fs/overlayfs/overlay.ko") else { return conforms("overlay") };
    let volume = format!("{}:/overlay.ko", module.display());
    conforms_with("overlay", &["-v", &volume], &["/overlay.ko"], &["with the numbers that stat tells"]);
}

/// A module of the stock Linux that is under test.
fn linux_module(name: &str) -> Option<std::path::PathBuf> {
    if kernel() != "linux" {
        return None;
    }
    let versions = std::fs::read_dir(cache_folder()?.join("linux")).ok()?.flatten();
    let modules = versions.flat_map(|version| {
        std::fs::read_dir(version.path().join("lib/modules")).into_iter().flatten().flatten()
    });
    modules.map(|folder| folder.path().join(name)).find(|path| path.exists())
}

#[test]
fn terminal() {
    conforms("terminal");
}

#[test]
fn cores() {
    conforms_with("cores", &["-m", "1G"], &[], &[]);
    conforms_with("cores", &["-m", "1G", "--cpus", "1"], &[], &[]);
}

#[test]
fn watch() {
    conforms("watch");
    conforms_with("watch", &["--cpus", "1"], &[], &[]);
}

#[test]
fn takeover() {
    conforms("takeover");
    conforms_with("takeover", &["--cpus", "1"], &[], &[]);
}

#[test]
fn threads() {
    conforms("threads");
}

/// The stock Linux is 6.1, whose futexes end with futex_waitv.
#[test]
fn futexes() {
    if kernel() != "linux" {
        conforms("futexes");
    }
}

#[test]
fn pifutexes() {
    for cpus in ["1", "4"] {
        conforms_with("pifutexes", &["--cpus", cpus], &[], &[]);
    }
}

#[test]
fn affinity() {
    for cpus in ["2", "4"] {
        conforms_with("affinity", &["--cpus", cpus], &[], &[]);
    }
}

#[test]
fn realtime() {
    for cpus in ["1", "4"] {
        conforms_with("realtime", &["--cpus", cpus], &[], &[]);
    }
}

#[test]
fn scheduling() {
    conforms("scheduling");
}

#[test]
fn rseq() {
    for cpus in ["1", "4"] {
        conforms_with("rseq", &["--cpus", cpus], &[], &[]);
    }
}

#[test]
fn seccomp() {
    for cpus in ["1", "4"] {
        conforms_with("seccomp", &["--cpus", cpus], &[], &[]);
    }
}

#[test]
fn listeners() {
    for cpus in ["1", "4"] {
        conforms_with("listeners", &["--cpus", cpus], &[], &[]);
    }
}

#[test]
fn mounts() {
    conforms("mounts");
}

/// 10,000 times in make test-long. Linux ends rings in a worker, which is not waited for.
#[test]
fn leaks() {
    conforms_with("leaks", &["--memory", "512M"], &["500"], &["nor of rings"]);
}

#[test]
fn times() {
    conforms("times");
}

#[test]
fn keys() {
    conforms("keys");
}

#[test]
fn retime() {
    conforms("retime");
}

/// Linux rounds its clocks differently between two updates of its page; its promises are the same.
#[test]
fn vdso() {
    conforms("vdso");
    conforms_with("vdso", &["--cpus", "1", "--icount"], &[], &[]);
}

#[test]
fn many() {
    conforms("many");
}

/// Calls that Linux refuses, with its errno, and files that report a change: differences that other
/// test suites found.
#[test]
fn refusals() {
    conforms("refusals");
}

/// Rights over a set-user-ID program that the user who started it has. All rounds of its races run
/// in make test-long.
#[test]
fn setid() {
    // Two that remove a name and one that makes it, beside the rest.
    conforms_with("setid", &["--cpus", "4"], &["20"], &[]);
}

/// Settings below /proc/sys that root writes, by what they change.
#[test]
fn settings() {
    conforms_with("settings", &["-m", "512M"], &[], &[]);
}

#[test]
fn inotify() {
    conforms("inotify");
    conforms_with("inotify", &["--cpus", "1"], &[], &[]);
}

#[test]
fn sigio() {
    conforms("sigio");
    conforms_with("sigio", &["--cpus", "1"], &[], &[]);
}

#[test]
fn dnotify() {
    conforms("dnotify");
    conforms_with("dnotify", &["--cpus", "1"], &[], &[]);
}

#[test]
fn handles() {
    conforms("handles");
}

#[test]
fn leases() {
    conforms("leases");
    conforms_with("leases", &["--cpus", "1"], &[], &[]);
}

#[test]
fn userfaults() {
    conforms("userfaults");
    conforms_with("userfaults", &["--cpus", "1"], &[], &[]);
    conforms_with("userfaults", &["--cpus", "4", "--swap", "64M"], &[], &[]);
}

#[test]
fn watched() {
    conforms_with("watched", &["--swap", "64M"], &[], &[]);
    conforms_with("watched", &["--cpus", "1", "--swap", "64M"], &[], &[]);
    conforms_with("watched", &["--cpus", "4", "--swap", "64M"], &[], &[]);
}

#[test]
fn pidfd() {
    conforms("pidfd");
}

#[test]
fn frames() {
    conforms("frames");
}

#[test]
fn fanotify() {
    conforms("fanotify");
}

#[test]
fn framerings() {
    conforms("framerings");
}

#[test]
fn ringsockets() {
    conforms("ringsockets");
}

#[test]
fn pkeys() {
    conforms("pkeys");
}

#[test]
fn zombies() {
    conforms("zombies");
    conforms_with("zombies", &["--cpus", "4"], &[], &[]);
}

#[test]
fn tracepoints() {
    conforms("tracepoints");
    conforms_with("tracepoints", &["--cpus", "1"], &[], &[]);
}

#[test]
fn tracing() {
    conforms("tracing");
    conforms_with("tracing", &["--cpus", "1"], &[], &[]);
}

/// vm.overcommit_memory, and what counts as promised.
#[test]
fn overcommit() {
    conforms("overcommit");
}

/// personality(2), and the calls that it changes.
#[test]
fn personality() {
    conforms("personality");
}

#[test]
fn sysv() {
    conforms("sysv");
}

#[test]
fn namespaces() {
    conforms("namespaces");
}

#[test]
fn timens() {
    conforms_with("timens", &[], &[], &["timeouts of io_uring"]);
}

#[test]
fn pidns() {
    conforms("pidns");
}

#[test]
fn cgroups() {
    conforms("cgroups");
    conforms_with("cgroups", &["--cpus", "1"], &[], &[]);
}

#[test]
fn groupmem() {
    // Linux kills a process of the group.
    let lost_by_linux = ["swapoff brings a group's pages back though it is at its limit"];
    conforms_with("groupmem", &["--swap", "64M"], &[], &lost_by_linux);
    conforms_with("groupmem", &["--cpus", "1", "-m", "1G"], &[], &[]);
}

#[test]
fn groupcpu() {
    conforms("groupcpu");
    conforms_with("groupcpu", &["--cpus", "1"], &[], &[]);
}

#[test]
fn groupobjects() {
    conforms_with("groupobjects", &["-m", "512M"], &[], &[]);
}

#[test]
fn proc() {
    conforms("proc");
}

#[test]
fn long_texts() {
    conforms_with("long-texts", &["-m", "512M"], &[], &[]);
}

// Before 6.3 Linux' O_DIRECT holds references instead of pins, so a fork parts the device from the
// program. An io_uring request that it hands to a worker finds its memory only then.
const LOST_BY_LINUX: [&str; 7] = [
    "34, ",
    "35, ",
    "36, ",
    "41, ",
    "lose nothing to forks",
    "and their memory gone",
    "survives a fork, and the child",
];

/// Runs a program with a disk to write, and a slow one whose sectors are filled with their numbers,
/// on each of `machines`.
#[track_caller]
fn conforms_on_disks(name: &str, machines: &[&[&str]]) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &[0; 2 << 20]);
    let numbered: Vec<u8> = (0..64 << 10).map(|at| (at / 512) as u8).collect();
    // QEMU lets a tenth of a second's requests through at once: a disk of 10 or more that has
    // rested answers two without a wait.
    let slow = format!("{},ro,iops=5", text(&file_of(&folder, "slow", &numbered)));
    let disks = ["--disk", text(&disk), "--disk", &slow];
    for machine in machines {
        let options = [&disks[..], machine].concat();
        conforms_with(name, &options, &["/dev/vda", "/dev/vdb"], &LOST_BY_LINUX);
    }
}

/// One CPU and four, each with swap and without; large enough for pages of 2 MiB, which rows are
/// tried with beside those of 4 KiB.
const MACHINES: [&[&str]; 4] = [
    &["--memory", "768M", "--cpus", "1"],
    &["--memory", "768M", "--cpus", "1", "--swap", "64M"],
    &["--memory", "768M", "--cpus", "4"],
    &["--memory", "768M", "--cpus", "4", "--swap", "64M"],
];

/// It has 4 KiB pages only, whatever is advised.
const SMALL_MACHINE: &[&str] = &["--memory", "192M", "--cpus", "4", "--swap", "64M"];

#[test]
fn cow() {
    // By row: a page that is held by a reference and not pinned, the cost of holding one piece for
    // the others, and pieces of a formerly large page.
    let lost_by_linux = ["05, 2 MiB", "06, ", "17, ", "18, 4 KiB: a private", "72, "];
    for options in [&MACHINES[..], &[SMALL_MACHINE]].concat() {
        conforms_with("cow", options, &[], &lost_by_linux);
    }
}

#[test]
fn pins() {
    // Linux counts pins a CPU at a time, and forgets that a device writes a piece of 2 MiB.
    let lost_by_linux = ["50, 2 MiB: what a device may write", "pins are counted", "and so are their ends"];
    for options in [&MACHINES[..], &[SMALL_MACHINE]].concat() {
        conforms_with("pins", options, &[], &lost_by_linux);
    }
}

/// A disk larger than memory.
#[test]
fn cache() {
    let (memory, size) = if kernel() == "linux" { ("96M", 128 << 20) } else { ("32M", 64 << 20) };
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(size)).expect("an empty disk");
    conforms_with("cache", &["--memory", memory, "--disk", text(&disk)], &["/dev/vda"], &[]);
}

/// The argument of programs that leave out what Debian's 6.1 does not have yet.
fn without_newer() -> &'static [&'static str] {
    if kernel() == "linux" { &["old"] } else { &[] }
}

#[test]
fn huge() {
    conforms_with("huge", &["--memory", "512M"], without_newer(), &[]);
}

#[test]
fn hugetlb() {
    conforms_with("hugetlb", &["--memory", "512M"], &[], &[]);
}

#[test]
fn hugefiles() {
    conforms_with("hugefiles", &["--memory", "512M"], &[], &[]);
}

#[test]
fn views() {
    conforms_with("views", &[], without_newer(), &[]);
}

/// A page that stays clean under migration counts as written on Linux (its pte_mkdirty sets both
/// marks).
#[test]
fn migrate() {
    let options = ["--memory", "512M", "--numa", "2"];
    conforms_with("migrate", &options, &[], &["a page that was not does not become so"]);
}

#[test]
fn direct() {
    conforms_on_disks("direct", &MACHINES);
}

#[test]
fn aio() {
    conforms_on_disks("aio", &[MACHINES[0], MACHINES[3]]);
}

#[test]
fn uring() {
    conforms_on_disks("uring", &[MACHINES[0], MACHINES[3]]);
}
