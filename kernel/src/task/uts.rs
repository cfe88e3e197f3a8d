//! Names of the system: its release, and the names in a UTS namespace (Linux: `struct
//! uts_namespace`).

use super::credentials::Credentials;
use super::userns::{NamespaceHead, NamespaceKind};
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// The name of this system-call interface for programs.
pub const SYSTEM: &str = "Linux";
/// The Linux release with this interface, and the name of this kernel.
pub const RELEASE: &str = "6.1.0-freehold";
/// The release that programs see that cannot read a version above 2.6 (UNAME26): the minor version
/// is 60 more (Linux: `override_release`).
pub const RELEASE_26: &str = "2.6.61-freehold";
/// The build identification.
pub const VERSION: &str = concat!("#1 SMP Freehold ", env!("CARGO_PKG_VERSION"));
/// The instruction set.
pub const MACHINE: &str = "x86_64";
/// The instruction set that the personality PER_LINUX32 shows (Linux: COMPAT_UTS_MACHINE).
pub const MACHINE_32: &str = "i686";

/// Longest host or domain name.
pub const NAME_MAX: usize = 64;

/// The names that can be set.
#[derive(Clone, Copy)]
pub struct Names {
    /// The host name, NUL-terminated.
    pub host: [u8; NAME_MAX + 1],
    /// The NIS domain name, NUL-terminated.
    pub domain: [u8; NAME_MAX + 1],
}

/// Returns a field of `struct new_utsname`.
pub const fn field(text: &str) -> [u8; NAME_MAX + 1] {
    let mut field = [0; NAME_MAX + 1];
    let mut at = 0;
    while at < text.len() {
        field[at] = text.as_bytes()[at];
        at += 1;
    }
    field
}

/// One of the names that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// The host name.
    Host,
    /// The NIS domain name.
    Domain,
}

impl Names {
    /// Returns the bytes of a name.
    pub fn bytes(&self, which: Name) -> &[u8] {
        let field = if which == Name::Host { &self.host } else { &self.domain };
        field.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

/// A UTS namespace: the host name and the domain name.
pub struct UtsNamespace {
    head: NamespaceHead,
    names: SpinLock<Names>,
}

impl UtsNamespace {
    /// Makes the initial namespace.
    pub const fn initial() -> Self {
        let names = Names { host: field("freehold"), domain: field("(none)") };
        Self { head: NamespaceHead::initial(NamespaceKind::Uts), names: SpinLock::new(names) }
    }
    /// Makes a namespace with the same names, owned by the user namespace of `maker`.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn copy(&self, maker: &Credentials) -> Result<Self> {
        let head = NamespaceHead::new(NamespaceKind::Uts, maker)?;
        Ok(Self { head, names: SpinLock::new(self.names()) })
    }
    /// Returns the part that every namespace has.
    pub const fn head(&self) -> &NamespaceHead {
        &self.head
    }
    /// Sets a name: `EINVAL` for more than 64 bytes.
    pub fn set_name(&self, which: Name, name: &[u8]) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(Errno::EINVAL);
        }
        let mut new = [0; NAME_MAX + 1];
        new[..name.len()].copy_from_slice(name);
        let mut names = self.names.lock();
        match which {
            Name::Host => names.host = new,
            Name::Domain => names.domain = new,
        }
        Ok(())
    }
    /// Returns a consistent copy of both names.
    pub fn names(&self) -> Names {
        *self.names.lock()
    }
    /// Shows both names to `f`, which runs under a spin lock.
    pub fn look(&self, f: impl FnOnce(&Names)) {
        f(&self.names.lock());
    }
}
