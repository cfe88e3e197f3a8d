//! `freehold owns`: questions about frames of a VM that runs.

use std::path::Path;

use serde_json::Value;

use crate::common::*;

#[test]
fn at_its_end_the_program_still_has_its_frames_and_the_record_keeps_the_answers() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let record = folder.path().join("run.json");
    let questions = ["2", "2:0x401000", "frame:0", "77"];
    let mut command = freehold();
    command.args(["run", "--json", text(&record), "-m", "128M"]);
    command.args(questions.iter().flat_map(|question| ["--owns", question]));
    // The shell is killed in the midst of its work: it has its memory then, too.
    command.args(["--", "busybox", "sh", "-c", "kill -9 $$"]);
    let told = finish(command, b"").expect(137).stderr;
    let line = |part: &str| {
        told.lines().any(|line| line.starts_with("freehold: at the end: ") && line.contains(part))
    };
    assert!(line("process 2 (sh) maps ") || line("process 2 (busybox) maps "), "{told}");
    assert!(line("77: there is no such process"), "{told}");
    let kept: Value = serde_json::from_slice(&std::fs::read(&record).expect("a record")).expect("JSON");
    validate(&kept, "run.json");
    let owners = kept["owners"].as_array().expect("answers");
    assert_eq!(owners.len(), questions.len(), "{kept}");
    assert!(owners[0]["anonymous"].as_u64() > Some(0), "{kept}");
    let again =
        |question: &str| finish_now(freehold().args(["owns", "--record", text(&record), question]), b"");
    let said = again("2").expect(0).text();
    assert!(told.contains(&said), "{said}");
    assert!(again("77").expect(125).stderr.contains("there is no such process"));
    assert!(again("frame:5").expect(125).stderr.contains("was not asked about frame:5"));
}

/// Asks the VM at `socket`; returns the outcome of the command.
fn ask(socket: &Path, words: &[&str]) -> Outcome {
    finish_now(freehold().args(["owns", "--vm", text(&socket)]).args(words), b"")
}

#[test]
fn a_frame_a_process_and_an_address_have_an_owner_while_the_program_runs() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let socket = folder.path().join("vm");
    let line = "read here </proc/self/maps; echo $$; grep -m 1 r-x /proc/$$/maps; read go_on";
    let options = ["--control", text(&socket), "-m", "128M"];
    let mut guest = Dialogue::begin(&options, &["busybox", "ash", "-c", line]);
    let pid = guest.hear();
    let code = guest.hear();
    let start = format!("{pid}:0x{}", code.split('-').next().expect("an address"));

    let said = ask(&socket, &[&pid]).expect(0).text();
    assert!(said.starts_with(&format!("process {pid} (busybox) maps ")), "{said}");
    assert!(said.contains(", 0 in the kernel's map; "), "{said}");
    let of_process = ask(&socket, &[&pid, "--json", "-"]).expect(0).text();
    validate(&serde_json::from_str(&of_process).expect("it is JSON"), "owns.json");

    let json: Value =
        serde_json::from_str(&ask(&socket, &[&start, "--json", "-"]).expect(0).text()).expect("it is JSON");
    validate(&json, "owns.json");
    let file = json["users"][0]["area"].as_str().expect("a file");
    assert!(file.ends_with("busybox"), "{json}");
    assert_eq!((&json["owner"], &json["in_kernel_map"]), (&"PageCache".into(), &false.into()), "{json}");
    let frame = json["frame"].as_u64().expect("a number");

    let said = ask(&socket, &[&format!("frame:{frame}")]).expect(0).text();
    let beginning = format!("frame {frame:#x} on node 0 holds {file} from byte ");
    assert!(said.starts_with(&beginning), "{said}");
    assert!(said.contains(&format!("mapped by process {pid} (busybox) at 0x")), "{said}");
    assert!(said.contains("; outside the kernel's map; "), "{said}");
    assert_eq!(said.lines().count(), 1);
    let same = ask(&socket, &[&format!("{:#x}", frame * 4096 + 5)]).expect(0).text();
    assert_eq!(same, said);

    for (words, part) in [
        ("4000000", "there is no such process"),
        (&*format!("{pid}:0x10"), "nothing is mapped there"),
        ("stack", "neither a process, nor an address, nor a frame"),
    ] {
        let told = ask(&socket, &[words]).expect(125);
        assert!(told.stderr.contains(part) && told.stderr.lines().count() == 1, "{}", told.stderr);
    }
    let beyond = ask(&socket, &["0xffffffff000"]).expect(0).text();
    assert!(beyond.ends_with(" is no memory\n"), "{beyond}");
    guest.go_on();
    assert_eq!(guest.end(), 0);
    assert!(!socket.exists(), "the socket goes with its run");
    let told = ask(&socket, &["1"]).expect(125);
    assert!(told.stderr.contains("cannot ask the VM at "), "{}", told.stderr);
}
