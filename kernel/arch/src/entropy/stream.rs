//! A ChaCha20 generator with fast key erasure (D. J. Bernstein, "Fast-key-erasure random-number
//! generators", 2017).
//!
//! A refill produces [`BLOCK`] bytes from the key. The first 32 of them replace the key at once,
//! the others are handed out, each wiped as it leaves. So a state that is captured after a draw
//! does not reveal earlier draws: the key that produced it is gone, and ChaCha20 cannot be run
//! backwards. Linux' nearest relative is `crng_fast_key_erasure` (drivers/char/random.c).

use core::hint::black_box;

use chacha20::cipher::array::Array;
use chacha20::cipher::{KeyIvInit, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R20};

/// Bytes of a key.
pub(super) const KEY: usize = 32;
/// Bytes per refill: four ChaCha20 blocks.
pub(super) const BLOCK: usize = 256;

/// A key; wiped when it is dropped.
#[derive(Clone)]
pub(super) struct CipherKey([u8; KEY]);

impl CipherKey {
    pub(super) const ZERO: Self = Self([0; KEY]);

    /// Replaces the key by ChaCha20's output for it and `material`. Another input gives an
    /// unrelated key.
    pub(super) fn stir(&mut self, material: &[u8; KEY]) {
        self.0.iter_mut().zip(material).for_each(|(byte, more)| *byte ^= more);
        let mut block = [0; BLOCK];
        self.next_block(&mut block);
        wipe(&mut block);
    }

    /// Fills `block`. Its first [`KEY`] bytes become the key, and are zeroed in the block.
    fn next_block(&mut self, block: &mut [u8; BLOCK]) {
        Blocks::of(self).fill(block);
        let (key, _) = block.split_at_mut(KEY);
        self.0.copy_from_slice(key);
        wipe(key);
    }
}

impl Drop for CipherKey {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Stores zeroes; the compiler cannot remove these stores.
fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    black_box(bytes);
}

/// The output of one key, with a counter and nonce of zero, block by block: up to 256 GiB.
struct Blocks(ChaChaCore<R20, Ietf>);

impl Blocks {
    fn of(key: &CipherKey) -> Self {
        Self(Self::cipher(key))
    }
    fn cipher(key: &CipherKey) -> ChaChaCore<R20, Ietf> {
        ChaChaCore::new(&key.0.into(), &[0; 12].into())
    }
    /// The next block of the output.
    fn fill(&mut self, block: &mut [u8; BLOCK]) {
        self.0.write_keystream_blocks(Array::cast_slice_from_core_mut(block.as_chunks_mut().0));
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.0 = Self::cipher(&CipherKey::ZERO);
        black_box(&mut self.0);
    }
}

/// A generator: a key, and the unused rest of its last block.
pub(super) struct KeyStream {
    key: CipherKey,
    block: [u8; BLOCK],
    /// Index of the first byte of `block` that was not handed out; all bytes before it are 0.
    next: usize,
}

impl KeyStream {
    /// Returns a stream without a key. It must be [started](Stream::restart) before it is drawn
    /// from.
    pub(super) const fn empty() -> Self {
        Self { key: CipherKey::ZERO, block: [0; BLOCK], next: BLOCK }
    }

    /// Continues with another key; the rest of the last block is wiped.
    pub(super) fn restart(&mut self, key: CipherKey) {
        self.key = key;
        wipe(&mut self.block);
        self.next = BLOCK;
    }

    /// Whether the next draw of `count` bytes needs another block.
    pub(super) const fn is_spent(&self, count: usize) -> bool {
        count > BLOCK - self.next
    }

    /// The next `N` bytes, at most [`BLOCK`] - [`KEY`].
    pub(super) fn draw<const N: usize>(&mut self) -> [u8; N] {
        const { assert!(N <= BLOCK - KEY, "a draw is of one block") };
        if self.is_spent(N) {
            self.key.next_block(&mut self.block);
            self.next = KEY;
        }
        let mut bytes = [0; N];
        let taken = &mut self.block[self.next..self.next + N];
        bytes.copy_from_slice(taken);
        wipe(taken);
        self.next += N;
        bytes
    }

    /// A key.
    pub(super) fn draw_key(&mut self) -> CipherKey {
        CipherKey(self.draw())
    }
}

impl From<[u8; KEY]> for CipherKey {
    fn from(bytes: [u8; KEY]) -> Self {
        Self(bytes)
    }
}

/// Fills `bytes` with the output of `key`, which is used up.
pub(super) fn expand(key: CipherKey, bytes: &mut [u8]) {
    let mut blocks = Blocks::of(&key);
    drop(key);
    let (whole, rest) = bytes.as_chunks_mut();
    whole.iter_mut().for_each(|block| blocks.fill(block));
    if !rest.is_empty() {
        let mut block = [0; BLOCK];
        blocks.fill(&mut block);
        rest.copy_from_slice(&block[..rest.len()]);
        wipe(&mut block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn started(byte: u8) -> KeyStream {
        let mut stream = KeyStream::empty();
        stream.restart(CipherKey([byte; KEY]));
        stream
    }

    /// All bytes that a stream has in memory.
    fn captured(stream: &KeyStream) -> KeyStream {
        KeyStream { key: stream.key.clone(), block: stream.block, next: stream.next }
    }

    #[test]
    fn output_is_chacha20_with_a_counter_and_nonce_of_zero() {
        // RFC 8439, A.1, test vectors 1 and 2: the key stream of the zero key.
        let mut bytes = [0; 128];
        expand(CipherKey::ZERO, &mut bytes);
        assert_eq!(bytes[..8], [0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90]);
        assert_eq!(bytes[64..72], [0x9f, 0x07, 0xe7, 0xbe, 0x55, 0x51, 0x38, 0x7a]);
    }

    #[test]
    fn the_first_bytes_of_a_block_are_the_next_key_and_are_never_handed_out() {
        let mut plain = [0; BLOCK];
        expand(CipherKey([7; KEY]), &mut plain);
        let mut stream = started(7);
        let first: [u8; 8] = stream.draw();
        assert_eq!(first, plain[KEY..KEY + 8]);
        assert_eq!(stream.key.0, plain[..KEY]);
        assert_eq!(stream.block[..KEY + 8], [0; KEY + 8], "key and drawn bytes are wiped");
        assert_eq!(stream.block[KEY + 8..], plain[KEY + 8..]);
    }

    #[test]
    fn a_state_captured_after_a_draw_does_not_reproduce_what_was_drawn() {
        for draws in [1, 13, 27, 28, 29, 100] {
            let mut stream = started(9);
            let earlier: Vec<[u8; 8]> = (0..draws).map(|_| stream.draw()).collect();
            let state = captured(&stream);
            // No drawn bytes are in memory. No key in memory, or derived from one, produces them
            // again.
            let mut visible: Vec<u8> = state.block.to_vec();
            visible.extend(state.key.0);
            let mut copy = captured(&state);
            let mut key = state.key.clone();
            for _ in 0..8 {
                visible.extend((0..28).flat_map(|_| copy.draw::<8>()));
                let mut bytes = [0; BLOCK];
                expand(key.clone(), &mut bytes);
                visible.extend(bytes);
                key.0.copy_from_slice(&bytes[..KEY]);
            }
            for word in &earlier {
                assert!(!visible.windows(8).any(|bytes| bytes == word), "{draws} draws");
            }
        }
    }

    #[test]
    fn a_captured_state_foretells_nothing_after_a_restart() {
        let mut stream = started(3);
        let _: [u8; 8] = stream.draw();
        let mut copy = captured(&stream);
        let mut key = stream.key.clone();
        key.stir(&[0x5a; KEY]);
        stream.restart(key);
        let next: [u8; 8] = stream.draw();
        assert!((0..1000).all(|_| copy.draw::<8>() != next));
    }

    #[test]
    fn stirring_uses_every_bit_of_key_and_material() {
        let stirred = |key: [u8; KEY], material: [u8; KEY]| {
            let mut key = CipherKey(key);
            key.stir(&material);
            key.0
        };
        let plain = stirred([1; KEY], [2; KEY]);
        for bit in 0..8 * KEY {
            let mut changed = [2; KEY];
            changed[bit / 8] ^= 1 << (bit % 8);
            let differing: u32 =
                stirred([1; KEY], changed).iter().zip(plain).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!((80..176).contains(&differing), "bit {bit} changes {differing} of 256");
        }
    }

    #[test]
    fn long_outputs_have_a_key_of_their_own() {
        let mut stream = started(4);
        let mut long = [0; 3 * BLOCK + 5];
        expand(stream.draw_key(), &mut long);
        let state = captured(&stream);
        assert_ne!(state.key.0, long[..KEY]);
        let mut again = [0; BLOCK];
        expand(state.key, &mut again);
        assert!(!long.windows(8).any(|bytes| bytes == &again[..8]));
        assert!(long[3 * BLOCK..].iter().any(|&byte| byte != 0));
    }
}
