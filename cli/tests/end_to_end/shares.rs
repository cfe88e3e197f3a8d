//! Folders of the host in the guest (/usr, `-v`, `--root`): the files that it sees, and those that
//! it does not.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::common::{Dialogue, file_of, finish, guest_program, kernel, run, run_command, text};

#[test]
fn a_folder_is_seen_as_it_is_on_the_host() {
    if kernel() == "linux" {
        return; // A stock Linux gets copies.
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    file_of(&folder, "a", b"one\n");
    file_of(&folder, "gone", b"x");
    let volume = format!("{}:/shared", folder.path().display());
    let script = "cat /shared/a; echo; read x; cat /shared/a /shared/new; ls /shared; echo; read x; tail -c 5 /shared/a";
    let mut talk = Dialogue::begin(&["-v", &volume], &["busybox", "ash", "-c", script]);
    // cat must have ended by now: otherwise it would see the added text.
    assert_eq!([talk.hear(), talk.hear()], ["one", ""]);
    file_of(&folder, "a", b"two and longer\n");
    file_of(&folder, "new", b"new\n");
    std::fs::remove_file(folder.path().join("gone")).expect("removed");
    talk.go_on();
    assert_eq!([(); 5].map(|()| talk.hear()), ["two and longer", "new", "a", "new", ""]);
    // The file has the same length as before: only the times differ.
    file_of(&folder, "a", b"two and LONGER\n");
    talk.go_on();
    assert_eq!(talk.hear(), "NGER");
    assert_eq!(talk.end(), 0);
}

/// Removes the folder `held` below `top` and makes folders until one has its inode number, which is
/// then called `heir`. Returns whether the host's file system uses numbers again.
fn makes_an_heir(top: &Path) -> bool {
    let held = top.join("held");
    let number = std::fs::metadata(&held).expect("it is there").ino();
    std::fs::remove_dir_all(&held).expect("removed");
    let others: Vec<_> = (0..500).map(|at| top.join(format!("other{at}"))).collect();
    let heir = others.iter().find(|other| {
        std::fs::create_dir(other).expect("mkdir");
        std::fs::metadata(other).expect("it is there").ino() == number
    });
    let Some(heir) = heir else { return false };
    std::fs::write(heir.join("secret"), "the heir's\n").expect("written");
    std::fs::rename(heir, top.join("heir")).expect("renamed");
    true
}

#[test]
fn a_program_stays_out_of_the_folder_that_gets_its_own_ones_number() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let volume = format!("{}:/shared", folder.path().display());
    std::fs::create_dir(folder.path().join("held")).expect("mkdir");
    let script = "cd /shared/held && ls; mkdir /bound; mount -o bind . /bound; echo; read x; cat /shared/heir/secret; \
        cat secret /bound/secret 2>&1 | grep -c 'tale file handle'; cd /shared/heir && cat secret";
    let mut talk = Dialogue::begin(&["-v", &volume], &["busybox", "ash", "-c", script]);
    assert_eq!(talk.hear(), "");
    if !makes_an_heir(folder.path()) {
        return; // Such as tmpfs.
    }
    talk.go_on();
    assert_eq!([(); 3].map(|()| talk.hear()), ["the heir's", "2", "the heir's"]);
    assert_eq!(talk.end(), 0);
}

#[test]
fn each_user_is_told_once_that_folders_are_shared() {
    if kernel() == "linux" {
        return;
    }
    let (cache, folder) =
        (tempfile::tempdir().expect("temporary folder"), tempfile::tempdir().expect("temporary folder"));
    let volume = format!("{}:/shared", folder.path().display());
    let told = |volume: &str| {
        let mut command = run_command();
        command.env("XDG_CACHE_HOME", cache.path()).args(["-v", volume, "--", "busybox", "true"]);
        finish(command, b"").expect(0).stderr.contains("HOST:GUEST:copy")
    };
    let asked_for = ["ro", "copy"].map(|mode| told(&format!("{volume}:{mode}")));
    let mut wrong = run_command();
    wrong.env("XDG_CACHE_HOME", cache.path()).args(["-v", &volume, "-v", &volume, "--", "busybox", "true"]);
    let refused = finish(wrong, b"").expect(125).stderr;
    assert!(refused.contains("another -v") && !refused.contains("HOST:GUEST:copy"), "{refused}");
    assert_eq!((asked_for, told(&volume), told(&volume)), ([false; 2], true, false));
}

#[test]
fn a_shared_folder_is_read_only_and_nothing_beside_it_is_seen() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (shared, beside) = (folder.path().join("shared"), folder.path().join("beside"));
    std::fs::create_dir(&shared).expect("mkdir");
    std::fs::write(&beside, b"secret\n").expect("written");
    std::fs::write(shared.join("file"), b"file\n").expect("written");
    std::os::unix::fs::symlink(&beside, shared.join("out")).expect("symlink");
    std::os::unix::fs::symlink("../beside", shared.join("up")).expect("symlink");
    let volume = format!("{}:/shared", shared.display());
    let script = "cd /shared; for w in 'touch new' 'rm file' 'mv file other' 'mkdir d' 'ln file hard' 'chmod 777 file' \
        'sh -c >file'; do $w 2>/dev/null && echo done: $w; done; cat out up ../beside ../../beside 2>/dev/null; \
        mount -o remount,rw /shared; touch new 2>/dev/null && echo done; mount -o remount,ro /shared; cat file";
    if kernel() == "linux" {
        return;
    }
    let outcome = run(&["-v", &volume], &["busybox", "ash", "-c", script], b"").expect(0);
    assert_eq!(outcome.text(), "file\n");
    assert_eq!(std::fs::read_dir(&shared).expect("listed").count(), 3);
}

#[test]
fn what_a_guest_writes_the_host_has() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name);
    let read = |name: &str| std::fs::read_to_string(path(name)).ok();
    file_of(&folder, "log", b"host\n");
    file_of(&folder, "old", b"removed\n");
    let volume = format!("{}:/shared:rw", folder.path().display());
    let script = "cd /shared; echo one > new; echo guest >> log; mkdir -m 750 d; mv old d/moved; ln new d/hard; ln -s d/hard soft; \
        chmod 640 new; echo; read x; cat log; exec 3> gone 4< gone; rm gone; echo kept >&3; cat <&4; cat <&4; rm d/moved; \
        dd if=/dev/zero of=big bs=100k count=10 2>/dev/null; dd if=new of=big bs=1 seek=500000 conv=notrunc 2>/dev/null; sync; \
        touch -d '2001-02-03 04:05:06' new; rmdir d 2>/dev/null || echo not empty; truncate -s 2 soft; cat new";
    let mut talk = Dialogue::begin(&["-v", &volume], &["busybox", "ash", "-c", script]);
    assert_eq!(talk.hear(), "");
    // The program still runs.
    assert_eq!(
        ["new", "log", "soft"].map(read),
        ["one\n", "host\nguest\n", "one\n"].map(|text| Some(text.to_owned()))
    );
    assert_eq!((read("old"), read("d/moved").as_deref()), (None, Some("removed\n")));
    let mode = |name| std::fs::metadata(path(name)).expect("it is there").permissions().mode() & 0o7777;
    assert_eq!((mode("new"), mode("d")), (0o640, 0o750));
    file_of(&folder, "log", b"the host's again\n");
    talk.go_on();
    assert_eq!([(); 4].map(|()| talk.hear()), ["the host's again", "kept", "not empty", "on"]);
    assert_eq!(talk.end(), 0);
    assert_eq!((read("gone"), read("d/moved"), read("new").as_deref()), (None, None, Some("on")));
    let big = std::fs::read(path("big")).expect("read");
    assert_eq!((big.len(), &big[499_999..500_005]), (10 * (100 << 10), &b"\0one\n\0"[..]));
}

/// Makes a tree with busybox, a link to it, a file and a folder.
fn a_tree() -> tempfile::TempDir {
    let tree = tempfile::tempdir().expect("temporary folder");
    let busybox = std::env::split_paths(&std::env::var_os("PATH").expect("set"))
        .map(|folder| folder.join("busybox"))
        .find(|path| path.exists())
        .expect("busybox is installed");
    for folder in ["usr/bin", "etc/d", "tmp"] {
        std::fs::create_dir_all(tree.path().join(folder)).expect("mkdir");
    }
    std::fs::copy(busybox, tree.path().join("usr/bin/busybox")).expect("copied");
    std::os::unix::fs::symlink("/usr/bin", tree.path().join("bin")).expect("symlink");
    std::os::unix::fs::symlink("busybox", tree.path().join("usr/bin/ash")).expect("symlink");
    file_of(&tree, "etc/motd", b"the host's\n");
    file_of(&tree, "etc/d/gone", b"x");
    tree
}

/// Returns the contents below a folder: names, and bytes of files.
fn contents(folder: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("listed").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("known"));
        all.push((
            path.clone(),
            if kind.is_file() { std::fs::read(&path).expect("read") } else { Vec::new() },
        ));
        if kind.is_dir() {
            all.extend(contents(&path));
        }
    }
    all.sort();
    all
}

#[test]
fn a_tree_of_the_host_is_the_root_and_stays_as_it_is() {
    if kernel() == "linux" {
        return; // A stock Linux gets a copy.
    }
    let tree = a_tree();
    let before = contents(tree.path());
    let script = "echo guest >> /etc/motd && cat /etc/motd; rm /etc/d/gone && rmdir /etc/d; echo new > /new; mkdir -p /a/b; mv /new /a/b; \
        ls /a/b /etc; chmod 600 /etc/motd; stat -c %a /etc/motd; grep -c ' / overlay ' /proc/mounts; test -c /dev/null && test -d /proc/1 && \
        touch /tmp/x && echo furnished";
    let outcome = run(&["--root", text(&tree.path())], &["ash", "-c", script], b"").expect(0);
    assert_eq!(outcome.text(), "the host's\nguest\n/a/b:\nnew\n\n/etc:\nmotd\n600\n1\nfurnished\n");
    assert_eq!(contents(tree.path()), before);
}

#[test]
fn a_tree_is_not_packed_and_files_come_over_it() {
    if kernel() == "linux" {
        return;
    }
    let (tree, folder) = (a_tree(), tempfile::tempdir().expect("temporary folder"));
    file_of(&folder, "own", b"the guest's\n");
    // The file is larger than the VM's memory.
    std::fs::File::create(tree.path().join("large")).expect("made").set_len(1 << 30).expect("set");
    let volume = format!("{}:/etc/motd", folder.path().join("own").display());
    let script = "cat /etc/motd; stat -c %s /large; tail -c 1 /large | od -An -tx1";
    let root = tree.path();
    let options = ["-m", "64M", "--root", text(&root), "-v", &volume];
    let outcome = run(&options, &["/bin/ash", "-c", script], b"").expect(0);
    assert_eq!(outcome.text(), "the guest's\n1073741824\n 00\n");
}

#[test]
fn only_folders_can_be_written_to_in_their_place() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = file_of(&folder, "file", b"x");
    let volume = format!("{}:/file:rw", file.display());
    let outcome = run(&["-v", &volume], &["busybox", "true"], b"");
    assert_eq!(outcome.status, 125);
    assert!(outcome.stderr.contains("only folders can be written to"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("share the folder that has the file"), "{}", outcome.stderr);
    let volume = format!("{}:/folder:rw", folder.path().display());
    let outcome = run(&["--icount", "-v", &volume], &["busybox", "true"], b"");
    assert_eq!(outcome.status, 125);
    assert!(
        outcome.stderr.contains("has copies only") && outcome.stderr.contains("leave :rw out"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_program_runs_from_a_shared_folder() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let program = guest_program("conformance/pipes");
    std::fs::copy(&program, folder.path().join("pipes")).expect("copied");
    let volume = format!("{}:/programs", folder.path().display());
    let outcome = run(&["-v", &volume], &["/programs/pipes"], b"").expect(0);
    assert!(!outcome.text().contains("not ok") && outcome.text().contains("ok 1"), "{}", outcome.text());
}

#[test]
fn copies_are_the_guests_own() {
    let folder = tempfile::tempdir().expect("temporary folder");
    file_of(&folder, "a", b"host\n");
    let volume = format!("{}:/data:copy", folder.path().display());
    let script = "echo guest > /data/a; cat /data/a";
    let outcome = run(&["-v", &volume], &["busybox", "ash", "-c", script], b"").expect(0);
    assert_eq!(outcome.text(), "guest\n");
    assert_eq!(std::fs::read(folder.path().join("a")).expect("read"), b"host\n");
    // A counted run repeats, so it also sees a copy.
    let volume = format!("{}:/data", folder.path().display());
    let options = ["--icount", "-v", &volume];
    let outcome = run(&options, &["busybox", "ash", "-c", script], b"").expect(0);
    assert_eq!(outcome.text(), "guest\n");
    assert_eq!(std::fs::read(folder.path().join("a")).expect("read"), b"host\n");
}

#[test]
fn a_shared_file_may_be_larger_than_memory() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let big = file_of(&folder, "big", b"");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&big)
        .and_then(|file| file.set_len(96 << 20))
        .expect("a hole");
    let volume = format!("{}:/shared", folder.path().display());
    let mut command = run_command();
    command.args(["-m", "48M", "-v", &volume, "--", "busybox", "wc", "-c", "/shared/big", "/shared/big"]);
    let said = finish(command, b"").expect(0).text();
    assert!(said.contains("201326592 total"), "{said}");
}

#[test]
fn behind_an_iommu_a_folder_is_shared_as_well() {
    let folder = tempfile::tempdir().expect("temporary folder");
    file_of(&folder, "a", b"one\n");
    let volume = format!("{}:/shared", folder.path().display());
    for kind in ["--iommu", "--iommu=virtio"] {
        let outcome = run(&[kind, "-v", &volume], &["busybox", "cat", "/shared/a"], b"").expect(0);
        assert_eq!(outcome.text(), "one\n");
    }
}

#[test]
fn what_the_host_cuts_from_under_a_mapping_is_a_bus_error() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = file_of(&folder, "file", &[b'x'; 1 << 20]);
    let volume = format!("{}:/shared", folder.path().display());
    let program = guest_program("conformance/cut");
    let mut talk = Dialogue::begin(&["-v", &volume], &[text(&program), "/shared/file"]);
    while talk.hear() != "cut" {}
    std::fs::OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(4096)).expect("cut");
    talk.go_on();
    let mut said = Vec::new();
    loop {
        let line = talk.hear();
        if line.is_empty() {
            break;
        }
        said.push(line);
    }
    assert!(said.iter().all(|line| !line.starts_with("not ok")) && said.len() > 5, "{said:#?}");
    assert_eq!(talk.end(), 0);
}

/// Returns whether the host has a program, so that a run can show it.
fn is_installed(program: &str) -> bool {
    ["/usr/bin", "/usr/local/bin", "/bin"]
        .iter()
        .any(|folder| std::path::Path::new(folder).join(program).exists())
}

#[test]
fn programs_work_at_the_first_try() {
    if kernel() == "linux" {
        return; // A stock Linux gets a closed image.
    }
    let hello = "echo 'int puts(const char *); int main(void) { return !puts(\"from C\"); }' > /tmp/h.c && cc -o /tmp/h /tmp/h.c && /tmp/h";
    let tries: [(&[&str], &str); 6] = [
        (&["bash", "-c", "x=(a b); echo ${x[1]} | tr a-z A-Z"], "B\n"),
        (&["sh", "-c", hello], "from C\n"),
        (&["perl", "-MPOSIX", "-e", "print floor(2.5), qq(\n)"], "2\n"),
        (
            &[
                "python3",
                "-c",
                "import sqlite3, json, ssl; print(sqlite3.connect(':memory:').execute('select 6 * 7').fetchone()[0])",
            ],
            "42\n",
        ),
        (
            &[
                "sh",
                "-c",
                "cd /tmp && git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m one && git log --format=%s",
            ],
            "one\n",
        ),
        (&["node", "-p", "require('crypto').createHash('md5').update('').digest('hex').length"], "32\n"),
    ];
    for (words, said) in tries {
        let program = if words[2].contains("git init") { "git" } else { words[0] };
        if !is_installed(program) {
            eprintln!("{program} is not installed: not tried");
            continue;
        }
        let outcome = run(&["-m", "512M"], words, b"").expect(0);
        assert_eq!(outcome.text(), said, "{words:?}: {}", outcome.stderr);
    }
}

#[test]
fn what_is_written_below_usr_stays_in_the_vm() {
    if kernel() == "linux" {
        return;
    }
    let script = "echo guest > /usr/bin/freehold-test && cat /bin/freehold-test && rm /usr/bin/env && ls /usr/bin/env 2>&1 | grep -c No; \
        grep -c ' /usr overlay ' /proc/mounts; mount -o remount,rw /usr; mkdir /usr/share/freehold-test && echo made";
    let outcome = run(&[], &["busybox", "sh", "-c", script], b"").expect(0);
    assert_eq!(outcome.text(), "guest\n1\n1\nmade\n");
    let path = std::path::Path::new;
    assert!(!path("/usr/bin/freehold-test").exists() && !path("/usr/share/freehold-test").exists());
    assert!(path("/usr/bin/env").exists());
}

#[test]
fn of_the_host_a_guest_sees_usr_and_some_settings_and_nothing_else() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let own = file_of(&folder, "secret", b"secret\n");
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let mut places: Vec<String> = "/boot /home /lost+found /media /mnt /opt /srv /var/lib /var/log /var/cache /var/spool /var/mail /var/backups \
        /var/lib/dpkg/status /run/lock /run/user /run/systemd /run/docker.sock /etc/shadow /etc/shadow- /etc/gshadow /etc/sudoers /etc/ssh /etc/ssl/private \
        /etc/machine-id /etc/fstab /etc/crontab /etc/cron.d /etc/cron.daily /etc/pam.d /etc/login.defs /etc/security /etc/systemd /etc/apt /etc/init.d \
        /etc/subuid /etc/environment /etc/gitconfig /etc/docker /etc/NetworkManager /etc/default /etc/adduser.conf /etc/logrotate.d /etc/skel /etc/shells"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    for name in [".bashrc", ".profile", ".ssh", ".config", ".cache", ".gitconfig", ".bash_history", ".cargo"]
    {
        places.push(format!("{home}/{name}"));
    }
    places.push(text(&own).to_owned());
    let climbs = [
        "/usr/../../etc/shadow",
        "/usr/bin/../../../var/lib",
        "/proc/1/root/etc/shadow",
        "/usr/share/../../boot",
    ];
    places.extend(climbs.map(str::to_owned));
    let there = places.iter().filter(|place| std::path::Path::new(place).exists()).count();
    assert!(places.len() > 50 && there > 20, "{there} of {} places are on the host", places.len());
    let script = "for p; do if ls -d $p >/dev/null 2>&1; then echo $p; fi; done; wc -l < /etc/passwd";
    let mut words = vec!["busybox", "sh", "-c", script, "sh"];
    words.extend(places.iter().map(String::as_str));
    let outcome = run(&[], &words, b"").expect(0);
    assert_eq!(outcome.text(), "2\n", "what the guest sees, and its own accounts");
}

#[test]
fn what_the_host_has_not_either_is_not_told_as_missing() {
    if kernel() == "linux" {
        return;
    }
    let script = "cat /usr/share/no-such-file /var/no-such-file";
    let outcome = run(&["--report", "always"], &["busybox", "sh", "-c", script], b"");
    let told = outcome.stderr.lines().find(|line| line.contains("not found in the VM")).expect("a line");
    assert!(told.ends_with(": /var/no-such-file"), "{told}");
}

#[test]
fn a_sealed_run_has_the_program_and_nothing_else() {
    let script =
        "ls -d /usr/share /usr/include /etc/ssl /etc/alternatives 2>/dev/null; mount | grep -c 9p; echo end";
    let outcome = run(&["--sealed"], &["busybox", "sh", "-c", script], b"").expect(0);
    assert_eq!(outcome.text(), "0\nend\n");
}

#[test]
fn a_program_that_lies_elsewhere_comes_alone() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let program = folder.path().join("own");
    std::fs::copy("/usr/bin/ls", &program).expect("copied");
    file_of(&folder, "beside", b"x");
    let outcome = run(&[], &[text(&program), text(&folder.path())], b"").expect(0);
    assert_eq!(outcome.text(), "own\n");
}
