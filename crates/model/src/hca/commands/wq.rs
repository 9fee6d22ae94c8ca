//! The `wq` structure, which the contexts of SQs, RQs and RMPs contain.

use verbless_prm::reflect::EnumInfo;
use verbless_prm::{RqState, SqState, WqContext};

use super::call::{Call, Outcome};
use super::umem::{self, BufferSpec};
use crate::hca::objects::QueueMemory;
use crate::hca::refusal::Refusal;

/// Fields of the structure that CREATE_SQ, CREATE_RQ and CREATE_RMP accept.
const KNOWN: [&str; 14] = [
    "wq_type",
    "page_offset",
    "pd",
    "dbr_addr",
    "hw_counter",
    "sw_counter",
    "log_wq_stride",
    "log_wq_pg_sz",
    "log_wq_sz",
    "dbr_umem_valid",
    "wq_umem_valid",
    "dbr_umem_id",
    "wq_umem_id",
    "wq_umem_offset",
];

/// Where a command puts a queue's ring and doorbell record.
pub(super) struct WqSpec {
    pub buffer: BufferSpec,
    pub record_umem: Option<u32>,
    /// Address of the record, or its offset in the UMEM.
    pub record: u64,
}

impl From<&WqContext> for WqSpec {
    fn from(wq: &WqContext) -> Self {
        let buffer = BufferSpec {
            umem: wq.wq_umem_valid().then(|| (wq.wq_umem_id(), wq.wq_umem_offset())),
            log_page_size: wq.log_wq_pg_sz(),
            page_offset: wq.page_offset(),
            page_offset_bits: umem::WQ_OFFSET_BITS,
        };
        let record_umem = wq.dbr_umem_valid().then(|| wq.dbr_umem_id());
        Self { buffer, record_umem, record: wq.dbr_addr() }
    }
}

/// Memory of a queue.
pub(super) struct WqMemory {
    pub ring: QueueMemory,
    /// Address of the doorbell record.
    pub record: u64,
    /// UMEMs of both.
    pub umems: Vec<u32>,
}

impl Call<'_> {
    /// Refuses fields of a `wq` other than those that all queues accept, and `extra`.
    pub(super) fn only_wq(&self, wq: &WqContext, extra: &str) -> Outcome {
        self.check_known_fields(wq, &[&KNOWN[..], &[extra]].concat())
    }

    /// Finds the doorbell record, and the ring of `length` bytes, which starts at a multiple of
    /// `unit` bytes. The device only reads it.
    pub(super) fn wq_memory(
        &self,
        spec: &WqSpec,
        length: u64,
        unit: u64,
    ) -> Result<WqMemory, Refusal> {
        let record = self.record(spec.record_umem, spec.record)?;
        let ring = self.buffer(&spec.buffer, length, unit, false)?;
        let umem = spec.buffer.umem.map(|(id, _)| id);
        Ok(WqMemory {
            ring,
            record,
            umems: [umem, spec.record_umem].into_iter().flatten().collect(),
        })
    }
}

/// Whether an SQ or RQ may change from one state to another: it leaves ERR only to RST, where its
/// counters start at 0.
pub(super) fn is_legal_transition(from: SqState, to: SqState) -> bool {
    match to {
        SqState::RDY => from != SqState::ERR,
        SqState::RST | SqState::ERR => true,
        _ => false,
    }
}

/// The state of an RQ as that of an SQ: both contexts encode it alike.
pub(super) const fn as_sq(state: RqState) -> SqState {
    const {
        assert!(SqState::RST.0 == RqState::RST.0);
        assert!(SqState::RDY.0 == RqState::RDY.0);
        assert!(SqState::ERR.0 == RqState::ERR.0);
    }
    SqState(state.0)
}

/// Whether a bitmask of MODIFY_SQ or MODIFY_RQ selects only fields that the command has.
pub(super) fn selects_known(select: u64, fields: &EnumInfo) -> bool {
    let known = fields.values.iter().fold(0, |bits, &(_, bit)| bits | bit);
    select & !known == 0
}
