//! mount(2)'s options of an overlay, with Linux' words and errors.

use freehold_collections::{Arc, Vec};

use super::{Layers, OverlayFs, is_within};
use crate::fs::mount::FileSystem;
use crate::fs::node::NodeKind;
use crate::fs::path::Path;
use crate::{Errno, Result};
use freehold_collections::reserve::ArcMethods;

/// Options that ask for what is so anyway.
const AS_IS: &[&[u8]] =
    &[b"index=off", b"metacopy=off", b"redirect_dir=off", b"redirect_dir=nofollow", b"xino=auto", b"xino=on"];

#[derive(Default)]
struct Named {
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    work: Option<Vec<u8>>,
}

/// A new overlay with mount(2)'s `options`, whose paths `find` resolves.
///
/// # Errors
/// `EINVAL` for options that cannot be, which the log names; `ELOOP` where the trees overlap; what `find` gives.
pub fn mount(options: &[u8], find: &dyn Fn(&[u8]) -> Result<Path>) -> Result<Arc<dyn FileSystem>> {
    let named = parse(options)?;
    let lower = named.lower.ok_or_else(|| refused("lowerdir is missing"))?;
    let Some(upper) = named.upper else {
        return Err(refused(
            "without upperdir there would have to be two lower directories, which are not supported",
        ));
    };
    let work = named.work.ok_or_else(|| refused("workdir is missing"))?;
    let directory = |text: &[u8]| {
        let place = find(text)?;
        if place.node.kind() == NodeKind::Directory { Ok(place) } else { Err(Errno::ENOTDIR) }
    };
    let layers = Layers { upper: directory(&upper)?, work: directory(&work)?, lower: directory(&lower)? };
    check(&layers)?;
    let mut shown = Vec::new();
    for (key, value) in [(&b",lowerdir="[..], &lower), (b",upperdir=", &upper), (b",workdir=", &work)] {
        shown.try_extend_from_slice(key)?;
        shown.try_extend_from_slice(value)?;
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
            b"lowerdir" if value.contains(&b':') => {
                return Err(refused("several lower directories are not supported"));
            }
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

fn check(layers: &Layers) -> Result<()> {
    let Layers { lower, upper, work } = layers;
    upper.mount.writable().map_err(|_| refused("the upper tree is mounted read-only"))?;
    if !work.mount.is_same(&upper.mount) {
        return Err(refused("workdir and upperdir must be in one mount"));
    }
    if is_within(&work.node, &upper.node) || is_within(&upper.node, &work.node) {
        return Err(refused("workdir and upperdir must not be in each other"));
    }
    for tree in [upper, work] {
        if is_within(&lower.node, &tree.node) {
            log::warn!("overlay: lowerdir is in upperdir or workdir");
            return Err(Errno::ELOOP);
        }
    }
    Ok(())
}
