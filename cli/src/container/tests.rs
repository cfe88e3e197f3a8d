//! Reads archives that tests make.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tar::EntryType::{Block, Char, Directory, Fifo, Link, Symlink};

use super::launch::Launch;
use super::layers::TreeBuilder;
use super::manifest::{self, ChosenImage};
use super::source::ImageSource;
use super::testing::{Files, Member, archive, digest, file, gzip, node, zstd};
use super::tree::MappedTree;
use super::{store, stream};
use crate::Result;

/// Unpacks layers to a tree, which lives as long as the folder.
fn tree(layers: &[&[Member]]) -> Result<(tempfile::TempDir, MappedTree)> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut builder = TreeBuilder::new(folder.path())?;
    for (number, members) in layers.iter().enumerate() {
        builder.apply(&mut &archive(members)[..], &format!("layer {}", number + 1))?;
    }
    builder.finish(Path::new("/"))?;
    let tree = MappedTree::at(folder.path().to_path_buf());
    Ok((folder, tree))
}

/// Returns all names of a tree on the host.
fn names(folder: &Path) -> Vec<String> {
    fn collect(folder: &Path, top: &Path, all: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("listed").flatten() {
            all.push(entry.path().strip_prefix(top).expect("it is below").display().to_string());
            if entry.file_type().expect("known").is_dir() {
                collect(&entry.path(), top, all);
            }
        }
    }
    let mut all = Vec::new();
    collect(folder, folder, &mut all);
    all.sort();
    all
}

fn names_of(layers: &[&[Member]]) -> Vec<String> {
    names(tree(layers).expect("a tree").0.path())
}

#[test]
fn whiteouts_remove_names_of_the_layers_below_and_no_others() {
    let below = [
        node(Directory, "d/", ""),
        file("d/old", "1"),
        file("d/sub/deep", "1"),
        file("gone", "1"),
        file("stays", "1"),
        file("gone-too/x", "1"),
        file("gone-toe", "1"),
    ];
    let whiteouts = [file(".wh.gone", ""), file(".wh.gone-too", ""), file(".wh.never", "")];
    let expected = ["d", "d/old", "d/sub", "d/sub/deep", "gone-toe", "stays"];
    assert_eq!(names_of(&[&below, &whiteouts]), expected);
    // An opaque directory keeps its own layer's names, wherever the mark is in the layer.
    for marked in [
        [file("d/.wh..wh..opq", ""), file("d/new", "2"), file("d/sub/new", "2")],
        [file("d/new", "2"), file("d/sub/new", "2"), file("d/.wh..wh..opq", "")],
    ] {
        let found = names_of(&[&below, &marked]);
        let found: Vec<_> = found.iter().filter(|name| name.starts_with('d')).collect();
        assert_eq!(found, ["d", "d/new", "d/sub", "d/sub/new"]);
    }
    // A whiteout beside a name of its own layer concerns the layers below.
    let both = [file("d/new", "2"), file(".wh.d", "")];
    let found = names_of(&[&below, &both]);
    assert!(found.contains(&"d/new".into()) && !found.contains(&"d/old".into()), "{found:?}");
    // Notes of AUFS are no names, and whiteouts of a later layer remove what an earlier one made.
    assert_eq!(names_of(&[&[file("a", "1"), file(".wh..wh.plnk", "")], &[file(".wh.a", "")]]), [""; 0]);
}

#[test]
fn owner_mode_kind_and_time_are_kept_and_the_host_has_nothing_special() {
    let (folder, tree) = tree(&[&[
        file("su", "x").like(0o4755, (0, 0)),
        file("own", "x").like(0o600, (1000, 70_000)),
        node(Directory, "t/", "").like(0o1777, (7, 8)),
        node(Symlink, "link", "/etc/passwd"),
        node(Fifo, "fifo", "").like(0o640, (0, 0)),
        node(Char, "char", "").like(0o666, (0, 0)),
        node(Block, "block", "").like(0o660, (0, 6)),
    ]])
    .expect("a tree");
    let told = |name: &str| tree.attributes(&Path::new("/").join(name)).map(|a| (a.mode, a.uid, a.gid));
    assert_eq!(told("su"), Some((0o104_755, 0, 0)));
    assert_eq!(told("own"), Some((0o100_600, 1000, 70_000)));
    assert_eq!(told("t"), Some((0o041_777, 7, 8)));
    assert_eq!(told("link"), Some((0o120_777, 0, 0)));
    assert_eq!(told("fifo"), Some((0o010_640, 0, 0)));
    assert_eq!(told("block"), Some((0o060_660, 0, 6)));
    assert_eq!(told(""), Some((0o040_755, 0, 0)));
    // For an overlay a character device 0/0 means that the name does not exist.
    assert_eq!(told("char"), None);
    assert_eq!(tree.link(Path::new("/link")), Some(PathBuf::from("/etc/passwd")));
    for name in names(folder.path()) {
        let meta = std::fs::symlink_metadata(folder.path().join(&name)).expect("it is there");
        let mode = if meta.is_dir() { 0o700 } else { 0o600 };
        assert!(meta.is_dir() || meta.is_file(), "{name}");
        assert_eq!((meta.permissions().mode() & 0o7777, meta.mtime()), (mode, 1_000_000_000), "{name}");
    }
}

#[test]
fn a_later_layer_replaces_names_and_other_names_of_a_file_stay() {
    let read = |tree: &MappedTree, name: &str| std::fs::read_to_string(tree.host().join(name)).ok();
    let (_folder, merged) = tree(&[
        &[
            file("a", "one"),
            node(Link, "b", "a"),
            node(Link, "c", "/a"),
            file("d/x", "1"),
            file("f", "1"),
            node(Directory, "keep/", "").like(0o700, (1, 1)),
            file("keep/x", "1"),
        ],
        &[
            file("a", "two"),
            file("d", "a file"),
            node(Directory, "f/", ""),
            file("f/x", "below"),
            node(Directory, "keep", ""),
        ],
    ])
    .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!([read(&merged, "a"), read(&merged, "b")], [Some("two".into()), Some("one".into())]);
    let links = |name: &str| std::fs::metadata(merged.host().join(name)).expect("it is there").nlink();
    assert_eq!((links("a"), links("b"), links("c")), (1, 2, 2));
    assert_eq!(read(&merged, "d").as_deref(), Some("a file"));
    assert_eq!(read(&merged, "keep/x").as_deref(), Some("1"));
    assert_eq!(merged.attributes(Path::new("/keep")).map(|found| found.mode), Some(0o040_755));
}

#[test]
fn names_below_a_link_land_where_it_leads_within_the_tree() {
    let (folder, tree) = tree(&[
        &[
            node(Symlink, "lib", "usr/lib"),
            node(Symlink, "out", "../../../../tmp/freehold-escape"),
            node(Symlink, "abs", "/usr"),
            node(Symlink, "dead", "made/later"),
        ],
        &[
            file("lib/a", "x"),
            file("out/b", "x"),
            file("abs/c", "x"),
            file("dead/d", "x"),
            file("lib/.wh.z", ""),
        ],
    ])
    .expect("a tree");
    let found = names(folder.path());
    for name in ["usr/lib/a", "tmp/freehold-escape/b", "usr/c", "made/later/d", "lib"] {
        assert!(found.contains(&name.to_owned()), "{name} of {found:?}");
    }
    assert!(!Path::new("/tmp/freehold-escape").exists());
    assert_eq!(tree.end_of(Path::new("/lib/a")).expect("an end"), Path::new("/usr/lib/a"));
}

#[test]
fn a_layer_that_cannot_be_is_refused_in_one_sentence() {
    let circle = [node(Symlink, "x", "y"), node(Symlink, "y", "x"), file("x/a", "")];
    let cases: [(&[Member], &str); 14] = [
        (&[file("../a", "x")], "leads out"),
        (&[file("a/../../b", "x")], "leads out"),
        (&[file("/etc/a", "x")], "an absolute name"),
        (&[node(Link, "a", "../b")], "leads out"),
        (&[node(Link, "a", "missing")], "what is not there"),
        (&[node(Directory, "d", ""), node(Link, "a", "d")], "hard link to a directory"),
        (&[file("d/x", "x"), node(Link, "d", "d/x")], "what it replaces"),
        (&[file(".wh...", "")], "removes no name"),
        (&[file(".wh.", "")], "removes no name"),
        (&[file("a", "x"), file("a/b", "x")], "below what is no directory"),
        (&circle, "in a circle"),
        (&[node(Symlink, "a", "")], "cannot be one"),
        (&[file("a", "x").like(0o644, (u64::from(u32::MAX), 0))], "whose owner"),
        (&[node(tar::EntryType::new(b'?'), "a", "")], "not known"),
    ];
    for (members, why) in cases {
        let text = tree(&[members]).err().unwrap_or_else(|| panic!("refused: {why}")).to_string();
        assert!(text.contains(why) && text.starts_with("layer 1 has ") && !text.contains('\n'), "{text}");
    }
    // A file that is larger than any disk.
    let mut huge = archive(&[file("huge", "")]);
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes().copy_from_slice(&huge[..512]);
    header.set_size(1 << 60);
    header.set_cksum();
    huge[..512].copy_from_slice(header.as_bytes());
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut builder = TreeBuilder::new(folder.path()).expect("a tree");
    let text = builder.apply(&mut &huge[..], "layer 1").expect_err("no room").to_string();
    assert!(text.contains("room"), "{text}");
    // A file that is cut short.
    let cut = archive(&[file("a", "many bytes")]);
    let text = builder.apply(&mut &cut[..515], "layer 1").expect_err("cut").to_string();
    assert_eq!(text, "layer 1 is cut short");
}

fn opened(bytes: &[u8]) -> (tempfile::NamedTempFile, ImageSource) {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), bytes).expect("written");
    let source = ImageSource::open(file.path()).expect("an archive");
    (file, source)
}

/// Unpacks the image in an archive, with all checks.
fn unpack(bytes: &[u8]) -> Result<(ChosenImage, Vec<String>)> {
    let (_file, source) = opened(bytes);
    let image = manifest::choose(&source)?;
    let folder = tempfile::tempdir().expect("temporary folder");
    store::unpack(&source, &image, folder.path())?;
    let found = names(folder.path());
    Ok((image, found))
}

fn refused(bytes: &[u8]) -> String {
    unpack(bytes).expect_err("it is refused").to_string()
}

/// Returns an OCI layout with one image of these layers, each with its stored form.
fn layout(layers: &[(Vec<u8>, Vec<u8>)]) -> Files {
    let mut files = Files::default();
    let manifest = files.image("amd64", json!({}), layers);
    files.index(&[manifest]);
    files
}

#[test]
fn layers_are_unpacked_however_they_are_compressed() {
    let plain = ["a", "b", "c", "d"].map(|name| archive(&[file(name, "x")]));
    let half = plain[3].len() / 2;
    // Several members, and a frame that is to be skipped, as tools for lazy loading make them.
    let skipped = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(&plain[2][..half])].concat();
    let frames = [skipped, zstd(&plain[2][half..])].concat();
    let members = [gzip(&plain[3][..half]), gzip(&plain[3][half..])].concat();
    let stored = [plain[0].clone(), gzip(&plain[1]), frames, members];
    let layers: Vec<_> = plain.iter().cloned().zip(stored.clone()).collect();
    let files = layout(&layers);
    assert_eq!(unpack(&files.archive()).expect("unpacked").1, ["a", "b", "c", "d"]);
    // The archive may be compressed itself, or be a folder.
    assert_eq!(unpack(&gzip(&files.archive())).expect("unpacked").1.len(), 4);
    assert_eq!(unpack(&zstd(&files.archive())).expect("unpacked").1.len(), 4);
    let folder = tempfile::tempdir().expect("temporary folder");
    files.write_to(folder.path());
    let source = ImageSource::open(folder.path()).expect("a layout");
    assert_eq!(manifest::choose(&source).expect("an image").layers.len(), 4);
    // docker save writes this form.
    let saved = Files::saved("amd64", json!({}), &stored[..1]);
    assert_eq!(unpack(&saved.archive()).expect("unpacked").1, ["a"]);
}

#[test]
fn an_archive_of_docker_save_may_have_links_to_layers() {
    let layer = archive(&[file("a", "x")]);
    let mut files = Files::saved("amd64", json!({}), &[layer.clone(), layer]);
    files.0.remove("1/layer.tar");
    let mut bytes = files.archive();
    bytes.truncate(bytes.len() - 1024);
    bytes.extend(archive(&[node(Symlink, "1/layer.tar", "../0/layer.tar")]));
    assert_eq!(unpack(&bytes).expect("unpacked").1, ["a"]);
    // Links in a circle lead nowhere.
    files.0.remove("0/layer.tar");
    let mut bytes = files.archive();
    bytes.truncate(bytes.len() - 1024);
    let circle =
        [node(Symlink, "0/layer.tar", "../1/layer.tar"), node(Symlink, "1/layer.tar", "../0/layer.tar")];
    bytes.extend(archive(&circle));
    assert_eq!(refused(&bytes), "0/layer.tar is missing in it");
}

#[test]
fn a_damaged_image_is_refused_in_one_sentence() {
    let (one, other) = (archive(&[file("a", "x")]), archive(&[file("b", "x")]));
    let packed = gzip(&one);
    let cases: [(&str, Files); 9] = [
        ("layer 1 of 1 is damaged: its digest", layout(&[(other.clone(), gzip(&one))])),
        ("layer 1 of 1 is cut short", layout(&[(one.clone(), packed[..packed.len() - 9].to_vec())])),
        ("layer 1 of 1 is damaged: its digest", Files::saved_with(&one, "0/layer.tar", &other)),
        ("0/layer.tar is missing in it", Files::saved_without("0/layer.tar", &one)),
        ("manifest.json is damaged", Files::saved_with(&one, "manifest.json", b"[{")),
        ("there is no image in it", Files::saved_without("manifest.json", &one)),
        ("there is no image in it", Files::saved_with(&one, "manifest.json", b"[]")),
        ("index.json is damaged", Files::saved_with(&one, "index.json", b"{\"schemaVersion\": 2}")),
        ("is for linux/arm64, and the VM is linux/amd64", Files::saved("arm64", json!({}), &[])),
    ];
    for (why, files) in cases {
        let text = refused(&files.archive());
        assert!(text.contains(why) && !text.contains('\n'), "{why}: {text}");
    }
    // A blob that differs from its digest: each kind of document, and a layer.
    let whole = layout(&[(one.clone(), packed.clone())]);
    for name in whole.0.keys().filter(|name| name.starts_with("blobs/")) {
        let mut files = Files(whole.0.clone());
        files.0.get_mut(name).expect("it is there").push(b' ');
        let text = refused(&files.archive());
        // Bytes after a compressed stream are read as another stream.
        let is_told = text.contains("damaged: its digest should be sha256:") || text.contains("is cut short");
        assert!(is_told, "{name}: {text}");
        files.0.remove(name);
        let text = refused(&files.archive());
        assert_eq!(text, format!("{name} is missing in it"));
    }
    // The right contents, stored in another form than the manifest says.
    let stored = format!("blobs/{}", digest(&packed).replace(':', "/"));
    let mut files = Files(whole.0.clone());
    files.0.insert(stored, one.clone());
    assert!(refused(&files.archive()).contains(&format!("its digest should be {}", digest(&packed))));
    // The image must have as many layers as its configuration says.
    let mut files = Files::saved("amd64", json!({}), &[one.clone(), one]);
    let manifest = String::from_utf8(files.0["manifest.json"].clone()).expect("text");
    files.0.insert("manifest.json".into(), manifest.replace(",\"1/layer.tar\"", "").into());
    assert!(refused(&files.archive()).contains("has 1 layers, and its configuration knows 2"));
}

#[test]
fn an_archive_that_ends_early_is_refused() {
    let bytes = Files::saved("amd64", json!({}), &[archive(&[file("a", "x")])]).archive();
    // The configuration and the manifest follow the layer.
    for end in (512..bytes.len() - 1024 - 512).step_by(300) {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), &bytes[..end]).expect("written");
        let text = match ImageSource::open(file.path()) {
            Err(failure) => failure.to_string(),
            Ok(source) => match manifest::choose(&source) {
                Err(failure) => failure.to_string(),
                Ok(_) => panic!("an image in {end} of {} bytes", bytes.len()),
            },
        };
        assert!(!text.contains('\n'), "{text}");
    }
    let packed = gzip(&bytes);
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), &packed[..packed.len() / 2]).expect("written");
    assert!(ImageSource::open(file.path()).is_err());
    std::fs::write(file.path(), b"no archive at all, but a text of more than one block".repeat(20))
        .expect("written");
    assert!(
        ImageSource::open(file.path())
            .expect_err("no archive")
            .to_string()
            .contains("is no archive of an image")
    );
}

impl Files {
    fn saved_with(layer: &[u8], name: &str, bytes: &[u8]) -> Files {
        let mut files = Files::saved("amd64", json!({}), &[layer.to_vec()]);
        files.0.insert(name.into(), bytes.to_vec());
        files
    }

    fn saved_without(name: &str, layer: &[u8]) -> Files {
        let mut files = Files::saved("amd64", json!({}), &[layer.to_vec()]);
        files.0.remove(name);
        files
    }
}

fn with(mut descriptor: Value, key: &str, value: Value) -> Value {
    descriptor[key] = value;
    descriptor
}

#[test]
fn of_several_kinds_of_machine_the_right_one_is_chosen() {
    let layer = |name: &'static str| {
        let plain = archive(&[file(name, "x")]);
        (plain.clone(), plain)
    };
    let platform = |arch: &str| json!({"os": "linux", "architecture": arch});
    let mut files = Files::default();
    let arm = with(files.image("arm64", json!({}), &[layer("arm")]), "platform", platform("arm64"));
    let amd = with(files.image("amd64", json!({}), &[layer("amd")]), "platform", platform("amd64"));
    let newer = json!({"os": "linux", "architecture": "amd64", "variant": "v3"});
    let newer = with(files.image("amd64", json!({}), &[layer("v3")]), "platform", newer);
    let proof = with(files.image("amd64", json!({}), &[]), "platform", platform("unknown"));
    let proof = with(proof, "annotations", json!({"vnd.docker.reference.type": "attestation-manifest"}));
    let inner = json!({"schemaVersion": 2, "manifests": [arm, newer, proof, amd]});
    let inner = files.blob("application/vnd.oci.image.index.v1+json", inner.to_string().into());
    // Two names of one image are one image.
    files.index(&[inner.clone(), inner]);
    // An archive may lack the files for other machines.
    let missing = arm["digest"].as_str().expect("text").replace(':', "/");
    files.0.remove(&format!("blobs/{missing}"));
    assert_eq!(unpack(&files.archive()).expect("unpacked").1, ["amd"]);
    files.index(std::slice::from_ref(&arm));
    assert!(refused(&files.archive()).contains("is for linux/arm64"));
    let named = |image: &Value, name: &str| {
        with(image.clone(), "annotations", json!({"org.opencontainers.image.ref.name": name}))
    };
    let plain = |image: &Value| with(image.clone(), "platform", Value::Null);
    files.index(&[named(&plain(&amd), "one"), named(&plain(&newer), "two")]);
    assert!(refused(&files.archive()).contains("there are 2 images in it: one, two"));
}

#[test]
fn an_index_without_end_is_refused() {
    let mut files = Files::default();
    let mut index = files.image("amd64", json!({}), &[]);
    for _ in 0..6 {
        let outer = json!({"schemaVersion": 2, "manifests": [index]});
        index = files.blob("application/vnd.oci.image.index.v1+json", outer.to_string().into());
    }
    files.index(&[index]);
    assert!(refused(&files.archive()).contains("without end"));
}

#[test]
fn the_command_line_changes_what_an_image_runs_as_docker_does() {
    let (_folder, tree) = tree(&[&[
        file("bin/entry", "x").like(0o755, (0, 0)),
        file("bin/other", "x").like(0o755, (0, 0)),
        file("bin/text", "x"),
        file("w/own", "x").like(0o755, (0, 0)),
        node(Symlink, "sbin", "bin"),
        file("etc/passwd", "app:x:1000:50::/srv:\n"),
    ]])
    .expect("a tree");
    let settings = json!({
        "Entrypoint": ["entry", "-a"], "Cmd": ["-b"], "Env": ["PATH=/bin", "A=1", "B=2", "PATH=/sbin"],
        "User": "app", "WorkingDir": "/w", "Volumes": null, "Labels": null,
    });
    let launch = |settings: &Value, words: &[&str]| -> Result<Launch> {
        let config = json!({"architecture": "amd64", "os": "linux", "config": settings, "rootfs": {"type": "layers", "diff_ids": []}});
        let config = serde_json::from_value(config).expect("a configuration");
        let words: Vec<_> = ["--image", "x"].iter().chain(words).map(Into::into).collect();
        Launch::of(&tree, &config, &crate::args::run_options(&words)?, None)
    };
    let told = |words: &[&str]| {
        let launch = launch(&settings, words).expect("a program");
        let argv: Vec<_> = launch.arguments.iter().map(|word| word.to_string_lossy()).collect();
        format!("{} {}", launch.exec.display(), argv.join(" "))
    };
    assert_eq!(told(&[]), "/sbin/entry entry -a -b");
    assert_eq!(told(&["--", "c", "d"]), "/sbin/entry entry -a c d");
    assert_eq!(told(&["--entrypoint", "other"]), "/sbin/other other");
    assert_eq!(told(&["--entrypoint", "/bin/other", "--", "c"]), "/bin/other /bin/other c");
    assert_eq!(told(&["--entrypoint", "", "--", "other", "c"]), "/sbin/other other c");
    assert_eq!(told(&["--entrypoint", "./own"]), "/w/./own ./own");
    let plain = launch(&settings, &["-e", "B=3"]).expect("a program");
    assert_eq!(plain.environment, ["HOME=/srv", "A=1", "PATH=/sbin", "B=3"]);
    assert_eq!((plain.user.record().as_str(), plain.cwd.as_path()), ("1000:50", Path::new("/w")));
    let changed = launch(&settings, &["--user", "7", "--cwd", "/"]).expect("a program");
    assert_eq!((changed.user.record().as_str(), changed.cwd.as_path()), ("7:0", Path::new("/")));
    let status = |words: &[&str]| launch(&settings, words).expect_err("refused").status();
    assert_eq!(status(&["--entrypoint", "text"]), 127);
    assert_eq!([status(&["--entrypoint", "/bin/text"]), status(&["--entrypoint", "/bin"])], [126; 2]);
    assert_eq!(
        [status(&["--user", "nobody"]), status(&["--entrypoint", ""]), status(&["--cwd", "x"])],
        [125; 3]
    );
    // An image with an empty configuration.
    assert_eq!(launch(&Value::Null, &[]).expect_err("refused").status(), 125);
    let bare = launch(&Value::Null, &["--", "other"]).expect("a program");
    assert_eq!((bare.exec.as_path(), bare.user.record().as_str()), (Path::new("/sbin/other"), "0:0"));
    assert_eq!(digest(b"").len(), 71);
    assert!(stream::check(b"x", &digest(b"x").parse().expect("a digest"), "x").is_ok());
}
