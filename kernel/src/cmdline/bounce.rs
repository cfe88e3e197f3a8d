//! Values of the parameters for bounce buffers.

use freehold_bounce::Limits;

use super::{Problem, bytes, same_name};

/// Whether the user requests transfers through bounce buffers (Linux' `force` and `noforce`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Force {
    /// Use them where the kernel can choose.
    #[default]
    Yes,
    /// Do not use them for whole pages.
    No,
}

/// Format of the values of `swiotlb`.
pub(super) const SLABS: &str = "SLABS[,AREAS][,force|noforce]";

/// The problem with a parameter of Linux for which there is no use; `None` for other parameters.
pub(super) fn useless<'a>(name: &str) -> Option<Problem<'a>> {
    let (useless, reason) = (
        "coherent_pool",
        "no task takes memory of devices with a spin lock, so there is no reserve for that; swiotlb=SLABS sets what exists from the start",
    );
    same_name(useless, name).then_some(Problem::Useless(useless, reason))
}

/// Applies `value`, by Linux' rules.
pub(super) fn swiotlb(limits: &mut Limits, force: &mut Force, value: &str) -> Result<(), &'static str> {
    let mut words = value.split(',').peekable();
    let mut number = |most: usize| {
        let number = words.peek()?.parse().ok().filter(|number| (1..=most).contains(number))?;
        words.next();
        Some(number)
    };
    let slabs = number(1 << 19);
    let areas = if slabs.is_some() { number(64) } else { None };
    let said = match (words.next(), words.next()) {
        _ if value.is_empty() => None,
        (None | Some("force"), None) => Some(Force::Yes),
        (Some("noforce"), None) => Some(Force::No),
        _ => None,
    };
    *force = said.ok_or("SLABS[,AREAS][,force|noforce], with up to 524288 slots and 64 areas")?;
    limits.slabs = slabs.unwrap_or(limits.slabs);
    limits.areas = areas.unwrap_or(limits.areas);
    Ok(())
}

/// Parses a disk and a size: `vdb:1M` is disk number 1 and 1 MiB.
pub(super) fn restricted(text: &str) -> Option<(usize, usize)> {
    const LEAST: usize = 64 << 10;
    let (disk, size) = text.strip_prefix("vd")?.split_once(':')?;
    let [letter @ b'a'..=b'z'] = disk.as_bytes() else { return None };
    Some((usize::from(letter - b'a'), bytes(size).filter(|&bytes| bytes >= LEAST)?))
}
