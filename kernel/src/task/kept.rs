//! The state of a process that its threads keep from one call to the next: its memory, descriptors,
//! root, working directory and credentials.
//!
//! Only a running task looks at its own slots ([`Kept`](crate::sync::Kept)). Other tasks get new
//! references from the process.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, reserve};

use super::credentials::Credentials;
use super::process::Process;
use super::thread::Task;
use crate::fs::{FileTable, FsContext, FsMember, OpenFile, Places};
use crate::mem::ProcessSpace;
use crate::sync::Keeps;

impl Process {
    /// Returns its memory.
    pub fn space(&self) -> Arc<ProcessSpace> {
        self.space.get()
    }
    /// Returns its descriptors.
    pub fn files(&self) -> Arc<FileTable> {
        self.files.get()
    }
    /// Returns the open file of a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn file(&self, fd: i32) -> crate::Result<Arc<OpenFile>> {
        self.files.with(|files| files.get(fd))
    }
    /// Returns its root, working directory and umask.
    pub fn fs(&self) -> Arc<FsContext> {
        (**self.fs.lock()).clone()
    }
    /// Whether it shares its root, working directory and umask with other processes.
    pub(super) fn shares_fs(&self) -> bool {
        self.fs.lock().is_shared()
    }
    /// Calls `f` with [`Self::fs`], under a spin lock: dropping must not sleep there.
    pub fn with_fs<R>(&self, f: impl FnOnce(&FsContext) -> R) -> R {
        f(&self.fs.lock())
    }
    /// Sets another memory (execve). Returns the old one.
    pub(super) fn replace_space(&self, space: Arc<ProcessSpace>) -> Arc<ProcessSpace> {
        let old = self.space.replace(space);
        self.forget_spaces();
        old
    }
    /// Makes the threads drop the references to the memory that they keep.
    pub(super) fn forget_spaces(&self) {
        self.threads().for_each(|thread| thread.kept_space.forget());
    }
    /// Sets another descriptor table (unshare, execve, exit). Returns the old one.
    pub(super) fn replace_files(&self, files: Arc<FileTable>) -> Arc<FileTable> {
        let old = self.files.replace(files);
        self.threads().for_each(|thread| thread.kept_files.forget());
        old
    }
    /// Gives the process a descriptor table of its own (unshare, close_range).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn unshare_files(&self) -> crate::Result<()> {
        let own = self.files().duplicate()?;
        drop(self.replace_files(own));
        Ok(())
    }
    /// Sets another root, working directory and umask (unshare).
    pub(super) fn replace_fs(&self, fs: Arc<FsContext>) -> FsMember {
        let old = core::mem::replace(&mut *self.fs.lock(), FsMember::new(fs));
        self.forget_places();
        old
    }
    /// Returns root and working directory, and whether a thread may keep them.
    pub(super) fn places(&self) -> (Arc<Places>, Keeps) {
        let member = self.fs.lock();
        let keeps = if member.is_shared() { Keeps::No } else { Keeps::Yes };
        (reserve::arc(member.own_places()), keeps)
    }
    /// Makes the threads drop the root and the working directory that they keep.
    pub(super) fn forget_places(&self) {
        self.places_version.fetch_add(1, Ordering::SeqCst);
        self.threads().for_each(|thread| thread.kept_places.forget());
    }
    /// Changes its root or its working directory.
    pub fn change_places(&self, change: impl FnOnce(&FsContext)) {
        change(&self.fs());
        self.forget_places();
    }
}

impl Task {
    /// Calls `look` with the process' memory; `look` may run for a whole call. For the task itself.
    #[inline]
    pub fn with_space<R>(&self, look: impl FnOnce(&Arc<ProcessSpace>) -> R) -> R {
        self.kept_space.with(&self.process().space, look)
    }
    /// Calls `look` with the process' descriptors; `look` may run for a whole call. For the task
    /// itself.
    #[inline]
    pub fn with_files<R>(&self, look: impl FnOnce(&Arc<FileTable>) -> R) -> R {
        self.kept_files.with(&self.process().files, look)
    }
    /// Calls `look` with the process' root and working directory; `look` may run for a whole call.
    /// For the task itself.
    #[inline]
    pub fn with_places<R>(&self, look: impl FnOnce(&Places) -> R) -> R {
        let get = || self.process().places();
        self.kept_places.with_by(&self.process().places_version, get, |places| look(places))
    }
    /// Calls `look` with the process' credentials; `look` may run for a whole call. For the task
    /// itself.
    #[inline]
    pub fn with_credentials<R>(&self, look: impl FnOnce(&Arc<Credentials>) -> R) -> R {
        self.kept_credentials.with(&self.process().credentials, look)
    }
    /// Drops the kept references to the process' state.
    pub(super) fn forget_kept(&self) {
        self.kept_space.forget();
        self.kept_files.forget();
        self.kept_places.forget();
        self.kept_credentials.forget();
    }
}
