//! Unreliable connection: the responder acknowledges nothing, so a request completes once it is
//! sent, and a lost message is not sent again.

use verbless_prm::hot::cqe_syndrome;
use verbless_prm::{HcaCap, OptParamMask as Opt, ServiceType};

use super::super::access::Nak;
use super::super::context::Missing;
use super::super::packets::requester;
use super::super::packets::responder::take_unreliable;
use super::super::queue_pair::QueuePair;
use super::super::responder::{self, MessagePart, WholeRequest};
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::work::PostedWqe;
use super::super::{completion, receive};
use super::connected::{Carrier, Exchange, Reply, carried, failed_as_receiver};
use super::service::Transport;
use crate::connection::advance;
use crate::hca::qp_type::{QpType, Users};
use verbless_wire::Service;

pub(super) static UC: Transport = Transport {
    qp_type: QpType {
        st: ServiceType::UC,
        users: Users::Capability(HcaCap::uc),
        access_opts: Opt::RWE.0,
        service: Some(Service::Uc),
        connected: true,
        reliable: false,
        datagrams: None,
        any_domain: false,
        copies: false,
    },
    carry: Some(send),
    turn: requester::turn,
    take: take_unreliable,
};

/// Sends a request that is ready.
fn send(
    carrier: &mut Carrier<'_>,
    posted: &PostedWqe,
    part: MessagePart,
    scratch: &mut Scratch,
) -> Result<Turn, Missing> {
    let Exchange { answer, packets, .. } = carrier.exchange(posted, part, scratch, receive)?;
    let pair = &mut carrier.pair()?;
    if failed_as_receiver(pair.qp) {
        return Ok(Turn::Sleep);
    }
    if let Reply::Failed(syndrome) = answer {
        return Ok(completion::finish(pair, posted, Err(syndrome)));
    }
    Ok(match carried(pair.qp, part, packets) {
        true => completion::succeed(pair, posted, 0, None),
        false => Turn::Again,
    })
}

/// Executes a message. The responder ignores a PSN gap before it, and drops a message that it
/// refuses: neither stops the QP.
fn receive(pair: &mut QueuePair<'_>, message: &WholeRequest<'_>, scratch: &mut Scratch) -> Reply {
    // A new message drops an unfinished one; a part that follows no earlier part is dropped.
    if message.part.begins() {
        receive::cut_message(pair.qp);
    }
    pair.qp.responder.psn = advance(message.psn, message.packets);
    if !responder::follows(pair.qp, message) {
        return Reply::Silence;
    }
    match responder::perform(pair, message, scratch) {
        Ok(original) => Reply::Done { original },
        Err(Nak::Source) => Reply::Failed(cqe_syndrome::LOCAL_PROTECTION),
        Err(_) => {
            receive::cut_message(pair.qp);
            Reply::Silence
        }
    }
}
