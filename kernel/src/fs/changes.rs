//! Changes that programs made to files, kept in a folder of the host.
//!
//! With such a folder, the image's files are a lower tree, and the host's folders are lower trees
//! below it. One upper tree receives all changes. It begins with the changes that an earlier run
//! kept. When the program has ended, [`Changes::keep`] writes it into the folder, in
//! [`overlay::keep`]'s form.

use freehold_collections::{Arc, TryCollect, Vec};

use crate::fs::boot::{self, BelowTree};
use crate::fs::node::{ModeChange, SetMetadata, XattrSet};
use crate::fs::walk::{Final, PathWalk};
use crate::fs::{Caller, FileSystem, Path, overlay, root};
use crate::{Errno, Result};

/// The file in the image with the attributes of the changes that an earlier run kept.
const ATTRIBUTES: &[u8] = b"/.freehold/attributes";

/// The tree with the changes of programs, and the folder to which they will be written.
pub struct Changes {
    upper: Path,
    /// The paths at which other trees are mounted.
    places: Vec<Vec<u8>>,
    folder: Arc<dyn FileSystem>,
}

impl Changes {
    /// Directs all writes from now on to one upper tree, over the image and over `trees`. `folder`
    /// is empty.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` for attributes that are malformed; the trees' errors.
    pub fn begin(trees: &[BelowTree<'_>], folder: Arc<dyn FileSystem>) -> Result<Self> {
        let image = root::root();
        let upper = boot::upper_of_changes()?;
        set_attributes(&upper)?;
        let mut lower = [image.clone()].into_iter().try_collect_vec()?;
        for below in trees.iter().filter(|below| below.path == b"/") {
            lower.try_push(below.root()?)?;
        }
        boot::show_overlay(lower, upper.clone(), b"/")?;
        let mut changes = Self { upper, places: Vec::new(), folder };
        for below in trees.iter().filter(|below| below.path != b"/") {
            changes.mount(below, &image)?;
        }
        Ok(changes)
    }

    /// Mounts a tree at its path, below the image's files there and below programs' changes.
    fn mount(&mut self, below: &BelowTree<'_>, image: &Path) -> Result<()> {
        root::make_dirs(below.path)?;
        let find = |root: &Path| PathWalk::new(root, root, &Caller::ROOT).find(below.path, Final::Stop);
        let place = find(&root::root())?;
        // Looking at the directory through the overlay copies it up.
        let mode = place.node.metadata().mode;
        place
            .node
            .set_metadata(&SetMetadata { mode: Some(ModeChange::To(mode)), ..SetMetadata::default() })?;
        let upper = find(&self.upper)?;
        let mut lower = Vec::new();
        match find(image) {
            Ok(of_image) => lower.try_push(of_image)?,
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        lower.try_push(below.root()?)?;
        self.places.try_push(Vec::try_from_slice(below.path)?)?;
        boot::show_overlay(lower, upper, below.path)
    }

    /// Writes the tree into the folder.
    ///
    /// # Errors
    /// The first file that could not be written.
    pub fn keep(&self) -> core::result::Result<(), overlay::NotKept> {
        overlay::keep(&self.upper.node, &self.folder.root(), &self.places)
    }
}

/// Sets the attributes of the files in the upper tree that came with the image. The attributes'
/// file has records: three lengths of four bytes each, little-endian, then path, name and value.
fn set_attributes(upper: &Path) -> Result<()> {
    let bytes = match root::read_file(ATTRIBUTES) {
        Err(Errno::ENOENT) => return Ok(()),
        bytes => bytes?,
    };
    let walk = PathWalk::new(upper, upper, &Caller::ROOT);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let mut fields = [&b""[..]; 3];
        let (lengths, mut tail) = rest.split_at_checked(12).ok_or(Errno::EINVAL)?;
        for (field, length) in fields.iter_mut().zip(lengths.as_chunks().0) {
            (*field, tail) =
                tail.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(Errno::EINVAL)?;
        }
        let [path, name, value] = fields;
        walk.find(path, Final::Stop)?.node.set_xattr(name, value, XattrSet::Any)?;
        rest = tail;
    }
    Ok(())
}
