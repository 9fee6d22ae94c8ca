//! What a device can do: the capability pages, read once when it is opened.

use verbless_prm as prm;
use verbless_prm::{HcaCap, HcaCap2, QueryHcaCapIn, QueryHcaCapOut};

use verbless_devx::Context;

use crate::Error;

/// Which capability page, by the number in QUERY_HCA_CAP's op_mod.
pub use prm::HcaCapPage as CapPage;

/// Whether to ask for what is in force or for what could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapMode {
    /// The most that the device could be set to.
    Maximum,
    /// What is in force.
    Current,
}

/// The capabilities that the driver goes by, in plain units, and the pages that they come from.
#[derive(Clone)]
pub struct Caps {
    /// log2 of the 64-byte blocks of a send ring, and of the WQEs of a receive ring, at most.
    pub log_max_qp_blocks: u8,
    /// log2 of the number of queue pairs at most.
    pub log_max_qps: u8,
    /// log2 of the CQEs of a completion queue at most.
    pub log_max_cqes: u8,
    /// log2 of the number of completion queues at most.
    pub log_max_cqs: u8,
    /// log2 of the number of memory keys at most.
    pub log_max_mkeys: u8,
    /// log2 of the bytes of a message at most.
    pub log_max_message: u8,
    /// Bytes of a send WQE at most.
    pub max_send_wqe_bytes: u16,
    /// Bytes of a receive WQE at most.
    pub max_receive_wqe_bytes: u16,
    /// READs and atomics that a queue pair may have outstanding, as requester.
    pub max_reads_out: u8,
    /// The same as responder.
    pub max_reads_in: u8,
    /// Ports.
    pub ports: u8,
    /// InfiniBand or Ethernet.
    pub port_type: prm::PortType,
    /// BlueFlame: bytes of a register (two buffers), or `None`.
    pub blue_flame_register: Option<u16>,
    /// Atomics on queue pairs.
    pub atomics: bool,
    /// The whole general page.
    pub general: Box<HcaCap>,
    /// The whole second general page, if the device has it.
    pub general_2: Option<Box<HcaCap2>>,
}

impl Caps {
    pub(crate) fn read(context: &Context) -> Result<Self, Error> {
        let page = query_hca_cap(context, CapPage::GENERAL, CapMode::Current)?;
        let general = Box::new(*HcaCap::from_prefix(&page[..]).ok_or_else(short)?);
        let general_2 = match general.hca_cap_2() {
            true => {
                let page = query_hca_cap(context, CapPage::GENERAL_2, CapMode::Current)?;
                Some(Box::new(*HcaCap2::from_prefix(&page[..]).ok_or_else(short)?))
            }
            false => None,
        };
        let g = &*general;
        Ok(Self {
            log_max_qp_blocks: g.log_max_qp_sz(),
            log_max_qps: g.log_max_qp(),
            log_max_cqes: g.log_max_cq_sz(),
            log_max_cqs: g.log_max_cq(),
            log_max_mkeys: g.log_max_mkey(),
            log_max_message: g.log_max_msg(),
            max_send_wqe_bytes: g.max_wqe_sz_sq(),
            max_receive_wqe_bytes: g.max_wqe_sz_rq(),
            max_reads_out: 1u8.checked_shl(g.log_max_ra_req_qp().into()).unwrap_or(0x80),
            max_reads_in: 1u8.checked_shl(g.log_max_ra_res_qp().into()).unwrap_or(0x80),
            ports: g.num_ports(),
            port_type: g.port_type(),
            blue_flame_register: g
                .bf()
                .then(|| 1u16.checked_shl(g.log_bf_reg_size().into()))
                .flatten(),
            atomics: g.atomic(),
            general,
            general_2,
        })
    }

    /// Scatter/gather entries of a send at most: what the largest WQE has room for beside its other segments.
    pub fn max_send_sges(&self) -> usize {
        // An atomic has the longest head: control, remote address and atomic segments.
        (usize::from(self.max_send_wqe_bytes).min(MAX_SEND_WQE_BYTES) / 16).saturating_sub(3)
    }

    /// Bytes of inline data of a send at most: what the largest WQE has room for beside control, remote address and the
    /// inline header.
    pub fn max_inline(&self) -> usize {
        usize::from(self.max_send_wqe_bytes).min(MAX_SEND_WQE_BYTES).saturating_sub(32 + 4)
    }

    /// Scatter/gather entries of a receive at most.
    pub fn max_receive_sges(&self) -> usize {
        usize::from(self.max_receive_wqe_bytes) / 16
    }
}

impl std::fmt::Debug for Caps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.general.fmt(f)
    }
}

fn short() -> Error {
    crate::error::wrong_answer("QUERY_HCA_CAP", "the page is shorter than its description")
}

/// QUERY_HCA_CAP: one page, as the device sends it.
pub(crate) fn query_hca_cap(
    context: &Context,
    page: CapPage,
    mode: CapMode,
) -> Result<Box<[u8; 0x1000]>, Error> {
    let mut input = QueryHcaCapIn::new();
    input.set_op_mod(page.0 << 1 | u16::from(mode == CapMode::Current));
    let mut output = Box::new(QueryHcaCapOut::zeroed());
    crate::execute(context, &input, &mut *output)?;
    Ok(Box::new(*output.capability()))
}

/// The `ds` field of a control segment counts up to 63 units of 16 bytes; the last of 16 blocks is not whole.
const MAX_SEND_WQE_BYTES: usize = 61 * 16;
