//! The rest of /sys: parameters of the memory manager, clocks.

use freehold_bounce::{Dma, Statistics, Usage};
use freehold_collections::Arc;
use freehold_iommu::GivenEntry;

use crate::fs::generated::{Generate, Text};
use crate::fs::procfs::zones::fill_extfrag;
use crate::fs::pseudo::PseudoDir;
use crate::host::iommu::DomainFigures;
use crate::{Errno, Result, host, mem};

pub(super) fn fill(root: &Arc<PseudoDir>) {
    let shuffles = if mem::frames().shuffles() { "Y" } else { "N" };
    // Readable only by root, as on Linux: attackers could use this information.
    root.dirs("module/page_alloc/parameters").generated("shuffle", 0o400, move |out: &mut Text| {
        writeln!(out, "{shuffles}");
        Ok(())
    });
    fill_extfrag(&root.dirs("kernel/debug/extfrag"));

    root.dirs("fs/cgroup");
    root.dirs("class");
    root.dirs("bus");

    let clock = root.dirs("devices/system/clocksource/clocksource0");
    clock.constant("current_clocksource", "tsc");
    clock.constant("available_clocksource", "tsc");

    let debug = root.dirs("kernel/debug");
    super::xpfo::fill(&debug);
    debug.generated("replica", 0o600, super::replica::Replica);
    debug.generated("latency", 0o600, super::latency::Latency);
    super::static_keys::fill(&debug);
    super::page_tables::fill(&debug);
    super::provoke::fill(&debug);
    let swiotlb = root.dirs("kernel/debug/swiotlb");
    bounce(&swiotlb, host::dma());
    restricted(&swiotlb, host::dma());
    iommu(&debug);
}

/// Largest number of slots that were in use; writing 0 resets it, as on Linux.
struct HighWater(&'static Dma<mem::Frames>);

impl Generate for HighWater {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "{}", self.0.statistics().used_hiwater);
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        if bytes.trim_ascii() != b"0" {
            return Err(Errno::EINVAL);
        }
        self.0.reset_hiwater();
        Ok(())
    }
}

/// Adds the files of the IOMMU, if the machine has one. Two files have counts. `domains` has a line
/// for each device: its name, its bus, device and function, the number of its domain's tables, the
/// pages that it can access, and its refused accesses. `interrupts` has a line for each interrupt
/// that a device may send: the entry, the device and the vector. The file is empty if devices may
/// send any interrupt.
fn iommu(debug: &Arc<PseudoDir>) {
    let Some(unit) = host::iommu::get() else { return };
    let dir = debug.dirs("iommu");
    dir.generated("faults", 0o400, move |out: &mut Text| {
        unit.look();
        writeln!(out, "{}", unit.faults());
        Ok(())
    });
    dir.generated("invalidations", 0o400, move |out: &mut Text| {
        writeln!(out, "{}", unit.invalidations());
        Ok(())
    });
    dir.generated("domains", 0o400, move |out: &mut Text| {
        unit.each_domain(|DomainFigures { name, source_id, tables, pages, faults }| {
            writeln!(out, "{name} {} {tables} {pages} {faults}", host::iommu::place(source_id));
        });
        Ok(())
    });
    dir.generated("interrupts", 0o400, move |out: &mut Text| {
        let entries = (0..).map_while(|index| unit.entry(index));
        for (index, GivenEntry { source_id, arrival }) in entries.enumerate() {
            writeln!(out, "{index} {} {:#x}", host::iommu::place(source_id), arrival.vector);
        }
        Ok(())
    });
}

/// Adds a directory for each device that has bounce memory of its own, as on Linux.
fn restricted(dir: &Arc<PseudoDir>, dma: &'static Dma<mem::Frames>) {
    for (place, (name, _)) in dma.restricted().enumerate() {
        let own = dir.dir(name.as_bytes());
        for (which, file) in ["io_tlb_nslabs", "io_tlb_used"].into_iter().enumerate() {
            own.generated(file, 0o400, move |out: &mut Text| {
                let slots = dma.restricted().nth(place).map_or(0, |(_, slots)| slots[which]);
                writeln!(out, "{slots}");
                Ok(())
            });
        }
    }
}

/// Adds figures of devices' memory, with Linux' names in debugfs, and a line for each device. Its
/// fields are: name; bytes held; quota; bytes lost for good because the device did not confirm a
/// reset; how often it waited for memory; how often it made memory grow; the total of all bytes
/// that it was given; failed mappings.
fn bounce(dir: &Arc<PseudoDir>, dma: &'static Dma<mem::Frames>) {
    let figures: [(&str, fn(Statistics) -> usize); 8] = [
        ("io_tlb_nslabs", |all| all.nslabs),
        ("io_tlb_used", |all| all.used),
        ("io_tlb_transient_nslabs", |all| all.transient),
        ("grows", |all| all.grows),
        ("shrinks", |all| all.shrinks),
        ("coherent_frames", |all| all.coherent_frames),
        ("failed_mappings", |all| all.failed),
        ("lost_bytes", |all| all.lost),
    ];
    for (name, figure) in figures {
        // As on Linux, readable only by root.
        dir.generated(name, 0o400, move |out: &mut Text| {
            writeln!(out, "{}", figure(dma.statistics()));
            Ok(())
        });
    }
    dir.generated("io_tlb_used_hiwater", 0o600, HighWater(dma));
    dir.file("devices", move |out| {
        for Usage { name, held, quota, lost, waits, grows, bytes, failed } in dma.usage() {
            writeln!(out, "{name} {held} {quota} {lost} {waits} {grows} {bytes} {failed}");
        }
        Ok(())
    });
}
