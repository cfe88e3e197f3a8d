//! A file as an area of memory shows it.

use core::any::Any;

use freehold_collections::{Arc, reserve};
use freehold_vm::{AreaName, MappedFile};

use super::{CacheContent, Frames, PageCache};
use crate::fs::{FileContent, OpenFile};
use crate::{Errno, Result};

/// An open file that areas map: its frames, and the description that keeps it and its name.
pub struct FileMapping {
    file: Arc<OpenFile>,
    cache: Arc<PageCache>,
    hold: Option<Arc<dyn Any + Send + Sync>>,
}

impl FileMapping {
    /// The mapping of `file`, whose bytes are `content`; `ENODEV` where they are not in the page
    /// cache.
    pub fn new(file: Arc<OpenFile>, content: &Arc<dyn FileContent>) -> Result<Arc<Self>> {
        Self::build(file, content, None)
    }
    /// As [`new`](Self::new). `hold` is dropped with the last area that shows it.
    pub fn held(
        file: Arc<OpenFile>,
        content: &Arc<dyn FileContent>,
        hold: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>> {
        Self::build(file, content, Some(hold))
    }
    fn build(
        file: Arc<OpenFile>,
        content: &Arc<dyn FileContent>,
        hold: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>> {
        let any: &dyn Any = &**content;
        let cache = any.downcast_ref::<CacheContent>().ok_or(Errno::ENODEV)?.cache().clone();
        Ok(reserve::arc(Self { file, cache, hold }))
    }
    /// Returns the object that the mapping was [made](Self::held) to hold.
    pub fn hold(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.hold.as_ref()
    }
    /// The mapping that an area of this name shows, if it shows a file.
    pub fn of<'a>(name: AreaName<'a, Frames>) -> Option<&'a Self> {
        let AreaName::File(file) = name else { return None };
        Self::behind(&**file)
    }
    /// Returns the mapping behind `file`: all files that this kernel maps are mappings.
    pub fn behind(file: &dyn MappedFile<Frames>) -> Option<&Self> {
        let any: &dyn Any = file;
        any.downcast_ref()
    }
    /// The open file, for names in /proc/PID/maps.
    pub fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }
}

impl MappedFile<Frames> for FileMapping {
    fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }
}
