//! Images that tests make.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use sha2::Digest as _;
use tar::EntryType;

use super::stream::hexadecimal;

/// A member of a layer.
#[derive(Clone)]
pub struct Member {
    name: &'static str,
    kind: EntryType,
    text: &'static str,
    mode: u32,
    owner: (u64, u64),
}

/// Returns a regular file.
pub fn file(name: &'static str, text: &'static str) -> Member {
    Member { name, kind: EntryType::Regular, text, mode: 0o644, owner: (0, 0) }
}

/// Returns a member without bytes; `target` is the target of a link.
pub fn node(kind: EntryType, name: &'static str, target: &'static str) -> Member {
    Member { kind, mode: 0o755, ..file(name, target) }
}

impl Member {
    /// Returns the same member with another mode and owner.
    pub fn like(self, mode: u32, owner: (u64, u64)) -> Member {
        Member { mode, owner, ..self }
    }
}

/// Returns the archive with these members. Their names are not checked.
pub fn archive(members: &[Member]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for Member { name, kind, text, mode, owner } in members {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        let raw = header.as_gnu_mut().expect("it is one");
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        let bytes = if *kind == EntryType::Regular { text.as_bytes() } else { b"" };
        if bytes.is_empty() {
            raw.linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        if matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(0).and_then(|()| header.set_device_minor(0)).expect("it has both");
        }
        header.set_size(bytes.len() as u64);
        header.set_mode(*mode);
        header.set_uid(owner.0);
        header.set_gid(owner.1);
        header.set_mtime(1_000_000_000);
        header.set_cksum();
        builder.append(&header, bytes).expect("written");
    }
    builder.into_inner().expect("finished")
}

/// Compresses bytes with gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).expect("packed");
    packer.finish().expect("packed")
}

/// Compresses bytes with zstd, in one frame.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Returns the digest of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hexadecimal(&sha2::Sha256::digest(bytes)))
}

/// The files of an image in the making.
#[derive(Default)]
pub struct Files(pub BTreeMap<String, Vec<u8>>);

impl Files {
    /// Adds a blob of an OCI layout. Returns its descriptor.
    pub fn blob(&mut self, kind: &str, bytes: Vec<u8>) -> Value {
        let digest = digest(&bytes);
        let descriptor = json!({"mediaType": kind, "digest": digest, "size": bytes.len()});
        self.0.insert(format!("blobs/{}", digest.replace(':', "/")), bytes);
        descriptor
    }

    /// Adds an image to an OCI layout; `contents` are its layers, each with its stored form.
    /// Returns the descriptor of its manifest.
    pub fn image(&mut self, arch: &str, settings: Value, contents: &[(Vec<u8>, Vec<u8>)]) -> Value {
        let config = config(arch, settings, contents.iter().map(|(plain, _)| plain));
        let config = self.blob("application/vnd.oci.image.config.v1+json", config);
        let layer = |(_, stored): &(Vec<u8>, Vec<u8>)| {
            self.blob("application/vnd.oci.image.layer.v1.tar", stored.clone())
        };
        let layers: Vec<Value> = contents.iter().map(layer).collect();
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        self.blob("application/vnd.oci.image.manifest.v1+json", manifest.to_string().into())
    }

    /// Adds the index of an OCI layout.
    pub fn index(&mut self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        self.0.insert("index.json".into(), index.to_string().into());
    }

    /// Returns the files of a `docker save` archive.
    pub fn saved(arch: &str, settings: Value, layers: &[Vec<u8>]) -> Files {
        let mut files = Files::default();
        let config = config(arch, settings, layers.iter());
        let name = format!("{}.json", digest(&config).trim_start_matches("sha256:"));
        files.0.insert(name.clone(), config);
        let mut names = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            names.push(format!("{number}/layer.tar"));
            files.0.insert(format!("{number}/layer.tar"), layer.clone());
        }
        let manifest = json!([{"Config": name, "RepoTags": ["test:1"], "Layers": names}]);
        files.0.insert("manifest.json".into(), manifest.to_string().into());
        files
    }

    /// Returns all files as an archive.
    pub fn archive(&self) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in &self.0 {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, &bytes[..]).expect("written");
        }
        builder.into_inner().expect("finished")
    }

    /// Writes all files to a folder.
    pub fn write_to(&self, folder: &Path) {
        for (name, bytes) in &self.0 {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("it has a folder")).expect("mkdir");
            std::fs::write(path, bytes).expect("written");
        }
    }
}

/// Returns the configuration of an image.
fn config<'a>(arch: &str, settings: Value, layers: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let contents: Vec<String> = layers.map(|layer| digest(layer)).collect();
    let rootfs = json!({"type": "layers", "diff_ids": contents});
    json!({"architecture": arch, "os": "linux", "config": settings, "rootfs": rootfs}).to_string().into()
}
