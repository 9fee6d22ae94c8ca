//! The core dump of a DPA process. One command writes it chunk by chunk, so that other threads can
//! lock the function between two chunks; it completes with the last.

use std::sync::Arc;

use verbless_dpa::CHUNK;

use super::dpa::parts;
use crate::hca::dump::DumpInProgress;
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

impl DumpInProgress {
    /// Writes the next chunk; returns whether the dump is complete. A refusal removes the dump.
    pub(crate) fn write_next_chunk(&mut self, hca: &mut Hca) -> Result<bool, Refusal> {
        let dumps = &hca.objects.dpa_core_dumps;
        if hca.fatal {
            return Err(Refusal::DeviceFatal);
        }
        if !dumps.get(&self.number).is_some_and(|dump| Arc::ptr_eq(&dump.mark, &self.mark)) {
            return Err(Refusal::NoSuchDpaCoreDump);
        }
        let Some(length) = self.file.measure() else { return Ok(false) };
        if length <= self.room.length && self.written < length {
            self.write(hca, length).inspect_err(|_| hca.remove(kind::DpaCoreDump, self.number))?;
            if self.written < length {
                return Ok(false);
            }
        }
        hca.objects.change(kind::DpaCoreDump, self.number, |dump| {
            dump.context.set_dump_bytes(length);
        });
        Ok(true)
    }

    /// Writes the next chunk of a file of this length.
    fn write(&mut self, hca: &Hca, length: u64) -> Result<(), Refusal> {
        let mut bytes = vec![0; (length - self.written).min(CHUNK as u64) as usize];
        let room = self.room.slice(self.written, bytes.len() as u64);
        self.file.read(self.written, &mut bytes);
        parts(&room.ok_or(Refusal::UmemBounds)?, |address, part| {
            hca.memory.write(address, &bytes[part]).map_err(|_| Refusal::UmemPages)
        })?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
