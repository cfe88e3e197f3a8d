//! Habits of users of container tools.

/// Options of container tools that users type by habit, with what to use here.
pub const HABITS: [(&[&str], &str); 10] = [
    (
        &["-i", "-t", "-it", "--interactive", "--tty"],
        "leave it out: stdin always reaches the program, and a terminal is used where there is one",
    ),
    (&["--rm"], "leave it out: nothing of a VM is kept"),
    (&["--name"], "leave it out: a VM has no name; it ends with this command"),
    (&["-d", "--detach"], "let the shell do it: freehold run -- PROGRAM &"),
    (&["-w", "--workdir"], "use --cwd DIR"),
    (&["-u"], "use --user UID[:GID]"),
    (&["--network"], "use --net user, or -p HOST:GUEST for a port of the program's"),
    (&["--pull", "--platform"], "save the image first: docker save NAME -o FILE, then --image FILE"),
    (
        &["--csv"],
        "freehold bench, lab, coverage and diff write CSV; --json FILE has the figures of the others",
    ),
    (&["--privileged", "--cap-add"], "leave it out: a program is root unless --user says otherwise"),
];
