//! VIOT: what is behind a virtio IOMMU, and hostile tables.

extern crate std;
use std::vec::Vec;

use proptest::prelude::*;

use crate::tests::{Image, table};
use crate::{VirtualIommu, Warning};

/// A table of so many nodes, which begin at byte 48.
fn viot(count: u16, nodes: &[u8]) -> Vec<u8> {
    let mut body = count.to_le_bytes().to_vec();
    body.extend(48u16.to_le_bytes());
    body.extend([0; 8]);
    body.extend(nodes);
    table(b"VIOT", 0, &body)
}

fn iommu(segment: u16, function: u16) -> Vec<u8> {
    let mut node = std::vec![3, 0, 16, 0];
    node.extend(segment.to_le_bytes());
    node.extend(function.to_le_bytes());
    node.resize(16, 0);
    node
}

fn range(first: u16, last: u16, endpoint: u32, behind: u16) -> Vec<u8> {
    let mut node = std::vec![1, 0, 24, 0];
    node.extend(endpoint.to_le_bytes());
    node.extend([0; 4]);
    node.extend(first.to_le_bytes());
    node.extend(last.to_le_bytes());
    node.extend(behind.to_le_bytes());
    node.resize(24, 0);
    node
}

fn read(table: Vec<u8>) -> (Option<VirtualIommu>, usize) {
    let (firmware, warnings) = Image::new(&[table]).read(&[]);
    let told = |w: &&Warning| matches!(w, Warning::BadEntry(table, _) if table == b"VIOT");
    let many = |w: &&Warning| matches!(w, Warning::TooMany(_));
    let count = warnings.iter().filter(told).count() + warnings.iter().filter(many).count();
    (firmware.platform.virtual_iommu, count)
}

#[test]
fn functions_have_the_numbers_that_the_table_says() {
    // As QEMU has it: the IOMMU first, then ranges; here with numbers of their own.
    let nodes = [iommu(0, 0xe8), range(0, 0xff, 0x1000, 48), range(0x300, 0x3ff, 0x5000, 48)].concat();
    let (found, told) = read(viot(3, &nodes));
    let found = found.unwrap();
    assert_eq!((found.source_id, told), (0xe8, 0));
    for (function, endpoint) in [(0, 0x1000), (0xff, 0x10ff), (0x300, 0x5000), (0x3ff, 0x50ff)] {
        assert_eq!(found.endpoint_of(function), Some(endpoint));
        assert_eq!(found.function_of(endpoint), Some(function));
    }
    assert_eq!((found.endpoint_of(0x100), found.endpoint_of(0x400)), (None, None));
    assert_eq!(
        (found.function_of(0x1100), found.function_of(0xfff), found.function_of(u32::MAX)),
        (None, None, None)
    );
    // The count says how many nodes there are, and a range may come first.
    assert_eq!(read(viot(1, &nodes)).0.unwrap().endpoint_of(0), None);
    let nodes = [range(0, 0xff, 0, 72), iommu(0, 0xe8)].concat();
    assert_eq!(read(viot(2, &nodes)).0.unwrap().endpoint_of(0x18), Some(0x18));
}

#[test]
fn what_cannot_be_is_passed_over_and_told_of() {
    // No IOMMU, one in another segment, no nodes, nodes before there can be any.
    for table in [viot(1, &range(0, 0xff, 0, 48)), viot(1, &iommu(1, 0xe8)), viot(0, &iommu(0, 0xe8))] {
        assert_eq!(read(table).0, None);
    }
    let mut early = 1u16.to_le_bytes().to_vec();
    early.extend([40, 0]);
    early.extend(iommu(0, 0xe8));
    early.extend([0; 16]);
    assert_eq!(read(table(b"VIOT", 0, &early)), (None, 1));
    // Upside down; numbers past the end; functions, or numbers, that another has; behind another.
    let first = [iommu(0, 0xe8), range(0, 0xff, 0, 48)].concat();
    for (bad, told) in [
        (range(0x200, 0x1ff, 0x200, 48), 1),
        (range(0x200, 0x2ff, u32::MAX, 48), 1),
        (range(0xff, 0x1ff, 0x800, 48), 1),
        (range(0x200, 0x2ff, 0xff, 48), 1),
        (range(0x200, 0x2ff, 0x200, 96), 0),
        (iommu(0, 0xf0), 1),
    ] {
        let (found, count) = read(viot(3, &[&first[..], &bad].concat()));
        let found = found.unwrap();
        assert_eq!((found.endpoint_of(0xff), found.endpoint_of(0x200), count), (Some(0xff), None, told));
    }
    // Another segment; a range that is cut off; more ranges than there is room for.
    let mut far = range(0x200, 0x2ff, 0x200, 48);
    far[8] = 1;
    assert_eq!(read(viot(3, &[&first[..], &far].concat())).1, 1);
    let mut cut = [&first[..], &[1, 0, 24, 0], &[0; 8]].concat();
    assert_eq!(read(viot(3, &cut)).0.unwrap().endpoint_of(0x200), None);
    cut.truncate(10);
    assert_eq!(read(viot(3, &cut)).0, None);
    let many: Vec<u8> = (0..9u16).flat_map(|n| range(n << 8, n << 8 | 0xff, u32::from(n) << 8, 48)).collect();
    let (found, told) = read(viot(10, &[&iommu(0, 0xe8)[..], &many].concat()));
    assert_eq!(
        (found.unwrap().endpoint_of(0x7ff), found.unwrap().endpoint_of(0x800), told),
        (Some(0x7ff), None, 1)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Arbitrary bytes: in a table that can be read, each function has at most one number, and no
    /// two functions have the same number.
    #[test]
    fn any_table_gives_a_function_one_number(
        count in any::<u16>(),
        kinds in proptest::collection::vec((0u8..5, any::<[u8; 22]>()), 0..12),
        noise in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut nodes = iommu(0, 0xe8);
        for (kind, bytes) in kinds {
            let mut node = std::vec![kind, 0];
            node.extend(bytes);
            (node[2], node[3]) = (24, 0);
            if bytes[0] < 200 {
                // Often a range of segment 0 behind the IOMMU.
                node[8..12].fill(0);
                node[16..18].copy_from_slice(&[48, 0]);
                node[6..8].fill(0);
            }
            nodes.extend(node);
        }
        nodes.extend(noise);
        if let (Some(found), _) = read(viot(count, &nodes)) {
            for function in (0..=u16::MAX).step_by(61) {
                if let Some(endpoint) = found.endpoint_of(function) {
                    prop_assert_eq!(found.function_of(endpoint), Some(function));
                }
            }
        }
    }
}
