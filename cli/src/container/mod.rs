//! `--image FILE`: a container image as the guest's root.
//!
//! | module | concept |
//! |---|---|
//! | [`source`] | the archive or folder that the image is in |
//! | [`manifest`] | which image of it is run: its configuration and its layers |
//! | [`stream`] | bytes of a layer: unpacked, and checked against their digests |
//! | [`layers`] | applies layers to a tree, in order |
//! | [`tree`] | the tree on the host: owners and modes in extended attributes |
//! | [`store`] | the cache of unpacked images |
//! | [`accounts`] | users and groups of the image |
//! | [`launch`] | the program that a container of the image runs |
//!
//! An image is unpacked once, without root's rights, into the cache folder. The tree has only
//! regular files and directories that belong to the user who runs `freehold`, with modes 0600 and
//! 0700: no set-user-ID program and no device ever exists on the host. Owner, mode and device
//! number are in extended attributes, in the form of QEMU's security model `mapped-xattr`, and QEMU
//! shows them to the guest.
//!
//! **An archive is hostile input.** A name that leads out of the tree is refused. Symbolic links
//! are regular files on the host, so no system call of this module follows a link of the image. All
//! bytes are checked against digests before the tree gets its final name; the cache is keyed by the
//! digest of the configuration, which names the digests of all layers.

mod accounts;
mod launch;
mod layers;
mod manifest;
mod source;
mod store;
mod stream;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;

use std::path::Path;

pub use launch::Launch;
pub use stream::hexadecimal;
pub use tree::{FileAttributes, MappedTree};

use crate::Result;
use crate::args::RunOptions;
use crate::failure::Failure;
use oci_spec::image::ImageConfiguration;

/// An image that is ready to run.
#[derive(Debug)]
pub struct Container {
    tree: MappedTree,
    config: ImageConfiguration,
}

impl Container {
    /// Opens the image in `file`; unpacks it if the cache does not have it.
    ///
    /// # Errors
    /// `file` has no image that can run here, or the image is damaged; the cache folder cannot hold
    /// it.
    pub fn open(file: &Path) -> Result<Container> {
        if let Some((root, config)) = store::known(file)
            && let Ok(config) = serde_json::from_slice(&config)
        {
            return Ok(Container { tree: MappedTree::at(root), config });
        }
        let open = || {
            let source = source::ImageSource::open(file)?;
            let image = manifest::choose(&source).map_err(|failure| failure.at(file))?;
            let root = store::unpacked(file, &source, &image)?;
            Ok(Container { tree: MappedTree::at(root), config: image.config })
        };
        open().map_err(Failure::in_one_line)
    }

    /// Returns the tree of the image on the host.
    pub fn tree(&self) -> &MappedTree {
        &self.tree
    }

    /// Returns the image's program, as `options` change it. `terminal` is the value of `TERM`.
    ///
    /// # Errors
    /// There is no such program or user in the image; an option makes no sense.
    pub fn launch(&self, options: &RunOptions, terminal: Option<std::ffi::OsString>) -> Result<Launch> {
        Launch::of(&self.tree, &self.config, options, terminal).map_err(Failure::in_one_line)
    }
}
