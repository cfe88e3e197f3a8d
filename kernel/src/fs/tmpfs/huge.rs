//! Files of huge pages: a tmpfs whose contents are such pages (Linux: fs/hugetlbfs).

use core::fmt;
use core::sync::atomic::Ordering;

use freehold_collections::{Arc, reserve};

use super::{FileSystem, FsStats, MountOptions, NO_LIMIT, Node, TmpFs, TmpNode, parse_size, with_common};
use crate::fs::SetMetadata;
use crate::mem::HugeSource;
use crate::mem::hugetlb::{self, HUGE_PAGE, HugeBudget};
use crate::{Errno, Result};

const MAGIC: u64 = 0x9584_58f6;
/// The root's mode, unless mounted otherwise.
const MODE: u32 = 0o755;

/// Makes a nameless file of huge pages (MFD_HUGETLB, SHM_HUGETLB).
pub fn unnamed_huge_file(mode: u32, uid: u32, gid: u32) -> Result<Arc<TmpNode>> {
    let found = with_common(|common| common.huge.clone());
    let unnamed = match found {
        Some(unnamed) => unnamed,
        None => {
            let mut new = Some(TmpFs::new("hugetlbfs", reserve::arc(HugeSource::new(None)), MODE)?);
            // If another task was faster, its file system is taken.
            with_common(|common| {
                common.huge = common.huge.take().or_else(|| new.take());
                common.huge.clone()
            })
            .ok_or(Errno::ENOMEM)?
        }
    };
    unnamed.unlimited();
    unnamed.unnamed_file(mode, uid, gid)
}

/// Makes a new, empty hugetlbfs with mount(2)'s `options`, for a caller with these IDs.
///
/// # Errors
/// `EINVAL` for options that it does not have; `ENOMEM`, also if the pool has too few pages for
/// `min_size`.
pub fn mount(options: &[u8], (uid, gid): (u32, u32)) -> Result<Arc<dyn FileSystem>> {
    let options = HugeOptions::parse(options)?;
    let is_bounded = options.most.is_some() || options.least.is_some();
    let bounds = (options.most.unwrap_or(u64::MAX), options.least.unwrap_or(0));
    let budget = if is_bounded { Some(hugetlb::budget(bounds.0, bounds.1)?) } else { None };
    let files = TmpFs::new("hugetlbfs", reserve::arc(HugeSource::new(budget.clone())), MODE)?;
    files.unlimited();
    files.root.set_metadata(&SetMetadata { uid: Some(uid), gid: Some(gid), ..SetMetadata::default() })?;
    let HugeOptions { inodes, uid, gid, mode, .. } = options;
    // There was no limit, and so none can be set later.
    files.shared.max_inodes.store(inodes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    files.apply(MountOptions { bytes: None, inodes: None, mode, uid, gid })?;
    Ok(reserve::arc(HugeTlbFs { files, budget, options }))
}

/// A mounted file system of huge pages.
struct HugeTlbFs {
    files: Arc<TmpFs>,
    budget: Option<Arc<HugeBudget>>,
    options: HugeOptions,
}

impl FileSystem for HugeTlbFs {
    fn name(&self) -> &'static str {
        self.files.name
    }

    fn device(&self) -> u64 {
        self.files.device()
    }

    fn root(&self) -> Arc<dyn Node> {
        self.files.root()
    }

    /// Without a limit there are no figures, as on Linux.
    fn stats(&self) -> FsStats {
        let empty = FsStats { magic: MAGIC, block_size: HUGE_PAGE, ..FsStats::default() };
        let Some(budget) = &self.budget else { return empty };
        let (most, used) = (budget.most(), budget.used());
        let inodes = self.options.inodes.unwrap_or(u64::MAX);
        let has = self.files.shared.inodes.load(Ordering::Relaxed);
        let free = |most: u64, used: u64| if most == u64::MAX { most } else { most.saturating_sub(used) };
        FsStats {
            blocks: most,
            free_blocks: free(most, used),
            inodes,
            free_inodes: free(inodes, has),
            ..empty
        }
    }

    fn show_options(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let HugeOptions { most, least, inodes, uid, gid, mode } = self.options;
        if let Some(uid) = uid.filter(|&uid| uid != 0) {
            write!(out, ",uid={uid}")?;
        }
        if let Some(gid) = gid.filter(|&gid| gid != 0) {
            write!(out, ",gid={gid}")?;
        }
        if let Some(mode) = mode.filter(|&mode| mode != MODE) {
            write!(out, ",mode={mode:o}")?;
        }
        if let Some(inodes) = inodes {
            write!(out, ",nr_inodes={inodes}")?;
        }
        out.write_str(",pagesize=2M")?;
        if let Some(pages) = most {
            write!(out, ",size={}", pages.saturating_mul(HUGE_PAGE))?;
        }
        match least {
            Some(pages) => write!(out, ",min_size={}", pages.saturating_mul(HUGE_PAGE)),
            None => Ok(()),
        }
    }

    /// A remount checks options, and changes none.
    fn configure(&self, options: &[u8]) -> Result<()> {
        HugeOptions::parse(options).map(drop)
    }
}

/// Options of a mount, as given.
#[derive(Clone, Copy, Default)]
struct HugeOptions {
    /// Largest number of pages.
    most: Option<u64>,
    /// Number of pages that are kept.
    least: Option<u64>,
    inodes: Option<u64>,
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl HugeOptions {
    /// Parses the options of mount(2).
    ///
    /// # Errors
    /// `EINVAL`.
    fn parse(text: &[u8]) -> Result<Self> {
        let (mut options, mut rights) = (Self::default(), MountOptions::default());
        for option in text.split(|&b| b == b',').filter(|o| !o.is_empty()) {
            let mut halves = option.splitn(2, |&b| b == b'=');
            let key = halves.next().unwrap_or_default();
            let value = halves.next().ok_or(Errno::EINVAL)?;
            match key {
                b"size" => options.most = Some(parse_pages(value)?),
                b"min_size" => options.least = Some(parse_pages(value)?),
                b"nr_inodes" => options.inodes = Some(parse_size(value, 0)?),
                b"pagesize" if parse_size(value, 0)? == HUGE_PAGE => {}
                _ => rights.parse_rights(key, value)?,
            }
        }
        if options.most.zip(options.least).is_some_and(|(most, least)| least > most) {
            return Err(Errno::EINVAL);
        }
        let MountOptions { uid, gid, mode, .. } = rights;
        Ok(Self { uid, gid, mode: mode.map(|mode| mode & 0o1777), ..options })
    }
}

/// Parses a size in bytes, or a part of the pool in percent. Returns it in pages, rounded down.
fn parse_pages(text: &[u8]) -> Result<u64> {
    match text.strip_suffix(b"%") {
        Some(part) => Ok(parse_size(part, 0)?.saturating_mul(hugetlb::persistent()) / 100),
        None => Ok(parse_size(text, 0)? / HUGE_PAGE),
    }
}
