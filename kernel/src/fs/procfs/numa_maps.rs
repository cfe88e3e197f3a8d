//! /proc/PID/numa_maps: each area's policy, and the number of its pages on each node
//! (Documentation/filesystems/proc.rst).

use freehold_collections::Vec;
use freehold_machine::topology::MAX_NODES;
use freehold_vm::{AreaName, OfFile, PageAt};

use super::memory::{PAGE, UserArea, name, page_bytes};
use crate::Result;
use crate::fs::Path;
use crate::fs::generated::Text;
use crate::mem::{self, AddressSpace};

/// Counts of an area.
#[derive(Default)]
struct AreaCounts {
    pages: u64,
    anonymous: u64,
    dirty: u64,
    /// Largest number of mappings of a page.
    most_mapped: u64,
    by_node: [u64; MAX_NODES],
}

fn count(space: &AddressSpace, area: &UserArea<'_>) -> AreaCounts {
    let smaps = space.smaps(area);
    let mut counts =
        AreaCounts { dirty: (smaps.private_dirty + smaps.shared_dirty) / PAGE, ..AreaCounts::default() };
    space.pages(area.start, area.end, |page| {
        // The page of zeroes is not counted.
        let PageAt::Frame(frame) = page.at else { return };
        if page.mappings == 0 {
            return;
        }
        counts.pages += 1;
        counts.anonymous += u64::from(page.of_file == OfFile::No);
        counts.most_mapped = counts.most_mapped.max(page.mappings.into());
        counts.by_node[usize::from(mem::commons().node_of(frame).0)] += 1;
    });
    counts
}

/// Writes a name between spaces. Spaces in it, and other characters that would end a line or a
/// word, are written in octal.
fn push_escaped(out: &mut Text, name: &[u8]) {
    for &byte in name {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => write!(out, "\\{byte:03o}"),
            _ => out.push(&[byte]),
        }
    }
}

/// Writes the line of one area.
pub(super) fn line(out: &mut Text, space: &AddressSpace, area: &UserArea<'_>, root: &Path) -> Result<()> {
    let counts = count(space, area);
    write!(out, "{:08x} {}", area.start.0, mem::PolicyName(area.policy));
    match area.name {
        AreaName::Heap => out.push(b" heap"),
        AreaName::Stack => out.push(b" stack"),
        AreaName::Anonymous | AreaName::Vdso(_) => {}
        AreaName::SharedAnonymous | AreaName::Huge | AreaName::File(_) => {
            let name: Vec<u8> = name(area, root)?;
            out.push(b" file=");
            push_escaped(out, &name);
        }
    }
    let AreaCounts { pages, anonymous, dirty, most_mapped, by_node } = counts;
    let size = page_bytes(area);
    if size > PAGE {
        out.push(b" huge");
    }
    let of_size = |pages: u64| pages * PAGE / size;
    for (name, value, is_shown) in [
        ("anon", of_size(anonymous), anonymous > 0),
        ("dirty", of_size(dirty), dirty > 0),
        ("mapped", of_size(pages), pages != anonymous && pages != dirty),
        ("mapmax", most_mapped, most_mapped > 1),
    ] {
        if is_shown {
            write!(out, " {name}={value}");
        }
    }
    for (node, &pages) in by_node.iter().enumerate().filter(|(_, pages)| **pages > 0) {
        write!(out, " N{node}={}", of_size(pages));
    }
    if pages > 0 {
        write!(out, " kernelpagesize_kB={}", size / 1024);
    }
    out.push(b"\n");
    Ok(())
}
