//! Messages as the protocol's text has them, and bytes that are none.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn encoded(request: NinepRequest<'_>) -> Vec<u8> {
    request.encode(&mut [0xaa; MAX_REQUEST]).unwrap().to_vec()
}

#[test]
fn requests_are_the_bytes_that_the_protocol_says() {
    assert_eq!(encoded(NinepRequest::Version(8192, VERSION)), b"\x15\0\0\0\x64\0\0\0\x20\0\0\x08\09P2000.L",);
    assert_eq!(encoded(NinepRequest::Flush(0x0102)), b"\x09\0\0\0\x6c\0\0\x02\x01");
    assert_eq!(
        encoded(NinepRequest::Walk(1, 2, Some(b"ab"))),
        b"\x15\0\0\0\x6e\0\0\x01\0\0\0\x02\0\0\0\x01\0\x02\0ab",
    );
    assert_eq!(encoded(NinepRequest::Walk(1, 2, None)), b"\x11\0\0\0\x6e\0\0\x01\0\0\0\x02\0\0\0\0\0");
    assert_eq!(
        encoded(NinepRequest::Read(3, 0x1_0000_0000, 4096)),
        b"\x17\0\0\0\x74\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\x10\0\0",
    );
}

#[test]
fn requests_that_change_something_are_the_bytes_that_the_protocol_says() {
    let cases: [(NinepRequest<'_>, u8, &[u8]); 9] = [
        (
            NinepRequest::Create(1, b"a", 0o302, 0o644, 7),
            14,
            b"\x01\0\0\0\x01\0a\xc2\0\0\0\xa4\x01\0\0\x07\0\0\0",
        ),
        (NinepRequest::Symlink(1, b"a", b"bc", 7), 16, b"\x01\0\0\0\x01\0a\x02\0bc\x07\0\0\0"),
        (
            NinepRequest::MakeNode(1, b"a", 0o010_600, (2, 3), 7),
            18,
            b"\x01\0\0\0\x01\0a\x80\x11\0\0\x02\0\0\0\x03\0\0\0\x07\0\0\0",
        ),
        (NinepRequest::MakeDirectory(1, b"a", 0o755, 7), 72, b"\x01\0\0\0\x01\0a\xed\x01\0\0\x07\0\0\0"),
        (NinepRequest::Link(1, 2, b"a"), 70, b"\x01\0\0\0\x02\0\0\0\x01\0a"),
        (NinepRequest::Rename(1, b"a", 2, b"bc"), 74, b"\x01\0\0\0\x01\0a\x02\0\0\0\x02\0bc"),
        (NinepRequest::Unlink(1, b"a", 0x200), 76, b"\x01\0\0\0\x01\0a\0\x02\0\0"),
        (NinepRequest::Sync(1), 50, b"\x01\0\0\0\0\0\0\0"),
        (NinepRequest::Write(1, 2, 3), 118, b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0"),
    ];
    for (request, kind, body) in cases {
        let bytes = encoded(request);
        assert_eq!((bytes[0] as usize, bytes[4]), (HEADER + body.len(), kind), "{request:?}");
        assert_eq!(&bytes[HEADER..], body, "{request:?}");
    }
    let new = NewAttributes { size: Some(5), modified: Some((6, 7)), ..NewAttributes::default() };
    let bytes = encoded(NinepRequest::SetAttributes(1, new));
    let words: Vec<u64> = [5, 0, 0, 6, 7].to_vec();
    let expected = [1u32, 0x128, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes());
    let expected: Vec<u8> = expected.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect();
    assert_eq!((bytes[4], &bytes[HEADER..]), (26, &expected[..]));
}

#[test]
fn a_request_that_does_not_fit_is_none() {
    let name = [b'x'; 255];
    let whole = encoded(NinepRequest::Walk(1, 2, Some(&name)));
    for length in 0..whole.len() {
        assert_eq!(NinepRequest::Walk(1, 2, Some(&name)).encode(&mut std::vec![0; length]), None, "{length}");
    }
}

/// Rlerror with ENOENT.
const NO_ENTRY: [u8; 11] = [11, 0, 0, 0, RLERROR, 5, 0, 2, 0, 0, 0];

#[test]
fn a_reply_is_its_requests_or_malformed() {
    assert_eq!(check(&NO_ENTRY, 11, 110, 5), Ok(Outcome::Error(2)));
    let done = [9, 0, 0, 0, 111, 5, 0, 0, 0];
    assert_eq!(check(&done, 9, 110, 5), Ok(Outcome::Done(9)));
    assert_eq!(check(&done, 4000, 110, 5), Ok(Outcome::Done(9)));
    assert_eq!(check(&done, 8, 110, 5), Err(Malformed), "longer than it is");
    assert_eq!(check(&done, 9, 110, 6), Err(Malformed), "another's tag");
    assert_eq!(check(&done, 9, 112, 5), Err(Malformed), "another's answer");
    assert_eq!(check(&done[..6], 9, 110, 5), Err(Malformed), "no header");
    assert_eq!(check(&NO_ENTRY, 10, 110, 5), Err(Malformed), "half an error");
    let mut short = NO_ENTRY;
    short[0] = 10;
    assert_eq!(check(&short, 11, 110, 5), Err(Malformed), "an error without its number");
    assert_eq!(check(&[6, 0, 0, 0, 111, 5, 0], 7, 110, 5), Err(Malformed), "shorter than a header");
    assert_eq!(check(&done, 9, 255, 5), Err(Malformed), "no such type");
}

fn entry(name: &[u8]) -> Vec<u8> {
    let mut bytes = std::vec![0x80, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 4];
    bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
    bytes.extend_from_slice(name);
    bytes
}

#[test]
fn entries_end_at_what_is_no_name() {
    let good = [entry(b"a"), entry(b"bc")].concat();
    let mut entries = Entries::new(&good);
    let first = entries.next().unwrap();
    assert_eq!((first.name, first.next, first.kind, first.qid.path), (&b"a"[..], 9, 4, 7));
    assert_eq!(entries.next().unwrap().name, b"bc");
    assert!(entries.next().is_none() && entries.is_at_end());
    for bad in [&b""[..], b"a/b", b"a\0", &[b'x'; 256]] {
        let bytes = [entry(b"a"), entry(bad), entry(b"c")].concat();
        let mut entries = Entries::new(&bytes);
        assert_eq!(entries.by_ref().count(), 1, "{bad:?}");
        assert!(!entries.is_at_end());
    }
}

#[test]
fn a_kind_that_is_not_told_is_the_qids() {
    let kind = |qid: u8, told: u8| {
        let mut bytes = entry(b"a");
        (bytes[0], bytes[21]) = (qid, told);
        Entries::new(&bytes).next().unwrap().kind
    };
    assert_eq!([kind(0x80, 0), kind(0x02, 0), kind(0, 0)], [4, 10, 0]);
    assert_eq!([kind(0x80, 8), kind(0, 8)], [8; 2]);
}

#[test]
fn a_link_leads_to_a_text() {
    assert_eq!(link_target(b"\x02\0ab"), Some(&b"ab"[..]));
    assert_eq!(link_target(b"\0\0"), None);
    assert_eq!(link_target(b"\x03\0ab"), None);
    assert_eq!(link_target(b"\x02\0a\0"), None);
}

#[test]
fn attributes_are_where_the_protocol_says() {
    let mut body = std::vec![0; 153];
    body[8..21].copy_from_slice(&[0x80, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    body[21..25].copy_from_slice(&0o100_644_u32.to_le_bytes());
    body[49..57].copy_from_slice(&1234_u64.to_le_bytes());
    body[89..97].copy_from_slice(&77_u64.to_le_bytes());
    let told = Attributes::decode(&body).unwrap();
    assert_eq!((told.mode, told.size, told.modified), (0o100_644, 1234, (77, 0)));
    body[49..57].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(Attributes::decode(&body), None, "no file is as long");
    assert_eq!(Attributes::decode(&body[..120]), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No bytes make a reader panic, and its result is within them.
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300), written in any::<usize>(),
                          kind in any::<u8>(), tag in any::<u16>()) {
        if let Ok(Outcome::Done(size)) = check(&bytes, written, kind, tag) {
            prop_assert!((HEADER..=written).contains(&size));
        }
        let _ = (Attributes::decode(&bytes), FileSystemStats::decode(&bytes), opened(&bytes), qid(&bytes));
        let _ = (walked(&bytes), version(&bytes), count(&bytes));
        if let Some(text) = link_target(&bytes) {
            prop_assert!(text.len() + 2 <= bytes.len() && !text.contains(&0));
        }
        let names: usize = Entries::new(&bytes).map(|entry| entry.name.len() + 24).sum();
        prop_assert!(names <= bytes.len());
    }

    /// A listing with one byte changed is read to an end, too.
    #[test]
    fn a_listing_with_a_flip_is_read(names in prop::collection::vec("[a-z]{1,20}", 1..8), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes: Vec<u8> = names.iter().flat_map(|name| entry(name.as_bytes())).collect();
        prop_assert_eq!(Entries::new(&bytes).count(), names.len());
        let at = at.index(bytes.len());
        bytes[at] = to;
        for entry in Entries::new(&bytes) {
            prop_assert!(!entry.name.is_empty() && !entry.name.contains(&b'/'));
        }
    }
}
