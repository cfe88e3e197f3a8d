//! Files of huge pages: a tmpfs whose contents are such pages (Linux: fs/hugetlbfs).

use freehold_collections::{Arc, reserve};

use super::{TmpFs, TmpNode, with_common};
use crate::mem::HugeSource;
use crate::{Errno, Result};

/// Makes a nameless file of huge pages (MFD_HUGETLB, SHM_HUGETLB).
pub fn unnamed_huge_file(mode: u32, uid: u32, gid: u32) -> Result<Arc<TmpNode>> {
    let found = with_common(|common| common.huge.clone());
    let unnamed = match found {
        Some(unnamed) => unnamed,
        None => {
            let mut new = Some(TmpFs::new("hugetlbfs", reserve::arc(HugeSource), 0o755)?);
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
