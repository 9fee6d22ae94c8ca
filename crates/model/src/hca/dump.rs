//! A core dump of a process of the DPA, while it is written: piece by piece, so that others have
//! the function between two of them. The command is answered when it is whole.

use std::sync::Arc;

use super::commands::pieces;
use super::objects::QueueMemory;
use super::refusal::Refusal;
use super::registry::kind;
use super::state::Hca;
use crate::dpa::{CoreDump, PIECE};

/// One that is being written.
pub(crate) struct Dumping {
    /// The object, which may be gone meanwhile with its context.
    pub number: u32,
    pub mark: Arc<()>,
    pub file: CoreDump,
    /// Where it goes; if it is longer, nothing is written.
    pub room: QueueMemory,
    pub written: u64,
}

impl Dumping {
    /// Goes on by a piece; whether it is whole. What is refused is undone.
    pub(crate) fn go_on(&mut self, hca: &mut Hca) -> Result<bool, Refusal> {
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

    /// Writes the next piece of a file of this length.
    fn write(&mut self, hca: &Hca, length: u64) -> Result<(), Refusal> {
        let mut bytes = vec![0; (length - self.written).min(PIECE as u64) as usize];
        let room = self.room.slice(self.written, bytes.len() as u64);
        self.file.read(self.written, &mut bytes);
        pieces(&room.ok_or(Refusal::UmemBounds)?, |address, part| {
            hca.memory.write(address, &bytes[part]).map_err(|_| Refusal::UmemPages)
        })?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
