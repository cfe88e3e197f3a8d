//! mount(2)'s options of an overlay, with Linux' words and errors.

use freehold_collections::{Arc, Vec};

use super::{Layers, OverlayFs, UpperTree, is_within};
use crate::fs::mount::FileSystem;
use crate::fs::node::NodeKind;
use crate::fs::path::Path;
use crate::{Errno, Result};
use freehold_collections::reserve::ArcMethods;

/// Options for behaviour that every overlay here has.
const AS_IS: &[&[u8]] =
    &[b"index=off", b"metacopy=off", b"redirect_dir=off", b"redirect_dir=nofollow", b"xino=auto", b"xino=on"];

/// Largest number of lower directories, as on Linux (OVL_MAX_STACK, fs/overlayfs/params.h).
const MOST_LOWER: usize = 500;

#[derive(Default)]
struct Named {
    /// The lower directories, separated by colons.
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    work: Option<Vec<u8>>,
}

/// Makes an overlay with mount(2)'s `options`; `find` resolves their paths.
///
/// # Errors
/// `EINVAL` for invalid options, which are logged; `ELOOP` if the trees overlap; errors of `find`.
pub fn mount(options: &[u8], find: &dyn Fn(&[u8]) -> Result<Path>) -> Result<Arc<dyn FileSystem>> {
    let named = parse(options)?;
    let directory = |text: &[u8]| {
        let place = find(text)?;
        if place.node.kind() == NodeKind::Directory { Ok(place) } else { Err(Errno::ENOTDIR) }
    };
    let listed = named.lower.ok_or_else(|| refused("lowerdir is missing"))?;
    let mut lower = Vec::new();
    for name in listed.split(|&byte| byte == b':') {
        if name.is_empty() || lower.len() == MOST_LOWER {
            return Err(refused("a lower directory has no name, or there are more than 500"));
        }
        lower.try_push(directory(name)?)?;
    }
    let upper = match (&named.upper, &named.work) {
        (None, _) if lower.len() < 2 => {
            return Err(refused("without upperdir there have to be two lowerdirs"));
        }
        (None, _) => None,
        (Some(_), None) => return Err(refused("workdir is missing")),
        (Some(root), Some(work)) => Some(UpperTree { root: directory(root)?, work: directory(work)? }),
    };
    let layers = Layers { lower, upper };
    check(&layers)?;
    let mut shown = Vec::new();
    let upper = named.upper.as_ref();
    let work = named.work.as_ref().filter(|_| upper.is_some());
    for (key, value) in [(&b",lowerdir="[..], Some(&listed)), (b",upperdir=", upper), (b",workdir=", work)] {
        if let Some(value) = value {
            shown.try_extend_from_slice(key)?;
            shown.try_extend_from_slice(value)?;
        }
    }
    Ok(OverlayFs::new(&layers, &shown)?)
}

fn refused(why: &str) -> Errno {
    log::warn!("overlay: {why}");
    Errno::EINVAL
}

fn parse(options: &[u8]) -> Result<Named> {
    let mut named = Named::default();
    for option in options.split(|&byte| byte == b',').filter(|option| !option.is_empty()) {
        let (key, value) =
            option.split_at(option.iter().position(|&byte| byte == b'=').unwrap_or(option.len()));
        let value = value.get(1..).unwrap_or_default();
        let place = match key {
            b"lowerdir" => &mut named.lower,
            b"upperdir" => &mut named.upper,
            b"workdir" => &mut named.work,
            _ if AS_IS.contains(&option) => continue,
            _ => return Err(refused("an option is not known, or not supported")),
        };
        if value.is_empty() || value.contains(&b'\\') {
            return Err(refused("a directory's name is empty, or has a backslash, which is not supported"));
        }
        *place = Some(Vec::try_from_slice(value)?);
    }
    Ok(named)
}

fn check(Layers { lower, upper }: &Layers) -> Result<()> {
    let overlap = |text: &str| {
        log::warn!("overlay: {text}");
        Err(Errno::ELOOP)
    };
    for (place, tree) in lower.iter().enumerate() {
        let others = lower.iter().enumerate().filter(|&(other, _)| other != place);
        if others.into_iter().any(|(_, other)| is_within(&tree.node, &other.node)) {
            return overlap("a lowerdir is in another one");
        }
    }
    let Some(UpperTree { root, work }) = upper else { return Ok(()) };
    root.mount.writable().map_err(|_| refused("the upper tree is mounted read-only"))?;
    if !work.mount.is_same(&root.mount) {
        return Err(refused("workdir and upperdir must be in one mount"));
    }
    if is_within(&work.node, &root.node) || is_within(&root.node, &work.node) {
        return Err(refused("workdir and upperdir must not be in each other"));
    }
    if lower.iter().any(|lower| [root, work].iter().any(|tree| is_within(&lower.node, &tree.node))) {
        return overlap("a lowerdir is in upperdir or workdir");
    }
    Ok(())
}
