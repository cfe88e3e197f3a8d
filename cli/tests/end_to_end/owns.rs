//! `freehold owns`: questions about frames of a VM that runs.

use std::path::Path;

use serde_json::Value;

use crate::common::*;

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
