//! [`Flags`] as the data that QEMU passes to a callback.

use core::ffi::c_void;

use freehold_scope_engine::Flags;

const ALL: [Flags; 7] =
    [Flags::Set, Flags::Clear, Flags::Leave, Flags::Pop, Flags::Push, Flags::Return, Flags::Constant];

/// Returns the data for `kind`.
pub fn data(kind: Flags) -> *mut c_void {
    let number = ALL.iter().position(|&other| other == kind).unwrap_or(ALL.len());
    number as *mut c_void
}

/// Returns the flags that [`data`] packed.
pub fn of(data: *mut c_void) -> Flags {
    ALL[data as usize % ALL.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_comes_back_as_itself() {
        for kind in ALL {
            assert_eq!(of(data(kind)), kind);
        }
    }
}
