//! Queue memory as bytes and words. Every access is checked, since clients and commands may leave
//! anything there.

use crate::hca::objects::QueueMemory;
use crate::memory::{Fault, HostMemory};

impl QueueMemory {
    /// DMA address of byte `at`, and how many bytes follow it in the same page.
    fn span(&self, at: u64) -> Result<(u64, u64), Fault> {
        let fault = Fault { address: at, length: 1 };
        if at >= self.length {
            return Err(fault);
        }
        let within = at.checked_add(self.offset).ok_or(fault)?;
        let size = 1_u64.checked_shl(self.log_page_size).ok_or(fault)?;
        let page = self.pages.get((within >> self.log_page_size) as usize).ok_or(fault)?;
        let low = within & (size - 1);
        let room = (size - low).min(self.length - at);
        Ok((page.checked_add(low).ok_or(fault)?, room))
    }

    /// Calls `each` with the runs of host memory that hold `length` bytes from `at`; neighbouring
    /// pages are one run.
    #[inline]
    pub(crate) fn runs(
        &self,
        at: u64,
        length: u64,
        mut each: impl FnMut(u64, u64),
    ) -> Result<(), Fault> {
        let mut run: Option<(u64, u64)> = None;
        let mut done = 0;
        while done < length {
            let (address, room) =
                self.span(at.checked_add(done).ok_or(Fault { address: at, length })?)?;
            let here = room.min(length - done);
            run = match run {
                Some((start, size)) if start.checked_add(size) == Some(address) => {
                    Some((start, size + here))
                }
                Some((start, size)) => {
                    each(start, size);
                    Some((address, here))
                }
                None => Some((address, here)),
            };
            done += here;
        }
        if let Some((start, size)) = run {
            each(start, size);
        }
        Ok(())
    }

    /// Copies bytes out from `at` on, and wraps at the end of the queue.
    pub(crate) fn read_wrapping(
        &self,
        memory: &dyn HostMemory,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < into.len() {
            let position = (at + done as u64) % self.length.max(1);
            let (address, room) = self.span(position)?;
            let here = (into.len() - done).min(room as usize);
            memory.read(address, &mut into[done..done + here])?;
            done += here;
        }
        Ok(())
    }

    /// Copies bytes in at `at`, all within the queue.
    pub(crate) fn write(&self, memory: &dyn HostMemory, at: u64, from: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < from.len() {
            let (address, room) = self.span(at + done as u64)?;
            let here = (from.len() - done).min(room as usize);
            memory.write(address, &from[done..done + here])?;
            done += here;
        }
        Ok(())
    }

    /// Writes the entry at `at`: its last byte becomes visible after the rest, and the rest after
    /// everything written before.
    pub(crate) fn write_entry(
        &self,
        memory: &dyn HostMemory,
        at: u64,
        entry: &[u8],
    ) -> Result<(), Fault> {
        let (address, room) = self.span(at)?;
        if room >= entry.len() as u64 {
            return memory.write_entry(address, entry);
        }
        // An entry without bytes needs no write.
        let Some((_, rest)) = entry.split_last() else { return Ok(()) };
        self.write(memory, at, rest)?;
        let last = rest.len();
        memory.write_entry(self.span(at + last as u64)?.0, &entry[last..])
    }

    /// Overwrites an entry that may be read concurrently: its last dword, at a multiple of 4,
    /// becomes visible in one piece, after the rest.
    pub(crate) fn write_over(
        &self,
        memory: &dyn HostMemory,
        at: u64,
        entry: &[u8],
    ) -> Result<(), Fault> {
        let Some((rest, last)) = entry.split_last_chunk() else { return Ok(()) };
        self.write(memory, at, rest)?;
        memory.store32(self.span(at + rest.len() as u64)?.0, u32::from_ne_bytes(*last))
    }
}

/// Half of a doorbell record: a 32-bit big-endian word, read with acquire.
pub(crate) fn record(memory: &dyn HostMemory, address: u64) -> Result<u32, Fault> {
    memory.load32(address).map(u32::from_be)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::in_process;

    fn queue(pages: &[u64], log_page_size: u32, offset: u64, length: u64) -> QueueMemory {
        QueueMemory { pages: pages.to_vec().into(), log_page_size, offset, length }
    }

    #[test]
    fn runs_join_neighbours_and_stop_at_the_end() {
        let memory = queue(&[0x1_0000, 0x1_1000, 0x5_0000], 12, 0x100, 0x2f00);
        let mut seen = vec![];
        memory.runs(0xf00, 0x1800, |address, length| seen.push((address, length))).unwrap();
        assert_eq!(seen, [(0x1_1000, 0x1000), (0x5_0000, 0x800)]);
        seen.clear();
        memory.runs(0, 0x1f00, |address, length| seen.push((address, length))).unwrap();
        assert_eq!(seen, [(0x1_0100, 0x1f00)]);
        assert!(memory.runs(0x2f00, 1, |_, _| {}).is_err());
        assert!(memory.runs(0x2eff, 2, |_, _| {}).is_err());
        assert!(memory.runs(u64::MAX, 2, |_, _| {}).is_err());
    }

    #[test]
    fn short_page_list_is_a_fault() {
        let memory = queue(&[0x1_0000], 12, 0, 0x2000);
        assert!(memory.runs(0xfff, 2, |_, _| {}).is_err());
        assert!(queue(&[], 12, 0, 0).read_wrapping(&*in_process(), 0, &mut [0; 4]).is_err());
    }

    #[test]
    fn entry_write_crosses_pages_but_not_the_end() {
        const PAGE: u64 = 16;
        let mut words = [0_u64; 12];
        let base = words.as_mut_ptr() as u64;
        // 16 bytes each, in this order, of which the queue has 40 from the eighth on.
        let memory = queue(&[base + 4 * PAGE, base, base + 2 * PAGE], 4, 8, 40);
        let entry: Vec<u8> = (1..=30).collect();
        memory.write_entry(&*in_process(), 0, &entry).unwrap();
        let written: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut expected = [0; 96];
        expected[72..80].copy_from_slice(&entry[..8]);
        expected[..16].copy_from_slice(&entry[8..24]);
        expected[32..38].copy_from_slice(&entry[24..]);
        assert_eq!(written, expected);
        assert!(memory.write_entry(&*in_process(), 20, &entry).is_err());
        memory.write_entry(&*in_process(), 10, &entry).unwrap();
    }

    #[test]
    fn ring_read_wraps() {
        let ring: Vec<u8> = (0..128).collect();
        let memory = queue(&[ring.as_ptr() as u64], 12, 0, 128);
        let mut out = [0; 8];
        memory.read_wrapping(&*in_process(), 124, &mut out).unwrap();
        assert_eq!(out, [124, 125, 126, 127, 0, 1, 2, 3]);
    }
}
