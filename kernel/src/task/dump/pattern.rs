//! The name of a core file: /proc/sys/kernel/core_pattern (core(5); Linux: `format_corename`).

use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use freehold_collections::{Vec, try_format};

use crate::sync::SpinLock;
use crate::{Errno, Result};

/// Largest number of bytes of a pattern (Linux: CORENAME_MAX_SIZE, with its NUL).
const MOST: usize = 127;

static PATTERN: SpinLock<ArrayVec<u8, MOST>> = SpinLock::new(ArrayVec::new_const());
/// Whether the pattern was ever set. Until then it is `core`.
static IS_SET: AtomicBool = AtomicBool::new(false);
static USES_PID: AtomicBool = AtomicBool::new(false);

/// Returns the pattern.
pub fn pattern() -> ArrayVec<u8, MOST> {
    if IS_SET.load(Ordering::Acquire) {
        return PATTERN.lock().clone();
    }
    b"core".iter().copied().collect()
}

/// Sets the pattern to the first line of a text, cut to the largest length.
///
/// # Errors
/// `EINVAL` for `|PROGRAM` and `@SOCKET`: core files cannot be piped to a program here. A log
/// message reports this.
pub fn set_pattern(text: &[u8]) -> Result<()> {
    let line = text.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default();
    if matches!(line.first(), Some(b'|' | b'@')) {
        log::warn!("core_pattern: a core file goes to files only, not to programs (|) or sockets (@)");
        return Err(Errno::EINVAL);
    }
    let new = line.iter().copied().take(MOST).collect();
    *PATTERN.lock() = new;
    IS_SET.store(true, Ordering::Release);
    Ok(())
}

/// Returns whether names without `%p` get the process' number (core_uses_pid).
pub fn uses_pid() -> u64 {
    USES_PID.load(Ordering::Relaxed).into()
}

/// Sets whether names without `%p` get the process' number: any value except 0 means yes.
///
/// # Errors
/// None.
pub fn set_uses_pid(value: u64) -> Result<()> {
    USES_PID.store(value != 0, Ordering::Relaxed);
    Ok(())
}

/// The values for the letters of a pattern.
pub struct Facts<'a> {
    /// The numbers of the process and of the thread, each in its own PID namespace and in the
    /// initial one.
    pub numbers: [u32; 4],
    /// The real user and group.
    pub ids: [u32; 2],
    /// The number that PR_GET_DUMPABLE returns.
    pub dumpable: u32,
    /// The signal.
    pub signal: u8,
    /// Seconds since 1970.
    pub time: u64,
    /// The host's name.
    pub host: &'a [u8],
    /// The thread's name.
    pub comm: &'a [u8],
    /// The path of the executable.
    pub executable: &'a [u8],
    /// RLIMIT_CORE, bytes.
    pub limit: u64,
    /// The CPU.
    pub cpu: u32,
}

/// Returns the name for `pattern`.
///
/// # Errors
/// `ENOMEM`; `EINVAL` for an empty pattern.
#[cold]
pub fn name(pattern: &[u8], uses_pid: u64, facts: &Facts<'_>) -> Result<Vec<u8>> {
    if pattern.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut name = Vec::new();
    let mut has_pid = false;
    let mut letters = pattern.iter().copied();
    while let Some(letter) = letters.next() {
        if letter != b'%' {
            name.try_push(letter)?;
            continue;
        }
        let Some(letter) = letters.next() else { break };
        has_pid |= letter == b'p';
        put(&mut name, letter, facts)?;
    }
    if uses_pid != 0 && !has_pid {
        name.try_extend_from_slice(try_format!(".{}", facts.numbers[0])?.as_bytes())?;
    }
    Ok(name)
}

fn put(name: &mut Vec<u8>, letter: u8, facts: &Facts<'_>) -> Result<()> {
    let [pid, initial_pid, tid, initial_tid] = facts.numbers;
    let number: u64 = match letter {
        b'%' => return Ok(name.try_push(b'%')?),
        b'h' => return put_word(name, facts.host),
        b'e' => return put_word(name, facts.comm),
        b'f' => {
            let last = facts.executable.rsplit(|&byte| byte == b'/').next();
            return put_word(name, last.unwrap_or_default());
        }
        b'E' => return put_word(name, facts.executable),
        b'p' => pid.into(),
        b'P' => initial_pid.into(),
        b'i' => tid.into(),
        b'I' => initial_tid.into(),
        b'u' => facts.ids[0].into(),
        b'g' => facts.ids[1].into(),
        b'd' => facts.dumpable.into(),
        b's' => facts.signal.into(),
        b't' => facts.time,
        b'c' => facts.limit,
        b'C' => facts.cpu.into(),
        // As on Linux, unknown letters expand to nothing.
        _ => return Ok(()),
    };
    name.try_extend_from_slice(try_format!("{number}")?.as_bytes())?;
    Ok(())
}

/// Adds a word that a program chose, changed so that it cannot name another directory.
fn put_word(name: &mut Vec<u8>, word: &[u8]) -> Result<()> {
    if matches!(word, b"" | b"." | b"..") {
        name.try_push(b'!')?;
        return Ok(name.try_extend_from_slice(&word[word.len().min(1)..])?);
    }
    for &byte in word {
        name.try_push(if byte == b'/' { b'!' } else { byte })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts<'static> = Facts {
        numbers: [7, 77, 8, 88],
        ids: [1, 2],
        dumpable: 1,
        signal: 11,
        time: 99,
        host: b"host",
        comm: b"a/b",
        executable: b"/bin/x",
        limit: 4096,
        cpu: 3,
    };

    fn named(pattern: &[u8], uses_pid: u64) -> std::string::String {
        std::string::String::from_utf8(name(pattern, uses_pid, &FACTS).expect("memory").to_vec())
            .expect("text")
    }

    #[test]
    fn each_letter_stands_for_what_core_5_says() {
        assert_eq!(
            named(b"%p %P %i %I %u %g %d %s %t %h %e %f %E %c %C %%", 0),
            "7 77 8 88 1 2 1 11 99 host a!b x !bin!x 4096 3 %"
        );
        assert_eq!(named(b"core%z.%", 0), "core.");
    }

    #[test]
    fn a_pid_is_added_where_it_is_asked_for_and_missing() {
        assert_eq!(
            [named(b"core", 1), named(b"core.%p", 1), named(b"core%P", 1)],
            ["core.7", "core.7", "core77.7"]
        );
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let with = |comm| name(b"%e", 0, &Facts { comm, ..FACTS }).expect("memory").to_vec();
        assert_eq!(
            [with(b".."), with(b"."), with(b""), with(b"../x")],
            [b"!.".to_vec(), b"!".to_vec(), b"!".to_vec(), b"..!x".to_vec()]
        );
    }

    #[test]
    fn programs_and_sockets_are_refused() {
        assert_eq!([set_pattern(b"|/bin/cat"), set_pattern(b"@/run/x")], [Err(Errno::EINVAL); 2]);
    }
}
