//! /sys/kernel/mm/transparent_hugepage: whether anonymous memory gets 2 MiB pages, and the settings
//! of khugepaged (Documentation/admin-guide/mm/transhuge.rst).
//!
//! /sys/kernel/mm/hugepages: the pool of huge pages on request.
//!
//! Shared memory has no large pages here. The values of its files are kept for tools that set them.
//! Values that would promise large pages ("force") are refused.

use freehold_collections::Arc;
use freehold_machine::NodeId;
use freehold_vm::{Event, HugeMode, HugeZero};

use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::mem::hugetlb;
use crate::mem::khugepaged::{self, Defrag, Knob};
use crate::sync::SpinLock;
use crate::{Errno, Result, mem};

/// Values of `enabled` for all sizes and for 2 MiB; the latter decides unless it is "inherit".
struct Modes {
    all: HugeMode,
    of_size: Option<HugeMode>,
}

static MODES: SpinLock<Modes> = SpinLock::new(Modes { all: HugeMode::Never, of_size: None });

pub(super) fn fill(root: &Arc<PseudoDir>) {
    MODES.lock().all = mem::commons().huge_mode();
    let dir = root.dirs("kernel/mm/transparent_hugepage");
    dir.generated("enabled", 0o644, Enabled);
    dir.generated("use_zero_page", 0o644, ZeroPage);
    dir.generated("defrag", 0o644, Choice { words: &DEFRAG, chosen: SpinLock::new(3), set: set_defrag });
    dir.generated("shmem_enabled", 0o644, Choice { words: &SHMEM, chosen: SpinLock::new(3), set: |_| {} });
    dir.constant("hpage_pmd_size", "2097152");
    let pool = root.dirs("kernel/mm/hugepages/hugepages-2048kB");
    pool_files(&pool, None);
    pool.generated("nr_hugepages_mempolicy", 0o644, PoolSize(None));
    pool.generated("nr_overcommit_hugepages", 0o644, PoolOvercommit);
    pool.file("resv_hugepages", |out| number(out, mem::commons().huge_pool(None).reserved));

    let task = dir.dirs("khugepaged");
    for (name, knob) in Knob::ALL {
        task.generated(name, 0o644, Number(knob));
    }
    task.file("pages_collapsed", |out| number(out, khugepaged::collapsed()));
    task.file("full_scans", |out| number(out, khugepaged::full_scans()));

    let size = dir.dirs("hugepages-2048kB");
    size.generated("enabled", 0o644, SizeEnabled);
    let of_size = Choice { words: &SHMEM_SIZE, chosen: SpinLock::new(1), set: |_| {} };
    size.generated("shmem_enabled", 0o644, of_size);
    let stats = size.dirs("stats");
    for (name, event) in STATS {
        stats.file(name, move |out| number(out, mem::commons().count_of(event)));
    }
    stats.file("nr_anon", |out| number(out, mem::commons().huge_pages() / 512));
    for name in NOTHING_OF {
        stats.constant(name, "0");
    }
}

/// Adds the files that the pool of huge pages has for the machine and for each node.
pub(super) fn pool_files(dir: &Arc<PseudoDir>, node: Option<NodeId>) {
    dir.generated("nr_hugepages", 0o644, PoolSize(node));
    dir.file("free_hugepages", move |out| number(out, mem::commons().huge_pool(node).free));
    dir.file("surplus_hugepages", move |out| number(out, mem::commons().huge_pool(node).surplus));
}

/// The number of pages of the pool, of one node only if it is named.
struct PoolSize(Option<NodeId>);

impl Generate for PoolSize {
    fn show(&self, out: &mut Text) -> Result<()> {
        number(out, mem::commons().huge_pool(self.0).total)
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        hugetlb::set_persistent(parse(bytes)?, self.0)
    }
}

/// The largest number of surplus pages.
struct PoolOvercommit;

impl Generate for PoolOvercommit {
    fn show(&self, out: &mut Text) -> Result<()> {
        number(out, mem::commons().huge_pool(None).overcommit)
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        hugetlb::set_overcommit(parse(bytes)?)
    }
}

/// Counters of the size (there is one size).
const STATS: [(&str, Event); 5] = [
    ("anon_fault_alloc", Event::HugeFaultAlloc),
    ("anon_fault_fallback", Event::HugeFaultFallback),
    ("split", Event::HugeSplitPage),
    ("split_failed", Event::HugeSplitFailed),
    ("swpout_fallback", Event::HugeSwapFallback),
];

/// Counters of unsupported things: charges of control groups, large pages of shared memory, large
/// pages in swap, delayed splits.
const NOTHING_OF: [&str; 8] = [
    "anon_fault_fallback_charge",
    "swpout",
    "shmem_alloc",
    "shmem_fallback",
    "shmem_fallback_charge",
    "split_deferred",
    "nr_anon_partially_mapped",
    "zswpout",
];

pub(super) fn number(out: &mut Text, value: u64) -> Result<()> {
    writeln!(out, "{value}");
    Ok(())
}

/// Returns the word that a program wrote, without the line feed that echo adds.
fn word(bytes: &[u8]) -> &[u8] {
    bytes.strip_suffix(b"\n").unwrap_or(bytes)
}

/// Returns the number that a program wrote.
pub(super) fn parse(bytes: &[u8]) -> Result<u64> {
    let text = core::str::from_utf8(word(bytes)).map_err(|_| Errno::EINVAL)?;
    text.parse().map_err(|_| Errno::EINVAL)
}

/// Shows `words`, with the chosen one in brackets.
fn show_choice(out: &mut Text, words: &[&str], chosen: usize) {
    for (index, word) in words.iter().enumerate() {
        let blank = if index == 0 { "" } else { " " };
        if index == chosen { write!(out, "{blank}[{word}]") } else { write!(out, "{blank}{word}") }
    }
    out.push(b"\n");
}

/// Returns the index of the word that a program wrote.
fn chosen_of(words: &[&str], bytes: &[u8]) -> Result<usize> {
    words.iter().position(|known| known.as_bytes() == word(bytes)).ok_or(Errno::EINVAL)
}

/// A file whose value is one of several words.
struct Choice {
    words: &'static [&'static str],
    chosen: SpinLock<usize>,
    /// Called with the index of the chosen word.
    set: fn(usize),
}

impl Generate for Choice {
    fn show(&self, out: &mut Text) -> Result<()> {
        show_choice(out, self.words, *self.chosen.lock());
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let chosen = chosen_of(self.words, bytes)?;
        *self.chosen.lock() = chosen;
        (self.set)(chosen);
        Ok(())
    }
}

const DEFRAG: [&str; 5] = ["always", "defer", "defer+madvise", "madvise", "never"];
const SHMEM: [&str; 5] = ["always", "within_size", "advise", "never", "deny"];
const SHMEM_SIZE: [&str; 5] = ["always", "inherit", "within_size", "advise", "never"];

/// Sets for which areas a fault compacts memory. No fault waits for compaction, so "defer" is the
/// same as "always".
fn set_defrag(chosen: usize) {
    khugepaged::set_defrag(match DEFRAG[chosen] {
        "madvise" => Defrag::Advised,
        "never" => Defrag::Never,
        _ => Defrag::Everybody,
    });
}

struct Number(Knob);

impl Generate for Number {
    fn show(&self, out: &mut Text) -> Result<()> {
        number(out, self.0.get())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        self.0.set(parse(bytes)?)
    }
}

/// The modes with their words, in the order of `enabled`.
const ENABLED: [&str; 3] = ["always", "madvise", "never"];
const ENABLED_MODES: [HugeMode; 3] = [HugeMode::Always, HugeMode::Advised, HugeMode::Never];

fn mode_index(mode: HugeMode) -> usize {
    ENABLED_MODES.iter().position(|&other| other == mode).unwrap_or(ENABLED_MODES.len())
}

/// Changes the modes and applies them.
fn set_modes(change: impl FnOnce(&mut Modes)) -> Result<()> {
    let mut modes = MODES.lock();
    change(&mut modes);
    mem::commons().set_huge_mode(modes.of_size.unwrap_or(modes.all));
    drop(modes);
    khugepaged::mode_changed()
}

struct Enabled;

impl Generate for Enabled {
    fn show(&self, out: &mut Text) -> Result<()> {
        show_choice(out, &ENABLED, mode_index(MODES.lock().all));
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let mode = ENABLED_MODES[chosen_of(&ENABLED, bytes)?];
        set_modes(|modes| modes.all = mode)
    }
}

struct SizeEnabled;

/// The words of a size's `enabled`.
const SIZE_ENABLED: [&str; 4] = ["always", "inherit", "madvise", "never"];
const SIZE_MODES: [Option<HugeMode>; 4] =
    [Some(HugeMode::Always), None, Some(HugeMode::Advised), Some(HugeMode::Never)];

impl Generate for SizeEnabled {
    fn show(&self, out: &mut Text) -> Result<()> {
        let now = MODES.lock().of_size;
        let chosen = SIZE_MODES.iter().position(|&mode| mode == now).unwrap_or(SIZE_MODES.len());
        show_choice(out, &SIZE_ENABLED, chosen);
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let mode = SIZE_MODES[chosen_of(&SIZE_ENABLED, bytes)?];
        set_modes(|modes| modes.of_size = mode)
    }
}

struct ZeroPage;

impl Generate for ZeroPage {
    fn show(&self, out: &mut Text) -> Result<()> {
        out.push(match mem::commons().huge_zero() {
            HugeZero::Shared => b"1\n".as_slice(),
            HugeZero::Small => b"0\n",
        });
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        mem::commons().set_huge_zero(match word(bytes) {
            b"1" => HugeZero::Shared,
            b"0" => HugeZero::Small,
            _ => return Err(Errno::EINVAL),
        });
        Ok(())
    }
}
