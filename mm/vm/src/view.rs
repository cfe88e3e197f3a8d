//! Views of an address space for /proc.

use alloc::sync::Arc;
use core::ops::Range;

use freehold_machine::{PAGE, PAGEBLOCK_FRAMES, Pfn, ProtectionKey, VirtAddr};
use freehold_paging::{Backing, Entry, Memory, PageSize, SwapPlace};

use crate::AddressSpace;
use crate::area::{Area, AreaContent, AreaUse};
use crate::huge::LARGE;
use crate::hugetlb::HugeView;
use crate::monitor::Watching;
use crate::policy::Policy;
use crate::request::{AreaFlags, MappedFile, Protection};
use crate::resident::LeafKind;

/// Whether other spaces see stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Other spaces do not see stores.
    Private,
    /// Other spaces see stores.
    Shared,
}

/// Whether a page belongs to a file or to shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfFile {
    /// The page is anonymous, or the zero page.
    No,
    /// The page is in a page cache.
    Yes,
}

/// Whether a page counts as written (soft-dirty).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// Since the marks were last cleared.
    Since,
    /// Not since then.
    Not,
}

/// The location of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageAt {
    /// In this frame.
    Frame(Pfn),
    /// In a swap area.
    Swapped(SwapPlace),
}

/// A page that is mapped, or in a swap area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageView {
    /// Its address.
    pub addr: VirtAddr,
    /// The page's location.
    pub at: PageAt,
    /// Whether the page belongs to a file or to shared memory.
    pub of_file: OfFile,
    /// Number of mappings of its frame, here and elsewhere; 0 for the zero page and in a swap area.
    pub mappings: u32,
    /// Whether the page was written since such marks were last cleared.
    pub written: Written,
    /// Whether the next store to the page is reported to the area's monitor.
    pub watched: Watching,
}

/// Name of an area.
#[derive(Clone, Copy)]
pub enum AreaName<'a, S: Memory> {
    /// No name.
    Anonymous,
    /// `[heap]`.
    Heap,
    /// `[stack]`.
    Stack,
    /// `/dev/zero (deleted)`.
    SharedAnonymous,
    /// `[vdso]` or `[vvar]`.
    Vdso(crate::VdsoPart),
    /// `/anon_hugepage (deleted)`.
    Huge,
    /// The file that it maps.
    File(&'a Arc<dyn MappedFile<S>>),
}

/// One area, as a line of /proc/PID/maps shows it.
#[derive(Clone, Copy)]
pub struct AreaView<'a, S: Memory> {
    /// First address.
    pub start: VirtAddr,
    /// One past the last.
    pub end: VirtAddr,
    /// Protection of the area.
    pub protection: Protection,
    /// Protection key of the area.
    pub key: ProtectionKey,
    /// Whether stores are shared.
    pub sharing: Sharing,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Name of the area.
    pub name: AreaName<'a, S>,
    /// Other properties.
    pub flags: AreaFlags,
    /// The area's memory policy, if it has one.
    pub policy: Option<Policy>,
    /// [`PageCache::id`](crate::PageCache::id) of the mapped cache; 0 for private anonymous memory.
    pub object: u64,
    /// Bytes of its pages: of huge ones on request, or of the smallest.
    pub unit: u64,
}

/// The memory that a space uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// Present pages.
    pub resident: u64,
    /// High-water mark of present pages.
    pub peak: u64,
    /// Bytes of translation tables.
    pub table_bytes: u64,
}

/// The counts of /proc/PID/smaps, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Smaps {
    /// Present.
    pub rss: u64,
    /// Present bytes, each page divided by its number of mappings.
    pub pss: u64,
    /// Dirty part of `pss`.
    pub pss_dirty: u64,
    /// Part of `pss` that is anonymous.
    pub pss_anon: u64,
    /// Part of `pss` in files on a disk.
    pub pss_file: u64,
    /// Part of `pss` in shared memory and in files that are in memory only.
    pub pss_shmem: u64,
    /// Mapped elsewhere too, not written.
    pub shared_clean: u64,
    /// Mapped elsewhere too, written.
    pub shared_dirty: u64,
    /// Mapped only here, not written.
    pub private_clean: u64,
    /// Mapped only here, written.
    pub private_dirty: u64,
    /// With the accessed bit.
    pub referenced: u64,
    /// Bytes of anonymous memory.
    pub anonymous: u64,
    /// Merged with equal pages, the page of zeroes included.
    pub ksm: u64,
    /// Anonymous and mapped by large leaves.
    pub huge: u64,
    /// In 2 MiB pages on request that are mapped elsewhere too. These count nowhere else.
    pub shared_huge: u64,
    /// In 2 MiB pages on request that are mapped only here.
    pub private_huge: u64,
    /// `pss` of locked areas.
    pub locked: u64,
    /// Discardable bytes (MADV_FREE) that were not written since.
    pub lazy_free: u64,
    /// In swap areas.
    pub swap: u64,
    /// Bytes in swap areas, each page divided by the number of its slot's entries.
    pub swap_pss: u64,
}

/// Figures of an address space, in pages unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Pages of all areas.
    pub total_pages: u64,
    /// Pages of private writable areas, the stack excluded.
    pub data_pages: u64,
    /// Pages of areas that grow downwards.
    pub stack_pages: u64,
    /// Pages of code areas: executable, not writable.
    pub exec_pages: u64,
    /// Pages of locked areas.
    pub locked_pages: u64,
    /// Present anonymous pages.
    pub rss_anon: u64,
    /// Present file pages.
    pub rss_file: u64,
    /// Present pages of shared anonymous memory.
    pub rss_shmem: u64,
    /// Present pages that are parts of 2 MiB pages on request, which count nowhere else.
    pub huge_pages: u64,
    /// Pages in swap areas.
    pub swapped: u64,
    /// Bytes of translation tables.
    pub page_table_bytes: u64,
    /// High-water mark of `total_pages`.
    pub peak_total: u64,
    /// High-water mark of present pages.
    pub peak_rss: u64,
    /// Faults served from memory.
    pub minor_faults: u64,
    /// Faults for which a device was read.
    pub major_faults: u64,
    /// Areas.
    pub areas: u64,
}

impl Usage {
    /// Present pages.
    pub const fn rss(&self) -> u64 {
        self.rss_anon + self.rss_file + self.rss_shmem
    }
}

impl<S: Memory> AddressSpace<S> {
    /// The areas, upwards.
    pub fn areas(&self) -> impl DoubleEndedIterator<Item = AreaView<'_, S>> {
        self.areas.iter().map(view)
    }

    /// The areas with an address in `start..end`, upwards.
    pub fn areas_in(&self, start: VirtAddr, end: VirtAddr) -> impl Iterator<Item = AreaView<'_, S>> {
        self.areas.overlapping(start..end).map(view)
    }

    /// The area that `addr` is in.
    pub fn area_at(&self, addr: VirtAddr) -> Option<AreaView<'_, S>> {
        self.areas.at(addr).map(view)
    }

    /// Returns what callers ask for most often.
    pub fn footprint(&self) -> Footprint {
        let resident = self.resident.rss.total();
        let table_bytes = self.resident.tables.table_bytes();
        Footprint { resident, peak: self.resident.peak.max(resident), table_bytes }
    }

    /// Returns all figures.
    pub fn usage(&self) -> Usage {
        let (rss, footprint, sums) = (self.resident.rss, self.footprint(), self.areas.sums());
        Usage {
            total_pages: self.total,
            data_pages: sums.of(AreaUse::Data),
            stack_pages: sums.of(AreaUse::Stack),
            exec_pages: sums.of(AreaUse::Code),
            locked_pages: sums.locked,
            rss_anon: rss.anon,
            rss_file: rss.file,
            rss_shmem: rss.shmem,
            huge_pages: self.resident.requested,
            swapped: self.resident.swapped,
            page_table_bytes: footprint.table_bytes,
            peak_total: self.peak_total,
            peak_rss: footprint.peak,
            minor_faults: self.minor_faults,
            major_faults: self.major_faults,
            areas: self.areas.count() as u64,
        }
    }

    /// Visit the pages that `start..end` maps or has in swap areas, upwards, the shared zero page
    /// too.
    pub fn pages(&self, start: VirtAddr, end: VirtAddr, mut out: impl FnMut(PageView)) {
        self.pieces(start..end, |addr, entry, what| {
            let (of_file, mappings) = match what {
                What::Leaf(LeafKind::Cache, mappings) => (OfFile::Yes, mappings),
                What::Leaf(_, mappings) => (OfFile::No, mappings),
                What::Swapped(_) => (OfFile::No, 0),
            };
            let at = match what {
                What::Leaf(..) => PageAt::Frame(entry.frame()),
                What::Swapped(place) => PageAt::Swapped(place),
            };
            let written = if entry.is_soft_dirty() { Written::Since } else { Written::Not };
            let watched = if entry.is_watched() { Watching::On } else { Watching::Off };
            out(PageView { addr, at, of_file, mappings, written, watched });
        });
    }

    /// Visit the pages of 4 KiB that `range` maps, including pieces of large pages, each as if it
    /// had its own leaf, and pages in swap areas.
    fn pieces(&self, range: Range<VirtAddr>, mut out: impl FnMut(VirtAddr, Entry, What)) {
        let resident = &self.resident;
        resident.tables.visit_all(range.clone(), |addr, _, entry, size| {
            if let Some(place) = entry.swap_place() {
                return out(addr, entry, What::Swapped(place));
            }
            let kind = resident.kind_of(entry);
            if size == PageSize::Small {
                let record = resident.source().table().get(entry.frame()).filter(|_| kind != LeafKind::Zero);
                let mappings = record.map_or(0, |record| record.counts().load().mappings);
                return out(addr, entry, What::Leaf(kind, mappings));
            }
            let block = resident.block_of(entry);
            for index in 0..PAGEBLOCK_FRAMES {
                let page = VirtAddr(addr.0 + index * PAGE);
                if range.contains(&page) {
                    let mappings = block.as_ref().map_or(0, |block| block.holders(index).mappings);
                    out(page, entry.piece(entry.frame().offset(index)), What::Leaf(kind, mappings));
                }
            }
        });
    }

    /// Whether an area can have large pages under the present settings (smaps' THPeligible).
    pub fn is_huge_eligible(&self, area: &AreaView<'_, S>) -> bool {
        self.areas.at(area.start).is_some_and(|area| self.resident.is_huge_eligible(area))
    }

    /// Counts the pages of an area. The zero page has no owner and is not counted.
    pub fn smaps(&self, area: &AreaView<'_, S>) -> Smaps {
        let mut smaps = Smaps::default();
        if let Some(area) = self.areas.at(area.start).filter(|area| area.huge_view().is_some()) {
            return self.resident.huge_smaps(area);
        }
        let of_disk = |area: &Area<S>| area.attachment().is_some_and(|at| !at.cache().is_memory());
        let of_disk = self.areas.at(area.start).is_some_and(of_disk);
        self.pieces(area.start..area.end, |_, entry, what| {
            let (kind, mappings) = match what {
                What::Leaf(LeafKind::Zero, _) => {
                    smaps.ksm += if self.resident.is_merged_zero(entry) { PAGE } else { 0 };
                    return;
                }
                What::Leaf(kind, mappings) => (kind, mappings),
                What::Swapped(place) => {
                    smaps.swap += PAGE;
                    smaps.swap_pss += PAGE / self.resident.commons.swap.entries(place).max(1);
                    return;
                }
            };
            let mappings = u64::from(mappings).max(1);
            smaps.rss += PAGE;
            smaps.pss += PAGE / mappings;
            let by_use = match (mappings > 1, entry.is_dirty()) {
                (true, false) => &mut smaps.shared_clean,
                (true, true) => &mut smaps.shared_dirty,
                (false, false) => &mut smaps.private_clean,
                (false, true) => &mut smaps.private_dirty,
            };
            *by_use += PAGE;
            *match kind {
                LeafKind::Anon => &mut smaps.pss_anon,
                _ if of_disk => &mut smaps.pss_file,
                _ => &mut smaps.pss_shmem,
            } += PAGE / mappings;
            smaps.pss_dirty += if entry.is_dirty() { PAGE / mappings } else { 0 };
            smaps.referenced += if entry.is_accessed() { PAGE } else { 0 };
            smaps.anonymous += if kind == LeafKind::Anon { PAGE } else { 0 };
            smaps.ksm += if kind == LeafKind::Anon && self.resident.is_merged(entry) { PAGE } else { 0 };
            smaps.lazy_free += if kind == LeafKind::Anon && entry.is_lazy() { PAGE } else { 0 };
        });
        self.resident.tables.visit(area.start..area.end, |_, _, entry, size| {
            let large = size == PageSize::Large && entry.backing() == Backing::Counted;
            smaps.huge += if large { PageSize::Large.bytes() } else { 0 };
        });
        if area.flags.contains(AreaFlags::LOCKED) {
            smaps.locked = smaps.pss;
        }
        // As on Linux: a file's page in the swap counts in full for each space that maps it; there
        // is no proportional share.
        if let Some(area) = self.areas.at(area.start)
            && let Some((cache, first)) = area.cache_page(area.start)
        {
            let pages = first..first + (area.end.0 - area.start.0) / PAGE;
            let at = |page| VirtAddr(area.start.0 + (page - first) * PAGE);
            smaps.swap +=
                cache.count_swapped(pages, |page| self.resident.tables.entry(at(page)).is_empty()) * PAGE;
        }
        smaps
    }
}

/// Target of a page's entry.
#[derive(Clone, Copy)]
enum What {
    /// The frame's kind, and its number of mappings (0 for zeroes).
    Leaf(LeafKind, u32),
    /// A slot.
    Swapped(SwapPlace),
}

fn view<S: Memory>(area: &Area<S>) -> AreaView<'_, S> {
    AreaView {
        start: area.start,
        end: area.end,
        protection: area.protection,
        key: area.key,
        sharing: if area.is_shared() { Sharing::Shared } else { Sharing::Private },
        offset: area.content.offset(),
        name: match &area.content {
            AreaContent::Anonymous if area.flags.contains(AreaFlags::HEAP) => AreaName::Heap,
            AreaContent::Anonymous if area.flags.contains(AreaFlags::STACK) => AreaName::Stack,
            AreaContent::Anonymous => AreaName::Anonymous,
            AreaContent::SharedAnonymous(..) => AreaName::SharedAnonymous,
            AreaContent::PrivateFile(view, _) | AreaContent::SharedFile(view, ..) => {
                AreaName::File(&view.file)
            }
            AreaContent::Vdso(part, _) => AreaName::Vdso(*part),
            AreaContent::Huge(HugeView { file: Some(file), .. }) => AreaName::File(&file.file),
            AreaContent::Huge(_) => AreaName::Huge,
        },
        flags: area.flags,
        policy: area.policy,
        object: match &area.content {
            AreaContent::Huge(view) => view.id,
            _ => area.attachment().map_or(0, |at| at.cache().id()),
        },
        unit: if area.huge_view().is_some() { LARGE } else { PAGE },
    }
}
