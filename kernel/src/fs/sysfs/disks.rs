//! Disks: /sys/block, /sys/class/block and /sys/dev/block (Documentation/ABI/stable/sysfs-block).
//!
//! A disk's directory is shown while the disk is present. Attributes that Linux lets root change
//! are constants here, except `io_timeout`: there is no scheduler, and no request is merged with
//! another.

use freehold_collections::Arc;
use freehold_machine::PAGE_SIZE;
use freehold_virtio::SECTOR_SIZE;
use freehold_virtio::block::{DEPTH, MAX_TRANSFER};
use freehold_vm::MAX_RUN;

use crate::fs::device::split_device;
use crate::fs::generated::{Generate, ShortLine, Text};
use crate::fs::pseudo::PseudoDir;
use crate::host::Disk;
use crate::{Errno, Result, block};

/// Facts about every disk. A size of 0 for a kind of request means that there are none of it.
const OF_DISKS: [(&str, usize); 6] = [
    ("alignment_offset", 0),
    ("discard_alignment", 0),
    ("ext_range", block::MINORS as usize),
    ("hidden", 0),
    ("range", block::MINORS as usize),
    ("removable", 0),
];
const OF_QUEUES: [(&str, usize); 22] = [
    ("chunk_sectors", 0),
    ("discard_granularity", 0),
    ("discard_max_bytes", 0),
    ("discard_max_hw_bytes", 0),
    ("discard_zeroes_data", 0),
    ("fua", 0),
    ("hw_sector_size", SECTOR_SIZE),
    ("iostats", 1),
    ("logical_block_size", SECTOR_SIZE),
    ("max_hw_sectors_kb", MAX_TRANSFER >> 10),
    ("max_sectors_kb", MAX_TRANSFER >> 10),
    ("minimum_io_size", SECTOR_SIZE),
    ("nr_requests", DEPTH),
    ("nr_zones", 0),
    ("optimal_io_size", 0),
    ("physical_block_size", SECTOR_SIZE),
    ("read_ahead_kb", (MAX_RUN * PAGE_SIZE) >> 10),
    ("rotational", 0),
    ("write_same_max_bytes", 0),
    ("write_zeroes_max_bytes", 0),
    ("zone_append_max_bytes", 0),
    ("zone_write_granularity", 0),
];

/// Adds the disks, once their largest number is known.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    for place in 0..block::most() {
        fill_disk(root, place);
    }
    let has_name = |name: &[u8]| block::list().any(|(there, ..)| name == there);
    root.dirs("block").show_only(has_name);
    root.dirs("class/block").show_only(has_name);
    root.dirs("dev/block").show_only(|name| {
        block::list().any(|(_, number, _)| {
            let (major, minor) = split_device(number);
            ShortLine::displaying(format_args!("{major}:{minor}")).bytes() == name
        })
    });
}

fn fill_disk(root: &Arc<PseudoDir>, place: usize) {
    let name = block::name_of(place);
    let (major, minor) = split_device(block::number_of(place));
    let disk = root.dirs(format_args!("block/{}", name.escape_ascii()));
    for (file, attribute) in DiskAttribute::ALL {
        disk.generated(file, 0o444, DiskFile { place, attribute });
    }
    for (attribute, value) in OF_DISKS {
        disk.constant(attribute, value);
    }
    disk.dirs("holders");
    disk.dirs("slaves");
    fill_queue(&disk.dirs("queue"), place);
    let target = format_args!("../../block/{}", name.escape_ascii());
    root.dirs("class/block").link(name.escape_ascii(), target);
    root.dirs("dev/block").link(format_args!("{major}:{minor}"), target);
}

fn fill_queue(queue: &Arc<PseudoDir>, place: usize) {
    for (attribute, value) in OF_QUEUES {
        queue.constant(attribute, value);
    }
    queue.constant("scheduler", "[none]");
    queue.constant("zoned", "none");
    queue.generated("io_timeout", 0o644, IoTimeout(place));
}

fn disk_at(place: usize) -> Result<Disk> {
    block::disk_of(place).ok_or(Errno::ENODEV)
}

/// A fact about one disk.
#[derive(Clone, Copy)]
enum DiskAttribute {
    Device,
    Event,
    Size,
    Counts,
    ReadOnly,
}

impl DiskAttribute {
    const ALL: [(&str, Self); 5] = [
        ("dev", Self::Device),
        ("uevent", Self::Event),
        ("size", Self::Size),
        ("stat", Self::Counts),
        ("ro", Self::ReadOnly),
    ];
}

/// A file with a fact about the disk at a place.
struct DiskFile {
    place: usize,
    attribute: DiskAttribute,
}

impl Generate for DiskFile {
    fn show(&self, out: &mut Text) -> Result<()> {
        let place = self.place;
        let (major, minor) = split_device(block::number_of(place));
        match self.attribute {
            DiskAttribute::Device => writeln!(out, "{major}:{minor}"),
            DiskAttribute::Event => {
                let name = block::name_of(place);
                let name = name.escape_ascii();
                writeln!(out, "MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\nDEVTYPE=disk");
            }
            DiskAttribute::Size => {
                let size = block::size_of(place).ok_or(Errno::ENODEV)?;
                writeln!(out, "{}", size / SECTOR_SIZE as u64);
            }
            DiskAttribute::Counts => writeln!(out, "{:8}", block::counts_of(place).ok_or(Errno::ENODEV)?),
            DiskAttribute::ReadOnly => writeln!(out, "{}", u8::from(disk_at(place)?.is_read_only())),
        }
        Ok(())
    }
}

/// Milliseconds that a disk may take for one request. Linux' attribute of this name also refuses 0
/// and any other text (`queue_io_timeout_store` in block/blk-sysfs.c). Linux' virtio disks continue
/// to wait after that time; disks here fail with EIO.
struct IoTimeout(usize);

impl Generate for IoTimeout {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "{}", disk_at(self.0)?.timeout_ms());
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        let text = core::str::from_utf8(bytes.trim_ascii()).ok();
        let limit = text.and_then(|text| text.parse().ok()).filter(|&limit| limit > 0);
        disk_at(self.0)?.set_timeout_ms(limit.ok_or(Errno::EINVAL)?);
        Ok(())
    }
}
