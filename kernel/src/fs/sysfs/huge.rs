//! /sys/kernel/mm/transparent_hugepage: whether anonymous memory gets 2 MiB pages (Documentation/admin-guide/mm/transhuge.rst).

use alloc::sync::Arc;

use freehold_vm::{HugeMode, HugeZero};

use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::{Errno, Result, mem};

pub(super) fn fill(root: &Arc<PseudoDir>) {
    let dir = root.dirs("kernel/mm/transparent_hugepage");
    dir.generated("enabled", 0o644, Enabled);
    dir.generated("use_zero_page", 0o644, ZeroPage);
    // A fault takes a pageblock that is free, and waits for none.
    dir.constant("defrag", "always defer defer+madvise madvise [never]");
    dir.constant("shmem_enabled", "always within_size advise [never] deny force");
    dir.constant("hpage_pmd_size", "2097152");
    root.dirs("kernel/mm/hugepages");
}

/// A word that a program wrote, without the line feed that echo adds.
fn word(bytes: &[u8]) -> &[u8] {
    bytes.strip_suffix(b"\n").unwrap_or(bytes)
}

struct Enabled;

impl Generate for Enabled {
    fn show(&self, out: &mut Text) -> Result<()> {
        out.push(match mem::commons().huge_mode() {
            HugeMode::Always => b"[always] madvise never\n".as_slice(),
            HugeMode::Advised => b"always [madvise] never\n",
            HugeMode::Never => b"always madvise [never]\n",
        });
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        mem::commons().set_huge_mode(match word(bytes) {
            b"always" => HugeMode::Always,
            b"madvise" => HugeMode::Advised,
            b"never" => HugeMode::Never,
            _ => return Err(Errno::EINVAL),
        });
        Ok(())
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
