//! The CRC-32 of Ethernet (IEEE 802.3, reflected polynomial 0xedb88320), sixteen bytes at a time.

/// Bytes at a time.
const STEP: usize = 16;

/// `TABLES[n][byte]`: the effect of a byte on the CRC with `n` bytes after it.
static TABLES: [[u32; 256]; STEP] = {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < STEP {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
};

/// `INVERSE[high]`: the byte whose entry in `TABLES[0]` has this high byte.
static INVERSE: [u8; 256] = {
    let mut inverse = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        inverse[(TABLES[0][byte] >> 24) as usize] = byte as u8;
        byte += 1;
    }
    inverse
};

/// The change of four consecutive bytes that changes the CRC by `difference`, with `following`
/// unchanged bytes after them: there is always exactly one.
pub(super) fn change(difference: u32, following: usize) -> [u8; 4] {
    let back = |crc: u32, _| {
        let byte = INVERSE[(crc >> 24) as usize];
        (crc ^ TABLES[0][usize::from(byte)]) << 8 | u32::from(byte)
    };
    (0..following + 4).fold(difference, back).to_le_bytes()
}

/// A CRC that is being computed.
pub(super) struct Crc(u32);

impl Crc {
    pub(super) const fn new() -> Self {
        Self(!0)
    }

    /// Adds these bytes to the CRC.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<STEP>();
        for block in blocks {
            // Only the first four depend on the CRC of the bytes before them.
            let after = |crc, at: usize, byte| crc ^ TABLES[STEP - 1 - at][usize::from(byte)];
            let others = (4..STEP).fold(0, |crc, at| after(crc, at, block[at]));
            let [a, b, c, d, ..] = *block;
            let first = (u32::from_le_bytes([a, b, c, d]) ^ self.0).to_le_bytes();
            let first = (0..4).fold(0, |crc, at| after(crc, at, first[at]));
            self.0 = first ^ others;
        }
        for byte in rest {
            self.0 = self.0 >> 8 ^ TABLES[0][usize::from(self.0 as u8 ^ byte)];
        }
    }

    pub(super) const fn finish(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::{Crc, change};

    fn crc(bytes: &[u8]) -> u32 {
        let mut crc = Crc::new();
        crc.update(bytes);
        crc.finish()
    }

    #[test]
    fn crc_matches_check_value_for_any_split() {
        let text = b"123456789";
        // As zlib computes it.
        let every: Vec<u8> = (0..=255).collect();
        for (bytes, check) in [(text.as_slice(), 0xcbf4_3926), (&every, 0x2905_8c73)] {
            for cut in 0..=bytes.len() {
                let mut crc = Crc::new();
                crc.update(&bytes[..cut]);
                crc.update(&bytes[cut..]);
                assert_eq!(crc.finish(), check, "cut at {cut}");
            }
        }
    }

    #[test]
    fn four_bytes_follow_from_the_crc_and_the_others() {
        let before: Vec<u8> = (0..100).map(|at| at ^ 0x5a).collect();
        for at in [0, 1, 50, 96] {
            let mut after = before.clone();
            let wrong = [0x12, 0, 0xff, at as u8];
            after[at..at + 4].iter_mut().zip(wrong).for_each(|(byte, wrong)| *byte ^= wrong);
            assert_eq!(change(crc(&before) ^ crc(&after), 100 - at - 4), wrong, "at {at}");
        }
        assert_eq!(change(0, 9), [0; 4]);
    }
}
