//! The files that the command and the microscope's plugin exchange.
//!
//! The command writes [`Settings`] as one JSON file and starts QEMU with the plugin and that file's
//! path. The plugin writes [`Results`] to the path in the settings, when QEMU ends. Both sides use
//! only these types, so they cannot misunderstand each other; [`VERSION`] says whether they are of
//! one build.
//!
//! All times are guest instructions: of the whole machine (the sum over its CPUs) unless a field
//! says otherwise. All addresses are the guest's.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod coverage;
mod exposure;
mod kinds;
mod memory;
mod oracle;
mod results;
mod settings;
mod sharing;

pub use coverage::{Executed, Ranges};
pub use exposure::{Exposure, Lives, Residue};
pub use kinds::{DataKind, KernelData, KindCounts};
pub use memory::{Backend, BackendRange, HwAddress, MemoryBackends, PluggableMemory};
pub use oracle::{Checks, KernelLayout, Oracle, Rule, SmapChecks, Stale, Violation};
pub use results::{
    BlockRecord, Bucket, CODE_PAGE, Cause, Collision, Cost, Counting, CpuCounts, CpuPhase, Death, Emulator,
    FrameOwner, FrameUser, Half, HeatRegion, LifetimeGroup, Locality, Modes, NearCounts, NearResult, Page,
    Phase, Results, Slice, TlbResult, fingerprint, log2_bucket,
};
pub use settings::{
    CacheModel, CacheShape, Heat, Models, NearShape, Settings, SettingsError, Subject, TlbShape,
};
pub use sharing::{PhaseSharing, SharedStore, Sharing};

/// The version of these types. The plugin refuses settings of another.
pub const VERSION: u32 = 7;

/// Reason why a file is no valid record.
#[derive(Debug)]
pub enum ReadError {
    /// The file could not be read.
    Io(std::io::Error),
    /// The file is no JSON, or not of these types.
    Json(serde_json::Error),
    /// The file has another version than [`VERSION`].
    Version(u32),
}

impl core::fmt::Display for ReadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Json(error) => write!(f, "not what was expected: {error}"),
            Self::Version(version) => write!(f, "of version {version}, but this is version {VERSION}"),
        }
    }
}

impl std::error::Error for ReadError {}

/// Adds methods to a type that read it from a file and write it to one.
macro_rules! in_a_file {
    ($kind:ty) => {
        impl $kind {
            /// Reads it from a file.
            ///
            /// # Errors
            /// [`ReadError`](crate::ReadError) if the file holds no record of this version.
            pub fn read(path: &std::path::Path) -> Result<Self, crate::ReadError> {
                crate::read(path)
            }
            /// Writes it to a file, whole or not at all.
            ///
            /// # Errors
            /// The error of the file system.
            pub fn write(&self, path: &std::path::Path) -> std::io::Result<()> {
                crate::write(self, path)
            }
        }
    };
}
use in_a_file;

/// Reads a JSON file of version [`VERSION`].
fn read<T: serde::de::DeserializeOwned>(path: &std::path::Path) -> Result<T, ReadError> {
    #[derive(serde::Deserialize)]
    struct Head {
        version: u32,
    }
    let text = std::fs::read(path).map_err(ReadError::Io)?;
    let head: Head = serde_json::from_slice(&text).map_err(ReadError::Json)?;
    if head.version != VERSION {
        return Err(ReadError::Version(head.version));
    }
    serde_json::from_slice(&text).map_err(ReadError::Json)
}

/// Writes a JSON file, whole or not at all.
fn write<T: serde::Serialize>(value: &T, path: &std::path::Path) -> std::io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = std::path::PathBuf::from(fresh);
    let text = serde_json::to_vec(value)?;
    std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path)).inspect_err(|_| {
        // A partial file is removed, since it is worse than none. An error of the removal would add
        // nothing to the first error.
        let _ = std::fs::remove_file(&fresh);
    })
}
