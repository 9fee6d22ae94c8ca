//! A cell of the matrix: its operation, its parameters and its name.

use verbless_queue::Domain;
use verbless_queue::service::ServiceInfo;
use verbless_queue::wr::{OperationInfo, Unsupported};

use crate::need::{ATOMICS, cap};
use crate::{Lab, Need, Stop};

/// Need of UMR.
pub(super) const UMR: Need = cap!(!umr_indirect_mkey_disabled);

/// A transport service in the matrix; the modules `carry` and `frame` post its requests.
pub(super) struct Row {
    pub(super) service: ServiceInfo,
    /// Needs of a cell.
    pub(super) needs: &'static [Need],
    /// Operations of the service.
    pub(super) operations: &'static [CellOperation],
    /// The lengths of its messages.
    pub(super) lengths: &'static [usize],
    pub(super) run: fn(&Lab, &Cell) -> Result<(), Stop>,
    /// The entry of the request that posts an operation.
    pub(super) info: fn(CellOperation) -> OperationInfo,
    pub(super) supports: fn(&Domain, &OperationInfo) -> Result<(), Unsupported>,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellOperation {
    Send,
    SendImm,
    SendInvalidate,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Umr,
    LocalInvalidate,
    EthSend,
    Nop,
}

/// The placement of a message's bytes, at both ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In the WQE, as a frame's header always is; in one SGE at the other end.
    Inline,
    /// In one SGE of a region.
    OneSge,
    /// In three SGEs of a region, in no order.
    ThreeSges,
    /// In two ranges of a region, under an indirect key.
    IndirectKey,
}

/// The way to post three requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Posting {
    /// One after the other, each with a completion.
    Signaled,
    /// One after the other, only the last with a completion.
    Unsignaled,
    /// With one doorbell, each with a completion.
    Batch,
}

/// A cell of the matrix.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub(super) row: &'static Row,
    pub(super) operation: CellOperation,
    pub(super) form: Form,
    pub(super) length: usize,
    pub(super) posting: Posting,
}

/// Requests of a cell.
pub(super) const REQUESTS: usize = 3;
/// The longest message of the matrix: several packets at any path MTU.
pub(super) const MAX_MESSAGE_BYTES: usize = 10_007;
/// Maximum inline bytes that every send queue of the matrix takes.
pub(super) const INLINE: usize = 200;

impl CellOperation {
    /// The possible forms of its payload.
    pub(super) fn forms(self) -> &'static [Form] {
        match self {
            Self::Nop => &[Form::Inline],
            Self::LocalInvalidate => &[Form::OneSge],
            Self::CompareSwap | Self::FetchAdd => &[Form::OneSge, Form::IndirectKey],
            // The SGEs of a UMR are its KLMs.
            Self::Read | Self::Umr => &[Form::OneSge, Form::ThreeSges, Form::IndirectKey],
            _ => &[Form::Inline, Form::OneSge, Form::ThreeSges, Form::IndirectKey],
        }
    }

    /// Whether a form allows a message of this length.
    pub(super) fn fits(self, form: Form, length: usize) -> bool {
        match self {
            Self::Nop => length == 0,
            Self::CompareSwap | Self::FetchAdd => length == 8,
            // A KLM with byte count 0 covers 2 GiB.
            Self::Umr => length >= REQUESTS,
            // The bytes of the key's range.
            Self::LocalInvalidate => length == 64,
            Self::EthSend => length > 0 && (form != Form::Inline || length <= INLINE),
            _ => form != Form::Inline || length <= INLINE,
        }
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether the operation consumes a receive of the peer.
    pub(super) fn takes_receive(self) -> bool {
        use CellOperation::{EthSend, Send, SendImm, SendInvalidate, WriteImm};
        matches!(self, Send | SendImm | SendInvalidate | WriteImm | EthSend)
    }

    /// Whether the operation brings bytes of the peer here.
    pub(super) fn fetches(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    /// Whether the operation has immediate data.
    pub(super) fn has_immediate(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// The operations in the completions of the sender and of the receiver.
    pub(super) fn completions(self) -> (verbless_queue::WcOpcode, verbless_queue::WcOpcode) {
        use verbless_queue::WcOpcode as Done;
        match self {
            Self::Send | Self::EthSend => (Done::Send, Done::Receive),
            Self::SendImm => (Done::SendImm, Done::ReceiveImm),
            Self::SendInvalidate => (Done::SendInvalidate, Done::ReceiveInvalidate),
            Self::Write => (Done::Write, Done::Receive),
            Self::WriteImm => (Done::WriteImm, Done::ReceiveWriteImm),
            Self::Read => (Done::Read, Done::Receive),
            Self::CompareSwap => (Done::CompareSwap, Done::Receive),
            Self::FetchAdd => (Done::FetchAdd, Done::Receive),
            Self::Umr | Self::LocalInvalidate => (Done::Umr, Done::Receive),
            Self::Nop => (Done::Nop, Done::Receive),
        }
    }
}

impl Cell {
    pub(super) fn name(&self) -> String {
        let service = self.row.service.name.to_lowercase();
        let operation = match self.operation {
            CellOperation::Send => "send",
            CellOperation::SendImm => "send_with_immediate",
            CellOperation::SendInvalidate => "send_with_invalidate",
            CellOperation::Write => "write",
            CellOperation::WriteImm => "write_with_immediate",
            CellOperation::Read => "read",
            CellOperation::CompareSwap => "compare_and_swap",
            CellOperation::FetchAdd => "fetch_and_add",
            CellOperation::Umr => "umr",
            CellOperation::LocalInvalidate => "local_invalidate",
            CellOperation::EthSend => "frame",
            CellOperation::Nop => "nop",
        };
        let form = match self.form {
            _ if self.operation == CellOperation::Nop => "",
            Form::Inline => "_inline",
            Form::OneSge => "_by_one_sge",
            Form::ThreeSges => "_by_three_sges",
            Form::IndirectKey => "_by_an_indirect_key",
        };
        let posting = match self.posting {
            Posting::Signaled => "signaled_each",
            Posting::Unsignaled => "signaled_at_the_end",
            Posting::Batch => "in_a_batch",
        };
        let length = match self.operation {
            CellOperation::Nop => String::new(),
            _ => format!("_of_{}_bytes", self.length),
        };
        format!("{service}_{operation}{length}{form}_{posting}")
    }

    pub(super) fn needs(&self) -> Vec<Need> {
        let more: &[Need] = match self.operation {
            CellOperation::CompareSwap | CellOperation::FetchAdd => &[ATOMICS],
            CellOperation::SendInvalidate | CellOperation::Umr | CellOperation::LocalInvalidate => {
                &[UMR]
            }
            _ => &[],
        };
        [self.row.needs, more].concat()
    }
}
