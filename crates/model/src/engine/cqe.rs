//! CQEs: their contents for a request, a received message, or an error.

use verbless_prm::hot::{CqeSourceQp, cqe_opcode, cqe_syndrome};
use verbless_prm::{
    Cqe, CqeError, CqeFormat, CqeOpcode, CqeSyndrome, CqeVendorSyndrome, WqeOpcode,
};

use crate::hca::objects::{QpObject, Rq, Sq};

/// The user index of a queue that has none.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// A CQE that is yet to be written, without its owner bit.
#[derive(Debug)]
pub(crate) struct Completion {
    /// The queue of the completed request. The CQE of a frame has the flow tag in its place.
    pub number: u32,
    /// The 64 bytes of the entry.
    pub body: [u8; 64],
    /// Inline data for the first half of a 128-byte entry.
    pub first_half: Option<[u8; 64]>,
    /// Whether the CQE causes an event at CQs that are armed for solicited completions only.
    pub solicited: bool,
}

/// Vendor syndromes that hardware is reported to give with the syndromes of error CQEs.
pub(crate) fn vendor(syndrome: u8) -> u8 {
    match syndrome {
        cqe_syndrome::LOCAL_LENGTH => 0x69,
        cqe_syndrome::LOCAL_QP_OPERATION => 0x68,
        cqe_syndrome::LOCAL_PROTECTION => 0x52,
        cqe_syndrome::FLUSHED => 0xf9,
        cqe_syndrome::REMOTE_INVALID_REQUEST => 0x8a,
        cqe_syndrome::REMOTE_ACCESS => 0x88,
        cqe_syndrome::REMOTE_OPERATION => 0x89,
        cqe_syndrome::TRANSPORT_RETRY_EXCEEDED => 0x81,
        cqe_syndrome::RNR_RETRY_EXCEEDED => 0x87,
        _ => 0,
    }
}

/// The contents of a successful request's CQE.
pub(crate) struct Requested {
    /// The opcode of the request's WQE.
    pub opcode: u8,
    pub index: u16,
    /// Bytes that arrived, for READs and atomics; 0 for others.
    pub bytes: u32,
    pub event: bool,
    pub now: u64,
}

/// The contents of a received message's CQE.
pub(crate) struct Received {
    /// The CQE's opcode, one of `cqe_opcode`.
    pub opcode: u8,
    pub index: u16,
    pub bytes: u32,
    pub immediate: u32,
    pub solicited: bool,
    pub slid: u16,
    /// The sender's QPN in bits 23:0; of a datagram also fields of its headers.
    pub peer: u32,
    pub now: u64,
}

impl Completion {
    /// A CQE of zeros, by which a DPA program causes an event.
    pub(crate) fn zero() -> Self {
        Self { number: 0, body: [0; 64], first_half: None, solicited: false }
    }

    /// The CQE of a request that succeeded; `inline` are the bytes that it carries.
    pub(crate) fn requester(
        queue: &impl Reports,
        number: u32,
        of: &Requested,
        inline: Option<&[u8]>,
    ) -> Self {
        let mut cqe = Cqe::zeroed();
        cqe.set_srqn_uidx(queue.user_index()).set_byte_cnt(of.bytes).set_timestamp(of.now);
        cqe.set_wqe_opcode(WqeOpcode(of.opcode)).set_qpn(number).set_wqe_counter(of.index);
        Self::new(cqe, cqe_opcode::REQUESTER, of.event, inline, queue.response_room())
    }

    /// The CQE of a message that arrived; `inline` are the bytes that it carries.
    pub(crate) fn responder(qp: &QpObject, qpn: u32, of: &Received, inline: Option<&[u8]>) -> Self {
        let mut cqe = Cqe::zeroed();
        let source = CqeSourceQp::from_bits(of.peer);
        cqe.set_g(source.g()).set_sl(source.sl()).set_rqpn(source.rqpn()).set_slid(of.slid);
        cqe.set_srqn_uidx(qp.user_index()).set_imm_inval_pkey(of.immediate);
        cqe.set_byte_cnt(of.bytes).set_timestamp(of.now);
        cqe.set_qpn(qpn).set_wqe_counter(of.index);
        Self::new(cqe, of.opcode, of.solicited, inline, qp.responder_inline)
    }

    /// An error CQE of the send (`REQUESTER_ERROR`) or receive queue (`RESPONDER_ERROR`).
    pub(crate) fn error(
        queue: &impl Reports,
        number: u32,
        cqe_opcode: u8,
        wqe_opcode: u8,
        index: u16,
        syndrome: u8,
    ) -> Self {
        let mut cqe = CqeError::zeroed();
        cqe.set_srqn_uidx(queue.user_index()).set_opcode(CqeOpcode(cqe_opcode));
        cqe.set_vendor_err_synd(CqeVendorSyndrome(vendor(syndrome)));
        cqe.set_syndrome(CqeSyndrome(syndrome));
        cqe.set_wqe_opcode(WqeOpcode(wqe_opcode)).set_qpn(number).set_wqe_counter(index);
        Self { number, body: *cqe.as_bytes(), first_half: None, solicited: true }
    }

    /// The last CQE of a buffer that its CQ leaves.
    pub(crate) fn resize() -> Self {
        let body = *Cqe::zeroed().set_opcode(CqeOpcode::RESIZE).as_bytes();
        Self { number: 0, body, first_half: None, solicited: false }
    }

    fn new(mut cqe: Cqe, opcode: u8, solicited: bool, inline: Option<&[u8]>, room: u8) -> Self {
        cqe.set_opcode(CqeOpcode(opcode)).set_se(solicited);
        let mut first_half = None;
        match inline {
            Some(bytes) if room == 64 => {
                let mut half = [0; 64];
                half[..bytes.len()].copy_from_slice(bytes);
                first_half = Some(half);
                cqe.set_format(CqeFormat::INLINE_64);
            }
            Some(bytes) => {
                cqe.as_bytes_mut()[..bytes.len()].copy_from_slice(bytes);
                cqe.set_format(CqeFormat::INLINE_32);
            }
            None => {}
        }
        Self { number: cqe.qpn(), body: *cqe.as_bytes(), first_half, solicited }
    }
}

/// A queue that CQEs report on.
pub(crate) trait Reports {
    /// The number by which CQEs refer to the queue.
    fn user_index(&self) -> u32;

    /// Bytes of a response that the CQE may carry.
    fn response_room(&self) -> u8;
}

impl Reports for QpObject {
    fn user_index(&self) -> u32 {
        match self.user_index {
            NO_USER_INDEX => self.srq.unwrap_or(0),
            index => index,
        }
    }

    fn response_room(&self) -> u8 {
        self.requester_inline
    }
}

impl Reports for Rq {
    fn user_index(&self) -> u32 {
        match self.context.user_index() {
            NO_USER_INDEX => self.srq.unwrap_or(0),
            index => index,
        }
    }

    fn response_room(&self) -> u8 {
        0
    }
}

impl Reports for Sq {
    fn user_index(&self) -> u32 {
        match self.context.user_index() {
            NO_USER_INDEX => 0,
            index => index,
        }
    }

    fn response_room(&self) -> u8 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_syndromes_are_described_with_their_syndrome() {
        for &(name, value) in CqeSyndrome::INFO.values {
            let vendor = vendor(value as u8);
            let doc = CqeVendorSyndrome(vendor).doc().unwrap_or_default();
            let said = doc.contains(&format!("{name} ({value:#04x})"));
            assert!(vendor == 0 || said, "{name}, {vendor:#x}: {doc}");
        }
    }
}
