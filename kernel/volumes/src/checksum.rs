//! CRC-32C (Castagnoli), as ext4 uses it: without a final inversion.

/// Remainders of the sixteen values of four bits.
const TABLE: [u32; 16] = {
    let mut table = [0; 16];
    let mut value = 0;
    while value < 16 {
        let mut rest = value as u32;
        let mut bit = 0;
        while bit < 4 {
            rest = if rest & 1 != 0 { rest >> 1 ^ 0x82f6_3b78 } else { rest >> 1 };
            bit += 1;
        }
        table[value] = rest;
        value += 1;
    }
    table
};

/// Continues the checksum `sum` with `bytes`. The first sum is `!0`.
pub(crate) fn crc32c(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, &byte| {
        let low = sum ^ u32::from(byte);
        let sum = low >> 4 ^ TABLE[low as usize & 15];
        sum >> 4 ^ TABLE[sum as usize & 15]
    })
}
