//! The bytes of a layer: unpacked according to their first bytes, and checked against their
//! digests.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use oci_spec::image::{Digest, DigestAlgorithm};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest as _, Sha256, Sha512};

use super::manifest::Layer;
use super::source::ImageSource;
use crate::Result;
use crate::failure::{self, Failure};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A frame that decoders skip; the lowest four bits are free.
const SKIPPABLE: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

/// Ways to compress bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    fn of(head: &[u8]) -> Packing {
        let is_skippable = head.len() == 4 && head[0] & 0xf0 == SKIPPABLE[0] && head[1..] == SKIPPABLE[1..];
        if head.starts_with(&GZIP) {
            Packing::Gzip
        } else if head == ZSTD || is_skippable {
            Packing::Zstd
        } else {
            Packing::None
        }
    }
}

/// Reads the first four bytes, or fewer at the end.
fn head(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    reader.take(4).read_to_end(&mut head)?;
    Ok(head)
}

/// Returns whether these bytes are compressed in one of the ways that [`unpacked`] knows.
pub fn is_compressed(reader: &mut impl Read) -> io::Result<bool> {
    Ok(Packing::of(&head(reader)?) != Packing::None)
}

/// Returns the unpacked bytes of `reader`, or its bytes if they are not compressed.
pub fn unpacked<'a>(reader: &'a mut dyn Read) -> io::Result<Box<dyn Read + 'a>> {
    let mut reader = BufReader::with_capacity(1 << 17, reader);
    let head = head(&mut reader)?;
    let packing = Packing::of(&head);
    let whole = io::Cursor::new(head).chain(reader);
    Ok(match packing {
        Packing::None => Box::new(whole),
        Packing::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Packing::Zstd => {
            Box::new(ZstdFrames { source: whole, decoder: FrameDecoder::new(), is_in_frame: false })
        }
    })
}

/// All frames of a zstd stream, one after the other.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    /// Begins the next frame that has bytes. Returns `false` at the end of the stream.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_in_frame && self.decoder.can_collect() > 0 {
                return self.decoder.read(room);
            }
            if self.is_in_frame && !self.decoder.is_finished() {
                let step = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, step).map_err(io::Error::other)?;
                continue;
            }
            self.is_in_frame = self.begin()?;
            if !self.is_in_frame {
                return Ok(0);
            }
        }
    }
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// A reader that computes the digest of the bytes read.
struct Hashed<R> {
    reader: R,
    hasher: Hasher,
}

impl<R: Read> Hashed<R> {
    /// # Errors
    /// The digest's algorithm is not supported.
    fn new(reader: R, digest: &Digest) -> Result<Hashed<R>> {
        let hasher = match digest.algorithm() {
            DigestAlgorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            DigestAlgorithm::Sha512 => Hasher::Sha512(Sha512::new()),
            other => return Err(Failure::new(format!("digests of {other} are not known"), "")),
        };
        Ok(Hashed { reader, hasher })
    }

    /// Reads the rest and compares the digest.
    fn check(mut self, digest: &Digest, what: &str) -> Result<()> {
        io::copy(&mut self, &mut io::sink()).map_err(|error| unreadable(what, &error))?;
        let found = match self.hasher {
            Hasher::Sha256(hasher) => hexadecimal(&hasher.finalize()),
            Hasher::Sha512(hasher) => hexadecimal(&hasher.finalize()),
        };
        if found == digest.digest() {
            return Ok(());
        }
        Err(Failure::new(format!("{what} is damaged: its digest should be {digest}, but is {found}"), ""))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(room)?;
        match &mut self.hasher {
            Hasher::Sha256(hasher) => hasher.update(&room[..count]),
            Hasher::Sha512(hasher) => hasher.update(&room[..count]),
        }
        Ok(count)
    }
}

/// Returns bytes as text, two digits each.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unreadable(what: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Failure::new(format!("{what} is cut short"), ""),
        _ => Failure::new(format!("cannot read {what}: {}", failure::words(error)), ""),
    }
}

/// Checks a whole document against its digest.
///
/// # Errors
/// The digest differs.
pub fn check(bytes: &[u8], digest: &Digest, what: &str) -> Result<()> {
    Hashed::new(bytes, digest)?.check(digest, what)
}

/// Lets `apply` read a layer, unpacked. When this returns `Ok`, the bytes match the digests: the
/// digest of the layer as it is stored, if one is known, and that of its contents.
///
/// # Errors
/// The error of `apply`, or the layer is missing or damaged.
pub fn with_layer(
    source: &ImageSource,
    layer: &Layer,
    apply: impl FnOnce(&mut dyn Read) -> Result<()>,
) -> Result<()> {
    let what = &layer.what;
    let stored_digest = layer.stored.as_ref().unwrap_or(&layer.contents);
    let mut stored = Hashed::new(source.reader(&layer.name)?, stored_digest)?;
    {
        let bytes = unpacked(&mut stored).map_err(|error| unreadable(what, &error))?;
        let mut contents = Hashed::new(bytes, &layer.contents)?;
        apply(&mut contents)?;
        contents.check(&layer.contents, what)?;
    }
    match &layer.stored {
        Some(digest) => stored.check(digest, what),
        None => Ok(()),
    }
}
