//! A file as the content of mapped areas.

use core::any::Any;

use freehold_collections::{Arc, reserve};
use freehold_vm::{AreaName, MappedFile};

use super::{Frames, PageCache, cache_of};
use crate::fs::{FileContent, OpenFile};
use crate::{Errno, Result};

/// An open file that areas map: its frames, and the description that keeps it alive and has its
/// name.
pub struct FileMapping {
    file: Arc<OpenFile>,
    cache: Arc<PageCache>,
    hold: Option<Arc<dyn Any + Send + Sync>>,
}

impl FileMapping {
    /// Makes the mapping of `file` with the bytes `content`; `ENODEV` if these are not in the page
    /// cache or in huge pages.
    pub fn new(file: Arc<OpenFile>, content: &Arc<dyn FileContent>) -> Result<Arc<Self>> {
        Self::build(file, content, None)
    }
    /// As [`new`](Self::new). `hold` is dropped with the last area of the mapping.
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
        let cache = cache_of(&**content).ok_or(Errno::ENODEV)?.clone();
        Ok(reserve::arc(Self { file, cache, hold }))
    }
    /// Returns the `hold` with which the mapping was [made](Self::held).
    pub fn hold(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.hold.as_ref()
    }
    /// Returns the mapping in an area with this name, if the area maps a file.
    pub fn of<'a>(name: AreaName<'a, Frames>) -> Option<&'a Self> {
        let AreaName::File(file) = name else { return None };
        Self::behind(&**file)
    }
    /// Returns `file` as a mapping. Every file that this kernel maps is a [`FileMapping`].
    pub fn behind(file: &dyn MappedFile<Frames>) -> Option<&Self> {
        let any: &dyn Any = file;
        any.downcast_ref()
    }
    /// Returns the open file, for names in /proc/PID/maps.
    pub fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }
}

impl MappedFile<Frames> for FileMapping {
    fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }
}
