//! Kprobes: INT3 in the kernel's text on every node, and the displaced instruction run elsewhere.

use crate::common::*;
use crate::replica::watched;

const BEGIN: &str = "cd /sys/kernel/tracing\n";

/// Runs a script in the folder of tracefs; returns its lines.
fn lines(options: &[&str], script: &str) -> Vec<String> {
    let script = format!("{BEGIN}{script}");
    let told = run(options, &["busybox", "ash", "-c", &script], b"").expect(0);
    told.text().lines().map(str::to_owned).collect()
}

/// Defines a probe on the call that makes a directory, makes some on each CPU, and prints what was
/// recorded and counted, and whether all copies of text are equal before and after its removal.
const COUNTED: &str = r#"
echo 'p:made freehold_kernel::fs::calls::names::sys_mkdir' >kprobe_events
cat kprobe_events events/kprobes/made/enable; grep made available_events
busybox mkdir /tmp/before
echo 1 >events/kprobes/made/enable; cat events/kprobes/made/enable set_event
for k in 1 2 3; do busybox taskset 1 busybox mkdir /tmp/a$k; busybox taskset $LAST busybox mkdir /tmp/b$k; done
echo 1 >/sys/kernel/debug/replica && echo equal
echo 0 >events/kprobes/made/enable; busybox mkdir /tmp/after
echo 1 >/sys/kernel/debug/replica && echo equal
busybox awk '{print $1, $2, $3}' kprobe_profile
grep -c 'busybox-[0-9 ]*\[...\] [0-9 .]*: made: (freehold_kernel::fs::calls::names::sys_mkdir+0x0/0x[0-9a-f]*)$' trace
grep -c . kprobe_events; echo -:made >>kprobe_events; grep -c . kprobe_events; ls events/kprobes"#;

#[test]
fn a_probe_on_a_system_calls_function_records_each_call_and_nothing_else() {
    if kernel() != "freehold" {
        return;
    }
    for (options, last) in [(&["-m", "128M"][..], 1), (&["-m", "256M", "--cpus", "2", "--numa", "2"], 2)] {
        let script = format!("{BEGIN}LAST={last}{COUNTED}");
        let (told, results) = watched(options, &script);
        let expected = [
            "p:kprobes/made freehold_kernel::fs::calls::names::sys_mkdir",
            "0",
            "kprobes:made",
            "1",
            "kprobes:made",
            "equal",
            "equal",
            "made 6 0",
            "6",
            "1",
            "0",
            "enable",
        ];
        assert_eq!(told.lines().collect::<Vec<_>>(), expected, "{options:?}");
        let oracle = &results["oracle"];
        assert_eq!(oracle["total"], 0, "{oracle}");
    }
}

#[test]
fn places_and_names_that_cannot_be_are_refused_each_for_its_reason() {
    if kernel() != "freehold" {
        return;
    }
    // A push of rbp and a move of three bytes begin each function.
    let script = r#"
try() { echo "$1" >>kprobe_events && echo "taken: $1"; }
try 'p:inside freehold_kernel::system::sys_uname+2'
try 'p:unknown freehold_kernel::system::sys_unknown'
try 'p:several {closure#0}'
try 'p:beyond freehold_kernel::system::sys_uname+0x100000'
try 'p:nowhere 0x1000'
try 'p:entry syscall_entry'
try 'p:own freehold_kernel::tracing::record'
try 'r:return freehold_kernel::system::sys_uname'
try 'p:argument freehold_kernel::system::sys_uname name=%di'
try 'p:1x freehold_kernel::system::sys_uname'
try 'p:sched/sched_switch freehold_kernel::system::sys_uname'
try '-:absent'
cat kprobe_events
try 'p:twice freehold_kernel::system::sys_uname'
try 'p:twice freehold_kernel::system::sys_sethostname'
try 'p:mine/twice freehold_kernel::system::sys_uname+1'
try 'p:third freehold_kernel::system::sys_uname'
echo 1 >events/kprobes/twice/enable; echo 1 >events/kprobes/third/enable
echo 1 >events/mine/enable; busybox uname -s; try '-:twice'; echo -n >kprobe_events || echo stays
echo 0 >events/enable; cat events/mine/twice/enable; echo -n >kprobe_events; cat kprobe_events"#;
    let script = format!("{BEGIN}{script}");
    let told = run(&[], &["busybox", "ash", "-c", &script], b"").expect(0);
    let expected = [
        "taken: p:twice freehold_kernel::system::sys_uname",
        "taken: p:mine/twice freehold_kernel::system::sys_uname+1",
        "taken: p:third freehold_kernel::system::sys_uname",
        "Linux",
        "stays",
        "0",
    ];
    assert_eq!(told.text().lines().collect::<Vec<_>>(), expected, "{}", told.stderr);
    let reasons: Vec<&str> =
        told.stderr.lines().filter_map(|line| line.rsplit_once(": ").map(|(_, reason)| reason)).collect();
    let expected = [
        "Invalid or incomplete multibyte or wide character",
        "No such file or directory",
        "Cannot assign requested address",
        "Invalid argument",
        "Invalid argument",
        "Invalid argument",
        "Invalid argument",
        "Operation not supported",
        "Operation not supported",
        "Invalid argument",
        "File exists",
        "No such file or directory",
        "File exists",
        "Device or resource busy",
        "Device or resource busy",
        "Device or resource busy",
    ];
    assert_eq!(reasons, expected, "{}", told.stderr);
}

#[test]
fn probes_at_every_instruction_of_a_function_change_nothing_that_it_does() {
    if kernel() != "freehold" {
        return;
    }
    // Each offset that is an instruction's beginning gets a probe; all are armed at once.
    let script = r#"
n=0; while [ $n -lt 600 ]; do echo "p:at$n freehold_kernel::fs::calls::names::sys_mkdir+$n" >>kprobe_events; n=$((n+1)); done 2>/dev/null
all=$(grep -c . kprobe_events); [ $all -ge 10 ] && echo many
for dir in events/kprobes/at*; do echo 1 >$dir/enable; done 2>/dev/null
k=0; while [ $k -lt 20 ]; do busybox mkdir /tmp/d$k || echo failed; busybox mkdir /tmp/d$k 2>/dev/null && echo twice; k=$((k+1)); done
ls -d /tmp/d* | grep -c .
busybox awk '$1 == "at0" { print $2, $3 }' kprobe_profile
busybox awk '$2 > 0 { all++ } END { if (all >= 5) print "hit" }' kprobe_profile
echo 0 >events/enable; echo -n >kprobe_events; busybox mkdir /tmp/last && echo 1 >/sys/kernel/debug/replica && echo equal"#;
    assert_eq!(
        lines(&["--cpus", "2", "--numa", "2", "-m", "256M"], script),
        ["many", "20", "40 0", "hit", "equal"]
    );
}

#[test]
fn probes_are_armed_and_disarmed_under_load_while_cpus_run_into_them() {
    if kernel() != "freehold" {
        return;
    }
    let times = turns(15);
    let script = format!(
        "{BEGIN}echo 'p freehold_kernel::fs::calls::names::sys_mkdir' >kprobe_events
for f in freehold_kernel::task::ids::sys_getpid freehold_kernel::task::ids::sys_getuid; do echo \"p $f\" >>kprobe_events; done
for k in 1 2 3; do (while [ ! -e /tmp/stop ]; do busybox seq 20 | busybox sort -r >/dev/null; done) & done
i=0
while [ $i -lt {times} ]; do
    echo 1 >events/kprobes/enable && busybox mkdir /tmp/d$i && echo 0 >events/kprobes/enable || echo failed
    i=$((i+1))
done
: >/tmp/stop; wait; echo 1 >/sys/kernel/debug/replica && echo equal
busybox awk '{{ all += $2 }} END {{ if (all > 0) print \"hit\" }}' kprobe_profile"
    );
    let (told, results) = watched(&["-m", "256M", "--cpus", "4", "--numa", "2"], &script);
    assert_eq!(told, "equal\nhit\n");
    assert_eq!(results["oracle"]["total"], 0, "{}", results["oracle"]);
}
