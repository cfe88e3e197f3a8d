//! Names of system calls, for reports.

/// Returns the name of the call with this number on x86-64.
pub fn name(number: u64) -> Option<&'static str> {
    syscalls::x86_64::Sysno::new(usize::try_from(number).ok()?).map(|call| call.name())
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_have_their_names() {
        assert_eq!(super::name(0), Some("read"));
        assert_eq!(super::name(435), Some("clone3"));
        assert_eq!(super::name(100_000), None);
    }
}
