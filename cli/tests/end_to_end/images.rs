//! Container images as the guest's root (`--image`): programs, owners, and refusals.
//!
//! The images are made here, from a static busybox.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::Digest as _;
use tar::EntryType::{self, Char, Directory, Fifo, Link, Regular, Symlink};

use super::common::{file_of, finish, finish_now, kernel, run_command, text};

/// A member of a layer: kind, name, target of a link or text of a file, mode, owner.
type LayerMember<'a> = (EntryType, &'a str, &'a [u8], u32, (u64, u64));

fn layer(members: &[LayerMember<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for &(kind, name, text, mode, (uid, gid)) in members {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_mtime(1_000_000_000);
        if matches!(kind, Symlink | Link) {
            let target = std::str::from_utf8(text).expect("targets are text");
            header.set_size(0);
            builder.append_link(&mut header, name, target).expect("written");
        } else {
            if kind == Char {
                header.set_device_major(1).and_then(|()| header.set_device_minor(3)).expect("it has both");
            }
            header.set_size(text.len() as u64);
            // A name is not checked, so that it can lead out of the folder.
            header.as_gnu_mut().expect("it is one").name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, text).expect("written");
        }
    }
    builder.into_inner().expect("finished")
}

fn digest(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, bytes).expect("packed");
    packer.finish().expect("packed")
}

fn config(settings: &Value, layers: &[Vec<u8>]) -> Vec<u8> {
    let contents: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", digest(layer))).collect();
    let rootfs = json!({"type": "layers", "diff_ids": contents});
    let config = json!({"architecture": "amd64", "os": "linux", "config": settings, "rootfs": rootfs});
    config.to_string().into()
}

fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let named: Vec<LayerMember<'_>> =
        files.iter().map(|(name, bytes)| (Regular, &name[..], &bytes[..], 0o644, (0, 0))).collect();
    // Names of blobs fit a header.
    layer(&named)
}

/// Returns the image in the form of `docker save`.
fn saved(settings: &Value, layers: &[Vec<u8>]) -> Vec<u8> {
    let config = config(settings, layers);
    let name = format!("{}.json", digest(&config));
    let mut files = vec![(name.clone(), config)];
    let names: Vec<String> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
    files.extend(names.iter().cloned().zip(layers.iter().cloned()));
    let manifest = json!([{"Config": name, "RepoTags": ["test:1"], "Layers": names}]);
    files.push(("manifest.json".into(), manifest.to_string().into()));
    archive(&files)
}

/// Returns the files of an OCI layout with the image, its layers compressed.
fn layout(settings: &Value, layers: &[Vec<u8>]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut blob = |kind: &str, bytes: Vec<u8>| {
        let digest = digest(&bytes);
        let kind = format!("application/vnd.oci.image.{kind}");
        let descriptor =
            json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()});
        files.push((format!("blobs/sha256/{digest}"), bytes));
        descriptor
    };
    let config = blob("config.v1+json", config(settings, layers));
    let layers: Vec<Value> = layers.iter().map(|layer| blob("layer.v1.tar+gzip", gzip(layer))).collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let manifest = blob("manifest.v1+json", manifest.to_string().into());
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    files.push(("index.json".into(), index.to_string().into()));
    files.push(("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
    files
}

fn busybox() -> Vec<u8> {
    let path = std::env::split_paths(&std::env::var_os("PATH").expect("set"))
        .map(|folder| folder.join("busybox"))
        .find(|path| path.exists())
        .expect("busybox is installed");
    std::fs::read(path).expect("read")
}

/// Returns two layers with files of all kinds.
fn layers() -> Vec<Vec<u8>> {
    let (busybox, root) = (busybox(), (0, 0));
    let passwd = b"root:x:0:0::/root:/bin/sh\napp:x:1000:50::/srv/app:/bin/sh\n";
    let below = layer(&[
        (Regular, "bin/busybox", &busybox, 0o755, root),
        (Symlink, "bin/sh", b"busybox", 0o777, root),
        (Link, "bin/su", b"bin/busybox", 0o755, root),
        (Regular, "bin/raised", &busybox, 0o4755, root),
        (Regular, "etc/passwd", passwd, 0o644, root),
        (Regular, "etc/group", b"root:x:0:\nstaff:x:50:\n", 0o644, root),
        (Directory, "srv/app/", b"", 0o700, (1000, 50)),
        (Regular, "srv/app/own", b"own\n", 0o600, (1000, 50)),
        (Regular, "srv/hidden", b"roots\n", 0o600, root),
        (Regular, "gone", b"x", 0o644, root),
        (Regular, "d/old", b"x", 0o644, root),
        (Symlink, "lib", b"usr/lib", 0o777, root),
        (Regular, "usr/lib/a", b"a", 0o644, root),
        (Char, "dev2/null", b"", 0o666, root),
        (Fifo, "dev2/fifo", b"", 0o600, root),
    ]);
    let above = layer(&[
        (Regular, ".wh.gone", b"", 0o644, root),
        (Regular, "d/new", b"x", 0o644, root),
        (Regular, "d/.wh..wh..opq", b"", 0o644, root),
        (Regular, "lib/b", b"b", 0o644, root),
    ]);
    vec![below, above]
}

fn settings() -> Value {
    json!({
        "User": "app", "Env": ["PATH=/bin", "A=image", "B=image"], "WorkingDir": "/srv/app",
        "Entrypoint": ["busybox", "sh", "-c"], "Cmd": ["echo $A $B $HOME; pwd; cat own; busybox id -un"],
    })
}

/// A cache of this test's own.
struct TestCache(tempfile::TempDir);

impl TestCache {
    fn new() -> TestCache {
        TestCache(tempfile::tempdir().expect("temporary folder"))
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        file_of(&self.0, name, bytes)
    }

    /// Returns `freehold run --image FILE` with these words after it.
    fn command(&self, file: &Path, words: &[&str]) -> Command {
        let mut command = run_command();
        command.env("XDG_CACHE_HOME", self.0.path().join("cache"));
        command.arg("--image").arg(file).args(words);
        command
    }

    /// Returns the program's output, and whether the run unpacked the image.
    fn run(&self, file: &Path, words: &[&str]) -> (String, bool) {
        let outcome = finish(self.command(file, words), b"").expect(0);
        (outcome.text(), outcome.stderr.contains("unpacking"))
    }

    /// Returns the entries in its folder of images.
    fn images(&self) -> Vec<PathBuf> {
        let folder = self.0.path().join("cache/freehold/images");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let others = ["known", "lock"];
        entries
            .filter(|entry| !others.iter().any(|other| entry.file_name() == *other))
            .map(|entry| entry.path())
            .collect()
    }
}

#[test]
fn an_image_runs_as_its_configuration_says_and_is_unpacked_once() {
    if kernel() == "linux" {
        return; // A stock Linux sees copies, and an image is not copied.
    }
    let cache = TestCache::new();
    let file = cache.file("image.tar", &saved(&settings(), &layers()));
    let said = "image image /srv/app\n/srv/app\nown\napp\n";
    assert_eq!(cache.run(&file, &[]), (said.into(), true));
    assert_eq!(cache.run(&file, &[]), (said.into(), false));
    // The same image in another form is the same image.
    let other = cache.file("oci.tar", &archive(&layout(&settings(), &layers())));
    assert_eq!(cache.run(&other, &["-e", "B=mine", "--", "echo $A $B"]), ("image mine\n".into(), false));
    assert_eq!(cache.images().len(), 1);
    let entry = ["--user", "root", "--cwd", "/d", "--entrypoint", "/bin/busybox", "--", "sh", "-c"];
    let script = "pwd; id -u; cat /etc/hosts /etc/hostname; echo $HOME";
    let (said, _) = cache.run(&file, &[&entry[..], &[script]].concat());
    assert_eq!(said, "/d\n0\n127.0.0.1 localhost freehold\nfreehold\n/root\n");
}

#[test]
fn what_a_container_changes_can_be_kept() {
    if kernel() == "linux" {
        return;
    }
    let cache = TestCache::new();
    let file = cache.file("image.tar", &saved(&settings(), &layers()));
    let kept = cache.0.path().join("kept");
    let options = ["--changes", text(&kept), "--user", "root", "--entrypoint"];
    // The first run installs a program, the second one uses it.
    let install = "busybox cp bin/busybox bin/ash; busybox rm d/new; echo more >> etc/group; busybox chown 7:8 srv/app/own";
    cache.run(&file, &[&options[..], &["/bin/sh", "--cwd", "/", "--", "-c", install]].concat());
    let look = "ls /d; stat -c %u:%g /srv/app/own; tail -n 1 /etc/group; stat -c %a:%u /srv/app";
    let (said, _) = cache.run(&file, &[&options[..], &["ash", "--", "-c", look]].concat());
    assert_eq!(said, "7:8\nmore\n700:1000\n");
    let alone = cache.run(&file, &["--user", "root", "--", "ls /d; busybox tail -n 1 /etc/group"]).0;
    assert_eq!(alone, "new\nstaff:x:50:\n", "the image is as it was");
}

#[test]
fn owners_modes_and_links_are_the_images_and_the_host_has_none_of_them() {
    if kernel() == "linux" {
        return;
    }
    let cache = TestCache::new();
    let folder = cache.0.path().join("layout");
    for (name, bytes) in layout(&settings(), &layers()) {
        std::fs::create_dir_all(folder.join(&name).parent().expect("it has one")).expect("mkdir");
        std::fs::write(folder.join(name), bytes).expect("written");
    }
    let own = cache.file("own", b"mine\n");
    let script = "b=busybox; $b stat -c '%A %u %g %h %n' /bin/* /srv/* own /dev2/* /d; $b ls / /d /usr/lib; $b readlink /lib; \
        cat() { $b cat $1 2>/dev/null || echo no $1; }; cat own; cat /srv/hidden; cat /etc/own; $b touch /x 2>/dev/null || echo no touch; \
        echo new >> own && cat own; $b chmod 640 own; $b stat -c '%a %u' own; $b find /bin -type f | $b sort; \
        $b find / -xdev -type p -o -xdev -type l | $b sort; $b grep -c /etc/own /etc/passwd";
    let volume = format!("{}:/etc/own", text(&own));
    let outcome = finish(cache.command(&folder, &["-v", &volume, "--", script]), b"");
    let expected = "-rwxr-xr-x 0 0 2 /bin/busybox\n-rwsr-xr-x 0 0 1 /bin/raised\nlrwxrwxrwx 0 0 1 /bin/sh\n\
        -rwxr-xr-x 0 0 2 /bin/su\ndrwx------ 1000 50 2 /srv/app\n-rw------- 0 0 1 /srv/hidden\n-rw------- 1000 50 1 own\n\
        prw------- 0 0 1 /dev2/fifo\ncrw-rw-rw- 0 0 1 /dev2/null\ndrwxr-xr-x 0 0 2 /d\n\
        /:\nbin\nd\ndev\ndev2\netc\nlib\nproc\nsrv\nsys\ntmp\nusr\n\n/d:\nnew\n\n/usr/lib:\na\nb\nusr/lib\n\
        own\nno /srv/hidden\nmine\nno touch\nown\nnew\n640 1000\n/bin/busybox\n/bin/raised\n/bin/su\n\
        /bin/sh\n/dev2/fifo\n/lib\n0\n";
    assert_eq!(outcome.text(), expected, "{}", outcome.stderr);
    // The unpacked tree stays as it was, and has regular files without any rights for others.
    let root = cache.images()[0].join("root");
    assert_eq!(std::fs::read(root.join("srv/app/own")).expect("read"), b"own\n");
    for name in ["bin/raised", "dev2/null", "lib", "dev2/fifo"] {
        let meta = std::fs::symlink_metadata(root.join(name)).expect("it is there");
        let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o7777;
        assert_eq!((meta.is_file(), mode), (true, 0o600), "{name}");
    }
}

#[test]
fn a_set_user_id_program_of_an_image_raises_rights_in_the_vm() {
    if kernel() == "linux" {
        return;
    }
    let cache = TestCache::new();
    // Root has no password, so that su asks for none; without root's rights su could not become
    // root.
    let image = layer(&[
        (Regular, "bin/su", &busybox(), 0o4755, (0, 0)),
        (Regular, "etc/passwd", b"root::0:0::/:/bin/id\napp::1000:1000::/:/bin/id\n", 0o644, (0, 0)),
        (Link, "bin/id", b"bin/su", 0o4755, (0, 0)),
    ]);
    let settings = json!({"User": "app", "Entrypoint": ["/bin/su"]});
    let file = cache.file("image.tar", &saved(&settings, &[image]));
    let said = finish(cache.command(&file, &["--", "-s", "/bin/id", "root"]), b"").expect(0).text();
    assert!(said.starts_with("uid=0 gid=0"), "{said}");
}

#[test]
fn what_cannot_run_is_told_in_one_sentence_and_leaves_nothing() {
    let cache = TestCache::new();
    let root = (0, 0);
    let good = layers();
    let with = |settings: Value, layer: Vec<u8>| saved(&settings, &[layer]);
    let bad = |name: &str| with(json!({}), layer(&[(Regular, name, b"x", 0o644, root)]));
    let mut damaged = saved(&settings(), &good);
    let at = damaged.windows(6).position(|bytes| bytes == b"roots\n").expect("it is there");
    damaged[at] = b'R';
    let arm = String::from_utf8(config(&json!({}), &[])).expect("text").replace("amd64", "arm64");
    let arm = archive(&[
        ("config.json".into(), arm.into()),
        ("manifest.json".into(), br#"[{"Config":"config.json","Layers":[]}]"#.to_vec()),
    ]);
    let cases: [(&str, Vec<u8>, &[&str], i32, &str); 13] = [
        ("up.tar", bad("../x"), &[], 125, "leads out of the image"),
        ("absolute.tar", bad("/x"), &[], 125, "an absolute name"),
        ("damaged.tar", damaged, &[], 125, "layer 1 of 2 is damaged"),
        ("cut.tar.gz", gzip(&bad("x"))[..99].to_vec(), &[], 125, "cannot read it"),
        ("words.tar", bad("../a\nb\x1b[31m"), &[], 125, "leads out of the image"),
        ("none.tar", layer(&[]), &[], 125, "there is no image in it"),
        ("text", b"text\n".repeat(300), &[], 125, "is no archive of an image"),
        (
            "json.tar",
            archive(&[("manifest.json".into(), b"{".to_vec())]),
            &[],
            125,
            "manifest.json is damaged",
        ),
        ("arm.tar", arm, &[], 125, "is for linux/arm64"),
        ("plain.tar", with(json!({}), layer(&[])), &["--root", "/"], 125, "--root"),
        ("plain.tar", with(json!({}), layer(&[])), &["--icount"], 125, "a counted run has copies only"),
        ("plain.tar", with(json!({}), layer(&[])), &["--sealed"], 125, "--sealed"),
        (
            "plain.tar",
            with(json!({}), layer(&[])),
            &["--kernel", "KERNEL"],
            125,
            "a stock Linux has copies only",
        ),
    ];
    // The beginning of a bzImage.
    let mut linux = vec![0; 4096];
    linux[0x202..0x206].copy_from_slice(b"HdrS");
    let kernel = cache.file("bzImage", &linux);
    for (name, bytes, words, status, why) in cases {
        let file = cache.file(name, &bytes);
        let mut command = super::common::freehold();
        command.env("XDG_CACHE_HOME", cache.0.path().join("cache")).args(["run", "--image", text(&file)]);
        command.args(words.iter().map(|word| word.replace("KERNEL", text(&kernel))));
        let outcome = finish_now(&mut command, b"");
        let said: Vec<&str> = outcome.stderr.lines().filter(|line| !line.contains("unpacking")).collect();
        assert_eq!((outcome.status, said.len()), (status, 1), "{name}: {}", outcome.stderr);
        assert!(said[0].starts_with("freehold: ") && said[0].contains(why), "{why}: {}", said[0]);
        assert!(cache.images().is_empty(), "{name}");
    }
    let file = cache.file("plain.tar", &saved(&settings(), &good));
    for (words, status, why) in [
        (&["--entrypoint", "nothing"][..], 127, "no such program in the image: nothing"),
        (&["--entrypoint", "/d"], 126, "/d in the image is a folder"),
        (&["--user", "nobody"], 125, "no user nobody in the image's /etc/passwd"),
        (&["--entrypoint", ""], 125, "the image names no program"),
    ] {
        let mut command = super::common::freehold();
        command.env("XDG_CACHE_HOME", cache.0.path().join("cache"));
        let outcome = finish_now(command.args(["run", "--image", text(&file)]).args(words), b"");
        assert_eq!(outcome.status, status, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
    }
    assert_eq!(cache.images().len(), 1);
}

#[test]
fn two_runs_that_want_one_image_at_once_unpack_it_once() {
    let cache = TestCache::new();
    let file = cache.file("image.tar", &saved(&settings(), &layers()));
    let runs: Vec<_> = (0..3)
        .map(|_| {
            let mut command = super::common::freehold();
            command.env("XDG_CACHE_HOME", cache.0.path().join("cache"));
            // A missing user is found once the image is unpacked.
            command.args(["run", "--image", text(&file), "--user", "nobody"]);
            std::thread::spawn(move || finish_now(&mut command, b"").stderr)
        })
        .collect();
    let said: Vec<String> = runs.into_iter().map(|run| run.join().expect("it ends")).collect();
    assert!(said.iter().all(|said| said.contains("no user nobody")), "{said:?}");
    assert_eq!(said.iter().filter(|said| said.contains("unpacking")).count(), 1, "{said:?}");
    // The next process that unpacks removes the leftovers of a killed one.
    let images = cache.0.path().join("cache/freehold/images");
    std::fs::create_dir(images.join(".unpack-left")).expect("mkdir");
    std::fs::remove_dir_all(&cache.images()[0])
        .or_else(|_| std::fs::remove_dir_all(&cache.images()[1]))
        .expect("removed");
    let _ = std::fs::create_dir(images.join(".unpack-left"));
    let mut command = super::common::freehold();
    command.env("XDG_CACHE_HOME", cache.0.path().join("cache"));
    finish_now(command.args(["run", "--image", text(&file), "--user", "nobody"]), b"").expect(125);
    assert_eq!(cache.images().len(), 1);
}

#[test]
fn what_a_file_holds_is_known_until_it_changes() {
    let cache = TestCache::new();
    let packed = |name: &str| {
        let image = layer(&[(Regular, name, b"x", 0o755, (0, 0))]);
        gzip(&saved(&json!({"Cmd": ["/x"]}), &[image]))
    };
    let file = cache.file("image.tar.gz", &packed("x"));
    let status = || {
        let mut command = super::common::freehold();
        command.env("XDG_CACHE_HOME", cache.0.path().join("cache"));
        // Without a folder for temporary files a compressed archive cannot be read.
        command.env("TMPDIR", cache.0.path().join("nowhere"));
        finish_now(command.args(["run", "--image", text(&file), "--cwd", "no"]), b"").stderr
    };
    assert!(status().contains("temporary file"));
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    let mut command = super::common::freehold();
    command.env("XDG_CACHE_HOME", cache.0.path().join("cache"));
    finish_now(command.args(["run", "--image", text(&file), "--cwd", "no"]), b"").expect(125);
    assert!(status().contains("--cwd no: not an absolute path"), "{}", status());
    std::fs::write(&file, packed("y")).expect("written");
    assert!(status().contains("temporary file"));
}
