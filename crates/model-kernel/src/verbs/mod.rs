//! The verbs of `mlx5_ib`: the kernel's interface for libraries without DevX.
//!
//! ```text
//!   wire      requests and responses, field by field
//!   memory    pinned buffers and their page lists
//!   query     QUERY_DEVICE                mr      memory regions
//!   cq        completion queues, channels
//!   mw        memory windows
//!   qp        queue pairs                 path    address vectors of QPs
//!   modify, transitions                   MODIFY_QP
//!   srq       shared receive queues       group   multicast groups
//!   listener  receivers of an object's completions and events
//! ```
//!
//! Each verb sends the commands that Linux sends, with the context's uid where Linux sets it. The
//! device decides. Facts: Linux 6.12, `drivers/infiniband/core/uverbs_cmd.c`,
//! `uverbs_std_types_*.c`, `verbs.c` and
//! `drivers/infiniband/hw/mlx5/{main,mr,cq,qp,srq,srq_cmd}.c`. Two differences from Linux: page
//! lists of buffers use pages of 4 KiB; a QP without an SRQ, XRC domain or Q counter names none,
//! where Linux names default objects, which would have no effect here.

mod commands;
pub(super) mod cq;
mod group;
pub(super) mod listener;
mod memory;
mod modify;
pub(super) mod mr;
mod mw;
pub(super) mod objects;
mod path;
pub(super) mod qp;
pub(crate) mod query;
pub(super) mod srq;
mod transitions;

pub(super) use commands::COMMANDS;

use nix::errno::Errno;

use super::abi::VerbsCall;
use super::file::{Method, MethodResult};

impl Method<'_> {
    /// Runs a method.
    pub(super) fn verbs(&mut self, call: VerbsCall) -> Result<MethodResult, Errno> {
        match call {
            VerbsCall::MrQuery => self.query_mr().map(|()| MethodResult::Nothing),
            VerbsCall::CqCreate => self.create_cq().map(|cq| MethodResult::Object(cq, Vec::new())),
            VerbsCall::QpCreate => {
                self.create_qp().map(|(qp, uses)| MethodResult::Object(qp, uses))
            }
            VerbsCall::SrqCreate => {
                self.create_srq().map(|(srq, uses)| MethodResult::Object(srq, uses))
            }
        }
    }
}
