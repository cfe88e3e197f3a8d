//! Scripts: a first line `#!interpreter [argument]`.

/// Number of bytes at a file's start that are examined (BINPRM_BUF_SIZE).
pub const HEAD: usize = 256;

/// Returns the interpreter and its argument, if `head`, a file's first bytes, begins a script.
pub fn interpreter(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = head.strip_prefix(b"#!")?;
    let end = line.iter().position(|&byte| byte == b'\n' || byte == 0);
    let whole = end.is_some();
    let line = &line[..end.unwrap_or(line.len())];
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let trimmed = |text: &'_ [u8]| -> (usize, usize) {
        let start = text.iter().position(|byte| !blank(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
        (start, end)
    };
    let (start, stop) = trimmed(line);
    let line = &line[start..stop];
    let space = line.iter().position(blank);
    // A name that is cut off at the end of `head` would be another file's.
    if line.is_empty() || (!whole && space.is_none()) {
        return None;
    }
    let Some(space) = space else { return Some((line, None)) };
    let rest = &line[space..];
    let (start, stop) = trimmed(rest);
    Some((&line[..space], Some(&rest[start..stop])))
}

#[cfg(test)]
mod tests {
    use super::interpreter;

    #[test]
    fn the_rest_of_the_line_is_one_argument() {
        assert_eq!(interpreter(b"#!/bin/sh\necho"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(interpreter(b"#! /bin/sh  -e -x \n"), Some((&b"/bin/sh"[..], Some(&b"-e -x"[..]))));
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
        assert_eq!(interpreter(b"#!/a/name/that/was/cut"), None);
    }
}
