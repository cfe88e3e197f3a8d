//! Chooses the image to run: from the documents of a `docker save` archive or an OCI layout to its
//! layers.

use std::fmt;

use oci_spec::image::{
    Arch, Descriptor, Digest, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::source::ImageSource;
use super::stream;
use crate::Result;
use crate::failure::Failure;
use sha2::Digest as _;

/// Indexes that name indexes, at most.
const MAX_DEPTH: usize = 4;
/// Marks a manifest that describes the build or the signers of another one.
const ATTESTATION: &str = "vnd.docker.reference.type";
/// Annotations that may hold the name of an image.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// An image: its configuration and its layers, the lowest first.
#[derive(Debug)]
pub struct ChosenImage {
    /// The configuration.
    pub config: ImageConfiguration,
    /// The configuration's bytes in the image.
    pub document: Vec<u8>,
    /// The hexadecimal digest of its configuration (SHA-256), which determines all contents of the
    /// image.
    pub id: String,
    /// The layers.
    pub layers: Vec<Layer>,
}

/// A layer of an image.
#[derive(Debug)]
pub struct Layer {
    /// Its file in the source.
    pub name: String,
    /// The layer's name in messages.
    pub what: String,
    /// The digest of the file, if the image gives one.
    pub stored: Option<Digest>,
    /// The digest of the archive that the file holds.
    pub contents: Digest,
}

/// An entry of the file manifest.json of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// An image in the source, and its names.
struct Candidate {
    name: Option<String>,
    config: Vec<u8>,
    layers: Vec<(String, Option<Digest>)>,
}

/// Platforms of the images that were passed over.
#[derive(Default)]
struct Platforms(Vec<String>);

impl Platforms {
    fn add(&mut self, os: &Os, arch: &Arch) {
        let text = format!("{os}/{arch}");
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }
}

impl fmt::Display for Platforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// Chooses the image for this kind of machine.
///
/// # Errors
/// There is no image, or there are several; a document is missing, damaged or invalid.
pub fn choose(source: &ImageSource) -> Result<ChosenImage> {
    let mut others = Platforms::default();
    // Archives of newer versions of docker have both forms.
    let candidates = if source.has("index.json") {
        of_layout(source, &mut others)?
    } else if source.has("manifest.json") {
        of_saved(source)?
    } else {
        return Err(Failure::new(
            "there is no image in it: neither index.json nor manifest.json",
            "an archive of docker save or podman save, or an OCI layout; a plain tree is --root DIR",
        ));
    };
    let mut fitting: Vec<(Candidate, ImageConfiguration)> = Vec::new();
    for candidate in candidates {
        let config: ImageConfiguration = parse(&candidate.config, "the image's configuration")?;
        if (config.os(), config.architecture()) != (&Os::Linux, &Arch::Amd64) {
            others.add(config.os(), config.architecture());
        } else if fitting.iter().all(|(known, _)| known.config != candidate.config) {
            fitting.push((candidate, config));
        }
    }
    if fitting.len() > 1 {
        let names: Vec<_> = fitting.iter().filter_map(|(image, _)| image.name.as_deref()).collect();
        return Err(Failure::new(
            format!("there are {} images in it: {}", fitting.len(), names.join(", ")),
            "save only one of them into the archive",
        ));
    }
    match fitting.pop() {
        Some((candidate, config)) => chosen(candidate, config),
        None if others.0.is_empty() => Err(Failure::new("there is no image in it", "")),
        None => Err(Failure::new(
            format!("the image is for {others}, and the VM is linux/amd64"),
            "docker pull --platform linux/amd64 gets the other one",
        )),
    }
}

fn chosen(candidate: Candidate, config: ImageConfiguration) -> Result<ChosenImage> {
    let contents = config.rootfs().diff_ids();
    let count = candidate.layers.len();
    if contents.len() != count {
        return Err(Failure::new(
            format!("the image has {count} layers, and its configuration knows {}", contents.len()),
            "",
        ));
    }
    let id = stream::hexadecimal(&sha2::Sha256::digest(&candidate.config));
    let layers = candidate.layers.into_iter().zip(contents).enumerate();
    let layers = layers.map(|(at, ((name, stored), contents))| {
        let what = format!("layer {} of {count}", at + 1);
        let contents = digest(contents, &what)?;
        Ok(Layer { name, what, stored, contents })
    });
    let layers = layers.collect::<Result<_>>()?;
    Ok(ChosenImage { config, document: candidate.config, id, layers })
}

fn digest(text: &str, what: &str) -> Result<Digest> {
    text.parse().map_err(|_| Failure::new(format!("{what} has no digest, but {text:?}"), ""))
}

fn parse<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Failure::new(format!("{what} is damaged: {error}"), ""))
}

/// Returns the images of `docker save`.
fn of_saved(source: &ImageSource) -> Result<Vec<Candidate>> {
    let list: Vec<SavedImage> = parse(&source.document("manifest.json")?, "manifest.json")?;
    let candidate = |saved: SavedImage| {
        let config = source.document(&saved.config)?;
        let stem = saved.config.strip_suffix(".json").unwrap_or(&saved.config);
        let hex = stem.rsplit_once('/').map_or(stem, |(_, hex)| hex);
        // Other tools name this file differently.
        if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let named = digest(&format!("sha256:{hex}"), "the image's configuration")?;
            stream::check(&config, &named, "the image's configuration")?;
        }
        Ok(Candidate {
            name: saved.repo_tags.and_then(|tags| tags.into_iter().next()),
            config,
            layers: saved.layers.into_iter().map(|name| (name, None)).collect(),
        })
    };
    list.into_iter().map(candidate).collect()
}

/// Returns the images of an OCI layout.
fn of_layout(source: &ImageSource, others: &mut Platforms) -> Result<Vec<Candidate>> {
    let index: ImageIndex = parse(&source.document("index.json")?, "index.json")?;
    let mut found = Vec::new();
    manifests(source, &index, (0, None), &mut found, others)?;
    let candidate = |(descriptor, name): (Descriptor, Option<String>)| {
        let manifest: ImageManifest = parse(&blob(source, &descriptor)?, "the image's manifest")?;
        let layer = |layer: &Descriptor| (blob_name(layer.digest()), Some(layer.digest().clone()));
        Ok(Candidate {
            name,
            config: blob(source, manifest.config())?,
            layers: manifest.layers().iter().map(layer).collect(),
        })
    };
    found.into_iter().map(candidate).collect()
}

/// Finds the manifests of images that `index` leads to. Manifests for another platform are passed
/// over.
fn manifests(
    source: &ImageSource,
    index: &ImageIndex,
    (depth, name): (usize, Option<&String>),
    found: &mut Vec<(Descriptor, Option<String>)>,
    others: &mut Platforms,
) -> Result<()> {
    let variant = |descriptor: &Descriptor| descriptor.platform().as_ref().and_then(|p| p.variant().clone());
    let mut fitting: Vec<&Descriptor> = Vec::new();
    for descriptor in index.manifests() {
        if noted(descriptor, ATTESTATION).is_some() {
            continue;
        }
        match descriptor.platform() {
            Some(platform) if (platform.os(), platform.architecture()) != (&Os::Linux, &Arch::Amd64) => {
                others.add(platform.os(), platform.architecture());
            }
            _ => fitting.push(descriptor),
        }
    }
    // An image for any CPU of the platform is preferred, if there is one.
    if fitting.iter().any(|descriptor| descriptor.platform().is_some() && variant(descriptor).is_none()) {
        fitting.retain(|descriptor| variant(descriptor).is_none());
    }
    for descriptor in fitting {
        let own = NAMES.iter().find_map(|key| noted(descriptor, key)).or(name);
        match descriptor.media_type() {
            MediaType::ImageIndex => {}
            MediaType::Other(kind) if kind.contains("manifest.list") => {}
            MediaType::ImageManifest => {
                found.push((descriptor.clone(), own.cloned()));
                continue;
            }
            MediaType::Other(kind) if kind.contains("distribution.manifest.v2") => {
                found.push((descriptor.clone(), own.cloned()));
                continue;
            }
            _ => continue,
        }
        if depth == MAX_DEPTH {
            return Err(Failure::new("its indexes lead to indexes without end", ""));
        }
        let inner: ImageIndex = parse(&blob(source, descriptor)?, "an index of images")?;
        manifests(source, &inner, (depth + 1, own), found, others)?;
    }
    Ok(())
}

fn noted<'a>(descriptor: &'a Descriptor, key: &str) -> Option<&'a String> {
    descriptor.annotations().as_ref()?.get(key)
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.digest())
}

fn blob(source: &ImageSource, descriptor: &Descriptor) -> Result<Vec<u8>> {
    let name = blob_name(descriptor.digest());
    let bytes = source.document(&name)?;
    stream::check(&bytes, descriptor.digest(), &name)?;
    Ok(bytes)
}
